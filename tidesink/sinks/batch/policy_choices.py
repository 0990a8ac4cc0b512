"""What a table's policies made of changes by themselves, for people who ask what became of them.

A decision is kept before the batch that heeds it is committed, with that batch's number, so that none is
missing after a kill, and a batch that is tried again has its decisions once. Of each table the newest stay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.config.fields import ChangePolicy
from tidesink.errors import StateStoreError
from tidesink.events import TableId

if TYPE_CHECKING:
    from tidesink.sinks.batch.schema_changes import SchemaChange
    from tidesink.sinks.state.progress import Progress, StateStore

# Of one table.
MOST_CHOICES: Final = 50
_KIND: Final = "policy-choices"
_MOST_SQL: Final = 1_000
_TRIES: Final = 20

# By digest: a change, and what a policy made of it.
Chosen = Mapping[str, "tuple[SchemaChange, ChangePolicy]"]


class Choice(NamedTuple):
    """What a policy made of a change; ``at``, in seconds since 1970, is when a worker heeded it."""

    policy: ChangePolicy
    at: float
    batch: int
    change: Mapping[str, Any]


class PolicyChoices:
    """The choices of one table's policies. One thread uses it."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        # What is ignored is found again by each batch: the store is asked once.
        self._known: set[str] = set()

    def keep(self, chosen: Chosen, progress: Progress) -> None:
        """Keep what a batch does by policies, once.

        Raises:
            StateStoreError: the store does not answer.
        """
        new = {digest: one for digest, one in chosen.items() if digest not in self._known}
        if not new:
            return
        for _ in range(_TRIES):
            old = self._store.load_document(_KIND, _name(progress.pipeline, progress.table))
            kept = list(old or ())
            for digest, (change, policy) in new.items():
                known = [one for one in kept if one[3]["digest"] == digest]
                if not known or (_recurs(change, policy) and known[-1][2] != progress.batch):
                    kept.append([policy, time.time(), progress.batch, _shown(change)])
            kept = kept[-MOST_CHOICES:]
            name = _name(progress.pipeline, progress.table)
            if kept == (old or []) or self._store.swap_document(_KIND, name, old=old, new=kept):
                self._known |= {digest for digest, one in new.items() if not _recurs(*one)}
                return
        raise StateStoreError("others write the choices of the table all the time", table=str(progress.table))


def read_choices(store: StateStore, pipeline: str, table: TableId) -> tuple[Choice, ...]:
    """What a table's policies made of changes, the oldest first.

    Raises:
        StateStoreError: the store does not answer.
    """
    found = store.load_document(_KIND, _name(pipeline, table)) or ()
    return tuple(Choice(*one) for one in found)


def _recurs(change: SchemaChange, policy: ChangePolicy) -> bool:
    """Whether the very same change may come again: a column that was dropped meanwhile and is added again."""
    return (change.kind, policy) == ("add", "apply")


def _shown(change: SchemaChange) -> dict[str, Any]:
    shown = change.as_json()
    return {**shown, "statement": shown["statement"][:_MOST_SQL]} if "statement" in shown else shown


def _name(pipeline: str, table: TableId) -> str:
    return json.dumps([pipeline, *table], ensure_ascii=False)
