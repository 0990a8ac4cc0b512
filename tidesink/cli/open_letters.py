"""The number of each table's open dead letters: written, and neither replayed nor dropped.

The exact number needs a read of the topic of letters. The commands that read it anyway (``tidesink dlq
list``, ``drop`` and ``replay``) store their count in the state store, together with the worker's counter at
that time. ``tidesink status`` adds what the worker counted since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import StateStoreError
from tidesink.sinks.batch.counts import Account
from tidesink.sinks.state.progress import change_document

if TYPE_CHECKING:
    from tidesink.sinks.kafka.dead_letters import RecordGroup
    from tidesink.sinks.state.progress import StateStore, TableStatus

_KIND: Final = "open-letters"


def note_open(
    store: StateStore, pipeline: str, table: str | None, groups: Callable[[], Iterable[RecordGroup]]
) -> None:
    """Store the number of open letters. ``groups`` returns the letters of ``table``, or of all tables.

    If the store does not answer, the earlier count stays: only people read it.
    """
    try:
        # Read before the topic: letters written meanwhile are counted twice rather than missed.
        written = {str(one.table): _written(one) for one in store.statuses(pipeline)}
        counts = Counter[str]()
        for group in groups():
            counts[group.table] += group.count
        scope = {*written, *counts} if table is None else {table}
        found = {name: [counts[name], written.get(name, 0)] for name in scope}
        busy = StateStoreError("Other commands kept counting dead letters.", pipeline=pipeline)
        change_document(store, _KIND, pipeline, lambda old: {**(old or {}), **found}, busy)
    except StateStoreError:
        return


def noted(store: StateStore, pipeline: str) -> Mapping[str, Any]:
    """Return what ``note_open`` stored, by table.

    Raises:
        StateStoreError: the store does not answer.
    """
    found: Mapping[str, Any] = store.load_document(_KIND, pipeline) or {}
    return found


def open_letters(status: TableStatus, known: Mapping[str, Any]) -> int:
    """Return a table's number of open letters, from ``noted``. A record that was rewound counts again."""
    count, before = known.get(str(status.table), (0, 0))
    written = _written(status)
    # A smaller number means that the state store was lost, and counts from the beginning.
    return int(count) + (written - int(before) if written >= before else written)


def _written(status: TableStatus) -> int:
    return Account.from_counters(status.counters).dead_lettered
