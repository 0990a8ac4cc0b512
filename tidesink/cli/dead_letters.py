"""``tidesink dlq``: commands that list, show, replay and drop records that could not be decoded."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidesink.cli import terminal
from tidesink.cli.codec import Observed, decoded_lines, human_lines
from tidesink.cli.json_lines import base64_text, error_json
from tidesink.cli.open_letters import note_open
from tidesink.cli.sources import setting
from tidesink.cli.status import (
    known_table,
    named_table,
    seconds_since_turn,
    shown_moment,
    tables_worked_on,
    worked_with,
)
from tidesink.cli.terminal import (
    ConfigOption,
    Output,
    OutputFormat,
    chosen_config,
    config_path,
    console,
    guarded,
    note,
    show_table,
    write_json,
)
from tidesink.config import Config
from tidesink.errors import (
    ConfigError,
    NotKeptError,
    RegistryError,
    StateStoreError,
    TidesinkError,
    nearest,
    type_change_way,
)
from tidesink.events import Message, TableId

if TYPE_CHECKING:
    from pathlib import Path

    from tidesink.sinks.letters.topic import Chosen, Letter, RecordGroup
    from tidesink.sinks.worker.replay import ReplayReport


TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The source table, schema.table.")]
AnyTable = Annotated[
    str | None, typer.Argument(metavar="[TABLE]", help="The source table, schema.table; the default is all.")
]
PlaceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[PLACE]",
        help="PARTITION@OFFSET, or TOPIC[PARTITION]@OFFSET; without it the command lists the places.",
    ),
]
TopicId = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Kafka's topic id, if the topic was created again under its name; see `list -o json`.",
    ),
]


app = typer.Typer(
    help="Dead letters: records that could not be decoded.", no_args_is_help=True, rich_markup_mode=None
)

_COLUMNS: Final = ("table", "error", "count", "first", "last", "where")


@app.command("list")
@guarded
def list_letters(
    table: AnyTable = None, config: ConfigOption = None, output: Output = OutputFormat.TEXT
) -> None:
    """Count the dead letters by table, error and partition.

    Each line shows one count, and the times and the offsets of the first and the last of its letters.
    """
    from tidesink.sinks.letters.topic import dead_letters_of

    settings = chosen_config(None, config)
    letters = dead_letters_of(settings)
    groups, location = letters.groups(chosen_records(settings.pipeline, table)), letters.place
    _note_open(settings, table, lambda: groups)
    if output is OutputFormat.JSON:
        tables = tables_worked_on(settings)
        shown = [group_json(group, tables) for group in groups]
        write_json({"pipeline": settings.pipeline, "place": location, "dead_letters": shown})
    elif not groups:
        typer.echo(f"no dead letters of {table or settings.pipeline} in {location}")
    else:
        show_table(None, _COLUMNS, map(group_row, groups))


@app.command()
@guarded
def show(
    table: TableArgument,
    place: PlaceArgument = None,
    config: ConfigOption = None,
    topic_id: TopicId = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show one dead letter.

    The output has the error, the record's bytes, the result of decoding them with the present config, and the
    next steps. Without a place (partition and offset) it lists the places of the table's newest 20 letters.
    The exit code is 1 if no letter is stored at the place.
    """
    settings = chosen_config(None, config)
    if place is None:
        _show_places(settings, table, topic_id, output)
        return
    row = _one(settings, chosen_records(settings.pipeline, table, place, topic_id), place)
    decoded = _decoded(row, config_path(None, config))
    if output is OutputFormat.JSON:
        write_json({**record_json(row, tables_worked_on(settings)), "decoded": decoded})
        return
    typer.echo(f"{row['table']}  {place_of(row)}  {shown_moment(row['time'])}")
    typer.echo(f"{row['error']}: {row['reason']}")
    for name in ("key", "value"):
        for line in bytes_lines(name, row[name]):
            typer.echo(line)
    typer.echo("decoded with the present config:")
    for event in decoded:
        for text in human_lines(event):
            console().print(f"  {text}")
    decodes = all(event.get("type") != "error" for event in decoded)
    for line in remedy_lines(row["table"], place, decodes=decodes):
        terminal.echo(line)
    for line in type_change_lines(row["table"], place, row["error"], row["reason"]):
        terminal.echo(line)


def type_change_lines(table: str, place: str, error: str, reason: str) -> Iterator[str]:
    """Yield a text line with the steps for a dead letter whose column may have another type at the source.

    ``error``, ``reason``: those of the letter.
    """
    replay = f"`tidesink dlq replay {shlex.quote(table)} {shlex.quote(place)}`"
    way = type_change_way(
        error, reason, f"stop the worker, run {replay}, and start the worker again (`tidesink run`)"
    )
    if way:
        yield f"      {way}"


def remedy_lines(table: str, place: str, *, decodes: bool) -> Iterator[str]:
    """Yield text lines with the next steps for a dead letter.

    ``decodes``: True if the codec of the present config can decode it.
    """
    letter = f" {shlex.quote(table)} {shlex.quote(place)}"
    if decodes:
        yield f"next: the record can be decoded now. `tidesink dlq replay{letter}` applies it"
        return
    yield (
        "next: if you can fix the cause (a missing schema, a table definition, a policy), fix it and run "
        f"`tidesink dlq replay{letter}`"
    )
    yield (
        "      If the record's bytes are broken, a replay cannot decode them. Repair the row instead: UPDATE "
        f"it in the source database, or run `tidesink resync {shlex.quote(table)} --key ...`. "
        f"Then run `tidesink dlq drop{letter}`"
    )


_MOST_PLACES: Final = 20


def _show_places(config: Config, table: str, topic_id: str | None, output: OutputFormat) -> None:
    """Print the newest dead letters of a table, each with its place (partition and offset)."""
    from tidesink.sinks.letters.topic import dead_letters_of

    letters = dead_letters_of(config)
    stored = letters.letters(chosen_records(config.pipeline, table, None, topic_id))
    if output is OutputFormat.JSON:
        tables = tables_worked_on(config)
        shown = [letter_json(letter, tables) for letter in stored]
        write_json({"pipeline": config.pipeline, "place": letters.place, "dead_letters": shown})
    elif not stored:
        typer.echo(f"no dead letters of {table} in {letters.place}")
    else:
        newest = stored[-_MOST_PLACES:]
        show_table(None, ("place", "time", "error", "reason"), map(_place_row, newest), folded=("reason",))
        if len(stored) > len(newest):
            typer.echo(f"and {len(stored) - len(newest)} earlier letters. Show all of them with -o json")
        last = place_of(newest[-1]._asdict())
        terminal.echo(f"to show one: tidesink dlq show {shlex.quote(table)} {shlex.quote(last)}")


def _place_row(letter: Letter) -> tuple[Any, ...]:
    from tidesink.sinks.letters.topic import moment

    return place_of(letter._asdict()), shown_moment(moment(letter.time)), letter.error, letter.reason


def letter_json(letter: Letter, known: Iterable[TableId]) -> dict[str, Any]:
    """Return a dead letter as JSON without its bytes.

    ``known``: the pipeline's tables, which show where a table's name divides into schema and table.
    """
    from tidesink.sinks.letters.topic import moment

    shown = {name: value for name, value in letter._asdict().items() if name != "at"}
    return record_json({**shown, "time": moment(letter.time)}, known)


@app.command()
@guarded
def drop(
    table: AnyTable = None,
    place: Annotated[
        str | None, typer.Argument(metavar="[PLACE]", help="One letter: PARTITION@OFFSET.")
    ] = None,
    *,
    config: ConfigOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Drop the letters of every table.")] = False,
    error: Annotated[
        str | None, typer.Option(help="Only letters of this error, such as FramingError.")
    ] = None,
    below: Annotated[
        int | None, typer.Option(help="Only letters at offsets below this one, in every partition.")
    ] = None,
    topic_id: TopicId = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Drop dead letters for good, after asking for confirmation.

    Give a table to drop its letters, a table and a place to drop one letter, or --all to drop the letters of
    every table. If stdin is not a terminal, the command cannot ask: without --yes it drops nothing and exits
    with 2.
    """
    from tidesink.sinks.letters.topic import dead_letters_of

    settings = chosen_config(None, config)
    if (table is None) != everything:
        raise ConfigError("Give either a table, as schema.table, or --all.")
    chosen = chosen_records(settings.pipeline, table, place, topic_id)
    if place is None:
        chosen = replace(chosen, below=below, kind=error_name(error))
    elif (error, below) != (None, None):
        raise ConfigError("A place names one letter, so --error and --below have no effect. Remove them.")
    letters = dead_letters_of(settings)
    groups = letters.groups(chosen)
    if place is not None:
        check_one_topic(((group.topic, group.topic_id) for group in groups), place)
    count = sum(group.count for group in groups)
    again = drop_command(table, place, {"--error": error, "--below": below, "--topic-id": topic_id})
    dropped = letters.remove(chosen) if count and (yes or confirmed(count, letters.place, again)) else 0
    if dropped:
        _note_open(settings, table, lambda: letters.groups(chosen_records(settings.pipeline, table)))
    if output is OutputFormat.JSON:
        write_json({"pipeline": settings.pipeline, "dropped": dropped})
    else:
        typer.echo(f"{_letters(dropped)} dropped")


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"


def drop_command(table: str | None, place: str | None, options: Mapping[str, Any]) -> str:
    """Return the command that drops the letters without a question. ``options``: values by name, or None."""
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    names = ["--all"] if table is None else [table, *([place] if place is not None else [])]
    return shlex.join(["tidesink", "dlq", "drop", *names, *given, "--yes"])


@app.command()
@guarded
def replay(
    table: TableArgument,
    place: Annotated[
        str | None, typer.Argument(metavar="[PLACE]", help="One letter: PARTITION@OFFSET.")
    ] = None,
    *,
    config: ConfigOption = None,
    error: Annotated[
        str | None, typer.Option(help="Only letters of this error, such as FramingError.")
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Decode a table's dead letters again, and apply them to the target.

    The records are decoded with the present config and schemas. A letter never overwrites a newer change of
    its row, nor a row that a resync read later. Letters that were applied or are outdated are removed; the
    others stay, with the new reason. Stop the pipeline's worker first. The exit code is 3 if letters stay.
    """
    from tidesink.sinks.letters.topic import dead_letters_of
    from tidesink.sinks.worker.replay import replay as replayed

    settings = chosen_config(None, config)
    table = _replayable_table(settings, table)
    chosen = replace(chosen_records(settings.pipeline, table, place), kind=error_name(error))
    note(f"{settings.pipeline}: starting Spark")
    report = replayed(settings, chosen)
    letters = dead_letters_of(settings)
    _note_open(settings, table, lambda: letters.groups(chosen_records(settings.pipeline, table)))
    if output is OutputFormat.JSON:
        write_json(_replay_json(report))
    else:
        _show_replay(report)
    if report.left:
        raise typer.Exit(terminal.UNWELL)


def _note_open(config: Config, table: str | None, groups: Callable[[], Iterable[RecordGroup]]) -> None:
    """Save the number of open dead letters, which ``tidesink status`` shows."""
    with suppress(ConfigError, StateStoreError), worked_with(config) as store:
        note_open(store, config.pipeline, table, groups)


def _replayable_table(config: Config, name: str) -> str:
    """Return the full name of the table that a user named, after checking that its letters can be replayed.

    The checks do not start Spark.

    Raises:
        ConfigError: no table has this name, or the table's mode does not support a replay.
        StaleProgressError: a worker of the pipeline is running.
    """
    from tidesink.sinks.worker.replay import refuse_replay

    worked_on = tables_worked_on(config)
    if worked_on:
        table = known_table(name, config, worked_on)
    else:  # the state store is new or was lost, so it cannot name the tables
        table = TableId(*name.partition(".")[::2])
        if not all(table):
            raise ConfigError(f"{name!r} is not a table's name. Give it as schema.table.")
    refuse_replay(config, table, seconds_since_turn(config))
    return str(table)


def _replay_json(report: ReplayReport) -> dict[str, Any]:
    counts = report.account.as_counters()
    still_bad = counts.pop("dead_lettered")
    names = ("settled", "waiting", "expired", "former", "unsure", "later")
    letters = {name: getattr(report, name) for name in names}
    reported = {"still_bad": still_bad, **letters, "version": report.version}
    return {"table": report.table._asdict(), **counts, **reported}


def _show_replay(report: ReplayReport) -> None:
    shown = _replay_json(report)
    names = ("table", "read", "applied", "superseded", "without_row", "still_bad")
    columns = [name.replace("_", " ") for name in names]
    show_table(None, columns, [[str(report.table), *(shown[name] for name in names[1:])]])
    for line in replay_lines(shown):
        terminal.echo(line, report.table)


def replay_lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield text lines about letters that a replay did not apply. ``counts``: their numbers by outcome."""
    if settled := counts["settled"]:
        were = "1 letter was" if settled == 1 else f"{settled} letters were"
        yield f"{were} removed without being applied: {_SETTLED}"
    for name, meaning in _LEFT:
        if left := counts[name]:
            yield f"{'1 letter stays' if left == 1 else f'{left} letters stay'}: {meaning}"


_SETTLED: Final = "a resync has read the rows from the source, including these changes"
_LEFT: Final = (
    ("still_bad", "decoding still fails. `tidesink dlq show TABLE` shows the reason"),
    ("waiting", "the worker has not applied the table up to their offsets, and will read them by itself"),
    (
        "expired",
        "Kafka no longer holds all records that were applied later, so a newer change of the same row may "
        "have been applied. Compare the row with the source. If it differs, UPDATE the row at the source. "
        "Then drop the letter (`tidesink dlq drop TABLE PLACE`)",
    ),
    (
        "former",
        "the topic was deleted and created again under the same name, so a newer change of the same row "
        "may have been applied. Compare the row with the source, and drop the letter "
        "(`tidesink dlq drop TABLE --topic-id ID`)",
    ),
    (
        "unsure",
        "a snapshot or resync read the rows from the source, and it is unknown whether these changes are in "
        "them. Wait until the snapshot or resync is done. Repair the rows (`tidesink resync TABLE`, or with "
        "--key for single rows). Then run the replay again, which removes the letters",
    ),
    (
        "later",
        "the source committed these changes after the time of the next cut, which must not contain them. Run "
        "the worker until it has published that cut, and run the replay again",
    ),
)


def confirmed(count: int, location: str, command: str) -> bool:
    """Ask the user on stderr whether the letters may be dropped. Stdout is only for the result.

    ``command``: the command that drops them without this question.

    Raises:
        ConfigError: stdin is not a terminal, so that nobody can answer.
    """
    if not sys.stdin.isatty():
        error = ConfigError(
            f"{_letters(count)} in {location} would be dropped for good, and nobody can be asked here. Add "
            "--yes to drop."
        )
        error.next_step = command
        raise error
    return typer.confirm(f"Drop {_letters(count)} in {location} for good?", err=True)


def _one(config: Config, chosen: Chosen, place: str) -> dict[str, Any]:
    """Return the dead letter at a place (partition and offset).

    Raises:
        ConfigError: several topics have a letter at this place.
        NotKeptError: no letter is stored at this place.
    """
    from tidesink.sinks.letters.topic import dead_letters_of

    letters = dead_letters_of(config)
    rows = letters.rows(chosen, limit=2)
    check_one_topic(((row["topic"], row["topic_id"]) for row in rows), place)
    if not rows:
        raise not_stored(chosen, letters.place)
    return rows[0]


def _decoded(row: dict[str, Any], config: Path) -> list[dict[str, Any]]:
    """Decode a dead letter's bytes with the codec of ``config``.

    Returns a decoded line per event, or one line of type error if the bytes cannot be decoded.
    """
    message = Message(row["topic"], row["partition"], row["offset"], row["key"], row["value"])
    codec_setting = setting({"config": config})
    codec = codec_setting.open_codec()
    try:
        return list(decoded_lines(codec, message, Observed(codec_setting)))
    except RegistryError as error:
        return [error_json(error, message)]


_PLACE: Final = re.compile(r"(?:(?P<topic>.+)\[(?P<inner>\d+)\]|(?P<partition>\d+))@(?P<offset>\d+)")
_DUMPED: Final = 256


def check_one_topic(topics: Iterable[tuple[str, str | None]], place: str) -> None:
    """Check that a place (partition and offset) identifies one record.

    ``topics``: name and id of each topic that has a record at the place. Two topics of the same name differ
    in their ids if the topic was deleted and created again.

    Raises:
        ConfigError: several topics have a record at the place.
    """
    distinct = sorted({(topic, topic_id or "") for topic, topic_id in topics})
    if len(distinct) > 1:
        shown = ", ".join(f"{topic} ({topic_id or 'id not stored'})" for topic, topic_id in distinct)
        raise ConfigError(
            f"Several topics have a record at {place}: {shown}. Give TOPIC[PARTITION]@OFFSET, and --topic-id "
            "for a topic that was created again under its name."
        )


def chosen_records(
    pipeline: str, table: str | None, place: str | None = None, topic_id: str | None = None
) -> Chosen:
    """Return a selection of dead letters: of a table, of all tables (None), or only the letter at ``place``.

    Raises:
        ConfigError: ``place`` is neither PARTITION@OFFSET nor TOPIC[PARTITION]@OFFSET.
    """
    from tidesink.sinks.letters.topic import Chosen

    if place is None:
        return Chosen(pipeline, table, topic_id=topic_id)
    match = _PLACE.fullmatch(place)
    if match is None:
        raise ConfigError(f"{place!r} is not a place. Give PARTITION@OFFSET, such as 0@17, or topic[0]@17.")
    partition, offset = int(match["inner"] or match["partition"] or 0), int(match["offset"])
    return Chosen(pipeline, table, match["topic"], topic_id, partition=partition, offset=offset)


def error_name(text: str | None) -> str | None:
    """Return the error class name that a user gave, in its exact upper and lower case; None for None.

    Raises:
        ConfigError: no error class has this name.
    """
    names = {name.lower(): name for name in _names_below(TidesinkError)}
    if text is None or text.lower() in names:
        return None if text is None else names[text.lower()]
    raise ConfigError(
        f"--error {text}: there is no such error{nearest(text, names.values())}. `tidesink dlq list` shows "
        "the errors of the letters, and docs/errors.md lists all errors."
    )


def _names_below(error: type[TidesinkError]) -> Iterator[str]:
    for below in error.__subclasses__():
        yield below.__name__
        yield from _names_below(below)


def not_stored(chosen: Chosen, store: str) -> NotKeptError:
    """Return the error for a place (partition and offset) at which no dead letter is stored."""
    position = f"partition {chosen.partition}, offset {chosen.offset} of {chosen.topic or 'any topic'}"
    return NotKeptError(
        f"Pipeline {chosen.pipeline} stores no dead letter of table {chosen.table} at {position} in {store}. "
        "`tidesink dlq list` lists its letters."
    )


def moment_json(moment: datetime | None) -> str | None:
    """Format a time as ISO 8601 in UTC; None stays None."""
    return moment.astimezone(timezone.utc).isoformat() if moment else None


def record_json(row: Mapping[str, Any], known: Iterable[TableId]) -> dict[str, Any]:
    """Return a stored record as JSON, with its bytes in base64.

    ``known``: the pipeline's tables, which show where a table's name divides into schema and table.
    """
    shown = {name: value for name, value in row.items() if name not in ("key", "value")}
    parts = {f"{name}_b64": base64_text(row[name]) for name in ("key", "value") if name in row}
    table = named_table(row["table"], known)._asdict()
    return {**shown, "table": table, "time": moment_json(row["time"]), **parts}


def place_of(row: Mapping[str, Any]) -> str:
    """Return a stored record's location in Kafka, as TOPIC[PARTITION]@OFFSET."""
    return f"{row['topic']}[{row['partition']}]@{row['offset']}"


def group_json(group: RecordGroup, known: Iterable[TableId]) -> dict[str, Any]:
    """Return a group of dead letters, which have the same table, partition and error, as JSON.

    ``known``: the pipeline's tables, which show where a table's name divides into schema and table.
    """
    shown = asdict(group)
    times = {name: moment_json(shown[name]) for name in ("first_time", "last_time")}
    return {
        "table": named_table(group.table, known)._asdict(),
        "error": shown.pop("kind"),
        **{name: value for name, value in shown.items() if name != "table"},
        **times,
    }


def group_row(group: RecordGroup) -> tuple[Any, ...]:
    """Return the cells of a group of dead letters: table, error, count, first and last time, and location."""
    offsets = f"{group.first_offset}" + (f"-{group.last_offset}" if group.count > 1 else "")
    where = f"{group.topic}[{group.partition}]@{offsets}"
    times = shown_moment(group.first_time), shown_moment(group.last_time)
    return group.table, group.kind, group.count, *times, where


def bytes_lines(name: str, data: bytes | None) -> Iterator[str]:
    """Yield text lines that show a record's key or value: as text if it is printable, else in hex digits."""
    if data is None:
        yield f"{name}: null"
        return
    yield f"{name}: {len(data)} bytes"
    if data:
        yield f"  {_text(data) or data[:_DUMPED].hex(' ')}"
    if _text(data) is None and len(data) > _DUMPED:
        yield f"  … {len(data) - _DUMPED} more bytes. -o json shows them all"


def _text(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text and text.isprintable() else None
