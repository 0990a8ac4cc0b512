"""Which records of a canal-json topic with several tables are one table's, in a task.

It says what ``spark.record_frames.foreign_to`` says of a raw frame: a record is another table's where its
message
names one. What names no table (watermarks, DDL about a whole database), and what cannot be read, is every
table's, but for a damaged record that begins as a known table's do: it is that table's alone.

TiCDC (tiflow c7b2588, ticdc b813e76) begins each message with id, database and table, so that nearly all
records are identified by their first bytes, and those repeat.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.compression import decompressed
from tidesink.errors import FramingError
from tidesink.events import TableId
from tidesink.sinks.batch.records import Flags

_TEXT: Final = rb'"((?:[^"\\]|\\.)*)"'
_HEAD: Final = re.compile(rb'\{"id":0,"database":' + _TEXT + rb',"table":' + _TEXT + rb",", re.DOTALL)
# What is looked at of each record: names of usual length end before it, and what changes begins behind.
_HEAD_BYTES: Final = 72
_MOST_HEADS: Final = 10_000
_WATERMARK: Final = "TIDB_WATERMARK"


class Shared(NamedTuple):
    """Which records are the table's, and how many are rows of tables that nobody knows."""

    own: Flags
    strangers: int


@dataclass(frozen=True)
class SharedTopic:
    """Tells the records of ``table`` from those of others; ``known``: the tables that are read at all.

    ``opens_up_to``: values may be compressed, and stand for so many bytes at most; None: they are not.
    """

    table: TableId
    known: frozenset[TableId]
    opens_up_to: int | None = None

    def shared(self, records: pa.RecordBatch) -> Shared:
        """What is the table's among Kafka records."""
        values = records.column("value")
        heads = pc.binary_slice(values, 0, _HEAD_BYTES).dictionary_encode()
        named = [self._named(head) for head in heads.dictionary.to_pylist()]
        codes = heads.indices.fill_null(len(named)).to_numpy(zero_copy_only=False).astype(np.int64)
        own = np.array([*(one == self.table for one in named), True], np.bool_)[codes]
        known = np.array([*(one in self.known for one in named), True], np.bool_)[codes]
        for at in np.flatnonzero(~own & ~known).tolist():
            value: bytes = values[at].as_py()
            parsed = self._parsed(value)
            found = _table_of(parsed)
            own[at] = found is None or found == self.table
            known[at] = own[at] or found in self.known or not _is_row(parsed)
        return Shared(own, int((~known).sum()))

    def _named(self, head: bytes) -> TableId | None:
        """The table that the first bytes of a record name; None where they do not say it in TiCDC's form."""
        if head not in self._heads:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[head] = _table_in(head)
        return self._heads[head]

    @cached_property
    def _heads(self) -> dict[bytes, TableId | None]:
        return {}

    def _parsed(self, value: bytes) -> Any:
        """The first object of a value; None where there is none."""
        if self.opens_up_to is not None and not value.startswith(b"{"):
            try:
                value = decompressed(value, most=self.opens_up_to) or value
            except FramingError:
                return None
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return _first_object(value)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}


def _table_in(head: bytes) -> TableId | None:
    found = _HEAD.match(head)
    if found is None:
        return None
    try:
        schema, name = (json.loads(b'"' + part + b'"') for part in found.groups())
    except ValueError:
        return None
    return TableId(schema, name) if name else None


def _first_object(value: bytes) -> Any:
    """Of several objects, each on a line, the first."""
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
    """Whether a message is of a row, and not of a DDL event or a watermark."""
    return isinstance(parsed, dict) and parsed.get("isDdl") is False and parsed.get("type") != _WATERMARK
