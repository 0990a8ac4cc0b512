"""What differs between databases, and the driver's connections to them."""

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
    """One column of the target: its quoted name, and its name in the staging table."""

    target: str
    staged: str
    key: bool


@dataclass(frozen=True)
class Merge:
    """A staged batch and where it goes; ``mark`` is the quoted column that marks deleted rows.

    ``kept`` are the columns whose values rows may leave out, with their position in the shape.
    ``sequence`` is the quoted column of the rows' positions, where the batch is in the source's order.
    ``on_delete`` are the columns that a soft delete writes besides its mark. ``beside`` are columns, quoted,
    that the batch has not, and that a delete in the source's order empties as well.
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
        """The key's columns."""
        return tuple(column for column in self.columns if column.key)

    @property
    def values(self) -> tuple[MergeColumn, ...]:
        """The other columns."""
        return tuple(column for column in self.columns if not column.key)

    @property
    def on(self) -> str:
        """Equality of the keys, the target as ``t``, the staging table as ``s``."""
        return " AND ".join(f"t.{column.target} = s.{column.staged}" for column in self.keys)

    @property
    def counted(self) -> str:
        """The condition for the rows of the attempts that count."""
        return f"s.t_attempt IN ({', '.join(map(str, self.attempts))})"

    @property
    def taken(self) -> str:
        """The condition for the rows that are written: in the source's order a delete leaves a row too."""
        return self.counted if self.sequence else self.rows(deletes=False)

    @property
    def own(self) -> dict[str, str]:
        """Our columns of the target, with what a written row has there; the position is the last."""
        found = {self.mark: "s.t_delete = 1", self.sequence: "s.t_seq"}
        return {name: value for name, value in found.items() if name is not None}

    def rows(self, *, deletes: bool) -> str:
        """The condition for the rows of one kind, of the attempts that count."""
        return f"s.t_delete = {int(deletes)} AND {self.counted}"


def no_table(place: Place) -> SchemaRefusedError:
    """The error of a name under which something else stands: what is written to a view changes its table."""
    return SchemaRefusedError(
        f"{place.shown} is a view, or another thing that is no table, and rows are to be written there: give "
        "target.table (or target.view, where it names the view) another template",
        table=str(place.source),
    )


class Counts(NamedTuple):
    """What a merge did; ``stale`` rows were not newer than what is stored.

    ``absent`` is informed of a history alone, where the others mean what ``ApplyResult`` says of one.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    stale: int = 0
    absent: int = 0


class ForView(NamedTuple):
    """A statement that gives a view back what it had; ``column``: only while the view has this one."""

    column: str | None
    statement: str


class Dialect(Protocol):
    """A database's side of the SQL targets."""

    @property
    def database(self) -> Database:
        """Its column in the table of types."""

    @property
    def limits(self) -> SqlLimits:
        """How much its tables have room for."""

    @property
    def key_length(self) -> int | None:
        """The length of a new key's text where nothing tells it; None where it needs none."""

    @property
    def caveats(self) -> Mapping[ChangeKind, str]:
        """What a kind of change of columns needs that not every server has."""

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """What its driver raises."""

    @property
    def ddl_commits(self) -> bool:
        """True where a change of a table's schema commits, and with it what was before."""

    @property
    def insert_missing(self) -> str:
        """A statement around ``table (columns) VALUES (…)`` that leaves a row with that key alone."""

    @property
    def hex_prefix(self) -> str:
        """What stands before hex digits in a CSV file."""

    @property
    def nul_refused(self) -> bool:
        """Whether a text cannot hold U+0000."""

    @property
    def load(self) -> Load:
        """Fills a staging table from CSV lines; runs on the executors."""

    @property
    def read(self) -> Read:
        """Reads rows of texts, in the order in which the server gives them; runs on the executors."""

    @property
    def code_of(self) -> Callable[[BaseException], str | None]:
        """The database's code of an error; empty for a connection that was cut, None for other errors."""

    def quote(self, name: str) -> str:
        """A name as an identifier."""

    def connect(self, endpoint: Endpoint) -> Any:
        """A connection of the driver's, statements in transactions, set up as tidesink needs it."""

    def alive(self, connection: Any) -> bool:
        """Whether a connection that was put away still answers."""

    @property
    def fault_of(self) -> Callable[[BaseException], Fault | None]:
        """An error of the driver without values of rows; None for other errors."""

    def error_of(
        self,
        fault: Fault,
        *,
        table: str,
        committing: bool = False,
        user: str = "",
        grants: Sequence[str] = (),
    ) -> TidesinkError:
        """The error to raise for a fault.

        ``grants``: the statements that give ``user`` the rights it lacks.
        """

    def is_of_rights(self, code: str) -> bool:
        """Whether a code means that the user lacks a right."""

    def missing_grants(self, cursor: Any, place: Place, *, changes: bool) -> list[str]:
        """The statements that give the user what it lacks for a table (``sql.rights``)."""

    def literal(self, text: str, found: str) -> str:
        """A value of type ``found`` from its literal text (bytes as hex)."""

    def text_of(self, column: str, found: str) -> str:
        """What is selected of a quoted column of type ``found``: a text, of bytes their hex digits.

        Instants are in UTC, without a zone.
        """

    def prepare_schema(self, cursor: Any, place: Place) -> None:
        """Make the table's schema and its ledger where they are missing."""

    def present(self, cursor: Any, place: Place) -> dict[str, str]:
        """A table's columns and types, as ``render_sql`` spells them; empty where there is no table.

        Raises: SchemaRefusedError, where a view or the like has the name.
        """

    def folds_names(self, cursor: Any) -> bool:
        """Whether names of schemas and tables that differ in case alone are one to the server."""

    def identity(self, cursor: Any, place: Place) -> str | None:
        """What the table and its ledger are to the server, as long as nobody makes them again.

        ``ledger:table``; None where the server has no such mark, or the table is not there.
        """

    def check_keys(self, cursor: Any, place: Place, keys: Collection[str]) -> None:
        """Refuse a table whose key columns (quoted, in lower case) take different values for one.

        Raises: SchemaRefusedError.
        """

    def check_kept(self, cursor: Any, place: Place, columns: Collection[str], keys: Collection[str]) -> None:
        """Refuse a table that does not keep rows of the source's columns (in lower case) as they are written.

        ``keys`` are those of the key. Such a table has a column whose values the server makes, one that the
        source does not have and that must have a value, or rows that tidesink does not see.

        Raises: SchemaRefusedError, which says how to change the table.
        """

    def create(self, cursor: Any, place: Place, columns: Sequence[tuple[str, str, bool, str]]) -> None:
        """Make a table: name, type, whether of the key, and comment of each column."""

    def alter(
        self,
        location: str,
        added: Mapping[str, tuple[str, str | None]],
        widened: Mapping[str, str],
        keys: frozenset[str],
    ) -> list[str]:
        """The statements that add columns (type and literal of the default) and change types.

        ``keys`` are the names of the key's columns in lower case.
        """

    def retyped(self, location: str, name: str, found: str, wanted: str, keys: frozenset[str]) -> list[str]:
        """The statements, for people, that give a column of type ``found`` another type.

        ``keys`` are the names of the key's columns in lower case.
        """

    def left_undone(self, cursor: Any, place: Place) -> list[str]:
        """The statements of ``alter`` that a worker which was killed has left over."""

    def staging_tables(self, cursor: Any, place: Place) -> list[str]:
        """The names of the table's staging tables."""

    def create_staging(self, cursor: Any, stage: str, columns: Mapping[str, str]) -> None:
        """Make a staging table again."""

    def load_statement(self, stage: str, columns: Sequence[tuple[str, bool]]) -> str:
        """The statement that reads CSV into columns, of which some come as hex digits."""

    def merge(self, cursor: Any, merge: Merge) -> Counts:
        """Merge a staged batch in the transaction that is open.

        In the source's order a row that is not newer than the stored one leaves it alone.
        """

    def required(self, cursor: Any, place: Place) -> dict[str, str]:
        """The table's columns that take no NULL, with their types."""

    def nullable(self, cursor: Any, place: Place) -> list[str]:
        """The table's columns that can be set to NULL: neither required nor computed."""

    def optional(self, place: Place, columns: Mapping[str, str]) -> str:
        """The statement, for people, that lets columns take NULL; with their types."""

    def view_text(self, cursor: Any, place: Place, name: str) -> str | None:
        """The definition of the view ``name`` beside a table, as the server keeps it; None for nothing there.

        Empty for what is no view, or one whose definition the user may not see.
        """

    def view_statements(self, view: str, query: str) -> list[str]:
        """What makes a view, or changes it, to one of a query."""

    def view_in_the_way(self, cursor: Any, view: str) -> tuple[list[str], list[ForView]]:
        """What is to be done before and after a change of the types of columns that a view reads."""

    def delete_some(self, cursor: Any, location: str, keys: Sequence[str], where: str, *, most: int) -> int:
        """Delete rows for which a condition holds; how many. ``keys`` are the quoted columns of the key."""

    def hex_of(self, expression: str) -> str:
        """Bytes as their hex digits."""

    def truncate(self, cursor: Any, location: str, mark: str | None, *, only: str = "true") -> int:
        """Delete every row for which ``only`` holds, or mark every living one of them; how many."""


_KEPT: Final = 8


class Connections:
    """The connections of one target, for many threads."""

    def __init__(self, dialect: Dialect, endpoint: Endpoint) -> None:
        self.dialect = dialect
        self.endpoint = endpoint
        self._idle: list[Any] = []
        self._lock = threading.Lock()
        self._places: dict[str, Place] = {}

    def add_place(self, place: Place) -> None:
        """Name the place of a source table, so that an error can say which rights are missing on it."""
        self._places[str(place.source)] = place

    @contextmanager
    def transaction(self, table: str, *, writes: bool = True) -> Iterator[Any]:
        """A cursor in a transaction, committed at the end, undone where an error comes first.

        Without ``writes`` it is undone in any case.

        Raises: the dialect's errors; CommitUnknownError where the commit was sent and not answered.
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
        """Speak in a cursor's transaction while another connection works, as long as this process does."""
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
        """Make our errors of the driver's, with the name of a table."""
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
        """The error to raise for a fault, with the grants that are missing if it is about rights."""
        place = self._places.get(table)
        lacks = place is not None and self.dialect.is_of_rights(fault.code)
        grants = self._missing_grants(place) if place is not None and lacks else []
        user = self.endpoint.user
        return self.dialect.error_of(fault, table=table, committing=committing, user=user, grants=grants)

    def _missing_grants(self, place: Place) -> list[str]:
        """What the user lacks; empty where the server does not say so now."""
        with suppress(TidesinkError, OSError, *self.dialect.errors):
            connection = self.dialect.connect(self.endpoint)
            try:
                with connection.cursor() as cursor:
                    return self.dialect.missing_grants(cursor, place, changes=True)
            finally:
                self._discard(connection)
        return []

    def close(self) -> None:
        """Close what nobody uses."""
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
        """End the transaction by ending the session: whatever state it is in, nothing of it stays."""
        self._discard(connection)

    def _discard(self, connection: Any) -> None:
        # It may be cut already: then there is nothing to close.
        with suppress(*self.dialect.errors, OSError):
            connection.close()
