"""What a Debezium record's Avro schema says, and the bare schema Spark decodes with.

What fields mean is read by the Python codec's own reader of Connect schemas, so that each fact has one
place. Sources: Debezium 3.5.0.Final with Confluent's and Apicurio's converters; TiCDC new architecture
(b813e76).

In the bare schema a row's columns are ``f0``, ``f1``, …, since Spark tells names apart without regard to
case; a named type is written out wherever it is used; and a last field takes the mark that the caller puts
after the payload: where it does not come back, the payload was shorter or longer than its schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from tidesink.codecs.columns_avro_schema import HEAD, HEADER_SIZE, MARK, MARK_SIZE
from tidesink.codecs.connect_schema import MOST_LEVELS, PRECISION, ConnectField, ConnectSchema
from tidesink.codecs.connect_schema_avro import connect_schema_of_avro
from tidesink.codecs.debezium_values_decimals import scale_of, whole_parameter
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError
from tidesink.typemap.semantic import semantic_type
from tidesink.typemap.table import SPARK_MAX_PRECISION

Json = Any
Kind = Literal["row", "envelope", "message", "ddl"]

IMAGES: Final = ("before", "after")
_SOURCE: Final = "source"
_COMPLEX: Final = ("record", "error")
_FLATTENED: Final = (
    "its records are rows flattened by ExtractNewRecordState, which a worker does not read: take the "
    "transform out of the connector, or decode the topic with the Python codec"
)
_DOCUMENTS: Final = "its records are MongoDB's documents, which a worker does not read: use the Python codec"


class WireColumn(NamedTuple):
    """A column of a row: its Connect field, and its name in the decoded struct."""

    wire: str
    field: ConnectField


@dataclass(frozen=True)
class RecordSchema:
    """One key or value schema.

    ``kind``: ``row`` (a key), ``envelope``, or what changes no row. ``columns`` are the row's, of an
    envelope those of its images. ``source`` are the names in its source block. ``bare`` is empty where
    nothing is to be decoded.
    """

    kind: Kind
    columns: tuple[WireColumn, ...] = ()
    source: frozenset[str] = frozenset()
    bare: str = ""

    @property
    def is_ticdc(self) -> bool:
        """Whether TiCDC made it: no other source block has a commit_ts of TiDB's."""
        return "commit_ts" in self.source


def read_key_schema(text: str) -> RecordSchema:
    """The columns of a key schema.

    Raises:
        SchemaMismatchError: it is no Avro record that Kafka Connect can have written.
    """
    avro, schema = _parsed(text)
    return RecordSchema("row", _wire_columns(schema), bare=_Bare().whole(avro, renamed=True))


def read_value_schema(text: str) -> RecordSchema:
    """What a value schema holds: an envelope with its images' columns, or a message.

    Raises:
        SchemaMismatchError: it is no Avro record of Debezium's that a worker reads; says which.
    """
    avro, schema = _parsed(text)
    names = {one.name for one in schema.fields}
    if names >= {"ddl", _SOURCE}:
        return RecordSchema("ddl")
    if not names >= {"op", _SOURCE}:
        if names <= {"ts_ms"} or {"status", "id"} <= names or {"id", "aggregate_type", "type"} <= names:
            return RecordSchema("message")
        raise SchemaMismatchError(_FLATTENED)
    if "after" not in names:
        return RecordSchema("message")  # a logical message, or a watermark of TiCDC's
    return _envelope(avro, schema)


def _envelope(avro: Json, schema: ConnectSchema) -> RecordSchema:
    after, source = schema.field("after"), schema.field(_SOURCE)
    if after is None or source is None:
        raise SchemaMismatchError("the envelope's schema has no after, or no source")
    if after.type != "struct":
        raise SchemaMismatchError(_DOCUMENTS)
    names = frozenset(one.wire for one in source.fields)
    return RecordSchema("envelope", _wire_columns(after), names, _Bare().whole(avro, renamed=False))


def _parsed(text: str) -> tuple[Json, ConnectSchema]:
    try:
        avro = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"the writer's schema is no Avro: {error!s:.200}") from error
    schema = connect_schema_of_avro(avro)
    if schema.type != "struct":
        raise SchemaMismatchError("the writer's schema is no Avro record: is the topic one of Debezium's?")
    return avro, schema


def _wire_columns(schema: ConnectSchema) -> tuple[WireColumn, ...]:
    # TiCDC (b813e76) lists a virtual column twice: the later one counts, as in the Python codec.
    numbered = {one.name: WireColumn(f"f{number}", one) for number, one in enumerate(schema.fields)}
    return tuple(numbered.values())


def is_spark_decimal(schema: ConnectSchema) -> bool:
    """Whether Spark's decimals hold the values: it has a precision, of 38 digits at most."""
    semantic = semantic_type(schema.name, schema.type)
    if semantic is None or semantic.form != "unscaled":
        return False
    precision, scale = whole_parameter(schema, PRECISION), scale_of(schema)
    if precision is None or scale is None:
        return False
    return 0 < precision <= SPARK_MAX_PRECISION and 0 <= scale <= precision


@dataclass
class _Bare:
    """Writes one bare schema; ``named`` are the named types met, with the namespace inside them."""

    named: dict[str, tuple[Json, str]] = field(default_factory=dict)
    records: int = 0

    def whole(self, avro: Json, *, renamed: bool) -> str:
        fields = self._record(avro, "", renamed, 0)["fields"]
        head, mark = _fixed(HEAD, HEADER_SIZE), _fixed(MARK, MARK_SIZE)
        return json.dumps({"type": "record", "name": "message", "fields": [head, *fields, mark]})

    def _type(self, avro: Json, namespace: str, renamed: bool, level: int) -> Json:
        if level > MOST_LEVELS:
            raise SchemaMismatchError(f"the schema is nested deeper than {MOST_LEVELS} levels")
        if isinstance(avro, list):
            return [self._type(branch, namespace, renamed, level + 1) for branch in avro]
        if isinstance(avro, str):
            return self._word(avro, namespace, renamed, level)
        kind = avro["type"]
        if isinstance(kind, list | Mapping):
            return self._type(kind, namespace, renamed, level + 1)
        if kind in _COMPLEX:
            return self._record(avro, namespace, renamed, level)
        if kind == "array":
            return {"type": "array", "items": self._type(avro["items"], namespace, False, level + 1)}
        if kind == "map":
            return {"type": "map", "values": self._type(avro["values"], namespace, False, level + 1)}
        if kind in ("enum", "fixed"):
            return self._named_leaf(avro, namespace)
        return _decimal(avro) if kind == "bytes" else self._word(kind, namespace, renamed, level)

    def _word(self, word: str, namespace: str, renamed: bool, level: int) -> Json:
        for name in (word if "." in word else f"{namespace}.{word}", word):
            if name in self.named:
                found, inside = self.named[name]
                return self._type(found, inside, renamed, level + 1)
        return word

    def _named_leaf(self, avro: Json, namespace: str) -> Json:
        self._remember(avro, namespace)
        self.records += 1
        kept = {name: avro[name] for name in ("type", "size", "symbols") if name in avro}
        return {**kept, "name": f"n{self.records}"}

    def _remember(self, avro: Json, namespace: str) -> str:
        name = str(avro["name"])
        full = name if "." in name else ".".join(filter(None, (avro.get("namespace", namespace), name)))
        inside = full.rpartition(".")[0]
        self.named[full] = avro, inside
        return inside

    def _record(self, avro: Json, namespace: str, renamed: bool, level: int) -> dict[str, Json]:
        inside = self._remember(avro, namespace)
        self.records += 1
        name = f"r{self.records}"
        fields = [
            {
                "name": f"f{number}" if renamed else one["name"],
                "type": self._type(one["type"], inside, level == 0 and one["name"] in IMAGES, level + 1),
            }
            for number, one in enumerate(avro["fields"])
        ]
        return {"type": "record", "name": name, "fields": fields}


def _decimal(avro: Json) -> Json:
    """Decimals that Spark can hold as decimals, with all the digits there are; others as their bytes."""
    try:
        schema = connect_schema_of_avro(avro)
        if not is_spark_decimal(schema):
            return "bytes"
    except (SchemaMismatchError, ValueOutOfRangeError):
        return "bytes"
    # Spark fails the whole record where a number has more digits than its schema says: taken in with all
    # the digits there are, it can be refused by its column's name.
    scale = scale_of(schema)
    return {"type": "bytes", "logicalType": "decimal", "precision": SPARK_MAX_PRECISION, "scale": scale}


def _fixed(name: str, size: int) -> dict[str, object]:
    return {"name": name, "type": {"type": "fixed", "name": f"{name}_bytes", "size": size}}


def names_no_row(text: str) -> bool:
    """Whether a schema is of no table: a message's, or the empty key of one."""
    try:
        if not json.loads(text).get("fields"):
            return True
        return not read_value_schema(text).bare
    except (ValueError, AttributeError, SchemaMismatchError):
        return False
