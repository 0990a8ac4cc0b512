"""What each target is known to make of a table before the run: types, what it refuses, what it cannot do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from tests import memory_target
from tests.columns import ID
from tests.contracts.targets_bed import TABLE, shape
from tests.unit.config.samples import CANAL_JSON, changed, right
from tidesink.cli.plan import limits_of
from tidesink.cli.table_plans import TablePlan, plan_of
from tidesink.config import Config
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.targets import TARGETS
from tidesink.sinks.targets.base import Limit, LimitKind
from tidesink.sinks.targets.sql.columns import check_sql_shape
from tidesink.sinks.targets.sql.dialect import Dialect
from tidesink.sinks.targets.sql.mysql import mysql_dialect
from tidesink.sinks.targets.sql.postgres import postgres_dialect
from tidesink.sinks.worker.preflight import NO_NUL, change_limits, column_type, preflight_of, row_limits
from tidesink.typemap.target_schema import Shard, TargetSchema

TARGET: Final[dict[str, dict[str, Any]]] = {
    "delta": {"type": "delta", "path": "/lake"},
    "iceberg": {
        "type": "iceberg",
        "catalog": "lake",
        "catalog-properties": {"type": "rest", "uri": "http://c"},
    },
    "postgres": {"type": "postgres", "url": "postgresql://db/shop", "user": "tide"},
    "mysql": {"type": "mysql", "url": "mysql://db", "user": "tide"},
    "kafka": {"type": "kafka", "brokers": "k:9092", "protocol": "canal-json", "topic": "to_{schema}_{table}"},
    "http": {"type": "http", "url": "https://api.example.com/{schema}/{table}"},
}
DIALECTS: Final[dict[str, Dialect]] = {"postgres": postgres_dialect(), "mysql": mysql_dialect()}


def config_of(target: str, base: dict[str, Any] = CANAL_JSON, **more: Any) -> Config:
    """A pipeline to a target, with more settings of it where ``more`` names them."""
    return right({**changed(base, **more), "target": TARGET[target]})


def key(name: str, kind: str, **sizes: Any) -> Column:
    return Column(name, ColumnType(kind, **sizes), nullable=False, handle=True, primary_key=True)


def preflight(config: Config, table: TargetSchema) -> dict[str, tuple[str, ...]]:
    """The limits that a table may meet: their kinds and columns."""
    found = preflight_of(config, table, [column.name for column in table.columns]).limits
    return {limit.kind: limit.columns for limit in found}


ALL: Final = shape(
    ID,
    Column("name", ColumnType("varchar", length=20)),
    Column("big", ColumnType("bigint unsigned")),
    Column("wide", ColumnType("decimal", precision=65, scale=30)),
    Column("at", ColumnType("timestamp", fsp=3)),
    Column("raw", ColumnType("blob")),
    Column("kind", ColumnType("enum", members=("a", "b"))),
    Column("long", ColumnType("time")),
)


@pytest.mark.parametrize(
    ("target", "types"),
    [
        ("delta", "bigint|string|decimal(20,0)|string|timestamp|binary|string|string"),
        ("iceberg", "long|string|decimal(20,0)|string|timestamptz|binary|string|string"),
        ("postgres", "bigint|text|numeric(20,0)|numeric(65,30)|timestamp with time zone|bytea|text|text"),
        ("mysql", "bigint|longtext|bigint unsigned|decimal(65,30)|timestamp(6)|longblob|longtext|time(6)"),
        (
            "kafka",
            "bigint|varchar(20)|bigint unsigned|decimal(65,30)|timestamp(3)|blob|enum('a','b')|time",
        ),
        ("http", 'number|string|number|string|string|{"base64": string}|string|string'),
    ],
)
def test_types_are_in_the_targets_own_words(target: str, types: str) -> None:
    config = config_of(target)
    assert [column_type(config, column) for column in ALL.columns] == types.split("|")
    planned = plan_of(config, "app", ALL, types_from="ddl").columns
    assert [column.target_type for column in planned] == types.split("|")


@pytest.mark.parametrize(("target", "texts"), [("delta", 2), ("postgres", 1), ("mysql", 0), ("http", 2)])
def test_what_is_text_for_want_of_a_type_is_said_where_it_is(target: str, texts: int) -> None:
    """A decimal of 65 digits and a TIME, which not every target has to keep as text."""
    planned = plan_of(config_of(target), "app", ALL, types_from="ddl")
    assert sum("as text" in column.note for column in planned.columns) == texts
    assert len(planned.warnings) == (target not in DIALECTS)


@pytest.mark.parametrize(
    ("target", "kinds"),
    [
        ("delta", {"widen", "type", "key"}),
        ("iceberg", {"rescale", "type", "key"}),
        ("postgres", {"nul-in-text", "type", "key"}),
        ("mysql", {"type", "key"}),
        ("kafka", {"exactly-once", "keeps-rows", "type", "key"}),
        ("http", {"exactly-once", "keeps-rows", "type", "key"}),
    ],
)
def test_each_target_says_what_it_cannot_do(target: str, kinds: set[str]) -> None:
    found = preflight(config_of(target), ALL)
    assert found.keys() == kinds
    assert found.get("nul-in-text", ("name",)) == ("name",)
    assert found.get("rescale", ("id", "big")) == ("id", "big")


@pytest.mark.parametrize(
    ("target", "more", "properties", "said"),
    [
        ("delta", {"mode": "history"}, {}, None),
        ("iceberg", {"mode": "append"}, {}, None),
        ("iceberg", {"sequence_by": "source"}, {}, None),
        ("delta", {}, {"delta.enableDeletionVectors": "false"}, "delta.enableDeletionVectors: false"),
        ("delta", {}, {"delta.columnMapping.mode": "name", "delta.appendOnly": "FALSE"}, None),
        ("iceberg", {}, {"format-version": "1"}, "format-version: 1"),
        ("iceberg", {}, {"format-version": "3"}, None),
        ("iceberg", {}, {"format-version": "2", "write.merge.mode": "merge-on-read"}, None),
    ],
)
def test_lakes_say_which_batches_are_merged(
    target: str, more: dict[str, Any], properties: dict[str, str], said: str | None
) -> None:
    settings = {**TARGET[target], "table-properties": properties}
    base = changed(CANAL_JSON, source__enable_tidb_extension=True, defaults=more)
    config = right({**base, "target": settings})
    found = preflight_of(config, ALL, ["id"]).limits
    texts = [limit.text for limit in found if limit.kind == "merge"]
    assert len(texts) == (said is not None)
    assert all(said is not None and said in text for text in texts)


UNFIT_HISTORIES: Final = [
    ("delta", {"table-properties": {"delta.enableDeletionVectors": "false"}}, "enableDeletionVectors: false"),
    ("delta", {"path": "abfss://lake@shop.dfs.core.windows.net/x"}, "can open abfss://"),
    ("iceberg", {"table-properties": {"write.merge.mode": "copy-on-write"}}, "write.merge.mode: copy-on"),
    ("iceberg", {"table-properties": {"format-version": "1"}}, "format-version: 1"),
    (
        "iceberg",
        {"catalog-properties": {"type": "hadoop", "warehouse": "hdfs://name/lake"}},
        "can open hdfs://name/lake",
    ),
]


@pytest.mark.parametrize(("target", "settings", "says"), UNFIT_HISTORIES)
def test_a_history_that_files_cannot_hold_is_refused_before(
    target: str, settings: dict[str, Any], says: str
) -> None:
    base = changed(CANAL_JSON, source__enable_tidb_extension=True)
    lake = {**TARGET[target], **settings}
    rows = right({**base, "target": lake})
    assert preflight_of(rows, ALL, ["id"]).limits
    history = right({**base, "target": lake, "defaults": {"mode": "history"}})
    with pytest.raises(ConfigError, match=f"{says}.*another `mode`"):
        preflight_of(history, ALL, ["id"])
    assert says in (plan_of(history, "app", ALL, types_from="ddl").problem or "")


@pytest.mark.parametrize("target", ["delta", "iceberg"])
def test_a_history_with_a_float_in_its_key_is_refused_before(target: str) -> None:
    base = changed(CANAL_JSON, source__enable_tidb_extension=True)
    config = right({**base, "target": TARGET[target], "defaults": {"mode": "history"}})
    by_float = shape(key("at", "double"), Column("name", ColumnType("varchar", length=20)))
    with pytest.raises(SchemaRefusedError, match="the key column at is double"):
        preflight_of(config, by_float, ["at"])


def test_a_float_in_a_key_is_merged() -> None:
    by_float = shape(key("at", "double"), Column("name", ColumnType("varchar", length=20)))
    assert preflight(config_of("delta"), by_float)["merge"] == ("at",)


def test_names_that_few_readers_know_are_said_before() -> None:
    odd = shape(ID, Column("a b", ColumnType("varchar", length=20)))
    assert preflight(config_of("delta"), odd)["readers"] == ("a b",)
    assert "readers" not in preflight(config_of("iceberg"), odd)


def test_every_target_is_asked() -> None:
    assert TARGET.keys() == TARGETS.keys()


def test_what_the_policies_do_not_ask_for_is_not_said() -> None:
    numbers = shape(ID, Column("price", ColumnType("decimal", precision=9, scale=2)))
    paused = config_of("iceberg", defaults={"schema-changes": {"widen": "pause"}})
    assert "rescale" in preflight(config_of("iceberg"), numbers)
    assert "rescale" not in preflight(paused, numbers)
    paused = config_of("delta", defaults={"schema-changes": {"widen": "pause"}})
    assert "widen" in preflight(config_of("delta"), numbers)
    assert "widen" not in preflight(paused, numbers)


ASKED: Final = {"schema-changes": {"drop": "apply", "rename": "apply"}}


@pytest.mark.parametrize(
    ("target", "kinds"),
    [("postgres", {"drop"}), ("mysql", {"drop", "rename"}), ("delta", {"drop", "rename"})],
)
def test_drops_and_renames_that_are_asked_for_may_need_something(target: str, kinds: set[str]) -> None:
    every = {"drop", "rename", "shared"}
    reported = config_of(target, defaults=ASKED)
    assert every & preflight(reported, shape()).keys() == kinds
    assert every & preflight(config_of(target), shape()).keys() == set()
    shared = replace(shape(), shard=Shard("of", "1"))
    assert every & preflight(reported, shared).keys() == {"shared"}
    logged = config_of(target, tables=[{"name": "shop.orders", "mode": "append"}], defaults=ASKED)
    assert (every | {"key"}) & preflight(logged, shape()).keys() == set()


def test_what_a_target_of_other_capabilities_would_say() -> None:
    able = replace(memory_target.CAPABILITIES, rescales=False, nul_in_text=False)
    settings = config_of("delta").table_config(TABLE)
    changes = [limit.kind for limit in change_limits(able, shape(), settings, reported=True)]
    assert changes == ["rescale", "type", "key"]
    assert Limit("nul-in-text", NO_NUL, ("name",)) in row_limits(able, shape(), ["id", "name"])
    assert "nul-in-text" not in {limit.kind for limit in row_limits(able, shape(), ["id"])}


def planned(target: str, table: TargetSchema, base: dict[str, Any] = CANAL_JSON, **more: Any) -> TablePlan:
    return plan_of(config_of(target, base, **more), "app", table, types_from="ddl")


@pytest.mark.parametrize(
    ("target", "named", "refused"),
    [
        ("postgres", "ä" * 31, False),
        ("postgres", "ä" * 32, True),
        ("mysql", "ä" * 64, False),
        ("mysql", "ä" * 65, True),
        ("mysql", "a ", True),
        ("delta", "ä" * 65, False),
        ("delta", "_metadata", True),
        ("iceberg", "_metadata", False),
        ("iceberg", "_file", True),
        ("delta", "_file", False),
    ],
)
def test_a_column_whose_name_the_target_has_not_is_a_problem(target: str, named: str, refused: bool) -> None:
    found = planned(target, shape(ID, Column(named, ColumnType("int"))))
    assert (named in (found.problem or "")) is refused
    assert len(found.columns) == 2
    # What may come later is not said of a table that there can never be.
    assert (found.limits == ()) is refused


@pytest.mark.parametrize("target", TARGET)
def test_a_column_with_a_name_of_our_own_is_a_problem(target: str) -> None:
    found = planned(target, shape(ID, Column("_TIDESINK_DELETED", ColumnType("int"))))
    assert "a column of tidesink's own. Rename it" in (found.problem or "")


@pytest.mark.parametrize("target", DIALECTS)
def test_a_table_whose_name_is_too_long_is_a_problem_of_it_alone(target: str) -> None:
    long = TableId("shop", "t" * 65)
    found = planned(target, shape(table=long), defaults={"deletes": "soft"})
    assert "t" * 65 in (found.problem or "")
    assert "routes" in (found.problem or "")
    assert (found.path, found.read_as) == ("", "")
    routes = [{"match": rf"shop\.{long.name}", "to": "shop.short"}]
    routed = planned(target, shape(table=long), routes=routes)
    assert (routed.problem, routed.path.rpartition(" ")[2]) == (None, "shop.short")


@pytest.mark.parametrize("target", DIALECTS)
def test_the_name_of_a_view_may_be_too_long(target: str) -> None:
    table = shape(table=TableId("shop", "t" * 60))
    base = {**TARGET[target], "view": "{table}_live"}
    assert planned(target, table).problem is None
    for mode, refused in (("upsert", True), ("append", False)):
        config = right(
            {
                **changed(CANAL_JSON, source__enable_tidb_extension=True, defaults={"mode": mode}),
                "target": base,
            }
        )
        found = plan_of(config, "app", table, types_from="ddl")
        assert ("_live" in (found.problem or "")) is refused


def of_columns(number: int, kind: str = "int") -> TargetSchema:
    return shape(ID, *(Column(f"c{at}", ColumnType(kind)) for at in range(number - 1)))


@pytest.mark.parametrize("target", DIALECTS)
def test_a_table_of_too_many_columns_is_refused_by_target_and_plan(target: str) -> None:
    dialect = DIALECTS[target]
    room = dialect.limits.room
    check_sql_shape(of_columns(room), dialect.limits, dialect.quote)
    with pytest.raises(SchemaRefusedError, match="but at most") as refused:
        check_sql_shape(of_columns(room + 1), dialect.limits, dialect.quote)
    assert planned(target, of_columns(room + 1)).problem == refused.value.message
    assert planned(target, of_columns(room)).problem is None
    assert "row-length" in preflight(config_of(target), of_columns(room, "text"))
    assert "row-length" not in preflight(config_of(target), of_columns(room))


REFUSED: Final = [
    ("postgres", shape(ID, Column("ä" * 32, ColumnType("int"))), "ä" * 32),
    ("mysql", of_columns(1100), "but at most"),
    ("delta", shape(ID, Column("_metadata", ColumnType("int"))), "_metadata"),
    (
        "delta",
        shape(ID, *(Column(name, ColumnType("int")) for name in ("ασ", "ας"))),
        "ασ and ας have the same upper case",
    ),
    (
        "iceberg",
        shape(ID, *(Column(name, ColumnType("int")) for name in ("ı", "I"))),
        "ı and I have the same upper case",
    ),
]


@pytest.mark.parametrize("add", ["ignore", "pause"])
@pytest.mark.parametrize(("target", "table", "said"), REFUSED)
def test_columns_that_may_never_be_taken_are_a_warning(
    target: str, table: TargetSchema, said: str, add: str
) -> None:
    """The table may be there without them, and goes on."""
    found = planned(target, table, defaults={"schema-changes": {"add": add}})
    assert (found.problem, len(found.columns)) == (None, len(table.columns))
    (warning,) = found.warnings
    assert said in warning
    assert f"schema-changes: add: {add}" in warning


@pytest.mark.parametrize("settings", [{"columns": ["id", "ä" * 32]}, {"keys": ["ä" * 32]}])
def test_columns_that_a_table_cannot_be_without_are_a_problem(settings: dict[str, Any]) -> None:
    defaults = {"schema-changes": {"add": "ignore"}}
    name = "ä" * 32
    table = shape(ID, Column(name, ColumnType("int"))) if "columns" in settings else shape(key(name, "int"))
    tables = [{"name": "shop.orders", **settings}]
    assert name in (planned("postgres", table, defaults=defaults, tables=tables).problem or "")


def test_a_mysql_key_whose_length_nothing_tells_is_made_with_the_configs() -> None:
    found = planned("mysql", shape(key("code", "text")))
    assert [column.target_type for column in found.columns] == ["varchar(255)"]
    (warning,) = found.warnings
    assert (
        "it gets the type varchar(255) in a new table (`target.key-length`). A longer value stops" in warning
    )
    assert planned("mysql", shape(key("code", "varchar", length=9))).warnings == ()
    assert planned("postgres", shape(key("code", "text"))).warnings == ()
    longer = right({**CANAL_JSON, "target": {**TARGET["mysql"], "key-length": 700}})
    assert column_type(longer, shape(key("code", "blob")).columns[0]) == "varbinary(700)"


def test_a_mysql_key_that_gets_no_length_is_a_warning_since_the_table_may_be_there() -> None:
    found = planned("mysql", shape(key("code", "decimal")))
    assert found.problem is None
    assert [column.target_type for column in found.columns] == ["varchar(n)"]
    (warning,) = found.warnings
    assert "Create the table at the target with its primary key" in warning


@pytest.mark.parametrize(
    ("target", "keys", "long"),
    [
        ("mysql", (key("a", "varchar", length=768),), False),
        ("mysql", (key("a", "varchar", length=769),), True),
        ("mysql", (key("a", "varchar", length=600), key("b", "varbinary", length=673)), True),
        ("mysql", (*(key(name, "text") for name in "abc"), key("n", "bigint")), False),
        ("mysql", tuple(key(name, "text") for name in "abcd"), True),
        ("postgres", (key("a", "varchar", length=676),), False),
        ("postgres", (key("a", "varchar", length=600), key("b", "bigint"), key("c", "json")), False),
        ("postgres", (key("a", "varchar", length=700),), True),
        ("delta", (key("a", "varchar", length=3000),), False),
    ],
)
def test_keys_that_may_be_too_long(target: str, keys: tuple[Column, ...], long: bool) -> None:
    found = preflight(config_of(target), shape(*keys))
    assert found.get("key-length") == (tuple(column.name for column in keys) if long else None)


DEBEZIUM: Final = changed(CANAL_JSON, source__protocol="debezium-json", source__topics=["app.shop.orders"])


@pytest.mark.parametrize(
    ("protocol", "kinds"), [("canal-json", {"truncate", "left-out-values"}), ("debezium-json", {"truncate"})]
)
def test_what_kafka_has_no_message_for(protocol: str, kinds: set[str]) -> None:
    every = {"truncate", "left-out-values"}
    target = {**TARGET["kafka"], "protocol": protocol}
    assert every & preflight(right({**DEBEZIUM, "target": target}), shape()).keys() == kinds
    # TiCDC tells of no truncate, and its rows are whole.
    reported = changed(CANAL_JSON, source__enable_tidb_extension=True)
    assert every & preflight(right({**reported, "target": target}), shape()).keys() == set()


@pytest.mark.parametrize("target", ["delta", "iceberg"])
@pytest.mark.parametrize("sequence", ["source", "kafka"])
def test_a_lake_merges_omitted_values_in_the_order_of_the_source(target: str, sequence: str) -> None:
    config = right({**DEBEZIUM, "defaults": {"sequence_by": sequence}, "target": TARGET[target]})
    texts = [limit.text for limit in preflight_of(config, ALL, ["id"]).limits if limit.kind == "merge"]
    assert len(texts) == (sequence == "source")
    assert all("in which the source omitted values" in text for text in texts)


def test_what_kafka_would_refuse_at_the_first_row_is_a_problem() -> None:
    avro = {**TARGET["kafka"], "protocol": "flat-avro", "schema-registry": "http://r"}
    decimal = shape(ID, Column("d", ColumnType("decimal")))
    unknown = plan_of(right({**CANAL_JSON, "target": avro}), "app", decimal, types_from="rows")
    assert "The precision of this decimal is unknown" in (unknown.problem or "")
    same = {**TARGET["kafka"], "brokers": "a:1", "topic": "{schema}_{table}"}
    reading = changed(CANAL_JSON, source__topics=["shop_orders"])
    found = plan_of(right({**reading, "target": same}), "shop_orders", shape(), types_from="rows")
    assert "the topic shop_orders, which it also reads" in (found.problem or "")


def test_every_kind_of_limit_is_on_the_page() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [kind for kind in get_args(LimitKind) if f"`{kind}`" not in page.partition("## run and")[0]] == []


def test_a_limit_is_said_once_with_the_tables_that_may_meet_it() -> None:
    one, two = Limit("rescale", "cannot one", ("a",)), Limit("key", "cannot two")
    plans = [
        TablePlan(TableId("shop", f"t{at}"), "app", limits=(one, two) if at < 5 else (two,))
        for at in range(6)
    ]
    refused = TablePlan(TableId("shop", "gone"), "app", problem="no such table")
    assert list(limits_of([*plans, refused])) == [
        ("cannot one", "shop.t0, shop.t1, shop.t2 and 2 more"),
        ("cannot two", "every table"),
    ]
    assert plans[0].as_json()["limits"][0] == {"kind": "rescale", "text": "cannot one", "columns": ("a",)}
