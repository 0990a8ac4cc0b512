"""The key and value schemas TiCDC builds for a table (tiflow c7b2588 and ticdc b813e76).

Names, order of fields and order of JSON members are the producer's, so that a registry gives the same id.

Defaults of columns are written as TiCDC writes them, and read back to TiDB's text. The deviations are the
producer's: bytes defaults are base64 and not Avro's ISO-8859-1 text, bytes that are no UTF-8 were damaged
on the way, FLOAT shows its 32-bit value widened, a whole DOUBLE is an integer, BIGINT UNSIGNED wraps
negative, a precise DECIMAL has no default.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.row_checksum import summed_order
from tidesink.errors import EncodeError, SchemaMismatchError, shown
from tidesink.events import Column, TableId, TableSchema
from tidesink.schema_registry.naming import sanitize_name, sanitize_namespace
from tidesink.typemap.parse import shortest_float32, wire_unsigned
from tidesink.typemap.render import avro_type
from tidesink.typemap.table import EXTENSION_FIELDS, Reader, row_of

AvroJson = dict[str, Any]

BEFORE: Final = "_ticdc_before"
OP: Final = "_tidb_op"
COMMIT_TS: Final = "_tidb_commit_ts"
PHYSICAL_TIME: Final = "_tidb_commit_physical_time"

_FIELDS: Final = tuple((field.name, field.avro, field.default) for field in EXTENSION_FIELDS)
_OP_FIELDS, _TIME_FIELDS, _CHECKSUM_FIELDS = _FIELDS[:1], _FIELDS[1:3], _FIELDS[3:]
# Go's encoding/json writes these as escapes.
_GO_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class BuiltRecord:
    """An Avro schema and the table's columns behind its fields, in the order of the fields.

    ``summed``: the columns that the row's checksum is over, in its order; empty where it has none.
    """

    schema: AvroJson
    columns: tuple[Column, ...]
    summed: tuple[Column, ...] = ()

    @property
    def text(self) -> str:
        """The schema as the producer registers it."""
        return schema_text(self.schema)


def schema_text(schema: Mapping[str, Any]) -> str:
    """Compact JSON with Go's escapes."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":")).translate(_GO_ESCAPES)


def key_record(schema: TableSchema, table: TableId, options: CodecOptions) -> BuiltRecord | None:
    """The schema of a table's Kafka keys; None where the producer writes null keys.

    Classic TiCDC takes the handle key, the new architecture the primary key alone.

    Raises:
        EncodeError: two columns come to the same Avro name.
    """
    columns = schema.primary_key if options.producer == "new" else schema.handle_columns
    return BuiltRecord(_record(table, columns, options), columns) if columns else None


def value_record(schema: TableSchema, table: TableId, options: CodecOptions) -> BuiltRecord:
    """The schema of a table's values, before-image and extension fields included as the options say.

    Raises:
        EncodeError: two fields come to the same Avro name.
    """
    columns = _ordered(_carried(schema.columns, options), options)
    built = _record(table, columns, options)
    if includes_before(options):
        before = _record(table, columns, options, suffix="_before")
        built["fields"].append({"default": None, "name": BEFORE, "type": ["null", before]})
    built["fields"] += [
        {"default": default, "name": name, "type": avro} for name, avro, default in _extension(options)
    ]
    _check_unique(built["fields"], columns)
    summed = summed_order(schema.columns, options) if _has_checksum(options) else ()
    return BuiltRecord(built, columns, tuple(column for column in summed if not column.virtual))


def includes_before(options: CodecOptions) -> bool:
    """Whether values carry the old row: an option that only the new architecture has."""
    return options.avro_include_before_value and options.producer == "new"


def _carried(columns: Iterable[Column], options: CodecOptions) -> tuple[Column, ...]:
    # Classic TiCDC leaves virtual columns out, the new architecture writes them as NULL.
    return tuple(column for column in columns if options.producer == "new" or not column.virtual)


def _ordered(columns: tuple[Column, ...], options: CodecOptions) -> tuple[Column, ...]:
    if not _has_checksum(options):
        return columns
    return tuple(sorted(columns, key=lambda column: column.column_id or 0))


def _has_checksum(options: CodecOptions) -> bool:
    return options.row_checksum and options.enable_tidb_extension


def _extension(options: CodecOptions) -> Sequence[tuple[str, str, object]]:
    if not options.enable_tidb_extension:
        return _OP_FIELDS if includes_before(options) else ()
    checksum = _CHECKSUM_FIELDS if options.row_checksum else ()
    return (*_OP_FIELDS, *_TIME_FIELDS, *checksum)


def _record(table: TableId, columns: Sequence[Column], options: CodecOptions, suffix: str = "") -> AvroJson:
    fields = [_field(column, options) for column in columns]
    _check_unique(fields, columns)
    return {
        "type": "record",
        "name": sanitize_name(table.name) + suffix,
        "namespace": sanitize_namespace(options.namespace, table.schema),
        "fields": fields,
    }


def _field(column: Column, options: CodecOptions) -> AvroJson:
    avro = avro_type(
        column.type,
        decimal_mode=options.avro_decimal_handling_mode,
        unsigned_mode=options.avro_bigint_unsigned_handling_mode,
    )
    parameters: Any = avro["connect.parameters"]
    avro["connect.parameters"] = dict(sorted(parameters.items()))
    name = sanitize_name(column.name)
    default = to_json(column, str(avro["type"]))
    if not column.nullable:
        return {"name": name, "type": avro} if default is None else _defaulted(name, avro, default)
    return _defaulted(name, ["null", avro] if default is None else [avro, "null"], default)


def _defaulted(name: str, avro: object, default: object) -> AvroJson:
    return {"default": default, "name": name, "type": avro}


def _check_unique(fields: Sequence[AvroJson], columns: Sequence[Column]) -> None:
    sources = [column.name for column in columns] + ["the extension"] * (len(fields) - len(columns))
    seen: dict[str, str] = {}
    for field, source in zip(fields, sources, strict=True):
        other = seen.setdefault(field["name"], source)
        if other is not source:
            raise EncodeError(
                f"column {other!r} and {source!r} both come to the Avro field {field['name']!r}: "
                "rename one of them",
                column=other,
            )


JsonDefault = int | float | str | None
# Go writes a float without exponent below this.
_GO_PLAIN_BELOW: Final = 1e21
_SIGN_BIT: Final = 1 << 63


def to_json(column: Column, avro: str) -> JsonDefault:
    """The ``default`` of a column's field; None where the field has no default of its own.

    Raises:
        EncodeError: the text is no value of the column's type.
    """
    if column.default is None:
        return None
    reader = row_of(column.type).reader
    if reader == "decimal" and avro == "bytes":
        return None
    if avro == "string":
        return column.default
    try:
        return _TO_JSON[reader](column.default)
    except (ValueError, OverflowError) as error:
        raise EncodeError(
            f"the default {shown(column.default)} is no {column.type.sql or column.type.name}",
            column=column.name,
        ) from error


def _signed_long(text: str) -> int:
    value = int(text)
    return value - (1 << 64) if value >= _SIGN_BIT else value


def _go_number(value: float) -> float | int:
    return int(value) if value.is_integer() and abs(value) < _GO_PLAIN_BELOW else value


def _widened(text: str) -> float | int:
    (value,) = struct.unpack("<f", struct.pack("<f", float(text)))
    return _go_number(value)


def _base64(text: str) -> str:
    return base64.b64encode(_damaged(text.encode("latin-1"))).decode("ascii")


def _bits_base64(text: str) -> str:
    return base64.b64encode(text.encode("latin-1")).decode("ascii")


def _damaged(raw: bytes) -> bytes:
    # TiDB keeps the default as JSON text, where each byte that is no UTF-8 becomes U+FFFD.
    kept, at = "", 0
    while at < len(raw):
        for size in (1, 2, 3, 4):
            try:
                kept += raw[at : at + size].decode("utf-8")
            except UnicodeDecodeError:
                continue
            at += size
            break
        else:
            kept, at = kept + "\ufffd", at + 1
    return kept.encode("utf-8")


_TO_JSON: Final[dict[Reader, Callable[[str], JsonDefault]]] = {
    "integer": int,
    "unsigned64": _signed_long,
    "float32": _widened,
    "float64": lambda text: _go_number(float(text)),
    "binary": _base64,
    "bit": _bits_base64,
}


def to_text(default: object, reader: Reader, avro: str) -> str | None:
    """TiDB's text of a field's default; binary as text of U+0000 to U+00FF, a byte each.

    Raises:
        SchemaMismatchError: the default is of another JSON type than TiCDC writes.
    """
    if default is None:
        return None
    try:
        if avro == "bytes":
            return base64.b64decode(str(default), validate=True).decode("latin-1")
    except (binascii.Error, ValueError) as error:
        raise SchemaMismatchError(f"the default {shown(default)} is not base64") from error
    if isinstance(default, str):
        return default
    if isinstance(default, bool) or not isinstance(default, (int, float)):
        raise SchemaMismatchError(f"the default {shown(default)} is no number and no text")
    if isinstance(default, int):
        return str(wire_unsigned(default) if reader == "unsigned64" else default)
    return repr(shortest_float32(default) if reader == "float32" else default)
