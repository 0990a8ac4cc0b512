"""Ledgers of lakes' tables read back: of a table of one source, and shard by shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tidesink.errors import StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.state.progress import PartitionProgress, Progress, TopicProgress
from tidesink.sinks.targets.delta.ledger import APPLICATION, Ledger, application_of
from tidesink.sinks.targets.delta.log import Commit, DeltaLog
from tidesink.sinks.targets.iceberg.jvm import TableState
from tidesink.sinks.targets.iceberg.ledger import LEDGER, SHARED_ROWS, IcebergLedger
from tidesink.typemap.target_schema import Shard

A, B = TableId("shop_1", "orders"), TableId("shop_2", "orders")
# An entry of a table of one source, as each of the two formats stores it.
PROGRESS = (
    '{"version":1,"pipeline":"shop","table":["shop","orders"],"epoch":3,"batch":7,"commit_ts":407,'
    '"sequence_by":"kafka","topics":{"t":{"topic_id":"x","partitions":{"0":[70,70,407,null]}}}}'
)
PLAIN_DELTA = (
    '{"tidesink":1,"kind":"batch","pipeline":"shop","epoch":3,"batch":7,"keys":["id"],"progress":'
    + PROGRESS
    + "}"
)
PLAIN_ICEBERG = (
    '{"tidesink":1,"kind":"batch","pipeline":"shop","epoch":3,"batch":7,"snapshot":11,"keys":["id"],'
    '"claimed_by":"c","result":[1,0,0,0,"11"],"progress":' + PROGRESS + "}"
)
PLAIN = Progress(
    TableId("shop", "orders"),
    "shop",
    3,
    7,
    {"t": TopicProgress("t", "x", {0: PartitionProgress(70, 70, 407, None)})},
    commit_ts=407,
)


@dataclass(frozen=True)
class Log:
    """A Delta log of commits by version, the first of them 0."""

    commits: Sequence[Commit]
    versions: dict[str, int] = field(default_factory=dict)

    def latest(self) -> int:
        return len(self.commits) - 1

    def commit(self, version: int) -> Commit:
        return self.commits[version]

    def newest_first(self, *, at: int | None = None, above: int = -1) -> Iterator[Commit]:
        yield from reversed(self.commits[above + 1 : (self.latest() if at is None else at) + 1])

    def transaction_version(self, application: str) -> int | None:
        return self.versions.get(application)

    def applications(self) -> tuple[str, ...]:
        return tuple(self.versions)


def delta(log: Log, table: TableId, shard: str | None = None) -> Ledger:
    own = Shard("shard", shard) if shard else None
    return Ledger(cast(DeltaLog, log), table, "shop", "/lake", None, ("id", "shard"), own)


def commits(*parts: tuple[str, TableId, int] | str) -> Log:
    """A log of batches (shard, source, batch) and of others' operations."""
    found: list[Commit] = []
    versions: dict[str, int] = {}
    for version, part in enumerate(parts):
        if isinstance(part, str):
            found.append(Commit(version, part, version - 1))
            continue
        shard, table, batch = part
        ledger = delta(Log(()), table, shard)
        progress = Progress(table, "shop", 1, batch)
        text = ledger.batch_text(progress, known=("id", "shard"))
        versions[ledger.application] = progress.txn_version
        found.append(Commit(version, "MERGE", version - 1, text))
    return Log(found, versions)


def test_a_delta_ledger_of_one_source_is_read_and_takes_no_shard() -> None:
    log = Log([Commit(0, "CREATE TABLE"), Commit(1, "MERGE", 0, PLAIN_DELTA)], {APPLICATION: 1})
    entry = delta(log, PLAIN.table).newest()
    assert entry is not None
    assert (entry.epoch, entry.batch, entry.progress, entry.shard) == (3, 7, PLAIN, None)
    with pytest.raises(StaleProgressError, match="has no shard column"):
        delta(log, A, "1").newest()


def test_a_delta_ledger_of_one_source_names_no_shard() -> None:
    ledger = Ledger(cast(DeltaLog, Log(())), PLAIN.table, "shop", "/lake", None, ("id",))
    assert ledger.batch_text(PLAIN) == PLAIN_DELTA
    assert (ledger.application, application_of("x", Shard("s", "a/b"))) == (APPLICATION, "x/a/b")


def test_each_shard_finds_its_own_commits_among_the_others() -> None:
    log = commits("CREATE TABLE", ("1", A, 1), ("2", B, 1), ("1", A, 2), ("2", B, 2), "OPTIMIZE", ("2", B, 3))
    a, b = delta(log, A, "1"), delta(log, B, "2")
    assert (a.committed(), b.committed()) == (Progress(A, "shop", 1, 2), Progress(B, "shop", 1, 3))
    latest, entries = a.since(1)
    assert (latest, [entry.batch for entry in entries]) == (6, [2])
    assert (a.shards(), delta(log, A, "3").shards()) == (("2",), ("1", "2"))
    assert delta(log, A, "3").newest() is None
    with pytest.raises(StaleProgressError, match=r"belongs to shop_1\.orders of pipeline 'shop'"):
        delta(log, B, "1").newest()
    with pytest.raises(StaleProgressError, match=r"Several source tables share .*\(1, 2\)"):
        delta(log, TableId("shop", "orders")).newest()


def test_rows_moved_back_stop_those_shards_that_had_later_commits() -> None:
    parts: list[tuple[str, TableId, int] | str] = ["CREATE TABLE", ("1", A, 1), ("2", B, 1), ("2", B, 2)]
    log = commits(*parts, "RESTORE")
    restored = Log([*log.commits[:-1], Commit(4, "RESTORE", 3, restored_version=2)], log.versions)
    assert delta(restored, A, "1").committed() == Progress(A, "shop", 1, 1)
    with pytest.raises(StaleProgressError, match="RESTORE at version 4"):
        delta(restored, B, "2").committed()


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of Iceberg's, as far as a ledger asks."""

    number: int
    parent: int | None

    def snapshotId(self) -> int:  # noqa: N802  (Java's name)
        return self.number

    def parentId(self) -> int | None:  # noqa: N802
        return self.parent

    def operation(self) -> str:
        return "append"


@dataclass(frozen=True)
class State:
    """An Iceberg table's state: properties, and snapshots from the newest down."""

    texts: Mapping[str, str]
    snapshots: tuple[int, ...] = (11,)
    rest: int | None = None

    @property
    def head(self) -> int:
        return self.snapshots[0]

    def property(self, name: str) -> str | None:
        return self.texts.get(name)

    def properties(self, prefix: str) -> dict[str, str]:
        return {k.removeprefix(prefix): v for k, v in self.texts.items() if k.startswith(prefix)}

    def numbers(self, _snapshot: Any) -> dict[str, int]:
        return {}

    def lineage(self) -> Iterator[Any]:
        for at, number in enumerate(self.snapshots):
            yield Snapshot(number, (*self.snapshots, self.rest)[at + 1])


def iceberg(table: TableId, shard: str | None = None) -> IcebergLedger:
    own = Shard("shard", shard) if shard else None
    return IcebergLedger(table, "shop", "lake.shop.orders", ("id",), own)


def state(texts: Mapping[str, str], *snapshots: int, rest: int | None = None) -> TableState:
    return cast(TableState, State(texts, snapshots or (11,), rest))


def test_an_iceberg_ledger_of_one_source_is_read_and_takes_no_shard() -> None:
    entry = iceberg(PLAIN.table).entry(state({LEDGER: PLAIN_ICEBERG}))
    assert entry is not None
    assert (entry.epoch, entry.progress, entry.branch, entry.shard) == (3, PLAIN, "tidesink_3", None)
    assert entry.text == PLAIN_ICEBERG
    with pytest.raises(StaleProgressError, match="has no shard column"):
        iceberg(A, "1").entry(state({LEDGER: PLAIN_ICEBERG}))


def test_the_way_back_to_a_shards_rows_is_that_to_the_last_commit_of_any() -> None:
    a, b = iceberg(A, "1"), iceberg(B, "2")
    first = a.properties(a.claimed(None, snapshot=3))
    texts = {**first, **b.properties(b.claimed(None, snapshot=9))}
    assert texts[SHARED_ROWS] == "9"
    # The snapshots between 3 and 8 are expired: what B left says that nothing moved since A's.
    entry = a.entry(state(texts, 10, 9, rest=8))
    assert entry is not None
    assert (entry.snapshot, entry.shard, entry.source) == (3, "1", A)
    for ledger in (a, b, iceberg(A, "new")):
        with pytest.raises(StaleProgressError, match="rolled back"):
            ledger.entry(state(texts, 3))
    with pytest.raises(StaleProgressError, match=r"Several source tables share"):
        iceberg(PLAIN.table).entry(state(texts, 9))
    assert (a.shards(state(texts, 9)), a.is_ours(entry.branch), b.is_ours(entry.branch)) == (
        ("2",),
        True,
        False,
    )
    assert iceberg(PLAIN.table).is_ours("tidesink_12")
    assert not iceberg(PLAIN.table).is_ours(entry.branch)
