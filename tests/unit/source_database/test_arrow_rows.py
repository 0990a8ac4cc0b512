"""Rows of MySQL's text protocol come as they were sent, however the network cuts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.err import InternalError, OperationalError, ProgrammingError

from tidesink.source_database.arrow_rows import BATCH_BYTES, column_batches, from_hex

Row = Sequence[bytes | None]
_LONGEST = (1 << 24) - 1
_END = b"\xfe\x00\x00\x02\x00"


class _Incoming:
    """What a connection receives: each ``read1`` gives a piece, ``read`` as much as is asked for."""

    def __init__(self, data: bytes, cuts: Sequence[int]) -> None:
        self.data, self.at, self.cuts = data, 0, iter(cuts)

    def read1(self, size: int) -> bytes:
        return self.read(min(size, next(self.cuts, size)))

    def read(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        self.at += len(found)
        return found


def _length(size: int) -> bytes:
    if size < 251:
        return bytes([size])
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little")
    return b"\xfd" + size.to_bytes(3, "little") if size < 1 << 24 else b"\xfe" + size.to_bytes(8, "little")


def _packets(payload: bytes) -> Iterator[bytes]:
    """A payload as packets: one of the greatest length is always followed by another."""
    number, left = 0, payload
    while True:
        part, left = left[:_LONGEST], left[_LONGEST:]
        yield len(part).to_bytes(3, "little") + bytes([number % 256]) + part
        number += 1
        if len(part) < _LONGEST:
            return


def _sent(rows: Sequence[Row], last: bytes = _END) -> bytes:
    payloads = (b"".join(b"\xfb" if one is None else _length(len(one)) + one for one in row) for row in rows)
    return b"".join(packet for payload in (*payloads, last) for packet in _packets(payload))


def _cursor(data: bytes, columns: int, cuts: Sequence[int] = ()) -> Any:
    connection = SimpleNamespace(_rfile=_Incoming(data, cuts))
    result = SimpleNamespace(connection=connection, field_count=columns, unbuffered_active=True)
    return SimpleNamespace(_result=result)


def _read(data: bytes, columns: int, cuts: Sequence[int] = ()) -> list[tuple[bytes | None, ...]]:
    rows = []
    for found in column_batches(_cursor(data, columns, cuts)):
        assert all(one.type == pa.binary() for one in found)
        rows += list(zip(*(one.to_pylist() for one in found), strict=True))
    return rows


_VALUES = st.one_of(
    st.none(),
    st.binary(max_size=5),
    # What would be taken for another packet, or another length, where a place is off by one.
    st.sampled_from([b"", _END, b"\xff\x00\x00", b"\xfb", bytes(250), bytes(251), bytes(70_000)]),
)


@st.composite
def _tables(draw: st.DrawFn) -> list[tuple[bytes | None, ...]]:
    return draw(st.lists(st.tuples(*[_VALUES] * draw(st.integers(1, 4))), max_size=8))


@given(rows=_tables(), cuts=st.lists(st.integers(1, 40), max_size=60))
def test_rows_come_as_they_were_sent(rows: list[tuple[bytes | None, ...]], cuts: list[int]) -> None:
    assert _read(_sent(rows), len(rows[0]) if rows else 1, cuts) == rows


def test_many_rows_come_in_batches_of_bounded_size() -> None:
    rows = [(b"%d" % number, bytes(1000)) for number in range(10_000)]
    found = list(column_batches(_cursor(_sent(rows), 2)))
    sizes = [one[0].nbytes + one[1].nbytes for one in found]
    assert len(sizes) > 1
    assert max(sizes) < 2 * BATCH_BYTES
    assert [value for one in found for value in one[0].to_pylist()] == [row[0] for row in rows]


@pytest.mark.parametrize("size", [_LONGEST - 5, _LONGEST - 4, _LONGEST, 2 * _LONGEST + 3])
def test_a_row_of_several_packets(size: int) -> None:
    """The middle row is as long as a packet just holds, one byte more, and three packets."""
    rows = [(b"1", b"a"), (None, b"x" * size), (b"3", None)]
    assert _read(_sent(rows), 2, [3, 7]) == rows


def test_the_error_of_a_server_behind_some_rows() -> None:
    refusal = b"\xff" + (1317).to_bytes(2, "little") + b"#70100Query execution was interrupted"
    cursor = _cursor(_sent([(b"1",)], refusal), 1)
    with pytest.raises((OperationalError, InternalError), match="interrupted"):
        list(column_batches(cursor))


@pytest.mark.parametrize("kept", [0, 3, 4, 6, 30])
def test_a_connection_that_ends_before_the_rows_do(kept: int) -> None:
    data = _sent([(b"one", b"two"), (b"three" * 20, None)])
    with pytest.raises(OperationalError, match="Lost connection"):
        _read(data[:kept], 2)


def test_a_connection_that_answers_no_more() -> None:
    class Silent:
        def read1(self, _size: int) -> bytes:
            raise TimeoutError("timed out")

    cursor = _cursor(b"", 1)
    cursor._result.connection._rfile = Silent()
    with pytest.raises(OperationalError, match="Lost connection"):
        list(column_batches(cursor))


@pytest.mark.parametrize("columns", [1, 3])
def test_bytes_that_are_no_rows_are_refused(columns: int) -> None:
    with pytest.raises((InternalError, ProgrammingError), match="are not rows"):
        _read(_sent([(b"1", b"2"), (b"3", b"4")]), columns)


def test_a_cursor_that_is_closed_early_looks_for_no_end() -> None:
    cursor = _cursor(_sent([(b"1",)]), 1)
    next(column_batches(cursor))
    assert not cursor._result.unbuffered_active


@given(st.lists(st.none() | st.binary(max_size=20)))
def test_bytesfrom_hex(values: list[bytes | None]) -> None:
    for digits in (bytes.hex, lambda one: bytes.hex(one).upper()):
        texts = pa.array([None if one is None else digits(one) for one in values], pa.string())
        assert from_hex(texts).to_pylist() == values
