"""Warnings that ``tidesink plan`` and ``status`` show about facts that a connector's records do not contain.

Each warning names its columns, and the setting at the connector or the source that fixes the problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from tidesink.codecs.debezium.envelope import POSTGRES, TICDC
from tidesink.errors import VALUES_STAY
from tidesink.events import Column
from tidesink.typemap.table import type_words

_FOREIGN: Final = (
    "Column {}: its Connect schema has the name {}, which tidesink does not know. Its values "
    "are read as {}, according to their Kafka Connect type. If this is not their meaning, "
    "define the table under tables."
)
# The fraction digits that only NanoTimestamp has.
_NANO_DIGITS: Final = 9
_NANO: Final = (
    "Columns {}: their records have the type NanoTimestamp, which counts nanoseconds in 64 "
    "bits. A date before 1677-09-21 or after 2262-04-11 overflows at the connector and "
    "arrives as another date. If the table has such dates (9999-12-31), set "
    "time.precision.mode to microseconds or isostring at the connector, or declare fewer "
    "fraction digits in the source table."
)
_DEFAULTS: Final = (
    "Columns {}: they allow NULL and have a default. With the converter's default settings, "
    "NULL arrives as the default, and the record does not show the difference. Set "
    "replace.null.with.default=false (JsonConverter) or ignore.default.for.nullables=true "
    "(AvroConverter) for the key and the value converter. Rows that tidesink reads from the "
    "database have NULL, so `tidesink diff` reports these rows as different."
)
_SHAPES: Final = (
    "Columns {}: if an update does not change a geometry that is stored out of line (TOAST), "
    "the connector does not send it. The geometry then arrives as NULL, or as an empty "
    "geometry in a NOT NULL column, and the record does not show the difference. Set REPLICA "
    "IDENTITY FULL on the table."
)
_KEY: Final = (
    "Columns {}: they are the key of the table's records. If message.key.columns at the "
    "connector contains a column that is not in the table's replica identity, a deleted row "
    "arrives with NULL or zero in this column, and the record does not show the difference. "
    "The delete is then applied to another row. If the columns are the primary key or the "
    "replica identity, list them under tables: keys to confirm this, or set source.database."
)
# The field that ByLogicalTableRouter adds to the keys of the tables that it routes into one topic.
ROUTED: Final = "__dbz__physicalTableIdentifier"
_SHAPE_TYPES: Final = ("geometry", "geography")
_GONE: Final = (
    "Columns {}: older records have them, but the newest records do not, so new rows have "
    "NULL in them. They were dropped at the source, or they are generated columns, which "
    "PostgreSQL's connector sends only in its snapshot. Exclude these columns "
    f"(except_column_list, or column.exclude.list at the connector): {VALUES_STAY}."
)


def column_remarks(
    columns: Iterable[Column],
    *,
    connector: str = "",
    keys: Iterable[str] = (),
    gone: Iterable[str] = (),
    is_confirmed: bool = False,
) -> Iterator[str]:
    """Yields the warnings for a table whose newest records have these columns.

    ``connector``: the connector's name in the source block; empty if unknown. ``keys``: names of the key
    columns. ``gone``: names of columns that only older records have. ``is_confirmed``: True if it is
    confirmed that Postgres sends the key columns of a deleted row.
    """
    listed, in_key = tuple(columns), set(keys)
    for column in listed:
        if column.type.named is not None:
            yield _FOREIGN.format(column.name, column.type.named, type_words(column.type))
    yield from _named(_NANO, (c.name for c in listed if _is_nano(c)))
    if connector != TICDC:
        defaulted = (c for c in listed if c.nullable and c.default is not None and c.name not in in_key)
        yield from _named(_DEFAULTS, (c.name for c in defaulted))
    if connector == POSTGRES:
        yield from _named(_SHAPES, (c.name for c in listed if c.type.name in _SHAPE_TYPES))
        yield from () if is_confirmed else key_remark(keys)
    yield from _named(_GONE, gone)


def key_remark(keys: Iterable[str]) -> Iterator[str]:
    """Yields the warning that a delete from a Postgres table may lack key columns of the deleted row.

    For a key of one column, nothing is yielded: if such a key was not sent, decoding the delete raises an
    error. The key field that ``ByLogicalTableRouter`` adds is not counted, because it is not a column of the
    table.
    """
    named = tuple(name for name in keys if name != ROUTED)
    if len(named) > 1:
        yield from _named(_KEY, named)


def routed_field(added: Collection[str]) -> str:
    """Returns words for a message that name the key field which ``ByLogicalTableRouter`` adds.

    ``added``: names of the columns that only the records' keys have. If it is empty, the words contain the
    field's default name.
    """
    return f"key.field.name: {', '.join(sorted(added))}" if added else f"key.field.name, {ROUTED} by default"


def has_required_shapes(columns: Iterable[Column]) -> bool:
    """Returns True if a PostGIS column is NOT NULL.

    In such a column an update may contain a placeholder for a geometry that the connector did not send.
    """
    return any(column.type.name in _SHAPE_TYPES and not column.nullable for column in columns)


def _is_nano(column: Column) -> bool:
    return column.type.name == "local datetime" and column.type.fsp == _NANO_DIGITS


def _named(text: str, names: Iterable[str]) -> Iterator[str]:
    joined = ", ".join(names)
    if joined:
        yield text.format(joined)
