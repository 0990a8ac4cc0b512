"""``debezium-avro`` as column expressions: every writer schema of a batch in one pass, in the JVM.

The bytes are Debezium's (3.5.0.Final, Confluent's and Apicurio's converters) or TiCDC's (b813e76): a
Confluent header and an Avro record each for key and value. Of an update's old row nothing is read but its
key. Rows that ExtractNewRecordState flattened and MongoDB's documents are bad records here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.base import DebeziumModes
from tidesink.codecs.columns_avro_faults import framing_faults, schema_id_column, unreadable
from tidesink.codecs.columns_base import DDL, MESSAGE, POSITION, UNPLANNED
from tidesink.codecs.columns_debezium_alike import SOURCE_MEMBERS
from tidesink.codecs.columns_debezium_before import (
    change_word,
    logged_before,
    prepared_before,
)
from tidesink.codecs.columns_debezium_faults import (
    envelope_faults,
    is_delete,
    unnamed_faults,
    watermark_faults,
)
from tidesink.codecs.columns_debezium_keys import old_key, row_key, value_fault
from tidesink.codecs.columns_debezium_readers import Defined, modes_of_keys, record_columns, source_column
from tidesink.codecs.columns_debezium_record import (
    SOURCE_AND_POSITION,
    Images,
    RecordColumns,
    starts,
)
from tidesink.codecs.columns_debezium_schema import (
    COMMIT_TS,
    RecordSchema,
    gone_columns,
    read_key_schema,
    read_value_schema,
)
from tidesink.codecs.columns_faults import (
    any_null,
    deletes,
    fault,
    log_columns,
    null,
    output_columns,
    raw_columns,
    unnamed_delete,
)
from tidesink.errors import ConfigError, SchemaMismatchError, SchemaNotFoundError
from tidesink.events import TableId, TableSchema
from tidesink.typemap.render import ZeroDate
from tidesink.typemap.target_schema import (
    IDENTITIES,
    TableShape,
    merge_shape,
    merged_in_order,
    shape_of,
    with_defaults,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DEFAULT_MODES = DebeziumModes()
_SOURCE: Final = ("connector", "db", "schema", "table")


class Side(NamedTuple):
    """The readers of keys or values; by id, why others cannot be used, and which change no row."""

    records: tuple[RecordColumns, ...]
    refused: Mapping[int, str]
    unknown: Mapping[int, str]
    control: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class DebeziumAvroColumns:
    """The plan for one debezium-avro table.

    ``own_key``: the key is the key record's, so that Debezium sends a changed key as a delete and an
    insert; without it an update's old row tells its old key. ``gone``: the shape's columns, in lower case,
    that the newest schema of rows does not have. ``logs``: the
    frame has the old row, and what happened to it, besides (``columns_base``). ``positions``: it has where
    a change stands at its source.
    """

    shape: TableShape
    keys: Side
    values: Side
    own_key: bool = True
    gone: frozenset[str] = frozenset()
    logs: bool = False
    positions: bool = False

    @property
    def changes_keys(self) -> bool:
        """Whether an update may come with its old key, so that it stands for two rows."""
        return any(record.old_keys for record in self.values.records)

    @property
    def keeps_values(self) -> bool:
        """Always true: any record of this protocol may leave a value out."""
        return True

    @property
    def kept_columns(self) -> frozenset[str]:
        """Those whose values can say that they were not sent."""
        return frozenset(name for record in self.values.records for name in record.keeps)

    def decode(self, raw: DataFrame) -> DataFrame:
        """The decoded frame of a raw Kafka frame."""
        frame = raw
        for columns in self._steps:
            frame = frame.select(*columns)
        return frame

    @cached_property
    def _steps(self) -> tuple[list[Column], ...]:
        # Made once a plan: a column is a call to the JVM, and a small batch would wait for thousands.
        ids = (schema_id_column(F.col("key_bytes")), schema_id_column(F.col("value_bytes")))
        last = output_columns(
            self.shape, key_id=ids[0], value_id=ids[1], keeps=F.col("kept"), said=F.col("op")
        )
        records = (*self.keys.records, *self.values.records)
        prepared = [column for record in records for column in record.prepared()]
        prepared += prepared_before(self.values.records) if self.logs else []
        return (
            _read(self),
            *([[F.col("*"), *prepared]] if prepared else []),
            _converted(self),
            _keyed(self),
            _judged(self),
            [
                *last,
                *(log_columns(self.shape) if self.logs else ()),
                *((F.col(POSITION),) if self.positions else ()),
            ],
        )


def debezium_avro_columns(  # noqa: PLR0913  (all that a plan rests on)
    table: TableId,
    *,
    key_schemas: Mapping[int, str],
    value_schemas: Mapping[int, str],
    unknown_ids: Mapping[int, str] = MappingProxyType({}),
    base: TableShape | None = None,
    definition: TableSchema | None = None,
    keys: tuple[str, ...] | None = None,
    zero_date: ZeroDate = "null",
    time_zone: str = "UTC",
    modes: DebeziumModes = _DEFAULT_MODES,
    logs: bool = False,
    positions: bool = False,
) -> DebeziumAvroColumns:
    """A plan for a table from the texts of its writer schemas, by registry id.

    Give every schema of the subjects that is known: a column that a writer lacks is filled with its
    default where only later schemas (greater ids) have it, and is null where an earlier one had it.
    ``base`` is the shape the target has; it is only added to. ``keys`` override the key record's columns,
    ``definition`` the types of the schemas. ``unknown_ids``: ids that were looked up in vain, each with
    the reason; their records are bad. ``logs``, ``positions``: see ``DebeziumAvroColumns``; a table needs no
    key in a plan that ``logs``.

    Raises:
        ConfigError: the table has no key, or ``keys`` names a column it does not have.
        SchemaRefusedError: two schemas have types for a column that cannot be one.
    """
    key_side, value_side = _Schemas.of(key_schemas, key=True), _Schemas.of(value_schemas, key=False)
    ticdc = any(schema.is_ticdc for schema in value_side.rows.values())
    key_modes = modes_of_keys(value_side.rows.values(), modes)
    defined: Defined = definition.by_name if definition is not None else {}
    named = _key_names(table, keys, base, key_side.rows, needed=not logs)
    told = value_side.rows or key_side.rows
    shapes = [
        shape_of(
            TableSchema(table, tuple(source_column(schema, wire, modes, defined) for wire in schema.columns)),
            keys=named,
            zero_date=zero_date,
            time_zone=time_zone,
        )
        for _, schema in sorted(told.items())
    ]
    if not shapes:
        raise ConfigError(f"{table} has no schema of a row yet: nothing can be planned", table=str(table))
    whole = merged_in_order(shapes)
    shape = whole if base is None else merge_shape(with_defaults(base, whole), whole)
    own_key = keys is None
    told_by_key = own_key and bool(key_side.rows) and not ticdc
    return DebeziumAvroColumns(
        shape,
        Side(
            record_columns(key_side.rows, shape, "key", modes=key_modes, defined=defined),
            key_side.refused,
            unknown_ids,
        ),
        Side(
            record_columns(
                {**value_side.rows, **value_side.watermarks},
                shape,
                "value",
                modes=modes,
                defined=defined,
                old_keys=not told_by_key and bool(named),
                logs=logs,
                source=SOURCE_AND_POSITION if positions else SOURCE_MEMBERS,
            ),
            value_side.refused,
            unknown_ids,
            value_side.control,
        ),
        own_key=own_key,
        gone=gone_columns(shape, value_side.rows),
        logs=logs,
        positions=positions,
    )


class _Schemas(NamedTuple):
    rows: dict[int, RecordSchema]
    watermarks: dict[int, RecordSchema]
    refused: dict[int, str]
    control: dict[int, str]

    @classmethod
    def of(cls, texts: Mapping[int, str], *, key: bool) -> _Schemas:
        found = cls({}, {}, {}, {})
        for schema_id, text in sorted(texts.items()):
            try:
                schema = read_key_schema(text) if key else read_value_schema(text)
            except SchemaMismatchError as error:
                found.refused[schema_id] = error.message
                continue
            if schema.kind == "watermark":
                found.watermarks[schema_id] = schema
            elif schema.bare:
                found.rows[schema_id] = schema
            else:
                found.control[schema_id] = DDL if schema.kind == "ddl" else MESSAGE
        return found


def _key_names(
    table: TableId,
    keys: tuple[str, ...] | None,
    base: TableShape | None,
    key_schemas: Mapping[int, RecordSchema],
    *,
    needed: bool,
) -> tuple[str, ...]:
    found = keys or (base.keys if base else None)
    for _, schema in sorted(key_schemas.items()):
        found = found or tuple(wire.field.name for wire in schema.columns)
    if not found and needed:
        raise ConfigError(
            f"{table} has no key record in its topic, so nothing says which row a change is about: "
            "name its key columns under tables: keys, set message.key.columns at the connector, or set "
            f"mode: append to keep its changes; {IDENTITIES['debezium-avro']}",
            table=str(table),
        )
    return found or ()


def _read(plan: DebeziumAvroColumns) -> list[Column]:
    """One column a writer schema, null where the record was written with another."""
    records = [*plan.keys.records, *plan.values.records]
    return [
        *raw_columns(),
        *(record.decoded().alias(record.name) for record in records),
    ]


def _converted(plan: DebeziumAvroColumns) -> list[Column]:
    """The records' columns in the shape's types, and what the envelope says."""
    values = Images(plan.values.records)
    old_key = (
        values.old_key(plan.shape.key_ddl) if plan.changes_keys else null(f"struct<{plan.shape.key_ddl}>")
    )
    logged = logged_before(plan.values.records, plan.shape, plan.keys.records) if plan.logs else {}
    return [
        F.col("*"),
        *(column.alias(name) for name, column in logged.items()),
        Images(plan.keys.records).struct(plan.shape.key_ddl).alias("record_key"),
        values.struct(plan.shape.ddl).alias("image"),
        old_key.alias("before_key"),
        values.member("op", "string").alias("op"),
        values.source(COMMIT_TS, "bigint").alias("source_commit_ts"),
        *(values.source(name, "string").alias(f"source_{name}") for name in _SOURCE),
        values.kept().alias("kept"),
        null("bigint").alias("control_ts"),
        *((values.position().alias(POSITION),) if plan.positions else ()),
    ]


def _keyed(plan: DebeziumAvroColumns) -> list[Column]:
    """The row's key, and the first of its values that could not be read."""
    # A frame's numbers are signed; TiDB's own are far below 2^63.
    event_ts = F.when(F.col("source_commit_ts") >= 0, F.col("source_commit_ts"))
    return [
        F.col("*"),
        row_key(plan.shape, own_key=plan.own_key).alias("row_key"),
        value_fault(plan.keys.records, plan.values.records, logs=plan.logs).alias("bad_value"),
        event_ts.alias("event_ts"),
    ]


def _judged(plan: DebeziumAvroColumns) -> list[Column]:
    """What each record is: its kind and, where it cannot be used, why."""
    return [
        F.col("*"),
        *([change_word().alias("row_change")] if plan.logs else []),
        _faults(plan).alias("fault"),
        deletes(is_delete()).alias("row_kind"),
        old_key().alias("row_old_key"),
        Images(plan.values.records).zero_dates("image").alias("row_zero_dates"),
        F.lit(0).alias("row_index"),
    ]


def _faults(plan: DebeziumAvroColumns) -> Column:
    names = [column.name for column in plan.shape.key_columns]
    key, value = F.col("key_bytes"), F.col("value_bytes")
    key_read, value_read = Images(plan.keys.records).complete(), Images(plan.values.records).complete()
    faults = envelope_faults(plan.shape.table)
    unnamed = any_null("row_key", names)
    faults += unnamed_delete(is_delete(), plan.shape) if plan.logs else []
    fine = reduce(Column.__and__, (~condition for condition, _ in faults))
    fine &= value_read & (key.isNull() | key_read) & F.col("bad_value").isNull() & ~unnamed
    # The first branch is every good row's: the rest is asked of records with something about them.
    chosen = F.when(fine, fault(None))
    for condition, found in (
        (value.isNull(), fault(MESSAGE)),
        *framing_faults("value", value, protocol="debezium-avro"),
        *_control_faults(value, plan.values),
        *framing_faults("key", key, protocol="debezium-avro"),
        *_schema_faults("value", value, plan.values),
        (~value_read, unreadable("value")),
        *watermark_faults(),
        *faults,
        *_schema_faults("key", key, plan.keys),
        (key.isNotNull() & ~key_read, unreadable("key")),
        (F.col("bad_value").isNotNull(), F.col("bad_value")),
        *unnamed_faults(names),
    ):
        chosen = chosen.when(condition, found)
    return chosen


def _control_faults(value: Column, side: Side) -> list[tuple[Column, Column]]:
    return [(starts(value, [schema_id]), fault(kind)) for schema_id, kind in side.control.items()]


def _schema_faults(part: str, data: Column, side: Side) -> list[tuple[Column, Column]]:
    """A part whose schema cannot be used, or is not planned for."""
    reasons = ((SchemaMismatchError, side.refused), (SchemaNotFoundError, side.unknown))
    faults = [
        (starts(data, [schema_id]), fault("bad", error, f"{part}: {reason}"))
        for error, found in reasons
        for schema_id, reason in found.items()
    ]
    planned = [schema_id for record in side.records for schema_id in record.ids]
    unknown = ~starts(data, planned) if planned else F.lit(True)
    return [*faults, (data.isNotNull() & unknown, fault(UNPLANNED, None, f"the {part}'s schema id is new"))]
