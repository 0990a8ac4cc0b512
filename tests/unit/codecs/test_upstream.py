"""Rows read from the upstream: what is asked, as of when, and how errors are told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from tests.unit.codecs.canal_json.messages import message_of, row_bytes
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.large_messages import LargeMessages
from tidesink.codecs.options import CanalJsonOptions
from tidesink.codecs.upstream import Upstream, open_upstream
from tidesink.errors import ConfigError, DecodeError, RowUnavailableError, SourceUnavailableError
from tidesink.events import ChangeEvent, TableId
from tidesink.source_database.mysql import tidb_as_of

TS: Final = 470608475564539905
# Names that end a quoted name, a statement, or mean a parameter, where they are not quoted.
ODD: Final = ('a"b', "a`b", "c%s", "d:e", "f; DROP TABLE t", "g'h", "名")
TABLE: Final = TableId("s", 't"; --')


class Moments:
    """A database whose rows change by the moment a session is moved to; it keeps those moments."""

    def __init__(self, rows: Mapping[int, Mapping[str, object]]) -> None:
        self.asked: list[int] = []
        self._rows = rows
        self.engine = sa.create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        with self.engine.begin() as connection:
            for schema in ("s", "information_schema"):
                connection.exec_driver_sql(f"ATTACH ':memory:' AS {schema}")
            connection.exec_driver_sql(
                "CREATE TABLE information_schema.columns (table_schema TEXT, table_name TEXT, "
                "column_name TEXT, column_type TEXT, extra TEXT, is_nullable TEXT, ordinal_position INT)"
            )

    def define(self, columns: Mapping[str, str], table: TableId = TABLE) -> None:
        """Make the table; a type may have ``VIRTUAL`` behind it."""
        rows = sa.table("columns", *map(sa.column, _DESCRIBED), schema="information_schema")
        quote = self.engine.dialect.identifier_preparer.quote_identifier
        with self.engine.begin() as connection:
            for at, (name, sql) in enumerate(columns.items()):
                column_type, virtual, _ = sql.partition(" VIRTUAL")
                described = (*table, name, column_type, "VIRTUAL GENERATED" if virtual else "", "YES", at)
                values = dict(zip(_DESCRIBED, described, strict=True))
                connection.execute(sa.insert(rows).values(values))
            names = ", ".join(quote(name) for name in columns)
            connection.exec_driver_sql(f"CREATE TABLE {quote(table.schema)}.{quote(table.name)} ({names})")

    def as_of(self, connection: sa.Connection, commit_ts: int) -> None:
        """Put the rows of a moment into the table."""
        self.asked.append(commit_ts)
        table = sa.table(TABLE.name, schema=TABLE.schema)
        connection.execute(sa.delete(table))
        row = self._rows.get(commit_ts)
        if row is not None:
            columns = sa.table(TABLE.name, *map(sa.column, row), schema=TABLE.schema)
            connection.execute(sa.insert(columns).values(row))


_DESCRIBED: Final = (
    "table_schema",
    "table_name",
    "column_name",
    "column_type",
    "extra",
    "is_nullable",
    "ordinal_position",
)


def _codec(moments: Moments, **options: Any) -> CanalJsonCodec:
    given = CanalJsonOptions(**options)
    large = LargeMessages(given, upstream=Upstream(moments.engine, as_of=moments.as_of))
    return CanalJsonCodec(options=given, large=large)


def _cut(kind: str = "INSERT", **members: Any) -> bytes:
    extension = {"commitTs": TS, "onlyHandleKey": True}
    return row_bytes(
        {}, **{"type": kind, "database": TABLE.schema, "table": TABLE.name, "_tidb": extension, **members}
    )


def _event(codec: CanalJsonCodec, value: bytes) -> ChangeEvent:
    (event,) = codec.decode(message_of(value))
    assert isinstance(event, ChangeEvent)
    return event


@pytest.fixture
def moments() -> Iterator[Moments]:
    found = Moments({TS: {"id": 1, "a": "new", "n": None}, TS - 1: {"id": 1, "a": "old", "n": 7}})
    found.define({"id": "int(11)", "a": "varchar(10)", "v": "int(11) VIRTUAL", "n": "bigint(20) unsigned"})
    yield found
    found.engine.dispose()


def test_a_row_is_as_it_was_at_its_commit_and_just_before(moments: Moments) -> None:
    codec = _codec(moments)
    inserted = _event(codec, _cut())
    assert moments.asked == [TS]
    assert (inserted.before, inserted.after) == (None, {"id": 1, "a": "new", "n": None})
    assert list(inserted.after or ()) == ["id", "a", "n"]
    moments.asked.clear()
    updated = _event(codec, _cut("UPDATE", old=[{}]))
    assert moments.asked == [TS, TS - 1]
    assert (updated.before, updated.after) == (
        {"id": 1, "a": "old", "n": 7},
        {"id": 1, "a": "new", "n": None},
    )
    assert updated.commit_ts == TS
    assert "_tidb" not in (updated.extension or {})


def test_a_delete_needs_no_more_than_its_key(moments: Moments) -> None:
    deleted = _event(_codec(moments), _cut("DELETE"))
    assert (deleted.key, deleted.before, moments.asked) == ({"id": 1}, {"id": 1}, [])
    assert deleted.extension is not None
    assert deleted.extension["_tidb"] == {"onlyHandleKey": True}
    written = CanalJsonCodec(options=CanalJsonOptions(enable_tidb_extension=True)).encode(deleted, topic="t")
    assert written is not None
    assert json.loads(written.value or b"")["_tidb"] == {"commitTs": TS, "onlyHandleKey": True}


def test_a_delete_is_looked_up_where_the_reader_goes_by_another_key(moments: Moments) -> None:
    large = LargeMessages(CanalJsonOptions(), upstream=Upstream(moments.engine, as_of=moments.as_of))
    deleted = _event(CanalJsonCodec(keys={TABLE: ("a",)}, large=large), _cut("DELETE"))
    assert (deleted.key, moments.asked) == ({"a": "old"}, [TS - 1])


def test_the_types_are_the_words_the_topic_uses(moments: Moments) -> None:
    plain = _event(_codec(moments), _cut()).extension or {}
    assert plain["mysqlType"] == {"id": "int", "a": "varchar", "n": "bigint unsigned"}
    full = _event(_codec(moments), _cut(mysqlType={"id": "int(11)"})).extension or {}
    assert full["mysqlType"] == {"id": "int(11)", "a": "varchar(10)", "n": "bigint(20) unsigned"}
    reported = _event(_codec(moments, content_compatible=True), _cut()).extension or {}
    assert reported == full


def test_every_identifier_is_quoted_and_every_value_is_a_parameter() -> None:
    row: dict[str, object] = {"id": "1' OR '1'='1", **dict.fromkeys(ODD, "x")}
    moments = Moments({TS: row})
    moments.define(dict.fromkeys(row, "varchar(99)"))
    event = _event(_codec(moments), _cut(data=[{"id": "1' OR '1'='1", ODD[0]: "x"}], pkNames=["id", ODD[0]]))
    assert event.after == row
    with pytest.raises(RowUnavailableError, match="no rows with this key"):
        _event(_codec(moments), _cut(data=[{"id": "' OR '1'='1"}]))
    with pytest.raises(RowUnavailableError, match="columns that the upstream's table does not have"):
        _event(_codec(moments), _cut(data=[{"id = id OR id": "1"}]))
    moments.engine.dispose()


def test_a_row_that_is_not_there_is_a_bad_record(moments: Moments) -> None:
    with pytest.raises(RowUnavailableError, match=f"no rows with this key at commit_ts {TS + 5}"):
        _event(_codec(moments), _cut(_tidb={"commitTs": TS + 5, "onlyHandleKey": True}))
    with pytest.raises(RowUnavailableError, match="did not have this table"):
        _event(_codec(moments), _cut(table="other"))


@pytest.mark.parametrize(
    "members",
    [
        {"_tidb": {"onlyHandleKey": True, "x": 1}},
        {"_tidb": {"onlyHandleKey": True, "commitTs": -1}},
        {"_tidb": {"onlyHandleKey": True, "commitTs": 2**63}},
        {"_tidb": {"onlyHandleKey": 1, "commitTs": TS}},
        {"_tidb": {"onlyHandleKey": "true", "commitTs": TS}},
        {"data": [{}]},
        {"data": []},
        {"data": [{"id": 1}]},
        {"data": [{"id": ["1"]}]},
        {"data": [{"id": "one"}]},
        {"data": [{"id": None}]},
        {"data": [{"id": "1"}, {"id": "2"}]},
        {"type": "UPDATE", "old": None},
        {"type": "UPDATE", "old": [None]},
        {"database": None},
        {"table": ""},
    ],
)
def test_a_pointer_of_the_wrong_shape_is_a_bad_record(moments: Moments, members: dict[str, Any]) -> None:
    with pytest.raises(DecodeError) as caught:
        _codec(moments).decode(message_of(_cut(**members)))
    assert caught.value.context["offset"] == 17


class _Refusing:
    """A driver's error with a code, as PyMySQL gives it."""

    def __init__(self, *arguments: object) -> None:
        self._arguments = arguments

    def as_of(self, _connection: sa.Connection, _commit_ts: int) -> None:
        raise sa.exc.OperationalError("SELECT secret", {"p": "secret"}, Exception(*self._arguments))


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ((8055, "snapshot is older than GC safe point"), RowUnavailableError, "Raise tidb_gc_life_time"),
        ((9006, "GC life time is shorter"), RowUnavailableError, "Raise tidb_gc_life_time"),
        ((1146, "no table"), RowUnavailableError, "did not have this table"),
        ((1045, "Access denied"), ConfigError, "denies access to the user"),
        ((1193, "Unknown system variable"), ConfigError, "is not TiDB"),
        ((2013, "Lost connection"), SourceUnavailableError, "does not answer"),
        ((), SourceUnavailableError, "does not answer"),
    ],
)
def test_a_databases_error_is_told_by_its_code(
    moments: Moments, arguments: tuple[object, ...], kind: type[Exception], says: str
) -> None:
    upstream = Upstream(moments.engine, as_of=_Refusing(*arguments).as_of)
    with pytest.raises(kind, match=says) as caught:
        upstream.row(TABLE, {"id": "1"}, commit_ts=TS)
    assert "secret" not in str(caught.value)


def test_tidb_is_moved_by_its_own_variable() -> None:
    """The statement that TiCDC's consumer sends too, with the moment as a parameter."""
    sent: list[tuple[str, Any]] = []
    engine = sa.create_mock_engine("mysql+pymysql://", lambda sql, *_, **__: sent.append((str(sql), sql)))

    class Recorder:
        def execute(self, sql: Any, parameters: Mapping[str, int]) -> None:
            sent.append((str(sql.compile(dialect=engine.dialect)), parameters))

    tidb_as_of(cast("sa.Connection", Recorder()), TS)  # notes what it would send
    assert sent == [("SET @@tidb_snapshot = %s", {"ts": TS})]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("no url", "is not a SQLAlchemy URL"),
        ("mysql+pymysql://u:SECRET@host:port/", "is not a SQLAlchemy URL"),
        ("nothing://u:SECRET@host/", "no driver for nothing"),
        ("mysql+aiomysqlx://u:SECRET@host/", "no driver for"),
    ],
)
def test_a_url_that_cannot_be_used_is_told_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        open_upstream(url)
    assert "SECRET" not in f"{caught.value} {caught.value.__cause__}"
    assert "SECRET" not in repr(CanalJsonOptions(upstream_url=url))
    codec = CanalJsonCodec(options=CanalJsonOptions(upstream_url=url))
    with pytest.raises(ConfigError, match=says):
        codec.decode(message_of(_cut()))
    assert codec.decode(message_of(row_bytes({"a": "x"})))


def test_an_upstream_that_does_not_answer_may_answer_later() -> None:
    codec = CanalJsonCodec(options=CanalJsonOptions(upstream_url="mysql+pymysql://u:SECRET@127.0.0.1:1/"))
    with pytest.raises(SourceUnavailableError, match="does not answer") as caught:
        codec.decode(message_of(_cut()))
    assert caught.value.remedy == "retry"
    assert "SECRET" not in str(caught.value)
