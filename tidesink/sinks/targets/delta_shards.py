"""A source table's part in a Delta table that several share: the columns that its rows have.

The columns stand in each commit of the shard's own (``delta_ledger``). A column that is new to it, whether
others have it or not, is given its default in the shard's rows before the first batch that has it; cut off,
that is done again, since no commit names the column yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.evolve import Evolution, default_texts, plan_evolution
from tidesink.sinks.shape import Shard, TableShape
from tidesink.sinks.targets import delta_schema
from tidesink.sinks.targets.delta_ledger import Entry, Ledger, application_of
from tidesink.sinks.targets.delta_log import DeltaLog
from tidesink.sinks.targets.delta_merge import rows_of
from tidesink.sinks.targets.delta_session import transaction
from tidesink.sinks.targets.identifier import quote_identifier
from tidesink.sinks.targets.shards import also_of, known_after, new_columns
from tidesink.sinks.targets.spark_tables import literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeltaShard:
    """One shard of an open table."""

    def __init__(self, shard: Shard, session: SparkSession, log: DeltaLog, ledger: Ledger) -> None:
        self._shard = shard
        self._session, self._log, self._ledger = session, log, ledger
        self._known: tuple[str, ...] | None = None

    def claimed(self, entry: Entry, present: Iterable[str]) -> None:
        """Know which columns the rows have; of a commit that was cleaned away: those the table has."""
        known = tuple(map(str.lower, present)) if entry.known is None else entry.known
        self._known = known if entry.progress else None

    def written(self, shape: TableShape) -> tuple[str, ...]:
        """The columns that the rows have with a batch of a shape; never fewer than before."""
        self._known = known_after(self._known or (), shape) or ()
        return self._known

    def plan(self, shape: TableShape, present: Mapping[str, str]) -> Evolution:
        """What the columns lack.

        Raises:
            SchemaRefusedError: no type holds the values of all shards; names the others.
        """
        try:
            return plan_evolution(present, shape)
        except SchemaRefusedError as exc:
            others = self._ledger.shards()
            raise also_of(exc, self._ledger.path, others) if others else exc from None

    def grows(self, shape: TableShape) -> bool:
        """Whether the rows lack columns of a shape, whatever the table has."""
        return bool(new_columns(shape, self._known))

    def grow(
        self, location: str, shape: TableShape, plan: Evolution, *, epoch: int
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Carry out a plan, and give our rows the defaults of what is new to them; those, and warnings."""
        delta_schema.widen_columns(self._session, location, plan)
        delta_schema.add_columns(self._session, location, plan)
        defaults, warnings = default_texts(new_columns(shape, self._known), shape)
        if defaults and self._log.file_count():
            application = application_of(delta_schema.BACKFILL_APPLICATION, self._shard)
            with transaction(self._session, application, self._log.next_version(epoch)):
                self._session.sql(self._fill_statement(location, defaults))
        self._known = known_after(self._known, shape)
        return tuple(defaults), warnings

    def _fill_statement(self, location: str, defaults: Mapping[str, str]) -> str:
        given = {name.lower(): text for name, text in defaults.items()}
        sets = ", ".join(
            f"{quote_identifier(name)} = {literal(given[name.lower()], ddl)}"
            for name, ddl in delta_schema.present_columns(self._log).items()
            if name.lower() in given
        )
        return f"UPDATE {location} SET {sets} WHERE {rows_of(self._shard)}"  # noqa: S608  (all is quoted)
