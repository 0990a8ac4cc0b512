"""A table's row filter: Spark SQL evaluates it on each row between two parts of a task, without a shuffle.

A filter is a condition in Spark SQL, so Spark evaluates it. One stage has three steps:

1. The first part of the task fetches and decodes. It returns a *chunk* for each batch of records
   (``decoded_chunk``): the decoded records as bytes, and one row per change that has only the columns that
   the filter uses.
2. Spark evaluates the condition for each row.
3. The second part joins chunks and verdicts (``verdicts_of``, ``RowFilterRule.applied``), then reduces and
   packs.

A row that does not satisfy the filter deletes its key.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import ChangeTable
from tidesink.errors import ConfigError, FilterError, TidesinkError
from tidesink.events import Op
from tidesink.sinks.batch.records import BAD, DecodedRecords, OtherRecord
from tidesink.sinks.batch.reduce import UNMATCHED
from tidesink.sinks.batch.target_rows import TargetRows, row_type
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.typemap.projection import RowFilter
from tidesink.typemap.target_schema import TableShape, columns_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Flags = npt.NDArray[np.bool_]

_ROW: Final = "_row"
# Columns of the first part's result: the chunk, and the struct with a row's columns.
CHUNK: Final = "chunk"
FILTERED: Final = "filtered"
_FAILED: Final = (
    "The table's filter ({text}) fails on this row, for example in a cast, a division or an overflow. Use "
    "try_cast, try_divide and similar functions, which return NULL for such rows."
)
_NOT_SENT: Final = (
    "The table's filter ({text}) needs a value that the source did not send, because it did not change. Set "
    "REPLICA IDENTITY FULL on the table, or filter by columns whose values are always sent."
)
_MATCHES: Final = "true"
_ROW_OPS: Final = (Op.INSERT.value, Op.UPDATE.value, Op.UPSERT.value)


class Verdicts(NamedTuple):
    """A chunk of the records of the range ``wanted``, and Spark's verdict on each of its row changes.

    ``chunk``: the decoded records, or the error. ``said``: the text ``true``, ``false`` or ``null`` for each
    row; null if evaluating the condition failed.
    """

    wanted: FetchRange
    chunk: DecodedRecords | TidesinkError
    said: pa.Array


@dataclass(frozen=True)
class RowFilterRule:
    """A table's filter.

    Attributes:
        text: The filter in the config.
        expression: The filter in Spark SQL over the struct ``FILTERED``.
        columns: The columns that the filter uses, with the names of the source's shape.
        ddl: These columns as Spark DDL.
    """

    text: str
    expression: str
    columns: tuple[str, ...]
    ddl: str

    @property
    def chunks_ddl(self) -> str:
        """The columns of the first part's result, as Spark DDL."""
        return f"{CHUNK} binary, {FILTERED} struct<{self.ddl}>"

    def applied(self, found: DecodedRecords, said: pa.Array, rows: TargetRows) -> DecodedRecords:
        """Applies the verdicts to decoded records. ``said``: one verdict per row change, in their order."""
        tables, others, at = [], [*found.others], 0
        for table in found.tables:
            sound, bad = self._applied(table, said.slice(at, table.rows.num_rows), rows)
            at += table.rows.num_rows
            others += bad
            if sound.rows.num_rows:
                tables.append(sound)
        return replace(found, tables=tables, others=others)

    def _applied(
        self, table: ChangeTable, said: pa.Array, rows: TargetRows
    ) -> tuple[ChangeTable, list[OtherRecord]]:
        """Returns the rows with the column ``UNMATCHED``, and the rows on which the filter fails."""
        ops = table.rows["op"].combine_chunks().dictionary_decode()
        written = _flags(pc.is_in(ops, pa.array(_ROW_OPS)))
        unsent = written & self._unsent(table, rows)
        failed = written & ~unsent & ~_flags(said.is_valid())
        matches = ~written | _flags(pc.fill_null(pc.equal(said, _MATCHES), False))
        whole = table.rows.append_column(UNMATCHED, pa.array(~matches))
        if not (unsent | failed).any():
            return replace(table, rows=whole), []
        bad = list(_bad(table, unsent, _NOT_SENT.format(text=self.text)))
        bad += _bad(table, failed, _FAILED.format(text=self.text))
        return replace(table, rows=whole.filter(pa.array(~(unsent | failed)))), bad

    def _unsent(self, table: ChangeTable, rows: TargetRows) -> Flags:
        """Returns True for rows without a value that the filter needs, because the source did not send it."""
        lists = rows.source_names(table.rows["unavailable"].combine_chunks())
        found = np.zeros(len(lists), np.bool_)
        needed = _flags(pc.is_in(lists.flatten(), pa.array(self.columns)))
        found[pc.list_parent_indices(lists).to_numpy()[needed]] = True
        return found


def condition(row_filter: RowFilter, shape: TableShape) -> str:
    """Returns the filter over a struct ``_row`` of a shape's columns. The text may end with a comment."""
    names = {name: column.name for name, column in shape.by_name.items()}
    return f"(\n{row_filter.bound(_ROW, names, shape.fold)}\n)"


def filter_rule(row_filter: RowFilter, shape: TableShape, session: SparkSession) -> RowFilterRule:
    """Returns the rule by which the tasks of a range apply a filter to rows of a shape.

    Raises:
        ConfigError: Spark does not accept the filter, or it is not a condition.
    """
    check_condition(row_filter, shape, session)
    named = {shape.by_name[shape.fold(name)].name for name in row_filter.columns}
    columns = tuple(column for column in shape.columns if column.name in named)
    return RowFilterRule(
        row_filter.text,
        _tried(condition(row_filter, shape)),
        tuple(column.name for column in columns),
        columns_ddl(columns),
    )


def check_condition(row_filter: RowFilter, shape: TableShape, session: SparkSession) -> None:
    """Have Spark analyse the filter without rows.

    Raises:
        ConfigError: Spark does not accept the filter, or it is not a condition.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
    from pyspark.sql.types import BooleanType

    row = F.lit(None).cast(f"struct<{shape.ddl}>").alias(_ROW)
    try:
        found = session.range(0).select(row).select(F.expr(condition(row_filter, shape))).schema[0].dataType
    except PySparkException as exc:
        said = str(exc).splitlines()[0]
        raise ConfigError(
            f"filter: Spark does not accept {row_filter.text!r}: {said}", table=str(shape.table)
        ) from exc
    if not isinstance(found, BooleanType):
        raise ConfigError(
            f"filter: {row_filter.text!r} must be a condition, but its type is {found.simpleString()}.",
            table=str(shape.table),
        )


def _tried(text: str) -> str:
    said = f"coalesce(cast({text} as string), 'null')"
    return f"cast(get(transform(array({FILTERED}), {_ROW} -> try_to_binary({said}, 'utf-8')), 0) as string)"


def decoded_chunk(
    wanted: FetchRange, found: DecodedRecords | TidesinkError, rule: RowFilterRule, rows: TargetRows
) -> pa.RecordBatch:
    """Returns a chunk as rows for Spark: one per row change, at least one. The first row has the chunk."""
    tables = [] if isinstance(found, TidesinkError) else found.tables
    parts = [rows.source_row(one, one.rows["after"].combine_chunks(), rule.columns) for one in tables]
    images = pa.concat_arrays(parts) if parts else _no_row(rows, rule)
    chunk = pa.array([pickle.dumps((wanted, found))])
    chunks = pa.concat_arrays([chunk, pa.nulls(len(images) - 1, pa.binary())])
    return pa.RecordBatch.from_arrays([chunks, images], [CHUNK, FILTERED])


def verdicts_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Verdicts]:
    """Yields the chunks with their verdicts, no matter how Spark split them into batches."""
    chunk, said = None, list[Any]()
    for batch in batches:
        chunks, verdicts = batch.columns
        starts = np.flatnonzero(_flags(chunks.is_valid())).tolist()
        for start, end in pairwise((0, *starts, batch.num_rows)):
            if end > start and chunks[start].is_valid:
                if chunk is not None:
                    yield _verdicts(chunk, said)
                chunk, said = chunks[start].as_py(), []
            said.append(verdicts.slice(start, end - start))
    if chunk is not None:
        yield _verdicts(chunk, said)


def _verdicts(chunk: bytes, said: list[Any]) -> Verdicts:
    wanted, found = pickle.loads(chunk)  # noqa: S301  (our own task wrote it)
    return Verdicts(wanted, found, pa.concat_arrays(said))


def _no_row(rows: TargetRows, rule: RowFilterRule) -> pa.Array:
    return pa.nulls(1, pa.struct([one for one in row_type(rows.shape) if one.name in rule.columns]))


def _bad(table: ChangeTable, flags: Flags, reason: str) -> Iterator[OtherRecord]:
    names = ["topic", "partition", "offset", "index", "commit_ts"]
    for row in table.rows.select(names).filter(pa.array(flags)).to_pylist():
        yield OtherRecord(BAD, **row, error=FilterError.__name__, reason=reason)


def _flags(array: Any) -> Flags:
    found: Flags = array.to_numpy(zero_copy_only=False)
    return found
