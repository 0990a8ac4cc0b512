"""Reads and changes the columns of an open Iceberg table, and writes the defaults of new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from tidesink.errors import TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.laws.modes import is_history
from tidesink.sinks.targets.base import EvolveResult
from tidesink.sinks.targets.column_changes import Evolution, default_texts, plan_evolution
from tidesink.sinks.targets.iceberg import schema
from tidesink.sinks.targets.iceberg.jvm import JvmTable
from tidesink.sinks.targets.iceberg.ledger import ATTEMPTS, Holder
from tidesink.sinks.targets.iceberg.merge import Staging
from tidesink.sinks.targets.sharing import known_after, new_columns
from tidesink.typemap.target_schema import Shard, TargetColumn, TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.targets.lake.batches import LakePreflight


@dataclass(frozen=True)
class IcebergColumns:
    """The columns of an open Iceberg table (``lake.table.ColumnsFormat``).

    ``shard``: the source table's shard if several source tables share the table; None otherwise.
    ``preflight``: checks a new history.
    ``properties``: additional properties of a new table.
    """

    session: SparkSession
    table: JvmTable
    holder: Holder
    staging: Staging
    name: TableId
    shard: Shard | None
    preflight: LakePreflight
    properties: Mapping[str, str] = field(default_factory=dict)

    def open(self, shape: TargetSchema, *, soft_deletes: bool) -> bool:
        """Create the table if it is missing, and add the soft-delete column if needed.

        Returns True if the table was created.
        """
        if is_history(shape) and not self.table.exists:
            self.preflight.check_new_history(shape, self.properties)
        return schema.open_table(
            self.session, self.table, shape, soft_deletes=soft_deletes, properties=self.properties
        )

    def present(self) -> dict[str, str]:
        """Read and return the table's columns: Spark type by name."""
        return self.table.columns(self.table.state())

    def check(self, shape: TargetSchema, present: Iterable[str]) -> None:
        """Check that the table can have the columns of ``shape`` in addition to ``present``."""
        schema.check(shape, present)

    def check_types(self, plan: Evolution, present: Mapping[str, str]) -> None:
        """Check that Iceberg can make the type changes of a plan without rewriting rows."""
        schema.check_promotions(plan.widened, present, table=self.name)

    def grows(self, shape: TargetSchema) -> bool:
        """Return True if the shard's rows lack a column of ``shape``."""
        return self.shard is not None and bool(self._new(shape))

    def evolve(self, shape: TargetSchema, _plan: Evolution) -> EvolveResult:
        """Widen and add the columns that ``shape`` needs, and write defaults into existing rows."""
        result = self._evolve(shape)
        if self.shard is None:
            return replace(result, backfilled=self.fill_pending())
        filled, warnings = self._fill_shard(shape, self.shard)
        return replace(result, backfilled=filled, warnings=(*result.warnings, *warnings))

    def rename(self, old: str, new: str) -> None:
        """Rename a column. No file is rewritten, because files refer to columns by field id."""
        self._alter(lambda present: new not in present, lambda update: update.renameColumn(old, new))

    def drop(self, names: Sequence[str]) -> None:
        """Drop columns from the current schema. Older snapshots keep them."""
        for name in names:
            self._alter(lambda present, n=name: n in present, lambda update, n=name: update.deleteColumn(n))  # type: ignore[misc]

    def fill_pending(self) -> tuple[str, ...]:
        """Write the recorded defaults of new columns into existing rows.

        Returns the names of these columns.

        Raises:
            TransientTargetError: other writers kept committing.
        """
        for _ in range(ATTEMPTS):
            state = self.holder.staging()
            present = self.table.columns(state)
            pending = schema.pending_defaults(state)
            if not pending:
                return ()
            head = cast(int, state.head)
            statement = schema.fill_statement(self.staging.branch, pending, present)
            snapshot = self.staging.run(statement, head)[0] if statement else head
            entry = replace(self.holder.held, snapshot=snapshot)
            if self.holder.publish(entry, on=head, forgetting=(schema.BACKFILL,)):
                return tuple(name for name in pending if name in present)
        raise crowded(self.name)

    def _alter(self, needed: Callable[[Mapping[str, str]], bool], change: Callable[[Any], object]) -> None:
        """Commit a schema change.

        ``needed``: returns True if the current columns need the change.
        ``change``: makes the change on Java's schema update.
        """
        for _ in range(ATTEMPTS):
            state = self.holder.current()
            if not needed(self.table.columns(state)):
                return
            update = state.table.updateSchema()
            change(update)
            self.holder.put_schema(state, update.apply(), {})
        raise crowded(self.name)

    def _evolve(self, shape: TargetSchema) -> EvolveResult:
        """Widen and add the columns that ``shape`` needs.

        Defaults of new columns are only recorded here, and written into existing rows later.
        """
        for _ in range(ATTEMPTS):
            state = self.holder.current()
            present = self.table.columns(state)
            plan = plan_evolution(present, shape)
            self.check_types(plan, present)
            java_schema, properties, warnings = schema.evolution(self.table, state, plan, shape)
            if not plan.needed or self.holder.put_schema(state, java_schema, properties):
                added = tuple(column.name for column in plan.added)
                return EvolveResult(False, added, tuple(plan.widened), (), warnings)
        raise crowded(self.name)

    def _new(self, shape: TargetSchema) -> tuple[TargetColumn, ...]:
        """Return the columns of ``shape`` that the shard's rows do not have yet."""
        return new_columns(shape, self.holder.held.known)

    def _fill_shard(self, shape: TargetSchema, shard: Shard) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Write the defaults of new columns into the shard's rows. Returns the columns' names, and warnings.

        Raises:
            TransientTargetError: other writers kept committing.
        """
        defaults, warnings = default_texts(self._new(shape), shape)
        if not defaults:
            return (), warnings
        for _ in range(ATTEMPTS):
            state = self.holder.staging()
            statement = schema.fill_statement(self.staging.branch, defaults, self.table.columns(state), shard)
            head, held = cast(int, state.head), self.holder.held
            snapshot = self.staging.run(statement, head)[0] if statement else head
            entry = replace(held, snapshot=snapshot, known=known_after(held.known, shape))
            if self.holder.publish(entry, on=head):
                return tuple(defaults), warnings
        raise crowded(self.name)


def crowded(name: TableId) -> TransientTargetError:
    """Return the error to raise if other writers kept committing to a table."""
    return TransientTargetError(
        "Other writers keep committing to the table, so the commit failed. It is tried again.",
        table=str(name),
    )
