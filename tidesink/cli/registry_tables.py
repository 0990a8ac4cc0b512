"""The schemas that TiCDC would register: for tables of a definition or a config, or as a topic has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from tidesink.cli.sources import Setting, records
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.flat_avro.schema import key_record, value_record
from tidesink.codecs.open import open_codec
from tidesink.config import Config
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, DecodeError, EncodeError, TidesinkError
from tidesink.events import ChangeEvent, Message, TableId, TableSchema
from tidesink.schema_registry import SchemaReader, SubjectPart, TopicRule, subject

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
    try:
        return Sql(file.read_text(encoding="utf-8"), database or "", str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{option} {file} cannot be read: {reason}") from error


def defined_tables(sql: Sql, before: Iterable[Sql] = ()) -> list[TableSchema]:
    """The tables that statements create, and those of ``before`` that they change.

    Raises:
        ConfigError: there are none, SQL cannot be read, or a table's database is not told.
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
            "ALTER the table of before with --previous or --config"
        )
    bare = [schema.table.name for schema in found if not schema.table.schema]
    if bare:
        raise ConfigError(
            f"{sql.place} does not say the database of {', '.join(bare)}, which is part of the schema's "
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
        for part, text in _parts(key.text, value.text):
            made.found.append(Candidate(subject(topic, part), text, schema.table))
    return made


def _parts(key: str, value: str) -> tuple[tuple[SubjectPart, str], ...]:
    return (("key", key), ("value", value))


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
        """Take note of a record, and of why it cannot be read."""
        place = f"{message.topic}[{message.partition}]@{message.offset}"
        self._first.setdefault(type(error), (place, error.message))
        self._count[type(error)] += 1

    def reasons(self) -> dict[str, str]:
        """By the place of the first such record, what to say."""
        return dict(self._reasons())

    def _reasons(self) -> Iterator[tuple[str, str]]:
        hint = "" if self.read else f"; no record can be read as {self._protocol}: is --protocol right?"
        for error, (place, reason) in self._first.items():
            more = self._count[error] - 1
            records = f" (and {more} more like it)" if more else ""
            yield place, f"{reason}{records}{hint}"


def _written(messages: Iterable[Message], topic: str, registry: SchemaReader, unread: Unread) -> Candidates:
    """The schemas that the newest record of an Avro topic was written with."""
    from tidesink.codecs.base import schema_id_of

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
