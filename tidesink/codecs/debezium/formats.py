"""Parses the two formats of Debezium's records: Kafka Connect's JSON, and Avro with a Confluent header.

JSON records may contain their schema. Kafka Connect 4.3 (``schemas.enable``) writes the schema first. TiCDC's
new architecture (b813e76) writes the payload first, and uses the same wrapping without a schema too
(``debezium-disable-schema``). A schema is longer than its payload and the same in each record of a table, so
it is parsed once and recognised by its text.

TiCDC (b813e76) may compress the key and the value of a JSON record (``codecs.compression``), but not of an
Avro record.

Avro records, as Confluent's and Apicurio's converters and TiCDC's ``debezium-avro`` (b813e76) write them, are
a Confluent header followed by the bytes of the record. fastavro reads these bytes with the writer's schema
without logical types, defaults and Connect's additions, because the Connect schema determines what a value
means.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from io import BytesIO
from typing import Any, Final, NamedTuple, NoReturn, Protocol

import fastavro
from fastavro.schema import SchemaParseException

from tidesink.codecs.base import DAMAGED, schema_id_of
from tidesink.codecs.compression import LARGEST, decompressed
from tidesink.codecs.debezium.connect_schema import (
    MOST_LEVELS,
    ConnectSchema,
    connect_schema_of_avro,
    connect_schema_of_json,
)
from tidesink.codecs.framing import HEADER_SIZE, not_json
from tidesink.errors import DecodeError, FramingError, SchemaMismatchError, ValueOutOfRangeError, shown
from tidesink.events import Message
from tidesink.schema_registry.base import SchemaRegistry

# The beginning of every uncompressed key or value of a producer; compressed ones never begin like this.
JSON_START: Final = b'{"'
_SCHEMA_FIRST: Final = '{"schema":'
_THEN_PAYLOAD: Final = ',"payload":'
_PAYLOAD_FIRST: Final = '{"payload":'
_THEN_SCHEMA: Final = ',"schema":'
_WRAPPING: Final = frozenset({"schema", "payload"})
_MOST_KNOWN: Final = 4096
# The most characters of cached schemas: a schema of ten columns has four thousand.
_MOST_ROOM: Final = 1 << 26
# Postgres' numeric has up to 131072 digits before the point and 16383 after it, the most of all databases.
_MOST_DIGITS: Final = 150_000


def json_number(text: str) -> Decimal:
    """Parses a number with a fraction or an exponent, and keeps all its digits.

    Raises:
        ValueOutOfRangeError: no column can hold the number.
    """
    try:
        number = Decimal(text)
    except ArithmeticError:  # an exponent beyond Decimal's range
        number = None
    # Written with all its digits, 1e999999999 would need a gigabyte.
    if number is None or abs(number.adjusted()) > _MOST_DIGITS or len(text) > _MOST_DIGITS:
        raise ValueOutOfRangeError(
            f"The number {shown(text, 40)} has too many digits for a column of any database."
        )
    return number


def _no_number(text: str) -> NoReturn:
    raise SchemaMismatchError(
        f"{text} is not a JSON number. Kafka Connect writes this value as text in quotes."
    )


_DECODER: Final = json.JSONDecoder(parse_float=json_number, parse_constant=_no_number)


class JsonParser:
    """Parses the JSON keys and values of records, compressed or not, and caches their schemas.

    ``most``: the maximum size of a decompressed key or value, in bytes.
    """

    def __init__(self, most: int = LARGEST) -> None:
        self._most = most
        # The text of the last schema by topic and part; schemas parsed from texts that follow a payload.
        self._heads: dict[tuple[str, str], tuple[str, ConnectSchema]] = {}
        self._tails: dict[str, ConnectSchema] = {}

    def read(self, message: Message, part: str) -> Parsed | None:
        """Parses a message's ``key`` or ``value`` (``part``) from JSON; returns None if it is null.

        Raises:
            FramingError: the bytes are not UTF-8 or not JSON, or their compression is damaged, or they exceed
                the maximum size when decompressed.
            SchemaMismatchError: Kafka Connect does not write such JSON, or the JSON is nested too deeply.
            ValueOutOfRangeError: a number in the JSON does not fit into any column.
        """
        data = message.key if part == "key" else message.value
        if data is None:
            return None
        if not data.startswith(JSON_START):
            data = decompressed(data, most=self._most) or data
        try:
            return self._parsed(data.decode("utf-8"), (message.topic, part))
        except UnicodeDecodeError as error:
            raise FramingError(f"The {part} {_no_text(data)}") from error
        except RecursionError as error:
            raise SchemaMismatchError(
                f"The JSON in the {part} is nested deeper than the row of a table can be."
            ) from error
        except ValueError as error:  # JSONDecodeError, and integers of thousands of digits
            what = not_json(data)
            raise FramingError(f"The {part} is not JSON: {error!s:.120}. {what or _ASKED}") from error

    def _parsed(self, text: str, topic_part: tuple[str, str]) -> Parsed:
        return self._usual(text, topic_part) or _unwrapped(_DECODER.decode(text))

    def _usual(self, text: str, topic_part: tuple[str, str]) -> Parsed | None:
        """Parses JSON in the exact form that Kafka Connect or TiCDC writes, without white space.

        Returns None for JSON in any other form.
        """
        try:
            if text.startswith(_SCHEMA_FIRST):
                return self._schema_first(text, topic_part)
            return self._payload_first(text) if text.startswith(_PAYLOAD_FIRST) else None
        except json.JSONDecodeError:
            return None

    def _schema_first(self, text: str, topic_part: tuple[str, str]) -> Parsed | None:
        head = self._heads.get(topic_part)
        if head is None or not text.startswith(head[0]):
            head = _head_of(text)
            if head is None:
                return None
            _make_room(self._heads, (text for text, _ in self._heads.values()))
            self._heads[topic_part] = head
        payload, end = _DECODER.raw_decode(text, len(head[0]))
        return Parsed(payload, head[1]) if text[end:] == "}" else None

    def _payload_first(self, text: str) -> Parsed | None:
        payload, end = _DECODER.raw_decode(text, len(_PAYLOAD_FIRST))
        tail = text[end:]
        schema = self._tails.get(tail)
        if schema is None:
            schema = _schema_of_tail(tail)
            if schema is None:
                return None
            _make_room(self._tails, self._tails)
            self._tails[tail] = schema
        return Parsed(payload, schema)


def _head_of(text: str) -> tuple[str, ConnectSchema] | None:
    """Splits JSON in which the schema is the first member.

    Returns the text before the payload, and the Connect schema in this text. Returns None if the first member
    is not a schema that is followed by a payload.
    """
    schema, end = _DECODER.raw_decode(text, len(_SCHEMA_FIRST))
    if not isinstance(schema, dict) or not text.startswith(_THEN_PAYLOAD, end):
        return None
    return text[:end] + _THEN_PAYLOAD, connect_schema_of_json(schema)


def _schema_of_tail(tail: str) -> ConnectSchema | None:
    """Returns the Connect schema in the text after a payload; None if this text contains no schema."""
    if not tail.startswith(_THEN_SCHEMA):
        return None
    schema, end = _DECODER.raw_decode(tail, len(_THEN_SCHEMA))
    return connect_schema_of_json(schema) if isinstance(schema, dict) and tail[end:] == "}" else None


class Wrapping(NamedTuple):
    """The bytes around the payload in all records of one schema: ``head`` before it and ``tail`` after it."""

    head: bytes
    tail: bytes
    schema: ConnectSchema


def wrapping_of(data: bytes) -> Wrapping | None:
    """Returns the bytes around the payload of a JSON record; None if the record contains no schema.

    Also returns None if the JSON does not have the exact form that Kafka Connect or TiCDC writes.

    Raises:
        ValueError: the record is not UTF-8, or not JSON.
        RecursionError: the JSON is nested too deeply.
        DecodeError: Kafka Connect does not write such JSON, or no column can hold a number in it.
    """
    text = data.decode("utf-8")
    if text.startswith(_SCHEMA_FIRST):
        head = _head_of(text)
        return None if head is None else Wrapping(head[0].encode(), b"}", head[1])
    if not text.startswith(_PAYLOAD_FIRST) or _THEN_SCHEMA not in text:
        return None
    _, end = _DECODER.raw_decode(text, len(_PAYLOAD_FIRST))
    schema = _schema_of_tail(text[end:])
    return None if schema is None else Wrapping(_PAYLOAD_FIRST.encode(), text[end:].encode(), schema)


def _make_room(cache: dict[Any, Any], texts: Iterable[str]) -> None:
    if len(cache) >= _MOST_KNOWN or sum(map(len, texts)) > _MOST_ROOM:
        cache.clear()


def _unwrapped(value: Any) -> Parsed:
    """Splits parsed JSON into its payload and its schema.

    JSON that is not an object with the members ``payload`` and ``schema`` is a payload as a whole.
    """
    if not isinstance(value, dict) or "payload" not in value or not value.keys() <= _WRAPPING:
        return Parsed(value)
    payload, schema = value["payload"], value.get("schema")
    if not isinstance(payload, dict | None) or not isinstance(schema, dict | None):
        return Parsed(value)
    return Parsed(payload, None if schema is None else connect_schema_of_json(schema))


_ASKED: Final = "Is the topic's protocol debezium-json?"


def _no_text(data: bytes) -> str:
    what = f"starts with the bytes {data[:8].hex(' ')} and is not UTF-8 text."
    reason = not_json(data)
    return f"{what} {_ASKED}" if reason is None else f"{what} {reason}"


_SCHEMA_ERRORS: Final = (SchemaParseException, ValueError, TypeError, KeyError, RecursionError)
_KEPT: Final = ("type", "name", "namespace", "size", "symbols", "items", "values")


class Writer(NamedTuple):
    """The Avro schema with which a record was written.

    ``bare`` is the Avro schema reduced to the layout of the record's bytes. ``schema`` is the Connect schema,
    which determines what the values mean.
    """

    bare: Any
    schema: ConnectSchema


class AvroParser:
    """Parses the Avro keys and values of records, and caches the schemas from the schema registry."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._writers: dict[int, Writer] = {}

    def read(self, message: Message, part: str) -> Parsed | None:
        """Parses a message's ``key`` or ``value`` (``part``) from Avro; returns None if it is null.

        Raises:
            FramingError: the bytes do not start with a Confluent header.
            SchemaMismatchError: the bytes do not match the schema whose id is in the header.
            RegistryError: that schema is not available.
        """
        data = message.key if part == "key" else message.value
        if data is None:
            return None
        schema_id = schema_id_of(data, part)
        try:
            writer = self.writer(schema_id)
            return Parsed(_record(data, writer.bare, part), writer.schema, schema_id)
        except DecodeError as error:
            raise error.with_context(schema_id=schema_id) from error

    def writer(self, schema_id: int) -> Writer:
        """Returns the schema with this id in the schema registry.

        Raises:
            SchemaMismatchError: Kafka Connect does not write such a schema.
            RegistryError: the schema is not available.
        """
        return self._writers.get(schema_id) or self._learn(schema_id)

    def _learn(self, schema_id: int) -> Writer:
        text = self._registry.schema_by_id(schema_id)
        try:
            avro = json.loads(text)
            bare = bare_schema(avro)
        except _SCHEMA_ERRORS as error:
            raise SchemaMismatchError(f"The writer's schema is not valid Avro: {error!s:.200}.") from error
        writer = self._writers[schema_id] = Writer(bare, connect_schema_of_avro(avro))
        return writer


def bare_schema(avro: Any) -> Any:
    """Reduces an Avro schema to the layout of a record's bytes, and returns it in fastavro's parsed form.

    Raises:
        SchemaMismatchError: the schema is nested too deeply, or values of one of its parts are stored in no
            bytes at all.
    """
    return fastavro.parse_schema(_bare(avro, 0))


def _bare(avro: Any, level: int) -> Any:
    if level > MOST_LEVELS:
        raise SchemaMismatchError(f"The schema is nested deeper than {MOST_LEVELS} levels.")
    if isinstance(avro, list):
        return [_bare(branch, level + 1) for branch in avro]
    if not isinstance(avro, Mapping):
        return avro
    if isinstance(avro.get("type"), list | Mapping):
        return _bare(avro["type"], level + 1)
    bare = {name: avro[name] for name in _KEPT if name in avro}
    for inner in ("items", "values"):
        if inner in bare:
            bare[inner] = _costing(_bare(bare[inner], level + 1))
    if isinstance(avro.get("fields"), list):
        bare["fields"] = [_bare_field(field, level) for field in avro["fields"]]
    return _costing(bare) if level else bare


def _bare_field(field: Any, level: int) -> dict[str, Any]:
    if not isinstance(field, Mapping) or "name" not in field or "type" not in field:
        raise SchemaMismatchError(f"{shown(field)} is not a field of an Avro record.")
    return {"name": field["name"], "type": _costing(_bare(field["type"], level + 1))}


def _costing(inner: Any) -> Any:
    """Checks that each value of a part of an Avro schema needs at least one byte, and returns the part.

    Without this check, five bytes could declare an array of billions of empty values, and nested empty
    records would double at each level. The top-level schema is not checked, because a key may be empty.

    Raises:
        SchemaMismatchError: values of this part are stored in no bytes.
    """
    kind, shape = (inner.get("type"), inner) if isinstance(inner, dict) else (inner, {})
    size = shape.get("size", 0)
    is_empty_fixed = kind == "fixed" and not (isinstance(size, int) and size > 0)
    if kind == "null" or shape.get("fields") == [] or is_empty_fixed:
        raise SchemaMismatchError(
            "A part of the Avro schema is stored in no bytes at all (null, an empty record or an "
            "empty fixed), so it cannot be a column."
        )
    return inner


def _record(data: bytes, bare: Any, part: str) -> Any:
    stream = BytesIO(data)
    stream.seek(HEADER_SIZE)
    try:
        record: Any = fastavro.schemaless_reader(stream, bare, None)
    except DAMAGED as error:
        raise SchemaMismatchError(
            f"The {part} of {len(data)} bytes is not a record of its schema ({type(error).__name__}). "
            "It is cut short, or was written with a different schema than its id names. Check that the "
            "producer and tidesink use the same schema registry."
        ) from error
    if stream.tell() != len(data):
        raise SchemaMismatchError(
            f"The {part} has {len(data) - stream.tell()} more bytes after its record. It was written with "
            "a different schema than its id names. Check that the producer and tidesink use the same "
            "schema registry."
        )
    return record


class Parsed(NamedTuple):
    """A parsed key or value of a record: its payload, and the schema with which it was written.

    ``payload`` holds the values as the format stores them: JSON's numbers with a fraction as ``Decimal``, so
    that no digit is lost; Avro's bytes unchanged, whatever their logical type is. ``schema`` is None if JSON
    contains no schema. ``schema_id`` is the schema's id in the registry, None for JSON.
    """

    payload: Any
    schema: ConnectSchema | None = None
    schema_id: int | None = None


class Parser(Protocol):
    """Parses the keys and values of records, from JSON or from Avro."""

    def read(self, message: Message, part: str) -> Parsed | None:
        """Parses a message's ``key`` or ``value`` (``part``); returns None if it is null.

        Raises:
            DecodeError: the topic's protocol does not write such bytes.
            RegistryError: the writer's schema is not available.
        """
