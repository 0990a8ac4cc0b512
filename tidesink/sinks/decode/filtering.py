"""A table's row filter: a condition in Spark SQL that Spark evaluates in the middle of each task.

One Spark stage without a shuffle has three steps:

1. The first half of the task fetches and decodes. For each batch of records it returns a *chunk*
   (``decoded_chunk``): the decoded records, pickled, and one row per row change with only the columns that
   the filter uses.
2. Spark evaluates the condition on each of these rows. The result is the row's *verdict*.
3. The second half of the task joins the chunks with their verdicts (``verdicts_of``), applies them to the
   decoded records (``RowFilterRule.applied``), reduces the changes, and packs the rows.

A row that does not match the filter deletes its key in the target.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
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
from tidesink.sinks.decode.records import BAD, DecodedRecords, Input, OtherRecord
from tidesink.sinks.decode.target_rows import TargetRows, row_type
from tidesink.sinks.laws.reduce import UNMATCHED
from tidesink.typemap.projection import RowFilter
from tidesink.typemap.target_schema import TargetSchema, columns_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Flags = npt.NDArray[np.bool_]
# Raises ConfigError if a filter is not a condition on rows of a schema.
FilterCheck = Callable[[RowFilter, TargetSchema], None]

_ROW: Final = "_row"
# Columns that the first half of the task returns: a chunk, and a struct of the columns that the filter uses.
CHUNK: Final = "chunk"
FILTERED: Final = "filtered"
_FAILED: Final = (
    "Spark could not evaluate the table's filter ({text}) on this row, for example because of a cast, a "
    "division by zero or an overflow. Use try_cast, try_divide and similar functions in the filter. They "
    "return NULL instead of an error."
)
_NOT_SENT: Final = (
    "The table's filter ({text}) needs a column whose value is not in this event: the source omits values "
    "that did not change. Set REPLICA IDENTITY FULL on the source table, or filter by columns whose values "
    "are always sent."
)
_MATCHES: Final = "true"
_ROW_OPS: Final = (Op.INSERT.value, Op.UPDATE.value, Op.UPSERT.value)


class Verdicts(NamedTuple):
    """A chunk, and Spark's verdict on each of its row changes.

    ``wanted``: the input that the chunk belongs to. ``chunk``: the decoded records, or the error
    that decoding raised. ``said``: the verdicts. A verdict is the text ``true``, ``false`` or ``null``, or a
    null value if Spark could not evaluate the condition.
    """

    wanted: Input
    chunk: DecodedRecords | TidesinkError
    said: pa.Array


@dataclass(frozen=True)
class RowFilterRule:
    """A table's filter, in the form that tasks use.

    Attributes:
        text: The filter as written in the config.
        expression: The filter in Spark SQL, with the columns as members of the struct ``FILTERED``. Its
            result is the text ``true``, ``false`` or ``null``, or a null value if the filter cannot be
            evaluated.
        columns: The source's names of the columns that the filter uses.
        ddl: These columns and their types as Spark DDL.
    """

    text: str
    expression: str
    columns: tuple[str, ...]
    ddl: str

    @property
    def chunks_ddl(self) -> str:
        """The columns of the rows on which Spark evaluates the filter, as Spark DDL."""
        return f"{CHUNK} binary, {FILTERED} struct<{self.ddl}>"

    def applied(self, decoded: DecodedRecords, verdicts: pa.Array, rows: TargetRows) -> DecodedRecords:
        """Marks the row changes in decoded records that do not match the filter, and returns the records.

        Row changes get the column ``UNMATCHED``: True if the row does not match the filter. Row changes for
        which the filter cannot be evaluated become bad records. ``verdicts``: Spark's verdict on each row
        change, in the order of the row changes.
        """
        tables, others, start = [], [*decoded.others], 0
        for table in decoded.tables:
            sound, bad = self._applied(table, verdicts.slice(start, table.rows.num_rows), rows)
            start += table.rows.num_rows
            others += bad
            if sound.rows.num_rows:
                tables.append(sound)
        return replace(decoded, tables=tables, others=others)

    def _applied(
        self, table: ChangeTable, verdicts: pa.Array, rows: TargetRows
    ) -> tuple[ChangeTable, list[OtherRecord]]:
        """Adds the column ``UNMATCHED`` to row changes.

        Returns the row changes for which the filter could be evaluated, and a bad record for each of the
        others.
        """
        ops = table.rows["op"].combine_chunks().dictionary_decode()
        written = _flags(pc.is_in(ops, pa.array(_ROW_OPS)))
        unsent = written & self._unsent(table, rows)
        failed = written & ~unsent & ~_flags(verdicts.is_valid())
        matches = ~written | _flags(pc.fill_null(pc.equal(verdicts, _MATCHES), False))
        whole = table.rows.append_column(UNMATCHED, pa.array(~matches))
        if not (unsent | failed).any():
            return replace(table, rows=whole), []
        bad = list(_bad(table, unsent, _NOT_SENT.format(text=self.text)))
        bad += _bad(table, failed, _FAILED.format(text=self.text))
        return replace(table, rows=whole.filter(pa.array(~(unsent | failed)))), bad

    def _unsent(self, table: ChangeTable, rows: TargetRows) -> Flags:
        """Returns a mask of the row changes that omit the value of a column that the filter uses."""
        lists = rows.source_names(table.rows["unavailable"].combine_chunks())
        mask = np.zeros(len(lists), np.bool_)
        needed = _flags(pc.is_in(lists.flatten(), pa.array(self.columns)))
        mask[pc.list_parent_indices(lists).to_numpy()[needed]] = True
        return mask


def condition(row_filter: RowFilter, shape: TargetSchema) -> str:
    """Returns the filter as a Spark SQL condition, with the columns of ``shape`` as members of a struct
    ``_row``.

    The filter is on its own lines, because it may end with a comment.
    """
    names = {name: column.name for name, column in shape.by_name.items()}
    return f"(\n{row_filter.bound(_ROW, names, shape.fold)}\n)"


def filter_rule(row_filter: RowFilter, shape: TargetSchema, check: FilterCheck) -> RowFilterRule:
    """Returns the form of a filter that tasks use, for rows with the columns of ``shape``.

    Raises:
        ConfigError: ``check`` does not accept the filter.
    """
    check(row_filter, shape)
    named = {shape.by_name[shape.fold(name)].name for name in row_filter.columns}
    columns = tuple(column for column in shape.columns if column.name in named)
    return RowFilterRule(
        row_filter.text,
        _tried(condition(row_filter, shape)),
        tuple(column.name for column in columns),
        columns_ddl(columns),
    )


def check_condition(row_filter: RowFilter, shape: TargetSchema, session: SparkSession) -> None:
    """Check that Spark accepts the filter as a condition on rows of ``shape``, without evaluating it.

    Raises:
        ConfigError: Spark does not accept the filter, or its type is not boolean.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
    from pyspark.sql.types import BooleanType

    row = F.lit(None).cast(f"struct<{shape.ddl}>").alias(_ROW)
    try:
        data_type = (
            session.range(0).select(row).select(F.expr(condition(row_filter, shape))).schema[0].dataType
        )
    except PySparkException as exc:
        message = str(exc).splitlines()[0]
        raise ConfigError(
            f"filter: Spark does not accept {row_filter.text!r}: {message}", table=str(shape.table)
        ) from exc
    if not isinstance(data_type, BooleanType):
        raise ConfigError(
            f"filter: {row_filter.text!r} must be a condition, but its type is {data_type.simpleString()}. "
            "Write a comparison, such as id > 0.",
            table=str(shape.table),
        )


def _tried(text: str) -> str:
    expression = f"coalesce(cast({text} as string), 'null')"
    tried = f"transform(array({FILTERED}), {_ROW} -> try_to_binary({expression}, 'utf-8'))"
    return f"cast(get({tried}, 0) as string)"


def decoded_chunk(
    wanted: Input, decoded: DecodedRecords | TidesinkError, rule: RowFilterRule, rows: TargetRows
) -> pa.RecordBatch:
    """Returns a chunk of decoded records as rows for Spark: one row per row change, and at least one row.

    A row has the values on which Spark evaluates the filter. The first row also has the whole chunk, pickled.
    ``decoded``: the decoded records, or the error that decoding raised.
    """
    tables = [] if isinstance(decoded, TidesinkError) else decoded.tables
    parts = [rows.source_row(table, table.rows["after"].combine_chunks(), rule.columns) for table in tables]
    images = pa.concat_arrays(parts) if parts else _no_row(rows, rule)
    chunk = pa.array([pickle.dumps((wanted, decoded))])
    chunks = pa.concat_arrays([chunk, pa.nulls(len(images) - 1, pa.binary())])
    return pa.RecordBatch.from_arrays([chunks, images], [CHUNK, FILTERED])


def verdicts_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Verdicts]:
    """Yields each chunk of decoded records with Spark's verdicts on its row changes.

    A new chunk begins at each row that contains a pickled chunk, so it does not matter how Spark divided the
    rows into batches.
    """
    chunk, chunk_verdicts = None, list[Any]()
    for batch in batches:
        chunks, verdicts = batch.columns
        starts = np.flatnonzero(_flags(chunks.is_valid())).tolist()
        for start, end in pairwise((0, *starts, batch.num_rows)):
            if end > start and chunks[start].is_valid:
                if chunk is not None:
                    yield _verdicts(chunk, chunk_verdicts)
                chunk, chunk_verdicts = chunks[start].as_py(), []
            chunk_verdicts.append(verdicts.slice(start, end - start))
    if chunk is not None:
        yield _verdicts(chunk, chunk_verdicts)


def _verdicts(chunk: bytes, verdicts: list[Any]) -> Verdicts:
    wanted, decoded = pickle.loads(chunk)  # noqa: S301  (our own task wrote it)
    return Verdicts(wanted, decoded, pa.concat_arrays(verdicts))


def _no_row(rows: TargetRows, rule: RowFilterRule) -> pa.Array:
    return pa.nulls(1, pa.struct([field for field in row_type(rows.shape) if field.name in rule.columns]))


def _bad(table: ChangeTable, flags: Flags, reason: str) -> Iterator[OtherRecord]:
    names = ["topic", "partition", "offset", "index", "commit_ts"]
    for row in table.rows.select(names).filter(pa.array(flags)).to_pylist():
        yield OtherRecord(BAD, **row, error=FilterError.__name__, reason=reason)


def _flags(array: Any) -> Flags:
    flags: Flags = array.to_numpy(zero_copy_only=False)
    return flags
