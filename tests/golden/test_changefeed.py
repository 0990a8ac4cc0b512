"""Every changefeed of the vectors: its options as TiCDC resolves them, its rows routed to the same place."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.golden.changefeeds import Json, definitions_of, event_of, lines, table_of
from tests.vectors import SUBSET, vectors_dir
from tidesink.codecs.dispatch import Dispatcher, Route, Router, TableFilter
from tidesink.config.changefeed import read_changefeed, read_toml
from tidesink.ddl.catalog import parse_create_table
from tidesink.errors import ConfigError, EncodeError
from tidesink.events import ChangeEvent, Op, Position, TableId

_FILES = {"config_line": "config.jsonl", "route_line": "route.jsonl"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument, file in _FILES.items():
        if argument in metafunc.fixturenames:
            found = lines(vectors_dir(metafunc.config), file)
            assert found, f"the vectors hold no {file}"
            metafunc.parametrize(argument, [raw for _, raw in found], ids=[name for name, _ in found])


def test_a_changefeeds_options_are_those_that_ticdc_resolves(config_line: Json) -> None:
    """A changefeed that TiCDC refuses does not exist: what is read of it, or how it is refused, is open."""
    settings = read_toml(config_line.get("changefeed_toml", ""))
    if "resolved" not in config_line:
        with suppress(ConfigError):
            read_changefeed(config_line["sink_uri"], settings)
        return
    found = read_changefeed(config_line["sink_uri"], settings)
    resolved = config_line["resolved"]
    assert (found.protocol, found.router.default_topic) == (resolved["protocol"], resolved["topic"])
    assert found.brokers.split(",") == resolved["brokers"]
    assert dict(found.options) == {name: resolved[name] for name in found.options}


def test_a_row_goes_where_ticdc_sends_it(route_line: Json) -> None:
    if "error" in route_line:
        with pytest.raises(ConfigError):
            _route(route_line)
        return
    route = _route(route_line)
    assert (route.topic, route.key) == (route_line["topic"], route_line["partition_key"])
    partitions = {count: route.partition(int(count)) for count in route_line["partition_by_count"]}
    assert partitions == route_line["partition_by_count"]


def _route(route_line: Json) -> Route:
    feed = read_changefeed(
        f"kafka://k:9092/{route_line['default_topic']}?protocol={route_line['protocol']}"
        "&schema-registry=http://127.0.0.1:8081",
        read_toml(route_line["changefeed_toml"]),
    )
    definitions = definitions_of(route_line)
    index = feed.router.dispatcher_of(table_of(route_line)).index
    event = event_of(route_line, definitions)
    return feed.router.route(event, index=definitions.unique_index(event.table, index))


def test_the_clone_has_lines_of_its_own() -> None:
    assert len(lines(SUBSET, "config.jsonl")) > 30
    assert len(lines(SUBSET, "route.jsonl")) > 20


TABLE = parse_create_table("create table s.t(id int primary key, a varchar(9), e enum('x','y'))")


def routed(dispatcher: Dispatcher, row: dict[str, Any], **more: Any) -> int:
    event = ChangeEvent(Op.INSERT, TABLE.table, None, None, row, 9, Position("t", 0, 0), TABLE)
    return Router("d", (dispatcher,), **more).route(event).hash


def test_the_new_architecture_leaves_null_columns_out_of_the_hash() -> None:
    by_a = Dispatcher(TableFilter.parse(["*.*"]), partition="columns", columns=("a",))
    row = {"id": 1, "a": None, "e": None}
    by_table = routed(Dispatcher(TableFilter.parse(["*.*"])), row)
    assert routed(by_a, row, producer="new") == by_table
    assert routed(by_a, row) == routed(by_a, {**row, "a": "null"}) != by_table
    assert routed(by_a, {**row, "a": "v"}) == routed(by_a, {**row, "a": "v"}, producer="new")


def test_an_enum_is_hashed_by_its_number() -> None:
    by_e = Dispatcher(TableFilter.parse(["*.*"]), partition="columns", columns=("E",))
    assert routed(by_e, {"id": 1, "e": "y"}) == routed(by_e, {"id": 1, "e": 2})


@pytest.mark.parametrize(
    ("dispatcher", "row", "error", "says"),
    [
        ({"partition": "columns", "columns": ("gone",)}, {"id": 1}, ConfigError, "names gone"),
        ({"partition": "index-value", "index": "u"}, {"id": 1}, ConfigError, "names the index u"),
        ({"partition": "columns", "columns": ("a",)}, {"id": 1}, EncodeError, "has no column a"),
    ],
)
def test_a_dispatcher_that_does_not_fit_the_table_is_told(
    dispatcher: dict[str, Any], row: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        routed(Dispatcher(TableFilter.parse(["*.*"]), **dispatcher), row)


@pytest.mark.parametrize(
    ("dispatcher", "key", "scatters"),
    [
        ({"partition": "ts"}, ("id",), True),
        ({"partition": "table"}, None, False),
        ({"partition": "index-value"}, None, False),
        ({"partition": "index-value", "index": "u"}, ("id",), True),
        ({"partition": "columns", "columns": ("a",)}, ("id",), True),
        ({"partition": "columns", "columns": ("ID",)}, ("id", "n"), False),
        ({"partition": "columns", "columns": ("ID",)}, None, True),
    ],
)
def test_which_dispatchers_scatter_a_key(
    dispatcher: dict[str, Any], key: tuple[str, ...] | None, scatters: bool
) -> None:
    found = Dispatcher(TableFilter.parse(["*.*"]), **dispatcher).scatters(key)
    assert (found is not None) is scatters


@pytest.mark.parametrize(
    ("patterns", "fits", "others"),
    [
        (["shop.*"], ["shop.a", "SHOP.b"], ["shop2.a"]),
        (["*.*", "!shop.*", "shop.kept"], ["a.b", "shop.kept"], ["shop.other"]),
        (["s[a-c]?.t"], ["sax.t"], ["sdx.t", "sa.t"]),
        (["s[!a-c].t"], ["sd.t"], ["sa.t"]),
        (["`a.b`.`c``d`"], ["a.b/c`d"], ["a.c"]),
        (['"a""b".t'], ['a"b.t'], []),
        (["/^a\\d+$/./t/"], ["a12.xty"], ["a.t"]),
        (["a\\$b.t", "# a comment", " "], ["a$b.t"], ["ab.t"]),
        (["s[^x].t"], ["s^.t", "sx.t"], ["sa.t"]),
        (["ας.T"], ["ας.t"], ["ΑΣ.t", "ασ.t"]),
        (["ΑΣ.İ?"], ["ασ.i1", "ΑΣ.İ1"], ["ας.i1"]),
        ([], [], ["a.b"]),
    ],
)
def test_patterns_mean_what_tidb_reads_in_them(
    patterns: list[str], fits: list[str], others: list[str]
) -> None:
    found = TableFilter.parse(patterns)
    assert [text for text in (*fits, *others) if found.matches(_table(text))] == fits


def _table(text: str) -> TableId:
    schema, _, name = text.rpartition("/" if "/" in text else ".")
    return TableId(schema, name)


@pytest.mark.parametrize(
    "pattern", ["a", "a.", ".a", "a.b.c", "a b.c", "[.x", "/a", "`a.b", "\\a.b", "a.b\\", "/(/.a", "@f"]
)
def test_a_pattern_that_tidb_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="Matcher"):
        TableFilter.parse([pattern])
