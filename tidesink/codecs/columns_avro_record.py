"""The columns of decoded flat-avro records: one writer schema each, all cast into one shape."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.avro.functions import from_avro

from tidesink.codecs.columns_avro_schema import BEFORE, MARK, MARK_SIZE, WriterColumn, WriterSchema
from tidesink.codecs.columns_base import BAD
from tidesink.codecs.columns_faults import fault, names_where, null
from tidesink.codecs.columns_types import (
    Reading,
    default_value,
    lit_binary,
    read_as_is,
    read_bit,
    read_bytes,
    read_calendar,
    read_integer,
    read_number,
    read_text,
    read_wide_decimal,
)
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import ShapeColumn, TableShape

# Put after each payload and asked back from the record's last field. Random, so that no payload can
# hold it: a fixed mark could be written by whoever wants trailing bytes to pass.
_MARK: Final = secrets.token_bytes(MARK_SIZE)
_MAGIC: Final = b"\x00"
_CALENDAR: Final = frozenset({"date", "datetime", "timestamp"})
_CHECKED_TEXT: Final = frozenset({"decimal", "unsigned64", "time"})


@dataclass(frozen=True)
class FieldOf:
    """Where a column of the shape comes from in one writer's records; ``writer`` None: it lacks it."""

    target: ShapeColumn
    writer: WriterColumn | None
    dropped: bool = False


@dataclass(frozen=True)
class RecordColumns:
    """The records of one writer schema; ``ids`` are all registry ids with that schema."""

    name: str
    part: str
    ids: tuple[int, ...]
    schema: WriterSchema
    shape: TableShape
    fields: tuple[FieldOf, ...]

    def decoded(self) -> Column:
        """The record of the raw column ``key`` or ``value``; null where another schema wrote it.

        Its fields are all null where the bytes are no such record.
        """
        data = F.col(self.part)
        headers = [lit_binary(_MAGIC + schema_id.to_bytes(4, "big")) for schema_id in self.ids]
        ours = F.when(F.substring(data, 1, 5).isin(*headers), F.concat(data, lit_binary(_MARK)))
        return from_avro(ours, self.schema.bare, {"mode": "PERMISSIVE"})

    @property
    def column(self) -> Column:
        """The decoded record, once it is in the frame."""
        return F.col(self.name)

    def reading(self, field: FieldOf, record: Column | None = None) -> Reading:
        """The reading of one column; ``record`` is the new image unless given."""
        if field.writer is None:
            # A key record without a column of the key names no row; the row's own column may hold anything.
            unknown = field.dropped or self.part == "key"
            value = null(field.target.spark) if unknown else default_value(field.target, self.shape)
            return Reading(value, failable=False)
        wire = (self.column if record is None else record).getField(field.writer.field)
        return _reading(wire, field.writer, field.target, self.shape)

    @cached_property
    def readings(self) -> tuple[tuple[FieldOf, Reading], ...]:
        """How each column of the shape is read from the new image."""
        return tuple((field, self.reading(field)) for field in self.fields)

    def image(self) -> Column:
        """The record's columns in the shape's types."""
        return F.struct(*(reading.value.alias(field.target.name) for field, reading in self.readings))

    def old_key(self) -> Column | None:
        """The key of the image before, null where there is none; None where the schema has none."""
        if not self.schema.before:
            return None
        before = self.column.getField(BEFORE)
        keys = [field for field in self.fields if field.target.key]
        struct = F.struct(*(self.reading(field, before).value.alias(field.target.name) for field in keys))
        return F.when(before.isNotNull(), struct)


class BeforeColumns(RecordColumns):
    """The old rows inside the records of one writer schema."""

    @property
    def column(self) -> Column:
        """The old row, null where the record has none."""
        return F.col(self.name).getField(BEFORE)

    @classmethod
    def of(cls, records: Sequence[RecordColumns]) -> tuple[BeforeColumns, ...]:
        """Those of the records whose schema has an old row."""
        return tuple(
            cls(one.name, one.part, one.ids, one.schema, one.shape, one.fields)
            for one in records
            if one.schema.before
        )


def _reading(wire: Column, writer: WriterColumn, target: ShapeColumn, shape: TableShape) -> Reading:
    column_type = writer.column.type
    reader = row_of(column_type).reader
    if writer.wide:
        return read_wide_decimal(wire, column_type, target)
    if writer.avro == "string":
        if reader in _CALENDAR:
            return read_calendar(wire, column_type, target, shape)
        return read_text(wire, column_type, target, shape) if reader in _CHECKED_TEXT else read_as_is(wire)
    if writer.avro == "bytes":
        return read_bit(wire, column_type, target) if reader == "bit" else read_bytes(wire)
    if writer.avro in ("int", "long"):
        return read_integer(wire, target, unsigned64=reader == "unsigned64")
    return read_number(wire, target)


def record_columns(
    schemas: Mapping[int, WriterSchema], shape: TableShape, part: str, *, only_keys: bool = False
) -> tuple[RecordColumns, ...]:
    """The readers of one side of a topic's records; ids whose schemas read alike share one."""
    targets = shape.key_columns if only_keys else shape.columns
    alike: dict[str, tuple[list[int], WriterSchema, tuple[FieldOf, ...]]] = {}
    for schema_id, schema in sorted(schemas.items()):
        fields = tuple(_field_of(target, schema_id, schemas) for target in targets)
        mark = json.dumps([schema.bare, repr(fields), sorted(schema.extension.items())])
        alike.setdefault(mark, ([], schema, fields))[0].append(schema_id)
    return tuple(
        RecordColumns(f"{part}_{number}", part, tuple(ids), schema, shape, fields)
        for number, (ids, schema, fields) in enumerate(alike.values())
    )


def _field_of(target: ShapeColumn, schema_id: int, schemas: Mapping[int, WriterSchema]) -> FieldOf:
    name = target.name.lower()
    writer = _named(schemas[schema_id], name)
    # Registry ids grow: what an earlier schema had and this one has not was dropped.
    dropped = any(_named(schema, name) is not None for other, schema in schemas.items() if other < schema_id)
    return FieldOf(target, writer, dropped=writer is None and dropped)


def _named(schema: WriterSchema, name: str) -> WriterColumn | None:
    return next((writer for writer in schema.columns if writer.column.name.lower() == name), None)


class Images:
    """What all readers of one side say of a record, whichever wrote it."""

    def __init__(self, records: Sequence[RecordColumns]) -> None:
        self._records = records

    def struct(self, ddl: str) -> Column:
        """The record in the shape's types, null where no reader fits."""
        return self._choose([(record.column.isNotNull(), record.image()) for record in self._records], ddl)

    def old_key(self, ddl: str) -> Column:
        """The key before the change, null where the wire does not say."""
        found = [(record.column.isNotNull(), record.old_key()) for record in self._records]
        return self._choose([(condition, key) for condition, key in found if key is not None], ddl)

    @staticmethod
    def _choose(choices: list[tuple[Column, Column]], ddl: str) -> Column:
        empty = null(f"struct<{ddl}>")
        if not choices:
            return empty
        chosen = F.when(*choices[0])
        for condition, value in choices[1:]:
            chosen = chosen.when(condition, value)
        return chosen

    def complete(self) -> Column:
        """True where a record was read, to its last byte and no further; never null."""
        marks = [record.column.getField(MARK) for record in self._records]
        if not marks:
            return F.lit(False)
        return F.coalesce(F.coalesce(*marks) == lit_binary(_MARK), F.lit(False))

    def extension(self, name: str, ddl: str) -> Column:
        """An extension field, null where a record has none."""
        fields = [
            record.column.getField(record.schema.extension[name])
            for record in self._records
            if name in record.schema.extension
        ]
        return F.coalesce(*fields).cast(ddl) if fields else null(ddl)

    def faults(self, image: str) -> list[tuple[Column, Column]]:
        """For each column that can fail: when it did, and what to say."""
        return [
            (_lost(record, field, reading, image), _value_fault(field))
            for record, field, reading in self._failable()
        ]

    def zero_dates(self, image: str) -> Column:
        """The names of columns whose date no calendar has was made null; null where there are none."""
        zeros = [
            (_missing(record, field, image) & reading.zero, field.target.name)
            for record, field, reading in self._failable()
            if reading.zero is not None
        ]
        return names_where(zeros)

    def _failable(self) -> list[tuple[RecordColumns, FieldOf, Reading]]:
        found = [
            (record, field, record.reading(field)) for record in self._records for field in record.fields
        ]
        return [(record, field, reading) for record, field, reading in found if reading.failable]


def _missing(record: RecordColumns, field: FieldOf, image: str) -> Column:
    """True where the wire has a value and the image has none."""
    assert field.writer is not None  # noqa: S101 - a column its writer lacks cannot fail
    wire = record.column.getField(field.writer.field)
    return wire.isNotNull() & F.col(image).getField(field.target.name).isNull()


def _lost(record: RecordColumns, field: FieldOf, reading: Reading, image: str) -> Column:
    missing = _missing(record, field, image)
    return missing if reading.zero is None else missing & ~reading.zero


def _value_fault(field: FieldOf) -> Column:
    assert field.writer is not None  # noqa: S101 - a column its writer lacks cannot fail
    column_type = field.writer.column.type
    text = row_of(column_type).reader in ("text", "enum", "set")
    error = SchemaMismatchError if text else ValueOutOfRangeError
    what = "text that is no UTF-8" if text else f"a value that is no {shown_type(field.target)}"
    return fault(BAD, error, f"column {field.target.name!r} has {what}")


def shown_type(column: ShapeColumn) -> str:
    """A column's type for a person, with what is to be done about dates no calendar has."""
    column_type = column.type
    arguments = [column_type.precision, column_type.scale, column_type.length]
    given = ",".join(str(argument) for argument in arguments if argument is not None)
    name = column_type.sql or (f"{column_type.name}({given})" if given else column_type.name)
    if row_of(column_type).reader in _CALENDAR and column.spark != "string":
        name += " of the calendar: where such dates may be, set zero-date: null or text for this table"
    return name
