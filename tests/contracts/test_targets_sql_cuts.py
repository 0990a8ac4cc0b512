"""Cuts in a database: changes are gathered, and one transaction brings all tables to an instant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Final, cast

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import execute, reader, target_of
from tests.contracts.targets_bed import NAME, TABLE, Bed, progress, row, shape
from tests.full import quick_on
from tidesink.errors import StaleProgressError, TargetError
from tidesink.events import Column, ColumnType, TableId, physical_ms
from tidesink.sinks.targets.base import ApplyOptions, ReducedBatch, TargetTable
from tidesink.sinks.targets.cuts import CutTable
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.table import SqlTable
from tidesink.sinks.targets.sql.target import SqlTarget

pytestmark = [pytest.mark.spark, pytest.mark.servers, quick_on("postgres")]
OTHER: Final = TableId("shop", "customers")
TABLES: Final = (TABLE, OTHER)
FIRST: Final = (1_790_000_000_000 << 18) + 7


class _Worker:
    """A worker over two tables, which has claimed them."""

    def __init__(self, bed: Bed, *, cuts: bool = True, columns: tuple[Column, ...] = ()) -> None:
        connections = target_of(bed).connections
        self.target = SqlTarget(Connections(connections.dialect, connections.endpoint), cuts=cuts)
        self.bed = bed
        self.tables = dict[TableId, SqlTable]()
        self.epochs, self.batches = dict[TableId, int](), dict[TableId, int]()
        for name in TABLES:
            table = self.target.open_table(shape(*columns, table=name), pipeline="shop")
            claim = table.claim()
            self.tables[name], self.epochs[name] = table, claim.epoch
            self.batches[name] = claim.progress.batch if claim.progress else 0
        self.log = self.target.cut_log("shop")

    def apply(self, name: TableId, batch: ReducedBatch) -> None:
        self.batches[name] += 1
        self.tables[name].apply(batch, self._progress(name))

    def put(
        self, name: TableId, *rows: dict[str, Any], deletes: tuple[int, ...] = (), outside: bool = False
    ) -> None:
        gone = [{"id": number} for number in deletes]
        batch = self.bed.batch(shape(table=name), rows, gone)
        self.apply(name, replace(batch, how=ApplyOptions(outside=outside)))

    def cut(
        self,
        commit_ts: int,
        change: Callable[[TableId, SqlTable], object] | None = None,
        *,
        without: Collection[TableId] = (),
    ) -> None:
        found = dict[CutTable, TargetTable]()
        for name, table in self.tables.items():
            if name in without or not self.batches[name]:
                continue  # a table of which nothing was read stands at no cut
            version = table.version_of(self._progress(name))
            found[CutTable(name, *version)] = cast("TargetTable", change(name, table) if change else table)
        time = datetime.fromtimestamp(physical_ms(commit_ts) / 1000, timezone.utc)
        self.log.publish(commit_ts, found, time=time, without=without, keep=1)

    def _progress(self, name: TableId) -> Any:
        return progress(self.epochs[name], self.batches[name], table=name)

    def close(self) -> None:
        for table in self.tables.values():
            table.close()


class _KilledError(Exception):
    """The worker is gone."""


class _Dies:
    """A table whose worker is killed when it is its turn in the cut."""

    def __init__(self, table: SqlTable) -> None:
        self.lock_for_cut = table.lock_for_cut

    def merge_gathered(self, _cursor: Any) -> None:
        raise _KilledError


def _applied(bed: Bed, name: TableId = TABLE, *columns: Column) -> dict[int, Any]:
    """The names by id that are applied, whether they are seen yet or not."""
    assert bed.spark is not None
    found = shape(*columns, table=name)
    reading = target_of(bed).reader(found, pipeline="shop", session=bed.spark)
    assert reading is not None
    return {row["id"]: row["name"] for row in reading.rows(found.columns).collect()}


def _excluded(bed: Bed) -> set[TableId]:
    """The tables that readers are told the last cut has not."""
    connections, place = target_of(bed).connections, target_of(bed).place_of(TableId("tidesink", "x"))
    location = place.beside("_tidesink_excluded")
    with connections.transaction("test", writes=False) as cursor:
        cursor.execute(f"SELECT source_schema, source_table FROM {location} WHERE pipeline = 'shop'")  # noqa: S608
        return {TableId(*one) for one in cursor.fetchall()}


def _seen(bed: Bed) -> list[dict[int, Any]]:
    """The names by id that readers see, in each table."""
    read = reader(target_of(bed))
    return [{one["id"]: one["name"] for one in read(name)} for name in TABLES]


@pytest.mark.law("L9")
@quick_on("postgres", "mysql")
def test_all_tables_come_to_a_cut_at_once(sql: Bed) -> None:
    worker = _Worker(sql)
    assert worker.log.last() is None
    worker.put(TABLE, row(1), row(2))
    worker.put(TABLE, row(2, "b"), row(3), deletes=(1, 9))
    worker.put(OTHER, row(1, "x"))
    assert _seen(sql) == [{}, {}]
    worker.cut(FIRST)
    assert _seen(sql) == [{2: "b", 3: "a"}, {1: "x"}]
    assert worker.log.last() == FIRST
    worker.put(TABLE, row(1, "again"), row(3, "c"), deletes=(2,))
    worker.put(TABLE, row(2, "back"), deletes=(3,))
    assert _seen(sql) == [{2: "b", 3: "a"}, {1: "x"}]
    worker.cut(FIRST + 1)
    assert _seen(sql) == [{1: "again", 2: "back"}, {1: "x"}]
    # Nothing is merged twice, and a cut without a change is one.
    worker.cut(FIRST + 2)
    assert (_seen(sql), worker.log.last()) == ([{1: "again", 2: "back"}, {1: "x"}], FIRST + 2)
    worker.close()


@quick_on("postgres", "mysql")
def test_what_a_killed_worker_gathered_comes_with_the_next_ones_cut(sql: Bed) -> None:
    first = _Worker(sql)
    first.put(TABLE, row(1))
    first.put(OTHER, row(1, "x"))

    def killed(name: TableId, table: SqlTable) -> object:
        return _Dies(table) if name == TABLE else table  # the other's rows are merged before

    with pytest.raises(_KilledError):
        first.cut(FIRST, killed)
    assert (_seen(sql), first.log.last()) == ([{}, {}], None)
    second = _Worker(sql)
    assert second.batches == {TABLE: 1, OTHER: 1}
    second.put(TABLE, row(1, "b"))
    second.cut(FIRST)
    assert (_seen(sql), second.log.last()) == ([{1: "b"}, {1: "x"}], FIRST)
    first.close()
    second.close()


@pytest.mark.law("L10")
def test_a_worker_that_lost_one_table_makes_no_cut_of_any(sql: Bed) -> None:
    first = _Worker(sql)
    first.put(TABLE, row(1))
    first.put(OTHER, row(1, "x"))

    def lost(name: TableId, table: SqlTable) -> object:
        if name == TABLE:  # after it was looked at
            first.target.open_table(shape(), pipeline="shop").claim()
        return table

    with pytest.raises(StaleProgressError) as refused:
        first.cut(FIRST, lost)
    assert refused.value.context["table"] == str(TABLE)
    assert _seen(sql) == [{}, {}]
    with pytest.raises(StaleProgressError):
        first.tables[TABLE].version_of(first._progress(TABLE))
    first.close()


@quick_on("postgres", "mysql")
def test_what_is_applied_is_read_before_the_cut_as_behind_it(sql: Bed) -> None:
    worker = _Worker(sql)
    worker.put(TABLE, row(1), row(2), row(3))
    first = _applied(sql)
    worker.cut(FIRST)
    assert (first, _applied(sql)) == ({1: "a", 2: "a", 3: "a"},) * 2
    worker.put(TABLE, row(2, None), row(4), deletes=(1, 9))
    before = _applied(sql)
    assert _seen(sql)[0] == {1: "a", 2: "a", 3: "a"}
    worker.cut(FIRST + 1)
    assert (before, _applied(sql), _seen(sql)[0]) == ({2: None, 3: "a", 4: "a"},) * 3
    worker.apply(TABLE, ReducedBatch(shape(), 0, 0, truncates=True))
    worker.put(TABLE, row(2, "new"))
    assert (_applied(sql), _applied(sql, OTHER)) == ({2: "new"}, {})
    worker.close()


def test_a_cut_that_is_made_while_rows_are_read_is_there_whole_or_not_at_all(sql: Bed) -> None:
    """Each batch gives all rows one name, and takes some away or brings them back."""
    worker, done, found = _Worker(sql), threading.Event(), list[dict[int, Any]]()

    def read() -> None:
        while not done.is_set():
            found.append(_applied(sql))

    worker.put(TABLE, *(row(at, "0") for at in range(40)))
    reading = threading.Thread(target=read)
    reading.start()
    for number in range(1, 13):
        # Some of them come while the reader is between its look and its rows.
        there = range(20 if number % 2 else 40)
        gone = tuple(range(20, 40)) if number % 2 else ()
        worker.put(TABLE, *(row(at, str(number)) for at in there), deletes=gone)
        worker.cut(FIRST + number)
    done.set()
    reading.join()
    for one in found:
        (name,) = {*one.values()}
        assert one.keys() == {*range(20 if int(name) % 2 else 40)}
    assert len({next(iter(one.values())) for one in found}) > 2
    worker.close()


def test_what_is_applied_is_read_where_what_was_gathered_lacks_a_column(sql: Bed) -> None:
    """A worker without cuts left it behind, and has a new column since."""
    worker = _Worker(sql)
    worker.put(TABLE, row(1))
    worker.close()
    plain = _Worker(sql, cuts=False)
    flag = Column("flag", ColumnType("varchar", length=10), default="old")
    grown = shape(ID, NAME, flag)
    plain.tables[TABLE].evolve(grown)
    plain.apply(TABLE, sql.batch(grown, [{"id": 2, "name": "b", "flag": "new"}]))
    assert _applied(sql, TABLE, ID, NAME, flag) == {1: "a", 2: "b"}
    plain.close()


def test_what_is_applied_is_read_of_a_table_whose_texts_are_compared_otherwise(sql: Bed) -> None:
    """Somebody made it, with a character set of their own."""
    worker = _Worker(sql)
    worker.put(TABLE, row(1, "ä"))
    worker.cut(FIRST)
    other = 'COLLATE "C"' if sql.name == "postgres" else "CHARACTER SET latin1 COLLATE latin1_german2_ci"
    word = "ALTER COLUMN name TYPE" if sql.name == "postgres" else "MODIFY name"
    execute(sql, f"ALTER TABLE {{}} {word} varchar(20) {other}")
    worker.put(TABLE, row(2, "ö"))
    assert _applied(sql) == {1: "ä", 2: "ö"}
    worker.close()


@quick_on("postgres", "mysql")
def test_a_table_that_is_left_out_is_seen_at_once_until_a_cut_has_it_again(sql: Bed) -> None:
    worker = _Worker(sql)
    # Nor has a cut a table that was just made.
    assert _excluded(sql) == {*TABLES}
    worker.put(TABLE, row(1), row(2))
    worker.put(OTHER, row(1, "x"))
    worker.cut(FIRST)
    assert _excluded(sql) == set()
    worker.put(TABLE, row(2, "gathered"), row(3))
    worker.put(TABLE, row(4, "read"), deletes=(1,), outside=True)
    worker.put(OTHER, row(1, "y"))
    assert (_seen(sql), _excluded(sql)) == ([{2: "gathered", 3: "a", 4: "read"}, {1: "x"}], {TABLE})
    worker.cut(FIRST + 1, without={TABLE})
    worker.put(TABLE, row(2, "read"), outside=True)
    assert (_seen(sql), _excluded(sql)) == ([{2: "read", 3: "a", 4: "read"}, {1: "y"}], {TABLE})
    # It goes on to gather, and is as of no cut before the next.
    worker.put(TABLE, row(2, "late"), deletes=(3,))
    assert (_seen(sql)[0], _excluded(sql)) == ({2: "read", 3: "a", 4: "read"}, {TABLE})
    assert _applied(sql) == {2: "late", 4: "read"}
    worker.cut(FIRST + 2)
    assert (_seen(sql), _excluded(sql)) == ([{2: "late", 4: "read"}, {1: "y"}], set())
    worker.close()


def test_a_cut_says_of_a_table_that_it_has_it_not_though_nothing_of_it_was_applied_since(sql: Bed) -> None:
    worker = _Worker(sql)
    worker.put(TABLE, row(1))
    worker.put(OTHER, row(1, "x"))
    worker.cut(FIRST)
    worker.put(TABLE, row(1, "gathered"))
    worker.cut(FIRST + 1, without={TABLE})
    assert (_seen(sql), _excluded(sql)) == ([{1: "a"}, {1: "x"}], {TABLE})
    worker.cut(FIRST + 2)
    assert (_seen(sql), _excluded(sql)) == ([{1: "gathered"}, {1: "x"}], set())
    worker.close()


def test_a_table_is_emptied_while_it_is_left_out(sql: Bed) -> None:
    worker = _Worker(sql)
    worker.put(TABLE, row(1))
    worker.cut(FIRST)
    worker.put(TABLE, row(2))
    worker.apply(TABLE, ReducedBatch(shape(), 0, 0, truncates=True, how=ApplyOptions(outside=True)))
    worker.put(TABLE, row(3), outside=True)
    assert (_seen(sql)[0], _excluded(sql)) == ({3: "a"}, {TABLE, OTHER})
    worker.close()


def test_a_batch_that_is_cut_off_leaves_the_table_in_the_cut(sql: Bed) -> None:
    """What was gathered is not merged, nor is the table said to be left out; the next worker goes on."""
    first = _Worker(sql)
    first.put(TABLE, row(1))
    first.put(OTHER, row(1, "x"))
    first.cut(FIRST)
    first.put(TABLE, row(2))
    execute(sql, "ALTER TABLE {} ADD CONSTRAINT small CHECK (amount < 10)")
    with pytest.raises(TargetError):
        first.put(TABLE, row(3, amount=10), outside=True)
    assert (_seen(sql), _excluded(sql)) == ([{1: "a"}, {1: "x"}], set())
    first.close()
    second = _Worker(sql)
    assert second.batches[TABLE] == 2
    second.put(TABLE, row(3, amount=9), outside=True)
    assert (_seen(sql)[0], _excluded(sql)) == ({1: "a", 2: "a", 3: "a"}, {TABLE})

    def killed(name: TableId, table: SqlTable) -> object:
        return _Dies(table) if name == TABLE else table

    with pytest.raises(_KilledError):
        second.cut(FIRST + 1, killed)
    # The cut that is cut off has it not again.
    assert (_excluded(sql), second.log.last()) == ({TABLE}, FIRST)
    second.cut(FIRST + 1)
    assert (_excluded(sql), second.log.last()) == (set(), FIRST + 1)
    second.close()


def test_a_table_is_emptied_by_the_cut(sql: Bed) -> None:
    worker = _Worker(sql)
    worker.put(TABLE, row(1), row(2))
    worker.cut(FIRST)
    worker.put(TABLE, row(3))
    worker.apply(TABLE, ReducedBatch(shape(), 0, 0, truncates=True))
    worker.put(TABLE, row(2, "new"))
    assert _seen(sql)[0] == {1: "a", 2: "a"}
    worker.cut(FIRST + 1)
    assert _seen(sql)[0] == {2: "new"}
    worker.close()


def test_columns_change_between_cuts(sql: Bed) -> None:
    worker = _Worker(sql)
    worker.put(TABLE, row(1), row(2))
    table = worker.tables[TABLE]
    wider = Column("amount", ColumnType("bigint"))
    flag = Column("flag", ColumnType("varchar", length=10), default="old")
    grown = shape(ID, NAME, wider, flag)
    table.evolve(grown)
    worker.apply(TABLE, sql.batch(grown, [{"id": 2, "name": "b", "amount": 1 << 40, "flag": "new"}]))
    table.rename_column("name", "title")
    title = Column("title", ColumnType("varchar", length=20))
    renamed = shape(ID, title, wider, flag)
    worker.apply(TABLE, sql.batch(renamed, [{"id": 3, "title": "c", "amount": 3, "flag": "new"}]))
    table.drop_columns(["flag"])
    last = shape(ID, title, wider)
    worker.apply(TABLE, sql.batch(last, [{"id": 4, "title": "d", "amount": 4}]))
    assert sql.rows() == []
    worker.cut(FIRST)
    assert sql.rows() == [
        {"id": 1, "title": "a", "amount": 1},
        {"id": 2, "title": "b", "amount": 1 << 40},
        {"id": 3, "title": "c", "amount": 3},
        {"id": 4, "title": "d", "amount": 4},
    ]
    worker.close()


def test_a_column_that_is_added_has_its_default_in_rows_that_were_gathered(sql: Bed) -> None:
    worker = _Worker(sql)
    worker.put(TABLE, row(1))
    flag = Column("flag", ColumnType("varchar", length=10), default="old")
    worker.tables[TABLE].evolve(shape(ID, NAME, Column("amount", ColumnType("int")), flag))
    worker.close()
    next_worker = _Worker(sql, columns=(ID, NAME, Column("amount", ColumnType("int")), flag))
    next_worker.cut(FIRST)
    assert sql.rows() == [{"id": 1, "name": "a", "amount": 1, "flag": "old"}]
    next_worker.close()


def test_without_cuts_in_the_config_what_was_gathered_is_merged(sql: Bed) -> None:
    worker = _Worker(sql)
    worker.put(TABLE, row(0))
    worker.put(OTHER, row(1, "x"))
    worker.cut(FIRST)
    worker.put(TABLE, row(1), deletes=(0,))
    worker.close()
    plain = _Worker(sql, cuts=False)
    assert (_seen(sql), _excluded(sql)) == ([{1: "a"}, {1: "x"}], {*TABLES})
    plain.put(TABLE, row(2))
    assert _seen(sql) == [{1: "a", 2: "a"}, {1: "x"}]
    plain.close()
    # Nor are the tables as of the last cut where there are to be others again.
    again = _Worker(sql)
    assert (_excluded(sql), again.log.last()) == ({*TABLES}, FIRST)
    again.cut(FIRST + 1)
    assert (_excluded(sql), again.log.last()) == (set(), FIRST + 1)
    again.close()


def test_a_table_that_is_loaded_again_has_nothing_of_what_was_gathered_before(sql: Bed) -> None:
    worker = _Worker(sql)
    worker.put(TABLE, row(1), row(2))
    worker.close()
    execute(sql, "DROP TABLE {}", "DELETE FROM [] WHERE table_name = 'orders'")
    again = _Worker(sql)
    again.put(TABLE, row(2, "b"))
    again.cut(FIRST)
    assert _seen(sql)[0] == {2: "b"}
    again.close()


def test_a_table_that_is_loaded_again_without_cuts_has_nothing_of_it_either(sql: Bed) -> None:
    """Nor when the worker starts once more, with something applied by then."""
    worker = _Worker(sql)
    worker.put(TABLE, row(1), row(2))
    worker.close()
    execute(sql, "DROP TABLE {}", "DELETE FROM [] WHERE table_name = 'orders'")
    again = _Worker(sql, cuts=False)
    again.put(TABLE, row(2, "b"))
    again.close()
    _Worker(sql, cuts=False).close()
    assert _seen(sql)[0] == {2: "b"}


def test_rows_that_leave_out_values_are_refused(sql: Bed) -> None:
    worker = _Worker(sql)
    with pytest.raises(TargetError, match="omits unchanged values"):
        worker.apply(TABLE, sql.batch(shape(), [row(1)], kept=("name",)))
    worker.close()
