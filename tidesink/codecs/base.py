"""What every codec is: bytes to events and back.

"Codec" is meant as in change data capture: it reads and writes an envelope of change events. It has
nothing to do with compression or with Python's ``codecs`` module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from tidesink.codecs.compression import LARGEST, Compression
from tidesink.codecs.debezium_values_modes import DebeziumModes
from tidesink.events import Event, Message, TableId
from tidesink.typemap.render import DecimalMode, UnsignedMode, ZeroDate

if TYPE_CHECKING:
    import pyarrow as pa

    from tidesink.codecs.batch import DecodedBatch

Producer = Literal["classic", "new"]
LargeMessageOption = Literal["none", "claim-check", "handle-key-only"]
ChecksumMode = Literal["off", "warn", "reject"]
TableOfTopic = Callable[[str], TableId | None]
_DEFAULT_MODES = DebeziumModes()


class EncodedRecord(NamedTuple):
    """The key and value bytes of one Kafka record; None is a null."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class CodecOptions:
    """TiCDC's own codec options, under TiCDC's names with ``_`` for ``-``.

    They say how to encode. A decoder reads what the bytes say and needs none of them, except
    ``time_zone`` and ``output_raw_change_event``, which the bytes do not tell, and ``checksum``, which is
    the reader's own: what to do about a row whose checksum does not match (flat-avro): ``off`` asks for
    none, ``warn`` logs it, ``reject`` refuses the record.

    ``claim_check_storage_uri``, ``upstream_url`` and ``max_decompressed_bytes`` say where a reader finds
    what a message leaves out, and how much it takes in; the first two may hold secrets and are never shown.

    ``producer``: ``classic`` (tiflow) or ``new`` (the new architecture), for encoding only.
    ``namespace``: changefeed namespace or keyspace, the first part of Avro record namespaces.
    ``debezium``: the connector's handling modes, for what Debezium's records do not tell themselves.
    ``debezium_unwrapped``: the topic was flattened by ExtractNewRecordState, so that a null value alone
    is a delete; rows that show it by themselves need no word of it. ``cluster_id`` and the other
    ``debezium_…`` are TiCDC's own, for encoding.
    """

    enable_tidb_extension: bool = False
    avro_decimal_handling_mode: DecimalMode = "precise"
    avro_bigint_unsigned_handling_mode: UnsignedMode = "long"
    avro_enable_watermark: bool = False
    avro_include_before_value: bool = False
    content_compatible: bool = False
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    output_row_key: bool = False
    output_raw_change_event: bool = False
    row_checksum: bool = False
    max_message_bytes: int = 10_485_760
    namespace: str = "default"
    producer: Producer = "classic"
    time_zone: str = "UTC"
    large_message_handle_option: LargeMessageOption = "none"
    large_message_handle_compression: Compression = "none"
    claim_check_storage_uri: str = field(default="", repr=False)
    claim_check_raw_value: bool = False
    upstream_url: str = field(default="", repr=False)
    max_decompressed_bytes: int = LARGEST
    checksum: ChecksumMode = "off"
    debezium: DebeziumModes = _DEFAULT_MODES
    debezium_unwrapped: bool = False
    cluster_id: str = "default"
    debezium_disable_schema: bool = False
    debezium_include_start_ts: bool = False
    debezium_output_old_value: bool = True

    @property
    def sends_row_keys(self) -> bool:
        """Whether canal-json rows carry TiDB's row key, which is a member of the extension."""
        return self.enable_tidb_extension and self.output_row_key


class Codec(Protocol):
    """A decoder and encoder of one protocol."""

    @property
    def name(self) -> str:
        """The protocol's name as in ``CODECS``."""

    def decode(self, message: Message) -> tuple[Event, ...]:
        """The events of one Kafka record, in order; empty for a record that carries none.

        Raises:
            DecodeError: this record cannot be decoded; context has topic, partition, offset.
            RegistryError: the writer's schema cannot be had.
        """

    def decode_batch(
        self, records: pa.RecordBatch | pa.Table, *, zero_date: ZeroDate = "null"
    ) -> DecodedBatch:
        """The events of many Kafka records as Arrow tables: the same as ``decode`` of each in turn.

        Raises:
            SchemaMismatchError: ``records`` lacks a column that is needed.
            RegistryError: a writer's schema cannot be had.
        """

    def encode(self, event: Event, *, topic: str) -> EncodedRecord | None:
        """The Kafka record of one event; None where the protocol sends nothing for it.

        Raises:
            EncodeError: the protocol cannot write this event.
            RegistryError: the schema cannot be registered.
        """
