"""Debezium on the Spark path: every captured record is what the Python codec reads, typed for Delta."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import pytest

from tests.golden.debezium_captures import Capture, find_captures
from tests.sessions import raw_frame
from tests.spark.decoded import Decoded, Values, collect
from tests.spark.python_rows import stored
from tests.vectors import vectors_dir
from tidesink.change import ChangeEvent, DdlEvent, Message, Op, TableId
from tidesink.codecs.base import Codec
from tidesink.codecs.columns_base import DecodeColumns
from tidesink.codecs.columns_debezium_avro import debezium_avro_columns
from tidesink.errors import DecodeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tables without a key record: these columns of theirs name a row.
_KEYS: Final = {"t_nopk": ("a", "b"), "p_nopk": ("a", "b")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "capture" in metafunc.fixturenames:
        captures = [one for one in find_captures(vectors_dir(metafunc.config)) if one.is_avro]
        metafunc.parametrize("capture", [pytest.param(one, id=one.name) for one in captures])


def _by_topic(capture: Capture) -> Iterator[tuple[TableId, list[Message]]]:
    """The topics that hold rows, each with its one table."""
    topics: dict[str, list[Message]] = defaultdict(list)
    for message in capture.messages:
        topics[message.topic].append(message)
    codec = capture.codec()
    for messages in topics.values():
        tables = {
            event.table for one in messages for event in codec.decode(one) if isinstance(event, ChangeEvent)
        }
        if tables:
            (table,) = tables
            yield table, messages


def _plan(capture: Capture, table: TableId, messages: list[Message]) -> DecodeColumns:
    answers = json.loads((capture.path.parent / "avro_schemas.json").read_text(encoding="utf-8"))

    def schemas(part: str) -> dict[int, str]:
        data = [getattr(one, part) for one in messages]
        ids = {int.from_bytes(one[1:5], "big") for one in data if one is not None}
        return {schema_id: answers[str(schema_id)]["schema"] for schema_id in ids}

    return debezium_avro_columns(
        table,
        key_schemas=schemas("key"),
        value_schemas=schemas("value"),
        keys=_KEYS.get(table.name),
        modes=capture.modes,
    )


def test_every_record_is_what_the_python_codec_reads(capture: Capture, spark: SparkSession) -> None:
    rows = 0
    for table, messages in _by_topic(capture):
        plan, codec = _plan(capture, table, messages), capture.codec()
        decoded = collect(plan.decode(raw_frame(spark, messages)), plan)
        wrong = [
            line
            for message, row in zip(sorted(messages, key=_place), decoded, strict=True)
            for line in _differences(codec, message, row, plan)
        ]
        assert not wrong, "\n".join([f"{table} {plan.shape.ddl}", *wrong[:30]])
        rows += sum(row.kind in ("upsert", "delete") for row in decoded)
    assert rows > 50


def _place(message: Message) -> tuple[str, int, int]:
    return message.topic, message.partition, message.offset


def _differences(codec: Codec, message: Message, row: Decoded, plan: DecodeColumns) -> list[str]:
    assert (row.topic, row.partition, row.offset) == _place(message)
    found: Values = {"kind": row.kind, "error": row.error, "commit_ts": row.commit_ts}
    found |= {f"key.{name}": value for name, value in (row.key or {}).items()}
    found |= {f"after.{name}": value for name, value in (row.after or {}).items()}
    found["kept"] = tuple(row.raw.get("_kept") or ())
    expected = _expected(codec, message, row, plan)
    return [
        f"{_place(message)} {name}: {found.get(name)!r}, expected {value!r} ({row.reason})"
        for name, value in expected.items()
        if _shown(found.get(name)) != _shown(value)
    ]


def _shown(value: object) -> str:
    """NaN is itself here; of a decimal the digits behind the point are its column's."""
    return f"{value.normalize():f}" if isinstance(value, Decimal) else repr(value)


def _expected(codec: Codec, message: Message, row: Decoded, plan: DecodeColumns) -> Values:
    try:
        events = codec.decode(message)
    except DecodeError as error:
        return {"kind": "bad", "error": type(error).__name__}
    if not events or not isinstance(events[0], ChangeEvent):
        ddl = bool(events) and isinstance(events[0], DdlEvent)
        return {"kind": "ddl" if ddl else "message", "error": None}
    event = events[0]
    if event.op is Op.TRUNCATE:
        return {"kind": "truncate", "error": None}
    if event.key is None:  # its key is the config's
        image = event.after or event.before or {}
        event = event._replace(key={name: image[name] for name in plan.shape.keys})
    return {**stored(event, plan.shape), "kept": (event.extension or {}).get("unavailable", ())}
