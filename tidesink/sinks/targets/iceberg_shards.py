"""A source table's part in an Iceberg table that several share: the columns that its rows have.

They stand in the shard's entry of the ledger. A column that is new to the shard, whether others have it or
not, is given its default in the shard's rows by the commit that writes it down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from tidesink.errors import SchemaRefusedError, TransientTargetError
from tidesink.sinks.evolve import default_texts, plan_evolution
from tidesink.sinks.shape import ShapeColumn, Shard, TableShape
from tidesink.sinks.targets.iceberg_holder import ATTEMPTS, Holder
from tidesink.sinks.targets.iceberg_ledger import IcebergLedger
from tidesink.sinks.targets.iceberg_schema import fill_statement
from tidesink.sinks.targets.iceberg_table import JvmTable
from tidesink.sinks.targets.shards import also_of, known_after, new_columns

# Runs a statement on the shard's branch, whose head is told; gives its snapshot and the summary's numbers.
Stage = Callable[[str, int], tuple[int, Mapping[str, int]]]
_Filled = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class IcebergShard:
    """One shard of an open table."""

    shard: Shard
    table: JvmTable
    ledger: IcebergLedger
    holder: Holder

    def present(self, shape: TableShape) -> dict[str, str]:
        """The table's columns now, since others change them, which can come to hold a shape.

        Raises:
            SchemaRefusedError: no type holds the values of all shards; names the others.
        """
        state = self.table.state()
        present = self.table.columns(state)
        try:
            plan_evolution(present, shape)
        except SchemaRefusedError as exc:
            others = self.ledger.shards(state)
            raise also_of(exc, self.ledger.location, others) if others else exc from None
        return present

    def new_columns(self, shape: TableShape) -> tuple[ShapeColumn, ...]:
        """The columns that the shard's rows have no value for yet."""
        return new_columns(shape, self.holder.held.known)

    def fill(self, shape: TableShape, branch: str, stage: Stage) -> _Filled:
        """Give the shard's rows the defaults of columns that are new to them; those, and warnings.

        Raises:
            TransientTargetError: others kept committing.
        """
        defaults, warnings = default_texts(self.new_columns(shape), shape)
        if not defaults:
            return (), warnings
        for _ in range(ATTEMPTS):
            state = self.holder.staging()
            statement = fill_statement(branch, defaults, self.table.columns(state), self.shard)
            head, held = cast(int, state.head), self.holder.held
            snapshot = stage(statement, head)[0] if statement else head
            entry = replace(held, snapshot=snapshot, known=known_after(held.known, shape))
            if self.holder.publish(entry, on=head):
                return tuple(defaults), warnings
        raise TransientTargetError("others keep committing to the table", table=str(self.ledger.table))


def shard_of(
    shape: TableShape, table: JvmTable, ledger: IcebergLedger, holder: Holder
) -> IcebergShard | None:
    """The shard of a shape; None where its table is not shared."""
    return IcebergShard(shape.shard, table, ledger, holder) if shape.shard else None
