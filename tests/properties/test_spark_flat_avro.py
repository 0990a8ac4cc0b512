"""The Spark path equals the Python codec: any table, any values, any damage to the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.full import FULL, TEST_ALL
from tests.properties.row_changes import PARTITIONS, TOPIC, changes, harmed, tables
from tests.reduction_law import reduce
from tests.spark.decoded import Decoded, decode_here, reduced_here
from tests.unit.codecs.flat_avro.cases import only_change
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import ChecksumMode, FlatAvroOptions
from tidesink.codecs.row_checksum import checksum_fault
from tidesink.errors import DecodeError, MixedPartitionsError, SchemaNotFoundError, UnnamedRowError
from tidesink.events import ChangeEvent, Message, Op
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.decode.flat_avro import flat_avro_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings, SubjectSchemas
from tidesink.typemap.values import target_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONES = ["UTC", "Asia/Shanghai", "America/New_York", "Europe/London", "Australia/Lord_Howe"]
OPTIONS = st.fixed_dictionaries(
    {
        "producer": st.sampled_from(["classic", "new"]),
        "enable_tidb_extension": st.booleans(),
        "avro_include_before_value": st.booleans(),
        "avro_decimal_handling_mode": st.sampled_from(["precise", "string"]),
        "avro_bigint_unsigned_handling_mode": st.sampled_from(["long", "string"]),
        "avro_enable_watermark": st.booleans(),  # the new architecture then writes delete markers
    }
)
# One example is a Spark job of some twenty messages, so a few of them cover what hundreds would.
FEW = settings(
    max_examples=12 if TEST_ALL else 4,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def encoded(codec: FlatAvroCodec, events: list[ChangeEvent]) -> list[Message]:
    """The events as Kafka records; a key keeps to one partition."""
    found = []
    for offset, event in enumerate(events):
        record = codec.encode(event, topic=TOPIC)
        assert record is not None
        found.append(Message(TOPIC, _partition(event), offset, record.key, record.value))
    return found


def _partition(event: ChangeEvent) -> int:
    return sum(map(ord, repr(event.key))) % PARTITIONS


def plan_for(
    registry: MemorySchemaRegistry, event: ChangeEvent, *, checksum: ChecksumMode = "off", **settings: Any
) -> DecodePlan:
    """The Spark path's plan over everything the registry holds for the topic."""
    texts: dict[str, dict[int, str]] = {}
    for part in ("key", "value"):
        subject = f"{TOPIC}-{part}"
        known = registry.versions(subject) if subject in registry.subjects() else ()
        found = [registry.schema_by_version(subject, version) for version in known]
        texts[part] = {schema.id: schema.schema_text for schema in found}
    return flat_avro_plan(
        event.table,
        SubjectSchemas(texts["key"], texts["value"]),
        PlanSettings(keys=tuple(event.key or ()), **settings),
        checksum=checksum,
    )


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[SparkSession]:
    """The session without the short cut that works out small plans without generated code."""
    rules = "spark.sql.optimizer.excludedRules"
    spark.conf.set(rules, "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation")
    yield spark
    spark.conf.unset(rules)


@pytest.mark.spark
@FEW
@given(
    data=st.data(),
    options=OPTIONS,
    zone=st.sampled_from(ZONES),
    zero=st.sampled_from(["null", "error", "text"]),
)
def test_each_record_is_read_alike(
    compiled: SparkSession, data: st.DataObject, options: dict[str, Any], zone: str, zero: Any
) -> None:
    events = data.draw(changes(data.draw(tables())))
    registry = MemorySchemaRegistry()
    codec = FlatAvroCodec(registry=registry, options=FlatAvroOptions(**options))
    messages = data.draw(harmed(encoded(codec, events)))
    plan = plan_for(registry, events[0], zero_date=zero, time_zone=zone)
    rows = decode_here(plan, messages)
    by_offset = {row.offset: row for row in rows}
    assert sorted(by_offset) == [message.offset for message in messages]
    for message in messages:
        expected = _by_python(codec, message, plan)
        assert _by_spark(by_offset[message.offset]) == expected, (message, by_offset[message.offset].reason)


@FULL
@pytest.mark.spark
@FEW
@given(data=st.data(), producer=st.sampled_from(["classic", "new"]), zone=st.sampled_from(ZONES))
def test_each_checksum_is_judged_alike(
    compiled: SparkSession, data: st.DataObject, producer: Any, zone: str
) -> None:
    options = FlatAvroOptions(
        producer=producer,
        enable_tidb_extension=True,
        row_checksum=True,
        avro_include_before_value=data.draw(st.booleans()),
        avro_decimal_handling_mode=data.draw(st.sampled_from(["precise", "string"])),
        avro_bigint_unsigned_handling_mode=data.draw(st.sampled_from(["long", "string"])),
        time_zone=data.draw(st.sampled_from(["UTC", zone])),
    )
    events = [_summed(data, event) for event in data.draw(changes(data.draw(tables())))]
    registry = MemorySchemaRegistry()
    messages = data.draw(harmed(encoded(FlatAvroCodec(registry=registry, options=options), events)))
    reading = FlatAvroCodec(registry=registry)
    for mode in ("warn", "reject"):
        plan = plan_for(registry, events[0], zero_date="text", time_zone=zone, checksum=mode)
        rows = {row.offset: row for row in decode_here(plan, messages)}
        for message, row in ((message, rows[message.offset]) for message in messages):
            read = _by_python(reading, message, plan)
            doubt = None if isinstance(read, str) else _doubt(reading, message, zone)
            assert _by_spark(row) == (read if doubt is None or mode == "warn" else "bad"), (
                message,
                row.reason,
            )
            if doubt is not None or row.kind in ("upsert", "delete"):
                assert (row.reason, message) == (doubt, message)


def _summed(data: st.DataObject, event: ChangeEvent) -> ChangeEvent:
    """The event; at times with a checksum that is none or a wrong one, or called corrupted."""
    given = data.draw(
        st.sampled_from(
            [
                None,
                None,
                {"_tidb_row_level_checksum": "0"},
                {"_tidb_row_level_checksum": ""},
                {"_tidb_row_level_checksum": "4294967295"},
                {"_tidb_row_level_checksum": "ü"},
                {"_tidb_corrupted": True},
            ]
        )
    )
    return event._replace(extension=given)


def _doubt(codec: FlatAvroCodec, message: Message, zone: str) -> str | None:
    (event,) = codec.decode(message)
    assert isinstance(event, ChangeEvent)
    return checksum_fault(event, time_zone=zone)


def _by_python(codec: FlatAvroCodec, message: Message, plan: DecodePlan) -> Any:
    try:
        (event,) = codec.decode(message)
        assert isinstance(event, ChangeEvent)
        return _stored(event, plan)
    except SchemaNotFoundError:
        return "unplanned"
    except DecodeError:
        # Which of several faults is named first may differ, so that only the refusal must be alike.
        return "bad"


def _stored(event: ChangeEvent, plan: DecodePlan) -> Any:
    keys = plan.shape.keys
    kind = "delete" if event.op is Op.DELETE else "upsert"
    image = event.after if event.after is not None else (event.key or event.before)
    values = _typed(image or {}, event, plan)
    if kind == "delete":
        _typed(
            event.before or {}, event, plan
        )  # a value that policy refuses refuses its record, delete or not
    key = {name: values.get(name) for name in keys}
    if None in key.values():
        raise UnnamedRowError("no key")
    old = _typed({name: event.before[name] for name in keys}, event, plan) if event.before else key
    changed = old if kind == "upsert" and old != key else None
    return kind, event.commit_ts, key, changed, values if kind == "upsert" else None


def _typed(row: Any, event: ChangeEvent, plan: DecodePlan) -> dict[str, Any]:
    assert event.schema is not None
    zone = ZoneInfo(plan.shape.time_zone)
    typed = {}
    for name, value in row.items():
        column = plan.shape.by_name[name]
        zero = "error" if column.key else plan.shape.zero_date
        # The event's own type, for the target's: a mode may have made text of a number.
        read = target_reader(event.schema.by_name[name].type, time_zone=zone, zero_date=zero)
        stored = read(value)
        whole = isinstance(stored, int) and column.spark.startswith("decimal")
        typed[name] = Decimal(str(stored)) if whole else stored
    return typed


def _by_spark(row: Decoded) -> Any:
    if row.kind in ("bad", "unplanned"):
        assert (row.error is not None) == (row.kind == "bad")
        return row.kind
    return row.kind, row.commit_ts, row.key, row.old_key, row.after


@pytest.mark.spark
@FEW
@given(data=st.data(), with_before=st.booleans())
def test_a_batch_is_reduced_alike(spark: SparkSession, data: st.DataObject, with_before: bool) -> None:
    events = data.draw(changes(data.draw(tables())))
    registry = MemorySchemaRegistry()
    options = FlatAvroOptions(
        producer="new", avro_include_before_value=with_before, enable_tidb_extension=data.draw(st.booleans())
    )
    codec = FlatAvroCodec(registry=registry, options=options)
    messages = encoded(codec, events)
    if with_before:  # a changed key would come in two partitions
        messages = [replace(message, partition=0) for message in messages]
    plan = plan_for(registry, events[0])
    _check_reduced(plan, messages, [only_change(codec, message) for message in messages])


def _check_reduced(plan: DecodePlan, messages: list[Message], events: list[ChangeEvent]) -> None:
    try:
        law = reduce(events, plan.shape.keys)
    except MixedPartitionsError:
        return
    reduced = reduced_here(plan, messages)
    counts = reduced.summary.counts
    assert (counts.upserts, counts.deletes) == (len(law.upserts), len(law.deletes))
    assert (counts.superseded, counts.split_halves) == (law.superseded, law.split_halves)
    assert counts.read == counts.messages == len(events)
    assert counts.read == counts.applied + counts.superseded + counts.filtered + counts.bad
    stays = {kept.position.offset: kept.row is None for kept in law.rows.values() if not kept.half}
    found = [(row["_offset"], row["_op"] == "delete") for row in reduced.to_apply if not row["_half"]]
    assert dict(found) == stays
