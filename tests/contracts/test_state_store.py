"""What a state store promises: on SQLite by its path and its URL, on Postgres and on MariaDB."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from tests.contracts.sql_beds import mysql_server, postgres_database
from tests.contracts.targets_bed import TABLE, progress
from tidesink.config.fields import LONGEST_PIPELINE
from tidesink.errors import ConfigError, StateStoreError
from tidesink.events import TableId
from tidesink.sinks.state.progress import StateStore, TableState, TableStatus, txn_version
from tidesink.sinks.state.sql_store import KEPT_BATCHES, SqlStateStore, open_state_store
from tidesink.sinks.targets.sql.location import Endpoint


def _path(_request: pytest.FixtureRequest, folder: Path) -> str:
    return str(folder / "made" / "state.db")


def _url(_request: pytest.FixtureRequest, folder: Path) -> str:
    return f"sqlite:///{folder / 'made' / 'state.db'}"


def _postgres(request: pytest.FixtureRequest, _folder: Path) -> str:
    return _database_url("postgresql+psycopg", postgres_database(request))


def _mariadb(request: pytest.FixtureRequest, _folder: Path) -> str:
    server, name = mysql_server(request), f"tidesink_{uuid4().hex[:12]}"
    engine = sa.create_engine(_database_url("mysql+pymysql", server))
    with engine.begin() as connection:
        # Whatever its default is: names are identified by their letters, and may hold any character.
        connection.execute(sa.text(f"CREATE DATABASE {name} CHARACTER SET latin1"))
    engine.dispose()
    return _database_url("mysql+pymysql", replace(server, database=name))


def _database_url(driver: str, server: Endpoint) -> str:
    url = sa.URL.create(driver, server.user, server.password, server.host, server.port, server.database)
    return url.render_as_string(hide_password=False)


_PLACES = {"path": _path, "url": _url, "postgres": _postgres, "mariadb": _mariadb}
_MARKS = {"postgres": [pytest.mark.servers], "mariadb": [pytest.mark.servers]}


@pytest.fixture(params=[pytest.param(name, marks=_MARKS.get(name, [])) for name in _PLACES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store of the test's own may be made."""
    return _PLACES[request.param](request, tmp_path)


@pytest.fixture
def store(place: str) -> Iterator[StateStore]:
    opened = open_state_store(place)
    yield opened
    opened.close()


def test_history_is_found_by_transaction_version(store: StateStore) -> None:
    store.record_progress(progress(1, 1))
    store.record_progress(progress(2, 2))
    assert store.progress_of("shop", TABLE, txn_version(1, 1)) == progress(1, 1)
    assert store.progress_of("shop", TABLE, txn_version(2, 2)) == progress(2, 2)
    assert store.progress_of("shop", TABLE, txn_version(2, 3)) is None
    assert store.progress_of("other", TABLE, txn_version(1, 1)) is None
    assert store.progress_of("shop", TableId("shop.orders", ""), txn_version(1, 1)) is None


def test_a_batch_recorded_again_replaces_itself(store: StateStore) -> None:
    store.record_progress(progress(1, 1))
    store.record_progress(progress(1, 1))
    assert store.progress_of("shop", TABLE, txn_version(1, 1)) == progress(1, 1)


def test_history_is_found_by_batch(store: StateStore) -> None:
    """Of a batch that was tried again the last try counts; of a table that was made again its newest life."""
    for epoch, batch in ((1, 1), (1, 2), (3, 2), (3, 3), (1, 3)):
        store.record_progress(progress(epoch, batch))
    found = {batch: store.progress_of_batch("shop", TABLE, batch) for batch in (0, 1, 2, 3, 4)}
    assert found == {0: None, 1: progress(1, 1), 2: progress(3, 2), 3: progress(1, 3), 4: None}
    assert store.progress_of_batch("other", TABLE, 1) is None


def test_old_history_is_dropped(store: StateStore) -> None:
    """That of a table that was there before, and counted further, first."""
    store.record_progress(progress(7, 1))
    for batch in range(KEPT_BATCHES - 2, 2 * KEPT_BATCHES + 1):
        store.record_progress(progress(1, batch))
    assert store.progress_of("shop", TABLE, txn_version(7, 1)) is None
    assert store.progress_of("shop", TABLE, txn_version(1, KEPT_BATCHES)) is None
    assert store.progress_of("shop", TABLE, txn_version(1, KEPT_BATCHES + 1)) is not None
    assert store.progress_of("shop", TABLE, txn_version(1, 2 * KEPT_BATCHES)) is not None


def test_status_is_replaced_and_listed_by_table(store: StateStore) -> None:
    first = TableStatus("shop", TableId("shop", "b"), "RUNNING", counters={"read": 5})
    store.save_status(first)
    store.save_status(TableStatus("shop", TableId("shop", "a"), "IDLE"))
    store.save_status(TableStatus("other", TableId("shop", "c"), "IDLE"))
    failed = TableStatus(
        "shop",
        first.table,
        "FAILING",
        error="TargetError: no",
        counters={"read": 9},
        zero_dates={"d": 2},
        warnings=("w",),
        batch=7,
        commit_ts=2**60,
        details={"lag": 3},
    )
    store.save_status(failed)
    found = store.statuses("shop")
    assert [status.table.name for status in found] == ["a", "b"]
    assert found[1].updated is not None
    assert found[1].updated.tzinfo is not None
    assert found[1] == TableStatus(**{**failed.__dict__, "updated": found[1].updated})


def _said(life: int, epoch: int, batch: int, state: TableState = "IDLE") -> TableStatus:
    return TableStatus("shop", TABLE, state, life=life, epoch=epoch, batch=batch)


def test_a_status_is_replaced_by_one_of_the_same_rank_or_a_greater(store: StateStore) -> None:
    assert store.save_status(_said(0, 2, 5))
    for less in (_said(0, 2, 4), _said(0, 1, 9), _said(0, 0, 40)):
        assert not store.save_status(less)
    said = store.status_of("shop", TABLE)
    assert said is not None
    assert (said.rank, said.state) == ((0, 2, 5), "IDLE")
    # A later hold may know of fewer batches, and epochs may begin again.
    for more in (_said(0, 2, 5, "FAILING"), _said(0, 3, 1), _said(1, 1, 0)):
        assert store.save_status(more)
        said = store.status_of("shop", TABLE)
        assert said is not None
        assert (said.rank, said.state) == (more.rank, more.state)
    # It is this table's alone.
    assert store.save_status(TableStatus("shop", TableId("shop", "other"), "IDLE"))
    assert store.save_status(TableStatus("other", TABLE, "IDLE"))


def test_statuses_of_several_tables_are_saved_together(store: StateStore) -> None:
    # More than the store writes with one statement.
    many = [TableStatus("shop", TableId("shop", f"t{number:04}"), "IDLE", epoch=1) for number in range(1_200)]
    store.save_status(replace(many[7], epoch=2))
    assert store.save_statuses(many) == (many[7],)
    running = [replace(status, state="RUNNING", batch=1) for status in many]
    assert store.save_statuses(running[::-1]) == (running[7],)
    found = [(status.table, status.state, status.rank) for status in store.statuses("shop")]
    expected = [(status.table, status.state, status.rank) for status in running]
    assert found == [*expected[:7], (many[7].table, "IDLE", (0, 2, 0)), *expected[8:]]
    assert store.save_statuses(()) == ()


def test_of_many_who_say_at_once_how_a_table_stands_the_greatest_rank_stays(store: StateStore) -> None:
    def say(epoch: int) -> None:
        for batch in range(10):
            store.save_status(_said(0, epoch, batch))

    threads = [threading.Thread(target=say, args=(epoch,)) for epoch in (3, 1, 4, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = store.status_of("shop", TABLE)
    assert said is not None
    assert said.rank == (0, 4, 9)


def test_documents_are_kept_by_kind_and_name(store: StateStore) -> None:
    assert store.load_document("definitions", "stream") is None
    store.save_document("definitions", "stream", {"tables": [1, "ü", None]})
    store.save_document("definitions", "stream", {"tables": []})
    store.save_document("other", "stream", [1])
    assert store.load_document("definitions", "stream") == {"tables": []}
    assert store.load_document("other", "stream") == [1]


def test_of_many_who_keep_the_first_document_of_a_name_at_once_none_fails(store: StateStore) -> None:
    start = threading.Barrier(4)

    def keep(number: int) -> None:
        for each in range(10):
            start.wait(240)
            store.save_document("definitions", f"d{each}", number)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(keep, range(4))) == [None] * 4
    assert all(store.load_document("definitions", f"d{each}") in range(4) for each in range(10))


def test_a_document_is_swapped_only_for_the_one_that_was_seen(store: StateStore) -> None:
    assert not store.swap_document("ledger", "t", old={"epoch": 1}, new={"epoch": 2})
    assert store.swap_document("ledger", "t", old=None, new={"epoch": 1, "name": "ü"})
    assert not store.swap_document("ledger", "t", old=None, new={"epoch": 7})
    seen = store.load_document("ledger", "t")
    assert store.swap_document("ledger", "t", old=seen, new={"epoch": 2})
    assert not store.swap_document("ledger", "t", old=seen, new={"epoch": 3})
    assert store.load_document("ledger", "t") == {"epoch": 2}
    assert not store.swap_document("other", "t", old={"epoch": 2}, new={"epoch": 3})


def test_of_many_who_swap_at_once_each_counts(store: StateStore) -> None:
    store.save_document("ledger", "t", 0)

    def count() -> None:
        for _ in range(10):
            while True:
                seen = store.load_document("ledger", "t")
                assert seen is not None
                try:
                    if store.swap_document("ledger", "t", old=seen, new=seen + 1):
                        break
                except StateStoreError:
                    continue  # locked by another's swap

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.load_document("ledger", "t") == 40


def test_threads_share_a_store(store: StateStore) -> None:
    def write(number: int) -> None:
        table = TableId("shop", f"t{number}")
        for batch in range(1, 20):
            store.record_progress(progress(1, batch, table=table))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        table = TableId("shop", f"t{number}")
        assert store.progress_of("shop", table, txn_version(1, 19)) == progress(1, 19, table=table)


def test_names_are_told_apart_by_every_letter_and_may_be_long(store: StateStore) -> None:
    names = ("orders", "Orders", "ördérs", "orders😀", "\U0001f600" * 64, "o" * 64)
    for number, name in enumerate(names):
        store.save_status(TableStatus("p" * LONGEST_PIPELINE, TableId("s" * 64, name), "IDLE", batch=number))
    found = {status.table.name: status.batch for status in store.statuses("p" * LONGEST_PIPELINE)}
    assert found == {name: number for number, name in enumerate(names)}


def test_a_document_may_be_large_and_hold_anything(store: StateStore) -> None:
    document = {"text": "ü😀\\ '\"%s:name" * 20_000, "none": None}
    store.save_document("definitions", "stream", document)
    assert store.load_document("definitions", "stream") == document


def test_many_tables_have_their_first_rows_at_once(store: StateStore) -> None:
    def begin(number: int) -> None:
        for each in range(10):
            table = TableId("shop", f"t{each}{number}")
            store.record_progress(progress(1, 1, table=table))
            store.save_status(TableStatus("shop", table, "IDLE"))
            store.save_document("ledger", str(table), {})

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(begin, range(4))) == [None] * 4
    assert len(store.statuses("shop")) == 40


def test_of_many_who_make_a_store_at_once_each_has_it(place: str) -> None:
    """A worker that starts and whoever asks for its status, or the workers of several pipelines."""
    start = threading.Barrier(4)

    def make(number: int) -> None:
        start.wait(240)
        opened = open_state_store(place)
        opened.save_status(TableStatus("shop", TableId("shop", f"t{number}"), "IDLE"))
        opened.close()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(make, range(4))) == [None] * 4
    store = open_state_store(place)
    assert len(store.statuses("shop")) == 4
    store.close()


def test_what_is_written_outlives_the_store(place: str) -> None:
    first = open_state_store(place)
    first.record_progress(progress(3, 4))
    first.close()
    second = open_state_store(place)
    assert second.progress_of("shop", TABLE, txn_version(3, 4)) == progress(3, 4)
    second.close()


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    open_state_store(tmp_path / "s.db").close()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 's.db'}")
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE store_version SET version = 99"))
    engine.dispose()
    with pytest.raises(ConfigError, match="version 99"):
        open_state_store(tmp_path / "s.db")


def test_a_damaged_store_says_so(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_bytes(b"this is no database, not at all" * 100)
    with pytest.raises(StateStoreError, match="state store"):
        SqlStateStore(str(tmp_path / "s.db"))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nothing://u:hunter2@x", "no SQLAlchemy driver for nothing"),
        ("postgres+none://u:hunter2@h/d", "no SQLAlchemy driver for postgres.none"),
        ("://", "nor a valid SQLAlchemy URL"),
        ("mysql+pymysql://u:hunter2@h:port/d", "nor a valid SQLAlchemy URL"),
    ],
)
def test_a_place_that_is_no_database_is_refused(place: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        open_state_store(place)
    assert "hunter2" not in str(refused.value)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateStoreError, match="folder"):
        open_state_store(tmp_path / "file" / "state.db")


def test_the_file_is_a_file(tmp_path: Path) -> None:
    open_state_store(tmp_path / "s.db").close()
    assert stat.S_ISREG((tmp_path / "s.db").stat().st_mode)


def test_the_status_of_one_table_is_found_without_the_others(store: StateStore) -> None:
    assert store.status_of("shop", TABLE) is None
    store.save_status(TableStatus("shop", TABLE, "IDLE", batch=3))
    store.save_status(TableStatus("other", TABLE, "RUNNING", batch=4))
    (only,) = store.statuses("shop")
    assert store.status_of("shop", TABLE) == only
    assert store.status_of("shop", TableId(TABLE.name, TABLE.schema)) is None


def test_progress_that_was_said_before_is_not_written_again(tmp_path: Path) -> None:
    place = tmp_path / "state.db"
    store = SqlStateStore(str(place))
    store.record_progress(progress(1, 1))
    with sa.create_engine(f"sqlite:///{place}").begin() as connection:
        connection.execute(sa.text("UPDATE progress_history SET written = '2001-01-01 00:00:00.000000'"))
    store.record_progress(progress(1, 1))
    store.record_progress(progress(1, 2))
    with sa.create_engine(f"sqlite:///{place}").begin() as connection:
        written = sa.text("SELECT written FROM progress_history ORDER BY txn_version")
        years = [str(row.written)[:4] for row in connection.execute(written)]
    assert (years[0], years[1] > "2001") == ("2001", True)
    store.record_progress(progress(1, 1))
    assert store.progress_of("shop", TABLE, txn_version(1, 1)) == progress(1, 1)
    store.close()


@pytest.mark.parametrize("secret", ["u:hunter2@127.0.0.1:9/d", "u@127.0.0.1:9/d?password=hunter2"])
@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_database_that_does_not_answer_is_shown_without_its_password(driver: str, secret: str) -> None:
    with pytest.raises(StateStoreError, match=r"127\.0\.0\.1:9/d") as refused:
        open_state_store(f"{driver}://{secret}")
    assert "hunter2" not in f"{refused.value} {refused.value.context}"
