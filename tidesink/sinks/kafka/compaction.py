"""Compacted topics: tables that cannot be kept from one, and deletes that may be removed unread.

Compaction keeps the last record of each Kafka key. A delete without a value, a tombstone, is kept for
``delete.retention.ms`` after its first compaction, and is then removed. Its first compaction is later than
the read of the key's rows in the table, because compaction removed the records of these rows. So a table
lacks no delete if everything written before some moment was read within ``delete.retention.ms`` after that
moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from tidesink.codecs import CODECS
from tidesink.config import TableConfig
from tidesink.config.source import SourceSettings
from tidesink.sinks.state.progress import TopicProgress

# The share of delete.retention.ms that a table may use. The rest is for long batches and clock differences.
_SHARE: Final = 0.9
# An idle table saves so many times in that period that it has read everything.
_SAVES: Final = 8


class Compaction(NamedTuple):
    """A topic whose ``policy`` (``cleanup.policy``) includes ``compact``; ``delete_retention`` in seconds."""

    policy: str
    delete_retention: float

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Compaction | None:
        """Build it from the answer of ``describe_configs``; None if the topic is not compacted."""
        policy = settings["cleanup.policy"].value if "cleanup.policy" in settings else "delete"
        if "compact" not in policy:
            return None
        return cls(policy, int(settings["delete.retention.ms"].value) / 1000)

    @property
    def safe_seconds(self) -> float:
        """The greatest safe age of the moment before which everything was read."""
        return _SHARE * self.delete_retention


_KEYLESS: Final = "Records of canal-json have no key, and compaction removes records without a key"
_LOG: Final = "mode: {mode} keeps every change, but compaction keeps only the last change of a key"
_NULLS: Final = (
    "ignore_null_updates builds a row from all its changes, but compaction keeps only the last change of a "
    "key"
)
_TOMBSTONES: Final = "Compaction keeps only the tombstone of a delete, which is not a delete among envelopes"
_UNWRAPPED: Final = "set source.debezium.unwrapped: true, which makes it a delete, or "
_POLICY: Final = "set cleanup.policy=delete at the topic, and have its tables sent again."


def refusal(compaction: Compaction, source: SourceSettings, settings: TableConfig) -> str | None:
    """Returns the reason why a table cannot be kept from a compacted topic, or None if it can."""
    way_out = ""
    if CODECS[source.protocol].shares_topics:
        reason = _KEYLESS
    elif settings.mode != "upsert":
        reason, way_out = _LOG.format(mode=settings.mode), "use mode: upsert, or "
    elif settings.ignore_null_updates:
        reason, way_out = _NULLS, "remove it, or "
    elif source.protocol == "debezium-avro":
        reason = _TOMBSTONES
    elif source.protocol == "debezium-json" and not source.debezium.unwrapped:
        reason, way_out = _TOMBSTONES, _UNWRAPPED
    else:
        return None
    return f"The topic has cleanup.policy={compaction.policy}. {reason}. Remedy: {way_out}{_POLICY}"


_MISSED: Final = (
    "Deletes may be missing: the topic has cleanup.policy={policy} and delete.retention.ms={retention}, and "
    "records that are not read yet may be older than that. A tombstone among them may be removed, and its "
    "row would stay. Nothing was read. Load the topic again into another table (another target.path, or "
    "remove the table at the target). Or compare the table with its source, and continue with "
    "`tidesink resume {table} --accept`."
)


def missed_deletes(compaction: Compaction, table: str) -> str:
    """Returns the message for deletes that may have been removed before they were read."""
    retention = round(compaction.delete_retention * 1000)
    return _MISSED.format(policy=compaction.policy, retention=retention, table=table)


def digest_of(progress: TopicProgress) -> str:
    """Returns an identifier of the gap after ``progress``, for the person who accepts it."""
    offsets = sorted((number, at.next_offset) for number, at in progress.partitions.items())
    return sha256(f"deletes {progress.topic_id} {offsets}".encode()).hexdigest()[:16]


@dataclass
class CaughtUp:
    """The newest known moment before which everything that was written to a topic is in the table.

    ``time``: in seconds since 1970, or None if it is not known. ``batch``: the table's batch at that time.
    """

    time: float | None = None
    batch: int = 0
    _saved: float = 0.0
    _mark: tuple[float, Mapping[int, int]] | None = field(default=None, repr=False)

    def begin(self, now: float, batch: int) -> None:
        """Treat everything before ``now`` as read, for a table without rows of the topic."""
        self.time, self.batch = now, batch

    def see(self, ends: Mapping[int, int], known: Mapping[int, int], *, batch: int, now: float) -> None:
        """Record the partitions' ends at ``now``, and the next offset of each."""
        if self._mark is not None and _reached(self._mark[1], known):
            self.time, self.batch, self._mark = self._mark[0], batch, None
        if _reached(ends, known):
            self.time, self.batch = now, batch
        elif self._mark is None:
            self._mark = now, ends

    def holds(self, compaction: Compaction, now: float) -> bool:
        """Returns True if no delete can have been removed unread."""
        return self.time is not None and now - self.time < compaction.safe_seconds

    def is_due(self, compaction: Compaction) -> bool:
        """Returns True if a table with nothing to read should save this in the state store."""
        return self.time is not None and self.time - self._saved > compaction.safe_seconds / _SAVES

    def as_detail(self) -> dict[str, Any]:
        """Returns the details of a status."""
        if self.time is None:
            return {}
        self._saved = self.time
        return {_DETAIL: {"time": round(self.time, 3), "batch": self.batch}}

    @classmethod
    def known(cls, details: Mapping[str, Any]) -> CaughtUp:
        """Restore it from the details of a status."""
        found = details.get(_DETAIL)
        return cls() if found is None else cls(found["time"], found["batch"], found["time"])


_DETAIL: Final = "caught-up"


def _reached(ends: Mapping[int, int], known: Mapping[int, int]) -> bool:
    return all(known.get(number, 0) >= end for number, end in ends.items())
