"""What ``dlq`` and ``ddl`` share: which records are meant, and how stored ones are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidesink.cli.capture import base64_text
from tidesink.cli.known_tables import named_table
from tidesink.config.fields import nearest
from tidesink.errors import ConfigError, NotKeptError, TidesinkError
from tidesink.events import TableId

if TYPE_CHECKING:
    from tidesink.sinks.kafka.letter_store import Chosen, RecordGroup

TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The source table, schema.table.")]
AnyTable = Annotated[
    str | None, typer.Argument(metavar="[TABLE]", help="The source table, schema.table; all if not given.")
]
PlaceArgument = Annotated[
    str, typer.Argument(metavar="PLACE", help="PARTITION@OFFSET, or TOPIC[PARTITION]@OFFSET.")
]
TopicId = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Kafka's id of the topic, where one was made again under its name: list -o json has it.",
    ),
]
Limit = Annotated[int, typer.Option("--max", min=1, help="Show so many records at most.")]

_PLACE: Final = re.compile(r"(?:(?P<topic>.+)\[(?P<inner>\d+)\]|(?P<partition>\d+))@(?P<offset>\d+)")
_DUMPED: Final = 512


def check_one_topic(topics: Iterable[tuple[str, str | None]], place: str) -> None:
    """Refuse a place of several topics, by name and id, one made again among them: it names no one record.

    Raises: ConfigError.
    """
    found = sorted({(topic, topic_id or "") for topic, topic_id in topics})
    if len(found) > 1:
        shown = ", ".join(f"{topic} ({topic_id or 'id not kept'})" for topic, topic_id in found)
        raise ConfigError(
            f"records of several topics are at {place}: {shown}. Say which one, as TOPIC[PARTITION]@OFFSET, "
            "and of a topic that was made again under its name with --topic-id"
        )


def chosen_record(pipeline: str, table: str, place: str, topic_id: str | None = None) -> Chosen:
    """The one record at a place.

    Raises:
        ConfigError: the place is none.
    """
    from tidesink.sinks.kafka.letter_store import Chosen

    found = _PLACE.fullmatch(place)
    if found is None:
        raise ConfigError(f"{place!r} is no place: give PARTITION@OFFSET, such as 0@17, or topic[0]@17")
    partition = int(found["inner"] or found["partition"] or 0)
    offset = int(found["offset"])
    return Chosen(pipeline, table, found["topic"], topic_id, partition=partition, offset=offset)


def error_name(text: str | None) -> str | None:
    """The error class that a person named; None where none is.

    Raises:
        ConfigError: there is no such class.
    """
    known = {name.lower(): name for name in _names_below(TidesinkError)}
    if text is None or text.lower() in known:
        return None if text is None else known[text.lower()]
    raise ConfigError(
        f"--error {text}: there is no such error{nearest(text, known.values())}; tidesink dlq list shows "
        "those of the letters, and docs/errors.md lists all"
    )


def _names_below(error: type[TidesinkError]) -> Iterator[str]:
    for below in error.__subclasses__():
        yield below.__name__
        yield from _names_below(below)


def not_kept(kind: str, chosen: Chosen, *, command: str, store: str) -> NotKeptError:
    """That no record of a kind is at the one place that was chosen."""
    place = f"partition {chosen.partition}, offset {chosen.offset} of {chosen.topic or 'any topic'}"
    return NotKeptError(
        f"no {kind} of table {chosen.table} at {place} is kept by pipeline {chosen.pipeline} in {store}: "
        f"{command} shows those there are"
    )


def shown_moment(moment: datetime | None) -> str:
    """A moment for people, UTC."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if moment else ""


def moment_json(moment: datetime | None) -> str | None:
    """A moment for programs."""
    return moment.astimezone(timezone.utc).isoformat() if moment else None


def record_json(row: Mapping[str, Any], known: Iterable[TableId]) -> dict[str, Any]:
    """A stored record as JSON, its bytes as base64; ``known`` are the pipeline's tables."""
    shown = {name: value for name, value in row.items() if name not in ("key", "value")}
    parts = {f"{name}_b64": base64_text(row[name]) for name in ("key", "value") if name in row}
    table = named_table(row["table"], known)._asdict()
    return {**shown, "table": table, "time": moment_json(row["time"]), **parts}


def place_of(row: Mapping[str, Any]) -> str:
    """Where a kept record is in Kafka."""
    return f"{row['topic']}[{row['partition']}]@{row['offset']}"


def group_json(group: RecordGroup, *, kind: str, known: Iterable[TableId]) -> dict[str, Any]:
    """Kept records of one table, partition and sort as JSON; ``known`` are the pipeline's tables."""
    return {
        "table": named_table(group.table, known)._asdict(),
        kind: group.kind,
        "topic": group.topic,
        "topic_id": group.topic_id,
        "partition": group.partition,
        "count": group.count,
        "first_offset": group.first_offset,
        "last_offset": group.last_offset,
        "first_time": moment_json(group.first_time),
        "last_time": moment_json(group.last_time),
    }


def group_row(group: RecordGroup) -> tuple[Any, ...]:
    """The same as a row of a table: table, sort, count, first, last, and where."""
    offsets = f"{group.first_offset}" + (f"-{group.last_offset}" if group.count > 1 else "")
    where = f"{group.topic}[{group.partition}]@{offsets}"
    times = shown_moment(group.first_time), shown_moment(group.last_time)
    return group.table, group.kind, group.count, *times, where


def bytes_lines(name: str, data: bytes | None) -> Iterator[str]:
    """A record's key or value: as text where it is one, else in hexadecimal digits."""
    if data is None:
        yield f"{name}: null"
        return
    text = _text(data)
    yield f"{name}: {len(data)} bytes"
    if text is not None:
        yield f"  {text}"
        return
    for at in range(0, min(len(data), _DUMPED), 16):
        part = data[at : at + 16]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"  {at:06x}  {part.hex(' '):<47}  {plain}"
    if len(data) > _DUMPED:
        yield f"  … {len(data) - _DUMPED} bytes more: -o json has them all"


def echo_bytes(row: Mapping[str, Any]) -> None:
    """Print the key and the value of a kept record."""
    for name in ("key", "value"):
        for line in bytes_lines(name, row[name]):
            typer.echo(line)


def _text(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text and text.isprintable() else None
