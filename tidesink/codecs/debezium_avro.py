"""Avro as Confluent's and Apicurio's converters write it, and TiCDC's ``debezium-avro`` (b813e76).

Bytes: a Confluent header, then the record of the writer's schema. fastavro is given that schema without
logical types, defaults and what Connect added: what a value means is for the Connect schema to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final, NamedTuple

import fastavro
from fastavro.schema import SchemaParseException

from tidesink.codecs.connect_schema import MOST_LEVELS, ConnectSchema
from tidesink.codecs.connect_schema_avro import connect_schema_of_avro
from tidesink.codecs.debezium_parsed import Parsed
from tidesink.codecs.wire import HEADER_SIZE, schema_id_of
from tidesink.errors import DecodeError, SchemaMismatchError, shown
from tidesink.events import Message
from tidesink.schema_registry.base import SchemaRegistry

# What fastavro raises for bytes that end early or are no value of their type.
_PAYLOAD_ERRORS: Final = (
    EOFError,
    IndexError,
    KeyError,
    ValueError,
    OverflowError,
    TypeError,
    MemoryError,
    RecursionError,
)
_SCHEMA_ERRORS: Final = (SchemaParseException, ValueError, TypeError, KeyError, RecursionError)
_KEPT: Final = ("type", "name", "namespace", "size", "symbols", "items", "values")


class Writer(NamedTuple):
    """A writer's schema: ``bare`` with only what tells how its bytes are laid out, and what it means."""

    bare: Any
    schema: ConnectSchema


class AvroParser:
    """Reads the Avro halves of records; keeps the schemas it has asked the registry for."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._writers: dict[int, Writer] = {}

    def read(self, message: Message, part: str) -> Parsed | None:
        """A message's ``key`` or ``value`` out of its Avro.

        Raises:
            FramingError: the bytes do not start with a Confluent header.
            SchemaMismatchError: the bytes are no record of the schema they name.
            RegistryError: that schema cannot be had.
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
        """The schema of an id.

        Raises:
            SchemaMismatchError: it is none that Kafka Connect writes.
            RegistryError: it cannot be had.
        """
        return self._writers.get(schema_id) or self._learn(schema_id)

    def _learn(self, schema_id: int) -> Writer:
        text = self._registry.schema_by_id(schema_id)
        try:
            avro = json.loads(text)
            bare = bare_schema(avro)
        except _SCHEMA_ERRORS as error:
            raise SchemaMismatchError(f"the writer's schema is no Avro: {error!s:.200}") from error
        writer = self._writers[schema_id] = Writer(bare, connect_schema_of_avro(avro))
        return writer


def bare_schema(avro: Any) -> Any:
    """What fastavro reads and writes by: the schema with only what tells how its bytes are laid out.

    Raises:
        SchemaMismatchError: it is nested too deep, or has a part that takes no bytes.
    """
    return fastavro.parse_schema(_bare(avro, 0))


def _bare(avro: Any, level: int) -> Any:
    """An Avro schema with only what tells how its bytes are laid out."""
    if level > MOST_LEVELS:
        raise SchemaMismatchError(f"the schema is nested deeper than {MOST_LEVELS} levels")
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
        raise SchemaMismatchError(f"{shown(field)} is no field of an Avro record")
    return {"name": field["name"], "type": _costing(_bare(field["type"], level + 1))}


def _costing(inner: Any) -> Any:
    """A part of a schema, refused where it takes no bytes.

    Five bytes would claim an array of billions, and records of records of nothing double at each level.
    Only a table's whole key is ever empty.
    """
    kind, shape = (inner.get("type"), inner) if isinstance(inner, dict) else (inner, {})
    size = shape.get("size", 0)
    is_empty_fixed = kind == "fixed" and not (isinstance(size, int) and size > 0)
    if kind == "null" or shape.get("fields") == [] or is_empty_fixed:
        raise SchemaMismatchError("the schema has a part that takes no bytes: no column is one")
    return inner


def _record(data: bytes, bare: Any, part: str) -> Any:
    stream = BytesIO(data)
    stream.seek(HEADER_SIZE)
    try:
        found: Any = fastavro.schemaless_reader(stream, bare, None)
    except _PAYLOAD_ERRORS as error:
        raise SchemaMismatchError(
            f"the {part} of {len(data)} bytes is no record of its schema ({type(error).__name__}): it is cut "
            "short, or was written with another schema than its id says"
        ) from error
    if stream.tell() != len(data):
        raise SchemaMismatchError(
            f"the {part} goes on for {len(data) - stream.tell()} bytes after its record ends: "
            "it was written with another schema than its id says"
        )
    return found
