"""A writer's schema, parsed once: its columns, its extras, its values, and the schema for fastavro.

fastavro gets the bare record: names and primitives in order. Defaults are left out, because TiCDC's are not
Avro's (base64 for bytes, integers for doubles), and so are logical types.

fastavro reads and writes the primitives; only DECIMAL, BIT and BIGINT UNSIGNED need another step to the
form that ``tidesink.events`` defines: a decimal must have its scale, and BIT is the shortest bytes (TiCDC
tiflow c7b2588) or the full width (ticdc b813e76).
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException

from tidesink.codecs.flat_avro.schema import BEFORE, to_text
from tidesink.errors import EncodeError, SchemaMismatchError, ValueOutOfRangeError, shown
from tidesink.events import Column, ColumnType, TableId, TableSchema, Value
from tidesink.typemap.parse import DECIMAL_CONTEXT, fit_decimal, text_reader, wire_unsigned
from tidesink.typemap.render import split_allowed
from tidesink.typemap.table import row_of, row_of_avro

_PARAMETERS: Final = "connect.parameters"
_EXTENSION_PREFIX: Final = "_tidb_"
_PRIMITIVES: Final = ("string", "long", "int", "boolean", "float", "double", "bytes")
# In the bare record the extension is a record of its own: Avro's bytes are the same, and no field must
# be picked out of each row.
EXTENSION: Final = "__tidesink_extension"


@dataclass(frozen=True)
class AvroColumn:
    """A field that is a column of the table: its Avro primitive and what it stands for."""

    name: str
    avro: str
    type: ColumnType
    null_first: bool | None  # None: the field cannot be null
    default: str | None

    @property
    def bare(self) -> object:
        """The field's type as fastavro needs it."""
        if self.null_first is None:
            return self.avro
        return ["null", self.avro] if self.null_first else [self.avro, "null"]


@dataclass(frozen=True)
class WriterRecord:
    """One registered flat-avro schema; ``columns`` and ``before`` stand in the order of the fields."""

    name: str
    namespace: str
    columns: tuple[AvroColumn, ...]
    before: tuple[AvroColumn, ...] | None
    before_name: str | None
    extension: tuple[str, ...]
    bare: Any

    @property
    def table(self) -> TableId:
        """The table as far as the record's names tell: both parts are sanitised."""
        return TableId(self.namespace.rpartition(".")[2], self.name)

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """The columns' names in order."""
        return tuple(column.name for column in self.columns)

    def table_schema(self, table: TableId, keys: Iterable[str]) -> TableSchema:
        """The columns as a table's, ``keys`` being the names in the key record.

        Whether the key is the primary key or another unique one, flat-avro does not tell: it is called both.
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
    """Take a registered schema apart.

    Raises:
        SchemaMismatchError: it is no schema that TiCDC writes for flat-avro; says which field is not.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"the writer's schema is no JSON: {error!s:.200}") from error
    fields = _fields(schema)
    before = next((field for field in fields if field["name"] == BEFORE and _is_before(field)), None)
    columns = [field for field in fields if field is not before and not _is_extension(field)]
    before_record = before["type"][1] if before else None
    return WriterRecord(
        name=str(schema["name"]),
        namespace=str(schema.get("namespace", "")),
        columns=tuple(map(_avro_column, columns)),
        before=tuple(map(_avro_column, _fields(before_record))) if before_record else None,
        before_name=_full_name(before_record, schema) if before_record else None,
        extension=tuple(str(field["name"]) for field in fields if _is_extension(field)),
        bare=_parsed(_bare_record(schema, fields)),
    )


def _full_name(record: dict[str, Any], outer: dict[str, Any]) -> str:
    namespace = record.get("namespace", outer.get("namespace", ""))
    return f"{namespace}.{record['name']}" if namespace else str(record["name"])


def _fields(schema: object) -> list[dict[str, Any]]:
    if not isinstance(schema, dict) or schema.get("type") != "record" or "name" not in schema:
        raise SchemaMismatchError("the writer's schema is no Avro record: is the topic flat-avro?")
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(
        isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field for field in fields
    ):
        raise SchemaMismatchError("the writer's schema has a field without name or type")
    names = [field["name"] for field in fields]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise SchemaMismatchError(f"the writer's schema has the field {shown(twice)} twice")
    return fields


def _is_extension(field: dict[str, Any]) -> bool:
    # Extension fields have plain types; a user's column of that name has connect.parameters.
    # Only primitives: a record's own name as the type would have it read itself without end.
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
    try:
        return _read_column(field)
    except SchemaMismatchError as error:
        raise error.with_context(column=field["name"]) from error


def _read_column(field: dict[str, Any]) -> AvroColumn:
    branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
    typed = [branch for branch in branches if branch != "null"]
    if len(typed) != 1 or len(branches) > 2:
        raise SchemaMismatchError(f"the field's type {shown(field['type'], 120)} is no column of flat-avro")
    (avro,) = typed
    column_type, primitive, reader = _read_type(avro)
    null_first = None if len(branches) == 1 else branches[0] == "null"
    return AvroColumn(
        name=field["name"],
        avro=primitive,
        type=column_type,
        null_first=null_first,
        default=to_text(field.get("default"), reader, primitive),
    )


def _read_type(avro: object) -> tuple[ColumnType, str, Any]:
    parameters = avro.get(_PARAMETERS) if isinstance(avro, dict) else None
    if not isinstance(avro, dict) or not isinstance(parameters, dict):
        raise SchemaMismatchError(
            f"{shown(avro, 120)} has no {_PARAMETERS}, which TiCDC writes for each column"
        )
    primitive, tidb_type = str(avro.get("type")), str(parameters.get("tidb_type"))
    row = row_of_avro(tidb_type, primitive)
    if row is None:
        raise SchemaMismatchError(
            f"tidb_type {shown(tidb_type)} as Avro {shown(primitive, 40)} is unknown to tidesink"
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
        raise SchemaMismatchError("a decimal in bytes has no precision")
    return column_type, primitive, row.reader


def _number(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 5:
        return int(value)
    if isinstance(value, int) and 0 <= value < 10000:
        return value
    raise SchemaMismatchError(f"{shown(value, 40)} is no length, precision or scale")


def _bare_record(schema: dict[str, Any], fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": str(schema["name"]),
        "namespace": str(schema.get("namespace", "")),
        "fields": list(_bare_fields(schema, fields)),
    }


def _bare_fields(schema: dict[str, Any], fields: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    extension = [{"name": field["name"], "type": field["type"]} for field in fields if _is_extension(field)]
    head = fields[: len(fields) - len(extension)]
    for field in head:
        bare: object = field["type"]
        if _is_extension(field):
            raise SchemaMismatchError("an extension field stands before a column", column=field["name"])
        if field["name"] == BEFORE and _is_before(field):
            inner = field["type"][1]
            named = {"namespace": schema.get("namespace", ""), **inner}
            bare = ["null", _bare_record(named, _fields(inner))]
        else:
            bare = _avro_column(field).bare
        yield {"name": field["name"], "type": bare}
    if extension:
        yield {"name": EXTENSION, "type": {"type": "record", "name": EXTENSION, "fields": extension}}


def _parsed(bare: dict[str, Any]) -> Any:
    try:
        return fastavro.parse_schema(bare)
    except (SchemaParseException, ValueError, TypeError, KeyError) as error:
        raise SchemaMismatchError(f"the writer's schema is no Avro: {error!s:.200}") from error


FromWire = Callable[[Any], Value]
ToWire = Callable[[Any], Any]

_INT32_END: Final = 1 << 31
_INT64_END: Final = 1 << 63
_UINT64_END: Final = 1 << 64
_MAX_FLOAT: Final = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


def from_wire(column_type: ColumnType, avro: str) -> FromWire | None:
    """What turns a column's Avro value into ours; None where it is ours already.

    The function raises ValueOutOfRangeError.
    """
    reader = row_of(column_type).reader
    if avro == "string":
        return text_reader(column_type) if reader in ("decimal", "unsigned64") else None
    if reader == "unsigned64":
        return wire_unsigned
    if reader == "decimal":
        return _decimal_reader(column_type)
    return _bit_reader(column_type) if reader == "bit" else None


def _decimal_reader(column_type: ColumnType) -> FromWire:
    exponent, limit = -(column_type.scale or 0), 10 ** (column_type.precision or 65)

    def read(data: bytes) -> Decimal:
        unscaled = int.from_bytes(data, "big", signed=True)
        if not -limit < unscaled < limit:
            raise ValueOutOfRangeError(f"{len(data)} bytes of digits are no {_shown(column_type)}")
        return Decimal(unscaled).scaleb(exponent, DECIMAL_CONTEXT)

    return read


def _bit_reader(column_type: ColumnType) -> FromWire:
    limit = 1 << (column_type.length or 64)

    def read(data: bytes) -> int:
        value = int.from_bytes(data, "big")
        if value >= limit:
            raise ValueOutOfRangeError(f"0x{data[:9].hex()} has more bits than {_shown(column_type)}")
        return value

    return read


def _shown(column_type: ColumnType) -> str:
    arguments = [column_type.precision, column_type.scale, column_type.length]
    given = ",".join(str(argument) for argument in arguments if argument is not None)
    return column_type.sql or (f"{column_type.name}({given})" if given else column_type.name)


def to_wire(
    column_type: ColumnType, avro: str, *, nullable: bool = True, full_width_bit: bool = False
) -> ToWire | None:
    """What turns our value into the one fastavro writes; None where it is that already.

    The function raises EncodeError for a value the column cannot hold, unless fastavro refuses it itself:
    it checks a union's values, and of plain ones all but integers' types and floats' ranges.
    """
    reader = row_of(column_type).reader
    if reader == "bit":
        return _bit_writer(column_type, full_width_bit)
    if reader == "decimal":
        return _decimal_text_writer(column_type) if avro == "string" else _decimal_writer(column_type)
    if reader == "unsigned64":
        return _unsigned_text if avro == "string" else _unsigned_long
    if reader in ("enum", "set"):
        return _label_writer(column_type)
    if avro == "float":
        return _float
    return None if nullable else _PLAIN_WRITERS.get(avro)


def _refuse(value: object, column_type: ColumnType) -> EncodeError:
    return EncodeError(f"{shown(value)} is no {_shown(column_type)}")


def _bit_writer(column_type: ColumnType, full_width: bool) -> ToWire:
    bits = column_type.length or 64

    def write(value: int) -> bytes:
        if not isinstance(value, int) or not 0 <= value < 1 << bits:
            raise _refuse(value, column_type)
        size = bits if full_width else max(value.bit_length(), 1)
        return value.to_bytes((size + 7) // 8, "big")

    return write


# Written out, 1e999999999 would be a number of a billion digits; no DECIMAL has a hundred.
_MOST_EXPONENT = 1000


def _decimal_writer(column_type: ColumnType) -> ToWire:
    scale, limit = column_type.scale or 0, 10 ** (column_type.precision or 65)

    def write(value: Decimal) -> bytes:
        try:
            if value and abs(value.adjusted()) > _MOST_EXPONENT:
                raise _refuse(value, column_type)
            scaled = value.scaleb(scale, DECIMAL_CONTEXT)
            unscaled = int(scaled)
        except (ArithmeticError, ValueError, AttributeError) as error:
            raise _refuse(value, column_type) from error
        if unscaled != scaled or not -limit < unscaled < limit:
            raise _refuse(value, column_type)
        # Minimal two's complement: -128 takes one byte, 128 two.
        bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
        return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)

    return write


def _decimal_text_writer(column_type: ColumnType) -> ToWire:
    return lambda value: format(_fitted(value, column_type), "f")


def _fitted(value: object, column_type: ColumnType) -> Decimal:
    if not isinstance(value, (Decimal, int)):
        raise _refuse(value, column_type)
    try:
        return fit_decimal(Decimal(value), column_type)
    except ValueOutOfRangeError as error:
        raise _refuse(value, column_type) from error


def _unsigned_long(value: int) -> int:
    _check_unsigned(value)
    return value - _UINT64_END if value >= _INT64_END else value


def _unsigned_text(value: int) -> str:
    _check_unsigned(value)
    return str(value)


def _check_unsigned(value: object) -> None:
    if not isinstance(value, int) or not 0 <= value < _UINT64_END:
        raise EncodeError(f"{shown(value)} is no bigint unsigned")


def _label_writer(column_type: ColumnType) -> ToWire:
    members = frozenset(column_type.members or ())
    is_set = column_type.name == "set"

    def write(value: str) -> str:
        if not isinstance(value, str):
            raise EncodeError(f"{shown(value)} is a number: {_shown(column_type)} is written by its label")
        if members:
            parts = [part for part in value.split(",") if part] if is_set else [value]
            if not members.issuperset(parts):
                raise _refuse(value, column_type)
        return value

    return write


def _int(value: int) -> int:
    if not isinstance(value, int) or not -_INT32_END <= value < _INT32_END:
        raise EncodeError(f"{shown(value)} is no 32-bit integer")
    return value


def _long(value: int) -> int:
    if not isinstance(value, int) or not -_INT64_END <= value < _INT64_END:
        raise EncodeError(f"{shown(value)} is no 64-bit integer")
    return value


def _float(value: float) -> float:
    if not isinstance(value, (float, int)) or _MAX_FLOAT < abs(value) < float("inf"):
        raise EncodeError(f"{shown(value)} is no 32-bit float")
    return float(value)


_PLAIN_WRITERS: Final[dict[str, ToWire]] = {"int": _int, "long": _long}
