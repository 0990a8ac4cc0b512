"""Models of the config file: the pipeline, tables, routes, table definitions, batches, cuts and Spark.

Codec options have TiCDC's names, and settings for merging rows have Databricks' names. For codecs, the module
also finds the table of a topic, and the keys of tables. If a topic's name fits several tables, the topic's
schema in the registry shows the right one.
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
    TableCount,
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
from tidesink.typemap.projection import Projection, read_filter
from tidesink.typemap.table import AmbiguousTime, ZeroDate
from tidesink.typemap.target_schema import MetadataKind, Shard, beside_log

# Maximum length of a shard's name in characters. With four bytes per character, it takes a third of MySQL's
# longest key.
LONGEST_SHARD: Final = 255
_REFERENCE: Final = re.compile(r"\$([1-9$])")
_GROUP: Final = re.compile(r"(?<!\\)\((?:\?P<\w+>|(?!\?))(?:[^()\\]|\\.)*\)")
# Parts of a regular expression that match more than one text: character classes and special characters.
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
        raise ValueError("write $ only before the number of a group ($1 to $9), and write $$ for the sign $")
    return text


class Route(Model):
    """A route: the target table of all source tables whose name, `schema.table`, matches an expression."""

    match: Annotated[str, Field(min_length=1), AfterValidator(_regex)]
    """A regular expression (Python's) that must match the whole name `schema.table`; upper and lower case are
    equal. The first matching route is used. A table that no route matches keeps its name."""
    to: Annotated[str, AfterValidator(_table_text)]
    """The target table, `schema.table`. `$1` to `$9` are replaced by the groups of `match`."""
    shard_column: Annotated[str, Field(min_length=1)] | None = None
    """The name of a column that stores the source table of each row, and that is added to the target table's
    key. Required if several source tables may be written to one target table."""
    shard: Annotated[str, Field(min_length=1), AfterValidator(_vetted)] | None = None
    """The value of the shard column: a text, in which `$1` to `$9` are replaced. Default: `schema.table` of
    the source. Source tables of the same target table must have different values."""

    @property
    def groups(self) -> int:
        """The number of groups in the regular expression ``match``."""
        return re.compile(self.match).groups

    @property
    def merges(self) -> bool:
        """True if ``match`` and ``to`` may route several source tables to one target table."""
        if _VARIABLE.search(_GROUP.sub("", self.match)):
            return True
        return not references(self.to) >= set(range(1, self.groups + 1))

    def fits(self, table: TableId) -> re.Match[str] | None:
        """Return the match of the regular expression with a table's name, or None if it does not match."""
        return re.compile(self.match, re.IGNORECASE).fullmatch(str(table))


class Destination(NamedTuple):
    """The target table of a source table. ``shard``: the shard column and its value; None without a shard."""

    table: TableId
    shard: Shard | None = None


def references(text: str) -> set[int]:
    """Return the numbers of the groups to which a route's text refers, such as 1 for ``$1``."""
    return {int(group) for group in _REFERENCE.findall(text) if group != "$"}


def destination(routes: Sequence[Route], table: TableId) -> Destination:
    """Return the target table of a source table, by the first route that matches its name.

    Raises:
        ConfigError: the route makes no valid table name, or the value of the shard column is empty or too
            long.
    """
    for route in routes:
        match = route.fits(table)
        if match is not None:
            return _destination(route, match, table)
    return Destination(table)


def _destination(route: Route, match: re.Match[str], table: TableId) -> Destination:
    schema, name = (_expanded(part, match) for part in route.to.split("."))
    if not (schema and name):
        raise ConfigError(
            f"The route {route.match!r} makes no valid table name from {table}: {route.to} becomes "
            f"{schema}.{name}.",
            table=str(table),
        )
    target = TableId(schema, name)
    if route.shard_column is None:
        return Destination(target)
    value = str(table) if route.shard is None else _expanded(route.shard, match)
    if not 0 < len(value) <= LONGEST_SHARD:
        raise ConfigError(
            f"The shard of {table} has {len(value)} characters, but only 1 to {LONGEST_SHARD} fit into a "
            f"key. Set a shard in the route {route.match!r}, such as $1.",
            table=str(table),
        )
    return Destination(target, Shard(route.shard_column, value))


def _expanded(text: str, match: re.Match[str]) -> str:
    """Return a route's text with ``$1`` to ``$9`` replaced by the groups; an unmatched group is empty."""

    def value(reference: re.Match[str]) -> str:
        name = reference[1]
        return "$" if name == "$" else match[int(name)] or ""

    return _REFERENCE.sub(value, text)


Dialect = Literal["mysql", "postgres"]


class Definition(Model):
    """A table definition: ``CREATE TABLE`` in the source's SQL. ``file``: the file it came from, or None."""

    sql: str
    file: str | None = None
    dialect: Dialect = "mysql"

    def declare_in(self, definitions: TableDefinitions, default_schema: str) -> None:
        """Add the tables that the SQL creates to ``definitions``.

        Raises:
            ConfigError: the SQL cannot be parsed.
        """
        if self.dialect == "mysql":
            definitions.declare(self.sql, default_schema)
            return
        from tidesink.ddl.catalog import read_postgres_tables

        for schema in read_postgres_tables(self.sql, default_schema):
            definitions.put(schema)


class DefinitionFile(Model):
    """A table definition as a file of SQL."""

    file: str
    """The file's path, relative to the config file."""
    dialect: Dialect = "mysql"
    """The database whose SQL the file contains."""


class DefinitionText(Model):
    """A table definition as SQL in the config, for a database other than TiDB and MySQL."""

    sql: str
    """The CREATE TABLE statement."""
    dialect: Dialect = "mysql"
    """The database whose SQL the statement is in."""


def read_definition(value: Any, info: ValidationInfo) -> Any:
    """Convert a table definition of the config to a section with ``sql``, the text of the statement.

    The config may contain the statement itself (SQL of TiDB or MySQL), or a section with ``sql`` or ``file``.
    The path of a ``file`` is relative to the config's folder.
    """
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
    """The names of the columns that `mode: history` adds to a table (`docs/table-modes.md`)."""

    valid_from: str = Field(default="valid_from", min_length=1)
    """The column for the time at which a version begins."""
    valid_to: str = Field(default="valid_to", min_length=1)
    """The column for the time at which a version ends; NULL for the current version."""
    current: str = Field(default="current", min_length=1)
    """The column that is true for the current version of a row."""


class TableDefaults(Model):
    """Settings of every table that does not set them itself."""

    mode: Mode = "upsert"
    """Content of the target table. `upsert`: the rows as they are at the source. `append`: every change, with
    one row for each before and after image. `history`: every version of each row, with the time in which it
    was valid (SCD type 2). `soft-delete`: another name for `upsert` with `deletes: soft`. See
    `docs/table-modes.md`."""
    stored_as_scd_type: ScdType | None = Field(default=None, alias="stored_as_scd_type")
    """Databricks' name for the mode: 1 is `upsert`, 2 is `history`."""
    history: HistorySettings = HistorySettings()
    """The names of the columns that `mode: history` adds."""
    sequence_by: SequenceBy = Field(default="kafka", alias="sequence_by")
    """The order of the changes of one key. `kafka`: by partition and offset. `source`: by commit_ts, also
    across partitions and if changes arrive late; for this, deleted rows stay in the table and are marked
    (`docs/guarantees.md`)."""
    deletes: Deletes = "hard"
    """`hard` removes a deleted row. `soft` keeps the row and marks it as deleted."""
    tombstone_retention: PositiveDuration = 7 * 86400.0
    """Under `sequence_by: source`: the time for which deleted rows stay in the table, marked, so that a late
    change does not bring them back. It is measured by the commit times of the source. A change that is older
    than this time is a bad record."""
    zero_date: Annotated[ZeroDate, NullWord] = "null"
    """Invalid dates such as 0000-00-00: `null` (counted), `error` (the record is bad), `text` (the column
    becomes text). In a key column always an error."""
    ambiguous_time: AmbiguousTime = "first"
    """TIMESTAMP values in the hour that occurs twice in `time-zone`, if neither topic nor row checksum shows
    which one is meant: the `first` or the `second` (both counted), or `error` (the record is bad). In a key
    column always an error (`docs/guarantees.md`)."""
    snapshot: Snapshot = "never"
    """Loading of rows from `source.database` (`docs/snapshots.md`). `initial`: a new table is loaded
    with all rows of the source table, in ranges of its key, while its changes are applied. `never`: a table
    only has the rows in its topic."""
    start: Start = "earliest"
    """Start of a new table in its topic. `earliest`: at the first record that Kafka holds. `latest`:
    after the last record. A time, such as `2026-11-28T10:00:00Z`: at the first record with this Kafka
    timestamp or a later one. Earlier records are not applied, and their columns are not used. The start has
    no effect on a table that already has applied records; use `tidesink offsets rewind` instead. See
    `docs/offsets.md`."""
    bad_record: BadRecord = "pause"
    """Policy for a record that cannot be decoded. `pause`: the table pauses before the record. `dead-letter`:
    the record is stored in the dead letter topic, and the table continues."""
    schema_changes: SchemaChanges = SchemaChanges()
    """Policies for DDL and other schema changes of the source table, by kind of change."""
    columns: Annotated[tuple[str, ...], Listed, Field(min_length=1)] | None = None
    """The columns to copy, by their names at the source. Default: all columns. The key's columns are
    required. See `docs/how-to-columns.md` for this setting and the next four."""
    except_column_list: Annotated[tuple[str, ...], MaybeListed] | None = Field(
        default=None, alias="except_column_list"
    )
    """The columns to leave out, by their names at the source. Cannot be used together with `columns`. `[]`
    leaves out no column, even if another section does."""
    rename: dict[str, str] | None = None
    """New names for columns, `{source: target}`."""
    filter: str | None = None
    """A condition in Spark SQL on the source's columns, such as `status <> 'draft'`. The target only has rows
    that satisfy it. `true` cancels the filter of another section."""
    metadata: Metadata | None = None
    """Extra columns that describe the last change of a row, as `{kind: column}`, or as a list of kinds, whose
    columns are named `_tidesink_` and the kind. The kinds are op, commit_ts, position, database, table,
    topic, partition, offset and batch."""
    ignore_null_updates: bool = Field(default=False, alias="ignore_null_updates")
    """If true, a NULL in an update leaves the stored value unchanged. Columns of the key are not affected."""

    _said = model_validator(mode="before")(normalised_mode)


_DefinitionInput = str | DefinitionFile | DefinitionText


class TableOverride(Model):
    """Settings of one table (``name``), or of tables that match a pattern (``match``, such as ``shop.*``)."""

    name: TableName | None = None
    """One table, `schema.table`."""
    match: TablePattern | None = None
    """A pattern for names of tables, such as `shop.*`. Entries with `name` override those with `match`, and
    an earlier `match` overrides a later one."""
    topic: str | None = None
    """The topic of this table, if no topic rule matches it. Not for canal-json."""
    keys: Annotated[tuple[str, ...], Listed, Field(min_length=1)] | None = None
    """The columns that identify a row, if neither the records' keys nor `pkNames` contain them."""
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
    """As under `defaults`, for this table; replaces both column lists of `defaults`."""
    except_column_list: Annotated[tuple[str, ...], MaybeListed] | None = Field(
        default=None, alias="except_column_list"
    )
    """As under `defaults`, for this table; replaces both column lists of `defaults`."""
    rename: dict[str, str] | None = None
    """As under `defaults`, for this table; replaces the new names of `defaults`."""
    filter: str | None = None
    """As under `defaults`, for this table; replaces the filter of `defaults`."""
    metadata: Metadata | None = None
    """As under `defaults`, for this table; replaces the extra columns of `defaults`."""
    ignore_null_updates: bool | None = Field(default=None, alias="ignore_null_updates")
    """As under `defaults`, for this table."""

    _said = model_validator(mode="before")(normalised_mode)

    @property
    def table(self) -> TableId | None:
        """The table that ``name`` gives; None for an entry with ``match``."""
        return TableId(*self.name.split(".", 1)) if self.name else None

    def covers(self, table: TableId) -> bool:
        """Returns True if this entry has settings for ``table``. Names match in any case, as in TiCDC."""
        return self.fits(fold_name(str(table)))

    def fits(self, table: str) -> bool:
        """Returns True if this entry has settings for a table. ``table``: its name in lower case."""
        if self.name:
            return fold_name(self.name) == table
        return fnmatchcase(table, fold_name(self.match or ""))


class DeadLetterSettings(Model):
    """The Kafka topic of records that cannot be decoded. Its settings have Kafka Connect's names."""

    topic: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")] | None = Field(
        default=None, alias="errors.deadletterqueue.topic.name"
    )
    """The dead letter topic, in the Kafka of `source`. It is created if it does not exist. Required by
    `bad-record: dead-letter`. Several pipelines and Kafka Connect may share a topic."""
    replication_factor: Annotated[Count, Field(ge=-1, le=1000)] | None = Field(
        default=None, alias="errors.deadletterqueue.topic.replication.factor"
    )
    """Replication factor of the topic if tidesink creates it. Default: the number of brokers, up to 3. -1
    means the brokers' default."""


class BatchSettings(Model):
    """Limits of one batch of one table, and how many tables are processed at once."""

    max_records: Count = Field(default=1_000_000, ge=1, le=MOST_RECORDS)
    """Maximum number of records in one batch of one table, or in one read of a topic for several tables. A
    batch has all waiting records, up to this limit and `max-bytes`, because a target commits one large batch
    faster than two small batches."""
    max_bytes: ByteSize = Field(default=256 * 2**20, ge=1, le=MOST_BYTES)
    """Maximum size of one batch of one table: the bytes of its decoded rows, estimated from earlier batches.
    For a table's first batch, and for a read of a topic for several tables, the bytes of the records."""
    executor: Literal["auto", "local", "spark"] = "auto"
    """What reads, decodes and reduces the records of a batch: Spark tasks, or (`local`) the worker's own
    process. `auto` chooses `local` for batches up to `local-records` and `local-bytes`. A worker that needs
    no Spark job starts no JVM."""
    local_records: Count = Field(default=10_000, ge=1, le=MOST_RECORDS)
    """With `executor: auto`: maximum number of records in a batch that the worker's own process reads."""
    local_bytes: ByteSize = Field(default=32 * 2**20, ge=1, le=MOST_BYTES)
    """With `executor: auto`: maximum size of a batch that the worker's own process reads: the bytes of its
    decoded rows, estimated from earlier batches."""
    max_tables: TableCount | None = None
    """Maximum number of tables that are processed at once. Without it, the worker processes four tables at
    once, at most two of them with batches that are too large for its own process."""
    poll_interval: PositiveDuration = 1.0
    """Interval at which an idle worker looks for new records."""
    watermark_interval: PositiveDuration = 60.0
    """Interval at which progress is committed for a table without rows of its own, while its topic only has
    watermarks and rows of other tables. A table's own rows do not wait for this interval."""


class CutSettings(Model):
    """Cuts: all tables of the pipeline as of one commit time, published at an interval (`docs/cuts.md`)."""

    every: PositiveDuration = 60.0
    """Interval between cuts, measured by the commit times of the source. Rows may appear at the target later
    by up to this interval. In a database, each cut commits all tables in one transaction."""
    keep: PositiveDuration = 7 * 86400.0
    """Time for which a lake keeps a cut and the table versions of the cut."""


class RetrySettings(Model):
    """Time for which a failing step is retried, with growing pauses, before its table is FAILING."""

    for_: Duration = Field(default=300.0, alias="for")
    """Time for which a failing step is retried, with growing pauses, before its table becomes FAILING."""


class SparkSettings(Model):
    """The Spark session of the worker. Values of ``conf`` are secret."""

    master: str = "local[*]"
    """Spark's master URL, such as `local[*]`."""
    conf: dict[str, SecretStr] = Field(default_factory=dict)
    """Spark settings. Their values are never shown. On `local[...]` the JVM runs with
    `-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseParallelGC -XX:GCTimeRatio=9`;
    `spark.driver.extraJavaOptions` replaces these options. Spark logs errors to stderr; `spark.log.level`
    sets another level. The log leaves out the messages of exceptions, which may contain values of rows,
    unless you have your own Log4j configuration."""

    def conf_values(self) -> dict[str, str]:
        """Return ``conf`` with its secret values in plain text. Never log the result."""
        return {name: value.get_secret_value() for name, value in self.conf.items()}


class TableConfig(Model):
    """The settings of one table, merged from ``defaults`` and the entries of ``tables``."""

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
    def projection(self) -> Projection:
        """The columns of the target table, their names at the target, and the filter of its rows.

        Raises:
            ConfigError: the filter cannot be parsed. ``tidesink validate`` reports this first.
        """
        return Projection(
            self.columns,
            self.except_column_list or (),
            self.rename or {},
            read_filter(self.filter) if self.filter is not None else None,
            self.metadata_columns,
            self.ignore_null_updates,
        )

    @property
    def metadata_columns(self) -> dict[MetadataKind, str]:
        """The names of the metadata columns by kind. ``mode: append`` has some of them by default."""
        return beside_log(self.metadata or {}) if self.mode == "append" else self.metadata or {}


class Config(Model):
    """The config of one pipeline, which reads Kafka topics and writes the tables of one target."""

    pipeline: PipelineName
    """The pipeline's name. It identifies the progress of each table at the target, so do not change it."""
    source: SourceSettings
    """The Kafka topics with the changes, and the database they come from."""
    defaults: TableDefaults = TableDefaults()
    """Settings of every table that does not set them itself."""
    tables: tuple[TableOverride, ...] = ()
    """Settings of single tables. A table that is not listed here is copied too, if its topic matches a rule
    of `source.topics`."""
    routes: tuple[Route, ...] = ()
    """Routes of tables that have another name at the target, or that share a target table."""
    target: TargetSettings
    """The lake, database, Kafka or HTTP endpoint to which the tables are written."""
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    """The Kafka topic for records that cannot be decoded."""
    batch: BatchSettings = BatchSettings()
    """Limits of a batch."""
    cuts: CutSettings | None = None
    """Cuts: all tables as of one commit time (`docs/cuts.md`). Without this section no cuts are published."""
    retry: RetrySettings = RetrySettings()
    """Retries of a failing step."""
    state: StatePlace = Field(default="./.tidesink/state.db", validate_default=True, repr=False)
    """The state store, in which the worker stores status and history: the path of a SQLite file, or a
    SQLAlchemy URL such as `postgresql+psycopg://user@host/database`. Progress is stored in the target."""
    spark: SparkSettings = SparkSettings()
    """The Spark session."""

    def table_config(self, table: TableId) -> TableConfig:
        """Return a table's merged settings.

        Entries of ``tables`` with the table's name override those with a pattern, an earlier pattern
        overrides a later one, and all of them override ``defaults``.
        """
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
        """Return the target table of a source table. Raises ConfigError if its route makes no valid name."""
        return destination(self.routes, table)

    def definitions(self) -> TableDefinitions:
        """Return the config's table definitions, as a new object to which the caller may apply DDL."""
        declared = TableDefinitions()
        for entry in self.tables:
            if entry.definition and entry.table:
                entry.definition.declare_in(declared, entry.table.schema)
        return declared

    def table_of_topic(self, topic: str, *, record: TableId | None = None) -> TableId | None:
        """Return the table whose changes a topic holds.

        This is the table that ``tables`` names for the topic, else the only table that fits the topic's name
        by the rule. Returns None if several tables fit (``shop_order_items`` by ``{schema}_{table}``), and
        for canal-json, where each message names its table. ``record``: sanitised names in the topic's Avro
        record, which decide if several tables fit; ``topic_tables`` reads them from the registry.
        """
        if CODECS[self.source.protocol].shares_topics:
            return None
        named = self._bound_topics.get(topic)
        if named is not None:
            return named
        candidates = {table for rule in self.source.rules for table in rule.candidates(topic)}
        if len(candidates) > 1 and record is not None:
            candidates = {t for t in candidates if (sanitize_name(t.schema), sanitize_name(t.name)) == record}
        return candidates.pop() if len(candidates) == 1 else None

    def named_table_of_topic(self, topic: str) -> TableId | None:
        """Return the table of a topic if the config's ``tables`` name it, by ``topic`` or by a topic rule."""
        return self._bound_topics.get(topic)

    def reads_topic(self, topic: str) -> bool:
        """Returns True if this pipeline reads rows from a topic. Internal topics (``__…``) match no rule."""
        if topic == self.source.debezium.schema_change_topic:
            return False
        if topic in self._bound_topics or topic in self.source.topics:
            return True
        return not topic.startswith("__") and any(rule.matches(topic) for rule in self.source.rules)

    def topics_among(self, available: Iterable[str]) -> tuple[str, ...]:
        """Return those of a broker's topics that the pipeline reads, sorted by name."""
        return tuple(sorted(topic for topic in available if self.reads_topic(topic)))

    @property
    def fixed_topics(self) -> tuple[str, ...]:
        """Topics that the config gives by name, not by a rule with placeholders. They must exist."""
        named = [rule.text for rule in self.source.rules if rule.is_fixed]
        return tuple(dict.fromkeys([*named, *(entry.topic for entry in self.tables if entry.topic)]))

    @cached_property
    def _bound_topics(self) -> Mapping[str, TableId]:
        """The table of each topic that an entry of ``tables`` names, by ``topic`` or by the topic rules."""
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


# Without stored_as_scd_type, which is already converted to the mode.
_POLICIES = tuple(name for name in TableDefaults.model_fields if name != "stored_as_scd_type")


def _first(overrides: list[TableOverride], name: str) -> Any:
    values = (getattr(entry, name) for entry in overrides)
    return next((value for value in values if value is not None), None)


def topic_tables(config: Config, registry: SchemaReader) -> Callable[[str], TableId | None]:
    """Return a function that returns the table of a topic, for ``open_codec``.

    The function only asks the registry if several tables fit the topic's name, and caches its results.
    """
    tables: dict[str, TableId | None] = {}

    def table_of(topic: str) -> TableId | None:
        if topic not in tables:
            tables[topic] = _table(config, registry, topic)
        return tables[topic]

    return table_of


def stated_keys(config: Config) -> dict[TableId, tuple[str, ...]]:
    """Return the setting ``keys`` of each table that the config names and sets keys for."""
    return {entry.table: entry.keys for entry in config.tables if entry.table and entry.keys}


def _table(config: Config, registry: SchemaReader, topic: str) -> TableId | None:
    table = config.table_of_topic(topic)
    if table is not None or CODECS[config.source.protocol].shares_topics:
        return table
    table = config.table_of_topic(topic, record=_record(registry, topic))
    if table is None:
        raise ConfigError(
            "Several tables fit the topic's name by the topic rule, and the registry does not show which. "
            f"Name the table under tables: {{name: schema.table, topic: {topic}}}.",
            topic=topic,
        )
    return table


def _record(registry: SchemaReader, topic: str) -> TableId | None:
    """Return the sanitised database and table in the topic's newest Avro schema; None without a schema."""
    for part in ("value", "key"):
        try:
            record = json.loads(registry.latest(subject(topic, part)).schema_text)
        except SchemaNotFoundError:
            continue
        if isinstance(record, dict) and isinstance(record.get("namespace"), str):
            return TableId(record["namespace"].rpartition(".")[2], str(record.get("name")))
    return None


def keeps_bad_records(config: Config) -> bool:
    """Return True if the config sets ``bad-record: dead-letter`` for at least one table."""
    return "dead-letter" in (config.defaults.bad_record, *(entry.bad_record for entry in config.tables))


def carries_ddl(source: SourceSettings) -> bool:
    """Returns True if the topics may hold DDL events, which the worker stores in the state store."""
    return source.protocol != "flat-avro" or source.avro_enable_watermark


_IDLE: Final = (
    "{place}: {pattern!r} matches none of the found tables ({names}), so this entry has no effect. Check the "
    "tables' names in the changefeed"
)
_SHOWN: Final = 5


def idle_patterns(config: Config, tables: Iterable[TableId]) -> Iterator[str]:
    """Yield a warning for each ``match`` in ``tables`` and ``routes`` of the config that matches no table.

    ``tables``: the tables that were found.
    """
    ordered = sorted(set(tables))
    if not ordered:
        return
    names = ", ".join(map(str, ordered[:_SHOWN])) + (", …" if ordered[_SHOWN:] else "")
    for number, entry in enumerate(config.tables):
        if entry.match is not None and not any(entry.covers(table) for table in ordered):
            yield _IDLE.format(place=f"tables[{number}].match", pattern=entry.match, names=names)
    for number, route in enumerate(config.routes):
        if not any(route.fits(table) for table in ordered):
            yield _IDLE.format(place=f"routes[{number}].match", pattern=route.match, names=names)
