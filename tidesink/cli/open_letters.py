"""How many dead letters of each table are open: written, and neither replayed nor dropped.

The topic of letters says it exactly, and has to be read for it. So the commands that read it anyway
(``tidesink dlq list``, ``drop`` and ``replay``) leave their count in the state store beside the worker's own
counter of that moment, and ``tidesink status`` adds what the worker counted since.
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
    """Keep how many letters are open; ``groups`` gives those of ``table``, or of all tables.

    A store that does not answer keeps what it had: the count is for people alone.
    """
    try:
        # Before the topic is read: what is written meanwhile is counted twice, and not left out.
        written = {str(one.table): _written(one) for one in store.statuses(pipeline)}
        counts = Counter[str]()
        for group in groups():
            counts[group.table] += group.count
        scope = {*written, *counts} if table is None else {table}
        found = {name: [counts[name], written.get(name, 0)] for name in scope}
        busy = StateStoreError("others kept counting dead letters", pipeline=pipeline)
        change_document(store, _KIND, pipeline, lambda old: {**(old or {}), **found}, busy)
    except StateStoreError:
        return


def noted(store: StateStore, pipeline: str) -> Mapping[str, Any]:
    """What ``note_open`` kept, by table.

    Raises:
        StateStoreError: the store does not answer.
    """
    found: Mapping[str, Any] = store.load_document(_KIND, pipeline) or {}
    return found


def open_letters(status: TableStatus, known: Mapping[str, Any]) -> int:
    """How many letters of a table are open, by ``noted``; a record that was rewound counts again."""
    count, before = known.get(str(status.table), (0, 0))
    written = _written(status)
    # Less than before: the state store was lost since, and counts from the beginning.
    return int(count) + (written - int(before) if written >= before else written)


def _written(status: TableStatus) -> int:
    return Account.from_counters(status.counters).dead_lettered
