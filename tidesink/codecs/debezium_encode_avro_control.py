"""DDL and watermarks to TiCDC's ``debezium-avro`` protocol (new architecture, b813e76).

Held to TiCDC's own schemas and bytes. It sends them where both ``enable-tidb-extension`` and
``avro-enable-watermark`` are set, and registers their schemas under the records' own names: at that point
it knows no topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidesink.codecs.base import CodecOptions, EncodedRecord
from tidesink.codecs.debezium_encode_avro_record import (
    AvroPart,
    avro_field,
    avro_of_connect,
    named_record,
    plain_avro,
    registered,
    source_record,
)
from tidesink.codecs.debezium_encode_connect import (
    DDL_KEY,
    DDL_REST,
    TRANSACTION,
    ddl_payload,
    plain_field,
    watermark_name,
    watermark_payload,
)
from tidesink.codecs.debezium_encode_values import Members
from tidesink.events import DdlEvent, WatermarkEvent
from tidesink.schema_registry.base import SchemaRegistry
from tidesink.schema_registry.naming import sanitize_name

_DDL_PLACE: Final = "io.debezium.connector.mysql"
_INT64_END: Final = 1 << 63


class AvroControlWriter:
    """Writes TiCDC's ``debezium-avro`` control messages; ``clock`` gives ms since 1970 for ``ts_ms``."""

    def __init__(self, registry: SchemaRegistry, options: CodecOptions, clock: Callable[[], int]) -> None:
        self._registry = registry
        self._options = options
        self._clock = clock
        self._parts: dict[str, tuple[AvroPart, AvroPart]] = {}

    @property
    def _sends(self) -> bool:
        return self._options.enable_tidb_extension and self._options.avro_enable_watermark

    def ddl(self, event: DdlEvent) -> EncodedRecord | None:
        """The record of a DDL that was decoded from one of TiCDC's debezium protocols; None where not sent.

        Raises:
            EncodeError: the event has no ``tableChanges`` or no commit_ts, or is a connector's.
            RegistryError: its schemas cannot be registered.
        """
        if not self._sends:
            return None
        payload = ddl_payload(event, self._options, self._clock())
        namespace = f"{sanitize_name(self._options.cluster_id)}.{sanitize_name(event.table.schema)}"
        fields = [plain_avro("source", source_record(namespace)), *map(avro_field, DDL_REST)]
        value = named_record(_DDL_PLACE, "SchemaChangeValue", fields, version=1)
        parts = self._registered(namespace, avro_of_connect(DDL_KEY), value)
        return _record(parts, {"databaseName": event.table.schema}, payload)

    def watermark(self, event: WatermarkEvent) -> EncodedRecord | None:
        """The record of a watermark; None where not sent. Raises RegistryError."""
        if not self._sends:
            return None
        namespace = watermark_name(self._options)
        rest = [plain_field("string", "op"), plain_field("int64", "ts_ms", optional=True), TRANSACTION]
        fields = [plain_avro("source", source_record(namespace)), *map(avro_field, rest)]
        value = named_record(namespace, "Envelope", fields, version=1)
        parts = self._registered(namespace, named_record(namespace, "Key", []), value)
        return _record(parts, {}, watermark_payload(event, self._options, self._clock()))

    def _registered(self, place: str, *records: Members) -> tuple[AvroPart, AvroPart]:
        known = self._parts.get(place)
        if known is None:
            key, value = (registered(self._registry, record["connect.name"], record) for record in records)
            # One place is enough: databases come and go, and DDL is rare.
            self._parts = {place: (key, value)}
            known = key, value
        return known


def _record(parts: tuple[AvroPart, AvroPart], key: Members, payload: Members) -> EncodedRecord:
    source = payload["source"]
    # A fault of the producer: what a long cannot hold is its smallest value.
    held = {**source, "commit_ts": min(source["commit_ts"], _INT64_END)}
    if held["commit_ts"] == _INT64_END:
        held["commit_ts"] = -_INT64_END
    return EncodedRecord(parts[0].written(key), parts[1].written({**payload, "source": held}))
