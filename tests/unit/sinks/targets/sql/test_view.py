"""Which rows the view of a SQL table's living rows shows."""

from __future__ import annotations

import pytest

from tests.contracts.targets_bed import shape
from tidesink.events import TableId
from tidesink.sinks.laws.modes import OP, HistoryNames, history_shape, log_shape
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN
from tidesink.sinks.targets.sql.location import place_in
from tidesink.sinks.targets.sql.mysql import mysql_dialect
from tidesink.sinks.targets.sql.view import SqlView, living_query
from tidesink.typemap.target_schema import TargetSchema

SHAPE = shape()
DIALECT = mysql_dialect()
PLACE = place_in("{schema}.{table}", TableId("shop", "orders"), DIALECT.quote)


def present(of: TargetSchema, *more: str) -> dict[str, str]:
    return dict.fromkeys((*(column.name for column in of.columns), *more), "bigint")


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        (present(SHAPE), ""),
        (present(SHAPE, SEQUENCE_COLUMN, SOFT_DELETE_COLUMN), " WHERE `_tidesink_deleted` IS NOT TRUE"),
        (present(history_shape(SHAPE, HistoryNames())), " WHERE `_tidesink_to_ts` IS NULL"),
    ],
    ids=["plain", "marked", "history"],
)
def test_a_view_shows_what_lives_without_our_columns(columns: dict[str, str], where: str) -> None:
    query = living_query(PLACE, columns, "it")
    named, _, rest = query.partition(" FROM ")
    assert "_tidesink" not in named
    assert "`amount`" in named
    assert rest == f"`shop`.`orders` AS `it`{where}"


def test_a_log_of_changes_has_no_view() -> None:
    log = present(log_shape(SHAPE))
    assert OP in log
    assert SqlView(DIALECT, PLACE, "orders_live").statements(None, log) == []
