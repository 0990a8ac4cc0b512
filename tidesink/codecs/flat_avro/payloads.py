"""Decodes and encodes flat-avro payloads, byte for byte as classic and new TiCDC write them.

fastavro reads and writes Avro's primitive types. DECIMAL, BIT and BIGINT UNSIGNED values are then converted
between their Avro form and the form that ``tidesink.events`` defines. A BIT value has as few bytes as
possible in classic TiCDC (tiflow c7b2588), and the column's full width in new TiCDC (ticdc b813e76).
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
    """Returns a function that converts a column's Avro values to event values, or None if they are equal.

    ``avro``: Avro type of the column's field. The returned function raises ValueOutOfRangeError if the Avro
    value does not fit the column's type.
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
            raise ValueOutOfRangeError(
                f"The number in the field's {len(data)} bytes is not a valid {_shown(column_type)}."
            )
        return Decimal(unscaled).scaleb(exponent, DECIMAL_CONTEXT)

    return read


def _bit_reader(column_type: ColumnType) -> FromWire:
    limit = 1 << (column_type.length or 64)

    def read(data: bytes) -> int:
        value = int.from_bytes(data, "big")
        if value >= limit:
            raise ValueOutOfRangeError(
                f"The value 0x{data[:9].hex()} has more bits than {_shown(column_type)}."
            )
        return value

    return read


def _shown(column_type: ColumnType) -> str:
    arguments = [column_type.precision, column_type.scale, column_type.length]
    given = ",".join(str(argument) for argument in arguments if argument is not None)
    return column_type.sql or (f"{column_type.name}({given})" if given else column_type.name)


def to_wire(
    column_type: ColumnType, avro: str, *, nullable: bool = True, full_width_bit: bool = False
) -> ToWire | None:
    """Returns a function that converts a column's event values for fastavro; None if they need no conversion.

    ``avro``: Avro type of the column's field. ``nullable``: True if the field is a union with null.
    ``full_width_bit``: True to write BIT values with the column's full width.

    The returned function raises EncodeError if a value does not fit the column's type. It also checks
    integers and floats of fields that are not unions, because fastavro checks only values in unions.
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


# The decimal 1e999999999 would be written with a billion digits. A DECIMAL has fewer than a hundred.
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
        # The shortest two's complement: -128 needs one byte, 128 needs two.
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
                f"{shown(value)} is a number, but a value of {_shown(column_type)} must be its label as text."
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

# Operations by the value of ``_tidb_op``. If it is empty, a row is either an insert or an update.
OPS: Final[Mapping[object, Op]] = {"c": Op.INSERT, "u": Op.UPDATE, "d": Op.DELETE, "": Op.UPSERT}
_NEW: Final = tuple.__new__
# Extension member of an event whose BIT values had full width (ticdc b813e76). The Avro schema does not show
# the width, but it is needed to write the same bytes again.
BIT_WIDTH: Final = "bit_width"
FULL: Final = "full"
# Until the member is moved to the event, it is stored in the row under a name that no column has.
_BIT_WIDTH_MEMBER: Final = "\0" + BIT_WIDTH
_Repairs = tuple[tuple[str, FromWire], ...]


def _repairs(columns: tuple[AvroColumn, ...] | None) -> _Repairs:
    repairs = [(column.name, from_wire(column.type, column.avro)) for column in columns or ()]
    return tuple((name, repair) for name, repair in repairs if repair is not None)


class RecordReader:
    """Decodes keys or values that were written with one Avro schema. ``part``: ``key`` or ``value``."""

    def __init__(self, part: str, record: WriterRecord) -> None:
        self.part, self.record = part, record
        self._bare = record.bare
        self._repairs = _repairs(record.columns)
        self._before_repairs = _repairs(record.before)
        self._bits = tuple(c.name for c in record.columns if row_of(c.type).reader == "bit")

    def read(self, data: bytes) -> dict[str, Any]:
        """Returns the fields of one key or value by name, converted to event values.

        ``data``: bytes with the Confluent header. In the result, the row before the change is a dict under
        the name ``_ticdc_before``. If a BIT value has leading zero bytes, the member ``_BIT_WIDTH_MEMBER`` is
        added, so that encoding can write the same bytes again.

        Raises:
            SchemaMismatchError: The bytes end before the record's end, continue after it, or are not values
                of the fields' types.
            ValueOutOfRangeError: A value does not fit its column, which the error's context names.
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
        return SchemaMismatchError(f"The {self.part} does not match its Avro schema: {error!s:.120}.")


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
    """How to decode the messages of one topic that have the same schema ids in key and value.

    ``key`` and ``value``: readers of the key and the value, or None if it is null. ``table`` and ``schema``:
    table of the rows, and its columns. ``sums``: checks the checksums of rows; None if the check is off, or
    if the schema has no checksum. ``time_sums``: determines from a row's checksum which moment is meant by a
    local time that occurs twice; None if that cannot happen or the schema has no checksum.
    """

    key: RecordReader | None
    value: RecordReader | None
    table: TableId
    schema: TableSchema
    schema_id: SchemaIds
    sums: RowSums | None = None
    time_sums: RowSums | None = None

    def read(self, message: Message) -> ChangeEvent:
        """Returns the row change in one message.

        Raises:
            SchemaMismatchError: The key's or the value's bytes do not match their schema.
            ValueOutOfRangeError: A value does not fit its column.
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
                raise SchemaMismatchError(
                    f"The field {OP} is {shown(extension[OP], 40)}, but c, u or d was expected. Check "
                    "what wrote the record."
                )
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
        # A named tuple's own constructor takes twice the time, and this code runs once per row.
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
    """Converts an event's rows to dicts that fastavro can write with one Avro schema.

    ``names``: pairs of the name of an Avro field and the name of its column in the table. The fields of
    virtual columns are not in ``names``; they are written as null.
    """

    def __init__(
        self, fields: Iterable[AvroColumn], columns: Iterable[Column], *, full_width_bit: bool
    ) -> None:
        """Creates a writer. ``columns``: the table's columns, one for each field in the fields' order."""
        pairs = list(zip(fields, columns, strict=True))
        self.names = tuple((avro.name, column.name) for avro, column in pairs if not column.virtual)
        self._virtual = tuple(avro.name for avro, column in pairs if column.virtual)
        self._required = tuple((avro.name, column.name) for avro, column in pairs if avro.null_first is None)
        # The table's column type is used, because the Avro schema has no scale for decimals written as text,
        # and its ENUM labels are ambiguous.
        nullable = [(a, c, a.null_first is not None) for a, c in pairs]
        steps = [
            (a.name, to_wire(c.type, a.avro, nullable=null, full_width_bit=full_width_bit))
            for a, c, null in nullable
        ]
        self._repairs = tuple((name, write) for name, write in steps if write is not None)

    def wire_row(self, row: Row) -> dict[str, Any]:
        """Returns the row with the names of the Avro fields, and with values that fastavro can write.

        Raises:
            EncodeError: The row lacks a column, a NOT NULL column is NULL, or a value does not fit its
                column's type.
        """
        try:
            datum: dict[str, Any] = {avro: row[column] for avro, column in self.names}
        except KeyError as error:
            raise EncodeError(
                "The row does not have this column, but flat-avro can only write complete rows. Add "
                "its value.",
                column=str(error.args[0]),
            ) from error
        datum.update(dict.fromkeys(self._virtual))
        self._check_required(datum)
        name = ""
        try:
            for name, write in self._repairs:
                value = datum[name]
                if value is not None:
                    datum[name] = write(value)
        except EncodeError as error:
            raise error.with_context(column=name) from error
        return datum

    def _check_required(self, datum: Mapping[str, Any]) -> None:
        for avro, column in self._required:
            if datum[avro] is None:
                why = (
                    "New-architecture TiCDC cannot write a virtual column that is NOT NULL."
                    if avro in self._virtual
                    else ""
                )
                raise EncodeError(
                    why or "The column is NOT NULL, but its value in the row is NULL.", column=column
                )


class RecordWriter:
    """Encodes keys or values with one registered Avro schema, and adds the Confluent header.

    ``columns``: columns of the table, one for each field of ``record`` and in the fields' order.
    ``full_width_bit``: True to write BIT values with the column's full width. ``sums``: computes the checksum
    of a row whose event has no checksum; None if no checksums are computed.
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
        """Returns the bytes of a key, with the Confluent header.

        Raises:
            EncodeError: The row does not fit the schema. The error's context has the column.
        """
        return self._write(self.rows.wire_row(row))

    def write_event(self, event: ChangeEvent) -> bytes:
        """Returns the bytes of a value, with the Confluent header.

        The value contains the row, and the old row and the TiDB extension if the schema has fields for them.

        Raises:
            EncodeError: The event does not fit the schema. The error's context has the column.
        """
        if event.op is Op.DELETE and OP not in self._record.extension:
            raise EncodeError(
                f"The schema has no field {OP}, so a delete cannot be written with it. Write a null value."
            )
        datum = self.rows.wire_row(_row_of(event))
        if self._before is not None:
            # If the record's name is given, fastavro does not search for the matching branch of the union.
            old = None if event.before is None else self._before.wire_row(event.before)
            datum[BEFORE] = None if old is None else (self._record.before_name, old)
        if self._record.extension:
            given = self._with_checksum(event)
            datum[EXTENSION] = {name: _extension_value(name, given) for name in self._record.extension}
        return self._write(datum)

    def _with_checksum(self, event: ChangeEvent) -> ChangeEvent:
        """Returns the event with a checksum of its row, if ``sums`` is given and the event has none."""
        extension = event.extension or {}
        if self._sums is None or CHECKSUM in extension:
            return event
        checksum = str(self._sums.sum(_row_of(event)))
        return event._replace(extension={VERSION: CURRENT_VERSION, **extension, CHECKSUM: checksum})

    def _write(self, datum: dict[str, Any]) -> bytes:
        stream = BytesIO()
        stream.write(self._head)
        try:
            schemaless_writer(stream, self._record.bare, datum)
        except _WRITE_ERRORS as error:
            raise self._refused(datum, error) from error
        return stream.getvalue()

    def _refused(self, datum: Mapping[str, Any], error: Exception) -> EncodeError:
        for field, value in self._fields(datum):
            alone = fastavro.parse_schema({"type": "record", "name": "one", "fields": [field]})
            try:
                schemaless_writer(BytesIO(), alone, {field["name"]: value})
            except OverflowError:
                return EncodeError(f"{shown(value)} {_TOO_LARGE}", column=field["name"])
            except _WRITE_ERRORS as cause:
                return EncodeError(
                    f"The value does not have the field's type: {cause!s:.120}.", column=field["name"]
                )
        return EncodeError(f"The row does not match its Avro schema: {error!s:.120}.")

    def _fields(self, datum: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yields each field of the schema with its value, including the fields of the TiDB extension."""
        for field in self._record.bare["fields"]:
            if field["name"] == EXTENSION:
                yield from ((inner, datum[EXTENSION][inner["name"]]) for inner in field["type"]["fields"])
            else:
                yield field, datum.get(field["name"])


def _row_of(event: ChangeEvent) -> Row:
    row = event.after if event.after is not None else event.before
    if row is None:
        raise EncodeError("The event has no row, neither before nor after the change. Set one of them.")
    return row


def key_row(event: ChangeEvent, names: Iterable[tuple[str, str]]) -> Row:
    """Returns the row whose key columns are written as the key of the event's record.

    This is the row after the change if it has all key columns, or else the row before the change if that has
    them all, or else the event's key. ``names``: for each key column the names of its Avro field and of the
    column.

    Raises:
        EncodeError: The event has no key, and its rows lack a key column.
    """
    for row in (event.after, event.before):
        if row is not None and all(column in row for _, column in names):
            return row
    if event.key is None:
        raise EncodeError("The event has no key, and none of its rows has all key columns.")
    return event.key


def _extension_value(name: str, event: ChangeEvent) -> object:
    """Returns the value to write into a field of the TiDB extension.

    ``name``: name of the field. The value comes from the event's extension if it is there, and is otherwise
    computed from the event.

    Raises:
        EncodeError: The event's extension lacks the value, and it cannot be computed.
    """
    given = (event.extension or {}).get(name)
    if name == OP:
        return _LETTERS.get(event.op) or _given_op(given)
    if given is not None:
        return given
    if name in _NO_CHECKSUM:
        return _NO_CHECKSUM[name]
    if name not in (COMMIT_TS, PHYSICAL_TIME):
        raise EncodeError(f"The event's extension has no {name}, but the Avro schema has this field. Add it.")
    if event.commit_ts is None:
        raise EncodeError(
            "The event has no commit_ts, which the TiDB extension needs. Set enable-tidb-extension to false."
        )
    return event.commit_ts if name == COMMIT_TS else physical_ms(event.commit_ts)


def _given_op(given: object) -> object:
    if not isinstance(given, str):
        raise EncodeError(
            f"The event is an upsert, but the field {OP} needs to know if it is an insert or an update. Set "
            "the event's op."
        )
    return given
