"""Events to TiCDC's ``debezium`` protocol, JSON (new architecture, b813e76): rows, DDL and watermarks.

Held byte for byte to TiCDC's own messages. The ``tableChanges`` of a DDL describe the whole table as TiDB's
parser sees it: they are those the event was decoded with. What a Debezium connector writes is not written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from zoneinfo import ZoneInfo

from tidesink.codecs.base import CodecOptions, EncodedRecord
from tidesink.codecs.debezium.encode_values import (
    DDL_KEY,
    Members,
    ddl_payload,
    ddl_value_schema,
    dumped,
    envelope_schema,
    key_schema,
    schema_field,
    source_block,
    source_schema,
    watermark_name,
    watermark_payload,
    wire_value,
)
from tidesink.errors import EncodeError
from tidesink.events import ChangeEvent, Column, DdlEvent, Op, Row, TableSchema, WatermarkEvent
from tidesink.schema_registry.naming import sanitize_name

_OPS: Final = {Op.INSERT: "c", Op.UPSERT: "c", Op.UPDATE: "u", Op.DELETE: "d"}
_MOST_TABLES: Final = 256


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
            "source": self._source(event, event.commit_ts),
            "ts_ms": self._clock(),
            "transaction": None,
            "op": _OPS[event.op],
            **self._images(event, schema),
        }
        row = event.after or event.before or {}
        key = {column.name: self._value(column, row) for column in schema.handle_columns}
        key_text, value_text = self._schema_texts(schema)
        return EncodedRecord(_wrapped(key, key_text), _wrapped(payload, value_text))

    def ddl(self, event: DdlEvent) -> EncodedRecord:
        """The record of a DDL that was decoded from one of TiCDC's debezium protocols.

        Raises:
            EncodeError: the event has no ``tableChanges`` or no commit_ts, or is a connector's.
        """
        payload = ddl_payload(event, self._options, self._clock())
        key = value = ""
        if not self._options.debezium_disable_schema:
            key, value = dumped(DDL_KEY), dumped(ddl_value_schema(self._control_source()))
        return EncodedRecord(_wrapped({"databaseName": event.table.schema}, key), _wrapped(payload, value))

    def watermark(self, event: WatermarkEvent) -> EncodedRecord | None:
        """The record of a watermark, which TiCDC sends with the TiDB extension alone; else None."""
        if not self._options.enable_tidb_extension:
            return None
        payload = watermark_payload(event, self._options, self._clock())
        key = value = ""
        if not self._options.debezium_disable_schema:
            name = watermark_name(self._options)
            key = dumped(key_schema(name, []))
            value = dumped(envelope_schema(name, self._control_source(), []))
        return EncodedRecord(_wrapped({}, key), _wrapped(payload, value))

    def _control_source(self) -> Members:
        return source_schema(extension=self._options.enable_tidb_extension)

    def _source(self, event: ChangeEvent, commit_ts: int) -> Members:
        extra = {"start_ts": _start_ts(event)} if self._options.debezium_include_start_ts else {}
        return source_block(self._options, event.table, commit_ts, **extra)

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
        source = source_schema(extension=extension, start_ts=self._options.debezium_include_start_ts)
        return dumped(key_schema(name, keys)), dumped(envelope_schema(name, source, images))


def _start_ts(event: ChangeEvent) -> int:
    source = (event.extension or {}).get("source")
    found = source.get("start_ts") if isinstance(source, dict) else None
    if not isinstance(found, int):
        raise EncodeError("debezium-include-start-ts needs extension.source.start_ts, and the event has none")
    return found


def _image_schema(name: str, part: str, fields: list[Members]) -> Members:
    return {"type": "struct", "optional": True, "name": f"{name}.Value", "field": part, "fields": fields}


def _wrapped(payload: Members, schema: str) -> bytes:
    tail = f',"schema":{schema}' if schema else ""
    return f'{{"payload":{dumped(payload)}{tail}}}'.encode()
