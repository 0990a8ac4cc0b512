"""Row changes to flat-avro payloads, byte for byte as TiCDC writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro import schemaless_writer

from tidesink.codecs.base import header
from tidesink.codecs.flat_avro.record import EXTENSION, AvroColumn, ToWire, WriterRecord, to_wire
from tidesink.codecs.flat_avro.schema import BEFORE, COMMIT_TS, OP, PHYSICAL_TIME
from tidesink.codecs.row_checksum import CHECKSUM, CORRUPTED, CURRENT_VERSION, VERSION, RowSums
from tidesink.errors import EncodeError, shown
from tidesink.events import ChangeEvent, Column, Op, Row, physical_ms

_LETTERS: Final[Mapping[Op, str]] = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d"}
_NO_CHECKSUM: Final[Mapping[str, object]] = {CHECKSUM: "", CORRUPTED: False, VERSION: 0}
_TOO_LARGE: Final = "does not fit a signed 64-bit number, which the field is: a TiDB timestamp is below 2^63"
_WRITE_ERRORS: Final = (ValueError, TypeError, AttributeError, KeyError, OverflowError)


@dataclass(frozen=True)
class RowWriter:
    """Turns rows under the table's column names into what fastavro writes.

    ``names`` pairs each Avro field with the row's column; virtual columns have none and are null.
    """

    names: tuple[tuple[str, str], ...]
    virtual: tuple[str, ...]
    required: tuple[tuple[str, str], ...]
    repairs: tuple[tuple[str, ToWire], ...]

    @classmethod
    def of(
        cls, fields: Iterable[AvroColumn], columns: Iterable[Column], *, full_width_bit: bool
    ) -> RowWriter:
        """The writer of one record's columns; ``columns`` stand in the order of ``fields``."""
        pairs = list(zip(fields, columns, strict=True))
        writers = [(avro.name, _writer(avro, column, full_width_bit)) for avro, column in pairs]
        return cls(
            names=tuple((avro.name, column.name) for avro, column in pairs if not column.virtual),
            virtual=tuple(avro.name for avro, column in pairs if column.virtual),
            required=tuple((avro.name, column.name) for avro, column in pairs if avro.null_first is None),
            repairs=tuple((name, write) for name, write in writers if write is not None),
        )

    def wire_row(self, row: Row) -> dict[str, Any]:
        """The row under Avro names, each value as its Avro primitive.

        Raises:
            EncodeError: a column is missing, is NULL and must not be, or holds what its type cannot.
        """
        try:
            found: dict[str, Any] = {avro: row[column] for avro, column in self.names}
        except KeyError as error:
            raise EncodeError(
                "the row lacks this column: flat-avro writes whole rows", column=str(error.args[0])
            ) from error
        found.update(dict.fromkeys(self.virtual))
        self._check_required(found)
        name = ""
        try:
            for name, write in self.repairs:
                value = found[name]
                if value is not None:
                    found[name] = write(value)
        except EncodeError as error:
            raise error.with_context(column=name) from error
        return found

    def _check_required(self, found: Mapping[str, Any]) -> None:
        for avro, column in self.required:
            if found[avro] is None:
                why = (
                    "a NOT NULL virtual column, which new TiCDC cannot write" if avro in self.virtual else ""
                )
                raise EncodeError(why or "the column is NOT NULL and the value is NULL", column=column)


def _writer(avro: AvroColumn, column: Column, full_width_bit: bool) -> ToWire | None:
    # The table's own type: an Avro schema has no scale for decimals in string mode, and blurs labels.
    nullable = avro.null_first is not None
    return to_wire(column.type, avro.avro, nullable=nullable, full_width_bit=full_width_bit)


@dataclass(frozen=True)
class RecordWriter:
    """Writes the payloads of one registered schema, its id in front."""

    schema_id: int
    record: WriterRecord
    rows: RowWriter
    before: RowWriter | None = None
    sums: RowSums | None = None  # computes a row's checksum, where it is not given
    head: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", header(self.schema_id))

    @classmethod
    def of(
        cls, schema_id: int, record: WriterRecord, *, columns: tuple[Column, ...], full_width_bit: bool
    ) -> RecordWriter:
        """The writer of a schema whose fields stand for these columns of the table."""
        rows = RowWriter.of(record.columns, columns, full_width_bit=full_width_bit)
        before = None
        if record.before is not None:
            before = RowWriter.of(record.before, columns, full_width_bit=full_width_bit)
        return cls(schema_id, record, rows, before)

    def write_row(self, row: Row) -> bytes:
        """A key's bytes.

        Raises:
            EncodeError: the row does not fit the schema; context has the column.
        """
        return self._write(self.rows.wire_row(row))

    def write_event(self, event: ChangeEvent) -> bytes:
        """A value's bytes: the row, the old row where the schema has a place for it, and the extension.

        Raises:
            EncodeError: the event does not fit the schema; context has the column.
        """
        if event.op is Op.DELETE and OP not in self.record.extension:
            raise EncodeError(f"schema {self.schema_id} has no {OP}: a delete cannot be written with it")
        datum = self.rows.wire_row(_row_of(event))
        if self.before is not None:
            datum[BEFORE] = self._before(event)
        if self.record.extension:
            given = self._with_checksum(event)
            datum[EXTENSION] = {name: _extension_value(name, given) for name in self.record.extension}
        return self._write(datum)

    def _with_checksum(self, event: ChangeEvent) -> ChangeEvent:
        """The event with its row's checksum, where the producer would have one and the event has none."""
        extension = event.extension or {}
        if self.sums is None or CHECKSUM in extension:
            return event
        found = str(self.sums.sum(_row_of(event)))
        return event._replace(extension={VERSION: CURRENT_VERSION, **extension, CHECKSUM: found})

    def _before(self, event: ChangeEvent) -> object:
        if event.before is None or self.before is None:
            return None
        # The name beside the record spares fastavro the search through the union.
        return (self.record.before_name, self.before.wire_row(event.before))

    def _write(self, datum: dict[str, Any]) -> bytes:
        stream = BytesIO()
        stream.write(self.head)
        try:
            schemaless_writer(stream, self.record.bare, datum)
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
                    f"the value is none of the field's type: {cause!s:.120}", column=one["name"]
                )
        return EncodeError(f"the row is no record of its schema: {error!s:.120}")

    def _fields(self, datum: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
        """Each field as the schema has it, and its value: the extension's stand in a record of ours."""
        for one in self.record.bare["fields"]:
            if one["name"] == EXTENSION:
                yield from ((inner, datum[EXTENSION][inner["name"]]) for inner in one["type"]["fields"])
            else:
                yield one, datum.get(one["name"])


def _row_of(event: ChangeEvent) -> Row:
    row = event.after if event.after is not None else event.before
    if row is None:
        raise EncodeError("the event has no row, neither before nor after")
    return row


def key_row(event: ChangeEvent, names: Iterable[tuple[str, str]]) -> Row:
    """The row that holds the key: the new one, a delete's old one, else the event's own key."""
    for row in (event.after, event.before):
        if row is not None and all(column in row for _, column in names):
            return row
    if event.key is None:
        raise EncodeError("the event has no key and no row that holds the key's columns")
    return event.key


def _extension_value(name: str, event: ChangeEvent) -> object:
    """What an extension field is given: the event's own, else what TiCDC computes from the event."""
    given = (event.extension or {}).get(name)
    if name == OP:
        return _LETTERS.get(event.op) or _given_op(given)
    if given is not None:
        return given
    if name in _NO_CHECKSUM:
        return _NO_CHECKSUM[name]
    if name not in (COMMIT_TS, PHYSICAL_TIME):
        raise EncodeError(f"the event's extension lacks {name}, which the schema holds")
    if event.commit_ts is None:
        raise EncodeError("the event has no commit_ts, which the TiDB extension needs")
    return event.commit_ts if name == COMMIT_TS else physical_ms(event.commit_ts)


def _given_op(given: object) -> object:
    if not isinstance(given, str):
        raise EncodeError(f"an upsert does not say insert or update, which {OP} needs")
    return given
