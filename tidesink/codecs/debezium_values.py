"""Debezium's values: from a Connect schema and what stands on the wire to a column and its value.

Written from Debezium 3.5 (real events of MariaDB and PostgreSQL), its documentation for what no capture
shows (Oracle, SQL Server), and TiCDC's ``debezium`` and ``debezium-avro`` (b813e76).

With a schema: ``column_of`` a field, then ``reader_of`` once for the column and its function for each
value (``value_of`` does both). Without one: ``definition_reader`` with a table definition's columns, or
``infer_column`` and ``inferred_value`` where there is none.
"""

from __future__ import annotations

from tidesink.codecs.debezium_values_columns import column_of
from tidesink.codecs.debezium_values_modes import UNAVAILABLE, DebeziumModes, Unavailable
from tidesink.codecs.debezium_values_plain import (
    definition_reader,
    infer_column,
    inferred_value,
    value_of_definition,
)
from tidesink.codecs.debezium_values_reading import ValueReader, reader_of, value_of

__all__ = [
    "UNAVAILABLE",
    "DebeziumModes",
    "Unavailable",
    "ValueReader",
    "column_of",
    "definition_reader",
    "infer_column",
    "inferred_value",
    "reader_of",
    "value_of",
    "value_of_definition",
]
