"""The bytes of many canal-json records at once: where their values lie, and what the rest of them says.

TiCDC (tiflow c7b2588, ticdc b813e76) writes a row change as compact JSON with its members in one order::

    {"id":0,"database":"shop",…,"isDdl":false,"type":"INSERT","es":1,"ts":2,…,"mysqlType":{…},
     "old":null,"data":[{"id":"1","note":null}],"_tidb":{"commitTs":3}}

A record is cut at ``,"old":`` into a head and a body. The head without the digits of ``es`` and ``ts``, and
the body without its values (*tokens*: text, null, or digits behind a key) repeat from record to record, so
each distinct one is parsed once, and equal bytes are equal JSON. ``Scan`` says why that proves a record;
what it does not prove is left to the row codec, which alone names faults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Cut = tuple[int, ...]

_QUOTE, _BACKSLASH, _COLON, _COMMA, _END, _NULL = b'"\\:,}n'
_ZERO, _NINE, _LIST, _OBJECT = b"09[{"
# Of what begins a value behind a key in a body: a token's, an object's or a list's.
_TEXT_KIND, _NULL_KIND, _NUMBER_KIND, _NESTED_KIND, _NO_KIND = range(5)
_KINDS: Final = np.full(256, _NO_KIND, np.uint8)
_KINDS[_QUOTE], _KINDS[_NULL] = _TEXT_KIND, _NULL_KIND
_KINDS[_ZERO : _NINE + 1] = _NUMBER_KIND
_KINDS[[_LIST, _OBJECT]] = _NESTED_KIND
# Behind the last byte, so that every token may be looked at as a whole.
_PADDING: Final = 24
# Numbers of so many digits fit a signed 64-bit integer whatever they are; a TSO has 18 until the year 2090.
MOST_DIGITS: Final = 18

_HEAD: Final = re.compile(
    rb'\{"id":[^{}]*?"es":(0|[1-9][0-9]{0,17}),"ts":(0|[1-9][0-9]{0,17}),(?=")[^\x00]*?(?=,"old":)'
)
_ES, _TS, _OLD = b'"es":', b',"ts":', b',"old":'
# A batch has few lengths of heads; beyond so many each record is cut by itself.
_MOST_CUTS: Final = 24


class Cuts(NamedTuple):
    """Where records are cut: ``bounds`` has a row a record of which the cuts are ``found``.

    The columns: its start, ``es`` and its end, ``ts`` and its end, ``,"old":``, the record's end.
    """

    where: Indices
    bounds: Indices


class Tokens(NamedTuple):
    """The values in the bodies, one token a row: ``first`` is the first of each record, and the end.

    ``place`` is where a token's text stands in ``texts``, escapes decoded; a null's and a number's too.
    """

    first: Indices
    null: Mask
    number: Mask
    place: Indices
    texts: pa.StringArray


@dataclass(frozen=True)
class Scan:
    """What records of one batch are made of: those at ``where`` (ascending indices of the batch).

    ``heads`` and ``bodies`` are dictionary-encoded bytes without what varies. Why they prove a record:
    in a skeleton (a body without tokens) the tokens stood behind each ``"key":`` that ``,`` or ``}``
    follows, and nowhere else, since a token begins behind a key's colon, ends before ``,`` or ``}``, and
    a key without a token has a list or an object. So the skeleton and the tokens give the body's bytes
    back, and it is JSON if the skeleton with other values is: each token is a whole JSON text (bounded by
    quotes, no control characters, valid UTF-8, its escapes decoded), ``null`` or a number.
    """

    where: Indices
    heads: pa.DictionaryArray
    bodies: pa.DictionaryArray
    tokens: Tokens
    proven: Mask
    es: pa.Array


def scan(values: pa.Array) -> Scan:
    """Scan the values (binary or large_binary, less than 2 GiB) of a batch's records."""
    data, offsets = _bytes_of(values)
    cuts = _cuts(data, offsets, _usable(values))
    count = len(cuts.where)
    pieces = _pieces(data, _monotonic(cuts.bounds))
    # Of each record: head, es, between, ts, types, body, and what lies before the next record.
    at = 7 * np.arange(count)
    head = pieces.take(pa.array((at[:, None] + (0, 2, 4)).ravel()))
    body = pieces.take(pa.array(at + 5))
    starts = np.frombuffer(body.buffers()[1], np.int32, count + 1).astype(np.int64)
    tokens, skeletons, proven = _body_tokens(_padded(body), starts)
    proven &= _is_utf8(body)
    return Scan(
        cuts.where,
        _every(head, 3).dictionary_encode(),
        skeletons.dictionary_encode(),
        tokens,
        proven,
        pieces.take(pa.array(at + 1)),
    )


def _bytes_of(values: pa.Array) -> tuple[Bytes, Indices]:
    """The bytes of an array and where each value begins among them."""
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


def _is_utf8(body: pa.BinaryArray) -> Mask:
    """Which values are valid UTF-8."""
    try:
        body.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([_decodes(one) for one in body.to_pylist()], np.bool_)
    return np.ones(len(body), np.bool_)


def _decodes(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _pieces(data: Bytes, bounds: npt.NDArray[np.int32]) -> pa.BinaryArray:
    """The bytes between neighbouring bounds, without a copy."""
    return _array(pa.binary(), bounds, pa.py_buffer(data))


def _array(kind: pa.DataType, offsets: npt.NDArray[np.int32], content: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), content])


def _every(pieces: pa.BinaryArray, count: int) -> pa.BinaryArray:
    """Each ``count`` neighbours joined to one; the array is one that ``take`` made."""
    offsets = np.frombuffer(pieces.buffers()[1], np.int32, len(pieces) + 1)
    return _array(pa.binary(), np.ascontiguousarray(offsets[::count]), _content(pieces))


def _content(taken: pa.Array) -> pa.Buffer:
    return taken.buffers()[2] or pa.py_buffer(b"")


def _padded(body: pa.BinaryArray) -> Bytes:
    content = np.frombuffer(_content(body), np.uint8)
    return np.concatenate([content, np.zeros(_PADDING, np.uint8)])


def _monotonic(bounds: Indices) -> npt.NDArray[np.int32]:
    return np.append(bounds.ravel(), bounds[-1, -1] if len(bounds) else 0).astype(np.int32)


# The cut into head and body


def _cuts(data: Bytes, offsets: Indices, rest: Indices) -> Cuts:
    """Cut each record like the first that is not yet cut, wherever that fits: few lengths occur."""
    found: list[tuple[Indices, Indices]] = []
    for _ in range(_MOST_CUTS):
        rest, cut = _first_cut(data, offsets, rest)
        if cut is None:
            break
        fits = _fits(data, offsets[rest], offsets[rest + 1], cut)
        found.append((rest[fits], _bounds(offsets, rest[fits], cut)))
        rest = rest[~fits]
    for one in rest.tolist():
        cut = _cut(data[offsets[one] : offsets[one + 1]])
        if cut is not None:
            where = np.array([one])
            found.append((where, _bounds(offsets, where, cut)))
    where = np.concatenate([np.empty(0, np.int64), *(one for one, _ in found)])
    order = np.argsort(where, kind="stable")
    return Cuts(where[order], np.concatenate([np.empty((0, 7), np.int64), *(one for _, one in found)])[order])


def _first_cut(data: Bytes, offsets: Indices, rest: Indices) -> tuple[Indices, Cut | None]:
    """The cut of the first record that has one, and the records from there on."""
    for at, one in enumerate(rest.tolist()):
        cut = _cut(data[offsets[one] : offsets[one + 1]])
        if cut is not None:
            return rest[at:], cut
    return rest[:0], None


def _bounds(offsets: Indices, where: Indices, cut: Cut) -> Indices:
    starts = offsets[where]
    return np.column_stack([starts, *(starts + at for at in cut), offsets[where + 1]])


def _cut(record: Bytes) -> Cut | None:
    """Where ``es``, ``ts`` and the body of a record begin and end, from its start; None: not TiCDC's form."""
    found = _HEAD.match(record.tobytes())
    return None if found is None else (*found.span(1), *found.span(2), found.end())


def _fits(data: Bytes, starts: Indices, ends: Indices, cut: Cut) -> Mask:
    """Which records have the members of the cut at its places; the rest of the head is compared later."""
    es, es_end, ts, ts_end, old = cut
    parts = [(es - len(_ES), _ES), (es_end, _TS), (ts_end, b","), (old, _OLD)]
    fits = ends - starts >= old + len(_OLD)
    places = np.concatenate([np.arange(at, at + len(text)) for at, text in parts])
    expected = np.frombuffer(b"".join(text for _, text in parts), np.uint8)
    digits = np.concatenate([np.arange(es, es_end), np.arange(ts, ts_end)])
    # A record that is too short is looked at elsewhere, and does not fit whatever is there.
    starts = np.where(fits, starts, starts[0])
    fits &= (data[starts[:, None] + places] == expected).all(axis=1)
    fits &= (data[starts[:, None] + digits] - np.uint8(_ZERO) <= 9).all(axis=1)
    for at, end in ((es, es_end), (ts, ts_end)):
        fits &= (data[starts + at] != _ZERO) | (end - at == 1)
    return fits


# The tokens of bodies


def _body_tokens(data: Bytes, starts: Indices) -> tuple[Tokens, pa.BinaryArray, Mask]:
    """The tokens of the bodies that begin at ``starts``, the skeletons, and which bodies are proven."""
    proven = np.ones(len(starts) - 1, np.bool_)
    slashes = np.flatnonzero(data == _BACKSLASH)
    quotes = _quotes(data, slashes, starts, proven)
    opens, closes = quotes[0::2], quotes[1::2]
    keys = np.flatnonzero(data[closes + 1] == _COLON)
    begin = closes[keys] + 2
    kind = _KINDS[data[begin]]
    _refuse(begin[kind == _NO_KIND] - 1, starts, proven)
    some = kind < _NESTED_KIND
    keys, begin, kind = keys[some], begin[some], kind[some]
    end = begin + 4
    text = kind == _TEXT_KIND
    # Behind the colon's quote the next pair is the value's.
    end[text] = closes[np.minimum(keys[text] + 1, len(closes) - 1)] + 1
    _end_nulls(data, begin, starts, kind, proven)
    _end_numbers(data, begin, end, starts, kind, proven)
    follows = data[np.minimum(end, len(data) - 1)]
    _refuse(begin[(follows != _COMMA) & (follows != _END)] - 1, starts, proven)
    _refuse_control(data, begin, end, starts, proven)
    first = np.searchsorted(begin, starts)
    tokens = _tokens(data, begin, end, kind, first, slashes, starts, proven)
    return tokens, _skeletons(data, begin, end, first, starts), proven


def _refuse(places: Indices, starts: Indices, proven: Mask) -> None:
    """Leave the records of these bytes to the row codec."""
    if len(places):
        proven[np.minimum(np.searchsorted(starts, places, "right") - 1, len(proven) - 1)] = False


def _quotes(data: Bytes, slashes: Indices, starts: Indices, proven: Mask) -> Indices:
    """The quotes that begin and end texts, in pairs: those of records with an odd number are left out."""
    is_quote = data == _QUOTE
    if len(slashes):
        # In a run of backslashes every second one is escaped by the one before it.
        begins = np.append(True, np.diff(slashes) != 1)
        numbers = np.arange(len(slashes))
        run = np.maximum.accumulate(np.where(begins, numbers, 0))
        is_quote[slashes[(numbers - run) % 2 == 0] + 1] = False
    quotes = np.flatnonzero(is_quote)
    bounds = np.searchsorted(quotes, starts)
    odd = np.diff(bounds) % 2 == 1
    if not odd.any():
        return quotes
    proven[odd] = False
    return quotes[~np.repeat(odd, np.diff(bounds))]


def _end_nulls(data: Bytes, begin: Indices, starts: Indices, kind: Bytes, proven: Mask) -> None:
    nulls = begin[kind == _NULL_KIND]
    if len(nulls):
        wrong = (data[nulls[:, None] + np.arange(4)] != np.frombuffer(b"null", np.uint8)).any(axis=1)
        _refuse(nulls[wrong], starts, proven)


def _end_numbers(
    data: Bytes, begin: Indices, end: Indices, starts: Indices, kind: Bytes, proven: Mask
) -> None:
    numbers = kind == _NUMBER_KIND
    at = begin[numbers]
    if len(at):
        is_digit = data[at[:, None] + np.arange(MOST_DIGITS + 1)] - np.uint8(_ZERO) <= 9
        length = np.where(is_digit.all(axis=1), MOST_DIGITS + 1, np.argmin(is_digit, axis=1))
        end[numbers] = at + length
        _refuse(at[(length > MOST_DIGITS) | ((data[at] == _ZERO) & (length > 1))], starts, proven)


def _refuse_control(data: Bytes, begin: Indices, end: Indices, starts: Indices, proven: Mask) -> None:
    """JSON has no control characters in texts; around a message's members they may be white space."""
    control = np.flatnonzero(data[: starts[-1]] < 0x20)
    if len(control) and len(begin):
        token = np.searchsorted(begin, control, "right") - 1
        _refuse(control[(token >= 0) & (control < end[token])], starts, proven)


def _tokens(
    data: Bytes,
    begin: Indices,
    end: Indices,
    kind: Bytes,
    first: Indices,
    slashes: Indices,
    starts: Indices,
    proven: Mask,
) -> Tokens:
    """The tokens' texts: as they are, and those with escapes decoded behind them."""
    text = kind == _TEXT_KIND
    bounds = np.empty(2 * len(begin) + 1, np.int32)
    bounds[0:-1:2] = begin + text
    bounds[1::2] = np.where(kind == _NULL_KIND, begin, end - text)
    bounds[-1] = bounds[-2] if len(begin) else 0
    place = 2 * np.arange(len(begin))
    # A text may be null in the dictionary of an unproven record: bounds must still ascend.
    np.maximum.accumulate(bounds, out=bounds)
    texts = _array(pa.string(), bounds, pa.py_buffer(data))
    escaped = np.unique(np.searchsorted(begin, slashes, "right") - 1) if len(begin) else begin
    escaped = escaped[(escaped >= 0) & text[escaped]] if len(escaped) else escaped
    if len(escaped):
        raw = [data[a:b].tobytes() for a, b in zip(begin[escaped].tolist(), end[escaped].tolist(), strict=True)]
        place[escaped] = len(texts) + np.arange(len(escaped))
        decoded = _decoded(raw)
        _refuse(begin[escaped[[one is None for one in decoded]]], starts, proven)
        texts = pa.concat_arrays([texts, pa.array(decoded, pa.string())])
    return Tokens(first, kind == _NULL_KIND, kind == _NUMBER_KIND, place, texts)


def _decoded(raw: list[bytes]) -> list[str | None]:
    """JSON texts decoded; None for one that is not JSON."""
    try:
        found: list[str | None] = orjson.loads(b"[" + b",".join(raw) + b"]")
    except orjson.JSONDecodeError:
        return [_decoded_alone(one) for one in raw]
    return found


def _decoded_alone(raw: bytes) -> str | None:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return found if type(found) is str else None


def _skeletons(
    data: Bytes, begin: Indices, end: Indices, first: Indices, starts: Indices
) -> pa.BinaryArray:
    bounds = np.empty(2 * len(begin) + 2, np.int64)
    bounds[0], bounds[-1] = 0, starts[-1]
    bounds[1:-1:2], bounds[2:-1:2] = begin, end
    np.maximum.accumulate(bounds, out=bounds)
    np.minimum(bounds, starts[-1], out=bounds)
    gaps = _pieces(data, bounds.astype(np.int32)).take(pa.array(np.arange(0, len(bounds) - 1, 2)))
    inside = np.append(0, np.cumsum(bounds[2::2] - bounds[1:-1:2]))
    places = starts - inside[first]
    return _array(pa.binary(), places.astype(np.int32), _content(gaps))


def sizes(values: pa.Array) -> Indices:
    """How many bytes each value has."""
    return np.diff(_bytes_of(values)[1])
