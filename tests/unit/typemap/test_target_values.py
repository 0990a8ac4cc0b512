"""From a change event's value to what a table target stores."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tidesink.errors import ValueOutOfRangeError
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.render_sql import Database, spelling_of
from tidesink.typemap.table import ZeroDate
from tidesink.typemap.values import is_calendar_date, target_reader

UTC = timezone.utc


def _stored(sql: str, value: Any, zero_date: ZeroDate = "null", zone: str = "UTC") -> object:
    return target_reader(parse_sql_type(sql), time_zone=ZoneInfo(zone), zero_date=zero_date)(value)


@pytest.mark.parametrize("text", ["0000-00-00", "2020-00-00", "2020-02-30", "2020-00-10", "0000-01-01"])
@pytest.mark.parametrize("sql", ["date", "datetime(3)", "timestamp"])
def test_dates_no_calendar_has_follow_the_policy(sql: str, text: str) -> None:
    value = text if sql == "date" else text + " 01:02:03"
    assert not is_calendar_date(value)
    assert _stored(sql, value) is None
    assert _stored(sql, value, "text") == value
    with pytest.raises(ValueOutOfRangeError, match="zero-date"):
        _stored(sql, value, "error")


def test_days_of_the_calendar_are_stored() -> None:
    assert _stored("date", "2024-02-29") == date(2024, 2, 29)
    assert _stored("datetime(3)", "2024-02-29 01:02:03.120") == datetime(2024, 2, 29, 1, 2, 3, 120000)
    assert _stored("datetime", "2024-02-29 01:02:03") == datetime(2024, 2, 29, 1, 2, 3)
    assert _stored("date", None) is None
    assert _stored("date", "2024-02-29", "text") == "2024-02-29"


def test_a_timestamp_is_read_in_the_configured_zone() -> None:
    stored = _stored("timestamp(6)", "2024-01-01 08:00:00.000001", zone="Asia/Shanghai")
    assert stored == datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    with pytest.raises(ValueOutOfRangeError):
        _stored("timestamp", "0001-01-01 00:00:00", zone="Asia/Shanghai")


@pytest.mark.parametrize(
    ("sql", "value", "stored"),
    [
        ("decimal(65,30)", Decimal("-0.000000000000000000000000000001"), "-0.000000000000000000000000000001"),
        ("decimal", Decimal("10"), "10"),
        ("decimal(5,2)", Decimal("1.50"), Decimal("1.50")),
        ("enum", 2, "2"),
        ("time(6)", "-838:59:59.000001", "-838:59:59.000001"),
        ("bigint unsigned", 2**64 - 1, 2**64 - 1),
        ("blob", b"\0", b"\0"),
    ],
)
def test_what_a_target_stores(sql: str, value: Any, stored: object) -> None:
    assert _stored(sql, value) == stored


@pytest.mark.parametrize(
    ("found", "database", "spelling"),
    [
        ("json", "mysql", "json"),
        ("json", "postgres", None),
        ("time(6)", "mysql", "digits"),
        ("numeric", "postgres", "digits"),
        ("numeric(65,30)", "postgres", "digits"),
        ("numeric(10,2)", "postgres", None),
        ("decimal(65,30)", "mysql", "digits"),
        ("decimal(38,30)", "mysql", None),
        ("longtext", "mysql", None),
        ("text", "postgres", None),
    ],
)
def test_how_a_database_spells_texts(found: str, database: Database, spelling: str | None) -> None:
    """Numbers that Spark has as numbers have no spelling."""
    assert spelling_of(found, database) == spelling
