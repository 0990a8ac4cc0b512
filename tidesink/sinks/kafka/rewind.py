"""Where a table's topic may be read again from, so that its rows come to be what they were meant to be.

A rewind has a table read a partition again from an earlier offset up to where it was applied. That is a
suffix of the partition which is delivered once more, so the rows end as they were, or better where the
target had lost some. It is refused where that does not hold:

- in ``mode: append`` each record is a row, and would be one twice;
- what Kafka does not hold any more is not read again, and what is ahead of the table would be passed over;
- in Kafka's order a key that has moved to another partition would get an older row from the one it was in;
- a pipeline with cuts has tables that stand at one instant, and one that steps back does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidesink.config import Config, TableConfig
from tidesink.errors import LOAD_AGAIN, ConfigError
from tidesink.events import LOGICAL_BITS, TableId, physical_ms
from tidesink.sinks.kafka.offsets import Ends, KafkaOffsets, TopicOffsets, is_other_topic
from tidesink.sinks.state.progress import TopicProgress

# How far clocks may differ: those of the source, of its producer, and of the brokers.
CLOCK_MARGIN_SECONDS: Final = 600.0

_APPEND: Final = (
    "mode: append keeps each record as rows, and a record that is read again would be there twice: "
    f"{LOAD_AGAIN}"
)
_CUTS: Final = (
    "with cuts all tables stand at one instant of the source, again and again, and a table that reads again "
    "does not: remove cuts from the config, and add them again once tidesink status says that it is done"
)
_LOADS: Final = (
    "a snapshot of the table is under way, and changes that are read again may be older than its rows: "
    "rewind once it is over, or cancel it"
)
_NOTHING: Final = "nothing of the table is applied yet, so there is nothing to read again"
_OTHER: Final = "the topic was made again since, and its offsets mean other records: ask for the rewind again"
_UNKNOWN: Final = "partition {} is not one that the table has read: it has read {}"
_AHEAD: Final = (
    "offset {} of partition {} is ahead of what is applied, which goes up to {}: a rewind goes back only, "
    "since the records between would be lost"
)
_EXPIRED: Final = (
    "Kafka does not hold offset {} of partition {} any more, which begins with {}: --to-beginning reads what "
    "there is"
)
_GROWN: Final = (
    "partitions were added to the topic when partition {} ended at {}, and a key may have moved to another "
    "one then. Offset {} is before that, and such a key would keep an older row: rewind to that end or "
    f"behind it, or {LOAD_AGAIN}"
)
_OLDER: Final = (
    "Kafka does not hold all of that time any more: partition {} begins with offset {}, which is later. "
    "--to-beginning reads what there is"
)
_BACK: Final = "the table is to read on from there already"


def refuse_meanwhile(config: Config, table: TableId, *, loads: bool) -> None:
    """Raise ConfigError where the pipeline has cuts, or a snapshot of the table is under way."""
    reason = _CUTS if config.cuts is not None else _LOADS if loads else None
    if reason is not None:
        raise ConfigError(reason, table=str(table))


def refuse_mode(settings: TableConfig) -> None:
    """Raise ConfigError where a table takes no record a second time."""
    if settings.mode == "append":
        raise ConfigError(_APPEND, table=str(settings.table))


def steps_back(settings: TableConfig) -> bool:
    """Whether rows are older than they were until everything is read again.

    Elsewhere a row that is there stays, since no change that is read again is newer than it.
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
    """The offsets of ``wanted`` that are behind what is applied, if the table may be rewound to them.

    ``topic_id``: of the topic that is meant. ``grown``: each time that partitions were added
    (``TopicGrowth``).

    Raises:
        ConfigError: it may not, or no offset goes back.
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
    # What expired while it was read again is passed over, since it was applied before; and nothing else: rows
    # that stepped back would stay.
    if offset > max(applied.next_offset, min(there.earliest, applied.again_to or 0)):
        return _AHEAD.format(offset, number, applied.next_offset)
    if offset < there.earliest:
        return _EXPIRED.format(offset, number, there.earliest)
    return None


def _growth_refusal(grown: Sequence[Ends], number: int, offset: int) -> str | None:
    end = max((ends[number] for ends in grown if number in ends), default=0)
    return _GROWN.format(number, end, offset) if offset < end else None


def beginning(progress: TopicProgress | None, found: TopicOffsets) -> dict[int, int]:
    """The first offsets that Kafka holds of the partitions that a table has read."""
    return {n: found.partitions[n].earliest for n in _read(progress, found)}


def offsets_at(
    progress: TopicProgress | None, found: TopicOffsets, brokers: KafkaOffsets, seconds: float
) -> dict[int, int]:
    """The offset of the first record of each partition that has Kafka's timestamp, or a later one.

    ``seconds`` since 1970. A partition without such a record among those that are applied is absent.

    Raises:
        ConfigError: records of that time may have expired.
        SourceError: the brokers refuse us, or do not answer.
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
    """Since when, in seconds since 1970, a topic may hold changes committed at a TiDB TSO or later.

    A change is sent after its commit, and Kafka's timestamp is of then, by another clock than the source's.
    ``applied``: the greatest commit_ts that the table has.

    Raises:
        ConfigError: nothing that is applied was committed then or later, or it is no TSO.
    """
    if applied is None:
        raise ConfigError(
            "no change of the table has a commit_ts: name a time (--to-time), or offsets (--to-offset)"
        )
    if commit_ts > applied:
        raise ConfigError(f"the newest change that is applied has commit_ts {applied}, which is older")
    if commit_ts < _FIRST_TSO:
        raise ConfigError(
            f"{commit_ts} is no commit_ts (TiDB's TSO: milliseconds since 1970 times 2^18): --to-time takes "
            "times"
        )
    return physical_ms(commit_ts) / 1000 - CLOCK_MARGIN_SECONDS


# Of the year 2000: milliseconds, seconds and dates written as numbers are all below.
_FIRST_TSO: Final = 946_684_800_000 << LOGICAL_BITS
