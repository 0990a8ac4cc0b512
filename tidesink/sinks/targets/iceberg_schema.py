"""An Iceberg table's columns: made, added, widened; old rows given the default of a new column.

Columns are added by one commit of the table's metadata, which also says in a property what old rows are
still to be given: tables of format 2 know no defaults. An UPDATE gives it to them, and the commit that makes
its rows visible takes the property away. A worker that dies between the two leaves the property, and whoever
claims the table next fills first.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by identifier.py
from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import SchemaRefusedError
from tidesink.events import TableId
from tidesink.sinks.evolve import Evolution, default_texts
from tidesink.sinks.shape import ShapeColumn, Shard, TableShape
from tidesink.sinks.targets import spark_tables
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN
from tidesink.sinks.targets.delta_merge import rows_of
from tidesink.sinks.targets.foreseen import SparkForesight
from tidesink.sinks.targets.iceberg_table import JvmTable, TableState
from tidesink.sinks.targets.identifier import quote_identifier
from tidesink.sinks.targets.shape_checks import Reserved, check_shape
from tidesink.sinks.targets.spark_tables import literal
from tidesink.typemap.render import iceberg_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACKFILL: Final = "tidesink.backfill"

# Measured in docs/adr/0014-iceberg-batches.md.
TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "2",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "write.target-file-size-bytes": "134217728",
    # Each batch makes two new versions of the metadata.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}
# Iceberg's own columns, and those that Spark's MERGE adds to a table's.
RESERVED: Final = Reserved(
    "Iceberg",
    frozenset(
        {
            "_file",
            "_pos",
            "_deleted",
            "_spec_id",
            "_partition",
            "_row_id",
            "_last_updated_sequence_number",
            "_change_type",
            "_change_ordinal",
            "_commit_snapshot_id",
            "__row_operation",
            "__row_from_source",
            "__row_from_target",
            "__row_id",
        }
    ),
)
_DECIMAL: Final = re.compile(r"decimal\(\d+,(\d+)\)")
_PROMOTED: Final = frozenset({("int", "bigint"), ("float", "double")})


class IcebergForesight(SparkForesight):
    """Of Iceberg tables."""

    def column_type(self, settings: Any, column: ShapeColumn) -> str:  # noqa: ARG002
        """In Iceberg's words, which are not all Spark's."""
        return iceberg_type(column.spark)


def check(shape: TableShape) -> None:
    """Refuse a shape of which Iceberg can make no table; raises SchemaRefusedError."""
    check_shape(shape, RESERVED)


def create_statement(location: str, shape: TableShape, *, soft_deletes: bool) -> str:
    """The CREATE TABLE of a shape; ``location`` is the quoted table."""
    return spark_tables.create_statement(
        location, shape, provider="iceberg", properties=TABLE_PROPERTIES, soft_deletes=soft_deletes
    )


def open_table(session: SparkSession, table: JvmTable, shape: TableShape, *, soft_deletes: bool) -> bool:
    """Make the table where it is missing; whether it was."""
    if not table.exists:
        check(shape)  # a table that is there may never get the columns it lacks
        namespace = table.location.rpartition(".")[0]
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        session.sql(create_statement(table.location, shape, soft_deletes=soft_deletes))
        return True
    if soft_deletes and SOFT_DELETE_COLUMN not in table.columns(table.state()):
        session.sql(spark_tables.soft_delete_statement(table.location))
    return False


def check_promotions(widened: Mapping[str, str], present: Mapping[str, str], *, table: TableId) -> None:
    """Refuse what Iceberg cannot widen without rewriting every row.

    Raises:
        SchemaRefusedError: names the column and both types.
    """
    for name, wider in widened.items():
        if not _promotes(present[name], wider):
            raise SchemaRefusedError(
                f"the column is {present[name]} and must become {wider} to hold the source's values. Iceberg "
                "widens int to bigint, float to double and the precision of a decimal, and no more: load the "
                "table again under another name",
                table=str(table),
                column=name,
                change="type",
                before=present[name],
                after=wider,
            )


def evolution(
    table: JvmTable, state: TableState, plan: Evolution, shape: TableShape
) -> tuple[Any, dict[str, str], tuple[str, ...]]:
    """A plan as Java's new schema, the properties to set with it, and warnings."""
    update = state.table.updateSchema()
    for name, ddl in plan.widened.items():
        update.updateColumn(name, table.type_of(ddl))
    for column in plan.added:
        # With a parent, even none, a name may hold dots.
        update.addColumn(None, column.name, table.type_of(column.spark), column.comment)
    # Of a shared table only the shard's rows get its defaults.
    defaults, warnings = default_texts(plan.added if shape.shard is None else (), shape)
    pending = {**pending_defaults(state), **defaults}
    return update.apply(), {BACKFILL: json.dumps(pending)} if pending else {}, warnings


def pending_defaults(state: TableState) -> dict[str, str]:
    """Columns whose old rows still lack their default, with the default's literal text."""
    text = state.property(BACKFILL)
    return json.loads(text) if text else {}


def fill_statement(
    location: str, pending: Mapping[str, str], present: Mapping[str, str], shard: Shard | None = None
) -> str | None:
    """The UPDATE that gives old rows, or those of a shard, defaults; None where no such column is there."""
    given = {name.lower(): text for name, text in pending.items()}
    sets = [
        f"{quote_identifier(name)} = {literal(given[name.lower()], ddl)}"
        for name, ddl in present.items()
        if name.lower() in given
    ]
    where = f" WHERE {rows_of(shard)}" if shard else ""
    return f"UPDATE {location} SET {', '.join(sets)}{where}" if sets else None


def _promotes(narrow: str, wide: str) -> bool:
    old, new = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    return (narrow, wide) in _PROMOTED or bool(old and new and old.group(1) == new.group(1))
