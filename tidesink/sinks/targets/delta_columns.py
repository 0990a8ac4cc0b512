"""Columns of an open Delta table: what they lack, and renaming and dropping them.

Column mapping by name makes both a matter of metadata; the bytes of a dropped column stay in old files
until those are written anew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

from tidesink.sinks.evolve import Evolution, gap_of
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets import delta_schema
from tidesink.sinks.targets.base import ReducedBatch, SchemaGap, check_order
from tidesink.sinks.targets.delta_log import DeltaLog
from tidesink.sinks.targets.delta_merge import append_statement, merge_statement
from tidesink.sinks.targets.identifier import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeltaColumns(ABC):
    """The part of a table that is about columns; ``_present`` are those it had at the last look."""

    location: str
    _session: SparkSession
    _log: DeltaLog
    _present: dict[str, str]

    @abstractmethod
    def _changing(self) -> AbstractContextManager[None]:
        """Around a change of the schema: the table is looked at to be ours still."""

    @abstractmethod
    def _plan(self, shape: TableShape) -> Evolution:
        """What the columns lack for a shape."""

    def _check_batch(self, batch: ReducedBatch) -> None:
        """Refuse a batch in another order than the table's, or with a value that it would change."""
        check_order(batch, self._present, table=batch.shape.source)
        delta_schema.check_partitions(self._partitioned_by, batch)

    def _statement(self, view: str, batch: ReducedBatch, *, appends: bool) -> str:
        """The statement that puts a batch into the table."""
        if appends:
            return append_statement(self.location, view, batch, self._present)
        beside = batch.beside(lambda: delta_schema.nullable_columns(self._log))
        return merge_statement(self.location, view, batch, self._present, beside=beside)

    @cached_property
    def _partitioned_by(self) -> frozenset[str]:
        """In lower case; a table is partitioned by others only when it is made anew."""
        return frozenset(name.lower() for name in self._log.partition_columns())

    def gap(self, shape: TableShape) -> SchemaGap:
        """What the columns lack, as they were when they were last looked at."""
        plan = self._plan(shape)  # may look at the columns
        return gap_of(self._present, plan)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column; its values stay where they are."""
        self._alter(rename_statement(self.location, self._present, old, new))

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns with their values."""
        self._alter(drop_statement(self.location, self._present, names))

    def _alter(self, statement: str | None) -> None:
        with self._changing():
            if statement is not None:
                self._session.sql(statement)
            self._present = delta_schema.present_columns(self._log)


def rename_statement(location: str, present: Mapping[str, str], old: str, new: str) -> str | None:
    """Renames a column; None where that is done already."""
    if new in present and old not in present:
        return None
    return f"ALTER TABLE {location} RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}"


def drop_statement(location: str, present: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Drops columns; None where none of them is there."""
    there = ", ".join(quote_identifier(name) for name in names if name in present)
    return f"ALTER TABLE {location} DROP COLUMNS ({there})" if there else None
