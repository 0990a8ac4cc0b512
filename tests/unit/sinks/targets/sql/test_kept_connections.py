"""Connections that the tasks of a process keep for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from tidesink.sinks.targets.sql.load import close_kept, kept_connection
from tidesink.sinks.targets.sql.location import Endpoint


@dataclass
class _Connection:
    is_alive: bool = True
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


@dataclass
class _Database:
    """A database that no other test has, and the connections to it."""

    endpoint: Endpoint = field(default_factory=lambda: Endpoint(uuid4().hex, 1, "d", "u", "p"))
    opened: list[_Connection] = field(default_factory=list)

    def connect(self, _endpoint: Endpoint) -> _Connection:
        self.opened.append(_Connection())
        return self.opened[-1]

    def use(self, stack: ExitStack, *, trusted: float = 60.0) -> _Connection:
        """A connection until the stack is closed."""
        kept = kept_connection(
            self.endpoint, self.connect, lambda connection: connection.is_alive, trusted=trusted
        )
        connection = stack.enter_context(kept)
        assert isinstance(connection, _Connection)
        return connection


@pytest.fixture
def database() -> Iterator[_Database]:
    yield _Database()
    close_kept()


def test_tasks_one_after_the_other_use_one_connection(database: _Database) -> None:
    for _ in range(3):
        with ExitStack() as task:
            database.use(task)
    assert len(database.opened) == 1


def test_tasks_at_the_same_time_have_a_connection_each(database: _Database) -> None:
    with ExitStack() as task, ExitStack() as other:
        assert database.use(task) is not database.use(other)
    with ExitStack() as task, ExitStack() as other:
        database.use(task)
        database.use(other)
    assert len(database.opened) == 2


def _fail(database: _Database) -> None:
    """A task that fails while it has a connection."""
    with ExitStack() as task:
        database.use(task)
        raise ZeroDivisionError


def test_a_connection_of_a_failed_task_and_a_dead_one_are_not_used_again(database: _Database) -> None:
    with pytest.raises(ZeroDivisionError):
        _fail(database)
    assert database.opened[0].is_closed
    with ExitStack() as task:
        database.use(task).is_alive = False
    with ExitStack() as task:
        assert database.use(task) is database.opened[1]  # it was used a moment ago
    with ExitStack() as task:
        assert database.use(task, trusted=0.0) is database.opened[2]


def test_few_connections_are_kept_and_closed_in_the_end(database: _Database) -> None:
    with ExitStack() as tasks:
        for _ in range(20):
            database.use(tasks)
    kept = [connection for connection in database.opened if not connection.is_closed]
    assert 1 <= len(kept) <= 8
    close_kept()
    assert all(connection.is_closed for connection in database.opened)
