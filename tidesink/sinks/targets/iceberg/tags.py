"""Tags of Iceberg tables that protect the snapshots of cuts from ``expire_snapshots`` (ADR 36).

A cut shows all tables as of one commit_ts. A snapshot gets a tag when a cut first refers to it. Later cuts
with the same snapshot need no commit. The tag of the snapshot to which the newest cut refers has no maximum
age. The commit that tags the next snapshot sets a maximum age on it, which ends when the last cut of the
snapshot is no longer kept. Any ``expire_snapshots`` then removes the tag.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final

from tidesink.errors import TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.spark.errors import SPARK_ERRORS
from tidesink.sinks.targets.cuts import tag_prefix
from tidesink.sinks.targets.iceberg.jvm import JvmTable, TableState, commit_error, is_conflict

# Number of attempts to commit if other writers commit in between.
_ATTEMPTS: Final = 5
# An explicit maximum age, because a table property may set an age for tags without one.
_FOR_EVER: Final = 2**63 - 1
# Additional age of a tag, for readers that open a cut shortly before it expires.
_READ_MS: Final = 3_600_000


class CutTags:
    """Creates the tags of one pipeline's cuts in an open table, and sets their maximum age."""

    def __init__(self, table: JvmTable, pipeline: str, name: TableId) -> None:
        self._table, self._name = table, name
        self._prefix = tag_prefix(pipeline)
        # A tag's name is the prefix, the commit_ts, and also the snapshot id if another snapshot's tag has
        # that name.
        self._pattern = re.compile(rf"{re.escape(self._prefix)}([0-9]+)(?:\.[0-9]+)?")
        self._tagged: int | None = None

    def keep(self, snapshot: int, commit_ts: int, *, seconds: float) -> None:
        """Tag the snapshot to which the cut at ``commit_ts`` refers.

        ``seconds``: time for which a cut is kept.

        Raises:
            TransientTargetError: other writers kept committing.
            CommitUnknownError: the commit was interrupted, and may have happened.
        """
        if snapshot == self._tagged:
            return
        for _ in range(_ATTEMPTS):
            state = self._table.state()
            if self._commit(state, snapshot, commit_ts, round(seconds * 1000)):
                self._tagged = snapshot
                return
        raise TransientTargetError(
            "Other writers keep committing to the table, so the commit failed. It is tried again.",
            table=str(self._name),
        )

    def _commit(self, state: TableState, snapshot: int, commit_ts: int, keep_ms: int) -> bool:
        """Tag a snapshot, and set a maximum age on the tags of the previous cut.

        Returns False if another writer committed in between.
        """
        names = {*state.branches()}
        ages = {tag: self._age(state, tag, keep_ms) for tag in self._newest(names)}
        if any(age is not None and state.branch_head(name) == snapshot for name, age in ages.items()):
            return True
        name = self._free_name(names, commit_ts, snapshot)

        def change(builder: Any) -> None:
            builder.setRef(name, self._table.tag_at(snapshot, age=_FOR_EVER))
            for tag, age in ages.items():
                if age is not None:
                    snapshot_id = state.metadata.ref(tag).snapshotId()
                    builder.setRef(tag, self._table.tag_at(snapshot_id, age=age))

        try:
            self._table.commit(state, change)
        except SPARK_ERRORS as exc:
            if is_conflict(exc):
                return False
            raise commit_error(exc, table=str(self._name)) from exc
        return True

    def _free_name(self, names: set[str], commit_ts: int, snapshot: int) -> str:
        """Return an unused name for a tag. An existing tag is never moved, because a cut may need its
        snapshot.
        """
        name = f"{self._prefix}{commit_ts}"
        return f"{name}.{snapshot}" if name in names else name

    def _newest(self, names: set[str]) -> list[str]:
        """Return those names in ``names`` that are this pipeline's tags with the newest commit_ts."""
        tags = dict[int, list[str]]()
        for match in filter(None, map(self._pattern.fullmatch, names)):
            tags.setdefault(int(match[1]), []).append(match[0])
        return tags[max(tags)] if tags else []

    def _age(self, state: TableState, name: str, keep_ms: int) -> int | None:
        """Return the maximum age in milliseconds to set on a tag; None if the tag has a maximum age already.

        Iceberg counts the age from the time when the snapshot was written.
        """
        reference = state.metadata.ref(name)
        if reference.maxRefAgeMs() != _FOR_EVER:
            return None
        written = int(state.snapshot(reference.snapshotId()).timestampMillis())
        # Iceberg allows no age below 1, and the clock of the snapshot's writer may be ahead.
        return max(1, round(time.time() * 1000) - written + keep_ms + _READ_MS)
