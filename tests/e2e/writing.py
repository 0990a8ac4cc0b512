"""Writes small tables into a real broker: rows through our own codec, and bytes as they are given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.e2e.replay import Servers
from tests.executors import executor_of_test
from tests.letters import letter_settings
from tests.servers import create_topics
from tests.sessions import SMALL_SPARK
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions, EncodedRecord
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    DdlEvent,
    Op,
    Position,
    Row,
    TableId,
    TableSchema,
    WatermarkEvent,
)
from tidesink.schema_registry import open_registry

ID = Column("id", ColumnType("bigint", sql="bigint"), nullable=False, handle=True, primary_key=True)
NAME = Column("name", ColumnType("varchar", length=40, sql="varchar(40)"))


def schema_of(name: str, *more: Column) -> TableSchema:
    """A table of the shop: id, name and what is given."""
    return TableSchema(TableId("shop", name), (ID, NAME, *more))


class TableWriter:
    """Produces one table's changes to its topic, one partition unless set otherwise."""

    def __init__(
        self,
        servers: Servers,
        schema: TableSchema,
        *,
        protocol: str = "flat-avro",
        partitions: int = 1,
        topic: str | None = None,
        options: CodecOptions | None = None,
    ) -> None:
        self.schema = schema
        self.topic = topic or f"{servers['prefix']}{schema.table.schema}_{schema.table.name}"
        self._codec = open_codec(protocol, options=options, registry=open_registry(servers["registry_url"]))
        self._producer = Producer({"bootstrap.servers": servers["brokers"], "message.max.bytes": 15_000_000})
        if topic is None:
            create_topics(servers["brokers"], {self.topic: partitions})

    def encoded(self, op: Op, row: Row, *, before: Row | None = None, commit_ts: int = 1) -> EncodedRecord:
        """The record of one change."""
        after = None if op is Op.DELETE else row
        old = row if op is Op.DELETE else before
        key = {column.name: row[column.name] for column in self.schema.handle_columns}
        event = ChangeEvent(
            op, self.schema.table, key, old, after, commit_ts, Position(self.topic, 0, 0), self.schema
        )
        record = self._codec.encode(event, topic=self.topic)
        assert record is not None
        return record

    def upsert(self, row: Row, *, partition: int = 0, commit_ts: int = 1) -> EncodedRecord:
        """Send one row."""
        record = self.encoded(Op.INSERT, row, commit_ts=commit_ts)
        self.send(record.key, record.value, partition=partition)
        return record

    def delete(self, row: Row, *, partition: int = 0) -> None:
        """Send one delete."""
        record = self.encoded(Op.DELETE, row)
        self.send(record.key, record.value, partition=partition)

    def ddl(self, query: str, *, commit_ts: int = 1) -> None:
        """Send a DDL event to partition 0, where TiCDC puts it."""
        position = Position(self.topic, 0, 0)
        event = DdlEvent(self.schema.table, query, "ALTER", commit_ts, position)
        record = self._codec.encode(event, topic=self.topic)
        assert record is not None
        self.send(record.key, record.value)

    def watermark(self, commit_ts: int) -> None:
        """Send a watermark to partition 0."""
        record = self._codec.encode(WatermarkEvent(commit_ts, Position(self.topic, 0, 0)), topic=self.topic)
        assert record is not None
        self.send(record.key, record.value)

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int = 0,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        """Send bytes."""
        self._producer.produce(
            self.topic, key=key, value=value, partition=partition, headers=list(headers or ())
        )
        assert self._producer.flush(120) == 0


def shop_config(directory: Path, servers: Servers, more: Mapping[str, Any] | None = None) -> Path:
    """A flat-avro pipeline of every shop topic; ``more`` replaces or adds sections.

    Dead letters, where there may be some, go to the test's own topic.
    """
    settings: dict[str, Any] = {
        "pipeline": "shop",
        "source": {
            "brokers": servers["brokers"],
            "protocol": "flat-avro",
            "topics": f"{servers['prefix']}{{schema}}_{{table}}",
            "schema-registry": servers["registry_url"],
        },
        "target": {"type": "delta", "path": "./lake"},
        "state": "./state.db",
        # Longer than a batch's first try takes on a slow machine: behind that nothing is tried again.
        "retry": {"for": "120s"},
        "spark": {"master": "local[2]", "conf": {**SMALL_SPARK, "spark.driver.memory": "1g"}},
        **(more or {}),
    }
    settings["batch"] = {"executor": executor_of_test(), **settings.get("batch", {})}
    if '"bad-record": "dead-letter"' in json.dumps(settings):
        settings.setdefault("dead-letters", letter_settings(servers["prefix"]))
    path = directory / "shop.yaml"
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return path


def lake_rows(directory: Path, name: str) -> dict[int, dict[str, Any]]:
    """The rows of one table of the shop by id, read by a reader that shares nothing with the worker."""
    rows = open_lake_table(directory / "lake" / "shop" / name).read().to_pylist()
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    return found
