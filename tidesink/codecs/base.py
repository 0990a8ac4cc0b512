"""Defines the interface of codecs, the options of all codecs, and helpers that several codecs share.

A codec decodes the bytes of Kafka records to change events, and encodes change events to bytes. It has
nothing to do with compression, or with Python's ``codecs`` module.

The Confluent header before an Avro payload is byte 00, followed by the schema's registry id as int32
big-endian. Each codec checks the header itself, because DDL events, watermarks and delete markers of
flat-avro start with other bytes (TiCDC tiflow c7b2588 and ticdc b813e76).

The nesting of JSON values that are stored unchanged with an event is limited, because parsing and writing a
deeply nested value would exceed the limits of Python and orjson. No producer nests its own members deeper
than a few levels.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from tidesink.codecs.framing import HEADER_SIZE, MAGIC, not_confluent
from tidesink.errors import ConfigError, FramingError, SchemaMismatchError
from tidesink.events import Event, Message, TableId
from tidesink.typemap.table import AmbiguousTime, ZeroDate

if TYPE_CHECKING:
    import pyarrow as pa

    from tidesink.codecs.batch import Columnar, DecodedBatch, ValueOptions
    from tidesink.ddl.catalog import TableDefinitions
    from tidesink.schema_registry.base import SchemaRegistry, SchemaSource


T = TypeVar("T")
Options = TypeVar("Options", bound="CodecOptions")


class Unavailable(Enum):
    """The type of ``UNAVAILABLE_PLACEHOLDER``, the object that stands for a value that Debezium did not send.

    It is an Enum, so that type checkers understand comparisons with ``is``.
    """

    UNAVAILABLE = "unavailable"

    def __repr__(self) -> str:
        return self.name


UNAVAILABLE_PLACEHOLDER: Final = Unavailable.UNAVAILABLE


TableOfTopic = Callable[[str], TableId | None]
Keys = Mapping[TableId, Sequence[str]]


class EncodedRecord(NamedTuple):
    """The key and value bytes of one Kafka record. None represents a null key or value."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class CodecOptions:
    """Options that all codecs share. ``codecs.options`` has the options of each codec, which include these.

    They are TiCDC's options, with ``_`` instead of ``-`` in their names. ``enable_tidb_extension`` and
    ``max_message_bytes`` are only for encoding. ``time_zone``: time zone of TIMESTAMP values.
    """

    enable_tidb_extension: bool = False
    max_message_bytes: int = 10_485_760
    time_zone: str = "UTC"

    @classmethod
    def of(cls: type[Options], options: CodecOptions | None) -> Options:
        """Returns options as those of this codec. ``options``: None for the defaults.

        If only the shared options are given, the codec's other options have their defaults.

        Raises:
            ConfigError: The options are those of another codec.
        """
        if options is None:
            return cls()
        if isinstance(options, cls):
            return options
        if type(options) is not CodecOptions:
            raise ConfigError(
                f"The codec's options are {cls.__name__}, not {type(options).__name__}. Use {cls.__name__}, "
                "or CodecOptions for the options that all codecs share."
            )
        return cls().updated(vars(options))

    def updated(self: Options, values: Mapping[str, Any]) -> Options:
        """Returns the options with other values. Values of options that this codec lacks are ignored."""
        names = {option.name for option in fields(self)}
        return replace(self, **{name: value for name, value in values.items() if name in names})


@dataclass(frozen=True)
class CodecParts:
    """The arguments for creating a codec of any protocol. Each codec uses those that it needs.

    ``registry``: schema registry. ``table_of_topic``: function that returns the table of a topic.
    ``definitions``: table definitions. ``keys``: key columns by table. ``glue``: source of the schemas of
    messages with an AWS Glue header.
    """

    options: CodecOptions | None = None
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
