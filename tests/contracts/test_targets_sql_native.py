"""Tables that people made with native types: each value comes back as it was, or is refused by name."""

from __future__ import annotations

import re
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import execute, target_of
from tests.contracts.targets_bed import Bed, progress, shape
from tests.contracts.test_targets_sql_hand_made import make
from tidesink.errors import SchemaRefusedError, TargetError
from tidesink.events import Column, ColumnType
from tidesink.sinks.targets.sql.target import SqlTarget

pytestmark = [pytest.mark.spark, pytest.mark.servers]


class Native(NamedTuple):
    """A column of a native type, a source's type with a value that it keeps, and one that it would not."""

    found: str
    type: ColumnType
    value: Any
    bad: Any = None


TEXT: Final = ColumnType("text")
UUID: Final = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
AT: Final = datetime(2024, 2, 29, 12, 34, 56, 500000)
INSTANT: Final = AT.replace(tzinfo=timezone.utc)
DECIMAL: Final = ColumnType("decimal", precision=10, scale=2)

POSTGRES: Final = (
    Native("uuid", ColumnType("uuid"), UUID, UUID.upper()),
    Native("uuid", TEXT, UUID, "no uuid"),
    Native("jsonb", ColumnType("json"), '{"a":[1.50,"é"],"b":null}', "{"),
    Native("json", ColumnType("json"), '{"b": 1,  "a": 2}'),
    Native("mood", ColumnType("enum", members=("sad", "ok")), "ok", "glad"),
    Native("mood", TEXT, "sad", "Sad"),
    Native("feeling", TEXT, "ok", "sad"),
    Native("three", TEXT, "abc", "abcd"),
    Native("positive", ColumnType("int"), 7, -7),
    Native("smallint", ColumnType("smallint"), -32768),
    Native("smallint", ColumnType("int"), 32767, 32768),
    Native("citext", TEXT, "Ab "),
    Native("inet", TEXT, "192.0.2.1", "192.0.2.1/32"),
    Native("inet", TEXT, "::1/64", "::0001"),
    Native("cidr", TEXT, "192.0.2.0/24", "192.0.2.1/24"),
    Native("macaddr", TEXT, "08:00:2b:01:02:03", "08-00-2b-01-02-03"),
    Native("xml", ColumnType("xml"), "<a>é</a>", "<a>"),
    Native("ltree", ColumnType("ltree"), "a.b.c", "a b"),
    Native("int4range", TEXT, "[1,3)", "[1,2]"),
    Native("tsvector", ColumnType("tsvector"), "'a' 'b'", "b a"),
    Native("name", TEXT, "x" * 63, "x" * 64),
    Native("char(3)", TEXT, "ab ", "ab"),
    Native("integer[]", ColumnType("array"), "[1,null,3]", "[1.5]"),
    Native("text[]", ColumnType("array"), '["a,\\"{}","null",null]', "[[1]]"),
    Native("mood[]", ColumnType("array"), '["ok","sad"]', '["glad"]'),
    Native("numeric(9,2)[]", ColumnType("array"), "[]", "[1.234]"),
    Native("hstore", ColumnType("map"), '{"a\\"b":"c\\\\d=>","e":null}', '{"a":1}'),
    Native("time", ColumnType("local time"), "10:00:00.600000", "25:00:00"),
    Native("time(3)", ColumnType("local time", fsp=3), "10:00:00.600", "10:00:00.6001"),
    Native("timestamp(3)", ColumnType("local datetime", fsp=3), AT, AT.replace(microsecond=500001)),
    Native(
        "timestamp(3) with time zone", ColumnType("instant", fsp=3), INSTANT, INSTANT.replace(microsecond=1)
    ),
    Native("bit(8)", ColumnType("bit", length=8), 255, 256),
    Native("money_of_ours", DECIMAL, Decimal("12.30"), Decimal("12.34")),
    Native("born", ColumnType("date"), date(2024, 2, 29)),
)
MAKE_POSTGRES: Final = (
    "CREATE EXTENSION citext",
    "CREATE EXTENSION hstore",
    "CREATE EXTENSION ltree",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE DOMAIN feeling AS mood NOT NULL CHECK (VALUE <> 'sad')",
    "CREATE DOMAIN three AS varchar(3)",
    "CREATE DOMAIN positive AS integer CHECK (VALUE > 0)",
    "CREATE DOMAIN money_of_ours AS numeric(10,1)",
    "CREATE DOMAIN born AS date",
)
MYSQL: Final = (
    Native("tinyint", ColumnType("tinyint"), -128),
    Native("tinyint(1)", ColumnType("tinyint"), 7),
    Native("tinyint(1)", ColumnType("boolean"), True),
    Native("tinyint unsigned", ColumnType("int"), 255, 256),
    Native("smallint", ColumnType("int"), 32767, 32768),
    Native("mediumint unsigned zerofill", ColumnType("mediumint unsigned"), 42),
    Native("int unsigned", ColumnType("int unsigned"), 4294967295),
    Native("year", ColumnType("year"), 0, 5),
    Native("bit(8)", ColumnType("bit", length=8), 255, 256),
    Native("bit(1)", ColumnType("boolean"), True),
    Native("enum('a','b')", ColumnType("enum", members=("a", "b")), "b", "2"),
    Native("enum('a','b')", TEXT, "a", "A"),
    Native("set('a','b')", ColumnType("set", members=("a", "b")), "a,b", "b,a"),
    Native("uuid", ColumnType("uuid"), UUID, UUID.upper()),
    Native("inet6", TEXT, "::1", "::0001"),
    Native("char(36)", TEXT, UUID, "a "),
    Native("char(3)", ColumnType("char", length=3), "ab", "abcd"),
    Native("varchar(9) CHARACTER SET latin1", TEXT, "é", "中"),
    Native("text CHARACTER SET utf8mb3", TEXT, "中", "😀"),
    Native("tinytext", TEXT, "a ", "x" * 256),
    Native("binary(2)", ColumnType("binary", length=2), b"a\0", b"a"),
    Native("tinyblob", ColumnType("blob"), b"a\0", b"x" * 256),
    Native("datetime", ColumnType("datetime", fsp=0), AT.replace(microsecond=0), AT),
    Native("datetime(3)", ColumnType("datetime", fsp=3), AT, AT.replace(microsecond=1)),
    Native("datetime(6)", ColumnType("timestamp"), INSTANT),
    Native("timestamp(3) NULL", ColumnType("timestamp", fsp=3), INSTANT, INSTANT.replace(microsecond=1)),
    Native("time", ColumnType("time", fsp=0), "10:00:00", "10:00:00.6"),
    Native("time(6)", ColumnType("local time"), "10:00:00.600000", "999:00:00"),
    Native("decimal(9,2) unsigned", DECIMAL, Decimal("1.50"), Decimal("-1.50")),
    Native("decimal(9,2)", ColumnType("decimal"), "1.50", "1.505"),
)


@pytest.fixture(params=["postgres", "mysql"])
def bed(request: pytest.FixtureRequest) -> Bed:
    found: Bed = request.getfixturevalue(f"{request.param}_sql")
    return found


def columns_of(natives: tuple[Native, ...]) -> list[Column]:
    return [Column(f"n{at}", one.type) for at, one in enumerate(natives)]


def read_back(target: SqlTarget, bed: Bed, columns: list[Column]) -> dict[str, Any]:
    found = target.reader(shape(ID, *columns), pipeline="shop", session=bed.session)
    assert found is not None
    (row,) = found.rows(shape(ID, *columns).columns[1:]).collect()
    return {name: bytes(one) if isinstance(one, bytearray) else one for name, one in row.asDict().items()}


def test_a_value_of_each_native_type_comes_back_or_is_refused_by_name(bed: Bed) -> None:
    natives = POSTGRES if bed.name == "postgres" else MYSQL
    if bed.name == "postgres":
        execute(bed, *MAKE_POSTGRES)
    columns = columns_of(natives)
    # Not "integer[]": `execute` has a meaning for the brackets.
    spelt = ", ".join(f"n{at} {one.found.replace('[]', ' ARRAY')}" for at, one in enumerate(natives))
    make(bed, f"id bigint PRIMARY KEY, {spelt}")
    one = shape(ID, *columns)
    table = bed.target.open_table(one, pipeline="shop")
    table.claim()
    assert not table.gap(one).widened
    good = {"id": 1} | {column.name: native.value for column, native in zip(columns, natives, strict=True)}
    for number in (1, 2):  # inserted, then updated
        table.apply(bed.batch(one, [good]), progress(1, number))
    kept = read_back(target_of(bed), bed, columns)
    reader = target_of(bed).reader(one, pipeline="shop", session=bed.session)
    assert reader is not None
    for column, native in zip(columns, natives, strict=True):
        value = native.value
        if native.type.name in ("timestamp", "instant"):
            value = value.replace(tzinfo=None)
        spelling = reader.spelling(column.name)
        assert _respelt(kept[column.name], spelling) == _respelt(value, spelling), (column.name, native)
    bad = {f"n{at}": native.bad for at, native in enumerate(natives) if native.bad is not None}
    with pytest.raises(TargetError, match="does not fit") as refused:
        table.apply(bed.batch(one, [{**good, **bad}]), progress(1, 3))
    assert refused.value.context["column"] == next(iter(bad))
    named = re.findall(r"the column (n[0-9]+) is ([a-z]+)", refused.value.message)
    assert [name for name, _ in named] == [*bad]
    for name, kind in named:
        assert natives[int(name[1:])].found.startswith(kind[:4]), name
        # A digit may be one of a type's, or of a column's name.
        shown = rf"(?<![\w(,]){re.escape(repr(bad[name]))}(?![\w),])"
        assert re.search(shown, refused.value.message) is None, name
    assert read_back(target_of(bed), bed, columns) == kept


def _respelt(value: Any, spelling: str | None) -> Any:
    from tidesink.sinks.spark.digests import canonical_json

    if spelling == "json":
        return canonical_json(value)
    return value.rstrip("0").rstrip(".") if spelling == "digits" and "." in value else value


class Refused(NamedTuple):
    """A column of a native type that does not hold what a source's type has."""

    found: str
    type: ColumnType


INTERVAL: Final = ColumnType("interval")
REFUSED_POSTGRES: Final = (
    Refused("interval", INTERVAL),
    Refused("money", DECIMAL),
    Refused("timetz", ColumnType("zoned time")),
    Refused("jsonb", TEXT),
    Refused("char(3)", ColumnType("char", length=3)),
    Refused("point", ColumnType("geometry")),
    Refused("bit varying(8)", ColumnType("bit", length=8)),
    Refused("uuid", ColumnType("int")),
    Refused("smallint", TEXT),
)
REFUSED_MYSQL: Final = (
    Refused("float(7,2)", ColumnType("float")),
    Refused("double unsigned", ColumnType("double")),
    Refused("geometry", ColumnType("geometry")),
    Refused("binary(16)", ColumnType("uuid")),
    Refused("smallint", TEXT),
    Refused("timestamp(6) NULL", ColumnType("datetime")),
    Refused("year", ColumnType("boolean")),
)


def until_open(bed: Bed, columns: list[Column], *, keys: tuple[Column, ...] = (ID,)) -> list[str]:
    """The statements that a refused table asks for, one after the other, until it opens."""
    statements: list[str] = []
    while True:
        try:
            bed.target.open_table(shape(*keys, *columns), pipeline="shop").claim()
        except SchemaRefusedError as refused:
            statement = refused.message.partition("start again: ")[2]
            assert statement not in statements
            statements.append(statement)
            execute(bed, statement)
        else:
            return statements


def test_a_native_type_that_does_not_hold_the_values_is_refused_when_the_table_opens(bed: Bed) -> None:
    refused = REFUSED_POSTGRES if bed.name == "postgres" else REFUSED_MYSQL
    columns = [Column(f"n{at}", one.type) for at, one in enumerate(refused)]
    spelt = ", ".join(f"n{at} {one.found}" for at, one in enumerate(refused))
    make(bed, f"id bigint PRIMARY KEY, {spelt}")
    statements = until_open(bed, columns)
    assert len(statements) == len(refused)
    assert all(f"n{at}" in statement for at, statement in enumerate(statements))
    table = bed.target.open_table(shape(ID, *columns), pipeline="shop")
    assert not table.gap(shape(ID, *columns)).widened


def test_a_key_of_a_native_type_names_the_same_rows(bed: Bed) -> None:
    key = Column("code", ColumnType("uuid"), nullable=False, handle=True, primary_key=True)
    found = shape(key, *columns_of((Native("", TEXT, None),)))
    make(bed, "code uuid PRIMARY KEY, n0 text")
    table = bed.target.open_table(found, pipeline="shop")
    table.claim()
    other = UUID.replace("a0", "b0")
    rows = [{"code": UUID, "n0": "a"}, {"code": other, "n0": "b"}]
    assert table.apply(bed.batch(found, rows), progress(1, 1)).inserted == 2
    done = table.apply(bed.batch(found, [{"code": UUID, "n0": "c"}], [{"code": other}]), progress(1, 2))
    assert (done.updated, done.deleted) == (1, 1)
    assert [str(row["code"]) for row in bed.rows(by="n0")] == [UUID]
    with pytest.raises(TargetError, match=r"column=code.*does not fit|does not fit.*column=code"):
        table.apply(bed.batch(found, [{"code": UUID.upper(), "n0": "d"}]), progress(1, 3))


def test_a_key_that_folds_letters_is_refused(postgres_sql: Bed) -> None:
    key = Column("code", TEXT, nullable=False, handle=True, primary_key=True)
    execute(postgres_sql, "CREATE EXTENSION citext")
    make(postgres_sql, "code citext PRIMARY KEY")
    (statement,) = until_open(postgres_sql, [], keys=(key,))
    assert "TYPE text" in statement


def test_fractions_of_a_second_are_not_cut(bed: Bed) -> None:
    kinds = ("datetime", "timestamp", "time") if bed.name == "mysql" else ("local datetime", "instant")
    found = {
        "postgres": ("timestamp(3)", "timestamptz(0)"),
        "mysql": ("datetime", "timestamp NULL", "time"),
    }[bed.name]
    columns = [Column(f"n{at}", ColumnType(kind, fsp=6)) for at, kind in enumerate(kinds)]
    make(bed, "id bigint PRIMARY KEY, " + ", ".join(f"n{at} {one}" for at, one in enumerate(found)))
    one = shape(ID, *columns)
    table = bed.target.open_table(one, pipeline="shop")
    table.claim()
    assert {*table.gap(one).widened} == {column.name for column in columns}
    table.evolve(one)
    values = [AT.replace(microsecond=789001), INSTANT.replace(microsecond=789001), "10:00:00.600001"]
    row = {"id": 1} | {column.name: value for column, value in zip(columns, values, strict=False)}
    table.apply(bed.batch(one, [row]), progress(1, 1))
    kept = read_back(target_of(bed), bed, columns)
    assert [*kept.values()] == [values[0], values[0], values[2]][: len(columns)]


def test_a_table_that_would_not_keep_rows_is_refused_with_what_mends_it(postgres_sql: Bed) -> None:
    make(
        postgres_sql,
        "id bigint GENERATED ALWAYS AS IDENTITY, n0 bigint GENERATED ALWAYS AS IDENTITY, "
        "n1 bigint GENERATED ALWAYS AS (id + 1) STORED, more text NOT NULL, kept text NOT NULL DEFAULT 'x', "
        "CONSTRAINT own PRIMARY KEY (id) DEFERRABLE",
    )
    execute(
        postgres_sql,
        "ALTER TABLE {} SET UNLOGGED",
        "CREATE TABLE child () INHERITS ({})",
    )
    columns = [Column("n0", ColumnType("bigint")), Column("n1", ColumnType("bigint"))]
    statements = until_open(postgres_sql, columns)
    words = (
        "SET LOGGED", "NO INHERIT", "BY DEFAULT", "DROP EXPRESSION", "DROP NOT NULL", "DROP CONSTRAINT"
    )  # fmt: skip
    assert len(statements) == len(words)
    assert all(word in statement for word, statement in zip(words, statements, strict=True))
    one = shape(ID, *columns)
    table = postgres_sql.target.open_table(one, pipeline="shop")
    epoch = table.claim().epoch
    for number in (1, 2):  # inserted over the identity of the key, then updated
        row = {"id": 7, "n0": number, "n1": number}
        table.apply(postgres_sql.batch(one, [row]), progress(epoch, number))
    assert postgres_sql.rows() == [{"id": 7, "n0": 2, "n1": 2, "more": None, "kept": "x"}]


def test_a_table_of_mysql_that_would_not_keep_rows_is_refused_with_what_mends_it(mysql_sql: Bed) -> None:
    make(
        mysql_sql,
        "id bigint PRIMARY KEY, n0 bigint AS (id + 1), n1 bigint AS (id + 1) STORED, more int NOT NULL, "
        "kept int NOT NULL DEFAULT 1",
    )
    execute(mysql_sql, "ALTER TABLE {} ENGINE=MyISAM")
    columns = [Column("n0", ColumnType("bigint")), Column("n1", ColumnType("bigint"))]
    statements = until_open(mysql_sql, columns)
    words = ("ENGINE=InnoDB", "ADD COLUMN", "ADD COLUMN", "MODIFY `more`")
    assert len(statements) == len(words)
    assert all(word in statement for word, statement in zip(words, statements, strict=True))
