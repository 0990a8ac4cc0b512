"""Compacted topics: which tables may read them, and deletes that compaction may remove before they are read.

Compaction keeps the last record of each Kafka key. A tombstone, which is a delete without a value, is kept
for ``delete.retention.ms`` after compaction first processes it, and is then removed. When compaction first
processes a tombstone, it also removes the earlier records of that key. So a table only misses a delete if it
read the key's rows before that moment, and did not read the tombstone within ``delete.retention.ms`` after
it. A table misses no delete if it has read everything that was written before some moment, and less than
``delete.retention.ms`` have passed since that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from tidesink.codecs import CODECS
from tidesink.config import TableConfig
from tidesink.config.source import SourceSettings
from tidesink.errors import with_table
from tidesink.sinks.state.progress import TopicProgress

# The share of delete.retention.ms that may pass before unread deletes may be missing. The rest is a margin
# for long batches and clock differences.
_SHARE: Final = 0.9
# An idle table saves this many times per safe period that it has read everything.
_SAVES: Final = 8


class Compaction(NamedTuple):
    """The settings of a compacted topic.

    ``policy``: its ``cleanup.policy``, which includes ``compact``. ``delete_retention``: its
    ``delete.retention.ms``, in seconds.
    """

    policy: str
    delete_retention: float

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Compaction | None:
        """Read the settings from the answer of ``describe_configs``.

        Returns None if the topic is not compacted.
        """
        policy = settings["cleanup.policy"].value if "cleanup.policy" in settings else "delete"
        if "compact" not in policy:
            return None
        return cls(policy, int(settings["delete.retention.ms"].value) / 1000)

    @property
    def safe_seconds(self) -> float:
        """Seconds for which compaction removes no unread delete, counted from when everything was read."""
        return _SHARE * self.delete_retention


_KEYLESS: Final = "Records of canal-json have no key, and compaction removes records without a key"
_LOG: Final = "mode: {mode} keeps every change, but compaction keeps only the last change of a key"
_NULLS: Final = (
    "ignore_null_updates builds a row from all its changes, but compaction keeps only the last change of a "
    "key"
)
_TOMBSTONES: Final = (
    "Compaction keeps only the tombstone of a delete, but with Debezium's envelopes a tombstone does not "
    "count as a delete"
)
_UNWRAPPED: Final = "set source.debezium.unwrapped: true, which reads a tombstone as a delete, or "
_POLICY: Final = "set cleanup.policy=delete at the topic and have the producer send its tables again."


def refusal(compaction: Compaction, source: SourceSettings, settings: TableConfig) -> str | None:
    """Returns the reason why a table cannot be loaded from a compacted topic, or None if it can."""
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
    "Deletes may be missing: the topic has cleanup.policy={policy} and delete.retention.ms={retention}, "
    "and records that are not read yet may be older than that. Kafka may have removed a tombstone among "
    "them, and its row would stay in the table. Nothing was read. Load the topic again into another table "
    "(another target.path, or remove the table at the target). Or compare the table with its source "
    "database, and continue with `tidesink resume TABLE --accept`."
)


def missed_deletes(compaction: Compaction, table: str) -> str:
    """Returns the message for a table whose unread deletes compaction may have removed."""
    retention = round(compaction.delete_retention * 1000)
    return with_table(_MISSED.format(policy=compaction.policy, retention=retention), table)


def digest_of(progress: TopicProgress) -> str:
    """Returns a short text that identifies a table's progress when deletes may be missing.

    A person who accepts the missing deletes accepts them for this progress only.
    """
    offsets = sorted((number, partition.next_offset) for number, partition in progress.partitions.items())
    return sha256(f"deletes {progress.topic_id} {offsets}".encode()).hexdigest()[:16]


@dataclass
class CaughtUp:
    """The newest moment before which a table has read everything that was written to its topic.

    Attributes:
        time: The moment, in seconds since 1970; None if it is not known.
        batch: Number of the table's batch when the moment was recorded.
    """

    time: float | None = None
    batch: int = 0
    _saved: float = 0.0
    _mark: tuple[float, Mapping[int, int]] | None = field(default=None, repr=False)

    def begin(self, now: float, batch: int) -> None:
        """Set the moment to ``now``, for a table without rows of the topic, which cannot miss a delete."""
        self.time, self.batch = now, batch

    def see(
        self, ends: Mapping[int, int], next_offsets: Mapping[int, int], *, batch: int, now: float
    ) -> None:
        """Compare the table's progress with the topic's end offsets. Move the moment if the table has reached
        the end offsets of this call or of an earlier one.

        ``ends``: end offset of each partition at ``now``, in seconds since 1970. ``next_offsets``: the
        table's next offset of each partition. ``batch``: number of the table's last batch.
        """
        if self._mark is not None and _reached(self._mark[1], next_offsets):
            self.time, self.batch, self._mark = self._mark[0], batch, None
        if _reached(ends, next_offsets):
            self.time, self.batch = now, batch
        elif self._mark is None:
            self._mark = now, ends

    def holds(self, compaction: Compaction, now: float) -> bool:
        """Returns True if compaction cannot have removed a delete before the table reads it."""
        return self.time is not None and now - self.time < compaction.safe_seconds

    def is_due(self, compaction: Compaction) -> bool:
        """Returns True if a table without new records should save the moment in the state store."""
        return self.time is not None and self.time - self._saved > compaction.safe_seconds / _SAVES

    def as_detail(self) -> dict[str, Any]:
        """Returns the moment as a member of the status details, and remembers that it is saved.

        Returns an empty mapping if the moment is not known.
        """
        if self.time is None:
            return {}
        self._saved = self.time
        return {_DETAIL: {"time": round(self.time, 3), "batch": self.batch}}

    @classmethod
    def known(cls, details: Mapping[str, Any]) -> CaughtUp:
        """Restore the moment from the details of a table's status."""
        stored = details.get(_DETAIL)
        return cls() if stored is None else cls(stored["time"], stored["batch"], stored["time"])


_DETAIL: Final = "caught-up"


def _reached(ends: Mapping[int, int], next_offsets: Mapping[int, int]) -> bool:
    return all(next_offsets.get(number, 0) >= end for number, end in ends.items())
