"""Reads and changes the columns of an open Delta table, and writes the defaults of new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidesink.sinks.laws.modes import is_history
from tidesink.sinks.targets.base import EvolveResult
from tidesink.sinks.targets.column_changes import Evolution
from tidesink.sinks.targets.delta import schema
from tidesink.sinks.targets.delta.hold import DeltaHold
from tidesink.sinks.targets.delta.log import DeltaLog
from tidesink.sinks.targets.delta.writes import DeltaShard
from tidesink.sinks.targets.sharing import quote_identifier
from tidesink.typemap.target_schema import TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.targets.lake.batches import LakePreflight


@dataclass(frozen=True)
class DeltaColumns:
    """The columns of an open Delta table (``lake.table.ColumnsFormat``).

    ``location``: the table's quoted name in SQL.
    ``shard``: the source table's shard if several source tables share the table; None otherwise.
    ``preflight``: checks a new history.
    ``properties``: additional properties of a new table.
    """

    session: SparkSession
    log: DeltaLog
    location: str
    hold: DeltaHold
    shard: DeltaShard | None
    preflight: LakePreflight
    properties: Mapping[str, str] = field(default_factory=dict)

    def open(self, shape: TargetSchema, *, soft_deletes: bool) -> bool:
        """Create the table if it is missing, and add the soft-delete column if needed.

        Returns True if the table was created.
        """
        if is_history(shape) and not self.log.exists:
            self.preflight.check_new_history(shape, self.properties)
        return schema.open_table(
            self.session,
            self.log,
            self.location,
            shape=shape,
            soft_deletes=soft_deletes,
            properties=self.properties,
        )

    def present(self) -> dict[str, str]:
        """Read and return the table's columns: Spark type by name."""
        return schema.present_columns(self.log)

    def check(self, shape: TargetSchema, present: Iterable[str]) -> None:
        """Check that the table can have the columns of ``shape`` in addition to ``present``."""
        schema.check(shape, present)

    def check_types(self, _plan: Evolution, _present: Mapping[str, str]) -> None:
        """Do nothing, because Delta can make every type change that is planned."""

    def grows(self, shape: TargetSchema) -> bool:
        """Return True if the shard's rows lack a column of ``shape``."""
        return self.shard is not None and self.shard.grows(shape)

    def evolve(self, shape: TargetSchema, plan: Evolution) -> EvolveResult:
        """Change columns as planned, and write defaults into existing rows."""
        self.hold.check()
        epoch = self.hold.held.epoch
        if self.shard:
            filled, warnings = self.shard.grow(self.location, shape, plan, epoch=epoch)
        else:
            warnings = schema.evolve_table(
                self.session, self.log, self.location, shape=shape, plan=plan, epoch=epoch
            )
            filled = self.fill_pending()
        added = tuple(column.name for column in plan.added)
        return EvolveResult(False, added, tuple(plan.widened), filled, warnings)

    def rename(self, old: str, new: str) -> None:
        """Rename a column. No file is rewritten, because column mapping is enabled if necessary."""
        present = self.present()
        renamed = new in present and old not in present
        self._alter("" if renamed else f"RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}")

    def drop(self, names: Sequence[str]) -> None:
        """Drop columns and their values from the current version. Older versions of the table keep them."""
        present = self.present()
        there = ", ".join(quote_identifier(name) for name in names if name in present)
        self._alter(f"DROP COLUMNS ({there})" if there else "")

    def fill_pending(self) -> tuple[str, ...]:
        """Write the recorded defaults of new columns into existing rows. Returns their names."""
        epoch = self.hold.held.epoch
        return schema.fill_pending(self.session, self.log, self.location, epoch=epoch)

    def _alter(self, change: str) -> None:
        """Change columns by ALTER TABLE; an empty change only checks that this worker holds the table."""
        self.hold.check()
        if change:
            schema.give_features(self.session, self.log, self.location, ["columnMapping"])
            self.session.sql(f"ALTER TABLE {self.location} {change}")
