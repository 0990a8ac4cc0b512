"""Tables which the config names and no topic serves."""

from __future__ import annotations

from typing import Any

from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO
from tidesink.cli.table_plans import TablePlan, unserved_tables
from tidesink.config import Config
from tidesink.config.models import idle_patterns
from tidesink.events import TableId

TABLES = [{"name": "shop.orders"}, {"name": "shop.ordrs", "deletes": "soft"}, {"match": "audit.*"}]
PLANS = [TablePlan(TableId("Shop", "Orders"), "shop_orders"), TablePlan(None, "shop_x")]


def _warnings(sample: dict[str, Any], **source: Any) -> list[str]:
    document = {**sample, "source": {**sample["source"], **source}, "tables": TABLES}
    return list(unserved_tables(Config.model_validate(document), PLANS))


def test_a_misspelt_table_is_told_of_and_a_pattern_that_fits_none() -> None:
    pattern, warning = _warnings(FLAT_AVRO, topics="{schema}_{table}")
    assert warning.startswith("The config names shop.ordrs under tables, but no topic has it")
    assert pattern.startswith("tables[2].match: 'audit.*' matches none of the found tables")
    assert "(Shop.Orders)" in pattern


def test_patterns_of_tables_and_routes_that_fit_some_table_are_not_told_of() -> None:
    routes = [{"match": "other[.](.*)", "to": "all.$1"}, {"match": "shop[.](.*)", "to": "all.$1"}]
    tables = [{"match": "SHOP.*"}, {"match": "s?op.orders"}]
    config = Config.model_validate({**FLAT_AVRO, "tables": tables, "routes": routes})
    (reported,) = idle_patterns(config, [TableId("Shop", "Orders"), TableId("shop", "b")])
    assert reported.startswith("routes[0].match: 'other[.](.*)' matches none of the found tables")
    # Nothing was found yet: nothing is known of the patterns.
    assert list(idle_patterns(config, [])) == []


def test_a_topic_of_many_tables_may_hold_it_further_on() -> None:
    _, warning = _warnings(CANAL_JSON, topics=["shop_orders"])
    assert "shop.ordrs under tables, but none of the sampled records of shop_orders belongs to it" in warning
