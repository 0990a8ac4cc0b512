"""The state store in a SQL database, by default in a SQLite file.

It has four tables; one of them has a single row with the store's version. Each call is one short transaction
on its own connection, so the threads of a worker share the store. Tested on SQLite, Postgres and MariaDB.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_fixed

from tidesink.config.fields import LONGEST_PIPELINE, without_secrets
from tidesink.errors import ConfigError, StateStoreError, UnusableStateStoreError
from tidesink.events import TableId
from tidesink.sinks.state.documents import StoredForm, list_key
from tidesink.sinks.state.progress import (
    BATCHES_PER_EPOCH,
    Progress,
    TableState,
    TableStatus,
    from_json,
    to_json,
)


def open_state_store(url: str | Path) -> SqlStateStore:
    """Open the state store at a SQLAlchemy URL, or in the SQLite file at a path. Creates missing tables and
    files.

    Raises:
        ConfigError: ``url`` is invalid, SQLAlchemy has no driver for it, or another version of tidesink
            created the store.
        UnusableStateStoreError: SQLite cannot open or write the file.
        StateStoreError: The database does not answer.
    """

    return SqlStateStore(str(url))


T = TypeVar("T")
# SQLite's messages for a file that it may not open or write, or that is not a SQLite file (sqlite3ErrStr,
# SQLite 3.40). A locked file or a full disk has other messages, and may become usable again.
_FOR_GOOD: Final = (
    "unable to open database file",
    "attempt to write a readonly database",
    "access permission denied",
    "authorization denied",
    "file is not a database",
)
STORE_VERSION: Final = 1
# Number of batches in a table's history. Delta keeps its own log for 30 days.
KEPT_BATCHES: Final = 1000
# SQLite takes 999 parameters in a statement (before SQLite 3.32).
_STATUSES_AT_ONCE: Final = 500
_LOCK_SECONDS: Final = 30
_LOCK_PAUSE: Final = 0.02

_MYSQL: Final = ("mysql", "mariadb")
# Error codes of Postgres and MySQL for a table, a type or a catalog row that already exists. Messages may be
# in any language.
_IS_THERE: Final = ("42P07", "42710", "23505", 1050)


def _key(width: int) -> sa.types.TypeEngine[str]:
    """Returns the type of a text column in a primary key.

    It is case-sensitive in MySQL too, as names may differ only in case.
    """
    exact = mysql.VARCHAR(width, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(width).with_variant(exact, *_MYSQL)


# MySQL's TEXT ends at 64 KiB, and its DATETIME has whole seconds. A primary key may have 3072 bytes (InnoDB),
# and a character has up to four.
_PIPELINE: Final = _key(LONGEST_PIPELINE)
_NAME: Final = _key(600)
_DOCUMENT: Final = sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), *_MYSQL)
_TIME: Final = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *_MYSQL)

_metadata = sa.MetaData()
_version = sa.Table("store_version", _metadata, sa.Column("version", sa.Integer, primary_key=True))
_history = sa.Table(
    "progress_history",
    _metadata,
    sa.Column("pipeline", _PIPELINE, primary_key=True),
    sa.Column("table_name", _NAME, primary_key=True),
    sa.Column("txn_version", sa.BigInteger, primary_key=True),
    sa.Column("progress", _DOCUMENT, nullable=False),
    sa.Column("written", _TIME, nullable=False),
)
_status = sa.Table(
    "table_status",
    _metadata,
    sa.Column("pipeline", _PIPELINE, primary_key=True),
    sa.Column("table_name", _NAME, primary_key=True),
    sa.Column("status", _DOCUMENT, nullable=False),
    sa.Column("updated", _TIME, nullable=False),
)
_STATUS_UPDATE: Final = (
    sa.update(_status)
    .where(_status.c.pipeline == sa.bindparam("of"), _status.c.table_name == sa.bindparam("name"))
    .values(status=sa.bindparam("text"), updated=sa.bindparam("time"))
)
_documents = sa.Table(
    "documents",
    _metadata,
    sa.Column("kind", _key(100), primary_key=True),
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("document", _DOCUMENT, nullable=False),
)


class SqlStateStore:
    """A state store in any database that SQLAlchemy supports (see ``StateStore``)."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._recorded: dict[tuple[str, TableId], Progress] = {}
        self._make_tables()

    def record_progress(self, progress: Progress) -> None:
        """Store the progress that a table will have after a batch, before the batch is committed."""
        pipeline_table = progress.pipeline, progress.table
        # A batch that is tried again is recorded only once.
        if self._recorded.get(pipeline_table) == progress:
            return
        name, now = _table_key(progress.table), datetime.now(timezone.utc)
        key = {"pipeline": progress.pipeline, "table_name": name, "txn_version": progress.txn_version}

        def record() -> None:
            with self._transaction() as connection:
                _replace(connection, _history, key, {"progress": to_json(progress), "written": now})
                if progress.batch % KEPT_BATCHES == 0:
                    _prune(connection, progress.pipeline, name)

        _though_another_was_first(record)
        self._recorded[pipeline_table] = progress

    def progress_of(self, pipeline: str, table: TableId, txn_version: int) -> Progress | None:
        """Returns a table's progress after the batch with this transaction version; None if it is
        not known.
        """
        wanted = sa.select(_history.c.progress).where(
            _history.c.pipeline == pipeline,
            _history.c.table_name == _table_key(table),
            _history.c.txn_version == txn_version,
        )
        with self._transaction() as connection:
            text = connection.execute(wanted).scalar_one_or_none()
        return None if text is None else from_json(text)

    def progress_of_batch(self, pipeline: str, table: TableId, batch: int) -> Progress | None:
        """Returns a table's progress after an applied batch, in any epoch; None if it is not known."""
        wanted = sa.select(_history.c.progress).where(
            _history.c.pipeline == pipeline,
            _history.c.table_name == _table_key(table),
            _history.c.txn_version % BATCHES_PER_EPOCH == batch,
        )
        # The newest by time, because the epochs of a recreated table restart.
        newest = wanted.order_by(_history.c.written.desc(), _history.c.txn_version.desc()).limit(1)
        with self._transaction() as connection:
            text = connection.execute(newest).scalar_one_or_none()
        return None if text is None else from_json(text)

    def save_status(self, status: TableStatus) -> bool:
        """Replace a table's status atomically, unless the stored status has a greater rank.

        Returns True if replaced.
        """
        return not self.save_statuses((status,))

    def save_statuses(self, statuses: Sequence[TableStatus]) -> tuple[TableStatus, ...]:
        """Replace the statuses of tables of one pipeline, in one transaction, unless the stored status of a
        table has a greater rank.

        Returns the statuses that were not saved.
        """
        ordered = sorted(statuses, key=lambda status: _table_key(status.table))
        return _though_another_was_first(partial(self._replace_statuses, ordered))

    def _replace_statuses(self, statuses: Sequence[TableStatus]) -> tuple[TableStatus, ...]:
        refused: list[TableStatus] = []
        with self._transaction() as connection:
            for start in range(0, len(statuses), _STATUSES_AT_ONCE):
                refused += self._replaced(connection, statuses[start : start + _STATUSES_AT_ONCE])
        return tuple(refused)

    def _replaced(self, connection: sa.Connection, statuses: Sequence[TableStatus]) -> list[TableStatus]:
        """Replace statuses. Returns those whose stored status has a greater rank."""
        pipeline, now = statuses[0].pipeline, datetime.now(timezone.utc)
        names = [_table_key(status.table) for status in statuses]
        mine = sa.and_(_status.c.pipeline == pipeline, _status.c.table_name.in_(names))
        if connection.dialect.name == "sqlite":
            # This UPDATE changes no value, but locks the file. SQLite has no SELECT that locks.
            connection.execute(sa.update(_status).where(mine).values(updated=_status.c.updated))
        # Two workers lock the rows in the same order.
        wanted = sa.select(_status).where(mine).order_by(_status.c.table_name).with_for_update()
        held = {row.table_name: row for row in connection.execute(wanted)}
        refused, changed, added = list[TableStatus](), list[dict[str, Any]](), list[dict[str, Any]]()
        for name, status in zip(names, statuses, strict=True):
            row, text = held.get(name), _status_text(status)
            if row is None:
                added.append({"pipeline": pipeline, "table_name": name, "status": text, "updated": now})
            elif _read_status(pipeline, row.status, row.updated).rank > status.rank:
                refused.append(status)
            else:
                changed.append({"of": pipeline, "name": name, "text": text, "time": now})
        if changed:
            connection.execute(_STATUS_UPDATE, changed)
        if added:
            connection.execute(sa.insert(_status), added)
        return refused

    def statuses(self, pipeline: str) -> tuple[TableStatus, ...]:
        """Returns the status of every table of a pipeline, sorted by table name."""
        wanted = sa.select(_status).where(_status.c.pipeline == pipeline).order_by(_status.c.table_name)
        with self._transaction() as connection:
            rows = connection.execute(wanted).all()
        return tuple(_read_status(pipeline, row.status, row.updated) for row in rows)

    def status_of(self, pipeline: str, table: TableId) -> TableStatus | None:
        """Returns the status of one table, or None if no status was saved."""
        wanted = sa.select(_status).where(_status_row(pipeline, table))
        with self._transaction() as connection:
            row = connection.execute(wanted).one_or_none()
        return None if row is None else _read_status(pipeline, row.status, row.updated)

    def save_document(self, kind: str, name: str, document: Any) -> None:
        """Store a JSON-able document under a kind and a name."""

        def save() -> None:
            with self._transaction() as connection:
                row = {"document": json.dumps(document)}
                _replace(connection, _documents, {"kind": kind, "name": name}, row)

        _though_another_was_first(save)

    def load_document(self, kind: str, name: str) -> Any | None:
        """Returns the document with this kind and name, or None if there is no such document."""
        wanted = sa.select(_documents.c.document).where(_documents.c.kind == kind, _documents.c.name == name)
        with self._transaction() as connection:
            text = connection.execute(wanted).scalar_one_or_none()
        return None if text is None else json.loads(text)

    def swap_document(self, kind: str, name: str, *, old: Any | None, new: Any) -> bool:
        """Replace a document atomically if it still equals ``old`` (None: it does not exist).

        Returns True if replaced.
        """
        mine = sa.and_(_documents.c.kind == kind, _documents.c.name == name)
        held = sa.select(_documents.c.document).where(mine).with_for_update()
        try:
            with self._transaction() as connection:
                if old is None:
                    row = {"kind": kind, "name": name, "document": json.dumps(new)}
                    connection.execute(sa.insert(_documents).values(**row))
                    return True
                text = connection.execute(held).scalar_one_or_none()
                if text is None or json.loads(text) != old:
                    return False
                # The UPDATE compares the text again, because a SELECT locks nothing on SQLite.
                same = sa.and_(mine, _documents.c.document == text)
                changed = sa.update(_documents).where(same).values(document=json.dumps(new))
                return bool(connection.execute(changed).rowcount)
        except StateStoreError as exc:
            if old is None and isinstance(exc.__cause__, IntegrityError):
                return False  # another process inserted it first
            raise

    def close(self) -> None:
        """Close all connections to the database."""
        self._engine.dispose()

    def try_write(self) -> None:
        """Write an existing value again, to check that a worker can write to the store.

        Raises:
            UnusableStateStoreError: SQLite cannot write the file.
            StateStoreError: The store does not answer.
        """
        with _unusable_files_refused(self._engine.url), self._transaction() as connection:
            connection.execute(sa.update(_version).values(version=_version.c.version))

    def _make_tables(self) -> None:
        """Create missing tables, and check the store's version.

        Another process may create tables at the same time.
        """
        retrying = Retrying(
            # The next attempt finds the tables that another process created, so each attempt gets further.
            retry=retry_if_exception(lambda error: _made_by_others(error.__cause__)),
            stop=stop_after_attempt(len(_metadata.tables) + 2),
            reraise=True,
        )
        with _unusable_files_refused(self._engine.url):
            for attempt in retrying:
                with attempt, self._transaction() as connection:
                    _metadata.create_all(connection)
                    _check_version(connection)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as exc:
            # Errors of some drivers have the connection string in their text. hide_parameters and the URL
            # below hide passwords, which may also follow the question mark of a URL.
            raise StateStoreError(
                f"The state store failed ({type(exc).__name__}). Check that its database runs, and is not "
                f"full, read-only or locked.",
                url=without_secrets(self._engine.url.render_as_string(hide_password=True)),
            ) from exc


def _engine(url: str) -> sa.Engine:
    if "://" not in url:
        url = f"sqlite:///{Path(url).expanduser()}"
    try:
        parsed = sa.make_url(url)
        # A file has no connection that could be lost.
        pings = parsed.get_backend_name() != "sqlite"
        engine = sa.create_engine(parsed, hide_parameters=True, pool_pre_ping=pings, **_options(parsed))
    except (NoSuchModuleError, ModuleNotFoundError) as exc:
        raise ConfigError(
            f"state: no SQLAlchemy driver for {url.partition('://')[0]} is installed. Install a driver and "
            "name it in the URL, as in postgresql+psycopg://user@host/database or "
            "mysql+pymysql://user@host/database."
        ) from exc
    except (ArgumentError, ValueError):  # ValueError: an invalid port
        raise ConfigError(
            "state is neither a path nor a valid SQLAlchemy URL. Set it to a path, or to a URL such as "
            "sqlite:////var/lib/t.db."
        ) from None
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine)
    return engine


def _options(url: sa.URL) -> dict[str, Any]:
    # In all databases, locked rows are read after the lock. MySQL's default isolation level also locks gaps,
    # and two tables whose first rows fall into the same gap would deadlock.
    return {"isolation_level": "READ COMMITTED"} if url.get_backend_name() in _MYSQL else {}


def _prepare_sqlite(engine: sa.Engine) -> None:
    database = engine.url.database
    if database and database != ":memory:":
        try:
            Path(database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise _unusable(database, str(exc.strerror)) from exc

    @sa.event.listens_for(engine, "connect")
    def _set_pragmas(connection: Any, _record: Any) -> None:
        # With WAL, `tidesink status` can read while a worker writes.
        cursor = connection.cursor()
        # SQLite itself does not wait here. If it waited within an attempt, the last attempt could begin when
        # the time for retries is over.
        cursor.execute("PRAGMA busy_timeout=0")
        _set_wal(cursor)
        cursor.execute(f"PRAGMA busy_timeout={_LOCK_SECONDS * 1000}")
        cursor.close()


@contextmanager
def _unusable_files_refused(url: sa.URL) -> Iterator[None]:
    """Raise UnusableStateStoreError if SQLite's message shows that a retry cannot open or write the file."""
    try:
        yield
    except StateStoreError as exc:
        cause = exc.__cause__
        reason = str(cause.orig) if isinstance(cause, DBAPIError) and url.database else ""
        if reason not in _FOR_GOOD:
            raise
        raise _unusable(str(url.database), reason) from cause


def _unusable(path: str, reason: str) -> UnusableStateStoreError:
    return UnusableStateStoreError(
        f"The state store {path} cannot be used ({reason}). Allow user {os.getuid()} to write to this file "
        f"and its folder {Path(path).parent} (in Kubernetes, fsGroup assigns a volume to the group of the "
        "container's user), or set state to another location.",
        key="state",
    )


def _set_wal(cursor: Any) -> None:
    """Set SQLite's WAL mode. Try again while the file is locked.

    On a new file, SQLite fails at once for some concurrent callers, whatever the timeout is.
    """
    retrying = Retrying(
        retry=retry_if_exception(_is_locked),
        stop=stop_after_delay(_LOCK_SECONDS),
        wait=wait_fixed(_LOCK_PAUSE),
        reraise=True,
    )
    retrying(cursor.execute, "PRAGMA journal_mode=WAL")


def _is_locked(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _made_by_others(error: BaseException | None) -> bool:
    """Returns True if the error shows that another process has just created a table or the version row."""
    return isinstance(error, IntegrityError) or (
        isinstance(error, (OperationalError, ProgrammingError)) and _is_there(error.orig)
    )


def _is_there(error: BaseException | None) -> bool:
    if error is None or isinstance(error, sqlite3.Error):
        return "already exists" in str(error)  # SQLite has no separate code for it
    codes = (getattr(error, "sqlstate", None), getattr(error, "pgcode", None), *error.args[:1])
    return any(code in _IS_THERE for code in codes)


def _check_version(connection: sa.Connection) -> None:
    version = connection.execute(sa.select(_version.c.version)).scalar_one_or_none()
    if version is None:
        connection.execute(sa.insert(_version).values(version=STORE_VERSION))
    elif version != STORE_VERSION:
        raise ConfigError(
            f"The state store has version {version}, but this tidesink writes version {STORE_VERSION}. "
            "Use the tidesink version that created it, or set state to a new location."
        )


def _though_another_was_first(step: Callable[[], T]) -> T:
    """Run a step that updates or inserts a row.

    Run it again if another process inserted the row at the same time.
    """
    try:
        return step()
    except StateStoreError as exc:
        if not isinstance(exc.__cause__, IntegrityError):
            raise
    return step()


def _replace(connection: sa.Connection, table: sa.Table, key: dict[str, Any], row: dict[str, Any]) -> None:
    """Update the row with this key, or insert it if it does not exist.

    Most calls send only the UPDATE. This works in every database.
    """
    match = sa.and_(*(table.c[name] == value for name, value in key.items()))
    if connection.execute(sa.update(table).where(match).values(**row)).rowcount == 0:
        connection.execute(sa.insert(table).values(**key, **row))


def _prune(connection: sa.Connection, pipeline: str, name: str) -> None:
    mine = sa.and_(_history.c.pipeline == pipeline, _history.c.table_name == name)
    # The newest by time, because the batch numbers of a recreated table restart.
    newest = sa.select(_history.c.written).where(mine).order_by(_history.c.written.desc())
    floor = connection.execute(newest.offset(KEPT_BATCHES).limit(1)).scalar_one_or_none()
    if floor is not None:
        connection.execute(sa.delete(_history).where(mine, _history.c.written <= floor))


def _table_key(table: TableId) -> str:
    """Returns a table's name as JSON, because both the schema and the name may have a dot."""
    return list_key(*table)


def _status_row(pipeline: str, table: TableId) -> sa.ColumnElement[bool]:
    return sa.and_(_status.c.pipeline == pipeline, _status.c.table_name == _table_key(table))


class _StoredStatus(msgspec.Struct):
    """A ``TableStatus`` as it is stored. Its pipeline and the time of its update have their own columns."""

    table: TableId
    state: TableState
    error: str | None
    counters: dict[str, int]
    zero_dates: dict[str, int]
    ambiguous_times: dict[str, int]
    warnings: tuple[str, ...]
    life: int
    epoch: int
    batch: int
    commit_ts: int | None
    details: dict[str, Any]


_STATUS: Final = StoredForm(
    _StoredStatus,
    "The status of a table in the state store",
    "Check if another program changed it, or restore the state store from a backup.",
)


def _status_text(status: TableStatus) -> str:
    stored = msgspec.convert(status, _StoredStatus, from_attributes=True)
    # Values of other types in the details, such as a path, become text.
    return json.dumps(msgspec.to_builtins(stored, str_keys=True, enc_hook=str))


def _read_status(pipeline: str, text: str, updated: datetime) -> TableStatus:
    # SQLite returns times without their zone.
    zoned = updated if updated.tzinfo else updated.replace(tzinfo=timezone.utc)
    stored = _STATUS.read_text(text)
    return TableStatus(pipeline=pipeline, updated=zoned, **msgspec.structs.asdict(stored))
