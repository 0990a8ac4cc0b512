"""The rows that the Python codec read of debezium-json records, as columns of the shape's types."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_avro_record import shown_type
from tidesink.codecs.columns_base import BAD, POSITION
from tidesink.codecs.columns_debezium_json_judge import ABSENT
from tidesink.codecs.columns_debezium_python import KEEP, VALUE, ZERO, is_answer
from tidesink.codecs.columns_faults import fault, names_where, null
from tidesink.codecs.columns_types import default_value, try_cast
from tidesink.errors import ValueOutOfRangeError
from tidesink.typemap.target_schema import ShapeColumn, TableShape


@dataclass(frozen=True)
class JudgedRows:
    """The members of ``verdict``'s column."""

    shape: TableShape
    judged: Column

    @property
    def asked(self) -> Column:
        """Whether Python read the record; never null."""
        return ~F.col("regular")

    def columns(self, *, old_keys: bool) -> dict[str, Column]:
        """The members of a row as the plan has them."""
        before = self._key("before") if old_keys else null(f"struct<{self.shape.key_ddl}>")
        return {
            "record_key": self._key("key"),
            "image": self._struct(list(enumerate(self.shape.columns)), "image"),
            "before_key": before,
            "op": self.judged.getField("op"),
            "event_ts": self.judged.getField("commit_ts"),
            "kept": self._named(KEEP),
            POSITION: self.judged.getField("position"),
        }

    def old_row(self) -> dict[str, Column]:
        """The old row as a plan that ``logs`` has it."""
        image = self._struct(list(enumerate(self.shape.columns)), "old")
        return {"before_image": image, "before_kept": self._named(KEEP, "old")}

    def zero_dates(self) -> Column:
        """The names of columns whose date no calendar has was made null; null where there are none."""
        return self._named(ZERO)

    def old_faults(self, image: str) -> list[tuple[Column, Column]]:
        """As ``faults``, of the old row."""
        return self.faults(image, "old")

    def faults(self, image: str, member: str = "image") -> list[tuple[Column, Column]]:
        """For each column: whether Python read a value that has none of the column's type."""
        return [
            (
                is_answer(self._answer(member, number), VALUE) & F.col(image).getField(column.name).isNull(),
                fault(
                    BAD,
                    ValueOutOfRangeError,
                    f"column {column.name!r} has a value that is no {shown_type(column)}",
                ),
            )
            for number, column in enumerate(self.shape.columns)
        ]

    def _answer(self, member: str, number: int) -> Column:
        return F.get(self.judged.getField(member), F.lit(number))

    def _key(self, member: str) -> Column:
        return self._struct(list(enumerate(self.shape.key_columns)), member)

    def _struct(self, columns: list[tuple[int, ShapeColumn]], member: str) -> Column:
        values = [self._value(self._answer(member, n), column).alias(column.name) for n, column in columns]
        return F.when(self.judged.getField(member).isNotNull(), F.struct(*values))

    def _value(self, answer: Column, column: ShapeColumn) -> Column:
        data = F.substring(answer, 2, 2**31 - 2)
        value = data if column.spark == "binary" else try_cast(data.cast("string"), column.spark)
        found = F.when(is_answer(answer, VALUE), value)
        if column.default is None or column.key:
            return found
        return found.when(is_answer(answer, ABSENT), default_value(column, self.shape))

    def _named(self, kind: bytes, member: str = "image") -> Column:
        marked = [
            (is_answer(self._answer(member, number), kind), column.name)
            for number, column in enumerate(self.shape.columns)
        ]
        return names_where(marked)
