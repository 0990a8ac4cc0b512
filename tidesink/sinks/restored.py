"""A target that holds less than it was seen to commit: brought back from a backup, ledger and rows alike.

Rows and progress agree there, so that reading on from it is right where Kafka still has what came since. But
nobody may have wanted it, and what readers saw is gone: the worker goes on only by a person's word.

The state store's status is saved after each commit, so the target is never behind it by itself. A store that
was lost, or is older than the target, says nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from tidesink.errors import ConfigError, StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.progress import Progress
from tidesink.sinks.state_store import StateStore

# In a status's details: where its table is kept. A table given another place is another one.
PLACE: Final = "place"
_KIND: Final = "accepted-restore"
# The batch that a target which was refused stands at: without it there is nothing to accept.
_REFUSED: Final = "refused-restore"


def check_not_restored(store: StateStore, progress: Progress | None, place: str, *, life: int = 0) -> None:
    """Refuse a table that holds less than was committed to it, unless a person said that it may go on.

    A target without progress is loaded from the start of the topic, as one that was emptied on purpose is.
    ``life`` and the progress's epoch: of the hold that was just taken, by which an earlier batch is the later
    word.

    Raises:
        StaleProgressError: it was brought back from a backup, or another worker took it meanwhile.
    """
    if progress is None:
        return
    status = store.status_of(progress.pipeline, progress.table)
    name = _name(progress.pipeline, progress.table)
    accepted = store.load_document(_KIND, name)
    if status is None or status.details.get(PLACE) != place or status.batch <= progress.batch:
        _forget(store, name)  # it was of one going back, which somebody undid
        return
    if accepted != status.batch:
        store.save_document(_REFUSED, name, progress.batch)
        raise _refusal(status.batch, progress, place)
    # The word is used up: what was seen from now on is where the target stands, and the next time is another.
    now = replace(status, life=life, epoch=progress.epoch, batch=progress.batch)
    if not store.save_status(now):
        raise StaleProgressError("another worker holds the table now", table=str(progress.table))
    _forget(store, name)


def accept_restored(store: StateStore, pipeline: str, table: TableId) -> int:
    """Let a table go on from where its target stands now; the batch it was seen to have.

    Raises:
        ConfigError: no worker of this pipeline knows the table, or none found it brought back.
    """
    status = store.status_of(pipeline, table)
    if status is None:
        raise ConfigError(
            f"no worker of pipeline {pipeline!r} has worked on {table}: tidesink status shows the tables"
        )
    name = _name(pipeline, table)
    if store.load_document(_REFUSED, name) is None:
        raise ConfigError(
            f"no worker found {table} brought back from a backup, so there is nothing to accept: run one "
            "first, which says so where it is",
            table=str(table),
        )
    store.save_document(_KIND, name, status.batch)
    return status.batch


def _forget(store: StateStore, name: str) -> None:
    for kind in (_KIND, _REFUSED):
        if store.load_document(kind, name) is not None:
            store.save_document(kind, name, None)


def _name(pipeline: str, table: TableId) -> str:
    return json.dumps([pipeline, *table], ensure_ascii=False)


def _refusal(known: int, progress: Progress, place: str) -> StaleProgressError:
    table = progress.table
    return StaleProgressError(
        f"{place} stands at batch {progress.batch}, and batch {known} was committed to it: it was brought "
        "back from a backup. Either bring the newer one back; or, where the rows are those of that moment, "
        f"go on from it with `tidesink accept-restored {table}` and start the worker again, which reads what "
        "came since from Kafka anew; or remove the table and its progress, and let the worker load it again "
        "from the start of its topic",
        table=str(table),
    )
