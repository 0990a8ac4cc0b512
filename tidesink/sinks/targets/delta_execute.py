"""What a batch does to a Delta table that takes a look at its rows besides the statement itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidesink.errors import AccountingError
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.delta_log import DeltaLog, user_metadata
from tidesink.sinks.targets.delta_merge import living_rows, stale_statement, truncate_statement
from tidesink.sinks.targets.delta_session import transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def empty_table(
    session: SparkSession,
    log: DeltaLog,
    location: str,
    *,
    batch: ReducedBatch,
    application: str,
    version: int,
    text: str,
) -> None:
    """Empty a table, or a shard of it. Where no row lives Delta would commit nothing, and no progress."""
    if session.table(location).where(living_rows(batch)).isEmpty():
        log.commit_marker(application, version, text)
        return
    with transaction(session, application, version), user_metadata(session, text):
        session.sql(truncate_statement(location, batch))


def check_stale(
    session: SparkSession,
    location: str,
    view: str,
    *,
    batch: ReducedBatch,
    present: Mapping[str, str],
    result: ApplyResult,
) -> None:
    """Count the rows a merge left alone by another way: in the version before it, they were not newer.

    Raises:
        AccountingError: rows were left alone that are newer than what was stored.
    """
    before = f"{location} VERSION AS OF {int(result.version) - 1}"
    (found,) = session.sql(stale_statement(before, view, batch, present)).collect()
    if found["stale"] != result.stale:
        raise AccountingError(
            f"the merge left {result.stale} rows alone, and {found['stale']} were not newer than what is "
            "stored",
            table=str(batch.shape.source),
        )
