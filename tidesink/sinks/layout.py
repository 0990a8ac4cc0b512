"""A decoding whose plan is laid out as the target has the table: between decoding and reducing.

What it learns, and what it is asked of the topic, stays in the source's names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidesink.codecs.columns_base import DecodeColumns
from tidesink.sinks.decoding import Apart, Decoding, Missed, ToldColumns
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN
from tidesink.typemap.layout import Layout, laid_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Names that a column of the source's, or a new name, cannot have.
OWN_COLUMNS: Final = (SOFT_DELETE_COLUMN, SEQUENCE_COLUMN)


class LaidOutDecoding:
    """One table's decoding with a layout over its plan."""

    def __init__(self, decoding: Decoding, layout: Layout, session: SparkSession) -> None:
        self._decoding = decoding
        self._layout = layout
        self._session = session
        self._plans: tuple[DecodeColumns, DecodeColumns] | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know about the table's types at the source."""
        return self._decoding.warnings

    def prepare(self, found: TopicOffsets) -> None:
        """As the decoding below."""
        self._decoding.prepare(found)

    def catch_up(self, ranges: Sequence[OffsetRange], found: TopicOffsets) -> None:
        """As the decoding below."""
        self._decoding.catch_up(ranges, found)

    def columns(self) -> DecodeColumns:
        """The plan as it stands, laid out.

        Raises:
            ConfigError: the layout does not fit the table's columns.
            SchemaRefusedError: the layout names a column that the source does not have any more.
        """
        from tidesink.sinks.layout_spark import LaidOutColumns

        inner = self._decoding.columns()
        if self._plans is None or self._plans[0] is not inner:
            found = laid_out(self._layout, inner.shape, own=OWN_COLUMNS, gone=inner.gone)
            self._plans = inner, LaidOutColumns(inner, found, self._layout, self._session)
        return self._plans[1]

    def told(self) -> ToldColumns | None:
        """What DDL tells, in the target's names; a column that was renamed keeps the source's beside it."""
        told = self._decoding.told()
        if told is None:
            return None
        names = {old.lower(): new for old, new in self._layout.rename.items()}
        columns = tuple(replace(c, name=names.get(c.name.lower(), c.name)) for c in told.current.columns)
        renamed = {
            old: new._replace(target=names.get(new.name.lower(), new.name))
            for old, new in told.renamed.items()
        }
        return replace(told, current=replace(told.current, columns=columns), renamed=renamed)

    def read_as(self, renamed: Mapping[str, str]) -> None:
        """As the decoding below."""
        self._decoding.read_as(renamed)

    def apart(self) -> Apart | None:
        """As the decoding below."""
        return self._decoding.apart()

    def meet_others(self, missed: Missed) -> None:
        """As the decoding below."""
        self._decoding.meet_others(missed)

    def learn(self, missed: Missed) -> bool:
        """As the decoding below."""
        return self._decoding.learn(missed)

    def take_ddl(self, reduced: DataFrame, missed: Missed) -> bool:
        """As the decoding below."""
        return self._decoding.take_ddl(reduced, missed)
