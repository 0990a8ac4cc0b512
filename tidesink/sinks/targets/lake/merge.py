"""The SQL statements with which Spark merges a batch into a Delta or Iceberg table by key."""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import SchemaRefusedError
from tidesink.events import fold_name
from tidesink.sinks.targets.base import (
    PLACE_COLUMNS,
    SEQUENCE_COLUMN,
    SOFT_DELETE_COLUMN,
    ReducedBatch,
)
from tidesink.sinks.targets.column_changes import literal_text
from tidesink.sinks.targets.sharing import quote_identifier, quote_path, quote_text
from tidesink.typemap.target_schema import Shard, TargetColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
