"""The columns of decoded Debezium records: one writer schema each, all cast into one shape."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.avro.functions import from_avro

from tidesink.codecs.base import DebeziumModes
from tidesink.codecs.columns_avro_record import shown_type
from tidesink.codecs.columns_avro_schema import MARK, MARK_SIZE
from tidesink.codecs.columns_base import BAD
from tidesink.codecs.columns_debezium_alike import SOURCE_MEMBERS, Alike
from tidesink.codecs.columns_debezium_position import POSITION_MEMBERS, position_of
from tidesink.codecs.columns_debezium_python import (
    KEEP,
    ColumnReader,
    answer_reading,
    is_answer,
    python_read,
    refusal,
)
from tidesink.codecs.columns_debezium_schema import RecordSchema, WireColumn
from tidesink.codecs.columns_debezium_values import native_reading, prepared_text
from tidesink.codecs.columns_faults import fault, names_where, null
from tidesink.codecs.columns_types import Reading, default_value, lit_binary
from tidesink.codecs.debezium.values import placeholders
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError
from tidesink.events import Column as SourceColumn
from tidesink.typemap.debezium_types import semantic_type
from tidesink.typemap.target_schema import ShapeColumn, TableShape

# Put after each payload and asked back from the record's last field. Random, so that no payload can
# hold it: a fixed mark could be written by whoever wants trailing bytes to pass.
_MARK: Final = secrets.token_bytes(MARK_SIZE)
_MAGIC: Final = b"\x00"
# What is asked of a source block where positions are asked for.
SOURCE_AND_POSITION: Final[tuple[str, ...]] = (*SOURCE_MEMBERS, *POSITION_MEMBERS)
# The member of the envelope that holds each part's row.
_IMAGES: Final = {"value": "after", "before": "before"}


@dataclass(frozen=True)
class FieldOf:
    """Where a column of the shape comes from; ``wire`` None: no writer of the group has it.

    ``filled`` are the schema ids whose rows are from before the column was added: they have its default.
    """

    target: ShapeColumn
    wire: WireColumn | None
    source: SourceColumn | None = None
    filled: tuple[int, ...] = ()


@dataclass(frozen=True)
class RecordColumns:
    """The records of writer schemas that read alike.

    ``part``: ``key``, ``value``, or ``before``, the old rows in values. ``logs``: those are read whole.
    ``source`` are the members asked of a source block.
    """

    name: str
    part: str
    alike: Alike
    old_keys: bool
    shape: TableShape
    fields: tuple[FieldOf, ...]
    modes: DebeziumModes
    logs: bool = False
    source: tuple[str, ...] = SOURCE_MEMBERS

    def decoded(self) -> Column:
        """The record of the raw column ``key`` or ``value``; null where another schema wrote it."""
        data = F.col(self.part)
        options = {"mode": "PERMISSIVE", "avroSchema": self.alike.reader(self._of_old_row, self.source)}
        whole = F.concat(data, lit_binary(_MARK))
        choices = [
            (starts(data, ids), from_avro(whole, bare, options)) for bare, ids in self.alike.writers.items()
        ]
        return reduce(lambda chosen, one: chosen.when(*one), choices[1:], F.when(*choices[0]))

    @property
    def _of_old_row(self) -> frozenset[str]:
        """The columns that are asked of old rows, in lower case."""
        if self.logs:
            return frozenset(self.shape.by_name)
        return frozenset(one.name.lower() for one in self.shape.key_columns) if self.old_keys else frozenset()

    def before(self) -> RecordColumns:
        """The same records' old rows."""
        return replace(self, part="before")

    @property
    def schema(self) -> RecordSchema:
        """What the writer schemas have together."""
        return self.alike.schema

    @property
    def ids(self) -> tuple[int, ...]:
        """The registry ids of the writer schemas."""
        return tuple(self.alike.members)

    @property
    def column(self) -> Column:
        """The decoded record, once it is in the frame."""
        return F.col(self.name)

    @property
    def row(self) -> Column:
        """The struct that holds the row: the key itself, the new image, or the old one."""
        return self.column if self.part == "key" else self.column.getField(_IMAGES[self.part])

    @property
    def complete(self) -> Column:
        """Whether the record was read to its last byte and no further; null where it is another's."""
        return self.column.getField(MARK) == lit_binary(_MARK)

    def prepared(self) -> list[Column]:
        """The columns that are worked out before the others: what takes the Python reader, and long texts."""
        found = []
        for field in self.fields:
            if field.wire is None:
                continue
            wire, schema = self.row.getField(field.wire.wire), field.wire.field.schema
            text = prepared_text(wire, schema)
            if field.target.name in self._by_python:
                found.append(self._python(field, wire).alias(self._prepared(field)))
            elif text is not None:
                found.append(text.alias(self._prepared(field)))
        return found

    @cached_property
    def _by_python(self) -> frozenset[str]:
        """The columns that Spark has no expression for; each look makes one, so it is done once."""
        there = [(field, field.wire.wire) for field in self.fields if field.wire is not None]
        return frozenset(
            field.target.name for field, name in there if self._native(field, self.row.getField(name)) is None
        )

    def reading(self, field: FieldOf) -> Reading:
        """The reading of one column of the row."""
        if field.wire is None or field.source is None:
            return Reading(self._filled(field, null(field.target.spark)), failable=False)
        native = self._native(field, self._wire(field))
        if native is None:
            native = answer_reading(F.col(self._prepared(field)), field.source, field.target, self.shape)
        return native._replace(value=self._filled(field, native.value))

    def _filled(self, field: FieldOf, value: Column) -> Column:
        """The value, or the column's default in rows from before it."""
        if not field.filled:
            return value
        default = default_value(field.target, self.shape)
        if set(field.filled) == {one for one, schema in self.alike.members.items() if schema.columns}:
            return default
        return F.when(self._written_by(field.filled), default).otherwise(value)

    def _written_by(self, ids: tuple[int, ...]) -> Column:
        return starts(F.col(f"{self._side}_bytes"), ids)

    @property
    def _side(self) -> str:
        return "key" if self.part == "key" else "value"

    def kept(self, field: FieldOf) -> Column | None:
        """Whether the value says that the source did not send it; None where no value can."""
        if field.wire is None or self.modes.placeholder is None:
            return None
        wire, schema = self.row.getField(field.wire.wire), field.wire.field.schema
        if field.target.name in self._by_python:
            return is_answer(F.col(self._prepared(field)), KEEP)
        semantic = semantic_type(schema.name, schema.type)
        if schema.type == "string":
            stands = [F.lit(one) for one in placeholders(schema, self.modes) if isinstance(one, str)]
        elif schema.type == "bytes" and (semantic is None or semantic.form == "plain"):
            stands = [lit_binary(one) for one in placeholders(schema, self.modes) if isinstance(one, bytes)]
        else:
            return None
        return F.coalesce(wire.isin(*stands), F.lit(False))

    def image(self) -> Column:
        """The row's columns in the shape's types."""
        return F.struct(*(self._value(field).alias(field.target.name) for field in self.fields))

    def _value(self, field: FieldOf) -> Column:
        value, kept = self.readings[field.target.name].value, self.keeps.get(field.target.name)
        return value if kept is None else F.when(~kept, value)

    def old_key(self) -> Column:
        """The key of the image before, null where it has none or not all of it."""
        before = self.column.getField("before")
        keys = [field for field in self.fields if field.target.key]
        values = [(self._old(field, before), field.target.name) for field in keys]
        there = reduce(Column.__and__, (value.isNotNull() for value, _ in values), F.lit(True))
        return F.when(before.isNotNull() & there, F.struct(*(value.alias(name) for value, name in values)))

    def _old(self, field: FieldOf, before: Column) -> Column:
        if field.wire is None:
            return null(field.target.spark)
        wire = before.getField(field.wire.wire)
        text = prepared_text(wire, field.wire.field.schema)
        native = self._native(field, wire if text is None else text)
        return null(field.target.spark) if native is None else native.value

    @cached_property
    def readings(self) -> Mapping[str, Reading]:
        """How each column of the shape is read."""
        return {field.target.name: self.reading(field) for field in self.fields}

    @cached_property
    def keeps(self) -> Mapping[str, Column]:
        """For each column that can lack its value: whether it does."""
        found = {field.target.name: self.kept(field) for field in self.fields}
        return {name: kept for name, kept in found.items() if kept is not None}

    def fault(self, field: FieldOf) -> Column:
        """What to say of a value that could not be read."""
        found = _value_fault(field)
        if field.target.name not in self._by_python:
            return found
        return refusal(F.col(self._prepared(field)), field.target.name, found)

    def missing(self, field: FieldOf, image: str) -> Column:
        """Whether the wire has a value and the image has none."""
        assert field.wire is not None  # noqa: S101 - a column its writer lacks cannot fail
        wire = self.row.getField(field.wire.wire)
        lost = wire.isNotNull() & F.col(image).getField(field.target.name).isNull()
        kept = self.keeps.get(field.target.name)
        return lost if kept is None else lost & ~kept

    def _native(self, field: FieldOf, wire: Column) -> Reading | None:
        if field.wire is None or field.source is None:
            return None
        return native_reading(
            wire,
            field.wire.field.schema,
            field.source,
            field.target,
            self.shape,
            binary=self.modes.binary_handling_mode,
        )

    def _wire(self, field: FieldOf) -> Column:
        """A column's value, or the text it was prepared as."""
        assert field.wire is not None  # noqa: S101
        wire = self.row.getField(field.wire.wire)
        prepared = prepared_text(wire, field.wire.field.schema) is not None
        return F.col(self._prepared(field)) if prepared else wire

    def _python(self, field: FieldOf, wire: Column) -> Column:
        return python_read(wire, self._reader(field))

    def _reader(self, field: FieldOf) -> ColumnReader:
        assert field.wire is not None and field.source is not None  # noqa: S101, PT018
        return ColumnReader(field.wire.field.schema, field.source, self.shape, self.modes)

    def _prepared(self, field: FieldOf) -> str:
        assert field.wire is not None  # noqa: S101
        inside = "_before" if self.part == "before" else ""
        return f"{self.name}{inside}_{field.wire.wire}"


def starts(data: Column, ids: Iterable[int]) -> Column:
    """Whether bytes have the Confluent header of one of these schemas; null without bytes."""
    headers = [lit_binary(_MAGIC + schema_id.to_bytes(4, "big")) for schema_id in ids]
    return F.substring(data, 1, 5).isin(*headers)


class Images:
    """What all readers of one side say of a record, whichever wrote it."""

    def __init__(self, records: Sequence[RecordColumns]) -> None:
        self._records = records

    def struct(self, ddl: str) -> Column:
        """The row in the shape's types, null where no reader fits or it has none."""
        return self._choose([(record.row.isNotNull(), record.image()) for record in self._records], ddl)

    def old_key(self, ddl: str) -> Column:
        """The key before the change, null where the wire does not say."""
        return self._choose(
            [(record.column.getField("before").isNotNull(), record.old_key()) for record in self._records],
            ddl,
        )

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
        return F.coalesce(*(record.complete for record in self._records), F.lit(False))

    def member(self, name: str, ddl: str) -> Column:
        """A member of the envelope."""
        return self._first([record.column.getField(name) for record in self._records], ddl)

    def source(self, name: str, ddl: str) -> Column:
        """A member of the source block, null where a writer has none."""
        return self._first(
            [
                record.column.getField("source").getField(name)
                for record in self._records
                if name in record.schema.source
            ],
            ddl,
        )

    def position(self) -> Column:
        """Where the change stands at its source, of readers that were asked for ``POSITION_MEMBERS``."""
        there = {name for record in self._records for name in record.schema.source}
        members = {name: self.source(name, "string") for name in SOURCE_AND_POSITION if name in there}
        return position_of(members)

    @staticmethod
    def _first(fields: list[Column], ddl: str) -> Column:
        # Cast one by one: of a boolean and a text, of two versions of a connector, Spark makes a boolean.
        return F.coalesce(*(field.cast(ddl) for field in fields)) if fields else null(ddl)

    def faults(self, image: str) -> list[tuple[Column, Column]]:
        """For each column that can fail: when it did, and what to say."""
        return [(_lost(record, field, image), record.fault(field)) for record, field in self._failable()]

    def zero_dates(self, image: str) -> Column:
        """The names of columns whose date no calendar has was made null; null where there are none."""
        zeros = []
        for record, field in self._failable():
            zero = record.readings[field.target.name].zero
            if zero is not None:
                zeros.append((record.missing(field, image) & zero, field.target.name))
        return names_where(zeros)

    def kept(self) -> Column:
        """The names of columns whose value the source did not send; null where there are none."""
        return names_where(
            [
                (F.coalesce(record.row.isNotNull() & kept, F.lit(False)), name)
                for record in self._records
                for name, kept in record.keeps.items()
            ]
        )

    def _failable(self) -> list[tuple[RecordColumns, FieldOf]]:
        return [
            (record, field)
            for record in self._records
            for field in record.fields
            if record.readings[field.target.name].failable
        ]


def _lost(record: RecordColumns, field: FieldOf, image: str) -> Column:
    missing, zero = record.missing(field, image), record.readings[field.target.name].zero
    return missing if zero is None else missing & ~zero


def _value_fault(field: FieldOf) -> Column:
    assert field.wire is not None  # noqa: S101 - a column its writer lacks cannot fail
    schema = field.wire.field.schema
    semantic = semantic_type(schema.name, schema.type)
    plain = schema.type == "string" and (semantic is None or semantic.form == "plain")
    text = plain and field.target.spark == "string"
    error = SchemaMismatchError if text else ValueOutOfRangeError
    what = "text that is no UTF-8" if text else f"a value that is no {shown_type(field.target)}"
    return fault(BAD, error, f"column {field.target.name!r} has {what}")
