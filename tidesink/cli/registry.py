"""``tidesink registry``: shows a schema registry's content, and checks or registers the schemas of TiCDC.

``check`` builds the schemas that TiCDC would register for the tables of a definition or a config, and shows
for each subject and field whether the registry accepts them. ``register`` registers these schemas.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

import orjson
import typer

from tidesink.cli import sources, terminal
from tidesink.cli.sources import CodecCommand, Given, codec_options, with_codec_options, with_options
from tidesink.cli.terminal import Output, OutputFormat, guarded, note, show_table, warn, write_json
from tidesink.codecs.flat_avro.schema import key_record, null_defaults, value_record
from tidesink.codecs.options import FlatAvroOptions
from tidesink.config import Config, load_config
from tidesink.config.fields import read_text
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import (
    ConfigError,
    EncodeError,
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from tidesink.events import TableId, TableSchema
from tidesink.schema_registry import MemorySchemaRegistry, SchemaRegistry, TopicRule, subject
from tidesink.schema_registry.base import CompatibilityLevel, RegisteredSchema, require_level
from tidesink.schema_registry.compatibility import (
    FieldChange,
    Verdict,
    history_of,
    parse_avro,
    schema_fields,
    verdict,
)

app = typer.Typer(
    help="List, check and register schemas of a registry.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Patterns = Annotated[
    list[str] | None, typer.Argument(metavar="[SUBJECT]...", help="Subjects, or patterns such as shop_*.")
]
RegistryConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Use the source's registry in this config file.")
]
Definition = Annotated[
    Path | None,
    typer.Option("--table-definition", help="SQL DDL: CREATE TABLE, or ALTER TABLE of known tables."),
]
Database = Annotated[
    str | None, typer.Option("--database", help="The database of tables for which the DDL names none.")
]
Rule = Annotated[
    str | None,
    typer.Option(
        "--topic-rule", help="The changefeed's topic rule; the default is the config's, or {schema}_{table}."
    ),
]


class Place(NamedTuple):
    """The registry options of a command line: a URL, a settings file, or a config."""

    url: str | None
    file: Path | None
    config: Path | None


with_registry = with_options(
    "place",
    {
        "schema_registry": sources.RegistryUrl,
        "registry_file": sources.RegistryFile,
        "config": RegistryConfigFile,
    },
    lambda given: Place(*given.values()),
)
"""Decorator that adds a registry's options to a command, which receives them as its argument ``place``."""


class Opened(NamedTuple):
    """An open registry.

    live: True for a server, False for the schemas of an earlier definition (``--previous``).
    """

    registry: SchemaRegistry
    live: bool
    config: Config | None


@contextmanager
def opened(place: Place) -> Iterator[Opened]:
    """Open the registry of a command, and close it afterwards.

    Raises:
        ConfigError: no registry is given, several are, or its settings are wrong.
    """
    config = load_config(place.config) if place.config else None
    registry = sources.registry_of(place.url, place.file, config)
    if registry is None:
        raise ConfigError(
            "The command needs a registry. Give --schema-registry URL, --registry-file FILE or --config FILE."
        )
    with closing(registry):
        yield Opened(registry, True, config)


# Apicurio 3 lists at most this many subjects by default (apicurio.ccompat.max-subjects).
_APICURIO_LISTS: Final = 1000
_CUT_LIST: Final = (
    f"The registry lists exactly {_APICURIO_LISTS} subjects, which is the most that Apicurio lists. There "
    "may be more. Name the subjects (without a *), or raise apicurio.ccompat.max-subjects."
)
_AT_ONCE: Final = 8


class SubjectEntry(NamedTuple):
    """One subject: its compatibility level, and its versions, oldest first.

    problem: Reason why its schemas cannot be used (Protobuf, JSON Schema, references), or empty.
    """

    subject: str
    level: CompatibilityLevel
    versions: tuple[RegisteredSchema, ...]
    problem: str = ""


def chosen_subjects(registry: SchemaRegistry, patterns: Sequence[str]) -> tuple[list[str], bool]:
    """Return the sorted names of the chosen subjects, and whether the registry's list may be incomplete.

    ``patterns``: names of subjects, which are returned as they are, or patterns such as ``shop_*``, which are
    compared with the registry's list.

    Raises:
        SchemaNotFoundError: a pattern matches no subject.
    """
    globs = [name for name in patterns if any(char in name for char in "*?[")]
    exact = sorted(set(patterns) - set(globs))
    if exact and not globs:
        for name in exact:
            registry.versions(name)
        return exact, False
    listed = registry.subjects()
    cut = len(listed) == _APICURIO_LISTS
    chosen = set(exact if patterns else listed)
    for glob in globs:
        fitting = {name for name in listed if fnmatchcase(name, glob)}
        if not fitting:
            hint = _CUT_LIST if cut else "`tidesink registry list` shows all of them."
            raise SchemaNotFoundError(f"No subject matches {glob!r}. {hint}")
        chosen |= fitting
    return sorted(chosen), cut


def read_catalog(registry: SchemaRegistry, subjects: Iterable[str]) -> list[SubjectEntry]:
    """Read the compatibility level and the versions of subjects, in order. Warns of unreadable subjects.

    Raises:
        RegistryUnavailableError: the registry does not answer.
    """

    def entry(name: str) -> SubjectEntry:
        level = registry.compatibility_level(name)
        try:
            return SubjectEntry(name, level, history_of(registry, name))
        except RegistryUnavailableError:
            raise
        except RegistryError as error:
            return SubjectEntry(name, level, (), error.message)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        entries = list(pool.map(entry, subjects))
    for subject_entry in entries:
        if subject_entry.problem:
            warn(f"{subject_entry.subject}: {subject_entry.problem}")
    return entries


@app.command("list")
@guarded
@with_registry
def list_subjects(*, place: Place, subjects: Patterns = None, output: Output = OutputFormat.TEXT) -> None:
    """List the subjects with their versions, ids and levels.

    The level is the subject's compatibility level.
    """
    with opened(place) as session:
        names, cut = chosen_subjects(session.registry, subjects or ())
        level = session.registry.compatibility_level()
        entries = read_catalog(session.registry, names)
    if output is OutputFormat.JSON:
        listed = [_entry_json(entry) for entry in entries]
        write_json({"level": level, "subjects": listed, "cut": cut})
    elif entries:
        columns = ("subject", "versions", "ids", "level")
        show_table(None, columns, map(_entry_row, entries), folded=("versions", "ids"))
        typer.echo(f"{len(entries)} subjects; the registry's own level is {level}")
    else:
        typer.echo(f"the registry holds no subjects; its compatibility level is {level}")
    if cut:
        warn(_CUT_LIST)


def _entry_json(entry: SubjectEntry) -> dict[str, Any]:
    versions = [{"version": item.version, "id": item.id} for item in entry.versions]
    return {**entry._asdict(), "versions": versions, "problem": entry.problem or None}


def _entry_row(entry: SubjectEntry) -> tuple[str, str, str, str]:
    versions, ids = (
        ", ".join(str(getattr(item, name)) for item in entry.versions) for name in ("version", "id")
    )
    return entry.subject, versions, ids, entry.level


@app.command()
@guarded
@with_registry
def export(*, place: Place, subjects: Patterns = None) -> None:
    """Write the schemas of the subjects to stdout.

    Each line is one version of a subject, as JSON. An unchanged registry is always written as the same
    bytes. `tidesink decode --schemas` reads such a file.
    """
    with opened(place) as session:
        names, cut = chosen_subjects(session.registry, subjects or ())
        if cut:
            raise RegistryError(f"The export would be incomplete. {_CUT_LIST}")
        entries = read_catalog(session.registry, names)
    for entry in entries:
        for item in entry.versions:
            line = {"id": item.id, "schema": item.schema_text, "subject": item.subject}
            line |= {"version": item.version, "level": entry.level}
            sys.stdout.buffer.write(orjson.dumps(line) + b"\n")
    sys.stdout.flush()
    if any(entry.problem for entry in entries):
        raise typer.Exit(terminal.FAILED)


_ID: Final = "id:"


@app.command()
@guarded
@with_registry
def show(
    *,
    place: Place,
    subject: Annotated[str, typer.Argument(help="A subject, or id:N for the schema with this id.")],
    version: Annotated[str, typer.Argument(help="A version's number, or latest.")] = "latest",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the fields of a schema.

    The schema is chosen by subject and version, or by schema id.
    """
    with opened(place) as session:
        item = schema_at(session.registry, subject, version)
        level = session.registry.compatibility_level(item.subject) if item.subject else None
        places = session.registry.places(item.id)
    if output is OutputFormat.JSON:
        write_json(_shown_json(item, level, places))
    else:
        _show(item, level, places)


def schema_at(registry: SchemaRegistry, subject: str, version: str) -> RegisteredSchema:
    """Return the schema that ``SUBJECT VERSION`` or ``id:N`` names.

    Raises:
        ConfigError: the version is neither a number nor latest.
        SchemaNotFoundError: the schema does not exist.
    """
    if subject.startswith(_ID):
        schema_id = _number(subject[len(_ID) :], "Give a schema id as a number, such as id:17.")
        return RegisteredSchema(schema_id, registry.schema_by_id(schema_id))
    if version == "latest":
        return registry.latest(subject)
    return registry.schema_by_version(
        subject, _number(version, f"version {version!r}: give a number, or latest.")
    )


def _number(text: str, problem: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(problem)
    return int(text)


def _shown_json(item: RegisteredSchema, level: str | None, places: list[tuple[str, int]]) -> dict[str, Any]:
    fields = [
        {
            "field": field.path,
            "type": field.type,
            "sql": field.source_type or None,
            # In an object, since a default of null differs from no default.
            "default": None if field.default is None else {"value": json.loads(field.default)},
        }
        for field in schema_fields(item.schema_text)
    ]
    return {
        **asdict(item),
        "level": level,
        "places": [{"subject": subject, "version": version} for subject, version in places],
        "schema": json.loads(item.schema_text),
        "fields": fields,
    }


def _show(item: RegisteredSchema, level: str | None, places: list[tuple[str, int]]) -> None:
    head = f"{item.subject} version {item.version}, id {item.id}" if item.subject else f"id {item.id}"
    typer.echo(head + (f", level {level}" if level else ""))
    others = [f"{s} version {v}" for s, v in places if (s, v) != (item.subject, item.version)]
    if others:
        typer.echo(f"  {'also' if item.subject else 'held'} by {', '.join(others)}")
    fields = schema_fields(item.schema_text)
    if not fields:
        typer.echo(f"  {item.schema_text}")
        return
    rows = [(f.path, f.typed, "" if f.default is None else f.default) for f in fields]
    show_table(None, ("field", "type", "default"), rows, folded=("type", "default"))


class Request(NamedTuple):
    """The tables and options that the command line of ``check`` or ``register`` gives."""

    given: Given
    definition: Path | None
    database: str | None
    rule: str | None
    previous: Path | None = None

    def options(self, config: Config | None) -> FlatAvroOptions:
        """Return the producer's options: those of the config, overridden by those of the command line."""
        return codec_options(FlatAvroOptions, self.given, config)

    def candidates(self, config: Config | None) -> Candidates:
        """Return the schemas that TiCDC would register for the tables of the command line or the config.

        Raises:
            ConfigError: no tables are given, or their definitions cannot be read.
        """
        options, topic_of = self.options(config), topic_namer(self.rule, config)
        if self.definition is not None:
            sql = sql_file("--table-definition", self.definition, self.database)
            before = config_tables(config)
            if self.previous is not None:
                before.append(sql_file("--previous", self.previous, self.database))
            return of_tables(defined_tables(sql, before), options, topic_of)
        if config is not None:
            return of_config(config, options, topic_of)
        raise ConfigError("The command needs tables. Give --table-definition FILE or --config FILE.")


@app.command(cls=CodecCommand)
@guarded
@with_codec_options
@with_registry
def check(
    *,
    place: Place,
    given: Given,
    table_definition: Definition = None,
    database: Database = None,
    topic_rule: Rule = None,
    previous: Annotated[
        Path | None,
        typer.Option(
            help="Check against this earlier SQL DDL instead of a registry, by the level BACKWARD or --level."
        ),
    ] = None,
    level: Annotated[
        str | None, typer.Option(help="Check offline by this compatibility level, not the subject's own.")
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live/--no-live", help="Also ask the registry, unless --level is given."),
    ] = True,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check if the registry would accept TiCDC's schemas.

    The result shows for each subject and field whether it would be accepted. The tables come from
    --table-definition or --config. The schemas are checked by Avro's compatibility rules, and by the registry
    if one is given. The exit code is 1 if a schema is not accepted.
    """
    wanted = None if level is None else require_level(level.upper())
    request = Request(given, table_definition, database, topic_rule, previous)
    with _checked_against(place, request, wanted) as session:
        made = request.candidates(session.config)
        report = made.check(session.registry, level=wanted, live=live and session.live and wanted is None)
    if output is OutputFormat.JSON:
        write_json(report.as_json())
    else:
        report.show()
    if not report.ok:
        raise typer.Exit(terminal.FAILED)


@contextmanager
def _checked_against(place: Place, request: Request, level: CompatibilityLevel | None) -> Iterator[Opened]:
    """Open the registry to check against.

    With ``--previous``, this is a registry in memory that only holds the schemas of the earlier tables.
    """
    if request.previous is None:
        with opened(place) as session:
            yield session
        return
    if place.url is not None or place.file is not None:
        raise ConfigError(
            "--previous replaces the registry. Remove it, or remove --schema-registry and --registry-file."
        )
    config = load_config(place.config) if place.config else None
    tables = defined_tables(sql_file("--previous", request.previous, request.database))
    made = of_tables(tables, request.options(config), topic_namer(request.rule, config))
    registry = MemorySchemaRegistry(url=request.previous.name)
    for item in made.found:
        registry.register(item.subject, item.schema_text)
    registry.set_compatibility_level(level or "BACKWARD")
    yield Opened(registry, False, config)


@app.command(cls=CodecCommand)
@guarded
@with_codec_options
@with_registry
def register(
    *,
    place: Place,
    given: Given,
    subject_name: Annotated[
        str | None, typer.Argument(metavar="[SUBJECT]", help="The subject, with --schema.")
    ] = None,
    schema: Annotated[Path | None, typer.Option("--schema", help="A file with one Avro schema.")] = None,
    table_definition: Definition = None,
    database: Database = None,
    topic_rule: Rule = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Register a schema file, or the schemas of tables.

    For the tables of --table-definition the command registers the schemas that TiCDC would register. It first
    shows whether the registry accepts them. If it rejects one schema, nothing is registered and the exit code
    is 1.
    """
    if output is OutputFormat.JSON and not yes:
        raise ConfigError(
            "With -o json the command cannot ask for confirmation. Give --yes, or run `tidesink registry "
            "check` first."
        )
    with opened(place) as session:
        if schema is None:
            made = Request(given, table_definition, database, topic_rule).candidates(session.config)
        else:
            made = _schema_file(schema, subject_name, table_definition)
        report = made.check(session.registry, level=None, live=True)
        if output is OutputFormat.TEXT:
            report.show()
        done = []
        if report.ok and (yes or _confirmed(report.verdicts)):
            done = [_registered(session.registry, item) for item in report.verdicts]
    if output is OutputFormat.JSON:
        write_json({"registered": done, "check": report.as_json()})
    for item in done if output is OutputFormat.TEXT else ():
        what = "registered" if item["new"] else "already registered"
        typer.echo(f"{item['subject']}: {what} as version {item['version']}, id {item['id']}")
    if not done:
        note("nothing was registered")
        raise typer.Exit(terminal.FAILED)


def _schema_file(schema: Path, subject_name: str | None, definition: Path | None) -> Candidates:
    if definition is not None:
        raise ConfigError("--schema and --table-definition exclude each other. Keep one of them.")
    if subject_name is None:
        raise ConfigError("--schema needs a subject. Run `tidesink registry register SUBJECT --schema FILE`.")
    text = read_text(schema, f"--schema {schema}").strip()
    parse_avro(text)
    return Candidates([Candidate(subject_name, text)])


def _confirmed(verdicts: list[Verdict]) -> bool:
    new = sum(item.held is None for item in verdicts)
    return new == 0 or typer.confirm(f"register {new} schema{'' if new == 1 else 's'}?", err=True)


def _registered(registry: SchemaRegistry, item: Verdict) -> dict[str, Any]:
    schema_id = registry.register(item.subject, item.schema_text)
    held = registry.lookup(item.subject, item.schema_text)
    version = held.version if held else None
    return {"subject": item.subject, "id": schema_id, "version": version, "new": item.held is None}


DEFAULT_RULE: Final = "{schema}_{table}"
_NO_KEY: Final = (
    "it has neither a primary key nor a unique key of NOT NULL columns, so TiCDC does not send it as Avro. "
    "Add such a key"
)
_NULL_DEFAULT: Final = (
    "TiCDC without the fix of pingcap/tiflow issue 11994 stops its changefeed at this table: the default of "
    "column {} is the text 'null', which TiCDC's Avro library reads as NULL. Use a TiCDC with the fix, or "
    "give the column another default or NOT NULL"
)
TopicOf = Callable[[TableId], str]


class Candidate(NamedTuple):
    """A schema, and the subject under which it would be registered."""

    subject: str
    schema_text: str


@dataclass
class Candidates:
    """The schemas that TiCDC would register for tables.

    skipped: Tables without a schema, with the reason.
    failed: Tables at which TiCDC's encoder stops, with the reason.
    warnings: Tables at which some versions of TiCDC stop although the registry accepts the schemas.
    """

    found: list[Candidate] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)

    def check(self, registry: SchemaRegistry, *, level: CompatibilityLevel | None, live: bool) -> CheckReport:
        """Check whether the registry would accept each schema. Returns a verdict per schema, in order.

        ``level``: the compatibility level to check by, or None for each subject's own. ``live``: True to also
        ask the registry.
        """
        verdicts = [verdict(registry, *candidate, level=level, live=live) for candidate in self.found]
        return CheckReport(verdicts, self.skipped, self.failed, live, self.warnings)


class CheckReport(NamedTuple):
    """The verdict on each schema (whether the registry accepts it), and the tables without a schema.

    live: True if the registry was asked in addition to the offline check.
    """

    verdicts: list[Verdict]
    skipped: dict[str, str]
    failed: dict[str, str]
    live: bool
    warnings: Mapping[str, str] = MappingProxyType({})

    @property
    def ok(self) -> bool:
        """True if there is at least one schema, all schemas are accepted, and TiCDC stops at no table."""
        return bool(self.verdicts) and not self.failed and all(item.taken for item in self.verdicts)

    def as_json(self) -> dict[str, Any]:
        """Return all verdicts as a JSON object."""
        subjects = [item.as_json() for item in self.verdicts]
        return {
            "ok": self.ok,
            "subjects": subjects,
            "skipped": self.skipped,
            "failed": self.failed,
            "warnings": dict(self.warnings),
        }

    def show(self) -> None:
        """Print each verdict with its fields, and the tables that TiCDC would stop at."""
        for item in self.verdicts:
            typer.echo(f"{item.subject}: {_HEADS[item.status]}{_against(item)}")
            if item.status == "incompatible" or item.disagree:
                levels = ", ".join(item.levels) or "none"
                typer.echo(f"  {_who(item, live=self.live)}; levels that accept it: {levels}")
            show_changes(item.fields)
            for message in item.messages:
                typer.echo(f"  the registry's message: {message}")
            if item.disagree:
                warn(f"{item.subject}: the registry and Avro's rules disagree. The registry decides")
        for name, reason in self.skipped.items():
            warn(f"{name} is not checked: {reason}")
        for name, reason in self.warnings.items():
            warn(f"{name}: {reason}")
        for name, reason in self.failed.items():
            typer.echo(f"{name}: TiCDC's encoder would stop: {reason}")


class Sql(NamedTuple):
    """SQL statements, the database of table names without a database, and the origin of the statements."""

    text: str
    database: str
    place: str


def sql_file(option: str, file: Path, database: str | None) -> Sql:
    """Read the statements of a file.

    Raises:
        ConfigError: the file cannot be read.
    """
    return Sql(read_text(file, f"{option} {file}"), database or "", str(file))


def defined_tables(sql: Sql, before: Iterable[Sql] = ()) -> list[TableSchema]:
    """Return the tables that the statements in ``sql`` create or alter.

    ``before``: earlier statements, which create the tables that ``sql`` alters.

    Raises:
        ConfigError: the statements create or alter no table, cannot be parsed, or do not name a table's
            database.
    """
    alone, over = TableDefinitions(), TableDefinitions()
    created = alone.declare(sql.text, sql.database)
    for earlier in before:
        over.declare(earlier.text, earlier.database)
    changed = [table for table in over.declare(sql.text, sql.database) if table not in created]
    tables = [*map(alone.get, created), *map(over.get, changed)]
    schemas = [schema for schema in tables if schema is not None]
    if not schemas:
        raise ConfigError(
            f"{sql.place} neither creates a table nor alters a known one. Add a CREATE TABLE, or give the "
            "tables that it alters with --previous or --config."
        )
    bare = [schema.table.name for schema in schemas if not schema.table.schema]
    if bare:
        raise ConfigError(
            f"{sql.place} does not name the database of {', '.join(bare)}, which is part of the schema's "
            "name. Give --database NAME."
        )
    return schemas


def config_tables(config: Config | None) -> list[Sql]:
    """Return the table definitions of a config that are in TiDB's SQL.

    Definitions of other databases are left out, because TiCDC only registers schemas of TiDB tables.
    """
    return [
        Sql(entry.definition.sql, entry.table.schema, f"the definition of {entry.table}")
        for entry in (config.tables if config else ())
        if entry.table is not None and entry.definition is not None and entry.definition.dialect == "mysql"
    ]


def topic_namer(rule: str | None, config: Config | None) -> TopicOf:
    """Return a function that returns the topic of a table.

    The topic follows from ``rule``, else from the config, else from the rule ``{schema}_{table}``.

    Raises:
        ConfigError: ``rule`` is not a valid topic rule.
    """
    if rule is not None or config is None:
        parsed = TopicRule.parse(rule or DEFAULT_RULE)
        return parsed.topic_for

    def named(table: TableId) -> str:
        own = next((entry.topic for entry in config.tables if entry.topic and entry.covers(table)), None)
        splitting = [rule for rule in config.source.rules if rule.names_tables]
        return own or (splitting or list(config.source.rules))[0].topic_for(table)

    return named


def of_tables(tables: Iterable[TableSchema], options: FlatAvroOptions, topic_of: TopicOf) -> Candidates:
    """Return the key and value schemas that TiCDC with these options would register for tables."""
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
        nulls = null_defaults(value)
        if nulls:
            made.warnings[str(schema.table)] = _NULL_DEFAULT.format(", ".join(nulls))
        topic = topic_of(schema.table)
        made.found.append(Candidate(subject(topic, "key"), key.text))
        made.found.append(Candidate(subject(topic, "value"), value.text))
    return made


def of_config(config: Config, options: FlatAvroOptions, topic_of: TopicOf) -> Candidates:
    """Return the schemas that TiCDC would register for the config's tables.

    Tables without a definition are listed as skipped, with the reason.
    """
    given = config_tables(config)
    if not given:
        raise ConfigError(
            "The config has no table definition. Add definitions as in tables: [{name, definition}]."
        )
    made = of_tables([schema for sql in given for schema in defined_tables(sql)], options, topic_of)
    for entry in config.tables:
        if entry.table is not None and entry.definition is None:
            made.skipped[str(entry.table)] = "the config has no definition of this table. Add its definition"
    return made


_HEADS = {
    "new subject": "new subject, accepts any schema",
    "registered": "registered already",
    "compatible": "ok",
    "incompatible": "REFUSED",
}


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


def show_changes(changes: Sequence[FieldChange]) -> None:
    """Print the fields that differ or are not accepted, and the number of unchanged fields."""
    listed = [change for change in changes if change.change != "same" or change.problem]
    if listed:
        rows = [(change.path, _words(change), _verdict(change)) for change in listed]
        show_table(None, ("field", "change", "verdict"), rows, folded=("change", "verdict"))
    same = len(changes) - len(listed)
    if same and listed:
        typer.echo(f"  {same} other {'field stays' if same == 1 else 'fields stay'} the same")


def _words(change: FieldChange) -> str:
    if change.old is None or change.new is None:
        side = change.old or change.new
        return f"{change.change}: {side.words}" if side else ""
    return change.old.words if change.old == change.new else f"{change.old.words} -> {change.new.words}"


def _verdict(change: FieldChange) -> str:
    if change.problem:
        return f"REFUSED: {change.problem}"
    return f"ok; {change.note}" if change.note else "ok"
