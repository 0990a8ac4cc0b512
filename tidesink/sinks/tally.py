"""What was counted of a table: in this run, and in its life as far as the state store knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidesink.events import TableId
from tidesink.sinks.accounting import Account
from tidesink.sinks.batch.run import BatchOutcome
from tidesink.sinks.filtered import Filtered
from tidesink.sinks.progress import Progress
from tidesink.sinks.restored import PLACE
from tidesink.sinks.state_store import Rank, TableStatus
from tidesink.sinks.surroundings import Surroundings
from tidesink.sinks.tombstones import Tombstones

_TOMBSTONES: Final = "tombstones"
_DOUBTED: Final = (
    "rows were applied whose checksum does not match: the log has the first of each batch. Compare the table "
    "with the source; source.checksum: reject keeps such rows out"
)


class Tally:
    """What was counted: in this run, and in the table's life as far as the state store knows it."""

    def __init__(self) -> None:
        self.run, self.total = Account(), Account()
        self.filtered = Filtered()
        self.run_zero_dates: dict[str, int] = {}
        self.zero_dates: dict[str, int] = {}
        self.warnings: tuple[str, ...] = ()
        self.batch = 0
        self.commit_ts: int | None = None
        self.place = ""
        self.life, self.epoch = 0, 0
        self._tombstones: Mapping[str, Any] = {}
        self._held = self._resumed = False
        self._known: Rank = (0, 0, -1)

    def claimed(self, epoch: int, before: TableStatus | None) -> None:
        """Count on in a hold of the table that was taken once ``before`` was read.

        An epoch that is not above that status's is one of a table made anew, or of one from a backup.
        """
        self.life = before.life + (epoch <= before.epoch) if before is not None else 0
        self.epoch = epoch
        self._held, self._resumed = True, False

    def resume(self, around: Surroundings, table: TableId) -> bool:
        """Go on from what the state store holds, until the table is held: then nobody else counts."""
        if not self._resumed:
            status = around.store.status_of(around.config.pipeline, table)
            if status is not None and status.rank > self._known:
                self._adopt(status)
            self._resumed = self._held
        return True

    def _adopt(self, status: TableStatus) -> None:
        self.total = Account.from_counters(status.counters)
        self.filtered = Filtered.from_details(status.details)
        self.zero_dates = dict(status.zero_dates)
        self.batch, self.commit_ts = status.batch, status.commit_ts
        self.place = str(status.details.get(PLACE, ""))
        self._tombstones = status.details.get(_TOMBSTONES) or {}
        self._known = status.rank
        if not self._held:
            self.life, self.epoch = status.life, status.epoch

    def stands(self, progress: Progress, place: str) -> None:
        """Know what the target holds, and where: the table is open."""
        self.batch, self.commit_ts, self.place = progress.batch, progress.commit_ts, place

    def add(self, outcome: BatchOutcome) -> None:
        """Count one batch."""
        account = outcome.account or Account()
        self.run, self.total = self.run + account, self.total + account
        self.batch, self.commit_ts = outcome.progress.batch, outcome.progress.commit_ts
        self._known = self.life, self.epoch, self.batch
        self.filtered += outcome.filtered
        for counts in (self.run_zero_dates, self.zero_dates):
            _add(counts, outcome.zero_dates)
        doubts = (_DOUBTED,) if outcome.doubted else ()
        self.warnings = tuple(dict.fromkeys((*self.warnings, *outcome.warnings, *doubts)))

    def forgotten(self, tombstones: Tombstones | None) -> dict[str, Any]:
        """The detail of the deletes remembered, as of when some were last forgotten, by whichever worker."""
        if tombstones is not None and tombstones.last is not None:
            return {_TOMBSTONES: tombstones.last._asdict()}
        known = self._tombstones
        # A table that was made anew has forgotten nothing.
        holds = tombstones is None or tombstones.horizon == known.get("horizon")
        return {_TOMBSTONES: dict(known)} if known and holds else {}


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, found in more.items():
        counts[name] = counts.get(name, 0) + found
