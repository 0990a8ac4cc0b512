"""The interface to one kind of database (``Dialect``), and a target's pool of connections."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from tidesink.config.fields import ChangeKind
from tidesink.errors import SchemaRefusedError, TidesinkError
from tidesink.sinks.targets.sql.columns import SqlLimits
from tidesink.sinks.targets.sql.faults import Fault
from tidesink.sinks.targets.sql.load import Load, Read
from tidesink.sinks.targets.sql.location import Endpoint, Place
from tidesink.typemap.render_sql import Database


class MergeColumn(NamedTuple):
    """A column: its quoted name in the target, and its name in the staging table."""

    target: str
    staged: str
    key: bool


@dataclass(frozen=True)
class Merge:
    """A staged batch and its target table.

    ``mark``: quoted column that marks deleted rows.
    ``kept``: columns whose values rows may omit, with their index in the shape.
    ``sequence``: quoted column of the rows' positions, if the batch is in the source's order.
    ``on_delete``: columns that a soft delete writes in addition to the mark.
    ``beside``: quoted columns that the batch does not have, and that a delete in source order empties too.
    """

    target: str
    stage: str
    columns: tuple[MergeColumn, ...]
    attempts: tuple[int, ...]
    upserts: int
    deletes: int
    soft: bool
    mark: str | None
    place: Place
    kept: tuple[tuple[int, MergeColumn], ...] = ()
    sequence: str | None = None
    on_delete: tuple[MergeColumn, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[MergeColumn, ...]:
        """The key columns."""
        return tuple(column for column in self.columns if column.key)

    @property
    def values(self) -> tuple[MergeColumn, ...]:
        """The columns that are not part of the key."""
        return tuple(column for column in self.columns if not column.key)

    @property
    def on(self) -> str:
        """SQL: the keys are equal. The target is ``t``, the staging table is ``s``."""
        return " AND ".join(f"t.{column.target} = s.{column.staged}" for column in self.keys)

    @property
    def counted(self) -> str:
        """SQL: the row belongs to an attempt that counts."""
        return f"s.t_attempt IN ({', '.join(map(str, self.attempts))})"

    @property
    def taken(self) -> str:
        """SQL: the row is written to the target. In the source's order a delete writes a row too."""
        return self.counted if self.sequence else self.rows(deletes=False)

    @property
    def own(self) -> dict[str, str]:
        """tidesink's own target columns, with the SQL of the value in a written row. The position is last."""
        found = {self.mark: "s.t_delete = 1", self.sequence: "s.t_seq"}
        return {name: value for name, value in found.items() if name is not None}

    def rows(self, *, deletes: bool) -> str:
        """SQL: the row is an upsert, or a delete, of an attempt that counts."""
        return f"s.t_delete = {int(deletes)} AND {self.counted}"


def no_table(place: Place) -> SchemaRefusedError:
    """Return the error of a table name that is used by a view: writing to a view would change its table."""
    return SchemaRefusedError(
        f"{place.shown} is not a table but a view or another object, so rows cannot be written there. Set "
        "`target.table` (or `target.view`, if that template names the view) to another template.",
        table=str(place.source),
    )


class Counts(NamedTuple):
    """Row counts of a merge.

    ``stale``: rows that were not newer than the stored row.
    ``absent``: set only for a history, where all counts have the meaning that ``ApplyResult`` documents.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    stale: int = 0
    absent: int = 0


class ForView(NamedTuple):
    """A statement that restores a view's property. ``column``: run it only if the view has this column."""

    column: str | None
    statement: str


class Dialect(Protocol):
    """The SQL targets' interface to one kind of database."""

    @property
    def database(self) -> Database:
        """The database's name in the type table."""

    @property
    def limits(self) -> SqlLimits:
        """The limits of the database's tables."""

    @property
    def key_length(self) -> int | None:
        """Length of a new text key of unknown length; None if the database needs no length."""

    @property
    def caveats(self) -> Mapping[ChangeKind, str]:
        """Per kind of column change, a requirement that some servers do not meet."""

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """The driver's exception classes."""

    @property
    def ddl_commits(self) -> bool:
        """True if a schema change commits the transaction, including earlier statements."""

    @property
    def insert_missing(self) -> str:
        """A statement around ``table (columns) VALUES (…)`` that does nothing if the key exists."""

    @property
    def hex_prefix(self) -> str:
        """The prefix of hex digits in a CSV file."""

    @property
    def nul_refused(self) -> bool:
        """True if a text cannot hold U+0000."""

    @property
    def load(self) -> Load:
        """The function that fills a staging table from CSV lines. It runs on the executors."""

    @property
    def read(self) -> Read:
        """The function that reads rows as texts, in the server's order. It runs on the executors."""

    @property
    def code_of(self) -> Callable[[BaseException], str | None]:
        """The function that returns an error's code: "" for a lost connection, None if it has no code."""

    def quote(self, name: str) -> str:
        """Quote a name as an identifier."""

    def connect(self, endpoint: Endpoint) -> Any:
        """Open a driver connection with tidesink's session settings, and with autocommit off."""

    def alive(self, connection: Any) -> bool:
        """Return True if an idle connection still answers."""

    @property
    def fault_of(self) -> Callable[[BaseException], Fault | None]:
        """The function that removes row values from a driver error; it returns None for other errors."""

    def error_of(
        self,
        fault: Fault,
        *,
        table: str,
        committing: bool = False,
        user: str = "",
        grants: Sequence[str] = (),
    ) -> TidesinkError:
        """Return the error to raise for a fault.

        ``grants``: the statements that grant ``user`` the missing rights.
        """

    def is_of_rights(self, code: str) -> bool:
        """Return True if a code means that the user lacks a right."""

    def missing_grants(self, cursor: Any, place: Place, *, changes: bool) -> list[str]:
        """Return the statements that grant the user the rights it lacks for a table (``sql.rights``)."""

    def literal(self, text: str, found: str) -> str:
        """Return a value of type ``found`` as SQL, from its literal text (bytes as hex)."""

    def text_of(self, column: str, found: str) -> str:
        """Return SQL that reads a quoted column of type ``found`` as text. Bytes are read as hex digits.

        Instants are in UTC, without a zone.
        """

    def prepare_schema(self, cursor: Any, place: Place) -> None:
        """Create the table's schema and ledger if they are missing."""

    def present(self, cursor: Any, place: Place) -> dict[str, str]:
        """Return a table's types by column, as ``render_sql`` spells them; empty if the table does not exist.

        Raises:
            SchemaRefusedError: a view or another object has the name.
        """

    def folds_names(self, cursor: Any) -> bool:
        """Return True if schema and table names that differ only in case are the same to the server."""

    def identity(self, cursor: Any, place: Place) -> str | None:
        """Return the server's ids of the ledger and the table, which change if one is created again.

        The form is ``ledger:table``. None if the server has no such ids, or the table does not exist.
        """

    def check_keys(self, cursor: Any, place: Place, keys: Collection[str]) -> None:
        """Refuse a table whose key columns (quoted, in lower case) treat different values as equal.

        Raises:
            SchemaRefusedError: a key column does.
        """

    def check_kept(self, cursor: Any, place: Place, columns: Collection[str], keys: Collection[str]) -> None:
        """Refuse a table that does not keep the source's column values (names in lower case) as written.

        Such a table has a column that the server computes, a required column that the source does not have,
        or rows that tidesink does not see. ``keys`` are the key's columns.

        Raises:
            SchemaRefusedError: names how to change the table.
        """

    def create(self, cursor: Any, place: Place, columns: Sequence[tuple[str, str, bool, str]]) -> None:
        """Create a table. ``columns``: name, type, True for a key column, and comment of each column."""

    def alter(
        self,
        location: str,
        added: Mapping[str, tuple[str, str | None]],
        widened: Mapping[str, str],
        keys: frozenset[str],
    ) -> list[str]:
        """Return the statements that add columns and change types.

        ``added``: type, and literal of the default, by column.
        ``keys``: names of the key's columns, in lower case.
        """

    def retyped(self, location: str, name: str, found: str, wanted: str, keys: frozenset[str]) -> list[str]:
        """Return the statements, for the user to run, that change a column's type from ``found``.

        ``keys``: names of the key's columns, in lower case.
        """

    def left_undone(self, cursor: Any, place: Place) -> list[str]:
        """Return the statements of ``alter`` that a killed worker did not get to run."""

    def staging_tables(self, cursor: Any, place: Place) -> list[str]:
        """Return the names of the table's staging tables."""

    def create_staging(self, cursor: Any, stage: str, columns: Mapping[str, str]) -> None:
        """Create a staging table."""

    def load_statement(self, stage: str, columns: Sequence[tuple[str, bool]]) -> str:
        """Return the statement that loads CSV into columns. A column's flag: its values are hex digits."""

    def merge(self, cursor: Any, merge: Merge) -> Counts:
        """Merge a staged batch in the open transaction.

        In the source's order, a row that is not newer than the stored row changes nothing.
        """

    def required(self, cursor: Any, place: Place) -> dict[str, str]:
        """Return the types of the table's NOT NULL columns by name."""

    def nullable(self, cursor: Any, place: Place) -> list[str]:
        """Return the table's columns that can be set to NULL: neither NOT NULL nor computed."""

    def optional(self, place: Place, columns: Mapping[str, str]) -> str:
        """Return the statement, for the user to run, that makes columns (with their types) nullable."""

    def view_text(self, cursor: Any, place: Place, name: str) -> str | None:
        """Return the server's definition of the view ``name`` in the schema; None if the name is free.

        Empty if it is not a view, or if the user may not see its definition.
        """

    def view_statements(self, view: str, query: str) -> list[str]:
        """Return the statements that create or replace a view with a query."""

    def view_in_the_way(self, cursor: Any, view: str) -> tuple[list[str], list[ForView]]:
        """Return the statements to run before and after changing the types of columns that a view reads."""

    def delete_some(self, cursor: Any, location: str, keys: Sequence[str], where: str, *, most: int) -> int:
        """Delete at most ``most`` rows that match a condition, and return their number.

        ``keys``: quoted columns of the key.
        """

    def hex_of(self, expression: str) -> str:
        """Return SQL that formats bytes as hex digits."""

    def truncate(self, cursor: Any, location: str, mark: str | None, *, only: str = "true") -> int:
        """Delete every row that matches ``only``, or mark those not yet deleted. Returns their number."""


_KEPT: Final = 8


class Connections:
    """A target's pool of connections, usable from many threads."""

    def __init__(self, dialect: Dialect, endpoint: Endpoint) -> None:
        self.dialect = dialect
        self.endpoint = endpoint
        self._idle: list[Any] = []
        self._lock = threading.Lock()
        self._places: dict[str, Place] = {}

    def add_place(self, place: Place) -> None:
        """Register a source table's place, so that errors can list the rights that are missing on it."""
        self._places[str(place.source)] = place

    @contextmanager
    def transaction(self, table: str, *, writes: bool = True) -> Iterator[Any]:
        """Open a transaction and yield a cursor. Commits at the end, and rolls back on an error.

        With ``writes`` False it always rolls back.

        Raises:
            TidesinkError: the translated driver error.
            CommitUnknownError: the commit was sent, but not answered.
        """
        with self.translated(table):
            connection = self._borrowed()
        try:
            with self.translated(table), connection.cursor() as cursor:
                yield cursor
            with self.translated(table, committing=writes):
                connection.commit() if writes else connection.rollback()
        except BaseException:
            self._undo(connection)
            raise
        self._put_back(connection)

    @contextmanager
    def kept_awake(self, cursor: Any) -> Iterator[None]:
        """Keep a cursor's connection alive while another connection works and this process lives."""
        done = threading.Event()

        def speak() -> None:
            while not done.wait(self.endpoint.silence / 4) and self.dialect.alive(cursor.connection):
                pass

        speaker = threading.Thread(target=speak, daemon=True)
        speaker.start()
        try:
            yield
        finally:
            done.set()
            speaker.join()

    @contextmanager
    def translated(self, table: str, *, committing: bool = False) -> Iterator[None]:
        """Translate driver errors to tidesink's errors, with a table's name."""
        try:
            yield
        except TidesinkError as exc:
            raise exc.with_context(table=table) from exc.__cause__
        except self.dialect.errors as exc:
            fault = self.dialect.fault_of(exc)
            if fault is None:
                raise
            raise self.error(fault, table=table, committing=committing) from None

    def error(self, fault: Fault, *, table: str, committing: bool = False) -> TidesinkError:
        """Return the error to raise for a fault. A missing right is reported with the grants to run."""
        place = self._places.get(table)
        lacks = place is not None and self.dialect.is_of_rights(fault.code)
        grants = self._missing_grants(place) if place is not None and lacks else []
        user = self.endpoint.user
        return self.dialect.error_of(fault, table=table, committing=committing, user=user, grants=grants)

    def _missing_grants(self, place: Place) -> list[str]:
        """Return the missing grants; empty if the server does not answer."""
        with suppress(TidesinkError, OSError, *self.dialect.errors):
            connection = self.dialect.connect(self.endpoint)
            try:
                with connection.cursor() as cursor:
                    return self.dialect.missing_grants(cursor, place, changes=True)
            finally:
                self._discard(connection)
        return []

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._discard(connection)

    def _borrowed(self) -> Any:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.dialect.connect(self.endpoint)
            if self.dialect.alive(connection):
                return connection
            self._discard(connection)

    def _put_back(self, connection: Any) -> None:
        with self._lock:
            if len(self._idle) < _KEPT:
                self._idle.append(connection)
                return
        self._discard(connection)

    def _undo(self, connection: Any) -> None:
        """Roll back by closing the session, which works in any state."""
        self._discard(connection)

    def _discard(self, connection: Any) -> None:
        # The connection may be lost already; then there is nothing to close.
        with suppress(*self.dialect.errors, OSError):
            connection.close()
