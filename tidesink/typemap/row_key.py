"""TiDB's row key as the key of a table that has none.

A table without a primary key, or a unique key of columns that are not null, is kept by TiDB under a number
of its own, ``_tidb_rowid``. New TiCDC (ticdc b813e76) writes it in canal-json with ``output-row-key`` and the
TiDB extension: ``_tidb.rowkey`` is, in base64, the row's key in TiKV without a keyspace's prefix: ``t``, the
table's id, ``_r``, the row's id. Both ids have 8 bytes, big-endian, the sign bit flipped, so that bytes
compare as the numbers do. The table's id is the partition's in a partitioned table, and another one after
TRUNCATE: the same row id under another table id is another row.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from tidesink.errors import SchemaMismatchError, SchemaRefusedError
from tidesink.events import ColumnType
from tidesink.typemap.shape import ShapeColumn, TableShape

# TiDB lets no column have the first name. It comes first: its range says which files and pages a batch
# concerns, where the table's id is the same in all rows.
ROW_ID: Final = "_tidb_rowid"
TABLE_ID: Final = "_tidb_table_id"
_DEBEZIUM: Final = "Debezium's records have no other: a source position names an event, and no row"
# What a protocol has, beside a key, that tells rows apart: what to say of a table without a key.
IDENTITIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "canal-json": "new TiCDC sends TiDB's row keys, which tell rows apart (output-row-key=true and "
        "enable-tidb-extension=true, in the changefeed and under source)",
        "flat-avro": "flat-avro has nothing else that names a row; new TiCDC's canal-json has, with "
        "output-row-key=true",
        "debezium-avro": _DEBEZIUM,
        "debezium-json": _DEBEZIUM,
    }
)
_FORM: Final = "'t', 8 bytes of the table's id, '_r', 8 bytes of the row's id, in base64"
# 19 bytes: 18 in groups of three, the last one as two characters, the second with four bits.
BASE64_FORM: Final = "^[A-Za-z0-9+/]{25}[AQgw]==$"
_KEY: Final = struct.Struct(">cQ2sQ")
_SIGN: Final = 1 << 63


class RowKey(NamedTuple):
    """Which row of which table, or partition of one."""

    row_id: int
    table_id: int


def parse_row_key(text: object) -> RowKey:
    """What ``_tidb.rowkey`` says.

    Raises:
        SchemaMismatchError: it is not there, or is the key of a row that has no ``_tidb_rowid``.
    """
    if type(text) is not str:
        raise SchemaMismatchError(NO_ROW_KEY)
    if re.fullmatch(BASE64_FORM, text) is None:
        raise SchemaMismatchError(OTHER_ROW_KEY)
    first, table, between, row = _KEY.unpack(base64.b64decode(text))
    if (first, between) != (b"t", b"_r"):
        raise SchemaMismatchError(OTHER_ROW_KEY)
    return RowKey(row - _SIGN, table - _SIGN)


def render_row_key(key: RowKey) -> str:
    """The text of ``_tidb.rowkey``."""
    packed = _KEY.pack(b"t", key.table_id + _SIGN, b"_r", key.row_id + _SIGN)
    return base64.b64encode(packed).decode()


NO_ROW_KEY: Final = (
    "the row has no _tidb.rowkey, and nothing else names a row of a table without a key: set "
    "output-row-key=true and enable-tidb-extension=true in the changefeed, or name columns that tell the "
    "rows apart under tables: keys"
)
OTHER_ROW_KEY: Final = (
    f"_tidb.rowkey is not that of a row with a _tidb_rowid ({_FORM}), as rows of a table without a key have: "
    "where the table has a key, name its columns under tables: keys, or give its definition"
)
# Of a target that writes flat-avro.
NO_FLAT_AVRO: Final = (
    "the table has no key, its rows are told apart by TiDB's row keys, and flat-avro has no place for them: "
    "readers take a field whose name begins with _tidb_ for one of TiCDC's own and no column. Write "
    "canal-json, debezium-json or debezium-avro, or name columns that tell the rows apart under keys"
)
# Of a table that nothing but its rows tells of.
UNTOLD_KEY: Final = (
    "rows are told apart by TiDB's row keys, since no pkNames and no DDL in the topic name a key: if the "
    "table has a unique key of columns that are not null, name it under tables: keys, because the changefeed "
    "may send a row whose key changes to another partition"
)
_WHY: Final = "the table has no key: TiDB's own number of {}, from _tidb.rowkey (output-row-key)"

_BIGINT: Final = ColumnType("bigint", sql="bigint")
ROW_KEY_COLUMNS: Final = tuple(
    ShapeColumn(name, _BIGINT, "bigint", key=True, hidden=True) for name in (ROW_ID, TABLE_ID)
)
WHY_OF: Final = {ROW_ID: _WHY.format("the row"), TABLE_ID: _WHY.format("the table or partition")}


def is_row_keyed(shape: TableShape) -> bool:
    """Whether a shape's rows are told apart by their row keys."""
    return any(column.hidden for column in shape.columns)


def row_keyed(shape: TableShape) -> TableShape:
    """A shape without a key, under the row key.

    Raises:
        SchemaRefusedError: the source has a column of one of the two names.
    """
    taken = [name for name in (ROW_ID, TABLE_ID) if name in shape.by_name]
    if taken:
        raise SchemaRefusedError(
            f"the source has a column {taken[0]}, a name that the row key needs: rename it, or name columns "
            "that tell the rows apart under tables: keys",
            table=str(shape.table),
        )
    return replace(shape, columns=(*ROW_KEY_COLUMNS, *shape.columns), keys=(ROW_ID, TABLE_ID))


def shown_columns(shape: TableShape) -> TableShape:
    """A shape as the source shows it: without its row key, and then without a key."""
    if not is_row_keyed(shape):
        return shape
    return replace(shape, columns=tuple(c for c in shape.columns if not c.hidden), keys=())
