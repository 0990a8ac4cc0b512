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

from tidesink.sinks.state.sql_store import SqlStateStore, _made_by_others


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
