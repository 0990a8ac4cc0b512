"""The ``schema`` member of Kafka Connect's JSON (JsonConverter with ``schemas.enable``, Connect 4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tidesink.codecs.connect_schema import (
    MOST_LEVELS,
    SOURCE_NAME,
    TIDB_TYPE,
    ConnectField,
    ConnectSchema,
    connect_type,
    text_parameters,
    whole_version,
)
from tidesink.errors import SchemaMismatchError, shown


def connect_schema_of_json(schema: Mapping[str, Any]) -> ConnectSchema:
    """The schema a JSON record says its payload has.

    Raises:
        SchemaMismatchError: this is no schema of Kafka Connect.
    """
    return _read(schema, 0)


def _read(schema: object, level: int) -> ConnectSchema:
    if not isinstance(schema, Mapping):
        raise SchemaMismatchError(f"{shown(schema)} is no schema of Kafka Connect: an object was expected")
    if level > MOST_LEVELS:
        raise SchemaMismatchError(f"the schema is nested deeper than {MOST_LEVELS} levels")
    kind = connect_type(schema.get("type"))
    name = schema.get("name")
    return ConnectSchema(
        kind,
        name if isinstance(name, str) else None,
        whole_version(schema.get("version")),
        _parameters(schema),
        schema.get("optional") is True,
        schema.get("default"),
        _fields(schema.get("fields"), level) if kind == "struct" else (),
        _read(schema.get("items"), level + 1) if kind == "array" else None,
        _read(schema.get("keys"), level + 1) if kind == "map" else None,
        _read(schema.get("values"), level + 1) if kind == "map" else None,
    )


def _parameters(schema: Mapping[str, Any]) -> Mapping[str, str]:
    found = text_parameters(schema.get("parameters"))
    # TiCDC (b813e76) with enable-tidb-extension writes it beside a field's type.
    tidb_type = schema.get(TIDB_TYPE)
    return MappingProxyType({**found, TIDB_TYPE: tidb_type}) if isinstance(tidb_type, str) else found


def _fields(found: object, level: int) -> tuple[ConnectField, ...]:
    if not isinstance(found, list):
        raise SchemaMismatchError(f"the fields of a struct are {shown(found)}: an array was expected")
    return tuple(_field(one, level) for one in found)


def _field(found: object, level: int) -> ConnectField:
    wire = found.get("field") if isinstance(found, Mapping) else None
    if not isinstance(wire, str):
        raise SchemaMismatchError(f"{shown(found)} is no field of a struct: it has no name in 'field'")
    schema = _read(found, level + 1)
    return ConnectField(schema.parameters.get(SOURCE_NAME, wire), schema, wire)
