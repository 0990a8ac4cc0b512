"""Plans which columns a target must add or widen for a target schema. The targets carry out the plan.

Only lossless changes are planned: columns are added, and numeric types get wider. Existing rows get a new
column's default, as they do at the source. So a row has the same values whether it was written before or
after the column was added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal

from tidesink.errors import LOAD_AGAIN, SchemaRefusedError, ValueOutOfRangeError
from tidesink.events import TableId, folding
from tidesink.sinks.targets.base import SchemaGap
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import (
    TargetColumn,
    TargetSchema,
    default_value,
    key_change,
    ways_out,
    wider_ddl,
)
from tidesink.typemap.values import TargetValue


@dataclass(frozen=True)
class Evolution:
    """The column changes that a target table needs.

    ``added``: columns to add, in this order.
    ``widened``: the new Spark type of each column to widen, by the column's name at the target.
    """

    added: tuple[TargetColumn, ...] = ()
    widened: Mapping[str, str] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """True if there is a column to add or to widen."""
        return bool(self.added or self.widened)


def plan_evolution(present: Mapping[str, str], shape: TargetSchema) -> Evolution:
    """Compare a target table's columns with those that it should have (``shape``), and return the changes it
    needs.

    ``present``: the target's columns: Spark DDL type by name. Columns that ``shape`` does not have
        stay unchanged.

    Raises:
        SchemaRefusedError: a column's type can neither hold the source's values nor be widened, or the key of
            ``shape`` has a column that the target lacks.
    """
    fold = folding(present, (column.name for column in shape.columns))
    existing = {fold(name): (name, ddl) for name, ddl in present.items()}
    added = tuple(column for column in shape.columns if fold(column.name) not in existing)
    _refuse_new_keys(added, shape.source)
    widened = {}
    for column in shape.columns:
        if fold(column.name) in existing:
            name, ddl = existing[fold(column.name)]
            wider = _wider(ddl, column, shape.source)
            if wider != ddl:
                widened[name] = wider
    return Evolution(added, widened)


def gap_of(present: Mapping[str, str], plan: Evolution) -> SchemaGap:
    """Return the difference between a table's columns and the wanted ones, from a plan of column changes.

    ``present``: the table's columns: Spark DDL type by name.
    """
    widened = {name: (present[name], ddl) for name, ddl in plan.widened.items()}
    return SchemaGap(tuple(present), tuple(column.name for column in plan.added), widened, present)


def _refuse_new_keys(added: tuple[TargetColumn, ...], table: TableId) -> None:
    keys = [column.name for column in added if column.key]
    if keys:
        raise SchemaRefusedError(
            f"The target has no column {', '.join(keys)}, which the key needs: rows already there would have "
            f"no key. Set `keys` to columns that the target has, or {LOAD_AGAIN}.",
            table=str(table),
            **key_change((), keys),
        )


def _wider(present: str, column: TargetColumn, table: TableId) -> str:
    text_holds = present == "string" and row_of(column.type).reader == "decimal"
    wider = wider_ddl(present, column.spark, text_holds=text_holds)
    if wider is None:
        raise SchemaRefusedError(
            f"The target's column is {present}, the source's column is {column.spark} ({column.comment}), "
            "and no change of type keeps every value of both. If the source's column changed: "
            f"{ways_out(column.name, key=column.key)}. If the target's column was made or changed by hand, "
            "give it a type that holds the source's values.",
            table=str(table),
            column=column.name,
            change="type",
            before=present,
            after=column.spark,
        )
    return wider


def default_texts(
    columns: tuple[TargetColumn, ...],
    shape: TargetSchema,
    *,
    literal: Callable[[TargetValue], str] | None = None,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the default values that existing rows get in new columns, as texts by column name, and warnings.

    Each warning names a column whose default is out of the range of its type, and therefore is not written.

    ``literal``: converts a value to the text that the target reads; ``literal_text`` if None.
    """
    text_of = literal or literal_text
    defaults: dict[str, str] = {}
    warnings = []
    for column in columns:
        try:
            value = default_value(column, shape)
        except ValueOutOfRangeError as exc:
            warnings.append(
                f"Column {column.name!r}: existing rows do not get its default {column.default!r}. "
                f"{exc.message}"
            )
            continue
        if value is not None:
            defaults[column.name] = text_of(value)
    return defaults, tuple(warnings)


def literal_text(value: TargetValue) -> str:
    """Return a value as text that a cast to the column's type converts back exactly (bytes as hex digits)."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)
