"""Taking an open table: from then on it is this worker's, until another one takes it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from tidesink.config import TableConfig
from tidesink.errors import StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.batch.run import Hold
from tidesink.sinks.known_columns import KnownColumns
from tidesink.sinks.progress import Progress
from tidesink.sinks.restored import check_not_restored
from tidesink.sinks.surroundings import Surroundings
from tidesink.sinks.tally import Tally
from tidesink.sinks.targets.base import SequencedTable, TargetTable
from tidesink.sinks.tombstones import Tombstones


def taken(
    around: Surroundings, table: TargetTable, name: TableId, tally: Tally
) -> tuple[Hold, Tombstones | None]:
    """Take a table's epoch, and know what is applied, and which deletes are remembered.

    Raises:
        StaleProgressError: another worker took it meanwhile, or it was brought back from a backup.
    """
    pipeline, settings = around.config.pipeline, around.config.table_config(name)
    # Read before the claim: an epoch that is not above this one's began its count again.
    before = around.store.status_of(pipeline, name)
    claim = table.claim()
    tally.claimed(claim.epoch, before)
    progress = table.committed()
    if progress != claim.progress:
        raise StaleProgressError(
            "progress changed between the claim and the look at it: another worker holds the table",
            table=str(name),
        )
    place = around.place_of(name)
    check_not_restored(around.store, progress, place, life=tally.life)
    tally.resume(around, name)
    fresh = Progress(name, pipeline, claim.epoch, 0, sequence_by=settings.sequence_by)
    known = progress if progress is not None else fresh
    tally.stands(known, place)
    tombstones = _tombstones(table, settings)
    horizon = tombstones.horizon if tombstones else None
    columns = KnownColumns(around.store, known, settings.layout)
    known = replace(known, sequence_by=settings.sequence_by)
    return Hold(table, claim.epoch, known, horizon=horizon, known=columns), tombstones


def _tombstones(table: TargetTable, settings: TableConfig) -> Tombstones | None:
    if settings.sequence_by != "source" or settings.mode != "upsert":
        return None
    retention = settings.tombstone_retention if settings.deletes == "hard" else None
    return Tombstones(cast(SequencedTable, table), retention)
