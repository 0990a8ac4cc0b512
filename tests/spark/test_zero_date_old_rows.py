"""``zero-date: error`` and the old row: a delete is judged whole, of an update's old row its key alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.full import FULL
from tests.spark.decoded import decode_here
from tests.unit.codecs.flat_avro.cases import TOPIC, change
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.options import FlatAvroOptions
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import ChangeEvent, Message, Op
from tidesink.schema_registry import MemorySchemaRegistry, subject
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.flat_avro import flat_avro_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings, SubjectSchemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = FULL

SCHEMA = parse_create_table("create table shop.orders (id int primary key, d date)")
ZERO, DAY = {"id": 1, "d": "0000-00-00"}, {"id": 1, "d": "2026-01-01"}
# Where New-architecture TiCDC writes values for deletes, before-values are on.
OPTIONS = {
    "flat-avro": FlatAvroOptions(producer="new", enable_tidb_extension=True, avro_include_before_value=True),
    "canal-json": CodecOptions(enable_tidb_extension=True),
}
EVENTS = {
    "delete": change(Op.DELETE, None, before=ZERO, schema=SCHEMA),
    "update to a day": change(Op.UPDATE, DAY, before=ZERO, schema=SCHEMA),
    "update to none": change(Op.UPDATE, ZERO, before=DAY, schema=SCHEMA),
}


@pytest.mark.parametrize("protocol", OPTIONS)
def test_a_deletes_old_row_is_judged_whole(spark: SparkSession, protocol: str) -> None:
    registry = MemorySchemaRegistry()
    codec = open_codec(protocol, registry=registry, options=OPTIONS[protocol])
    messages = []
    for offset, event in enumerate(EVENTS.values()):
        record = codec.encode(event, topic=TOPIC)
        assert record is not None
        messages.append(Message(TOPIC, 0, offset, record.key, record.value))
    plan = _plan(protocol, registry, EVENTS["delete"])
    rows = decode_here(plan, messages)
    assert {name: (row.kind, row.error) for name, row in zip(EVENTS, rows, strict=True)} == {
        "delete": ("bad", "ValueOutOfRangeError"),
        "update to a day": ("upsert", None),
        "update to none": ("bad", "ValueOutOfRangeError"),
    }


def _plan(protocol: str, registry: MemorySchemaRegistry, event: ChangeEvent) -> DecodePlan:
    if protocol == "canal-json":
        return canal_json_plan(SCHEMA, PlanSettings(zero_date="error"))
    texts = [registry.latest(subject(TOPIC, part)) for part in ("key", "value")]
    key, value = ({text.id: text.schema_text} for text in texts)
    return flat_avro_plan(event.table, SubjectSchemas(key, value), PlanSettings(zero_date="error"))
