"""Plans of debezium-json tables: from the schemas in the records, a definition, and what rows told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.columns_debezium_alike import SOURCE_MEMBERS
from tidesink.codecs.columns_debezium_json import DebeziumJsonColumns
from tidesink.codecs.columns_debezium_json_judge import Judging
from tidesink.codecs.columns_debezium_json_record import json_records
from tidesink.codecs.columns_debezium_json_schema import JsonSchema, is_flattened_head, read_heads
from tidesink.codecs.columns_debezium_readers import Defined, modes_of_keys, source_column
from tidesink.codecs.columns_debezium_record import SOURCE_AND_POSITION
from tidesink.codecs.columns_debezium_schema import gone_columns
from tidesink.errors import ConfigError
from tidesink.events import Column as SourceColumn
from tidesink.events import TableId, TableSchema
from tidesink.typemap.render import ZeroDate
from tidesink.typemap.target_schema import (
    IDENTITIES,
    TableShape,
    merge_shape,
    merged_in_order,
    shape_of,
    with_defaults,
)

_NO_OPTIONS: Final = CodecOptions()
_NO_KEY: Final = (
    "{} has no key record in its topic, so nothing says which row a change is about: name its key columns "
    "under tables: keys, set message.key.columns at the connector, or set mode: append to keep its changes; "
    f"{IDENTITIES['debezium-json']}"
)


def debezium_json_columns(  # noqa: PLR0913  (all that a plan rests on)
    table: TableId,
    *,
    key_heads: Sequence[str] = (),
    value_heads: Sequence[str] = (),
    told: Sequence[SourceColumn] = (),
    told_keys: tuple[str, ...] = (),
    base: TableShape | None = None,
    definition: TableSchema | None = None,
    keys: tuple[str, ...] | None = None,
    zero_date: ZeroDate = "null",
    time_zone: str = "UTC",
    options: CodecOptions = _NO_OPTIONS,
    judges: bool = True,
    logs: bool = False,
    positions: bool = False,
) -> DebeziumJsonColumns:
    """A plan for a table from the schemas that stand in its records, oldest first.

    ``key_heads`` and ``value_heads`` are what stands around payloads: all of a record up to its payload,
    ``{"schema":…,"payload":``, or, where the payload comes first, all behind it, ``,"schema":…}``. ``told``
    are columns that rows without a schema have, ``told_keys`` those of their key. ``base`` is the shape the
    target has; it is only added to. ``keys`` override the key record's columns, ``definition`` the types.
    ``judges``: see the module ``columns_debezium_json``. ``logs``, ``positions``: see
    ``DebeziumJsonColumns``; a table needs no key in a plan that ``logs``.

    Raises:
        ConfigError: the table has no key, or ``keys`` names a column it does not have.
        SchemaRefusedError: two schemas have types for a column that cannot be one.
    """
    key_schemas, value_schemas = read_heads(key_heads, key=True), read_heads(value_heads, key=False)
    rows = {number: one for number, one in value_schemas.items() if one.kind == "envelope"}
    modes = options.debezium
    key_modes = modes_of_keys(value_schemas.values(), modes)
    defined: Defined = definition.by_name if definition is not None else {}
    found = [tuple(source_column(one, wire, modes, defined) for wire in one.columns) for one in rows.values()]
    if not found and definition is not None:
        found.append(definition.columns)
    if told:
        found.append(tuple(defined.get(column.name, column) for column in told))
    if not found:
        raise ConfigError(f"{table} has no record of a row yet: nothing can be planned", table=str(table))
    named = keys or (base.keys if base else None) or _key_names(key_schemas, told_keys, definition)
    if not (named or logs):
        raise ConfigError(_NO_KEY.format(table), table=str(table))
    shapes = [
        shape_of(TableSchema(table, columns), keys=named, zero_date=zero_date, time_zone=time_zone)
        for columns in found
    ]
    whole = merged_in_order(shapes)
    shape = whole if base is None else merge_shape(with_defaults(base, whole), whole)
    flattened = any(is_flattened_head(head) for head in value_heads)
    unwrapped = options.debezium_unwrapped or flattened
    source = SOURCE_AND_POSITION if positions else SOURCE_MEMBERS
    records = json_records(value_schemas, shape, "value", modes=modes, defined=defined, source=source)
    return DebeziumJsonColumns(
        shape,
        json_records(key_schemas, shape, "key", modes=key_modes, defined=defined),
        tuple(record for record in records if not record.is_control),
        tuple(record for record in records if record.is_control),
        key_schemas,
        value_schemas,
        Judging(shape, replace(options, debezium_unwrapped=unwrapped), definition, logs, positions),
        judges=judges or not rows,
        own_key=keys is None,
        # What rows without a schema have is not known until they are read.
        gone=frozenset() if told or definition is not None else gone_columns(shape, rows),
        logs=logs,
        positions=positions,
    )


def plans_rows(value_heads: Sequence[str]) -> bool:
    """Whether rows can be planned from the schemas alone: one of them is of rows."""
    return any(schema.columns for schema in read_heads(value_heads, key=False).values())


def _key_names(
    schemas: Mapping[int, JsonSchema], told: tuple[str, ...], definition: TableSchema | None
) -> tuple[str, ...]:
    """The key's columns: the key records' first, else what keys without a schema have, else as defined."""
    for _, schema in sorted(schemas.items()):
        if schema.columns:
            return tuple(wire.field.name for wire in schema.columns)
    return told or (tuple(column.name for column in definition.handle_columns) if definition else ())
