"""The interface to one DBMS (``Dialect``), in parts by topic, and a target's pool of connections."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tidesink.config.fields import ChangeKind
from tidesink.errors import SchemaRefusedError, TidesinkError, TransientTargetError
from tidesink.sinks.targets.sql.columns import SqlLimits
from tidesink.sinks.targets.sql.faults import Fault
from tidesink.sinks.targets.sql.idle import IdleConnections, discard
from tidesink.sinks.targets.sql.load import Load, Read, close_kept
from tidesink.sinks.targets.sql.location import Endpoint, Place
from tidesink.typemap.render_sql import Database


class MergeColumn(NamedTuple):
    """A column that a merge writes.

    ``target``: the column's quoted name in the target table.
    ``staged``: its name in the staging table.
    ``key``: True if it is part of the key.
    """

    target: str
    staged: str
    key: bool


@dataclass(frozen=True)
class Merge:
    """The parameters of merging a staged batch into its target table.

    ``target``: the target table's quoted name.
    ``stage``: the staging table's quoted name, or a subquery with the same columns.
    ``attempts``: Spark's ids of the task attempts whose staged rows make up the batch.
    ``upserts``, ``deletes``: number of staged rows of each kind.
    ``soft``: True under ``deletes: soft``.
    ``mark``: quoted target column that marks deleted rows; None if the target has no such column.
    ``kept``: columns whose values staged rows may omit, each with its index in the target schema.
    ``sequence``: with ``sequence_by: source``, the quoted target column of the rows' positions; else None.
    ``on_delete``: columns that a soft delete writes in addition to ``mark``.
    ``beside``: quoted target columns that the batch does not have. With ``sequence_by: source``, a delete
        sets them to NULL.
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
        """The merge's columns that are part of the table's key."""
        return tuple(column for column in self.columns if column.key)

    @property
    def values(self) -> tuple[MergeColumn, ...]:
        """The merge's columns that are not part of the table's key."""
        return tuple(column for column in self.columns if not column.key)

    @property
    def on(self) -> str:
        """SQL condition that a target row ``t`` and a staged row ``s`` have the same key."""
        return " AND ".join(f"t.{column.target} = s.{column.staged}" for column in self.keys)

    @property
    def counted(self) -> str:
        """SQL condition that a staged row ``s`` belongs to the batch: one of ``attempts`` loaded it."""
        return f"s.t_attempt IN ({', '.join(map(str, self.attempts))})"

    @property
    def taken(self) -> str:
        """SQL condition that a staged row ``s`` is written to the target as a row.

        With ``sequence_by: source`` this includes deletes, which are written as tombstones.
        """
        return self.counted if self.sequence else self.rows(deletes=False)

    @property
    def own(self) -> dict[str, str]:
        """tidesink's own target columns (deletion mark, position), each with the SQL expression of its new
        value. The position comes last.
        """
        values = {self.mark: "s.t_delete = 1", self.sequence: "s.t_seq"}
        return {name: value for name, value in values.items() if name is not None}

    def rows(self, *, deletes: bool) -> str:
        """SQL condition that a staged row ``s`` belongs to the batch and is a delete.

        If ``deletes`` is False, the condition is that it belongs to the batch and is an upsert.
        """
        return f"s.t_delete = {int(deletes)} AND {self.counted}"


def no_table(place: Place) -> SchemaRefusedError:
    """Return the error to raise if a target table's name belongs to a view or another object."""
    return SchemaRefusedError(
        f"{place.shown} is not a table but a view or another object, so rows cannot be written there. Set "
        "`target.table` to another template. If `target.view` gives the view this name, change `target.view` "
        "instead.",
        table=str(place.source),
    )


class Counts(NamedTuple):
    """Row counts of a merge, which have the same meanings as in ``ApplyResult``.

    ``stale``: staged rows that were skipped because they were not newer than the stored row.
    ``absent``: deletes that ended no version. Counted only with ``mode: history``.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    stale: int = 0
    absent: int = 0


class ForView(NamedTuple):
    """A statement that restores a grant or a comment after a view was dropped and created again.

    ``column``: run the statement only if the view still has this column; None to run it always.
    """

    column: str | None
    statement: str


class Driver(Protocol):
    """The database's Python driver: connections, loading and reading on the executors, and errors."""

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """The exception classes that the database driver raises."""

    @property
    def load(self) -> Load:
        """The function that loads CSV lines into a staging table. It runs on the executors."""

    @property
    def read(self) -> Read:
        """The function that runs a query and yields its rows as texts. It runs on the executors."""

    @property
    def fault_of(self) -> Callable[[BaseException], Fault | None]:
        """The function that converts a driver's exception to a ``Fault``, which has no row values.

        It returns None for other exceptions.
        """

    def connect(self, endpoint: Endpoint) -> Any:
        """Open a driver connection with tidesink's session settings, and with autocommit off."""

    def alive(self, connection: Any) -> bool:
        """Return True if an idle connection still answers."""

    def error_of(
        self,
        fault: Fault,
        *,
        table: str,
        committing: bool = False,
        user: str = "",
        grants: Sequence[str] = (),
    ) -> TidesinkError:
        """Return tidesink's error to raise for an error of the database (``fault``).

        ``committing``: the fault happened during COMMIT.
        ``user``: the user of the connection, for the message.
        ``grants``: the statements that grant ``user`` its missing privileges.
        """

    def is_of_rights(self, code: str) -> bool:
        """Return True if an error code means that the user lacks a privilege."""

    def missing_grants(self, cursor: Any, place: Place, *, changes: bool) -> list[str]:
        """Return the statements that grant the connection's user its missing privileges for a table.

        ``changes``: tidesink also alters the table's columns, which needs more privileges.
        """


class Values(Protocol):
    """Values in SQL: as literals, as texts, and as the hex digits of bytes."""

    @property
    def nul_refused(self) -> bool:
        """True if a text column cannot store the character U+0000."""

    @property
    def hex_prefix(self) -> str:
        """The prefix that the database expects before the hex digits of bytes in loaded CSV lines."""

    def literal(self, text: str, found: str) -> str:
        """Return an SQL literal of the type ``found`` for a value given as text (bytes as hex digits)."""

    def text_of(self, column: str, found: str) -> str:
        """Return SQL that converts a quoted column of type ``found`` to text.

        Bytes become hex digits. Instants become UTC times without a zone.
        """

    def hex_of(self, expression: str) -> str:
        """Return an SQL expression that converts ``expression``, which is bytes, to hex digits."""


class Tables(Protocol):
    """Tables: their columns as the server describes them, and the DDL that creates and changes them."""

    @property
    def ddl_commits(self) -> bool:
        """True if a DDL statement commits the transaction, together with its earlier statements."""

    def prepare_schema(self, cursor: Any, place: Place) -> None:
        """Create the table's schema and ledger if they are missing."""

    def present(self, cursor: Any, place: Place) -> dict[str, str]:
        """Return a table's columns: type by name, as ``typemap.render_sql`` spells types.

        The mapping is empty if the table does not exist.

        Raises:
            SchemaRefusedError: the name belongs to a view or another object that is not a table.
        """

    def required(self, cursor: Any, place: Place) -> dict[str, str]:
        """Return the NOT NULL columns of a table: type by name."""

    def nullable(self, cursor: Any, place: Place) -> list[str]:
        """Return the columns that can be set to NULL, which are neither NOT NULL nor computed."""

    def folds_names(self, cursor: Any) -> bool:
        """Return True if the server treats table names that differ only in case as the same name."""

    def identity(self, cursor: Any, place: Place) -> str | None:
        """Return the server's ids of the ledger and the table as ``ledger:table``.

        An id changes if its table is dropped and created again. Returns None if the server has no such ids,
        or if the table does not exist.
        """

    def check_keys(self, cursor: Any, place: Place, keys: Collection[str]) -> None:
        """Check that the types and collations of a table's key columns treat different keys as different.

        ``keys``: the key columns' names, quoted and in lower case.

        Raises:
            SchemaRefusedError: a key column treats different values as equal.
        """

    def check_kept(self, cursor: Any, place: Place, columns: Collection[str], keys: Collection[str]) -> None:
        """Check that a table, possibly created by the user, stores every row as it is written.

        ``columns``: the source's columns, in lower case.
        ``keys``: the key columns among them.

        Raises:
            SchemaRefusedError: the server computes a source column itself, a column that the source lacks is
                required, or the table hides or loses rows. The message has the statement that changes this.
        """

    def create(self, cursor: Any, place: Place, columns: Sequence[tuple[str, str, bool, str]]) -> None:
        """Create a table if it does not exist.

        ``columns``: each column's name, its type, True if it is part of the key, and its comment.
        """

    def alter(
        self,
        location: str,
        added: Mapping[str, tuple[str, str | None]],
        widened: Mapping[str, str],
        keys: frozenset[str],
    ) -> list[str]:
        """Return the statements that add columns and change column types.

        ``added``: by name, each new column's type, and the SQL literal of its default or None.
        ``widened``: by name, each changed column's new type.
        ``keys``: names of the key columns, in lower case.
        """

    def left_undone(self, cursor: Any, place: Place) -> list[str]:
        """Return the statements that complete a column change (``alter``) that a killed worker did not
        finish.
        """

    def retyped(self, location: str, name: str, found: str, wanted: str, keys: frozenset[str]) -> list[str]:
        """Return the statements that change a column's type from ``found`` to ``wanted``, for the user to
        run.

        ``keys``: names of the key columns, in lower case.
        """

    def optional(self, place: Place, columns: Mapping[str, str]) -> str:
        """Return the statement that makes columns (type by name) nullable, for the user to run."""


class Views(Protocol):
    """The view of a target table's current rows."""

    def text(self, cursor: Any, place: Place, name: str) -> str | None:
        """Return the server's definition of the view ``name`` in the table's schema; None if the name is
        free.

        Returns an empty text if the object is not a view, or if the user may not see its definition.
        """

    def statements(self, view: str, query: str) -> list[str]:
        """Return the statements that create a view of a query, or replace the existing view."""

    def in_the_way(self, cursor: Any, view: str) -> tuple[list[str], list[ForView]]:
        """Return the statements to run before and after the types of a view's columns are changed.

        Some databases must drop the view first, and restore its grants once it is created again.
        """


class Staging(Protocol):
    """Staging tables, into which the executors load a batch's rows before they are merged."""

    def tables(self, cursor: Any, place: Place) -> list[str]:
        """Return the names of the existing staging tables of a target table."""

    def create(self, cursor: Any, stage: str, columns: Mapping[str, str]) -> None:
        """Create a staging table; ``columns``: type by name."""

    def load_statement(self, stage: str, columns: Sequence[tuple[str, bool]]) -> str:
        """Return the statement that loads CSV into a staging table.

        ``columns``: names of the loaded columns, each with True if its values are bytes as hex digits.
        """


class TemporaryRefusedError(TransientTargetError):
    """The database refuses to create a temporary table. Nothing was written, and the next try needs none."""


class TemporaryStaging(Protocol):
    """Staging tables that the transaction that merges their rows also creates, fills and drops.

    ``name``: the quoted name of the staging table.
    """

    name: str

    def is_allowed(self, cursor: Any) -> bool:
        """Return True if the user may create temporary tables."""

    def load(
        self, cursor: Any, columns: Mapping[str, str], statement: str, lines: Iterable[memoryview]
    ) -> None:
        """Create the staging table in the open transaction, and load CSV lines into it.

        ``columns``: type by name. ``statement``: the result of ``Staging.load_statement``.

        Raises:
            TemporaryRefusedError: the database refuses to create a temporary table.
        """


class Rows(Protocol):
    """Statements that write and delete rows."""

    @property
    def insert_missing(self) -> str:
        """Template of an INSERT that does nothing if a row with the same key exists. ``{}`` stands for the
        table, the columns and VALUES.
        """

    def merge(self, cursor: Any, merge: Merge) -> Counts:
        """Merge a staged batch into its target table in the open transaction, and return the row counts.

        With ``sequence_by: source``, staged rows that are not newer than the stored row are skipped.
        """

    def delete_some(self, cursor: Any, location: str, keys: Sequence[str], where: str, *, most: int) -> int:
        """Delete at most ``most`` rows that match the SQL condition ``where``. Returns the number of deleted
        rows.
        ``keys``: quoted names of the key columns.
        """

    def truncate(self, cursor: Any, location: str, mark: str | None, *, only: str = "true") -> int:
        """Delete all rows that match the SQL condition ``only``. Returns the number of deleted rows.

        ``mark``: for soft deletes, the column that marks rows as deleted. Rows are then marked instead of
            deleted.
        """


@dataclass(frozen=True)
class Dialect:
    """One DBMS as the SQL targets use it: Postgres, or MySQL and MariaDB. Each topic is a part of its own.

    ``database``: its name in the table of column types (``typemap.table``), such as ``postgres``.
    ``limits``: its limits on tables, such as the maximum number of columns.
    ``caveats``: requirements that some servers do not meet, as a text for each kind of column change.
    ``key_length``: length of a new text key column if the source's length is unknown; None if no length is
        needed.
    ``quote``: returns a name as a quoted SQL identifier. Every identifier in a statement comes from it.
    ``temporary``: temporary staging tables; None if the database cannot merge their rows. MySQL cannot read a
        temporary table twice in one statement (MySQL 8.4 manual, "TEMPORARY Table Problems").
    """

    database: Database
    limits: SqlLimits
    caveats: Mapping[ChangeKind, str]
    key_length: int | None
    quote: Callable[[str], str]
    driver: Driver
    values: Values
    tables: Tables
    views: Views
    staging: Staging
    rows: Rows
    temporary: TemporaryStaging | None = None


class Connections:
    """A target's pool of connections, usable from many threads."""

    def __init__(self, dialect: Dialect, endpoint: Endpoint) -> None:
        self.dialect = dialect
        self.endpoint = endpoint
        self._idle = IdleConnections()
        self._places: dict[str, Place] = {}

    def add_place(self, place: Place) -> None:
        """Register a target table, so that errors about missing privileges can list the GRANT statements for
        it.
        """
        self._places[str(place.source)] = place

    @contextmanager
    def transaction(self, table: str, *, writes: bool = True) -> Iterator[Any]:
        """Open a transaction and yield a cursor. Commits at the end, and rolls back on an error.

        ``table``: the source table, for errors.
        ``writes``: if False, the transaction is rolled back at the end.

        Raises:
            TidesinkError: the driver raised an error, converted by ``Driver.error_of``.
            CommitUnknownError: the connection was lost during the commit.
        """
        with self.translated(table):
            connection = self._borrowed()
        try:
            with self.translated(table), connection.cursor() as cursor:
                yield cursor
            with self.translated(table, committing=writes):
                connection.commit() if writes else connection.rollback()
        except BaseException:
            discard(connection)  # works in any state of the transaction
            raise
        self._idle.give_back(connection)

    @contextmanager
    def kept_awake(self, cursor: Any) -> Iterator[None]:
        """Ping a cursor's connection until the block ends, so that the server does not close it as idle."""
        done = threading.Event()

        def speak() -> None:
            while not done.wait(self.endpoint.silence / 4) and self.dialect.driver.alive(cursor.connection):
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
        """Convert the driver's errors inside the block to tidesink's errors with the source table's name."""
        try:
            yield
        except TidesinkError as exc:
            raise exc.with_context(table=table) from exc.__cause__
        except self.dialect.driver.errors as exc:
            fault = self.dialect.driver.fault_of(exc)
            if fault is None:
                raise
            raise self.error(fault, table=table, committing=committing) from None

    def error(self, fault: Fault, *, table: str, committing: bool = False) -> TidesinkError:
        """Return the error to raise for a fault. If a privilege is missing, the message has the GRANT
        statements.
        """
        place = self._places.get(table)
        lacks = place is not None and self.dialect.driver.is_of_rights(fault.code)
        grants = self._missing_grants(place) if place is not None and lacks else []
        user = self.endpoint.user
        return self.dialect.driver.error_of(
            fault, table=table, committing=committing, user=user, grants=grants
        )

    def _missing_grants(self, place: Place) -> list[str]:
        """Ask the server, on a new connection, for the GRANT statements that the user lacks.

        Returns an empty list if the server does not answer.
        """
        with suppress(TidesinkError, OSError, *self.dialect.driver.errors):
            connection = self.dialect.driver.connect(self.endpoint)
            try:
                with connection.cursor() as cursor:
                    return self.dialect.driver.missing_grants(cursor, place, changes=True)
            finally:
                discard(connection)
        return []

    def close(self) -> None:
        """Close the pool's idle connections."""
        self._idle.close()

    def _borrowed(self) -> Any:
        connection = self._idle.take(self.dialect.driver.alive)
        if connection is not None:
            return connection
        try:
            return self.dialect.driver.connect(self.endpoint)
        except BaseException:
            # The server may have no room for more connections. Idle ones must not keep others out.
            self.close()
            close_kept()
            raise
