"""Rows to and from flat-avro payloads, byte for byte as TiCDC's two producers write them.

fastavro reads and writes the primitives. Only DECIMAL, BIT and BIGINT UNSIGNED need another step to the form
that ``tidesink.events`` defines: a decimal must have its scale, and BIT has the fewest possible bytes (TiCDC
tiflow c7b2588) or the full width (ticdc b813e76).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro import schemaless_reader, schemaless_writer

from tidesink.codecs.base import DAMAGED, header
from tidesink.codecs.flat_avro.schema import (
    BEFORE,
    COMMIT_TS,
    EXTENSION,
    OP,
    PHYSICAL_TIME,
    AvroColumn,
    WriterRecord,
)
from tidesink.codecs.framing import HEADER_SIZE
from tidesink.codecs.row_checksum import CHECKSUM, CORRUPTED, CURRENT_VERSION, VERSION, RowSums
from tidesink.errors import DecodeError, EncodeError, SchemaMismatchError, ValueOutOfRangeError, shown
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    Message,
    Op,
    Position,
    Row,
    SchemaIds,
    TableId,
    TableSchema,
    Value,
    physical_ms,
)
from tidesink.typemap.table import row_of
from tidesink.typemap.values import DECIMAL_CONTEXT, fit_decimal, text_reader, wire_unsigned

# Values

FromWire = Callable[[Any], Value]
ToWire = Callable[[Any], Any]

_INT32_END: Final = 1 << 31
_INT64_END: Final = 1 << 63
_UINT64_END: Final = 1 << 64
_MAX_FLOAT: Final = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


def from_wire(column_type: ColumnType, avro: str) -> FromWire | None:
    """The function that converts a column's Avro value to an event value; None if both are the same.

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
            raise ValueOutOfRangeError(f"{len(data)} bytes of digits are not a valid {_shown(column_type)}.")
        return Decimal(unscaled).scaleb(exponent, DECIMAL_CONTEXT)

    return read


def _bit_reader(column_type: ColumnType) -> FromWire:
    limit = 1 << (column_type.length or 64)

    def read(data: bytes) -> int:
        value = int.from_bytes(data, "big")
        if value >= limit:
            raise ValueOutOfRangeError(f"0x{data[:9].hex()} has more bits than {_shown(column_type)}.")
        return value

    return read


def _shown(column_type: ColumnType) -> str:
    arguments = [column_type.precision, column_type.scale, column_type.length]
    given = ",".join(str(argument) for argument in arguments if argument is not None)
    return column_type.sql or (f"{column_type.name}({given})" if given else column_type.name)


def to_wire(
    column_type: ColumnType, avro: str, *, nullable: bool = True, full_width_bit: bool = False
) -> ToWire | None:
    """The function that converts an event value to fastavro's value; None if both are the same.

    The function raises EncodeError for a value that the column cannot hold, unless fastavro checks it itself.
    fastavro checks a union's values; of other values it does not check the types of integers and the range of
    floats.
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
    return EncodeError(f"{shown(value)} is not a valid {_shown(column_type)}.")


def _bit_writer(column_type: ColumnType, full_width: bool) -> ToWire:
    bits = column_type.length or 64

    def write(value: int) -> bytes:
        if not isinstance(value, int) or not 0 <= value < 1 << bits:
            raise _refuse(value, column_type)
        size = bits if full_width else max(value.bit_length(), 1)
        return value.to_bytes((size + 7) // 8, "big")

    return write


# Written with all its digits, 1e999999999 would have a billion of them; no DECIMAL has a hundred.
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
        # Minimal two's complement: -128 needs one byte, 128 two.
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
        raise EncodeError(f"{shown(value)} is not a valid bigint unsigned.")


def _label_writer(column_type: ColumnType) -> ToWire:
    members = frozenset(column_type.members or ())
    is_set = column_type.name == "set"

    def write(value: str) -> str:
        if not isinstance(value, str):
            raise EncodeError(
                f"{shown(value)} is a number, but {_shown(column_type)} is written as its label."
            )
        if members:
            parts = [part for part in value.split(",") if part] if is_set else [value]
            if not members.issuperset(parts):
                raise _refuse(value, column_type)
        return value

    return write


def _int(value: int) -> int:
    if not isinstance(value, int) or not -_INT32_END <= value < _INT32_END:
        raise EncodeError(f"{shown(value)} is not a 32-bit integer.")
    return value


def _long(value: int) -> int:
    if not isinstance(value, int) or not -_INT64_END <= value < _INT64_END:
        raise EncodeError(f"{shown(value)} is not a 64-bit integer.")
    return value


def _float(value: float) -> float:
    if not isinstance(value, (float, int)) or _MAX_FLOAT < abs(value) < float("inf"):
        raise EncodeError(f"{shown(value)} is not a 32-bit float.")
    return float(value)


_PLAIN_WRITERS: Final[dict[str, ToWire]] = {"int": _int, "long": _long}


# Reading

# The values of ``_tidb_op``; an empty value leaves the operation open.
OPS: Final[Mapping[object, Op]] = {"c": Op.INSERT, "u": Op.UPDATE, "d": Op.DELETE, "": Op.UPSERT}
_NEW: Final = tuple.__new__
# The extension member of an event whose BIT columns had full width (ticdc b813e76). No schema shows the
# width, but it is needed to write the same bytes again.
BIT_WIDTH: Final = "bit_width"
FULL: Final = "full"
# It is stored in the row, under a name that no column has, until it is moved to the event.
_BIT_WIDTH_MEMBER: Final = "\0" + BIT_WIDTH
_Repairs = tuple[tuple[str, FromWire], ...]


def _repairs(columns: tuple[AvroColumn, ...] | None) -> _Repairs:
    found = [(column.name, from_wire(column.type, column.avro)) for column in columns or ()]
    return tuple((name, repair) for name, repair in found if repair is not None)


class RecordReader:
    """Reads the payloads of one writer's schema; ``part`` is ``key`` or ``value``."""

    def __init__(self, part: str, record: WriterRecord) -> None:
        self.part, self.record = part, record
        self._bare = record.bare
        self._repairs = _repairs(record.columns)
        self._before_repairs = _repairs(record.before)
        self._bits = tuple(c.name for c in record.columns if row_of(c.type).reader == "bit")

    def read(self, data: bytes) -> dict[str, Any]:
        """Every field of one record, with typed columns; ``_ticdc_before`` is a nested record.

        A member ``_BIT_WIDTH_MEMBER`` is added if a BIT column has leading zeros.

        Raises:
            SchemaMismatchError: the bytes end early, continue after the record, or are not values of their
                types.
            ValueOutOfRangeError: a value does not fit its column; context has the column.
        """
        stream = BytesIO(data)
        stream.seek(HEADER_SIZE)
        try:
            row: Any = schemaless_reader(stream, self._bare, None)
        except DAMAGED as error:
            raise self._unreadable(error, len(data)) from error
        if stream.tell() != len(data):
            raise SchemaMismatchError(
                f"The {self.part} has {len(data) - stream.tell()} more bytes after its record. It was "
                "written with a different schema than its id names."
            )
        if self._bits and any(row[name] and row[name][0] == 0 < len(row[name]) - 1 for name in self._bits):
            row[_BIT_WIDTH_MEMBER] = FULL
        if self._repairs:
            _repair(row, self._repairs)
        if self._before_repairs and row[BEFORE] is not None:
            _repair(row[BEFORE], self._before_repairs)
        return row  # type: ignore[no-any-return]

    def _unreadable(self, error: BaseException, size: int) -> SchemaMismatchError:
        if isinstance(error, UnicodeDecodeError):
            return SchemaMismatchError(f"The {self.part} contains text that is not UTF-8: {error!s:.120}.")
        if isinstance(error, (EOFError, IndexError)):
            return SchemaMismatchError(
                f"The {self.part} of {size} bytes is shorter than its schema requires. It is cut short, or "
                "was written with a different schema than its id names."
            )
        return SchemaMismatchError(f"The {self.part} is not a record of its schema: {error!s:.120}.")


def _repair(row: dict[str, Any], repairs: _Repairs) -> None:
    name = ""
    try:
        for name, repair in repairs:
            value = row[name]
            if value is not None:
                row[name] = repair(value)
    except DecodeError as error:
        raise error.with_context(column=name) from error


@dataclass(frozen=True)
class DecodePlan:
    """The parts of decoding that are the same for one topic and one pair of schema ids.

    ``sums``: checks the rows' checksums, if configured and if the schema has them. ``time_sums``: resolves
    times that occur twice by the rows' checksums.
    """

    key: RecordReader | None
    value: RecordReader | None
    table: TableId
    schema: TableSchema
    schema_id: SchemaIds
    sums: RowSums | None = None
    time_sums: RowSums | None = None

    def read(self, message: Message) -> ChangeEvent:
        """The row change of one record.

        Raises:
            SchemaMismatchError: the bytes do not match their schemas.
            ValueOutOfRangeError: a value does not fit its column.
        """
        key = None if self.key is None else self.key.read(message.key)  # type: ignore[arg-type]
        row = None if self.value is None else self.value.read(message.value)  # type: ignore[arg-type]
        extension: dict[str, object] = {}
        op, before, after = Op.DELETE, key, None
        if self.value is not None and row is not None:
            record = self.value.record
            before, after = row.pop(BEFORE) if record.before else None, row
            if record.extension:
                extension = row.pop(EXTENSION)
            op = OPS.get(extension.get(OP, ""))  # type: ignore[assignment]
            if op is None:
                raise SchemaMismatchError(f"{OP} is {shown(extension[OP], 40)}, but c, u or d was expected.")
            if op is Op.DELETE:
                # A delete's record repeats the old row at the top level.
                before, after = row if before is None else before, None
            if self.time_sums is not None and (meant := self.time_sums.meant_times(row, extension)):
                for image in filter(None, (row, key, before if after is None else None)):
                    image.update({name: time for name, time in meant.items() if image.get(name) == time})
        if key is not None and _BIT_WIDTH_MEMBER in key:
            extension[BIT_WIDTH] = key.pop(_BIT_WIDTH_MEMBER)
        if row is not None and _BIT_WIDTH_MEMBER in row:
            extension[BIT_WIDTH] = row.pop(_BIT_WIDTH_MEMBER)
        commit_ts: Any = extension.get(COMMIT_TS)
        source = None if commit_ts is None else (commit_ts,)
        # A named tuple's own constructor needs twice the time, and this code runs once per row.
        position = _NEW(Position, (message.topic, message.partition, message.offset, 0, source))
        ids, more = self.schema_id, extension or None
        return _NEW(
            ChangeEvent, (op, self.table, key, before, after, commit_ts, position, self.schema, ids, more)
        )


# Writing

_LETTERS: Final[Mapping[Op, str]] = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d"}
_NO_CHECKSUM: Final[Mapping[str, object]] = {CHECKSUM: "", CORRUPTED: False, VERSION: 0}
_TOO_LARGE: Final = "does not fit the field's signed 64-bit number. TiDB timestamps are below 2^63."
_WRITE_ERRORS: Final = (ValueError, TypeError, AttributeError, KeyError, OverflowError)


class RowWriter:
    """Converts rows under the table's column names to fastavro's values.

    ``names`` pairs each Avro field with the row's column. Virtual columns have no pair and are null.
    """

    def __init__(
        self, fields: Iterable[AvroColumn], columns: Iterable[Column], *, full_width_bit: bool
    ) -> None:
        """``columns`` are in the order of ``fields``."""
        pairs = list(zip(fields, columns, strict=True))
        self.names = tuple((avro.name, column.name) for avro, column in pairs if not column.virtual)
        self._virtual = tuple(avro.name for avro, column in pairs if column.virtual)
        self._required = tuple((avro.name, column.name) for avro, column in pairs if avro.null_first is None)
        # Uses the table's own type: an Avro schema has no scale for decimals as text, and its labels are
        # ambiguous.
        nullable = [(a, c, a.null_first is not None) for a, c in pairs]
        steps = [
            (a.name, to_wire(c.type, a.avro, nullable=null, full_width_bit=full_width_bit))
            for a, c, null in nullable
        ]
        self._repairs = tuple((name, write) for name, write in steps if write is not None)

    def wire_row(self, row: Row) -> dict[str, Any]:
        """The row under Avro names, each value as its Avro primitive.

        Raises:
            EncodeError: a column is missing, is NULL although NOT NULL, or has a value that does not fit its
                type.
        """
        try:
            found: dict[str, Any] = {avro: row[column] for avro, column in self.names}
        except KeyError as error:
            raise EncodeError(
                "The row does not have this column, but flat-avro writes whole rows.",
                column=str(error.args[0]),
            ) from error
        found.update(dict.fromkeys(self._virtual))
        self._check_required(found)
        name = ""
        try:
            for name, write in self._repairs:
                value = found[name]
                if value is not None:
                    found[name] = write(value)
        except EncodeError as error:
            raise error.with_context(column=name) from error
        return found

    def _check_required(self, found: Mapping[str, Any]) -> None:
        for avro, column in self._required:
            if found[avro] is None:
                why = (
                    "New TiCDC cannot write a virtual column that is NOT NULL."
                    if avro in self._virtual
                    else ""
                )
                raise EncodeError(why or "The column is NOT NULL, but the value is NULL.", column=column)


class RecordWriter:
    """Writes the payloads of one registered schema, whose fields correspond to these columns of the table.

    ``sums`` computes the checksum of a row without one.
    """

    def __init__(
        self,
        schema_id: int,
        record: WriterRecord,
        columns: tuple[Column, ...],
        *,
        full_width_bit: bool,
        sums: RowSums | None = None,
    ) -> None:
        self.rows = RowWriter(record.columns, columns, full_width_bit=full_width_bit)
        self._before: RowWriter | None = None
        if record.before is not None:
            self._before = RowWriter(record.before, columns, full_width_bit=full_width_bit)
        self._record, self._sums, self._head = record, sums, header(schema_id)

    def write_row(self, row: Row) -> bytes:
        """The bytes of a key.

        Raises:
            EncodeError: the row does not fit the schema; context has the column.
        """
        return self._write(self.rows.wire_row(row))

    def write_event(self, event: ChangeEvent) -> bytes:
        """The bytes of a value: the row, the old row if the schema has a field for it, and the extension.

        Raises:
            EncodeError: the event does not fit the schema; context has the column.
        """
        if event.op is Op.DELETE and OP not in self._record.extension:
            raise EncodeError(f"The schema has no {OP}, so a delete cannot be written with it.")
        datum = self.rows.wire_row(_row_of(event))
        if self._before is not None:
            # With the record's name, fastavro does not search the union for the branch.
            old = None if event.before is None else self._before.wire_row(event.before)
            datum[BEFORE] = None if old is None else (self._record.before_name, old)
        if self._record.extension:
            given = self._with_checksum(event)
            datum[EXTENSION] = {name: _extension_value(name, given) for name in self._record.extension}
        return self._write(datum)

    def _with_checksum(self, event: ChangeEvent) -> ChangeEvent:
        """The event with its row's checksum, if the producer would add one and the event has no checksum."""
        extension = event.extension or {}
        if self._sums is None or CHECKSUM in extension:
            return event
        found = str(self._sums.sum(_row_of(event)))
        return event._replace(extension={VERSION: CURRENT_VERSION, **extension, CHECKSUM: found})

    def _write(self, datum: dict[str, Any]) -> bytes:
        stream = BytesIO()
        stream.write(self._head)
        try:
            schemaless_writer(stream, self._record.bare, datum)
        except _WRITE_ERRORS as error:
            raise self._refused(datum, error) from error
        return stream.getvalue()

    def _refused(self, datum: Mapping[str, Any], error: Exception) -> EncodeError:
        for one, value in self._fields(datum):
            alone = fastavro.parse_schema({"type": "record", "name": "one", "fields": [one]})
            try:
                schemaless_writer(BytesIO(), alone, {one["name"]: value})
            except OverflowError:
                return EncodeError(f"{shown(value)} {_TOO_LARGE}", column=one["name"])
            except _WRITE_ERRORS as cause:
                return EncodeError(
                    f"The value does not have the field's type: {cause!s:.120}.", column=one["name"]
                )
        return EncodeError(f"The row is not a record of its schema: {error!s:.120}.")

    def _fields(self, datum: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
        """Each field of the schema and its value; the extension's fields are in a nested record."""
        for one in self._record.bare["fields"]:
            if one["name"] == EXTENSION:
                yield from ((inner, datum[EXTENSION][inner["name"]]) for inner in one["type"]["fields"])
            else:
                yield one, datum.get(one["name"])


def _row_of(event: ChangeEvent) -> Row:
    row = event.after if event.after is not None else event.before
    if row is None:
        raise EncodeError("The event has no row, neither before nor after the change.")
    return row


def key_row(event: ChangeEvent, names: Iterable[tuple[str, str]]) -> Row:
    """The row that contains the key: the new row, a delete's old row, or else the event's own key."""
    for row in (event.after, event.before):
        if row is not None and all(column in row for _, column in names):
            return row
    if event.key is None:
        raise EncodeError("The event has no key, and none of its rows contains the key's columns.")
    return event.key


def _extension_value(name: str, event: ChangeEvent) -> object:
    """The value of an extension field: the event's own, or else TiCDC's value computed from the event."""
    given = (event.extension or {}).get(name)
    if name == OP:
        return _LETTERS.get(event.op) or _given_op(given)
    if given is not None:
        return given
    if name in _NO_CHECKSUM:
        return _NO_CHECKSUM[name]
    if name not in (COMMIT_TS, PHYSICAL_TIME):
        raise EncodeError(f"The event's extension has no {name}, but the schema contains it.")
    if event.commit_ts is None:
        raise EncodeError("The event has no commit_ts, but the TiDB extension needs one.")
    return event.commit_ts if name == COMMIT_TS else physical_ms(event.commit_ts)


def _given_op(given: object) -> object:
    if not isinstance(given, str):
        raise EncodeError(f"{OP} needs insert or update, but an upsert can be either.")
    return given
