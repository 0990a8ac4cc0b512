"""Which columns the source had when a table's rows were written, whether the target had them or not.

Rows already there get the default that a new column was added with: those were their values at the source.
But a column that the target lacks may be an old one there, left out or called otherwise until now by the
config. Its rows had values of their own, which nobody knows any more: NULL says so, where a default would be
taken for them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from tidesink.sinks.decoding import Decoding
from tidesink.sinks.progress import Progress
from tidesink.sinks.schema_policy import Judgement
from tidesink.sinks.state_store import StateStore
from tidesink.typemap.projection import Layout

_KIND: Final = "known-columns"
_NOT_NEW: Final = (
    "column {} is not new at the source, and comes to the target only now: it is NULL in rows from before, "
    "until they change. Load the table again where that matters"
)


class KnownColumns:
    """The source's columns as of a table's last batch; a state store that was lost knows none."""

    def __init__(self, store: StateStore, progress: Progress, layout: Layout) -> None:
        self._store = store
        self._name = json.dumps([progress.pipeline, *progress.table], ensure_ascii=False)
        self._source_names = {new.lower(): old.lower() for old, new in layout.rename.items()}
        self._kept = store.load_document(_KIND, self._name)
        self._known = _columns_of(self._kept, progress)
        self._unkept: Mapping[str, Any] | None = None

    def judged(self, judgement: Judgement, added: Collection[str]) -> Judgement:
        """The judgement, by which columns that are not new bring no default; ``added``: those that come."""
        given = judgement.given
        known = {
            c.name for c in given.columns if c.default is not None and self._source(c.name) in self._known
        }
        columns = tuple(replace(c, default=None) if c.name in known else c for c in given.columns)
        warnings = tuple(_NOT_NEW.format(name) for name in added if name in known)
        return replace(
            judgement,
            given=replace(given, columns=columns) if known else given,
            warnings=(*judgement.warnings, *warnings),
        )

    def applied(self, decoding: Decoding, progress: Progress) -> None:
        """Take note of a batch's columns, once it is applied; ``keep`` writes them down."""
        shape, told = decoding.columns().shape, decoding.told()
        # One that was dropped is new when it is added again.
        dropped = {self._source(column.name) for column in told.former} if told else set()
        now = frozenset({*map(self._source, shape.by_name), *shape.left_out} - dropped)
        if now != self._known:
            self._unkept = {"batch": progress.batch, "columns": sorted(now)}
            self._known = now

    def keep(self) -> None:
        """Have the state store know; what it did not take is written the next time.

        What another worker wrote meanwhile stays: it holds the table.
        """
        if self._unkept is not None:
            self._store.swap_document(_KIND, self._name, old=self._kept, new=self._unkept)
            self._kept, self._unkept = self._unkept, None

    def _source(self, name: str) -> str:
        return self._source_names.get(name.lower(), name.lower())


def _columns_of(kept: Mapping[str, Any] | None, progress: Progress) -> frozenset[str]:
    """What is kept, unless it is of other rows: the table was loaded anew, or is from an old backup."""
    if kept is None or kept["batch"] > progress.batch:
        return frozenset()
    return frozenset(kept["columns"])
