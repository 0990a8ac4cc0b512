"""The staging table of one batch: made, filled by the executors, dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from tidesink.errors import TargetError, TidesinkError
from tidesink.sinks.targets.base import ReducedBatch
from tidesink.sinks.targets.sql_connections import Connections
from tidesink.sinks.targets.sql_sequence import SEQUENCE_TYPES
from tidesink.sinks.targets.sql_stage import (
    ANEW,
    AT,
    ATTEMPT,
    FROM,
    IS_DELETE,
    KEPT,
    SEQUENCE,
    SMALL_BATCH,
    Loader,
    PayloadRows,
    StagedColumn,
    stage_rows,
    staged_columns,
    staged_frame,
    takes_payloads,
)
from tidesink.typemap.render_sql import OF_SPARK


@contextmanager
def staged(
    connections: Connections, stage: str, batch: ReducedBatch, types: Sequence[str]
) -> Iterator[tuple[int, ...]]:
    """A batch's rows in the table ``stage``, its columns of ``types``; gives the attempts that count.

    Raises:
        TransientTargetError: Spark or the database failed for now.
        TargetError: the database takes a value not.
    """
    table = str(batch.shape.table)
    columns = staged_columns(batch)
    make_staging(connections, stage, columns, types, table)
    try:
        yield _filled(connections, stage, batch, columns)
    finally:
        # What stays is dropped by the next claim.
        with suppress(TidesinkError), connections.transaction(table) as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {stage}")


def make_staging(
    connections: Connections,
    stage: str,
    columns: Sequence[StagedColumn],
    types: Sequence[str],
    table: str,
) -> None:
    """Make the table ``stage`` anew; ``types`` are those of the shape's columns."""
    words = OF_SPARK[connections.dialect.database]
    marks = {IS_DELETE: words["int"], KEPT: words["string"], ANEW: words["int"], FROM: words["string"]}
    marks[SEQUENCE] = SEQUENCE_TYPES[connections.dialect.database]
    marks[AT] = words["bigint"]
    found = iter(types)
    spelt = {ATTEMPT: words["bigint"]}
    spelt |= {one.name: next(found) if one.column else marks[one.name] for one in columns}
    with connections.transaction(table) as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {stage}")
        connections.dialect.create_staging(cursor, stage, spelt)


def _filled(
    connections: Connections, stage: str, batch: ReducedBatch, columns: Sequence[StagedColumn]
) -> tuple[int, ...]:
    dialect = connections.dialect
    loader = Loader(
        connections.endpoint,
        dialect.load_statement(stage, [(ATTEMPT, False), *((one.name, one.hex) for one in columns)]),
        tuple(one.kind for one in columns),
        dialect.load,
        dialect.code_of,
        dialect.nul_refused,
    )
    frame = batch.payloads
    if frame is not None and takes_payloads(batch):
        frame = frame.coalesce(1) if batch.upserts + batch.deletes <= SMALL_BATCH else frame
        loader = replace(loader, rows=PayloadRows(tuple(columns), dialect.hex_prefix))
    else:
        frame = staged_frame(batch, columns, hex_prefix=dialect.hex_prefix)
    attempts, failure = stage_rows(frame, loader, batch)
    if failure is None:
        return attempts
    table = str(batch.shape.table)
    column = columns[failure.column].column if failure.column is not None else None
    if column is not None:
        raise TargetError(
            "a text holds the character U+0000, which Postgres keeps in no text: take it out at the source, "
            "or leave the table to another target",
            table=table,
            column=column.name,
        )
    raise dialect.error_of(failure.code, table=table)
