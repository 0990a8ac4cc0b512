"""What ``plan`` says of a table in mode ``append``."""

from __future__ import annotations

import pytest

from tests.contracts.targets_bed import shape
from tests.unit.codecs.flat_avro.cases import change, codec_with
from tests.unit.config.samples import FLAT_AVRO, changed, right
from tidesink.cli.table_plans import flat_avro_warnings
from tidesink.codecs.flat_avro.schema import parse_record
from tidesink.config import TableConfig
from tidesink.events import TableId
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.laws.modes import HistoryNames, history_shape, kept_shape, log_shape


def settings(mode: str) -> TableConfig:
    config = changed(FLAT_AVRO, defaults__mode=mode, source__enable_tidb_extension=True)
    return right(config).table_config(TableId("shop", "orders"))


def test_the_columns_of_a_log_are_planned() -> None:
    assert kept_shape(shape(), settings("append")) == log_shape(shape())
    assert kept_shape(shape(), settings("upsert")) == shape()


def test_the_columns_of_a_history_are_planned() -> None:
    assert kept_shape(shape(), settings("history")) == history_shape(shape(), HistoryNames())


@pytest.mark.parametrize(
    ("options", "keys", "told"),
    [
        ({}, ("id",), ["avro-include-before-value=true", "enable-tidb-extension=true"]),
        ({"enable_tidb_extension": True}, ("id",), ["avro-include-before-value=true"]),
        ({"enable_tidb_extension": True}, (), ["avro-include-before-value=true", "has no key"]),
        ({"enable_tidb_extension": True, "producer": "new", "avro_include_before_value": True}, (), []),
    ],
)
def test_what_flat_avro_keeps_from_a_log_is_said(
    options: dict[str, object], keys: tuple[str, ...], told: list[str]
) -> None:
    registry = MemorySchemaRegistry()
    codec_with(registry, **options).encode(change(), topic="shop_orders")
    records = [parse_record(registry.schema_by_version("shop_orders-value", 1).schema_text)]
    found = list(flat_avro_warnings(records, keys, settings("append")))
    assert [part in line for part, line in zip(told, found, strict=True)] == [True] * len(told)
    assert not list(flat_avro_warnings(records, keys, settings("upsert")))


@pytest.mark.parametrize(("before", "told"), [(False, ["have no commit_ts"]), (True, [])])
def test_a_history_is_told_that_deletes_may_have_no_moment(before: bool, told: list[str]) -> None:
    registry = MemorySchemaRegistry()
    options = {"enable_tidb_extension": True, "producer": "new", "avro_include_before_value": before}
    codec_with(registry, **options).encode(change(), topic="shop_orders")
    records = [parse_record(registry.schema_by_version("shop_orders-value", 1).schema_text)]
    found = list(flat_avro_warnings(records, ("id",), settings("history")))
    assert [part in line for part, line in zip(told, found, strict=True)] == [True] * len(told)
