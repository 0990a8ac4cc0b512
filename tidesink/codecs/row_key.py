"""Events of tables without a key, named by TiDB's row key where canal-json carries it."""

from __future__ import annotations

from collections.abc import Mapping

from tidesink.events import ChangeEvent, Row
from tidesink.typemap.target_schema import ROW_ID, TABLE_ID, RowKey, parse_row_key


def row_key_of(event: ChangeEvent) -> RowKey:
    """The row key that a canal-json event carries (``output-row-key``, new TiCDC).

    Raises:
        SchemaMismatchError: it carries none, or that of a table with a clustered key.
    """
    members = (event.extension or {}).get("_tidb")
    return parse_row_key(members.get("rowkey") if isinstance(members, Mapping) else None)


def keyed_by_row(event: ChangeEvent) -> ChangeEvent:
    """The event with its row key as key, and in both images: as workers keep tables without a key.

    An update never changes the row key, and its old row has the same one.

    Raises:
        SchemaMismatchError: as ``row_key_of``.
    """
    found = row_key_of(event)
    key: Row = {ROW_ID: found.row_id, TABLE_ID: found.table_id}
    before, after = (row if row is None else {**key, **row} for row in (event.before, event.after))
    return event._replace(key=key, before=before, after=after)
