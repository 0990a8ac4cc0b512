"""Defines the interface of codecs, their options, and helpers that several codecs share.

A codec decodes the bytes of Kafka records to change events, and encodes change events to bytes. It has
nothing to do with compression, or with Python's ``codecs`` module.

The Confluent header before an Avro payload is byte 00, followed by the schema's registry id as int32
big-endian. Each codec checks the header itself, because DDL events, watermarks and delete markers of
flat-avro start with other bytes (TiCDC tiflow c7b2588 and ticdc b813e76).

``DebeziumModes`` has the settings of a Debezium connector that its records do not show. A record with a
schema contains nearly all types. A record without a schema (``schemas.enable: false``) has only JSON's types.
The names and defaults of the settings are Debezium's (3.5); ``decimal_format`` is a setting of JsonConverter.

The nesting of JSON values that are stored unchanged with an event is limited, because parsing and writing a
deeply nested value would exceed the limits of Python and orjson. No producer nests its own members deeper
than a few levels.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

from tidesink.codecs.compression import LARGEST, Compression
from tidesink.codecs.framing import HEADER_SIZE, MAGIC, not_confluent
from tidesink.errors import ConfigError, FramingError, SchemaMismatchError
from tidesink.events import Event, Message, TableId
from tidesink.typemap.table import AmbiguousTime, DecimalMode, UnsignedMode, ZeroDate

if TYPE_CHECKING:
    import pyarrow as pa

    from tidesink.codecs.batch import Columnar, DecodedBatch, ValueOptions
    from tidesink.ddl.catalog import TableDefinitions
    from tidesink.schema_registry.base import SchemaRegistry, SchemaSource


T = TypeVar("T")

DecimalHandling = Literal["precise", "string", "double"]
UnsignedHandling = Literal["long", "precise", "string"]
BinaryHandling = Literal["bytes", "base64", "base64-url-safe", "hex"]
TimePrecision = Literal[
    "adaptive",
    "adaptive_time_microseconds",
    "connect",
    "isostring",
    "microseconds",
    "nanoseconds",
    "structured",
]
IntervalHandling = Literal["numeric", "string"]
HstoreHandling = Literal["json", "map"]
DecimalFormat = Literal["base64", "numeric"]

PLACEHOLDER: Final = "__debezium_unavailable_value"


@dataclass(frozen=True)
class DebeziumModes:
    """Settings of a Debezium connector that determine how it writes values.

    The ``…_mode`` fields and ``decimal_format`` are used only for records without a schema. The exception is
    ``binary_handling_mode``, because a schema does not show how the bytes of a binary column are encoded.

    ``unavailable_value_placeholder``: text that replaces a value that the connector did not send. None means
    Debezium's default placeholder, or no placeholder if ``sends_every_value`` is True. ``time_zone``: time
    zone in which the connector writes columns that a table definition declares as TIMESTAMP. All other texts
    of instants contain their UTC offset. ``commit_positions``: True if the ``commit_ts`` of an event is the
    position of its transaction in the connector's log (``debezium.commit_positions``).
    """

    decimal_handling_mode: DecimalHandling = "precise"
    bigint_unsigned_handling_mode: UnsignedHandling = "long"
    binary_handling_mode: BinaryHandling = "bytes"
    time_precision_mode: TimePrecision = "adaptive_time_microseconds"
    interval_handling_mode: IntervalHandling = "numeric"
    hstore_handling_mode: HstoreHandling = "json"
    unavailable_value_placeholder: str | None = None
    time_zone: str = "UTC"
    decimal_format: DecimalFormat = "base64"
    sends_every_value: bool = False
    commit_positions: bool = False

    @property
    def placeholder(self) -> str | None:
        """Text that stands for a value that the connector did not send; None if every value is sent."""
        usual = None if self.sends_every_value else PLACEHOLDER
        return usual if self.unavailable_value_placeholder is None else self.unavailable_value_placeholder

    def of_ticdc(self) -> DebeziumModes:
        """Returns these settings as they apply to messages that TiCDC wrote in its Debezium format.

        The messages identify TiCDC as their producer. TiCDC always uses the same handling modes, and sends
        all values of a row (``pkg/sink/codec/debezium``, b813e76). A configured placeholder is still used,
        because tidesink's own Kafka target writes this format with placeholders.
        """
        given = self.unavailable_value_placeholder
        return replace(_TICDC, time_zone=self.time_zone, unavailable_value_placeholder=given)


_TICDC: Final = DebeziumModes(
    decimal_handling_mode="double", binary_handling_mode="base64", sends_every_value=True
)


class Unavailable(Enum):
    """The type of ``UNAVAILABLE_PLACEHOLDER``, the object that stands for a value that Debezium did not send.

    It is an Enum, so that type checkers understand comparisons with ``is``.
    """

    UNAVAILABLE = "unavailable"

    def __repr__(self) -> str:
        return self.name


UNAVAILABLE_PLACEHOLDER: Final = Unavailable.UNAVAILABLE


Producer = Literal["classic", "new"]
LargeMessageOption = Literal["none", "claim-check", "handle-key-only"]
ChecksumMode = Literal["off", "warn", "reject"]
TableOfTopic = Callable[[str], TableId | None]
Keys = Mapping[TableId, Sequence[str]]
_DEFAULT_MODES = DebeziumModes()


class EncodedRecord(NamedTuple):
    """The key and value bytes of one Kafka record. None represents a null key or value."""

    key: bytes | None
    value: bytes | None


# Encodings with which a producer of canal-json writes the bytes of a binary column as text.
BinaryText = Literal["iso-8859-1", "utf-8"]


@dataclass(frozen=True)
class CodecOptions:
    """Options of the codecs. Most of them are TiCDC's options, with ``_`` instead of ``-`` in their names.

    TiCDC's options determine how events are encoded. Decoding ignores them, because the bytes show how they
    were written. The exceptions are ``time_zone`` and ``output_raw_change_event``, which the bytes do not
    show.

    These options are for decoding. ``binary_text``: encoding of binary columns in canal-json. ``checksum``:
    treatment of a flat-avro row that does not match its checksum: ``off`` does not check, ``warn`` logs a
    warning, ``reject`` raises an error. ``claim_check_storage_uri`` and ``upstream_url``: sources of rows
    that were too large for Kafka; both may contain secrets and are never shown. ``max_decompressed_bytes``:
    maximum size of one decompressed message. ``debezium``: settings of the Debezium connector.
    ``debezium_unwrapped``: True if ExtractNewRecordState flattened the topic's rows, so that a null value is
    a delete; not needed if the rows show it.

    These options are for encoding. ``producer``: ``classic`` (tiflow) or ``new`` (the new architecture).
    ``namespace``: the changefeed's namespace or keyspace, the first part of Avro namespaces. ``cluster_id``
    and the other ``debezium_…`` options: TiCDC's options for its Debezium formats.
    """

    enable_tidb_extension: bool = False
    avro_decimal_handling_mode: DecimalMode = "precise"
    avro_bigint_unsigned_handling_mode: UnsignedMode = "long"
    avro_enable_watermark: bool = False
    avro_include_before_value: bool = False
    content_compatible: bool = False
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    output_row_key: bool = False
    output_raw_change_event: bool = False
    row_checksum: bool = False
    max_message_bytes: int = 10_485_760
    namespace: str = "default"
    producer: Producer = "classic"
    time_zone: str = "UTC"
    large_message_handle_option: LargeMessageOption = "none"
    large_message_handle_compression: Compression = "none"
    claim_check_storage_uri: str = field(default="", repr=False)
    claim_check_raw_value: bool = False
    upstream_url: str = field(default="", repr=False)
    max_decompressed_bytes: int = LARGEST
    binary_text: BinaryText = "iso-8859-1"
    checksum: ChecksumMode = "off"
    debezium: DebeziumModes = _DEFAULT_MODES
    debezium_unwrapped: bool = False
    cluster_id: str = "default"
    debezium_disable_schema: bool = False
    debezium_include_start_ts: bool = False
    debezium_output_old_value: bool = True

    @property
    def sends_row_keys(self) -> bool:
        """True if canal-json rows contain TiDB's row key, which is part of the TiDB extension."""
        return self.enable_tidb_extension and self.output_row_key


@dataclass(frozen=True)
class CodecParts:
    """The arguments for creating a codec of any protocol. Each codec uses those that it needs.

    ``registry``: schema registry. ``table_of_topic``: function that returns the table of a topic.
    ``definitions``: table definitions. ``keys``: key columns by table. ``glue``: source of the schemas of
    messages with an AWS Glue header.
    """

    options: CodecOptions
    registry: SchemaRegistry | None = None
    table_of_topic: TableOfTopic | None = None
    definitions: TableDefinitions | None = None
    keys: Keys | None = None
    glue: SchemaSource | None = None

    def required_registry(self, protocol: str) -> SchemaRegistry:
        """Returns the schema registry.

        Raises:
            ConfigError: There is none.
        """
        if self.registry is None:
            raise ConfigError(
                f"{protocol} needs a schema registry. Set schema-registry.", key="schema-registry"
            )
        return self.registry


class Codec(ABC):
    """Decodes and encodes the records of one protocol. ``name``: name of the protocol in ``CODECS``."""

    name: str
    _options: CodecOptions

    @abstractmethod
    def decode(self, message: Message) -> tuple[Event, ...]:
        """Returns the events of one Kafka record, in the record's order; empty if it contains no event.

        Raises:
            DecodeError: The record cannot be decoded. The error's context has topic, partition and offset.
            RegistryError: The schema registry does not have, or does not return, the record's schema.
        """

    @abstractmethod
    def encode(self, event: Event, *, topic: str) -> EncodedRecord | None:
        """Returns the Kafka record of one event, or None if the protocol has no record for such an event.

        Raises:
            EncodeError: The protocol cannot represent this event.
            RegistryError: The event's schema cannot be registered.
        """

    def columnar(self, options: ValueOptions) -> Columnar | None:  # noqa: ARG002
        """Returns a function that decodes many records at once, or None if the codec has no such function.

        This function is the codec's columnar step. ``codecs.batch.decode_in_columns`` calls it for each
        batch. ``options``: options for converting the values.
        """
        return None

    def table_of(self, _message: Message) -> TableId | None:
        """Returns the table that a record names, or None if it names no table.

        It does not decode the row, so it also works for a record that cannot be decoded.
        """
        return None

    def decode_batch(
        self,
        records: pa.RecordBatch | pa.Table,
        *,
        zero_date: ZeroDate = "null",
        ambiguous_time: AmbiguousTime = "first",
    ) -> DecodedBatch:
        """Decodes many Kafka records to Arrow tables. The events are the same as those of ``decode``.

        ``records``: Kafka records with the columns ``key`` and ``value``. The columns ``topic``,
        ``partition``, ``offset``, ``timestamp`` and ``headers`` are optional; all have the names of Spark's
        Kafka source. ``zero_date``: policy for dates that do not exist, such as 0000-00-00.
        ``ambiguous_time``: policy for local times that occur twice in the options' ``time_zone``, in which
        TIMESTAMP columns are read.

        A record that cannot be decoded raises no error: the result lists it with its error in ``faults``.
        ``codecs.batch.ChangeTable`` describes the columns of the tables.

        Raises:
            SchemaMismatchError: ``records`` lacks a column.
            RegistryError: The schema registry does not have, or does not return, a record's schema.
        """
        from tidesink.codecs.batch import ValueOptions, decode_in_columns

        options = ValueOptions(zero_date, self._options.time_zone, ambiguous_time=ambiguous_time)
        return decode_in_columns(
            records, columnar=self.columnar(options), decode=self.decode, options=options
        )


# Errors that libraries raise for damaged bytes: a record ends early, or bytes are not a value of their type.
# MemoryError (also pyarrow's) is not among them, because fastavro never allocates more memory than there are
# bytes. Decoders must let it pass, so that the task is retried (``sinks.spark.errors.passing_failure``). So
# no decoder catches ``Exception`` or ``pa.ArrowException``.
DAMAGED: Final = (EOFError, LookupError, ValueError, OverflowError, TypeError, RecursionError)
_HEADER: Final = struct.Struct(">BI")


def header(schema_id: int) -> bytes:
    """Returns the Confluent header, the five bytes before an Avro payload, with this schema id."""
    return _HEADER.pack(MAGIC, schema_id)


def schema_id_of(data: bytes, part: str) -> int:
    """Returns the schema id in the Confluent header of a key or value. ``part``: ``key`` or ``value``.

    Raises:
        FramingError: The bytes do not start with a Confluent header. The error text describes the bytes.
    """
    if len(data) >= HEADER_SIZE and data[0] == MAGIC:
        schema_id: int = _HEADER.unpack_from(data)[1]
        if schema_id:
            return schema_id
    raise FramingError(f"The {part} {not_confluent(data)}")


class ByIdentity(Generic[T]):
    """Caches values that are derived from an object, for example from a schema that many rows share.

    ``make``: function that creates the value for an object and further arguments. ``most``: maximum number of
    entries; if it is reached, all entries are dropped.

    Entries are looked up by the ``id()`` of the object, because hashing the object is slow, and by the
    further arguments. The cache keeps a reference to the object, so that Python does not reuse its id.
    """

    def __init__(self, make: Callable[..., T], most: int) -> None:
        self._make, self._most = make, most
        self._known: dict[tuple[Hashable, ...], tuple[object, T]] = {}

    def get(self, argument: object, *more: Hashable) -> T:
        """Returns the cached value for the object ``argument`` and the further arguments ``more``.

        If it is not cached, ``make`` creates it.
        """
        key = (id(argument), *more)
        entry = self._known.get(key)
        if entry is None:
            if len(self._known) >= self._most:
                self._known.clear()
            entry = self._known[key] = (argument, self._make(argument, *more))
        return entry[1]


MOST_LEVELS: Final = 64
_NESTING: Final = frozenset({dict, list})


def is_deep(value: object, *, most: int = MOST_LEVELS) -> bool:
    """Returns True if the dicts and lists in a parsed JSON value are nested deeper than ``most`` levels."""
    level: list[Any] = [value] if type(value) in _NESTING else []
    for _ in range(most):
        members = (container.values() if type(container) is dict else container for container in level)
        level = [inner for inside in members for inner in inside if type(inner) in _NESTING]
        if not level:
            return False
    return True


def kept(value: T, name: str) -> T:
    """Returns a member's parsed JSON value unchanged, after checking that it is not nested too deeply.

    It is used for members of a message that are stored unchanged with the event. ``name``: name of the
    member, for the error text.

    Raises:
        SchemaMismatchError: The member is nested deeper than ``MOST_LEVELS`` levels.
    """
    if is_deep(value):
        raise SchemaMismatchError(
            f"The member {name!r} is nested deeper than {MOST_LEVELS} levels, which no producer writes."
        )
    return value
