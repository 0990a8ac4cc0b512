"""Rows of a query as Arrow columns, from a driver's rows or from the bytes of MySQL's text protocol.

PyMySQL builds a tuple of each row, which is slower than all later steps. So the bytes of many rows are
read from its connection at once, without a Python object per value. A row is a packet: three bytes of length,
one byte of its number, then for each column a length and a text (MySQL's Client/Server Protocol, "Text
Resultset Row"; "Sending More Than 16Mb" for a row of several packets). The starts of packets are found one by
one; the starts of values are found for a column of all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidesink.events import ColumnType
from tidesink.source_database.base import ValueReader
from tidesink.typemap.table import row_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select

# Bytes of rows per batch; more if one row is larger.
BATCH_BYTES: Final = 4 << 20
_READ_BYTES: Final = 256 << 10
_HEADER: Final = 4
# A packet of this length continues in the next one.
_LONGEST: Final = (1 << 24) - 1
# The first bytes of packets that are not rows. A row begins with 0xFE only if it is longer than a packet.
_END: Final = 0xFE
_ERROR: Final = 0xFF
# The first byte of a value: NULL, or the number of bytes of its length; a smaller byte is the length itself.
_NULL: Final = 0xFB
_WIDTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}

Positions = npt.NDArray[np.int64]
# Arrow types of values that are not texts, by the reader of a column's values.
_SELECTED: Final = {"float32": pa.float64(), "float64": pa.float64(), "binary": pa.binary()}
ReaderOf = Callable[[ColumnType], ValueReader | None]


def _selected_type(column_type: ColumnType) -> pa.DataType:
    """Returns the Arrow type of the values that are selected for a column."""
    return _SELECTED.get(row_of(column_type).reader, pa.string())


def _arrow_of(values: Iterable[Any], column_type: ColumnType, read: ValueReader | None) -> pa.Array:
    """Convert a driver's values of a column with its ``value_reader``."""
    plain = values if read is None else (None if one is None else read(one) for one in values)
    return pa.array(plain, _selected_type(column_type))


def batches_of_rows(
    connection: Connection,
    query: Select[Any],
    types: Sequence[ColumnType],
    rows: int,
    value_reader: ReaderOf,
) -> Iterator[list[pa.Array]]:
    """Like ``SourceDialect.column_batches``, from any driver's rows."""
    readers = [value_reader(one) for one in types]
    found = connection.execution_options(stream_results=True, max_row_buffer=rows).execute(query)
    for part in found.partitions(rows):
        columns = zip(zip(*part, strict=True), types, readers, strict=True)
        yield [_arrow_of(*column) for column in columns]


# The packets of MySQL's text protocol


def batches_of_packets(
    connection: Connection, query: Select[Any], types: Sequence[ColumnType], value_reader: ReaderOf
) -> Iterator[list[pa.Array]]:
    """Like ``SourceDialect.column_batches``, from the bytes that a MySQL-protocol server sends to PyMySQL."""
    from pymysql.cursors import SSCursor
    from pymysql.err import Error
    from sqlalchemy.exc import DBAPIError

    compiled = query.compile(dialect=connection.dialect, compile_kwargs={"render_postcompile": True})
    values: Any = compiled.params
    if compiled.positional:  # in some versions of SQLAlchemy
        values = [values[name] for name in compiled.positiontup or ()]
    readers = [value_reader(one) for one in types]
    whole = False
    try:
        # Not with SQLAlchemy, which would fetch the first row.
        cursor = connection.connection.cursor(SSCursor)
        cursor.execute(str(compiled), values)
        for columns in column_batches(cursor):
            yield [_arrow(*column) for column in zip(columns, types, readers, strict=True)]
        whole = True
    except Error as error:
        # As SQLAlchemy's class for it.
        raise DBAPIError.instance(None, None, error, Error, dialect=connection.dialect) from error
    finally:
        if not whole:
            # Unread bytes would be taken for the answer to the next query.
            connection.invalidate()


def _arrow(values: pa.Array, column_type: ColumnType, read: ValueReader | None) -> pa.Array:
    """Convert the texts that the server sent for a column to its ``selected`` type."""
    texts = values.cast(pa.string())
    if row_of(column_type).reader == "binary":
        return from_hex(texts)
    if read is None:
        return texts.cast(_selected_type(column_type))
    return _arrow_of(texts.to_pylist(), column_type, read)


def from_hex(texts: pa.Array) -> pa.Array:
    """Convert texts of hex digits to bytes. The texts are adjacent, from the buffer's beginning."""
    there, ends, digits = texts.buffers()
    ends, digits = np.frombuffer(ends, np.int32), np.frombuffer(digits or b"", np.uint8)
    nibbles = np.where(digits < ord("A"), digits - ord("0"), (digits & 0xDF) - ord("A") + 10)
    data = nibbles[0::2] << 4 | nibbles[1::2]
    buffers = [there, pa.py_buffer(ends // 2), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


def column_batches(cursor: Any) -> Iterator[list[pa.Array]]:
    """Yields the remaining rows of an unbuffered PyMySQL cursor as binary columns. The cursor is used up.

    Raises:
        pymysql.err.Error: The server or the network ends the connection, or the server sends no rows.
    """
    result = cursor._result
    connection, columns = result.connection, result.field_count
    # Otherwise a cursor that is closed early would search for its end inside a packet.
    result.unbuffered_active, result.connection = False, None
    yield from _Packets(connection._rfile).batches(columns)


@dataclass
class _Packets:
    """The rows that a connection receives: ``data`` has those between ``starts`` and ``ends``."""

    incoming: Any
    data: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def batches(self, columns: int) -> Iterator[list[pa.Array]]:
        at, ended = 0, False
        while not ended:
            self._add(self.incoming.read1, _READ_BYTES)
            at, ended = self._walk(at)
            if at >= BATCH_BYTES or ended:
                if self.starts:
                    starts, ends = (np.array(one, np.int64) for one in (self.starts, self.ends))
                    yield columns_of(bytes(self.data), starts, ends, columns)
                del self.data[:at]
                at, self.starts, self.ends = 0, [], []

    def _walk(self, at: int) -> tuple[int, bool]:
        """Find the complete packets from a position on. Returns their end, and True if these are all.

        Raises:
            pymysql.err.Error: One of the packets is an error of the server.
        """
        data, starts, ends = self.data, self.starts, self.ends
        while at + _HEADER <= len(data):
            start = at + _HEADER
            length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            end = start + length
            if length == _LONGEST:
                end = self._joined(end)
            elif end > len(data):
                break
            elif length and data[start] == _END:
                return end, True
            elif length and data[start] == _ERROR:
                _refuse(bytes(data[start:end]))
            starts.append(start)
            ends.append(end)
            at = end
        return at, False

    def _joined(self, end: int) -> int:
        """Join the packets of one row, of which the first ends at ``end``.

        Returns the end of the last one.
        """
        length = _LONGEST
        while length == _LONGEST:
            self._hold(end + _HEADER)
            length = int.from_bytes(self.data[end : end + 3], "little")
            del self.data[end : end + _HEADER]
            end += length
            self._hold(end)
        return end

    def _hold(self, size: int) -> None:
        """Wait until so many bytes are received, of a packet that has been announced."""
        while size > len(self.data):
            self._add(self.incoming.read, size - len(self.data))

    def _add(self, read: Any, size: int) -> None:
        try:
            more = read(size)
        except OSError as error:
            _break_off(error.strerror or type(error).__name__)
        if not more:
            _break_off("the connection was closed")
        self.data += more


def columns_of(data: bytes, starts: Positions, ends: Positions, columns: int) -> list[pa.Array]:
    """Returns the values of adjacent rows in some bytes, as one binary array per column.

    Raises:
        pymysql.err.InternalError: The values do not end at the ends of their rows.
    """
    places = np.frombuffer(data + bytes(max(_WIDTHS.values()) + 1), np.uint8)
    # The start and the end of each value, row by row, and at last the end of all.
    flat = np.empty(2 * columns * len(starts) + 1, np.int32)
    edges, flat[-1] = flat[:-1].reshape(len(starts), columns, 2), ends[-1]
    nulls, at = [], starts
    for number in range(columns):
        begin, size, null = _lengths(places, np.clip(at, 0, len(data)))
        at = begin + size
        edges[:, number, 0], edges[:, number, 1] = begin, at
        nulls.append(null)
    if not np.array_equal(at, ends):
        from pymysql.err import InternalError

        raise InternalError("the server's packets are not rows of the requested columns")
    # All bytes as one array. The bytes between values are elements too, which belong to no column.
    every = pa.Array.from_buffers(pa.binary(), len(flat) - 1, [None, pa.py_buffer(flat), pa.py_buffer(data)])
    step = np.arange(0, 2 * columns * len(starts), 2 * columns)
    return [
        every.take(pa.array(step + 2 * number, mask=null if null.any() else None))
        for number, null in enumerate(nulls)
    ]


def _lengths(
    places: npt.NDArray[np.uint8], at: Positions
) -> tuple[Positions, Positions, npt.NDArray[np.bool_]]:
    """Returns the starts of values whose lengths are at some positions, their lengths, and NULL flags."""
    first = places[at]
    begin, size, null = at + 1, first.astype(np.int64), first == _NULL
    size[null] = 0
    for mark, width in _WIDTHS.items():
        if (long := first == mark).any():
            where = at[long]
            size[long] = sum(places[where + 1 + n].astype(np.int64) << 8 * n for n in range(width))
            begin[long] += width
    return begin, size, null


def _refuse(packet: bytes) -> NoReturn:
    from pymysql.err import raise_mysql_exception

    raise_mysql_exception(packet)
    raise AssertionError  # it always raises


def _break_off(reason: str) -> NoReturn:
    from pymysql.constants.CR import CR_SERVER_LOST
    from pymysql.err import OperationalError

    raise OperationalError(CR_SERVER_LOST, f"Lost connection to MySQL server during query ({reason})")
