"""A Spark data source with the typed change rows of a topic, for batches and streams.

Register it with ``spark.dataSource.register(TidesinkDataSource)``. Then use ``spark.read.format("tidesink")``
or ``spark.readStream.format("tidesink")``. docs/how-to-spark.md lists the options and the columns. The driver
requests offsets from Kafka. Each Python task reads one range of offsets with ``fetch`` and ``decode_batch``.
Executors need tidesink installed.

A row is a change of one table. Its columns are those of ``ChangeTable.rows`` without ``record``: ``op``,
``topic``, ``partition``, ``offset``, ``index``, ``commit_ts``, ``source``, ``key``, ``before``, ``after``,
``unavailable``, ``unavailable_before``, ``zero_dates``, ``ambiguous_times``. ``codecs.batch`` describes them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError
from pyspark.sql import types as spark_types
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidesink.codecs.base import Codec
from tidesink.codecs.batch import ChangeTable, DecodedBatch, RowTypes, ValueOptions
from tidesink.codecs.debezium.connect_schema import ConnectSchema, connect_schema_of_avro
from tidesink.codecs.debezium.values import column_of
from tidesink.codecs.flat_avro.schema import parse_record
from tidesink.codecs.open import CODECS, open_codec, protocol_named
from tidesink.config.source import SourceSettings
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, SchemaMismatchError, SchemaNotFoundError, SourceError
from tidesink.events import Column, TableId, TableSchema, fold_name
from tidesink.kafka_client import client_settings, librdkafka_settings
from tidesink.schema_registry.base import SchemaRegistry
from tidesink.schema_registry.naming import subject
from tidesink.sinks.kafka.fetch import FetchRange, fetch
from tidesink.sinks.kafka.leader_epochs import CheckedLogs, LeaderEpochs
from tidesink.sinks.kafka.offsets import KafkaOffsets, TopicOffsets, is_other_topic
from tidesink.sinks.state.progress import LastRecord
from tidesink.typemap.table import TimePolicies

if TYPE_CHECKING:
    from tidesink.ddl.catalog import TableDefinitions


Word = TypeVar("Word", bound=str)
_IMAGES: Final = ("key", "before", "after")
Place = Callable[[int], dict[str, Any]]


class RowColumns(NamedTuple):
    """A table's columns, and the names of its key columns.

    ``table`` is None if the table's name is not known.
    """

    table: TableId | None
    columns: tuple[Column, ...]
    keys: tuple[str, ...]

    def arrow(self, options: ValueOptions) -> pa.Schema:
        """Returns the Arrow schema of the table's change rows."""
        schema = TableSchema(self.table or TableId("", ""), self.columns)
        rows = RowTypes(schema, self.keys or None, options).table
        # Spark does not read dictionaries, and has no access to the record batch to which ``record`` refers.
        kinds = ((field.name, field.type) for field in rows if field.name != "record")
        return pa.schema([(n, k.value_type if pa.types.is_dictionary(k) else k) for n, k in kinds])


def registered_columns(
    registry: SchemaRegistry,
    topic: str,
    *,
    protocol: str,
    definitions: TableDefinitions,
) -> RowColumns | None:
    """Returns the columns in the latest registered schemas of a topic, or None if no schema is registered.

    Raises:
        SchemaMismatchError: The schemas are not of this protocol.
        RegistryError: The registry does not answer.
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
        raise SchemaMismatchError(
            "The latest registered schema of the topic's values has no after field. Check that it is a "
            "Debezium envelope."
        )
    schemas = [schema for table in definitions if (schema := definitions.get(table)) is not None]
    declared = schemas[0].by_name if len(schemas) == 1 else {}
    # TiCDC lists a virtual column twice. The second entry is used.
    named = {field.name: declared.get(field.name) or column_of(field) for field in after.fields}
    keys = tuple(field.name for field in _struct(key).fields) if key is not None else ()
    return RowColumns(None, tuple(named.values()), keys)


def _latest(registry: SchemaRegistry, topic: str, part: Any) -> str | None:
    name = subject(topic, part)
    try:
        return registry.schema_by_version(name, registry.versions(name)[-1]).schema_text
    except SchemaNotFoundError:
        return None


def _struct(text: str) -> ConnectSchema:
    try:
        schema = connect_schema_of_avro(json.loads(text))
    except ValueError as error:
        raise SchemaMismatchError(
            f"The latest registered schema of the topic is not Avro: {error!s:.200}"
        ) from error
    if schema.type != "struct":
        raise SchemaMismatchError(
            "The latest registered schema of the topic is not an Avro record. Check that Debezium writes "
            "this topic."
        )
    return schema


def defined_columns(definitions: TableDefinitions, table: TableId | None) -> RowColumns | None:
    """Returns the columns of a table from the definitions. Returns None if they do not define the table.

    Raises:
        ConfigError: Several tables are defined, and ``table`` is None.
    """
    names = list(definitions)
    if table is None and len(names) > 1:
        raise ConfigError(
            f"The option definition has {len(names)} tables. Set the option table to the one to read.",
            key="table",
        )
    wanted = table if table is not None else names[0] if names else None
    schema = definitions.get(wanted) if wanted is not None else None
    if schema is None:
        return None
    keys = schema.handle_columns or schema.primary_key
    return RowColumns(wanted, schema.columns, tuple(column.name for column in keys))


def columns_of_records(batches: Iterable[DecodedBatch], table: TableId | None) -> RowColumns:
    """Returns the columns of the first record that changes a row of the table.

    Raises:
        ConfigError: There is no such record.
        DecodeError: A record cannot be decoded.
    """
    for batch in batches:
        for changes in batch.tables:
            if table is None or is_table(changes.table, table):
                keys = [field.name for field in changes.rows.schema.field("key").type]
                return RowColumns(changes.table, changes.schema.columns, tuple(keys))
        for fault in batch.faults:
            raise fault.error
    what = f"of {table} " if table is not None else ""
    raise ConfigError(
        f"The topic's first records change no row {what}from which the columns could be derived. Set the "
        "option definition (the table's CREATE TABLE), or pass a schema."
    )


def is_table(table: TableId, wanted: TableId) -> bool:
    """Returns True if two names refer to the same table. Case does not matter, as in TiDB."""
    return fold_name(table.name) == fold_name(wanted.name) and (
        not wanted.schema or fold_name(table.schema) == fold_name(wanted.schema)
    )


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
    """Returns the Spark schema of change rows."""
    return spark_types.StructType(
        [spark_types.StructField(field.name, _spark(field.type)) for field in schema]
    )


def _spark(kind: pa.DataType) -> spark_types.DataType:
    if pa.types.is_decimal(kind):
        return spark_types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return spark_types.ArrayType(_spark(kind.value_type))
    if pa.types.is_struct(kind):
        return spark_types.StructType(
            [spark_types.StructField(field.name, _spark(field.type)) for field in kind]
        )
    return next(spark for arrow, spark in _SPARK if arrow == kind)


def arrow_schema(schema: spark_types.StructType) -> pa.Schema:
    """Returns the Arrow schema for a Spark schema of change rows.

    Raises:
        ConfigError: A column has a type that change rows cannot have.
    """
    return pa.schema([(field.name, _arrow(field.dataType, field.name)) for field in schema.fields])


def _arrow(kind: spark_types.DataType, name: str) -> pa.DataType:
    if isinstance(kind, spark_types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark_types.ArrayType):
        return pa.list_(_arrow(kind.elementType, name))
    if isinstance(kind, spark_types.StructType):
        return pa.struct(
            [(field.name, _arrow(field.dataType, f"{name}.{field.name}")) for field in kind.fields]
        )
    for arrow, spark in _SPARK:
        if spark == kind:
            return arrow
    raise ConfigError(
        f"Column {name} of the given schema has type {kind.simpleString()}, which change rows cannot have. "
        f"Use another type.",
        key=name,
    )


class RowProjection:
    """Converts change rows of different writer schemas to one schema.

    A column that is missing in the writer's schema becomes null. A column that is missing in ``schema`` is an
    error, unless ``ignore_extra`` is True. Numbers of a narrower type are widened. Any other difference of
    types is an error. Only rows of ``table`` are converted. If ``table`` is None, the topic must have only
    one table.
    """

    def __init__(self, schema: pa.Schema, *, table: TableId | None, ignore_extra: bool = False) -> None:
        self._schema = schema
        self._table, self._met = table, table
        self._ignore_extra = ignore_extra

    def rows(self, batch: DecodedBatch, place: Place) -> Iterator[pa.RecordBatch]:
        """Yields the table's change rows in a decoded batch, in the order of the records.

        ``place`` returns the location of a record by its number, for errors.

        Raises:
            DecodeError: A record cannot be decoded, or its columns cannot be converted to the schema.
            ConfigError: The topic has several tables, and no table is configured.
        """
        for fault in batch.faults:
            raise fault.error.with_context(**place(fault.record))
        found = [self._fitted(one, place) for one in batch.tables if self._is_ours(one)]
        if not found:
            return
        rows = found[0]
        if len(found) > 1:  # several writer schemas
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
        raise ConfigError(
            f"The topic has tables {self._met} and {found.table}. Set the option table to the one to read.",
            key="table",
        )

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
                f"Table {found.table} has columns that are missing in the schema: {', '.join(extra)}. Read "
                "again with the current schema, or set extra-columns: ignore."
            )
        members = [self._member(array, one) for one in kind]
        if members:
            array = pa.StructArray.from_arrays(members, fields=list(kind), mask=array.is_null())
        return pa.chunked_array([array])

    def _member(self, images: pa.StructArray, wanted: pa.Field) -> pa.Array:
        if images.type.get_field_index(wanted.name) < 0:
            return pa.nulls(len(images), wanted.type)
        column = pc.struct_field(images, [wanted.name])
        if column.type == wanted.type:
            return column
        cause = None
        if _is_number(column.type) and _is_number(wanted.type):
            try:
                return column.cast(wanted.type)
            except pa.ArrowInvalid as error:
                cause = error
        raise SchemaMismatchError(
            f"Column {wanted.name} is {column.type} in the records, but {wanted.type} in the schema. Read "
            "again with the current schema.",
            column=wanted.name,
        ) from cause


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


_KAFKA: Final = "kafka."
_SERVERS: Final = "bootstrap.servers"
# The data source's own options. All other options are settings of the source section in tidesink's config.
_OFFSETS: Final = frozenset({"startingoffsets", "endingoffsets"})
_OWN: Final = _OFFSETS | {"topic", "table", "definition", "zero-date", "ambiguous-time", "extra-columns"}
# Sections of settings. An option of a section is written with a dot.
_SECTIONS: Final = ("schema-registry.", "debezium.")
# Settings of the config that are written differently as options, with the option to use.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "brokers": "kafka.bootstrap.servers",
    "topics": "topic",
    "kafka": "kafka.NAME of each property",
    "subscribe": "topic (one)",
    "assign": "topic (one)",
    "subscribepattern": "topic (one)",
}
_EARLIEST, _LATEST = -2, -1  # the same numbers as in Spark's Kafka source
# Number of records per partition that are read to find the table's columns, if nothing else has them.
_SAMPLE: Final = 1_000


@dataclass(frozen=True)
class ReadOptions:
    """The validated options of a read. They can be pickled, and may have secrets."""

    topic: str
    settings: SourceSettings
    kafka: Mapping[str, str]
    table: TableId | None
    definition: str | None
    policies: TimePolicies
    ignore_extra: bool
    start: str
    end: str

    def __repr__(self) -> str:
        return f"ReadOptions({self.topic!r}, {self.settings.protocol!r})"

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
        """Parse options as Spark passes them: names in lower case, values as text.

        Raises:
            ConfigError: An option is unknown, missing or invalid.
        """
        given = {name.lower(): str(value) for name, value in options.items()}
        kafka = {name[len(_KAFKA) :]: given.pop(name) for name in list(given) if name.startswith(_KAFKA)}
        own = {name: given.pop(name) for name in _OWN & given.keys()}
        for name in ("topic", "protocol"):
            if not own.get(name) and not given.get(name):
                raise ConfigError(f"The option {name} is required.", key=name)
        if _SERVERS not in kafka:
            raise ConfigError(f"The option {_KAFKA}{_SERVERS} is required.", key=f"{_KAFKA}{_SERVERS}")
        librdkafka_settings(kafka)  # refuses invalid properties now, and not in the tasks
        if streaming and "endingoffsets" in own:
            raise ConfigError("endingOffsets has no effect on a stream. Remove it.", key="endingOffsets")
        return cls(
            topic=own["topic"],
            settings=_settings(given, kafka[_SERVERS], own["topic"]),
            kafka=kafka,
            table=_table(own.get("table")),
            definition=own.get("definition"),
            policies=TimePolicies(
                zero_date=_one_of("zero-date", own, ("null", "error", "text")),
                ambiguous_time=_one_of("ambiguous-time", own, ("first", "second", "error")),
            ),
            ignore_extra=_one_of("extra-columns", own, ("error", "ignore")) == "ignore",
            start=own.get("startingoffsets", "latest" if streaming else "earliest"),
            end=own.get("endingoffsets", "latest"),
        )

    @property
    def protocol(self) -> str:
        """The protocol's name, without aliases."""
        return protocol_named(self.settings.protocol)

    @property
    def values(self) -> ValueOptions:
        """Options for converting values to Arrow."""
        return ValueOptions(time_zone=self.settings.time_zone, **self.policies)

    def definitions(self) -> TableDefinitions:
        """Returns the tables that the option ``definition`` declares.

        Raises:
            ConfigError: The definition cannot be parsed.
        """
        tables = TableDefinitions()
        if self.definition is not None:
            tables.declare(self.definition, self.table.schema if self.table else "")
        return tables


def _settings(given: Mapping[str, str], servers: str, topic: str) -> SourceSettings:
    tree: dict[str, Any] = {"brokers": servers, "topics": [topic]}
    for name, value in given.items():
        if name in _ELSEWHERE:
            raise ConfigError(f"The data source has no option {name}. Use {_ELSEWHERE[name]}.", key=name)
        section = next((prefix for prefix in _SECTIONS if name.startswith(prefix)), None)
        _put(tree, name.split(".") if section else [name], value)
    try:
        return SourceSettings.model_validate(tree)
    except ValidationError as error:
        # Values may be secrets, so the message has only names and reasons.
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise ConfigError(f"The option {name} is invalid: {first['msg']}", key=name) from None


def _put(tree: dict[str, Any], path: list[str], value: str) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(
                f"The option {'.'.join(path)} also needs the option {part}.urls.", key=".".join(path)
            )
    tree[path[-1]] = value


def _table(text: str | None) -> TableId | None:
    if text is None:
        return None
    schema, _, name = text.rpartition(".")
    return TableId(schema, name)


def _one_of(name: str, own: Mapping[str, str], allowed: tuple[Word, ...]) -> Word:
    value = own.get(name, allowed[0])
    for word in allowed:
        if word == value:
            return word
    raise ConfigError(f"The option {name} must be one of {', '.join(allowed)}.", key=name)


class ChangeReader:
    """Reads and decodes offset ranges of the topic, in one process."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._closing = ExitStack()
        self.registry: SchemaRegistry | None = None

    def __enter__(self) -> ChangeReader:
        if self._options.settings.schema_registry is not None:
            self.registry = self._options.settings.open_registry()
            self._closing.callback(self.registry.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @cached_property
    def codec(self) -> Codec:
        """The codec of the protocol, with the configured table name."""
        options, named = self._options, self._options.table
        return open_codec(
            options.protocol,
            options=options.settings.codec_options(),
            registry=self.registry,
            table_of_topic=(lambda _topic: named) if named is not None else None,
            definitions=options.definitions(),
        )

    def batches(self, wanted: FetchRange) -> Iterator[tuple[pa.RecordBatch, DecodedBatch]]:
        """Yields the records of an offset range, with their decoded batch.

        Raises:
            TidesinkError: Kafka refuses or does not answer, or a schema cannot be read.
        """
        for records in fetch(wanted, self._options.kafka):
            yield records, self.codec.decode_batch(records, **self._options.policies)

    def columns(self) -> RowColumns:
        """Returns the table's columns: from the registry, else from the definition, else from the topic's
        first records.

        Raises:
            ConfigError: The columns are not known from any of them.
        """
        options = self._options
        definitions = options.definitions()
        row_columns = None
        if self.registry is not None and CODECS[options.protocol].registry:
            row_columns = registered_columns(
                self.registry,
                options.topic,
                protocol=options.protocol,
                definitions=definitions,
            )
        row_columns = row_columns or defined_columns(definitions, options.table)
        return row_columns or columns_of_records(self._first_records(), options.table)

    def _first_records(self) -> Iterator[DecodedBatch]:
        offsets = topic_offsets(self._options)
        for number, ends in sorted(offsets.partitions.items()):
            end = min(ends.latest, ends.earliest + _SAMPLE)
            wanted = FetchRange(offsets.topic, number, ends.earliest, end)
            yield from (batch for _, batch in self.batches(wanted))


def topic_offsets(options: ReadOptions, asked: KafkaOffsets | None = None) -> TopicOffsets:
    """Returns the first and end offsets of the topic's partitions.

    Raises:
        SourceError: The topic does not exist, or Kafka refuses the request.
        SourceUnavailableError: No broker answers.
    """
    asked = asked or KafkaOffsets(client_settings(options.kafka))
    offsets = asked.lookup([options.topic]).get(options.topic)
    if offsets is None:
        raise SourceError(
            "The topic does not exist. Check the data source's option topic.", topic=options.topic
        )
    return offsets


def parse_offsets(text: str, offsets: TopicOffsets, *, option: str) -> dict[int, int]:
    """Parse the option ``startingOffsets`` or ``endingOffsets``. Returns the offset of each partition.

    The text is ``earliest``, ``latest`` or ``{"topic": {"0": 23, "1": -2}}``. As in Spark's Kafka source, -2
    is the earliest offset, -1 the latest, and every partition must be listed.

    Raises:
        ConfigError: The text has another form, or does not list every partition.
    """
    if text in ("earliest", "latest"):
        return {number: getattr(ends, text) for number, ends in offsets.partitions.items()}
    try:
        given = {int(number): int(offset) for number, offset in json.loads(text)[offsets.topic].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f'{option} must be earliest, latest, or {{"{offsets.topic}": {{"0": 23, "1": -2}}}}.', key=option
        ) from error
    if given.keys() != offsets.partitions.keys():
        raise ConfigError(
            f"{option} must list exactly the topic's partitions "
            f"{', '.join(map(str, sorted(offsets.partitions)))}.",
            key=option,
        )
    named_offsets = {
        n: {_EARLIEST: ends.earliest, _LATEST: ends.latest} for n, ends in offsets.partitions.items()
    }
    return {number: named_offsets[number].get(offset, offset) for number, offset in given.items()}


class RangePartition(InputPartition):
    """The offset range of one task."""

    def __init__(self, wanted: FetchRange) -> None:
        super().__init__(tuple(wanted))
        self.wanted = wanted


class _Task(NamedTuple):
    """Reads the change rows of an offset range in a task.

    ``schema``: the schema of the rows. ``table``: the table to read, or None if the topic has only one.
    """

    options: ReadOptions
    schema: StructType
    table: TableId | None

    def rows(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """Yields the change rows of an offset range."""
        options = self.options
        projection = RowProjection(
            arrow_schema(self.schema), table=self.table, ignore_extra=options.ignore_extra
        )
        with ChangeReader(options) as reader:
            for records, batch in reader.batches(wanted):

                def place(record: int, offsets: pa.Array = records["offset"]) -> dict[str, Any]:
                    where = {"topic": wanted.topic, "partition": wanted.partition}
                    return {**where, "offset": offsets[record].as_py()}

                yield from projection.rows(batch, place)


class TidesinkDataSource(DataSource):
    """The Spark data source ``tidesink``: typed change rows of one table from one topic."""

    @classmethod
    def name(cls) -> str:
        """Returns the data source's name for ``format``."""
        return "tidesink"

    def schema(self) -> StructType:
        """Returns the Spark schema of the change rows.

        Reads the columns from the registry, the option ``definition`` or the topic's first records.

        Raises:
            ConfigError: An option is invalid, or the table's columns are not known.
        """
        given = {name: value for name, value in self.options.items() if name.lower() != "endingoffsets"}
        options = ReadOptions.of(given)
        with ChangeReader(options) as reader:
            columns = reader.columns()
        return spark_schema(columns.arrow(options.values))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns a batch reader. It reads the offsets that exist when the query is planned."""
        options = ReadOptions.of(self.options)
        return ChangeBatchReader(_Task(options, schema, options.table))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Returns a stream reader. Each of its batches begins where the previous one ended."""
        options = ReadOptions.of(self.options, streaming=True)
        log = LeaderEpochs(options.kafka)
        return ChangeStreamReader(_Task(options, schema, options.table), log=log)


class ChangeBatchReader(DataSourceReader):
    """Batch reader that reads each topic-partition with one task."""

    def __init__(self, task: _Task, asked: KafkaOffsets | None = None) -> None:
        self._task = task
        self._asked = asked

    def __getstate__(self) -> dict[str, Any]:
        return {"_task": self._task, "_asked": None}

    def partitions(self) -> list[InputPartition]:
        """Returns the offset ranges from ``startingOffsets`` to ``endingOffsets``, one for each partition
        with records.

        Raises:
            ConfigError: An option has invalid offsets.
            SourceError: The topic does not exist, or Kafka refuses the request.
            SourceUnavailableError: No broker answers.
        """
        options = self._task.options
        offsets = topic_offsets(options, self._asked)
        start = parse_offsets(options.start, offsets, option="startingOffsets")
        end = parse_offsets(options.end, offsets, option="endingOffsets")
        for number in sorted(start):
            if end[number] < start[number]:
                raise ConfigError(
                    f"Partition {number} would be read from offset {start[number]} to {end[number]}, but "
                    f"it ends at {offsets.partitions[number].latest}. Set startingOffsets to an offset that "
                    "is not after the end.",
                    key="startingOffsets",
                )
        return _partitions(offsets.topic, offsets.topic_id, start, end)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yields the change rows of one offset range. Spark passes None if there is no range."""
        if isinstance(partition, RangePartition):
            yield from self._task.rows(partition.wanted)


class ChangeStreamReader(DataSourceStreamReader):
    """Stream reader. Its offsets, which Spark stores in the checkpoint, are JSON objects.

    They have the form ``{"topic": …, "topic_id": …, "partitions": {"0": next offset}, "last": {"0":
    record}}``. ``last`` has the offset and the leader epoch of the last record of each partition, which show
    whether the log was cut later (``kafka.leader_epochs``). The first offset of a stream has no ``last``.

    Spark stores the result of ``latestOffset`` in the checkpoint before it requests the ranges of the batch.
    The next batch begins there, even if the offsets are lower than before. So the reader never returns an end
    offset that is below an offset that was already read. After a restart, it only learns the offsets that
    were read when Spark requests the next ranges.

    Args:
        asked: Requests the topic's offsets; None: opened when needed.
        log: Looks up records by leader epoch; None: the log is not checked.
        pause: Seconds to wait before a partition that seems to end too early is looked up again.
    """

    def __init__(
        self,
        task: _Task,
        asked: KafkaOffsets | None = None,
        *,
        log: LeaderEpochs | None = None,
        pause: float = 0.5,
    ) -> None:
        self._task = task
        self._asked, self._log, self._logs = asked, log, CheckedLogs(log)
        self._pause = pause
        self._read: dict[str, Any] | None = None
        self._seen: TopicOffsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "_asked": None,
            "_log": None,
            "_logs": None,
            "_read": None,
            "_seen": None,
        }
        return {"_task": self._task, "_pause": self._pause, **state}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns the offsets of the option ``startingOffsets``.

        Spark calls it if a stream has no checkpoint.
        """
        offsets = self._found()
        start = parse_offsets(self._task.options.start, offsets, option="startingOffsets")
        self._read = _stream_offset(offsets, start)
        return self._read

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns the current end offsets of the partitions.

        Raises:
            SourceError: A partition ends before the offset up to which it was read, or no longer exists. Or
                the topic was deleted and recreated, or its log was cut.
        """
        for _ in range(_LOOKS - 1):
            latest = self._ends()
            if self._read is None or not _lost(self._read, latest):
                break
            # A broker that has just become the leader may report an end that is too low.
            time.sleep(self._pause)
        else:
            latest = self._ends()
        if self._read is not None:
            _check_follows(self._read, latest, _NOT_STORED)
            if _numbers(latest) == _numbers(self._read):
                return self._read  # no new records
        self._read = self._with_last(latest)
        return self._read

    def _with_last(self, latest: dict[str, Any]) -> dict[str, Any]:
        """Adds to the end offsets ``latest`` the last record of each partition, and returns the result.

        Before that, it checks that Kafka's log still has the last records that are known from earlier reads.
        """
        if self._log is None:
            return latest
        known_records = _last_records(self._read)
        self._check_log(latest["topic"], known_records, _NOT_STORED)
        offsets, ends = self._newest(), _numbers(latest)
        before = {} if self._read is None else _numbers(self._read)
        grown = {n: end for n, end in ends.items() if before.get(n) != end}
        # If the known record has the current leader's epoch, so do all later records. Then nothing is read to
        # find their epoch.
        same = {
            n for n in grown if n in known_records and known_records[n].epoch == offsets.leader_epochs.get(n)
        }
        read = self._log.last(offsets, {n: end for n, end in grown.items() if n not in same})
        read |= {n: LastRecord(grown[n] - 1, known_records[n].epoch) for n in same}
        if self._read is not None and not self._logs.follows(offsets, known_records, read):
            return self._read  # a leader was elected since the check, so the ends are requested again
        last = {**known_records, **read}
        return {**latest, "last": {str(number): [*record] for number, record in sorted(last.items())}}

    def _check_log(self, topic: str, known_records: Mapping[int, LastRecord], way_out: str) -> None:
        if self._log is None or not known_records:
            return
        for number, offset in sorted(CheckedLogs(self._log).cuts(self._newest(), known_records).items()):
            raise SourceError(
                f"The partition's log was cut at offset {offset} and has grown again (after an unclean "
                "leader election, or with a lost disk). From this offset on, it has other records than the "
                f"stream has read. {way_out}",
                topic=topic,
                partition=number,
                offset=known_records[number].offset,
            )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the offset ranges of one batch. A partition that was added is read from its first record.

        Raises:
            SourceError: A partition ends before the checkpoint's offset, or no longer exists. Or the topic
                was deleted and recreated, or its log was cut.
        """
        _check_follows(start, end, _STORED)
        # If another process wrote the checkpoint, its records were not checked yet.
        self._check_log(end["topic"], _last_records(start), _STORED)
        if self._read is None or not _lost(self._read, end):
            self._read = end
        begins, ends = _numbers(start), _numbers(end)
        begins = {number: begins.get(number, 0) for number in ends}
        return _partitions(end["topic"], end["topic_id"], begins, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the change rows of one offset range."""
        if isinstance(partition, RangePartition):
            yield from self._task.rows(partition.wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing, because Spark's checkpoint stores the offsets."""

    def stop(self) -> None:
        """Called when the stream ends. Does nothing, because no consumer group was joined."""

    def _ends(self) -> dict[str, Any]:
        offsets = self._found()
        return _stream_offset(offsets, {number: ends.latest for number, ends in offsets.partitions.items()})

    def _found(self) -> TopicOffsets:
        if self._asked is None:
            self._asked = KafkaOffsets(client_settings(self._task.options.kafka))
        self._seen = topic_offsets(self._task.options, self._asked)
        return self._seen

    def _newest(self) -> TopicOffsets:
        """Returns the topic's offsets from the last request."""
        return self._seen or self._found()


# Number of requests for end offsets, until none is below an offset that was already read.
_LOOKS: Final = 6
_NEW_CHECKPOINT: Final = (
    "start the stream with a new checkpoint, and repair the rows that the lost records changed."
)
_NOT_STORED: Final = (
    "The checkpoint was not changed. If a broker was restarted just now, start the stream again. Otherwise "
    f"{_NEW_CHECKPOINT}"
)
_STORED: Final = (
    "No record was read, but the checkpoint already has this batch. If Kafka still has the records, delete "
    "the newest file in the folder `offsets` of the checkpoint, and start the stream again. Otherwise "
    f"{_NEW_CHECKPOINT}"
)


def _numbers(offset: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): int(value) for number, value in offset["partitions"].items()}


def _last_records(offset: Mapping[str, Any] | None) -> dict[int, LastRecord]:
    records = offset.get("last", {}) if offset is not None else {}
    return {int(number): LastRecord(*record) for number, record in records.items()}


def _lost(read: Mapping[str, Any], end: Mapping[str, Any]) -> dict[int, int | None]:
    """Returns the partitions that now end before the offset up to which they were read.

    The value is the partition's end offset, or None if the partition no longer exists.
    """
    ends = _numbers(end)
    return {
        number: ends.get(number) for number, offset in _numbers(read).items() if ends.get(number, -1) < offset
    }


def _check_follows(read: Mapping[str, Any], end: Mapping[str, Any], way_out: str) -> None:
    """Check that no partition ends before the offset up to which it was read.

    ``way_out``: the end of the error message, which tells the user what to do.

    Raises:
        SourceError: A partition ends too early or is missing, or the topic was recreated.
    """
    topic = end["topic"]
    if is_other_topic(read["topic_id"], end["topic_id"]):
        raise SourceError(
            "The topic was deleted and recreated since the checkpoint, so its offsets refer to other "
            "records now. Start the stream with a new checkpoint.",
            topic=topic,
        )
    for number, end_offset in sorted(_lost(read, end).items()):
        before = _numbers(read)[number]
        what = (
            "Kafka no longer has this partition"
            if end_offset is None
            else f"The partition ends at offset {end_offset}"
        )
        raise SourceError(
            f"{what}, but the stream has read up to offset {before}. Kafka lost records (after an unclean "
            f"leader election, or with a lost disk), or this is another cluster. {way_out}",
            topic=topic,
            partition=number,
            offset=before,
        )


def _stream_offset(current: TopicOffsets, offsets: Mapping[int, int]) -> dict[str, Any]:
    numbers = {str(number): offset for number, offset in sorted(offsets.items())}
    return {"topic": current.topic, "topic_id": current.topic_id, "partitions": numbers}


def _partitions(
    topic: str, topic_id: str, start: Mapping[int, int], end: Mapping[int, int]
) -> list[InputPartition]:
    return [
        RangePartition(FetchRange(topic, number, start[number], end[number], topic_id))
        for number in sorted(start)
        if start[number] < end[number]
    ]
