"""The readers of a topic's records: one for all writer schemas that read alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tidesink.codecs.base import DebeziumModes
from tidesink.codecs.columns_debezium_alike import SOURCE_MEMBERS, Alike, alike
from tidesink.codecs.columns_debezium_record import FieldOf, RecordColumns
from tidesink.codecs.columns_debezium_schema import RecordSchema, WireColumn
from tidesink.codecs.debezium.values import column_of
from tidesink.events import Column as SourceColumn
from tidesink.typemap.debezium_types import semantic_type
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import ShapeColumn, TableShape

Defined = Mapping[str, SourceColumn]


def record_columns(  # noqa: PLR0913  (all that a reader rests on)
    schemas: Mapping[int, RecordSchema],
    shape: TableShape,
    part: str,
    *,
    modes: DebeziumModes,
    defined: Defined,
    old_keys: bool = False,
    logs: bool = False,
    source: tuple[str, ...] = SOURCE_MEMBERS,
) -> tuple[RecordColumns, ...]:
    """The readers of one side of a topic's records: one for all schemas that read alike."""
    targets = shape.key_columns if part == "key" else shape.columns

    def source_of(schema: RecordSchema, wire: WireColumn) -> SourceColumn:
        return source_column(schema, wire, modes, defined)

    def reading(schema: RecordSchema, wire: WireColumn) -> object:
        return reads_as(wire, source_of(schema, wire))

    return tuple(
        RecordColumns(
            f"{part}_{number}",
            part,
            group,
            old_keys,
            shape,
            tuple(field_of(target, group, source_of=source_of, all_schemas=schemas) for target in targets),
            modes_of(group.schema, modes),
            logs,
            source,
        )
        for number, group in enumerate(alike(schemas, reading, source))
    )


def reads_as(wire: WireColumn, source: SourceColumn) -> object:
    """What the conversion of a column's values depends on, beyond their Avro type."""
    schema = wire.field.schema
    semantic = semantic_type(schema.name, schema.type)
    plain = semantic is None or semantic.form == "plain"
    if schema.type == "string" and plain and row_of(source.type).spark == "string":
        return "text"  # however long it may be, and whichever labels it may have
    told = replace(schema, optional=True, default=None, version=None, parameters={})
    return repr((told, sorted(schema.parameters.items()), source.type))


def field_of(
    target: ShapeColumn,
    group: Alike,
    *,
    source_of: Callable[[RecordSchema, WireColumn], SourceColumn],
    all_schemas: Mapping[int, RecordSchema],
) -> FieldOf:
    wire = _named(group.schema, target.name)
    # A key record without a column of the key names no row; the row's own column may hold anything.
    fills = group.schema.kind != "row" and target.default is not None
    filled = _filled(target, group, all_schemas) if fills else ()
    return FieldOf(target, wire, None if wire is None else source_of(group.schema, wire), filled)


def _filled(target: ShapeColumn, group: Alike, schemas: Mapping[int, RecordSchema]) -> tuple[int, ...]:
    """The writers that lack the column, and are from before it."""
    # Registry ids grow: what an earlier schema had and a later one has not was dropped.
    first = min((one for one, schema in schemas.items() if _named(schema, target.name)), default=None)
    return tuple(
        schema_id
        for schema_id, schema in group.members.items()
        if schema.columns and not _named(schema, target.name) and (first is None or schema_id < first)
    )


def source_column(
    schema: RecordSchema, wire: WireColumn, modes: DebeziumModes, defined: Defined
) -> SourceColumn:
    """The column a field of a schema stands for: as it is defined, else as the schema says."""
    return defined.get(wire.field.name) or column_of(wire.field, modes=modes_of(schema, modes))


def modes_of(schema: RecordSchema, modes: DebeziumModes) -> DebeziumModes:
    """The modes of the records of a schema: a topic may hold a connector's records and TiCDC's after them."""
    return modes.of_ticdc() if schema.is_ticdc else modes


def modes_of_keys(values: Iterable[RecordSchema], modes: DebeziumModes) -> DebeziumModes:
    """The modes of a topic's key records, which do not say who wrote them: TiCDC's where a value is."""
    return modes.of_ticdc() if any(schema.is_ticdc for schema in values) else modes


def _named(schema: RecordSchema, name: str) -> WireColumn | None:
    return next((wire for wire in schema.columns if wire.field.name.lower() == name.lower()), None)
