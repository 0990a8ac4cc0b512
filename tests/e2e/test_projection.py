"""Columns, names, a filter, metadata and ignored nulls, all at once, from Kafka to each kind of target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, schema_of, shop_config
from tests.full import FULL
from tidesink.codecs.base import CodecOptions
from tidesink.config import load_config
from tidesink.events import Column, ColumnType, Op, Row, TableId
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

LAYOUT: dict[str, Any] = {
    "name": "shop.laid",
    "except_column_list": ["secret"],
    "rename": {"id": "number", "name": "Full name"},
    "filter": "n > 2 AND secret <> 'no'",
    "metadata": {
        "op": "_op",
        "commit_ts": "_at",
        "database": "_database",
        "table": "_table",
        "topic": "_topic",
        "partition": "_partition",
        "offset": "_offset",
        "batch": "_batch",
    },
    "ignore_null_updates": True,
    "deletes": "soft",
}
SHOWN = ("Full name", "n", "_op", "_at", "_offset", "_batch", "_tidesink_deleted")
# What is the same of every row, a deleted one too.
ALIKE = ("_database", "_table", "_partition", "_topic")
PARTITION = 1


class _Changes:
    """One table's changes, each with the next commit_ts."""

    def __init__(self, servers: Servers) -> None:
        more = [Column("n", ColumnType("int", sql="int")), Column("secret", ColumnType("varchar", length=9))]
        options = CodecOptions(enable_tidb_extension=True)
        schema, partitions = schema_of("laid", *more), PARTITION + 1
        self._writer = TableWriter(
            servers, schema, protocol="canal-json", partitions=partitions, options=options
        )
        self.topic = self._writer.topic
        self._ts = 100

    def send(self, op: Op, *values: Any, old: tuple[Any, ...] | None = None) -> None:
        names = ("id", "name", "n", "secret")
        row: Row = dict(zip(names, values, strict=True))
        before: Row | None = dict(zip(names, old, strict=True)) if old else None
        self._ts += 1
        record = self._writer.encoded(op, row, before=before, commit_ts=self._ts)
        self._writer.send(record.key, record.value, partition=PARTITION)


@pytest.mark.parametrize("kind", ["delta", pytest.param("postgres", marks=FULL)])
def test_all_of_it_at_once(
    servers: Servers, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    """A row comes, leaves by the filter and comes again; another is changed, and deleted; a key changes."""
    place, changes = place_of(kind, request, tmp_path), _Changes(servers)
    source = {
        "brokers": servers["brokers"],
        "protocol": "canal-json",
        "topics": [changes.topic],
        "enable-tidb-extension": True,
    }
    config = shop_config(tmp_path, servers, {"source": source, "tables": [LAYOUT], "target": place.target})

    def drained(unmatched: int) -> dict[int, tuple[Any, ...]]:
        report = run(load_config(config), until="drained")
        assert report.exit_code == 0, [table.error for table in report.tables]
        counted = report.tables[0].counters
        assert counted["read"] == counted["applied"] + counted["superseded"]
        assert counted["filtered_out"] == unmatched
        rows = place.rows(TableId("shop", "laid")) or []
        assert "secret" not in rows[0]
        alike = {tuple(row[name] for name in ALIKE) for row in rows}
        assert alike == {("shop", "laid", PARTITION, changes.topic)}
        return {row["number"]: tuple(row[name] for name in SHOWN) for row in rows}

    changes.send(Op.INSERT, 1, "one", 5, "s")
    changes.send(Op.INSERT, 2, "two", 1, "s")
    changes.send(Op.INSERT, 3, "three", 9, "s")
    assert drained(1) == {
        1: ("one", 5, "insert", 101, 0, 1, False),
        3: ("three", 9, "insert", 103, 2, 1, False),
    }
    changes.send(Op.UPDATE, 1, "uno", 5, "no", old=(1, "one", 5, "s"))
    changes.send(Op.UPDATE, 2, "two", 7, "s", old=(2, "two", 1, "s"))
    changes.send(Op.UPDATE, 3, None, 8, "s", old=(3, "three", 9, "s"))
    changes.send(Op.UPDATE, 5, None, 8, "s", old=(4, None, 8, "s"))
    assert drained(1) == {
        1: ("one", 5, "delete", 104, 3, 2, True),
        2: ("two", 7, "update", 105, 4, 2, False),
        3: ("three", 8, "update", 106, 5, 2, False),
        5: (None, 8, "update", 107, 6, 2, False),
    }
    changes.send(Op.UPDATE, 1, None, 6, "s", old=(1, "uno", 5, "no"))
    changes.send(Op.DELETE, 3, None, 8, "s")
    found = drained(0)
    assert found[1] == (None, 6, "update", 108, 7, 3, False)
    assert found[3] == ("three", 8, "delete", 109, 8, 3, True)
