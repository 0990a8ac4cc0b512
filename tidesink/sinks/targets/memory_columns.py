"""Columns of a table in memory: what they lack, and those under other names, or gone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidesink.sinks.evolve import Evolution, gap_of
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import SchemaGap

if TYPE_CHECKING:
    from tidesink.sinks.targets.memory_target import _State


class MemoryColumns(ABC):
    """The part of a table that renames and drops columns."""

    _state: _State

    @abstractmethod
    def _held(self, epoch: int | None = None) -> object:
        """Refuse a table that another worker holds."""

    @abstractmethod
    def _plan(self, shape: TableShape) -> Evolution:
        """What the columns lack for a shape."""

    def gap(self, shape: TableShape) -> SchemaGap:
        """What the columns lack."""
        return gap_of(self._state.columns, self._plan(shape))

    def rename_column(self, old: str, new: str) -> None:
        """Give a column, and each row's value in it, another name."""
        with self._state.lock:
            self._held()
            self._take({name: new if name == old else name for name in self._state.columns})

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns and each row's values in them."""
        with self._state.lock:
            self._held()
            self._take({name: name for name in self._state.columns if name not in names})

    def _take(self, names: Mapping[str, str]) -> None:
        """These columns alone, each under its new name."""
        state = self._state
        state.columns = {names[name]: ddl for name, ddl in state.columns.items() if name in names}
        rows = state.rows.items()
        state.rows = {key: {names[n]: value for n, value in row.items() if n in names} for key, row in rows}
