"""``tidesink registry check``: would the registry take the schemas of these tables?

The schemas are those that TiCDC would register: for tables of a definition or a config, or as a topic has
them. People read the result per subject, field by field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from tidesink.cli import sources, terminal
from tidesink.cli.codec_options import Given, codec_options, protocol_named, with_codec_options
from tidesink.cli.sources import Setting, records
from tidesink.cli.terminal import Output, OutputFormat, show_table, warn, write_json
from tidesink.codecs.base import CodecOptions, schema_id_of
from tidesink.codecs.flat_avro.schema import key_record, value_record
from tidesink.codecs.open import open_codec
from tidesink.config import Config, load_config
from tidesink.config.fields import read_text
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, DecodeError, EncodeError, TidesinkError
from tidesink.events import ChangeEvent, Message, TableId, TableSchema
from tidesink.schema_registry import (
    MemorySchemaRegistry,
    SchemaReader,
    SchemaRegistry,
    SubjectPart,
    TopicRule,
    subject,
)
from tidesink.schema_registry.base import CompatibilityLevel, require_level
from tidesink.schema_registry.compatibility import FieldChange, Verdict, verdict

Definition = Annotated[
    Path | None,
    typer.Option("--table-definition", help="SQL DDL: CREATE TABLEs; or ALTERs, over what is known."),
]
Database = Annotated[
    str | None, typer.Option("--database", help="The database of tables that the DDL names without one.")
]
Rule = Annotated[
    str | None,
    typer.Option("--topic-rule", help="The changefeed's topic rule; the config's, or {schema}_{table}."),
]


class Request(NamedTuple):
    """Which tables are meant, under which options: what ``check``, ``diff`` and ``register`` share."""

    given: Given
    definition: Path | None
    database: str | None
    rule: str | None
    topic: str | None = None
    start: str = "earliest"
    brokers: str | None = None
    protocol: str | None = None
    previous: Path | None = None

    def tables(self, config: Config | None) -> list[TableSchema]:
        """The tables of the definition, over the earlier ones; raises ConfigError where there are none."""
        before = config_tables(config)
        if self.previous is not None:
            before.append(sql_file("--previous", self.previous, self.database))
        assert self.definition is not None  # noqa: S101  # asked for only where one is given
        return defined_tables(sql_file("--table-definition", self.definition, self.database), before)


@with_codec_options
@sources.with_registry
def check(
    *,
    place: sources.Place,
    given: Given,
    table_definition: Definition = None,
    topic: Annotated[
        str | None, typer.Option(help="A live topic: the schemas of its newest records.")
    ] = None,
    start: Annotated[str, typer.Option("--from", help="Where to begin in --topic.")] = "earliest",
    brokers: Annotated[str | None, typer.Option(help="Kafka bootstrap servers, for --topic.")] = None,
    protocol: sources.ProtocolName = None,
    database: Database = None,
    topic_rule: Rule = None,
    previous: Annotated[
        Path | None, typer.Option(help="Earlier SQL DDL, in place of a registry: BACKWARD, or --level.")
    ] = None,
    level: Annotated[
        str | None, typer.Option(help="Check by this level, offline, in place of the subject's own.")
    ] = None,
    live: Annotated[
        bool | None, typer.Option("--live/--no-live", help="Ask the registry too. Default: if there is one.")
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check, per subject and field, whether the registry would take the schemas that TiCDC registers.

    The tables come from --table-definition, --topic or --config. Avro's rules check them and, if there is
    one, a live registry. The exit code is 1 if a schema is not taken.
    """
    wanted = None if level is None else require_level(level.upper())
    request = Request(
        given, table_definition, database, topic_rule, topic, start, brokers, protocol, previous
    )
    with _validating(place, previous) as found:
        made = candidates(request, found)
        registry = _before(request, previous, found.config, wanted) if previous else found.registry
        asks = _asks(live, found.live, wanted)
        verdicts = compatibility_of(registry, made, level=wanted, live=asks)
    if output is OutputFormat.JSON:
        write_json(report_json(verdicts, made))
    else:
        show_verdicts(verdicts, live=asks)
        show_omitted(made)
    if made.failed or not verdicts or not all(item.taken for item in verdicts):
        raise typer.Exit(terminal.FAILED)


@contextmanager
def _validating(place: sources.Place, previous: Path | None) -> Iterator[sources.Opened]:
    """The registry to check against; with ``previous`` an earlier definition stands in for it."""
    if previous is None:
        with sources.opened(place) as found:
            yield found
        return
    if sources.any_given(place):
        raise ConfigError("--previous takes the place of a registry: give one of the two")
    yield sources.Opened(
        MemorySchemaRegistry(), False, str(previous), load_config(place.config) if place.config else None
    )


def _asks(live: bool | None, can: bool, level: CompatibilityLevel | None) -> bool:
    """Whether the registry is asked as well."""
    if live and not can:
        raise ConfigError("--live needs a registry that can be asked: give --schema-registry or --config")
    if live and level is not None:
        raise ConfigError("--live and --level exclude each other: a registry decides by its own level")
    return can and level is None if live is None else live


def _before(
    request: Request, file: Path, config: Config | None, level: CompatibilityLevel | None
) -> SchemaRegistry:
    """A registry that holds what TiCDC registered for the earlier tables."""
    made = of_tables(
        defined_tables(sql_file("--previous", file, request.database)),
        _options(request, config),
        topic_namer(request.rule, config),
    )
    registry = MemorySchemaRegistry(url=file.name)
    for item in made.found:
        registry.register(item.subject, item.schema_text)
    registry.set_compatibility_level(level or "BACKWARD")
    return registry


def _options(request: Request, config: Config | None) -> CodecOptions:
    return codec_options(request.given, config.source.codec_options() if config else None)


def candidates(request: Request, found: sources.Opened) -> Candidates:
    """The schemas of the tables that a command line names.

    Raises:
        ConfigError: no tables are named, or they cannot be read.
    """
    topic_of = topic_namer(request.rule, found.config)
    if request.topic is not None:
        setting = _topic_setting(request, found)
        return of_topic(setting, request.topic, request.start, request.brokers, topic_of)
    made = _options(request, found.config)
    if request.definition is not None:
        return of_tables(request.tables(found.config), made, topic_of)
    if found.config is not None:
        return of_config(found.config, made, topic_of)
    raise ConfigError("which tables? Give --table-definition FILE, --topic NAME or --config FILE")


def _topic_setting(request: Request, found: sources.Opened) -> sources.Setting:
    config = found.config
    name = protocol_named(request.protocol or (config.source.protocol if config else None))
    if name in NAMED_BY_ID and request.given:
        raise ConfigError(
            f"the records of a {name} topic name their schemas, so producer options have no effect with "
            "--topic: remove them, or give --table-definition"
        )
    own = config.source.open_registry() if config and config.source.schema_registry else found.registry
    return sources.Setting(
        protocol=name,
        options=_options(request, config),
        declared=request.given,
        registry=own,
        definitions=sources.definitions_of(request.definition, config),
        table_of_topic=None,
        config=config,
    )


def compatibility_of(
    registry: SchemaRegistry, made: Candidates, *, level: CompatibilityLevel | None, live: bool
) -> list[Verdict]:
    """The verdicts of all candidates, in their order."""
    return [verdict(registry, one.subject, one.schema_text, level=level, live=live) for one in made.found]


def report_json(verdicts: Sequence[Verdict], made: Candidates) -> dict[str, Any]:
    """All verdicts as a JSON object."""
    return {
        "ok": bool(verdicts) and not made.failed and all(item.taken for item in verdicts),
        "subjects": [item.as_json() for item in verdicts],
        "skipped": made.skipped,
        "failed": made.failed,
    }


def show_omitted(made: Candidates) -> None:
    """What could not be checked, and what TiCDC itself would stop at."""
    for name, reason in made.skipped.items():
        warn(f"{name} is not checked: {reason}")
    for name, reason in made.failed.items():
        typer.echo(f"{name}: TiCDC's encoder would stop: {reason}")


DEFAULT_RULE = "{schema}_{table}"
_NO_KEY = (
    "it has neither a primary key nor a unique key of NOT NULL columns: TiCDC's avro does not replicate it"
)
# Protocols whose records name their schemas by a registry's ids.
NAMED_BY_ID = frozenset({"flat-avro", "debezium-avro"})
TopicOf = Callable[[TableId], str]


class Candidate(NamedTuple):
    """A schema and the subject it would be registered under."""

    subject: str
    schema_text: str
    table: TableId | None


@dataclass
class Candidates:
    """What was found: schemas; what has none, with the reason; and tables that TiCDC would stop at."""

    found: list[Candidate] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Sql(NamedTuple):
    """Statements, the database of names without one, and where they stand."""

    text: str
    database: str
    place: str


def sql_file(option: str, file: Path, database: str | None) -> Sql:
    """The statements of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    return Sql(read_text(file, f"{option} {file}"), database or "", str(file))


def defined_tables(sql: Sql, before: Iterable[Sql] = ()) -> list[TableSchema]:
    """The tables that statements create, and those of ``before`` that they change.

    Raises:
        ConfigError: there are none, SQL cannot be read, or a table's database is not given.
    """
    alone, over = TableDefinitions(), TableDefinitions()
    created = alone.declare(sql.text, sql.database)
    for one in before:
        over.declare(one.text, one.database)
    changed = [table for table in over.declare(sql.text, sql.database) if table not in created]
    tables = [*map(alone.get, created), *map(over.get, changed)]
    found = [schema for schema in tables if schema is not None]
    if not found:
        raise ConfigError(
            f"{sql.place} creates no table, and changes none that is known: give its CREATE TABLE, or for an "
            "ALTER the earlier table with --previous or --config"
        )
    bare = [schema.table.name for schema in found if not schema.table.schema]
    if bare:
        raise ConfigError(
            f"{sql.place} does not name the database of {', '.join(bare)}, which is part of the schema's "
            "name: give --database NAME"
        )
    return found


def config_tables(config: Config | None) -> list[Sql]:
    """The definitions that a config has in TiDB's SQL: TiCDC registers schemas of no other database."""
    return [
        Sql(entry.definition.sql, entry.table.schema, f"the definition of {entry.table}")
        for entry in (config.tables if config else ())
        if entry.table is not None and entry.definition is not None and entry.definition.dialect == "mysql"
    ]


def topic_namer(rule: str | None, config: Config | None) -> TopicOf:
    """Which topic a table's changes go to: by ``rule``, else by the config, else ``{schema}_{table}``.

    Raises:
        ConfigError: the rule is none.
    """
    if rule is not None or config is None:
        parsed = TopicRule.parse(rule or DEFAULT_RULE)
        return parsed.topic_for

    def named(table: TableId) -> str:
        own = next((entry.topic for entry in config.tables if entry.topic and entry.covers(table)), None)
        splitting = [one for one in config.source.rules if one.names_tables]
        return own or (splitting or list(config.source.rules))[0].topic_for(table)

    return named


def of_tables(tables: Iterable[TableSchema], options: CodecOptions, topic_of: TopicOf) -> Candidates:
    """Key and value schemas of tables, as a producer of these options registers them."""
    made = Candidates()
    for schema in tables:
        try:
            key = key_record(schema, schema.table, options)
            value = value_record(schema, schema.table, options)
        except EncodeError as error:
            made.failed[str(schema.table)] = error.message
            continue
        if key is None:
            made.skipped[str(schema.table)] = _NO_KEY
            continue
        topic = topic_of(schema.table)
        made.found.append(Candidate(subject(topic, "key"), key.text, schema.table))
        made.found.append(Candidate(subject(topic, "value"), value.text, schema.table))
    return made


def of_config(config: Config, options: CodecOptions, topic_of: TopicOf) -> Candidates:
    """Schemas of the tables whose definition the config has; the others are skipped, with a reason."""
    given = config_tables(config)
    if not given:
        raise ConfigError(
            "the config defines no table: add tables: [{name, definition}], or give --topic NAME"
        )
    made = of_tables([schema for sql in given for schema in defined_tables(sql)], options, topic_of)
    for entry in config.tables:
        if entry.table is not None and entry.definition is None:
            made.skipped[str(entry.table)] = (
                "the config has no definition of it: add one, or give --topic NAME"
            )
    return made


def of_topic(setting: Setting, topic: str, start: str, brokers: str | None, topic_of: TopicOf) -> Candidates:
    """Schemas of the tables that a topic carries, as its newest records have them.

    An Avro topic names the schemas itself; of a JSON topic they are built from its columns.

    Raises:
        ConfigError: there is no such topic, or no broker is given.
        RegistryError: the topic's own registry does not have its schemas.
        SourceUnavailableError: the broker does not answer.
    """
    messages = records(file=None, topic=topic, start=start, limit=None, brokers=brokers, found=setting)
    return of_records(messages, setting, topic, topic_of)


def of_records(messages: Iterable[Message], setting: Setting, topic: str, topic_of: TopicOf) -> Candidates:
    """Schemas of the tables in a topic's records; raises as ``of_topic``."""
    unread = Unread(setting.protocol)
    if setting.protocol in NAMED_BY_ID:
        if setting.registry is None:
            raise ConfigError("the topic's schemas are in its registry: give --config or --schema-registry")
        made = _written(messages, topic, setting.registry, unread)
    else:
        made = of_tables(list(_seen(messages, setting, unread)), setting.options, topic_of)
    return replace(made, skipped={**unread.reasons(), **made.skipped})


class Unread:
    """The records of a topic that could not be read: the first of each kind of error, and how many."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._first: dict[type[TidesinkError], tuple[str, str]] = {}
        self._count: Counter[type[TidesinkError]] = Counter()
        self.read = 0

    def add(self, message: Message, error: TidesinkError) -> None:
        """Count a record and the reason why it cannot be read."""
        place = f"{message.topic}[{message.partition}]@{message.offset}"
        self._first.setdefault(type(error), (place, error.message))
        self._count[type(error)] += 1

    def reasons(self) -> dict[str, str]:
        """The reason of each kind of error, by the place of its first record."""
        hint = "" if self.read else f"; no record can be read as {self._protocol}: check --protocol"
        found = {}
        for error, (place, reason) in self._first.items():
            more = self._count[error] - 1
            found[place] = reason + (f" (and {more} more like it)" if more else "") + hint
        return found


def _written(messages: Iterable[Message], topic: str, registry: SchemaReader, unread: Unread) -> Candidates:
    """The schemas that the newest record of an Avro topic was written with."""
    newest: dict[SubjectPart, int] = {}
    made = Candidates()
    for message in messages:
        parts: tuple[tuple[SubjectPart, bytes | None], ...] = (("key", message.key), ("value", message.value))
        for part, data in parts:
            if data is None or (message.key is None and data[:1] in (b"\1", b"\2")):
                continue
            try:
                newest[part] = schema_id_of(data, part)
            except DecodeError as error:
                unread.add(message, error)
                break
            unread.read += 1
    for part, schema_id in newest.items():
        made.found.append(Candidate(subject(topic, part), registry.schema_by_id(schema_id), None))
    return made


def _seen(messages: Iterable[Message], setting: Setting, unread: Unread) -> Iterator[TableSchema]:
    codec = open_codec(
        setting.protocol, options=setting.options, definitions=setting.definitions, keys=setting.keys
    )
    seen: dict[TableId, TableSchema] = {}
    for message in messages:
        try:
            events = codec.decode(message)
        except TidesinkError as error:
            unread.add(message, error)
            continue
        unread.read += 1
        for event in events:
            if isinstance(event, ChangeEvent) and event.schema is not None:
                seen[event.table] = event.schema
    # A definition has what canal-json does not say: defaults, NOT NULL, parameters of types.
    yield from (setting.definitions.get(table) or schema for table, schema in sorted(seen.items()))


_HEADS = {
    "new subject": "new subject, takes any schema",
    "registered": "registered already",
    "compatible": "ok",
    "incompatible": "REFUSED",
}


def show_verdicts(verdicts: Iterable[Verdict], *, live: bool) -> None:
    """Each verdict with the fields that differ, or stand in the way."""
    for item in verdicts:
        typer.echo(f"{item.subject}: {_HEADS[item.status]}{_against(item)}")
        if item.status == "incompatible" or item.disagree:
            typer.echo(f"  {_who(item, live=live)}; levels that take it: {', '.join(item.levels) or 'none'}")
        show_changes(item.fields)
        for message in item.messages:
            typer.echo(f"  the registry says: {message}")
        if item.disagree:
            warn(f"{item.subject}: the registry and Avro's rules disagree; the registry decides")


def _against(item: Verdict) -> str:
    if item.held is not None:
        return f" as version {item.held.version}, id {item.held.id}"
    if item.latest is None:
        return ""
    versions = "every version" if item.level.endswith("_TRANSITIVE") else f"version {item.latest.version}"
    return f" under {item.level}, against {versions}"


def _who(item: Verdict, *, live: bool) -> str:
    words = {True: "takes", False: "refuses"}
    own = f"offline rules: {words[item.own]}"
    return f"{own}, registry: {words[bool(item.live)]}" if live else own


def show_changes(changes: Sequence[FieldChange], *, last: str = "verdict") -> None:
    """The fields that differ or stand in the way, and how many do not; ``last``: the last column's name."""
    remark = _verdict if last == "verdict" else _of_note
    listed = [change for change in changes if change.change != "same" or change.problem]
    if listed:
        rows = [(change.path, _words(change), remark(change)) for change in listed]
        show_table(None, ("field", "change", last), rows, folded=("change", last))
    same = len(changes) - len(listed)
    if same and listed:
        typer.echo(f"  {same} other {'field stays' if same == 1 else 'fields stay'} the same")


def _words(change: FieldChange) -> str:
    if change.old is None or change.new is None:
        side = change.old or change.new
        return f"{change.change}: {side.words}" if side else ""
    return change.old.words if change.old == change.new else f"{change.old.words} -> {change.new.words}"


def _of_note(change: FieldChange) -> str:
    return "; ".join(filter(None, (change.problem, change.note)))


def _verdict(change: FieldChange) -> str:
    if change.problem:
        return f"REFUSED: {change.problem}"
    return f"ok; {change.note}" if change.note else "ok"
