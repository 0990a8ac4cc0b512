"""What a table's sections come to together is held to what one section is held to."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.unit.config.samples import CANAL_JSON, changed, right, wrong
from tests.unit.sinks.worker.bed import worker_context
from tidesink.cli.table_plans import plan_of
from tidesink.config import TableConfig
from tidesink.errors import ConfigError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.open import open_decoding
from tidesink.sinks.worker.open_table import decoding_parts
from tidesink.typemap.target_schema import shape_of

DATED = changed(CANAL_JSON, source__enable_tidb_extension=True)
ORDERS = TableId("shop", "orders")
NAMED = {"name": "shop.orders"}
ALL = {"match": "shop.*"}
LOG = {"mode": "append"}
HISTORY = {"mode": "history"}
BY_SOURCE = {"sequence_by": "source"}
NULLS = {"ignore_null_updates": True}


def _config(defaults: dict[str, Any], *tables: dict[str, Any]) -> dict[str, Any]:
    return changed(DATED, defaults=defaults, tables=list(tables))


@pytest.mark.parametrize(
    ("data", "setting", "reason"),
    [
        (_config({}, {**ALL, "filter": "a <> 1"}, {**NAMED, **LOG}), "filter", "stores changes as they are"),
        (_config({"filter": "a <> 1"}, {**NAMED, **LOG}), "filter", "stores changes as they are"),
        (_config({}, {**ALL, **LOG}, {**NAMED, **NULLS}), "ignore_null_updates", "stores each row unchanged"),
        (_config({}, {**ALL, **BY_SOURCE}, {**NAMED, **NULLS}), "ignore_null_updates", "may arrive late"),
        (_config({}, {**ALL, **LOG}, {**NAMED, **BY_SOURCE}), "sequence_by", "mode append"),
        (_config({}, {**ALL, **LOG}, {**NAMED, "deletes": "soft"}), "deletes", "mode append"),
        (_config({}, {**ALL, **HISTORY}, {**NAMED, "deletes": "soft"}), "deletes", "ends a version"),
        (_config(HISTORY, {**NAMED, "deletes": "soft"}), "deletes", "ends a version"),
    ],
)
def test_a_named_table_is_checked_with_all_of_its_sections(
    data: dict[str, Any], setting: str, reason: str
) -> None:
    number = len(data["tables"]) - 1
    assert reason in wrong(data)[f"tables[{number}].{setting}"].reason


@pytest.mark.parametrize(
    ("defaults", "said", "expected"),
    [
        (NULLS, LOG, ("append", "kafka", "hard", False)),
        (NULLS, HISTORY, ("history", "kafka", "hard", False)),
        (NULLS, BY_SOURCE, ("upsert", "source", "hard", False)),
        (NULLS, {}, ("upsert", "kafka", "hard", True)),
        ({"deletes": "soft"}, HISTORY, ("history", "kafka", "hard", False)),
        ({"mode": "soft-delete"}, HISTORY, ("history", "kafka", "hard", False)),
        ({"deletes": "soft", **BY_SOURCE}, LOG, ("append", "kafka", "hard", False)),
    ],
)
def test_what_a_table_inherits_and_has_no_use_for_falls_away(
    defaults: dict[str, Any], said: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    inherited = (_config(defaults, {**NAMED, **said}), _config({}, {**ALL, **defaults}, {**NAMED, **said}))
    for data in inherited:
        found = right(data).table_config(ORDERS)
        assert (found.mode, found.sequence_by, found.deletes, found.ignore_null_updates) == expected


def test_what_is_said_nearer_comes_before_what_is_refused() -> None:
    config = right(_config({"filter": "a <> 1", "metadata": ["batch"]}, {**NAMED, **LOG, **TAKEN_BACK}))
    assert config.table_config(ORDERS).projection.plain
    nearer = ({**ALL, **BY_SOURCE}, {**NAMED, "sequence_by": "kafka", **NULLS})
    assert right(_config({}, *nearer)).table_config(ORDERS).ignore_null_updates


@pytest.mark.parametrize(
    ("asked", "beside"),
    [
        (["op", "commit_ts", "partition", "offset"], {}),
        (["op", "batch"], {"batch": "_tidesink_batch"}),
        ({"op": "_TIDESINK_OP", "offset": "at"}, {"offset": "at"}),
        ({"op": "_op", "topic": "t"}, {"op": "_op", "topic": "t"}),
    ],
)
def test_metadata_of_all_tables_holds_for_a_log_which_has_some_of_it_by_itself(
    asked: Any, beside: dict[str, str]
) -> None:
    config = right(_config({"metadata": asked}, {**NAMED, **LOG}))
    assert config.table_config(ORDERS).projection.metadata == beside
    assert len(config.table_config(TableId("shop", "other")).projection.metadata) == len(asked)


TAKEN_BACK = {"filter": "true", "metadata": {}}
ONLY_PATTERNS = _config({}, {"match": "shop.ord*", "filter": "a <> 1"}, {**ALL, **LOG})


def test_a_table_that_only_the_run_knows_is_refused_where_its_decoding_opens() -> None:
    around = worker_context(right(ONLY_PATTERNS), store=cast("Any", None))
    with pytest.raises(ConfigError, match=r"filter of shop\.orders: mode append stores changes") as caught:
        open_decoding(decoding_parts(around), "app", ORDERS)
    assert caught.value.context == {"table": "shop.orders"}


def test_its_plan_says_so() -> None:
    config = right(ONLY_PATTERNS)
    settings: TableConfig = config.table_config(ORDERS)
    schema = TableSchema(ORDERS, (Column("a", ColumnType("int")),))
    plan = plan_of(
        config, "app", shape_of(schema, keys=("a",), zero_date=settings.zero_date), types_from="ddl"
    )
    assert plan.problem is not None
    assert "mode append stores changes as they are" in plan.problem
