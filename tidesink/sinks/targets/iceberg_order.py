"""The columns that an Iceberg table gets once, when it goes over to the source's order."""

from __future__ import annotations

from typing import Any, Final

from tidesink.errors import TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SEQUENCE_DDL, SOFT_DELETE_COLUMN
from tidesink.sinks.targets.iceberg_holder import ATTEMPTS, Holder
from tidesink.sinks.targets.iceberg_table import JvmTable, TableState
from tidesink.sinks.targets.spark_tables import SEQUENCE_COMMENT, SOFT_DELETE_COMMENT

_ORDER_COLUMNS: Final = (
    (SEQUENCE_COLUMN, SEQUENCE_DDL, SEQUENCE_COMMENT),
    (SOFT_DELETE_COLUMN, "boolean", SOFT_DELETE_COMMENT),
)


def add_order(table: JvmTable, holder: Holder, name: TableId) -> dict[str, str]:
    """Commit the columns of the source's order where they are missing; all columns then.

    Raises:
        StaleProgressError: the table is not ours any more.
        TransientTargetError: others kept committing.
    """
    for _ in range(ATTEMPTS):
        state = holder.current()
        schema = _with_order(table, state)
        if schema is None or holder.put_schema(state, schema, {}):
            return table.columns(table.state())
    raise TransientTargetError("others keep committing to the table", table=str(name))


def _with_order(table: JvmTable, state: TableState) -> Any:
    """Java's schema with the columns of the source's order; None where they are there.

    They are NULL in old rows: older than every change that comes.
    """
    present = table.columns(state)
    missing = [one for one in _ORDER_COLUMNS if one[0] not in present]
    if not missing:
        return None
    update = state.table.updateSchema()
    for name, ddl, comment in missing:
        update.addColumn(None, name, table.type_of(ddl), comment)
    return update.apply()
