"""The models of the config file. Names are TiCDC's for the codec, Databricks' for merge semantics.

This module also has the ``routes`` of a pipeline (the target table of each source table), table definitions
(SQL in the config, or the name of a file), and what a codec needs from a config's tables: the tables of a
flat-avro topic, and their keys. If the topic rule is ambiguous, the registry decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, model_validator

from tidesink.codecs.open import CODECS
from tidesink.config.fields import (
    MOST_BYTES,
    MOST_RECORDS,
    MOST_TABLES,
    ByteSize,
    Count,
    Duration,
    Listed,
    MaybeListed,
    Metadata,
    Mode,
    Model,
    NullWord,
    PipelineName,
    PositiveDuration,
    ScdType,
    SchemaChanges,
    Start,
    StartOrOffsets,
    StatePlace,
    TableMode,
    TableName,
    TablePattern,
    merged_changes,
    normalised_mode,
    read_text,
    selection,
    without_use,
)
from tidesink.config.source import SourceSettings
from tidesink.config.targets import TargetSettings
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, SchemaNotFoundError
from tidesink.events import SequenceBy, TableId, fold_name
from tidesink.schema_registry.base import SchemaReader
from tidesink.schema_registry.naming import TopicRule, sanitize_name, subject
from tidesink.typemap.projection import Layout, read_filter
from tidesink.typemap.table import AmbiguousTime, ZeroDate
from tidesink.typemap.target_schema import MetadataKind, Shard, beside_log

# Limit of a shard's name within a key: as characters of four bytes, a third of MySQL's longest key.
LONGEST_SHARD: Final = 255
_REFERENCE: Final = re.compile(r"\$([1-9$])")
_GROUP: Final = re.compile(r"(?<!\\)\((?:\?P<\w+>|(?!\?))(?:[^()\\]|\\.)*\)")
# Parts of an expression that match more than one text: classes of characters, and special characters.
_VARIABLE: Final = re.compile(r"\\[A-Za-z0-9]|(?<!\\)[.^$*+?{}\[\]|()]")


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"correct the regular expression: {error}") from error
    return text


def _table_text(text: str) -> str:
    schema, dot, name = text.partition(".")
    if not (schema and dot and name) or "." in name:
        raise ValueError("give the table as schema.table, as in sales.orders or $1.orders")
    return _vetted(text)


def _vetted(text: str) -> str:
    if "$" in _REFERENCE.sub("", text):
        raise ValueError("$ must be followed by the number of a group ($1 to $9); a $ itself is $$")
    return text


class Route(Model):
    """The target table of source tables whose whole name, `schema.table`, matches a regular expression."""

    match: Annotated[str, Field(min_length=1), AfterValidator(_regex)]
    """A regular expression (Python's) for the whole of `schema.table`, in upper or lower case. The first
    matching route is used. A table that no route matches keeps its name."""
    to: Annotated[str, AfterValidator(_table_text)]
    """The table at the target, `schema.table`; `$1` to `$9` are the texts of the groups."""
    shard_column: Annotated[str, Field(min_length=1)] | None = None
    """A column, added to the target's key, that names the source table of each row. It is required if several
    source tables may go to one table."""
    shard: Annotated[str, Field(min_length=1), AfterValidator(_vetted)] | None = None
    """The value of the shard column: text with `$1` to `$9`; `schema.table` of the source if not given.
    Two source tables of one target table must have different values."""

    @property
    def groups(self) -> int:
        """The number of groups in the expression."""
        return re.compile(self.match).groups

    @property
    def merges(self) -> bool:
        """True if several source tables may go to one table, judging by the texts."""
        if _VARIABLE.search(_GROUP.sub("", self.match)):
            return True
        return not references(self.to) >= set(range(1, self.groups + 1))

    def fits(self, table: TableId) -> re.Match[str] | None:
        """Return the match of a table's name, or None."""
        return re.compile(self.match, re.IGNORECASE).fullmatch(str(table))


class Destination(NamedTuple):
    """The target's table, and the shard that distinguishes the source table's rows from others there."""

    table: TableId
    shard: Shard | None = None


def references(text: str) -> set[int]:
    """Return the numbers of the groups that a text names."""
    return {int(found) for found in _REFERENCE.findall(text) if found != "$"}


def destination(routes: Sequence[Route], table: TableId) -> Destination:
    """Return the target's table of a source table.

    Raises:
        ConfigError: the groups' texts make no table name, or a shard's name that is too long.
    """
    for route in routes:
        found = route.fits(table)
        if found is not None:
            return _destination(route, found, table)
    return Destination(table)


def _destination(route: Route, found: re.Match[str], table: TableId) -> Destination:
    schema, name = (_expanded(part, found) for part in route.to.split("."))
    if not (schema and name):
        raise ConfigError(
            f"The route {route.match!r} makes no table name from {table}: {route.to} becomes "
            f"{schema}.{name}.",
            table=str(table),
        )
    target = TableId(schema, name)
    if route.shard_column is None:
        return Destination(target)
    value = str(table) if route.shard is None else _expanded(route.shard, found)
    if not 0 < len(value) <= LONGEST_SHARD:
        raise ConfigError(
            f"The shard of {table} has {len(value)} characters, and a key holds 1 to {LONGEST_SHARD}. "
            f"Give the route {route.match!r} a shard, such as $1.",
            table=str(table),
        )
    return Destination(target, Shard(route.shard_column, value))


def _expanded(text: str, found: re.Match[str]) -> str:
    """Return a text with its groups filled in; a group without a match is empty."""

    def value(reference: re.Match[str]) -> str:
        name = reference[1]
        return "$" if name == "$" else found[int(name)] or ""

    return _REFERENCE.sub(value, text)


Dialect = Literal["mysql", "postgres"]


class Definition(Model):
    """``CREATE TABLE`` text in the source's SQL. ``file``: the file that it was read from, if any."""

    sql: str
    file: str | None = None
    dialect: Dialect = "mysql"

    def declare_in(self, definitions: TableDefinitions, default_schema: str) -> None:
        """Add the tables of the text to ``definitions``.

        Raises:
            ConfigError: the text cannot be read.
        """
        if self.dialect == "mysql":
            definitions.declare(self.sql, default_schema)
            return
        from tidesink.ddl.catalog import read_postgres_tables

        for schema in read_postgres_tables(self.sql, default_schema):
            definitions.put(schema)


class DefinitionFile(Model):
    """SQL in its own file."""

    file: str
    """Its path, relative to the config file."""
    dialect: Dialect = "mysql"
    """The database whose SQL it is."""


class DefinitionText(Model):
    """SQL in the config itself, for a database other than TiDB and MySQL."""

    sql: str
    """The CREATE TABLE statement."""
    dialect: Dialect = "mysql"
    """The database whose SQL it is."""


def read_definition(value: Any, info: ValidationInfo) -> Any:
    """Read a definition: text is SQL of TiDB or MySQL; ``{file: path}`` is relative to the config."""
    if isinstance(value, str):
        return {"sql": value}
    if not isinstance(value, dict) or "file" not in value or "sql" in value:
        return value
    path = ((info.context or {}).get("base") or Path()) / str(value["file"])
    try:
        return {**value, "sql": read_text(path), "file": str(path)}
    except ConfigError as error:
        raise ValueError(f"give a readable file of SQL: {error.message}") from error


Deletes = Literal["hard", "soft"]
Snapshot = Literal["never", "initial"]
BadRecord = Literal["pause", "dead-letter"]


class HistorySettings(Model):
    """The names of a history's own columns (`docs/table-modes.md`)."""

    valid_from: str = Field(default="valid_from", min_length=1)
    """Start of a version."""
    valid_to: str = Field(default="valid_to", min_length=1)
    """End of a version; NULL for the current one."""
    current: str = Field(default="current", min_length=1)
    """True for the current version of a row."""


class TableDefaults(Model):
    """Settings of every table that does not set them itself."""

    mode: Mode = "upsert"
    """Content of the target's table. `upsert`: the rows as they are at the source. `append`: every change, a
    row for each image. `history`: every version of each row, with the time in which it was valid (SCD type
    2). `soft-delete`: another name for `upsert` with `deletes: soft`. See `docs/table-modes.md`."""
    stored_as_scd_type: ScdType | None = Field(default=None, alias="stored_as_scd_type")
    """Databricks' name for the mode: 1 is `upsert`, 2 is `history`."""
    history: HistorySettings = HistorySettings()
    """The names of a history's own columns."""
    sequence_by: SequenceBy = Field(default="kafka", alias="sequence_by")
    """The order of the changes of one key. `kafka`: partition, offset. `source`: commit_ts, also across
    partitions and whatever the order of arrival; deleted rows stay in the table, marked
    (`docs/guarantees.md`)."""
    deletes: Deletes = "hard"
    """`hard` removes a deleted row, `soft` keeps it, marked."""
    tombstone_retention: PositiveDuration = 7 * 86400.0
    """Under `sequence_by: source`, how long deleted rows stay, marked, so that an older change does not bring
    them back. It is measured in the source's time. An older change is a bad record."""
    zero_date: Annotated[ZeroDate, NullWord] = "null"
    """Invalid dates such as 0000-00-00: `null` (counted), `error` (the record is bad), `text` (the column
    becomes text). In a key column always an error."""
    ambiguous_time: AmbiguousTime = "first"
    """TIMESTAMP values in the hour that occurs twice in `time-zone`, if neither topic nor row checksum shows
    which one is meant: the `first` or the `second` (both counted), or `error` (the record is bad). In a key
    column always an error (`docs/guarantees.md`)."""
    snapshot: Snapshot = "never"
    """Rows from `source.database` that the topic does not have (`docs/snapshots.md`). `initial`: all rows of
    a table without applied records, in ranges of its key, while its changes are applied."""
    start: Start = "earliest"
    """Start of a table without applied records in its topic: the `earliest` record that Kafka holds, after
    the `latest` one, or a time, such as `2026-11-28T10:00:00Z`, by Kafka's timestamps. Earlier records are
    not applied, and not read for columns either. It is resolved once, and has no effect on a table that has
    begun (use `tidesink offsets rewind`). See `docs/offsets.md`."""
    bad_record: BadRecord = "pause"
    """A record that cannot be decoded: `pause` its table before it, or store it as a `dead-letter`."""
    schema_changes: SchemaChanges = SchemaChanges()
    """Policy for changes of the source table's columns and rows, by kind of change."""
    columns: Annotated[tuple[str, ...], Listed, Field(min_length=1)] | None = None
    """The columns that the target has, by the source's names; all if not given. The key's columns are
    required. This and the next four settings: `docs/how-to-columns.md`."""
    except_column_list: Annotated[tuple[str, ...], MaybeListed] | None = Field(
        default=None, alias="except_column_list"
    )
    """The columns that the target does not have, by the source's names; not together with `columns`. `[]`
    excludes no column, whatever another section excludes."""
    rename: dict[str, str] | None = None
    """The target's names of columns, `{source: target}`."""
    filter: str | None = None
    """A condition in Spark's SQL on the source's row, such as `status <> 'draft'`: the target holds the rows
    that satisfy it. `true` cancels the filter of another section."""
    metadata: Metadata | None = None
    """Columns with the origin of a row's last change, `{kind: column}`, or a list of kinds, whose columns are
    named `_tidesink_` and the kind: op, commit_ts, position, database, table, topic, partition, offset,
    batch."""
    ignore_null_updates: bool = Field(default=False, alias="ignore_null_updates")
    """A NULL in an update leaves the stored value unchanged, except in the key's columns."""

    _said = model_validator(mode="before")(normalised_mode)


_DefinitionInput = str | DefinitionFile | DefinitionText


class TableOverride(Model):
    """Settings of one table (``name``), or of tables that match a pattern (``match``, such as ``shop.*``)."""

    name: TableName | None = None
    """One table, `schema.table`."""
    match: TablePattern | None = None
    """All tables that match a pattern, `shop.*`. Names come before patterns, and patterns in order."""
    topic: str | None = None
    """The topic of this table, if no rule matches it. Not for canal-json."""
    keys: Annotated[tuple[str, ...], Listed, Field(min_length=1)] | None = None
    """The columns that identify a row, if neither the key record nor `pkNames` has them."""
    definition: (
        Annotated[Definition, BeforeValidator(read_definition, json_schema_input_type=_DefinitionInput)]
        | None
    ) = None
    """The CREATE TABLE statement, or `{file: path}`, with types that the topic does not carry. For Postgres
    use `{sql: …, dialect: postgres}`, or `file` with `dialect`."""
    mode: Mode | None = None
    """As under `defaults`, for this table."""
    stored_as_scd_type: ScdType | None = Field(default=None, alias="stored_as_scd_type")
    """As under `defaults`, for this table."""
    history: HistorySettings | None = None
    """As under `defaults`, for this table."""
    sequence_by: SequenceBy | None = Field(default=None, alias="sequence_by")
    """As under `defaults`, for this table."""
    deletes: Deletes | None = None
    """As under `defaults`, for this table."""
    tombstone_retention: PositiveDuration | None = None
    """As under `defaults`, for this table."""
    zero_date: Annotated[ZeroDate | None, NullWord] = None
    """As under `defaults`, for this table."""
    ambiguous_time: AmbiguousTime | None = None
    """As under `defaults`, for this table."""
    snapshot: Snapshot | None = None
    """As under `defaults`, for this table."""
    start: StartOrOffsets | None = None
    """As under `defaults`, for this table; for one table also the first offset of each partition, such as
    `{0: 1200, 1: 980}`."""
    bad_record: BadRecord | None = None
    """As under `defaults`, for this table."""
    schema_changes: SchemaChanges | None = None
    """As under `defaults`, for this table; kinds without a policy here keep that of `defaults`."""
    columns: Annotated[tuple[str, ...], Listed, Field(min_length=1)] | None = None
    """As under `defaults`, for this table; replaces both lists there."""
    except_column_list: Annotated[tuple[str, ...], MaybeListed] | None = Field(
        default=None, alias="except_column_list"
    )
    """As under `defaults`, for this table; replaces both lists there."""
    rename: dict[str, str] | None = None
    """As under `defaults`, for this table; replaces the names there."""
    filter: str | None = None
    """As under `defaults`, for this table; replaces the filter there."""
    metadata: Metadata | None = None
    """As under `defaults`, for this table; replaces the columns there."""
    ignore_null_updates: bool | None = Field(default=None, alias="ignore_null_updates")
    """As under `defaults`, for this table."""

    _said = model_validator(mode="before")(normalised_mode)

    @property
    def table(self) -> TableId | None:
        """The table of ``name``; None for a pattern."""
        return TableId(*self.name.split(".", 1)) if self.name else None

    def covers(self, table: TableId) -> bool:
        """Returns True if these settings are for a table. Names match in any case, like TiCDC's rules."""
        return self.fits(fold_name(str(table)))

    def fits(self, table: str) -> bool:
        """``covers`` for a name in lower case."""
        if self.name:
            return fold_name(self.name) == table
        return fnmatchcase(table, fold_name(self.match or ""))


class DeadLetterSettings(Model):
    """The Kafka topic of records that cannot be decoded. Its settings have Kafka Connect's names."""

    topic: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")] | None = Field(
        default=None, alias="errors.deadletterqueue.topic.name"
    )
    """The topic of dead letters, in the source's Kafka; created if it does not exist. `bad-record:
    dead-letter` needs it. Pipelines and Kafka Connect may share one."""
    replication_factor: Annotated[Count, Field(ge=-1, le=1000)] | None = Field(
        default=None, alias="errors.deadletterqueue.topic.replication.factor"
    )
    """Replicas of the topic if tidesink creates it. Default: the number of brokers, up to 3; -1 is the
    brokers' own default."""


class BatchSettings(Model):
    """Limits of one batch of one table, and how many tables are processed at once."""

    max_records: Count = Field(default=1_000_000, ge=1, le=MOST_RECORDS)
    """Records of one batch of one table, or of one read that tables of a topic share. A batch has as many
    records as wait, up to this and to `max-bytes`: a target commits one large batch sooner than two
    halves."""
    max_bytes: ByteSize = Field(default=256 * 2**20, ge=1, le=MOST_BYTES)
    """Bytes of the decoded rows of one batch of one table in its tasks, estimated from earlier batches. For
    a first batch, and for a read that tables of a topic share, bytes of the records."""
    max_tables: Count = Field(default=2, ge=1, le=MOST_TABLES)
    """Tables processed at once."""
    poll_interval: PositiveDuration = 1.0
    """Interval of looks for new records when idle."""
    watermark_interval: PositiveDuration = 60.0
    """Longest time without a commit of a table whose topic only has watermarks and rows of other tables. Its
    own rows are read and committed at once."""


class CutSettings(Model):
    """Cuts: all tables of the pipeline as of one instant, published repeatedly (`docs/cuts.md`)."""

    every: PositiveDuration = 60.0
    """Interval of the cuts, in the source's time. Tables are committed at least once per cut, so rows may
    appear that much later. In a database all tables are committed in one transaction."""
    keep: PositiveDuration = 7 * 86400.0
    """Time for which a lake's cut, and the versions in it, are kept."""


class RetrySettings(Model):
    """Time for which a failing step is retried, with growing pauses, before its table is FAILING."""

    for_: Duration = Field(default=300.0, alias="for")
    """Time for which a failing step is retried, with growing pauses, before its table is FAILING."""


class SparkSettings(Model):
    """The Spark session of the worker. Values of ``conf`` are secret."""

    master: str = "local[*]"
    """Where Spark runs."""
    conf: dict[str, SecretStr] = Field(default_factory=dict)
    """Spark settings; their values are never shown. On `local[...]` the JVM runs with
    `-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseParallelGC -XX:GCTimeRatio=9`;
    `spark.driver.extraJavaOptions` replaces them. Spark logs errors on stderr; `spark.log.level` sets
    another level. Lines leave out the texts of exceptions, which may be values of rows, unless you have a
    Log4j configuration of your own."""

    def conf_values(self) -> dict[str, str]:
        """``conf`` in plain text. Never log it."""
        return {name: value.get_secret_value() for name, value in self.conf.items()}


class TableConfig(Model):
    """All settings of one table, defaults and overrides merged."""

    table: TableId
    keys: tuple[str, ...] | None
    definition: Definition | None
    mode: TableMode
    history: HistorySettings
    sequence_by: SequenceBy
    deletes: Deletes
    tombstone_retention: float
    zero_date: ZeroDate
    ambiguous_time: AmbiguousTime
    snapshot: Snapshot
    start: str | dict[int, int]
    bad_record: BadRecord
    schema_changes: SchemaChanges
    time_zone: str
    columns: tuple[str, ...] | None
    except_column_list: tuple[str, ...] | None
    rename: dict[str, str] | None
    filter: str | None
    metadata: dict[MetadataKind, str] | None
    ignore_null_updates: bool

    @property
    def layout(self) -> Layout:
        """The columns, names and filter of the target's table.

        Raises:
            ConfigError: the filter cannot be read; ``tidesink validate`` finds this earlier.
        """
        return Layout(
            self.columns,
            self.except_column_list or (),
            self.rename or {},
            read_filter(self.filter) if self.filter is not None else None,
            self.metadata_columns,
            self.ignore_null_updates,
        )

    @property
    def metadata_columns(self) -> dict[MetadataKind, str]:
        """The metadata columns of the table; a change log has some of them by default."""
        return beside_log(self.metadata or {}) if self.mode == "append" else self.metadata or {}


class Config(Model):
    """One pipeline: from Kafka topics to tables of one target."""

    pipeline: PipelineName
    """The pipeline's name. It is part of each table's ledger: do not change it."""
    source: SourceSettings
    """The origin of the changes."""
    defaults: TableDefaults = TableDefaults()
    """Settings of every table."""
    tables: tuple[TableOverride, ...] = ()
    """Settings of single tables. Every topic that matches the rule is a table, listed here or not."""
    routes: tuple[Route, ...] = ()
    """Tables with another name at the target, and tables that share one there."""
    target: TargetSettings
    """The destination of the tables."""
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    """The topic of records that cannot be decoded."""
    batch: BatchSettings = BatchSettings()
    """Limits of a batch."""
    cuts: CutSettings | None = None
    """Publish cuts: all tables as of one instant of the source (`docs/cuts.md`). Without this section there
    are none."""
    retry: RetrySettings = RetrySettings()
    """How long to retry a failing step."""
    state: StatePlace = Field(default="./.tidesink/state.db", validate_default=True, repr=False)
    """The worker's store of status and history: a SQLite file, or a SQLAlchemy URL, such as
    `postgresql+psycopg://user@host/database`. Progress itself is stored in the target."""
    spark: SparkSettings = SparkSettings()
    """The Spark session."""

    def table_config(self, table: TableId) -> TableConfig:
        """Return a table's settings: those by name first, then patterns in order, then the defaults."""
        spelled = fold_name(str(table))
        overrides = [entry for entry in self.tables if entry.fits(spelled)]
        overrides.sort(key=lambda entry: entry.name is None)
        definition = _first(overrides, "definition")
        own = {name: _first(overrides, name) for name in _POLICIES}
        merged = {n: getattr(self.defaults, n) if value is None else value for n, value in own.items()}
        sections = [entry.schema_changes for entry in overrides]
        merged["schema_changes"] = merged_changes(self.defaults.schema_changes, sections)
        merged |= selection([*overrides, self.defaults])
        merged |= without_use([*overrides, self.defaults], merged)
        return TableConfig.model_construct(
            table=table,
            keys=_first(overrides, "keys"),
            definition=definition,
            time_zone=self.source.time_zone,
            **merged,
        )

    def destination(self, table: TableId) -> Destination:
        """Return the target's table of a source table. Raises ConfigError if its route makes no name."""
        return destination(self.routes, table)

    def definitions(self) -> TableDefinitions:
        """Return the config's table definitions, as a new object that the caller may change by DDL."""
        found = TableDefinitions()
        for entry in self.tables:
            if entry.definition and entry.table:
                entry.definition.declare_in(found, entry.table.schema)
        return found

    def table_of_topic(self, topic: str, *, record: TableId | None = None) -> TableId | None:
        """Return the table whose changes a topic holds: a named one, else the rule's only reading.

        None if neither decides (``shop_order_items`` by ``{schema}_{table}``), and for canal-json,
        where each message names its table. ``record``: the (sanitised) names in the topic's Avro record,
        which decide between several readings; ``topic_tables`` reads them from the registry.
        """
        if CODECS[self.source.protocol].shares_topics:
            return None
        named = self._bound_topics.get(topic)
        if named is not None:
            return named
        found = {table for rule in self.source.rules for table in rule.candidates(topic)}
        if len(found) > 1 and record is not None:
            found = {t for t in found if (sanitize_name(t.schema), sanitize_name(t.name)) == record}
        return found.pop() if len(found) == 1 else None

    def named_table_of_topic(self, topic: str) -> TableId | None:
        """Return the table that ``tables`` names for a topic, by its own topic or by the rule."""
        return self._bound_topics.get(topic)

    def reads_topic(self, topic: str) -> bool:
        """Returns True if this pipeline reads rows in a topic. Kafka's own topics (``__…``) match no rule."""
        if topic == self.source.debezium.schema_change_topic:
            return False
        if topic in self._bound_topics or topic in self.source.topics:
            return True
        return not topic.startswith("__") and any(rule.matches(topic) for rule in self.source.rules)

    def topics_among(self, available: Iterable[str]) -> tuple[str, ...]:
        """Return the pipeline's topics among those of a broker, sorted."""
        return tuple(sorted(topic for topic in available if self.reads_topic(topic)))

    @property
    def fixed_topics(self) -> tuple[str, ...]:
        """Topics that are named one by one; they must exist."""
        named = [rule.text for rule in self.source.rules if rule.is_fixed]
        return tuple(dict.fromkeys([*named, *(entry.topic for entry in self.tables if entry.topic)]))

    @cached_property
    def _bound_topics(self) -> Mapping[str, TableId]:
        """Topics of the tables that the config names."""
        bound: dict[str, TableId] = {}
        for entry in self.tables:
            if entry.table is None:
                continue
            named = (
                [entry.topic] if entry.topic else [rule.topic_for(entry.table) for rule in self._splitting]
            )
            bound.update((topic, entry.table) for topic in named)
        return bound

    @property
    def _splitting(self) -> list[TopicRule]:
        return [rule for rule in self.source.rules if rule.names_tables]


# The mode already contains the scd type.
_POLICIES = tuple(name for name in TableDefaults.model_fields if name != "stored_as_scd_type")


def _first(overrides: list[TableOverride], name: str) -> Any:
    found = (getattr(entry, name) for entry in overrides)
    return next((value for value in found if value is not None), None)


def topic_tables(config: Config, registry: SchemaReader) -> Callable[[str], TableId | None]:
    """Return a cached ``table_of_topic`` for ``open_codec`` that asks the registry only if needed."""
    known: dict[str, TableId | None] = {}

    def table_of(topic: str) -> TableId | None:
        if topic not in known:
            known[topic] = _table(config, registry, topic)
        return known[topic]

    return table_of


def stated_keys(config: Config) -> dict[TableId, tuple[str, ...]]:
    """Return the configured keys of tables that have a name in the config."""
    return {entry.table: entry.keys for entry in config.tables if entry.table and entry.keys}


def _table(config: Config, registry: SchemaReader, topic: str) -> TableId | None:
    table = config.table_of_topic(topic)
    if table is not None or CODECS[config.source.protocol].shares_topics:
        return table
    table = config.table_of_topic(topic, record=_record(registry, topic))
    if table is None:
        raise ConfigError(
            "The topic rule can be read as several tables, and the registry does not show which. "
            f"Name the table under tables: {{name: schema.table, topic: {topic}}}.",
            topic=topic,
        )
    return table


def _record(registry: SchemaReader, topic: str) -> TableId | None:
    """Return database and table from the topic's newest Avro record (sanitised), or None without a record."""
    for part in ("value", "key"):
        try:
            record = json.loads(registry.latest(subject(topic, part)).schema_text)
        except SchemaNotFoundError:
            continue
        if isinstance(record, dict) and isinstance(record.get("namespace"), str):
            return TableId(record["namespace"].rpartition(".")[2], str(record.get("name")))
    return None


def keeps_bad_records(config: Config) -> bool:
    """Returns True if a table has ``bad-record: dead-letter``."""
    return "dead-letter" in (config.defaults.bad_record, *(entry.bad_record for entry in config.tables))


def carries_ddl(source: SourceSettings) -> bool:
    """Returns True if the topics may hold DDL events, which are stored."""
    return source.protocol != "flat-avro" or source.avro_enable_watermark


_IDLE: Final = (
    "{place}: {pattern!r} matches none of the tables that were found ({names}), so nothing under it has an "
    "effect. Check the names in the changefeed"
)
_SHOWN: Final = 5


def idle_patterns(config: Config, tables: Iterable[TableId]) -> Iterator[str]:
    """Yield a warning for each ``match`` of ``tables`` and ``routes`` that matches none of the tables."""
    known = sorted(set(tables))
    if not known:
        return
    names = ", ".join(map(str, known[:_SHOWN])) + (", …" if known[_SHOWN:] else "")
    for number, entry in enumerate(config.tables):
        if entry.match is not None and not any(entry.covers(table) for table in known):
            yield _IDLE.format(place=f"tables[{number}].match", pattern=entry.match, names=names)
    for number, route in enumerate(config.routes):
        if not any(route.fits(table) for table in known):
            yield _IDLE.format(place=f"routes[{number}].match", pattern=route.match, names=names)
