"""Connect schemas and readings for the tests of Debezium's values."""

from __future__ import annotations

import base64
from typing import Any

from tidesink.codecs.debezium.connect_schema import ConnectField, ConnectSchema
from tidesink.codecs.debezium.readers import definition_reader, reader_of
from tidesink.codecs.debezium.values import column_of
from tidesink.codecs.options import DebeziumModes
from tidesink.events import Column, ColumnType

MODES = DebeziumModes()
TIME = "io.debezium.time."
DATA = "io.debezium.data."
CONNECT = "org.apache.kafka.connect.data."


def schema(kind: Any, name: str | None = None, **more: Any) -> ConnectSchema:
    """A schema whose other members are keyword arguments; ``parameters`` may be numbers."""
    parameters = {key: str(one) for key, one in more.pop("parameters", {}).items()}
    parts: dict[str, Any] = {"optional": True} | more
    return ConnectSchema(kind, name, parameters=parameters, **parts)


def decimal(precision: int | None, scale: int) -> ConnectSchema:
    """The schema of a DECIMAL."""
    parameters: dict[str, Any] = {"scale": scale}
    if precision is not None:
        parameters["connect.decimal.precision"] = precision
    return schema("bytes", CONNECT + "Decimal", parameters=parameters)


def own_column(one: ConnectSchema) -> Column:
    """The column a schema tells by itself."""
    return column_of(ConnectField("c", one, "c"))


def read(one: ConnectSchema, raw: object, modes: DebeziumModes = MODES) -> Any:
    """A value of the column a schema tells by itself."""
    return reader_of(one, column=own_column(one), modes=modes)(raw)


def read_as(type_: ColumnType, one: ConnectSchema, raw: object, modes: DebeziumModes = MODES) -> Any:
    """A value of a column that a table definition states."""
    return reader_of(one, column=Column("c", type_), modes=modes)(raw)


def value_of_definition(column: Column, raw: object, *, modes: DebeziumModes) -> Any:
    """A value of plain JSON, of a column that a table definition states."""
    return definition_reader(column, modes=modes)(raw)


def b64(data: bytes) -> str:
    """Bytes as JsonConverter writes them."""
    return base64.b64encode(data).decode("ascii")
