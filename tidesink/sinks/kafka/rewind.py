"""Reading a table's topic again from an earlier offset, to repair its rows.

After a rewind, a table reads a partition again from an earlier offset up to the applied one. This delivers a
suffix of the partition once more, so the rows end as before, or better if the target had lost some. A rewind
is refused if this does not hold:

- in ``mode: append`` each record is a row, so rows would be doubled;
- records that Kafka no longer has cannot be read again, and records after the applied ones would be skipped;
- in Kafka's order, a key that moved to another partition would get an older row from its earlier partition;
- in a pipeline with cuts, all tables show one instant of the source, and a rewound table would not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidesink.config import Config, TableConfig
from tidesink.errors import LOAD_AGAIN, ConfigError
from tidesink.events import LOGICAL_BITS, TableId, physical_ms
from tidesink.sinks.kafka.offsets import Ends, KafkaOffsets, TopicOffsets, is_other_topic
from tidesink.sinks.state.progress import TopicProgress

# Allowed difference between the clocks of the source, its producer, and the brokers.
CLOCK_MARGIN_SECONDS: Final = 600.0

_APPEND: Final = (
    "mode: append keeps each record as rows, so a record that is read again would be doubled. Instead, "
    f"{LOAD_AGAIN}."
)
_CUTS: Final = (
    "With cuts, all tables show one instant of the source, and a table that reads again does not. Remove "
    "cuts from the config, and add them again once tidesink status reports that the rewind is done."
)
_LOADS: Final = (
    "A snapshot of the table is running, and changes that are read again may be older than its rows. Rewind "
    "once it is finished, or cancel it."
)
_NOTHING: Final = "Nothing of the table is applied yet, so there is nothing to read again."
_OTHER: Final = "The topic was recreated, so its offsets refer to other records. Request the rewind again."
_UNKNOWN: Final = "The table has not read partition {}. It has read {}."
_AHEAD: Final = (
    "Offset {} of partition {} is after the applied offset {}. A rewind only goes back, because the records "
    "between would be lost."
)
_EXPIRED: Final = (
    "Kafka no longer has offset {} of partition {}, which begins with {}. --to-beginning reads from the "
    "first offset that exists."
)
_GROWN: Final = (
    "Partitions were added to the topic when partition {} ended at {}, and a key may have moved to another "
    "partition then. Offset {} is earlier, so such a key would keep an older row. Rewind to that end or "
    f"to a later offset, or {LOAD_AGAIN}."
)
_OLDER: Final = (
    "Kafka no longer has all records of that time: partition {} begins with offset {}, which is later. "
    "--to-beginning reads from the first offset that exists."
)
_BACK: Final = "The table is already about to continue from there."


def refuse_meanwhile(config: Config, table: TableId, *, loads: bool) -> None:
    """Raise ConfigError if the pipeline has cuts, or if a snapshot of the table is running."""
    reason = _CUTS if config.cuts is not None else _LOADS if loads else None
    if reason is not None:
        raise ConfigError(reason, table=str(table))


def refuse_mode(settings: TableConfig) -> None:
    """Raise ConfigError if a table cannot apply a record twice."""
    if settings.mode == "append":
        raise ConfigError(_APPEND, table=str(settings.table))


def steps_back(settings: TableConfig) -> bool:
    """Returns True if rows become older until everything is read again.

    In other modes existing rows stay, because no change that is read again is newer than them.
    """
    return settings.mode == "upsert" and settings.sequence_by == "kafka"


def rewound_offsets(
    progress: TopicProgress | None,
    found: TopicOffsets,
    wanted: Mapping[int, int],
    settings: TableConfig,
    *,
    topic_id: str | None = None,
    grown: Sequence[Ends] = (),
) -> dict[int, int]:
    """Returns the wanted offsets that are before the applied ones, if the table may be rewound to them.

    ``topic_id``: id of the topic in the request. ``grown``: the ends at each growth (``TopicGrowth``).

    Raises:
        ConfigError: The table may not be rewound, or no offset is earlier.
    """
    where = {"table": str(settings.table), "topic": found.topic}
    refuse_mode(settings)
    if progress is None:
        raise ConfigError(_NOTHING, **where)
    if is_other_topic(progress.topic_id, found.topic_id) or topic_id not in (None, found.topic_id):
        raise ConfigError(_OTHER, **where)
    refusals = [_offset_refusal(progress, found, *one) for one in wanted.items()]
    back = {
        number: offset
        for (number, offset), refused in zip(wanted.items(), refusals, strict=True)
        if refused is None and offset != progress.partitions[number].next_offset
    }
    if steps_back(settings):
        refusals += [_growth_refusal(grown, *one) for one in back.items()]
    reason = next((one for one in refusals if one is not None), None if back else _BACK)
    if reason is not None:
        raise ConfigError(reason, **where)
    return back


def _offset_refusal(progress: TopicProgress, found: TopicOffsets, number: int, offset: int) -> str | None:
    applied, there = progress.partitions.get(number), found.partitions.get(number)
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


def beginning(progress: TopicProgress | None, found: TopicOffsets) -> dict[int, int]:
    """Returns the first offsets that Kafka has of the partitions that a table has read."""
    return {n: found.partitions[n].earliest for n in _read(progress, found)}


def offsets_at(
    progress: TopicProgress | None, found: TopicOffsets, brokers: KafkaOffsets, seconds: float
) -> dict[int, int]:
    """Returns the offset of each partition's first record with Kafka's timestamp ``seconds`` or later.

    ``seconds`` since 1970. A partition without such a record among the applied ones is absent.

    Raises:
        ConfigError: Records of that time may have expired.
        SourceError: The brokers refuse the request, or do not answer.
    """
    read = _read(progress, found)
    first = brokers.first_since(found.topic, read, seconds)
    oldest = brokers.first_records(found.topic, read)
    for number, offset in first.items():
        if found.partitions[number].earliest > 0 and offset == oldest[number].offset:
            raise ConfigError(_OLDER.format(number, offset), topic=found.topic)
    applied = progress.partitions if progress is not None else {}
    return {n: offset for n, offset in first.items() if offset < applied[n].next_offset}


def _read(progress: TopicProgress | None, found: TopicOffsets) -> list[int]:
    return sorted(progress.partitions.keys() & found.partitions.keys()) if progress is not None else []


def time_of_commit(commit_ts: int, applied: int | None) -> float:
    """Returns the time, in seconds since 1970, from which a topic may have changes at a TSO or later.

    A change is sent after its commit. Its Kafka timestamp is from that moment, by another clock than the
    source's. ``applied``: the greatest commit_ts that the table has.

    Raises:
        ConfigError: The TSO is later than all applied changes, or is not a TSO.
    """
    if applied is None:
        raise ConfigError(
            "No change of the table has a commit_ts. Specify a time (--to-time) or offsets (--to-offset)."
        )
    if commit_ts > applied:
        raise ConfigError(f"The newest applied change has commit_ts {applied}, which is older.")
    if commit_ts < _FIRST_TSO:
        raise ConfigError(
            f"{commit_ts} is not a commit_ts (TiDB's TSO: milliseconds since 1970 times 2^18). Use --to-time "
            "for times."
        )
    return physical_ms(commit_ts) / 1000 - CLOCK_MARGIN_SECONDS


# The TSO of the year 2000. Milliseconds, seconds and dates written as numbers are all smaller.
_FIRST_TSO: Final = 946_684_800_000 << LOGICAL_BITS
