"""``tidesink dlq``: records that could not be decoded: list, look at, replay, forget."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import TypeAdapter, ValidationError

from tidesink.cli import exits, records
from tidesink.cli.decode import decoded_lines
from tidesink.cli.event_json import error_json
from tidesink.cli.failures import guarded
from tidesink.cli.human import human_lines
from tidesink.cli.known_tables import known_table, tables_worked_on
from tidesink.cli.observed import Observed
from tidesink.cli.options import ConfigOption, chosen_config, config_path
from tidesink.cli.output import Output, OutputFormat, console, note, show_table, write_json
from tidesink.cli.sources import setting
from tidesink.cli.status import seconds_since_turn
from tidesink.config import Config
from tidesink.config.fields import PositiveDuration
from tidesink.errors import ConfigError, RegistryError
from tidesink.events import Message, TableId

if TYPE_CHECKING:
    from pathlib import Path

    from tidesink.sinks.kafka.letter_store import Chosen
    from tidesink.sinks.replay import ReplayReport

app = typer.Typer(
    help="Dead letters: records that could not be decoded.", no_args_is_help=True, rich_markup_mode=None
)

_COLUMNS: Final = ("table", "error", "count", "first", "last", "where")
_DURATION: Final[TypeAdapter[float]] = TypeAdapter(PositiveDuration)


def list_letters(
    table: records.AnyTable = None, config: ConfigOption = None, output: Output = OutputFormat.TEXT
) -> None:
    """Count the dead letters by table, error and partition, with the time and the place of the first and
    last of each."""
    from tidesink.sinks.kafka.letter_store import Chosen, dead_letters_of

    settings = chosen_config(None, config)
    letters = dead_letters_of(settings)
    groups, place = letters.groups(Chosen(settings.pipeline, table)), letters.place
    if output is OutputFormat.JSON:
        known = tables_worked_on(settings)
        shown = [records.group_json(group, kind="error", known=known) for group in groups]
        write_json({"pipeline": settings.pipeline, "place": place, "dead_letters": shown})
    elif not groups:
        typer.echo(f"no dead letters of {table or settings.pipeline} in {place}")
    else:
        show_table(None, _COLUMNS, map(records.group_row, groups))


def show(
    table: records.TableArgument,
    place: records.PlaceArgument,
    config: ConfigOption = None,
    topic_id: records.TopicId = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show one dead letter: why it is one, its bytes, and what the codec says of it today.

    Exit code 1 where there is none at this place.
    """
    settings = chosen_config(None, config)
    row = _one(settings, records.chosen_record(settings.pipeline, table, place, topic_id), place)
    decoded = _decoded(row, config_path(None, config))
    if output is OutputFormat.JSON:
        write_json({**records.record_json(row, tables_worked_on(settings)), "decoded": decoded})
        return
    typer.echo(f"{row['table']}  {records.place_of(row)}  {records.shown_moment(row['time'])}")
    typer.echo(f"{row['error']}: {row['reason']}")
    records.echo_bytes(row)
    typer.echo("today:")
    for event in decoded:
        for text in human_lines(event):
            console().print(f"  {text}")


def drop(
    table: records.AnyTable = None,
    place: Annotated[
        str | None, typer.Argument(metavar="[PLACE]", help="One letter: PARTITION@OFFSET.")
    ] = None,
    *,
    config: ConfigOption = None,
    everything: Annotated[bool, typer.Option("--all", help="The letters of every table.")] = False,
    error: Annotated[str | None, typer.Option(help="Only those of this error, such as FramingError.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only those whose Kafka timestamp is older than this: 90m, 12h, 168h.")
    ] = None,
    below: Annotated[
        int | None, typer.Option(help="Only those of offsets below this one, in every partition.")
    ] = None,
    topic_id: records.TopicId = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Drop dead letters for good: of a table, one of them, or with --all of every table. Asks first.

    Where nobody can be asked, --yes is needed, else nothing is dropped: exit code 2.
    """
    from tidesink.sinks.kafka.letter_store import counted, dead_letters_of

    settings = chosen_config(None, config)
    chosen = _to_drop(settings, table, place, topic_id, everything=everything)
    if place is None:
        before = None if older_than is None else datetime.now(timezone.utc) - _age(older_than)
        chosen = replace(chosen, before=before, below=below, kind=records.error_name(error))
    elif (error, older_than, below) != (None, None, None):
        raise ConfigError("a place names one letter: what narrows the choice has no effect with it")
    letters = dead_letters_of(settings)
    groups = letters.groups(chosen)
    if place is not None:
        records.check_one_topic(((group.topic, group.topic_id) for group in groups), place)
    count = counted(groups)
    if count and not yes:
        count = count if _agreed(count, letters.place) else 0
    dropped = letters.remove(chosen) if count else 0
    if output is OutputFormat.JSON:
        write_json({"pipeline": settings.pipeline, "dropped": dropped})
    else:
        typer.echo(f"{dropped} dead letters dropped")


def replay(
    table: records.TableArgument,
    place: Annotated[
        str | None, typer.Argument(metavar="[PLACE]", help="One letter: PARTITION@OFFSET.")
    ] = None,
    *,
    config: ConfigOption = None,
    error: Annotated[str | None, typer.Option(help="Only those of this error, such as FramingError.")] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Decode a table's dead letters again, by the config and the schemas of today, and apply them.

    A newer change of the same row that was applied wins. What is dealt with is a dead letter no more; the
    others stay, with today's reason. No worker may run. Exit code 3 where some letters stay.
    """
    from tidesink.sinks.kafka.letter_store import Chosen
    from tidesink.sinks.replay import replay as replayed

    settings = chosen_config(None, config)
    table = _judged(settings, table)
    chosen = replace(
        records.chosen_record(settings.pipeline, table, place) if place else Chosen(settings.pipeline, table),
        kind=records.error_name(error),
    )
    note(f"{settings.pipeline}: starting Spark")
    report = replayed(settings, chosen)
    if output is OutputFormat.JSON:
        write_json(_replay_json(report))
    else:
        _show_replay(report)
    if report.left:
        raise typer.Exit(exits.UNWELL)


def _judged(config: Config, name: str) -> str:
    """The table of a name, by what is known without Spark: its mode, and whether a worker is at work.

    Raises:
        ConfigError: it is none, or takes no replay.
        StaleProgressError: a worker of the pipeline runs.
    """
    from tidesink.sinks.replay import refuse_replay

    worked_on = tables_worked_on(config)
    if worked_on:
        table = known_table(name, config, worked_on)
    else:  # the state store is new, or was lost: letters may be there all the same
        table = TableId(*name.partition(".")[::2])
        if not all(table):
            raise ConfigError(f"{name!r} is no table: give it as schema.table")
    refuse_replay(config, table, seconds_since_turn(config))
    return str(table)


def _replay_json(report: ReplayReport) -> dict[str, Any]:
    counts = report.account.as_counters()
    still_bad = counts.pop("dead_lettered")
    left = {name: getattr(report, name) for name in ("waiting", "expired", "former")}
    told = {"still_bad": still_bad, **left, "version": report.version}
    return {"table": report.table._asdict(), **counts, **told}


def _show_replay(report: ReplayReport) -> None:
    shown = _replay_json(report)
    names = ("table", "read", "applied", "superseded", "filtered", "still_bad")
    columns = [name.replace("_", " ") for name in names]
    show_table(None, columns, [[str(report.table), *(shown[name] for name in names[1:])]])
    for name, meaning in _LEFT:
        if shown[name]:
            typer.echo(f"{shown[name]} letters stay: {meaning}")


_LEFT: Final = (
    ("still_bad", "they cannot be decoded today either; tidesink dlq show says why"),
    ("waiting", "they lie behind what is applied, so that the worker reads them by itself"),
    (
        "expired",
        "Kafka no longer holds all that was applied behind them, so that nobody can tell whether a newer "
        "change of their row was. Compare the row with the source, let it be written again there, and drop "
        "the letter",
    ),
    (
        "former",
        "their topic was deleted and made again under its name, so that nobody can tell whether a newer "
        "change of their row was applied. Compare the row with the source, and drop the letter "
        "(dlq drop TABLE --topic-id ID)",
    ),
)


def _to_drop(
    config: Config, table: str | None, place: str | None, topic_id: str | None, *, everything: bool
) -> Chosen:
    from tidesink.sinks.kafka.letter_store import Chosen

    if (table is None) != everything:
        raise ConfigError("whose dead letters? Give either a table, schema.table, or --all")
    if place is None or table is None:
        return Chosen(config.pipeline, table, topic_id=topic_id)
    return records.chosen_record(config.pipeline, table, place, topic_id)


def _age(text: str) -> timedelta:
    try:
        return timedelta(seconds=_DURATION.validate_python(text))
    except ValidationError as exc:
        raise ConfigError(f"--older-than {text}: give a number with a unit: 90m, 12h, 168h") from exc


def _agreed(count: int, place: str) -> bool:
    """What a person says; asked on stderr, since stdout is for the answer."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{count} dead letters in {place} would be dropped for good: say --yes to do it")
    return typer.confirm(f"Drop {count} dead letters in {place} for good?", err=True)


def _one(config: Config, chosen: Chosen, place: str) -> dict[str, Any]:
    """The letter at a place.

    Raises:
        ConfigError: there are several.
        NotKeptError: there is none.
    """
    from tidesink.sinks.kafka.letter_store import dead_letters_of

    letters = dead_letters_of(config)
    found = letters.rows(chosen, limit=2)
    records.check_one_topic(((row["topic"], row["topic_id"]) for row in found), place)
    if not found:
        raise records.not_kept("dead letter", chosen, command="tidesink dlq list", store=letters.place)
    return found[0]


def _decoded(row: dict[str, Any], config: Path) -> list[dict[str, Any]]:
    """What the codec says of a letter's bytes today; the reason where it cannot be asked."""
    message = Message(row["topic"], row["partition"], row["offset"], row["key"], row["value"])
    found = setting(
        protocol=None, given={}, schemas=None, schema_registry=None, definitions=None, config=config
    )
    codec = found.open_codec()
    try:
        return list(decoded_lines(codec, message, Observed(found)))
    except RegistryError as error:
        return [error_json(error, message)]


for _name, _command in (("list", list_letters), ("show", show), ("drop", drop), ("replay", replay)):
    app.command(_name)(guarded(_command))
