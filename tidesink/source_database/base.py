"""The common interface of the supported source databases: tables, their columns, and the operations that
differ between databases.
"""

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
# A MySQL error number or an SQLSTATE.
ErrorCode = int | str
# A value selected from a column: text, bytes, or a double for a floating-point number.
Selected = str | bytes | float
# Converts a driver's value. It runs in a task.
ValueReader = Callable[[Any], Selected]
NO_POSITION: Final = (
    "The source database has no timestamps that can be compared with a commit_ts. They are needed with "
    "sequence_by: source, in mode: history, and with cuts. Set source.database to the URL of the TiDB "
    "cluster whose changefeed writes the topic, set snapshot: never, or use mode: upsert with sequence_by: "
    "kafka and without cuts."
)

REPLICA: Final = (
    "The source database is a replica or a standby. It may lack changes that are already in Kafka, and a "
    "row older than an applied change would stay in the target. Set source.database to the address of the "
    "primary server (Postgres: several hosts and target_session_attrs=read-write). If the connector itself "
    "reads this replica, set source.database.replica: true."
)
# A key of a connection's ``info``: True if it may read a replica.
IS_REPLICA: Final = "tidesink.replica"
NO_AS_OF: Final = (
    "The source database cannot be read as of an earlier moment, but a comparison at a cut needs this. "
    "TiDB can (tidb_snapshot). Set source.database to the URL of the TiDB cluster whose changefeed writes "
    "the topics, or omit --at."
)


class ReplicaIdentity(NamedTuple):
    """The columns that Postgres currently sends for a table's deleted rows.

    Attributes:
        sent: The columns that are sent.
        columns: All columns of the table.
        is_full: True if the table has ``REPLICA IDENTITY FULL``.
        primary: Columns of the primary key; empty without a primary key.
    """

    sent: frozenset[str]
    columns: frozenset[str]
    is_full: bool = False
    primary: frozenset[str] = frozenset()


class StoredTable(NamedTuple):
    """A table in the source database.

    Attributes:
        types: Types by column, in the table's order, without virtual columns.
        key: Columns of the primary key, or of the first unique key whose columns are NOT NULL; empty without
            a key.
        rows: The database's own estimate of the number of rows.
        bytes: The database's own estimate of the table's size.
        virtual: Types of the virtual columns.
        required: Columns that are never NULL.
        generated: Types of generated columns, which logical decoding sends only if a publication includes
            them.
        row_key: Types of the columns by which TiDB identifies the rows of a table without a primary key.
        constants: Values, as texts, of the ``row_key`` columns that are the same in all rows. A query cannot
            select them.
        order: Digest of what determines the sort order of keys: types, collations and their versions
            (``order_digest``).
        identity: Columns that Postgres sends for a deleted row (its replica identity). None if it sends all
            columns, or for another database.
        sends_rows: True if Postgres sends whole old rows (``REPLICA IDENTITY FULL``).
        primary: Columns of the primary key in Postgres; empty without a primary key, or for another database.
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
        """The columns that Postgres sends for a deleted row.

        None if they are not known, or for another database.
        """
        columns = frozenset((*self.types, *self.generated))
        if self.sends_rows:
            return ReplicaIdentity(columns, columns, is_full=True, primary=self.primary)
        if self.identity is None:
            return None
        return ReplicaIdentity(self.identity, columns, primary=self.primary)

    @property
    def key_types(self) -> dict[str, ColumnType]:
        """The types of the key columns, by column."""
        types = {**self.types, **self.row_key}
        return {name: types[name] for name in self.key}


class SourceDialect(Protocol):
    """The operations that differ between databases. The modules ``mysql`` and ``postgres`` implement it."""

    @property
    def RANGE_OPTIONS(self) -> Mapping[str, Any]:  # noqa: N802  (a constant of the module)
        """SQLAlchemy's execution options for the connection that reads a key range."""

    def begin_session(self, connection: Connection) -> None:
        """Set session variables so that queries return values in the text form that this package reads."""

    def check_current(self, connection: Connection) -> None:
        """Check that the database is not a replica, which may lack changes that are already in Kafka.

        ``begin_session`` must have been called.

        Raises:
            ConfigError: The database is a replica.
        """

    def open_transactions(self, connection: Connection) -> frozenset[str]:
        """Returns the open transactions whose changes may be in Kafka before queries return them.

        ``begin_session`` must have been called.

        Raises:
            ConfigError: The user lacks the permission to list such transactions.
        """

    def uses_xa(self, connection: Connection) -> bool:
        """Returns True if applications have used XA transactions, whose changes reach Kafka before they are
        committed.

        Only uses since the server's start are known.

        Raises:
            ConfigError: The user lacks the permission to list such transactions.
        """

    def begin_at_position(self, connection: Connection) -> int:
        """Begin a transaction that reads the database as of one commit_ts, and return this commit_ts.

        The transaction sees every change that was committed up to the commit_ts, and no later change.

        Raises:
            ConfigError: The database has no timestamps that can be compared with a commit_ts.
        """

    def begin_snapshot(self, connection: Connection) -> None:
        """Begin a transaction whose statements all read the same state of the database.

        Does nothing if the connection is already in such a transaction.
        """

    def counted_rows(self, connection: Connection, table: TableId, query: Select[Any]) -> int | None:
        """Returns the number of rows that a query finds, counted in the transaction that read the rows.

        The count shows if a limit of the session omitted rows. Returns None if the database has no such
        limit, or if the count may differ from the read rows for other reasons.
        """

    def read_as_of(self, connection: Connection, commit_ts: int) -> None:
        """Make a session read the database as of a commit_ts.

        Raises:
            ConfigError: The database does not support this.
        """

    def stored_table(self, connection: Connection, table: TableId) -> StoredTable | None:
        """Returns a table of the database, or None if there is no table with this name."""

    def row_key_constants(self, connection: Connection, table: TableId) -> Mapping[str, str]:
        """Returns the values, as texts, of the columns of TiDB's row key that are the same in all rows.

        TiDB identifies the rows of a table without a primary key by this row key. The only such column is the
        table's id. Returns an empty mapping for a table without such a row key.
        """

    def selected(self, name: str, column_type: ColumnType) -> ColumnElement[Any]:
        """Returns the expression that a query selects for a column."""

    def column_batches(
        self, connection: Connection, query: Select[Any], types: Sequence[ColumnType], rows: int
    ) -> Iterator[list[pa.Array]]:
        """Yields the rows of a query as Arrow arrays, one per ``selected`` column, about ``rows`` rows at a
        time.

        Arrays contain texts. For binary and floating-point columns they contain bytes and doubles. Only the
        current rows are in memory. The connection can only be used for another query after all rows were
        read.
        """

    def value_reader(self, column_type: ColumnType) -> ValueReader | None:
        """Returns the function that converts the driver's values of a ``selected`` column, except NULL.

        It is called in Spark tasks. Returns None if the driver's values already are the required texts or
        doubles.
        """

    def text_of(self, value: Any, column_type: ColumnType) -> str:
        """Convert a value of a ``selected`` column to the text that keys contain."""

    def key_text(self, text: str, column_type: ColumnType) -> str:
        """Convert a value's canal-json text to the text that ``text_of`` returns.

        Binary values are latin-1 texts, one character per byte.
        """

    def compared(self, name: str, column_type: ColumnType) -> ColumnElement[Any]:
        """Returns the expression of a column that can be compared with a result of ``parameter_of``."""

    def parameter_of(self, text: str | None, column_type: ColumnType) -> Any:
        """Convert a result of ``text_of`` to a query parameter for comparisons with a ``compared`` column."""

    def bounded(
        self, key: Sequence[str], types: Mapping[str, ColumnType], bound: KeyTexts, *, above: bool
    ) -> ColumnElement[bool]:
        """Returns the SQL condition that the key is greater than ``bound``, or with ``above=False``, at most
        ``bound``.

        The database can use an index for the condition.
        """


def order_digest(columns: Sequence[Sequence[str]]) -> str:
    """Returns a digest of what determines the sort order of each key column.

    Equal digests mean equal order.
    """
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:32]


def plain(value: Any) -> str:
    """Convert a text from the server's catalog, which some drivers return as bytes.

    NULL becomes an empty text.
    """
    return value.decode() if isinstance(value, bytes) else str("" if value is None else value)


def table_of(table: TableId) -> TableClause:
    """Returns a table for use in a SQLAlchemy query."""
    import sqlalchemy as sa

    return sa.table(_quoted(table.name), schema=_quoted(table.schema))


def column_of(name: str) -> ColumnElement[Any]:
    """Returns a column for use in a SQLAlchemy query."""
    import sqlalchemy as sa

    return sa.column(_quoted(name))


def _quoted(name: str) -> Any:
    """Returns an identifier that SQLAlchemy always quotes.

    All identifiers of this package pass through here.
    """
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
    """Add key bounds to a query: only keys greater than ``after`` and at most ``up_to``. None: no bound.

    A bound has the text of each key column. The database compares the keys.
    """
    if after is not None:
        query = query.where(dialect.bounded(key, types, after, above=True))
    return query if up_to is None else query.where(dialect.bounded(key, types, up_to, above=False))


def code_of(error: BaseException) -> ErrorCode | None:
    """Returns the server's error number or SQLSTATE of a SQLAlchemy error, or None if it has no code."""
    cause = getattr(error, "orig", None)
    code = cause.args[0] if cause is not None and cause.args else None
    return code if isinstance(code, int) else getattr(cause, "sqlstate", None)
