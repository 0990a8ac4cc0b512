"""Avro records as TiCDC's ``debezium-avro`` (new architecture, b813e76) names, registers and writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import fastavro

from tidesink.codecs.debezium_avro import bare_schema
from tidesink.codecs.debezium_encode_values import Members
from tidesink.codecs.wire import header
from tidesink.errors import EncodeError
from tidesink.schema_registry.base import SchemaRegistry
from tidesink.schema_registry.naming import sanitize_name

_NO_RECORD: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


@dataclass(frozen=True)
class AvroPart:
    """A registered schema, and what fastavro writes with it."""

    head: bytes
    bare: Any

    def written(self, record: Members) -> bytes:
        """A record's bytes behind its header.

        Raises:
            EncodeError: it is no record of the schema.
        """
        stream = BytesIO()
        try:
            fastavro.schemaless_writer(stream, self.bare, record)
        except _NO_RECORD as error:
            raise EncodeError(f"this is no record of its schema: {error!s:.200}") from error
        return self.head + stream.getvalue()


def registered(registry: SchemaRegistry, subject: str, record: Members) -> AvroPart:
    """A record's schema, registered; raises RegistryError where that cannot be done."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return AvroPart(header(registry.register(subject, text)), bare_schema(record))


def plain_avro(name: str, kind: Any) -> Members:
    """A field that is never null."""
    return {"connect.field": name, "name": sanitize_name(name), "type": kind}


def optional_avro(name: str, kind: Any) -> Members:
    """A field that may be null."""
    return {"connect.field": name, "default": None, "name": sanitize_name(name), "type": ["null", kind]}


def named_record(namespace: str, name: str, fields: list[Members], *, version: int | None = None) -> Members:
    """A record's schema; ``version`` is Connect's, where it has one."""
    kind: Members = {"name": name, "namespace": namespace, "type": "record"}
    if version is not None:
        kind["connect.version"] = version
    return {"connect.name": f"{namespace}.{name}", "fields": fields, **kind}


def source_record(namespace: str) -> Members:
    """The schema of ``source``."""
    long, text = "long", "string"
    fields = [
        *(plain_avro(name, text) for name in ("version", "connector", "name")),
        plain_avro("ts_ms", long),
        optional_avro("snapshot", text),
        *(plain_avro(name, text) for name in ("db", "table")),
        plain_avro("server_id", long),
        optional_avro("gtid", text),
        plain_avro("file", text),
        plain_avro("pos", long),
        plain_avro("row", "int"),
        optional_avro("thread", long),
        optional_avro("query", text),
        plain_avro("commit_ts", long),
        plain_avro("cluster_id", text),
    ]
    return named_record(namespace, "Source", fields)


_PRIMITIVES: Final = {"int32": "int", "int64": "long"}


def avro_of_connect(schema: Members) -> Any:
    """A Connect schema in Avro, without its own union with null."""
    return _SHAPES.get(schema["type"], _primitive)(schema)


def _primitive(schema: Members) -> Any:
    return _PRIMITIVES.get(schema["type"], schema["type"])


def _array(schema: Members) -> Any:
    return {"items": avro_of_connect(schema["items"]), "type": "array"}


def _struct(schema: Members) -> Any:
    namespace, _, name = schema["name"].rpartition(".")
    fields = [avro_field(field) for field in schema["fields"]]
    return named_record(namespace, name, fields, version=schema.get("version"))


_SHAPES: Final[Mapping[str, Callable[[Members], Any]]] = {"array": _array, "struct": _struct}


def avro_field(field: Members) -> Members:
    """A Connect field in Avro."""
    made = optional_avro if field["optional"] else plain_avro
    return made(field["field"], avro_of_connect(field))
