"""JSON as Kafka Connect's JsonConverter writes it, with the schema beside the payload or without.

Sources: Kafka Connect 4.3 (``schemas.enable``), whose schema comes first; TiCDC new architecture
(b813e76), whose payload comes first and which wraps it also where it sends no schema
(``debezium-disable-schema``).

A schema is longer than its payload and the same in each record of a table, so it is read once and known
again by its text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn

from tidesink.codecs.connect_schema import ConnectSchema
from tidesink.codecs.connect_schema_json import connect_schema_of_json
from tidesink.codecs.debezium_parsed import Parsed
from tidesink.errors import FramingError, SchemaMismatchError, ValueOutOfRangeError, shown
from tidesink.events import Message

_SCHEMA_FIRST: Final = '{"schema":'
_THEN_PAYLOAD: Final = ',"payload":'
_PAYLOAD_FIRST: Final = '{"payload":'
_THEN_SCHEMA: Final = ',"schema":'
_WRAPPING: Final = frozenset({"schema", "payload"})
_MOST_KNOWN: Final = 4096
# Characters of schemas that are kept: a schema of ten columns has four thousand.
_MOST_ROOM: Final = 1 << 26
# Postgres' numeric has up to 131072 digits before the point and 16383 after it; nothing has more.
_MOST_DIGITS: Final = 150_000


def json_number(text: str) -> Decimal:
    """A number with a fraction or an exponent, with all its digits.

    Raises:
        ValueOutOfRangeError: it is none that a column can hold.
    """
    try:
        number = Decimal(text)
    except ArithmeticError:  # an exponent beyond what Decimal has
        number = None
    # Written out, 1e999999999 would take a gigabyte.
    if number is None or abs(number.adjusted()) > _MOST_DIGITS or len(text) > _MOST_DIGITS:
        raise ValueOutOfRangeError(f"the number {shown(text, 40)} is none a column can hold")
    return number


def _no_number(text: str) -> NoReturn:
    raise SchemaMismatchError(f"{text} is no JSON: Kafka Connect writes it in quotes")


_DECODER: Final = json.JSONDecoder(parse_float=json_number, parse_constant=_no_number)


class JsonParser:
    """Reads the JSON halves of records; keeps the schemas it has met."""

    def __init__(self) -> None:
        # By topic and part the text of the last schema; by text alone what was read from it.
        self._heads: dict[tuple[str, str], tuple[str, ConnectSchema]] = {}
        self._tails: dict[str, ConnectSchema] = {}

    def read(self, message: Message, part: str) -> Parsed | None:
        """A message's ``key`` or ``value`` out of its JSON.

        Raises:
            FramingError: no UTF-8, or no JSON.
            SchemaMismatchError: JSON that Kafka Connect does not write, or nested too deep.
            ValueOutOfRangeError: a number no column can hold.
        """
        data = message.key if part == "key" else message.value
        if data is None:
            return None
        try:
            return self._parsed(data.decode("utf-8"), (message.topic, part))
        except UnicodeDecodeError as error:
            raise FramingError(f"the {part} {_no_text(data)}") from error
        except RecursionError as error:
            raise SchemaMismatchError(f"the {part} is nested too deep to be a row's") from error
        except ValueError as error:  # JSONDecodeError, and integers of thousands of digits
            raise FramingError(
                f"the {part} is no JSON: {error!s:.120}; is the topic's protocol debezium-json?"
            ) from error

    def _parsed(self, text: str, place: tuple[str, str]) -> Parsed:
        return self._usual(text, place) or _unwrapped(_DECODER.decode(text))

    def _usual(self, text: str, place: tuple[str, str]) -> Parsed | None:
        """One of the two producers' own forms, without any white space; None for every other."""
        try:
            if text.startswith(_SCHEMA_FIRST):
                return self._schema_first(text, place)
            return self._payload_first(text) if text.startswith(_PAYLOAD_FIRST) else None
        except json.JSONDecodeError:
            return None

    def _schema_first(self, text: str, place: tuple[str, str]) -> Parsed | None:
        known = self._heads.get(place)
        if known is None or not text.startswith(known[0]):
            known = _head_of(text)
            if known is None:
                return None
            _make_room(self._heads, (text for text, _ in self._heads.values()))
            self._heads[place] = known
        payload, end = _DECODER.raw_decode(text, len(known[0]))
        return Parsed(payload, known[1]) if text[end:] == "}" else None

    def _payload_first(self, text: str) -> Parsed | None:
        payload, end = _DECODER.raw_decode(text, len(_PAYLOAD_FIRST))
        tail = text[end:]
        known = self._tails.get(tail)
        if known is None:
            known = _schema_of_tail(tail)
            if known is None:
                return None
            _make_room(self._tails, self._tails)
            self._tails[tail] = known
        return Parsed(payload, known)


def _head_of(text: str) -> tuple[str, ConnectSchema] | None:
    """What stands before a payload that comes after its schema, and that schema."""
    schema, end = _DECODER.raw_decode(text, len(_SCHEMA_FIRST))
    if not isinstance(schema, dict) or not text.startswith(_THEN_PAYLOAD, end):
        return None
    return text[:end] + _THEN_PAYLOAD, connect_schema_of_json(schema)


def _schema_of_tail(tail: str) -> ConnectSchema | None:
    """The schema in what stands behind a payload."""
    if not tail.startswith(_THEN_SCHEMA):
        return None
    schema, end = _DECODER.raw_decode(tail, len(_THEN_SCHEMA))
    return connect_schema_of_json(schema) if isinstance(schema, dict) and tail[end:] == "}" else None


class Wrapping(NamedTuple):
    """What stands around the payloads of one schema: ``head`` before them and ``tail`` behind."""

    head: bytes
    tail: bytes
    schema: ConnectSchema


def wrapping_of(data: bytes) -> Wrapping | None:
    """What stands around the payload of one of the two producers' own forms; None for every other.

    Raises:
        ValueError: no UTF-8, or no JSON.
        RecursionError: nested too deep.
        DecodeError: JSON that Kafka Connect does not write, or a number no column can hold.
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


def _make_room(known: dict[Any, Any], texts: Iterable[str]) -> None:
    if len(known) >= _MOST_KNOWN or sum(map(len, texts)) > _MOST_ROOM:
        known.clear()


def _unwrapped(found: Any) -> Parsed:
    """A JSON value that is none of the two usual forms: perhaps wrapped, perhaps plain."""
    if not isinstance(found, dict) or "payload" not in found or not found.keys() <= _WRAPPING:
        return Parsed(found)
    payload, schema = found["payload"], found.get("schema")
    if not isinstance(payload, dict | None) or not isinstance(schema, dict | None):
        return Parsed(found)
    return Parsed(payload, None if schema is None else connect_schema_of_json(schema))


def _no_text(data: bytes) -> str:
    what = f"starts with {data[:8].hex(' ')} and is no UTF-8 text"
    if data[:1] == b"\0":
        return what + ", but looks like a Confluent header: is the protocol debezium-avro?"
    return what + ": is the topic's protocol debezium-json?"
