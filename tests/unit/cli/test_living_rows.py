"""The query that a plan gives of a table whose deleted rows stay in it, marked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.config.samples import CANAL_JSON, changed, right
from tidesink.cli.table_plans import live_rows_query
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.typemap.target_schema import shape_of

SHAPE = shape_of(
    TableSchema(
        TableId("shop", "or`der"),
        (
            Column("id", ColumnType("bigint"), nullable=False, handle=True, primary_key=True),
            Column('na"me', ColumnType("varchar", length=9)),
        ),
    )
)
POSTGRES = {"type": "postgres", "url": "postgresql://db/shop", "user": "tide"}
MYSQL = {"type": "mysql", "url": "mysql://db", "user": "tide"}
ICEBERG = {"type": "iceberg", "catalog": "lake", "catalog-properties": {"type": "rest", "uri": "http://c"}}


@pytest.mark.parametrize(
    ("target", "query"),
    [
        (
            {"type": "delta", "path": "/lake"},
            'SELECT `id`, `na"me` FROM delta.`/lake/shop/or~60der` WHERE `_tidesink_deleted` IS NOT TRUE',
        ),
        (
            {"type": "delta", "path": "/lake", "catalog-table": "shop_{schema}.{table}"},
            'SELECT `id`, `na"me` FROM `shop_shop`.`or~60der` WHERE `_tidesink_deleted` IS NOT TRUE',
        ),
        (
            ICEBERG,
            'SELECT `id`, `na"me` FROM `lake`.`shop`.`or~60der` WHERE `_tidesink_deleted` IS NOT TRUE',
        ),
        (
            POSTGRES,
            'SELECT "id", "na""me" FROM "shop"."or`der" WHERE "_tidesink_deleted" IS NOT TRUE',
        ),
        (
            MYSQL,
            'SELECT `id`, `na"me` FROM `shop`.`or``der` WHERE `_tidesink_deleted` IS NOT TRUE',
        ),
        (
            {**POSTGRES, "table": "lake.{schema}_{table}", "view": "{table}_live"},
            'SELECT * FROM "lake"."shop_or`der_live"',
        ),
    ],
    ids=["delta", "catalog", "iceberg", "postgres", "mysql", "view"],
)
def test_each_target_says_how_its_live_rows_query_are_read(target: dict[str, Any], query: str) -> None:
    base = changed(CANAL_JSON, target=target, source__enable_tidb_extension=True)
    for marked in ({"defaults__sequence_by": "source"}, {"defaults__deletes": "soft"}):
        assert live_rows_query(right(changed(base, **marked)), SHAPE) == query
    assert live_rows_query(right(base), SHAPE) == ""


def test_a_history_has_no_marks() -> None:
    target = {"type": "delta", "path": "/lake"}
    base = changed(CANAL_JSON, target=target, source__enable_tidb_extension=True, defaults__mode="history")
    assert live_rows_query(right(base), SHAPE) == ""
    assert live_rows_query(right(changed(base, defaults__sequence_by="source")), SHAPE) == ""
