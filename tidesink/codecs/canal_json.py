"""The ``canal-json`` codec: TiCDC's JSON envelope, classic (tiflow c7b2588) and new (ticdc b813e76).

The wire carries short type words. Full types come from table definitions, from the topic's own
CREATE and ALTER events, which this codec reads as they pass, or from a content-compatible
``mysqlType``; what stays unknown is as exact as its word allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidesink.codecs.base import CodecOptions, EncodedRecord
from tidesink.codecs.canal_json_decode import CanalJsonReader
from tidesink.codecs.canal_json_encode import CanalJsonWriter, RowWriter, merged_names
from tidesink.codecs.canal_json_shape import Keys, RowShapes
from tidesink.codecs.large_messages import LargeMessages
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import ddl_moment, row_moment
from tidesink.errors import ConfigError, EncodeError
from tidesink.events import ChangeEvent, DdlEvent, Event, Message, TableSchema, WatermarkEvent

if TYPE_CHECKING:
    import pyarrow as pa

    from tidesink.codecs.batch import DecodedBatch
    from tidesink.codecs.canal_json_columns import CanalJsonColumns
    from tidesink.typemap.render import ZeroDate

_KEPT_WRITERS = 256


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class CanalJsonCodec:
    """Decodes and encodes canal-json.

    ``definitions`` grows by the DDL events that pass, in either direction. ``keys`` names the key of
    tables; without it ``pkNames`` does. ``clock`` gives ms since 1970 for ``ts``. ``large`` finds what
    messages leave out, by the options if it is not given. ``unread_ddl`` holds the DDL texts that could not
    be read for types, with the reason.
    """

    name = "canal-json"

    def __init__(
        self,
        *,
        options: CodecOptions | None = None,
        definitions: TableDefinitions | None = None,
        keys: Keys | None = None,
        clock: Callable[[], int] = _now_ms,
        large: LargeMessages | None = None,
    ) -> None:
        options = self._options = options or CodecOptions()
        self.definitions = definitions if definitions is not None else TableDefinitions()
        self.unread_ddl: dict[str, str] = {}
        self._shapes = RowShapes(self.definitions, keys)
        self._large = large or LargeMessages(options)
        self._reader = CanalJsonReader(self._shapes, self._learn, self._large)
        self._writer = CanalJsonWriter(options, clock, self._large)
        self._full_types = options.content_compatible
        self._writers: dict[int, RowWriter] = {}
        self._columns: CanalJsonColumns | None = None

    def decode(self, message: Message) -> tuple[Event, ...]:
        """The events of one Kafka record, in order.

        Raises:
            DecodeError: this record cannot be decoded; context has topic, partition, offset.
            SourceUnavailableError: claim-check storage or the upstream do not answer.
            ConfigError: one of them cannot be opened as it is configured.
        """
        return self._reader.events(message)

    def decode_batch(
        self, records: pa.RecordBatch | pa.Table, *, zero_date: ZeroDate = "null"
    ) -> DecodedBatch:
        """The events of many Kafka records as Arrow tables; ``codecs.batch`` says what is in them.

        ``records`` has the columns ``key`` and ``value`` and may have ``topic``, ``partition``, ``offset``,
        ``timestamp`` and ``headers``, as Spark's Kafka frame names them. A record that cannot be decoded is
        a fault of the result. Dates no calendar has follow ``zero_date``; TIMESTAMP is read in the options'
        ``time_zone``.

        Raises:
            SchemaMismatchError: ``records`` lacks a column.
            RegistryError: a writer's schema cannot be had.
        """
        from tidesink.codecs.batch import ValueOptions, decode_in_columns
        from tidesink.codecs.canal_json_columns import CanalJsonColumns

        options = ValueOptions(zero_date, self._options.time_zone)
        if self._columns is None:
            self._columns = CanalJsonColumns(self._shapes, self._large)
        return decode_in_columns(
            records, columnar=self._columns.step(options), decode=self.decode, options=options
        )

    def encode(self, event: Event, *, topic: str) -> EncodedRecord | None:
        """The Kafka record of one event; None for a watermark without the TiDB extension.

        An event without a schema takes its types from the definitions and from
        ``extension["mysqlType"]``, as decoding put it there.

        Raises:
            EncodeError: canal-json cannot carry this event; context has the topic.
        """
        try:
            value = self._encode(event)
        except EncodeError as error:
            error.with_context(topic=topic)
            raise
        return None if value is None else EncodedRecord(None, value)

    def _encode(self, event: Event) -> bytes | None:
        if isinstance(event, ChangeEvent):
            return self._writer.row(event, self._row_writer(event.schema or self._schema_of(event)))
        if isinstance(event, DdlEvent):
            self._learn(event)
            return self._writer.ddl(event)
        if isinstance(event, WatermarkEvent):
            return self._writer.watermark(event)
        raise EncodeError("canal-json has no message for Debezium's logical decoding messages")

    def _learn(self, event: DdlEvent) -> None:
        try:
            since = ddl_moment(event.commit_ts, (event.extension or {}).get("es"))
            self.definitions.apply(event.query, event.table.schema, since=since)
        except ConfigError as error:
            self.unread_ddl[event.query] = error.message

    def _row_writer(self, schema: TableSchema) -> RowWriter:
        # By identity: decoders share one schema among the rows of a shape, and hashing one is slow.
        writer = self._writers.get(id(schema))
        if writer is None:
            if len(self._writers) >= _KEPT_WRITERS:
                self._writers.clear()
            writer = self._writers[id(schema)] = RowWriter(schema, self._full_types)
        return writer

    def _schema_of(self, event: ChangeEvent) -> TableSchema:
        extension = event.extension or {}
        mysql_type = extension.get("mysqlType")
        pk_names = extension.get("pkNames", self._primary_key(event))
        names = merged_names(event.before, event.after)
        schema = self._shapes.find(
            event.table.schema,
            event.table.name,
            dict.fromkeys(names),
            mysql_type=mysql_type,
            pk_names=pk_names,
            commit_ts=row_moment(event.commit_ts, extension.get("es")),
        ).schema
        self._refuse_untyped(schema, mysql_type)
        return schema

    def _primary_key(self, event: ChangeEvent) -> list[str]:
        definition = self.definitions.get(event.table)
        if definition is None:
            return list(event.key or ())
        return [column.name for column in definition.primary_key]

    def _refuse_untyped(self, schema: TableSchema, mysql_type: object) -> None:
        if mysql_type or self.definitions.get(schema.table) is not None:
            return
        raise EncodeError(
            "the event has no column types: give a table definition, or keep extension.mysqlType",
            table=str(schema.table),
        )
