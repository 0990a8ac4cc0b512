"""Reads Kafka Connect's schemas, which describe the fields of a Debezium record, from Avro and from JSON.

Connect has primitive types, arrays, maps and structs. A schema's name and parameters show what else a value
means: a date, a decimal, the label of an ENUM (Kafka Connect 4.3 ``ConnectSchema``, ``SchemaBuilder``).

Avro schemas follow the conventions of Confluent's ``AvroData``. Apicurio's converter with ``as-confluent``
follows them (2.6.13). TiCDC's ``debezium-avro`` (b813e76) does too, and adds ``connect.field``, the column's
own name, and ``tidb_type`` to its fields. JSON schemas are the ``schema`` member of JsonConverter's messages
(``schemas.enable``, Connect 4.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast, get_args

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
# The deepest supported nesting: Debezium's own schemas have five levels.
MOST_LEVELS: Final = 32
# Parameters that Debezium adds with column.propagate.source.type, and TiCDC (b813e76) with its extension.
SOURCE_TYPE: Final = "__debezium.source.column.type"
SOURCE_LENGTH: Final = "__debezium.source.column.length"
SOURCE_SCALE: Final = "__debezium.source.column.scale"
SOURCE_NAME: Final = "__debezium.source.column.name"
TIDB_TYPE: Final = "tidb_type"
# The name that AvroData and Debezium use for a decimal's precision, which Connect itself does not have.
PRECISION: Final = "connect.decimal.precision"


@dataclass(frozen=True)
class ConnectSchema:
    """The schema of a whole key or value, of a field, or of the items of an array or a map.

    ``name`` is the semantic type's name (``io.debezium.time.Date``), or a struct's own name. ``parameters``
    has further attributes of the type (``scale``, ``length``, ``allowed``) and the source's own column type.
    ``default`` is the default value as the schema contains it (in Avro, a bytes default is converted to
    bytes). ``fields`` are a struct's fields, ``items`` is the schema of an array's items, ``keys`` and
    ``values`` are the schemas of a map's keys and values.

    ``zero_defaults``: True for the rows of a Postgres table. If the database computes the default of a NOT
    NULL column (nextval, gen_random_uuid), the schema's default is the type's zero instead (Debezium 3.5).
    """

    type: ConnectType
    name: str | None = None
    parameters: Mapping[str, str] = field(default_factory=lambda: NO_PARAMETERS)
    optional: bool = False
    default: object = None
    fields: tuple[ConnectField, ...] = ()
    items: ConnectSchema | None = None
    keys: ConnectSchema | None = None
    values: ConnectSchema | None = None
    zero_defaults: bool = False

    def __post_init__(self) -> None:
        """Sets ``zero_defaults`` in the row schemas of an envelope whose source block is Postgres'."""
        source = self.field("source") if self.type == "struct" else None
        if source is not None and source.name == _POSTGRES_SOURCE:
            object.__setattr__(self, "fields", tuple(map(_row_of_postgres, self.fields)))

    def field(self, name: str) -> ConnectSchema | None:
        """Returns the schema of a struct's field with this name, or None if the struct has no such field."""
        return next((field.schema for field in self.fields if field.name == name), None)


class ConnectField(NamedTuple):
    """A field of a struct.

    ``wire`` is the field's name in the record. ``name`` is the column's own name if the schema contains it
    (``connect.field`` of TiCDC b813e76, ``__debezium.source.column.name`` of Debezium), otherwise the same as
    ``wire``.
    """

    name: str
    schema: ConnectSchema
    wire: str


def _with_unique_names(fields: Iterable[ConnectField]) -> tuple[ConnectField, ...]:
    """Returns the fields as a tuple, and raises if two of them have the same name.

    TiCDC writes ``_`` for characters that Avro does not allow in names. So the columns ``a-b`` and ``a_b``
    have the same field name, and their values could not be distinguished.

    Raises:
        SchemaMismatchError: two fields have the same name; the message names the field and both columns.
    """
    members = tuple(fields)
    for names in ([member.wire for member in members], [member.name for member in members]):
        seen: dict[str, ConnectField] = {}
        for name, member in zip(names, members, strict=True):
            other = seen.setdefault(name, member)
            if other is not member:
                columns = (
                    "" if other.name == member.name else f", for the columns {other.name} and {member.name}"
                )
                raise SchemaMismatchError(
                    f"The writer's schema contains the field {shown(name)} twice{columns}. Rename one of "
                    "them at the source."
                )
    return members


_POSTGRES_SOURCE: Final = "io.debezium.connector.postgresql.Source"


def _row_of_postgres(field: ConnectField) -> ConnectField:
    if field.name not in ("before", "after") or field.schema.type != "struct":
        return field
    return field._replace(schema=replace(field.schema, zero_defaults=True))


_TYPES: Final = frozenset(get_args(ConnectType))
# Kafka Connect's JsonConverter shortens the names of the two float types.
_SPELT: Final = {"float": "float32", "double": "float64"}


def connect_type(word: object) -> ConnectType:
    """Returns the Connect type with this name.

    Raises:
        SchemaMismatchError: Kafka Connect has no such type.
    """
    name = _SPELT.get(word, word) if isinstance(word, str) else None
    if name not in _TYPES:
        raise SchemaMismatchError(
            f"{shown(word)} is not a type of Kafka Connect, so the record's schema is not a Kafka "
            "Connect schema."
        )
    return cast(ConnectType, name)


def text_parameters(parameters: object) -> Mapping[str, str]:
    """Returns the parameters of a schema, with all keys and values converted to text.

    Raises:
        SchemaMismatchError: the parameters are not a JSON object.
    """
    if parameters is None:
        return NO_PARAMETERS
    if not isinstance(parameters, Mapping):
        raise SchemaMismatchError(
            f"A Kafka Connect schema has the parameters {shown(parameters)}, but a JSON object was expected."
        )
    return MappingProxyType({str(key): str(value) for key, value in parameters.items()})


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
# AvroData's reading of a logical type without a connect.name (kafka-connect-avro-data 7).
_LOGICAL: Final = {
    ("bytes", "decimal"): "org.apache.kafka.connect.data.Decimal",
    ("fixed", "decimal"): "org.apache.kafka.connect.data.Decimal",
    ("int", "date"): "org.apache.kafka.connect.data.Date",
    ("int", "time-millis"): "org.apache.kafka.connect.data.Time",
    ("long", "timestamp-millis"): "org.apache.kafka.connect.data.Timestamp",
    ("string", "uuid"): "io.debezium.data.Uuid",
}
_MAP_ENTRY: Final = "MapEntry"
# AvroData's own names for a record or an enum without a Connect name (``NAMESPACE`` and its siblings in
# AvroData.java, kafka-connect-avro-data 7 and 8). The second anonymous struct of a schema is ConnectDefault2,
# and so on. ``toConnectSchema`` drops them by the same prefix.
_AVRO_DATA: Final = "io.confluent.connect.avro."
_DEFAULT_NAME: Final = f"{_AVRO_DATA}ConnectDefault"
_UNNAMED: Final = frozenset(f"{_AVRO_DATA}{name}" for name in (_MAP_ENTRY, "Union", "Enum", "Anything"))
_STRING: Final = ConnectSchema("string")


def connect_schema_of_avro(parsed_avro: object) -> ConnectSchema:
    """Converts an Avro schema to a Connect schema.

    ``parsed_avro`` is the Avro schema as parsed JSON, or fastavro's parsed form of it.

    Raises:
        SchemaMismatchError: it is not an Avro schema, or Kafka Connect cannot have written it.
    """
    return _Reader().read(parsed_avro, "", 0)


@dataclass
class _Reader:
    """Converts one Avro schema, including its nested schemas, to a Connect schema.

    ``named`` holds the named Avro types read so far, with None for a type that is still being read.
    ``entries`` holds the names of the record types that represent a map's entries.
    """

    named: dict[str, ConnectSchema | None] = field(default_factory=dict)
    entries: set[str] = field(default_factory=set)

    def read(self, avro: object, namespace: str, level: int) -> ConnectSchema:
        if level > MOST_LEVELS:
            raise SchemaMismatchError(f"The schema is nested deeper than {MOST_LEVELS} levels.")
        if isinstance(avro, list):
            return self._union(avro, namespace, level)
        if isinstance(avro, str):
            return self._word(avro, namespace)
        if not isinstance(avro, Mapping):
            raise SchemaMismatchError(f"{shown(avro)} is not an Avro schema.")
        kind = avro.get("type")
        if isinstance(kind, (list, Mapping)):
            return self.read(kind, namespace, level + 1)
        return self._object(avro, str(kind), namespace, level)

    def _union(self, branches: list[Any], namespace: str, level: int) -> ConnectSchema:
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1:
            raise SchemaMismatchError(
                f"The Avro union {shown(branches)} has {len(others)} types in addition to null. Only "
                "unions of null and one type are supported."
            )
        return replace(self.read(others[0], namespace, level + 1), optional=len(branches) > 1)

    def _word(self, word: str, namespace: str) -> ConnectSchema:
        if word in _PRIMITIVES:
            return ConnectSchema(_PRIMITIVES[word])
        for name in (word if "." in word else _full(word, namespace), word):
            if name in self.named:
                schema = self.named[name]
                if schema is None:
                    raise SchemaMismatchError(
                        f"The Avro type {name} contains itself. The row of a table cannot have such a type."
                    )
                return schema
        raise SchemaMismatchError(f"The Avro schema refers to the type {word!r}, but does not define it.")

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
            if _MAP_ENTRY in (avro.get("connect.internal.type"), named.rpartition(".")[2]):
                self.entries.add(named)
        return schema

    def _base(self, avro: Mapping[str, Any], kind: str, namespace: str, level: int) -> ConnectSchema:
        if kind == "array":
            return self._array(avro, namespace, level)
        schema = ConnectSchema(
            _kind(avro, kind),
            _semantic_name(avro, kind, namespace),
            _avro_parameters(avro),
            default=_default(avro.get("connect.default"), kind),
        )
        if kind == "map":
            return replace(schema, keys=_STRING, values=self.read(avro.get("values"), namespace, level + 1))
        if kind in ("record", "error"):
            return replace(schema, fields=self._fields(avro, namespace, level))
        return schema

    def _array(self, avro: Mapping[str, Any], namespace: str, level: int) -> ConnectSchema:
        items = self.read(avro.get("items"), namespace, level + 1)
        default = avro.get("connect.default")
        name = avro.get("connect.name")
        schema = ConnectSchema("array", _own_name(name), _avro_parameters(avro), default=default)
        if self._is_entry(avro.get("items"), items, namespace):
            return replace(schema, type="map", keys=items.field("key"), values=items.field("value"))
        return replace(schema, items=items)

    def _is_entry(self, avro: object, items: ConnectSchema, namespace: str) -> bool:
        """Returns True if an Avro array represents a map.

        AvroData writes a map whose keys are not plain text as an array of records of key and value.
        """
        if items.type != "struct" or tuple(field.name for field in items.fields) != ("key", "value"):
            return False
        if isinstance(avro, str):
            return bool({avro, _full(avro, namespace)} & self.entries)
        return isinstance(avro, Mapping) and _named(avro, namespace) in self.entries

    def _fields(self, avro: Mapping[str, Any], namespace: str, level: int) -> tuple[ConnectField, ...]:
        fields = avro.get("fields")
        if not isinstance(fields, list) or not all(isinstance(field, Mapping) for field in fields):
            raise SchemaMismatchError(
                f"The fields of an Avro record are {shown(fields)}, but a list of objects was expected."
            )
        return _with_unique_names(self._field(field, namespace, level) for field in fields)

    def _field(self, avro: Mapping[str, Any], namespace: str, level: int) -> ConnectField:
        wire = avro.get("name")
        if not isinstance(wire, str):
            raise SchemaMismatchError(
                f"{shown(avro)} is not a field of an Avro record, because it has no name."
            )
        schema = self.read(avro.get("type"), namespace, level + 1)
        if isinstance(tidb_type := avro.get(TIDB_TYPE), str):
            with_type = MappingProxyType({**schema.parameters, TIDB_TYPE: tidb_type})
            schema = replace(schema, parameters=with_type)
        own = avro.get("connect.field", schema.parameters.get(SOURCE_NAME, wire))
        return ConnectField(str(own), schema, wire)


def _full(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def _named(avro: Mapping[str, Any], namespace: str) -> str:
    name = avro.get("name")
    if not isinstance(name, str):
        raise SchemaMismatchError(f"A type in the Avro schema ({shown(avro.get('type'), 40)}) has no name.")
    return name if "." in name else _full(name, str(avro.get("namespace", namespace)))


def _kind(avro: Mapping[str, Any], kind: str) -> ConnectType:
    if kind == "map":
        return "map"
    if kind in ("record", "error"):
        return "struct"
    # Needed because Avro has no integers of 8 and 16 bits.
    return connect_type(avro.get("connect.type", _PRIMITIVES[kind]))


def _semantic_name(avro: Mapping[str, Any], kind: str, namespace: str) -> str | None:
    name = avro.get("connect.name")
    if isinstance(name, str):
        return _own_name(name)
    if kind in ("record", "error"):
        return _own_name(_named(avro, namespace))
    logical = avro.get("logicalType")
    # A name that AvroData does not write is kept: no reader uses it, but the column reports it.
    return _LOGICAL.get((kind, str(logical)), logical if isinstance(logical, str) else None)


def _own_name(name: object) -> str | None:
    """Returns a Connect schema's own name; None if it has no name and AvroData only generated one."""
    if not isinstance(name, str) or name in _UNNAMED or name.startswith(_DEFAULT_NAME):
        return None
    return name


def _avro_parameters(avro: Mapping[str, Any]) -> Mapping[str, str]:
    parameters = dict(text_parameters(avro.get("connect.parameters")))
    if avro.get("logicalType") == "decimal":
        parameters.setdefault("scale", str(avro.get("scale", 0)))
        # AvroData writes precision 64 if Connect has none (a Postgres money).
        if "precision" in parameters:
            parameters.setdefault(PRECISION, parameters["precision"])
        elif "connect.name" not in avro and "precision" in avro:
            parameters.setdefault(PRECISION, str(avro["precision"]))
    return MappingProxyType(parameters) if parameters else NO_PARAMETERS


def _default(default: object, kind: str) -> object:
    # Avro writes the bytes of a default as text of U+0000 to U+00FF.
    if kind in ("bytes", "fixed") and isinstance(default, str):
        try:
            return default.encode("latin-1")
        except UnicodeEncodeError as error:
            raise SchemaMismatchError(
                f"The default {shown(default)} in an Avro schema is not valid bytes."
            ) from error
    return default


def connect_schema_of_json(schema: Mapping[str, Any]) -> ConnectSchema:
    """Returns the Connect schema in the ``schema`` member of a JSON record.

    Raises:
        SchemaMismatchError: the member is not a schema of Kafka Connect.
    """
    return _read(schema, 0)


def _read(schema: object, level: int) -> ConnectSchema:
    if not isinstance(schema, Mapping):
        raise SchemaMismatchError(f"{shown(schema)} is not a Kafka Connect schema. An object was expected.")
    if level > MOST_LEVELS:
        raise SchemaMismatchError(f"The schema is nested deeper than {MOST_LEVELS} levels.")
    kind = connect_type(schema.get("type"))
    return ConnectSchema(
        kind,
        _own_name(schema.get("name")),
        _json_parameters(schema),
        schema.get("optional") is True,
        schema.get("default"),
        _fields(schema.get("fields"), level) if kind == "struct" else (),
        _read(schema.get("items"), level + 1) if kind == "array" else None,
        _read(schema.get("keys"), level + 1) if kind == "map" else None,
        _read(schema.get("values"), level + 1) if kind == "map" else None,
    )


def _json_parameters(schema: Mapping[str, Any]) -> Mapping[str, str]:
    parameters = text_parameters(schema.get("parameters"))
    # TiCDC (b813e76) with enable-tidb-extension writes it next to a field's type.
    tidb_type = schema.get(TIDB_TYPE)
    return (
        MappingProxyType({**parameters, TIDB_TYPE: tidb_type}) if isinstance(tidb_type, str) else parameters
    )


def _fields(fields: object, level: int) -> tuple[ConnectField, ...]:
    if not isinstance(fields, list):
        raise SchemaMismatchError(
            f"The fields of a struct in a Kafka Connect schema are {shown(fields)}, but an array was "
            "expected."
        )
    # TiCDC (b813e76) lists a virtual column twice, in its place and at the end.
    return tuple(_field(field, level) for field in fields)


def _field(raw: object, level: int) -> ConnectField:
    wire = raw.get("field") if isinstance(raw, Mapping) else None
    if not isinstance(wire, str):
        raise SchemaMismatchError(
            f"{shown(raw)} is not a field of a struct in a Kafka Connect schema, because it has no "
            "name in 'field'."
        )
    schema = _read(raw, level + 1)
    return ConnectField(schema.parameters.get(SOURCE_NAME, wire), schema, wire)
