"""Debezium's envelope to row changes: ``before``, ``after``, ``source``, ``op``.

Sources: Debezium 3.5.0.Final (captured events of MariaDB and Postgres in every handling mode); TiCDC new
architecture (b813e76), whose envelopes are the same but for its own ``source``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tidesink.codecs.connect_schema import ConnectSchema
from tidesink.codecs.debezium_parsed import Parsed
from tidesink.codecs.debezium_rows import RowRead, Rows
from tidesink.codecs.debezium_source import (
    MONGODB,
    POSTGRES,
    Source,
    commit_ts_of_source,
    connector_of,
    position_of_source,
    table_of_source,
)
from tidesink.codecs.nesting import kept
from tidesink.errors import SchemaMismatchError, shown
from tidesink.events import (
    UNAVAILABLE,
    ChangeEvent,
    Column,
    ColumnType,
    Message,
    Op,
    Position,
    SchemaIds,
    TableId,
)

# A snapshot's read may meet a row that is there already (incremental, or taken again): an upsert.
OPS: Final[Mapping[object, Op]] = {
    "c": Op.INSERT,
    "r": Op.UPSERT,
    "u": Op.UPDATE,
    "d": Op.DELETE,
    "t": Op.TRUNCATE,
}
DOCUMENT: Final = "document"
_DOCUMENT_COLUMN: Final = Column(DOCUMENT, ColumnType("json"))
_CHANGED_KEYS: Final = {"__debezium.newkey": "newkey", "__debezium.oldkey": "oldkey"}
_EMPTY: Final = RowRead({}, ())


class Keyed(NamedTuple):
    """The Kafka key of a record, as a row; ``row`` is None where it has none.

    ``wires`` are its columns' names on the wire.
    """

    row: dict[str, Any] | None
    read: RowRead
    wires: frozenset[str] = frozenset()
    schema_id: int | None = None


class Change(NamedTuple):
    """What a record says happened; ``raw_before`` is the old row as the wire has it."""

    op: Op
    table: TableId
    keyed: Keyed
    source: Source
    before: RowRead | None
    after: RowRead | None
    extension: dict[str, object]
    raw_before: Mapping[str, Any] | None = None
    row_schema: ConnectSchema | None = None
    schema_id: int | None = None


def is_envelope(payload: Mapping[str, Any]) -> bool:
    """Whether a payload has what every envelope has: an ``op`` and a ``source`` block."""
    return isinstance(payload.get("op"), str) and isinstance(payload.get("source"), Mapping)


def read_key(key: Parsed | None, table: TableId, rows: Rows) -> Keyed:
    """The Kafka key, whose columns are the table's key.

    Raises:
        DecodeError: it is no row.
    """
    if key is None or key.payload is None:
        return Keyed(None, _EMPTY)
    read = rows.read(key.payload, key.schema, table)
    return Keyed(read.values or None, read, frozenset(key.payload), key.schema_id)


def envelope_event(message: Message, value: Parsed, key: Parsed | None, rows: Rows) -> ChangeEvent:
    """The row change in an envelope.

    Raises:
        SchemaMismatchError: the envelope is none, or lacks the image its ``op`` promises.
        ValueOutOfRangeError: a value its column cannot hold.
    """
    payload: Mapping[str, Any] = value.payload
    source: Source = payload["source"]
    op = OPS.get(payload["op"])
    if op is None:
        raise SchemaMismatchError(f"op is {shown(payload['op'], 40)}: none of {', '.join(map(str, OPS))}, m")
    table = table_of_source(source)
    if not table.name:
        raise SchemaMismatchError("the source block names no table: is this a row change of Debezium?")
    keyed = read_key(key, table, rows)
    before, after = (_image(value, part, keyed, table, rows) for part in ("before", "after"))
    if op not in (Op.TRUNCATE, Op.DELETE) and after is None:
        raise SchemaMismatchError(f"an event with op {payload['op']} has no after")
    change = Change(
        op=op,
        table=table,
        keyed=keyed,
        source=source,
        before=before,
        after=after,
        extension=_extension(message, payload),
        raw_before=payload.get("before") if before else None,
        row_schema=_image_schema(value.schema, "before"),
        schema_id=value.schema_id,
    )
    return change_event(message, change, rows)


def change_event(message: Message, change: Change, rows: Rows) -> ChangeEvent:
    """An event out of what was read: names of what the source did not send go to the extension."""
    keyed, after = change.keyed, change.after
    columns = (after or change.before or keyed.read).columns
    if after is not None and after.unavailable:
        change.extension[UNAVAILABLE] = after.unavailable
    ids = SchemaIds(keyed.schema_id, change.schema_id)
    source = position_of_source(change.source)
    return ChangeEvent(
        op=change.op,
        table=change.table,
        key=keyed.row,
        before=_old_row(change),
        after=None if after is None or change.op is Op.DELETE else after.values,
        commit_ts=commit_ts_of_source(change.source),
        position=Position(message.topic, message.partition, message.offset, 0, source),
        schema=rows.table_schema(change.table, columns, tuple(keyed.row or ())) if columns else None,
        schema_id=None if ids == (None, None) else ids,
        extension=change.extension or None,
    )


def _image(value: Parsed, part: str, keyed: Keyed, table: TableId, rows: Rows) -> RowRead | None:
    raw = value.payload.get(part)
    if connector_of(value.payload["source"]) == MONGODB:
        return _document(raw, part, value.payload, keyed)
    return None if raw is None else rows.read(raw, _image_schema(value.schema, part), table)


def _document(raw: object, part: str, payload: Mapping[str, Any], keyed: Keyed) -> RowRead | None:
    """MongoDB's image: the whole document as JSON text, beside the key's columns.

    An update whose document was not looked up has none: what is stored is to be kept.
    """
    columns = (*keyed.read.columns, _DOCUMENT_COLUMN)
    if isinstance(raw, str):
        return RowRead({**keyed.read.values, DOCUMENT: raw}, columns)
    if raw is not None:
        raise SchemaMismatchError(f"the {part} of a MongoDB event is {shown(raw)}: JSON text was expected")
    if part == "after" and payload["op"] == "u":
        return RowRead(dict(keyed.read.values), columns, (DOCUMENT,))
    return None


def _image_schema(schema: ConnectSchema | None, part: str) -> ConnectSchema | None:
    if schema is None:
        return None
    found = schema.field(part)
    if found is None or found.type != "struct":
        raise SchemaMismatchError(f"the envelope's schema has no struct {part!r}")
    return found


def _extension(message: Message, payload: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {"op": payload["op"], "source": kept(dict(payload["source"]), "source")}
    for name in ("ts_ms", "transaction", "updateDescription"):
        if payload.get(name) is not None:
            found[name] = kept(payload[name], name)
    for name, value in message.headers:
        if name in _CHANGED_KEYS and value is not None:
            found[_CHANGED_KEYS[name]] = value.decode("utf-8", "replace")
    return found


def _old_row(change: Change) -> dict[str, Any] | None:
    """The old row as far as the source sent it; a delete without one has its key."""
    keyed, before = change.keyed, change.before
    if before is None or keyed.row is None:
        return keyed.row if change.op is Op.DELETE and before is None else before and before.values
    if connector_of(change.source) == POSTGRES and _is_key_alone(change):
        return {name: before.values[name] for name in keyed.row if name in before.values}
    return before.values


def _is_key_alone(change: Change) -> bool:
    """Whether a Postgres table's old row has only its key (REPLICA IDENTITY DEFAULT or an index).

    The other columns are then null, or, where they are NOT NULL, their default or their type's zero. A
    schema tells the defaults: all must be such. Without one a delete with any such column counts as cut
    down, since a default cannot be told from a value; an update, whose old row most often is whole, only
    where all are.
    """
    schema, raw = change.row_schema, change.raw_before or {}
    others = [name for name in raw if name not in change.keyed.wires]
    if schema is None:
        blank = [is_blank(raw[name]) for name in others]
        return any(blank) if change.op is Op.DELETE else all(blank)
    defaults = {field.wire: field.schema.default for field in schema.fields}
    return all(is_blank(raw[name]) or raw[name] == defaults.get(name) for name in others)


# How each type's zero looks on the wire: Debezium's fallback for a NOT NULL column it was not sent.
ZEROS: Final = ("", b"", b"\0", "AA==", "1970-01-01T00:00:00Z", "00:00:00Z", "0")


def is_blank(raw: object) -> bool:
    """Whether a value on the wire is null or its type's zero."""
    if isinstance(raw, Mapping):
        return all(is_blank(one) for one in raw.values())
    if isinstance(raw, str | bytes):
        return raw in ZEROS
    return not raw
