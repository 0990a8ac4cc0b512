"""Rows that were cut down to their handle key, made whole from the upstream.

TiCDC (tiflow c7b2588, ticdc b813e76) writes a row that is too large again with the columns of its handle
key alone, and ``_tidb.onlyHandleKey``. The new row is the upstream's at the commit_ts, the old one of an
update that just before it. A delete needs no more than the key that it has, unless the reader goes by
another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tidesink.codecs.upstream import Texts, UpstreamRow
from tidesink.errors import RowUnavailableError, SchemaMismatchError
from tidesink.events import ColumnType, TableId
from tidesink.typemap.render import mysql_type_text, mysql_type_word

Parsed = dict[str, Any]

_NO_UPSTREAM = (
    "the row was too large and was cut down to its handle key (large-message-handle-option: "
    "handle-key-only), its other columns are not in the topic: give upstream-url, so that they are read from "
    "TiDB, or raise max-message-bytes in the changefeed"
)


class RowsAtCommit(Protocol):
    """What answers for a row as it was; ``Upstream`` does."""

    def row(self, table: TableId, key: Texts, *, commit_ts: int) -> UpstreamRow:
        """The row that a key names, as it was at ``commit_ts``."""


def completed(
    parsed: Parsed, upstream: RowsAtCommit | None, *, key: Sequence[str] = (), full_types: bool = False
) -> Parsed:
    """A message as it would have been, had its row not been too large.

    ``key``: the columns the reader needs of a delete, beside the handle key. ``full_types``: the topic is
    content-compatible, where the message's own words do not tell.

    Raises:
        RowUnavailableError: there is no upstream, or no such row there.
        SchemaMismatchError: a member that is not what it should be.
        SourceUnavailableError: the upstream does not answer.
    """
    kind, data = parsed["type"], _only_row(parsed, "data")
    deletes = kind == "DELETE"
    if deletes and (upstream is None or {*map(str.casefold, key)} <= {*map(str.casefold, data)}):
        return parsed
    if upstream is None:
        raise RowUnavailableError(_NO_UPSTREAM)
    table, commit_ts = _table(parsed), _commit_ts(parsed)
    found = upstream.row(table, _texts(data), commit_ts=commit_ts - 1 if deletes else commit_ts)
    old = None
    if kind == "UPDATE":
        before = {**data, **_only_row(parsed, "old")}
        was = upstream.row(table, _texts(before), commit_ts=commit_ts - 1).texts
        old = [{name: text for name, text in was.items() if name in found.texts}]
    members = {name: value for name, value in parsed["_tidb"].items() if name != "onlyHandleKey"}
    words = _words(found.types, full=full_types or _has_full_types(parsed))
    return {
        **parsed,
        "data": [found.texts],
        "old": old,
        "sqlType": None,
        "mysqlType": words,
        "_tidb": members,
    }


def _only_row(parsed: Parsed, member: str) -> dict[str, Any]:
    rows = parsed.get(member)
    if type(rows) is not list or len(rows) != 1 or type(rows[0]) is not dict:
        raise SchemaMismatchError(f"{member!r} of a row cut down to its handle key must hold one object")
    return rows[0]


def _texts(row: Mapping[str, Any]) -> Texts:
    for name, text in row.items():
        if text is not None and type(text) is not str:
            raise SchemaMismatchError("canal-json values are text or null", column=name)
    return row


def _table(parsed: Parsed) -> TableId:
    database, name = parsed.get("database"), parsed.get("table")
    if not (type(database) is str and type(name) is str and database and name):
        raise SchemaMismatchError("the message names no table: 'database' and 'table' must be text")
    return TableId(database, name)


def _commit_ts(parsed: Parsed) -> int:
    value = parsed["_tidb"].get("commitTs")
    if type(value) is not int or not 0 < value < 2**63:
        raise SchemaMismatchError("a row cut down to its handle key needs '_tidb.commitTs'")
    return value


def _has_full_types(parsed: Parsed) -> bool:
    words = parsed.get("mysqlType")
    return type(words) is dict and any("(" in word for word in words.values() if type(word) is str)


def _words(types: Mapping[str, ColumnType], *, full: bool) -> dict[str, str]:
    return {name: _word(column_type, full=full) for name, column_type in types.items()}


def _word(column_type: ColumnType, *, full: bool) -> str:
    text = mysql_type_text(column_type) if full else None
    return mysql_type_word(column_type) if text is None else text
