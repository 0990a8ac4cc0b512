"""``tidesink init``, ``validate`` and ``plan``: commands for the config file, before any worker runs.

``init`` writes a commented config from the template in this folder. Given a changefeed's sink URI and TOML
file, it writes the config that reads this changefeed's topics. ``validate`` shows the reason and the remedy
for each wrong setting, and with ``--connect`` also whether the servers answer. ``plan`` shows what the worker
would do with each table, and which values would be lost.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
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
from tidesink.errors import ConfigError, SchemaNotFoundError, TidesinkError, with_table
from tidesink.events import TableId
from tidesink.sinks.worker.preflight import Goals

if TYPE_CHECKING:
    from tidesink.cli.table_plans import TablePlan
    from tidesink.sinks.decode.schema_source import TypesFrom
    from tidesink.sinks.state.progress import TableStatus


# Settings of the source that the template has in other lines.
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
#     filter: "status <> 'draft'"              # rows that are copied (docs/how-to-columns.md)
#   - match: "audit.*"
#     bad-record: dead-letter
"""


class _Around(NamedTuple):
    """Parts of a new config other than its source. ``found``: comment lines that list the broker's topics."""

    pipeline: str
    target: Target
    found: str = ""


def _filled(
    source: Mapping[str, Any], codec: str, tables: Sequence[Mapping[str, Any]], around: _Around
) -> str:
    """Return the config: the template with its placeholders replaced.

    ``source``: settings of the source. ``codec``: the lines with the protocol's own settings. ``tables``:
    entries of the config's ``tables``.
    """
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
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)


def scalar(value: Any) -> str:
    """Return a value as YAML on one line. A reference such as ``${env:NAME}`` is not quoted."""
    return _yaml(value, flow=True).removesuffix("...\n").rstrip("\n")


def _lines(heading: str, settings: Mapping[str, Any]) -> str:
    """Return settings of the source as YAML lines, after a comment line with ``heading``."""
    return indent(f"# {heading}:\n" + (_yaml(settings) if settings else ""), "  ")


def _yaml(value: Any, *, flow: bool = False) -> str:
    text: str = yaml.safe_dump(
        value, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return text


def _checked(text: str) -> str:
    """Return a config's text unchanged after checking it.

    The files that the config names and the variables that it refers to need not exist yet.

    Raises:
        ConfigError: settings taken from the changefeed are not possible in a pipeline; the message lists all
            of them.
    """
    names = (KAFKA_VARIABLE, REGISTRY_VARIABLE, CLAIM_CHECK_VARIABLE, TARGET_VARIABLE)
    unset = dict.fromkeys(names, "-")
    _, problems = parse_config(yaml.safe_load(text), base=Path(), environment=unset)
    left = [problem for problem in problems if not problem.field.startswith("source.kafka.ssl.")]
    if left:
        lines = ["The config would have wrong settings:", *(f"  {problem}" for problem in left)]
        raise ConfigError("\n".join(lines))
    return text


class Producer(str, Enum):
    """The TiCDC architecture that runs a changefeed: classic or new."""

    CLASSIC = "classic"
    NEW = "new"


SinkUri = Annotated[
    str | None,
    typer.Option(
        "--sink-uri",
        envvar="TIDESINK_SINK_URI",
        show_envvar=False,
        help="The changefeed's sink URI. Set TIDESINK_SINK_URI to keep it out of the shell's history.",
    ),
]
ChangefeedFile = Annotated[Path | None, typer.Option("--changefeed", help="The changefeed's TOML file.")]
ProducerOption = Annotated[
    Producer, typer.Option("--producer", help="TiCDC that runs the changefeed: classic or new architecture.")
]
Definitions = Annotated[
    Path | None, typer.Option("--table-definition", help="SQL DDL with the tables' keys and indexes.")
]


def changefeed_of(sink_uri: str | None, file: Path | None, producer: Producer) -> Changefeed:
    """Read the changefeed that a command line describes.

    Raises:
        ConfigError: the sink URI is missing, or the file or a setting in it cannot be read.
    """
    if sink_uri is None:
        raise ConfigError("Give --sink-uri, which contains the changefeed's brokers, topic and protocol.")
    settings = read_toml_file(file) if file is not None else None
    return read_changefeed(sink_uri, settings, producer=producer.value)


_DEFAULT = StackAddresses("127.0.0.1:9092", "http://127.0.0.1:8081")

# Lines of a new config for a protocol's own settings.
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
  # If the converter leaves schemas out (schemas.enable: false), give each table's definition under tables,
  # and the connector's handling modes:
  # debezium:
  #   decimal-handling-mode: precise
  #   time-precision-mode: adaptive_time_microseconds    # PostgreSQL: adaptive
""",
}


def init(
    *,
    file: Annotated[Path, typer.Argument(help="The config file to write.")] = DEFAULT_CONFIG,
    protocol: Annotated[
        str | None,
        typer.Option(
            help=f"The protocol that TiCDC or Debezium writes: {', '.join(CODECS)}; the default is "
            "flat-avro. Debezium's connectors write debezium-json and debezium-avro."
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
            "https://) whose scheme determines the type; the default is ./lake."
        ),
    ] = None,
    target_type: Annotated[
        TargetType | None,
        typer.Option(help="The target's type; the default is that of --target, or delta."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Folder in which `tidesink dev up` started the servers that are used."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Write a commented config to start from.

    With --sink-uri (and --changefeed, its TOML file) the config has the brokers, topics and options of that
    changefeed. Passwords are replaced by references. The command fails if a pipeline cannot read the
    changefeed, or if the changefeed does not keep the order of changes. Other options are not checked.

    Without --sink-uri, --brokers and --schema-registry, the config names the servers that `tidesink dev up`
    started in this folder, in a folder in it, or in --dir. If no such servers run, it names 127.0.0.1:9092
    and http://127.0.0.1:8081. If the broker answers, a comment lists its topics, and for Debezium the topic
    rule is derived from the topics' names.
    """
    if file.exists() and not force:
        raise ConfigError(f"{file} exists already. Give another name, or --force to replace it.")
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
            raise ConfigError(
                "The sink URI contains the protocol and the registry. Remove --protocol and "
                "--schema-registry."
            )
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
    for remark in notes:
        note(f"note: {remark}")
    typer.echo(
        f"wrote {file}. Next: tidesink validate {shlex.quote(str(file))} --connect, then tidesink plan "
        f"{shlex.quote(str(file))}"
    )


def _example(protocol: str, addresses: StackAddresses, topics: Topics, around: _Around) -> str:
    rules = topics.rules[0] if len(topics.rules) == 1 else [*topics.rules]
    source = {"brokers": addresses.brokers, "protocol": protocol, "topics": rules}
    codec = _CODEC.get(protocol, "").replace("@registry@", scalar(addresses.registry_url))
    return _filled(source, codec, [], around)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from error


def _addresses(brokers: str | None, registry: str | None, directory: Path | None) -> StackAddresses:
    """Return the addresses of the broker and the registry for a new config.

    They are those of the options, else those of the local stack (``tidesink dev up``) if it runs, else the
    default addresses.

    Raises:
        ConfigError: no local stack runs in ``directory``.
    """
    if brokers is None and registry is None:
        for folder in [directory] if directory is not None else _stack_folders():
            local = running_stack(folder)
            if local is not None:
                note(
                    f"the config names the servers that `tidesink dev up` runs in {folder}: {local.brokers}, "
                    f"{local.registry_url}"
                )
                return local
        if directory is not None:
            raise ConfigError(
                f"No broker and registry of `tidesink dev up` run in {directory}. Start them with "
                f"`tidesink dev up --dir {shlex.quote(str(directory))}`, or give --brokers."
            )
        note(
            f"the config names {_DEFAULT.brokers} and {_DEFAULT.registry_url}, because no servers of "
            "`tidesink dev up` run in this folder. Give the folder of such servers with --dir, or other "
            "servers with --brokers and --schema-registry"
        )
    return StackAddresses(brokers or _DEFAULT.brokers, registry or _DEFAULT.registry_url)


def _stack_folders() -> list[Path]:
    """Return the folders in which ``dev up`` may run servers: its default, and each folder in this folder."""
    with suppress(OSError):
        return [DIRECTORY, *sorted(folder for folder in Path().iterdir() if folder.is_dir())]
    return [DIRECTORY]


_REPORTED: Final[dict[TypesFrom, str]] = {
    "definition": "from the definition in the config",
    "ddl": "from the topic's own DDL",
    "avro": "inferred from the Avro schemas, which are less precise: text may be CHAR or VARCHAR",
    "records": "from the schemas in the records",
    "database": "from the table's definition in source.database",
    "rows": "from the type names in the rows, which lack precisions, lengths and ENUM members",
    "nothing": "none: the records have no schemas, so columns are text",
}

_SORTS: Final = {"dead_letters": "dead letters", "ddl_events": "DDL events"}
# Number of tables that are named with a limit.
_NAMED: Final = 3


def plan(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    *,
    sample: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of records to read from the beginning of each topic, to find its columns. Not used "
            "for flat-avro, whose columns are in the registry.",
        ),
    ] = 2000,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show what a worker would do with each table.

    The plan has each table's topic, key, policies and columns with their types, and what the target cannot do
    for the table. The command does not start Spark and does not connect to the target. The exit code is 2 if
    a table needs a setting that the config lacks, if the target does not support such a table, or if the dead
    letter topic cannot be used.
    """
    # Imported here because every command imports this module, and the targets' libraries take a second to
    # load.
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
    drafts = with_snapshots(settings, by_topics(settings, with_quiet_tables(settings, plans_of_records)))
    statuses: dict[TableId | None, TableStatus] = {status.table: status for status in read_statuses(settings)}
    plans = [
        with_standing(
            settings,
            with_merge_reason(table_plan, statuses.get(table_plan.table)),
            statuses.get(table_plan.table),
        )
        for table_plan in distinct_targets(settings, drafts)
    ]
    unserved = list(unserved_tables(settings, plans))
    cut_short = sample_warning(plans)
    unserved += [cut_short] if cut_short is not None else []
    unreported = list(unreported_changes(settings))
    letters = letters_topic(settings)
    if output is OutputFormat.JSON:
        tables = [{**entry.as_json(), **_counted(statuses.get(entry.table))} for entry in plans]
        more = {"warnings": unserved, "unreported": unreported, "kept": stored_records(settings)}
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
        for sort, location in stored_records(settings).items():
            state = f", which {letters.state}" if sort == "dead_letters" and letters.state else ""
            typer.echo(f"{_SORTS[sort]}: stored in {location}{state}")
        if letters.refused is not None:
            typer.echo(f"dead letters: PROBLEM: {letters.refused}")
    if letters.refused is not None or any(entry.problem for entry in plans):
        raise typer.Exit(terminal.USAGE)


def stored_records(config: Config) -> dict[str, str]:
    """Return where dead letters and DDL events are stored, each only if the pipeline may store it."""
    from tidesink.sinks.letters.topic import dead_letters_of

    locations = {}
    if keeps_bad_records(config):
        locations["dead_letters"] = dead_letters_of(config).place
    if carries_ddl(config.source):
        locations["ddl_events"] = without_secrets(config.state)
    return locations


class LettersTopic(NamedTuple):
    """State of the dead letter topic. ``refused``: reason why the topic cannot be written to, or None."""

    state: str = ""
    refused: str | None = None


def letters_topic(config: Config) -> LettersTopic:
    """Ask the broker for the state of the dead letter topic. The result is empty if no topic is needed."""
    from tidesink.sinks.letters.topic import check_topic, dead_letters_of

    if not keeps_bad_records(config):
        return LettersTopic()
    try:
        return LettersTopic(check_topic(dead_letters_of(config).topic).shown)
    except TidesinkError as error:
        return LettersTopic(refused=str(error))


def limits_of(plans: Iterable[TablePlan]) -> Iterator[tuple[str, str]]:
    """Yield each limit of the target (what it cannot do for a table), with the names of these tables."""
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
    """Return the plans, with a ``problem`` for tables that a worker refuses because of another one.

    These are tables that would overwrite each other's target rows, and a table that two topics have.
    """
    goals, checked = Goals.of(config), []
    for entry in plans:
        refused = goals.refusal(entry.table, entry.topic) if entry.table is not None else None
        problem = entry.problem or (refused.message if refused else None)
        checked.append(dataclasses.replace(entry, problem=problem))
    return checked


def with_merge_reason(entry: TablePlan, status: TableStatus | None) -> TablePlan:
    """Add to a plan, as a limit, why Spark has to write the batches of an existing lake table.

    The reason comes from the table's status, because planning does not connect to the target.
    """
    from tidesink.sinks.runtime.control import PLACE
    from tidesink.sinks.targets.base import Limit

    left = left_to_spark(status) if status is not None else ""
    if status is None or not left or status.details.get(PLACE) != entry.path:
        return entry
    limit = Limit("merge", f"batches of the existing table are {left}")
    return dataclasses.replace(entry, limits=(*entry.limits, limit))


_BEGINS: Final = (
    "start: {}: the table begins with the records from then on. Earlier records are not applied{}"
)
_BEGUN: Final = (
    "start: {} has no effect, because records of the table are already applied. To read its topic again, use "
    "`tidesink offsets rewind TABLE --to-beginning`"
)
_STANDS: Final = "The worker last reported that the table is {}: {}"


def with_standing(config: Config, entry: TablePlan, status: TableStatus | None) -> TablePlan:
    """Add warnings to a plan: the effect of the table's ``start``, and why the table is paused or failing.

    This reason comes from the table's status; only the worker can check whether it still holds.
    """
    from tidesink.sinks.worker.starts import said_of

    if entry.table is None:
        return entry
    remarks = list[str]()
    settings = config.table_config(entry.table)
    begun = status is not None and status.batch > 0
    if settings.start != "earliest" and begun:
        remarks.append(with_table(_BEGUN.format(said_of(settings.start)), entry.table))
    elif settings.start != "earliest":
        loads = "; a snapshot reads the rows from source.database" if settings.snapshot == "initial" else ""
        remarks.append(_BEGINS.format(said_of(settings.start), loads))
    if status is not None and status.state in UNWELL_STATES and status.error:
        remarks.append(_STANDS.format(status.state, status.error))
    return dataclasses.replace(entry, warnings=(*remarks, *entry.warnings)) if remarks else entry


def _counted(status: TableStatus | None) -> dict[str, dict[str, int]]:
    """Return a table's numbers of invalid dates that became NULL, and of ambiguous times, each by column."""
    if status is None:
        return {"zero_dates": {}, "ambiguous_times": {}}
    return {"zero_dates": dict(status.zero_dates), "ambiguous_times": dict(status.ambiguous_times)}


def _rows_lines(entry: TablePlan) -> Iterator[str]:
    """Yield lines about a table's rows: the snapshot's size, omitted columns, and how to read live rows."""
    if entry.snapshot is not None:
        rows, size, ranges, key = entry.snapshot
        parts = "1 range" if ranges == 1 else f"{ranges} ranges"
        yield f"snapshot: about {rows:,} rows ({size / 2**20:,.1f} MiB), in {parts} of ({', '.join(key)})"
    if entry.omitted:
        yield f"omitted: {', '.join(entry.omitted)}"
    if entry.read_as:
        yield f"deleted rows stay in the table, marked. Read the other rows with: {entry.read_as}"


def _show_plans(
    config: Config, plans: list[TablePlan], statuses: Mapping[TableId | None, TableStatus]
) -> None:
    screen = console()
    if not plans:
        typer.echo(f"no topic matches {', '.join(config.source.topics)} yet")
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
            typer.echo(f"  {count} invalid dates of column {column} became NULL so far")
        for column, count in counted["ambiguous_times"].items():
            typer.echo(
                f"  {count} values of column {column} so far are ambiguous local times, which occur twice "
                "when clocks go back"
            )
        for warning in entry.warnings:
            terminal.echo(f"  warning: {warning}", entry.table)
        if entry.problem:
            terminal.echo(f"  PROBLEM: {entry.problem}", entry.table)
        typer.echo("")


def policy_lines(policies: Mapping[str, str]) -> Iterator[str]:
    """Yield lines with a table's policies. Kinds of schema changes are grouped by policy."""
    changes = policies.get(_CHANGES, "")
    others = [f"{name}: {value}" for name, value in policies.items() if name != _CHANGES]
    if others:
        yield ", ".join(others)
    kinds = defaultdict[str, list[str]](list)
    for change in changes.split(", ") if changes else ():
        kind, _, policy = change.partition(" ")
        kinds[policy].append(kind)
    if kinds:
        yield f"{_CHANGES}:"
    for policy, named in kinds.items():
        yield f"  {policy}: {', '.join(named)}"


_CHANGES: Final = "schema-changes"


class Answer(NamedTuple):
    """Result of checking one external part, such as the broker. ``ok``: True if the part can be used."""

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
            help="Also check the broker, the registry, the state store, the target, the dead letter topic, "
            "whether two tables have one place at the target or one table has two topics, and whether the "
            "columns of the first debezium-json rows have types.",
        ),
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check the config. Show the reason and the remedy for each wrong setting."""
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
    typer.echo(f"{path}: all settings are correct" + (". Asking the servers:" if answers else ""))
    # All lines go to stdout, so that they keep their order in a pipe.
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
    failed = set[str]()
    for part, check in checks:
        if needless.get(part):
            continue
        try:
            yield Answer(part, True, check(config))
        except TidesinkError as error:
            failed.add(part)
            yield Answer(part, False, error_block(error).strip())
    from tidesink.cli.sources import topic_names

    try:
        topics = config.topics_among(topic_names(config.source.confluent_properties()))
    except TidesinkError as error:
        if "kafka" not in failed:
            yield Answer("tables", False, error_block(error).strip())
        return
    yield from _tables(config, topics, failed)
    if config.source.protocol == "debezium-json":
        yield from _types(config, topics)


# Number of topics whose first records are checked.
_MOST_TOPICS: Final = 20


def _tables(config: Config, topics: Sequence[str], failed: Collection[str]) -> Iterator[Answer]:
    """Check that no worker would refuse a table because of another table or topic.

    Yields a failed result for each refused table, or one successful result for all topics. ``failed``: checks
    that failed before. If the broker or the registry failed, an error of this check may be the same one, and
    yields nothing.
    """
    from tidesink.cli.topic_tables import doubtful_topics, table_refusals

    looked = doubtful_topics(config, topics, _MOST_TOPICS)
    try:
        problems = table_refusals(config, looked)
    except TidesinkError as error:
        if not {"kafka", "registry"} & set(failed):
            yield Answer("tables", False, error_block(error).strip())
        return
    for problem in problems:
        yield Answer("tables", False, error_block(problem).strip())
    if looked and not problems:
        yield Answer("tables", True, f"checked the tables of {len(looked)} of {len(topics)} topics")


def _types(config: Config, topics: Sequence[str]) -> Iterator[Answer]:
    """Check that the column types of each topic's first row are known.

    Yields a failed result for each topic with unknown types, or one successful result for all topics.
    """
    from tidesink.cli.record_types import check_first_row

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
        yield Answer("types", True, f"checked the first rows of {looked} of {len(topics)} topics")


def _kafka(config: Config) -> str:
    from tidesink.cli.sources import topic_names

    return topics_read(config, topic_names(config.source.confluent_properties()))


def topics_read(config: Config, topics: Collection[str]) -> str:
    """Return a text that lists the broker's topics: those that are read, and the others with the reason.

    Raises:
        ConfigError: a topic that the config names does not exist.
    """
    missing = [topic for topic in config.fixed_topics if topic not in topics]
    if missing:
        raise ConfigError(
            f"The broker has no topic {', '.join(missing)}. Check the topic's name in the config and in the "
            "changefeed."
        )
    read = config.topics_among(topics)
    if not read:
        return f"{len(topics)} topics, of which none matches {', '.join(config.source.topics)} yet"
    others = [topic for topic in sorted(topics) if topic not in read]
    return f"{len(read)} of {len(topics)} topics are read: {_some(read)}" + "".join(_unread(config, others))


# Number of topics that are named per reason.
_SHOWN: Final = 5


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{', …' if names[_SHOWN:] else ''}"


def _unread(config: Config, topics: Iterable[str]) -> Iterator[str]:
    """Yield a text for each reason why topics are not read, with the topics' names."""
    reasons: dict[str, list[str]] = {}
    for topic in topics:
        if topic == config.dead_letters.topic:
            reason = "dead letter topic"
        elif topic == config.source.debezium.schema_change_topic:
            reason = "schema changes of Debezium, not rows"
        elif topic.startswith("__"):
            reason = "internal to Kafka"
        else:
            reason = "no rule of source.topics matches"
        reasons.setdefault(reason, []).append(topic)
    for reason, names in reasons.items():
        yield f"; not read ({reason}): {_some(names)}"


def _registry(config: Config) -> str:
    with closing(config.source.open_registry()) as registry:
        try:
            return f"{len(registry.subjects())} subjects"
        except SchemaNotFoundError as error:
            raise ConfigError(f"This is not a Confluent-compatible registry: {error.message}") from error


def _state_store(config: Config) -> str:
    from tidesink.sinks.state.sql_store import open_state_store

    with closing(open_state_store(config.state)) as store:
        store.try_write()
        return f"has the state of {len(store.statuses(config.pipeline))} tables"


def _dead_letters(config: Config) -> str:
    from tidesink.sinks.letters.topic import check_topic, dead_letters_of

    topic = dead_letters_of(config).topic
    return f"{topic.place} {check_topic(topic).shown}"


def _target(config: Config) -> str:
    return target_answer(config, _known_tables(config))


def target_answer(config: Config, tables: Collection[TableId]) -> str:
    """Connect to the target, and return what it answers.

    ``tables``: the source tables that the pipeline is known to write.

    Raises:
        ConfigError: the target cannot be used, or its user lacks privileges for the tables. The message has
            the statements that grant them.
    """
    from tidesink.sinks.targets import target_module

    module = target_module(config.target)
    answer = module.try_target(config.target)
    missing = module.PREFLIGHT.missing_grants(config, tables)
    if missing is None:
        return answer
    if missing:
        raise ConfigError(
            "The target answers, but its user lacks privileges. As an administrator of the target, run:\n"
            + "".join(f"    {statement};\n" for statement in missing)
            + (f"  {_OWNS}" if any("OWNER TO" in grant for grant in missing) else "")
        )
    if not tables:
        return f"{answer}. No table is known yet, so no privileges on schemas and tables were checked"
    known = "1 known table" if len(tables) == 1 else f"{len(tables)} known tables"
    return f"{answer}. Checked the user's privileges for {known}: none is missing"


_OWNS: Final = (
    "Only a table's owner may add or widen columns. If the user should not own the table, set "
    "schema-changes: {add: pause, widen: pause}"
)


def _known_tables(config: Config) -> tuple[TableId, ...]:
    """Return the tables that the pipeline writes, from the topics' names, the config and the state store."""
    from tidesink.cli.sources import topic_names

    tables = {entry.table: None for entry in config.tables if entry.table is not None}
    with suppress(TidesinkError):
        topics = config.topics_among(topic_names(config.source.confluent_properties()))
        tables |= {table: None for table in map(config.table_of_topic, topics) if table is not None}
    with suppress(TidesinkError):
        tables |= {status.table: None for status in read_statuses(config)}
    return tuple(tables)
