"""The rows that the data source gives: their columns, in Arrow and in Spark, and how rows are made to fit.

A row is a change of one table. Its columns are those of ``ChangeTable.rows`` without ``record``: ``op``,
``topic``, ``partition``, ``offset``, ``index``, ``commit_ts``, ``source``, ``key``, ``before``, ``after``,
``unavailable``, ``unavailable_before``, ``zero_dates``; ``codecs.batch`` says what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark_types

from tidesink.codecs.batch import ChangeTable, DecodedBatch, RowTypes, ValueOptions
from tidesink.codecs.debezium.connect_schema import ConnectSchema, connect_schema_of_avro
from tidesink.codecs.debezium.values import column_of
from tidesink.codecs.flat_avro.schema import parse_record
from tidesink.errors import ConfigError, SchemaMismatchError, SchemaNotFoundError
from tidesink.events import Column, TableId, TableSchema
from tidesink.schema_registry.naming import subject

if TYPE_CHECKING:
    from tidesink.ddl.catalog import TableDefinitions
    from tidesink.schema_registry.base import SchemaRegistry

_IMAGES: Final = ("key", "before", "after")
Place = Callable[[int], dict[str, Any]]


class RowColumns(NamedTuple):
    """A table's columns and the names of its key's; ``table`` is None where no source of them says it."""

    table: TableId | None
    columns: tuple[Column, ...]
    keys: tuple[str, ...]

    def arrow(self, options: ValueOptions) -> pa.Schema:
        """The Arrow schema of the table's change rows."""
        schema = TableSchema(self.table or TableId("", ""), self.columns)
        return _plain(RowTypes(schema, self.keys or None, options).table)


def registered_columns(
    registry: SchemaRegistry,
    topic: str,
    *,
    protocol: str,
    definitions: TableDefinitions,
) -> RowColumns | None:
    """The columns by the latest schemas of a topic's subjects; None where the registry has none.

    Raises:
        SchemaMismatchError: they are not the protocol's.
        RegistryError: the registry does not answer.
    """
    value, key = (_latest(registry, topic, part) for part in ("value", "key"))
    if value is None:
        return None
    if protocol == "flat-avro":
        record = parse_record(value)
        keys = parse_record(key).column_names if key is not None else ()
        return RowColumns(record.table, record.table_schema(record.table, keys).columns, keys)
    after = _struct(value).field("after")
    if after is None or after.type != "struct":
        raise SchemaMismatchError("the value's latest schema has no after: is it an envelope of Debezium's?")
    known = [one for table in definitions if (one := definitions.get(table)) is not None]
    declared = known[0].by_name if len(known) == 1 else {}
    # TiCDC lists a virtual column twice: the later one counts.
    named = {one.name: declared.get(one.name) or column_of(one) for one in after.fields}
    keys = tuple(one.name for one in _struct(key).fields) if key is not None else ()
    return RowColumns(None, tuple(named.values()), keys)


def _latest(registry: SchemaRegistry, topic: str, part: Any) -> str | None:
    name = subject(topic, part)
    try:
        return registry.schema_by_version(name, registry.versions(name)[-1]).schema_text
    except SchemaNotFoundError:
        return None


def _struct(text: str) -> ConnectSchema:
    try:
        found = connect_schema_of_avro(json.loads(text))
    except ValueError as error:
        raise SchemaMismatchError(f"the latest schema is no Avro: {error!s:.200}") from error
    if found.type != "struct":
        raise SchemaMismatchError("the latest schema is no Avro record: is the topic one of Debezium's?")
    return found


def defined_columns(definitions: TableDefinitions, table: TableId | None) -> RowColumns | None:
    """The columns by a definition; None where there is none of the table.

    Raises:
        ConfigError: several tables are defined, and no ``table`` says which.
    """
    names = list(definitions)
    if table is None and len(names) > 1:
        raise ConfigError(f"the definition has {len(names)} tables: say which one", key="table")
    wanted = table if table is not None else names[0] if names else None
    schema = definitions.get(wanted) if wanted is not None else None
    if schema is None:
        return None
    keys = schema.handle_columns or schema.primary_key
    return RowColumns(wanted, schema.columns, tuple(column.name for column in keys))


def columns_of_records(batches: Iterable[DecodedBatch], table: TableId | None) -> RowColumns:
    """The columns by the first records that change a row of the table.

    Raises:
        ConfigError: there is no such record.
    """
    for batch in batches:
        for found in batch.tables:
            if table is None or is_table(found.table, table):
                keys = [field.name for field in found.rows.schema.field("key").type]
                return RowColumns(found.table, found.schema.columns, tuple(keys))
        for fault in batch.faults:
            raise fault.error
    what = f"of {table} " if table is not None else ""
    raise ConfigError(
        f"the topic's first records change no row {what}to take the columns from: give the option "
        "definition (the table's CREATE TABLE), or a schema"
    )


def is_table(found: TableId, wanted: TableId) -> bool:
    """Whether two names are one table's; case does not matter, as in TiDB."""
    return found.name.lower() == wanted.name.lower() and (
        not wanted.schema or found.schema.lower() == wanted.schema.lower()
    )


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without ``record`` and dictionaries, which Spark does not read."""
    fields = [one for one in schema if one.name != "record"]
    return pa.schema([(one.name, _undictionaried(one.type)) for one in fields])


def _undictionaried(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


# Spark's types

_SPARK: Final[Sequence[tuple[pa.DataType, spark_types.DataType]]] = (
    (pa.bool_(), spark_types.BooleanType()),
    (pa.int32(), spark_types.IntegerType()),
    (pa.int64(), spark_types.LongType()),
    (pa.float32(), spark_types.FloatType()),
    (pa.float64(), spark_types.DoubleType()),
    (pa.string(), spark_types.StringType()),
    (pa.binary(), spark_types.BinaryType()),
    (pa.date32(), spark_types.DateType()),
    (pa.timestamp("us"), spark_types.TimestampNTZType()),
    (pa.timestamp("us", "UTC"), spark_types.TimestampType()),
)


def spark_schema(schema: pa.Schema) -> spark_types.StructType:
    """The Spark schema of change rows."""
    return spark_types.StructType([spark_types.StructField(one.name, _spark(one.type)) for one in schema])


def _spark(kind: pa.DataType) -> spark_types.DataType:
    if pa.types.is_decimal(kind):
        return spark_types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return spark_types.ArrayType(_spark(kind.value_type))
    if pa.types.is_struct(kind):
        return spark_types.StructType([spark_types.StructField(one.name, _spark(one.type)) for one in kind])
    return next(spark for arrow, spark in _SPARK if arrow == kind)


def arrow_schema(schema: spark_types.StructType) -> pa.Schema:
    """The Arrow schema for a Spark schema of change rows.

    Raises:
        ConfigError: a column has a type that no change row has.
    """
    return pa.schema([(one.name, _arrow(one.dataType, one.name)) for one in schema.fields])


def _arrow(kind: spark_types.DataType, name: str) -> pa.DataType:
    if isinstance(kind, spark_types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark_types.ArrayType):
        return pa.list_(_arrow(kind.elementType, name))
    if isinstance(kind, spark_types.StructType):
        return pa.struct([(one.name, _arrow(one.dataType, f"{name}.{one.name}")) for one in kind.fields])
    for arrow, spark in _SPARK:
        if spark == kind:
            return arrow
    raise ConfigError(
        f"the schema's column {name} is {kind.simpleString()}, which no change row has", key=name
    )


# Rows made to fit


class Projection:
    """Makes the rows of any writer's schema fit one schema of change rows.

    A column that the writer lacks is null. One that the schema lacks is an error, unless
    ``ignore_extra``. Numbers of a narrower type are widened; any other difference of types is an error.
    Rows of other tables than ``table`` are left out; where it is None, a second table is an error.
    """

    def __init__(self, schema: pa.Schema, *, table: TableId | None, ignore_extra: bool = False) -> None:
        self._schema = schema
        self._table, self._met = table, table
        self._ignore_extra = ignore_extra

    def rows(self, batch: DecodedBatch, place: Place) -> Iterator[pa.RecordBatch]:
        """The table's rows of a batch in the order of its records; ``place`` says where a record is from.

        Raises:
            DecodeError: a record cannot be decoded, or a writer's schema does not fit.
            ConfigError: the topic carries several tables, and none is named.
        """
        for fault in batch.faults:
            raise fault.error.with_context(**place(fault.record))
        found = [self._fitted(one, place) for one in batch.tables if self._is_ours(one)]
        if not found:
            return
        rows = found[0]
        if len(found) > 1:  # of several writers' schemas
            rows = pa.concat_tables(found).sort_by([("record", "ascending"), ("index", "ascending")])
        chosen = rows.select(self._schema.names).combine_chunks()
        yield from chosen.cast(self._schema).to_batches()

    def _is_ours(self, found: ChangeTable) -> bool:
        if self._met is None:
            self._met = found.table
        if is_table(found.table, self._met):
            return True
        if self._table is not None:
            return False
        raise ConfigError(f"the topic carries {self._met} and {found.table}: say which to read", key="table")

    def _fitted(self, found: ChangeTable, place: Place) -> pa.Table:
        columns: dict[str, pa.ChunkedArray] = {"record": found.rows["record"]}
        for name in ("index", *self._schema.names):
            column = found.rows[name]
            if name in _IMAGES and name in self._schema.names:
                try:
                    column = self._image(column, self._schema.field(name).type, found)
                except SchemaMismatchError as error:
                    raise error.with_context(
                        table=str(found.table), **place(found.rows["record"][0].as_py())
                    ) from error
            elif pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            columns[name] = column
        return pa.table(columns)

    def _image(self, images: pa.ChunkedArray, kind: pa.StructType, found: ChangeTable) -> pa.ChunkedArray:
        array = images.combine_chunks()
        array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
        extra = [one.name for one in array.type if kind.get_field_index(one.name) < 0]
        if extra and not self._ignore_extra:
            raise SchemaMismatchError(
                f"{found.table} has columns that the schema lacks: {', '.join(extra)}. Read again with the "
                "schema of now, or set extra-columns: ignore"
            )
        members = [self._member(array, one) for one in kind]
        return pa.chunked_array([_struct_of(members, list(kind), array)])

    def _member(self, images: pa.StructArray, wanted: pa.Field) -> pa.Array:
        if images.type.get_field_index(wanted.name) < 0:
            return pa.nulls(len(images), wanted.type)
        column = pc.struct_field(images, [wanted.name])
        if column.type == wanted.type:
            return column
        if not (_is_number(column.type) and _is_number(wanted.type)):
            raise _type_differs(wanted, column.type)
        try:
            return column.cast(wanted.type)
        except pa.ArrowInvalid as error:
            raise _type_differs(wanted, column.type) from error


def _struct_of(members: list[pa.Array], fields: list[pa.Field], images: pa.StructArray) -> pa.StructArray:
    if not members:
        return images
    return pa.StructArray.from_arrays(members, fields=fields, mask=images.is_null())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _type_differs(wanted: pa.Field, found: pa.DataType) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"column {wanted.name} is {found} on the wire, and {wanted.type} in the schema: read again with the "
        "schema of now",
        column=wanted.name,
    )
