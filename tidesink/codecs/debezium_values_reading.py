"""Readers of Debezium's values: a column and its Connect schema to a function of the wire's values."""

from __future__ import annotations

from collections.abc import Callable

from tidesink.codecs.connect_schema import ConnectSchema
from tidesink.codecs.debezium_values_columns import wire_type
from tidesink.codecs.debezium_values_decimals import scale_of
from tidesink.codecs.debezium_values_fit import fitting
from tidesink.codecs.debezium_values_modes import UNAVAILABLE, DebeziumModes, Unavailable
from tidesink.codecs.debezium_values_unavailable import placeholders
from tidesink.codecs.debezium_values_wire import wire_reader
from tidesink.errors import DecodeError
from tidesink.events import Column, Value
from tidesink.typemap.table import row_of

ValueReader = Callable[[object], "Value | Unavailable"]


def value_of(
    schema: ConnectSchema, raw: object, *, column: Column, modes: DebeziumModes
) -> Value | Unavailable:
    """One value. See ``reader_of``."""
    return reader_of(schema, column=column, modes=modes)(raw)


def reader_of(schema: ConnectSchema, *, column: Column, modes: DebeziumModes) -> ValueReader:
    """A reader of one column's values on the wire.

    ``column`` is ``column_of`` the field, or the column of a table definition. The reader takes what
    fastavro or a JSON parser gives (numbers with a fraction as Decimal), and gives ``UNAVAILABLE`` for a
    value that the connector could not have: what is stored stays.

    The reader raises ValueOutOfRangeError for a value the column cannot hold and SchemaMismatchError for
    one of another kind; both name the column.
    """
    absent = placeholders(schema, modes)
    read = wire_reader(schema)
    fit = None if has_own_type(schema, column) else fitting(column.type, modes)

    def value(raw: object) -> Value | Unavailable:
        if raw is None:
            return None
        if raw in absent:
            return UNAVAILABLE
        try:
            found = read(raw)
            return found if fit is None else fit(found)
        except DecodeError as error:
            raise error.with_context(column=column.name) from None

    return value


def has_own_type(schema: ConnectSchema, column: Column) -> bool:
    """Whether the column has the type the schema tells, so that no value needs to be fitted to it."""
    own, defined = wire_type(schema), column.type
    if own.name != defined.name:
        return False
    if row_of(own).reader == "bit":
        return own.length == defined.length
    if row_of(own).reader != "decimal":
        return True
    # A reader of a decimal of another form, or of a scale below zero, does not bring it to the column's.
    same = (own.precision, own.scale) == (defined.precision, defined.scale)
    return same and schema.type == "bytes" and _scale_is_kept(schema)


def _scale_is_kept(schema: ConnectSchema) -> bool:
    return (scale_of(schema) or 0) >= 0
