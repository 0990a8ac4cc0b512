"""Plans of tables for ``tidesink plan``, made without Spark: columns, key, policies, warnings and limits."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from tidesink.cli.sources import Start, peek, read_topic, topic_names
from tidesink.cli.status import store_if_there
from tidesink.cli.table_schemas import OpenedTable, SampledRecords, SampledTopic
from tidesink.codecs import CODECS, open_codec
from tidesink.codecs.base import Codec
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.debezium.inference import LoneCodec, key_only
from tidesink.codecs.debezium.remarks import ROUTED, key_remark, routed_field
from tidesink.codecs.flat_avro.schema import WriterRecord, parse_record
from tidesink.codecs.options import CanalJsonOptions, DebeziumOptions
from tidesink.codecs.row_checksum import CHECKSUM
from tidesink.config import Config, TableConfig
from tidesink.config.models import idle_patterns, topic_tables
from tidesink.config.table_checks import (
    check_merged,
    loads_quiet_tables,
    needs_positions,
    quiet_tables,
    shown_policies,
)
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.topic_statements import DdlStatement
from tidesink.errors import (
    ConfigError,
    DecodeError,
    RegistryError,
    SchemaRefusedError,
    SourceError,
    TidesinkError,
    bad_reason,
    type_change_way,
)
from tidesink.events import ChangeEvent, Message, Op, TableId, TableSchema, fold_name
from tidesink.schema_registry import SchemaRegistry
from tidesink.sinks.decode.debezium_avro import DebeziumAvroDecoder
from tidesink.sinks.decode.debezium_changes import KeyFacts
from tidesink.sinks.decode.flat_avro import FlatAvroDecoder
from tidesink.sinks.decode.plans import RegisteredSchemas
from tidesink.sinks.decode.schema_source import TypesFrom
from tidesink.sinks.kafka.compaction import refusal
from tidesink.sinks.kafka.offsets import NO_ID, NO_STARTS, KafkaOffsets, Starts, TopicOffsets
from tidesink.sinks.laws.executors import shown_rule
from tidesink.sinks.laws.modes import kept_shape, routed_shape
from tidesink.sinks.schema_changes.decisions import possible_rename_of
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.base import OWN_COLUMNS, SOFT_DELETE_COLUMN, Limit, PreflightResult
from tidesink.sinks.targets.lake.tables import table_names
from tidesink.sinks.targets.sharing import quote_identifier, quote_mysql, quote_path, quote_postgres
from tidesink.sinks.targets.sql.location import place_in
from tidesink.sinks.targets.sql.target import view_name
from tidesink.sinks.worker.preflight import column_type, preflight_of
from tidesink.typemap.arrow_text import sets_clocks_back
from tidesink.typemap.projection import check_renames, project
from tidesink.typemap.table import CALENDAR_READERS, row_of, type_words
from tidesink.typemap.target_schema import (
    IDENTITIES,
    WHY_OF,
    TargetColumn,
    TargetSchema,
)

if TYPE_CHECKING:
    from tidesink.sinks.snapshots.parts import SourceDatabase
    from tidesink.sinks.state.progress import StateStore
    from tidesink.source_database.base import StoredTable

_TEXTS: Final = frozenset({"string", "text", "longtext"})


class ColumnPlan(NamedTuple):
    """The plan of a column: its types at the source and the target. ``note``: what is converted or lost."""

    name: str
    source_type: str
    target_type: str
    key: bool
    note: str


def column_plan(
    config: Config, column: TargetColumn, shape: TargetSchema, sources: Mapping[str, str], reported: str
) -> ColumnPlan:
    """Return the plan of a target column. ``sources``: names of columns at the source, by target name."""
    was = sources.get(column.name, column.name)  # a mode's own columns are not in the source
    there = column_type(config, column)
    notes = (reported, f"{was} at the source" if was != column.name else "", _note(column, shape, there))
    note = "; ".join(note for note in notes if note)
    return ColumnPlan(column.name, type_words(column.type), there, column.key, note)


def _reason(column: TargetColumn, there: str) -> str | None:
    """Return why a target column does not have the type that is nearest to its source type; None if it does.

    Returns None for a number that is text in Spark if the target has a type for such numbers.
    """
    return column.reason if row_of(column.type).reader != "decimal" or there in _TEXTS else None


def _note(column: TargetColumn, shape: TargetSchema, there: str) -> str:
    if shape.shard is not None and column.name == shape.shard.column:
        return f"always {shape.shard.value}, by the route"
    if column.hidden:
        return WHY_OF[column.name]
    row = row_of(column.type)
    reason = _reason(column, there)
    if reason:
        return reason
    if row.reader in CALENDAR_READERS:
        policies = shape.policies_of(column)
        zone = f"; read in {shape.time_zone}" if row.reader == "timestamp" else ""
        if _has_ambiguous_times(column, shape):
            zone += f", times that occur twice: {policies['ambiguous_time']}"
        return f"invalid dates: {policies['zero_date']}{zone}"
    if row.reader in ("enum", "set"):
        return "" if column.type.members is not None else row.lost
    return row.lost if row.reader == "time" and there in _TEXTS else ""


_NO_KEY = (
    "The topic has no key for this table, so its rows cannot be identified. Set its keys in the config, "
    "as in tables: [{{name: {table}, keys: [...]}}], or set mode: append to store its changes. {identity}"
)
_NO_ORDER = (
    "sequence_by: source compares TiDB's commit_ts, which the records of this topic do not have. In "
    "Debezium's protocols only TiCDC sends one. Set sequence_by: kafka, which is right for a connector's "
    "topics."
)
_UNSERVED = (
    "The config names {table} under tables, but {found}. Check the table's name in the changefeed, and "
    "whether the table has rows yet"
)


class SnapshotEstimate(NamedTuple):
    """The size of a table's snapshot, as the source database estimates it.

    rows: Number of rows.
    bytes: Size of the rows in bytes.
    ranges: Number of key ranges in which the rows are read.
    key: Columns of the key by which the rows are read.
    """

    rows: int
    bytes: int
    ranges: int
    key: tuple[str, ...]


@dataclass(frozen=True)
class TablePlan:
    """The plan of one table.

    problem: Reason why the worker cannot process the table yet, or None.
    types_from: Origin of the column types at the source.
    omitted: Columns of the source that the target does not have.
    shard: Value of the shard column in the rows of this table, or None.
    read_as: SQL query that leaves out the deleted rows, if deleted rows stay in the table and are marked.
    limits: Limits of the target that concern the table.
    snapshot: Size of the snapshot with which the table begins, or None.
    sampled: Number of sampled records if the topic has more records than that; otherwise 0. Also 0 if a
        registry has all schemas.
    """

    table: TableId | None
    topic: str
    path: str = ""
    columns: tuple[ColumnPlan, ...] = ()
    keys: tuple[str, ...] = ()
    policies: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    problem: str | None = None
    types_from: TypesFrom | None = None
    omitted: tuple[str, ...] = ()
    read_as: str = ""
    shard: str | None = None
    limits: tuple[Limit, ...] = ()
    snapshot: SnapshotEstimate | None = None
    sampled: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        shown = dataclasses.asdict(self)
        shown["table"] = None if self.table is None else self.table._asdict()
        shown["columns"] = [column._asdict() for column in self.columns]
        shown["limits"] = [limit._asdict() for limit in self.limits]
        shown["snapshot"] = None if self.snapshot is None else self.snapshot._asdict()
        return shown


def table_plans(config: Config, *, sample: int) -> Iterator[TablePlan]:
    """Yield the plan of every table of the existing topics.

    ``sample``: number of records to read from the beginning of each topic whose columns no registry has.

    Raises:
        SourceUnavailableError: the broker does not answer.
        RegistryError: the registry does not answer or refuses access.
    """
    topics = config.topics_among(topic_names(config.source.confluent_properties()))
    protocol = CODECS[config.source.protocol]
    with ExitStack() as parts:
        registry = parts.enter_context(closing(config.source.open_registry())) if protocol.registry else None
        if config.source.protocol == "flat-avro":
            assert registry is not None  # noqa: S101  (flat-avro has a registry)
            yield from _registered(config, registry, topics)
            return
        stored = parts.enter_context(_stored_answers(config))
        for topic in topics:
            if protocol.shares_topics:
                yield from _canal_json(config, Sample(topic, sample), stored)
            else:
                yield _by_records(config, registry, Sample(topic, sample), stored)


def _stored_answers(config: Config) -> AbstractContextManager[StateStore | None]:
    """Open the state store if it may have answers of the source database about column types."""
    may_have = config.source.protocol == "debezium-json" or config.source.database is not None
    return store_if_there(config) if may_have else nullcontext()


def _registered(config: Config, registry: SchemaRegistry, topics: Iterable[str]) -> Iterator[TablePlan]:
    table_of = topic_tables(config, registry)
    for topic in topics:
        try:
            table = table_of(topic)
        except ConfigError as error:
            yield TablePlan(None, topic, problem=error.message)
            continue
        if table is not None:
            yield _flat_avro(config, registry, topic, table)


@dataclass
class Sample:
    """The first ``size`` records of a topic. ``more``: True if reading showed that the topic has more.

    ``read``: reads the topic.
    """

    topic: str
    size: int
    more: bool = False
    read: Callable[..., Iterator[Message]] = read_topic

    def records(self, config: Config) -> Iterator[Message]:
        """Yield the sampled records, in the order of their Kafka timestamps."""
        properties = config.source.confluent_properties()
        messages = self.read(properties, self.topic, start=Start("earliest"), limit=self.size + 1)
        for number, message in enumerate(messages):
            if number == self.size:
                self.more = True
                return
            yield message

    def last_records(self, config: Config) -> Iterator[Message]:
        """Yield the last records of each partition, in the order of their Kafka timestamps."""
        yield from peek(config.source.confluent_properties(), self.topic, most=_LAST_RECORDS, ends=True)

    def noted(self, plan: TablePlan) -> TablePlan:
        """Return the plan with the number of sampled records, if the topic has more records than that."""
        return dataclasses.replace(plan, sampled=self.size) if self.more else plan


def sample_warning(plans: Iterable[TablePlan]) -> str | None:
    """Return the warning that the plans are only based on first records; None if all records were read."""
    sizes = {plan.topic: plan.sampled for plan in plans if plan.sampled}
    if not sizes:
        return None
    size, topics = max(sizes.values()), sorted(sizes)
    more = f" and {len(topics) - _NAMED_TOPICS} more" if len(topics) > _NAMED_TOPICS else ""
    return _SAMPLED.format(size=size, topics=", ".join(topics[:_NAMED_TOPICS]) + more, larger=size * 10)


_NAMED_TOPICS: Final = 5
# Number of records to read at each partition's end if the first ones have no types, the same as in a worker.
_LAST_RECORDS: Final = 100
_SAMPLED: Final = (
    "Only the first {size} records of each topic were read, and these topics have more: {topics}. Columns "
    "and tables that first appear in later records are not shown. `tidesink plan --sample {larger}` reads "
    "more."
)


_QUIET: Final = (
    "None of the sampled records belongs to this table. Its columns come from the source database."
)
_UNBORN: Final = (
    "Topic {} does not exist yet. The worker loads the table, and reads the topic from its beginning once "
    "the changefeed creates it. Check that source.topics is the changefeed's topic rule."
)
_MUST_EXIST: Final = (
    "The broker has no topic {}. The worker loads the topic's tables only after it exists. Start the "
    "changefeed, which creates the topic."
)


def with_quiet_tables(config: Config, plans: Iterable[TablePlan]) -> Iterator[TablePlan]:
    """Yield the plans, followed by plans of source tables of which the topics contain no record.

    A worker loads such tables from the source database.

    Raises:
        ConfigError: the source database rejects the user.
        SourceUnavailableError: the source database does not answer.
    """
    planned = set()
    for plan in plans:
        yield plan
        planned.add(plan.table)
    if not loads_quiet_tables(config):
        return
    from tidesink.sinks.snapshots.parts import open_source_database
    from tidesink.source_database.database import OPTION, stored_tables, translated
    from tidesink.source_database.mysql import create_statement

    with open_source_database(config) as database, translated(OPTION):
        stored = (table for table in stored_tables(database.connection) if table not in planned)
        for topic, table in quiet_tables(config, sorted(stored)):
            created = create_statement(database.connection, table)
            if created is not None:
                yield _quiet(config, topic, DdlStatement(table.schema, *created, table=table.name))


def _quiet(config: Config, topic: str, created: DdlStatement) -> TablePlan:
    table = TableId(created.database, created.table)
    try:
        TableDefinitions().apply(created.sql, table.schema)
    except ConfigError as error:
        return _unplanned(config, topic, table, error.message)
    sampled = SampledTopic(config, SampledRecords(topic, ()))
    sampled.define(created)
    plan = _canal_table(config, sampled, table)
    types: TypesFrom = "definition" if plan.types_from == "definition" else "database"
    return dataclasses.replace(plan, types_from=types, warnings=(_QUIET, *plan.warnings))


def _of_no_topic(config: Config, plan: TablePlan) -> TablePlan:
    """Add to a plan the warning that the table's topic does not exist yet, or a problem if it must exist."""
    if plan.topic in config.fixed_topics or config.cuts is not None:
        return dataclasses.replace(plan, problem=plan.problem or _MUST_EXIST.format(plan.topic))
    return dataclasses.replace(plan, warnings=(*plan.warnings, _UNBORN.format(plan.topic)))


_COMPACTED: Final = (
    "The topic has cleanup.policy={policy}. Compaction removes deletes after {hours:g} h "
    "(delete.retention.ms). If no worker reads the topic for that long, the table stops, because deletes may "
    "be missing."
)
_LEFT_OUT: Final = (
    "Compaction also removes updates whose values later updates leave out (TOAST in Postgres). Set REPLICA "
    "IDENTITY FULL, so that every update has all values."
)
_NO_TOPIC_ID: Final = (
    "The broker assigns no ids to topics (Kafka before 2.8, and some services). Without ids, a topic that "
    "was deleted and created again can only be recognised by its offsets and first records."
)


def by_topics(config: Config, plans: Iterable[TablePlan]) -> Iterator[TablePlan]:
    """Yield the plans, with warnings and problems that follow from the Kafka settings of their topics.

    Raises:
        SourceUnavailableError: the broker does not answer.
    """
    look = KafkaOffsets(config.source.confluent_properties()).look(config.topics_among)
    for plan in plans:
        topic = look.found.get(plan.topic)
        if topic is not None:
            yield of_topic(config, plan, topic)
        else:
            yield plan if plan.topic in look.unanswered else _of_no_topic(config, plan)


def of_topic(config: Config, plan: TablePlan, topic: TopicOffsets) -> TablePlan:
    """Add to a plan the warnings and problems that follow from the Kafka settings of its topic."""
    warnings, problem = list(plan.warnings), plan.problem
    if topic.topic_id == NO_ID:
        warnings.append(_NO_TOPIC_ID)
    if topic.compaction is not None and plan.table is not None:
        refused = refusal(topic.compaction, config.source, config.table_config(plan.table))
        problem = problem or refused
        if refused is None:
            policy, retention = topic.compaction
            warnings.append(_COMPACTED.format(policy=policy, hours=retention / 3600))
            warnings += [_LEFT_OUT] if CODECS[config.source.protocol].leaves_out else []
    return dataclasses.replace(plan, warnings=tuple(warnings), problem=problem)


def with_snapshots(config: Config, plans: Iterable[TablePlan]) -> Iterator[TablePlan]:
    """Yield the plans. Adds the snapshot's size to plans of tables that will begin with a snapshot.

    Raises:
        ConfigError: the source database rejects the user.
        SourceUnavailableError: the source database does not answer.
    """
    with ExitStack() as closing:
        database: SourceDatabase | None = None
        for plan in plans:
            settings = None if plan.table is None else config.table_config(plan.table)
            if plan.table is None or settings is None or settings.snapshot == "never":
                yield plan
                continue
            if database is None:
                # Imported here because this module imports Spark's tasks, which take a second to load.
                from tidesink.sinks.snapshots.parts import open_source_database

                database = closing.enter_context(open_source_database(config))
            try:
                stored = database.table(plan.table)
                if needs_positions(config, settings):
                    database.position(since=0)
            except (ConfigError, SourceError) as error:
                yield dataclasses.replace(plan, problem=plan.problem or error.message)
                continue
            plan = with_identity(plan, stored)  # noqa: PLW2901
            ranges = max(1, -(-stored.rows // database.rows_of(stored)))
            estimate = SnapshotEstimate(stored.rows, stored.bytes, ranges, stored.key)
            yield dataclasses.replace(plan, snapshot=estimate)


_NOT_SENT: Final = (
    "The table's key is ({}), but Postgres does not send {} of a deleted row: the replica identity is ({}). "
    "A delete would delete another row, or none. Set REPLICA IDENTITY FULL on the table, or list only "
    "columns of the replica identity in message.key.columns."
)


def with_identity(plan: TablePlan, stored: StoredTable) -> TablePlan:
    """Add a problem to the plan of a Postgres table whose replica identity lacks columns of the key.

    If the replica identity confirms the key, the plan's warnings about the key are removed.
    """
    problem = plan.problem or identity_problem(plan.keys, stored)
    facts = KeyFacts(identity=stored.replica_identity)
    if facts.are_sent(plan.keys) is None and not facts.confirm(plan.keys):
        return dataclasses.replace(plan, problem=problem)
    answered = {*key_remark(plan.keys)}
    warnings = tuple(text for text in plan.warnings if text not in answered)
    return dataclasses.replace(plan, problem=problem, warnings=warnings)


def identity_problem(keys: Collection[str], stored: StoredTable) -> str | None:
    """Return why deletes of a Postgres table do not identify their rows; None if they do or it is unknown."""
    there = {fold_name(name): name for name in stored.types}
    if stored.identity is None or not {fold_name(key) for key in keys} <= there.keys():
        return None
    lost = [key for key in keys if there[fold_name(key)] not in stored.identity]
    if not lost:
        return None
    return _NOT_SENT.format(", ".join(keys), ", ".join(lost), ", ".join(sorted(stored.identity)))


def unserved_tables(config: Config, plans: Iterable[TablePlan]) -> Iterator[str]:
    """Yield a warning for each table of the config that no topic has, and each pattern that fits no table."""
    listed = list(plans)
    yield from idle_patterns(config, (plan.table for plan in listed if plan.table is not None))
    planned = {fold_name(str(plan.table)) for plan in listed}
    topics = {plan.topic for plan in listed}
    for table in dict.fromkeys(entry.table for entry in config.tables if entry.table is not None):
        if fold_name(str(table)) in planned:
            continue
        # A canal-json topic may hold tables beyond the sampled records.
        may_be = topics.intersection(rule.topic_for(table) for rule in config.source.rules)
        reason = (
            f"none of the sampled records of {min(may_be)} belongs to it" if may_be else "no topic has it"
        )
        yield _UNSERVED.format(table=table, found=reason)


def _opened(
    sampled: SampledTopic, table: TableId, starts: Starts = NO_STARTS
) -> tuple[OpenedTable | None, str | None]:
    """Open a table as a worker does. Return it, and the reason why the worker does not open it, or None.

    If the table could be opened with a key, or without the config's selection of columns, it is returned
    together with the reason, so that its columns can be shown.

    Raises:
        RegistryError: the registry does not answer or refuses access.
    """
    try:
        return sampled.open(table, starts=starts), None
    except RegistryError:
        raise
    except TidesinkError as error:
        refused = error.message
    try:
        return sampled.open_keyless(table, starts=starts), refused
    except RegistryError:
        raise
    except TidesinkError as error:
        return None, error.message


def _starts(settings: TableConfig, records: SampledRecords, rows: Sequence[Message]) -> Starts:
    """Return the first offset of each partition that a new table reads (setting ``start``).

    If the sample has no row from there on, the table's newest row stands for those that it reads.

    ``records``: the sampled records. ``rows``: those with rows of the table, in the order of their Kafka
    timestamps.
    """
    start, ends = settings.start, {n: p.latest for n, p in records.offsets.partitions.items()}
    if start == "earliest":
        return NO_STARTS
    if isinstance(start, str):
        since = None if start == "latest" else datetime.fromisoformat(start).timestamp() * 1000
        starts = ends if since is None else {**ends, **records.first_since(since)}
    else:
        starts = {**ends, **start}
    if any(message.offset >= starts[message.partition] for message in rows) or not rows:
        return starts
    return {**ends, rows[-1].partition: rows[-1].offset}


def _plan_of_opened(
    config: Config, topic: str, table: TableId, opened: OpenedTable | None, refused: str | None
) -> TablePlan:
    """Return the plan of a table, with the reason why a worker does not open it as the problem."""
    if opened is None:
        return _unplanned(config, topic, table, refused or "")
    plan = plan_of(
        config,
        topic,
        opened.shape,
        types_from=opened.types_from,
        renames=opened.renames,
        past=opened.past,
    )
    return dataclasses.replace(plan, problem=plan.problem or refused)


def _flat_avro(config: Config, registry: SchemaRegistry, topic: str, table: TableId) -> TablePlan:
    settings = config.table_config(table)
    sampled = SampledTopic(config, SampledRecords(topic, ()), registry=registry)
    # No record is read. A table that does not start at the earliest record may not meet the older schemas.
    opened, refused = _opened(sampled, table, NO_STARTS if settings.start == "earliest" else {0: 0})
    planned = _plan_of_opened(config, topic, table, opened, refused)
    if opened is None or not isinstance(opened.plan.decoder, FlatAvroDecoder):
        return planned
    schemas = opened.plan.decoder.schemas
    # They were looked up in the order of the subject's versions.
    records = [parse_record(text) for text in schemas.values.texts.values()]
    more = flat_avro_warnings(records, opened.shape.keys, settings) if records else ()
    summed = bool(records) and CHECKSUM in records[-1].extension
    times = () if summed else ambiguous_times(opened.shape, planned.omitted)
    warnings = (*planned.warnings, *opened.warnings, *more, *times, *refused_schemas(schemas))
    return dataclasses.replace(planned, warnings=warnings)


_REFUSED: Final = "Records whose {part} has the schema id {number} are bad records. {reason}"


def refused_schemas(schemas: RegisteredSchemas) -> Iterator[str]:
    """Yield a warning for each schema in the registry whose records are bad records."""
    for part, side in (("key", schemas.keys), ("value", schemas.values)):
        for number, reason in side.refused.items():
            yield _REFUSED.format(part=part, number=number, reason=reason)


@dataclass
class Undecodable:
    """The sampled records of a topic that cannot be decoded, and their errors, in Kafka's order.

    ``looked_at``: number of all sampled records.
    """

    looked_at: int = 0
    errors: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def add(self, message: Message, error: str) -> None:
        """Add a record and its error."""
        self.messages.append(message)
        self.errors.append(error)

    def joined(self, other: Undecodable) -> Undecodable:
        """Return the records of both, those of ``other`` last."""
        errors, messages = [*self.errors, *other.errors], [*self.messages, *other.messages]
        return Undecodable(self.looked_at, errors, messages)

    @property
    def text(self) -> str:
        """Return a text with the number of undecodable records, and the first error."""
        number = f"{len(self.errors)} of the {self.looked_at} sampled records"
        first = self.errors[0]
        return (
            f"{number} cannot be decoded. The first error: {first}{'' if first.endswith(('.', '?')) else '.'}"
        )

    def reported_in(self, config: Config, plan: TablePlan) -> TablePlan:
        """Add the errors to a table's plan: as a problem if the worker stops at them, else as a warning."""
        if not self.errors:
            return plan
        if plan.table is None:
            return dataclasses.replace(plan, warnings=(), problem=plan.problem or self.text)
        settings = config.table_config(plan.table)
        if settings.bad_record == "pause" and settings.start == "earliest":
            stops = f"{self.text} The table stops before this record (bad-record: pause). {_SET_ASIDE}"
            return dataclasses.replace(plan, problem=plan.problem or stops)
        # Only the worker resolves a start, so the record may be one that the table never reads.
        remark = _MAY_STOP if settings.bad_record == "pause" else _STORED
        return dataclasses.replace(plan, warnings=(*plan.warnings, f"{self.text} {remark}"))


_SET_ASIDE: Final = "Fix the cause, or set bad-record: dead-letter to store such records as dead letters."
_MAY_STOP: Final = (
    "The table does not read records before its start. At such a record after its start, it stops "
    f"(bad-record: pause). {_SET_ASIDE}"
)
_STORED: Final = "The worker stores such records as dead letters (bad-record: dead-letter)."


def shown_error(error: DecodeError) -> str:
    """Return an error as text, with what to do if a column of the record changed its type."""
    way = type_change_way(type(error).__name__, bad_reason(error), "restart the worker (`tidesink run`)")
    return f"{error} {way}".rstrip()


def _table_named(message: Message) -> TableId | None:
    """Return the table that an undecodable canal-json record names; None if it names no table.

    A record without a table counts for every table of its topic, as in a worker.
    """
    try:
        document = json.loads(message.value or b"")
        names = document["database"], document["table"]
    except (ValueError, TypeError, KeyError):
        return None
    return TableId(*names) if all(isinstance(name, str) and name for name in names) else None


@dataclass
class _TableRecords:
    """The sampled records of one table. ``schemas``: the schemas of their rows, by object id."""

    messages: list[Message] = field(default_factory=list)
    schemas: dict[int, TableSchema | None] = field(default_factory=dict)


def _canal_json(config: Config, read: Sample, stored: StateStore | None) -> Iterator[TablePlan]:
    """Yield the plans of a canal-json topic's tables, from the topic's first records."""
    topic, most = read.topic, config.source.opens_up_to
    codec = CanalJsonCodec(
        options=config.source.options_of(CanalJsonOptions), definitions=config.definitions()
    )
    tables = defaultdict[TableId, _TableRecords](_TableRecords)
    bad = defaultdict[TableId | None, Undecodable](Undecodable)
    messages = [*read.records(config)]
    for message in messages:
        try:
            events = codec.decode(message)
        except DecodeError as error:
            bad[_table_named(message)].add(message, shown_error(error))
            continue
        for event in events:
            if isinstance(event, ChangeEvent):
                tables[event.table].messages.append(message)
                tables[event.table].schemas[id(event.schema)] = event.schema
    everything = SampledRecords(topic, messages, opens_up_to=most)
    sampled, unread = SampledTopic(config, everything, stored=stored), ""
    try:
        sampled.tables(topic).census(everything, everything.ranges())
        sampled.read_ddl()
    except ConfigError as error:  # the records are compressed, and the config does not say so
        unread = error.message
    sampled.tables(topic).add(sorted(tables))
    for table, own in sorted(tables.items()):
        undecodable = bad.pop(table, _NONE_BAD).joined(bad.get(None, _NONE_BAD))
        records = SampledRecords(
            topic,
            [*own.messages, *undecodable.messages],
            opens_up_to=most,
            schemas=None if undecodable.messages else [*filter(None, own.schemas.values())],
        )
        starts = _starts(config.table_config(table), records, own.messages)
        plan = (
            _unplanned(config, topic, table, unread)
            if unread
            else _canal_table(config, sampled.of_records(records), table, starts)
        )
        yield read.noted(dataclasses.replace(undecodable, looked_at=len(messages)).reported_in(config, plan))
    for about, left in bad.items():
        if about is not None or not tables:
            plan = TablePlan(about, topic)
            yield read.noted(dataclasses.replace(left, looked_at=len(messages)).reported_in(config, plan))
    if not tables and not bad:
        yield read.noted(TablePlan(None, topic, warnings=(_NO_ROW,)))


_NONE_BAD: Final = Undecodable()
_NO_ROW: Final = "None of the sampled records changes a row."


_SEVERAL: Final = (
    "The topic holds rows of several tables ({}), and their keys do not distinguish the tables. If a "
    "transform (ByLogicalTableRouter) merges the tables into this topic, set key.enforce.uniqueness=true and "
    "keep the field that it adds ({}) among the keys. Or write each table to its own topic, and merge the "
    "tables with route and shard-column. If tables have equal names in Kafka, give each its own topic name."
)


def routed_problem(
    tables: Collection[TableId], keys: Collection[str], added: Collection[str] = ()
) -> str | None:
    """Return why rows of several tables in one topic cannot be told apart; None if they can.

    ``tables``: the tables whose rows the topic holds. ``keys``: the key at the target. ``added``: columns
    that the records' keys have and the rows do not.
    """
    if len(tables) < 2 or not {ROUTED, *added}.isdisjoint(keys):
        return None
    return _SEVERAL.format(", ".join(sorted(map(str, tables))), routed_field(added))


def _by_records(
    config: Config, registry: SchemaRegistry | None, read: Sample, stored: StateStore | None
) -> TablePlan:
    """Return the plan of a topic with one table, from the topic's first records."""
    bad = Undecodable()
    rows = _Rows.of(config, registry, read, bad)
    plan = TablePlan(None, read.topic, warnings=(_NO_ROW,))
    if rows.newest is not None:
        plan = _of_rows(config, registry, read, rows, stored)
    return read.noted(bad.reported_in(config, plan))


@dataclass(frozen=True)
class _Rows:
    """The sampled records of a topic with one table.

    ``of_tables``: those with rows. ``newest``: the newest row, or None. ``tables``: the tables that rows
    name.
    """

    messages: Sequence[Message]
    of_tables: Sequence[Message]
    newest: ChangeEvent | None
    tables: frozenset[TableId]

    @classmethod
    def of(cls, config: Config, registry: SchemaRegistry | None, read: Sample, bad: Undecodable) -> _Rows:
        """Read and decode the sampled records. Adds decode errors to ``bad``."""
        definitions, options = config.definitions(), config.source.codec_options()
        codec: Codec = (
            LoneCodec(config.source.options_of(DebeziumOptions), None)
            if config.source.protocol == "debezium-json"
            else open_codec(
                config.source.protocol, options=options, registry=registry, definitions=definitions
            )
        )
        newest: ChangeEvent | None = None
        tables: set[TableId] = set()
        of_tables: dict[tuple[int, int], Message] = {}
        messages = [*read.records(config)]
        for message in messages:
            bad.looked_at += 1
            try:
                events = codec.decode(message)
            except DecodeError as error:
                bad.add(message, shown_error(error))
                continue
            for event in events if message.value is not None else ():  # a tombstone has only the key
                if isinstance(event, ChangeEvent) and event.schema and event.op is not Op.TRUNCATE:
                    newest = event
                    tables.add(event.table)
                    of_tables[message.partition, message.offset] = message
        return cls(messages, [*of_tables.values()], newest, frozenset(tables))


def _of_rows(
    config: Config, registry: SchemaRegistry | None, read: Sample, rows: _Rows, stored: StateStore | None
) -> TablePlan:
    """Return the plan of a topic with one table, from the rows of the sample."""
    topic, newest = read.topic, rows.newest
    assert newest is not None  # noqa: S101  (the caller has checked it)
    table = newest.table
    if config.table_config(table).sequence_by == "source" and newest.commit_ts is None:
        return _unplanned(config, topic, table, _NO_ORDER)

    def open_on(messages: Iterable[Message]) -> tuple[OpenedTable | None, str | None]:
        records = SampledRecords(topic, messages)
        sampled = SampledTopic(config, records, registry=registry, stored=stored)
        return _opened(sampled, table, _starts(config.table_config(table), records, rows.of_tables))

    opened, refused = open_on(rows.messages)
    if opened is None and read.more and config.source.protocol == "debezium-json":
        # The connector may send schemas by now. A worker reads the last records too, to find them.
        try:
            opened, refused = open_on([*rows.messages, *read.last_records(config)])
        except SourceError as error:
            refused = error.message
    if opened is not None:
        keys = opened.shape.keys
        if problem := routed_problem(rows.tables, keys, key_only(newest)):
            return _unplanned(config, topic, table, problem)
    planned = _plan_of_opened(config, topic, table, opened, refused)
    if opened is None:
        return planned
    decoder = opened.plan.decoder
    unused = refused_schemas(decoder.schemas) if isinstance(decoder, DebeziumAvroDecoder) else ()
    return dataclasses.replace(planned, warnings=(*planned.warnings, *opened.warnings, *unused))


def _canal_table(
    config: Config, sampled: SampledTopic, table: TableId, starts: Starts = NO_STARTS
) -> TablePlan:
    topic = sampled.topic
    opened, refused = _opened(sampled, table, starts)
    plan = _plan_of_opened(config, topic, table, opened, refused)
    if opened is None:
        return plan
    of_ddl = sampled.ddl(topic).warnings(table)
    told = [text for text in opened.warnings if text not in of_ddl]
    times = ambiguous_times(opened.shape, plan.omitted)
    types = (_SHORT_NAMES,) if opened.types_from == "rows" else ()
    return dataclasses.replace(plan, warnings=(*types, *told, *plan.warnings, *times))


_SHORT_NAMES: Final = (
    "The column types come from the short names in mysqlType. For full types, give the table's definition in "
    "the config."
)


def plan_of(
    config: Config,
    topic: str,
    source: TargetSchema,
    *,
    types_from: TypesFrom,
    renames: Sequence[tuple[str, str]] = (),
    past: Iterable[str] = (),
) -> TablePlan:
    """Return the plan of a table whose schema at the source is known.

    ``renames``: pairs of a column's old and new name, from the table's DDL. ``past``: names of dropped
    columns.
    """
    settings = config.table_config(source.table)
    try:
        check_merged(settings)
        check_renames(settings.projection, source, renames)
        names = (fold_name(name) for name in (*past, *(name for pair in renames for name in pair)))
        shape, sources = project(settings.projection, source, own=OWN_COLUMNS, past=names)
        reported = {name: f"{kind} of the change" for kind, name in settings.projection.metadata.items()}
        shape = kept_shape(routed_shape(shape, config.destination(source.table)), settings)
    except (ConfigError, SchemaRefusedError) as error:
        return _unplanned(config, topic, source.table, error.message)
    seen, problem = _preflight(config, shape, sources)
    return TablePlan(
        table=shape.source,
        topic=topic,
        path=_path(config, shape.table),
        columns=tuple(
            column_plan(config, c, shape, sources, reported.get(c.name, "")) for c in shape.columns
        ),
        keys=shape.keys,
        policies=_policies(config, settings),
        omitted=tuple(column.name for column in source.columns if column.name not in sources.values()),
        warnings=(*seen.warnings, *_warnings(config, shape, sources)),
        problem=problem,
        types_from=types_from,
        read_as="" if problem else live_rows_query(config, shape),
        shard=shape.shard.value if shape.shard else None,
        limits=seen.limits,
    )


def _preflight(
    config: Config, shape: TargetSchema, sources: Mapping[str, str]
) -> tuple[PreflightResult, str | None]:
    """Return the target's limits for a table, and the reason why the target does not support it, or None."""
    if not shape.keys:
        no_key = _NO_KEY.format(table=shape.source, identity=IDENTITIES.get(config.source.protocol, ""))
        return PreflightResult(), no_key.rstrip()
    try:
        return preflight_of(config, shape, sources.keys()), None
    except (ConfigError, SchemaRefusedError) as error:
        return PreflightResult(), error.message


def _unplanned(config: Config, topic: str, table: TableId, problem: str) -> TablePlan:
    policies = _policies(config, config.table_config(table))
    try:
        path = _path(config, config.destination(table).table)
    except ConfigError as error:  # from the table's route
        return TablePlan(table, topic, policies=policies, problem=error.message)
    return TablePlan(table, topic, path, policies=policies, problem=problem)


def _path(config: Config, table: TableId) -> str:
    """Return a table's location at the target, or an empty text if the target does not allow its name."""
    try:
        return target_module(config.target).place_of(config.target, table)
    except SchemaRefusedError:
        return ""


def _warnings(config: Config, shape: TargetSchema, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about columns that get another type at the target, or because of which a table waits."""
    settings = config.table_config(shape.source)
    for column in (column for column in shape.columns if column.name in sources):
        reason = _reason(column, column_type(config, column))
        if reason:
            yield f"column {column.name}: {reason}"
        if settings.projection.may_be_excluded(column):
            reason = possible_rename_of(column, settings.projection)
            yield f"column {column.name}: {reason}: the table waits because of it"


def _policies(config: Config, settings: TableConfig) -> dict[str, str]:
    # A log keeps the changes of a key as they arrive, and a history always orders them by commit_ts.
    ordered = {"sequence_by": settings.sequence_by, "deletes": settings.deletes}
    return {
        "mode": settings.mode,
        **(ordered if settings.mode == "upsert" else {}),
        "zero-date": settings.zero_date,
        "ambiguous-time": settings.ambiguous_time,
        "bad-record": settings.bad_record,
        "schema-changes": shown_policies(settings.schema_changes, config, logs=settings.mode == "append"),
        "time-zone": settings.time_zone,
        "executor": shown_rule(config.batch, has_filter=settings.filter is not None),
        **({"filter": settings.filter} if settings.filter is not None else {}),
        **({"ignore_null_updates": "true"} if settings.ignore_null_updates else {}),
    }


_NO_OLD_ROWS: Final = (
    "The topic has no before images. Updates arrive only as update_postimage, and deletes only with their "
    "key. The new TiCDC writes before images with avro-include-before-value=true; canal-json always has "
    "them."
)
_NO_OPS: Final = (
    "The topic does not distinguish inserts from updates, so both become upsert. To distinguish them, set "
    "enable-tidb-extension=true in the changefeed."
)
_NO_MOMENTS: Final = (
    "Deletes in the classic TiCDC's flat-avro have no commit_ts, so the table pauses before its first "
    "delete. Use canal-json with enable-tidb-extension=true, or the new TiCDC, whose delete markers have one."
)
_DELETE_WITHOUT_KEY: Final = (
    "The table has no key, so a delete that is sent without the deleted row cannot be applied and is a bad "
    "record. To send the row in flat-avro, set avro-include-before-value=true in the changefeed."
)


def flat_avro_warnings(
    records: Iterable[WriterRecord], keys: tuple[str, ...], settings: TableConfig
) -> Iterator[str]:
    """Yield warnings about what flat-avro's schemas lack for a table's mode, such as a commit_ts."""
    newest = list(records)[-1]
    if newest.before is None and (settings.mode == "history" or settings.sequence_by == "source"):
        yield _NO_MOMENTS
    if settings.mode != "append":
        return
    if newest.before is None:
        yield _NO_OLD_ROWS
    if "_tidb_op" not in newest.extension:
        yield _NO_OPS
    if not keys and newest.before is None:
        yield _DELETE_WITHOUT_KEY


_AMBIGUOUS: Final = (
    "When the clocks of {zone} are set back, a local time occurs twice, and the topic does not show which "
    "one is meant. ambiguous-time: {policy} says which one tidesink takes for {columns}. To avoid the "
    "question, enable row checksums (flat-avro), or use UTC as the time zone of the changefeed and as "
    "source.time-zone."
)


def ambiguous_times(shape: TargetSchema, omitted: Collection[str]) -> Iterator[str]:
    """Yield a warning if local times of a table may be ambiguous and no row checksum resolves them."""
    columns = [
        candidate
        for candidate in shape.columns
        if candidate.name not in omitted and _has_ambiguous_times(candidate, shape)
    ]
    if columns:
        names = ", ".join(column.name for column in columns)
        yield _AMBIGUOUS.format(zone=shape.time_zone, policy=shape.ambiguous_time, columns=names)


def _has_ambiguous_times(column: TargetColumn, shape: TargetSchema) -> bool:
    """Return True if a column's times are in a zone whose clocks are set back this year or next year."""
    local = row_of(column.type).reader == "timestamp" and column.spark == "timestamp"
    return local and sets_clocks_back(ZoneInfo(shape.time_zone), datetime.now(timezone.utc).year)


_Quote = Callable[[str], str]


def live_rows_query(config: Config, shape: TargetSchema) -> str:
    """Return a SQL query that selects a table's rows except those marked as deleted.

    The query is in the SQL of the target database, or of Spark for a lake, and leaves out tidesink's own
    columns. It is empty if the table does not mark deleted rows.
    """
    settings = config.table_config(shape.source)
    locate = _PLACES.get(config.target.type)
    marks = settings.sequence_by == "source" or settings.deletes == "soft"
    if locate is None or settings.mode != "upsert" or not marks:
        return ""
    quote, location, shown = locate(config.target, shape.table)
    if shown:
        return f"SELECT * FROM {shown}"  # noqa: S608  quoted
    columns = ", ".join(quote(column.name) for column in shape.columns)
    return f"SELECT {columns} FROM {location} WHERE {quote(SOFT_DELETE_COLUMN)} IS NOT TRUE"  # noqa: S608


def _delta(settings: Any, table: TableId) -> tuple[_Quote, str, str]:
    if settings.catalog_table:
        return quote_identifier, quote_path(*table_names(settings.catalog_table, table)), ""
    path = target_module(settings).place_of(settings, table)
    return quote_identifier, f"delta.{quote_identifier(path)}", ""


def _iceberg(settings: Any, table: TableId) -> tuple[_Quote, str, str]:
    return quote_identifier, quote_path(settings.catalog, *table_names(settings.table, table)), ""


def _database(quote: _Quote) -> Callable[[Any, TableId], tuple[_Quote, str, str]]:
    def place_of(settings: Any, table: TableId) -> tuple[_Quote, str, str]:
        target_table = place_in(settings.table, table, quote)
        view = view_name(settings.view, target_table)
        return quote, target_table.location, target_table.beside(view) if view else ""

    return place_of


# By type of target that stores rows: a function that returns how to quote a name, a table's location in SQL,
# and the name of its view without deleted rows.
_PLACES: Final[Mapping[str, Callable[[Any, TableId], tuple[_Quote, str, str]]]] = MappingProxyType(
    {
        "delta": _delta,
        "iceberg": _iceberg,
        "postgres": _database(quote_postgres),
        "mysql": _database(quote_mysql),
    }
)
