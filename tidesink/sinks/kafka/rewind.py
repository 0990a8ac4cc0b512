"""Rewinding a table: reading its topic again from an earlier offset, to repair its rows.

After a rewind, a table reads a partition again from an earlier offset up to the applied offset. This applies
the last part of the partition once more. So the rows end as they were, or better if the target had lost some
rows. A rewind is refused in these cases:

- With ``mode: append`` each record becomes a row, so rows would be doubled.
- The requested offset expired in Kafka, so it cannot be read again. Or it is after the applied offset, so
  records would be skipped.
- In Kafka's order, partitions were added to the topic after the requested offset. A key that moved to another
  partition would then get an older row from its earlier partition.
- In a pipeline with cuts, all tables show the source at the same instant. A rewound table would not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidesink.config import Config, TableConfig
from tidesink.errors import LOAD_AGAIN, ConfigError
from tidesink.events import LOGICAL_BITS, TableId, physical_ms
from tidesink.sinks.kafka.offsets import Ends, KafkaOffsets, TopicOffsets, is_other_topic
from tidesink.sinks.state.progress import TopicProgress

# Allowed difference between the clocks of the source database, the producer and the brokers.
CLOCK_MARGIN_SECONDS: Final = 600.0

_APPEND: Final = (
    "With mode: append each record becomes a row, so records that are read again would be doubled. Instead, "
    f"{LOAD_AGAIN}."
)
_CUTS: Final = (
    "With cuts, all tables show the source at the same instant, but a rewound table does not. Remove "
    "cuts from the config, and add them again once `tidesink status` reports that the rewind is done."
)
_LOADS: Final = (
    "A snapshot of the table is running or requested, and changes that are read again may be older than its "
    "rows. Rewind the table once the snapshot is finished, or cancel it (`tidesink snapshot cancel TABLE`)."
)
_NOTHING: Final = "No record of the table is applied yet, so there is nothing to read again."
_OTHER: Final = "The topic was recreated, so its offsets refer to other records. Request the rewind again."
_UNKNOWN: Final = (
    "The table has not read partition {}, so it cannot read it again. Choose one of the partitions that it "
    "has read: {}."
)
_AHEAD: Final = (
    "Offset {} of partition {} is after the applied offset {}. A rewind can only go back, because the "
    "records between the two offsets would be skipped."
)
_EXPIRED: Final = (
    "Kafka no longer has offset {} of partition {}, whose first offset is {}. Use --to-beginning to read "
    "from the first offset that exists."
)
_GROWN: Final = (
    "Partitions were added to the topic when partition {} ended at offset {}, and a key may have moved to "
    "another partition then. Offset {} is before that end, so a key that moved would keep an older row. "
    f"Rewind to that end or to a later offset, or {LOAD_AGAIN}."
)
_OLDER: Final = (
    "Kafka no longer has all records of that time: partition {} begins with offset {}, which was written "
    "later. Use --to-beginning to read from the first offset that exists."
)
_BACK: Final = "The table already continues from the requested offset, so nothing would be read again."


def refuse_meanwhile(config: Config, table: TableId, *, loads: bool) -> None:
    """Raise ConfigError if the pipeline has cuts, or if a snapshot of the table is running or requested.

    ``loads``: True if a snapshot is running or requested.
    """
    reason = _CUTS if config.cuts is not None else _LOADS if loads else None
    if reason is not None:
        raise ConfigError(reason, table=str(table))


def refuse_mode(settings: TableConfig) -> None:
    """Raise ConfigError if the mode is ``append``, because a record that is read again would be doubled."""
    if settings.mode == "append":
        raise ConfigError(_APPEND, table=str(settings.table))


def steps_back(settings: TableConfig) -> bool:
    """Returns True if a rewind of the table makes its rows older until everything is read again.

    This holds in ``mode: upsert`` with ``sequence_by: kafka``. Otherwise no change that is read again
    replaces a newer row.
    """
    return settings.mode == "upsert" and settings.sequence_by == "kafka"


def rewound_offsets(
    progress: TopicProgress | None,
    topic_offsets: TopicOffsets,
    wanted: Mapping[int, int],
    settings: TableConfig,
    *,
    topic_id: str | None = None,
    grown: Sequence[Ends] = (),
) -> dict[int, int]:
    """Check a requested rewind. Returns the requested offsets, by partition, that are before the applied
    ones.

    Args:
        progress: The table's progress in the topic.
        topic_offsets: The topic's current offsets.
        wanted: The requested offset of each partition.
        settings: The table's settings.
        topic_id: The topic's id when the rewind was requested. None: not known.
        grown: For each time partitions were added, the end offsets of the earlier partitions
            (``TopicGrowth``).

    Raises:
        ConfigError: The table may not be rewound to these offsets, or no offset is before the applied ones.
    """
    where = {"table": str(settings.table), "topic": topic_offsets.topic}
    refuse_mode(settings)
    if progress is None:
        raise ConfigError(_NOTHING, **where)
    if is_other_topic(progress.topic_id, topic_offsets.topic_id) or topic_id not in (
        None,
        topic_offsets.topic_id,
    ):
        raise ConfigError(_OTHER, **where)
    refusals = [
        _offset_refusal(progress, topic_offsets, *partition_offset) for partition_offset in wanted.items()
    ]
    back = {
        number: offset
        for (number, offset), refused in zip(wanted.items(), refusals, strict=True)
        if refused is None and offset != progress.partitions[number].next_offset
    }
    if steps_back(settings):
        refusals += [_growth_refusal(grown, *partition_offset) for partition_offset in back.items()]
    reason = next((refusal for refusal in refusals if refusal is not None), None if back else _BACK)
    if reason is not None:
        raise ConfigError(reason, **where)
    return back


def _offset_refusal(
    progress: TopicProgress, topic_offsets: TopicOffsets, number: int, offset: int
) -> str | None:
    applied, there = progress.partitions.get(number), topic_offsets.partitions.get(number)
    if applied is None or there is None:
        return _UNKNOWN.format(number, ", ".join(map(str, sorted(progress.partitions))))
    # Records that expired during the rewind are skipped, because they were applied before. Nothing else may
    # be skipped, because outdated rows would stay.
    if offset > max(applied.next_offset, min(there.earliest, applied.again_to or 0)):
        return _AHEAD.format(offset, number, applied.next_offset)
    if offset < there.earliest:
        return _EXPIRED.format(offset, number, there.earliest)
    return None


def _growth_refusal(grown: Sequence[Ends], number: int, offset: int) -> str | None:
    end = max((ends[number] for ends in grown if number in ends), default=0)
    return _GROWN.format(number, end, offset) if offset < end else None


def beginning(progress: TopicProgress | None, topic_offsets: TopicOffsets) -> dict[int, int]:
    """Returns the first offset that Kafka still has of each partition that the table has read."""
    return {n: topic_offsets.partitions[n].earliest for n in _read(progress, topic_offsets)}


def offsets_at(
    progress: TopicProgress | None, topic_offsets: TopicOffsets, brokers: KafkaOffsets, seconds: float
) -> dict[int, int]:
    """Returns the offset of each partition's first record whose Kafka timestamp is ``seconds`` or later.

    ``seconds`` counts since 1970. A partition is absent if none of its applied records is that new.

    Raises:
        ConfigError: Records of that time may have expired.
        SourceError: The brokers refuse the request, or do not answer.
    """
    read = _read(progress, topic_offsets)
    first = brokers.first_since(topic_offsets.topic, read, seconds)
    oldest = brokers.first_records(topic_offsets.topic, read)
    for number, offset in first.items():
        if topic_offsets.partitions[number].earliest > 0 and offset == oldest[number].offset:
            raise ConfigError(_OLDER.format(number, offset), topic=topic_offsets.topic)
    applied = progress.partitions if progress is not None else {}
    return {n: offset for n, offset in first.items() if offset < applied[n].next_offset}


def _read(progress: TopicProgress | None, topic_offsets: TopicOffsets) -> list[int]:
    return (
        sorted(progress.partitions.keys() & topic_offsets.partitions.keys()) if progress is not None else []
    )


def time_of_commit(commit_ts: int, applied: int | None) -> float:
    """Returns the Kafka timestamp, in seconds since 1970, from which a topic may have changes of this
    commit_ts or later.

    A change gets its Kafka timestamp after its commit, from another clock than TiDB's. So ten minutes are
    subtracted. ``applied``: the greatest commit_ts among the table's applied changes.

    Raises:
        ConfigError: ``commit_ts`` is later than all applied changes, or is not a TSO.
    """
    if applied is None:
        raise ConfigError(
            "The table's changes have no commit_ts. Specify a time (--to-time) or offsets (--to-offset) "
            "instead."
        )
    if commit_ts > applied:
        raise ConfigError(
            f"The newest applied change has commit_ts {applied}, which is older than the "
            f"requested one. Specify an earlier commit_ts."
        )
    if commit_ts < _FIRST_TSO:
        raise ConfigError(
            f"{commit_ts} is not a commit_ts (TiDB's TSO: milliseconds since 1970 times 2^18). Use --to-time "
            "for times."
        )
    return physical_ms(commit_ts) / 1000 - CLOCK_MARGIN_SECONDS


# The TSO of the year 2000. Milliseconds, seconds and dates written as numbers are all smaller.
_FIRST_TSO: Final = 946_684_800_000 << LOGICAL_BITS
