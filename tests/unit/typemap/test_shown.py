"""Values in error messages: short, and marked where they were cut."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tidesink.errors import ValueOutOfRangeError, shown
from tidesink.events import ColumnType
from tidesink.typemap.values import text_reader


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("short", "'short'"),
        ("x" * 80, repr("x" * 80)),
        ("x" * 81, repr("x" * 80) + "…"),
        (b"\x00" * 81, repr(b"\x00" * 80) + "…"),
        (Decimal("1.50"), "Decimal('1.50')"),
        ([1] * 100, repr([1] * 100)[:80] + "…"),
    ],
)
def test_a_value_is_cut_with_a_mark(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_readers_reason_is_whole() -> None:
    read = text_reader(ColumnType("int", sql="int"))
    with pytest.raises(ValueOutOfRangeError) as refused:
        read("9" * 500)
    assert refused.value.message == f"{'9' * 80!r}… is not a valid int."
