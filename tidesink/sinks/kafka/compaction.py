"""Compacted topics: which tables cannot be kept from one, and whether deletes may be gone unread.

Compaction keeps the last record of each Kafka key. A delete without a value, a tombstone, is kept for
``delete.retention.ms`` after it was first compacted, and is then removed. It was first compacted after the
rows in the table were read: by then their own records were gone. So a table lacks no delete as long as all
that was written before some moment was read before ``delete.retention.ms`` had passed since that moment.
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

# The part of delete.retention.ms that a table may use: the rest is for long batches and clocks that differ.
_SHARE: Final = 0.9
# How often in that time an idle table saves that it has read all there is.
_SAVES: Final = 8


class Compaction(NamedTuple):
    """Of a topic whose ``policy`` (``cleanup.policy``) has ``compact``; ``delete_retention`` in seconds."""

    policy: str
    delete_retention: float

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Compaction | None:
        """What ``describe_configs`` says of a topic; None where it is not compacted."""
        policy = settings["cleanup.policy"].value if "cleanup.policy" in settings else "delete"
        if "compact" not in policy:
            return None
        return cls(policy, int(settings["delete.retention.ms"].value) / 1000)

    @property
    def safe_seconds(self) -> float:
        """How old the moment may be before which everything was read."""
        return _SHARE * self.delete_retention


_KEYLESS: Final = "canal-json's records have no key, and compaction removes records without one"
_LOG: Final = "mode: {mode} keeps every change, and compaction removes all but the last of a key"
_NULLS: Final = (
    "ignore_null_updates makes a row of all its changes, and compaction removes all but the last of a key"
)
_TOMBSTONES: Final = "compaction leaves of a delete the tombstone alone, which is no delete among envelopes"
_UNWRAPPED: Final = "set source.debezium.unwrapped: true, by which it is one, or "
_POLICY: Final = "set cleanup.policy=delete at the topic and have its tables sent again"


def refusal(compaction: Compaction, source: SourceSettings, settings: TableConfig) -> str | None:
    """Why a table cannot be kept from a compacted topic; None where it can."""
    way_out = ""
    if CODECS[source.protocol].shares_topics:
        reason = _KEYLESS
    elif settings.mode != "upsert":
        reason, way_out = _LOG.format(mode=settings.mode), "take mode: upsert, or "
    elif settings.ignore_null_updates:
        reason, way_out = _NULLS, "remove it, or "
    elif source.protocol == "debezium-avro":
        reason = _TOMBSTONES
    elif source.protocol == "debezium-json" and not source.debezium.unwrapped:
        reason, way_out = _TOMBSTONES, _UNWRAPPED
    else:
        return None
    return f"the topic has cleanup.policy={compaction.policy}: {reason}: {way_out}{_POLICY}"


_MISSED: Final = (
    "deletes may be missing: the topic has cleanup.policy={policy} and delete.retention.ms={retention}, and "
    "records that are not read yet may be older than that. A tombstone among them may be removed, and its "
    "row would stay. Nothing was read: load the topic again into another table (another target.path, or "
    "remove the table at the target), or compare the table with its source and go on with "
    "`tidesink resume {table} --accept`"
)


def missed_deletes(compaction: Compaction, table: str) -> str:
    """What to say where deletes may have been removed before they were read."""
    retention = round(compaction.delete_retention * 1000)
    return _MISSED.format(policy=compaction.policy, retention=retention, table=table)


def digest_of(progress: TopicProgress) -> str:
    """What names the gap behind ``progress`` to whoever accepts it."""
    offsets = sorted((number, at.next_offset) for number, at in progress.partitions.items())
    return sha256(f"deletes {progress.topic_id} {offsets}".encode()).hexdigest()[:16]


@dataclass
class CaughtUp:
    """The newest known moment before which everything that was written to a topic is in the table.

    ``time``: in seconds since 1970; None: not known. ``batch``: that the table stood at then.
    """

    time: float | None = None
    batch: int = 0
    _saved: float = 0.0
    _mark: tuple[float, Mapping[int, int]] | None = field(default=None, repr=False)

    def begin(self, now: float, batch: int) -> None:
        """Everything before ``now`` counts as read: as where nothing of the topic is in the table yet."""
        self.time, self.batch = now, batch

    def see(self, ends: Mapping[int, int], known: Mapping[int, int], *, batch: int, now: float) -> None:
        """Take note of where the partitions end at ``now``, and which offset is the next of each."""
        if self._mark is not None and _reached(self._mark[1], known):
            self.time, self.batch, self._mark = self._mark[0], batch, None
        if _reached(ends, known):
            self.time, self.batch = now, batch
        elif self._mark is None:
            self._mark = now, ends

    def holds(self, compaction: Compaction, now: float) -> bool:
        """Whether no delete can have been removed unread."""
        return self.time is not None and now - self.time < compaction.safe_seconds

    def is_due(self, compaction: Compaction) -> bool:
        """Whether the state store should hear of a table that has nothing to read."""
        return self.time is not None and self.time - self._saved > compaction.safe_seconds / _SAVES

    def as_detail(self) -> dict[str, Any]:
        """What a status says of it."""
        if self.time is None:
            return {}
        self._saved = self.time
        return {_DETAIL: {"time": round(self.time, 3), "batch": self.batch}}

    @classmethod
    def known(cls, details: Mapping[str, Any]) -> CaughtUp:
        """As a status has it."""
        found = details.get(_DETAIL)
        return cls() if found is None else cls(found["time"], found["batch"], found["time"])


_DETAIL: Final = "caught-up"


def _reached(ends: Mapping[int, int], known: Mapping[int, int]) -> bool:
    return all(known.get(number, 0) >= end for number, end in ends.items())
