"""Kafka Connect's schemas out of Avro schemas, by the conventions of Confluent's ``AvroData``.

Apicurio's converter with ``as-confluent`` keeps them (2.6.13). TiCDC's ``debezium-avro`` (b813e76) keeps
them too and adds ``connect.field``, the column's own name, and ``tidb_type`` to its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from tidesink.codecs.connect_schema import (
    MOST_LEVELS,
    NO_PARAMETERS,
    PRECISION,
    SOURCE_NAME,
    TIDB_TYPE,
    ConnectField,
    ConnectSchema,
    ConnectType,
    connect_type,
    text_parameters,
    whole_version,
)
from tidesink.errors import SchemaMismatchError, shown

_PRIMITIVES: Final[dict[str, ConnectType]] = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "bytes",
    "string": "string",
    "fixed": "bytes",
    "enum": "string",
}
_COMPLEX: Final = frozenset({"record", "error", "array", "map"})
# What AvroData reads from a logical type where no connect.name says it (kafka-connect-avro-data 7).
_LOGICAL: Final = {
    ("bytes", "decimal"): "org.apache.kafka.connect.data.Decimal",
    ("fixed", "decimal"): "org.apache.kafka.connect.data.Decimal",
    ("int", "date"): "org.apache.kafka.connect.data.Date",
    ("int", "time-millis"): "org.apache.kafka.connect.data.Time",
    ("long", "timestamp-millis"): "org.apache.kafka.connect.data.Timestamp",
    ("string", "uuid"): "io.debezium.data.Uuid",
}
_MAP_ENTRY: Final = "MapEntry"
_STRING: Final = ConnectSchema("string", None, None, NO_PARAMETERS, False, None)


def connect_schema_of_avro(parsed_avro: object) -> ConnectSchema:
    """The Connect schema behind an Avro schema: parsed JSON, or what fastavro made of it.

    Raises:
        SchemaMismatchError: this is no Avro schema, or one that Kafka Connect cannot have written.
    """
    return _Reader().read(parsed_avro, "", 0)


@dataclass
class _Reader:
    """Reads one schema; ``named`` are the named types met so far, None while one is being read."""

    named: dict[str, ConnectSchema | None] = field(default_factory=dict)

    def read(self, avro: object, namespace: str, level: int) -> ConnectSchema:
        if level > MOST_LEVELS:
            raise SchemaMismatchError(f"the schema is nested deeper than {MOST_LEVELS} levels")
        if isinstance(avro, list):
            return self._union(avro, namespace, level)
        if isinstance(avro, str):
            return self._word(avro, namespace)
        if not isinstance(avro, Mapping):
            raise SchemaMismatchError(f"{shown(avro)} is no Avro schema")
        kind = avro.get("type")
        if isinstance(kind, (list, Mapping)):
            return self.read(kind, namespace, level + 1)
        return self._object(avro, str(kind), namespace, level)

    def _union(self, branches: list[Any], namespace: str, level: int) -> ConnectSchema:
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1:
            raise SchemaMismatchError(
                f"the union {shown(branches)} has {len(others)} types besides null: "
                "only null and one type are read"
            )
        return replace(self.read(others[0], namespace, level + 1), optional=len(branches) > 1)

    def _word(self, word: str, namespace: str) -> ConnectSchema:
        if word in _PRIMITIVES:
            return ConnectSchema(_PRIMITIVES[word], None, None, NO_PARAMETERS, False, None)
        for name in (word if "." in word else _full(word, namespace), word):
            if name in self.named:
                found = self.named[name]
                if found is None:
                    raise SchemaMismatchError(f"the Avro type {name} holds itself: no table's row does")
                return found
        raise SchemaMismatchError(f"the Avro schema names {word!r} and does not say what it is")

    def _object(self, avro: Mapping[str, Any], kind: str, namespace: str, level: int) -> ConnectSchema:
        if kind not in _PRIMITIVES and kind not in _COMPLEX:
            return self._word(kind, namespace)
        named = _named(avro, namespace) if isinstance(avro.get("name"), str) else None
        if named:
            self.named[named] = None
        inner = named.rpartition(".")[0] if named else namespace
        schema = self._base(avro, kind, inner, level)
        if named:
            self.named[named] = schema
        return schema

    def _base(self, avro: Mapping[str, Any], kind: str, namespace: str, level: int) -> ConnectSchema:
        if kind == "array":
            return self._array(avro, namespace, level)
        schema = ConnectSchema(
            _kind(avro, kind),
            _semantic_name(avro, kind, namespace),
            whole_version(avro.get("connect.version")),
            _parameters(avro),
            False,
            _default(avro.get("connect.default"), kind),
        )
        if kind == "map":
            return replace(schema, keys=_STRING, values=self.read(avro.get("values"), namespace, level + 1))
        if kind in ("record", "error"):
            return replace(schema, fields=self._fields(avro, namespace, level))
        return schema

    def _array(self, avro: Mapping[str, Any], namespace: str, level: int) -> ConnectSchema:
        items = self.read(avro.get("items"), namespace, level + 1)
        name, version = avro.get("connect.name"), whole_version(avro.get("connect.version"))
        schema = ConnectSchema("array", name, version, _parameters(avro), False, avro.get("connect.default"))
        if _is_entry(avro, items):
            return replace(schema, type="map", keys=items.field("key"), values=items.field("value"))
        return replace(schema, items=items)

    def _fields(self, avro: Mapping[str, Any], namespace: str, level: int) -> tuple[ConnectField, ...]:
        fields = avro.get("fields")
        if not isinstance(fields, list) or not all(isinstance(one, Mapping) for one in fields):
            raise SchemaMismatchError(f"the fields of an Avro record are {shown(fields)}")
        return tuple(self._field(one, namespace, level) for one in fields)

    def _field(self, one: Mapping[str, Any], namespace: str, level: int) -> ConnectField:
        wire = one.get("name")
        if not isinstance(wire, str):
            raise SchemaMismatchError(f"{shown(one)} is no field of an Avro record: it has no name")
        schema = self.read(one.get("type"), namespace, level + 1)
        if isinstance(tidb_type := one.get(TIDB_TYPE), str):
            with_type = MappingProxyType({**schema.parameters, TIDB_TYPE: tidb_type})
            schema = replace(schema, parameters=with_type)
        own = one.get("connect.field", schema.parameters.get(SOURCE_NAME, wire))
        return ConnectField(str(own), schema, wire)


def _full(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def _named(avro: Mapping[str, Any], namespace: str) -> str:
    name = avro.get("name")
    if not isinstance(name, str):
        raise SchemaMismatchError(f"an Avro {shown(avro.get('type'), 40)} has no name")
    return name if "." in name else _full(name, str(avro.get("namespace", namespace)))


def _kind(avro: Mapping[str, Any], kind: str) -> ConnectType:
    if kind == "map":
        return "map"
    if kind in ("record", "error"):
        return "struct"
    # connect.type: Avro has no integers of 8 and 16 bits.
    return connect_type(avro.get("connect.type", _PRIMITIVES[kind]))


def _semantic_name(avro: Mapping[str, Any], kind: str, namespace: str) -> str | None:
    name = avro.get("connect.name")
    if isinstance(name, str):
        return name
    if kind in ("record", "error"):
        return _named(avro, namespace)
    return _LOGICAL.get((kind, str(avro.get("logicalType"))))


def _parameters(avro: Mapping[str, Any]) -> Mapping[str, str]:
    found = dict(text_parameters(avro.get("connect.parameters")))
    if avro.get("logicalType") == "decimal":
        found.setdefault("scale", str(avro.get("scale", 0)))
        # AvroData writes precision 64 where Connect knows none (a Postgres money).
        if "precision" in found:
            found.setdefault(PRECISION, found["precision"])
        elif "connect.name" not in avro and "precision" in avro:
            found.setdefault(PRECISION, str(avro["precision"]))
    return MappingProxyType(found) if found else NO_PARAMETERS


def _default(found: object, kind: str) -> object:
    # Avro writes the bytes of a default as text of U+0000 to U+00FF.
    if kind in ("bytes", "fixed") and isinstance(found, str):
        try:
            return found.encode("latin-1")
        except UnicodeEncodeError as error:
            raise SchemaMismatchError(f"the default {shown(found)} is no Avro bytes") from error
    return found


def _is_entry(avro: Mapping[str, Any], items: ConnectSchema) -> bool:
    """Whether an array stands for a map, as AvroData writes maps whose keys are not plain text."""
    if items.type != "struct" or tuple(field.name for field in items.fields) != ("key", "value"):
        return False
    marked = avro.get("items")
    kind = marked.get("connect.internal.type") if isinstance(marked, Mapping) else None
    return kind == _MAP_ENTRY or (items.name or "").rpartition(".")[2] == _MAP_ENTRY
