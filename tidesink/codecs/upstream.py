"""Reads rows from the upstream TiDB as of a commit_ts, as the texts that canal-json would contain.

Like TiCDC's own consumer (tiflow c7b2588), this module sets ``tidb_snapshot`` and selects a row by its handle
key. The types of the columns are read as of the same commit_ts, so later DDL has no effect. The session's
time zone is UTC, and TIMESTAMP texts are converted to the changefeed's zone here, because the upstream may
not have loaded the names of time zones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone, tzinfo
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from tidesink.errors import ConfigError, RowUnavailableError, SourceUnavailableError
from tidesink.events import ColumnType, TableId, Value
from tidesink.source_database.base import ErrorCode, code_of, table_of
from tidesink.source_database.database import open_engine
from tidesink.source_database.mysql import (
    NO_TABLE,
    NO_VARIABLE,
    REFUSED,
    TOO_OLD,
    begin_session,
    compared,
    parameter_of,
    selected,
    stored_columns,
    text_of,
    tidb_as_of,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

AsOf = Callable[["Connection", int], None]
Texts = Mapping[str, str | None]

_OPTION: Final = "upstream-url"
_EXTRA: Final = "pip install 'tidesink[large-messages]'"


class UpstreamRow(NamedTuple):
    """A row of the upstream TiDB. ``texts``: its values as canal-json texts. ``types``: its column types.

    Both are dicts by column name, in the order of the table's columns.
    """

    texts: dict[str, str | None]
    types: dict[str, ColumnType]


class Upstream:
    """Reads single rows from the upstream TiDB by their keys.

    ``engine``: connections to the TiDB. ``time_zone``: time zone of TIMESTAMP texts. ``as_of``: function that
    sets the commit_ts as of which a session reads.
    """

    def __init__(self, engine: Engine, *, time_zone: str = "UTC", as_of: AsOf = tidb_as_of) -> None:
        self._engine = engine
        self._zone = ZoneInfo(time_zone)
        self._as_of = as_of

    def row(self, table: TableId, key: Texts, *, commit_ts: int) -> UpstreamRow:
        """Returns the row with this key as of ``commit_ts`` (a TiDB TSO).

        ``key``: canal-json texts of the key columns by name.

        Raises:
            RowUnavailableError: The table did not have the row at that time, or TiDB's garbage collection
                removed that version of the row.
            SourceUnavailableError: The upstream does not answer.
            ConfigError: The upstream denies access, or is not TiDB.
        """
        with _translated(table, commit_ts), self._engine.connect() as connection:
            begin_session(connection)
            self._as_of(connection, commit_ts)
            types = stored_columns(connection, table)
            if not types:
                raise RowUnavailableError(
                    "The upstream did not have this table at the row's commit_ts. Check that upstream-url is "
                    "the changefeed's own cluster.",
                    table=str(table),
                )
            rows = self._select(connection, table, types, key)
        if len(rows) != 1:
            raise RowUnavailableError(
                f"The upstream has {len(rows) or 'no'} rows with this key at commit_ts {commit_ts}, but "
                f"one was expected. Check that {_OPTION} is the changefeed's own cluster.",
                table=str(table),
            )
        texts = {
            name: None if value is None else self._text(value, types[name])
            for name, value in zip(types, rows[0], strict=True)
        }
        return UpstreamRow(texts, types)

    def close(self) -> None:
        """Closes all connections to the upstream."""
        self._engine.dispose()

    def _select(
        self, connection: Connection, table: TableId, types: Mapping[str, ColumnType], key: Texts
    ) -> list[Any]:
        import sqlalchemy as sa

        if not key or not types.keys() >= key.keys():
            raise RowUnavailableError(
                "The row's handle key contains columns that the upstream's table does not have. Check that "
                "upstream-url is the changefeed's own cluster.",
                table=str(table),
            )
        wanted = [selected(name, kind) for name, kind in types.items()]
        query = sa.select(*wanted).select_from(table_of(table))
        for name, text in key.items():
            query = query.where(compared(name, types[name]) == self._value(text, types[name]))
        # Two rows would mean that the key is not unique.
        return list(connection.execute(query.limit(2)))

    def _value(self, text: str | None, column_type: ColumnType) -> Value:
        """Converts the canal-json text of a key column to a parameter of the query."""
        if text is not None and column_type.name == "timestamp":
            text = _moved(text, self._zone, timezone.utc)
        return parameter_of(text, column_type)

    def _text(self, value: Any, column_type: ColumnType) -> str:
        """Converts a selected value to the text that canal-json would contain."""
        text = text_of(value, column_type)
        return _moved(text, timezone.utc, self._zone) if column_type.name == "timestamp" else text


def open_upstream(url: str, *, time_zone: str = "UTC", as_of: AsOf = tidb_as_of) -> Upstream:
    """Returns an upstream TiDB for a SQLAlchemy URL such as ``mysql+pymysql://reader:…@tidb:4000``.

    It connects when the first row is read. ``time_zone``: zone of TIMESTAMP texts.

    Raises:
        ConfigError: The URL is not valid, or its driver is not installed. The error text does not contain the
            URL, which may have a password.
    """
    engine = open_engine(url, option=_OPTION, extra=f"the large-messages extra: {_EXTRA}")
    return Upstream(engine, time_zone=time_zone, as_of=as_of)


def _moved(text: str, source: tzinfo, target: tzinfo) -> str:
    """Converts a TIMESTAMP's text from one time zone to another. A zero date is the same in every zone."""
    if text.startswith("0000-00-00"):
        return text
    whole, dot, fraction = text.partition(".")
    moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=source)
    return f"{moment.astimezone(target):%Y-%m-%d %H:%M:%S}{dot}{fraction}"


@contextmanager
def _translated(table: TableId, commit_ts: int) -> Iterator[None]:
    """While the block runs, replaces errors of the database by tidesink's errors, according to their codes.

    The original error texts are not shown, because they may contain values of rows.
    """
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        yield
    except DBAPIError as error:
        raise _error(code_of(error), commit_ts).with_context(table=str(table)) from error
    except SQLAlchemyError as error:
        raise SourceUnavailableError(
            f"The query to the upstream failed: {type(error).__name__}. Check that the upstream is running.",
            table=str(table),
        ) from error


def _error(
    code: ErrorCode | None, commit_ts: int
) -> RowUnavailableError | ConfigError | SourceUnavailableError:
    if code in TOO_OLD:
        return RowUnavailableError(
            f"TiDB's garbage collection has removed the row versions of commit_ts {commit_ts}. Raise "
            "tidb_gc_life_time of the upstream above the longest time that a reader may lag behind."
        )
    if code in NO_TABLE:
        return RowUnavailableError(
            f"The upstream did not have this table at commit_ts {commit_ts}. Check that upstream-url is "
            "the changefeed's own cluster."
        )
    if code in REFUSED:
        return ConfigError(
            f"{_OPTION}: The upstream denies access to the user (code {code}). Check the user's name, "
            "password and grants.",
            key=_OPTION,
        )
    if code == NO_VARIABLE:
        return ConfigError(
            f"{_OPTION}: The upstream is not TiDB, so it cannot be read as of a commit_ts. Set the URL of "
            "the changefeed's TiDB.",
            key=_OPTION,
        )
    return SourceUnavailableError(
        f"The upstream does not answer (code {code}). Check that it is running, and check upstream-url."
    )
