"""Columns of an open Iceberg table: what they lack, and renaming and dropping them.

A column is its field's number: a rename changes no file, and older snapshots keep what was dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tidesink.errors import TidesinkError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.evolve import Evolution, gap_of
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets import iceberg_schema
from tidesink.sinks.targets.base import SchemaGap
from tidesink.sinks.targets.iceberg_errors import reading_error
from tidesink.sinks.targets.iceberg_holder import ATTEMPTS, Holder
from tidesink.sinks.targets.iceberg_table import JvmTable


class IcebergColumns(ABC):
    """The part of a table that is about columns; ``_present`` are those it had at the last look."""

    _name: TableId
    _table: JvmTable
    _holder: Holder
    _present: dict[str, str]

    @abstractmethod
    def _translating(self, translate: Callable[..., TidesinkError]) -> AbstractContextManager[None]:
        """Around what asks Java."""

    @abstractmethod
    def _plan(self, shape: TableShape) -> Evolution:
        """What the columns lack for a shape."""

    def gap(self, shape: TableShape) -> SchemaGap:
        """What the columns lack, as they were when they were last looked at."""
        with self._translating(reading_error):
            plan = self._plan(shape)
            iceberg_schema.check_promotions(plan.widened, self._present, table=self._name)
        return gap_of(self._present, plan)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column, which keeps its field's number."""
        self._alter(lambda present: new not in present, lambda update: update.renameColumn(old, new))

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns; older snapshots still have them."""
        for name in names:
            self._alter(lambda present, n=name: n in present, lambda update, n=name: update.deleteColumn(n))  # type: ignore[misc]

    def _alter(self, needed: Callable[[Mapping[str, str]], bool], change: Callable[[Any], object]) -> None:
        """Commit another schema where it is needed."""
        with self._translating(reading_error):
            for _ in range(ATTEMPTS):
                state = self._holder.current()
                self._present = self._table.columns(state)
                if not needed(self._present):
                    return
                update = state.table.updateSchema()
                change(update)
                self._holder.put_schema(state, update.apply(), {})
        raise TransientTargetError("others keep committing to the table", table=str(self._name))
