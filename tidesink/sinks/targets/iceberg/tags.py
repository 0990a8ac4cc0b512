"""Tags of Iceberg tables: each keeps a snapshot that a cut names, whoever expires snapshots (ADR 36).

A snapshot is given a tag when a cut first names it: cuts that name it again need no commit. While it is the
newest that a cut named, its tag never expires. The commit that tags the next one gives the tag an age, so
that it goes with the last cut that names it, by anybody's ``expire_snapshots``: nothing comes back for it.
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

# So often a commit is tried that others' come before.
_ATTEMPTS: Final = 5
# A table's property may give an age to tags that have none.
_FOR_EVER: Final = 2**63 - 1
# Whoever opens a cut at the last moment reads it for a while.
_READ_MS: Final = 3_600_000


class CutTags:
    """The tags that the cuts of one pipeline have in an open table."""

    def __init__(self, table: JvmTable, pipeline: str, name: TableId) -> None:
        self._table, self._name = table, name
        self._prefix = tag_prefix(pipeline)
        # The commit_ts follows; and the snapshot's number, where another snapshot had the name.
        self._pattern = re.compile(rf"{re.escape(self._prefix)}([0-9]+)(?:\.[0-9]+)?")
        self._tagged: int | None = None

    def keep(self, snapshot: int, commit_ts: int, *, seconds: float) -> None:
        """Have a tag for a snapshot that the cut at ``commit_ts`` names.

        ``seconds``: for so long a cut is kept.

        Raises:
            TransientTargetError: others kept committing.
            CommitUnknownError: the commit was cut off, and may have happened.
        """
        if snapshot == self._tagged:
            return
        for _ in range(_ATTEMPTS):
            state = self._table.state()
            if self._commit(state, snapshot, commit_ts, round(seconds * 1000)):
                self._tagged = snapshot
                return
        raise TransientTargetError("others keep committing to the table", table=str(self._name))

    def _commit(self, state: TableState, snapshot: int, commit_ts: int, keep_ms: int) -> bool:
        """Tag a snapshot, and let the tags before it age; False where another commit came first."""
        names = {*state.branches()}
        ages = {former: self._age(state, former, keep_ms) for former in self._newest(names)}
        if any(age is not None and state.branch_head(name) == snapshot for name, age in ages.items()):
            return True
        name = self._free_name(names, commit_ts, snapshot)

        def change(builder: Any) -> None:
            builder.setRef(name, self._table.tag_at(snapshot, age=_FOR_EVER))
            for former, age in ages.items():
                if age is not None:
                    at = state.metadata.ref(former).snapshotId()
                    builder.setRef(former, self._table.tag_at(at, age=age))

        try:
            self._table.commit(state, change)
        except SPARK_ERRORS as exc:
            if is_conflict(exc):
                return False
            raise commit_error(exc, table=str(self._name)) from exc
        return True

    def _free_name(self, names: set[str], commit_ts: int, snapshot: int) -> str:
        """What a tag is named: none is moved, since a cut may name the snapshot that it keeps."""
        name = f"{self._prefix}{commit_ts}"
        return f"{name}.{snapshot}" if name in names else name

    def _newest(self, names: set[str]) -> list[str]:
        """Our tags of the last instant that has any."""
        found = dict[int, list[str]]()
        for match in filter(None, map(self._pattern.fullmatch, names)):
            found.setdefault(int(match[1]), []).append(match[0])
        return found[max(found)] if found else []

    def _age(self, state: TableState, name: str, keep_ms: int) -> int | None:
        """The age that a tag comes to, of which cuts up to now are the last; None where it has one.

        Iceberg counts it from when the snapshot was written.
        """
        reference = state.metadata.ref(name)
        if reference.maxRefAgeMs() != _FOR_EVER:
            return None
        written = int(state.snapshot(reference.snapshotId()).timestampMillis())
        # Iceberg takes no age below 1; a snapshot may be of a clock that is ahead of ours.
        return max(1, round(time.time() * 1000) - written + keep_ms + _READ_MS)
