"""Encodes rows as messages of a codec (such as canal-json), and checks tables before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast
from zoneinfo import ZoneInfo

from tidesink.codecs.base import Codec, CodecOptions, EncodedRecord
from tidesink.codecs.open import CODECS, open_codec
from tidesink.codecs.options import PLACEHOLDER, DebeziumOptions, FlatAvroOptions
from tidesink.errors import (
    ConfigError,
    EncodeError,
    IncompatibleSchemaError,
    RegistryError,
    SchemaRefusedError,
    ValueNotStoredError,
)
from tidesink.events import ChangeEvent, Column, ColumnType, Op, Position, Row, TableSchema, Value
from tidesink.schema_registry.base import SchemaRegistry
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.targets.base import Limit, PreflightChecks, PreflightResult
from tidesink.sinks.targets.stream.table import MessageRow, MessageRows, check_shape
from tidesink.typemap.table import TYPES, row_of, type_words
from tidesink.typemap.target_schema import NO_FLAT_AVRO, TargetColumn, TargetSchema, is_row_keyed
from tidesink.typemap.values import FoldedTime, json_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidesink.config import Config
    from tidesink.config.targets import KafkaSettings
    from tidesink.events import TableId


_OURS: Final = frozenset(row.name for row in TYPES)
# TiDB types in which values of other databases are written, by the reader of their type.
_WRITTEN_AS: Final[Mapping[str, ColumnType]] = {
    "boolean": ColumnType("tinyint"),
    "local_date": ColumnType("date"),
    "local_datetime": ColumnType("datetime", fsp=6),
    "instant": ColumnType("timestamp", fsp=6),
    "integer": ColumnType("bigint"),
    "binary": ColumnType("longblob"),
}
_TEXT: Final = ColumnType("longtext")
# A value that every column of a type accepts, by the type's reader. ``prepare`` encodes a trial message with
# it.
_PROBES: Final[Mapping[str, Value]] = {
    "decimal": Decimal(0),
    "text": "",
    "set": "",
    "binary": b"",
    "float32": 0.0,
    "float64": 0.0,
    "date": "2000-01-01",
    "datetime": "2000-01-01 00:00:00",
    "timestamp": "2000-01-01 00:00:00",
    "time": "00:00:00",
}
_SECONDS: Final = len("2000-01-01 00:00:00")
_KEPT: Final = (
    "The source did not send the value of {columns}, because it did not change, and {protocol} can "
    "express that only for text and binary columns. Set REPLICA IDENTITY FULL on the table."
)


def written_schema(shape: TargetSchema, protocol: str, options: CodecOptions) -> TableSchema:
    """Return the table schema with which messages are encoded.

    Its types are the source's if the source is TiDB or MySQL, and otherwise the nearest TiDB types.

    Raises:
        SchemaRefusedError: the protocol cannot write a column. The error names it.
    """
    for column in shape.columns:
        if _needs_precision(protocol, options) and _lacks_precision(column):
            raise SchemaRefusedError(
                f"The precision of this decimal is unknown, but {protocol} needs it. Set "
                "`avro-decimal-handling-mode: string` under `target`, or set the table's `definition` in the "
                "config.",
                table=str(shape.table),
                column=column.name,
            )
    if protocol == "flat-avro" and is_row_keyed(shape):
        raise SchemaRefusedError(NO_FLAT_AVRO, table=str(shape.table))
    columns = tuple(
        Column(
            column.name,
            written_type(column),
            nullable=not column.key,
            handle=column.key,
            primary_key=column.key,
        )
        for column in shape.columns
    )
    return TableSchema(shape.table, columns)


def written_type(column: TargetColumn) -> ColumnType:
    """Return the TiDB type with which a column's values are written in messages."""
    row = row_of(column.type)
    if row.name in _OURS:
        return column.type
    if column.spark == "string":
        return _TEXT
    return _WRITTEN_AS.get(row.reader, _TEXT)


def _needs_precision(protocol: str, options: CodecOptions) -> bool:
    if not CODECS[protocol].registry:
        return False
    written = CODECS[protocol].options.of(options)
    return (
        isinstance(written, FlatAvroOptions | DebeziumOptions)
        and written.avro_decimal_handling_mode == "precise"
    )


def _lacks_precision(column: TargetColumn) -> bool:
    return row_of(column.type).reader == "decimal" and column.type.precision is None


class RegisteredSchemas(MemorySchemaRegistry):
    """The schema ids that the driver got from the registry, for the encoders in Spark tasks.

    Tasks send no request to the registry.
    """

    def __init__(self, ids: Mapping[tuple[str, str], int]) -> None:
        super().__init__({schema_id: text for (_, text), schema_id in ids.items()})
        self._known = dict(ids)

    def register(self, subject: str, schema_text: str) -> int:
        """Return the id that the driver got for this schema.

        Raises:
            RegistryError: the driver did not register the schema.
        """
        schema_id = self._known.get((subject, schema_text))
        if schema_id is None:
            raise RegistryError(
                "The schema was not registered before its rows were sent. Report this with the log.",
                subject=subject,
            )
        return schema_id


class _Noting(MemorySchemaRegistry):
    """Registers message schemas at a schema registry, and remembers their ids for the Spark tasks."""

    def __init__(self, registry: SchemaRegistry) -> None:
        super().__init__()
        self._registry = registry
        self.ids: dict[tuple[str, str], int] = {}

    def register(self, subject: str, schema_text: str) -> int:
        """Register a message schema at the schema registry, and return its id."""
        schema_id = self._registry.register(subject, schema_text)
        self.ids[subject, schema_text] = schema_id
        return schema_id


@dataclass(frozen=True)
class Encoding:
    """Everything that a Spark task needs to encode a table's rows. ``prepare`` creates it.

    ``schema``: the table schema with which messages are encoded.
    ``topic``: the target topic.
    ``ids``: schema ids by subject and schema text.
    """

    protocol: str
    options: CodecOptions
    shape: TargetSchema
    schema: TableSchema
    topic: str
    ids: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def reader(self) -> MessageRows:
        """Return the reader that converts a task's Arrow batches to rows for the encoder."""
        return MessageRows(self.shape, self.options.time_zone)

    def encoder(self, sent_ms: int) -> Encoder:
        """Return an encoder for one task; ``sent_ms``: the time for canal-json rows without commit_ts."""
        registry = RegisteredSchemas(self.ids)
        return Encoder(self, open_codec(self.protocol, options=self.options, registry=registry), sent_ms)


def prepare(
    shape: TargetSchema, *, protocol: str, options: CodecOptions, topic: str, registry: SchemaRegistry | None
) -> Encoding:
    """Check that a table can be encoded, register its message schemas, and return its encoding.

    ``registry``: the schema registry; None if the protocol needs none.

    Raises:
        SchemaRefusedError: the protocol or the registry cannot accept the table. The message has the remedy.
        RegistryError: the registry does not answer, or refuses access.
    """
    options = _zoned(protocol, options)
    schema = written_schema(shape, protocol, options)
    noting = _Noting(registry) if registry is not None else None
    codec = open_codec(protocol, options=options, registry=noting)
    encoding = Encoding(protocol, options, shape, schema, topic)
    encoder = Encoder(encoding, codec, sent_ms=0)
    key = {column.name: _probe(column.type) for column in schema.handle_columns}
    empty = {column.name: key.get(column.name) for column in schema.columns}
    try:
        encoder.encode(MessageRow("upsert", key, empty, 1 << 18, (), None))
    except IncompatibleSchemaError as error:
        raise SchemaRefusedError(
            "The schema registry refuses the table's schema. Set a compatibility level of the subject that "
            "accepts it (PUT /config/SUBJECT at the registry). Or set `target.topic` to another topic rule. "
            f"The registry's reason: {error.message}",
            **{**error.context, "table": str(shape.table)},
        ) from error
    except EncodeError as error:
        raise SchemaRefusedError(
            f"{protocol} cannot write this table. {error.message}",
            **{**error.context, "table": str(shape.table)},
        ) from error
    return replace(encoding, ids=noting.ids if noting is not None else {})


def _zoned(protocol: str, options: CodecOptions) -> CodecOptions:
    """Set the time zone of the options to UTC for protocols whose messages have UTC times.

    With local times, the hour that occurs twice each autumn would be ambiguous.
    """
    return replace(options, time_zone="UTC") if CODECS[protocol].utc else options


def _probe(column_type: ColumnType) -> Value:
    reader = row_of(column_type).reader
    if reader == "enum" and column_type.members:
        return column_type.members[0]
    return _PROBES.get(reader, 0)


class Encoder:
    """Encodes the rows of one table as messages."""

    def __init__(self, encoding: Encoding, codec: Codec, sent_ms: int) -> None:
        self._protocol = encoding.protocol
        self._topic = encoding.topic
        self._schema = encoding.schema
        self._codec = codec
        self._extension = {"es": sent_ms}
        self._zone = ZoneInfo(encoding.options.time_zone)
        self._booleans = frozenset(
            column.name for column in encoding.shape.columns if row_of(column.type).reader == "boolean"
        )
        self._instants = frozenset(
            column.name
            for column in encoding.shape.columns
            if row_of(column.type).reader == "instant" and column.spark == "timestamp"
        )
        self._fills_deletes = encoding.protocol == "debezium-avro"

    def encode(self, row: MessageRow) -> EncodedRecord:
        """Encode a row as a message.

        Raises:
            EncodeError: the row has no key, or a value that the protocol cannot write.
            ValueNotStoredError: the source omitted a value, and the protocol cannot express that.
        """
        self._check(row)
        key, after = self._written(row.key), row.after and self._written(row.after)
        if after is not None and row.kept:
            after = {**after, **{name: self._placeholder(name, row.kept) for name in row.kept}}
        event = ChangeEvent(
            Op.DELETE if after is None else Op.INSERT,
            self._schema.table,
            key,
            self._deleted(key) if after is None else None,
            after,
            row.commit_ts,
            Position(self._topic, 0, 0),
            self._schema,
            # A canal-json message needs a time. Without a commit_ts it is the time of sending.
            extension=self._extension if row.commit_ts is None else None,
        )
        record = self._codec.encode(event, topic=self._topic)
        if record is None:
            raise EncodeError(f"{self._protocol} cannot write a row as a message. Report this with the log.")
        return record

    def _check(self, row: MessageRow) -> None:
        row.check_key()
        if row.commit_ts is None and CODECS[self._protocol].needs_commit_ts:
            raise EncodeError(
                f"The source sends no commit_ts, but {self._protocol} needs one. Set enable-tidb-extension = "
                "true at the changefeed and under source, or set target.protocol to flat-avro or canal-json."
            )

    def _deleted(self, key: Row) -> Row:
        """Return the before image of a deleted row. Only its key is known.

        For debezium-avro, all other columns are in the image and NULL.
        """
        return (
            {column.name: key.get(column.name) for column in self._schema.columns}
            if self._fills_deletes
            else key
        )

    def _written(self, row: Row) -> dict[str, Value]:
        values: dict[str, Value] = dict(row)
        for name in self._booleans.intersection(values):
            values[name] = None if (value := values[name]) is None else int(value)
        for name in self._instants.intersection(values):
            if isinstance(value := values[name], str):
                values[name] = _local(value.removesuffix("+00:00"), self._zone, name)
        return values

    def _placeholder(self, name: str, omitted: tuple[str, ...]) -> Any:
        reader = row_of(self._schema.by_name[name].type).reader
        if not CODECS[self._protocol].leaves_out or reader not in ("text", "binary"):
            raise ValueNotStoredError(_KEPT.format(columns=", ".join(omitted), protocol=self._protocol))
        return PLACEHOLDER if reader == "text" else PLACEHOLDER.encode()


def _local(text: str, zone: ZoneInfo, column: str) -> str:
    """Convert a UTC time to the text of a TIMESTAMP, which is the local time in ``zone`` without an offset.

    Raises:
        EncodeError: the local time is outside the years 1 to 9999.
    """
    if zone.key == "UTC":
        return text
    whole, fraction = text[:_SECONDS], text[_SECONDS:]
    try:
        moment = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).astimezone(zone)
    except OverflowError as error:
        raise EncodeError(
            f"{text} is outside the years 1 to 9999 in {zone.key}. Set `target.time-zone: UTC`.",
            column=column,
        ) from error
    local = moment.replace(tzinfo=None).isoformat(sep=" ", timespec="seconds") + fraction
    return (
        FoldedTime(local, 1) if moment.fold else local
    )  # the second of two equal local times, for row checksums


NO_TRUNCATE: Final = (
    "The source truncated the table, but no message that every reader understands can express that. Send "
    "the table again to another topic. Or set skipped.operations to t (its default) at the connector, so "
    "that it skips truncates, and delete the rows at the source with DELETE."
)
_MAY_TRUNCATE: Final = (
    "No message can express that a table was truncated. A truncate at the source stops its table, unless the "
    "connector skips it (skipped.operations: t, its default)."
)
_OMITTED: Final = (
    "No message of this protocol can express that the source omitted a value. A change that omits an "
    "unchanged "
    "TOAST value stops its table. Set REPLICA IDENTITY FULL at the source, or set target.protocol to "
    "debezium-json or debezium-avro."
)


class HttpPreflight(PreflightChecks):
    """Checks of tables whose rows are sent to an HTTP endpoint as JSON."""

    def column_type(self, settings: Any, column: TargetColumn) -> str:  # noqa: ARG002
        """Return the JSON type with which a column's values are sent."""
        return json_type(column.type)

    def foresee(self, config: Config, shape: TargetSchema) -> PreflightResult:
        """Check that the table has a key and no soft deletes. The result has no limits and no warnings."""
        check_shape(shape, config.table_config(shape.source).deletes)
        return PreflightResult()


class KafkaPreflight(PreflightChecks):
    """Checks of tables whose rows are written to Kafka topics with one of tidesink's codecs."""

    def column_type(self, settings: Any, column: TargetColumn) -> str:  # noqa: ARG002
        """Return the TiDB type with which a column is written. The protocol may convert it further."""
        return type_words(written_type(column))

    def foresee(self, config: Config, shape: TargetSchema) -> PreflightResult:
        """Check that the protocol can encode the table, and return the protocol's limits."""
        check_shape(shape, config.table_config(shape.source).deletes)
        settings = cast("KafkaSettings", config.target)
        topic = settings.rule.topic_for(shape.table)
        check_topic(topic, reads_of(config), shape.table)
        # ``prepare`` encodes a trial row. An in-memory registry is enough for it, and needs no connection.
        prepare(
            shape,
            protocol=settings.protocol,
            options=settings.codec_options(),
            topic=topic,
            registry=MemorySchemaRegistry(),
        )
        if not CODECS[config.source.protocol].leaves_out:
            return PreflightResult()  # TiCDC sends whole rows, and TRUNCATE as a DDL event
        tells = CODECS[settings.protocol].leaves_out
        omitted = () if tells else (Limit("left-out-values", _OMITTED),)
        return PreflightResult((Limit("truncate", _MAY_TRUNCATE), *omitted))


def reads_of(config: Config) -> Callable[[str], bool] | None:
    """Return a function that returns True for a topic that the pipeline itself reads.

    Returns None if the pipeline reads from other brokers than it writes to.
    """
    settings = cast("KafkaSettings", config.target)
    return config.reads_topic if set(settings.brokers) & set(config.source.brokers) else None


def check_topic(topic: str, reads: Callable[[str], bool] | None, table: TableId) -> None:
    """Check that the pipeline does not read the topic that it writes to.

    ``reads``: the function that ``reads_of`` returned.

    Raises:
        ConfigError: the pipeline reads this topic.
    """
    if reads is not None and reads(topic):
        raise ConfigError(
            f"The pipeline would write to the topic {topic}, which it also reads. Add a prefix to "
            "`target.topic`.",
            table=str(table),
        )
