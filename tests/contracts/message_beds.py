"""Beds of targets that pass changes on: a real broker's topics, read as a reader of messages would.

The reader keeps, of each key, what the newest batch says: by the headers' epoch and batch.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.targets_bed import Bed
from tests.http_receiver import http_receiver
from tests.kafka_topics import topic_messages
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.open import open_codec
from tidesink.config.targets import HttpSettings, KafkaSettings
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, Message, Op, TableId
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.base import ReducedBatch
from tidesink.sinks.targets.stream.encoding import written_schema
from tidesink.sinks.targets.stream.http_endpoint import HttpTarget, table_url
from tidesink.sinks.targets.stream.kafka import BATCH_HEADER, EPOCH_HEADER, KafkaTarget
from tidesink.typemap.target_schema import TargetColumn, TargetSchema, merge_schemas
from tidesink.typemap.values import to_datetime


@dataclass(frozen=True)
class MessagesBed(Bed):
    """A bed whose reader knows the tables' shapes: messages alone do not tell every type."""

    shapes: dict[TableId, TargetSchema] = field(default_factory=dict)

    def batch(self, shape: TargetSchema, *rows: Sequence[dict[str, Any]], **more: Any) -> ReducedBatch:
        """As ``Bed.batch``; notes the shape."""
        known = self.shapes.get(shape.table)
        self.shapes[shape.table] = shape if known is None else merge_schemas(known, shape)
        return super().batch(shape, *rows, **more)


def kafka_bed(request: pytest.FixtureRequest, folder: Path) -> Bed:
    """Topics of a real broker, in canal-json: the one protocol that changes no names and keeps every type."""
    brokers: str = request.getfixturevalue("brokers")
    prefix: str = request.getfixturevalue("topic_prefix")
    settings = KafkaSettings.model_validate(
        {
            "type": "kafka",
            "brokers": brokers,
            "topic": f"{prefix}-{{schema}}_{{table}}",
            "protocol": "canal-json",
            "enable-tidb-extension": False,
        }
    )
    store = SqlStateStore(str(folder.with_name("ledger.db")))
    request.addfinalizer(store.close)
    shapes: dict[TableId, TargetSchema] = {}

    def read(table: TableId) -> list[dict[str, Any]]:
        messages = topic_messages(brokers, settings.rule.topic_for(table))
        return canal_rows(messages, shapes[table]) if messages else []

    return MessagesBed(
        "kafka",
        KafkaTarget(settings, store),
        read,
        lambda: KafkaTarget(settings, store),
        request.getfixturevalue("spark"),
        shapes=shapes,
    )


def http_bed(request: pytest.FixtureRequest, folder: Path) -> Bed:
    """An endpoint in this process, which remembers idempotency keys."""
    listening = http_receiver()
    receiver = listening.__enter__()
    request.addfinalizer(lambda: listening.__exit__(None, None, None))
    url = f"{receiver.url}/{{schema}}/{{table}}"
    settings = HttpSettings.model_validate({"type": "http", "url": url, "batch-rows": 2})
    store = SqlStateStore(str(folder.with_name("ledger.db")))
    request.addfinalizer(store.close)
    shapes: dict[TableId, TargetSchema] = {}

    def read(table: TableId) -> list[dict[str, Any]]:
        name = {"schema": table.schema, "name": table.name}
        paths = {one.path for one in receiver.requests if any(row["table"] == name for row in one.objects)}
        assert paths <= {table_url("/{schema}/{table}", table)}
        return [
            {
                column.name: stored_json(column, one["after"].get(column.name))
                for column in shapes[table].columns
            }
            for one in receiver.objects(table)
        ]

    return MessagesBed(
        "http",
        HttpTarget(settings, store),
        read,
        lambda: HttpTarget(settings, store),
        request.getfixturevalue("spark"),
        shapes=shapes,
    )


def stored_json(column: TargetColumn, value: Any) -> Any:
    """A value of a request's JSON as a table target would store it."""
    if isinstance(value, dict):
        return b64decode(value["base64"])
    if isinstance(value, float) and column.spark == "float":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    return stored(column, value)


def canal_rows(messages: Sequence[Message], shape: TargetSchema) -> list[dict[str, Any]]:
    """What a reader of canal-json ends with."""
    schema = written_schema(shape, "canal-json", CodecOptions())
    codec = open_codec("canal-json", definitions=TableDefinitions([schema]), keys={shape.table: shape.keys})
    rows: dict[Any, tuple[tuple[int, int], dict[str, Any] | None]] = {}
    for message in messages:
        (event,) = codec.decode(message)
        assert isinstance(event, ChangeEvent)
        if event.table != shape.table:  # a name that is cut may be another's too
            continue
        at = stamp_of(message)
        key = tuple((event.key or {})[name] for name in shape.keys)
        if key not in rows or at >= rows[key][0]:
            rows[key] = (at, None if event.op is Op.DELETE else dict(event.after or {}))
    return [
        {column.name: stored(column, row.get(column.name)) for column in shape.columns}
        for _, row in rows.values()
        if row is not None
    ]


def stamp_of(message: Message) -> tuple[int, int]:
    """The epoch and the batch in a message's headers."""
    headers = dict(message.headers)
    epoch, batch = headers[EPOCH_HEADER], headers[BATCH_HEADER]
    assert epoch is not None
    assert batch is not None
    return int(epoch), int(batch)


def stored(column: TargetColumn, value: Any) -> Any:
    """A value of the source as a table target would store it."""
    if value is None:
        return None
    ddl = column.spark.partition("(")[0]
    readers: dict[str, Any] = {
        "decimal": Decimal,
        "boolean": bool,
        "date": date.fromisoformat,
        "timestamp": _moment,
        "timestamp_ntz": _moment,
        "string": lambda one: format(one, "f") if isinstance(one, Decimal) else str(one),
    }
    return readers.get(ddl, lambda one: one)(value)


def _moment(text: str) -> datetime:
    return to_datetime(text.removesuffix("+00:00"))
