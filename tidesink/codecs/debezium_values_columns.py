"""The column a Connect field stands for: its logical type, its default, whether it may be null.

What the source's own type was is on the wire only where someone asked for it: Debezium's
``column.propagate.source.type`` (``__debezium.source.column.type``) and TiCDC's extension
(``tidb_type``). It tells an unsigned BIGINT from a signed one, and binary from text.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from tidesink.codecs.connect_schema import (
    PRECISION,
    SOURCE_LENGTH,
    SOURCE_SCALE,
    SOURCE_TYPE,
    TIDB_TYPE,
    ConnectField,
    ConnectSchema,
)
from tidesink.codecs.debezium_values_decimals import scale_of, whole_parameter
from tidesink.codecs.debezium_values_modes import DebeziumModes
from tidesink.codecs.debezium_values_wire import wire_reader
from tidesink.errors import DecodeError
from tidesink.events import Column, ColumnType, Value
from tidesink.typemap.debezium_types import PLAIN_TYPES, semantic_type
from tidesink.typemap.render import split_allowed
from tidesink.typemap.table import TypeRow, find_row, row_named

# Debezium's stand-ins for a default that only the database computes, which is far more often the current
# time than the first second of 1970.
_EPOCH_DEFAULTS: Final = frozenset({"1970-01-01 00:00:00+00:00", "1970-01-01 00:00:00", "1970-01-01"})
NOW: Final = "CURRENT_TIMESTAMP"
_MOST_BITS: Final = 64


def column_of(field: ConnectField, *, modes: DebeziumModes) -> Column:
    """The column a field of a row stands for.

    Its type is what the schema tells; where a table definition tells more, values are read with the
    definition's column instead. Key marks are not on a field: the key's schema has them.
    """
    del modes  # a schema says all of it
    return Column(
        name=field.name,
        type=column_type(field.schema),
        nullable=field.schema.optional,
        default=default_text(field.schema),
    )


def column_type(schema: ConnectSchema) -> ColumnType:
    """The logical type of a field's values."""
    own = wire_type(schema)
    source = _source_row(schema)
    if source is None or source.name == own.name:
        return own
    return _of_source(schema, source) or own


def wire_type(schema: ConnectSchema) -> ColumnType:
    """The logical type that a field's schema alone tells, whatever the source called it."""
    semantic = semantic_type(schema.name, schema.type)
    if semantic is None:
        return ColumnType(PLAIN_TYPES[schema.type])
    if semantic.form == "unscaled":
        return _decimal(whole_parameter(schema, PRECISION), scale_of(schema))
    if semantic.form == "bits":
        length = whole_parameter(schema, "length")
        fits = length is None or 0 < length <= _MOST_BITS
        return ColumnType("bit" if fits else "varbinary", length=length)
    if semantic.type in ("enum", "set"):
        allowed = schema.parameters.get("allowed")
        return ColumnType(semantic.type, members=split_allowed(allowed) if allowed is not None else None)
    return ColumnType(semantic.type, fsp=semantic.fsp)


def _decimal(precision: int | None, scale: int | None) -> ColumnType:
    # Oracle's NUMBER(5,-2) has seven digits, the last two of them zeros.
    if precision is not None and scale is not None and scale < 0:
        return ColumnType("decimal", precision=precision - scale, scale=0)
    return ColumnType("decimal", precision=precision, scale=scale)


def _source_row(schema: ConnectSchema) -> TypeRow | None:
    word = schema.parameters.get(TIDB_TYPE, schema.parameters.get(SOURCE_TYPE))
    return find_row(word.lower().strip()) if word is not None else None


def _of_source(schema: ConnectSchema, source: TypeRow) -> ColumnType | None:
    """The source's own type, where the wire's values can be read as its values without a loss."""
    if schema.type not in _CARRIED.get(source.reader, ()):
        return None
    if source.reader == "decimal":
        precision, scale = whole_parameter(schema, SOURCE_LENGTH), whole_parameter(schema, SOURCE_SCALE)
        return _decimal(precision, scale) if schema.name is None else None
    return ColumnType(source.name, length=whole_parameter(schema, SOURCE_LENGTH))


# The Connect types in which the values of a reader's types arrive whole.
_CARRIED: Final[dict[str, tuple[str, ...]]] = {
    "integer": ("int8", "int16", "int32", "int64"),
    "unsigned64": ("int64", "bytes", "string"),
    "binary": ("bytes", "string"),
    "text": ("string",),
    "decimal": ("string",),
}


def default_text(schema: ConnectSchema) -> str | None:
    """A column's default as ``Column`` has it; None where there is none, or none that can be read."""
    if schema.default is None:
        return None
    try:
        value = wire_reader(schema)(schema.default)
    except DecodeError:
        # A default only fills rows from before the column: no reason to refuse those that have a value.
        return None
    return NOW if value in _EPOCH_DEFAULTS else _as_text(value, row_named(wire_type(schema).name))


def _as_text(value: Value, row: TypeRow) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, int) and row.reader == "bit":
        return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big").decode("latin-1")
    return value if value is None else str(value)
