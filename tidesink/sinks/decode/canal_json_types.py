"""The column types of canal-json tables, which come from several sources, as messages have only type names.

A column's type comes from the first of these sources that has it:

- the definition in the config;
- the CREATE and ALTER events of the topic. They are read ahead to the end of partition 0. The time of each
  row decides which of them apply to it;
- the type names in rows (``mysqlType``), completed by the source database (``database_types``) if a type name
  lacks digits or a length.

A column without a type is text, with a warning.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tidesink.codecs.canal_json.scan import RowWords, TableNames, newest_forms, row_forms
from tidesink.codecs.canal_json.schema import RowShapes
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import reads_same
from tidesink.ddl.row_changes import RowDdl
from tidesink.errors import ConfigError, ValueOutOfRangeError
from tidesink.events import Column, TableId, TableSchema, fold_name
from tidesink.sinks.decode.canal_json import CanalJsonDecoder, canal_json_plan
from tidesink.sinks.decode.database_types import DatabaseTypes, created_by, look_into
from tidesink.sinks.decode.open import PlannedDecoding
from tidesink.sinks.decode.parts import DecodingParts
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.decode.schema_source import (
    Missed,
    Renamed,
    SourceColumns,
    TypesFrom,
    declared_table,
)
from tidesink.sinks.decode.topic_ddl import DDL_PARTITION
from tidesink.sinks.kafka.offsets import NO_STARTS, OffsetRange, Starts, TopicOffsets, growing_parts
from tidesink.sinks.laws.counts import BatchSummary
from tidesink.typemap.table import ZeroDate, spark_type
from tidesink.typemap.target_schema import (
    IDENTITIES,
    UNREPORTED_KEY,
    TargetSchema,
    is_row_keyed,
    shape_of,
    wider_ddl,
    with_defaults,
    with_dropped,
    with_dropped_types,
    without,
)

# Number of records that are read first to find a row with type names, if no DDL defines the table.
_PEEKED_RECORDS = 10_000


_ABSENT: Final = (
    "Topic {} does not exist yet. It will be read from its beginning once the changefeed creates it. If the "
    "source table was already changed, check source.topics."
)
_NO_KEY: Final = (
    "The table has no key, because its rows have no pkNames and no definition names a key. Name the "
    "columns that identify a row under tables: keys, or set mode: append to keep its changes; "
    f"{IDENTITIES['canal-json']}"
)


class RowColumns:
    """The columns that a table's rows show: their names, and the names of their types."""

    def __init__(self, parts: DecodingParts, table: TableId) -> None:
        self._parts = parts
        self._table = table
        self._words: list[RowWords] = []

    @property
    def words(self) -> Sequence[RowWords]:
        """The names of columns and types in each form of row that was read, the longest form first."""
        return self._words

    def peek(self, ranges: Sequence[OffsetRange]) -> None:
        """Read parts of the ranges, each larger than the one before, until a part has a row of the table."""
        for part in growing_parts(ranges, _PEEKED_RECORDS):
            if self._words:
                return
            self._parts.check_stop()
            self.read(part)

    def read(self, ranges: Sequence[OffsetRange]) -> None:
        """Read the names of columns and types in this table's rows."""
        if not any(part.records for part in ranges):
            return
        form_lists = self._parts.reader.ask(ranges, partial(row_forms, self._table))
        self._words += newest_forms(form for forms in form_lists for form in forms)
        self._words.sort(key=lambda words: -len(words.names))

    def columns(self, reported: tuple[Column, ...]) -> dict[str, Column]:
        """Returns the columns that the type names in rows describe, by lower-case name.

        ``reported``: columns that DDL defines.
        """
        definitions = TableDefinitions([TableSchema(self._table, reported)] if reported else [])
        shapes, columns = RowShapes(definitions, None), dict[str, Column]()
        for words in self._words:
            shape = shapes.find(
                *self._table, dict.fromkeys(words.names), mysql_type=words.types, pk_names=words.keys
            )
            for column in shape.schema.columns:
                columns.setdefault(fold_name(column.name), column)
        return columns


class CanalJsonDecoding(PlannedDecoding):
    """The column types of one canal-json table, and the decode plan that is built from them."""

    def __init__(self, parts: DecodingParts, topic: str, table: TableId) -> None:
        super().__init__(parts, topic, table)
        self._ddl = parts.topics.ddl(topic)
        self._tables = parts.topics.tables(topic)
        self._declared = declared_table(self._settings.definition, table)
        self._options = parts.config.source.options_of(CanalJsonOptions)
        look = look_into(parts.config.source.database)
        self._database = DatabaseTypes(parts.config.pipeline, table, parts.store, look)
        self._rows = RowColumns(parts, table)
        # Columns that are known only from rows.
        self._undeclared: tuple[Column, ...] = ()
        self._renamed: dict[str, str] = {}
        self._planned: TableSchema | None = None
        self._text_columns: tuple[str, ...] = ()
        self._shared: tuple[DecodePlan, frozenset[TableId], DecodePlan] | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the table's columns and key, such as columns without a type, and about its DDL."""
        texts = [
            f"Column {name}: its type is unknown, so it is stored as text. Add a definition of the table "
            f"under tables."
            for name in self._text_columns
        ]
        reported = self._ddl.warnings(self._table, defined=self._declared is not None)
        keyed = (
            [UNREPORTED_KEY] if self._plan and is_row_keyed(self._plan.shape) and self._is_unreported else []
        )
        absent = (_ABSENT.format(self._topic),) if self._tables.absent else ()
        return (*super().warnings, *texts, *keyed, *absent, *self._database.warnings, *reported)

    @property
    def _is_unreported(self) -> bool:
        """True if the table is known only from its rows, because neither a definition nor DDL defines it."""
        return self._declared is None and self._ddl.get(self._table) is None

    @property
    def types_from(self) -> TypesFrom:
        if self._declared is not None:
            return "definition"
        return "rows" if self._ddl.get(self._table) is None else "ddl"

    def prepare(self, topic_offsets: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        """Read the topic's DDL and build the decode plan.

        If no DDL defines the table, its first rows are read. DDL from before the table's start (setting
        ``start``) defines columns, but does not change rows of the table.
        """
        self._starts = starts
        self._ddl.recall(topic_offsets)
        if self._declared is None:
            self._ddl.scan(self._parts.reader, topic_offsets)
            if self._ddl.get(self._table) is None and _has_other_partitions(topic_offsets):
                self._ddl.scan(self._parts.reader, self._ends_now(topic_offsets))
            if self._ddl.get(self._table) is None:
                self._look_elsewhere(topic_offsets)
        self._make()

    def _look_elsewhere(self, topic_offsets: TopicOffsets) -> None:
        """Find the columns of a table that no DDL defines.

        They are in the table's rows, or in the source database if the topic has no row of the table.
        """
        database = self._parts.config.source.database
        if database is None or self._table not in self._tables.unmet:
            parts = self._of_table(topic_offsets).partitions
            self._rows.peek([OffsetRange(self._topic, n, *offsets) for n, offsets in parts.items()])
        elif (statement := created_by(database, self._table)) is not None:
            self._ddl.define(topic_offsets, statement)

    def _ends_now(self, topic_offsets: TopicOffsets) -> TopicOffsets:
        """Look up the topic's current end offsets again.

        Brokers report the end of each partition at a different time. So earlier end offsets may include a
        row in another partition, but not the DDL event in partition 0 that the row needs.
        """
        return self._parts.topics.ends_now(topic_offsets)

    def catch_up(self, ranges: Sequence[OffsetRange] | None, topic_offsets: TopicOffsets) -> None:
        """Read DDL that may precede rows of the ranges, if the rows would not show that it is missing.

        A row in another partition may be read before an earlier DDL event in partition 0. If the row then has
        unknown columns or types, the task that decodes it reports that, and the DDL is read then. But a row
        does not show that the members of an ENUM or SET changed, or that the table was emptied before.
        """
        others = (part.records for part in ranges or () if part.partition != DDL_PARTITION)
        beyond = ranges is None or any(others)
        if beyond and (self._follows_rows or (self._declared is None and self._numbers_members())):
            self._newer_ddl(self._ends_now(topic_offsets))

    @property
    def _follows_rows(self) -> bool:
        """True if DDL that changes rows, such as TRUNCATE, affects the table in the target.

        It does not if the target stores no rows, or with ``mode: append``.
        """
        return "rows" in self._parts.config.target.features and self._settings.mode != "append"

    def _numbers_members(self) -> bool:
        columns = self._plan.shape.columns if self._plan else ()
        return any(column.type.members is not None for column in columns)

    def row_ddl(self) -> tuple[RowDdl, ...]:
        """Returns the DDL that changes rows of the table, from the table's start (setting ``start``) on.

        Only DDL that was read so far is returned.
        """
        begin = self._starts.get(DDL_PARTITION, 0)
        return tuple(event for event in self._ddl.row_ddl(self._table) if event.offset >= begin)

    def reported(self) -> SourceColumns | None:
        """Returns the table's columns, and its dropped and renamed ones, according to the topic's DDL.

        Returns None if the topic has no DDL of the table, or if the config has a definition.
        """
        topic_table = self._ddl.reported(self._table)
        if self._declared is not None or topic_table is None:
            return None
        dropped_columns = {fold_name(column.name): column for column in topic_table.dropped_columns}
        columns = {fold_name(column.name): column for column in topic_table.current.columns}
        renamed = {}
        for old, new in topic_table.renamed.items():
            was = dropped_columns.pop(fold_name(old), None)
            reads_on = fold_name(old) not in topic_table.reused and _reads_on(columns[fold_name(new)], was)
            reused = not topic_table.reused.isdisjoint((fold_name(old), fold_name(new)))
            parting = topic_table.removals.get(fold_name(old), "")
            renamed[old] = Renamed(new, reads_on, reused=reused, at=parting)
        former_columns = tuple(dropped_columns.values())
        return SourceColumns(
            topic_table.current,
            former_columns,
            renamed,
            topic_table.readded,
            topic_table.removals,
            topic_table.renames,
        )

    def read_as(self, renamed: Mapping[str, str], held: Mapping[str, str]) -> None:
        """Build a new decode plan if columns were renamed, or if the target still has dropped columns.

        ``renamed``: new names of columns, by old name. ``held``: types of the target's columns, by lower-case
        name.
        """
        there = {*map(fold_name, self._known_columns()), *map(fold_name, renamed)}
        lacking = {name: held_type for name, held_type in held.items() if name not in there}
        zero_date = self._settings.zero_date
        kept_columns = tuple(
            column for column in self._dropped_columns() if _stays(column, lacking, zero_date)
        )
        if renamed != self._renamed or kept_columns:
            self._renamed = dict(renamed)
            self._make(kept_columns)

    def meet_others(self, missed: Missed) -> None:
        """Find the other tables in a batch's records. They get tasks of their own."""
        self._tables.census(self._parts.reader, missed.ranges)

    def learn(self, missed: Missed) -> bool:
        """Learn the columns that the plan lacked for a batch. Returns True if a new decode plan was built.

        Reads DDL up to the end of partition 0. If that is not enough, reads the type names in the batch's
        rows. If the batch only has bad records, reads DDL and queries the source database again, because a
        record may be bad only because a column's type changed.
        """
        before = self._known_columns()
        changed = self._declared is None and self._newer_ddl(missed.found)
        if not missed.summary.counts.unplanned:
            newer = changed or (self._declared is None and self._newer_ddl(self._ends_now(missed.found)))
            return newer or self._looked_again(missed.summary)
        if self._known_columns() == before and self._declared is None:
            self._newer_ddl(self._ends_now(missed.found))
        if self._known_columns() == before:
            self._rows.read(missed.ranges)
            self._make()
        return self._known_columns() != before

    def columns(self) -> DecodePlan:
        """Returns the current decode plan.

        Its decoder has the names of all known tables of the topic, to find this table's records.
        """
        plan, tables = super().columns(), frozenset((self._table, *self._tables.known()))
        if self._shared is None or self._shared[0] is not plan or self._shared[1] != tables:
            assert isinstance(plan.decoder, CanalJsonDecoder)  # noqa: S101  (``canal_json_plan`` makes it)
            topic = TableNames(tables, self._parts.config.source.opens_up_to)
            self._shared = plan, tables, replace(plan, decoder=replace(plan.decoder, topic=topic))
        return self._shared[2]

    def take_ddl(self, missed: Missed) -> bool:
        """Read the DDL events in a batch's records, if they were not read ahead.

        Returns True if a new decode plan was built.
        """
        if self._declared is not None:
            # DDL is only read for its warnings, because the types are known from the definition.
            self._ddl.scan(self._parts.reader, missed.found)
            return False
        return self._newer_ddl(missed.found)

    def _newer_ddl(self, topic_offsets: TopicOffsets) -> bool:
        """Read new DDL. If the table's columns then differ from the plan's, build a new decode plan.

        Returns True if a new plan was built. Another table's task may have read the DDL already.
        """
        self._ddl.scan(self._parts.reader, topic_offsets)
        schema = self._schema()
        # A table that was dropped or renamed has no columns any longer. Its remaining rows have the columns
        # of the plan.
        if schema is None or schema == self._planned:
            return False
        self._make()
        return True

    def _looked_again(self, summary: BatchSummary) -> bool:
        """Query the source database again for columns that are known only from rows, after a bad record.

        If one of them has a wider type now, builds a new decode plan and returns True.
        """
        errors = {bad.error for bad in summary.bad_records} | {bad.error for bad in summary.bad_rows}
        misfit = ValueOutOfRangeError.__name__ in errors
        if not self._database.look_again(self._undeclared, misfit=misfit):
            return False
        self._make()
        return True

    def _known_columns(self) -> frozenset[str]:
        return frozenset(self._plan.shape.by_name) if self._plan else frozenset()

    def _schema(self) -> TableSchema | None:
        """Returns the table's columns: those of its definition or DDL, then those that only rows have.

        Returns None if no column is known.
        """
        defined = self._declared if self._declared is not None else self._ddl.get(self._table)
        columns: dict[str, Column] = {fold_name(c.name): c for c in defined.columns} if defined else {}
        # Columns of rows from before a DROP or RENAME. DDL reported their types.
        dropped_columns = self._dropped_columns()
        rows = self._rows.columns((*columns.values(), *dropped_columns))
        past = {fold_name(column.name) for column in dropped_columns}
        self._undeclared = tuple(c for name, c in rows.items() if name not in columns and name not in past)
        self._database.decide(self._undeclared)
        rows |= {fold_name(column.name): self._database.refined(column) for column in self._undeclared}
        for name, column in rows.items():
            columns.setdefault(name, _with_earlier(column, dropped_columns))
        for old in self._renamed:
            columns.pop(fold_name(old), None)
        self._text_columns = tuple(
            c.name for c in columns.values() if c.type.name == "text" and c.type.sql is None and not defined
        )
        return TableSchema(self._table, tuple(columns.values())) if columns else None

    def _dropped_columns(self) -> tuple[Column, ...]:
        """Returns the columns that were dropped from the table, according to the topic's DDL."""
        return () if self._declared is not None else self._ddl.dropped_columns(self._table)

    def _make(self, kept_columns: Sequence[Column] = ()) -> None:
        """Build the decode plan.

        ``kept_columns``: dropped columns that the target still has. They stay in the plan.
        """
        schema, settings = self._schema(), self._settings
        if schema is None:
            raise ConfigError(
                "The columns of the table are unknown, because the topic has neither its CREATE TABLE nor "
                "a row of it. Add a definition of the table under tables.",
                table=str(self._table),
            )
        logs = settings.mode == "append"
        by_row_key = self._by_row_key(schema)
        if not (settings.keys or schema.handle_columns or logs or by_row_key):
            raise ConfigError(_NO_KEY, table=str(self._table))
        self._planned = schema
        plan = canal_json_plan(
            schema,
            replace(self._plan_settings, base=self._base(schema, kept_columns)),
            options=self._options,
            by_row_key=by_row_key,
            renamed=self._renamed,
        )
        defined = self._declared if self._declared is not None else self._ddl.get(self._table)
        reported = {fold_name(column.name) for column in defined.columns} if defined else set()
        self._plan = plan.with_rows_in(_with_replaced(plan.shape, self._rows.words, reported))

    def _by_row_key(self, schema: TableSchema) -> bool:
        """Returns True if TiDB's row key identifies the rows.

        This is the case if the config names no keys, the table has no key, and the records have row keys.
        """
        keyed = self._settings.keys or schema.handle_columns or self._settings.mode == "append"
        return self._options.sends_row_keys and not keyed

    def _base(self, schema: TableSchema, kept_columns: Sequence[Column]) -> TargetSchema | None:
        """Returns the last plan's schema, to which the next plan adds columns.

        A column that was found in rows before its DDL was read gets its default from the DDL now.
        """
        if self._plan is None:
            return None
        previous = with_dropped(without(self._plan.shape, self._renamed), kept_columns)
        shape = with_defaults(previous, shape_of(schema, keys=self._settings.keys))
        # DDL that was read ahead may change a column's type and then drop the column. Rows from between the
        # two are still unread.
        dropped_columns = self._dropped_columns()
        names = {fold_name(column.name) for column in schema.columns}
        return with_dropped_types(
            shape, (column for column in dropped_columns if fold_name(column.name) not in names)
        )


def _has_other_partitions(topic_offsets: TopicOffsets) -> bool:
    """Returns True if the topic has rows outside the partition with its DDL."""
    return not topic_offsets.partitions.keys() <= {DDL_PARTITION}


def _with_replaced(shape: TargetSchema, words: Iterable[RowWords], reported: Container[str]) -> TargetSchema:
    """Mark the columns that are known only from rows as possibly renamed.

    Such a column may be the new name of any column that never occurs in the same row. ``reported``: names of
    the columns that a definition or DDL defines.
    """
    forms = [{fold_name(name) for name in row_words.names} for row_words in words]
    columns = []
    for column in shape.columns:
        name = fold_name(column.name)
        beside = [form for form in forms if name in form]
        alone = frozenset(shape.by_name) - frozenset().union(*beside) if beside else frozenset[str]()
        columns.append(replace(column, instead_of=frozenset() if name in reported else alone))
    return replace(shape, columns=tuple(columns))


def _reads_on(column: Column, was: Column | None) -> bool:
    """Returns True if values under a column's old name can be read with the type of its new name.

    ``column``: the column under its new name. ``was``: the column under its old name, or None.
    """
    if was is None or was.earlier or column.earlier or not reads_same(column.type, was.type):
        return False
    return wider_ddl(spark_type(was.type).ddl, spark_type(column.type).ddl) is not None


def _stays(column: Column, held: Mapping[str, str], zero_date: ZeroDate) -> bool:
    """Returns True if a dropped column stays in the decode plan: the target has it, in a type that fits.

    Key columns and virtual columns do not stay. ``held``: types of the target's columns, by lower-case name.
    """
    held_type = held.get(fold_name(column.name))
    if held_type is None or column.handle or column.virtual:
        return False
    return wider_ddl(held_type, spark_type(column.type, zero_date=zero_date).ddl) is not None


def _with_earlier(column: Column, dropped_columns: Sequence[Column]) -> Column:
    """Returns a column that was found in rows. If it is a dropped column, it also gets its earlier types."""
    for former_column in dropped_columns:
        if fold_name(former_column.name) == fold_name(column.name) and former_column.type == column.type:
            return replace(column, earlier=former_column.earlier)
    return column


def open_decoding(parts: DecodingParts, topic: str, table: TableId) -> CanalJsonDecoding:
    """Open the source of column types and decode plans for one canal-json table of a topic."""
    return CanalJsonDecoding(parts, topic, table)
