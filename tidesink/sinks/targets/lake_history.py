"""How lakes keep a history: what a batch changes is computed beside the table, then merged by one statement.

The rows looked at have no end, or one that is not before the batch's first event: nothing before that can
change. Files without such rows are passed over by what the lake remembers of them.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by identifier.py
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tidesink.errors import AccountingError, SchemaRefusedError, TargetError
from tidesink.sinks.history import FROM_COLUMN, LOGICAL_BITS, TO_COLUMN, HistoryNames, history_shape
from tidesink.sinks.sessions_spark import in_session
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch, check_versions
from tidesink.sinks.targets.delta_merge import SOURCE, TARGET, range_literal
from tidesink.sinks.targets.identifier import quote_identifier, quote_path, quote_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.history_spark import Counts

_WRITTEN: Final = ("begin", "mark")
_FROM, _TO = quote_identifier(FROM_COLUMN), quote_identifier(TO_COLUMN)


@contextmanager
def compared(
    session: SparkSession, location: str, batch: ReducedBatch, present: Mapping[str, str], *, empty: bool
) -> Iterator[tuple[DataFrame, Counts]]:
    """What a batch changes in the table, kept while this holds, and its counts. ``empty``: it has no rows.

    Raises:
        SchemaRefusedError: the target lacks a column of the batch.
        TargetError: the batch has rows instead of a frame, or leaves out values.
    """
    from tidesink.sinks.history_spark import count, difference_frame

    check_versions(batch)
    if batch.frame is None:
        raise TargetError("a lake takes a frame, and the batch has rows", table=str(batch.shape.table))
    known = _known(batch, present)
    types = {column.name: known[column.name.lower()] for column in batch.shape.key_columns}
    stored = None if empty else session.sql(relevant_statement(location, batch, known))
    frame = in_session(batch.frame, session)
    found = difference_frame(frame, batch.shape, stored=stored, types=types).persist()
    try:
        yield found, count(found)
    finally:
        found.unpersist()


def relevant_statement(location: str, batch: ReducedBatch, known: Mapping[str, str]) -> str:
    """The spans of a table that a batch may change."""
    names = ", ".join(quote_identifier(column.name) for column in batch.shape.key_columns)
    target = quote_identifier(TARGET)
    return f"SELECT {names}, {_FROM}, {_TO} FROM {location} AS {target} WHERE " + " AND ".join(
        _relevant(batch, known)
    )


def insert_statement(location: str, view: str, batch: ReducedBatch, present: Mapping[str, str]) -> str:
    """The INSERT of the rows to write into a table that has none."""
    values = _values(batch, _known(batch, present))
    written = ", ".join(map(quote_text, _WRITTEN))
    return (
        f"INSERT INTO {location} ({', '.join(values)}) SELECT {', '.join(values.values())} "
        f"FROM {quote_identifier(view)} AS {quote_identifier(SOURCE)} WHERE {_op()} IN ({written})"
    )


def merge_statement(location: str, view: str, batch: ReducedBatch, present: Mapping[str, str]) -> str:
    """The MERGE of what a batch changes; ``view`` has nothing else."""
    known = _known(batch, present)
    values = _values(batch, known)
    names = [column.name for column in batch.shape.key_columns] + [FROM_COLUMN]
    same = [f"{quote_path(TARGET, name)} = {quote_path(SOURCE, 'key', name)}" for name in names]
    times = {name: value for name, value in values.items() if name in _times(_names(batch))}
    return "\n".join(
        [
            f"MERGE INTO {location} AS {quote_identifier(TARGET)}",
            f"USING {quote_identifier(view)} AS {quote_identifier(SOURCE)}",
            f"ON {' AND '.join([*same, *_relevant(batch, known)])}",
            f"WHEN MATCHED AND {_op()} = 'forget' THEN DELETE",
            f"WHEN MATCHED AND {_op()} = 'end' THEN UPDATE SET {_set(times)}",
            f"WHEN MATCHED THEN UPDATE SET {_set(values)}",
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})",
        ]
    )


def result_of(
    counts: Counts, rows: tuple[int, int, int], batch: ReducedBatch, *, version: str
) -> ApplyResult:
    """What a commit did to a history; ``rows`` it inserted, updated and deleted, by its own metrics.

    Raises:
        AccountingError: they are not those that were to be.
    """
    if counts.rows != rows:
        raise AccountingError(
            f"the commit says {rows[0]} rows inserted, {rows[1]} updated and {rows[2]} deleted, and of a "
            f"batch with {batch.upserts} writes and {batch.deletes} deletes it should be {counts.rows}",
            table=str(batch.shape.table),
        )
    return ApplyResult(counts.begun, 0, counts.ends, counts.absent, version, counts.stale)


def _relevant(batch: ReducedBatch, known: Mapping[str, str]) -> list[str]:
    """The condition for the rows that a batch may change, by their end and the range of their keys."""
    until = quote_path(TARGET, TO_COLUMN)
    terms = [] if batch.since is None else [f"({until} IS NULL OR {until} >= {batch.since}L)"]
    for name, (least, greatest) in batch.key_range.items():
        low, high = (range_literal(value, known[name.lower()]) for value in (least, greatest))
        if low and high:
            column = quote_path(TARGET, name)
            terms.append(f"{column} >= {low} AND {column} <= {high}")
    return terms or ["true"]


def _known(batch: ReducedBatch, present: Mapping[str, str]) -> dict[str, str]:
    """The target's types by lower-case name."""
    known = {name.lower(): ddl for name, ddl in present.items()}
    wanted = history_shape(batch.shape, _names(batch)).columns
    missing = [column.name for column in wanted if column.name.lower() not in known]
    if missing:
        raise SchemaRefusedError(
            f"the target has no column {', '.join(missing)}: evolve it before the batch is applied",
            table=str(batch.shape.table),
        )
    return known


def _values(batch: ReducedBatch, known: Mapping[str, str]) -> dict[str, str]:
    """What each column of a row to write is written as."""
    values = {}
    for column in batch.shape.columns:
        source = quote_path(SOURCE, "key" if column.key else "after", column.name)
        ddl = known[column.name.lower()]
        cast = not column.key and ddl != column.spark
        values[quote_identifier(column.name)] = f"CAST({source} AS {ddl})" if cast else source
    return {**values, **_times(_names(batch))}


def _times(names: HistoryNames) -> dict[str, str]:
    start, end = quote_path(SOURCE, "key", FROM_COLUMN), quote_path(SOURCE, "_to")
    return {
        _FROM: start,
        _TO: end,
        quote_identifier(names.valid_from): f"timestamp_millis(shiftright({start}, {LOGICAL_BITS}))",
        quote_identifier(names.valid_to): f"timestamp_millis(shiftright({end}, {LOGICAL_BITS}))",
        quote_identifier(names.current): f"{end} IS NULL",
    }


def _set(values: Mapping[str, str]) -> str:
    return ", ".join(f"{quote_identifier(TARGET)}.{name} = {value}" for name, value in values.items())


def _names(batch: ReducedBatch) -> HistoryNames:
    check_versions(batch)
    assert batch.history is not None  # noqa: S101  (checked)
    return batch.history


def _op() -> str:
    return quote_path(SOURCE, "_op")
