"""Finds the values in the bytes of many canal-json records at once, without parsing each record as JSON.

TiCDC (tiflow c7b2588, ticdc b813e76) writes a row change as compact JSON with its members in one order::

    {"id":0,"database":"shop",…,"isDdl":false,"type":"INSERT","es":1,"ts":2,…,"mysqlType":{…},
     "old":null,"data":[{"id":"1","note":null}],"_tidb":{"commitTs":3}}

Other producers, and tools that copy topics, may write white space between the JSON tokens. ``compacted``
removes it before the scan.

The scan cuts each record at ``,"old":`` into a head and a body. The values after a key in the body are called
*tokens* (a text, null, or digits), and the body without its tokens is called the *skeleton*. The heads,
without the digits of ``es`` and ``ts``, and the skeletons are the same in most records of a table. So each
distinct head and skeleton is parsed as JSON only once. A record is *proven* if its tokens can be used without
parsing the record as JSON; ``Scan`` explains why. All other records are left to the row codec, which decodes
one record at a time. Only the row codec raises errors about a record.

This module also determines the table of each record without decoding its row. In most records the first bytes
contain the table, and each distinct beginning is parsed only once. A record that does not begin like TiCDC's
is parsed completely. A record without a table name, or that cannot be parsed, may belong to any table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.avro_columns import is_utf8
from tidesink.codecs.compression import Compression, compression_of, decompressed
from tidesink.errors import FramingError
from tidesink.events import TableId

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Cut = tuple[int, ...]

_QUOTE, _BACKSLASH, _COLON, _COMMA, _END, _NULL = b'"\\:,}n'
_ZERO, _NINE, _LIST, _OBJECT = b"09[{"
_BEGINS_SPACED: Final = re.compile(rb'[ \t\n\r]|\{[ \t\n\r]|\{"id"(?:[ \t\n\r]|:[ \t\n\r]|:0,?[ \t\n\r])')
# Kinds of values after a key in a body, by their first byte. The first three kinds are tokens.
_TEXT_KIND, _NULL_KIND, _NUMBER_KIND, _NESTED_KIND, _NO_KIND = range(5)
_KINDS: Final = np.full(256, _NO_KIND, np.uint8)
_KINDS[_QUOTE], _KINDS[_NULL] = _TEXT_KIND, _NULL_KIND
_KINDS[_ZERO : _NINE + 1] = _NUMBER_KIND
_KINDS[[_LIST, _OBJECT]] = _NESTED_KIND
# Number of zero bytes appended to the data, so that windows of bytes near its end can be read.
_PADDING: Final = 24
# Numbers of this many digits always fit a signed 64-bit integer. A TSO has 18 digits until the year 2090.
MOST_DIGITS: Final = 18

_ES, _TS, _OLD = b'"es":', b',"ts":', b',"old":'
_STAMPS: Final = re.compile(rb'"es":(0|[1-9][0-9]{0,17}),"ts":(0|[1-9][0-9]{0,17}),')
# After this many cuts whose offsets fit few other records, each remaining record is cut individually.
_MOST_ALONE: Final = 16
# The cost of testing if a cut fits a record, relative to the cost of cutting the record individually.
_FITTING_COSTS: Final = 0.02


class Cuts(NamedTuple):
    """Byte positions at which the records of a batch are cut into head, digits and body.

    ``where``: ascending batch indices of the records in TiCDC's format. ``bounds``: one row per such record,
    with seven byte positions: the record's start, the start and end of the digits of ``es``, the start and
    end of the digits of ``ts``, the start of ``,"old":``, and the record's end.
    """

    where: Indices
    bounds: Indices


class Tokens(NamedTuple):
    """The values (tokens) in the bodies of a batch's records, as arrays with one element per token.

    The tokens are in the order of the records. ``first``: index of each record's first token, and at the end
    the number of tokens. ``null`` and ``number``: masks of the tokens that are null, and of those that are
    numbers. ``place``: index in ``texts`` of each token's text. The text of a JSON string has its escapes
    decoded; the text of a number is its digits.
    """

    first: Indices
    null: Mask
    number: Mask
    place: Indices
    texts: pa.StringArray


@dataclass(frozen=True)
class Scan:
    """The heads, skeletons and tokens of the records in a batch that have TiCDC's format.

    ``where``: ascending batch indices of these records. ``heads``: each record's bytes before ``,"old":``,
    without the digits of ``es`` and ``ts``. ``bodies``: each record's skeleton, which is its bytes from
    ``,"old":`` on without the tokens (values). ``proven``: mask of the records whose tokens are valid JSON.
    ``pieces``: seven consecutive byte ranges of each record, from which the head and the body were joined.

    A proven record is valid JSON if its head and its skeleton, with any values inserted, are valid JSON. In a
    skeleton, the tokens were removed after each ``"key":`` that is followed by ``,`` or ``}``, and nowhere
    else: the value of any other key is a list or an object. So the skeleton and the tokens reproduce the
    body's bytes. Each token is a complete JSON value: ``null``, a number, or a text within quotes that is
    valid UTF-8, has no control characters, and whose escapes were decoded.
    """

    where: Indices
    heads: pa.DictionaryArray
    bodies: pa.DictionaryArray
    tokens: Tokens
    proven: Mask
    pieces: pa.BinaryArray

    def es(self, records: Indices) -> pa.Int64Array:
        """Returns the member ``es`` (commit time in ms since 1970) of the records.

        ``records``: indices of the records in this scan.
        """
        return self.pieces.take(pa.array(7 * records + 1)).cast(pa.string()).cast(pa.int64())


# Quotes in the names of the table and its key columns are escaped, so the first ``"es":`` is the member.
_ES_OF: Final = r'(?s)^\{"id":0,"database":.*?"es":(?P<es>[0-9]{1,15}),"ts":'


def stamped_es(values: pa.Array) -> pa.Int64Array:
    """Returns the member ``es`` of each record: its commit time in ms since 1970.

    It is null for records that are not in TiCDC's format.
    """
    matches = pc.extract_regex(values, _ES_OF)
    return pc.struct_field(matches, ["es"]).cast(pa.string()).cast(pa.int64())


def compacted(values: pa.Array) -> pa.Array | None:
    """Returns the JSON values without white space between tokens, or None if no value has such space.

    White space inside texts stays. A value that is not valid JSON is returned unchanged.
    """
    texts = values.to_pylist()
    compact = [value and _compacted(value) for value in texts]
    return None if compact == texts else pa.array(compact, pa.large_binary())


def _compacted(value: bytes) -> bytes:
    try:
        # A negative indent removes all white space (msgspec 0.22).
        return msgspec.json.format(value, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        return value


def is_spaced(value: bytes) -> bool:
    """Returns True if a value begins like a canal-json object with white space between its JSON tokens."""
    return _BEGINS_SPACED.match(value) is not None


def scan(values: pa.Array) -> Scan:
    """Returns the heads, skeletons and tokens in the values of a batch's records.

    ``values``: a binary or large_binary array of less than 2 GiB.
    """
    data, offsets = _bytes_of(values)
    cuts = _cuts(data, offsets, _usable(values))
    count = len(cuts.where)
    pieces = _pieces(data, _monotonic(cuts.bounds))
    # The pieces of each record: head, es, between, ts, types, body, and the gap to the next record.
    first = 7 * np.arange(count)
    head = pieces.take(pa.array((first[:, None] + (0, 2, 4)).ravel()))
    body = pieces.take(pa.array(first + 5))
    bodies = _Bodies(body)
    tokens, skeletons = bodies.tokens()
    return Scan(
        cuts.where,
        _every(head, 3).dictionary_encode(),
        skeletons.dictionary_encode(),
        tokens,
        bodies.proven,
        pieces,
    )


def _bytes_of(values: pa.Array) -> tuple[Bytes, Indices]:
    """Returns the bytes of a binary array, and the offsets of its values in them.

    There is one more offset than values: each value's start, and the end of the last value.
    """
    width = np.int64 if values.type == pa.large_binary() else np.int32
    _, places, content = values.buffers()
    if not len(values) or content is None:
        return np.empty(0, np.uint8), np.zeros(len(values) + 1, np.int64)
    offsets = np.frombuffer(places, width)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets.astype(np.int64) - int(offsets[0])


def _usable(values: pa.Array) -> Indices:
    if not values.null_count:
        return np.arange(len(values))
    return np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))


def _pieces(data: Bytes, bounds: npt.NDArray[np.int32]) -> pa.BinaryArray:
    """Returns the byte ranges between successive positions in ``bounds``, without copying the bytes."""
    return _array(pa.binary(), bounds, pa.py_buffer(data))


def _array(kind: pa.DataType, offsets: npt.NDArray[np.int32], content: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), content])


def _every(pieces: pa.BinaryArray, count: int) -> pa.BinaryArray:
    """Joins each group of ``count`` consecutive values into one value.

    ``pieces`` must be a result of pyarrow's ``take``, because its values are then adjacent in the buffer.
    """
    offsets = np.frombuffer(pieces.buffers()[1], np.int32, len(pieces) + 1)
    return _array(pa.binary(), np.ascontiguousarray(offsets[::count]), _content(pieces))


def _content(taken: pa.Array) -> pa.Buffer:
    return taken.buffers()[2] or pa.py_buffer(b"")


def _monotonic(bounds: Indices) -> npt.NDArray[np.int32]:
    return np.append(bounds.ravel(), bounds[-1, -1] if len(bounds) else 0).astype(np.int32)


# Cutting into head and body


def _cuts(data: Bytes, offsets: Indices, rest: Indices) -> Cuts:
    """Returns the positions at which records are cut into their parts, for all records in TiCDC's format.

    ``rest``: ascending batch indices of the records. The first record is searched for its parts, and their
    offsets are used for all records that have the same members at these offsets. This is repeated with the
    remaining records. It is fast because the parts have only few different lengths in a batch.
    """
    parts: list[tuple[Indices, Indices]] = []
    alone = 0
    while len(rest) and alone < _MOST_ALONE:
        rest, cut = _first_cut(data, offsets, rest)
        if cut is None:
            break
        fits = _fits(data, offsets[rest], offsets[rest + 1], cut)
        where, rest = rest[fits], rest[~fits]
        parts.append((where, _bounds(offsets, where, cut)))
        alone += len(where) < len(rest) * _FITTING_COSTS
    parts.append(_each_cut(data, offsets, rest))
    where = np.concatenate([indices for indices, _ in parts])
    bounds = np.concatenate([limits for _, limits in parts])
    if len(parts) == 2 and not len(rest):
        return Cuts(where, bounds)
    order = np.argsort(where, kind="stable")
    return Cuts(where[order], bounds[order])


def _first_cut(data: Bytes, offsets: Indices, rest: Indices) -> tuple[Indices, Cut | None]:
    """Finds the first record in TiCDC's format and the offsets of its parts.

    ``rest``: ascending batch indices of the records to search. Returns the indices of the record that was
    found and of all later ones, and the record's offsets. If no record has TiCDC's format, returns no
    indices, and None instead of offsets.
    """
    for position, record in enumerate(rest.tolist()):
        cut = _cut(data[offsets[record] : offsets[record + 1]])
        if cut is not None:
            return rest[position:], cut
    return rest[:0], None


def _each_cut(data: Bytes, offsets: Indices, rest: Indices) -> tuple[Indices, Indices]:
    """Searches each record for its parts, instead of using the offsets of another record.

    Returns the batch indices of the records in TiCDC's format, and their bounds as in ``Cuts.bounds``.
    """
    spans = zip(rest.tolist(), offsets[rest].tolist(), offsets[rest + 1].tolist(), strict=True)
    cuts = [(record, start, _cut(data[start:end]), end) for record, start, end in spans]
    bounds = [
        (start, *(start + offset for offset in cut), end) for _, start, cut, end in cuts if cut is not None
    ]
    where = [record for record, _, cut, _ in cuts if cut is not None]
    return np.array(where, np.int64), np.array(bounds, np.int64).reshape(-1, 7)


def _bounds(offsets: Indices, where: Indices, cut: Cut) -> Indices:
    starts = offsets[where]
    return np.column_stack([starts, *(starts + offset for offset in cut), offsets[where + 1]])


def _cut(record: Bytes) -> Cut | None:
    """Returns the byte offsets of a record's parts, or None if the record is not in TiCDC's format.

    The five offsets: start and end of the digits of ``es``, start and end of the digits of ``ts``, and the
    start of ``,"old":``.
    """
    text = record.tobytes()
    start = text.find(_ES)
    stamps = _STAMPS.match(text, start) if start > 0 else None
    old = -1 if stamps is None else text.find(_OLD, stamps.end())
    if stamps is None or old < 0 or text.find(b'"data":', 0, old) >= 0:
        return None
    return *stamps.span(1), *stamps.span(2), old


def _fits(data: Bytes, starts: Indices, ends: Indices, cut: Cut) -> Mask:
    """Returns a mask of the records that have the members ``es``, ``ts`` and ``old`` at the offsets ``cut``.

    Other bytes of the records are not compared.
    """
    es, es_end, ts, ts_end, old = cut
    fits = ends - starts >= old + len(_OLD)
    # For a record that is too short, the first record's bytes are read instead. It does not fit in any case.
    starts = np.where(fits, starts, starts[0])
    digits, more = b"0" * (es_end - es), b"0" * (ts_end - ts)
    before = len(_ES) - es
    context = _windows(data, starts - before, ts_end + 1 + before)
    # A 0 in the pattern matches any digit.
    fits &= _like(context, _ES + digits + _TS + more + b",")
    fits &= _like(_windows(data, starts + old, len(_OLD)), _OLD)
    for start, end in ((es, es_end), (ts, ts_end)):
        fits &= (context[:, start + before] != _ZERO) | (end - start == 1)
    return fits


def _windows(data: Bytes, starts: Indices, size: int) -> Bytes:
    """Returns a matrix of bytes: for each start position one row with the ``size`` bytes from there."""
    windows: Bytes = np.lib.stride_tricks.sliding_window_view(data, size)[starts]
    return windows


def _like(windows: Bytes, pattern: bytes) -> Mask:
    """Returns a mask of the rows of bytes that match the pattern, in which a 0 matches any digit."""
    low = np.frombuffer(pattern, np.uint8)
    other = windows - low > (low == _ZERO).astype(np.uint8) * 9
    # Rows are tested one by one only if necessary, since that is far slower.
    matches: Mask = ~other.any(axis=1) if other.any() else np.ones(len(windows), np.bool_)
    return matches


# The tokens of bodies


def _unescaped_quotes(data: Bytes, slashes: Indices) -> Indices:
    """Returns the positions of the quotes that begin or end a JSON text, without escaped quotes.

    ``slashes``: positions of all backslashes in the data.
    """
    is_quote = data == _QUOTE
    if len(slashes):
        # In a run of backslashes every second one is escaped by its predecessor.
        begins = np.append(True, np.diff(slashes) != 1)
        numbers = np.arange(len(slashes))
        run = np.maximum.accumulate(np.where(begins, numbers, 0))
        escaped = slashes[(numbers - run) % 2 == 0] + 1
        is_quote[escaped[escaped < len(is_quote)]] = False
    return np.flatnonzero(is_quote)


class _Places(NamedTuple):
    """The start, end and kind (text, null or digits) of each token. A text's range includes its quotes."""

    begin: Indices
    end: Indices
    kind: Bytes


class _Bodies:
    """The bodies of a batch's records: the bytes of each record from ``,"old":`` on.

    ``data``: the bytes of all bodies one after the other, followed by zero bytes as padding. ``starts``:
    start position of each body, and the end of the last one. ``proven``: mask of the bodies in which no
    invalid JSON was found so far.
    """

    def __init__(self, body: pa.BinaryArray) -> None:
        content = np.frombuffer(_content(body), np.uint8)
        self.data: Bytes = np.concatenate([content, np.zeros(_PADDING, np.uint8)])
        self.starts = np.frombuffer(body.buffers()[1], np.int32, len(body) + 1).astype(np.int64)
        self.proven = is_utf8(body)
        self._slashes = np.flatnonzero(self.data == _BACKSLASH)

    def tokens(self) -> tuple[Tokens, pa.BinaryArray]:
        """Returns the tokens of all bodies, and each body's skeleton (its bytes without tokens)."""
        places = self._places()
        self._refuse_control(places)
        first = np.searchsorted(places.begin, self.starts)
        return self._texts(places, first), self._skeletons(places, first)

    def _refuse(self, places: Indices) -> None:
        """Marks the bodies that contain these byte positions as not proven: they may not be valid JSON.

        The row codec then decodes their records.
        """
        if len(places):
            self.proven[np.searchsorted(self.starts, places, "right") - 1] = False

    def _places(self) -> _Places:
        data = self.data
        # Quotes are in pairs, and the quotes of a text value follow the quotes of its key.
        closes = self._quotes()[1::2]
        keys = np.flatnonzero(data[closes + 1] == _COLON)
        begin = closes[keys] + 2
        kind = _KINDS[data[begin]]
        self._refuse(begin[kind == _NO_KIND] - 1)
        some = kind < _NESTED_KIND
        keys, begin, kind = keys[some], begin[some], kind[some]
        end = begin + len(b"null")
        text = kind == _TEXT_KIND
        end[text] = closes[keys[text] + 1] + 1
        self._check_nulls(begin[kind == _NULL_KIND])
        self._end_numbers(begin, end, kind == _NUMBER_KIND)
        follows = data[end]
        self._refuse(begin[(follows != _COMMA) & (follows != _END)] - 1)
        return _Places(begin, end, kind)

    def _quotes(self) -> Indices:
        """Returns the positions of the quotes that begin and end texts, in pairs.

        A body with an odd number of such quotes is marked as not proven, and its quotes are not returned.
        """
        quotes = _unescaped_quotes(self.data, self._slashes)
        counts = np.diff(np.searchsorted(quotes, self.starts))
        odd = counts % 2 == 1
        if not odd.any():
            return quotes
        self.proven[odd] = False
        even: Indices = quotes[~np.repeat(odd, counts)]
        return even

    def _check_nulls(self, begin: Indices) -> None:
        if len(begin):
            self._refuse(begin[~_like(_windows(self.data, begin, 4), b"null")] - 1)

    def _end_numbers(self, begin: Indices, end: Indices, number: Mask) -> None:
        starts = begin[number]
        if len(starts):
            others = _windows(self.data, starts, MOST_DIGITS + 2) - np.uint8(_ZERO) > 9
            # A number with too many digits ends here, and its record is marked as not proven.
            others[:, -1] = True
            length = np.argmax(others, axis=1)
            end[number] = starts + length
            self._refuse(starts[(length > MOST_DIGITS) | ((self.data[starts] == _ZERO) & (length > 1))] - 1)

    def _refuse_control(self, places: _Places) -> None:
        """Marks bodies that have control characters inside a text as not proven, because JSON forbids them.

        A control character between texts is allowed, because it may be white space.
        """
        content = self.data[: self.starts[-1]]
        if len(places.begin) and content.min() < 0x20:
            control = np.flatnonzero(content < 0x20)
            token = np.searchsorted(places.begin, control, "right") - 1
            self._refuse(control[(token >= 0) & (control < places.end[token])])

    def _texts(self, places: _Places, first: Indices) -> Tokens:
        """Returns the tokens (values) of all bodies with their texts.

        ``first``: index of each body's first token, and at the end the number of tokens. In the result,
        ``texts`` has the bytes of the bodies followed by the decoded texts of tokens with escapes.
        """
        begin, end, kind = places
        text, null = kind == _TEXT_KIND, kind == _NULL_KIND
        bounds = np.empty(2 * len(begin) + 1, np.int32)
        bounds[0:-1:2] = begin + text
        bounds[1::2] = np.where(null, begin, end - text)
        bounds[-1] = bounds[-2] if len(begin) else 0
        # Arrow needs ascending bounds. Tokens overlap only in records that are not proven.
        texts = _array(pa.string(), np.maximum.accumulate(bounds), pa.py_buffer(self.data))
        indices = 2 * np.arange(len(begin))
        escaped = self._with_escapes(begin)
        escaped = escaped[text[escaped]]
        if len(escaped):
            decoded = _decoded(self._between(begin[escaped], end[escaped]))
            self._refuse(begin[escaped[[value is None for value in decoded]]])
            indices[escaped] = len(texts) + np.arange(len(escaped))
            texts = pa.concat_arrays([texts, pa.array(decoded, pa.string())])
        return Tokens(first, null, kind == _NUMBER_KIND, indices, texts)

    def _with_escapes(self, begin: Indices) -> Indices:
        """Returns the indices of tokens that may have an escape, because a backslash follows their start."""
        indices = np.searchsorted(begin, self._slashes, "right") - 1
        indices = indices[indices >= 0]
        distinct: Indices = indices[np.diff(indices, prepend=-1) != 0]
        return distinct

    def _between(self, begin: Indices, end: Indices) -> list[bytes]:
        bounds = np.maximum.accumulate(np.column_stack([begin, end]).ravel()).astype(np.int32)
        slices: list[bytes] = (
            _pieces(self.data, bounds).take(pa.array(np.arange(0, len(bounds), 2))).to_pylist()
        )
        return slices

    def _skeletons(self, places: _Places, first: Indices) -> pa.BinaryArray:
        bounds = np.empty(2 * len(places.begin) + 2, np.int64)
        bounds[0], bounds[-1] = 0, self.starts[-1]
        bounds[1:-1:2], bounds[2:-1:2] = places.begin, places.end
        bounds = np.minimum(np.maximum.accumulate(bounds), self.starts[-1])
        gaps = _pieces(self.data, bounds.astype(np.int32)).take(pa.array(np.arange(0, len(bounds) - 1, 2)))
        inside = np.append(0, np.cumsum(bounds[2:-1:2] - bounds[1:-1:2]))
        return _array(pa.binary(), (self.starts - inside[first]).astype(np.int32), _content(gaps))


def _decoded(raw: list[bytes]) -> list[str | None]:
    """Returns the text of each JSON string, with decoded escapes; None if the bytes are no JSON string."""
    try:
        texts: list[str | None] = orjson.loads(b"[" + b",".join(raw) + b"]")
    except orjson.JSONDecodeError:
        return [_decoded_alone(text) for text in raw]
    return texts


def _decoded_alone(raw: bytes) -> str | None:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is str else None


def ends(values: pa.Array) -> Indices:
    """Returns the end of each value of a binary array, in bytes from the start of the first value."""
    return _bytes_of(values)[1][1:]


def odd_starts(values: pa.Array) -> Indices:
    """Returns the indices of values that do not begin with ``{``, for example compressed values.

    Empty values and nulls are not included.
    """
    data, offsets = _bytes_of(values)
    some = np.flatnonzero(np.diff(offsets) > 0)
    odd: Indices = some[data[offsets[some]] != _OBJECT]
    return odd


# The tables of records

_TEXT: Final = rb'"((?:[^"\\]|\\.)*)"'
_S: Final = rb"[ \t\n\r]*"
_HEAD: Final = re.compile(
    _S.join([rb"", rb"\{", rb'"id"', rb":", rb"0", rb",", rb'"database"', rb":", _TEXT, rb",", rb'"table"'])
    + _S.join([rb"", rb":", _TEXT, rb",", rb""]),
    re.DOTALL,
)
# Number of leading bytes by which records are distinguished. Table names of usual length end within them, and
# members that differ between a table's records begin after them.
_HEAD_BYTES: Final = 72
_MOST_HEADS: Final = 10_000
_WATERMARK: Final = "TIDB_WATERMARK"
# A watermark in TiCDC's format (tiflow c7b2588, ticdc b813e76). The row codec reads those in other formats.
_WATERMARK_FORM: Final = re.compile(
    rb'\{"id":0,"database":"","table":"","pkNames":null,"isDdl":false,"type":"TIDB_WATERMARK","es":\d+,'
    rb'"ts":\d+,"sql":"","sqlType":null,"mysqlType":null,"data":null,"old":null,'
    rb'"_tidb":\{"watermarkTs":\d{1,18}\}\}'
)
_DDL_MARK: Final = r'"isDdl"[ \t\n\r]*:[ \t\n\r]*true'
# The members after the table's name in a row change. A DDL event does not match, because its isDdl is true.
_ROW_HEADS: Final = re.compile(
    _S.join([rb'"pkNames"', rb":", rb"(?:\[|null", rb",", rb'"isDdl"', rb":", rb"false)"]),
)
# Codes of records that have no table index: records without a table, and records that must be parsed.
_NO_TABLE: Final = -1
_TO_PARSE: Final = -2


class NamedRecords(NamedTuple):
    """The table of each record in a batch.

    ``tables``: the tables that the caller reads, and all other tables in the batch. ``codes``: for each
    record the index of its table in ``tables``, or -1 if the record names no table. ``unlisted``: mask of the
    row changes of tables that the caller does not read. ``ddl``: mask of the DDL events of all tables.
    ``watermarks``: mask of the records that are certainly watermarks.
    """

    tables: tuple[TableId, ...]
    codes: Indices
    unlisted: Mask
    ddl: Mask
    watermarks: Mask

    def own(self, table: TableId) -> Mask:
        """Returns a mask of the records that may belong to a table: its own, and those that name no table."""
        return np.array([*(other == table for other in self.tables), True], np.bool_)[self.codes]


@dataclass(frozen=True)
class TableNames:
    """Finds the table of each record without decoding rows.

    ``known``: the tables that the caller reads. ``opens_up_to``: maximum size, in bytes, of a value after
    decompression; None if the topic's values are not compressed.
    """

    known: frozenset[TableId]
    opens_up_to: int | None = None

    def of(self, records: pa.RecordBatch) -> NamedRecords:
        """Returns the table of each record. ``records``: Kafka records with the column ``value``."""
        values = records.column("value")
        tables = dict(zip(sorted(self.known), range(len(self.known)), strict=True))
        heads = pc.binary_slice(values, 0, _HEAD_BYTES).dictionary_encode()
        named = [self._in_head(head) for head in heads.dictionary.to_pylist()]
        # A record that seems to name another table is parsed completely, to be certain.
        by_head = [tables.get(entry.table, _TO_PARSE) if entry.table else _TO_PARSE for entry in named]
        indices = _indices(heads)
        codes = np.array([*by_head, _NO_TABLE], np.int64)[indices]
        ddl = np.array([*(entry.may_be_ddl for entry in named), False], np.bool_)[indices]
        ddl[ddl] = _marked(values.filter(pa.array(ddl)))
        unlisted, watermarks = np.zeros((2, len(codes)), np.bool_)
        for index in np.flatnonzero(codes == _TO_PARSE).tolist():
            value = self._opened(values[index].as_py())
            if _WATERMARK_FORM.fullmatch(value):
                codes[index], watermarks[index] = _NO_TABLE, True
                continue
            parsed = _parsed(value)
            table = _table_of(parsed)
            codes[index] = _NO_TABLE if table is None else tables.setdefault(table, len(tables))
            unlisted[index] = table is not None and table not in self.known and _is_row(parsed)
            ddl[index] = isinstance(parsed, dict) and parsed.get("isDdl") is True
        return NamedRecords(tuple(tables), codes, unlisted, ddl, watermarks)

    def _in_head(self, head: bytes) -> _Head:
        if head not in self._heads:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[head] = _head_of(head)
        return self._heads[head]

    @cached_property
    def _heads(self) -> dict[bytes, _Head]:
        return {}

    def _opened(self, value: bytes) -> bytes:
        if self.opens_up_to is None or value.startswith(b"{"):
            return value
        try:
            return decompressed(value, most=self.opens_up_to) or value
        except FramingError:
            return b""

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}


# Queries about the records of an offset range, whose values are already decompressed


class Census(NamedTuple):
    """The tables of which the sampled records contain a row change, and the compression of the records.

    ``compression``: compression of the first value that is still compressed when it is read; ``none`` if no
    value is compressed.
    """

    tables: frozenset[TableId]
    compression: Compression


def census(records: Iterator[pa.RecordBatch]) -> Census:
    """Returns the tables of the row changes in the records, and the compression of their values."""
    tables: set[TableId] = set()
    compression: Compression = "none"
    for batch in records:
        values = batch.column("value")
        heads = pc.binary_slice(values, 0, _HEAD_BYTES).dictionary_encode()
        named = [_head_of(head).table for head in heads.dictionary.to_pylist()]
        for index, code in enumerate(_indices(heads).tolist()):
            if code == len(named) or named[code] in tables:
                continue
            value: bytes = values[index].as_py()
            if compression == "none" and not value.startswith(b"{"):
                compression = compression_of(value)
            parsed = _parsed(value)
            table = _table_of(parsed)
            if table is not None and _is_row(parsed):
                tables.add(table)
    return Census(frozenset(tables), compression)


class MarkedDdl(NamedTuple):
    """Record values that may be DDL events, in the order of their offsets.

    A row change is among them if its bytes look like those of a DDL event. ``values``: the record values.
    ``offsets``: Kafka offset of each value's record. ``times``: Kafka timestamp of each value's record, in ms
    since 1970. ``end``: first offset that was not read; None if all records were read.
    """

    values: list[bytes]
    offsets: list[int]
    times: list[int | None]
    end: int | None


def marked_ddl(most_bytes: int, records: Iterator[pa.RecordBatch]) -> MarkedDdl:
    """Reads records in order, and returns the values that may be DDL events.

    Reading stops after the batch in which the total size of these values reaches ``most_bytes``.
    """
    values, offsets, times, size = list[bytes](), list[int](), list[int | None](), 0
    for batch in records:
        if size >= most_bytes and len(batch):
            return MarkedDdl(values, offsets, times, batch.column("offset")[0].as_py())
        matching = batch.filter(pa.array(_marked(batch.column("value"))))
        marked = matching.column("value").to_pylist()
        values += marked
        offsets += matching.column("offset").to_pylist()
        times += matching.column("timestamp").to_pylist()
        size += sum(map(len, marked))
    return MarkedDdl(values, offsets, times, None)


class RowWords(NamedTuple):
    """The names and types of the columns, as a row change in a topic shows them.

    ``names``: column names in the row's order. ``types``: type names by column name (``mysqlType``).
    ``keys``: names of the key columns (``pkNames``). ``offset``: offset of the row's record.
    """

    names: tuple[str, ...]
    types: dict[str, str]
    keys: list[str]
    offset: int


def row_forms(table: TableId, records: Iterator[pa.RecordBatch]) -> list[RowWords]:
    """Returns the columns of a table's row changes: one ``RowWords`` for each distinct list of column names.

    Each comes from the newest row change with these column names.
    """
    names = TableNames(frozenset({table}))
    rows = (
        _row_words(offset, _parsed(value))
        for batch in records
        for offset, value in _valued(batch.filter(pa.array(names.of(batch).own(table))))
    )
    return newest_forms(filter(None, rows))


def newest_forms(words: Iterator[RowWords]) -> list[RowWords]:
    """Returns the ``RowWords`` with the highest offset for each distinct list of column names."""
    newest: dict[tuple[str, ...], RowWords] = {}
    for form in words:
        previous = newest.get(form.names)
        if previous is None or previous.offset <= form.offset:
            newest[form.names] = form
    return list(newest.values())


def _row_words(offset: int, parsed: Any) -> RowWords | None:
    if not _is_row(parsed):
        return None
    data, types, keys = (parsed.get(name) for name in ("data", "mysqlType", "pkNames"))
    first = data[0] if isinstance(data, list) and data else None
    if not isinstance(first, dict):
        return None
    types = types if isinstance(types, dict) else {}
    return RowWords(tuple(first), types, keys if isinstance(keys, list) else [], offset)


def _valued(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    pairs = zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return ((offset, value) for offset, value in pairs if value is not None)


def _indices(heads: pa.DictionaryArray) -> Indices:
    """Returns, for each record, the index of its first bytes in the dictionary of ``heads``.

    For a record without a value, the index is one past the last dictionary entry.
    """
    indices: Indices = heads.indices.fill_null(len(heads.dictionary)).to_numpy(zero_copy_only=False)
    return indices.astype(np.int64)


class _Head(NamedTuple):
    """The table that a record's first bytes name, or None if they do not have TiCDC's format.

    ``may_be_ddl``: False if the record is certainly a row change.
    """

    table: TableId | None = None
    may_be_ddl: bool = False


def _head_of(head: bytes) -> _Head:
    match = _HEAD.match(head)
    if match is None:
        return _Head()
    try:
        schema, name = (json.loads(b'"' + part + b'"') for part in match.groups())
    except ValueError:
        return _Head()
    return _Head(TableId(schema, name), _ROW_HEADS.match(head, match.end()) is None) if name else _Head()


def _marked(values: pa.Array) -> Mask:
    """Returns a mask of the values that may be DDL events, because they contain ``"isDdl": true``.

    The same text inside a column's value does not match, because quotes are escaped there.
    """
    marked = pc.match_substring_regex(values, _DDL_MARK).fill_null(False)
    mask: Mask = marked.to_numpy(zero_copy_only=False)
    return mask


def _parsed(value: bytes) -> Any:
    """Returns the JSON object in a record's value. If the value has one object per line, returns the first.

    Returns None if the value is not JSON.
    """
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return _first_object(value)


def _first_object(value: bytes) -> Any:
    """Returns the JSON object in the first line of a value, or None if the line is not JSON."""
    try:
        return orjson.loads(value.lstrip().split(b"\n", 1)[0])
    except orjson.JSONDecodeError:
        return None


def _table_of(parsed: Any) -> TableId | None:
    if not isinstance(parsed, dict):
        return None
    schema, name = parsed.get("database") or "", parsed.get("table")
    return TableId(schema, name) if isinstance(schema, str) and isinstance(name, str) and name else None


def _is_row(parsed: Any) -> bool:
    """Returns True if a parsed message is a row change, and not a DDL event or a watermark."""
    return isinstance(parsed, dict) and parsed.get("isDdl") is False and parsed.get("type") != _WATERMARK
