"""Events to TiCDC's ``debezium`` protocol, JSON (new architecture, b813e76): rows and watermarks.

Held byte for byte to TiCDC's own messages. DDL is not written: its ``tableChanges`` describe the whole
table as TiDB's parser sees it, which no event carries. Nor is what a Debezium connector would write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from zoneinfo import ZoneInfo

from tidesink.change import ChangeEvent, Column, Op, Row, TableId, TableSchema, WatermarkEvent, physical_ms
from tidesink.codecs.base import CodecOptions, EncodedRecord
from tidesink.codecs.debezium_encode_values import Members, dumped, schema_field, wire_value
from tidesink.errors import EncodeError
from tidesink.schema_registry.naming import sanitize_name

_OPS: Final = {Op.INSERT: "c", Op.UPSERT: "c", Op.UPDATE: "u", Op.DELETE: "d"}
_VERSION: Final = "2.4.0.Final"
_MOST_TABLES: Final = 256


def _field(kind: str, name: str, *, optional: bool = False) -> Members:
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
    _field("string", "version"),
    _field("string", "connector"),
    _field("string", "name"),
    _field("int64", "ts_ms"),
    _SNAPSHOT,
    _field("string", "db"),
    _field("string", "sequence", optional=True),
    _field("string", "table", optional=True),
    _field("int64", "server_id"),
    _field("string", "gtid", optional=True),
    _field("string", "file"),
    _field("int64", "pos"),
    _field("int32", "row"),
    _field("int64", "thread", optional=True),
    _field("string", "query", optional=True),
]
_TRANSACTION: Final[Members] = {
    "type": "struct",
    "fields": [
        _field("string", "id"),
        _field("int64", "total_order"),
        _field("int64", "data_collection_order"),
    ],
    "optional": True,
    "name": "event.block",
    "version": 1,
    "field": "transaction",
}


class TicdcWriter:
    """Writes TiCDC's ``debezium`` messages; ``clock`` gives ms since 1970 for ``ts_ms``."""

    def __init__(self, options: CodecOptions, clock: Callable[[], int]) -> None:
        self._options = options
        self._clock = clock
        self._zone = ZoneInfo(options.time_zone)
        # By identity: decoders share one schema among the rows of a table.
        self._schemas: dict[int, tuple[TableSchema, str, str]] = {}

    def row(self, event: ChangeEvent) -> EncodedRecord:
        """The record of a row change.

        Raises:
            EncodeError: the event has no schema or no commit_ts, or a value that its column cannot hold.
        """
        schema = event.schema
        if event.op not in _OPS:
            raise EncodeError(f"TiCDC's debezium protocol has no message for a {event.op.value}")
        if schema is None or event.commit_ts is None:
            missing = "column types" if schema is None else "commit_ts"
            raise EncodeError(f"the event has no {missing}, which TiCDC's debezium protocol writes")
        payload = {
            "source": self._source(event.table, event.commit_ts, event),
            "ts_ms": self._clock(),
            "transaction": None,
            "op": _OPS[event.op],
            **self._images(event, schema),
        }
        row = event.after or event.before or {}
        key = {column.name: self._value(column, row) for column in schema.handle_columns}
        key_schema, value_schema = self._schema_texts(schema)
        return EncodedRecord(_wrapped(key, key_schema), _wrapped(payload, value_schema))

    def watermark(self, event: WatermarkEvent) -> EncodedRecord | None:
        """The record of a watermark, which TiCDC sends with the TiDB extension alone; else None."""
        if not self._options.enable_tidb_extension:
            return None
        payload = {
            "source": self._source(TableId("", ""), event.commit_ts, None),
            "ts_ms": self._clock(),
            "transaction": None,
            "op": "m",
        }
        key = value = ""
        if not self._options.debezium_disable_schema:
            key = dumped(_key_schema("default.watermark", []))
            value = dumped(_envelope_schema("default.watermark", self._source_schema(), []))
        return EncodedRecord(_wrapped({}, key), _wrapped(payload, value))

    def _source(self, table: TableId, commit_ts: int, event: ChangeEvent | None) -> Members:
        extra: Members = {"commit_ts": commit_ts}
        if self._options.debezium_include_start_ts and event is not None:
            extra["start_ts"] = _start_ts(event)
        return {
            "version": _VERSION,
            "connector": "TiCDC",
            "name": self._options.cluster_id,
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
            **extra,
            "cluster_id": self._options.cluster_id,
        }

    def _images(self, event: ChangeEvent, schema: TableSchema) -> Members:
        before, after = self._image(event.before, schema), self._image(event.after, schema)
        if event.op is Op.DELETE:
            return {"after": None, "before": before}
        if event.op is Op.UPDATE and not self._options.debezium_output_old_value:
            return {"after": after}
        return {"before": before if event.op is Op.UPDATE else None, "after": after}

    def _image(self, row: Row | None, schema: TableSchema) -> Members | None:
        if row is None:
            return None
        return {c.name: self._value(c, row) for c in schema.columns if not c.virtual and c.name in row}

    def _value(self, column: Column, row: Row) -> Any:
        if column.name not in row:
            raise EncodeError("the event has no value for a key column", column=column.name)
        return wire_value(column, row[column.name], self._zone)

    def _schema_texts(self, schema: TableSchema) -> tuple[str, str]:
        if self._options.debezium_disable_schema:
            return "", ""
        known = self._schemas.get(id(schema))
        if known is None or known[0] is not schema:
            if len(self._schemas) >= _MOST_TABLES:
                self._schemas.clear()
            known = self._schemas[id(schema)] = (schema, *self._new_schema_texts(schema))
        return known[1], known[2]

    def _new_schema_texts(self, schema: TableSchema) -> tuple[str, str]:
        extension = self._options.enable_tidb_extension
        parts = (self._options.cluster_id, *schema.table)
        name = ".".join(map(sanitize_name, parts))
        # TiCDC lists the virtual columns once more at the end.
        columns = [*schema.columns, *(column for column in schema.columns if column.virtual)]
        fields = [schema_field(column, extension=extension) for column in columns]
        keys = [schema_field(column, extension=extension) for column in schema.handle_columns]
        images = [_image_schema(name, part, fields) for part in ("before", "after")]
        envelope = _envelope_schema(name, self._source_schema(), images)
        return dumped(_key_schema(name, keys)), dumped(envelope)

    def _source_schema(self) -> Members:
        extra = []
        if self._options.enable_tidb_extension:
            extra.append(_field("int64", "commit_ts"))
        if self._options.debezium_include_start_ts:
            extra.append(_field("int64", "start_ts"))
        if self._options.enable_tidb_extension:
            extra.append(_field("string", "cluster_id"))
        return {
            "type": "struct",
            "fields": [*_SOURCE, *extra],
            "optional": False,
            "name": "io.debezium.connector.mysql.Source",
            "field": "source",
        }


def _start_ts(event: ChangeEvent) -> int:
    source = (event.extension or {}).get("source")
    found = source.get("start_ts") if isinstance(source, dict) else None
    if not isinstance(found, int):
        raise EncodeError("debezium-include-start-ts needs extension.source.start_ts, and the event has none")
    return found


def _key_schema(name: str, fields: list[Members]) -> Members:
    return {"type": "struct", "name": f"{name}.Key", "optional": False, "fields": fields}


def _image_schema(name: str, part: str, fields: list[Members]) -> Members:
    return {"type": "struct", "optional": True, "name": f"{name}.Value", "field": part, "fields": fields}


def _envelope_schema(name: str, source: Members, images: list[Members]) -> Members:
    rest = [source, _field("string", "op"), _field("int64", "ts_ms", optional=True), _TRANSACTION]
    fields = [*images, *rest]
    return {
        "type": "struct",
        "optional": False,
        "name": f"{name}.Envelope",
        "version": 1,
        "fields": fields,
    }


def _wrapped(payload: Members, schema: str) -> bytes:
    tail = f',"schema":{schema}' if schema else ""
    return f'{{"payload":{dumped(payload)}{tail}}}'.encode()
