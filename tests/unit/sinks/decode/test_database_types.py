"""Which of a canal-json table's types come from the source's database, and which from where else."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.codecs.canal_json.test_plans import T, _Ddl, _found_at
from tidesink.codecs.canal_json.scan import RowWords
from tidesink.config.models import Definition
from tidesink.errors import ValueOutOfRangeError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.decode.canal_json_types import CanalJsonDecoding
from tidesink.sinks.decode.database_types import DatabaseTypes
from tidesink.sinks.decode.schema_source import Missed
from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.laws.counts import BadRecord, BadRow, BatchSummary, EventCounts, TopicPartition
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.projection import Projection
from tidesink.typemap.values import fit_decimal

ODD_ROW = BatchSummary(EventCounts(bad=1), bad_rows=(BadRow("ValueOutOfRangeError", "odd"),))
MISFIT = BatchSummary(
    EventCounts(bad=1), bad_records=(BadRecord(TopicPartition("cdc", 1), 0, "ValueOutOfRangeError", "odd"),)
)
BAD = BatchSummary(
    EventCounts(bad=1), bad_records=(BadRecord(TopicPartition("cdc", 1), 0, "FramingError", "no JSON"),)
)


class _Database:
    """The source's columns, and how often they were asked for."""

    def __init__(self, **columns: str) -> None:
        self.columns = columns
        self.asked = 0

    def __call__(self, table: TableId) -> Mapping[str, ColumnType]:
        assert table == T
        self.asked += 1
        return {name: parse_sql_type(sql) for name, sql in self.columns.items()}


class _Decoding(CanalJsonDecoding):
    """A table whose rows have these words, beside a database."""

    def __init__(self, around: Any, database: _Database | None) -> None:
        super().__init__(around, "cdc", T)
        self._database = DatabaseTypes("p", T, around.store, database)

        self.looked_again = 0

    def _ends_now(self, found: TopicOffsets) -> TopicOffsets:
        self.looked_again += 1
        return found


def _store(folder: Path) -> SqlStateStore:
    return SqlStateStore(str(folder / "state.db"))


def _decoding(
    store: SqlStateStore | None,
    words: Mapping[str, str],
    database: _Database | None,
    *,
    ddl: tuple[str, ...] = (),
    definition: str | None = None,
) -> _Decoding:
    settings = SimpleNamespace(
        definition=None if definition is None else Definition(sql=definition),
        keys=None,
        zero_date="null",
        ambiguous_time="first",
        time_zone="UTC",
        mode="upsert",
        projection=Projection(),
    )
    types = {"id": "int", **words}
    rows = [[RowWords(tuple(types), types, ["id"], 0)]]
    source = SimpleNamespace(options_of=lambda options: options(), opens_up_to=None, database=None)
    around = SimpleNamespace(
        config=SimpleNamespace(pipeline="p", table_config=lambda _table: settings, source=source),
        store=store,
        check_stop=lambda: None,
        reader=SimpleNamespace(ask=lambda *_: rows),
        topics=SimpleNamespace(
            ddl=lambda _topic: _Ddl(*ddl),
            tables=lambda _topic: SimpleNamespace(known=lambda: (T,), absent=False),
        ),
    )
    decoding = _Decoding(around, database)
    decoding.prepare(_found_at(len(ddl)))
    return decoding


def _spark(decoding: CanalJsonDecoding) -> dict[str, str]:
    return {column.name: column.spark for column in decoding.columns().shape.columns if not column.key}


CREATE = "create table t (id int primary key, a {})"
WORD = {"a": "decimal"}


@pytest.mark.parametrize(("others", "look_ups"), [((), 0), ((1,), 1)])
def test_only_rows_of_other_partitions_may_be_ahead_of_their_ddl(
    others: tuple[int, ...], look_ups: int
) -> None:
    decoding = _decoding(None, WORD, None)
    decoding.looked_again = 0
    partitions = dict.fromkeys((0, *others), PartitionOffsets(0, 0))
    decoding.prepare(TopicOffsets("cdc", "id", partitions))
    assert decoding.looked_again == look_ups


@pytest.mark.parametrize("definition", [None, "decimal(4,1)"])
@pytest.mark.parametrize("ddl", [None, "decimal(5,1)"])
@pytest.mark.parametrize("word", ["decimal", "decimal(6,1)"])
@pytest.mark.parametrize("database", [None, "decimal(7,1)"])
def test_the_order_of_authority(
    definition: str | None, ddl: str | None, word: str, database: str | None
) -> None:
    decoding = _decoding(
        None,
        {"a": word},
        None if database is None else _Database(a=database),
        ddl=() if ddl is None else (CREATE.format(ddl),),
        definition=None if definition is None else CREATE.format(definition),
    )
    full = word if "(" in word else None
    assert _spark(decoding) == {"a": definition or ddl or full or database or "string"}


@pytest.mark.parametrize(
    ("word", "there", "kept"),
    [
        ("decimal", "decimal(10,2)", "decimal(10,2)"),
        ("decimal", "decimal(10,2) unsigned", "string"),
        ("decimal unsigned", "decimal(10,2)", "string"),
        ("decimal unsigned", "decimal(10,2) unsigned", "decimal(10,2)"),
        ("decimal unsigned", "decimal(10,2) unsigned zerofill", "decimal(10,2)"),
        ("decimal", "double", "string"),
        ("decimal", "decimal(50,2)", "string"),
        ("bit", "bit(8)", "bigint"),
        ("bit", "bit(64)", "decimal(20,0)"),
        ("bit", "bigint", "decimal(20,0)"),
        ("enum", "enum('a','b')", "string"),
        ("set", "set('a','b')", "string"),
        ("int", "bigint", "int"),
        ("varchar", "decimal(10,2)", "string"),
    ],
)
def test_the_database_adds_to_a_word_that_it_agrees_with(word: str, there: str, kept: str) -> None:
    decoding = _decoding(None, {"a": word}, _Database(a=there))
    assert _spark(decoding) == {"a": kept}
    assert decoding.columns().shape.by_name["a"].type.members is None


def test_a_restart_plans_the_same_whatever_the_database_says_by_then(tmp_path: Path) -> None:
    store, first, later = _store(tmp_path), _Database(a="decimal(10,2)"), _Database(a="decimal(12,4)")
    for database in (first, later, None):
        assert _spark(_decoding(store, WORD, database)) == {"a": "decimal(10,2)"}
    assert (first.asked, later.asked) == (1, 0)


def _applied(store: SqlStateStore, batch: int) -> None:
    store.save_status(TableStatus("p", T, "RUNNING", batch=batch, epoch=1))


def test_the_types_of_a_table_that_has_batches_stay(tmp_path: Path) -> None:
    """There was no database when they were applied; a column that comes later is another matter."""
    store, database = _store(tmp_path), _Database(a="decimal(10,2)", b="decimal(5,1)")
    assert _spark(_decoding(store, WORD, None)) == {"a": "string"}
    _applied(store, 3)
    assert _spark(_decoding(store, WORD, database)) == {"a": "string"}
    assert database.asked == 0
    both = {**WORD, "b": "decimal"}
    assert _spark(_decoding(store, both, database)) == {"a": "string", "b": "decimal(5,1)"}


def test_a_table_without_such_columns_is_not_looked_up(tmp_path: Path) -> None:
    store, database = _store(tmp_path), _Database(a="varchar(5)", b="decimal(5,1)")
    assert _spark(_decoding(store, {"a": "varchar"}, database)) == {"a": "string"}
    assert database.asked == 0
    _applied(store, 3)
    later = _decoding(store, {"a": "varchar", "b": "decimal"}, database)
    assert _spark(later) == {"a": "string", "b": "decimal(5,1)"}


@pytest.mark.parametrize("met", [MISFIT, ODD_ROW], ids=["record", "row"])
def test_what_does_not_fit_has_the_database_asked_again(tmp_path: Path, met: BatchSummary) -> None:
    store, database = _store(tmp_path), _Database(a="decimal(10,2)")
    decoding = _decoding(store, WORD, database)
    missed = Missed(met, (), _found_at(0))
    database.columns["a"] = "decimal(8,4)"
    assert decoding.learn(missed)
    assert _spark(decoding) == {"a": "decimal(12,4)"}  # what was applied before fits, too
    assert _spark(_decoding(store, WORD, database)) == {"a": "decimal(12,4)"}
    assert not decoding.warnings
    for there in ("decimal(8,4)", "decimal(3,1)", "double"):
        database.columns["a"] = there
        assert not decoding.learn(missed)
        assert "a (decimal(12,4))" in " ".join(decoding.warnings)
    assert not decoding.learn(Missed(BAD, (), _found_at(0)))
    assert not decoding.warnings


def test_a_table_that_is_not_there_any_more_has_the_types_of_its_words(tmp_path: Path) -> None:
    database = _Database()
    for _ in range(2):
        assert _spark(_decoding(_store(tmp_path), WORD, database)) == {"a": "string"}
    assert database.asked == 1


SIZES = st.integers(0, 12).flatmap(lambda scale: st.tuples(st.integers(max(scale, 1), 18), st.just(scale)))


@given(SIZES, SIZES, st.decimals(allow_nan=False, allow_infinity=False, places=6))
def test_a_type_after_a_second_look_holds_what_either_holds(
    old: tuple[int, int], new: tuple[int, int], value: Decimal
) -> None:
    column = Column("a", ColumnType("decimal", sql="decimal"))
    database = _Database(a="decimal({},{})".format(*old))
    types = DatabaseTypes("p", T, None, database)
    types.decide([column])
    database.columns["a"] = "decimal({},{})".format(*new)
    types.look_again([column], misfit=True)
    joined = types.refined(column).type
    for size in (old, new):
        try:
            fitted = fit_decimal(value, parse_sql_type("decimal({},{})".format(*size)))
        except ValueOutOfRangeError:
            continue
        assert fit_decimal(value, joined) == fitted
