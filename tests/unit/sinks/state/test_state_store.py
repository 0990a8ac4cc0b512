"""A state store beside others: what they made first, and a file that they have locked."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg.errors
import pymysql
import pytest
import sqlalchemy as sa

from tests.unit.config.samples import CANAL_JSON, changed, right
from tidesink.errors import StateStoreError, UnusableStateStoreError
from tidesink.sinks.runtime.observers import StepRetried, WorkerEvent
from tidesink.sinks.state.sql_store import SqlStateStore, _made_by_others
from tidesink.sinks.worker.run import run


@pytest.mark.parametrize(
    "said",
    [
        psycopg.errors.DuplicateTable("Relation »store_version« existiert bereits"),
        psycopg.errors.DuplicateObject("Typ »store_version« existiert bereits"),
        pymysql.OperationalError(1050, "Tabelle 'store_version' bereits vorhanden"),
        sqlite3.OperationalError("table store_version already exists"),
    ],
    ids=["postgres", "postgres' type", "mariadb", "sqlite"],
)
def test_a_server_says_in_any_language_that_others_made_a_table(said: Exception) -> None:
    assert _made_by_others(sa.exc.OperationalError("CREATE TABLE store_version", {}, said))


@pytest.mark.parametrize("said", [psycopg.errors.InsufficientPrivilege("nein"), pymysql.OperationalError()])
def test_what_else_a_server_says_is_no_table_that_others_made(said: Exception) -> None:
    assert not _made_by_others(sa.exc.OperationalError("CREATE TABLE store_version", {}, said))


def test_a_file_that_another_has_locked_is_waited_for(tmp_path: Path) -> None:
    """A new one, and one that is in use."""
    place = tmp_path / "s.db"
    with _locked_for_a_while(place):
        store = SqlStateStore(str(place))
    with _locked_for_a_while(place):
        store.save_document("ledger", "t", 1)
    assert store.load_document("ledger", "t") == 1
    store.close()


def test_a_file_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    """Root may write what others may not: a folder in the file's place, and a file of something else."""
    folder, other = tmp_path / "folder", tmp_path / "notes.txt"
    folder.mkdir()
    other.write_text("no database" * 100, encoding="utf-8")
    below = other / "state.db"
    for place, reason in (
        (folder, "unable to open database file"),
        (other, "file is not a database"),
        (below, "Not a directory|File exists"),
    ):
        with pytest.raises(UnusableStateStoreError, match=reason) as refused:
            SqlStateStore(str(place))
        assert str(place.parent) in refused.value.message


def test_a_store_that_can_only_be_read_is_refused_to_a_worker(tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    SqlStateStore(str(place)).close()
    store = SqlStateStore(f"sqlite:///file:{place}?mode=ro&uri=true")
    with pytest.raises(UnusableStateStoreError, match=r"readonly database.* set state to another location"):
        store.try_write()
    store.close()


@contextmanager
def _locked_for_a_while(place: Path) -> Iterator[None]:
    holder = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    released = threading.Event()

    def release() -> None:
        released.set()
        holder.close()

    end = threading.Timer(0.5, release)
    end.start()
    yield
    assert released.is_set()
    end.join()


class _Heard:
    def __init__(self) -> None:
        self.events: list[WorkerEvent] = []

    def hear(self, event: WorkerEvent) -> None:
        self.events.append(event)


def test_a_worker_says_at_each_try_that_its_store_does_not_answer() -> None:
    config = right(
        changed(CANAL_JSON, state="postgresql+psycopg://tidesink@127.0.0.1:1/x", retry={"for": "1s"})
    )
    heard = _Heard()
    with pytest.raises(StateStoreError):
        run(config, listeners=[heard])
    told = [event for event in heard.events if isinstance(event, StepRetried)]
    assert told
    assert all(isinstance(event.error, StateStoreError) and event.table is None for event in told)
