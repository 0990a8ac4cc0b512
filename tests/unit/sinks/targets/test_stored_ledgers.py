"""The entries of the targets' ledgers, byte by byte: a worker reads what another worker has committed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, cast

import pytest

from tests.contracts.targets_bed import shape
from tests.unit.sinks.targets.test_shard_ledgers import State
from tidesink.events import TableId
from tidesink.sinks.state.progress import PartitionProgress, Progress, TopicProgress
from tidesink.sinks.targets.base import ApplyResult
from tidesink.sinks.targets.delta.ledger import Ledger, read_entry
from tidesink.sinks.targets.delta.log import Commit, DeltaLog
from tidesink.sinks.targets.iceberg.jvm import TableState
from tidesink.sinks.targets.iceberg.ledger import IcebergLedger
from tidesink.sinks.targets.sql.dialect import Dialect
from tidesink.sinks.targets.sql.ledger import SqlEntry, SqlLedger
from tidesink.sinks.targets.sql.location import Place
from tidesink.typemap.target_schema import Shard

TABLE: Final = TableId("shop", "ördérs")
AT: Final = PartitionProgress(70, 70, 407, None)
PROGRESS: Final = Progress(TABLE, "shop", 3, 7, {"t": TopicProgress("t", "x", {0: AT})}, commit_ts=407)
PROGRESS_TEXT: Final = (
    '{"version":1,"pipeline":"shop","table":["shop","\\u00f6rd\\u00e9rs"],"epoch":3,"batch":7,"commit_ts":407,'
    '"sequence_by":"kafka","topics":{"t":{"topic_id":"x","partitions":{"0":[70,70,407,null]}}}}'
)
SHARD: Final = Shard("shard", "a/é")


def delta(shard: Shard | None = None) -> Ledger:
    return Ledger(cast(DeltaLog, None), TABLE, "shop", "/lake", None, ("id", "é"), shard)


def iceberg(shard: Shard | None = None) -> IcebergLedger:
    return IcebergLedger(TABLE, "shop", "lake.`shop`.`orders`", ("id", "é"), shard)


DELTA: Final = {
    "claim": '{"tidesink":1,"kind":"claim","pipeline":"shop","epoch":1,"batch":0,"keys":["id","\\u00e9"],'
    '"progress":null}',
    "batch": '{"tidesink":1,"kind":"batch","pipeline":"shop","epoch":3,"batch":7,"keys":["id","\\u00e9"],'
    '"progress":' + PROGRESS_TEXT + ',"counts":{"begun":2,"ended":1},"seen":5}',
    "shard's claim": '{"tidesink":1,"kind":"claim","pipeline":"shop","epoch":1,"batch":0,'
    '"keys":["id","\\u00e9"],"progress":null,"shard":"a/\\u00e9","source":["shop","\\u00f6rd\\u00e9rs"],'
    '"columns":null}',
    "shard's batch": '{"tidesink":1,"kind":"batch","pipeline":"shop","epoch":3,"batch":7,'
    '"keys":["id","\\u00e9"],"progress":' + PROGRESS_TEXT + ',"seen":0,"shard":"a/\\u00e9",'
    '"source":["shop","\\u00f6rd\\u00e9rs"],"columns":["id","shard"]}',
}


def _delta_texts() -> dict[str, str]:
    known = ("id", "shard")
    return {
        "claim": delta().claimed(None).to_json(),
        "batch": delta().batch_text(PROGRESS, counts={"begun": 2, "ended": 1}, seen=5),
        "shard's claim": delta(SHARD).claimed(None).to_json(),
        "shard's batch": delta(SHARD).batch_text(PROGRESS, known=known, seen=0),
    }


@pytest.mark.parametrize("kind", DELTA)
def test_an_entry_in_a_commit_of_delta(kind: str) -> None:
    text = _delta_texts()[kind]
    assert text == DELTA[kind]
    entry = read_entry(Commit(9, "MERGE", 8, text))
    assert entry is not None
    applied = PROGRESS if entry.kind == "batch" else None
    assert (entry.pipeline, entry.progress, entry.keys) == ("shop", applied, ("id", "é"))
    assert (entry.shard, entry.source) == (("a/é", TABLE) if "shard" in kind else (None, None))


ICEBERG: Final = {
    "claim": '{"tidesink":1,"kind":"claim","pipeline":"shop","epoch":1,"batch":0,"snapshot":5,'
    '"keys":["id","\\u00e9"],"claimed_by":"c","result":null,"progress":null}',
    "batch": '{"tidesink":1,"kind":"batch","pipeline":"shop","epoch":1,"batch":7,"snapshot":6,'
    '"keys":["id","\\u00e9"],"claimed_by":"c","result":[1,2,3,4,"6"],"progress":' + PROGRESS_TEXT + "}",
    "stale rows": '{"tidesink":1,"kind":"batch","pipeline":"shop","epoch":1,"batch":7,"snapshot":6,'
    '"keys":["id","\\u00e9"],"claimed_by":"c","result":[1,2,3,4,"6",9],"progress":' + PROGRESS_TEXT + "}",
    "next claim": '{"tidesink":1,"kind":"claim","pipeline":"shop","epoch":2,"batch":7,"snapshot":8,'
    '"keys":["id","\\u00e9"],"claimed_by":"c","result":null,"progress":'
    + PROGRESS_TEXT.replace('"epoch":3', '"epoch":2')
    + "}",
    "shard's claim": '{"tidesink":1,"kind":"claim","pipeline":"shop","epoch":1,"batch":0,"snapshot":5,'
    '"keys":["id","\\u00e9"],"claimed_by":"c","result":null,"progress":null,"shard":"a/\\u00e9",'
    '"source":["shop","\\u00f6rd\\u00e9rs"],"columns":null}',
    "shard's batch": '{"tidesink":1,"kind":"batch","pipeline":"shop","epoch":1,"batch":7,"snapshot":6,'
    '"keys":["id","\\u00e9"],"claimed_by":"c","result":[1,2,3,4,"6"],"progress":' + PROGRESS_TEXT + ","
    '"shard":"a/\\u00e9","source":["shop","\\u00f6rd\\u00e9rs"],"columns":["amount","id","name"]}',
}


@pytest.mark.parametrize("kind", ICEBERG)
def test_an_entry_in_a_property_of_iceberg(kind: str) -> None:
    ledger = iceberg(SHARD if "shard" in kind else None)
    entry = replace(ledger.claimed(None, snapshot=5), claimed_by="c")
    if kind.rsplit(maxsplit=1)[-1] != "claim":
        result = ApplyResult(1, 2, 3, 4, "6", 9 if kind == "stale rows" else 0)
        entry = ledger.batch(entry, PROGRESS, result, snapshot=6, shape=shape())
    if kind == "next claim":
        batch = ledger.batch(entry, PROGRESS, ApplyResult(1, 2, 3, 4, "6"), snapshot=6, shape=shape())
        entry = replace(ledger.claimed(batch, snapshot=8), claimed_by="c")
    texts = ledger.properties(entry)
    assert texts[ledger.name] == ICEBERG[kind]
    state = cast(TableState, State(texts, (entry.snapshot,)))
    assert ledger.entry(state) == entry


class _Cursor:
    """Keeps the values of the last statement, and has one row."""

    values: tuple[Any, ...] = ()
    row: tuple[Any, ...] = ()

    def execute(self, _statement: str, values: tuple[Any, ...]) -> None:
        self.values = values

    def fetchone(self) -> tuple[Any, ...]:
        """A ledger row that was read with the columns in the order in which they were written."""
        return ('["shop", "\\u00f6rd\\u00e9rs"]', *self.row)


RESULT: Final = ApplyResult(1, 2, 3, 4, "é", 5)
ENTRY: Final = SqlEntry("shop", ("id", "é"), 3, PROGRESS, RESULT, commits=9, horizon=400, identity="l:t")
ROW: Final = (
    "shop",
    3,
    3 * 2**40 + 7,
    PROGRESS_TEXT,
    '["id", "\\u00e9"]',
    '{"inserted": 1, "updated": 2, "deleted": 3, "absent": 4, "version": "\\u00e9", "stale": 5}',
    9,
    400,
    "l:t",
)


@pytest.mark.parametrize(
    ("entry", "row", "shard"),
    [
        (SqlEntry("shop", ("id",)), ("shop", 0, 0, None, '["id"]', None, 0, None, None), None),
        (ENTRY, ROW, None),
        (
            replace(ENTRY, known=("id", "é")),
            (*ROW, '["id", "\\u00e9"]'),
            SHARD,
        ),
        (SqlEntry("shop", ()), ("shop", 0, 0, None, "[]", None, 0, None, None, None), SHARD),
    ],
)
def test_a_row_of_a_databases_ledger(entry: SqlEntry, row: tuple[Any, ...], shard: Shard | None) -> None:
    place = Place(TABLE, "shop", "orders", lambda name: f"`{name}`", shard)
    ledger, cursor = SqlLedger(cast(Dialect, None), place, "shop", ("id",)), _Cursor()
    ledger.write(cursor, entry)
    own = ("orders",) if shard is None else ("orders", shard.value)
    assert cursor.values == (*row, *own)
    cursor.row = row
    assert ledger.read(cursor) == entry
