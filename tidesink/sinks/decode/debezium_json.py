"""Builds decode plans of debezium-json tables from schemas in records, a definition, and the columns of rows.

The records are Debezium's (3.5.0.Final with Kafka Connect 4.3's JsonConverter) or TiCDC's (b813e76). Schemas
are not in a registry, so the decode plan has the schemas of the records that were read so far. Such a schema,
with the columns of its rows, is called a writer here. If a record has a new schema, the task that decodes it
reports the writer, and a new plan is built. A column whose type is neither in a schema, nor in a definition,
nor in the source database is text in the plan. The caller decides whether such columns are allowed
(``untyped_refusal``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import ChangeTable, DecodedBatch
from tidesink.codecs.debezium.envelope import POSTGRES, TICDC, has_exact_names
from tidesink.codecs.debezium.inference import (
    FirstRow,
    InferredColumn,
    LoneCodec,
    facts_of,
    inferred_column,
    inferred_columns,
)
from tidesink.codecs.debezium.remarks import column_remarks
from tidesink.codecs.options import DebeziumOptions
from tidesink.errors import ConfigError, SchemaMismatchError, SchemaRefusedError, TidesinkError
from tidesink.events import Column, ColumnType, NameFold, TableId, TableSchema, folding
from tidesink.sinks.decode.debezium_changes import (
    NO_DATABASE,
    DatabaseFacts,
    DebeziumDecoder,
    KeyFacts,
    needs_old_keys,
    without_headers,
)
from tidesink.sinks.decode.plans import DEFAULT_SETTINGS, DecodePlan, PlanSettings, folded_keys
from tidesink.sinks.decode.records import RecordedColumns
from tidesink.sinks.decode.target_rows import (
    DroppedByWriter,
    TargetRows,
    dropped_in_order,
    first_rows_by_column,
)
from tidesink.sinks.laws.schema_rows import FirstRows, extreme, first_rows_of
from tidesink.typemap.target_schema import (
    IDENTITIES,
    LeftOut,
    TargetSchema,
    check_spelling,
    merge_schemas,
    merged_in_order,
    needed_definition,
    needs_all,
    shape_of,
    unread_columns,
)
from tidesink.typemap.values import Convert

_NO_OPTIONS: Final = DebeziumOptions()
_NO_KEY: Final = (
    "The records of {} have no key, so it is unknown which row a change belongs to. Name its key columns "
    "under tables: keys, set message.key.columns at the connector, or set mode: append to keep its changes; "
    f"{IDENTITIES['debezium-json']}"
)
_UNTYPED_SNAPSHOT: Final = (
    "The type of column {!r} is unknown, because the records have no schema, and so is the form of its "
    "values in the records. To read rows from the source database, add a definition of the table under "
    "tables, and set the connector's modes under source.debezium."
)
_UNTYPED: Final = (
    "The records of topic {} have no schemas, so the types of {} are unknown: a DECIMAL may be base64 text "
    "in the records, and a DATETIME a number. {}Add a definition of the table (tables: [{{name: {}, "
    "definition: CREATE TABLE …}}]), {}or {}. Records with schemas also supply the types of earlier "
    "records. To store such columns as text instead, set source.debezium.untyped-columns: text."
)
_SCHEMAS_ON: Final = "set value.converter.schemas.enable=true at the connector"
_SCHEMAS_OF_TICDC: Final = "remove debezium-disable-schema from the changefeed's sink URI"
_DATABASE: Final = "set source.database to read the types from the database, "
_NOT_THERE: Final = "The source database has no table {}. "
# Maximum number of columns that the message names.
_NAMED: Final = 2
_MOST_SCHEMAS: Final = 1024


class Place(NamedTuple):
    """The location of the first record that has a given schema.

    ``timestamp``: the record's Kafka timestamp in ms since 1970, or None if not known.
    """

    timestamp: int | None
    offset: int
    partition: int


_NOWHERE: Final = Place(None, 0, 0)


@dataclass(frozen=True)
class JsonWriter:
    """A writer: the schema of records, as the columns of their rows.

    Attributes:
        columns: The columns of the rows. Each one has a flag that its type was guessed from a value.
        keys: Names of the key columns.
        bare: True if the rows have no schema. Then columns differ from row to row, and a delete may have only
            its key.
        flattened: True if the transform ExtractNewRecordState has flattened the rows.
        is_ticdc: True if TiCDC wrote the rows.
        connector: Name of the connector in the source block; empty if not known.
        place: Location of the first record with this schema.
        source: The smallest source position of the first rows, or None if not known.
    """

    columns: tuple[InferredColumn, ...]
    keys: tuple[str, ...] = ()
    bare: bool = False
    flattened: bool = False
    is_ticdc: bool = False
    connector: str = ""
    place: Place = field(default=_NOWHERE, compare=False)
    source: tuple[int, ...] | None = field(default=None, compare=False)

    @property
    def identity(self) -> tuple[str, ...]:
        """A value that identifies the writer. Writers with the same columns have the same identity."""
        return tuple(sorted(column.text for column in self.columns))

    @property
    def text(self) -> str:
        """The writer as JSON text, which ``writer_of`` restores."""
        members = dict(self.__dict__)
        return json.dumps({**members, "columns": [column.text for column in self.columns]}, sort_keys=True)


def writer_of(text: str) -> JsonWriter:
    """Restore a writer from ``JsonWriter.text``."""
    members: dict[str, Any] = json.loads(text)
    return JsonWriter(
        tuple(inferred_column(column) for column in members.pop("columns")),
        tuple(members.pop("keys")),
        place=Place(*members.pop("place")),
        source=None if (source := members.pop("source")) is None else tuple(source),
        **members,
    )


def first_writer(row: FirstRow) -> JsonWriter:
    """Create the writer for a row. The row must be the first one that was read with its schema."""
    message = row.message
    place = Place(message.timestamp, message.offset, message.partition)
    return JsonWriter(row.columns, row.keys, row.bare, row.flattened, row.is_ticdc, row.connector, place)


@dataclass(frozen=True)
class Writers:
    """The known writers (schemas of records) of a topic.

    Attributes:
        with_schema: Writers with a schema, oldest first.
        reported: Columns of all rows without a schema, by name.
        reported_keys: Names of the key columns of rows without a schema.
        reported_later: Names of the columns in ``reported`` that appeared after the first plan was built.
        reported_ticdc: True if TiCDC wrote rows without a schema.
        flattened: True if the transform ExtractNewRecordState has flattened some rows.
        connector: The connector of the newest writer whose source block was read; empty if not known.
        newest: Identity of the writer that is in use now. If None, it is the last one in ``with_schema``.
    """

    with_schema: tuple[JsonWriter, ...] = ()
    reported: Mapping[str, InferredColumn] = field(default_factory=dict)
    reported_keys: tuple[str, ...] = ()
    reported_later: frozenset[str] = frozenset()
    reported_ticdc: bool = False
    flattened: bool = False
    connector: str = ""
    newest: tuple[str, ...] | None = None

    @property
    def in_use(self) -> JsonWriter:
        """The writer with a schema that is in use now."""
        writers = (writer for writer in self.with_schema if writer.identity == self.newest)
        return next(writers, self.with_schema[-1])

    def with_new(self, new: Iterable[JsonWriter], *, later: bool = False) -> Writers:
        """Returns a copy with the writers ``new`` added. ``later``: True if a plan was already built."""
        writers, by_identity = self, {writer.identity: writer for writer in self.with_schema}
        for writer in sorted(new, key=_age):
            if writer.bare:
                writers = writers._with_bare(writer, later=later)
            else:
                by_identity[writer.identity] = _joined(by_identity.get(writer.identity), writer)
            writers = replace(
                writers,
                flattened=writers.flattened or writer.flattened,
                connector=writer.connector or writers.connector,
            )
        return replace(writers, with_schema=tuple(sorted(by_identity.values(), key=_age)))

    def _with_bare(self, writer: JsonWriter, *, later: bool) -> Writers:
        reported = {column.column.name: column for column in writer.columns}
        new = reported.keys() - self.reported.keys() if later else set[str]()
        return replace(
            self,
            reported={**self.reported, **reported},
            reported_keys=self.reported_keys or writer.keys,
            reported_later=self.reported_later | new,
            reported_ticdc=self.reported_ticdc or writer.is_ticdc,
        )


def _age(writer: JsonWriter) -> tuple[bool, int, int, int]:
    timestamp, offset, partition = writer.place
    return timestamp is None, timestamp or 0, offset, partition


def _joined(previous: JsonWriter | None, writer: JsonWriter) -> JsonWriter:
    """Combine two writers with the same columns into one, with the location of the earlier first record."""
    if previous is None:
        return writer
    return replace(
        previous,
        keys=previous.keys or writer.keys,
        flattened=previous.flattened or writer.flattened,
        is_ticdc=previous.is_ticdc or writer.is_ticdc,
        place=min(previous, writer, key=_age).place,
        source=extreme(min, previous.source, writer.source),
    )


@dataclass(frozen=True)
class DroppedByColumns(DroppedByWriter[frozenset[str]]):
    """Finds dropped columns by comparing the columns of the writers (schemas of records)."""

    def _writer(self, changes: ChangeTable) -> frozenset[str]:
        return _names(changes.schema.columns, self.fold)


def _names(columns: Iterable[Column], fold: NameFold) -> frozenset[str]:
    return frozenset(fold(column.name) for column in columns)


@dataclass(frozen=True)
class DebeziumJsonDecoder(DebeziumDecoder):
    """Decodes the debezium-json records of one table.

    Attributes:
        shape: The table's known columns in the target.
        unread: Names of columns whose values are not converted, because the target does not have the columns.
        known: Identities of the writers (schemas of records) that the plan covers.
        keyed: True if records with a schema have keys.
        knows_newest: True if the newest schema is known: all rows so far have schemas, and the config has no
            definition of the table.
    """

    shape: TargetSchema = field(kw_only=True)
    unread: frozenset[str] = frozenset()
    known: frozenset[tuple[str, ...]] = frozenset()
    keyed: bool = False
    knows_newest: bool = False

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """Returns the events of the records, and the records that cannot be decoded."""
        return super().decode_batch(without_headers(records))

    def decode_new_rows(self, records: pa.RecordBatch, keys: Sequence[str]) -> DecodedBatch:
        return super().decode_new_rows(without_headers(records), keys)

    @property
    def uses_timestamps(self) -> bool:
        """True, because Kafka timestamps decide which of two schemas is older."""
        return True

    def lacking(self, changes: ChangeTable, _rows: TargetRows, records: pa.RecordBatch) -> tuple[str, ...]:
        """Returns the writer (schema) of these changes as text, if the plan does not cover it; else nothing.

        The plan does not cover a writer if its schema is new, or if the plan lacks one of its columns or has
        it with a type that cannot hold the values.
        """
        facts = facts_of(changes.schema)
        keys = tuple(member.name for member in changes.rows.schema.field("key").type)
        bare = facts.bare or {column.name for column in changes.schema.columns} <= {*keys}
        is_ticdc = changes.rows["commit_ts"].null_count < changes.rows.num_rows
        identity, is_covered = self._looked_up(changes.schema)
        is_covered = is_covered and facts.flattened <= self.options.debezium_unwrapped
        if not bare:
            is_covered = is_covered and identity in self.known and is_ticdc <= self.is_ticdc
            is_covered = is_covered and (self.keyed or not keys)
        if is_covered:
            return ()
        place = _first_place(changes, records)
        source = first_rows_of(changes.rows).source
        columns = inferred_columns(changes.schema)
        writer = JsonWriter(columns, keys, bare, facts.flattened, is_ticdc, place=place, source=source)
        return (writer.text,)

    def key_only(self, _key: Collection[str], schema: TableSchema) -> frozenset[str]:
        return facts_of(schema).key_only

    def recorded_value(self, stored: Column, column_type: ColumnType) -> Convert | None:
        """Returns a function that converts a column's value in the database to its value in records.

        Raises:
            ConfigError: The column's type in records is not known, so the form of its values is not known.
        """
        defined = self.definition is not None and stored.name in self.definition.by_name
        if not (self.known or defined):
            raise ConfigError(_UNTYPED_SNAPSHOT.format(stored.name), table=str(self.table))
        return super().recorded_value(stored, column_type)

    @property
    def is_bare(self) -> bool:
        """True if no record with a schema was read so far."""
        return not self.known

    @property
    def recorded_columns(self) -> RecordedColumns:
        """The columns that records contain.

        A row that lacks a column shows that it was dropped if all records have schemas and the config has no
        definition of the table. A record without a schema may lack a column that still exists.
        """
        columns = super().recorded_columns
        return columns if self.knows_newest else columns._replace(drops=None)

    def refusal(self, changes: ChangeTable, _rows: TargetRows) -> TidesinkError | None:
        """Returns an error if records without a schema have a column that is not text in the target."""
        for name in sorted(facts_of(changes.schema).guessed):
            column = self.shape.find(name)
            if column is not None and column.spark != "string" and column.name not in self.unread:
                return SchemaMismatchError(
                    f"Column {name!r} is {column.spark} in the target, but the record has no schema from "
                    "which its type is known. Add a definition of the table under tables."
                )
        return None

    def _looked_up(self, schema: TableSchema) -> tuple[tuple[str, ...], bool]:
        """Returns the identity of a schema's writer, and True if the decode plan covers the columns.

        It covers them if it has all columns of the schema, with types that hold their values.
        """
        cached = self._schemas.get(id(schema))
        if cached is None or cached[0] is not schema:
            if len(self._schemas) >= _MOST_SCHEMAS:
                self._schemas.clear()
            cached = schema, JsonWriter(inferred_columns(schema)).identity, self._holds(schema)
            self._schemas[id(schema)] = cached
        return cached[1], cached[2]

    def _holds(self, schema: TableSchema) -> bool:
        """Returns True if the decode plan has all columns of a schema, with types that hold their values."""
        shape, names = self.shape, _names(schema.columns, self.shape.fold)
        keys = tuple(name for name in shape.keys if shape.fold(name) in names)
        new = shape_of(schema, keys=keys, zero_date=shape.zero_date, time_zone=shape.time_zone)
        try:
            new = replace(new, keys=shape.keys, exact_names=shape.exact_names)
            merged = merge_schemas(shape, new, left_out=self._leaves_out)
        except SchemaRefusedError:
            return False
        return self._types(merged) == self._types(shape)

    def _leaves_out(self, name: str, fold: NameFold) -> bool:
        return fold(name) in {fold(column) for column in self.unread}

    def _types(self, shape: TargetSchema) -> list[tuple[str, str]]:
        return [(c.name, "" if c.name in self.unread else c.spark) for c in shape.columns]

    @cached_property
    def _codec(self) -> LoneCodec:
        schema = TableSchema(
            self.table, tuple(Column(column.name, column.type) for column in self.shape.columns)
        )
        return LoneCodec(self.options, self.definition, schema)

    @cached_property
    def _schemas(self) -> dict[int, tuple[TableSchema, tuple[str, ...], bool]]:
        return {}


def _first_place(changes: ChangeTable, records: pa.RecordBatch) -> Place:
    """Returns the location of the record with the earliest of these changes."""
    rows, times = changes.rows.select(["record", "offset", "partition"]), _timestamps(records)
    locations = pa.table(
        {
            "timestamp": pa.nulls(len(rows), pa.int64()) if times is None else times.take(rows["record"]),
            "offset": rows["offset"],
            "partition": rows["partition"],
        }
    )
    order = [(name, "ascending") for name in locations.column_names]
    return Place(*locations.take(pc.sort_indices(locations, order)[:1]).to_pylist()[0].values())


def _timestamps(records: pa.RecordBatch) -> pa.Array | None:
    """Returns the Kafka timestamps of the records in ms, or None if they were not fetched."""
    if "timestamp" not in records.schema.names:
        return None
    timestamps = records.column("timestamp")
    if pa.types.is_integer(timestamps.type):
        return timestamps.cast(pa.int64())
    return timestamps.cast(pa.timestamp("ms", timestamps.type.tz), safe=False).cast(pa.int64())


# Plans


def debezium_json_plan(
    table: TableId,
    writers: Writers,
    settings: PlanSettings = DEFAULT_SETTINGS,
    *,
    definition: TableSchema | None = None,
    options: DebeziumOptions = _NO_OPTIONS,
    database: DatabaseFacts = NO_DATABASE,
) -> DecodePlan:
    """Build the decode plan of a table from the writers (schemas of records) that are known so far.

    If rows were written with a schema that lacks a column, the column gets its default if only later schemas
    have it. It gets null if an earlier schema had it.

    Args:
        table: The table.
        writers: The known writers of the topic.
        settings: The settings of the plan.
        definition: Column types from the config, which replace the types in records.
        options: Options of the codec.
        database: What the source database shows about the table. The types of its columns are used if a
            column has no other type.

    Raises:
        ConfigError: The table has no key, or ``settings.keys`` has a column that the table does not have.
        SchemaRefusedError: A column has two types in two schemas, and no type holds the values of both.
    """
    zero_date, time_zone, left_out = settings.zero_date, settings.time_zone, settings.left_out
    named = settings.known_keys or _key_names(writers, definition)
    types = joined_types(definition, database.columns)
    column_lists = _column_lists(table, writers, definition, types)
    if not (named or settings.logs):
        raise ConfigError(_NO_KEY.format(table), table=str(table))
    is_ticdc = _is_ticdc(writers)
    named_connector = TICDC if is_ticdc else writers.connector
    # The case of names is only known once a record with a row was read.
    connector = named_connector or database.connector
    is_exact = bool(writers.with_schema or writers.reported) and has_exact_names(connector)
    shapes = [
        replace(
            shape_of(TableSchema(table, columns), keys=named, zero_date=zero_date, time_zone=time_zone),
            exact_names=is_exact,
        )
        for columns in column_lists
    ]
    shape = _doubted(merged_in_order(shapes, settings.base, left_out=left_out), writers.reported_later)
    shape = replace(shape, exact_names=is_exact)
    for name in settings.keys or ():
        check_spelling("keys", name, shape)
    dropped = _gone(shape, writers, definition)
    unread = unread_columns(shape, left_out)
    key_facts = KeyFacts.of(settings.keys, definition, database.identity)
    remarks = column_remarks(
        column_lists[-1],
        connector=named_connector,
        keys=shape.keys,
        is_confirmed=key_facts.confirm(shape.keys),
        gone=[column.name for column in shape.columns if shape.fold(column.name) in dropped],
    )
    keyed = any(writer.keys for writer in writers.with_schema)
    has_ticdc_schema = any(writer.is_ticdc for writer in writers.with_schema)
    decoder = DebeziumJsonDecoder(
        table,
        replace(
            options,
            time_zone=time_zone,
            debezium_unwrapped=options.debezium_unwrapped or writers.flattened,
        ),
        zero_date,
        needed_definition(types, left_out),
        tells_old_keys=has_ticdc_schema or not (settings.keys is None and keyed),
        shape=shape,
        unread=unread,
        known=frozenset(writer.identity for writer in writers.with_schema),
        keyed=keyed,
        is_ticdc=is_ticdc,
        key_facts=key_facts,
        row_keys=folded_keys(shape),
        knows_newest=_knows_newest(writers, definition),
        uses_headers=needs_old_keys(column_lists, named_connector)
        or (named_connector in (POSTGRES, "") and bool(untyped_columns(writers, types, left_out))),
    )
    return DecodePlan(
        TargetRows(shape, _dropped(writers, shape.fold), unread=unread),
        decoder,
        keeps_values=True,
        gone=dropped,
        logs=settings.logs,
        warnings=tuple(remarks),
    )


def _key_names(writers: Writers, definition: TableSchema | None) -> tuple[str, ...]:
    """Returns the names of the key columns.

    They are the keys of records with a schema. If there are none, the keys of records without a schema, and
    finally the key of the definition.
    """
    for writer in writers.with_schema:
        if writer.keys:
            return writer.keys
    if writers.reported_keys or definition is None:
        return writers.reported_keys
    return tuple(column.name for column in definition.handle_columns)


def joined_types(*schemas: TableSchema | None) -> TableSchema | None:
    """Returns the columns of all schemas together. The first schema that has a column decides its type.

    Returns None if all arguments are None.
    """
    given = [schema for schema in schemas if schema is not None]
    columns = {column.name: column for schema in reversed(given) for column in schema.columns}
    return TableSchema(given[0].table, tuple(columns.values())) if len(given) > 1 else next(iter(given), None)


def untyped_columns(
    writers: Writers, types: TableSchema | None, left_out: LeftOut = needs_all
) -> tuple[str, ...]:
    """Returns the columns of rows without a schema whose types are unknown.

    Their types are neither in ``types`` nor in a schema of other records. Columns that the target does not
    have (``left_out``) are not returned, because they need no type, unless they belong to the key.
    """
    typed = typed_names(writers) | (types.by_name.keys() if types is not None else set())
    names = [name for name, inferred in writers.reported.items() if inferred.guessed and name not in typed]
    fold = folding(writers.reported)
    return tuple(name for name in names if name in writers.reported_keys or not left_out(name, fold))


def typed_names(writers: Writers) -> frozenset[str]:
    """Returns the names of the columns that have a type in the schema of some record."""
    return frozenset(reported.column.name for writer in writers.with_schema for reported in writer.columns)


def untyped_refusal(
    topic: str, table: TableId, names: Sequence[str], *, asked: bool, is_ticdc: bool = False
) -> ConfigError:
    """Returns the error for a table that waits, because the types of the columns ``names`` are unknown.

    ``asked``: True if the source database was queried too. ``is_ticdc``: True if TiCDC writes the topic.
    """
    more = len(names) - _NAMED
    listed = [*map(repr, names[:_NAMED]), *([f"{more} more"] if more > 0 else [])]
    named = " and ".join([part for part in (", ".join(listed[:-1]), listed[-1]) if part])
    named = f"column{'' if len(names) == 1 else 's'} {named}"
    reason, remedy = (_NOT_THERE.format(table), "") if asked else ("", _DATABASE)
    schemas = _SCHEMAS_OF_TICDC if is_ticdc else _SCHEMAS_ON
    text = _UNTYPED.format(topic, named, reason, table, remedy, schemas)
    return ConfigError(text, table=str(table))


def _column_lists(
    table: TableId, writers: Writers, definition: TableSchema | None, types: TableSchema | None
) -> list[tuple[Column, ...]]:
    """Returns the columns of each writer with a schema, oldest first, then those of rows without a schema."""
    defined = types.by_name if types is not None else {}
    lists, typed = [writer.columns for writer in writers.with_schema], typed_names(writers)
    columns = [
        inferred for name, inferred in writers.reported.items() if not (inferred.guessed and name in typed)
    ]
    reported = [tuple(columns)] if columns else []
    column_lists = [
        tuple(defined.get(inferred.column.name, inferred.column) for inferred in some)
        for some in (*lists, *reported)
    ]
    if not lists and definition is not None:
        column_lists.insert(0, definition.columns)
    if not column_lists:
        raise ConfigError(
            f"The topic has no record with a row of {table} yet, so it cannot be read. Check "
            f"that the connector has sent a row.",
            table=str(table),
        )
    return column_lists


def _doubted(shape: TargetSchema, later: Container[str]) -> TargetSchema:
    """Mark the columns ``later`` as possibly renamed: each one may be a new name of any other column.

    They are columns of rows without a schema that appeared after the first plan was built.
    """
    columns = (
        replace(c, instead_of=frozenset(shape.by_name) - {shape.fold(c.name)}) if c.name in later else c
        for c in shape.columns
    )
    return replace(shape, columns=tuple(columns))


def _dropped(writers: Writers, fold: NameFold) -> DroppedByColumns:
    """Create the object that decides the values of columns that a row's writer (schema) lacks.

    It compares the columns of the writers and the first row of each writer.
    """
    names = [_names((reported.column for reported in writer.columns), fold) for writer in writers.with_schema]
    columns = {name_set: name_set for name_set in names}
    first_rows: dict[frozenset[str], FirstRows] = {}
    are_comparable = not _started_again(writers.with_schema)
    for there, writer in zip(names, writers.with_schema, strict=True):
        offsets = {} if writer.place == _NOWHERE else {writer.place.partition: writer.place.offset}
        sources = {number: writer.source for number in offsets if writer.source is not None}
        first = FirstRows(offsets, writer.source, sources, are_comparable)
        first_rows[there] = first.joined(first_rows.get(there, first))
    history = [*columns]
    if names:
        newest = _names((reported.column for reported in writers.in_use.columns), fold)
        history += [newest] if newest != history[-1] else []
    # A change of the writer in use is not noticed in time, because later rows of a known writer are not
    # reported.
    return DroppedByColumns(
        *dropped_in_order(columns, history, fold), first_rows_by_column(columns, first_rows, fold), fold
    )


def _started_again(writers: Sequence[JsonWriter]) -> bool:
    """Returns True if a later writer's first rows have lower source positions than an earlier writer's.

    Then two servers wrote the positions, and they cannot be compared.
    """
    placed = [writer for writer in writers if writer.place != _NOWHERE and writer.source is not None]
    return any(
        a.source > b.source and _is_earlier(a.place, b.place)
        for a, b in permutations(placed, 2)
        if a.source is not None and b.source is not None
    )


def _is_earlier(one: Place, other: Place) -> bool:
    """Returns True if the record at ``one`` is earlier than the record at ``other``.

    In the same partition, the offset decides; otherwise the Kafka timestamp.
    """
    if one.partition == other.partition:
        return one.offset < other.offset
    times = one.timestamp, other.timestamp
    return times[0] is not None and times[1] is not None and times[0] < times[1]


def _is_ticdc(writers: Writers) -> bool:
    return writers.reported_ticdc or any(writer.is_ticdc for writer in writers.with_schema)


def _knows_newest(writers: Writers, definition: TableSchema | None) -> bool:
    return bool(writers.with_schema) and not writers.reported and definition is None


def _gone(shape: TargetSchema, writers: Writers, definition: TableSchema | None) -> frozenset[str]:
    """Returns the names of the target's columns, in lower case, that the newest schema does not have.

    Returns nothing if the newest schema is not known, because some rows have no schema.
    """
    if not _knows_newest(writers, definition):
        return frozenset()
    newest = (reported.column for reported in writers.in_use.columns)
    return frozenset(shape.by_name) - _names(newest, shape.fold)
