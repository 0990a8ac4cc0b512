"""flat-avro as column expressions: every writer schema of a batch in one pass, in the JVM.

Each record's key and value are decoded with the schema of their own id and cast into the table's shape.
The bytes are TiCDC's (tiflow c7b2588, new architecture b813e76): a Confluent header and an Avro record;
a null value, a marker (03 and the commit_ts) or ``_tidb_op`` ``d`` is a delete; a null key with a first
byte 01 or 02 is a DDL or a watermark. Not read here: AWS Glue headers; they are bad records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.base import ChecksumMode
from tidesink.codecs.columns_avro_faults import (
    Parts,
    control_faults,
    control_ts,
    framing_faults,
    is_marker,
    schema_faults,
    schema_id_column,
    stamp,
    unreadable,
)
from tidesink.codecs.columns_avro_record import BeforeColumns, Images, record_columns
from tidesink.codecs.columns_avro_schema import WriterSchema, read_schema
from tidesink.codecs.columns_base import BAD
from tidesink.codecs.columns_faults import (
    any_null,
    deletes,
    fault,
    first_fault,
    log_columns,
    null,
    output_columns,
    raw_columns,
    unnamed_delete,
)
from tidesink.codecs.columns_flat_avro_before import logged_before
from tidesink.codecs.row_checksum import CHECKSUM
from tidesink.errors import ChecksumError, ConfigError, SchemaMismatchError, UnnamedRowError
from tidesink.events import TableId
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


@dataclass(frozen=True)
class FlatAvroColumns:
    """The plan for one flat-avro table: its shape and the expressions that read each writer schema.

    ``logs``: the frame has the old row, and what happened to it, besides (``columns_base``).
    """

    shape: TableShape
    keys: Parts
    values: Parts
    checksum: ChecksumMode = "off"
    logs: bool = False

    @property
    def changes_keys(self) -> bool:
        """True where an update may come with its old key, so that it stands for two rows."""
        return any(record.schema.before for record in self.values.records)

    @property
    def keeps_values(self) -> bool:
        """Always false: a row comes with all its values."""
        return False

    @property
    def kept_columns(self) -> frozenset[str]:
        """Always empty: a row comes with all its values."""
        return frozenset()

    @property
    def gone(self) -> frozenset[str]:
        """The shape's columns that the newest writer schema does not have."""
        newest = max(self.values.records, key=lambda record: max(record.ids), default=None)
        if newest is None:
            return frozenset()
        return frozenset(self.shape.by_name) - {
            writer.column.name.lower() for writer in newest.schema.columns
        }

    @property
    def lacks_checksums(self) -> bool:
        """True where checksums are asked for and no value's schema has one."""
        known = [record.schema.extension for record in self.values.records]
        return self.checksum != "off" and bool(known) and not any(CHECKSUM in one for one in known)

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
            self.shape, key_id=ids[0], value_id=ids[1], warning=F.col("doubt"), said=F.col("op")
        )
        return (
            _read(self),
            _converted(self),
            *([logged_before(self.values.records, self.shape)] if self.logs else []),
            _keyed(self),
            _judged(self),
            [F.col("*"), control_ts().alias("control_ts")],
            [*last, *(log_columns(self.shape) if self.logs else ())],
        )


def flat_avro_columns(  # noqa: PLR0913  (all that a plan rests on)
    table: TableId,
    *,
    key_schemas: Mapping[int, str],
    value_schemas: Mapping[int, str],
    unknown_ids: Mapping[int, str] = MappingProxyType({}),
    base: TableShape | None = None,
    keys: tuple[str, ...] | None = None,
    zero_date: ZeroDate = "null",
    time_zone: str = "UTC",
    checksum: ChecksumMode = "off",
    logs: bool = False,
) -> FlatAvroColumns:
    """A plan for a table from the texts of its writer schemas, by registry id.

    Give every schema of the subjects that is known, not the batch's alone: a column that a writer lacks
    is filled with its default where only later schemas (greater ids) have it, and is null where an
    earlier one had it, since it was dropped. ``base`` is the shape the target has; it is only added to.
    ``keys`` override the columns of the key record. ``unknown_ids``: ids that were looked up in vain, each
    with the reason; their records are bad. ``checksum``: what is done about a row that is not what its
    checksum says: ``warn`` gives it a ``_reason``, ``reject`` makes it bad; TIMESTAMP texts are then taken
    to be in ``time_zone``. ``logs``: see ``FlatAvroColumns``; a table needs no key then.

    Raises:
        ConfigError: the table has no key, or ``keys`` names a column it does not have.
        SchemaRefusedError: two schemas have types for a column that cannot be one.
    """
    key_read, key_refused = _read_schemas(key_schemas)
    value_read, value_refused = _read_schemas(value_schemas)
    named = _key_names(table, keys, base, key_read.values(), needed=not logs)
    if keys is None:
        key_read, others = _of_other_keys(key_read, named)
        key_refused |= others
    shape = _shape(table, (key_read, value_read), named, base=base, zero_date=zero_date, time_zone=time_zone)
    return FlatAvroColumns(
        shape,
        Parts(record_columns(key_read, shape, "key", only_keys=True), key_refused, unknown_ids),
        Parts(record_columns(value_read, shape, "value"), value_refused, unknown_ids),
        checksum,
        logs,
    )


def _read_schemas(texts: Mapping[int, str]) -> tuple[dict[int, WriterSchema], dict[int, str]]:
    read, refused = {}, {}
    for schema_id, text in sorted(texts.items()):
        try:
            read[schema_id] = read_schema(text)
        except SchemaMismatchError as error:
            refused[schema_id] = error.message
    return read, refused


def _key_names(
    table: TableId,
    keys: tuple[str, ...] | None,
    base: TableShape | None,
    key_schemas: Iterable[WriterSchema],
    *,
    needed: bool,
) -> tuple[str, ...]:
    found = keys or (base.keys if base else None)
    for schema in key_schemas:
        found = found or tuple(writer.column.name for writer in schema.columns)
    if not found and needed:
        raise ConfigError(
            f"{table} has no key record in its topic, so nothing says which row a change is about: "
            "name its key columns under tables: keys, or set mode: append to keep its changes; "
            f"{IDENTITIES['flat-avro']}",
            table=str(table),
        )
    return found or ()


def _of_other_keys(
    schemas: dict[int, WriterSchema], named: tuple[str, ...]
) -> tuple[dict[int, WriterSchema], dict[int, str]]:
    """Key schemas of the key ``named``, and of the others why not: rows of one key are none of another."""
    folded = {name.lower() for name in named}
    alike, others = {}, {}
    for schema_id, schema in schemas.items():
        columns = [writer.column.name for writer in schema.columns]
        if {name.lower() for name in columns} == folded:
            alike[schema_id] = schema
        else:
            others[schema_id] = (
                f"its schema {schema_id} has the columns ({', '.join(columns)}), and the table's key is "
                f"({', '.join(named)}): the source's key was changed. Name the key to go by under "
                "tables: keys"
            )
    return alike, others


def _shape(
    table: TableId,
    schemas: tuple[Mapping[int, WriterSchema], Mapping[int, WriterSchema]],
    named: tuple[str, ...],
    *,
    base: TableShape | None,
    zero_date: ZeroDate,
    time_zone: str,
) -> TableShape:
    folded = frozenset(name.lower() for name in named)
    key_read, value_read = schemas
    # A topic that holds deletes alone tells of the key columns and nothing else.
    known = value_read or key_read
    shapes = [
        shape_of(schema.table_schema(table, folded), keys=named, zero_date=zero_date, time_zone=time_zone)
        for _, schema in sorted(known.items())
    ]
    if not shapes:
        raise ConfigError(f"{table} has no schema yet: nothing can be planned", table=str(table))
    whole = merged_in_order(shapes)
    # A schema older than all that made the base may be known by now: a column's first default is its.
    return whole if base is None else merge_shape(with_defaults(base, whole), whole)


def _read(plan: FlatAvroColumns) -> list[Column]:
    """One column a writer schema, null where the record was written with another."""
    records = [*plan.keys.records, *plan.values.records]
    return [
        *raw_columns(),
        is_marker(F.col("value")).alias("marked"),
        *(record.decoded().alias(record.name) for record in records),
    ]


def _converted(plan: FlatAvroColumns) -> list[Column]:
    """The records' columns in the shape's types, and what the extension fields say."""
    values = Images(plan.values.records)
    return [
        F.col("*"),
        Images(plan.keys.records).struct(plan.shape.key_ddl).alias("record_key"),
        values.struct(plan.shape.ddl).alias("image"),
        values.old_key(plan.shape.key_ddl).alias("before_key"),
        values.extension("_tidb_op", "string").alias("op"),
        F.when(F.col("marked"), stamp(F.col("value_bytes")))
        .otherwise(values.extension("_tidb_commit_ts", "bigint"))
        .alias("event_ts"),
        _doubt(plan).alias("doubt"),
    ]


def _doubt(plan: FlatAvroColumns) -> Column:
    """Why a row is not what its checksum says, where that is asked; else null."""
    if plan.checksum == "off":
        return null("string")
    from tidesink.codecs.columns_avro_checksum import checksum_faults  # pandas, which not every plan needs

    return checksum_faults(plan.values.records, plan.shape.time_zone)


def _keyed(plan: FlatAvroColumns) -> list[Column]:
    """The row's key, and the first of its values that could not be read."""
    names = [column.name for column in plan.shape.key_columns]
    image_key = F.struct(*(F.col("image").getField(name).alias(name) for name in names))
    bare = F.col("value_bytes").isNull() | F.col("marked")
    row_key = F.when(bare, F.col("record_key")).otherwise(image_key)
    keys, values = Images(plan.keys.records), Images(plan.values.records)
    old = Images(BeforeColumns.of(plan.values.records)).faults("before_image") if plan.logs else []
    bad_value = first_fault([*keys.faults("record_key"), *values.faults("image"), *old])
    return [F.col("*"), row_key.alias("row_key"), bad_value.alias("bad_value")]


def _judged(plan: FlatAvroColumns) -> list[Column]:
    """What each record is: its kind and, where it cannot be used, why."""
    names = [column.name for column in plan.shape.key_columns]
    deleted = _deleted()
    old_key = F.when(~deleted & ~F.col("before_key").eqNullSafe(F.col("row_key")), F.col("before_key"))
    return [
        F.col("*"),
        _faults(plan, names).alias("fault"),
        deletes(deleted).alias("row_kind"),
        old_key.alias("row_old_key"),
        Images(plan.values.records).zero_dates("image").alias("row_zero_dates"),
        F.lit(0).alias("row_index"),
    ]


def _deleted() -> Column:
    return F.col("value_bytes").isNull() | F.col("marked") | F.col("op").eqNullSafe("d")


def _faults(plan: FlatAvroColumns, key_names: list[str]) -> Column:
    key, whole = F.col("key_bytes"), F.col("value_bytes")
    # A marker stands in the place of a value: there is none to be read.
    value = F.when(~F.col("marked"), whole)
    key_read, value_read = Images(plan.keys.records).complete(), Images(plan.values.records).complete()
    op_known = F.col("op").isNull() | F.col("op").isin("c", "u", "d", "")
    unnamed = any_null("row_key", key_names)
    lost = unnamed_delete(_deleted(), plan.shape) if plan.logs else []
    doubtless = F.col("doubt").isNull() if plan.checksum == "reject" else F.lit(True)
    # The first branch is every good row's: the rest is asked of records with something about them.
    fine = (
        (key.isNull() | key_read)
        & (value.isNull() | value_read)
        & (key.isNotNull() | value.isNotNull())
        & doubtless
        & F.col("bad_value").isNull()
        & op_known
        & ~unnamed
    )
    for condition, _ in lost:
        fine &= ~condition
    chosen = F.when(fine, fault(None))
    for condition, found in (
        *control_faults(key, whole),
        *framing_faults("key", key, protocol="flat-avro"),
        *framing_faults("value", value, protocol="flat-avro"),
        *schema_faults("key", key, plan.keys),
        *schema_faults("value", value, plan.values),
        (key.isNotNull() & ~key_read, unreadable("key")),
        (value.isNotNull() & ~value_read, unreadable("value")),
        (F.col("bad_value").isNotNull(), F.col("bad_value")),
        (~op_known, fault(BAD, SchemaMismatchError, "_tidb_op is none of c, u and d")),
        (~doubtless, fault(BAD, ChecksumError, F.col("doubt"))),
        *lost,
        (F.lit(True), fault(BAD, UnnamedRowError, _unnamed_reason(key_names))),
    ):
        chosen = chosen.when(condition, found)
    return chosen


def _unnamed_reason(key_names: list[str]) -> str:
    return (
        f"a key column ({', '.join(key_names)}) is null or not in the record, so the change names no row: "
        "set keys to columns that every key record has"
    )
