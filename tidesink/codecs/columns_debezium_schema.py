"""What a Debezium record's Avro schema says, and the bare schema Spark decodes with.

What fields mean is read by the Python codec's own reader of Connect schemas, so that each fact has one
place. Sources: Debezium 3.5.0.Final with Confluent's and Apicurio's converters; TiCDC new architecture
(b813e76).

In the bare schema a row's columns have names made of their own, since Spark tells names apart without
regard to case; a named type is written out wherever it is used, under a name made of where that is; so that
what two writers wrote alike is named alike (``columns_debezium_alike``). A last field takes the mark that
the caller puts after the payload: where it does not come back, the payload was shorter or longer than its
schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from tidesink.codecs.columns_avro_schema import HEAD, HEADER_SIZE, MARK, MARK_SIZE
from tidesink.codecs.debezium.connect_schema import (
    MOST_LEVELS,
    PRECISION,
    ConnectField,
    ConnectSchema,
    connect_schema_of_avro,
)
from tidesink.codecs.debezium.scalars import scale_of, whole_parameter
from tidesink.errors import SchemaMismatchError, ValueOutOfRangeError
from tidesink.typemap.debezium_types import semantic_type
from tidesink.typemap.table import SPARK_MAX_PRECISION
from tidesink.typemap.target_schema import TableShape

Json = Any
Kind = Literal["row", "envelope", "watermark", "message", "ddl"]

IMAGES: Final = ("before", "after")
COMMIT_TS: Final = "commit_ts"
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
    envelope those of its images. ``source`` are the names in its source block. ``bare`` is the schema to
    decode with, None where nothing is to be decoded.
    """

    kind: Kind
    columns: tuple[WireColumn, ...] = ()
    source: frozenset[str] = frozenset()
    bare: Json = None

    @property
    def is_ticdc(self) -> bool:
        """Whether TiCDC made it: no other source block has a commit_ts of TiDB's."""
        return COMMIT_TS in self.source


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
    source = schema.field(_SOURCE)
    if "after" not in names:
        told = source is not None and any(one.wire == COMMIT_TS for one in source.fields)
        return _watermark(avro, schema) if told else RecordSchema("message")
    return _envelope(avro, schema)


def _watermark(avro: Json, schema: ConnectSchema) -> RecordSchema:
    """A record of TiCDC's without a row: what is in Debezium's a logical message is its watermark."""
    return RecordSchema("watermark", source=_source_names(schema), bare=_Bare().whole(avro, renamed=False))


def _source_names(schema: ConnectSchema) -> frozenset[str]:
    source = schema.field(_SOURCE)
    return frozenset(one.wire for one in source.fields) if source is not None else frozenset()


def _envelope(avro: Json, schema: ConnectSchema) -> RecordSchema:
    after = schema.field("after")
    if after is None or schema.field(_SOURCE) is None:
        raise SchemaMismatchError("the envelope's schema has no after, or no source")
    if after.type != "struct":
        raise SchemaMismatchError(_DOCUMENTS)
    bare = _Bare().whole(avro, renamed=False)
    return RecordSchema("envelope", _wire_columns(after), _source_names(schema), bare)


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
    return tuple({one.name: WireColumn(_wire_name(one.wire), one) for one in schema.fields}.values())


def _wire_name(name: str) -> str:
    """A column's name in the decoded struct: another for each, also without regard to case."""
    return f"f{name.encode().hex()}"


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

    def whole(self, avro: Json, *, renamed: bool) -> dict[str, Json]:
        fields = self._record(avro, _At((), "", renamed))["fields"]
        head, mark = _fixed(HEAD, HEADER_SIZE), _fixed(MARK, MARK_SIZE)
        return {"type": "record", "name": "message", "fields": [head, *fields, mark]}

    def _type(self, avro: Json, at: _At) -> Json:
        if len(at.path) > MOST_LEVELS:
            raise SchemaMismatchError(f"the schema is nested deeper than {MOST_LEVELS} levels")
        if isinstance(avro, list):
            several = len([branch for branch in avro if branch != "null"]) > 1
            steps = [f"branch{number}" if several else "" for number in range(len(avro))]
            return [self._type(branch, at.inside(step)) for branch, step in zip(avro, steps, strict=True)]
        if isinstance(avro, str):
            return self._word(avro, at)
        kind = avro["type"]
        if isinstance(kind, list | Mapping):
            return self._type(kind, at.inside(""))
        if kind in _COMPLEX:
            return self._record(avro, at)
        for container, inner in (("array", "items"), ("map", "values")):
            if kind == container:
                return {
                    "type": kind,
                    inner: self._type(avro[inner], at.inside(inner)._replace(renamed=False)),
                }
        if kind in ("enum", "fixed"):
            return self._named_leaf(avro, at)
        return _decimal(avro) if kind == "bytes" else self._word(kind, at)

    def _word(self, word: str, at: _At) -> Json:
        for name in (word if "." in word else f"{at.namespace}.{word}", word):
            if name in self.named:
                found, inside = self.named[name]
                return self._type(found, at.inside("")._replace(namespace=inside))
        return word

    def _named_leaf(self, avro: Json, at: _At) -> Json:
        self._remember(avro, at.namespace)
        kept = {name: avro[name] for name in ("type", "size", "symbols") if name in avro}
        return {**kept, "name": at.name}

    def _remember(self, avro: Json, namespace: str) -> str:
        name = str(avro["name"])
        full = name if "." in name else ".".join(filter(None, (avro.get("namespace", namespace), name)))
        inside = full.rpartition(".")[0]
        self.named[full] = avro, inside
        return inside

    def _record(self, avro: Json, at: _At) -> dict[str, Json]:
        namespace = self._remember(avro, at.namespace)
        fields = []
        for one in avro["fields"]:
            renamed = not at.path and one["name"] in IMAGES
            inner = _At((*at.path, one["name"]), namespace, renamed)
            wire = _wire_name(one["name"]) if at.renamed else one["name"]
            fields.append({"name": wire, "type": self._type(one["type"], inner)})
        return {"type": "record", "name": at.name, "fields": fields}


class _At(NamedTuple):
    """Where in a schema something is: the steps to it, its namespace, and whether its fields are columns."""

    path: tuple[str, ...]
    namespace: str
    renamed: bool

    def inside(self, step: str) -> _At:
        """One step further."""
        return self._replace(path=(*self.path, step))

    @property
    def name(self) -> str:
        """The name of a type that is here: another for each place, the same for all writers.

        Whether it may be null does not count, nor where it was written out first.
        """
        return "r" + "".join(f"{len(step)}{step}" for step in self.path if step)


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
    """Whether a schema is of no table: a message's, a watermark's, or the empty key of one."""
    try:
        if not json.loads(text).get("fields"):
            return True
        return read_value_schema(text).kind != "envelope"
    except (ValueError, AttributeError, SchemaMismatchError):
        return False


def gone_columns(shape: TableShape, rows: Mapping[int, RecordSchema]) -> frozenset[str]:
    """The shape's columns, in lower case, that the newest of the schemas of rows does not have."""
    newest = rows[max(rows)] if rows else None
    there = {wire.field.name.lower() for wire in newest.columns} if newest else set(shape.by_name)
    return frozenset(shape.by_name) - there
