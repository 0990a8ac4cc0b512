"""A server that reads as of a commit_ts as TiDB does: MariaDB's history, behind a front.

MariaDB's system-versioned tables can be read as they were at a moment, by a variable of their own. The front
hands over every packet as it is, but for TiDB's ``SET @@tidb_snapshot`` and ``@@tidb_current_ts`` and its
columns of ``information_schema.tables``, which it puts into MariaDB's words: what is under test is asked
nothing else than in production. A test gives a table a column ``_tidb_rowid`` that is ``INVISIBLE``, which
the front leaves out of ``information_schema.columns``, as TiDB does.

A transaction's TSO is the clock's, and a transaction under REPEATABLE READ reads as of it: its snapshot is
made when it begins, while no writer is between its commit and its commit_ts (``committing``). A writer that
does without has the order that TiDB gives under READ COMMITTED: what shows may have a later commit_ts.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Final

import pytest
import sqlalchemy as sa

_SNAPSHOT: Final = re.compile(rb"\x03SET @@tidb_snapshot = ([0-9]+)\Z")
_BEGIN: Final = b"\x03START TRANSACTION"
_CURRENT: Final = b"\x03SELECT @@tidb_current_ts"
# In what is selected, and behind FROM: a table's id, which TRUNCATE changes, is InnoDB's.
TABLE_ID: Final = (
    "(SELECT max(i.table_id) FROM information_schema.innodb_sys_tables i "
    "WHERE i.name = concat(tables.table_schema, '/', tables.table_name))"
)
_IN_OUR_WORDS: Final = {
    b"information_schema.tables.tidb_table_id": TABLE_ID.encode(),
    b"information_schema.tables.tidb_pk_type": b"'NONCLUSTERED'",
    b"FROM information_schema.columns \nWHERE ": b"FROM information_schema.columns "
    b"WHERE columns.column_name <> '_tidb_rowid' AND ",
}
_LOGICAL: Final = (1 << 18) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def tidb_url(mariadb_url: str) -> Iterator[str]:
    """The SQLAlchemy URL of a server that knows ``tidb_snapshot``, in place of ``mariadb_url``."""
    behind = sa.engine.make_url(mariadb_url)
    with _front(behind.host or "127.0.0.1", behind.port or 3306) as port:
        yield behind.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)


def commit_ts(moment: datetime) -> int:
    """The TSO of a moment."""
    return (moment - _EPOCH) // timedelta(milliseconds=1) << 18


def next_tso() -> int:
    """A TSO of now; each is later than all before it."""
    global _last  # noqa: PLW0603  (one clock for all)
    with _turn:
        _last = max(_last + 1, commit_ts(datetime.now(timezone.utc)))
        return _last


@contextmanager
def clock_at(tso: int) -> Iterator[None]:
    """Inside the block, TSOs follow ``tso``, which is later than now."""
    global _last  # noqa: PLW0603
    before, _last = _last, tso
    try:
        yield
    finally:
        _last = before


_last = 0
_turn: Final = threading.Lock()
_commits: Final = threading.Lock()


@contextmanager
def committing() -> Iterator[None]:
    """A writer commits here, and takes its commit_ts: no transaction of the front begins in between."""
    with _commits:
        yield


def moment_of(tso: int) -> str:
    """A TSO as MariaDB's history counts: the counter below the milliseconds as microseconds."""
    found = _EPOCH + timedelta(milliseconds=tso >> 18, microseconds=min(tso & _LOGICAL, 999))
    return f"{found:%Y-%m-%d %H:%M:%S.%f}"


@contextmanager
def _front(host: str, port: int) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, host, port), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread


def _accept(listener: socket.socket, host: str, port: int) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection((host, port))
            answered = threading.Event()
            for work in (_requests, _answers):
                threading.Thread(target=work, args=(client, server, answered), daemon=True).start()


def _requests(client: socket.socket, server: socket.socket, answered: threading.Event) -> None:
    began = 0
    with suppress(OSError), client, server, client.makefile("rb") as packets:
        while head := packets.read(4):
            body = packets.read(int.from_bytes(head[:3], "little"))
            if body == _BEGIN:
                with committing():
                    answered.clear()
                    _send(server, head, _BEGIN + b" WITH CONSISTENT SNAPSHOT")
                    answered.wait(30)
                    began = next_tso()
                continue
            found = _SNAPSHOT.fullmatch(body)
            if found is not None:
                body = f"\x03SET @@system_versioning_asof = '{moment_of(int(found[1]))}'".encode()
            elif body == _CURRENT:
                body = f"\x03SELECT '{began}'".encode()
            elif b"FROM information_schema." in body:
                for theirs, ours in _IN_OUR_WORDS.items():
                    body = body.replace(theirs, ours)
            _send(server, head, body)
        server.shutdown(socket.SHUT_RDWR)


def _send(server: socket.socket, head: bytes, body: bytes) -> None:
    server.sendall(len(body).to_bytes(3, "little") + head[3:] + body)


def _answers(client: socket.socket, server: socket.socket, answered: threading.Event) -> None:
    with suppress(OSError):
        while data := server.recv(65536):
            client.sendall(data)
            answered.set()
