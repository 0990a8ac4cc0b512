"""The interface of a codec, its options, and helpers that several formats share.

A codec decodes bytes to change events and encodes events to bytes. The word has its meaning from change data
capture: a codec reads and writes an envelope of change events. It has nothing to do with compression or with
Python's ``codecs`` module.

The Confluent header before a payload is byte 00, then the schema's registry id as int32 big-endian. Each
codec reads it itself, because a DDL, a watermark and a delete marker of flat-avro start with other bytes
(TiCDC tiflow c7b2588 and ticdc b813e76).

The options of a Debezium connector supply what its records omit. With a schema, a record describes itself
nearly completely. Without one (``schemas.enable: false``) it has only JSON's own types. Names and defaults
are Debezium's (3.5); ``decimal_format`` is JsonConverter's.

JSON that is stored unchanged with an event has a limit on its nesting. No producer nests its own members
deeper than a few levels. Values are read and written with one call per level, so deeper values would exceed
the limits of Python and orjson.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

from tidesink.codecs.compression import LARGEST, Compression
from tidesink.codecs.framing import HEADER_SIZE, MAGIC, not_confluent
from tidesink.errors import FramingError, SchemaMismatchError
from tidesink.events import Event, Message, TableId
from tidesink.typemap.table import AmbiguousTime, DecimalMode, UnsignedMode, ZeroDate

if TYPE_CHECKING:
    import pyarrow as pa

    from tidesink.codecs.batch import Columnar, DecodedBatch, ValueOptions


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
    """A connector's handling modes.

    ``time_zone`` is the zone in which a column that a table definition declares as TIMESTAMP is written as
    text; every other instant has its offset in its text. The other fields are read only if a record has no
    schema, with two exceptions: ``binary_handling_mode`` is always needed, because a schema does not show how
    text in a binary column is encoded, and so is ``unavailable_value_placeholder``. None means Debezium's own
    placeholder, or no placeholder if the producer ``sends_every_value``. ``commit_positions``: the
    ``commit_ts`` of events is the position of their transaction in the connector's log
    (``debezium.commit_positions``).
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
        """The text that replaces a value that was not sent; None if every text is a real value."""
        usual = None if self.sends_every_value else PLACEHOLDER
        return usual if self.unavailable_value_placeholder is None else self.unavailable_value_placeholder

    def of_ticdc(self) -> DebeziumModes:
        """The modes of TiCDC's messages, which identify themselves.

        TiCDC always uses these handling modes and sends every value of a row (``pkg/sink/codec/debezium``,
        b813e76). A configured placeholder is kept, because tidesink's own Kafka target writes it in TiCDC's
        format.
        """
        given = self.unavailable_value_placeholder
        return replace(_TICDC, time_zone=self.time_zone, unavailable_value_placeholder=given)


_TICDC: Final = DebeziumModes(
    decimal_handling_mode="double", binary_handling_mode="base64", sends_every_value=True
)


class Unavailable(Enum):
    """The type of ``UNAVAILABLE``: an Enum, so that type checkers narrow it by ``is``."""

    UNAVAILABLE = "unavailable"

    def __repr__(self) -> str:
        return self.name


UNAVAILABLE_PLACEHOLDER: Final = Unavailable.UNAVAILABLE


Producer = Literal["classic", "new"]
LargeMessageOption = Literal["none", "claim-check", "handle-key-only"]
ChecksumMode = Literal["off", "warn", "reject"]
TableOfTopic = Callable[[str], TableId | None]
_DEFAULT_MODES = DebeziumModes()


class EncodedRecord(NamedTuple):
    """The key and value bytes of one Kafka record; None is a null."""

    key: bytes | None
    value: bytes | None


# The text encodings of a binary column's bytes in canal-json.
BinaryText = Literal["iso-8859-1", "utf-8"]


@dataclass(frozen=True)
class CodecOptions:
    """TiCDC's own codec options, under TiCDC's names with ``_`` for ``-``.

    They configure encoding. A decoder reads the bytes and ignores them, except ``time_zone``,
    ``output_raw_change_event`` and ``binary_text``, which the bytes do not show, and ``checksum``.

    ``binary_text``: how canal-json's text of a binary column is decoded.
    ``checksum``: what a reader does if a row's checksum does not match (flat-avro): ``off`` skips the check,
    ``warn`` logs it, ``reject`` refuses the record. ``claim_check_storage_uri`` and ``upstream_url``: where a
    reader finds rows that are not in the message. Both may contain secrets and are never shown.
    ``max_decompressed_bytes``: the most bytes that a reader accepts for one message.
    ``producer``: ``classic`` (tiflow) or ``new`` (the new architecture), for encoding only.
    ``namespace``: changefeed namespace or keyspace, the first part of Avro record namespaces.
    ``debezium``: the connector's handling modes, for what Debezium's records do not show themselves.
    ``debezium_unwrapped``: the topic was flattened by ExtractNewRecordState, so a null value is a delete.
    Rows that show the flattening themselves do not need it. ``cluster_id`` and the other ``debezium_…``
    options are TiCDC's own, for encoding.
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
        """True if canal-json rows carry TiDB's row key, which is a member of the extension."""
        return self.enable_tidb_extension and self.output_row_key


class Codec(ABC):
    """A decoder and encoder of one protocol; ``name`` is the protocol's key in ``CODECS``."""

    name: str
    _options: CodecOptions

    @abstractmethod
    def decode(self, message: Message) -> tuple[Event, ...]:
        """The events of one Kafka record, in order; empty if the record contains none.

        Raises:
            DecodeError: this record cannot be decoded; context has topic, partition, offset.
            RegistryError: the writer's schema is not available.
        """

    @abstractmethod
    def encode(self, event: Event, *, topic: str) -> EncodedRecord | None:
        """The Kafka record of one event; None if the protocol has no record for it.

        Raises:
            EncodeError: the protocol cannot write this event.
            RegistryError: the schema cannot be registered.
        """

    def columnar(self, options: ValueOptions) -> Columnar | None:  # noqa: ARG002
        """The columnar step, for ``codecs.batch.decode_in_columns``; None if the codec does not have one."""
        return None

    def table_of(self, _message: Message) -> TableId | None:
        """The table that a record names, even if its row cannot be decoded; None if it names no table."""
        return None

    def decode_batch(
        self,
        records: pa.RecordBatch | pa.Table,
        *,
        zero_date: ZeroDate = "null",
        ambiguous_time: AmbiguousTime = "first",
    ) -> DecodedBatch:
        """Decode many Kafka records to Arrow tables, with the same events as ``decode`` of each record.

        ``records`` has the columns ``key`` and ``value`` and may have ``topic``, ``partition``, ``offset``,
        ``timestamp`` and ``headers``, as Spark's Kafka frame names them. A record that cannot be decoded
        becomes a fault in the result. Invalid calendar dates follow ``zero_date``. TIMESTAMP is read in the
        options' ``time_zone``, and a local time that occurs twice there follows ``ambiguous_time``.
        ``codecs.batch`` describes the tables.

        Raises:
            SchemaMismatchError: ``records`` lacks a column.
            RegistryError: a writer's schema is not available.
        """
        from tidesink.codecs.batch import ValueOptions, decode_in_columns

        options = ValueOptions(zero_date, self._options.time_zone, ambiguous_time=ambiguous_time)
        return decode_in_columns(
            records, columnar=self.columnar(options), decode=self.decode, options=options
        )


# Errors of reading damaged bytes: the record ends early, or the bytes are not a value of their type.
# MemoryError, and pyarrow's, is not evidence of a damaged record: fastavro never allocates more memory than
# there are bytes, whatever lengths they declare. It must leave every decoder, so that the task is retried
# (``sinks.spark.errors.passing_failure``). So no decoder catches ``Exception`` or ``pa.ArrowException``.
DAMAGED: Final = (EOFError, LookupError, ValueError, OverflowError, TypeError, RecursionError)
_HEADER: Final = struct.Struct(">BI")


def header(schema_id: int) -> bytes:
    """The five bytes before an Avro payload."""
    return _HEADER.pack(MAGIC, schema_id)


def schema_id_of(data: bytes, part: str) -> int:
    """The schema id with which a message's ``part`` (``key`` or ``value``) was written.

    Raises:
        FramingError: the bytes do not start with a Confluent header; the message names what they look like.
    """
    if len(data) >= HEADER_SIZE and data[0] == MAGIC:
        schema_id: int = _HEADER.unpack_from(data)[1]
        if schema_id:
            return schema_id
    raise FramingError(f"The {part} {not_confluent(data)}")


class ByIdentity(Generic[T]):
    """A cache of values derived from recurring objects, for example a schema that many rows share.

    An entry is found by the object's identity, since hashing one is slow, and by the further arguments. The
    cache holds the object, so that its id is not reused. All entries are dropped if there are too many,
    because a caller may pass a new object each time.
    """

    def __init__(self, make: Callable[..., T], most: int) -> None:
        self._make, self._most = make, most
        self._known: dict[tuple[Hashable, ...], tuple[object, T]] = {}

    def get(self, one: object, *more: Hashable) -> T:
        """Return the result of ``make`` for these arguments, from the cache if possible."""
        place = (id(one), *more)
        found = self._known.get(place)
        if found is None:
            if len(self._known) >= self._most:
                self._known.clear()
            found = self._known[place] = (one, self._make(one, *more))
        return found[1]


MOST_LEVELS: Final = 64
_NESTING: Final = frozenset({dict, list})


def is_deep(value: object, *, most: int = MOST_LEVELS) -> bool:
    """Return True if objects and lists in a value are nested deeper than ``most`` levels.

    Only plain dicts and lists count, as the parsers of JSON and Avro return them.
    """
    level: list[Any] = [value] if type(value) in _NESTING else []
    for _ in range(most):
        members = (one.values() if type(one) is dict else one for one in level)
        level = [inner for inside in members for inner in inside if type(inner) in _NESTING]
        if not level:
            return False
    return True


def kept(value: T, name: str) -> T:
    """Check the value of a member that is stored unchanged, and return it.

    Raises:
        SchemaMismatchError: it is nested deeper than any producer's.
    """
    if is_deep(value):
        raise SchemaMismatchError(f"{name!r} is nested deeper than {MOST_LEVELS} levels.")
    return value
