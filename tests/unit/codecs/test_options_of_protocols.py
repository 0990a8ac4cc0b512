"""Which protocols use an option of a codec."""

from __future__ import annotations

import pytest

from tidesink.codecs.open import CODECS, protocols_using

DEBEZIUM = ("debezium-json", "debezium-avro")


@pytest.mark.parametrize(
    ("option", "protocols"),
    [
        ("checksum", ("flat-avro",)),
        ("namespace", ("flat-avro",)),
        ("binary_text", ("canal-json",)),
        ("output_raw_change_event", ("flat-avro", "canal-json")),
        ("large_message_handle_compression", ("canal-json", *DEBEZIUM)),
        ("avro_decimal_handling_mode", ("flat-avro", *DEBEZIUM)),
        ("avro_enable_watermark", ("flat-avro", *DEBEZIUM)),
        ("time_precision_mode", DEBEZIUM),
        ("enable_tidb_extension", tuple(CODECS)),
        ("time_zone", tuple(CODECS)),
        ("terminator", ()),
    ],
)
def test_the_protocols_that_use_an_option(option: str, protocols: tuple[str, ...]) -> None:
    assert protocols_using(option) == protocols
