"""Members of ENUM and SET that DDL numbers again, through a real broker: every label is the source's.

The rows carry numbers alone. Partition 0 has the DDL; the rows are on both.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL
from tests.servers import create_topics
from tidesink.codecs.base import CodecOptions
from tidesink.config import Config, load_config
from tidesink.events import Column, TableSchema, Value
from tidesink.sinks.kafka.offsets import KafkaOffsets, Look
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.worker.run import Worker, assembled, run
from tidesink.typemap.mysql_types import parse_sql_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MS = 1 << 18
# What grade and flags were, one after the other: numbered again, fewer, and text at the end.
_GRADES = (
    ("enum('low','high')", "set('a','b','c')"),
    ("enum('none','low','high')", "set('c','a','b')"),
    ("enum('high','low')", "set('c','a','b','d')"),
    ("varchar(10)", "set('d','c')"),
)
_LABELS = ("low", "high"), ("none", "low", "high"), ("high", "low"), ("low", "1", "2")
_FLAGS = ("", "a", "b,c", "a,b,c"), ("", "c", "a,b", "c,a,b"), ("d", "a,b", "c,d"), ("d", "c", "d,c")


def _schema(version: int) -> TableSchema:
    grade, flags = (parse_sql_type(sql) for sql in _GRADES[version])
    return schema_of("graded", Column("grade", grade), Column("flags", flags))


class _Story:
    """Writes the topic part by part; ``rows`` is what the source has."""

    def __init__(self, servers: Servers, *, extension: bool) -> None:
        self.topic = f"{servers['prefix']}cdc"
        create_topics(servers["brokers"], {self.topic: 2})
        options = CodecOptions(enable_tidb_extension=extension)
        self.rows: dict[int, tuple[str, str]] = {}
        self._writers = [
            TableWriter(servers, _schema(version), protocol="canal-json", topic=self.topic, options=options)
            for version in range(len(_GRADES))
        ]
        self._random = random.Random(7)
        self._ms = 1_700_000_000_000

    def tell(self, version: int, *, partitions: tuple[int, ...] = (0, 1), labels: int = 9) -> None:
        """The DDL of one version, then rows of it, with no more than so many of its labels."""
        grade, flags = _GRADES[version]
        sql = f"ALTER TABLE shop.graded MODIFY grade {grade}, MODIFY flags {flags}"
        if version == 0:
            columns = f"id BIGINT PRIMARY KEY, name VARCHAR(40), grade {grade}, flags {flags}"
            sql = f"CREATE TABLE shop.graded ({columns})"
        self._writers[version].ddl(sql, commit_ts=self._next())
        for _ in range(8):
            self._write(version, 2 * self._random.randrange(8) + self._random.choice(partitions), labels)

    def _next(self) -> int:
        self._ms += 1
        return self._ms * _MS

    def _write(self, version: int, key: int, labels: int) -> None:
        grade, flags = (self._random.choice(known[version][:labels]) for known in (_LABELS, _FLAGS))
        row: dict[str, Value] = {"id": key, "name": f"v{version}", "grade": grade, "flags": flags}
        self._writers[version].upsert(row, partition=key % 2, commit_ts=self._next())
        self.rows[key] = grade, flags


def _config(folder: Path, servers: Servers, topic: str, **more: Any) -> Config:
    source: dict[str, Any] = {"brokers": servers["brokers"], "protocol": "canal-json", "topics": [topic]}
    return load_config(shop_config(folder, servers, {"source": source, **more}))


def _found(folder: Path) -> dict[int, tuple[str, str]]:
    return {key: (row["grade"], row["flags"]) for key, row in lake_rows(folder, "graded").items()}


def _run(config: Config) -> None:
    report = run(config, until="drained")
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    assert [table.warnings for table in report.tables] == [()]


@FULL
@pytest.mark.parametrize("extension", [True, False])
def test_a_worker_that_starts_after_all_of_it(
    spark: SparkSession, tmp_path: Path, servers: Servers, extension: bool
) -> None:
    story = _Story(servers, extension=extension)
    for version in range(len(_GRADES)):
        story.tell(version)
    # Small batches: they end on both sides of each DDL.
    config = _config(tmp_path, servers, story.topic, batch={"max-records": 13})
    _run(config)
    assert _found(tmp_path) == story.rows


@FULL
def test_a_worker_that_starts_again_between_the_parts(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    story = _Story(servers, extension=True)
    for version in range(len(_GRADES)):
        story.tell(version)
        # The state store holds what the columns were before, and is lost once.
        if version == 2:
            (tmp_path / "state.db").unlink()
        _run(_config(tmp_path, servers, story.topic))
        assert _found(tmp_path) == story.rows


class _Meanwhile(KafkaOffsets):
    """Where topics end; before it says so for the second time, something happens."""

    happens: Callable[[], None]
    asked = 0

    def look(self, *asked: Any) -> Look:
        self.asked += 1
        if self.asked == 2:
            self.happens()
        return super().look(*asked)


@FULL
def test_rows_read_before_partition_0_is_read_as_far_as_their_ddl(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    story = _Story(servers, extension=True)
    story.tell(0, partitions=(0,))
    # Numbers that the definition before has too: nothing about them asks for another.
    config = _config(tmp_path, servers, story.topic, batch={"max-records": 4})
    with assembled(config, (), StopFlag()) as around:
        offsets = _Meanwhile(config.source.confluent_properties())
        offsets.happens = lambda: story.tell(1, partitions=(1,), labels=2)
        report = Worker(around, until="drained", offsets=offsets).run()
    assert (report.exit_code, offsets.asked > 2) == (0, True)
    assert _found(tmp_path) == story.rows
