"""A decoding whose plan is laid out as the target has the table: between decoding and reducing.

What it learns, and what it is asked of the topic, stays in the source's names; what DDL told is given in the
target's, without the columns that the target does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from tidesink.change import Column as TableColumn
from tidesink.codecs.columns_base import DecodeColumns
from tidesink.sinks.decoding import Decoding, ToldColumns
from tidesink.sinks.decoding_around import DecodingAround
from tidesink.sinks.targets.base import OWN_COLUMNS
from tidesink.typemap.layout import Layout, laid_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEFT_OUT_TOO: Final = (
    "column {name} is left out too: DDL says that it is, or was, one that except_column_list names, under "
    "another name. Add {name} to except_column_list, or name in columns instead what the target is to hold"
)

_log = structlog.get_logger("tidesink.worker")


class LaidOutDecoding(DecodingAround):
    """One table's decoding with a layout over its plan."""

    def __init__(self, decoding: Decoding, layout: Layout, session: SparkSession) -> None:
        super().__init__(decoding)
        self._layout = layout
        self._session = session
        self._warnings: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know about the table's types at the source, and what is left out unasked."""
        return (*super().warnings, *self._warnings)

    def _around(self, inner: DecodeColumns) -> DecodeColumns:
        """The plan laid out.

        Raises:
            ConfigError: the layout does not fit the table's columns.
            SchemaRefusedError: the layout names a column that the source does not have any more.
        """
        from tidesink.sinks.layout_spark import LaidOutColumns

        told = self._decoding.told()
        layout, past = self._followed(told), _past(told)
        found = laid_out(layout, inner.shape, own=OWN_COLUMNS, gone=inner.gone, past=past)
        return LaidOutColumns(inner, found, layout, self._session)

    def _followed(self, told: ToldColumns | None) -> Layout:
        """The layout, whose columns to leave out are left out under the names that DDL gave them, too."""
        if told is None or not self._layout.except_columns:
            return self._layout
        layout, names = self._layout.following({old: new.name for old, new in told.renamed.items()})
        now = told.current.by_name
        warnings = tuple(_LEFT_OUT_TOO.format(name=name) for name in names if name in now)
        for warning in warnings:
            if warning not in self._warnings:
                _log.warning("column left out", table=str(told.current.table), warning=warning)
        self._warnings = warnings
        return layout

    def told(self) -> ToldColumns | None:
        """What DDL tells of the columns that the target holds, by their names there.

        A column that was renamed keeps the source's names beside them.
        """
        told = self._decoding.told()
        if told is None:
            return None
        layout = self._followed(told)
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


def _past(told: ToldColumns | None) -> frozenset[str]:
    """Names, in lower case, that columns of the table had."""
    if told is None:
        return frozenset()
    return frozenset(name.lower() for name in (*told.renamed, *(column.name for column in told.former)))
