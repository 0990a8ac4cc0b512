"""Old rows and what happened to them, as plans that ``logs`` give them: what the Python codec reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

import pytest

from tests.full import FULL
from tests.golden.debezium_captures import Capture, find_captures
from tests.golden.each_capture import each_capture
from tests.golden.vectors import VectorFolder
from tests.spark.debezium_rows import differences, held, place, shown
from tests.spark.decoded import Decoded, Values, decode_here, reduced_here
from tests.spark.test_golden_avro_spark import Golden as AvroGolden
from tests.spark.test_golden_canal_spark import Golden as CanalGolden
from tests.spark.test_golden_debezium_spark import by_topic, codec_of, plan_of
from tests.vectors import vectors_dir
from tidesink.codecs.base import Codec
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.errors import DecodeError
from tidesink.events import ChangeEvent, Message, Op
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.laws.modes import OP
from tidesink.typemap.target_schema import TargetSchema
from tidesink.typemap.values import target_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = FULL


# Those of each form that a record can have; make test-all has the others.
_ALWAYS: Final = frozenset({"pg_avro"})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    each_capture(metafunc, always=_ALWAYS)


def told_before(event: ChangeEvent, shape: TargetSchema) -> Values | None:
    """The old row as the target's types hold it; None where the wire has its key alone, or nothing."""
    assert event.schema is not None
    if event.before is None:
        return None
    if len(event.before) < len(shape.columns) and event.before.keys() <= {*shape.keys}:
        return None
    zone = ZoneInfo(shape.time_zone)
    return {
        shape.by_name[name.lower()].name: target_reader(
            event.schema.by_name[name].type, time_zone=zone, zero_date=shape.zero_date
        )(value)
        for name, value in event.before.items()
        if name.lower() in shape.by_name
    }


def difference(event: ChangeEvent, row: Decoded, shape: TargetSchema) -> str | None:
    """What a row of a frame says otherwise than the codec of what was there before."""
    expected = told_before(event, shape)
    if len(shape.key_columns) == len(shape.columns) and event.op is Op.DELETE and row.before is None:
        expected = None  # the key is the row
    found = None if row.before is None else {name: row.before[name] for name in expected or row.before}
    if found != expected or row.raw["_change"] != event.op.value:
        return f"{row.topic}@{row.offset} {row.raw['_change']} {found}, expected {event.op} {expected}"
    return None


def compared(codec: Codec, pairs: list[tuple[Decoded, Message, TargetSchema]]) -> Counter[tuple[Op, bool]]:
    """How many rows of each kind came with and without their old row; fails where one is another."""
    wrong, seen = [], Counter[tuple[Op, bool]]()
    for row, message, shape in pairs:
        try:
            event = codec.decode(message)[row.index]
        except DecodeError:
            continue
        if row.kind not in ("upsert", "delete"):
            continue
        assert isinstance(event, ChangeEvent)
        wrong.append(difference(event, row, shape))
        seen[event.op, row.before is not None] += 1
    reported = [line for line in wrong if line]
    assert not reported, f"{len(reported)}:\n" + "\n".join(reported[:20])
    return seen


# The older producer has old rows of the same form in canal-json, and none in flat-avro.
@pytest.mark.spark
@pytest.mark.parametrize("golden_folder", [pytest.param("ticdc", marks=FULL), "ticdc-new"], indirect=True)
def test_old_rows_of_canal_json(
    golden_folder: VectorFolder, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    golden = CanalGolden(golden_folder, tmp_path_factory.mktemp("claims"), logs=True)
    seen: Counter[tuple[Op, bool]] = Counter()
    for case in golden.cases:
        rows = [row for found in case.found.values() for row in found]
        seen += compared(
            case.codec, [(row, case.records[row.offset].message, case.plan.shape) for row in rows]
        )
    assert seen[Op.INSERT, False] > 5
    assert seen[Op.UPDATE, True] > 5
    assert seen[Op.DELETE, True] > 5
    assert not seen[Op.UPDATE, False]


@pytest.mark.spark
@pytest.mark.parametrize("golden_folder", [pytest.param("ticdc", marks=FULL), "ticdc-new"], indirect=True)
def test_old_rows_of_flat_avro(golden_folder: VectorFolder, spark: SparkSession) -> None:
    golden = AvroGolden(golden_folder, logs=True)
    codec = FlatAvroCodec(registry=MemorySchemaRegistry(golden.folder.schemas))
    seen = compared(codec, [(row, record.message, plan.shape) for record, row, plan in golden.rows])
    assert seen[Op.DELETE, False] > 5
    if golden_folder.name == "ticdc-new":
        assert seen[Op.UPDATE, True] > 3
        assert seen[Op.DELETE, True] > 3


@pytest.mark.spark
def test_old_rows_of_debezium(capture: Capture, spark: SparkSession) -> None:
    rows, olds, wrong = 0, 0, []
    for table, messages in by_topic(capture):
        plan, codec = plan_of(capture, table, messages, logs=True), codec_of(capture)
        decoded = decode_here(plan, messages)
        for message, row in zip(sorted(messages, key=place), decoded, strict=True):
            wrong += differences(codec, message, row, plan)
            if row.kind not in ("upsert", "delete"):
                continue
            (event,) = codec.decode(message)
            assert isinstance(event, ChangeEvent)
            wrong += old_differences(event, row, plan)
            rows, olds = rows + 1, olds + (row.before is not None)
    assert not wrong, "\n".join(wrong[:30])
    assert rows > 10
    # A Postgres table without REPLICA IDENTITY FULL has no old rows, and some captures have no other.
    assert olds > 0 or capture.name not in _ALWAYS


def old_differences(event: ChangeEvent, row: Decoded, plan: DecodePlan) -> list[str]:
    """What a decoded record says otherwise than the codec of what was there before."""
    expected, found = told_before(event, plan.shape), row.before
    place = f"{row.topic}[{row.partition}]@{row.offset}"
    if (expected is None) != (found is None) or row.raw["_change"] != event.op.value:
        return [f"{place}: {row.raw['_change']} {found}, expected {event.op} {expected}"]
    return [
        f"{place} before {name}: {(found or {})[name]!r}, expected {value!r}"
        for name, value in (expected or {}).items()
        if shown((found or {})[name]) != shown(held(f".{name}", value, plan))
    ]


@pytest.mark.spark
@pytest.mark.parametrize("name", ["pg_avro", "pg_schema", "pg_plain"])
def test_a_table_without_a_key_has_every_event(
    name: str, vectors: Path, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    (capture,) = [one for one in find_captures(vectors_dir(request.config)) if one.name == name]
    ((table, messages),) = [one for one in by_topic(capture) if one[0].name == "p_nopk"]
    plan = plan_of(capture, table, messages, keyless=True)
    assert plan.shape.keys == ()
    found = reduced_here(plan, messages)
    codec = codec_of(capture)
    events = [event for one in messages for event in codec.decode(one) if isinstance(event, ChangeEvent)]
    counts = found.summary.counts
    assert (counts.bad, counts.unplanned, counts.applied) == (0, 0, len(events))
    logged = [one["after"] for one in found.to_apply]
    words = Counter(one[OP] for one in logged)
    counted = Counter(event.op for event in events)
    assert words["update_postimage"] == words["update_preimage"] == counted[Op.UPDATE] > 0
    assert words["delete"] == counted[Op.DELETE] > 0
    assert all(one["a"] is not None for one in logged if one[OP] == "delete")
