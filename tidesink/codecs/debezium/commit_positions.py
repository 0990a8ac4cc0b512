"""Commit positions: positions in the log of a connector's database, as numbers that rise with each commit.

A *commit position* orders a connector's rows by their transactions, as the commit_ts orders TiCDC's rows
(ADR 36). No position that a connector's checkpoint can have divides a transaction: its rows are either all at
or below this position, or all above it. Rows at or below it belong to transactions that were committed before
the connector reached it.

- MySQL and MariaDB: file number and position in the binary log, ``file << 32 | pos``. A transaction's events
  are contiguous, so a row's position is after those of all earlier transactions and before those of all later
  transactions. A checkpoint is the position at which the connector would resume: the beginning of the
  transaction that it has partly sent, or of the next transaction. Positions from 4 GiB on count as the
  beginning of the next file. They belong to the file's last transaction, because the server changes to the
  next file after the transaction that made a file larger than ``max_binlog_size`` (1 GiB at most).
- Postgres: a transaction's rows were written to the log before its commit, mixed with those of other
  transactions, and are sent when the transaction commits. ``source.sequence`` has the end of the previous
  commit, and the row's own LSN. A checkpoint is the end of the last commit whose rows were all sent.

A streamed row's commit position is one more than the position described above; a snapshot's row has the
position of its snapshot. Sources: Debezium 3.5.0.Final for MariaDB and Postgres (captured). MySQL and MariaDB
share their connectors' code (``debezium-connector-binlog``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

_BINLOG: Final = frozenset({"mysql", "mariadb"})
_POSTGRES: Final = "postgresql"
_STREAMED: Final = ("false", "", None, False)
_FILE: Final = re.compile(r"\.([0-9]{1,9})\Z", re.ASCII)
_SEQUENCE: Final = re.compile(r'\[(?:"([0-9]{1,18})"|null), ?"[0-9]{1,18}"\]', re.ASCII)
_SEQUENCE_COLUMN: Final = r'^\[(?:"(?P<before>[0-9]{1,18})"|null), ?"[0-9]{1,18}"\]$'
_MOST_FILES: Final = 1 << 30
_MOST_BYTES: Final = 1 << 32
_MOST: Final = (1 << 63) - 2
# The members of a source block that ``commit_position`` reads.
_MEMBERS: Final = ("snapshot", "file", "pos", "sequence", "lsn")


def binlog_position(file: object, pos: object) -> int | None:
    """Returns a position in the binary log as one number.

    Returns None if the file's name or the position is not valid.
    """
    return _binlog_position(file, pos, 0)


def _binlog_position(file: object, pos: object, behind: int) -> int | None:
    """Returns, as one number, the position ``behind`` bytes after ``pos`` in a binary log file.

    The position is at most the beginning of the next file. Returns None if the file's name or the position is
    not valid.
    """
    match = _FILE.search(file) if isinstance(file, str) else None
    if match is None or not _is_count(pos, _MOST):
        return None
    number = int(match[1])
    if number >= _MOST_FILES:
        return None
    return (number << 32) + min(cast("int", pos) + behind, _MOST_BYTES)


def log_position(lsn: object) -> int | None:
    """Returns an LSN of Postgres as a number; None if it is not valid."""
    return int(lsn) if _is_count(lsn, _MOST) else None  # type: ignore[call-overload]


def _is_count(value: object, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end


def commit_position(source: Mapping[str, Any]) -> int | None:
    """Returns the commit position of a row from its source block; None if it is not known."""
    connector, snapshot = source.get("connector"), source.get("snapshot") not in _STREAMED
    if connector in _BINLOG:
        return _binlog_position(source.get("file"), source.get("pos"), not snapshot)
    if connector == _POSTGRES:
        position = log_position(source.get("lsn")) if snapshot else _commit_before(source)
        return None if position is None else position + (not snapshot)
    return None


def _commit_before(source: Mapping[str, Any]) -> int | None:
    """Returns the LSN at which the commit before a row's transaction ends; None if it is not known.

    For the first transaction that a connector sends, returns the row's own LSN.
    """
    sequence = source.get("sequence")
    match = _SEQUENCE.fullmatch(sequence) if isinstance(sequence, str) else None
    if match is None:
        return None
    return log_position(source.get("lsn")) if match[1] is None else int(match[1])


def commit_positions(
    connector: str, member: Callable[[str], Any], names: Collection[str], *, count: int
) -> pa.Array:
    """Returns the commit positions of many rows of one connector, null where a position is not known.

    ``member`` is a function that returns a member of the rows' source blocks as a column, by its name.
    ``names`` holds the names of the available members, and ``count`` is the number of rows.
    """
    columns = {name: member(name) for name in _MEMBERS if name in names}
    positions = None
    if not any(isinstance(column, list) for column in columns.values()):
        find = _binlog_columns if connector in _BINLOG else _lsn_columns if connector == _POSTGRES else None
        positions = find(columns) if find is not None else pa.nulls(count, pa.int64())
    if positions is not None:
        return positions
    listed = (values if isinstance(values, list) else values.to_pylist() for values in columns.values())
    rows = zip(*listed, strict=True) if columns else ((),) * count
    sources = ({"connector": connector, **dict(zip(columns, row, strict=True))} for row in rows)
    return pa.array([commit_position(source) for source in sources], pa.int64())


def _binlog_columns(columns: Mapping[str, pa.Array]) -> pa.Array | None:
    """Returns the commit positions of rows from MySQL or MariaDB.

    Returns None if a column does not have the type that the connectors write.
    """
    file, pos = columns.get("file"), columns.get("pos")
    if file is None or pos is None or not pa.types.is_integer(pos.type):
        return None
    coded = file.dictionary_encode()
    bases = pa.array([binlog_position(name, 0) for name in coded.dictionary.to_pylist()], pa.int64())
    behind = pc.add(_counts(pos, _MOST), _is_streamed(columns, len(file)).cast(pa.int64()))
    most = pa.scalar(_MOST_BYTES, pa.int64())
    return pc.add(bases.take(coded.indices), pc.min_element_wise(behind, most, skip_nulls=False))


def _lsn_columns(columns: Mapping[str, pa.Array]) -> pa.Array | None:
    """Returns the commit positions of rows from Postgres.

    Returns None if a column does not have the type that the connector writes.
    """
    lsn, sequence = columns.get("lsn"), columns.get("sequence")
    if lsn is None or sequence is None or not pa.types.is_integer(lsn.type):
        return None
    if sequence.type != pa.string():
        return None
    lsn, streamed = _counts(lsn, _MOST), _is_streamed(columns, len(lsn))
    read = pc.extract_regex(sequence, _SEQUENCE_COLUMN)
    before = pc.struct_field(read, "before")
    first = pc.equal(before, "")
    ended = pc.if_else(first, pa.scalar(None, pa.string()), before).cast(pa.int64())
    # Null without a valid sequence, since it is not known then whether it is the first.
    behind = pc.add(pc.if_else(first, lsn, ended), 1)
    return pc.if_else(streamed, behind, lsn)


def _counts(column: pa.Array, end: int) -> pa.Array:
    column = column.cast(pa.int64())
    fits = pc.and_(pc.greater_equal(column, 0), pc.less(column, end))
    return pc.if_else(fits, column, pa.scalar(None, pa.int64()))


def _is_streamed(columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Returns a mask of the rows that were read from the log, and not by a snapshot."""
    snapshot = columns.get("snapshot")
    if snapshot is None:
        return pa.array([True] * count)
    coded = snapshot.dictionary_encode()
    streamed = pa.array([value in _STREAMED for value in coded.dictionary.to_pylist()], pa.bool_())
    # A null is not a snapshot.
    return pc.fill_null(streamed.take(coded.indices), True)
