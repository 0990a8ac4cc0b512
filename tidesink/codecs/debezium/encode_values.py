"""Values, Connect schemas and ``source`` blocks of the records in TiCDC's ``debezium`` protocols.

Source: TiCDC new architecture (b813e76). Members have the same order as in TiCDC, so that the JSON is
identical.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from tidesink.codecs.base import is_deep
from tidesink.codecs.debezium.envelope import TICDC, connector_of
from tidesink.codecs.options import DebeziumOptions
from tidesink.errors import EncodeError, ValueOutOfRangeError, shown
from tidesink.events import Column, DdlEvent, TableId, Value, WatermarkEvent, physical_ms
from tidesink.schema_registry.naming import sanitize_name
from tidesink.typemap.table import escape_allowed, mysql_type_word, row_of
from tidesink.typemap.values import FoldedTime, fit_decimal, integer_bounds, shortest_float32

Members = dict[str, Any]

_UINT64: Final = 1 << 64
_INT64_END: Final = 1 << 63
_EPOCH: Final = datetime(1970, 1, 1)
_ZERO_MOMENT: Final = _EPOCH.replace(tzinfo=ZoneInfo("UTC"))
_MOMENT: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?", re.ASCII)
_TIME: Final = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?", re.ASCII)
# FLOAT(M,D), which TiCDC declares as double although its values are 32-bit numbers.
_WITH_DIGITS: Final = re.compile(r"float\s*\(\s*\d+\s*,", re.ASCII | re.IGNORECASE)
_NOW: Final = "CURRENT_TIMESTAMP"
_ZERO_TIMESTAMP: Final = "1970-01-01T00:00:00Z"


class RawNumber(NamedTuple):
    """A number, as the text that Go's JSON encoder writes for it."""

    text: str


def go_float(value: float, *, single: bool = False) -> RawNumber:
    """Formats a float as Go's JSON encoder does.

    The text has the fewest digits that identify the number, and an exponent below 1e-6 and from 1e21 on.
    ``single``: if True, the fewest digits that identify the number among 32-bit floats.

    Raises:
        EncodeError: the number is infinite or not a number.
    """
    if not math.isfinite(value):
        raise EncodeError(f"JSON cannot represent the number {value}.")
    text = repr(shortest_float32(value) if single else value)
    digits, _, exponent = text.partition("e")
    size = abs(value)
    if size and (size < 1e-6 or size >= 1e21):
        return RawNumber(_with_exponent(digits, exponent, value))
    return RawNumber(_without_exponent(text))


def _with_exponent(digits: str, exponent: str, value: float) -> str:
    text = f"{digits}e{exponent}" if exponent else f"{value:e}"
    mantissa, _, power = text.partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    sign, number = ("-" if power.startswith("-") else "+"), int(power.lstrip("+-"))
    return f"{mantissa}e{sign}{number:02d}"


def _without_exponent(text: str) -> str:
    plain = format(Decimal(text), "f")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _integer(column: Column, value: Value) -> Any:
    low, high = integer_bounds(column.type) or (-_INT64_END, _UINT64 - 1)
    if not isinstance(value, int) or not low <= value <= high:
        raise _refused(column, value)
    # Reproduces a loss of the producer: a number too large for an int64 becomes negative.
    return value - _UINT64 if value >= _INT64_END else value


def _bit(column: Column, value: Value) -> Any:
    length = column.type.length or 1
    if not isinstance(value, int) or not 0 <= value < 1 << length:
        raise _refused(column, value)
    return bool(value) if length == 1 else _base64(value.to_bytes((length + 7) // 8, "little"))


def _number(column: Column, value: Value) -> Any:
    if isinstance(value, str | bytes | None):
        raise _refused(column, value)
    if isinstance(value, Decimal):
        try:
            fit_decimal(value, column.type)
        except (ValueOutOfRangeError, ArithmeticError) as error:
            raise _refused(column, value) from error
    try:
        return go_float(float(value), single=column.type.name == "float")
    except OverflowError as error:
        raise _refused(column, value) from error


def _binary(column: Column, value: Value) -> Any:
    if not isinstance(value, bytes):
        raise _refused(column, value)
    return _base64(value)


def _text(column: Column, value: Value) -> Any:
    if not isinstance(value, str):
        raise _refused(column, value)
    return value


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _moment(column: Column, text: Value) -> datetime | None:
    """Parses a date, or a date and time.

    A year below 100 is changed as TiCDC changes it: 69 becomes 2069, 70 becomes 1970. Returns None if the
    date does not exist in the calendar, such as 2026-02-30.

    Raises:
        EncodeError: the text does not have the form of a date or of a date and time; context has the column.
    """
    match = _MOMENT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise _refused(column, text)
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    adjusted = year + (2000 if year < 70 else 1900 if year < 100 else 0)
    try:
        if year:  # year 0 is not a valid date in Go either
            datetime(year, month, day)
        moment = datetime(adjusted, month, day, hour, minute, second, int((match[7] or "").ljust(6, "0")))
    except ValueError:
        return None
    return moment


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _date(column: Column, value: Value) -> Any:
    moment = _moment(column, value)
    return _absent(column) if moment is None else (moment - _EPOCH).days


def _datetime(column: Column, value: Value) -> Any:
    moment = _moment(column, value)
    if moment is None:
        return _absent(column)
    return _microseconds(moment) // (1000 if (column.type.fsp or 0) <= 3 else 1)


def _absent(column: Column) -> Any:
    return None if column.nullable else 0


def _timestamp(column: Column, value: Value, zone: ZoneInfo) -> Any:
    if isinstance(value, str) and value.startswith("0000-00-00"):
        return _ZERO_TIMESTAMP
    moment = _moment(column, value)
    if moment is None:
        raise _refused(column, value)
    fold = value.fold if isinstance(value, FoldedTime) else 0
    utc = moment.replace(tzinfo=zone, fold=fold).astimezone(ZoneInfo("UTC"))
    if utc == _ZERO_MOMENT:
        # TIMESTAMP begins a second later, so this moment is how a zero timestamp was read.
        return _ZERO_TIMESTAMP
    fsp = column.type.fsp or 0
    fraction = f".{utc.microsecond:06d}"[: 1 + fsp] if fsp else ""
    return f"{utc:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _time(column: Column, value: Value) -> Any:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _refused(column, value)
    sign, hour, minute, second, fraction = match.groups()
    seconds = (int(hour) * 60 + int(minute)) * 60 + int(second)
    size = seconds * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -size if sign else size


def _refused(column: Column, value: object) -> EncodeError:
    kind = column.type.sql or column.type.name
    return EncodeError(f"{shown(value)} is not a valid {kind}.", column=column.name)


_VALUES: Final[Mapping[str, Callable[[Column, Value], Any]]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "bit": _bit,
    "float32": _number,
    "float64": _number,
    "decimal": _number,
    "binary": _binary,
    "date": _date,
    "datetime": _datetime,
    "time": _time,
}


def wire_value(column: Column, value: Value, zone: ZoneInfo) -> Any:
    """Converts a column's value to the value that the record's payload contains.

    Raises:
        EncodeError: the value does not fit its column's type; context has the column.
    """
    if value is None:
        return None
    reader = row_of(column.type).reader
    if reader == "timestamp":
        return _timestamp(column, value, zone)
    return _VALUES.get(reader, _text)(column, value)


# By the column's type: Connect's type, and the semantic name with its version, if it has one.
_SEMANTIC: Final[Mapping[str, tuple[str, str | None]]] = {
    "enum": ("string", "io.debezium.data.Enum"),
    "set": ("string", "io.debezium.data.EnumSet"),
    "json": ("string", "io.debezium.data.Json"),
    "date": ("int32", "io.debezium.time.Date"),
    "time": ("int64", "io.debezium.time.MicroTime"),
    "timestamp": ("string", "io.debezium.time.ZonedTimestamp"),
    "year": ("int32", "io.debezium.time.Year"),
    "vector": ("string", "io.debezium.data.TiDBVectorFloat32"),
    "tinyint": ("int16", None),
    "tinyint unsigned": ("int16", None),
    "smallint": ("int16", None),
    "smallint unsigned": ("int32", None),
    "mediumint": ("int32", None),
    "mediumint unsigned": ("int32", None),
    "int": ("int32", None),
    "int unsigned": ("int64", None),
    "bigint": ("int64", None),
    "bigint unsigned": ("int64", None),
    "double": ("double", None),
    "decimal": ("double", None),
}


def _connect_type(column: Column) -> tuple[str, str | None]:
    """Returns the Kafka Connect type of a column, and the name of its semantic type or None."""
    name = row_of(column.type).name
    if name == "bit":
        return ("boolean", None) if (column.type.length or 1) == 1 else ("bytes", "io.debezium.data.Bits")
    if name == "datetime":
        micro = (column.type.fsp or 0) > 3
        return "int64", f"io.debezium.time.{'Micro' if micro else ''}Timestamp"
    if name == "float":
        return ("double" if _WITH_DIGITS.match(column.type.sql or "") else "float"), None
    return _SEMANTIC.get(name, ("string", None))


def column_schema(column: Column) -> Members:
    """Returns the Kafka Connect schema of a column's values."""
    kind, name = _connect_type(column)
    schema: Members = {"type": kind, "optional": column.nullable}
    if name is not None:
        schema["name"] = name
        if column.type.name != "vector":
            schema["version"] = 1
    parameters = _parameters(column)
    return {**schema, "parameters": parameters} if parameters else schema


def schema_field(column: Column, *, extension: bool) -> Members:
    """Returns a column's field in a struct's schema; with ``extension``, the field also has ``tidb_type``."""
    field: Members = {"tidb_type": mysql_type_word(column.type)} if extension else {}
    field |= {**column_schema(column), "field": column.name}
    default = None if column.default is None else _default(column, column.default)
    return field if default is None else {**field, "default": default}


def _parameters(column: Column) -> Members:
    """Returns the parameters of a column's semantic type; empty for most types."""
    members = column.type.members or ()
    name = column.type.name
    if name == "enum":
        return {"allowed": escape_allowed(members)}
    if name == "set":
        return {"allowed": ",".join(members)}
    length = column.type.length or 1
    return {"length": str(length)} if name == "bit" and length > 1 else {}


def _default(column: Column, text: str) -> Any:
    reader = row_of(column.type).reader
    if reader in ("date", "datetime", "timestamp"):
        return _moment_default(column, text, reader)
    if reader == "bit":
        return _bit(column, int.from_bytes(text.encode("latin-1"), "big"))
    if reader == "time":
        return _time(column, text)
    if reader in ("integer", "unsigned64", "float32", "float64", "decimal"):
        number = float(text)
        year = column.type.name == "year" and number < 100
        return go_float(number + (2000 if number < 70 else 1900) if year else number)
    return text


def _moment_default(column: Column, text: str, reader: str) -> Any:
    if reader == "timestamp":
        if text.upper().startswith(_NOW) or text.startswith("0000"):
            return None if column.nullable else _ZERO_TIMESTAMP
        return _timestamp(column, text, ZoneInfo("UTC"))
    if text.upper().startswith(_NOW):
        return 0
    return (_date if reader == "date" else _datetime)(column, text)


def dumped(value: Any) -> str:
    """Formats JSON as TiCDC does: no spaces, and only the escapes that JSON requires."""
    if isinstance(value, RawNumber):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{_dump(name)}:{dumped(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumped, value)) + "]"
    return _dump(value)


def _dump(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)  # a number of a JSON text that was parsed exactly
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError as error:
        raise EncodeError(f"JSON has no type for the value {shown(value)}.") from error


VERSION: Final = "2.4.0.Final"
MESSAGE_OP: Final = "m"


def plain_field(kind: str, name: str, *, optional: bool = False) -> Members:
    """Returns the schema of a field whose type needs no further attributes."""
    return {"type": kind, "optional": optional, "field": name}


_SNAPSHOT: Final[Members] = {
    "type": "string",
    "optional": True,
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {"allowed": "true,last,false,incremental"},
    "default": "false",
    "field": "snapshot",
}
_SOURCE: Final[list[Members]] = [
    plain_field("string", "version"),
    plain_field("string", "connector"),
    plain_field("string", "name"),
    plain_field("int64", "ts_ms"),
    _SNAPSHOT,
    plain_field("string", "db"),
    plain_field("string", "sequence", optional=True),
    plain_field("string", "table", optional=True),
    plain_field("int64", "server_id"),
    plain_field("string", "gtid", optional=True),
    plain_field("string", "file"),
    plain_field("int64", "pos"),
    plain_field("int32", "row"),
    plain_field("int64", "thread", optional=True),
    plain_field("string", "query", optional=True),
]
_TRANSACTION: Final[Members] = {
    "type": "struct",
    "fields": [
        plain_field("string", "id"),
        plain_field("int64", "total_order"),
        plain_field("int64", "data_collection_order"),
    ],
    "optional": True,
    "name": "event.block",
    "version": 1,
    "field": "transaction",
}


def source_schema(*, extension: bool, start_ts: bool = False) -> Members:
    """Returns the schema of the ``source`` block.

    ``extension`` adds the fields of the TiDB extension, ``start_ts`` the start timestamp of the transaction.
    """
    extra = [plain_field("int64", "commit_ts")] if extension else []
    extra += [plain_field("int64", "start_ts")] if start_ts else []
    extra += [plain_field("string", "cluster_id")] if extension else []
    return {
        "type": "struct",
        "fields": [*_SOURCE, *extra],
        "optional": False,
        "name": "io.debezium.connector.mysql.Source",
        "field": "source",
    }


# In Avro the source has two fields of another type, and lacks one.
_AVRO_SOURCE: Final = {
    **{one["field"]: one for one in _SOURCE if one["field"] != "sequence"},
    "snapshot": plain_field("string", "snapshot", optional=True),
    "table": plain_field("string", "table"),
    "commit_ts": plain_field("int64", "commit_ts"),
    "cluster_id": plain_field("string", "cluster_id"),
}


def avro_source_schema(namespace: str) -> Members:
    """Returns the schema of the ``source`` block in Avro. ``namespace`` is the records' Avro namespace."""
    return {
        "type": "struct",
        "fields": list(_AVRO_SOURCE.values()),
        "optional": False,
        "name": f"{namespace}.Source",
        "field": "source",
    }


def source_block(options: DebeziumOptions, table: TableId, commit_ts: int, **extra: int) -> Members:
    """Returns the ``source`` block of a record; the members in ``extra`` follow ``commit_ts``."""
    return {
        "version": VERSION,
        "connector": TICDC,
        "name": options.cluster_id,
        "ts_ms": physical_ms(commit_ts),
        "snapshot": "false",
        "db": table.schema,
        "table": table.name,
        "server_id": 0,
        "gtid": None,
        "file": "",
        "pos": 0,
        "row": 0,
        "thread": 0,
        "query": None,
        "commit_ts": commit_ts,
        **extra,
        "cluster_id": options.cluster_id,
    }


def watermark_name(options: DebeziumOptions) -> str:
    """Returns the common first part of the names of a watermark's key schema and value schema."""
    return f"{sanitize_name(options.cluster_id)}.watermark"


def watermark_payload(event: WatermarkEvent, options: DebeziumOptions, now_ms: int) -> Members:
    """Returns the payload of a watermark record's value. ``now_ms`` is the current time, in ms since 1970."""
    source = source_block(options, TableId("", ""), event.commit_ts)
    return {"source": source, "ts_ms": now_ms, "transaction": None, "op": MESSAGE_OP}


def key_schema(name: str, fields: list[Members]) -> Members:
    """Returns the schema of a record's key; ``name`` is the first part of the schema's name."""
    return {"type": "struct", "name": f"{name}.Key", "optional": False, "fields": fields}


def envelope_schema(name: str, source: Members, images: list[Members]) -> Members:
    """Returns the schema of a record's value: an envelope with a source block, an op, and row images.

    ``images`` holds the fields ``before`` and ``after``; a watermark's envelope has neither.
    """
    rest = [source, plain_field("string", "op"), plain_field("int64", "ts_ms", optional=True), _TRANSACTION]
    return {
        "type": "struct",
        "optional": False,
        "name": f"{name}.Envelope",
        "version": 1,
        "fields": [*images, *rest],
    }


def _ddl_fields(kind: str, *names: str, optional: bool = True) -> list[Members]:
    return [{"field": name, "optional": optional, "type": kind} for name in names]


def _texts(name: str) -> Members:
    return {
        "field": name,
        "optional": True,
        "type": "array",
        "items": {"type": "string", "optional": False},
    }


def _listed(name: str, item: str, fields: Sequence[Members]) -> Members:
    struct = {
        "name": f"io.debezium.connector.schema.{item}",
        "optional": False,
        "type": "struct",
        "version": 1,
        "fields": list(fields),
    }
    return {"field": name, "optional": False, "type": "array", "items": struct}


_COLUMN: Final = [
    *_ddl_fields("string", "name", optional=False),
    *_ddl_fields("int32", "jdbcType", optional=False),
    *_ddl_fields("int32", "nativeType"),
    *_ddl_fields("string", "typeName", optional=False),
    *_ddl_fields("string", "typeExpression", "charsetName"),
    *_ddl_fields("int32", "length", "scale"),
    *_ddl_fields("int32", "position", optional=False),
    *_ddl_fields("boolean", "optional", "autoIncremented", "generated"),
    *_ddl_fields("string", "comment", "defaultValueExpression"),
    _texts("enumValues"),
]
_TABLE: Final[Members] = {
    "field": "table",
    "optional": True,
    "type": "struct",
    "name": "io.debezium.connector.schema.Table",
    "version": 1,
    "fields": [
        *_ddl_fields("string", "defaultCharsetName"),
        _texts("primaryKeyColumnNames"),
        _listed("columns", "Column", _COLUMN),
        *_ddl_fields("string", "comment"),
    ],
}
DDL_KEY: Final[Members] = {
    "type": "struct",
    "name": "io.debezium.connector.mysql.SchemaChangeKey",
    "optional": False,
    "version": 1,
    "fields": _ddl_fields("string", "databaseName", optional=False),
}
_DDL_REST: Final = [
    *_ddl_fields("int64", "ts_ms", optional=False),
    *_ddl_fields("string", "databaseName", "schemaName", "ddl"),
    _listed("tableChanges", "Change", [*_ddl_fields("string", "type", "id", optional=False), _TABLE]),
]


def ddl_value_schema(source: Members) -> Members:
    """Returns the schema of a DDL record's value."""
    return {
        "optional": False,
        "type": "struct",
        "version": 1,
        "name": "io.debezium.connector.mysql.SchemaChangeValue",
        "fields": [source, *_DDL_REST],
    }


def ddl_payload(event: DdlEvent, options: DebeziumOptions, now_ms: int) -> Members:
    """Returns the payload of a DDL record's value. ``now_ms`` is the current time, in ms since 1970.

    The ``tableChanges`` come from the event's extension.

    Raises:
        EncodeError: the event has no ``tableChanges`` or no commit_ts, or comes from a Debezium connector.
    """
    changes = _table_changes(event)
    if event.commit_ts is None:
        raise EncodeError("The event has no commit_ts, but TiCDC's debezium protocols need it.")
    return {
        "source": source_block(options, event.table, event.commit_ts),
        "ts_ms": now_ms,
        "databaseName": event.table.schema,
        "schemaName": None,
        "ddl": event.query,
        "tableChanges": changes,
    }


def _table_changes(event: DdlEvent) -> list[Members]:
    extension = event.extension or {}
    source, changes = extension.get("source"), extension.get("tableChanges")
    if isinstance(source, dict) and connector_of(source) != TICDC:
        raise EncodeError(
            "The DDL event comes from a Debezium connector, but only DDL events of TiCDC can be "
            "written. Remove the event from the input."
        )
    if (
        not isinstance(changes, list)
        or not all(isinstance(change, dict) for change in changes)
        or is_deep(changes)
    ):
        raise EncodeError(
            "A DDL event in TiCDC's debezium protocols contains tableChanges, the whole table "
            "definition of TiDB, but the event's extension does not have it. Only DDL events that "
            "were decoded from these protocols can be written. Remove the event from the input."
        )
    return changes
