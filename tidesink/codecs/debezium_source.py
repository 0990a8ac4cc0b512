"""The ``source`` block of a Debezium event: which table, and where the change stands at its source.

Sources: Debezium 3.5.0.Final for MariaDB and Postgres (captured events); Debezium's documentation and
source for MySQL, Oracle, SQL Server, Db2, Informix, MongoDB, Vitess, Spanner and Cassandra, of which no
capture was at hand; TiCDC new architecture (b813e76) for its own ``debezium`` protocols.

Positions compare as numbers, and only within what one source keeps in order:

- MySQL and MariaDB: ``(binlog file number, pos, row)``. The binlog is in commit order, so a snapshot's
  row, which has the position the snapshot was taken at, sorts before every change that came after.
- SQL Server and Db2: ``(commit_lsn, change_lsn, event_serial_no)``, in commit order too.
- Postgres: ``(lsn,)`` of the event; Oracle: ``(scn, commit_scn)``. Row locks keep the changes of one row
  in this order, but a transaction that was open while a snapshot began has changes with a lower number
  than the snapshot's and is sent after it. So a snapshot's rows have none: Kafka's order is theirs.
- MongoDB: ``(seconds, ord)`` of the operation's timestamp.
- TiCDC: ``(commit_ts,)``.

A GTID set is only partly ordered: it is kept, never compared. What is not told here has no position.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tidesink.events import TableId

Source = Mapping[str, Any]
Numbers = tuple[int, ...]

TICDC: Final = "TiCDC"
POSTGRES: Final = "postgresql"
MONGODB: Final = "mongodb"
_UINT64: Final = 2**64 - 1

_FILE_NUMBER: Final = re.compile(r"\.([0-9]{1,18})\Z", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]{1,38}", re.ASCII)
_MOST: Final = 10**38 - 1
_HEX_LSN: Final = re.compile(r"[0-9a-fA-F]{1,32}(?::[0-9a-fA-F]{1,16}){0,2}", re.ASCII)
STREAMED: Final = ("false", "", None, False)


def is_snapshot(source: Source) -> bool:
    """Whether a row was read by a snapshot and not from the log."""
    return source.get("snapshot") not in STREAMED


def _whole(value: object) -> int | None:
    """A count as the wire has it, a number or its digits; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= _MOST else None
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else None


def _together(*numbers: int | None) -> Numbers | None:
    found = tuple(number for number in numbers if number is not None)
    return found if len(found) == len(numbers) else None


def binlog_file_number(file: object) -> int | None:
    """The number at the end of a binlog file's name; None where it has none."""
    number = _FILE_NUMBER.search(file) if isinstance(file, str) else None
    return None if number is None else int(number[1])


def _binlog(source: Source) -> Numbers | None:
    number = binlog_file_number(source.get("file"))
    if number is None:
        return None
    return _together(number, _whole(source.get("pos")), _whole(source.get("row")) or 0)


def _event_lsn(source: Source) -> Numbers | None:
    return None if is_snapshot(source) else _together(_whole(source.get("lsn")))


def _scn(source: Source) -> Numbers | None:
    if is_snapshot(source):
        return None
    return _together(_whole(source.get("scn")), _whole(source.get("commit_scn")) or 0)


def lsn_number(value: object) -> int | None:
    """An LSN such as ``00000027:00000758:0003``: parts of fixed width, so all of it is one number."""
    if not isinstance(value, str) or not _HEX_LSN.fullmatch(value):
        return None
    return int(value.replace(":", ""), 16)


def _commit_lsn(source: Source) -> Numbers | None:
    # A snapshot's row has the commit LSN it was read at and no change of its own.
    return _together(
        lsn_number(source.get("commit_lsn")),
        lsn_number(source.get("change_lsn")) or 0,
        _whole(source.get("event_serial_no")) or 0,
    )


def _operation_time(source: Source) -> Numbers | None:
    milliseconds = _whole(source.get("ts_ms"))
    return None if milliseconds is None else _together(milliseconds // 1000, _whole(source.get("ord")))


def _unsigned(value: object) -> int | None:
    """TiDB's timestamps are unsigned; debezium-avro has them in a long, where the largest are negative."""
    return value & _UINT64 if isinstance(value, int) and not isinstance(value, bool) else None


def _commit_ts(source: Source) -> Numbers | None:
    return _together(_unsigned(source.get("commit_ts")))


def _nowhere(_source: Source) -> Numbers | None:
    return None


class _Connector(NamedTuple):
    schema: str
    name: str
    position: Callable[[Source], Numbers | None]
    # What ``position`` reads.
    members: tuple[str, ...] = ()


_UNKNOWN: Final = _Connector("db", "table", _nowhere)
_BINLOG_MEMBERS: Final = ("file", "pos", "row")
_LSN_MEMBERS: Final = ("commit_lsn", "change_lsn", "event_serial_no")
# By ``source.connector``: which members name the table, and what orders its changes.
_CONNECTORS: Final[Mapping[str, _Connector]] = {
    "mysql": _Connector("db", "table", _binlog, _BINLOG_MEMBERS),
    "mariadb": _Connector("db", "table", _binlog, _BINLOG_MEMBERS),
    POSTGRES: _Connector("schema", "table", _event_lsn, ("snapshot", "lsn")),
    "yugabytedb": _Connector("schema", "table", _nowhere),
    "oracle": _Connector("schema", "table", _scn, ("snapshot", "scn", "commit_scn")),
    "sqlserver": _Connector("schema", "table", _commit_lsn, _LSN_MEMBERS),
    "db2": _Connector("schema", "table", _commit_lsn, _LSN_MEMBERS),
    "informix": _Connector("schema", "table", _nowhere),
    MONGODB: _Connector("db", "collection", _operation_time, ("ts_ms", "ord")),
    "vitess": _Connector("keyspace", "table", _nowhere),
    "cassandra": _Connector("keyspace", "table", _nowhere),
    "spanner": _Connector("database_id", "table", _nowhere),
    TICDC: _Connector("db", "table", _commit_ts, ("commit_ts",)),
}


def table_members(connector: str) -> tuple[str, ...]:
    """The members of a connector's source block that name the table."""
    found = _CONNECTORS.get(connector)
    return ("db", "schema", "table", "collection") if found is None else (found.schema, found.name)


def position_members(connector: str) -> tuple[str, ...]:
    """The members of a connector's source block that tell the position."""
    return _CONNECTORS.get(connector, _UNKNOWN).members


def connector_of(source: Source) -> str:
    """The connector's name as ``source.connector`` has it; empty where it has none."""
    name = source.get("connector")
    return name if isinstance(name, str) else ""


def table_of_source(source: Source) -> TableId:
    """The table a change belongs to; parts the block does not tell are empty."""
    connector = _CONNECTORS.get(connector_of(source), _UNKNOWN)
    schema, name = _text(source, connector.schema), _text(source, connector.name)
    if connector is _UNKNOWN:
        schema, name = schema or _text(source, "schema"), name or _text(source, "collection")
    return TableId(schema, name)


def _text(source: Source, member: str) -> str:
    value = source.get(member)
    return value if isinstance(value, str) else ""


def position_of_source(source: Source) -> Numbers | None:
    """Where a change stands at its source, to be compared number by number; None where nothing tells."""
    return _CONNECTORS.get(connector_of(source), _UNKNOWN).position(source)


def commit_ts_of_source(source: Source) -> int | None:
    """TiDB's commit timestamp, which TiCDC alone writes."""
    return _unsigned(source.get("commit_ts")) if connector_of(source) == TICDC else None
