"""Rows of a target to messages and back through our own codecs: every type, every protocol."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.columns import ID
from tests.reduction_law import unsent_columns
from tests.unit.sinks.targets.stream.written_rows import TABLE, Case, arrow_batch, cases, named, shape_with
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.open import CODECS, open_codec
from tidesink.codecs.options import PLACEHOLDER, DebeziumModes, DebeziumOptions, FlatAvroOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import EncodeError, RegistryError, SchemaRefusedError, ValueNotStoredError
from tidesink.events import ChangeEvent, Column, ColumnType, Message, Op
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.targets.stream.encoding import Encoding, prepare
from tidesink.sinks.targets.stream.kafka import partition_of
from tidesink.sinks.targets.stream.table import MessageRows
from tidesink.typemap.target_schema import TargetSchema
from tidesink.typemap.values import to_datetime

PROTOCOLS = [name for name, known in CODECS.items() if known.writes is not None]
# TiCDC's own losses: what its protocol cannot carry is not looked for.
STRINGS = DebeziumOptions(avro_decimal_handling_mode="string", avro_bigint_unsigned_handling_mode="string")
OPTIONS: dict[str, CodecOptions] = {"debezium-avro": STRINGS}
COMMIT_TS = 451_234_567_890_123_456


class Round:
    """Encodes rows as a task does and decodes them as a reader does."""

    def __init__(self, protocol: str, shape: TargetSchema, options: CodecOptions | None = None) -> None:
        self.registry = MemorySchemaRegistry()
        self.options = options or OPTIONS.get(protocol, CodecOptions())
        self.encoding: Encoding = prepare(
            shape, protocol=protocol, options=self.options, topic="t", registry=self.registry
        )
        self.shape = shape
        self.reader = open_codec(
            protocol,
            options=self.encoding.options,
            registry=self.registry,
            table_of_topic=lambda _topic: TABLE,
            definitions=TableDefinitions([self.encoding.schema]),
            keys={TABLE: shape.keys},
        )

    def events(self, rows: Any, **more: Any) -> list[ChangeEvent]:
        encoder = self.encoding.encoder(1_700_000_000_000)
        found: list[ChangeEvent] = []
        for row in self.encoding.reader().read(arrow_batch(self.shape, rows, **more)):
            record = encoder.encode(row)
            (event,) = self.reader.decode(Message("t", 0, len(found), record.key, record.value))
            assert isinstance(event, ChangeEvent)
            found.append(event)
        return found


def is_lossy(protocol: str, case: Case) -> bool:
    """What TiCDC's debezium protocols lose by their own rules (docs/targets-kafka-http.md)."""
    name = case.type.name
    if protocol == "debezium-json":
        return name == "decimal" or (name == "bigint unsigned" and case.source == 2**64 - 1)
    return False


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_type_comes_back(protocol: str) -> None:
    found = [(name, case) for name, case in cases() if not is_lossy(protocol, case)]
    columns = [named(name.replace(" ", "_"), case.type) for name, case in found]
    shape = shape_with(*columns)
    values = {column.name: case.stored for column, (_, case) in zip(columns, found, strict=True)}
    nulls = dict.fromkeys(values)
    rows = [("upsert", {"id": 1, **values}, {"id": 1}), ("upsert", {"id": 2, **nulls}, {"id": 2})]
    full, empty = Round(protocol, shape).events(rows, _commit_ts=[COMMIT_TS, COMMIT_TS])
    assert full.after is not None
    assert empty.after is not None
    wrong = {
        column.name: (full.after[column.name], case.source)
        for column, (_, case) in zip(columns, found, strict=True)
        if full.after[column.name] != case.source
    }
    assert wrong == {}
    assert {name for name in nulls if empty.after[name] is not None} == set()
    assert (full.op in (Op.INSERT, Op.UPSERT), full.table, full.key) == (True, TABLE, {"id": 1})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_delete_names_its_row(protocol: str) -> None:
    shape = shape_with(
        Column("b", ColumnType("varchar"), nullable=False), named("c", ColumnType("int")), keys=("id", "b")
    )
    (event,) = Round(protocol, shape).events([("delete", None, {"id": 7, "b": "x"})], _commit_ts=[COMMIT_TS])
    assert event.op is Op.DELETE
    assert event.key == {"id": 7, "b": "x"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_row_without_a_key_is_refused(protocol: str) -> None:
    round_trip = Round(protocol, shape_with())
    with pytest.raises(EncodeError, match="would not identify a row") as caught:
        round_trip.events([("upsert", {"id": None}, {"id": None})], _commit_ts=[COMMIT_TS])
    assert caught.value.context["column"] == "id"


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if not CODECS[name].needs_commit_ts])
def test_a_source_without_commit_ts_is_written_all_the_same(protocol: str) -> None:
    (event,) = Round(protocol, shape_with()).events([("upsert", {"id": 1}, {"id": 1})])
    assert event.commit_ts is None
    assert event.after == {"id": 1}


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if CODECS[name].needs_commit_ts])
def test_a_protocol_that_needs_a_commit_ts_refuses_a_row_without_one(protocol: str) -> None:
    with pytest.raises(EncodeError, match="enable-tidb-extension"):
        Round(protocol, shape_with()).events([("upsert", {"id": 1}, {"id": 1})])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_tidb_extension_carries_commit_ts(protocol: str) -> None:
    options = replace(OPTIONS.get(protocol, CodecOptions()), enable_tidb_extension=True)
    (event,) = Round(protocol, shape_with(), options).events(
        [("upsert", {"id": 1}, {"id": 1})], _commit_ts=[COMMIT_TS]
    )
    assert event.commit_ts == COMMIT_TS


@pytest.mark.parametrize("protocol", ["debezium-json", "debezium-avro"])
def test_a_value_left_out_is_debeziums_placeholder(protocol: str) -> None:
    shape = shape_with(
        named("t", ColumnType("text")), named("b", ColumnType("blob")), named("n", ColumnType("int"))
    )
    row = ("upsert", {"id": 1, "t": None, "b": None, "n": 5}, {"id": 1})
    reported = DebeziumOptions(debezium=DebeziumModes(unavailable_value_placeholder=PLACEHOLDER))
    (event,) = Round(protocol, shape, reported).events([row], _commit_ts=[COMMIT_TS], _kept=[["t", "b"]])
    assert event.after == {"id": 1, "n": 5}
    assert set(unsent_columns(event)) == {"t", "b"}
    # Messages of this form are TiCDC's, which has every value, unless the reader is told otherwise.
    (event,) = Round(protocol, shape).events([row], _commit_ts=[COMMIT_TS], _kept=[["t", "b"]])
    assert event.after == {"id": 1, "t": PLACEHOLDER, "b": PLACEHOLDER.encode(), "n": 5}


@pytest.mark.parametrize(
    ("protocol", "kept"), [("flat-avro", "t"), ("canal-json", "t"), ("debezium-json", "n")]
)
def test_a_value_left_out_is_refused_where_no_message_can_say_so(protocol: str, kept: str) -> None:
    shape = shape_with(named("t", ColumnType("text")), named("n", ColumnType("int")))
    row = ("upsert", {"id": 1, "t": None, "n": None}, {"id": 1})
    with pytest.raises(ValueNotStoredError, match=f"value of {kept}.*REPLICA IDENTITY FULL"):
        Round(protocol, shape).events([row], _commit_ts=[COMMIT_TS], _kept=[[kept]])


def test_timestamps_are_written_in_the_targets_zone() -> None:
    shape = shape_with(named("at", ColumnType("timestamp", fsp=0)))
    batch = arrow_batch(shape, [("upsert", {"id": 1, "at": datetime(2024, 7, 1, 12)}, {"id": 1})])
    (row,) = MessageRows(shape, "Asia/Tokyo").read(batch)
    assert row.after == {"id": 1, "at": "2024-07-01 21:00:00"}


MOMENTS = (datetime(2024, 1, 1), datetime(2024, 10, 27, 0, 30), datetime(2024, 10, 27, 1, 30, 0, 250_000))


def _moment_read(text: Any, zone: str) -> datetime:
    """What a reader in the zone makes of a text; without an offset it is a clock there."""
    clock = to_datetime(text.removesuffix("+00:00")).replace(tzinfo=ZoneInfo(zone))
    return clock.astimezone(timezone.utc).replace(tzinfo=None)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "Europe/Berlin"])
@pytest.mark.parametrize("kind", ["timestamptz", "timestamp"])
def test_a_moment_is_the_same_one_in_any_zone(protocol: str, zone: str, kind: str) -> None:
    shape = shape_with(named("at", ColumnType(kind, fsp=6)))
    options = replace(OPTIONS.get(protocol, CodecOptions()), time_zone=zone)
    rows = [("upsert", {"id": at, "at": moment}, {"id": at}) for at, moment in enumerate(MOMENTS)]
    texts = [
        (event.after or {})["at"]
        for event in Round(protocol, shape, options).events(rows, _commit_ts=[COMMIT_TS] * len(rows))
    ]
    told_in = "UTC" if CODECS[protocol].utc else zone
    found = [_moment_read(text, told_in) for text in texts]
    if told_in != "Europe/Berlin":
        assert found == list(MOMENTS)
    else:  # a clock's text has the hour that comes twice but once
        assert found[:2] == list(MOMENTS[:2])
        assert [str(text)[:16] for text in texts[1:]] == ["2024-10-27 02:30"] * 2


def test_a_moment_beyond_the_zones_years_is_refused() -> None:
    shape = shape_with(named("at", ColumnType("timestamptz")))
    rows = [("upsert", {"id": 1, "at": datetime(9999, 12, 31, 23)}, {"id": 1})]
    assert Round("canal-json", shape).events(rows)
    with pytest.raises(EncodeError, match=r"target\.time-zone: UTC") as caught:
        Round("canal-json", shape, CodecOptions(time_zone="Asia/Shanghai")).events(rows)
    assert caught.value.context["column"] == "at"


def test_schemas_are_registered_once_and_nothing_by_a_task() -> None:
    round_trip = Round("flat-avro", shape_with(named("a", ColumnType("int"))))
    assert round_trip.registry.subjects() == ["t-key", "t-value"]
    round_trip.events([("upsert", {"id": 1, "a": 2}, {"id": 1})])
    assert [round_trip.registry.versions(name) for name in round_trip.registry.subjects()] == [[1], [1]]
    with pytest.raises(RegistryError, match="not registered"):
        replace(round_trip.encoding, ids={}).encoder(0).encode(
            next(
                MessageRows(round_trip.shape, "UTC").read(
                    arrow_batch(round_trip.shape, [("delete", None, {"id": 1})])
                )
            )
        )


def test_a_schema_that_the_registry_refuses_says_what_to_do() -> None:
    registry = MemorySchemaRegistry(compatibility="FULL")
    arguments: dict[str, Any] = {
        "protocol": "flat-avro",
        "options": CodecOptions(),
        "topic": "t",
        "registry": registry,
    }
    prepare(shape_with(named("a", ColumnType("int"))), **arguments)
    with pytest.raises(SchemaRefusedError, match="PUT /config/SUBJECT at the registry") as caught:
        prepare(shape_with(named("a", ColumnType("text"))), **arguments)
    assert caught.value.context["subject"] == "t-value"


def test_a_decimal_of_unknown_precision_needs_string_mode() -> None:
    shape = shape_with(named("price", ColumnType("decimal")))
    with pytest.raises(SchemaRefusedError, match="avro-decimal-handling-mode") as caught:
        Round("flat-avro", shape)
    assert caught.value.context["column"] == "price"
    row = ("upsert", {"id": 1, "price": "12.50"}, {"id": 1})
    strings = FlatAvroOptions(avro_decimal_handling_mode="string")
    assert Round("flat-avro", shape, strings).events([row])[0].after is not None


def test_names_that_become_one_are_refused() -> None:
    with pytest.raises(SchemaRefusedError, match="flat-avro cannot write this table"):
        Round("flat-avro", shape_with(named("a b", ColumnType("int")), named("a.b", ColumnType("int"))))


def test_a_row_stays_in_its_partition_whatever_the_schema_of_its_key() -> None:
    found = {partition_of({"id": number, "b": "ü"}, ("id", "b"), 7) for number in range(200)}
    assert found == set(range(7))
    assert partition_of({"id": 5, "x": 1}, ("id",), 7) == partition_of({"x": 2, "id": 5}, ("id",), 7)
    assert ID.name == "id"
