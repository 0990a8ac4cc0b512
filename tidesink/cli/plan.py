"""``tidesink init``, ``validate`` and ``plan``: the config file, before any worker runs.

``init`` writes a commented config to start from, or the config that reads a changefeed, which is given by
its sink URI and its file; the template is beside this module. ``validate`` says per field what is wrong and
what to do; with ``--connect`` also which servers answer. ``plan`` says what the worker would do with each
table, and what would be lost.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from enum import Enum
from importlib.resources import files
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
import yaml

from tidesink.cli import terminal
from tidesink.cli.new_config import (
    TARGET_VARIABLE,
    Target,
    TargetType,
    Topics,
    found_topics,
    target_section,
    words_of,
)
from tidesink.cli.sources import definitions_of, protocol_named
from tidesink.cli.status import UNWELL_STATES, left_to_spark, read_statuses
from tidesink.cli.terminal import (
    DEFAULT_CONFIG,
    ConfigArgument,
    ConfigOption,
    Output,
    OutputFormat,
    chosen_config,
    config_path,
    console,
    error_block,
    note,
    show_table,
    write_json,
)
from tidesink.codecs import CODECS
from tidesink.config import Config, Problem, check_config, parse_config
from tidesink.config.changefeed import (
    CLAIM_CHECK_VARIABLE,
    KAFKA_VARIABLE,
    REGISTRY_VARIABLE,
    Changefeed,
    pipeline_draft,
    read_changefeed,
    read_toml_file,
)
from tidesink.config.fields import without_secrets
from tidesink.config.models import carries_ddl, keeps_bad_records
from tidesink.config.table_checks import unreported_changes
from tidesink.dev.stack import DIRECTORY, StackAddresses, running_stack
from tidesink.errors import ConfigError, SchemaNotFoundError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.worker.preflight import Goals

if TYPE_CHECKING:
    from tidesink.cli.record_types import TypesFrom
    from tidesink.cli.table_plans import TablePlan
    from tidesink.sinks.state.progress import TableStatus


# What stands in other places of the template, or is written by lines of its own.
_ELSEWHERE: Final = ("brokers", "protocol", "topics", "kafka")
_KAFKA_EXAMPLE: Final = """\
  # Kafka client properties:
  # kafka:
  #   security.protocol: SASL_SSL
  #   sasl.mechanism: SCRAM-SHA-512
  #   sasl.username: tidesink
  #   sasl.password: ${env:KAFKA_PASSWORD}
  #   ssl.ca.location: ca.pem
"""
_TABLES_EXAMPLE: Final = """\
# tables:
#   - name: shop.orders
#     keys: [id]         # @keys@
#     deletes: soft
#   - name: shop.customers
#     except_column_list: [card_number]        # or columns: [id, name, ...]
#     rename: {total: amount}                  # source: target
#     filter: "status <> 'draft'"              # rows for which it is true (docs/how-to-columns.md)
#   - match: "audit.*"
#     bad-record: dead-letter
"""


class _Around(NamedTuple):
    """What a new config says beside its source: ``found`` are lines about the topics that are there."""

    pipeline: str
    target: Target
    found: str = ""


def _filled(
    source: Mapping[str, Any], codec: str, tables: Sequence[Mapping[str, Any]], around: _Around
) -> str:
    """The template with every place filled; ``codec`` is whole lines."""
    kafka = source.get("kafka")
    words = words_of(source["protocol"])
    values = {
        **words._asdict(),
        "pipeline": scalar(around.pipeline),
        "target": around.target.lines.removesuffix("\n"),
        "called": around.target.called,
        "found": around.found,
        **{name: scalar(source[name]) for name in ("brokers", "protocol", "topics")},
        "codec": codec,
        "kafka": _lines("Kafka client properties", {"kafka": kafka}) if kafka else _KAFKA_EXAMPLE,
        "tables": _yaml({"tables": tables}) if tables else _TABLES_EXAMPLE.replace("@keys@", words.keys),
    }
    text = (files("tidesink.cli") / "pipeline.yaml").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda place: values[place[1]], text)


def scalar(value: Any) -> str:
    """A value as YAML on one line; a reference such as ``${env:NAME}`` stays as it is."""
    return _yaml(value, flow=True).removesuffix("...\n").rstrip("\n")


def _lines(heading: str, settings: Mapping[str, Any]) -> str:
    """Settings of the source behind a comment."""
    return indent(f"# {heading}:\n" + (_yaml(settings) if settings else ""), "  ")


def _yaml(value: Any, *, flow: bool = False) -> str:
    found: str = yaml.safe_dump(
        value, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return found


def _checked(text: str) -> str:
    """The text itself, if it is a correct config.

    Files that it names and variables that it refers to need not exist yet.

    Raises:
        ConfigError: a pipeline cannot use something in the changefeed; the message lists all of it.
    """
    names = (KAFKA_VARIABLE, REGISTRY_VARIABLE, CLAIM_CHECK_VARIABLE, TARGET_VARIABLE)
    unset = dict.fromkeys(names, "-")
    _, problems = parse_config(yaml.safe_load(text), base=Path(), environment=unset)
    left = [one for one in problems if not one.field.startswith("source.kafka.ssl.")]
    if left:
        lines = ["the config would be wrong:", *(f"  {one}" for one in left)]
        raise ConfigError("\n".join(lines))
    return text


class Producer(str, Enum):
    """Which TiCDC a changefeed runs on."""

    CLASSIC = "classic"
    NEW = "new"


SinkUri = Annotated[
    str | None,
    typer.Option(
        "--sink-uri",
        envvar="TIDESINK_SINK_URI",
        show_envvar=False,
        help="The changefeed's sink URI. TIDESINK_SINK_URI keeps its passwords out of the shell's history.",
    ),
]
ChangefeedFile = Annotated[Path | None, typer.Option("--changefeed", help="The changefeed's TOML file.")]
ProducerOption = Annotated[
    Producer, typer.Option("--producer", help="Which TiCDC runs it: classic, or the new architecture.")
]
Definitions = Annotated[
    Path | None, typer.Option("--table-definition", help="SQL DDL: gives the tables' keys and indexes.")
]


def changefeed_of(sink_uri: str | None, file: Path | None, producer: Producer) -> Changefeed:
    """The changefeed that a command line describes.

    Raises:
        ConfigError: there is no sink URI, the file cannot be read, or it cannot be read.
    """
    if sink_uri is None:
        raise ConfigError("a changefeed needs --sink-uri, which has its brokers, topic and protocol")
    settings = read_toml_file(file) if file is not None else None
    return read_changefeed(sink_uri, settings, producer=producer.value)


_DEFAULT = StackAddresses("127.0.0.1:9092", "http://127.0.0.1:8081")

# What a new config says of a protocol's own settings.
_CODEC = {
    "flat-avro": """\
  # The schema registry that the changefeed writes to.
  schema-registry: @registry@
  # As in the changefeed:
  enable-tidb-extension: false
  avro-decimal-handling-mode: precise         # precise | string
  avro-bigint-unsigned-handling-mode: long    # long | string
""",
    "canal-json": """\
  # As in the changefeed:
  enable-tidb-extension: false
  content-compatible: false
""",
    "debezium-avro": """\
  # The schema registry that the connector's converter writes to.
  schema-registry: @registry@
""",
    "debezium-json": """\
  # Where the converter leaves schemas out (schemas.enable: false), give a definition of each table under
  # tables, and the connector's handling modes:
  # debezium:
  #   decimal-handling-mode: precise
  #   time-precision-mode: adaptive_time_microseconds    # PostgreSQL: adaptive
""",
}


def init(
    *,
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = DEFAULT_CONFIG,
    protocol: Annotated[
        str | None,
        typer.Option(
            help=f"What TiCDC or Debezium writes, flat-avro if not given: {', '.join(CODECS)}. Debezium's "
            "connectors write the last two."
        ),
    ] = None,
    sink_uri: SinkUri = None,
    changefeed: ChangefeedFile = None,
    table_definition: Definitions = None,
    producer: ProducerOption = Producer.CLASSIC,
    pipeline: Annotated[str, typer.Option(help="A name for this pipeline.")] = "shop",
    brokers: Annotated[str | None, typer.Option(help="Kafka bootstrap servers.")] = None,
    schema_registry: Annotated[str | None, typer.Option(help="The registry's URL.")] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="The target: a lake's root or warehouse, or a URL (postgresql://, mysql://, kafka://, "
            "https://), whose scheme chooses the type; ./lake if not given."
        ),
    ] = None,
    target_type: Annotated[
        TargetType | None, typer.Option(help="The target's type; if not given, that of --target, or delta.")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="The folder of `tidesink dev up` whose servers are to be named."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Write a commented config to start from.

    With --sink-uri (and --changefeed, its TOML) it reads that changefeed, and names the changefeed's
    brokers, topics and options. Passwords become references. A changefeed that a pipeline cannot read, or
    whose order would be lost, is refused with the reason. TiCDC itself checks the other options.

    Without --sink-uri, --brokers and --schema-registry, the config names the servers that `tidesink dev up`
    started in this folder or one below it, or in --dir; if none run, 127.0.0.1:9092 and
    http://127.0.0.1:8081. If the broker answers, its topics are listed, and for Debezium the rule of topics
    follows from their names.
    """
    if file.exists() and not force:
        raise ConfigError(f"{file} is there already: give another name, or --force to replace it")
    section = target_section(target, target_type)
    around = _Around(pipeline, section)
    notes = [*section.notes]
    if sink_uri is None and changefeed is None:
        named = protocol_named(protocol or "flat-avro")
        addresses = _addresses(brokers, schema_registry, directory)
        topics = found_topics(addresses.brokers, named)
        notes += topics.notes
        text = _example(named, addresses, topics, around._replace(found=topics.comment))
    else:
        if protocol is not None or schema_registry is not None:
            raise ConfigError("--protocol and --schema-registry are in the sink URI: remove them here")
        feed = changefeed_of(sink_uri, changefeed, producer)
        draft = pipeline_draft(feed, definitions_of(table_definition, None))
        draft.source["brokers"] = brokers or draft.source["brokers"]
        options = {name: value for name, value in draft.source.items() if name not in _ELSEWHERE}
        text = _filled(draft.source, _lines("As in the changefeed", options), draft.tables, around)
        notes += draft.notes
    _write(file, _checked(text))
    if output is OutputFormat.JSON:
        write_json({"file": str(file), "notes": notes})
        return
    for one in notes:
        note(f"note: {one}")
    typer.echo(f"wrote {file}; next: tidesink validate {file} --connect, then tidesink plan {file}")


def _example(protocol: str, addresses: StackAddresses, topics: Topics, around: _Around) -> str:
    rules = topics.rules[0] if len(topics.rules) == 1 else [*topics.rules]
    source = {"brokers": addresses.brokers, "protocol": protocol, "topics": rules}
    codec = _CODEC.get(protocol, "").replace("@registry@", scalar(addresses.registry_url))
    return _filled(source, codec, [], around)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error


def _addresses(brokers: str | None, registry: str | None, directory: Path | None) -> StackAddresses:
    """The addresses of the options, or else of the running local stack.

    Raises:
        ConfigError: none runs in ``directory``.
    """
    if brokers is None and registry is None:
        for folder in [directory] if directory is not None else _stack_folders():
            local = running_stack(folder)
            if local is not None:
                note(
                    f"{folder} runs a local stack, the config names it: {local.brokers}, {local.registry_url}"
                )
                return local
        if directory is not None:
            raise ConfigError(
                f"no broker and registry of `tidesink dev up` run in {directory}: start them with "
                f"`tidesink dev up --dir {directory}`, or give --brokers"
            )
        note(
            f"the config names {_DEFAULT.brokers} and {_DEFAULT.registry_url}: no servers of `tidesink dev "
            "up` run in this folder. --dir names theirs, --brokers and --schema-registry name others"
        )
    return StackAddresses(brokers or _DEFAULT.brokers, registry or _DEFAULT.registry_url)


def _stack_folders() -> list[Path]:
    """Where ``dev up`` may have started servers: its default, and the folders here (``dev up --dir``)."""
    with suppress(OSError):
        return [DIRECTORY, *sorted(one for one in Path().iterdir() if one.is_dir())]
    return [DIRECTORY]


_REPORTED: Final[dict[TypesFrom, str]] = {
    "definition": "of the definition in the config",
    "ddl": "of the topic's own DDL",
    "avro": "inferred from the Avro schemas alone, whose types are wide: text is CHAR or VARCHAR too",
    "records": "of the schemas in the records",
    "database": "of the table's definition in source.database",
    "rows": "of the type names in the rows, without digits, lengths or members",
    "nothing": "none: the records have no schemas, so columns are text",
}

_SORTS: Final = {"dead_letters": "dead letters", "ddl_events": "DDL events"}
# Tables named of those that may meet a limit.
_NAMED: Final = 3


def plan(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    *,
    sample: Annotated[
        int,
        typer.Option(
            min=1,
            help="Records of each topic to look at for columns, from its first on. Of flat-avro the registry "
            "has all columns.",
        ),
    ] = 2000,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show what a worker would do with each table.

    Each table has its topic, its columns with types and reasons, its key, its policies, and what the
    target cannot do for it. It starts no Spark and does not connect to the target. The exit code is 2 if
    a table needs something that the config does not give, if the target cannot have such a table, or if
    there can be no topic for dead letters.
    """
    # Here, since every command imports this module: the targets' libraries take a second to load.
    from tidesink.cli.table_plans import (
        by_topics,
        sample_warning,
        table_plans,
        unserved_tables,
        with_quiet_tables,
        with_snapshots,
    )

    settings = chosen_config(config, config_option)
    plans_of_records = table_plans(settings, sample=sample)
    found = with_snapshots(settings, by_topics(settings, with_quiet_tables(settings, plans_of_records)))
    statuses: dict[TableId | None, TableStatus] = {one.table: one for one in read_statuses(settings)}
    plans = [
        with_standing(settings, with_merge_reason(one, statuses.get(one.table)), statuses.get(one.table))
        for one in distinct_targets(settings, found)
    ]
    unserved = list(unserved_tables(settings, plans))
    cut_short = sample_warning(plans)
    unserved += [cut_short] if cut_short is not None else []
    unreported = list(unreported_changes(settings))
    letters = letters_topic(settings)
    if output is OutputFormat.JSON:
        tables = [{**entry.as_json(), **_counted(statuses.get(entry.table))} for entry in plans]
        more = {"warnings": unserved, "untold": unreported, "kept": stored_records(settings)}
        reported = {"pipeline": settings.pipeline, "target": settings.target.type, "tables": tables}
        write_json({**reported, **more, "dead_letters_problem": letters.refused})
    else:
        _show_plans(settings, plans, statuses)
        for warning in unserved:
            terminal.echo(f"warning: {warning}")
        for text, named in limits_of(plans):
            terminal.echo(f"{settings.target.type}: {text} ({named})")
        for remark in unreported:
            typer.echo(f"changes of columns: {remark}")
        for sort, place in stored_records(settings).items():
            state = f", which {letters.state}" if sort == "dead_letters" and letters.state else ""
            typer.echo(f"{_SORTS[sort]}: stored in {place}{state}")
        if letters.refused is not None:
            typer.echo(f"dead letters: PROBLEM: {letters.refused}")
    if letters.refused is not None or any(entry.problem for entry in plans):
        raise typer.Exit(terminal.USAGE)


def stored_records(config: Config) -> dict[str, str]:
    """Where dead letters and DDL events are stored, of the sorts there may be."""
    from tidesink.sinks.kafka.dead_letters import dead_letters_of

    found = {}
    if keeps_bad_records(config):
        found["dead_letters"] = dead_letters_of(config).place
    if carries_ddl(config.source):
        found["ddl_events"] = without_secrets(config.state)
    return found


class LettersTopic(NamedTuple):
    """What was found of the topic of dead letters: ``refused`` says why it cannot be written to."""

    state: str = ""
    refused: str | None = None


def letters_topic(config: Config) -> LettersTopic:
    """Ask the broker about the topic of dead letters; both fields are empty if none is needed."""
    from tidesink.sinks.kafka.dead_letters import check_topic, dead_letters_of

    if not keeps_bad_records(config):
        return LettersTopic()
    try:
        return LettersTopic(check_topic(dead_letters_of(config).topic).shown)
    except TidesinkError as error:
        return LettersTopic(refused=str(error))


def limits_of(plans: Iterable[TablePlan]) -> Iterator[tuple[str, str]]:
    """What the target cannot do, each thing once, with the tables that may meet it."""
    tables_of: dict[str, list[str]] = {}
    possible = [entry for entry in plans if entry.limits]
    for entry in possible:
        for limit in entry.limits:
            tables_of.setdefault(limit.text, []).append(str(entry.table))
    for text, tables in tables_of.items():
        more = f" and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
        named = "every table" if len(tables) == len(possible) else ", ".join(tables[:_NAMED]) + more
        yield text, named


def distinct_targets(config: Config, plans: Iterable[TablePlan]) -> list[TablePlan]:
    """The plans, with the problem of those that would overwrite another's rows at the target."""
    goals, found = Goals.of(config), []
    for entry in plans:
        refused = goals.refusal(entry.table) if entry.table is not None else None
        problem = entry.problem or (refused.message if refused else None)
        found.append(dataclasses.replace(entry, problem=problem))
    return found


def with_merge_reason(entry: TablePlan, status: TableStatus | None) -> TablePlan:
    """The plan, with why Spark writes the batches of a lake's table that is there, as its worker found it.

    The plan itself asks no target.
    """
    from tidesink.sinks.targets.base import Limit
    from tidesink.sinks.worker.control import PLACE

    left = left_to_spark(status) if status is not None else ""
    if status is None or not left or status.details.get(PLACE) != entry.path:
        return entry
    limit = Limit("merge", f"batches of the table that is there are {left}")
    return dataclasses.replace(entry, limits=(*entry.limits, limit))


_BEGINS: Final = (
    "start: {}: a table of which nothing is applied begins there; earlier records of its topic are not "
    "applied{}"
)
_BEGUN: Final = (
    "start: {} changes nothing: the table has begun. tidesink offsets rewind has it read its topic again"
)
_STANDS: Final = "The table is {}, as its worker reported last: {}"


def with_standing(config: Config, entry: TablePlan, status: TableStatus | None) -> TablePlan:
    """The plan, with where the table begins, and why it rests or fails, as its worker said last.

    The plan itself asks no target: whether the reason still holds, the worker finds out.
    """
    from tidesink.sinks.worker.starts import said_of

    if entry.table is None:
        return entry
    said = list[str]()
    settings = config.table_config(entry.table)
    begun = status is not None and status.batch > 0
    if settings.start != "earliest" and begun:
        said.append(_BEGUN.format(said_of(settings.start)))
    elif settings.start != "earliest":
        loads = ", and source.database gives its rows" if settings.snapshot == "initial" else ""
        said.append(_BEGINS.format(said_of(settings.start), loads))
    if status is not None and status.state in UNWELL_STATES and status.error:
        said.append(_STANDS.format(status.state, status.error))
    return dataclasses.replace(entry, warnings=(*said, *entry.warnings)) if said else entry


def _counted(status: TableStatus | None) -> dict[str, dict[str, int]]:
    """By column, how many dates became NULL so far, and between the readings of how many times was chosen."""
    if status is None:
        return {"zero_dates": {}, "ambiguous_times": {}}
    return {"zero_dates": dict(status.zero_dates), "ambiguous_times": dict(status.ambiguous_times)}


def _rows_lines(entry: TablePlan) -> Iterator[str]:
    """What rows the target gets: those of a snapshot, without which columns, and how they are read."""
    if entry.snapshot is not None:
        rows, size, ranges, key = entry.snapshot
        parts = "1 range" if ranges == 1 else f"{ranges} ranges"
        yield f"snapshot: about {rows:,} rows ({size / 2**20:,.1f} MiB), in {parts} of ({', '.join(key)})"
    if entry.omitted:
        yield f"left out: {', '.join(entry.omitted)}"
    if entry.read_as:
        yield f"deleted rows stay, marked; read it as: {entry.read_as}"


def _show_plans(
    config: Config, plans: list[TablePlan], statuses: Mapping[TableId | None, TableStatus]
) -> None:
    screen = console()
    if not plans:
        typer.echo(f"no topic fits {', '.join(config.source.topics)} yet")
    for entry in plans:
        screen.print(f"[bold]{entry.table or '(no table)'}[/bold]  from topic {entry.topic}")
        if entry.path:
            shard = f", as shard {entry.shard}" if entry.shard is not None else ""
            typer.echo(f"  to {entry.path}{shard}")
        for line in policy_lines(entry.policies):
            typer.echo(f"  {line}")
        if entry.types_from is not None:
            typer.echo(f"  source types: {_REPORTED[entry.types_from]}")
        if entry.columns:
            rows = [
                ("*" if column.key else "", column.name, column.source_type, column.target_type, column.note)
                for column in entry.columns
            ]
            names = ("key", "column", "source", "target", "note")
            show_table(None, names, rows, folded=("source", "note"))
        for line in _rows_lines(entry):
            typer.echo(f"  {line}")
        counted = _counted(statuses.get(entry.table))
        for column, count in counted["zero_dates"].items():
            typer.echo(f"  {count} dates of column {column} became NULL so far")
        for column, count in counted["ambiguous_times"].items():
            typer.echo(f"  {count} times of column {column} came twice so far, and may be the other")
        for warning in entry.warnings:
            terminal.echo(f"  warning: {warning}")
        if entry.problem:
            terminal.echo(f"  PROBLEM: {entry.problem}")
        typer.echo("")


def policy_lines(policies: Mapping[str, str]) -> Iterator[str]:
    """A table's policies; those of changes of columns and rows with a line for each policy they have."""
    changes = policies.get(_CHANGES, "")
    others = [f"{name}: {value}" for name, value in policies.items() if name != _CHANGES]
    if others:
        yield ", ".join(others)
    kinds = defaultdict[str, list[str]](list)
    for one in changes.split(", ") if changes else ():
        kind, _, policy = one.partition(" ")
        kinds[policy].append(kind)
    if kinds:
        yield f"{_CHANGES}:"
    for policy, named in kinds.items():
        yield f"  {policy}: {', '.join(named)}"


_CHANGES: Final = "schema-changes"


class Answer(NamedTuple):
    """Whether one external part, such as the broker, can be used, and what it answered."""

    part: str
    ok: bool
    detail: str


def validate(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect",
            help="Also check the broker, the registry, the state store, the target's path, the dead letters' "
            "topic, and whether the columns of debezium-json's first rows have types.",
        ),
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check the config. For each wrong field, show the reason and the remedy."""
    path = config_path(config, config_option)
    settings, problems = check_config(path)
    answers = list(_answers(settings)) if settings is not None and connect else []
    if output is OutputFormat.JSON:
        write_json(_report(path, problems, answers))
    else:
        _show_problems(path, problems, answers)
    if problems:
        raise typer.Exit(terminal.USAGE)
    if not all(answer.ok for answer in answers):
        raise typer.Exit(terminal.FAILED)


def _report(path: Path, problems: list[Problem], answers: list[Answer]) -> dict[str, Any]:
    return {
        "config": str(path),
        "ok": not problems and all(answer.ok for answer in answers),
        "problems": [problem._asdict() for problem in problems],
        "connections": [answer._asdict() for answer in answers],
    }


def _show_problems(path: Path, problems: list[Problem], answers: list[Answer]) -> None:
    if problems:
        count = "1 setting is wrong" if len(problems) == 1 else f"{len(problems)} settings are wrong"
        typer.echo(f"{path}: {count}", err=True)
        for problem in problems:
            typer.echo(f"  {problem.field}\n    {problem.reason}\n    -> {problem.remedy}", err=True)
        return
    typer.echo(f"{path}: every setting is right" + ("; asking what it names:" if answers else ""))
    # All on stdout: an order that is kept in a pipe. The exit code is for programs.
    for answer in answers:
        typer.echo(f"{answer.part}: {'ok' if answer.ok else 'FAILED'}, {answer.detail}")
    failed = [answer.part for answer in answers if not answer.ok]
    if failed:
        typer.echo(f"FAILED: {', '.join(failed)}")


def _answers(config: Config) -> Iterator[Answer]:
    checks: tuple[tuple[str, Callable[[Config], str]], ...] = (
        ("kafka", _kafka),
        ("registry", _registry),
        ("state store", _state_store),
        ("target", _target),
        ("dead letters", _dead_letters),
    )
    needless = {
        "registry": config.source.schema_registry is None,
        "dead letters": config.dead_letters.topic is None,
    }
    for part, check in checks:
        if needless.get(part):
            continue
        try:
            yield Answer(part, True, check(config))
        except TidesinkError as error:
            yield Answer(part, False, error_block(error).strip())
    if config.source.protocol == "debezium-json":
        yield from _types(config)


# Topics whose first rows are looked at.
_MOST_TOPICS: Final = 20


def _types(config: Config) -> Iterator[Answer]:
    """Whether the columns of the tables have types; an answer for each table that waits for them."""
    from tidesink.cli.record_types import check_first_row
    from tidesink.cli.sources import topic_names

    try:
        topics = config.topics_among(topic_names(config.source.confluent_properties()))
    except TidesinkError:
        return  # as the broker's own answer says
    problems = []
    for topic in topics[:_MOST_TOPICS]:
        try:
            check_first_row(config, topic)
        except TidesinkError as error:
            problems.append(Answer("types", False, error_block(error).strip()))
    if problems:
        yield from problems
    else:
        looked = min(len(topics), _MOST_TOPICS)
        yield Answer("types", True, f"the first rows of {looked} of {len(topics)} topics were looked at")


def _kafka(config: Config) -> str:
    from tidesink.cli.sources import topic_names

    return topics_read(config, topic_names(config.source.confluent_properties()))


def topics_read(config: Config, topics: Collection[str]) -> str:
    """Which of a broker's topics are read, and why the others are not.

    Raises:
        ConfigError: one that must be there is not.
    """
    missing = [topic for topic in config.fixed_topics if topic not in topics]
    if missing:
        raise ConfigError(f"the broker has no topic {', '.join(missing)}: check its name in the changefeed")
    read = config.topics_among(topics)
    if not read:
        return f"{len(topics)} topics, none fits {', '.join(config.source.topics)} yet"
    others = [topic for topic in sorted(topics) if topic not in read]
    return f"{len(read)} of {len(topics)} topics are read: {_some(read)}" + "".join(_unread(config, others))


# Topics named of a kind.
_SHOWN: Final = 5


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{', …' if names[_SHOWN:] else ''}"


def _unread(config: Config, topics: Iterable[str]) -> Iterator[str]:
    """The topics that are not read, by the reason why."""
    reasons: dict[str, list[str]] = {}
    for topic in topics:
        if topic == config.dead_letters.topic:
            reason = "the dead letters' own"
        elif topic == config.source.debezium.schema_change_topic:
            reason = "Debezium's schema changes, no rows"
        elif topic.startswith("__"):
            reason = "Kafka's own"
        else:
            reason = "no rule of source.topics fits"
        reasons.setdefault(reason, []).append(topic)
    for reason, names in reasons.items():
        yield f"; not read ({reason}): {_some(names)}"


def _registry(config: Config) -> str:
    with closing(config.source.open_registry()) as registry:
        try:
            return f"{len(registry.subjects())} subjects"
        except SchemaNotFoundError as error:
            raise ConfigError(f"this is no Confluent-compatible registry: {error.message}") from error


def _state_store(config: Config) -> str:
    from tidesink.sinks.state.sql_store import open_state_store

    with closing(open_state_store(config.state)) as store:
        store.try_write()
        return f"{len(store.statuses(config.pipeline))} tables known"


def _dead_letters(config: Config) -> str:
    from tidesink.sinks.kafka.dead_letters import check_topic, dead_letters_of

    topic = dead_letters_of(config).topic
    return f"{topic.place} {check_topic(topic).shown}"


def _target(config: Config) -> str:
    from tidesink.sinks.targets import target_module

    module = target_module(config.target)
    answer = module.try_target(config.target)
    tables = _known_tables(config)
    missing = module.PREFLIGHT.missing_grants(config, tables)
    if missing:
        raise ConfigError(
            f"{answer}; but the target's user lacks rights. As an administrator of the target, run:\n"
            + "".join(f"    {statement};\n" for statement in missing)
            + (f"  {_OWNS}" if any("OWNER TO" in one for one in missing) else "")
        )
    return answer


_OWNS: Final = (
    "Only a table's owner may add or widen its columns. If the user is not to own it, let no kind of the "
    "table's schema-changes be apply: schema-changes: {add: pause, widen: pause}"
)


def _known_tables(config: Config) -> tuple[TableId, ...]:
    """The tables that the pipeline writes, as far as names of topics, the config and the state store know."""
    from tidesink.cli.sources import topic_names

    found = {entry.table: None for entry in config.tables if entry.table is not None}
    with suppress(TidesinkError):
        topics = config.topics_among(topic_names(config.source.confluent_properties()))
        found |= {table: None for table in map(config.table_of_topic, topics) if table is not None}
    with suppress(TidesinkError):
        found |= {status.table: None for status in read_statuses(config)}
    return tuple(found)
