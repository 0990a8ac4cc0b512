"""Staging tables: they hold the rows of one batch until these are merged into the target table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from tidesink.errors import TargetError, TidesinkError
from tidesink.sinks.targets.base import ReducedBatch, RowFormat, RowsHere, StagedPart
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.load import (
    AFTER_DELETE,
    AT,
    ATTEMPT,
    FROM,
    IS_DELETE,
    KEPT,
    SEQUENCE,
    Loader,
    StagedColumn,
    StagedRows,
    counted_attempts,
    stage_rows,
    staged_columns,
)
from tidesink.sinks.targets.sql.location import SEQUENCE_TYPES
from tidesink.typemap.render_sql import OF_SPARK, Database


def make_staging(
    connections: Connections,
    stage: str,
    columns: Sequence[StagedColumn],
    types: Sequence[str],
    natives: Sequence[tuple[str, str]],
    table: str,
) -> None:
    """Create an empty staging table ``stage``. An existing table of this name is dropped.

    ``columns``, ``types``, ``natives``: as for ``staging_types``.
    ``table``: the source table, for errors.
    """
    spelt = staging_types(connections.dialect.database, columns, types, natives)
    with connections.transaction(table) as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {stage}")
        connections.dialect.staging.create(cursor, stage, spelt)


def staging_types(
    database: Database,
    columns: Sequence[StagedColumn],
    types: Sequence[str],
    natives: Sequence[tuple[str, str]],
) -> dict[str, str]:
    """Return the columns of a staging table: type by name.

    ``columns``: the columns without the attempt id.
    ``types``: the types of those columns that hold the source's columns, in order.
    ``natives``: names and types of the additional columns that ``cast_staged`` fills.
    """
    words = OF_SPARK[database]
    marks = {
        IS_DELETE: words["int"],
        KEPT: words["string"],
        AFTER_DELETE: words["int"],
        FROM: words["string"],
    }
    marks[SEQUENCE] = SEQUENCE_TYPES[database]
    marks[AT] = words["bigint"]
    shape_types = iter(types)
    spelt = {ATTEMPT: words["bigint"]}
    spelt |= {column.name: next(shape_types) if column.column else marks[column.name] for column in columns}
    return spelt | dict(natives)


def drop_staging(connections: Connections, stage: str, table: str) -> None:
    """Drop the staging table ``stage``. If that fails, the next worker that claims the table drops it."""
    with suppress(TidesinkError), connections.transaction(table) as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {stage}")


def loader_into(connections: Connections, stage: str, rows: RowFormat) -> Loader:
    """Return the ``Loader`` that Spark tasks use to load rows into the staging table ``stage``."""
    dialect, columns = connections.dialect, staged_columns(rows)
    statement = dialect.staging.load_statement(
        stage, [(ATTEMPT, False), *((column.name, column.hex) for column in columns)]
    )
    made = StagedRows(rows.shape, columns, dialect.values.hex_prefix)
    return Loader(
        connections.endpoint,
        statement,
        dialect.driver.load,
        dialect.driver.fault_of,
        dialect.values.nul_refused,
        made,
    )


def staged(connections: Connections, stage: str, batch: ReducedBatch) -> tuple[int, ...]:
    """Load the batch's rows into the staging table ``stage`` if its tasks did not do so already.

    Returns the ids of the task attempts whose staged rows make up the batch.

    Raises:
        TransientTargetError: Spark or the database failed for now; the batch may be tried again.
        TargetError: the database cannot store a value.
    """
    parts = batch.staged
    if parts is None:
        parts = stage_rows(loader_into(connections, stage, batch.row_format), batch)
    return _checked_attempts(connections, batch, parts)


class RowsToLoad(NamedTuple):
    """Rows of this process that a transaction loads into a temporary staging table, and commits.

    ``statement``, ``chunks``: the statement that loads CSV lines, and the lines. ``attempts``: as returned by
    ``staged``.
    """

    statement: str
    chunks: Sequence[memoryview]
    attempts: tuple[int, ...]


def rows_to_load(connections: Connections, temporary: str, batch: ReducedBatch, rows: RowsHere) -> RowsToLoad:
    """Return a batch's rows as a transaction loads them into the temporary staging table ``temporary``.

    Raises:
        TargetError: the database cannot store a value.
    """
    loader = loader_into(connections, temporary, batch.row_format)
    chunks, part = loader.lines_here(rows.batches)
    return RowsToLoad(loader.statement, chunks, _checked_attempts(connections, batch, (part,)))


def _checked_attempts(
    connections: Connections, batch: ReducedBatch, parts: Sequence[StagedPart]
) -> tuple[int, ...]:
    failure = next((part.failure for part in parts if part.failure is not None), None)
    if failure is None:
        return counted_attempts(batch, parts)
    table = str(batch.shape.table)
    columns = staged_columns(batch.row_format)
    column = columns[failure.column].column if failure.column is not None else None
    if column is not None:
        raise TargetError(
            "A text contains the character U+0000, which Postgres cannot store. Remove it at the source, "
            "or write the table to another target.",
            table=table,
            column=column.name,
        )
    raise connections.error(failure.fault, table=table)
