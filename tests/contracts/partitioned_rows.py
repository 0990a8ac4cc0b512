"""Rows for partitioned tables of lakes: values that folders and logs spell in odd ways, of every type."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from tests.columns import ID
from tests.contracts.targets_bed import shape
from tidesink.events import Column, ColumnType

TEXT: Final = Column("text", ColumnType("varchar", length=100))
TYPED: Final = (
    TEXT,
    Column("day", ColumnType("date")),
    Column("noted", ColumnType("datetime")),
    Column("at", ColumnType("timestamp")),
    Column("price", ColumnType("decimal", precision=20, scale=10)),
    Column("number", ColumnType("bigint")),
    Column("small", ColumnType("int")),
)
SHAPE: Final = shape(ID, *TYPED)
_TEXTS: Final = (
    "a b",
    "a/b",
    "50%",
    "x=y",
    "größe \U0001f600",
    "null",
    " ",
    "q?*<>|:\"'{}[]^#&~+,;@!$()\\",
    "tab\tline\n\x01\x7f\x85",
    "a%2Fb",
)
_DAYS: Final = (date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31))
_MOMENTS: Final = (
    datetime(2024, 2, 29, 1, 2, 3, 500_000),
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
    datetime(1969, 12, 31, 23, 59, 59),
    datetime(1582, 10, 10, 10),
)
# Python's instants need a year in any time zone.
_INSTANTS: Final = (datetime(1000, 1, 1), *_MOMENTS[:1], *_MOMENTS[2:])
_PRICES: Final = ("0.0000000001", "-1.5", "0", "9999999999.9999999999", "-9999999999.9999999999", "1e3")
_NUMBERS: Final = (0, -1, 2**31, -(2**63), 2**63 - 1)


def odd_rows() -> list[dict[str, Any]]:
    """Ten rows with every value, and one of NULLs."""
    rows = [
        {
            "id": at,
            "text": text,
            "day": _DAYS[at % len(_DAYS)],
            "noted": _MOMENTS[at % len(_MOMENTS)],
            "at": _INSTANTS[-1 - at % len(_INSTANTS)],
            "price": Decimal(_PRICES[at % len(_PRICES)]).quantize(Decimal("1e-10")),
            "number": _NUMBERS[at % len(_NUMBERS)],
            "small": _NUMBERS[at % 2] - 7,
        }
        for at, text in enumerate(_TEXTS)
    ]
    return [*rows, {"id": len(rows), **{column.name: None for column in TYPED}}]


Rows = list[dict[str, Any]]


def moves(count: int) -> Iterator[tuple[Rows, Rows, Rows]]:
    """Upserts and deletes of batches with the keys (id, place), and the rows after each.

    A row whose name changes moves to another partition.
    """
    dice = random.Random(11)
    stored = dict[tuple[int, str], dict[str, Any]]()
    for number in range(count):
        keys = dice.sample([(at, place) for at in range(6) for place in ("a b", "größe")], dice.randint(3, 9))
        deleted = [key for key in keys if dice.random() < 0.4]
        gone: Rows = [{"id": at, "place": place} for at, place in deleted]
        rows: Rows = [
            {"id": at, "place": place, "name": dice.choice([None, "x/y", "z"]), "amount": number}
            for at, place in keys
            if (at, place) not in deleted
        ]
        for key in deleted:
            stored.pop(key, None)
        stored |= {(one["id"], one["place"]): one for one in rows}
        yield rows, gone, [stored[key] for key in sorted(stored)]
