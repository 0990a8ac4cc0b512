"""The columns of canal-json rows: one array of texts, laid out as the table's shape, and their readings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_avro_record import shown_type
from tidesink.codecs.columns_base import BAD
from tidesink.codecs.columns_canal_json_types import as_members, contradictions, read_in_force
from tidesink.codecs.columns_faults import BETWEEN, any_of, fault, names_where, null
from tidesink.codecs.columns_types import Reading, default_value
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError
from tidesink.typemap.target_schema import ShapeColumn, TableShape


@dataclass(frozen=True)
class RowColumns:
    """How rows are read.

    ``current`` names the columns (lower case) that the table has now: a row without one of them was
    written before the column was added. Columns of the shape beyond them were dropped.
    """

    shape: TableShape
    current: frozenset[str]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns that rows have now, in table order: the layout of most rows."""
        return tuple(c.name for c in self.shape.columns if c.name.lower() in self.current)

    def laid_out(self, row: Column, names: Column) -> Column:
        """A row's texts in the shape's order; null for a column it has not.

        Most rows have the table's columns in the table's order, and then nothing is looked up.
        """
        ordered = F.map_values(row)
        same = ordered
        if len(self.names) < len(self.shape.columns):
            places = {name: number for number, name in enumerate(self.names)}
            same = F.array(
                *(
                    F.get(ordered, F.lit(places[c.name])) if c.name in places else null("string")
                    for c in self.shape.columns
                )
            )
        looked_up = F.array(*(F.element_at(row, F.lit(c.name)) for c in self.shape.columns))
        return F.when(names == self.usual_names, same).otherwise(looked_up)

    @property
    def usual_names(self) -> Column:
        """``names`` as an array."""
        return F.array(*(F.lit(name) for name in self.names))

    def is_doubtful(self, names: Column) -> Column:
        """Whether a row names a column twice, or spells one in other capitals than the shape."""
        twice = F.size(F.array_distinct(names)) != F.size(names)
        strange = F.concat_ws(BETWEEN, F.array_except(names, self.known))
        lower = F.array(*(F.lit(column.name.lower()) for column in self.shape.columns))
        respelt = F.arrays_overlap(F.split(F.lower(strange), BETWEEN), lower)
        return F.when(names == self.usual_names, F.lit(False)).otherwise(twice | respelt)

    @property
    def known(self) -> Column:
        """The names of all columns of the shape."""
        return F.array(*(F.lit(column.name) for column in self.shape.columns))

    def text(self, number: int, laid_out: str) -> Column:
        """One column's text."""
        return F.get(F.col(laid_out), F.lit(number))

    @cached_property
    def readings(self) -> tuple[tuple[int, ShapeColumn, Reading], ...]:
        """How each column is read from the laid out row ``wire``."""
        return self.readings_of("wire")

    def readings_of(self, laid_out: str) -> tuple[tuple[int, ShapeColumn, Reading], ...]:
        """How each column is read from a laid out row."""
        return tuple(
            (number, column, read_in_force(self.text(number, laid_out), column, self.shape))
            for number, column in enumerate(self.shape.columns)
        )

    def image(self, laid_out: str = "wire") -> Column:
        """The row in the shape's types."""
        return F.struct(*self.values(laid_out))

    def values(self, laid_out: str = "wire") -> list[Column]:
        """The row's columns in the shape's types, in order."""
        return [self._value(column, reading) for _, column, reading in self.readings_of(laid_out)]

    def old_wire(self, old: Column) -> Column:
        """The row before an update, laid out; a column that a partial old row leaves out is unchanged."""
        return F.array(
            *(self._before(old, number, column) for number, column in enumerate(self.shape.columns))
        )

    def before_faults(self) -> list[tuple[Column, Column]]:
        """As ``faults``, of the row before an update: ``old_wire`` and ``before_image``."""
        faults = []
        for number, column, reading in self.readings_of("old_wire"):
            lost = (
                self.text(number, "old_wire").isNotNull()
                & F.col("before_image").getField(column.name).isNull()
            )
            if reading.failable:
                faults.append((lost if reading.zero is None else lost & ~reading.zero, _value_fault(column)))
        return faults

    def _value(self, column: ShapeColumn, reading: Reading) -> Column:
        value = reading.value.cast(column.spark)
        if column.default is None or column.key or column.name.lower() not in self.current:
            return value.alias(column.name)
        there = F.array_contains(F.col("names"), column.name)
        default = default_value(column, self.shape)
        return F.when(value.isNotNull() | there, value).otherwise(default).alias(column.name)

    def old_key(self, old: Column) -> Column:
        """The key before an update; a column that a partial old row leaves out is unchanged."""
        keys = [(n, c) for n, c in enumerate(self.shape.columns) if c.key]
        return F.struct(
            *(
                read_in_force(self._before(old, n, c), c, self.shape).value.cast(c.spark).alias(c.name)
                for n, c in keys
            )
        )

    def _before(self, old: Column, number: int, column: ShapeColumn) -> Column:
        there = F.map_contains_key(old, F.lit(column.name))
        return F.when(there, F.element_at(old, F.lit(column.name))).otherwise(self.text(number, "wire"))

    def key_differs(self, old: Column) -> Column:
        """True where the old row has another text in a key column."""
        keys = [(n, c) for n, c in enumerate(self.shape.columns) if c.key]
        return reduce(
            Column.__or__,
            (~self._before(old, n, c).eqNullSafe(self.text(n, "wire")) for n, c in keys),
            F.lit(False),
        )

    def faults(self) -> list[tuple[Column, Column]]:
        """For each column that can fail: when it did, and what to say."""
        return [
            (self._lost(number, column, reading), _value_fault(column))
            for number, column, reading in self.readings
            if reading.failable
        ]

    def zero_dates(self) -> Column:
        """The names of columns whose date no calendar has was made null; null where there are none."""
        zeros = [
            (self._missing(number, column) & reading.zero, column.name)
            for number, column, reading in self.readings
            if reading.zero is not None
        ]
        return names_where(zeros)

    def _missing(self, number: int, column: ShapeColumn) -> Column:
        return self.text(number, "wire").isNotNull() & F.col("image").getField(column.name).isNull()

    def _lost(self, number: int, column: ShapeColumn, reading: Reading) -> Column:
        missing = self._missing(number, column)
        return missing if reading.zero is None else missing & ~reading.zero

    def old_key_faults(self) -> list[tuple[Column, Column]]:
        """As ``faults``, of the key before an update."""
        keys = [(n, c) for n, c, reading in self.readings if c.key and reading.failable]
        unread = [(F.col("old_key").getField(c.name).isNull() & self._has_old(n, c), c) for n, c in keys]
        return [(F.col("old_key").isNotNull() & lost, _value_fault(c)) for lost, c in unread]

    def _has_old(self, number: int, column: ShapeColumn) -> Column:
        return self._before(F.col("old_row"), number, column).isNotNull()

    def type_faults(self, types: Column) -> list[tuple[Column, Column]]:
        """A row written when a column had a type whose texts mean something else, such as ENUM's numbers."""
        return [
            (condition, fault(BAD, SchemaMismatchError, _TYPE_REASON.format(column.name)))
            for column, condition in contradictions(self.shape.columns, types)
        ] + list(_member_fault(as_members(self.shape.columns, types)))


_TYPE_REASON: Final = (
    "column {!r}: the row's mysqlType and the table's definition disagree on what its text means; give the "
    "definition that the rows were written with"
)


def _member_fault(found: list[tuple[ShapeColumn, Column]]) -> Iterator[tuple[Column, Column]]:
    """One fault for all of them, since there is one for nearly every column of a table."""
    if found:
        first = F.coalesce(*(F.when(there, F.lit(_TYPE_REASON.format(c.name))) for c, there in found))
        yield any_of(there for _, there in found), fault(BAD, SchemaMismatchError, first)


def _value_fault(column: ShapeColumn) -> Column:
    reason = f"column {column.name!r} has a value that is no {shown_type(column)}"
    return fault(BAD, ValueOutOfRangeError, reason)
