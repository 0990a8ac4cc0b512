"""Kafka Connect's schemas, as Avro and JSON carry them: what a Debezium record says about its fields.

Connect has eight primitive types, arrays, maps and structs; what a value means beyond its type (a date,
a decimal, the label of an ENUM) is in the schema's name and parameters (Kafka Connect 4.3
``ConnectSchema``, ``SchemaBuilder``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, cast, get_args

from tidesink.errors import SchemaMismatchError, shown

ConnectType = Literal[
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "boolean",
    "string",
    "bytes",
    "array",
    "map",
    "struct",
]

NO_PARAMETERS: Final[Mapping[str, str]] = MappingProxyType({})
# A schema nested deeper than this is no table's: Debezium's own have five levels.
MOST_LEVELS: Final = 32
# What Debezium adds with column.propagate.source.type, and TiCDC (b813e76) with its extension.
SOURCE_TYPE: Final = "__debezium.source.column.type"
SOURCE_LENGTH: Final = "__debezium.source.column.length"
SOURCE_SCALE: Final = "__debezium.source.column.scale"
SOURCE_NAME: Final = "__debezium.source.column.name"
TIDB_TYPE: Final = "tidb_type"
# What AvroData and Debezium call a decimal's precision, which Connect itself has not.
PRECISION: Final = "connect.decimal.precision"


@dataclass(frozen=True)
class ConnectSchema:
    """One schema: of a whole key or value, of a field, or of what is inside an array or a map.

    ``name`` and ``version`` are the semantic type's (``io.debezium.time.Date``), of a struct its own.
    ``parameters`` holds what the type needs besides (``scale``, ``length``, ``allowed``) and what the
    source said. ``default`` is as the wire has it, Avro's bytes as bytes. ``fields`` are a struct's,
    ``items`` an array's, ``keys`` and ``values`` a map's.
    """

    type: ConnectType
    name: str | None
    version: int | None
    parameters: Mapping[str, str]
    optional: bool
    default: object
    fields: tuple[ConnectField, ...] = ()
    items: ConnectSchema | None = None
    keys: ConnectSchema | None = None
    values: ConnectSchema | None = None

    def field(self, name: str) -> ConnectSchema | None:
        """The schema of a struct's field, or None where it has none of that name."""
        return next((field.schema for field in self.fields if field.name == name), None)


class ConnectField(NamedTuple):
    """A struct's field.

    ``name`` is the column's own name where the schema tells it (``connect.field`` of TiCDC b813e76,
    ``__debezium.source.column.name`` of Debezium), else the field's. ``wire`` is the field's name in
    the record, where values are found.
    """

    name: str
    schema: ConnectSchema
    wire: str


_TYPES: Final = frozenset(get_args(ConnectType))
# Kafka Connect's JsonConverter shortens the two names of floats.
_SPELT: Final = {"float": "float32", "double": "float64"}


def connect_type(word: object) -> ConnectType:
    """The type a schema names.

    Raises:
        SchemaMismatchError: Kafka Connect has no such type.
    """
    name = _SPELT.get(word, word) if isinstance(word, str) else None
    if name not in _TYPES:
        raise SchemaMismatchError(f"{shown(word)} is no type of Kafka Connect: is this a Connect schema?")
    return cast(ConnectType, name)


def text_parameters(found: object) -> Mapping[str, str]:
    """A schema's parameters, all of them text.

    Raises:
        SchemaMismatchError: they are no JSON object.
    """
    if found is None:
        return NO_PARAMETERS
    if not isinstance(found, Mapping):
        raise SchemaMismatchError(f"the parameters {shown(found)} of a Connect schema are no JSON object")
    return MappingProxyType({str(key): str(value) for key, value in found.items()})


def whole_version(found: object) -> int | None:
    """A schema's version, None where it has none or where it is no whole number."""
    return found if isinstance(found, int) and not isinstance(found, bool) else None
