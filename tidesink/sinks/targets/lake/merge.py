"""The SQL statements with which Spark merges a batch into a Delta or Iceberg table, by key or as a history.

For a history, the batch's events and the stored versions become a frame of operations, by the rules of
``targets.modes``:

=========  =================================================================================
``_op``    operation on the stored row with the same ``key``
=========  =================================================================================
``begin``  write the version ``after``; it may replace a delete marker or a read's version
``end``    set the end of a stored version to ``_to``
``mark``   write a marker for a delete that ended no version; it may replace a read's version
``forget`` remove a marker whose delete now ends a version, or a read's version that does not count
null       none: the event needs no row of its own, or is stored already
=========  =================================================================================

``key`` is a struct of the key columns and ``FROM_COLUMN``. ``_to`` is the version's end, or null. ``_read``
is true if the version begins with a snapshot's read. ``count`` counts operations and outcomes of events
in one Spark job.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.errors import AccountingError, SchemaRefusedError, TargetError
from tidesink.events import LOGICAL_BITS, fold_name
from tidesink.sinks.spark.payloads import UPSERT
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.targets.base import (
    PLACE_COLUMNS,
    SEQUENCE_COLUMN,
    SOFT_DELETE_COLUMN,
    ApplyResult,
    ReducedBatch,
    check_versions,
)
from tidesink.sinks.targets.column_changes import literal_text
from tidesink.sinks.targets.lake.versions import Counts
from tidesink.sinks.targets.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN, HistoryNames, history_shape
from tidesink.sinks.targets.sharing import quote_identifier, quote_path, quote_text
from tidesink.typemap.target_schema import Shard, TargetColumn, TargetSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


BEGIN: Final = "begin"
END: Final = "end"
MARK: Final = "mark"
FORGET: Final = "forget"
# Kinds of events. If a key has several events at one commit_ts, the greatest kind counts.
_READ, _DELETE, _WRITE = range(3)


def difference_frame(
    batch: DataFrame,
    shape: TargetSchema,
    *,
    stored: DataFrame | None = None,
    types: Mapping[str, str] | None = None,
    reads: bool = False,
) -> DataFrame:
    """Return the operations by which a batch changes a history table, as a lazy frame (see the module's
    docstring).

    ``batch``: the batch's frame.
    ``stored``: key columns, ``FROM_COLUMN``, ``TO_COLUMN`` and ``READ_COLUMN`` of the stored rows that have
        no end, or that end at or after the batch's first event; of all stored rows if ``reads``. None if the
        table has no rows.
    ``types``: by name of a key column, its type in the target, if it differs from the type in ``shape``.
    ``reads``: True if the batch's rows were read by a snapshot.
    """
    names = [column.name for column in shape.key_columns]
    keys = [f"key_{number}" for number in range(len(names))]
    events = _events(batch, shape, keys, types or {}, reads=reads)
    moments = events.repartition(*keys) if stored is None else _joined(events, stored, names, keys)
    # A read counts only as the first moment of its key. Reads that do not count are skipped.
    timeline = Window.partitionBy(*keys).orderBy("at")
    kinds = moments.withColumn("kind", F.greatest("stored", "sent"))
    counted = kinds.withColumn("counts", (F.col("kind") != _READ) | F.lag("at").over(timeline).isNull())
    begins = F.col("kind") != _DELETE
    within = f"OVER (PARTITION BY {', '.join(keys)} ORDER BY at)"
    ordered = counted.withColumns(
        {
            "next_at": F.expr(f"lead(IF(counts, at, NULL)) IGNORE NULLS {within}"),
            "begins": begins & F.col("counts"),
            "before": F.coalesce(
                F.expr(f"lag(IF(counts, kind, NULL)) IGNORE NULLS {within}") != _DELETE, F.lit(False)
            ),
        }
    )
    key = [F.col(column).alias(name) for column, name in zip(keys, names, strict=True)]
    return ordered.select(
        _operation().alias("_op"),
        F.struct(*key, F.col("at").alias(FROM_COLUMN)).alias("key"),
        "after",
        F.when(F.col("begins"), F.col("next_at")).otherwise(F.col("at")).alias("_to"),
        (F.col("kind") == _READ).alias("_read"),
        "row",
        "stored",
        "sent",
        "counts",
        "before",
    )


def count(difference: DataFrame) -> Counts:
    """Count the operations and the outcomes of events in a ``difference_frame``, in one Spark job."""
    op, stored, sent = (F.col(name) for name in ("_op", "stored", "sent"))
    applied = F.coalesce(stored >= sent, F.lit(False))
    deleted = (sent == _DELETE) & ~applied
    row = difference.agg(
        F.count_if(op == BEGIN).alias("begun"),
        F.count_if(op.isin(BEGIN, MARK) & F.col("row")).alias("replaced"),
        F.count_if(op == END).alias("ended"),
        F.count_if(op == MARK).alias("marked"),
        F.count_if(op == FORGET).alias("forgotten"),
        F.count_if(deleted & F.col("before")).alias("ends"),
        F.count_if(deleted & ~F.col("before")).alias("absent"),
        F.count_if(sent.isNotNull() & (applied | ~F.col("counts"))).alias("stale"),
    ).collect()[0]
    return Counts(**row.asDict())


def _events(
    batch: DataFrame, shape: TargetSchema, keys: Sequence[str], types: Mapping[str, str], *, reads: bool
) -> DataFrame:
    """Return a frame of the batch's events, or of rows that a snapshot read, with one row per key and
    commit_ts.

    Its column ``sent`` is the kind of the event: a write, a delete or a read.
    """
    values = [
        F.col("key").getField(column.name).cast(types.get(column.name, column.spark)).alias(name)
        for name, column in zip(keys, shape.key_columns, strict=True)
    ]
    return batch.select(
        *values,
        F.col("_commit_ts").alias("at"),
        F.when(F.col("_op") == UPSERT, _READ if reads else _WRITE).otherwise(_DELETE).alias("sent"),
        "after",
        F.lit(None).cast("int").alias("stored"),
        F.lit(False).alias("row"),
        F.lit(None).cast("bigint").alias("until"),
    )


def _joined(events: DataFrame, stored: DataFrame, names: Sequence[str], keys: Sequence[str]) -> DataFrame:
    """Join a batch's events with the earlier events of the same keys, which are taken from the stored rows.

    The frame has one row per key and commit_ts. It is partitioned by key, so that later windows need no
    shuffle.
    """
    named = [F.col(f"`{name.replace('`', '``')}`").alias(key) for name, key in zip(names, keys, strict=True)]
    times = {"start": FROM_COLUMN, "until": TO_COLUMN, "read": READ_COLUMN}
    spans = stored.select(*named, *(F.col(column).alias(name) for name, column in times.items()))
    touched = spans.join(events.select(*keys), list(keys), "left_semi")
    reported = touched.select(*keys, F.explode(_reported()).alias("reported")).select(*keys, "reported.*")
    both = events.unionByName(reported, allowMissingColumns=True)
    return (
        both.repartition(*keys)
        .groupBy(*keys, "at")
        .agg(
            F.max("sent").alias("sent"),
            F.first("after", ignorenulls=True).alias("after"),
            F.max("stored").alias("stored"),
            F.max("row").alias("row"),
            F.max("until").alias("until"),
        )
    )


def _reported() -> Column:
    """Return the Spark expression for the events that a stored row of a history table shows.

    A version shows the write or read at its beginning, and a delete at its end if it has ended. A delete
    marker shows its delete.
    """
    start, until = F.col("start"), F.col("until")
    mark = F.coalesce(start == until, F.lit(False))
    begin = F.struct(
        start.alias("at"),
        F.when(mark, _DELETE).when(F.col("read"), _READ).otherwise(_WRITE).alias("stored"),
        F.lit(True).alias("row"),
        F.when(~mark, until).alias("until"),
    )
    end = F.struct(
        until.alias("at"),
        F.lit(_DELETE).alias("stored"),
        F.lit(False).alias("row"),
        F.lit(None).cast("bigint").alias("until"),
    )
    return F.when(mark | until.isNull(), F.array(begin)).otherwise(F.array(begin, end))


def _operation() -> Column:
    begins, before, row = F.col("begins"), F.col("before"), F.col("row")
    unchanged = F.col("stored").eqNullSafe(F.col("kind"))
    moved = ~F.col("until").eqNullSafe(F.col("next_at"))
    return (
        F.when(begins & ~unchanged, BEGIN)
        .when(begins & moved, END)
        .when(~begins & row & (before | ~F.col("counts")), FORGET)
        .when(~begins & F.col("counts") & ~before & ~(row & unchanged), MARK)
    )


TARGET: Final = "_tidesink_target"
SOURCE: Final = "_tidesink_source"
_IS_DELETE: Final = f"{quote_path(SOURCE, '_op')} = 'delete'"
_IS_UPSERT: Final = f"{quote_path(SOURCE, '_op')} = 'upsert'"
_MARKS: Final[Mapping[str, str]] = {
    quote_identifier(SOFT_DELETE_COLUMN): _IS_DELETE,
    quote_identifier(SEQUENCE_COLUMN): quote_path(SOURCE, "_seq"),
}
# Text of the error that ends a MERGE if no stored value exists: the row's origin, and the columns that it
# omits.
_PLACE: Final = (
    f"to_json(struct({', '.join(quote_path(SOURCE, name) for name in (*PLACE_COLUMNS, '_kept'))}))"
)


def merge_statement(
    location: str, view: str, batch: ReducedBatch, present: Mapping[str, str], *, beside: Iterable[str] = ()
) -> str:
    """Return the MERGE statement that merges a batch by key.

    ``location``: the table's quoted name.
    ``view``: the view of the batch's rows.
    ``present``: the target's columns: Spark type by name.
    ``beside``: target columns that the batch does not have. In the source's order, a delete sets them to
        NULL.
    """
    if batch.sequenced:
        return _sequenced_merge(location, view, batch, present, beside)
    soft = batch.how.delete_mode == "soft"
    values = _values(batch, present)
    updated = _values(batch, present, stored=True)
    marks = {quote_identifier(SOFT_DELETE_COLUMN): "true", **_on_delete(batch, present)}
    marked = f"UPDATE SET {_assignments(marks)}" if soft else "DELETE"
    clauses = [
        f"MERGE INTO {location} AS {quote_identifier(TARGET)}",
        f"USING {quote_identifier(view)} AS {quote_identifier(SOURCE)}",
        f"ON {' AND '.join(same_key(batch, present))}",
    ]
    if batch.deletes:
        clauses.append(f"WHEN MATCHED AND {_IS_DELETE} THEN {marked}")
    if batch.upserts:
        clauses += [
            f"WHEN MATCHED THEN UPDATE SET {_assignments(updated)}",
            f"WHEN NOT MATCHED AND {_IS_UPSERT} THEN INSERT {_insertion(values)}",
        ]
    return "\n".join(clauses)


def _sequenced_merge(
    location: str, view: str, batch: ReducedBatch, present: Mapping[str, str], beside: Iterable[str]
) -> str:
    """Return the MERGE statement of a batch in the source's order. It skips rows that are not newer."""
    position, stored = quote_path(SOURCE, "_seq"), quote_path(TARGET, SEQUENCE_COLUMN)
    newer = f"({stored} IS NULL OR {position} > {stored})"
    values = _values(batch, present)
    soft = batch.how.delete_mode == "soft"
    delete_values = (
        {**_on_delete(batch, present), **_MARKS} if soft else {**_emptied(batch, beside), **_MARKS}
    )
    return "\n".join(
        [
            f"MERGE INTO {location} AS {quote_identifier(TARGET)}",
            f"USING {quote_identifier(view)} AS {quote_identifier(SOURCE)}",
            f"ON {' AND '.join(same_key(batch, present))}",
            f"WHEN MATCHED AND {newer} AND {_IS_DELETE} THEN UPDATE SET {_assignments(delete_values)}",
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {_assignments({**values, **_MARKS})}",
            f"WHEN NOT MATCHED THEN INSERT {_insertion(_with_keys(batch, present, values))}",
        ]
    )


def stale_statement(location: str, view: str, batch: ReducedBatch, present: Mapping[str, str]) -> str:
    """Return the query that counts the batch's rows that are not newer than their stored rows.

    ``location``: the table's quoted name, with a clause that selects the version before the merge.
    """
    condition = " AND ".join(same_key(batch, present))
    return (
        f"SELECT count(*) AS stale FROM {location} AS {quote_identifier(TARGET)} "
        f"JOIN {quote_identifier(view)} AS {quote_identifier(SOURCE)} ON {condition} "
        f"WHERE {quote_path(SOURCE, '_seq')} <= {quote_path(TARGET, SEQUENCE_COLUMN)}"
    )


def _on_delete(batch: ReducedBatch, present: Mapping[str, str]) -> dict[str, str]:
    """Return the SQL values of the columns that a soft delete updates in addition to the deletion mark."""
    columns = {fold_name(name): ddl for name, ddl in present.items()}
    return {
        quote_identifier(name): _value(batch.shape.by_name[fold_name(name)], columns[fold_name(name)])
        for name in batch.how.on_delete
    }


def _emptied(batch: ReducedBatch, beside: Iterable[str]) -> dict[str, str]:
    """Return the SQL values of the columns of a tombstone (a row that records a delete): NULL outside the
    key.
    """
    names = [column.name for column in batch.shape.columns if not column.key]
    return {quote_identifier(name): "NULL" for name in (*names, *beside)}


def _with_keys(batch: ReducedBatch, present: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return the SQL values of an inserted row. The key is read from ``key``, because a delete has no
    ``after``.
    """
    columns = {fold_name(name): ddl for name, ddl in present.items()}
    keys = {
        quote_identifier(column.name): _as_target(
            quote_path(SOURCE, "key", column.name), column, columns[fold_name(column.name)]
        )
        for column in batch.shape.key_columns
    }
    return {**values, **keys, **_MARKS}


def _assignments(values: Mapping[str, str]) -> str:
    return ", ".join(f"{quote_identifier(TARGET)}.{name} = {value}" for name, value in values.items())


def _insertion(values: Mapping[str, str]) -> str:
    return f"({', '.join(values)}) VALUES ({', '.join(values.values())})"


def append_statement(location: str, view: str, batch: ReducedBatch, present: Mapping[str, str]) -> str:
    """Return the INSERT statement for a batch's rows, for an empty table or a change log."""
    values = _values(batch, present)
    values = _with_keys(batch, present, values) if batch.sequenced else values
    rows = (
        f"INSERT INTO {location} ({', '.join(values)}) SELECT {', '.join(values.values())} "
        f"FROM {quote_identifier(view)} AS {quote_identifier(SOURCE)}"
    )
    return rows if batch.sequenced else f"{rows} WHERE {_IS_UPSERT}"


def truncate_statement(location: str, batch: ReducedBatch) -> str:
    """Return the statement for a TRUNCATE event. It deletes all rows of the table or shard.

    With soft deletes, it marks the rows as deleted instead.
    """
    if batch.how.delete_mode == "hard" and batch.shape.shard is None:
        return f"DELETE FROM {location}"  # without a condition, no row is read
    mark = f"UPDATE {location} SET {quote_identifier(SOFT_DELETE_COLUMN)} = true"
    words = mark if batch.how.delete_mode == "soft" else f"DELETE FROM {location}"
    return f"{words} WHERE {living_rows(batch)}"


def living_rows(batch: ReducedBatch) -> str:
    """Return an SQL condition that selects the current rows of the batch's table or shard."""
    mark, shard = quote_identifier(SOFT_DELETE_COLUMN), batch.shape.shard
    lives = f"{mark} IS DISTINCT FROM true" if batch.how.delete_mode == "soft" else "true"
    return lives if shard is None else f"{lives} AND {rows_of(shard)}"


def rows_that_live(frame: DataFrame, columns: Sequence[TargetColumn], shard: Shard | None) -> DataFrame:
    """Return the current rows of a lake's table, or of a shard of it, with ``columns`` in this order.

    Tombstones (rows that record deletes) and soft-deleted rows are not included.
    """
    if SOFT_DELETE_COLUMN in frame.columns:
        frame = frame.where(f"{quote_identifier(SOFT_DELETE_COLUMN)} IS NOT TRUE")
    if shard is not None:
        frame = frame.where(rows_of(shard))
    return frame.selectExpr(*(quote_identifier(column.name) for column in columns))


def rows_of(shard: Shard) -> str:
    """Return an SQL condition that selects the rows of a shard."""
    return f"{quote_identifier(shard.column)} = {quote_text(shard.value)}"


def _values(batch: ReducedBatch, present: Mapping[str, str], *, stored: bool = False) -> dict[str, str]:
    """Return the SQL value of each column of an upserted row.

    ``stored``: True if the row updates a stored row. Its values replace values that the batch omits.

    Raises:
        SchemaRefusedError: the target lacks a column of the batch.
    """
    columns = {fold_name(name): ddl for name, ddl in present.items()}
    missing = [column.name for column in batch.shape.columns if fold_name(column.name) not in columns]
    if missing:
        raise SchemaRefusedError(
            f"The target has no column {', '.join(missing)}. Call `evolve` before `apply`.",
            table=str(batch.shape.table),
        )
    values = {
        quote_identifier(column.name): _value(column, columns[fold_name(column.name)])
        for column in batch.shape.columns
    }
    for column in batch.shape.columns if batch.keeps else ():
        name = quote_identifier(column.name)
        absent = values[name] if batch.how.lenient else f"raise_error({_PLACE})"
        soft = SOFT_DELETE_COLUMN in columns
        values[name] = _kept_or(values[name], column, absent, stored=stored, soft=soft)
    if (
        SOFT_DELETE_COLUMN in columns
    ):  # also after a change back to hard deletes, because an upserted row is current
        values[quote_identifier(SOFT_DELETE_COLUMN)] = "false"
    return values


def _kept_or(value: str, column: TargetColumn, absent: str, *, stored: bool, soft: bool) -> str:
    """Return SQL for a column's value: the stored value if the batch's row omits the column, else the batch's
    value.

    ``value``: the SQL of the value in the batch.
    ``absent``: the SQL to use if the value is omitted and there is no current stored row.
    ``stored``: True if the row updates a stored row.
    ``soft``: True if the target has the column that marks deleted rows.
    """
    omitted = f"array_contains({quote_path(SOURCE, '_kept')}, {quote_text(column.name)})"
    if not stored:
        return f"CASE WHEN {omitted} THEN {absent} ELSE {value} END"
    deleted = quote_path(SOURCE, "_after_delete")
    if soft:
        deleted += f" OR {quote_path(TARGET, SOFT_DELETE_COLUMN)}"
    current = quote_path(TARGET, column.name)
    return f"CASE WHEN {omitted} AND ({deleted}) THEN {absent} WHEN {omitted} THEN {current} ELSE {value} END"


def _value(column: TargetColumn, ddl: str) -> str:
    return _as_target(quote_path(SOURCE, "after", column.name), column, ddl)


def _as_target(source: str, column: TargetColumn, ddl: str) -> str:
    return source if ddl == column.spark else f"CAST({source} AS {ddl})"


def same_key(batch: ReducedBatch, present: Mapping[str, str]) -> list[str]:
    """Return SQL conditions under which a batch's row and a stored row have the same key.

    They are the equality of the keys, and the range of the batch's keys, by which Delta skips files.
    """
    columns = {fold_name(name): ddl for name, ddl in present.items()}
    # Cast, because Spark would compare a text with a decimal as doubles, in which different long numbers are
    # equal.
    terms = [
        f"{quote_path(TARGET, column.name)} = "
        + _as_target(quote_path(SOURCE, "key", column.name), column, columns[fold_name(column.name)])
        for column in batch.shape.key_columns
    ]
    shard = batch.shape.shard
    if (
        shard is not None
    ):  # a literal, by which Delta skips files and ignores concurrent commits of other shards
        terms.append(f"{quote_path(TARGET, shard.column)} = {quote_text(shard.value)}")
    for name, (least, greatest) in batch.key_range.items():
        low, high = (range_literal(value, columns[fold_name(name)]) for value in (least, greatest))
        if low and high:
            column = quote_path(TARGET, name)
            terms.append(f"{column} >= {low} AND {column} <= {high}")
    return terms


def range_literal(value: Any, ddl: str) -> str | None:
    """Return a SQL literal of exactly the type ``ddl``, which Delta needs to skip files; None if there is
    none.
    """
    if ddl in _RANGE_LITERALS and value is not None:
        return _RANGE_LITERALS[ddl].format(literal_text(value))
    if ddl == "string" and isinstance(value, str):
        return quote_text(value)
    if ddl.startswith("decimal") and value is not None:
        return f"CAST('{literal_text(value)}' AS {ddl})"
    return None


_RANGE_LITERALS: Final[Mapping[str, str]] = {
    "int": "{}",
    "bigint": "{}L",
    "date": "DATE'{}'",
    "timestamp_ntz": "TIMESTAMP_NTZ'{}'",
    # None for timestamp: Python formats the instant in the machine's zone, but Spark reads it in UTC.
}


_WRITTEN: Final = ("begin", "mark")
_FROM, _TO, _IS_READ = map(quote_identifier, (FROM_COLUMN, TO_COLUMN, READ_COLUMN))


@contextmanager
def compared(
    session: SparkSession, location: str, batch: ReducedBatch, present: Mapping[str, str], *, empty: bool
) -> Iterator[tuple[DataFrame, Counts]]:
    """Compute the operations by which a batch changes a history table, and yield their frame and their
    counts.

    The frame is cached until the block ends.

    ``present``: the target's columns: Spark type by name.
    ``empty``: True if the table has no rows.

    Raises:
        SchemaRefusedError: the target lacks a column of the batch.
        TargetError: the batch has Python rows instead of a Spark frame, or omits values.
    """

    check_versions(batch)
    if batch.frame is None:
        raise TargetError(
            "A history table needs a batch with a Spark frame, but this batch has Python rows. Pass a "
            "ReducedBatch whose `frame` is set.",
            table=str(batch.shape.table),
        )
    columns = _known(batch, present)
    types = {column.name: columns[fold_name(column.name)] for column in batch.shape.key_columns}
    stored = None if empty else session.sql(relevant_statement(location, batch, columns))
    frame = in_session(batch.frame, session)
    reads = batch.how.reads
    difference = difference_frame(frame, batch.shape, stored=stored, types=types, reads=reads).persist()
    try:
        yield difference, count(difference)
    finally:
        difference.unpersist()


def relevant_statement(location: str, batch: ReducedBatch, columns: Mapping[str, str]) -> str:
    """Return the query for those stored versions of a history table that a batch's events may change."""
    names = ", ".join(quote_identifier(column.name) for column in batch.shape.key_columns)
    target = quote_identifier(TARGET)
    return f"SELECT {names}, {_FROM}, {_TO}, {_IS_READ} FROM {location} AS {target} WHERE " + " AND ".join(
        _relevant(batch, columns)
    )


def insert_statement(location: str, view: str, batch: ReducedBatch, present: Mapping[str, str]) -> str:
    """Return the statement that inserts the versions and delete markers of a first batch into an empty
    history table.
    """
    values = _version_values(batch, _known(batch, present))
    written = ", ".join(map(quote_text, _WRITTEN))
    return (
        f"INSERT INTO {location} ({', '.join(values)}) SELECT {', '.join(values.values())} "
        f"FROM {quote_identifier(view)} AS {quote_identifier(SOURCE)} WHERE {_op()} IN ({written})"
    )


def history_merge_statement(location: str, view: str, batch: ReducedBatch, present: Mapping[str, str]) -> str:
    """Return the MERGE statement that carries out operations on a history table.

    ``view``: the view of the operations.
    """
    columns = _known(batch, present)
    values = _version_values(batch, columns)
    names = [column.name for column in batch.shape.key_columns] + [FROM_COLUMN]
    same = [f"{quote_path(TARGET, name)} = {quote_path(SOURCE, 'key', name)}" for name in names]
    times = {name: value for name, value in values.items() if name in _times(_names(batch))}
    return "\n".join(
        [
            f"MERGE INTO {location} AS {quote_identifier(TARGET)}",
            f"USING {quote_identifier(view)} AS {quote_identifier(SOURCE)}",
            f"ON {' AND '.join([*same, *_relevant(batch, columns)])}",
            f"WHEN MATCHED AND {_op()} = 'forget' THEN DELETE",
            f"WHEN MATCHED AND {_op()} = 'end' THEN UPDATE SET {_set(times)}",
            f"WHEN MATCHED THEN UPDATE SET {_set(values)}",
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})",
        ]
    )


def history_result(
    counts: Counts, rows: tuple[int, int, int], batch: ReducedBatch, *, version: str
) -> ApplyResult:
    """Return the row counts of a batch that was committed to a history table.

    ``rows``: numbers of inserted, updated and deleted rows, from the commit's metrics.

    Raises:
        AccountingError: the metrics differ from the expected numbers.
    """
    if counts.rows != rows:
        raise AccountingError(
            f"The commit reports {rows[0]} rows inserted, {rows[1]} updated and {rows[2]} deleted. Expected "
            f"were {counts.rows}, for {batch.upserts} upserts and {batch.deletes} deletes. Compare the table "
            "with `tidesink diff`, and report this with the log.",
            table=str(batch.shape.table),
        )
    return counts.result(version)


def _relevant(batch: ReducedBatch, columns: Mapping[str, str]) -> list[str]:
    """Return SQL conditions that select the stored rows that a batch may change, by their end and
    key range.
    """
    until = quote_path(TARGET, TO_COLUMN)
    terms = [] if batch.since is None else [f"({until} IS NULL OR {until} >= {batch.since}L)"]
    for name, (least, greatest) in batch.key_range.items():
        low, high = (range_literal(value, columns[fold_name(name)]) for value in (least, greatest))
        if low and high:
            column = quote_path(TARGET, name)
            terms.append(f"{column} >= {low} AND {column} <= {high}")
    return terms or ["true"]


def _known(batch: ReducedBatch, present: Mapping[str, str]) -> dict[str, str]:
    """Return the target's columns: Spark type by lower-case name.

    Raises:
        SchemaRefusedError: the target lacks a column that a history table must have.
    """
    columns = {fold_name(name): ddl for name, ddl in present.items()}
    wanted = history_shape(batch.shape, _names(batch)).columns
    missing = [column.name for column in wanted if fold_name(column.name) not in columns]
    if missing:
        raise SchemaRefusedError(
            f"The target has no column {', '.join(missing)}. Call `evolve` before `apply`.",
            table=str(batch.shape.table),
        )
    return columns


def _version_values(batch: ReducedBatch, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the SQL value of each column of a row to write to a history table."""
    values = {}
    for column in batch.shape.columns:
        source = quote_path(SOURCE, "key" if column.key else "after", column.name)
        ddl = columns[fold_name(column.name)]
        cast = not column.key and ddl != column.spark
        values[quote_identifier(column.name)] = f"CAST({source} AS {ddl})" if cast else source
    return {**values, **_times(_names(batch)), _IS_READ: quote_path(SOURCE, "_read")}


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
    assert batch.how.history is not None  # noqa: S101  (checked)
    return batch.how.history


def _op() -> str:
    return quote_path(SOURCE, "_op")
