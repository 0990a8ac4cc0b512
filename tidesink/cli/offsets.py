"""``tidesink offsets``: shows the offsets of tables in their topics, and rewinds tables to earlier offsets.

The command checks a rewind and writes the request to the state store. The worker checks the request again,
and rewinds the table at the table's next turn.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from tidesink.cli import terminal
from tidesink.cli.status import (
    again_line,
    is_unbegun,
    known_table,
    last_progress,
    running_snapshot,
    source_time,
    worked_with,
    worker_is_alive,
)
from tidesink.cli.terminal import (
    ConfigOption,
    Output,
    OutputFormat,
    chosen_config,
    show_table,
    warn,
    write_json,
)
from tidesink.errors import BrokerUnavailableError, ConfigError
from tidesink.events import time_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidesink.config import Config
    from tidesink.events import TableId
    from tidesink.sinks.kafka.offsets import KafkaOffsets, Look, TopicOffsets
    from tidesink.sinks.runtime.control import TableControl
    from tidesink.sinks.state.progress import StateStore, TableStatus, TopicProgress

app = typer.Typer(no_args_is_help=True, help="Show and rewind tables' offsets in their topics.")

_COLUMNS: Final = ("table", "topic", "partition", "applied", "begins", "ends", "waiting", "source time")
_PLACE: Final = re.compile(r"(?P<partition>[0-9]+)=(?P<offset>[0-9]+)")
_GONE: Final = "the topic does not exist"
_OTHER: Final = "the topic was created again, so the applied offsets are those of the deleted topic"


class _Standing(NamedTuple):
    """A table's offsets at the target and in Kafka.

    applied: Applied offset of each partition, or None if nothing is applied.
    found: First and end offset of each partition in Kafka, or None with a ``reason`` if they are unknown.
    rewound: Id of the table's last rewind, which grows with each rewind; 0 if it was never rewound.
    """

    table: TableId
    topic: str
    applied: TopicProgress | None
    found: TopicOffsets | None
    reason: str | None
    rewound: int


def show(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE...]", help="Tables (schema.table); the default is all."),
    ] = None,
    config_option: ConfigOption = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the applied offset of each partition of the tables' topics.

    The output also has the first and the end offset of the partition in Kafka, and the number of records that
    wait to be applied.
    """
    settings = chosen_config(None, config_option)
    with worked_with(settings) as store, _brokers(settings) as brokers:
        statuses = _chosen(settings, store, tables or [])
        look = _look(brokers, statuses)
        standings = [_standing(settings, store, status, look) for status in statuses]
    if output is OutputFormat.JSON:
        write_json({"pipeline": settings.pipeline, "tables": [_as_json(standing) for standing in standings]})
        return
    show_table(None, _COLUMNS, [row for standing in standings for row in _rows(standing)])
    for standing in standings:
        for line in _remarks(standing):
            typer.echo(f"{standing.table}: {line}")


def _chosen(config: Config, store: StateStore, names: list[str]) -> list[TableStatus]:
    statuses = {status.table: status for status in store.statuses(config.pipeline)}
    chosen = [known_table(name, config, statuses) for name in dict.fromkeys(names)] or list(statuses)
    unread = [table for table in chosen if "topic" not in getattr(statuses.get(table), "details", {})]
    if unread:
        raise ConfigError(
            f"No worker has read the topic of {unread[0]} yet. Start a worker first (tidesink run).",
            table=str(unread[0]),
        )
    return [statuses[table] for table in chosen]


def _topic(status: TableStatus) -> str:
    return str(status.details["topic"])


def _look(brokers: KafkaOffsets, statuses: list[TableStatus]) -> Look:
    wanted = {_topic(status) for status in statuses}
    return brokers.look(lambda names: sorted(wanted & set(names)))


def _standing(config: Config, store: StateStore, status: TableStatus, look: Look) -> _Standing:
    from tidesink.sinks.kafka.offsets import is_other_topic

    topic = _topic(status)
    progress = store.progress_of_batch(config.pipeline, status.table, status.batch)
    applied = progress.topics.get(topic) if progress is not None else None
    kafka_topic, error = look.found.get(topic), look.unanswered.get(topic)
    reason = str(error) if error is not None else _GONE if kafka_topic is None else None
    if (
        kafka_topic is not None
        and applied is not None
        and is_other_topic(applied.topic_id, kafka_topic.topic_id)
    ):
        reason = _OTHER
    rewound = progress.rewound if progress is not None else 0
    return _Standing(status.table, topic, applied, kafka_topic, reason, rewound)


def _partitions(standing: _Standing) -> Iterator[dict[str, Any]]:
    applied = standing.applied.partitions if standing.applied is not None else {}
    bounds = standing.found.partitions if standing.found is not None else {}
    for number in sorted({*applied, *bounds}):
        position, there = applied.get(number), bounds.get(number)
        begins = there.earliest if there is not None else None
        start = position.next_offset if position is not None else begins
        yield {
            "partition": number,
            "applied": position.next_offset if position is not None else None,
            "again_to": position.again_to if position is not None else None,
            "begins": begins,
            "ends": there.latest if there is not None else None,
            "waiting": max(0, there.latest - (start or 0)) if there is not None else None,
            "commit_ts": position.applied_commit_ts if position is not None else None,
        }


def _rows(standing: _Standing) -> Iterator[tuple[Any, ...]]:
    for partition in _partitions(standing):
        shown = (partition[name] for name in ("partition", "applied", "begins", "ends", "waiting"))
        yield str(standing.table), standing.topic, *shown, source_time(partition["commit_ts"])


def _remarks(standing: _Standing) -> list[str]:
    again = standing.applied.read_again if standing.applied is not None else {}
    lines = [again_line({str(number): list(span) for number, span in again.items()})] if again else []
    return [*lines, *([standing.reason] if standing.reason is not None else [])]


def _as_json(standing: _Standing) -> dict[str, Any]:
    source = standing.found if standing.found is not None else standing.applied
    return {
        "table": standing.table._asdict(),
        "topic": standing.topic,
        "topic_id": source.topic_id if source is not None else None,
        "reason": standing.reason,
        "partitions": list(_partitions(standing)),
    }


@contextmanager
def _brokers(config: Config) -> Iterator[KafkaOffsets]:
    from tidesink.sinks.kafka.offsets import KafkaOffsets

    try:
        yield KafkaOffsets(config.source.confluent_properties())
    except BrokerUnavailableError as error:
        raise error.with_context(brokers=config.source.bootstrap_servers) from None


def rewind(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table, as schema.table.")],
    config_option: ConfigOption = None,
    *,
    to_offset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTITION=OFFSET", help="Read this partition again from an offset; repeatable."
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Read records again from this Kafka timestamp on; ISO 8601, in UTC if it has no zone.",
        ),
    ] = None,
    to_commit_ts: Annotated[
        int | None,
        typer.Option(metavar="TSO", help="Read changes again that were committed at this TiDB TSO or later."),
    ] = None,
    to_beginning: Annotated[
        bool,
        typer.Option(
            "--to-beginning",
            help="Read all of the table's records again that Kafka still holds.",
        ),
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Make a table read its topic again from an earlier offset.

    The worker begins at the table's next turn, and reads the topic again up to the applied offset. Until it
    has reached this offset, rows may have earlier values. The command fails if the rewind would lose or
    duplicate rows, or leave outdated rows in the target.
    """
    from tidesink.sinks.kafka.offsets import TopicGrowth
    from tidesink.sinks.kafka.rewind import rewound_offsets, steps_back
    from tidesink.sinks.runtime.control import RewindControl, change_control

    origin = _Place.of(to_offset or [], to_time, to_commit_ts, to_beginning)
    settings = chosen_config(None, config_option)
    with worked_with(settings) as store, _brokers(settings) as brokers:
        (status,) = _chosen(settings, store, [table])
        _refuse_meanwhile(settings, store, status, None)
        standing = _standing(settings, store, status, _look(brokers, [status]))
        if standing.found is None:
            raise ConfigError(str(standing.reason), table=str(standing.table), topic=standing.topic)
        config = settings.table_config(standing.table)
        grown = TopicGrowth(standing.topic, pipeline=settings.pipeline, store=store).see(standing.found)
        wanted = origin.offsets(standing, status, brokers, starts=_starts(settings, store, standing))
        offsets = rewound_offsets(standing.applied, standing.found, wanted, config, grown=grown)
        number = max(standing.rewound + 1, int(time.time() * 1000))
        pairs = tuple(sorted(offsets.items()))
        asked = RewindControl(number, standing.topic, standing.found.topic_id, pairs)

        def rewound(control: TableControl) -> TableControl:
            _refuse_meanwhile(settings, store, status, control)
            return control.rewound(asked)

        change_control(store, settings.pipeline, standing.table, rewound)
    _show_rewind(settings, standing, offsets, output, steps=steps_back(config))


def _starts(config: Config, store: StateStore, standing: _Standing) -> Mapping[int, int]:
    """Return, for each partition, the offset at which a table began to read its topic.

    The offsets come from the state store. Empty if the table began at the beginning of the topic, or if the
    topic was created again since.
    """
    from tidesink.sinks.kafka.offsets import is_other_topic
    from tidesink.sinks.worker.starts import known_start

    start = known_start(store, config.pipeline, standing.table, standing.topic)
    if start is None or standing.found is None or is_other_topic(start.topic_id, standing.found.topic_id):
        return {}
    return start.offsets


def _refuse_meanwhile(
    config: Config, store: StateStore, status: TableStatus, control: TableControl | None
) -> None:
    """Check that the table may be rewound beside its snapshots and the other tables of the pipeline.

    A worker refuses a rewind beside a requested snapshot, too, but the user would only see that later.
    ``control``: the requests to the table, or None to read them.

    Raises:
        ConfigError: the pipeline has cuts, or a snapshot of the table is unfinished or requested.
    """
    from tidesink.sinks.kafka.rewind import refuse_meanwhile
    from tidesink.sinks.runtime.control import NOTHING_ASKED, read_controls

    table = status.table
    if control is None:
        control = read_controls(store, config.pipeline).get(table, NOTHING_ASKED)
    asked, progress = control.snapshot, last_progress(store, config.pipeline, status)
    loads = running_snapshot(status, progress, asked) is not None
    requested = is_unbegun(status, progress, asked)
    refuse_meanwhile(config, table, loads=loads or requested)


def _show_rewind(
    config: Config, one: _Standing, offsets: Mapping[int, int], output: OutputFormat, *, steps: bool
) -> None:
    applied = one.applied.partitions if one.applied is not None else {}
    alive = worker_is_alive(config)
    if output is OutputFormat.JSON:
        shown = [
            {"partition": number, "applied": applied[number].next_offset, "offset": offset}
            for number, offset in sorted(offsets.items())
        ]
        asked = {"table": one.table._asdict(), "topic": one.topic, "partitions": shown}
        write_json({"pipeline": config.pipeline, "worker_alive": alive, "steps_back": steps, **asked})
        return
    for number, offset in sorted(offsets.items()):
        end = applied[number].applied_to
        typer.echo(
            f"{one.table}: partition {number} is read again from {offset} to {end}, {end - offset} offsets"
        )
    terminal.echo(
        "until this is done, rows may have earlier values. `tidesink status` shows the progress"
        if steps
        else "until this is done, existing rows stay as they are, and missing rows are written again"
    )
    typer.echo(
        "a worker is alive and handles the request at its next turn"
        if alive
        else "no worker runs. The next worker handles the request"
    )


class _Place(NamedTuple):
    """The destination of a rewind. Exactly one member is set."""

    partitions: dict[int, int]
    seconds: float | None
    commit_ts: int | None
    beginning: bool

    @classmethod
    def of(
        cls, to_offset: list[str], to_time: str | None, to_commit_ts: int | None, to_beginning: bool
    ) -> _Place:
        """Return the destination that the command's options give.

        Raises:
            ConfigError: no option or several options are given, or the value of one is wrong.
        """
        given = [bool(to_offset), to_time is not None, to_commit_ts is not None, to_beginning]
        if given.count(True) != 1:
            raise ConfigError(
                "Give exactly one of --to-offset PARTITION=OFFSET (repeatable), --to-time TIME, "
                "--to-commit-ts TSO and --to-beginning."
            )
        seconds = None if to_time is None else _seconds(to_time)
        return cls(dict(map(_partition, to_offset)), seconds, to_commit_ts, to_beginning)

    def offsets(
        self, standing: _Standing, status: TableStatus, brokers: KafkaOffsets, *, starts: Mapping[int, int]
    ) -> dict[int, int]:
        """Return, for each partition, the offset from which the table reads it again.

        ``starts``: for each partition, the offset at which the table began to read the topic.

        Raises:
            ConfigError: the table has applied no records since the given time, or Kafka may have deleted some
                of them.
        """
        from tidesink.sinks.kafka.offsets import started_at
        from tidesink.sinks.kafka.rewind import beginning, offsets_at, time_of_commit

        if self.partitions:
            return self.partitions
        assert standing.found is not None  # noqa: S101  (the caller has checked it)
        if self.beginning:
            return _with_warning(beginning(standing.applied, started_at(standing.found, starts)))
        seconds = self.seconds
        if self.commit_ts is not None:
            seconds = time_of_commit(self.commit_ts, status.commit_ts)
        assert seconds is not None  # noqa: S101  (one is given)
        return offsets_at(standing.applied, standing.found, brokers, seconds)


def _with_warning(offsets: dict[int, int]) -> dict[int, int]:
    late = ", ".join(f"{number} with {offset}" for number, offset in sorted(offsets.items()) if offset > 0)
    if late:
        warn(
            "Kafka no longer holds the earliest of these records, so they cannot be read again: "
            f"partition {late}"
        )
    return offsets


def _partition(text: str) -> tuple[int, int]:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--to-offset {text!r}: give PARTITION=OFFSET, such as 0=1200.")
    return int(match["partition"]), int(match["offset"])


def _seconds(text: str) -> float:
    try:
        return time_of(text).timestamp()
    except ValueError:
        raise ConfigError(f"--to-time {text!r}: give ISO 8601, such as 2026-11-26T08:00:00Z.") from None


for _name, _command in (("show", show), ("rewind", rewind)):
    app.command(_name)(terminal.guarded(_command))
