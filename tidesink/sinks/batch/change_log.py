"""The change log of a table (``mode: append``): its columns, and the conversion of changes into its rows.

Each row of the log is one image of one event: the row before or after the change. Its operation has the name
that Delta's change data feed uses: ``insert``, ``delete``, ``update_preimage`` or ``update_postimage``. Two
names are added: ``truncate``, and ``upsert`` for records that do not distinguish an insert from an update
(flat-avro without the TiDB extension, a connector's snapshot). The rows of one record are numbered in the
order in which they took effect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import MARKS, ChangeTable
from tidesink.events import Op
from tidesink.sinks.decode.records import TableDecoder
from tidesink.sinks.decode.target_rows import TargetRows, key_type, row_type
from tidesink.sinks.laws.modes import (
    COMMIT_TS,
    IMAGES_AN_EVENT,
    INDEX,
    OFFSET,
    OP,
    PARTITION,
    PREIMAGE,
    UNAVAILABLE,
    WORDS,
    log_shape,
)
from tidesink.sinks.laws.reduce import row_keys
from tidesink.typemap.target_schema import TargetColumn

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LogRows:
    """Rows of a change log, as Arrow arrays with one element per row.

    Attributes:
        events: The index of each row's event in the ``ChangeTable``.
        old: True if the row is the preimage of an update. The update is counted with its postimage.
        key: The log's key columns (``log_shape``), as a struct.
        after: All columns of the log, as a struct.
        marks: For each kind of marked value in ``MARKS`` (such as impossible dates): for each row, the names
            of the columns with such a value.
    """

    events: pa.Array
    old: pa.Array
    key: pa.StructArray
    after: pa.StructArray
    marks: Mapping[str, pa.Array]


def log_rows(table: ChangeTable, rows: TargetRows, decoder: TableDecoder, *, keeps_values: bool) -> LogRows:
    """Returns the changes of one table as rows of its change log, in the order of the changes.

    ``keeps_values``: True if rows may lack values that the source did not send.
    """
    return _LoggedTable(table, rows, decoder, keeps_values=keeps_values).rows


class _LoggedTable:
    """Converts one table's changes into rows of its change log.

    ``_at``: for each log row, the index of its event. ``_old``: True for a log row that is the preimage of an
    update. ``_shows_old``: True for a log row that shows an old image, which is the preimage of an update or
    the row that a delete removed.
    """

    def __init__(
        self, table: ChangeTable, rows: TargetRows, decoder: TableDecoder, *, keeps_values: bool
    ) -> None:
        self._changes, self._rows, self._keeps_values = table, rows, keeps_values
        self._ops = table.rows["op"].combine_chunks().dictionary_decode()
        before, self._before_left = decoder.old_rows(table)
        self._before = rows.row(table, before)
        self._key, self._old_key = change_keys(table, rows, old_keys=decoder.old_keys)
        both = self._is(Op.UPDATE) & (_there(self._before) | _there(self._old_key))
        self._at = np.repeat(np.arange(len(both)), 1 + both)
        self._old = np.append(self._at[1:] == self._at[:-1], [False])[: len(self._at)]
        self._shows_old = self._old | self._is(Op.DELETE)[self._at]
        # True for old rows of which the record has only the key.
        self._key_alone = self._shows_old & ~_there(self._before)[self._at]

    @property
    def rows(self) -> LogRows:
        shape, events = log_shape(self._rows.target_shape), self._changes.rows.take(self._events)
        own = {**self._own, **self._rows.metadata_columns(events, self._own[OP])}
        if shape.shard is not None:  # a truncate has no row, but it has a shard
            own[shape.shard.column] = pa.repeat(pa.scalar(shape.shard.value), len(self._at))
        arrays = [
            own[shape_column.name] if shape_column.name in own else self._value(shape_column)
            for shape_column in shape.columns
        ]
        after = pa.StructArray.from_arrays(arrays, fields=list(row_type(shape)))
        keys = [self._own[column.name] for column in shape.key_columns]
        key = pa.StructArray.from_arrays(keys, fields=list(key_type(shape)))
        marks = {name: self._marked(name) for name in MARKS}
        return LogRows(self._events, pa.array(self._old), key, after, marks)

    @cached_property
    def _own(self) -> dict[str, pa.Array]:
        """The values of the columns that the log has in addition to the table's columns, by column name."""
        whole = self._changes.rows
        words = [PREIMAGE, *WORDS.values()]
        codes = pc.index_in(self._ops, pa.array(list(WORDS))).to_numpy()[self._at] + 1
        return {
            PARTITION: self._taken(whole["partition"]),
            OFFSET: self._taken(whole["offset"]),
            INDEX: self._row_numbers(),
            OP: pa.array(words).take(pa.array(np.where(self._old, 0, codes))),
            COMMIT_TS: self._taken(whole["commit_ts"]),
            UNAVAILABLE: self._unavailable(),
        }

    def _row_numbers(self) -> pa.Array:
        """Returns the number of each log row within its Kafka record. Rows are numbered in the order in
        which they took effect.

        Two numbers are reserved for each event of a record. Only an update needs both, for its preimage and
        its postimage.
        """
        first = self._changes.rows["index"].to_numpy()[self._at] * IMAGES_AN_EVENT
        second = self._is(Op.UPDATE)[self._at] & ~self._old
        return pa.array((first + second).astype(np.int32))

    @cached_property
    def _image(self) -> pa.StructArray:
        """The content of each log row, as a struct of the target's columns: the row before or after the
        change. Null if the record has only the row's key.
        """
        after = self._changes.rows["after"].combine_chunks()
        return self._chosen(self._shows_old, self._before, self._rows.row(self._changes, after))

    @cached_property
    def _image_key(self) -> pa.StructArray:
        return self._chosen(self._old, self._old_key, self._key)

    def _value(self, column: TargetColumn) -> pa.Array:
        """Returns the values of a column of the table in the log rows.

        If the record has only the key of a row, the values of key columns come from the key.
        """
        values = pc.struct_field(self._image, [column.name])
        if column.name not in self._rows.target_shape.keys or not self._key_alone.any():
            return values
        return pc.if_else(pa.array(self._key_alone), pc.struct_field(self._image_key, [column.name]), values)

    def _unavailable(self) -> pa.Array:
        """For each log row, the columns whose values the source did not send, as a JSON list.

        Null for a row with all its values.
        """
        names = [*self._rows.value_sources]
        left = self._lists(self._changes.rows["unavailable"].combine_chunks() if self._keeps_values else None)
        old = self._lists(self._before_left)
        lists = self._chosen(self._shows_old, old, left)
        if names and self._key_alone.any():
            every = pa.array([names], lists.type).take(pa.array(np.zeros(len(lists), np.int64)))
            lists = pc.if_else(pa.array(self._key_alone), every, lists)
        return _json(lists)

    def _lists(self, names: pa.Array | None) -> pa.Array:
        if names is None:
            return pa.nulls(len(self._ops), pa.list_(pa.string()))
        return self._rows.names(names)

    def _marked(self, mark: str) -> pa.Array:
        """Returns, for each log row, the names of the columns whose values carry ``mark``, such as an
        impossible date. Null for a row that shows an old image.
        """
        lists = self._lists(self._changes.rows[mark].combine_chunks()).take(self._events)
        return pc.if_else(pa.array(self._shows_old), pa.scalar(None, lists.type), lists)

    def _chosen(self, first: Flags, values: pa.Array, other: pa.Array) -> pa.Array:
        """Returns one value for each log row: the value of its event in ``values`` if ``first`` is True for
        the row, and the value of its event in ``other`` if it is False.
        """
        return pa.concat_arrays([values, other]).take(
            pa.array(np.where(first, self._at, self._at + len(values)))
        )

    def _taken(self, column: pa.ChunkedArray) -> pa.Array:
        return column.combine_chunks().take(self._events)

    @cached_property
    def _events(self) -> pa.Array:
        return pa.array(self._at)

    def _is(self, op: Op) -> Flags:
        flags: Flags = pc.equal(self._ops, op.value).to_numpy(zero_copy_only=False)
        return flags


def change_keys(
    table: ChangeTable, rows: TargetRows, *, old_keys: bool
) -> tuple[pa.StructArray, pa.StructArray]:
    """Returns the key of each change, and its old key, with the names and types of the target's key columns.

    The old key is null if the change does not alter the key. A truncate has neither a key nor an old key.

    ``old_keys``: True if an update's old row contains the old key. False if the protocol sends a key change
    as two records.
    """
    if not rows.keys:
        nothing = pa.nulls(table.rows.num_rows, key_type(rows.target_shape))
        return nothing, nothing
    named = pc.not_equal(table.rows["op"].combine_chunks().dictionary_decode(), Op.TRUNCATE.value)
    new, old, moved = row_keys(table, rows.keys, rows.key_values, old_keys=old_keys)
    key, was = (rows.key(pa.StructArray.from_arrays(columns, list(rows.keys))) for columns in (new, old))
    return _where(named, key), _where(pc.and_(named, pa.array(moved)), was)


def _where(flags: pa.Array, values: pa.Array) -> pa.Array:
    """Returns the values, with null in place of each value whose element in ``flags`` is False."""
    return pc.if_else(flags, values, pa.scalar(None, values.type))


def _there(array: pa.Array) -> Flags:
    flags: Flags = array.is_valid().to_numpy(zero_copy_only=False)
    return flags


def _json(lists: pa.Array) -> pa.Array:
    """Returns each list of names as JSON text. Each distinct list is converted only once."""
    texts: dict[tuple[str, ...], str] = {}
    json_texts: list[str | None] = [None] * len(lists)
    for index in np.flatnonzero(_there(lists)).tolist():
        names: Sequence[Any] = lists[index].as_py()
        text = texts.get(tuple(names))
        if text is None:
            text = texts[tuple(names)] = json.dumps(names, ensure_ascii=False, separators=(",", ":"))
        json_texts[index] = text
    return pa.array(json_texts, pa.string())
