"""Reads the rows of a query as Arrow arrays, from any driver or directly from MySQL's text protocol.

PyMySQL builds a tuple for each row, which takes longer than all later steps. So this module reads the bytes
of many rows from PyMySQL's connection at once, without a Python object per value. In the protocol a row is a
packet: three bytes with the length, one byte with the packet number, then for each column a length and a text
(MySQL's Client/Server Protocol, "Text Resultset Row"; "Sending More Than 16Mb" for a row of several packets).
The starts of packets are found one after the other. The starts of values are found for one column of all rows
at once.
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

# Bytes of rows per batch. A larger row is a batch of its own.
BATCH_BYTES: Final = 4 << 20
_READ_BYTES: Final = 256 << 10
_HEADER: Final = 4
# A packet of this length continues in the next one.
_LONGEST: Final = (1 << 24) - 1
# First bytes of packets that are not rows. A row can begin with 0xFE only if it has several packets.
_END: Final = 0xFE
_ERROR: Final = 0xFF
# First byte of a value: NULL, or the number of bytes of its length. A smaller first byte is the length
# itself.
_NULL: Final = 0xFB
_WIDTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}

Positions = npt.NDArray[np.int64]
# Arrow types of values that are not texts, by the type table's reader.
_SELECTED: Final = {"float32": pa.float64(), "float64": pa.float64(), "binary": pa.binary()}
ReaderOf = Callable[[ColumnType], ValueReader | None]


def _selected_type(column_type: ColumnType) -> pa.DataType:
    """Returns the Arrow type of the values that a query selects for a column."""
    return _SELECTED.get(row_of(column_type).reader, pa.string())


def _arrow_of(values: Iterable[Any], column_type: ColumnType, read: ValueReader | None) -> pa.Array:
    """Convert a driver's values of a column to an Arrow array. ``read`` converts one value."""
    plain = values if read is None else (None if value is None else read(value) for value in values)
    return pa.array(plain, _selected_type(column_type))


def batches_of_rows(
    connection: Connection,
    query: Select[Any],
    types: Sequence[ColumnType],
    rows: int,
    value_reader: ReaderOf,
) -> Iterator[list[pa.Array]]:
    """Yields the rows of a query as Arrow arrays, one per column, about ``rows`` rows at a time, with any
    driver.
    """
    readers = [value_reader(column_type) for column_type in types]
    result = connection.execution_options(stream_results=True, max_row_buffer=rows).execute(query)
    for part in result.partitions(rows):
        columns = zip(zip(*part, strict=True), types, readers, strict=True)
        yield [_arrow_of(*column) for column in columns]


# The packets of MySQL's text protocol


def batches_of_packets(
    connection: Connection, query: Select[Any], types: Sequence[ColumnType], value_reader: ReaderOf
) -> Iterator[list[pa.Array]]:
    """Yields the rows of a query as Arrow arrays, one per column, from the bytes that a server sends to
    PyMySQL.
    """
    from pymysql.cursors import SSCursor
    from pymysql.err import Error
    from sqlalchemy.exc import DBAPIError

    compiled = query.compile(dialect=connection.dialect, compile_kwargs={"render_postcompile": True})
    values: Any = compiled.params
    if compiled.positional:  # in some versions of SQLAlchemy
        values = [values[name] for name in compiled.positiontup or ()]
    readers = [value_reader(column_type) for column_type in types]
    whole = False
    try:
        # Not executed with SQLAlchemy, which would fetch the first row.
        cursor = connection.connection.cursor(SSCursor)
        cursor.execute(str(compiled), values)
        for columns in column_batches(cursor):
            yield [_arrow(*column) for column in zip(columns, types, readers, strict=True)]
        whole = True
    except Error as error:
        # SQLAlchemy's exception for this error.
        raise DBAPIError.instance(None, None, error, Error, dialect=connection.dialect) from error
    finally:
        if not whole:
            # Otherwise the unread bytes would be read as the answer to the next query.
            connection.invalidate()


def _arrow(values: pa.Array, column_type: ColumnType, read: ValueReader | None) -> pa.Array:
    """Convert the texts that the server sent for a column to an array of the column's ``_selected_type``."""
    texts = values.cast(pa.string())
    if row_of(column_type).reader == "binary":
        return from_hex(texts)
    if read is None:
        return texts.cast(_selected_type(column_type))
    return _arrow_of(texts.to_pylist(), column_type, read)


def from_hex(texts: pa.Array) -> pa.Array:
    """Convert texts of hex digits to bytes.

    The texts must be adjacent, and begin at the start of their buffer.
    """
    there, ends, digits = texts.buffers()
    ends, digits = np.frombuffer(ends, np.int32), np.frombuffer(digits or b"", np.uint8)
    nibbles = np.where(digits < ord("A"), digits - ord("0"), (digits & 0xDF) - ord("A") + 10)
    data = nibbles[0::2] << 4 | nibbles[1::2]
    buffers = [there, pa.py_buffer(ends // 2), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


def column_batches(cursor: Any) -> Iterator[list[pa.Array]]:
    """Yields the remaining rows of an unbuffered PyMySQL cursor as binary columns. The cursor cannot be used
    again.

    Raises:
        pymysql.err.Error: The connection ends, or the server sends an error instead of rows.
    """
    result = cursor._result
    connection, columns = result.connection, result.field_count
    # PyMySQL must not read from the cursor's connection again. It would search for the end of the rows inside
    # a packet.
    result.unbuffered_active, result.connection = False, None
    yield from _Packets(connection._rfile).batches(columns)


@dataclass
class _Packets:
    """Finds the rows in the packets that a connection receives.

    ``data``: the received bytes. ``starts`` and ``ends``: positions of the complete rows in ``data``.
    """

    incoming: Any
    data: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def batches(self, columns: int) -> Iterator[list[pa.Array]]:
        position, ended = 0, False
        while not ended:
            self._add(self.incoming.read1, _READ_BYTES)
            position, ended = self._walk(position)
            if position >= BATCH_BYTES or ended:
                if self.starts:
                    starts, ends = (np.array(positions, np.int64) for positions in (self.starts, self.ends))
                    yield columns_of(bytes(self.data), starts, ends, columns)
                del self.data[:position]
                position, self.starts, self.ends = 0, [], []

    def _walk(self, position: int) -> tuple[int, bool]:
        """Find the complete packets in ``data`` from a position on.

        Returns the end of the last complete packet, and True if it was the last packet of the result.

        Raises:
            pymysql.err.Error: The server sent an error packet.
        """
        data, starts, ends = self.data, self.starts, self.ends
        while position + _HEADER <= len(data):
            start = position + _HEADER
            length = data[position] | data[position + 1] << 8 | data[position + 2] << 16
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
            position = end
        return position, False

    def _joined(self, end: int) -> int:
        """Join the packets of one long row whose first packet ends at ``end``.

        Returns the end of the joined row.
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
        """Receive bytes until ``data`` has ``size`` bytes.

        The bytes belong to a packet whose header was received.
        """
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
    """Returns the values of adjacent rows as one binary array per column.

    ``data`` has the bytes of the rows, ``starts`` and ``ends`` the position of each row.

    Raises:
        pymysql.err.InternalError: The values of a row do not end at the end of the row.
    """
    places = np.frombuffer(data + bytes(max(_WIDTHS.values()) + 1), np.uint8)
    # The start and the end of each value, row by row, and finally the end of the last row.
    flat = np.empty(2 * columns * len(starts) + 1, np.int32)
    edges, flat[-1] = flat[:-1].reshape(len(starts), columns, 2), ends[-1]
    nulls, positions = [], starts
    for number in range(columns):
        begin, size, null = _lengths(places, np.clip(positions, 0, len(data)))
        positions = begin + size
        edges[:, number, 0], edges[:, number, 1] = begin, positions
        nulls.append(null)
    if not np.array_equal(positions, ends):
        from pymysql.err import InternalError

        raise InternalError("The server's packets are not rows with the requested columns")
    # One array of all bytes. Its elements are the values and the bytes between them; each column takes its
    # values.
    every = pa.Array.from_buffers(pa.binary(), len(flat) - 1, [None, pa.py_buffer(flat), pa.py_buffer(data)])
    step = np.arange(0, 2 * columns * len(starts), 2 * columns)
    return [
        every.take(pa.array(step + 2 * number, mask=null if null.any() else None))
        for number, null in enumerate(nulls)
    ]


def _lengths(
    places: npt.NDArray[np.uint8], at: Positions
) -> tuple[Positions, Positions, npt.NDArray[np.bool_]]:
    """Read the stored length of one column's value in every row.

    Returns where each value starts, its length in bytes, and True for each NULL. ``at``: where each length is
    stored.
    """
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
