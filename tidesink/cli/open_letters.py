"""Number of open dead letters per table: letters that were written and neither replayed nor dropped.

The exact number can only be counted by reading the dead letter topic. The commands that read the topic anyway
(``tidesink dlq list``, ``drop`` and ``replay``) save their count in the state store, together with the number
of letters that the worker had written by then. ``tidesink status`` adds the letters written since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from tidesink.errors import StateStoreError
from tidesink.sinks.laws.counts import Account
from tidesink.sinks.state.documents import DocumentKind

if TYPE_CHECKING:
    from tidesink.sinks.letters.topic import RecordGroup
    from tidesink.sinks.state.progress import StateStore, TableStatus

# By table: the number of open letters, and the number that the worker had written by then.
_OPEN: Final = DocumentKind("open-letters", dict[str, tuple[int, int]])


def note_open(
    store: StateStore, pipeline: str, table: str | None, groups: Callable[[], Iterable[RecordGroup]]
) -> None:
    """Save the number of open dead letters of ``table``, or of all tables if it is None.

    ``groups``: function that reads the letters from the topic. If the state store does not answer, nothing is
    saved and no error is raised, because the number is only for display.
    """
    try:
        # Read before the topic, so that letters written in between are counted twice rather than missed.
        written = {str(status.table): _written(status) for status in store.statuses(pipeline)}
        counts = Counter[str]()
        for group in groups():
            counts[group.table] += group.count
        scope = {*written, *counts} if table is None else {table}
        entries = {name: (counts[name], written.get(name, 0)) for name in scope}
        busy = StateStoreError(
            "The number of open dead letters was not saved, because other commands kept changing it.",
            pipeline=pipeline,
        )
        _OPEN.of(store, pipeline).change(lambda old: {**(old or {}), **entries}, busy)
    except StateStoreError:
        return


def noted(store: StateStore, pipeline: str) -> Mapping[str, tuple[int, int]]:
    """Return the counts that ``note_open`` saved, by table.

    Raises:
        StateStoreError: the state store does not answer.
    """
    return _OPEN.of(store, pipeline).load() or {}


def open_letters(status: TableStatus, known: Mapping[str, tuple[int, int]]) -> int:
    """Return a table's number of open dead letters: the saved count plus the letters written since.

    ``known``: the saved counts, from ``noted``. A letter that is written again after a rewind counts twice.
    """
    count, before = known.get(str(status.table), (0, 0))
    written = _written(status)
    # A smaller number means that the state store was lost, so the worker's counter began again at zero.
    return count + (written - before if written >= before else written)


def _written(status: TableStatus) -> int:
    return Account.from_counters(status.counters).dead_lettered
