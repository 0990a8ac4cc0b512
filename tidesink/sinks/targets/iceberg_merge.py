"""What a staged batch did, from the summary of its own snapshot.

The statements are Delta's. Iceberg counts rows written, rows rewritten and positions marked as deleted, and
not which of them were updates: the rows that a batch deletes are counted beside the MERGE, on the same
snapshot, and all the rest follows from the summary.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by identifier.py
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidesink.errors import AccountingError
from tidesink.sinks.targets.base import ApplyResult, ReducedBatch
from tidesink.sinks.targets.delta_merge import SOURCE, TARGET, living_rows, same_key
from tidesink.sinks.targets.identifier import quote_identifier, quote_path

_COUNTED: Final = "_found"


def counts_beside(batch: ReducedBatch) -> bool:
    """Whether the summary alone does not tell the rows a batch deletes from those it updates."""
    return batch.deletes > 0 and (batch.upserts > 0 or batch.delete_mode == "soft")


def found_statement(location: str, view: str, batch: ReducedBatch, present: Mapping[str, str]) -> str:
    """Counts the rows there which a batch deletes."""
    return (
        f"SELECT count(*) AS {_COUNTED} FROM {location} AS {quote_identifier(TARGET)} "
        f"JOIN {quote_identifier(view)} AS {quote_identifier(SOURCE)} "
        f"ON {' AND '.join(same_key(batch, present))} WHERE {quote_path(SOURCE, '_op')} = 'delete'"
    )


def living_statement(location: str, batch: ReducedBatch) -> str:
    """Counts the rows that live, of the batch's shard where there is one."""
    return f"SELECT count(*) AS {_COUNTED} FROM {location} WHERE {living_rows(batch)}"


def sequenced_result(
    summary: Mapping[str, int], batch: ReducedBatch, *, stale: Callable[[], int], version: str
) -> ApplyResult:
    """What a batch in the source's order did: nothing is taken out, and rows that are not newer stay.

    ``stale`` counts those in the snapshot before; it is asked only where rows were left alone, or where the
    table rewrites files, so that the summary does not tell how many rows of them changed.

    Raises:
        AccountingError: other rows were left alone than those that were not newer.
    """
    added, dropped = summary.get("added-records", 0), summary.get("deleted-records", 0)
    inserted = grown_by(summary)
    rows = batch.upserts + batch.deletes
    left = stale() if dropped or added != rows else 0
    updated = rows - left - inserted
    if min(inserted, updated) < 0 or (not dropped and added != rows - left):
        raise AccountingError(
            f"the snapshot says {added} rows added and {dropped} thrown away, of {rows} that came, of which "
            f"{left} were not newer than what is stored",
            table=str(batch.shape.table),
        )
    return ApplyResult(inserted, updated, 0, 0, version, left)


def grown_by(summary: Mapping[str, int]) -> int:
    """How many more rows a snapshot has than the one before."""
    marked = summary.get("added-position-deletes", 0) - summary.get("removed-position-deletes", 0)
    return summary.get("added-records", 0) - summary.get("deleted-records", 0) - marked


def result_of(
    summary: Mapping[str, int], batch: ReducedBatch, *, found: int | None, version: str
) -> ApplyResult:
    """What a MERGE or an INSERT of ours did; ``found`` are the rows to delete that were there.

    ``summary`` are the numbers of the snapshot: rows added, rows of files thrown away (where rows are
    rewritten), positions marked as deleted (where they are not).

    Raises:
        AccountingError: more or fewer rows than a batch of this size can have touched.
    """
    added, dropped = summary.get("added-records", 0), summary.get("deleted-records", 0)
    marked = summary.get("added-position-deletes", 0) - summary.get("removed-position-deletes", 0)
    grown = grown_by(summary)
    soft = batch.delete_mode == "soft"
    if found is None:
        found = -grown if batch.deletes else 0
    inserted = grown if soft else grown + found
    updated = batch.upserts - inserted
    written = batch.upserts + (found if soft else 0)
    wrong = min(inserted, updated, found) < 0 or found > batch.deletes
    if wrong or (not dropped and added != written):
        raise AccountingError(
            f"the snapshot says {added} rows added, {dropped} thrown away and {marked} marked as deleted, of "
            f"{batch.upserts} upserts and {batch.deletes} deletes, for {found} of which there was a row",
            table=str(batch.shape.table),
        )
    return ApplyResult(inserted, updated, found, batch.deletes - found, version)
