"""Builds the Avro key and value schemas of a table like TiCDC, and parses TiCDC's registered schemas.

A built schema has the same names, order of fields and order of JSON members as TiCDC's (tiflow c7b2588, ticdc
b813e76), so that a registry returns the same schema id.

Column defaults are written as TiCDC writes them, and converted back to TiDB's text. They differ from Avro's
rules: the default of a bytes field is base64 instead of ISO-8859-1 text, and its bytes that are not UTF-8 are
already lost; a FLOAT default is the 32-bit value as a double; a DOUBLE default without a fraction is an
integer; a BIGINT UNSIGNED default from 2^63 on is negative; a DECIMAL in bytes has no default.

A registered schema is parsed once into its columns, its extension fields, and a *bare* schema for fastavro.
The bare schema has only the fields' names and primitive types. It has no defaults, because TiCDC's defaults
are not valid in Avro, and no logical types.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException

from tidesink.codecs.options import FlatAvroOptions
from tidesink.codecs.row_checksum import summed_order
from tidesink.errors import EncodeError, SchemaMismatchError, shown
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.schema_registry.naming import sanitize_name, sanitize_namespace
from tidesink.typemap.table import EXTENSION_FIELDS, Reader, avro_type, row_of, row_of_avro, split_allowed
from tidesink.typemap.values import shortest_float32, wire_unsigned

AvroJson = dict[str, Any]

BEFORE: Final = "_ticdc_before"
OP: Final = "_tidb_op"
COMMIT_TS: Final = "_tidb_commit_ts"
PHYSICAL_TIME: Final = "_tidb_commit_physical_time"

_FIELDS: Final = tuple((field.name, field.avro, field.default) for field in EXTENSION_FIELDS)
_OP_FIELDS, _TIME_FIELDS, _CHECKSUM_FIELDS = _FIELDS[:1], _FIELDS[1:3], _FIELDS[3:]
# Go's encoding/json escapes these characters.
_GO_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class BuiltRecord:
    """An Avro schema that was built for a table.

    ``schema``: the schema as JSON data. ``columns``: columns of the table, in the order of the schema's
    fields. ``summed``: columns from which a row's checksum is computed, in the order of the computation;
    empty if rows have no checksum.
    """

    schema: AvroJson
    columns: tuple[Column, ...]
    summed: tuple[Column, ...] = ()

    @property
    def text(self) -> str:
        """The schema as the JSON text that TiCDC would register."""
        return schema_text(self.schema)


def schema_text(schema: Mapping[str, Any]) -> str:
    """Returns a schema as JSON text without spaces, with special characters escaped as Go does."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":")).translate(_GO_ESCAPES)


def key_record(schema: TableSchema, table: TableId, options: FlatAvroOptions) -> BuiltRecord | None:
    """Returns the Avro schema of a table's Kafka keys, or None if TiCDC writes null keys for the table.

    The key is the handle key in classic TiCDC, and the primary key in the new architecture.

    Raises:
        EncodeError: Two columns map to the same Avro name.
    """
    columns = schema.primary_key if options.producer == "new" else schema.handle_columns
    return BuiltRecord(_record(table, columns, options), columns) if columns else None


def value_record(schema: TableSchema, table: TableId, options: FlatAvroOptions) -> BuiltRecord:
    """Returns the Avro schema of a table's Kafka values.

    If the options ask for them, the schema has fields for the row before the change and for the TiDB
    extension.

    Raises:
        EncodeError: Two fields map to the same Avro name.
    """
    # Classic TiCDC omits virtual columns. The new architecture writes them as NULL.
    columns = tuple(
        candidate for candidate in schema.columns if options.producer == "new" or not candidate.virtual
    )
    if _has_checksum(options):
        columns = tuple(sorted(columns, key=lambda column: column.column_id or 0))
    built = _record(table, columns, options)
    if includes_before(options):
        before = _record(table, columns, options, suffix="_before")
        built["fields"].append({"default": None, "name": BEFORE, "type": ["null", before]})
    built["fields"] += [
        {"default": default, "name": name, "type": avro} for name, avro, default in _extension(options)
    ]
    check_unique_names(built["fields"], columns)
    summed = summed_order(schema.columns, options) if _has_checksum(options) else ()
    return BuiltRecord(built, columns, tuple(column for column in summed if not column.virtual))


def includes_before(options: FlatAvroOptions) -> bool:
    """Returns True if values contain the row before the change, which only new-architecture TiCDC writes."""
    return options.avro_include_before_value and options.producer == "new"


def _has_checksum(options: FlatAvroOptions) -> bool:
    return options.row_checksum and options.enable_tidb_extension


def _extension(options: FlatAvroOptions) -> Sequence[tuple[str, str, object]]:
    if not options.enable_tidb_extension:
        return _OP_FIELDS if includes_before(options) else ()
    checksum = _CHECKSUM_FIELDS if options.row_checksum else ()
    return (*_OP_FIELDS, *_TIME_FIELDS, *checksum)


def _record(
    table: TableId, columns: Sequence[Column], options: FlatAvroOptions, suffix: str = ""
) -> AvroJson:
    fields = [_field(column, options) for column in columns]
    check_unique_names(fields, columns)
    return {
        "type": "record",
        "name": sanitize_name(table.name) + suffix,
        "namespace": sanitize_namespace(options.namespace, table.schema),
        "fields": fields,
    }


def _field(column: Column, options: FlatAvroOptions) -> AvroJson:
    avro = avro_type(
        column.type,
        decimal_mode=options.avro_decimal_handling_mode,
        unsigned_mode=options.avro_bigint_unsigned_handling_mode,
    )
    parameters: Any = avro["connect.parameters"]
    avro["connect.parameters"] = dict(sorted(parameters.items()))
    name = sanitize_name(column.name)
    default = to_json(column, str(avro["type"]))
    kind: object = avro
    if column.nullable:
        kind = ["null", avro] if default is None else [avro, "null"]
    field = {"name": name, "type": kind}
    return field if default is None and not column.nullable else {"default": default, **field}


def null_defaults(record: BuiltRecord) -> list[str]:
    """Returns the names of a record's nullable fields whose default is the text ``null``.

    ``record``: schema built for a table. TiCDC cannot write a table with such a field, and stops the
    changefeed (tiflow, issue 11994): its library goavro takes the text for Avro's null, which is not a value
    of the first branch of the field's union.
    """
    fields = json.loads(record.text)["fields"]
    return [
        field["name"]
        for field in fields
        if field.get("default") == "null" and isinstance(field["type"], list)
    ]


def check_unique_names(fields: Sequence[AvroJson], columns: Sequence[Column]) -> None:
    """Checks that all fields of an Avro schema have different names.

    Two columns may get the same field name, because special characters in names are replaced.

    ``columns``: the columns from which the first fields were made, in the same order. The remaining fields
    are those of the row before the change and of the TiDB extension.

    Raises:
        EncodeError: Two fields have the same name. The error text names both columns.
    """
    sources = [column.name for column in columns] + ["the extension"] * (len(fields) - len(columns))
    seen: dict[str, str] = {}
    for field, source in zip(fields, sources, strict=True):
        other = seen.setdefault(field["name"], source)
        if other is not source:
            raise EncodeError(
                f"Columns {other!r} and {source!r} both map to the Avro field {field['name']!r}. Rename one "
                "of them.",
                column=other,
            )


JsonDefault = int | float | str | None
# Below this value Go writes a float without an exponent.
_GO_PLAIN_BELOW: Final = 1e21
_SIGN_BIT: Final = 1 << 63


def to_json(column: Column, avro: str) -> JsonDefault:
    """Returns a column's default as the JSON value that TiCDC writes into the Avro field, or None.

    ``avro``: Avro type of the field. None means that the column has no default, or that TiCDC omits it.

    Raises:
        EncodeError: The default's text is not a value of the column's type.
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
            f"The default {shown(column.default)} is not a valid {column.type.sql or column.type.name}.",
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
    # TiDB stores the default as JSON text, in which U+FFFD replaces each byte that is not UTF-8.
    text, position = "", 0
    while position < len(raw):
        for size in (1, 2, 3, 4):
            try:
                text += raw[position : position + size].decode("utf-8")
            except UnicodeDecodeError:
                continue
            position += size
            break
        else:
            text, position = text + "\ufffd", position + 1
    return text.encode("utf-8")


_TO_JSON: Final[dict[Reader, Callable[[str], JsonDefault]]] = {
    "integer": int,
    "unsigned64": _signed_long,
    "float32": _widened,
    "float64": lambda text: _go_number(float(text)),
    "binary": _base64,
    "bit": _bits_base64,
}


def to_text(default: object, reader: Reader, avro: str) -> str | None:
    """Converts the default of an Avro field to the text of the column's default in TiDB; None stays None.

    ``reader``: name in ``typemap`` of how the column's values are read, such as ``decimal``. ``avro``: Avro
    type of the field. In a binary default, each byte becomes one character from U+0000 to U+00FF.

    Raises:
        SchemaMismatchError: The default does not have the form in which TiCDC writes it.
    """
    if default is None:
        return None
    try:
        if avro == "bytes":
            return base64.b64decode(str(default), validate=True).decode("latin-1")
    except (binascii.Error, ValueError) as error:
        raise SchemaMismatchError(f"The default {shown(default)} is not base64.") from error
    if isinstance(default, str):
        return default
    if isinstance(default, bool) or not isinstance(default, (int, float)):
        raise SchemaMismatchError(f"The default {shown(default)} is neither a number nor text.")
    if isinstance(default, int):
        return str(wire_unsigned(default) if reader == "unsigned64" else default)
    return repr(shortest_float32(default) if reader == "float32" else default)


_PARAMETERS: Final = "connect.parameters"
_EXTENSION_PREFIX: Final = "_tidb_"
_PRIMITIVES: Final = ("string", "long", "int", "boolean", "float", "double", "bytes")
# The bare schema has the extension's fields in a nested record of this name. Avro encodes them in the same
# way, and they need not be separated from the columns in each row.
EXTENSION: Final = "__tidesink_extension"


@dataclass(frozen=True)
class AvroColumn:
    """A field of an Avro schema that is a column of the table.

    ``name``: name of the field. ``avro``: its Avro type, without null. ``type``: the column's type.
    ``null_first``: True if null is the first branch of the field's union, False if it is the second, None if
    the field cannot be null. ``default``: text of the column's default in TiDB, or None.
    """

    name: str
    avro: str
    type: ColumnType
    null_first: bool | None
    default: str | None

    @property
    def bare(self) -> object:
        """The field's type in the schema for fastavro, which has no defaults and no logical types."""
        if self.null_first is None:
            return self.avro
        return ["null", self.avro] if self.null_first else [self.avro, "null"]


@dataclass(frozen=True)
class WriterRecord:
    """A parsed flat-avro schema of a registry.

    ``name`` and ``namespace``: the schema's. ``columns``: columns of the row. ``before``: columns of the row
    before the change, which is a nested record, or None if the schema does not have it. ``before_name``: full
    name of the nested record. ``extension``: names of the TiDB extension's fields. ``bare``: schema with
    which fastavro reads and writes the records, without defaults and logical types. Columns and names are in
    the order of the schema's fields.
    """

    name: str
    namespace: str
    columns: tuple[AvroColumn, ...]
    before: tuple[AvroColumn, ...] | None
    before_name: str | None
    extension: tuple[str, ...]
    bare: Any

    @property
    def table(self) -> TableId:
        """The table, with the names in the Avro schema, in which TiCDC replaced special characters."""
        return TableId(self.namespace.rpartition(".")[2], self.name)

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the schema's fields."""
        return tuple(column.name for column in self.columns)

    def table_schema(self, table: TableId, keys: Iterable[str]) -> TableSchema:
        """Returns the table schema with these columns. ``keys``: field names in the Avro schema of the key.

        flat-avro does not show if the key is the table's primary key or another unique key. So the key
        columns are marked as columns of the primary key and of the handle key.
        """
        named = frozenset(keys)
        return TableSchema(table, tuple(_column(column, column.name in named) for column in self.columns))


def _column(column: AvroColumn, is_key: bool) -> Column:
    return Column(
        name=column.name,
        type=column.type,
        nullable=column.null_first is not None,
        default=column.default,
        handle=is_key,
        primary_key=is_key,
    )


def parse_record(text: str) -> WriterRecord:
    """Parses the JSON text of a registered schema of a key or value.

    Raises:
        SchemaMismatchError: TiCDC does not write such a schema for flat-avro. If a field is the reason, the
            error's context names it.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"The writer's schema is not JSON: {error!s:.200}.") from error
    fields = _fields(schema)
    extension = [field for field in fields if _is_extension(field)]
    before = next((field for field in fields if field["name"] == BEFORE and _is_before(field)), None)
    columns = tuple(
        _avro_column(member) for member in fields if member is not before and not _is_extension(member)
    )
    bare = {column.name: column.bare for column in columns}
    old, name = None, None
    if before is not None:
        inner = {"namespace": schema.get("namespace", ""), **before["type"][1]}
        old, name = tuple(map(_avro_column, _fields(inner))), _full_name(inner)
        bare[BEFORE] = ["null", _bare_record(inner, {column.name: column.bare for column in old})]
    head = [field["name"] for field in fields[: len(fields) - len(extension)]]
    if bare.keys() != {*head}:
        misplaced = next(field_name for field_name in head if field_name not in bare)
        raise SchemaMismatchError(
            "The writer's schema has a field of the TiDB extension before this column, but TiCDC writes "
            "these fields last. Check what registered the schema.",
            column=misplaced,
        )
    in_order = {field_name: bare[field_name] for field_name in head}
    if extension:
        types = {str(field["name"]): field["type"] for field in extension}
        in_order[EXTENSION] = _bare_record({"name": EXTENSION}, types)
    return WriterRecord(
        name=str(schema["name"]),
        namespace=str(schema.get("namespace", "")),
        columns=columns,
        before=old,
        before_name=name,
        extension=tuple(str(field["name"]) for field in extension),
        bare=_parsed(_bare_record(schema, in_order)),
    )


def _full_name(record: Mapping[str, Any]) -> str:
    return f"{record['namespace']}.{record['name']}" if record["namespace"] else str(record["name"])


def _bare_record(schema: Mapping[str, Any], fields: Mapping[str, object]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": str(schema["name"]),
        "namespace": str(schema.get("namespace", "")),
        "fields": [{"name": name, "type": bare} for name, bare in fields.items()],
    }


def _fields(schema: object) -> list[dict[str, Any]]:
    if not isinstance(schema, dict) or schema.get("type") != "record" or "name" not in schema:
        raise SchemaMismatchError("The writer's schema is not an Avro record. Is the topic flat-avro?")
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(
        isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field for field in fields
    ):
        raise SchemaMismatchError(
            "The writer's schema has a field without a name or type. Is the topic flat-avro?"
        )
    names = [field["name"] for field in fields]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise SchemaMismatchError(f"The writer's schema contains the field {shown(twice)} twice.")
    return fields


def _is_extension(field: dict[str, Any]) -> bool:
    # Extension fields have plain types, but a user's column with such a name has connect.parameters. Only
    # primitive types count, because parsing a record that refers to its own name would never end.
    return field["type"] in _PRIMITIVES and field["name"].startswith(_EXTENSION_PREFIX)


def _is_before(field: dict[str, Any]) -> bool:
    branches = field["type"]
    return (
        isinstance(branches, list)
        and len(branches) == 2
        and branches[0] == "null"
        and isinstance(branches[1], dict)
        and branches[1].get("type") == "record"
    )


def _avro_column(field: dict[str, Any]) -> AvroColumn:
    branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
    typed = [branch for branch in branches if branch != "null"]
    if len(typed) != 1 or len(branches) > 2:
        raise SchemaMismatchError(
            f"The field's type {shown(field['type'], 120)} is not a column type of flat-avro.",
            column=field["name"],
        )
    try:
        column_type, primitive, reader = _read_type(typed[0])
        default = to_text(field.get("default"), reader, primitive)
    except SchemaMismatchError as error:
        raise error.with_context(column=field["name"]) from error
    null_first = None if len(branches) == 1 else branches[0] == "null"
    return AvroColumn(field["name"], primitive, column_type, null_first, default)


def _read_type(avro: object) -> tuple[ColumnType, str, Any]:
    parameters = avro.get(_PARAMETERS) if isinstance(avro, dict) else None
    if not isinstance(avro, dict) or not isinstance(parameters, dict):
        raise SchemaMismatchError(
            f"The field's type {shown(avro, 120)} has no {_PARAMETERS}, which TiCDC writes for each column."
        )
    primitive, tidb_type = str(avro.get("type")), str(parameters.get("tidb_type"))
    row = row_of_avro(tidb_type, primitive)
    if row is None:
        raise SchemaMismatchError(
            f"tidesink does not support a column with tidb_type {shown(tidb_type)} and the Avro type "
            f"{shown(primitive, 40)}."
        )
    allowed, length = parameters.get("allowed"), parameters.get("length")
    column_type = ColumnType(
        name=row.name,
        precision=_number(avro.get("precision")),
        scale=_number(avro.get("scale")),
        length=_number(length),
        members=split_allowed(str(allowed)) if allowed is not None else None,
    )
    if row.reader == "decimal" and primitive == "bytes" and column_type.precision is None:
        raise SchemaMismatchError(
            "The field is a decimal in bytes, but its type has no precision. Is the topic flat-avro?"
        )
    return column_type, primitive, row.reader


def _number(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 5:
        return int(value)
    if isinstance(value, int) and 0 <= value < 10000:
        return value
    raise SchemaMismatchError(f"{shown(value, 40)} is not a valid length, precision or scale.")


def _parsed(bare: dict[str, Any]) -> Any:
    try:
        return fastavro.parse_schema(bare)
    except (SchemaParseException, ValueError, TypeError, KeyError) as error:
        raise SchemaMismatchError(f"The writer's schema is not valid Avro: {error!s:.200}.") from error
