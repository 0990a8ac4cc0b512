"""Each of TiDB's types as a changefeed sends it, at its limits, and what a target then holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from tests.contracts.coded_changes import carries
from tests.contracts.test_targets_types import NUL, cases
from tidesink.events import Column, ColumnType, TableId, Value
from tidesink.typemap.table import TYPES, row_of

TABLE: Final = TableId("shop", "every_type")
_VALUES: Final[Mapping[str, tuple[str, str]]] = {
    "vector": ("[]", "[1,-2.5,3e-07]"),
    # '' that is no member is what TiDB makes of a wrong value outside strict mode: no label tells it.
    "enum": ("x", "a,b'c"),
}
_FRACTIONS: Final = ("datetime", "timestamp", "time")


class Carried(NamedTuple):
    """A column of a source, two values as the source has them, and as a target stores them."""

    column: Column
    sent: tuple[Value, Value]
    stored: tuple[Any, Any]


class EveryType:
    """A table with a column for each type of TiDB's, as one protocol carries it.

    Types of other databases are left out: TiCDC, whose protocols our encoders write, has none of them.
    """

    def __init__(self, protocol: str, *, nul_in_text: bool) -> None:
        self._carries = carries(protocol)
        own = {row.name for row in TYPES}
        found = [(column, values) for column, values in cases() if row_of(column.type).name in own]
        assert {row_of(column.type).name for column, _ in found} == own
        self._columns = [self._carried(*one, nul_in_text=nul_in_text) for one in found]

    @property
    def created(self) -> str:
        """The table's DDL at the source."""
        return _create_table(self._columns, "")

    @property
    def known(self) -> str:
        """The table's DDL as far as the protocol carries its types."""
        return _create_table(self._columns, "" if self._carries.decimals else "double")

    @property
    def definition(self) -> str | None:
        """What the config must say of the table."""
        return None if self._carries.types else self.known

    @property
    def sent(self) -> list[list[Value]]:
        """Three rows behind their ids: the least values, the greatest ones, and NULL."""
        return [*([one.sent[n] for one in self._columns] for n in (0, 1)), [None for _ in self._columns]]

    @property
    def stored(self) -> list[dict[str, Any]]:
        """The same rows as a target stores them, under the names of the source."""
        rows = [*([one.stored[n] for one in self._columns] for n in (0, 1)), [None for _ in self._columns]]
        names = [one.column.name for one in self._columns]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _carried(self, column: Column, values: tuple[Any, Any], *, nul_in_text: bool) -> Carried:
        name = column.type.name
        if name == "enum":
            column = replace(column, type=replace(column.type, members=_VALUES[name]))
        low, high = _VALUES.get(name, values)
        if name == "date":
            low = max(low, date(self._carries.years_from, 1, 1))
        if isinstance(high, str) and not nul_in_text:
            high = high.replace(NUL, "")
        sent = _at_source(column, low), _at_source(column, high)
        if name == "decimal" and not self._carries.decimals:
            low, high = float(low), float(high)
        return Carried(column, sent, (low, high))


def _at_source(column: Column, value: Any) -> Value:
    """A stored value as events have it."""
    reader = row_of(column.type).reader
    if reader in ("unsigned64", "bit"):
        return int(value)
    if reader == "decimal":
        return Decimal(value)
    if isinstance(value, datetime):
        return value.isoformat(" ", "microseconds")
    return value.isoformat() if isinstance(value, date) else value


def _create_table(columns: Sequence[Carried], decimal: str) -> str:
    texts = (f"`{one.column.name}` {_sql(one.column.type, decimal)}" for one in columns)
    return f"CREATE TABLE `{TABLE.schema}`.`{TABLE.name}` (`id` BIGINT PRIMARY KEY, {', '.join(texts)})"


def _sql(kind: ColumnType, decimal: str) -> str:
    if kind.name == "decimal":
        return decimal or f"decimal({kind.precision},{kind.scale})"
    if kind.members is not None:
        return f"{kind.name}({','.join(_quoted(member) for member in kind.members)})"
    if kind.name in _FRACTIONS:
        return f"{kind.name}(6) NULL"
    return kind.name if kind.length is None else f"{kind.name}({kind.length})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
