"""The old row of Debezium's records, and what happened to it, for tables in mode ``append``."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_debezium_json_record import JsonRecord
from tidesink.codecs.columns_debezium_record import Images, RecordColumns
from tidesink.codecs.columns_debezium_schema import WireColumn, is_spark_decimal
from tidesink.codecs.columns_faults import any_of, first_fault
from tidesink.codecs.columns_types import lit_binary
from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.codecs.debezium.envelope import POSTGRES
from tidesink.codecs.debezium.scalars import scale_of
from tidesink.typemap.target_schema import TableShape

# ``r`` is a row as a snapshot found it: whether it is new at the target nothing tells.
_CHANGES: Final = {"c": "insert", "u": "update", "d": "delete", "r": "upsert"}
# How the zero of a type looks as text: the connector's fallback for a NOT NULL column it was not sent.
_NESTED: Final = frozenset({"array", "map", "struct"})
_BLANK_JSON: Final = ("[]", "{}", '{"scale":0,"value":"AA=="}')
_EXACT: Final = Context(prec=100)
_ZEROS: Final = ("", "AA==", "1970-01-01T00:00:00Z", "00:00:00Z", "0")


def prepared_before(records: Sequence[RecordColumns]) -> list[Column]:
    """The columns of old rows that are worked out before the others."""
    return [column for record in records for column in record.before().prepared()]


def logged_before(
    records: Sequence[RecordColumns], shape: TableShape, keys: Sequence[RecordColumns]
) -> dict[str, Column]:
    """``before_image`` and ``before_kept``.

    ``keys`` are the readers of the key records: of a Postgres table without REPLICA IDENTITY FULL the old row
    has the columns of its key alone, and then no row is known.
    """
    olds = [record.before() for record in records]
    named = frozenset(wire.field.wire for record in keys for wire in record.schema.columns)
    alone = [_is_key_alone(old, named) for old in olds] if named else []
    whole = ~any_of(alone)
    return {
        "before_image": F.when(whole, Images(olds).struct(shape.ddl)),
        "before_kept": Images(olds).kept(),
    }


def change_word() -> Column:
    """What happened to the row, by the envelope's ``op``."""
    said = F.col("op")
    return F.coalesce(*(F.when(said == op, F.lit(word)) for op, word in _CHANGES.items()))


def before_fault(records: Sequence[RecordColumns]) -> Column:
    """The first value of the old row that could not be read, where there is one."""
    faults = Images([record.before() for record in records]).faults("before_image")
    return F.when(F.col("before_image").isNotNull(), first_fault(faults))


def _is_key_alone(old: RecordColumns, named: frozenset[str]) -> Column:
    """Whether a Postgres table's old row has nothing but the columns of its key; never null.

    The others are then null, or, where they are NOT NULL, their default or their type's zero.
    """
    postgres = old.column.getField("source").getField("connector") == POSTGRES
    others = [wire for wire in old.schema.columns if wire.field.wire not in named]
    said = any_of(~_is_blank_in(old, wire) for wire in others) if others else F.lit(True)
    there = old.row.isNotNull() & F.col("key_bytes").isNotNull()
    return F.coalesce(there & postgres & ~said, F.lit(False))


def _is_blank_in(old: RecordColumns, wire: WireColumn) -> Column:
    value, schema = old.row.getField(wire.wire), wire.field.schema
    if isinstance(old, JsonRecord) and schema.type in _NESTED:
        return value.isNull() | value.isin(*_BLANK_JSON)  # its JSON's own text
    return _is_blank(value, schema)


def _is_blank(value: Column, schema: ConnectSchema) -> Column:
    blank = value.isNull() | _BLANK.get(schema.type, _is_zero)(value, schema)
    default = _default(schema)
    return F.coalesce(blank if default is None else blank | (value == default), F.lit(False))


def _default(schema: ConnectSchema) -> Column | None:
    """A scalar's default as the frame has its values; Avro has bytes as they are, JSON in base64."""
    default = schema.default
    if schema.type == "bytes" and isinstance(default, str | bytes):
        data = default if isinstance(default, bytes) else base64.b64decode(default)
        if not is_spark_decimal(schema):
            return lit_binary(data)
        whole = int.from_bytes(data, "big", signed=True)
        return F.lit(Decimal(whole).scaleb(-(scale_of(schema) or 0), _EXACT))
    return F.lit(default) if isinstance(default, str | int | float) else None


def _is_zero(value: Column, _schema: ConnectSchema) -> Column:
    return value == F.lit(0)


def _is_empty(value: Column, _schema: ConnectSchema) -> Column:
    return F.size(value) == 0


def _is_blank_text(value: Column, _schema: ConnectSchema) -> Column:
    return value.isin(*_ZEROS)


def _is_blank_bytes(value: Column, schema: ConnectSchema) -> Column:
    return _is_zero(value, schema) if is_spark_decimal(schema) else value.isin(*map(lit_binary, (b"", b"\0")))


def _is_false(value: Column, _schema: ConnectSchema) -> Column:
    return ~value


def _is_blank_struct(value: Column, schema: ConnectSchema) -> Column:
    parts = (_is_blank(value.getField(one.wire), one.schema) for one in schema.fields)
    return reduce(Column.__and__, parts, F.lit(True))


_BLANK: Final[Mapping[str, Callable[[Column, ConnectSchema], Column]]] = {
    "string": _is_blank_text,
    "bytes": _is_blank_bytes,
    "boolean": _is_false,
    "array": _is_empty,
    "map": _is_empty,
    "struct": _is_blank_struct,
}
