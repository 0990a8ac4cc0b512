"""The columns of debezium-json records: parsed by from_json, then as Avro's records have them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.avro.functions import from_avro

from tidesink.codecs.base import DebeziumModes
from tidesink.codecs.columns_debezium_alike import SOURCE_MEMBERS, Alike
from tidesink.codecs.columns_debezium_json_schema import JsonSchema
from tidesink.codecs.columns_debezium_json_text import wire_ddl
from tidesink.codecs.columns_debezium_python import python_read
from tidesink.codecs.columns_debezium_readers import Defined, field_of, modes_of, reads_as, source_column
from tidesink.codecs.columns_debezium_record import FieldOf, RecordColumns
from tidesink.codecs.columns_debezium_schema import (
    COMMIT_TS,
    IMAGES,
    RecordSchema,
    WireColumn,
    is_spark_decimal,
)
from tidesink.codecs.columns_faults import null
from tidesink.codecs.columns_types import lit_binary
from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.codecs.debezium.envelope import TICDC
from tidesink.codecs.debezium.scalars import scale_of
from tidesink.events import Column as SourceColumn
from tidesink.typemap.table import SPARK_MAX_PRECISION
from tidesink.typemap.target_schema import TableShape, quoted

CORRUPT: Final = "corrupt"
_ROW: Final = "row"
_BIGINT: Final = "bigint"
_TEXT: Final = "string"
_NESTED: Final = frozenset({"array", "map", "struct"})
_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowNonNumericNumbers": "false",
    # Spark's own limit is 20 million characters.
    "maxStringLen": str(2**31 - 1),
}
# The length of up to 63 bytes, as Avro has it before them.
_LENGTHS: Final = bytes(range(0, 128, 2))


@dataclass(frozen=True)
class JsonRecord(RecordColumns):
    """The records of writers that read alike, by the places of their heads.

    In the frame: ``key_text`` and ``value_text``, the payloads that match their writer's pattern, and
    ``key_writer`` and ``value_writer``, the place of the head; then what ``parsed`` gives as ``parsed_name``.
    """

    @property
    def parsed_name(self) -> str:
        """The name of what from_json gave."""
        return f"parsed_{self.name}"

    def parsed(self) -> Column:
        """What from_json reads of this group's payloads; null for others."""
        text = F.col(f"{self.part}_text")
        if self.part == "key":
            text = F.concat(F.lit(f'{{"{_ROW}":'), text, F.lit("}"))
        return F.from_json(F.when(self._mine, text), self._ddl, _OPTIONS)

    def decoded(self) -> Column:
        """The record as Avro's would be; null where it is another's or could not be read."""
        parsed = F.col(self.parsed_name)
        whole = parsed.isNotNull() & parsed.getField(CORRUPT).isNull()
        if self.part == "key":
            return F.when(whole, self._image(parsed.getField(_ROW)))
        source, op = parsed.getField("source"), parsed.getField("op")
        images = [self._image(parsed.getField(name)).alias(name) for name in IMAGES if self._wires]
        there = whole & source.isNotNull() & (op == "m" if self.is_control else op != "m")
        if self.is_control:
            there &= (source.getField("connector") == TICDC) & source.getField("commit_ts").isNotNull()
        return F.when(there, F.struct(*images, source.alias("source"), op.alias("op")))

    @property
    def complete(self) -> Column:
        """Whether the record was read; null for others."""
        return F.when(self.column.isNotNull(), F.lit(True))

    @property
    def is_control(self) -> bool:
        """Whether these are TiCDC's watermarks, which have no row."""
        return self.schema.kind == "watermark"

    @property
    def _mine(self) -> Column:
        return F.col(f"{self.part}_writer").isin(*self.alike.members)

    @property
    def _wires(self) -> tuple[WireColumn, ...]:
        return self.schema.columns

    @property
    def _ddl(self) -> str:
        columns = {one.field.wire: one.field.schema for one in self._wires}
        row = ", ".join(f"{quoted(name)}: {wire_ddl(schema)}" for name, schema in columns.items())
        if self.part == "key":
            return f"{CORRUPT} string, {_ROW} struct<{row}>"
        images = [f"{name} struct<{row}>" for name in IMAGES if columns]
        source = ", ".join(f"{name}: {_BIGINT if name == COMMIT_TS else _TEXT}" for name in self.source)
        return ", ".join((f"{CORRUPT} string", *images, f"source struct<{source}>", "op string"))

    def _image(self, row: Column) -> Column:
        """A row's columns as Avro's types, under names that Spark tells apart."""
        # By place: Spark would not tell `id` from `ID`.
        names = dict.fromkeys(one.field.wire for one in self._wires)
        by_wire = {one.field.wire: one for one in self._wires}
        typed = ", ".join(f"{by_wire[name].wire}: {wire_ddl(by_wire[name].field.schema)}" for name in names)
        placed = row.cast(f"struct<{typed}>")
        values = [
            _converted(placed.getField(one.wire), one.field.schema).alias(one.wire)
            for one in by_wire.values()
        ]
        return F.when(row.isNotNull(), F.struct(*values))

    def _python(self, field: FieldOf, wire: Column) -> Column:
        assert field.wire is not None  # noqa: S101 - only columns that are there are read
        return python_read(wire, self._reader(field), is_json=field.wire.field.schema.type in _NESTED)

    def _written_by(self, ids: tuple[int, ...]) -> Column:
        return F.col(f"{self._side}_writer").isin(*ids)


def _converted(wire: Column, schema: ConnectSchema) -> Column:
    """A value of from_json as from_avro would have given it."""
    if schema.type == "float32":
        return wire.cast("float")
    if schema.type != "bytes":
        return wire
    data = F.unbase64(wire)
    if not is_spark_decimal(schema):
        return data
    avro = {
        "type": "bytes",
        "logicalType": "decimal",
        "precision": SPARK_MAX_PRECISION,
        "scale": scale_of(schema),
    }
    length = F.substring(lit_binary(_LENGTHS), F.length(data) + 1, F.lit(1))
    return from_avro(F.concat(length, data), json.dumps(avro))


def json_records(
    schemas: Mapping[int, JsonSchema],
    shape: TableShape,
    part: str,
    *,
    modes: DebeziumModes,
    defined: Defined,
    source: tuple[str, ...] = SOURCE_MEMBERS,
) -> tuple[JsonRecord, ...]:
    """The readers of one side of a topic's records: one for all writers that read alike."""
    targets = shape.key_columns if part == "key" else shape.columns

    def source_of(schema: RecordSchema, wire: WireColumn) -> SourceColumn:
        return source_column(schema, wire, modes, defined)

    def reading(schema: RecordSchema, wire: WireColumn) -> object:
        return wire.field.schema.type, reads_as(wire, source_of(schema, wire))

    return tuple(
        JsonRecord(
            f"{part}_{number}",
            part,
            group,
            True,
            shape,
            tuple(field_of(target, group, source_of=source_of, all_schemas=schemas) for target in targets),
            modes_of(group.schema, modes),
            source=source,
        )
        for number, group in enumerate(_alike(schemas, reading))
    )


def _alike(
    schemas: Mapping[int, JsonSchema], reading: Callable[[RecordSchema, WireColumn], object]
) -> list[Alike]:
    """The schemas in as few groups as there are ways to read them: JSON has its names in it."""
    groups: list[tuple[dict[str, object], Alike]] = []
    for number, schema in sorted(schemas.items()):
        facts: dict[str, object] = {one.field.wire: reading(schema, one) for one in schema.columns}
        facts |= {f"\0{one.field.name.lower()}": one.field.wire for one in schema.columns}
        facts["\0\0"] = schema.kind, schema.is_ticdc
        for place, (known, group) in enumerate(groups):
            if all(known.get(name, fact) == fact for name, fact in facts.items()):
                groups[place] = known | facts, _joined(group, number, schema)
                break
        else:
            groups.append((facts, Alike({number: schema}, schema)))
    return [group for _, group in groups]


def _joined(group: Alike, number: int, schema: JsonSchema) -> Alike:
    wires = {one.wire for one in group.schema.columns}
    added = tuple(one for one in schema.columns if one.wire not in wires)
    merged = replace(
        group.schema,
        columns=(*group.schema.columns, *added),
        source=group.schema.source | schema.source,
    )
    return Alike({**group.members, number: schema}, merged)


def texts_of(part: str, schemas: Mapping[int, JsonSchema]) -> list[list[Column]]:
    """Steps that add ``<part>_writer`` and ``<part>_text``: the payload, where it matches its pattern."""
    data, writer, text = F.col(f"{part}_bytes"), F.col(f"{part}_writer"), F.col(f"{part}_payload")
    if not schemas:
        return [[F.col("*"), null("int").alias(f"{part}_writer"), null("string").alias(f"{part}_text")]]
    # Those seen last first: most records are of the newest writer.
    newest = sorted(schemas.items(), reverse=True)
    written = [(_is_of(data, schema), F.lit(number)) for number, schema in newest]
    cut = [(writer == number, _payload(data, schema)) for number, schema in newest]
    fits = [(writer == number, text.rlike(schema.pattern)) for number, schema in newest]
    matching = F.when(F.is_valid_utf8(text) & _chosen(fits), text)
    return [
        [F.col("*"), _chosen(written).alias(f"{part}_writer")],
        [F.col("*"), _chosen(cut).cast("string").alias(f"{part}_payload")],
        [F.col("*"), matching.alias(f"{part}_text")],
    ]


def _chosen(choices: list[tuple[Column, Column]]) -> Column:
    return reduce(lambda chosen, one: chosen.when(*one), choices[1:], F.when(*choices[0]))


def _is_of(data: Column, schema: JsonSchema) -> Column:
    before, behind = _around(schema)
    longer = F.length(data) >= len(before) + len(behind)
    return longer & F.startswith(data, lit_binary(before)) & F.endswith(data, lit_binary(behind))


def _payload(data: Column, schema: JsonSchema) -> Column:
    before, behind = _around(schema)
    return F.substring(data, F.lit(len(before) + 1), F.length(data) - (len(before) + len(behind)))


def _around(schema: JsonSchema) -> tuple[bytes, bytes]:
    return schema.head.before.encode(), schema.head.behind.encode()
