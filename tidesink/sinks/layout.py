"""A decoding whose plan is laid out as the target has the table: between decoding and reducing.

What it learns, and what it is asked of the topic, stays in the source's names; what DDL told is given in the
target's, without the columns that the target does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tidesink.change import Column as TableColumn
from tidesink.codecs.columns_base import DecodeColumns
from tidesink.sinks.decoding import Decoding, ToldColumns
from tidesink.sinks.decoding_around import DecodingAround
from tidesink.sinks.targets.base import OWN_COLUMNS
from tidesink.typemap.layout import Layout, laid_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LaidOutDecoding(DecodingAround):
    """One table's decoding with a layout over its plan."""

    def __init__(self, decoding: Decoding, layout: Layout, session: SparkSession) -> None:
        super().__init__(decoding)
        self._layout = layout
        self._session = session

    def _around(self, inner: DecodeColumns) -> DecodeColumns:
        """The plan laid out.

        Raises:
            ConfigError: the layout does not fit the table's columns.
            SchemaRefusedError: the layout names a column that the source does not have any more.
        """
        from tidesink.sinks.layout_spark import LaidOutColumns

        found = laid_out(self._layout, inner.shape, own=OWN_COLUMNS, gone=inner.gone)
        return LaidOutColumns(inner, found, self._layout, self._session)

    def told(self) -> ToldColumns | None:
        """What DDL tells of the columns that the target holds, by their names there.

        A column that was renamed keeps the source's names beside them.
        """
        told = self._decoding.told()
        if told is None:
            return None
        layout = self._layout
        current = tuple(column for column in told.current.columns if layout.chooses(column.name))
        holders = {layout.target_name(column.name).lower(): column.name.lower() for column in current}
        excluded = {name.lower() for name in layout.except_columns}

        def own(name: str) -> bool:
            """Whether the target's column of that name, if any, is this one of the source's."""
            return holders.get(layout.target_name(name).lower(), name.lower()) == name.lower()

        # A list of columns names a column by what it is called now: the old name need not be in it.
        renamed = {
            old: new._replace(was=layout.target_name(old), target=layout.target_name(new.name))
            for old, new in told.renamed.items()
            if layout.chooses(new.name) and old.lower() not in excluded and own(old)
        }
        former = tuple(column for column in told.former if layout.chooses(column.name) and own(column.name))
        readded = (layout.target_name(name).casefold() for name in told.readded if layout.chooses(name))
        named = replace(told.current, columns=tuple(self._named(current)))
        partings = {
            layout.target_name(name).casefold(): at
            for name, at in told.partings.items()
            if layout.chooses(name) and own(name)
        }
        return ToldColumns(named, tuple(self._named(former)), renamed, frozenset(readded), partings)

    def _named(self, columns: Iterable[TableColumn]) -> Iterator[TableColumn]:
        return (replace(column, name=self._layout.target_name(column.name)) for column in columns)
