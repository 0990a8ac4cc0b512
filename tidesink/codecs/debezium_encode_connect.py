"""Kafka Connect schemas and the blocks that TiCDC's ``debezium`` messages of every kind have.

Source: TiCDC new architecture (b813e76). The members stand in its order, so that the JSON is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.debezium_encode_values import Members
from tidesink.codecs.debezium_source import TICDC, connector_of
from tidesink.codecs.nesting import is_deep
from tidesink.errors import EncodeError
from tidesink.events import DdlEvent, TableId, WatermarkEvent, physical_ms
from tidesink.schema_registry.naming import sanitize_name

VERSION: Final = "2.4.0.Final"
MESSAGE_OP: Final = "m"


def plain_field(kind: str, name: str, *, optional: bool = False) -> Members:
    """A field of a type that says all."""
    return {"type": kind, "optional": optional, "field": name}


_SNAPSHOT: Final[Members] = {
    "type": "string",
    "optional": True,
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {"allowed": "true,last,false,incremental"},
    "default": "false",
    "field": "snapshot",
}
_SOURCE: Final[list[Members]] = [
    plain_field("string", "version"),
    plain_field("string", "connector"),
    plain_field("string", "name"),
    plain_field("int64", "ts_ms"),
    _SNAPSHOT,
    plain_field("string", "db"),
    plain_field("string", "sequence", optional=True),
    plain_field("string", "table", optional=True),
    plain_field("int64", "server_id"),
    plain_field("string", "gtid", optional=True),
    plain_field("string", "file"),
    plain_field("int64", "pos"),
    plain_field("int32", "row"),
    plain_field("int64", "thread", optional=True),
    plain_field("string", "query", optional=True),
]
TRANSACTION: Final[Members] = {
    "type": "struct",
    "fields": [
        plain_field("string", "id"),
        plain_field("int64", "total_order"),
        plain_field("int64", "data_collection_order"),
    ],
    "optional": True,
    "name": "event.block",
    "version": 1,
    "field": "transaction",
}


def source_schema(*, extension: bool, start_ts: bool = False) -> Members:
    """The schema of ``source``; the TiDB extension and the start ts add their fields."""
    extra = [plain_field("int64", "commit_ts")] if extension else []
    extra += [plain_field("int64", "start_ts")] if start_ts else []
    extra += [plain_field("string", "cluster_id")] if extension else []
    return {
        "type": "struct",
        "fields": [*_SOURCE, *extra],
        "optional": False,
        "name": "io.debezium.connector.mysql.Source",
        "field": "source",
    }


def source_block(options: CodecOptions, table: TableId, commit_ts: int, **extra: int) -> Members:
    """The ``source`` of a message; ``extra`` stands after ``commit_ts``."""
    return {
        "version": VERSION,
        "connector": TICDC,
        "name": options.cluster_id,
        "ts_ms": physical_ms(commit_ts),
        "snapshot": "false",
        "db": table.schema,
        "table": table.name,
        "server_id": 0,
        "gtid": None,
        "file": "",
        "pos": 0,
        "row": 0,
        "thread": 0,
        "query": None,
        "commit_ts": commit_ts,
        **extra,
        "cluster_id": options.cluster_id,
    }


def watermark_name(options: CodecOptions) -> str:
    """What the schemas of watermarks are called, without their suffix."""
    return f"{sanitize_name(options.cluster_id)}.watermark"


def watermark_payload(event: WatermarkEvent, options: CodecOptions, now_ms: int) -> Members:
    """The payload of a watermark."""
    source = source_block(options, TableId("", ""), event.commit_ts)
    return {"source": source, "ts_ms": now_ms, "transaction": None, "op": MESSAGE_OP}


def key_schema(name: str, fields: list[Members]) -> Members:
    """The schema of a key."""
    return {"type": "struct", "name": f"{name}.Key", "optional": False, "fields": fields}


def envelope_schema(name: str, source: Members, images: list[Members]) -> Members:
    """The schema of a row's value, or of a watermark's, which has no images."""
    rest = [source, plain_field("string", "op"), plain_field("int64", "ts_ms", optional=True), TRANSACTION]
    return {
        "type": "struct",
        "optional": False,
        "name": f"{name}.Envelope",
        "version": 1,
        "fields": [*images, *rest],
    }


def _ddl_fields(kind: str, *names: str, optional: bool = True) -> list[Members]:
    return [{"field": name, "optional": optional, "type": kind} for name in names]


def _texts(name: str) -> Members:
    return {
        "field": name,
        "optional": True,
        "type": "array",
        "items": {"type": "string", "optional": False},
    }


def _listed(name: str, item: str, fields: Sequence[Members]) -> Members:
    struct = {
        "name": f"io.debezium.connector.schema.{item}",
        "optional": False,
        "type": "struct",
        "version": 1,
        "fields": list(fields),
    }
    return {"field": name, "optional": False, "type": "array", "items": struct}


_COLUMN: Final = [
    *_ddl_fields("string", "name", optional=False),
    *_ddl_fields("int32", "jdbcType", optional=False),
    *_ddl_fields("int32", "nativeType"),
    *_ddl_fields("string", "typeName", optional=False),
    *_ddl_fields("string", "typeExpression", "charsetName"),
    *_ddl_fields("int32", "length", "scale"),
    *_ddl_fields("int32", "position", optional=False),
    *_ddl_fields("boolean", "optional", "autoIncremented", "generated"),
    *_ddl_fields("string", "comment", "defaultValueExpression"),
    _texts("enumValues"),
]
_TABLE: Final[Members] = {
    "field": "table",
    "optional": True,
    "type": "struct",
    "name": "io.debezium.connector.schema.Table",
    "version": 1,
    "fields": [
        *_ddl_fields("string", "defaultCharsetName"),
        _texts("primaryKeyColumnNames"),
        _listed("columns", "Column", _COLUMN),
        *_ddl_fields("string", "comment"),
    ],
}
DDL_KEY: Final[Members] = {
    "type": "struct",
    "name": "io.debezium.connector.mysql.SchemaChangeKey",
    "optional": False,
    "version": 1,
    "fields": _ddl_fields("string", "databaseName", optional=False),
}
DDL_REST: Final = [
    *_ddl_fields("int64", "ts_ms", optional=False),
    *_ddl_fields("string", "databaseName", "schemaName", "ddl"),
    _listed("tableChanges", "Change", [*_ddl_fields("string", "type", "id", optional=False), _TABLE]),
]


def ddl_value_schema(source: Members) -> Members:
    """The schema of a DDL message's value."""
    return {
        "optional": False,
        "type": "struct",
        "version": 1,
        "name": "io.debezium.connector.mysql.SchemaChangeValue",
        "fields": [source, *DDL_REST],
    }


def ddl_payload(event: DdlEvent, options: CodecOptions, now_ms: int) -> Members:
    """The payload of a DDL message, its ``tableChanges`` as the event's extension has them.

    Raises:
        EncodeError: the event has none, or no commit_ts, or it is a connector's.
    """
    changes = _table_changes(event)
    if event.commit_ts is None:
        raise EncodeError("the event has no commit_ts, which TiCDC's debezium protocols write")
    return {
        "source": source_block(options, event.table, event.commit_ts),
        "ts_ms": now_ms,
        "databaseName": event.table.schema,
        "schemaName": None,
        "ddl": event.query,
        "tableChanges": changes,
    }


def _table_changes(event: DdlEvent) -> list[Members]:
    extension = event.extension or {}
    source, changes = extension.get("source"), extension.get("tableChanges")
    if isinstance(source, dict) and connector_of(source) != TICDC:
        raise EncodeError("the DDL is a Debezium connector's: only TiCDC's is written, drop the line")
    if not isinstance(changes, list) or not all(isinstance(one, dict) for one in changes) or is_deep(changes):
        raise EncodeError(
            "TiCDC's debezium protocols write tableChanges, the whole table as TiDB sees it, and the event's "
            "extension has none: only DDL that was decoded from these protocols can be written"
        )
    return changes
