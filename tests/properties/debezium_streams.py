"""Streams of Debezium's records for hypothesis: columns of every kind, in JSON and in Avro."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import fastavro
from hypothesis import strategies as st

from tidesink.codecs.options import PLACEHOLDER
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import Column, ColumnType, Message, TableId, TableSchema

Json = dict[str, Any]
TOPIC: Final = "shop.lab.t"
_TIME: Final = "io.debezium.time."
_CONNECT: Final = "org.apache.kafka.connect.data."


@dataclass(frozen=True)
class Kind:
    """A kind of column: its Connect schema, its values (bytes as bytes), what a person may declare."""

    schema: Mapping[str, Any]
    values: st.SearchStrategy[Any]
    declared: tuple[ColumnType, ...] = ()


def _near(*edges: int, by: int = 3) -> st.SearchStrategy[int]:
    """Whole numbers around some edges, of which the kernels decide."""
    return st.sampled_from(edges).flatmap(lambda edge: st.integers(edge - by, edge + by))


def _kind(
    connect: str, values: st.SearchStrategy[Any], *declared: ColumnType, name: str = "", **parameters: str
) -> Kind:
    schema: Json = {"type": connect, "optional": True}
    if name:
        schema |= {"name": name, "version": 1}
    return Kind(schema | ({"parameters": parameters} if parameters else {}), values, declared)


def _big_endian(number: int) -> bytes:
    return number.to_bytes(max(1, (number.bit_length() + 8) // 8), "big", signed=True)


_DAYS: Final = st.one_of(
    st.integers(-1000, 40000), _near(-719_162, 2_932_896, -2_147_472_692), st.integers(-(2**31), 2**31 - 1)
)
_SECONDS: Final = (-62_135_596_800, 0, 253_402_300_800)


def _moments(per_second: int) -> st.SearchStrategy[int]:
    edges = [second * per_second for second in _SECONDS]
    infinite = (9_223_372_036_825_200, -9_223_372_036_832_400, 9_223_372_036_825_200_000)
    return st.one_of(
        st.integers(0, 2 * 10**9).map(lambda second: second * per_second),
        st.integers(0, 2 * 10**9 * per_second),
        _near(*(edge for edge in edges if abs(edge) < 2**62), *infinite),
    )


def _clocks(per_second: int) -> st.SearchStrategy[int]:
    day = 86_400 * per_second
    return st.one_of(st.integers(0, day - 1), _near(0, day), st.integers(-40 * day, 40 * day))


def _decimals(digits: int) -> st.SearchStrategy[bytes]:
    most = 10**digits
    numbers = st.one_of(st.integers(-most + 1, most - 1), _near(0, most, -most, 2**63, -(2**63), 2**127))
    return st.one_of(numbers.map(_big_endian), st.just(PLACEHOLDER.encode()), st.just(b""))


_TEXTS: Final = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.sampled_from(["", "0", PLACEHOLDER])
)
_FLOATS: Final = st.one_of(
    st.floats(),
    st.floats(width=32),
    st.integers(-(10**18), 10**18),
    st.sampled_from([0.1, -0.0, 1e39, 12.34]),
)
_ODD_INSTANTS: Final = (
    "2024-02-29T12:34Z",
    "2024-02-30T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "2024-01-01T00:00:00.1234567Z",
    "2024-01-01T10:00:00.5+05:30",
    "infinity",
    "2024-01-01T00:00:0ZZ",
    "2024-01-01T24:00:00Z",
    "x" * 20,
    "-0044-03-15T00:00:00Z",
    "2024-01-01T00:00:00.Z",
    "9999-12-31T23:59:59.999999Z",
    "２024-01-01T00:00:0Z",
)
_INSTANTS: Final = st.one_of(
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"), st.sampled_from(_ODD_INSTANTS)
)
_INT: Final = ColumnType("int")
KINDS: Final[Mapping[str, Kind]] = {
    "int16": _kind("int16", st.one_of(_near(0, 2**15, -(2**15)), st.integers(-9, 9)), ColumnType("tinyint")),
    "int32": _kind("int32", _near(0, 2**31, -(2**31)), ColumnType("int unsigned")),
    "int64": _kind("int64", _near(0, 2**63, -(2**63), 2**53), ColumnType("bigint unsigned"), _INT),
    "float32": _kind("float", _FLOATS, ColumnType("double")),
    "float64": _kind(
        "double",
        _FLOATS,
        ColumnType("decimal", precision=10, scale=2),
        ColumnType("float"),
        ColumnType("decimal"),
    ),
    "boolean": _kind("boolean", st.booleans(), ColumnType("tinyint")),
    "text": _kind("string", _TEXTS, ColumnType("varbinary"), ColumnType("decimal", precision=5, scale=1)),
    "bytes": _kind("bytes", st.one_of(st.binary(max_size=9), st.just(PLACEHOLDER.encode()))),
    "decimal": _kind(
        "bytes",
        _decimals(10),
        ColumnType("decimal", precision=8, scale=2),
        ColumnType("decimal", precision=12, scale=3),
        name=_CONNECT + "Decimal",
        **{"scale": "2", "connect.decimal.precision": "10"},
    ),
    "wide": _kind(
        "bytes", _decimals(38), name=_CONNECT + "Decimal", **{"scale": "0", "connect.decimal.precision": "38"}
    ),
    "money": _kind("bytes", _decimals(12), name=_CONNECT + "Decimal", scale="2"),
    "bits": _kind("bytes", st.binary(max_size=9), name="io.debezium.data.Bits", length="13"),
    "long_bits": _kind("bytes", st.binary(max_size=9), name="io.debezium.data.Bits", length="64"),
    "days": _kind("int32", _DAYS, ColumnType("date"), name=_TIME + "Date"),
    "ms": _kind("int64", _moments(1000), ColumnType("datetime", fsp=1), name=_TIME + "Timestamp"),
    "us": _kind("int64", _moments(10**6), ColumnType("datetime", fsp=3), name=_TIME + "MicroTimestamp"),
    "ns": _kind("int64", st.integers(0, 2**62), ColumnType("datetime", fsp=6), name=_TIME + "NanoTimestamp"),
    "time_ms": _kind("int32", _clocks(1000), ColumnType("time", fsp=0), name=_TIME + "Time"),
    "time_us": _kind("int64", _clocks(10**6), ColumnType("time", fsp=4), name=_TIME + "MicroTime"),
    "time_ns": _kind("int64", _clocks(10**9), ColumnType("time", fsp=6), name=_TIME + "NanoTime"),
    "instant": _kind("string", _INSTANTS, ColumnType("timestamp", fsp=3), name=_TIME + "ZonedTimestamp"),
    "year": _kind("int32", st.integers(1900, 2200), name=_TIME + "Year"),
    "enum": _kind("string", st.sampled_from(["a", "b"]), name="io.debezium.data.Enum", allowed="a,b"),
    "connect_date": _kind("int32", _DAYS, name=_CONNECT + "Date"),
    "connect_timestamp": _kind("int64", _moments(1000), name=_CONNECT + "Timestamp"),
    "iso": _kind("string", st.sampled_from(["2024-01-31", "x"]), name=_TIME + "IsoDate"),
}


@dataclass(frozen=True)
class Version:
    """One writer's schema of the table: its columns besides the key, and what their defaults are."""

    columns: tuple[tuple[str, str], ...]
    defaults: tuple[object, ...]

    def row(self, key: int, values: Sequence[Any]) -> Json:
        """A row; bytes as bytes."""
        return {"id": key, **{name: one for (name, _), one in zip(self.columns, values, strict=True)}}


@st.composite
def versions(draw: st.DrawFn) -> Version:
    """Up to five columns of any kinds."""
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    columns = tuple((f"c{at}_{kind}", kind) for at, kind in enumerate(kinds))
    defaults = [draw(st.sampled_from([None, 0, 7, 12.34, "x"])) for _ in kinds]
    return Version(columns, tuple(defaults))


@dataclass(frozen=True)
class Record:
    """One record before it is written; ``form`` says how its JSON looks."""

    version: Version
    op: str
    key: int | None
    before: Json | None
    after: Json | None
    source: Json
    form: int


def sources() -> st.SearchStrategy[Json]:
    """Source blocks of connectors that are read in columns, and of one whose positions are texts."""
    common: Json = {"db": "shop", "schema": "lab", "table": "t"}
    return st.one_of(
        st.builds(
            lambda file, pos, row: {**common, "connector": "mysql", "file": file, "pos": pos, "row": row},
            st.sampled_from(["bin.000001", "bin.000012", "none", None]),
            st.one_of(st.integers(-1, 9), st.none()),
            st.one_of(st.integers(-1, 9), st.none()),
        ),
        st.builds(
            lambda lsn, snapshot: {**common, "connector": "postgresql", "lsn": lsn, "snapshot": snapshot},
            st.one_of(st.integers(-1, 9), st.none()),
            st.sampled_from(["true", "false", "last", None]),
        ),
        st.builds(
            lambda one, table: {**common, "table": table, "connector": "TiCDC", "commit_ts": one},
            st.one_of(st.integers(0, 9), st.none()),
            st.sampled_from(["t", "u", ""]),
        ),
        st.just({**common, "connector": "oracle", "scn": "17", "commit_scn": "18"}),
        st.just({**common, "connector": "mongodb"}),
    )


@st.composite
def records(draw: st.DrawFn, version: Version, source: Json) -> Record:
    """A record of one writer's schema, perhaps with an image that its op does not promise."""
    op = draw(st.sampled_from("ccuuuddrtmx"))

    def image(*, blank: bool = False) -> Json:
        key = draw(st.integers(0, 3))
        if blank:
            return version.row(key, [None] * len(version.columns))
        return version.row(key, [draw(st.none() | KINDS[kind].values) for _, kind in version.columns])

    odd = draw(st.integers(0, 9)) == 0
    has_before, has_after = (op in "ud") != odd, (op not in "dt") != odd
    return Record(
        version,
        op,
        draw(st.none() | st.integers(0, 3)) if odd else 1,
        image(blank=draw(st.booleans())) if has_before else None,
        image() if has_after else None,
        source,
        draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4])),
    )


def declared(draw: st.DrawFn, some: Sequence[Version]) -> TableDefinitions:
    """What a person declared of the columns, if anything."""
    columns: dict[str, Column] = {}
    for version in some:
        for name, kind in version.columns:
            types = KINDS[kind].declared
            if bool(types) and draw(st.booleans()):
                columns[name] = Column(name, draw(st.sampled_from(types)))
    if not columns:
        return TableDefinitions()
    tables = (TableId("shop", "t"), TableId("lab", "t"))
    return TableDefinitions(TableSchema(one, tuple(columns.values())) for one in tables)


# JSON


def _row_schema(version: Version, field: str) -> Json:
    columns = [
        {**KINDS[kind].schema, "field": name, **({} if default is None else {"default": default})}
        for (name, kind), default in zip(version.columns, version.defaults, strict=True)
    ]
    key = {"type": "int64", "optional": False, "field": "id"}
    return {"type": "struct", "fields": [key, *columns], "optional": True, "field": field}


_SOURCE_TYPES: Final = {
    **dict.fromkeys(
        ("connector", "db", "schema", "table", "file", "snapshot", "scn", "commit_scn"), "string"
    ),
    **dict.fromkeys(("pos", "row", "lsn", "commit_ts"), "int64"),
}


def _envelope_schema(version: Version) -> Json:
    source = [{"type": kind, "optional": True, "field": name} for name, kind in _SOURCE_TYPES.items()]
    return {
        "type": "struct",
        "fields": [
            _row_schema(version, "before"),
            _row_schema(version, "after"),
            {"type": "struct", "fields": source, "field": "source"},
            {"type": "string", "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
        ],
        "name": "Envelope",
    }


_KEY_SCHEMA: Final = {"type": "struct", "fields": [{"type": "int64", "optional": False, "field": "id"}]}


def _json_value(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    return value


def _json_row(row: Json | None) -> Json | None:
    return None if row is None else {name: _json_value(one) for name, one in row.items()}


def _wrapped(schema: Json, payload: object, form: int) -> bytes:
    """A payload with its schema in Kafka Connect's form, in TiCDC's, with white space, or without it."""
    compact = (",", ":")
    if form == 1:
        return json.dumps({"payload": payload, "schema": schema}, separators=compact).encode()
    if form == 2:
        return json.dumps({"schema": schema, "payload": payload}).encode()
    if form == 3:
        return json.dumps(payload, separators=compact).encode()
    return json.dumps({"schema": schema, "payload": payload}, separators=compact, ensure_ascii=False).encode()


def json_message(record: Record, offset: int) -> Message:
    """The record as JsonConverter or TiCDC writes it."""
    payload: Json = {
        "before": _json_row(record.before),
        "after": _json_row(record.after),
        "source": record.source,
        "op": record.op,
        "ts_ms": 1,
    }
    if record.form == 4:
        payload = dict(reversed(payload.items()))
    key = None if record.key is None else _wrapped(_KEY_SCHEMA, {"id": record.key}, record.form)
    return Message(TOPIC, 0, offset, key, _wrapped(_envelope_schema(record.version), payload, record.form))


# Avro

_AVRO: Final = {"int16": "int", "int32": "int", "int64": "long", "float": "float", "double": "double"}
_LIMITS: Final = {"int16": 31, "int32": 31, "int64": 63}


def _avro_type(schema: Mapping[str, Any]) -> Json:
    found: Json = {"type": _AVRO.get(schema["type"], schema["type"])}
    if schema["type"] == "int16":
        found["connect.type"] = "int16"
    if "name" in schema:
        found["connect.name"] = schema["name"]
    if "parameters" in schema:
        found["connect.parameters"] = schema["parameters"]
    return found


def avro_schema(version: Version) -> Json:
    """The envelope's Avro schema."""
    columns = [
        {"name": name, "type": ["null", _avro_type(KINDS[kind].schema)], "default": None}
        for name, kind in version.columns
    ]
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}, *columns]}
    source = [
        {"name": name, "type": ["null", "long" if kind == "int64" else "string"]}
        for name, kind in _SOURCE_TYPES.items()
    ]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.lab.t",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": {"type": "record", "name": "Source", "fields": source}},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"]},
        ],
    }


KEY_AVRO: Final[Json] = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


def _avro_row(version: Version, row: Json | None) -> Json | None:
    if row is None:
        return None
    kinds = {name: KINDS[kind].schema["type"] for name, kind in version.columns}
    return {name: _avro_value(kinds.get(name, "int64"), one) for name, one in row.items()}


def _avro_value(kind: str, value: Any) -> Any:
    if kind in _LIMITS and value is not None:
        return max(-(2 ** _LIMITS[kind]), min(2 ** _LIMITS[kind] - 1, value))
    if kind in ("float", "double") and value is not None:
        try:
            return struct.unpack("<f", struct.pack("<f", value))[0] if kind == "float" else float(value)
        except OverflowError:
            return 0.0
    return value


def framed(schema: Any, schema_id: int, value: Json) -> bytes:
    """A record behind its Confluent header."""
    out = BytesIO()
    out.write(struct.pack(">BI", 0, schema_id))
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def avro_message(record: Record, offset: int, schema: Any, schema_id: int, key_schema: Any) -> Message:
    """The record as an Avro converter writes it; the key's schema has the id 1."""
    value: Json = {
        "before": _avro_row(record.version, record.before),
        "after": _avro_row(record.version, record.after),
        "source": {name: record.source.get(name) for name in _SOURCE_TYPES},
        "op": record.op,
        "ts_ms": 1,
    }
    key = None if record.key is None else framed(key_schema, 1, {"id": record.key})
    return Message(TOPIC, 0, offset, key, framed(schema, schema_id, value))
