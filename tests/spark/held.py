"""TiDB's own values, from ``events.jsonl``, as the target's types hold them; none of our readers is asked."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from tests.golden.vectors import Record
from tests.spark.decoded import Values
from tidesink.events import Column
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import TargetColumn


def held_value(value: Any, column: Column, target: TargetColumn, *, zone: str) -> Any:
    """TiDB's value as the target's type holds it; a date no calendar has is null."""
    if value is None or column.virtual:
        return None
    if target.spark == "string":
        return format(value, "f") if isinstance(value, Decimal) else value
    if target.spark.startswith("decimal"):
        return Decimal(value)
    if row_of(column.type).reader in ("date", "datetime", "timestamp"):
        return _moment(value, target.spark, zone)
    return value


def _moment(text: str, spark: str, zone: str) -> date | datetime | None:
    try:
        if spark == "date":
            return datetime.strptime(text, "%Y-%m-%d").date()
        whole, _, fraction = text.partition(".")
        moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(
            microsecond=int((fraction + "000000")[:6])
        )
    except ValueError:
        return None
    if spark == "timestamp_ntz":
        return moment
    return moment.replace(tzinfo=ZoneInfo(zone)).astimezone(timezone.utc)


def compare(record: Record, expected: Values, found: Values) -> list[str]:
    """One line for each value that is another, or of another type, than expected."""
    return [
        f"{record.name}: {name} is {found.get(name)!r:.80}, expected {value!r:.80}; {found.get('error')}"
        for name, value in expected.items()
        if found.get(name) != value or type(found.get(name)) is not type(value)
    ]
