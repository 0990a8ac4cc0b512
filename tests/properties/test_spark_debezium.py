"""Random values of every semantic type in Debezium's Avro: Spark reads what the Python codec reads.

Values that no column holds are among them: they are bad records for both, of the same error.
"""

from __future__ import annotations

import json
from base64 import b64encode
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.full import FULL
from tests.spark.debezium_rows import differences
from tests.spark.decoded import decode_here
from tidesink.codecs import open_codec
from tidesink.codecs.base import header
from tidesink.events import Message, TableId
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.sinks.decode.debezium_avro import debezium_avro_plan
from tidesink.sinks.decode.plans import PlanSettings, SubjectSchemas
from tidesink.typemap.table import ZeroDate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = FULL

_TABLE: Final = TableId("lab", "t")
_TIME: Final = "io.debezium.time."
_DATA: Final = "io.debezium.data."
_CONNECT: Final = "org.apache.kafka.connect.data."
EXAMPLES: Final = 4
_PLACEHOLDER: Final = "__debezium_unavailable_value"
_INT = st.integers(-(2**31), 2**31 - 1)
_LONG = st.integers(-(2**63), 2**63 - 1)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.just(_PLACEHOLDER)
_BYTES = st.binary(max_size=8) | st.just(_PLACEHOLDER.encode())
_DAYS = st.integers(-719_162, 2_932_896)
_ODD_DAYS = st.sampled_from([-719_163, 2_932_897, -2_147_472_692, -2_147_472_691]) | _INT
_SECONDS = st.integers(-62_135_596_800, 253_402_300_799)
_ODD_MOMENTS = (
    st.sampled_from([9_223_372_036_825_200, -9_223_372_036_832_400_000, -62_135_596_800_001]) | _LONG
)
_YEARS = st.sampled_from(["2024", "0001", "9999", "0000", "-0043", "+12024", "10000", "02024"])
_CLOCKS = st.sampled_from(["T00:00:00", "T23:59:59.999999", "T12:30", "T12:30:00.100", "T01:02:03.123456789"])
# Java, which writes them, knows offsets of 18 hours at most.
_OFFSETS = st.sampled_from(["Z", "+00:00", "+05:30", "-15:59", "+01", "+00:00[UTC]", ""])
_MONTH_DAYS = st.sampled_from(["01-01", "02-29", "02-30", "12-31", "13-01"])
_ODD_TEXTS = st.sampled_from(["infinity", "-infinity", "", "2024-01-01", "T", _PLACEHOLDER, "24:00:00Z"])


def _named(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": kind, "connect.name": name, "connect.version": 1}
    return {**found, "connect.parameters": parameters} if parameters else found


def _decimal(precision: int, scale: int) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return {**_named("bytes", _CONNECT + "Decimal", **parameters), "logicalType": "decimal"} | {
        "precision": precision,
        "scale": scale,
    }


def _unscaled(digits: int) -> st.SearchStrategy[bytes]:
    end = 10**digits
    return st.integers(-end, end).map(lambda one: one.to_bytes(one.bit_length() // 8 + 1, "big", signed=True))


def _moments(*, zoned: bool) -> st.SearchStrategy[str]:
    parts = st.tuples(_YEARS, st.just("-"), _MONTH_DAYS, _CLOCKS, _OFFSETS if zoned else st.just(""))
    return parts.map("".join) | _ODD_TEXTS


_POINT: Final = {
    "type": "record",
    "name": "Point",
    "connect.name": _DATA + "geometry.Point",
    "fields": [
        {"name": "x", "type": "double"},
        {"name": "y", "type": "double"},
        {"name": "wkb", "type": ["null", "bytes"]},
        {"name": "srid", "type": ["null", "int"]},
    ],
}
_VARIABLE: Final = {
    "type": "record",
    "name": "Variable",
    "connect.name": _DATA + "VariableScaleDecimal",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}
_VARBINARY: Final = {"__debezium.source.column.type": "VARBINARY"}
_BASE64 = st.binary(max_size=8).map(lambda one: b64encode(one).decode()) | st.sampled_from(
    ["AA=", "AB==", "A"]
)
_UNSIGNED: Final = {"__debezium.source.column.type": "BIGINT UNSIGNED"}

# By a column's name: its Avro type, and the values it is given.
COLUMNS: Final[dict[str, tuple[Any, st.SearchStrategy[Any]]]] = {
    "tiny": ({"type": "int", "connect.type": "int8"}, st.integers(-128, 127) | st.just(128)),
    "small": ({"type": "int", "connect.type": "int16"}, st.integers(-(2**15), 2**15 - 1)),
    "plain": ("int", _INT),
    "big": ("long", _LONG),
    "unsigned": ({"type": "long", "connect.parameters": _UNSIGNED}, _LONG),
    "single": ("float", st.floats(width=32)),
    "double": ("double", st.floats()),
    "flag": ("boolean", st.booleans()),
    "words": ("string", _TEXT),
    "raw": ("bytes", _BYTES),
    "blob": ({"type": "string", "connect.parameters": _VARBINARY}, _TEXT | _BASE64),
    "json": (_named("string", _DATA + "Json"), _TEXT),
    "label": (_named("string", _DATA + "Enum", allowed="a,b"), _TEXT),
    "year": (_named("int", _TIME + "Year"), st.integers(0, 2155)),
    "span": (_named("long", _TIME + "MicroDuration"), _LONG),
    "bits": (_named("bytes", _DATA + "Bits", length="13"), st.binary(max_size=3)),
    "day": (_named("int", _TIME + "Date"), _DAYS | _ODD_DAYS),
    "connect_day": (_named("int", _CONNECT + "Date"), _DAYS),
    "clock_ms": (_named("int", _TIME + "Time"), _INT),
    "clock_us": (_named("long", _TIME + "MicroTime"), _LONG),
    "clock_ns": (_named("long", _TIME + "NanoTime"), _LONG),
    "moment_ms": (
        _named("long", _TIME + "Timestamp"),
        _SECONDS.map(lambda one: one * 1000 + 7) | _ODD_MOMENTS,
    ),
    "moment_us": (
        _named("long", _TIME + "MicroTimestamp"),
        _SECONDS.map(lambda one: one * 10**6) | _ODD_MOMENTS,
    ),
    "moment_ns": (_named("long", _TIME + "NanoTimestamp"), _LONG),
    "iso_day": (_named("string", _TIME + "IsoDate"), _moments(zoned=False) | st.dates().map(str)),
    "iso_clock": (_named("string", _TIME + "IsoTime"), _CLOCKS.map(lambda one: f"{one[1:]}Z") | _ODD_TEXTS),
    "iso_moment": (_named("string", _TIME + "IsoTimestamp"), _moments(zoned=True)),
    "instant": (_named("string", _TIME + "ZonedTimestamp"), _moments(zoned=True)),
    "zoned_clock": (_named("string", _TIME + "ZonedTime"), _TEXT),
    "money": (_decimal(10, 2), _unscaled(10)),
    "widest": (_decimal(38, 10), _unscaled(37)),
    "wide": (_decimal(65, 30), _unscaled(65)),
    "any_scale": (_VARIABLE, st.fixed_dictionaries({"scale": st.integers(-3, 20), "value": _unscaled(20)})),
    "point": (
        _POINT,
        st.fixed_dictionaries(
            {
                "x": st.floats(allow_nan=False),
                "y": st.floats(allow_nan=False),
                "wkb": st.none() | st.binary(max_size=30),
                "srid": st.none() | st.just(4326),
            }
        ),
    ),
    "list": ({"type": "array", "items": ["null", "long"]}, st.lists(st.none() | _LONG, max_size=3)),
    "map": (
        {"type": "map", "values": ["null", "string"]},
        st.dictionaries(_TEXT, st.none() | _TEXT, max_size=2),
    ),
}
_SOURCE: Final = {
    "type": "record",
    "name": "Source",
    "fields": [{"name": name, "type": "string"} for name in ("connector", "db", "schema", "table")],
}
_WHERE: Final = {"connector": "postgresql", "db": "shop", "schema": "lab", "table": "t"}


def _schemas() -> dict[int, dict[str, Any]]:
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
    fields += [{"name": name, "type": ["null", kind]} for name, (kind, _) in COLUMNS.items()]
    row = {"type": "record", "name": "Value", "fields": fields}
    envelope = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": _SOURCE},
        {"name": "op", "type": "string"},
    ]
    return {
        1: {"type": "record", "name": "Key", "fields": fields[:1]},
        2: {"type": "record", "name": "Envelope", "fields": envelope},
    }


def _framed(schema_id: int, schema: Any, value: Any) -> bytes:
    out = BytesIO(header(schema_id))
    out.seek(0, 2)
    bare = json.loads(json.dumps(schema).replace('"logicalType": "decimal"', '"note": ""'))
    fastavro.schemaless_writer(out, fastavro.parse_schema(bare), value)
    return out.getvalue()


def _messages(cells: list[tuple[str, Any]]) -> list[Message]:
    """A record for each value: its column alone is not null, so that no bad value hides another."""
    schemas = _schemas()
    messages = []
    for offset, (name, value) in enumerate(cells):
        row = {"id": offset, **dict.fromkeys(COLUMNS), name: value}
        op = "c" if offset % 5 else "d"
        # Of an old row Spark reads the key alone, and a bad value elsewhere in it does no harm.
        old = {**dict.fromkeys(COLUMNS), "id": offset}
        images = {"before": old, "after": None} if op == "d" else {"before": None, "after": row}
        key = _framed(1, schemas[1], {"id": offset})
        value_bytes = _framed(2, schemas[2], {**images, "source": _WHERE, "op": op})
        messages.append(Message("app.lab.t", 0, offset, key, value_bytes))
    return messages


@pytest.mark.parametrize("zero_date", ["null", "text", "error"])
# A failure names the values by itself, and shrinking it would take a Spark job a step.
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_spark_reads_what_the_python_codec_reads(
    spark: SparkSession, zero_date: ZeroDate, data: st.DataObject
) -> None:
    cells = [
        (name, value)
        for name, (_, values) in COLUMNS.items()
        for value in data.draw(st.lists(values, min_size=25, max_size=25), label=name)
    ]
    wrong = _differing(spark, cells, zero_date)
    assert not wrong, "\n".join(wrong[:40])


def _differing(spark: SparkSession, cells: list[tuple[str, Any]], zero_date: ZeroDate) -> list[str]:
    texts = {schema_id: json.dumps(schema) for schema_id, schema in _schemas().items()}
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry(texts))
    messages = _messages(cells)
    plan = debezium_avro_plan(
        _TABLE, SubjectSchemas({1: texts[1]}, {2: texts[2]}), PlanSettings(zero_date=zero_date)
    )
    rows = decode_here(plan, messages)
    return [
        f"{cells[message.offset]!r}: {line}"
        for message, row in zip(messages, rows, strict=True)
        for line in differences(codec, message, row, plan)
    ]
