"""Defines the options of each codec. ``codecs.base.CodecOptions`` has the options that all codecs share.

Most options are TiCDC's, with ``_`` instead of ``-`` in their names. TiCDC's options determine how events are
encoded. Decoding ignores them, because the bytes show how they were written. The exception is ``time_zone``,
which the bytes do not show.

``DebeziumModes`` has the settings of a Debezium connector that its records do not show. A record with a
schema contains nearly all types. A record without a schema (``schemas.enable: false``) has only JSON's types.
The names and defaults of the settings are Debezium's (3.5); ``decimal_format`` is a setting of JsonConverter.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.compression import LARGEST, Compression
from tidesink.typemap.table import DecimalMode, UnsignedMode

Producer = Literal["classic", "new"]
ChecksumMode = Literal["off", "warn", "reject"]
LargeMessageOption = Literal["none", "claim-check", "handle-key-only"]
# Encodings with which a producer of canal-json writes the bytes of a binary column as text.
BinaryText = Literal["iso-8859-1", "utf-8"]


@dataclass(frozen=True)
class FlatAvroOptions(CodecOptions):
    """Options of flat-avro.

    ``checksum`` is for decoding. It is the treatment of a row that does not match its checksum: ``off`` does
    not check, ``warn`` logs a warning, ``reject`` raises an error.

    The others are for encoding. ``row_checksum``: True to write a checksum into each row. ``namespace``: the
    changefeed's namespace or keyspace, the first part of Avro namespaces. ``producer``: ``classic`` (tiflow)
    or ``new`` (the new architecture).
    """

    avro_decimal_handling_mode: DecimalMode = "precise"
    avro_bigint_unsigned_handling_mode: UnsignedMode = "long"
    avro_enable_watermark: bool = False
    avro_include_before_value: bool = False
    row_checksum: bool = False
    namespace: str = "default"
    producer: Producer = "classic"
    checksum: ChecksumMode = "off"


@dataclass(frozen=True)
class CanalJsonOptions(CodecOptions):
    """Options of canal-json.

    These options are for decoding. ``claim_check_storage_uri`` and ``upstream_url``: sources of rows that
    were too large for Kafka; both may contain secrets and are never shown. ``max_decompressed_bytes``:
    maximum size of one decompressed message. ``binary_text``: encoding of binary columns.
    """

    content_compatible: bool = False
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    output_row_key: bool = False
    large_message_handle_option: LargeMessageOption = "none"
    large_message_handle_compression: Compression = "none"
    claim_check_storage_uri: str = field(default="", repr=False)
    claim_check_raw_value: bool = False
    upstream_url: str = field(default="", repr=False)
    max_decompressed_bytes: int = LARGEST
    binary_text: BinaryText = "iso-8859-1"

    @property
    def sends_row_keys(self) -> bool:
        """True if rows contain TiDB's row key, which is part of the TiDB extension."""
        return self.enable_tidb_extension and self.output_row_key


DecimalHandling = Literal["precise", "string", "double"]
UnsignedHandling = Literal["long", "precise", "string"]
BinaryHandling = Literal["bytes", "base64", "base64-url-safe", "hex"]
TimePrecision = Literal[
    "adaptive",
    "adaptive_time_microseconds",
    "connect",
    "isostring",
    "microseconds",
    "nanoseconds",
    "structured",
]
IntervalHandling = Literal["numeric", "string"]
HstoreHandling = Literal["json", "map"]
DecimalFormat = Literal["base64", "numeric"]

PLACEHOLDER: Final = "__debezium_unavailable_value"


@dataclass(frozen=True)
class DebeziumModes:
    """Settings of a Debezium connector that determine how it writes values.

    The ``…_mode`` fields and ``decimal_format`` are used only for records without a schema. The exception is
    ``binary_handling_mode``, because a schema does not show how the bytes of a binary column are encoded.

    ``unavailable_value_placeholder``: text that replaces a value that the connector did not send. None means
    Debezium's default placeholder, or no placeholder if ``sends_every_value`` is True. ``time_zone``: time
    zone in which the connector writes columns that a table definition declares as TIMESTAMP. All other texts
    of instants contain their UTC offset. ``commit_positions``: True if the ``commit_ts`` of an event is the
    position of its transaction in the connector's log (``debezium.commit_positions``).
    """

    decimal_handling_mode: DecimalHandling = "precise"
    bigint_unsigned_handling_mode: UnsignedHandling = "long"
    binary_handling_mode: BinaryHandling = "bytes"
    time_precision_mode: TimePrecision = "adaptive_time_microseconds"
    interval_handling_mode: IntervalHandling = "numeric"
    hstore_handling_mode: HstoreHandling = "json"
    unavailable_value_placeholder: str | None = None
    time_zone: str = "UTC"
    decimal_format: DecimalFormat = "base64"
    sends_every_value: bool = False
    commit_positions: bool = False

    @property
    def placeholder(self) -> str | None:
        """Text that stands for a value that the connector did not send; None if every value is sent."""
        usual = None if self.sends_every_value else PLACEHOLDER
        return usual if self.unavailable_value_placeholder is None else self.unavailable_value_placeholder

    def of_ticdc(self) -> DebeziumModes:
        """Returns these settings as they apply to messages that TiCDC wrote in its Debezium format.

        The messages identify TiCDC as their producer. TiCDC always uses the same handling modes, and sends
        all values of a row (``pkg/sink/codec/debezium``, b813e76). A configured placeholder is still used,
        because tidesink's own Kafka target writes this format with placeholders.
        """
        given = self.unavailable_value_placeholder
        return replace(_TICDC, time_zone=self.time_zone, unavailable_value_placeholder=given)


_TICDC: Final = DebeziumModes(
    decimal_handling_mode="double", binary_handling_mode="base64", sends_every_value=True
)

_DEFAULT_MODES: Final = DebeziumModes()


@dataclass(frozen=True)
class DebeziumOptions(CodecOptions):
    """Options of debezium-json and debezium-avro.

    These options are for decoding. ``debezium``: settings of the Debezium connector. ``debezium_unwrapped``:
    True if ExtractNewRecordState flattened the topic's rows, so that a null value is a delete; not needed if
    the rows show it. ``max_decompressed_bytes``: maximum size of one decompressed message (debezium-json).

    The others are TiCDC's options for encoding. debezium-json does not use those that start with ``avro_``,
    except for ``avro_enable_watermark``; debezium-avro does not use ``large_message_handle_compression``,
    ``debezium_disable_schema`` and ``debezium_include_start_ts``.
    """

    debezium: DebeziumModes = _DEFAULT_MODES
    debezium_unwrapped: bool = False
    max_decompressed_bytes: int = LARGEST
    large_message_handle_compression: Compression = "none"
    avro_decimal_handling_mode: DecimalMode = "precise"
    avro_bigint_unsigned_handling_mode: UnsignedMode = "long"
    avro_enable_watermark: bool = False
    cluster_id: str = "default"
    debezium_disable_schema: bool = False
    debezium_include_start_ts: bool = False
    debezium_output_old_value: bool = True
