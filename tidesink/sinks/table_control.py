"""What people ask of tables: to rest, to go on, and which pending changes of their columns they accept.

One document of the state store a pipeline, changed by compare-and-set, so that it can be asked while a
worker runs and while none does. The worker looks at it each turn; it never writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from tidesink.errors import StateStoreError
from tidesink.events import TableId
from tidesink.sinks.schema_policy import Accepted
from tidesink.sinks.state_store import StateStore

_log = structlog.get_logger("tidesink.worker")
_KIND: Final = "table-control"
_TRIES: Final = 20


@dataclass(frozen=True)
class TableControl:
    """What is asked of one table.

    ``rests``: it is to rest until it is told to go on. ``resumed`` counts how often it was told to.
    ``accepted``: by a change's digest, what a person wants made of it.
    """

    rests: bool = False
    resumed: int = 0
    accepted: Accepted = field(default_factory=dict)

    def pause(self) -> TableControl:
        """Asked to rest."""
        return replace(self, rests=True)

    def resume(self, accepted: Accepted) -> TableControl:
        """Told to go on, with changes that are accepted from now on."""
        return TableControl(False, self.resumed + 1, {**self.accepted, **accepted})


Controls = Mapping[TableId, TableControl]
NOTHING_ASKED: Final = TableControl()


def read_controls(store: StateStore, pipeline: str) -> Controls:
    """What is asked of the tables of a pipeline; of tables that are not in it, nothing.

    Raises:
        StateStoreError: the store does not answer.
    """
    return _read(store.load_document(_KIND, pipeline))


class Requests:
    """What a worker knows of what is asked. A store that does not answer leaves the last word standing."""

    def __init__(self, store: StateStore, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self._controls: Controls = {}

    def look(self) -> None:
        """Ask the store; one short query."""
        try:
            self._controls = read_controls(self._store, self._pipeline)
        except StateStoreError as exc:
            _log.warning("what is asked of the tables not read", error=str(exc))

    def of(self, table: TableId) -> TableControl:
        """What is asked of one table."""
        return self._controls.get(table, NOTHING_ASKED)


def change_control(
    store: StateStore, pipeline: str, table: TableId, change: Callable[[TableControl], TableControl]
) -> TableControl:
    """Ask something else of a table; what is asked of it now.

    Raises:
        StateStoreError: the store does not answer, or others kept changing the document.
    """
    for _ in range(_TRIES):
        old = store.load_document(_KIND, pipeline)
        controls = dict(_read(old))
        controls[table] = change(controls.get(table, NOTHING_ASKED))
        if store.swap_document(_KIND, pipeline, old=old, new=_written(controls)):
            return controls[table]
    raise StateStoreError("others kept asking for something; try again", table=str(table))


def _read(document: Any | None) -> Controls:
    found = document["tables"] if document is not None else {}
    return {
        TableId(*json.loads(name)): TableControl(asked["rests"], asked["resumed"], asked["accepted"])
        for name, asked in found.items()
    }


def _written(controls: Controls) -> dict[str, Any]:
    tables = {
        json.dumps(list(table), ensure_ascii=False): {
            "rests": asked.rests,
            "resumed": asked.resumed,
            "accepted": dict(asked.accepted),
        }
        for table, asked in controls.items()
    }
    return {"tables": tables}
