"""What the kinds of databases have in common: a table and its columns; what each does in its own way."""

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
# A code of MySQL's, or an SQLSTATE.
ErrorCode = int | str
# What was selected of a column: a text, bytes, or the double that a floating-point number is.
Selected = str | bytes | float
# What a task makes of what the driver gives.
ValueReader = Callable[[Any], Selected]
NO_POSITION: Final = (
    "source.database has no timestamps that compare with a commit_ts, which rows need that are read under "
    "sequence_by: source, in mode: history or beside cuts: give the URL of the TiDB cluster whose changefeed "
    "writes the topic, set snapshot: never, or use mode: upsert with sequence_by: kafka and without cuts"
)

REPLICA: Final = (
    "the database is a replica or a standby. It may be behind what was sent to Kafka, and a row older "
    "than a change which was applied would stay. Give the address of the server that takes the writes "
    "(Postgres: several hosts and target_session_attrs=read-write). If the connector itself reads this "
    "replica, set source.database.replica: true"
)
# In a connection's ``info``: whether a replica may be read by it.
IS_REPLICA: Final = "tidesink.replica"
NO_AS_OF: Final = (
    "source.database cannot be read as of a moment that is over, which a comparison at a cut needs: TiDB can "
    "(tidb_snapshot): give the URL of the TiDB cluster whose changefeed writes the topics, or leave --at out"
)


class ReplicaIdentity(NamedTuple):
    """Which columns Postgres sends of a table's deleted rows now; ``columns`` are all that it has.

    ``is_full``: it is ``REPLICA IDENTITY FULL``. ``primary``: the primary key; empty if there is none.
    """

    sent: frozenset[str]
    columns: frozenset[str]
    is_full: bool = False
    primary: frozenset[str] = frozenset()


class StoredTable(NamedTuple):
    """A table as the database has it: types by column, in order, without virtual columns.

    ``key``: the columns of the primary key, or of the first unique key without NULLs; empty: there is none.
    ``rows``, ``bytes``: the database's own estimate. ``virtual``: virtual columns. ``required``: columns that
    are never NULL. ``generated``: columns that logical decoding leaves out, unless a publication has them.
    ``row_key``: columns by which TiDB names the rows of a table without a primary key. ``constants``: those
    of them that are no column of a query, by their texts: all rows have the same. ``order``: digest of what
    decides the order of the key: types, collations and their versions (``order_digest``). ``identity``: the
    columns that Postgres sends of a deleted row (its replica identity); None where it sends all, or for
    another database. ``sends_rows``: Postgres sends whole old rows (``REPLICA IDENTITY FULL``). ``primary``:
    the columns of the primary key in Postgres; empty if there is none, or for another database.
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
        """What Postgres sends of a deleted row; None if nothing tells it, or for another database."""
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
    """What one kind of database does in its own way; a module of this package is one."""

    @property
    def RANGE_OPTIONS(self) -> Mapping[str, Any]:  # noqa: N802  (a constant of the module)
        """SQLAlchemy's execution options of a connection that reads one range."""

    def begin_session(self, connection: Connection) -> None:
        """Make the texts of a session those that the others here read."""

    def check_current(self, connection: Connection) -> None:
        """Refuse a replica, which may lack changes that were sent to Kafka; the session has begun.

        Raises:
            ConfigError: the database is a replica.
        """

    def open_transactions(self, connection: Connection) -> frozenset[str]:
        """Transactions whose changes may be in Kafka, while no query shows them yet; the session has begun.

        Raises:
            ConfigError: the user may not see whether there are any.
        """

    def uses_xa(self, connection: Connection) -> bool:
        """Whether transactions whose changes are sent before their commit were used since the start.

        Raises:
            ConfigError: the user may not see whether there are any.
        """

    def begin_at_position(self, connection: Connection) -> int:
        """Begin a transaction, and give its position, a commit_ts.

        The transaction reads as of it: every change that was committed up to it shows, and no later one.

        Raises:
            ConfigError: the database has no positions that compare with a commit_ts.
        """

    def begin_snapshot(self, connection: Connection) -> None:
        """Begin a transaction whose statements read one state of the database, unless one has begun."""

    def counted_rows(self, connection: Connection, table: TableId, query: Select[Any]) -> int | None:
        """How many rows a query finds, in the transaction in which it was read.

        None where the two need not agree, or nothing can leave rows out unnoticed.
        """

    def read_as_of(self, connection: Connection, commit_ts: int) -> None:
        """Let a session read all as it was at a commit_ts.

        Raises:
            ConfigError: the database cannot.
        """

    def stored_table(self, connection: Connection, table: TableId) -> StoredTable | None:
        """A table as the database has it; None where it has none of this name."""

    def row_key_constants(self, connection: Connection, table: TableId) -> Mapping[str, str]:
        """As of ``StoredTable``, for a table without a primary key; empty where nothing names its rows."""

    def selected(self, name: str, column_type: ColumnType) -> ColumnElement[Any]:
        """What is selected of a column."""

    def column_batches(
        self, connection: Connection, query: Select[Any], types: Sequence[ColumnType], rows: int
    ) -> Iterator[list[pa.Array]]:
        """What a query finds of columns that are ``selected``: an array each, of about so many rows.

        They are texts, and where a column's values are bytes or floating-point numbers, these. No more rows
        are in memory. The connection is of no use after it,
        unless all rows were taken.
        """

    def value_reader(self, column_type: ColumnType) -> ValueReader | None:
        """What a task makes of what the driver gives for a column that was ``selected``, NULL excepted.

        None: nothing, it is a text or a double already.
        """

    def text_of(self, value: Any, column_type: ColumnType) -> str:
        """The same as a text, which is the column's in a key."""

    def key_text(self, text: str, column_type: ColumnType) -> str:
        """As ``text_of``, of a value whose canal-json text is given; of bytes that is latin-1."""

    def compared(self, name: str, column_type: ColumnType) -> ColumnElement[Any]:
        """A column as it is compared with a parameter."""

    def parameter_of(self, text: str | None, column_type: ColumnType) -> Any:
        """A text of ``text_of`` as what a column that is ``compared`` is compared with."""

    def bounded(
        self, key: Sequence[str], types: Mapping[str, ColumnType], bound: KeyTexts, *, above: bool
    ) -> ColumnElement[bool]:
        """Whether a key is above a bound, or not above it, spelt so that an index of the key serves it."""


def order_digest(columns: Sequence[Sequence[str]]) -> str:
    """Digest of what decides the order of a key, by column: equal texts, equal order."""
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:32]


def plain(value: Any) -> str:
    """A text of the server's own tables, which some drivers give as bytes; of NULL an empty one."""
    return value.decode() if isinstance(value, bytes) else str("" if value is None else value)


def table_of(table: TableId) -> TableClause:
    """A table to select from."""
    import sqlalchemy as sa

    return sa.table(_quoted(table.name), schema=_quoted(table.schema))


def column_of(name: str) -> ColumnElement[Any]:
    """A column by its name."""
    import sqlalchemy as sa

    return sa.column(_quoted(name))


def _quoted(name: str) -> Any:
    """An identifier that the dialect quotes, whatever it holds. Every one passes here."""
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
    """The rows of a query whose keys are above ``after`` and not above ``up_to``; None: no bound.

    The bounds are texts of the key's columns; keys compare as the database compares them.
    """
    if after is not None:
        query = query.where(dialect.bounded(key, types, after, above=True))
    return query if up_to is None else query.where(dialect.bounded(key, types, up_to, above=False))


def code_of(error: BaseException) -> ErrorCode | None:
    """The server's or the driver's code of an error; None where it has none."""
    cause = getattr(error, "orig", None)
    code = cause.args[0] if cause is not None and cause.args else None
    return code if isinstance(code, int) else getattr(cause, "sqlstate", None)
