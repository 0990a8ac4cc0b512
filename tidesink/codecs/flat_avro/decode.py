"""Flat-avro bytes to change events: both producers, identified by what the bytes hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

from fastavro import schemaless_reader

from tidesink.codecs.base import HEADER_SIZE
from tidesink.codecs.flat_avro.record import EXTENSION, AvroColumn, FromWire, WriterRecord, from_wire
from tidesink.codecs.flat_avro.schema import BEFORE, COMMIT_TS, OP
from tidesink.codecs.row_checksum import RowSums
from tidesink.errors import DecodeError, SchemaMismatchError, shown
from tidesink.events import ChangeEvent, Message, Op, Position, Row, SchemaIds, TableId, TableSchema
from tidesink.typemap.table import row_of

_OPS: Final[Mapping[object, Op]] = {"c": Op.INSERT, "u": Op.UPDATE, "d": Op.DELETE, "": Op.UPSERT}
# What fastavro raises for bytes that end early or are no value of their type.
PAYLOAD_ERRORS: Final = (EOFError, IndexError, ValueError, OverflowError, TypeError, MemoryError)
_NEW: Final = tuple.__new__
# How an event says that its BIT columns were full width (ticdc b813e76): no schema says it, and it must be
# known to write the same bytes again.
BIT_WIDTH: Final = "bit_width"
FULL: Final = "full"
# Until it is moved to the event, it stands among the row's columns, under a name that no column has.
_BIT_WIDTH_MEMBER: Final = "\0" + BIT_WIDTH
_Repairs = tuple[tuple[str, FromWire], ...]


def _repairs(columns: tuple[AvroColumn, ...] | None) -> _Repairs:
    found = [(column.name, from_wire(column.type, column.avro)) for column in columns or ()]
    return tuple((name, repair) for name, repair in found if repair is not None)


@dataclass(frozen=True)
class RecordReader:
    """Reads the payloads of one writer's schema; ``part`` is ``key`` or ``value``."""

    part: str
    record: WriterRecord
    repairs: _Repairs = field(init=False)
    before_repairs: _Repairs = field(init=False)
    bare: Any = field(init=False)
    bits: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bare", self.record.bare)
        object.__setattr__(self, "repairs", _repairs(self.record.columns))
        object.__setattr__(self, "before_repairs", _repairs(self.record.before))
        bits = (c.name for c in self.record.columns if row_of(c.type).reader == "bit")
        object.__setattr__(self, "bits", tuple(bits))

    def read(self, data: bytes) -> dict[str, Any]:
        """Every field of one record, columns typed; ``_ticdc_before`` stays a record inside.

        A member ``_BIT_WIDTH_MEMBER`` is added where a BIT column has leading zeros.

        Raises:
            SchemaMismatchError: the bytes end early, go on too long, or are no values of their types.
            ValueOutOfRangeError: a value that its column cannot hold; context has the column.
        """
        stream = BytesIO(data)
        stream.seek(HEADER_SIZE)
        try:
            row: Any = schemaless_reader(stream, self.bare, None)
        except PAYLOAD_ERRORS as error:
            raise self._unreadable(error, len(data)) from error
        if stream.tell() != len(data):
            raise SchemaMismatchError(
                f"the {self.part} goes on for {len(data) - stream.tell()} bytes after its record ends: "
                "it was written with another schema than its id says"
            )
        if self.bits and any(row[name] and row[name][0] == 0 < len(row[name]) - 1 for name in self.bits):
            row[_BIT_WIDTH_MEMBER] = FULL
        if self.repairs:
            _repair(row, self.repairs)
        if self.before_repairs and row[BEFORE] is not None:
            _repair(row[BEFORE], self.before_repairs)
        return row  # type: ignore[no-any-return]

    def _unreadable(self, error: BaseException, size: int) -> SchemaMismatchError:
        if isinstance(error, UnicodeDecodeError):
            return SchemaMismatchError(f"the {self.part} holds text that is no UTF-8: {error!s:.120}")
        if isinstance(error, (EOFError, IndexError)):
            return SchemaMismatchError(
                f"the {self.part} of {size} bytes does not hold what its schema says: it is cut short, "
                "or was written with another schema than its id says"
            )
        return SchemaMismatchError(f"the {self.part} is no record of its schema: {error!s:.120}")


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
    """All that is known before the payload is read, for one topic and one pair of schema ids."""

    key: RecordReader | None
    value: RecordReader | None
    table: TableId
    schema: TableSchema
    schema_id: SchemaIds
    sums: RowSums | None = None  # the rows' checksums are asked for, and the schema has them

    def read(self, message: Message) -> ChangeEvent:
        """The row change of one record.

        Raises:
            SchemaMismatchError: the bytes are not what their schemas say.
            ValueOutOfRangeError: a value that its column cannot hold.
        """
        key = None if self.key is None else self.key.read(message.key)  # type: ignore[arg-type]
        extension: dict[str, object] | None = None
        if key is not None and _BIT_WIDTH_MEMBER in key:
            extension = {BIT_WIDTH: key.pop(_BIT_WIDTH_MEMBER)}
        if self.value is None:
            return self._event(message, (Op.DELETE, key, None), key, extension)
        row = self.value.read(message.value)  # type: ignore[arg-type]
        if _BIT_WIDTH_MEMBER in row:
            extension = {BIT_WIDTH: row.pop(_BIT_WIDTH_MEMBER)}
        record = self.value.record
        before = row.pop(BEFORE) if record.before else None
        if not record.extension:
            return self._event(message, (Op.UPSERT, before, row), key, extension)
        extension = {**row.pop(EXTENSION), **(extension or {})} if extension else row.pop(EXTENSION)
        return self._event(message, _images((extension or {}).get(OP, ""), before, row), key, extension)

    def _event(
        self,
        message: Message,
        images: tuple[Op, Row | None, Row | None],
        key: Row | None,
        extension: dict[str, object] | None,
    ) -> ChangeEvent:
        op, before, after = images
        commit_ts: Any = extension.get(COMMIT_TS) if extension else None
        source = None if commit_ts is None else (commit_ts,)
        # A named tuple's own constructor costs twice as much, and this runs once a row.
        position = _NEW(Position, (message.topic, message.partition, message.offset, 0, source))
        return _NEW(
            ChangeEvent,
            (op, self.table, key, before, after, commit_ts, position, self.schema, self.schema_id, extension),
        )


def _images(op: object, before: Row | None, row: Row) -> tuple[Op, Row | None, Row | None]:
    """What happened, the old row and the new one: a delete's record repeats the old row outside."""
    found = _OPS.get(op)
    if found is None:
        raise SchemaMismatchError(f"{OP} is {shown(op, 40)}: none of c, u and d")
    if found is Op.DELETE:
        return found, row if before is None else before, None
    return found, before, row
