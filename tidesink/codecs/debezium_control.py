"""What Debezium's topics carry besides rows: transactions, DDL, heartbeats, messages, notifications.

Sources: Debezium 3.5.0.Final (captured: transactions, DDL of MariaDB, logical messages of Postgres; its
documentation: heartbeats, notifications); TiCDC new architecture (b813e76): DDL, and watermarks, which it
writes as messages (``op`` m) with a ``commit_ts``.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidesink.codecs.debezium_source import TICDC, commit_ts_of_source, connector_of, table_of_source
from tidesink.codecs.debezium_values_modes import BinaryHandling
from tidesink.codecs.nesting import kept
from tidesink.errors import SchemaMismatchError, shown
from tidesink.events import DdlEvent, Event, MessageEvent, Position, TableId, WatermarkEvent

Payload = Mapping[str, Any]

MESSAGE_OP: Final = "m"
_TRANSACTION: Final = frozenset({"status", "id", "event_count", "data_collections", "ts_ms"})
_BOUNDARIES: Final = ("BEGIN", "END")
_HEARTBEAT: Final = frozenset({"ts_ms"})
_NOTIFICATION: Final = frozenset({"id", "aggregate_type", "type"})
_DDL: Final = frozenset({"ddl", "source"})


def control_event(payload: Payload, position: Position, *, binary: BinaryHandling) -> Event | None:
    """The event of a record that is no row; None for one that may be.

    ``binary`` says how a logical message's content is written where it is text.

    Raises:
        SchemaMismatchError: it is one of these, but not in the form it has.
    """
    if payload.keys() >= _DDL and isinstance(payload["source"], Mapping):
        return _ddl(payload, payload["source"], position)
    if payload.get("op") == MESSAGE_OP and isinstance(payload.get("source"), Mapping):
        return _message(payload, payload["source"], position, binary)
    kind = _kind(payload)
    return None if kind is None else MessageEvent(kind, None, None, position, kept(dict(payload), kind))


def _kind(payload: Payload) -> str | None:
    names = payload.keys()
    if names <= _TRANSACTION and {"status", "id"} <= names and payload["status"] in _BOUNDARIES:
        return "transaction"
    if names == _HEARTBEAT and isinstance(payload["ts_ms"], int):
        return "heartbeat"
    if names >= _NOTIFICATION and names <= _NOTIFICATION | {"additional_data", "timestamp"}:
        return "notification"
    return None


def _ddl(payload: Payload, source: Payload, position: Position) -> DdlEvent:
    query = payload["ddl"]
    if not isinstance(query, str | None):
        raise SchemaMismatchError(f"ddl is {shown(query)}: a text was expected")
    changes = payload.get("tableChanges")
    extension = kept({"source": dict(source), "ts_ms": payload.get("ts_ms")}, "source")
    if query is None or connector_of(source) == TICDC:
        # SQL Server and Db2 tell the columns, and no statement; TiCDC's are needed to write it again.
        extension["tableChanges"] = kept(changes, "tableChanges")
    return DdlEvent(
        table=_ddl_table(payload, source),
        query=query or "",
        kind=_ddl_kind(changes),
        commit_ts=commit_ts_of_source(source),
        position=position,
        extension=extension,
    )


def _ddl_table(payload: Payload, source: Payload) -> TableId:
    schema, name = table_of_source(source)
    told = (payload.get("schemaName"), payload.get("databaseName"), schema)
    return TableId(next((part for part in told if isinstance(part, str) and part), ""), name)


def _ddl_kind(changes: object) -> str:
    """What was done to the first table of ``tableChanges``: CREATE, ALTER or DROP; else QUERY."""
    first = changes[0] if isinstance(changes, list) and changes else None
    kind = first.get("type") if isinstance(first, Mapping) else None
    return kind if isinstance(kind, str) and kind else "QUERY"


def _message(payload: Payload, source: Payload, position: Position, binary: BinaryHandling) -> Event:
    if connector_of(source) == TICDC:
        commit_ts = commit_ts_of_source(source)
        if commit_ts is None:
            raise SchemaMismatchError("the watermark has no source.commit_ts")
        return WatermarkEvent(commit_ts, position)
    message = payload.get("message")
    if not isinstance(message, Mapping):
        raise SchemaMismatchError(f"the message of an event with op m is {shown(message)}")
    prefix = message.get("prefix")
    extension = kept({"source": dict(source), "ts_ms": payload.get("ts_ms")}, "source")
    return MessageEvent(
        "logical",
        prefix if isinstance(prefix, str) else None,
        _content(message.get("content"), binary),
        position,
        extension,
    )


_TEXT_FORMS: Final[Mapping[str, Callable[[str], bytes]]] = {
    "hex": bytes.fromhex,
    "base64-url-safe": urlsafe_b64decode,
}


def _content(content: object, binary: BinaryHandling) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    try:
        return _TEXT_FORMS.get(binary, _base64)(str(content))
    except ValueError as error:
        raise SchemaMismatchError(
            f"the message's content {shown(content)} is not what binary-handling-mode {binary} writes"
        ) from error


def _base64(text: str) -> bytes:
    return b64decode(text, validate=True)
