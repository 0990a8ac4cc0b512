"""Rows as messages of a codec, and what can be said of them before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast
from zoneinfo import ZoneInfo

from tidesink.codecs.base import PLACEHOLDER, Codec, CodecOptions, EncodedRecord
from tidesink.codecs.open import CODECS, open_codec
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
from tidesink.typemap.target_schema import NO_FLAT_AVRO, ShapeColumn, TableShape, is_row_keyed
from tidesink.typemap.values import FoldedTime, json_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidesink.config import Config
    from tidesink.config.targets import KafkaSettings
    from tidesink.events import TableId


_OURS: Final = frozenset(row.name for row in TYPES)
# What other databases' types are written as, by how they are read.
_WRITTEN_AS: Final[Mapping[str, ColumnType]] = {
    "boolean": ColumnType("tinyint"),
    "local_date": ColumnType("date"),
    "local_datetime": ColumnType("datetime", fsp=6),
    "instant": ColumnType("timestamp", fsp=6),
    "integer": ColumnType("bigint"),
    "binary": ColumnType("longblob"),
}
_TEXT: Final = ColumnType("longtext")
# A value that any column of a type takes: a probe's key.
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
    "the source did not send the value of {columns}, since it did not change, and {protocol} has a word for "
    "that in text and binary columns alone. Set REPLICA IDENTITY FULL on the table"
)


def written_schema(shape: TableShape, protocol: str, options: CodecOptions) -> TableSchema:
    """The columns as they are written: the source's types, and the nearest of TiDB's for other databases'.

    Raises:
        SchemaRefusedError: a column that the protocol cannot write; names it.
    """
    for column in shape.columns:
        if _lacks_precision(column, protocol, options):
            raise SchemaRefusedError(
                f"nothing tells the precision of this decimal, which {protocol} needs: set "
                "avro-decimal-handling-mode: string, or give the table's definition",
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


def written_type(column: ShapeColumn) -> ColumnType:
    """The type that a column is written as."""
    row = row_of(column.type)
    if row.name in _OURS:
        return column.type
    if column.spark == "string":
        return _TEXT
    return _WRITTEN_AS.get(row.reader, _TEXT)


def _lacks_precision(column: ShapeColumn, protocol: str, options: CodecOptions) -> bool:
    needed = CODECS[protocol].registry and options.avro_decimal_handling_mode == "precise"
    return needed and row_of(column.type).reader == "decimal" and column.type.precision is None


class RegisteredSchemas(MemorySchemaRegistry):
    """The ids that the driver got, for tasks: nothing is asked and nothing registered there."""

    def __init__(self, ids: Mapping[tuple[str, str], int]) -> None:
        super().__init__({schema_id: text for (_, text), schema_id in ids.items()})
        self._known = dict(ids)

    def register(self, subject: str, schema_text: str) -> int:
        """The id that the driver got."""
        known = self._known.get((subject, schema_text))
        if known is None:
            raise RegistryError("the schema was not registered before its rows", subject=subject)
        return known


class _Noting(MemorySchemaRegistry):
    """Registers in the real registry and keeps the ids."""

    def __init__(self, registry: SchemaRegistry) -> None:
        super().__init__()
        self._registry = registry
        self.ids: dict[tuple[str, str], int] = {}

    def register(self, subject: str, schema_text: str) -> int:
        """The registry's own id."""
        found = self._registry.register(subject, schema_text)
        self.ids[subject, schema_text] = found
        return found


@dataclass(frozen=True)
class Encoding:
    """All that a task needs to encode a table's rows; made by ``prepare``."""

    protocol: str
    options: CodecOptions
    shape: TableShape
    schema: TableSchema
    topic: str
    ids: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def reader(self) -> MessageRows:
        """What reads a task's rows as its encoder takes them."""
        return MessageRows(self.shape, self.options.time_zone)

    def encoder(self, sent_ms: int) -> Encoder:
        """An encoder of one task. ``sent_ms``: the batch's wall clock, for rows without a commit_ts."""
        registry = RegisteredSchemas(self.ids)
        return Encoder(self, open_codec(self.protocol, options=self.options, registry=registry), sent_ms)


def prepare(
    shape: TableShape, *, protocol: str, options: CodecOptions, topic: str, registry: SchemaRegistry | None
) -> Encoding:
    """The encoding of a table, whose schemas are registered when this returns.

    Raises:
        SchemaRefusedError: the protocol or the registry does not take the table; says what to do.
        RegistryError: the registry does not answer, or refuses us.
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
            f"{error.message}. Set a compatibility level for the subject that takes it "
            "(PUT /config/SUBJECT at the registry), or another topic rule",
            **{**error.context, "table": str(shape.table)},
        ) from error
    except EncodeError as error:
        raise SchemaRefusedError(
            f"{protocol} cannot write this table: {error.message}",
            **{**error.context, "table": str(shape.table)},
        ) from error
    return replace(encoding, ids=noting.ids if noting is not None else {})


def _zoned(protocol: str, options: CodecOptions) -> CodecOptions:
    """Debezium's messages have moments in UTC: through a local clock an hour of each autumn is lost."""
    return replace(options, time_zone="UTC") if protocol.startswith("debezium") else options


def _probe(column_type: ColumnType) -> Value:
    reader = row_of(column_type).reader
    if reader == "enum" and column_type.members:
        return column_type.members[0]
    return _PROBES.get(reader, 0)


class Encoder:
    """Encodes the rows of one table."""

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
        """A row's message.

        Raises:
            EncodeError: the row has no key, or a value that the protocol cannot write.
            ValueNotStoredError: a value was left out, and the protocol has no word for that.
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
            # A canal-json message must tell a time; without a commit_ts it is that of the sending.
            extension=self._extension if row.commit_ts is None else None,
        )
        record = self._codec.encode(event, topic=self._topic)
        if record is None:
            raise EncodeError(f"{self._protocol} has no message for a row")
        return record

    def _check(self, row: MessageRow) -> None:
        row.check_key()
        if row.commit_ts is None and self._protocol.startswith("debezium"):
            raise EncodeError(
                f"the source tells no commit_ts, which {self._protocol} needs: set enable-tidb-extension = "
                "true at the changefeed, or write flat-avro or canal-json"
            )

    def _deleted(self, key: Row) -> Row:
        """The row before a delete, of which the key alone is known."""
        return (
            {column.name: key.get(column.name) for column in self._schema.columns}
            if self._fills_deletes
            else key
        )

    def _written(self, row: Row) -> dict[str, Value]:
        found: dict[str, Value] = dict(row)
        for name in self._booleans.intersection(found):
            found[name] = None if (value := found[name]) is None else int(value)
        for name in self._instants.intersection(found):
            if isinstance(value := found[name], str):
                found[name] = _local(value.removesuffix("+00:00"), self._zone, name)
        return found

    def _placeholder(self, name: str, kept: tuple[str, ...]) -> Any:
        reader = row_of(self._schema.by_name[name].type).reader
        if not CODECS[self._protocol].leaves_out or reader not in ("text", "binary"):
            raise ValueNotStoredError(_KEPT.format(columns=", ".join(kept), protocol=self._protocol))
        return PLACEHOLDER if reader == "text" else PLACEHOLDER.encode()


def _local(text: str, zone: ZoneInfo, column: str) -> str:
    """A moment of UTC as a TIMESTAMP is written: by the zone's clock, without an offset."""
    if zone.key == "UTC":
        return text
    whole, fraction = text[:_SECONDS], text[_SECONDS:]
    try:
        moment = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).astimezone(zone)
    except OverflowError as error:
        raise EncodeError(
            f"{text} is beyond the years 1 to 9999 in {zone.key}: set target.time-zone: UTC", column=column
        ) from error
    local = moment.replace(tzinfo=None).isoformat(sep=" ", timespec="seconds") + fraction
    return FoldedTime(local, 1) if moment.fold else local  # for a row's checksum


NO_TRUNCATE: Final = (
    "the source emptied the table, and a topic has no message for that which every reader knows. Have the "
    "connector skip truncates (skipped.operations: t, its default), delete the rows at the source in place "
    "of it, or send the table again to another topic"
)
_MAY_TRUNCATE: Final = (
    "no message says that a table was emptied: a truncate at the source stops its table, unless the "
    "connector skips it (skipped.operations: t, its default)"
)
_OMITTED: Final = (
    "no message says that a value was left out: an unchanged TOAST value stops its table. Set REPLICA "
    "IDENTITY FULL at the source, or write debezium-json or debezium-avro"
)


class HttpPreflight(PreflightChecks):
    """Of rows sent as JSON."""

    def column_type(self, settings: Any, column: ShapeColumn) -> str:  # noqa: ARG002
        """What its values are in JSON."""
        return json_type(column.type)

    def foresee(self, config: Config, shape: TableShape) -> PreflightResult:
        """Nothing more than the capabilities say; raises as ``PreflightChecks`` says."""
        check_shape(shape, config.table_config(shape.source).deletes)
        return PreflightResult()


class KafkaPreflight(PreflightChecks):
    """Of rows written by one of our codecs."""

    def column_type(self, settings: Any, column: ShapeColumn) -> str:  # noqa: ARG002
        """The type of TiDB's that it is written as, whatever the protocol makes of that."""
        return type_words(written_type(column))

    def foresee(self, config: Config, shape: TableShape) -> PreflightResult:
        """What the protocol has no word for; raises as ``PreflightChecks`` says."""
        check_shape(shape, config.table_config(shape.source).deletes)
        settings = cast("KafkaSettings", config.target)
        topic = settings.rule.topic_for(shape.table)
        check_topic(topic, reads_of(config), shape.table)
        # As for the first row, with another registry: what the real one says is known when it is asked.
        prepare(
            shape,
            protocol=settings.protocol,
            options=settings.codec_options(),
            topic=topic,
            registry=MemorySchemaRegistry(),
        )
        if not CODECS[config.source.protocol].leaves_out:
            return PreflightResult()  # TiCDC's rows are whole, and its TRUNCATE is DDL
        tells = CODECS[settings.protocol].leaves_out
        omitted = () if tells else (Limit("left-out-values", _OMITTED),)
        return PreflightResult((Limit("truncate", _MAY_TRUNCATE), *omitted))


def reads_of(config: Config) -> Callable[[str], bool] | None:
    """Whether a pipeline reads a topic of the brokers that it writes to; None where these are others."""
    settings = cast("KafkaSettings", config.target)
    return config.reads_topic if set(settings.brokers) & set(config.source.brokers) else None


def check_topic(topic: str, reads: Callable[[str], bool] | None, table: TableId) -> None:
    """Refuse to write what is read.

    Raises:
        ConfigError: the pipeline reads this very topic.
    """
    if reads is not None and reads(topic):
        raise ConfigError(
            f"the pipeline reads the topic {topic} that it would write: give target.topic a prefix",
            table=str(table),
        )
