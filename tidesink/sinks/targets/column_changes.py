"""What must change in a target's columns so that they take a shape; pure, the targets carry it out.

Only what loses nothing happens on its own: columns are added, numbers get wider. Rows which were there
before a column have the column's default at the source, so they get it here too: the target's state
may not depend on whether a row was written before or after the column came (cut anywhere).
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
    ShapeColumn,
    TableShape,
    default_value,
    key_change,
    ways_out,
    wider_ddl,
)
from tidesink.typemap.values import TargetValue


@dataclass(frozen=True)
class Evolution:
    """Columns to add, in order, and columns to widen by the target's own name for them."""

    added: tuple[ShapeColumn, ...] = ()
    widened: Mapping[str, str] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """True when something must change."""
        return bool(self.added or self.widened)


def plan_evolution(present: Mapping[str, str], shape: TableShape) -> Evolution:
    """What ``present`` (column name to Spark DDL type, as the target has them) lacks for ``shape``.

    Columns the shape does not have stay as they are.

    Raises:
        SchemaRefusedError: a column's present type cannot hold the shape's values.
    """
    fold = folding(present, (column.name for column in shape.columns))
    known = {fold(name): (name, ddl) for name, ddl in present.items()}
    added = tuple(column for column in shape.columns if fold(column.name) not in known)
    _refuse_new_keys(added, shape.source)
    widened = {}
    for column in shape.columns:
        if fold(column.name) in known:
            name, ddl = known[fold(column.name)]
            wider = _wider(ddl, column, shape.source)
            if wider != ddl:
                widened[name] = wider
    return Evolution(added, widened)


def gap_of(present: Mapping[str, str], plan: Evolution) -> SchemaGap:
    """A plan as what is missing."""
    widened = {name: (present[name], ddl) for name, ddl in plan.widened.items()}
    return SchemaGap(tuple(present), tuple(column.name for column in plan.added), widened, present)


def _refuse_new_keys(added: tuple[ShapeColumn, ...], table: TableId) -> None:
    keys = [column.name for column in added if column.key]
    if keys:
        raise SchemaRefusedError(
            f"the target has no column {', '.join(keys)}, which the key needs: rows already there would have "
            f"no key. Name columns under keys that it has, or {LOAD_AGAIN}",
            table=str(table),
            **key_change((), keys),
        )


def _wider(present: str, column: ShapeColumn, table: TableId) -> str:
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
    columns: tuple[ShapeColumn, ...],
    shape: TableShape,
    *,
    literal: Callable[[TargetValue], str] | None = None,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What old rows get in new columns, as texts by column name, and warnings for those not given.

    ``literal`` writes a value as the target reads it back, ``literal_text`` where none is given.
    """
    text_of = literal or literal_text
    defaults: dict[str, str] = {}
    warnings = []
    for column in columns:
        try:
            value = default_value(column, shape)
        except ValueOutOfRangeError as exc:
            warnings.append(
                f"column {column.name!r}: its default {column.default!r} is not given to rows already there: "
                f"{exc.message}"
            )
            continue
        if value is not None:
            defaults[column.name] = text_of(value)
    return defaults, tuple(warnings)


def literal_text(value: TargetValue) -> str:
    """A value as the text that a cast to its column's type reads back exactly (bytes as hex)."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)
