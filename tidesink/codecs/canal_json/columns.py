"""Decodes many canal-json records at once into Arrow tables: the columnar step of the canal-json codec.

``canal_json.scan`` cuts each record into a head (the JSON before ``old``), a skeleton (the JSON from ``old``
on, without the values) and the values. This module parses the distinct heads and skeletons (``_Head``,
``_Body``) and caches the results for later batches. For each kind of row it finds the ``RowShape``, which has
the types of the columns, and converts the values to Arrow columns with ``typemap.arrow.from_text``. All rows
of one shape become one table. They may differ in the order of their type names, and in the columns that
``old`` contains.

A DDL event may change the types of the records that follow it, so a step ends after each record that may be a
DDL event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import ByIdentity
from tidesink.codecs.batch import (
    MARKS,
    NAMES_TYPE,
    ChangeTable,
    ColumnarResult,
    Records,
    RowTypes,
    ValueOptions,
    name_lists,
    op_array,
    op_code,
    source_lists,
)
from tidesink.codecs.canal_json.envelope import OPS
from tidesink.codecs.canal_json.scan import (
    Indices,
    Mask,
    Scan,
    Tokens,
    compacted,
    ends,
    is_spaced,
    odd_starts,
    scan,
)
from tidesink.codecs.canal_json.schema import REPLACEMENT, RowShape, RowShapes
from tidesink.codecs.compression import compression_of
from tidesink.codecs.large_messages import LargeMessages
from tidesink.ddl.history import NEVER, row_moment
from tidesink.errors import ConfigError, DecodeError
from tidesink.events import Op
from tidesink.typemap.arrow import ColumnResult, from_text
from tidesink.typemap.table import row_of

T = TypeVar("T")

_UPDATE, _DELETE = op_code(Op.UPDATE), op_code(Op.DELETE)
# Number of records scanned at once. Their bytes fit into a processor's cache; smaller chunks are slower.
_CHUNK_RECORDS: Final = 16_384
_CHUNK_BYTES: Final = 2**26
# Size limit, in bytes, of the cached heads and of the cached skeletons; and the estimated size of an entry.
_REMEMBERED_BYTES: Final = 2**25
_ENTRY_BYTES: Final = 2_000
_MOST_TYPES: Final = 1_024
# In a skeleton a key without a value is followed by a comma or a brace.
_LACKS_VALUE: Final = re.compile(rb'("(?:[^"\\]|\\.)*":)(?=[,}])', re.DOTALL)
_NO_DIGITS: Final = b'"es":,"ts":,'
_FIRST_OF_BODY: Final = frozenset({"old", "data", "_tidb"})
_NO_TOKEN: Final = -1
_INT64_MAX: Final = 2**63 - 1


class _Head(NamedTuple):
    """The members of a row change before ``old``: operation, table, column types and key names."""

    op: int
    database: object
    table: object
    mysql_type: object
    pk_names: object


class _Body(NamedTuple):
    """Shows which token (value) of a record belongs to which column. It is the result of parsing a skeleton.

    The tokens of a record are numbered from 0. ``names``: column names of the row. ``data``: number of the
    token with the first column's value; the tokens of the other columns follow it. ``old``: for an update,
    the token numbers of the old values by column name; None if the member ``old`` is null. ``commit_ts`` and
    ``row_key``: token numbers of these members, or -1 if the record does not have them.
    """

    names: tuple[str, ...]
    data: int
    old: dict[str, int] | None
    commit_ts: int = _NO_TOKEN
    row_key: int = _NO_TOKEN

    @property
    def places(self) -> tuple[int, ...]:
        """The token numbers of ``data``, ``commit_ts``, ``row_key`` and a null ``old``, or -1 if missing."""
        return self.data, self.commit_ts, self.row_key, 0 if self.old is None else _NO_TOKEN


_NO_PLACES: Final = (_NO_TOKEN,) * 4


def read_head(frame: bytes) -> _Head | None:
    """Parses the head of a row change: its JSON text before ``old``, without the digits of ``es`` and ``ts``.

    Returns None if the text is not such a head. The row codec must then decode the record.
    """
    if frame.count(_NO_DIGITS) != 1 or frame.count(b'"es":') != 1:
        return None
    try:
        parsed = orjson.loads(frame.replace(_NO_DIGITS, b'"es":0,"ts":0,') + b"}")
    except orjson.JSONDecodeError:
        return None
    kind = parsed.get("type")
    op = OPS.get(kind) if type(kind) is str else None
    if op is None or parsed.get("isDdl") is not False or _FIRST_OF_BODY & parsed.keys():
        return None
    get = parsed.get
    return _Head(op_code(op), get("database"), get("table"), get("mysqlType"), get("pkNames"))


def read_body(skeleton: bytes) -> _Body | None:
    """Parses the skeleton of a message with one row: its JSON text from ``old`` on, without values.

    Returns None if the text is not such a skeleton. The row codec must then decode the record.
    """
    text, tokens = _LACKS_VALUE.subn(rb"\1null", skeleton)
    if not text.startswith(b","):
        return None
    try:
        parsed = orjson.loads(b"{" + text[1:])
    except orjson.JSONDecodeError:
        return None
    old, data, extension = parsed.get("old"), _only_row(parsed.get("data")), parsed.get("_tidb", {})
    if [*parsed][:2] != ["old", "data"] or not parsed.keys() <= _FIRST_OF_BODY or not data:
        return None
    row = None if old is None else _only_row(old)
    if old is not None and row is None:
        return None
    if type(extension) is not dict or not extension.keys() <= {"commitTs", "rowkey"}:
        return None
    if any(value is not None for value in extension.values()):
        return None
    start = 1 if row is None else len(row)
    places = {name: start + len(data) + index for index, name in enumerate(extension)}
    # A name that occurs twice in an object has two tokens, but only one entry in the dict.
    if tokens != start + len(data) + len(extension):
        return None
    return _Body(
        tuple(data),
        start,
        None if row is None else {name: index for index, name in enumerate(row)},
        places.get("commitTs", _NO_TOKEN),
        places.get("rowkey", _NO_TOKEN),
    )


def _only_row(rows: object) -> dict[str, None] | None:
    """Returns the row in a list with exactly one row, or None if there are several or a value is nested."""
    row = rows[0] if type(rows) is list and len(rows) == 1 else None
    return row if type(row) is dict and all(value is None for value in row.values()) else None


def may_be_ddl(value: bytes | None) -> bool:
    """Returns True if a record's value may contain a DDL event; False only if it certainly does not."""
    if not value:
        return False
    # Without \u escapes, isDdl can be written in only one way. Without a newline there is only one object.
    sure = value.startswith(b"{") and b"\n" not in value and b"\\u" not in value
    return not (sure and value.count(b'"isDdl"') == value.count(b'"isDdl":false') == 1)


@dataclass(frozen=True)
class _Rows:
    """The row changes of a chunk of records, without those whose bytes may not be valid JSON.

    Each array has one element per row change. ``places``: index of each row's record in ``scan``. ``where``:
    index of each row's record in the chunk. ``head`` and ``body``: index of each row's head in ``heads`` and
    of its skeleton in ``bodies``. ``first``: index of the record's first token. ``data``: index of the token
    with the first column's value. ``commit_ts``: commit TSO, negative if the record does not contain it.
    """

    scan: Scan
    places: Indices
    where: Indices
    head: Indices
    body: Indices
    first: Indices
    data: Indices
    commit_ts: Indices
    heads: Sequence[_Head | None]
    bodies: Sequence[_Body | None]

    def between(self, start: int, stop: int) -> Indices:
        """Returns the indices of the rows from the chunk's records ``start`` up to, excluding, ``stop``."""
        return np.arange(*np.searchsorted(self.where, (start, stop)))


class _Chunk(NamedTuple):
    """A chunk of consecutive records that were scanned together.

    ``start``: index of the first record in the batch. ``size``: number of records. ``rows``: row changes
    whose bytes are valid. ``stops``: ascending indices, in the chunk, of the records that may be DDL events.
    """

    start: int
    size: int
    rows: _Rows
    stops: Indices


class CanalJsonColumns:
    """Decodes canal-json records into Arrow tables, many at once.

    ``shapes``: column types and keys of the rows. ``large``: decompresses values. Parsed heads and skeletons
    are cached for later batches.
    """

    def __init__(self, shapes: RowShapes, large: LargeMessages) -> None:
        self._shapes = shapes
        self._large = large
        self._heads = _Remembered(read_head)
        self._bodies = _Remembered(read_body)
        self._types: ByIdentity[RowTypes] = ByIdentity(
            lambda shape, options: RowTypes(shape.schema, shape.key or None, options), _MOST_TYPES
        )

    def step(self, options: ValueOptions) -> Callable[[Records], ColumnarResult]:
        """Returns a function that decodes the next records of a batch up to the next possible DDL event.

        The function must be called with the batch's records in order. It scans each chunk of records only
        once.
        """
        chunk: _Chunk | None = None

        def decode(records: Records) -> ColumnarResult:
            nonlocal chunk
            if chunk is None or records.start >= chunk.start + chunk.size:
                chunk = self._chunk(records)
            start = records.start - chunk.start
            behind = chunk.stops[np.searchsorted(chunk.stops, start) :]
            stop = int(behind[0]) + 1 if len(behind) else chunk.size
            return self._segment(chunk, records, stop - start, options)

        return decode

    def _chunk(self, records: Records) -> _Chunk:
        values = records.value.slice(0, _CHUNK_RECORDS)
        size = max(1, int(np.searchsorted(ends(values), _CHUNK_BYTES, "right")))
        values = self._plain(values.slice(0, size))
        if is_spaced(values[0].as_py() or b""):
            # A producer that writes white space into one message writes it into all messages.
            values = _or_compacted(values)
        rows, rest = self._scanned(values)
        # The first message is compact, so only records that the scan left are checked for white space.
        if compacted(values.take(pa.array(rest))) is not None:
            values = _or_compacted(values)
            rows, rest = self._scanned(values)
        texts = values.take(pa.array(rest)).to_pylist()
        stops = rest[np.fromiter(map(may_be_ddl, texts), np.bool_, len(rest))]
        return _Chunk(records.start, len(values), rows, stops)

    def _scanned(self, values: pa.Array) -> tuple[_Rows, Indices]:
        """Returns the row changes with valid bytes in a chunk, and the indices of all other records."""
        rows = self._rows(scan(values))
        return rows, np.setdiff1d(np.arange(len(values)), rows.where, assume_unique=True)

    def _plain(self, values: pa.Array) -> pa.Array:
        """Returns the values decompressed. A value that cannot be decompressed is returned unchanged."""
        odd = values.take(pa.array(odd_starts(values))).to_pylist()
        if all(compression_of(value) == "none" for value in odd):
            return values
        return pa.array([self._opened(value) for value in values.to_pylist()], pa.large_binary())

    def _opened(self, value: bytes | None) -> bytes | None:
        try:
            return value and (self._large.plain(value) or value)
        except (DecodeError, ConfigError):
            return value

    def _rows(self, scanned: Scan) -> _Rows:
        heads = self._heads.all(scanned.heads.dictionary)
        bodies = self._bodies.all(scanned.bodies.dictionary)
        head, body = (
            encoded.indices.to_numpy().astype(np.int64) for encoded in (scanned.heads, scanned.bodies)
        )
        # The token numbers of data, commitTs, rowkey and a null old, for each skeleton.
        places = np.array([_NO_PLACES if parsed is None else parsed.places for parsed in bodies], np.int64)
        data, commit_ts, row_key, no_old = places.reshape(-1, len(_NO_PLACES))[body].T
        proven = scanned.proven & _is_known(heads)[head] & _is_known(bodies)[body]
        proven &= _as_expected(scanned.tokens, commit_ts, row_key, no_old)
        rows = np.flatnonzero(proven)
        first = scanned.tokens.first[rows]
        times = _commit_ts(scanned.tokens, first, commit_ts[rows])
        return _Rows(
            scanned,
            rows,
            scanned.where[rows],
            head[rows],
            body[rows],
            first,
            first + data[rows],
            times,
            heads,
            bodies,
        )

    def _segment(self, chunk: _Chunk, records: Records, size: int, options: ValueOptions) -> ColumnarResult:
        start = records.start - chunk.start
        left = np.ones(size, np.bool_)
        tables: list[ChangeTable] = []
        for shape, places in self._by_shape(chunk.rows, chunk.rows.between(start, start + size)):
            table = _TableOfShape(shape, self._types.get(shape, options), options, chunk.rows, places)
            changes, proven = table.read(records, chunk.rows.where[places] - start)
            tables.append(changes)
            left[proven] = False
        return ColumnarResult(size, tables, left=np.flatnonzero(left))

    def _by_shape(self, rows: _Rows, places: Indices) -> Iterator[tuple[RowShape, Indices]]:
        """Groups rows by their ``RowShape`` (column types and key). Yields each shape and its rows' indices.

        The indices are ascending. Rows for which no shape is found, or that lack a key column, are omitted,
        so that the row codec decodes them.
        """
        groups: dict[int, tuple[RowShape, list[Indices]]] = {}
        for of_kind in _by_kind(rows, places):
            head, body = rows.heads[rows.head[of_kind[0]]], rows.bodies[rows.body[of_kind[0]]]
            if head is not None and body is not None:
                for shape, fits in self._shapes_of(head, body, rows, of_kind):
                    groups.setdefault(id(shape), (shape, []))[1].append(of_kind[fits])
        for shape, parts in groups.values():
            yield shape, parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))

    def _shapes_of(
        self, head: _Head, body: _Body, rows: _Rows, places: Indices
    ) -> Iterator[tuple[RowShape, Mask]]:
        """Yields the ``RowShape`` of rows with the same head and skeleton, with a mask of its rows.

        It yields several shapes if DDL changed a column's type between the commit times of the rows.
        """
        moments = self._moments(body, rows, places)
        rest = np.ones(len(places), np.bool_)
        while rest.any():
            moment = NEVER if moments is None else int(moments[np.argmax(rest)])
            shape = self._shape(head, body, moment)
            if shape is None:
                return
            fits = rest if moments is None else rest & _within(moments, shape)
            rest = rest & ~fits
            yield shape, fits

    def _moments(self, body: _Body, rows: _Rows, places: Indices) -> Indices | None:
        """Returns the commit TSO of each row, from ``commitTs`` or else ``es``.

        Returns None if the commit time is not needed, because DDL has changed no column's type.
        """
        if body.commit_ts != _NO_TOKEN:
            return rows.commit_ts[places]
        if self._shapes.moment(0) == NEVER:
            return None
        times = rows.scan.es(rows.places[places]).to_pylist()
        return np.array([min(row_moment(None, es), _INT64_MAX) for es in times], np.int64)

    def _shape(self, head: _Head, body: _Body, moment: int) -> RowShape | None:
        try:
            shape = self._shapes.find(
                head.database,
                head.table,
                dict.fromkeys(body.names),
                mysql_type=head.mysql_type,
                pk_names=head.pk_names,
                commit_ts=moment,
            )
        except DecodeError:
            return None
        names = set(shape.names)
        if not names.issuperset(shape.key):
            return None
        updates = head.op == _UPDATE
        return shape if not updates or (body.old is not None and names.issuperset(body.old)) else None


def _or_compacted(values: pa.Array) -> pa.Array:
    compact = compacted(values)
    return values if compact is None else compact


class _Remembered(Generic[T]):
    """Caches the results of parsing bytes. When the cache exceeds its size limit, it is emptied.

    ``read``: function that parses bytes which are not in the cache.
    """

    def __init__(self, read: Callable[[bytes], T]) -> None:
        self._read = read
        self._known: dict[bytes, T] = {}
        self._size = 0

    def all(self, texts: pa.BinaryArray) -> list[T]:
        """Returns the parsed heads or skeletons, in the order of ``texts``, from the cache if possible."""
        return [self._one(text) for text in texts.to_pylist()]

    def _one(self, text: bytes) -> T:
        if text in self._known:
            return self._known[text]
        self._size += len(text) + _ENTRY_BYTES
        if self._size > _REMEMBERED_BYTES:
            self._known.clear()
            self._size = len(text)
        value = self._known[text] = self._read(text)
        return value


def _by_kind(rows: _Rows, places: Indices) -> list[Indices]:
    """Groups rows by their pair of head and skeleton. Returns the row indices of each group."""
    if not len(places):
        return []
    kinds = rows.head[places] * len(rows.bodies) + rows.body[places]
    _, counts = np.unique(kinds, return_counts=True)
    if len(counts) == 1:
        return [places]
    return np.split(places[np.argsort(kinds, kind="stable")], np.cumsum(counts)[:-1])


def _is_known(plans: Sequence[object]) -> Mask:
    return np.array([plan is not None for plan in plans], np.bool_)


def _within(moments: Indices, shape: RowShape) -> Mask:
    """Returns a mask of the commit TSOs that lie in the time range in which a row shape is valid.

    In ``moments``, the largest int64 value means a commit time later than all changes of the definitions.
    """
    fits: Mask = moments >= min(shape.since, _INT64_MAX)
    return fits if shape.until > _INT64_MAX else fits & (moments < shape.until)


def _as_expected(tokens: Tokens, commit_ts: Indices, row_key: Indices, no_old: Indices) -> Mask:
    """Returns a mask of the records in which each token (value) is of a kind that is allowed at its position.

    ``commitTs`` must be a number and all column values text or null, ``old`` without a row must be null, and
    ``rowkey`` must not be null.
    """
    first = tokens.first[:-1]
    numbers = np.append(0, np.cumsum(tokens.number))
    expected: Mask = numbers[tokens.first[1:]] - numbers[first] == (commit_ts >= 0)
    expected &= _flag(tokens.number, first, commit_ts)
    expected &= _flag(tokens.null, first, no_old)
    expected &= _flag(~tokens.null, first, row_key)
    return expected


def _flag(flags: Mask, first: Indices, number: Indices) -> Mask:
    """Returns, for one token of each record, its element in ``flags``; True if the record lacks this token.

    ``first``: index of each record's first token. ``number``: number of the token within its record, negative
    if the record lacks the token.
    """
    if not len(flags):
        return number < 0
    return (number < 0) | flags[np.minimum(first + np.maximum(number, 0), len(flags) - 1)]


def _commit_ts(tokens: Tokens, first: Indices, number: Indices) -> Indices:
    times = np.full(len(first), _NO_TOKEN)
    some = np.flatnonzero(number >= 0)
    texts = tokens.texts.take(pa.array(tokens.place[first[some] + number[some]]))
    times[some] = texts.cast(pa.int64()).to_numpy()
    return times


class _TableOfShape:
    """Builds the ``ChangeTable`` of the rows with one shape. ``places``: these rows' indices in ``rows``."""

    def __init__(
        self, shape: RowShape, types: RowTypes, options: ValueOptions, rows: _Rows, places: Indices
    ) -> None:
        self._shape, self._types, self._options = shape, types, options
        self._tokens = rows.scan.tokens
        self._data, self._commit_ts = rows.data[places], rows.commit_ts[places]
        ops = np.array([0 if head is None else head.op for head in rows.heads], np.int8)
        self._op = ops[rows.head[places]]
        self._updates = np.flatnonzero(self._op == _UPDATE)
        updated = places[self._updates]
        self._old_first = rows.first[updated]
        numbers, self._old_body = np.unique(rows.body[updated], return_inverse=True)
        self._old_places = [getattr(rows.bodies[number], "old", None) or {} for number in numbers]
        self._bad = np.zeros(len(places), np.bool_)
        self._marks: dict[str, dict[str, Mask]] = {name: {} for name in MARKS}

    def read(self, records: Records, indices: Indices) -> tuple[ChangeTable, Indices]:
        """Returns the change table of the rows, and the indices of the records whose rows it contains.

        ``indices``: index in ``records`` of each row's record. If a value of a row cannot be converted here,
        the table does not contain the row, and the row codec must decode the record.
        """
        columns = [self._column(number) for number in range(len(self._shape.names))]
        fields = {**self._place(records, indices), **self._images(columns)}
        table = pa.table(fields, schema=self._types.table)
        if self._bad.any():
            good = np.flatnonzero(~self._bad)
            table, indices = table.take(pa.array(good)), indices[good]
        shape = self._shape
        return ChangeTable(shape.table, shape.schema, None, table), indices

    def _column(self, number: int) -> pa.Array:
        """Returns one column's values in all rows, followed by its old values in the rows of updates.

        ``number``: index of the column. A row with a value that cannot be converted is marked in ``_bad``.
        """
        column = self._shape.schema.columns[number]
        data = self._data + number
        tokens = np.concatenate([data, self._old(column.name, data)]) if len(self._updates) else data
        null = self._tokens.null[tokens]
        places = pa.array(self._tokens.place[tokens], mask=null if null.any() else None)
        texts = self._tokens.texts.take(places)
        if self._shape.binary_text == "utf-8" and row_of(column.type).reader == "binary":
            converted = _from_utf8(texts)
        else:
            converted = from_text(
                texts,
                column.type,
                **self._types.policies_of(column),
                time_zone=self._options.zone,
            )
        if converted.unproven is not None:
            self._refuse(converted.unproven)
        for name, marked in self._marks.items():
            if (mask := getattr(converted, name)) is not None:
                marked[column.name] = mask[: len(data)]
        if column.name in self._shape.key:
            self._bad |= null[: len(data)]
        return converted.values

    def _old(self, name: str, data: Indices) -> Indices:
        """Returns the indices of the tokens that have a column's old values, one per update.

        If ``old`` does not contain the column, the update did not change it, and its token in ``data`` is
        used.
        """
        places = np.array([old.get(name, _NO_TOKEN) for old in self._old_places], np.int64)[self._old_body]
        return np.where(places < 0, data[self._updates], self._old_first + places)

    def _refuse(self, unproven: Mask) -> None:
        count = len(self._bad)
        self._bad |= unproven[:count]
        self._bad[self._updates] |= unproven[count:]

    def _place(self, records: Records, indices: Indices) -> dict[str, pa.Array]:
        count, valid = len(indices), self._commit_ts >= 0
        return {
            **records.places(indices),
            "op": op_array(self._op),
            "commit_ts": pa.array(self._commit_ts, mask=~valid),
            "source": source_lists([self._commit_ts], valid),
            "unavailable": pa.nulls(count, NAMES_TYPE),
            "unavailable_before": pa.nulls(count, NAMES_TYPE),
            **{name: name_lists(marked, count) for name, marked in self._marks.items()},
        }

    def _images(self, columns: Sequence[pa.Array]) -> dict[str, pa.Array]:
        count = len(self._op)
        rows, deleted = np.arange(count), self._op == _DELETE
        before = np.where(deleted, rows, _NO_TOKEN)
        before[self._updates] = count + np.arange(len(self._updates))
        names = {name: index for index, name in enumerate(self._shape.names)}
        keys = [columns[names[member.name]] for member in self._types.key]
        return {
            "key": _struct(keys, self._types.key, rows, count),
            "before": _struct(columns, self._types.row, before, count),
            "after": _struct(columns, self._types.row, np.where(deleted, _NO_TOKEN, rows), count),
        }


def _from_utf8(texts: pa.Array) -> ColumnResult:
    """Converts the texts of a binary column whose bytes the producer wrote as UTF-8 text.

    A text with a replacement character is marked in ``unproven``, because the producer lost bytes. The row
    codec then raises the error.
    """
    lost = pc.fill_null(pc.match_substring(texts, REPLACEMENT), False)
    unproven = lost.to_numpy(zero_copy_only=False) if pc.any(lost).as_py() else None
    return ColumnResult(texts.cast(pa.binary()), unproven, None, None)


def _struct(columns: Sequence[pa.Array], kind: pa.StructType, rows: Indices, count: int) -> pa.Array:
    """Returns a struct array with the columns' values at the indices ``rows``, one struct per index.

    For a negative index the struct is null.
    """
    none = rows < 0
    if not columns or none.all():
        return pa.nulls(count, kind)
    if (rows == np.arange(count)).all():
        # These are all rows in their own order, so the columns are sliced instead of copied.
        return pa.StructArray.from_arrays([column[:count] for column in columns], fields=list(kind))
    where, mask = pa.array(rows, mask=none), pa.array(none) if none.any() else None
    return pa.StructArray.from_arrays(
        [column.take(where) for column in columns], fields=list(kind), mask=mask
    )
