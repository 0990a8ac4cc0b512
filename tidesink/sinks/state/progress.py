"""What of a table is applied: per topic-partition, where to read next and what lies behind.

Progress travels inside the target's own commit (``docs/adr/0002-progress-in-the-target.md``) and in
the state store's history, as JSON with a version number. It is compared as a whole and never merged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import ProgressError, StaleProgressError
from tidesink.events import TableId

if TYPE_CHECKING:
    from tidesink.events import SequenceBy


FORMAT_VERSION: Final = 1
BATCHES_PER_EPOCH: Final = 2**40


def txn_version(epoch: int, batch: int) -> int:
    """One number that grows with every batch and jumps with every epoch (epoch × 2^40 + batch).

    Raises ValueError for a batch or an epoch that does not fit a signed 64-bit number.
    """
    if not 0 <= batch < BATCHES_PER_EPOCH or not 0 <= epoch < 2**23:
        raise ValueError(f"epoch {epoch} batch {batch} is no transaction version")
    return epoch * BATCHES_PER_EPOCH + batch


def split_txn_version(version: int) -> tuple[int, int]:
    """The epoch and the batch of a transaction version."""
    return divmod(version, BATCHES_PER_EPOCH)


@dataclass(frozen=True)
class PartitionProgress:
    """One topic-partition.

    ``next_offset`` is the first offset not yet applied. ``low_water_offset`` is the first offset that
    may still hold a change above the last cut (equal to ``next_offset`` where no cut is kept).
    ``applied_commit_ts`` is the greatest commit_ts applied, ``watermark`` the greatest resolved ts read
    (both TiDB TSO; None where the topic carries none).
    """

    next_offset: int
    low_water_offset: int
    applied_commit_ts: int | None = None
    watermark: int | None = None


@dataclass(frozen=True)
class TopicProgress:
    """One topic, by Kafka's own topic id, so that a topic deleted and made again is noticed."""

    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionProgress]


@dataclass(frozen=True)
class Progress:
    """All that is applied of one table after batch ``batch`` of epoch ``epoch``.

    ``batch`` counts on over epochs and restarts; an epoch is one worker's hold on the table.
    ``commit_ts`` is the greatest commit_ts in the table (TiDB TSO), None where the topic carries none.
    """

    table: TableId
    pipeline: str
    epoch: int
    batch: int
    topics: Mapping[str, TopicProgress] = field(default_factory=dict)
    commit_ts: int | None = None
    sequence_by: SequenceBy = "kafka"

    @property
    def txn_version(self) -> int:
        """The number targets order commits by."""
        return txn_version(self.epoch, self.batch)

    def next_offset(self, topic: str, partition: int) -> int | None:
        """The first offset of a partition not yet applied; None where it was never read."""
        known = self.topics.get(topic)
        at = known.partitions.get(partition) if known else None
        return at.next_offset if at else None


def check_follows(progress: Progress, applied: Progress | None) -> None:
    """The law of every target: a batch is applied on what the batch before it left, and on nothing else.

    ``applied`` is what the target holds now, which is not this batch; None for nothing.

    Raises:
        StaleProgressError: a later batch is applied; or the target went back while its worker held it, as a
            database does whose standby takes over without the last commits.
    """
    if applied is not None and applied.txn_version >= progress.txn_version:
        raise StaleProgressError(
            f"a later batch is applied already (epoch {applied.epoch} batch {applied.batch}): start from the "
            "committed progress, and run one worker a table",
            table=str(progress.table),
        )
    before = applied.batch if applied else 0
    if progress.batch != before + 1:
        raise StaleProgressError(
            f"the target stands at batch {before}, and the next one is {progress.batch}: the batches between "
            "were committed and are gone from it, as after a restored backup or a standby that took over. "
            "Nothing was written. Start the worker again: it says how to go on",
            table=str(progress.table),
        )


def to_json(progress: Progress) -> str:
    """Progress as compact JSON text, keys in a fixed order."""
    return json.dumps(as_document(progress), separators=(",", ":"), ensure_ascii=True)


def from_json(text: str) -> Progress:
    """The progress in a JSON text.

    Raises:
        ProgressError: the text is no progress of a version this tidesink reads.
    """
    try:
        return from_document(json.loads(text))
    except ValueError as exc:
        raise ProgressError("the stored progress is not JSON; was it written by another program?") from exc


def as_document(progress: Progress) -> dict[str, Any]:
    """Progress as a JSON-able mapping."""
    return {
        "version": FORMAT_VERSION,
        "pipeline": progress.pipeline,
        "table": list(progress.table),
        "epoch": progress.epoch,
        "batch": progress.batch,
        "commit_ts": progress.commit_ts,
        "sequence_by": progress.sequence_by,
        "topics": {name: _topic_document(topic) for name, topic in sorted(progress.topics.items())},
    }


def from_document(document: object) -> Progress:
    """The progress in a mapping that ``as_document`` made.

    Raises:
        ProgressError: the mapping is no progress of a version this tidesink reads.
    """
    if not isinstance(document, dict) or document.get("version") != FORMAT_VERSION:
        found = document.get("version") if isinstance(document, dict) else None
        raise ProgressError(
            f"the stored progress has format {found!r}, this tidesink reads {FORMAT_VERSION}; "
            "run the tidesink version that wrote it, or a newer one"
        )
    try:
        return _read(document)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ProgressError(f"the stored progress is damaged ({type(exc).__name__}: {exc})") from exc


def _topic_document(topic: TopicProgress) -> dict[str, Any]:
    return {
        "topic_id": topic.topic_id,
        "partitions": {
            str(number): [at.next_offset, at.low_water_offset, at.applied_commit_ts, at.watermark]
            for number, at in sorted(topic.partitions.items())
        },
    }


def _read(document: dict[str, Any]) -> Progress:
    schema, name = document["table"]
    return Progress(
        table=TableId(schema, name),
        pipeline=document["pipeline"],
        epoch=int(document["epoch"]),
        batch=int(document["batch"]),
        topics={name: _read_topic(name, topic) for name, topic in document["topics"].items()},
        commit_ts=document["commit_ts"],
        sequence_by=_read_sequence(document["sequence_by"]),
    )


def _read_topic(name: str, document: dict[str, Any]) -> TopicProgress:
    partitions = {int(number): PartitionProgress(*at) for number, at in document["partitions"].items()}
    return TopicProgress(name, document["topic_id"], partitions)


def _read_sequence(word: object) -> SequenceBy:
    if word == "kafka":
        return "kafka"
    if word == "source":
        return "source"
    raise ValueError(f"sequence_by {word!r}")
