"""The common interface of the supported databases: tables, their columns, and what differs by database."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tidesink.events import ColumnType, TableId

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import ColumnElement, Connection, Select, TableClause

KeyTexts = tuple[str, ...]
# A MySQL error number, or an SQLSTATE.
ErrorCode = int | str
# A value selected from a column: a text, bytes, or the double of a floating-point number.
Selected = str | bytes | float
# Converts a driver's value in a task.
ValueReader = Callable[[Any], Selected]
NO_POSITION: Final = (
    "source.database has no timestamps that compare with a commit_ts. Rows need them under "
    "sequence_by: source, in mode: history, and with cuts. Configure the URL of the TiDB cluster whose "
    "changefeed writes the topic, set snapshot: never, or use mode: upsert with sequence_by: kafka and "
    "without cuts."
)

REPLICA: Final = (
    "The database is a replica or a standby. It may be behind the changes that were sent to Kafka, and a row "
    "older than an applied change would stay. Configure the address of the server that accepts writes "
    "(Postgres: several hosts and target_session_attrs=read-write). If the connector itself reads this "
    "replica, set source.database.replica: true."
)
# A key of a connection's ``info``: True if it may read a replica.
IS_REPLICA: Final = "tidesink.replica"
NO_AS_OF: Final = (
    "source.database cannot be read as of an earlier moment, which a comparison at a cut needs. TiDB can "
    "(tidb_snapshot): configure the URL of the TiDB cluster whose changefeed writes the topics, or omit --at."
)


class ReplicaIdentity(NamedTuple):
    """The columns that Postgres currently sends for a table's deleted rows.

    Attributes:
        columns: All columns of the table.
        is_full: True for ``REPLICA IDENTITY FULL``.
        primary: The primary key; empty without one.
    """

    sent: frozenset[str]
    columns: frozenset[str]
    is_full: bool = False
    primary: frozenset[str] = frozenset()


class StoredTable(NamedTuple):
    """A table in the database.

    Attributes:
        types: Types by column, in order, without virtual columns.
        key: Columns of the primary key, or of the first unique key without NULLs; empty without a key.
        rows: The database's own estimate.
        bytes: The database's own estimate.
        virtual: Virtual columns.
        required: Columns that are never NULL.
        generated: Columns that logical decoding omits, unless a publication has them.
        row_key: Columns by which TiDB identifies the rows of a table without a primary key.
        constants: Texts of those ``row_key`` columns that a query cannot select, because all rows share them.
        order: Digest of what decides the key's order: types, collations and their versions
            (``order_digest``).
        identity: Columns that Postgres sends for a deleted row (its replica identity); None if it sends all,
            or for another database.
        sends_rows: True if Postgres sends whole old rows (``REPLICA IDENTITY FULL``).
        primary: Columns of the primary key in Postgres; empty without one, or for another database.
    """

    types: dict[str, ColumnType]
    key: tuple[str, ...]
    rows: int
    bytes: int
    virtual: Mapping[str, ColumnType] = MappingProxyType({})
    required: frozenset[str] = frozenset()
    generated: Mapping[str, ColumnType] = MappingProxyType({})
    row_key: Mapping[str, ColumnType] = MappingProxyType({})
    constants: Mapping[str, str] = MappingProxyType({})
    order: str = ""
    identity: frozenset[str] | None = None
    sends_rows: bool = False
    primary: frozenset[str] = frozenset()

    @property
    def replica_identity(self) -> ReplicaIdentity | None:
        """The columns that Postgres sends for a deleted row; None if not known, or for another database."""
        columns = frozenset((*self.types, *self.generated))
        if self.sends_rows:
            return ReplicaIdentity(columns, columns, is_full=True, primary=self.primary)
        if self.identity is None:
            return None
        return ReplicaIdentity(self.identity, columns, primary=self.primary)

    @property
    def key_types(self) -> dict[str, ColumnType]:
        """The types of the key's columns."""
        types = {**self.types, **self.row_key}
        return {name: types[name] for name in self.key}


class SourceDialect(Protocol):
    """The operations that differ by database. The modules of this package implement it."""

    @property
    def RANGE_OPTIONS(self) -> Mapping[str, Any]:  # noqa: N802  (a constant of the module)
        """SQLAlchemy's execution options for a connection that reads one range."""

    def begin_session(self, connection: Connection) -> None:
        """Set up a session so that its texts have the form that this package reads."""

    def check_current(self, connection: Connection) -> None:
        """Refuse a replica, which may lack changes that were sent to Kafka. Needs a set-up session.

        Raises:
            ConfigError: The database is a replica.
        """

    def open_transactions(self, connection: Connection) -> frozenset[str]:
        """Returns transactions whose changes may be in Kafka before queries show them.

        The session must be set up.

        Raises:
            ConfigError: The user may not see if there are any.
        """

    def uses_xa(self, connection: Connection) -> bool:
        """Returns True if transactions that are sent before their commit were used since the server's start.

        Raises:
            ConfigError: The user may not see if there are any.
        """

    def begin_at_position(self, connection: Connection) -> int:
        """Begin a transaction. Returns its position, a commit_ts.

        The transaction reads as of its position: it sees every change that was committed up to it, and no
        later change.

        Raises:
            ConfigError: The database has no positions that compare with a commit_ts.
        """

    def begin_snapshot(self, connection: Connection) -> None:
        """Begin a transaction whose statements read one state of the database, unless one has begun."""

    def counted_rows(self, connection: Connection, table: TableId, query: Select[Any]) -> int | None:
        """Returns the number of rows that a query finds, in the transaction in which it was read.

        None if the two numbers need not agree, or if rows cannot be omitted unnoticed.
        """

    def read_as_of(self, connection: Connection, commit_ts: int) -> None:
        """Make a session read the state at a commit_ts.

        Raises:
            ConfigError: The database does not support this.
        """

    def stored_table(self, connection: Connection, table: TableId) -> StoredTable | None:
        """Returns a table of the database; None if there is no table with this name."""

    def row_key_constants(self, connection: Connection, table: TableId) -> Mapping[str, str]:
        """Returns ``StoredTable.constants`` for a table without a primary key; empty without row keys."""

    def selected(self, name: str, column_type: ColumnType) -> ColumnElement[Any]:
        """Returns the expression that is selected for a column."""

    def column_batches(
        self, connection: Connection, query: Select[Any], types: Sequence[ColumnType], rows: int
    ) -> Iterator[list[pa.Array]]:
        """Yields the rows of a query as arrays of its ``selected`` columns, about ``rows`` rows at a time.

        Arrays have texts; for binary and floating-point columns they have bytes and numbers. No more rows are
        in memory. The connection can only be used again if all rows were read.
        """

    def value_reader(self, column_type: ColumnType) -> ValueReader | None:
        """Returns a function that converts the driver's value of a ``selected`` column in a task.

        It is not called for NULL. None: no conversion is needed, because the value is a text or a double.
        """

    def text_of(self, value: Any, column_type: ColumnType) -> str:
        """Returns a selected value as text, as it is used in keys."""

    def key_text(self, text: str, column_type: ColumnType) -> str:
        """Like ``text_of``, for the text of a value in canal-json; bytes are in latin-1."""

    def compared(self, name: str, column_type: ColumnType) -> ColumnElement[Any]:
        """Returns the expression of a column for comparisons with a parameter."""

    def parameter_of(self, text: str | None, column_type: ColumnType) -> Any:
        """Convert a text of ``text_of`` to a parameter that is compared with a ``compared`` column."""

    def bounded(
        self, key: Sequence[str], types: Mapping[str, ColumnType], bound: KeyTexts, *, above: bool
    ) -> ColumnElement[bool]:
        """Returns the condition that a key is above, or not above, a bound, in a form that uses an index."""


def order_digest(columns: Sequence[Sequence[str]]) -> str:
    """Returns a digest of what decides a key's order, by column: equal texts mean equal order."""
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:32]


def plain(value: Any) -> str:
    """Convert a text of the server's own tables, which some drivers return as bytes; NULL becomes empty."""
    return value.decode() if isinstance(value, bytes) else str("" if value is None else value)


def table_of(table: TableId) -> TableClause:
    """Returns a table to select from."""
    import sqlalchemy as sa

    return sa.table(_quoted(table.name), schema=_quoted(table.schema))


def column_of(name: str) -> ColumnElement[Any]:
    """Returns a column by its name."""
    import sqlalchemy as sa

    return sa.column(_quoted(name))


def _quoted(name: str) -> Any:
    """Returns an identifier that the dialect quotes, whatever it contains. All identifiers pass here."""
    from sqlalchemy.sql.elements import quoted_name

    return quoted_name(name, quote=True)


def rows_between(
    query: Select[Any],
    key: Sequence[str],
    types: Mapping[str, ColumnType],
    dialect: SourceDialect,
    *,
    after: KeyTexts | None = None,
    up_to: KeyTexts | None = None,
) -> Select[Any]:
    """Add bounds to a query: keys above ``after`` and not above ``up_to``; None: no bound.

    The bounds are texts of the key's columns. Keys compare as the database compares them.
    """
    if after is not None:
        query = query.where(dialect.bounded(key, types, after, above=True))
    return query if up_to is None else query.where(dialect.bounded(key, types, up_to, above=False))


def code_of(error: BaseException) -> ErrorCode | None:
    """Returns the server's or the driver's code of an error, or None."""
    cause = getattr(error, "orig", None)
    code = cause.args[0] if cause is not None and cause.args else None
    return code if isinstance(code, int) else getattr(cause, "sqlstate", None)
