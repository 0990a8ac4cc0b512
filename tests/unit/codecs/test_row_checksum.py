"""The row checksum: bytes by hand, times that come twice, labels, and what is done about a wrong sum."""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tests.unit.codecs.flat_avro.cases import (
    EVERY_TYPE,
    EVERY_VALUE,
    TOPIC,
    change,
    codec_with,
    message_of,
    only_change,
    table,
)
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.row_checksum import CHECKSUM, CORRUPTED, VERSION, RowSums, checksum_fault
from tidesink.errors import ChecksumError, EncodeError
from tidesink.events import ChangeEvent, Message, Op, Value

NEW_YORK = "America/New_York"
TWICE = "2026-11-01 01:30:00"  # clocks go back: 05:30 and 06:30 in UTC


def _long(number: int) -> bytes:
    return struct.pack("<q", number)


def _sized(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _sum(ddl: str, value: Value, *, zone: str = "UTC") -> int:
    schema = table(f"create table t (c {ddl})")
    return RowSums(schema.columns, zone).sum({"c": value})


@pytest.mark.parametrize(
    ("ddl", "value", "summed"),
    [
        ("tinyint", -1, _long(-1)),
        ("int unsigned", 2**32 - 1, _long(2**32 - 1)),
        ("bigint unsigned", 2**64 - 1, _long(-1)),
        ("year", 0, _long(0)),
        ("bit(9)", 257, _long(257)),
        ("bit(64)", 2**64 - 1, _long(-1)),
        ("float", 0.10000000149011612, struct.pack("<d", 0.10000000149011612)),
        ("double", -2.5, struct.pack("<d", -2.5)),
        ("varchar(9)", "中", _sized("中".encode())),
        ("varbinary(9)", b"\x00\xff", _sized(b"\x00\xff")),
        ("date", "0000-00-00", _sized(b"0000-00-00")),
        ("time(2)", "-838:59:59.00", _sized(b"-838:59:59.00")),
        ("json", '{"a": 1}', _sized(b'{"a": 1}')),
        ("enum('a','b')", "b", _long(2)),
        ("set('x','y','z')", "x,z", _long(5)),
        ("set('x','y','z')", "", _long(0)),
        ("vector(2)", "[1,-2.5]", struct.pack("<Iff", 2, 1, -2.5)),
        ("vector", "[]", struct.pack("<I", 0)),
        ("varchar(9)", None, b""),
    ],
)
def test_each_type_is_summed_as_ticdc_does(ddl: str, value: Value, summed: bytes) -> None:
    assert _sum(ddl, value) == zlib.crc32(summed)


def test_decimals_are_summed_as_their_text_at_their_scale() -> None:
    assert _sum("decimal(10,4)", Decimal("-1.5000")) == zlib.crc32(_sized(b"-1.5000"))
    assert _sum("decimal(30,20)", Decimal("0E-20")) == zlib.crc32(_sized(b"0." + b"0" * 20))


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-07-01 00:00:00.120", b"2026-07-01 04:00:00.120"),
        ("2026-12-31 23:00:00", b"2027-01-01 04:00:00"),
        ("0000-00-00 00:00:00", b"0000-00-00 00:00:00"),
        (TWICE, b"2026-11-01 05:30:00"),
    ],
)
def test_a_timestamp_is_summed_in_utc(text: str, utc: bytes) -> None:
    assert _sum("timestamp(3)", text, zone=NEW_YORK) == zlib.crc32(_sized(utc))


def test_a_value_that_cannot_be_summed_is_an_encode_error() -> None:
    with pytest.raises(EncodeError, match="checksum cannot be computed: 'green' is not a member"):
        _sum("enum('a','b')", "green")


SUMMED: dict[str, Any] = {
    "enable_tidb_extension": True,
    "row_checksum": True,
    "avro_decimal_handling_mode": "string",
    "avro_bigint_unsigned_handling_mode": "string",
}


def _event(after: Mapping[str, Any], ddl: str, extension: Mapping[str, object] | None = None) -> ChangeEvent:
    return change(
        after=after, schema=table(f"create table t (id int primary key, {ddl})"), extension=extension
    )


def _fault(event: ChangeEvent, *, zone: str = "UTC") -> str | None:
    codec = codec_with(**SUMMED)
    return checksum_fault(only_change(codec, message_of(codec, event)), time_zone=zone)


def test_what_is_encoded_verifies_in_both_orders_and_every_type() -> None:
    for producer in ("classic", "new"):
        codec = codec_with(**SUMMED, producer=producer, checksum="reject")
        for op in (Op.INSERT, Op.UPDATE):
            found = only_change(codec, message_of(codec, change(op)))
            assert found.extension is not None
            assert found.extension[CHECKSUM] not in ("", "0")
            assert found.extension[VERSION] == 2
    codec = codec_with(**SUMMED, producer="new", avro_include_before_value=True, checksum="reject")
    deleted = only_change(codec, message_of(codec, change(Op.DELETE, None, before=EVERY_VALUE)))
    assert deleted.extension is not None
    assert deleted.extension[CHECKSUM] == str(RowSums(EVERY_TYPE.columns, "UTC").sum(EVERY_VALUE))


@pytest.mark.parametrize("utc", [b"2026-11-01 05:30:00", b"2026-11-01 06:30:00"])
def test_both_readings_of_an_hour_that_comes_twice_are_tried(utc: bytes) -> None:
    said = str(zlib.crc32(_long(1) + _sized(utc)))
    event = _event({"id": 1, "t": TWICE}, "t timestamp", {CHECKSUM: said})
    assert _fault(event, zone=NEW_YORK) is None
    assert "source.time-zone differs from the changefeed's" in (_fault(event, zone="Asia/Tokyo") or "")


def test_columns_in_that_hour_are_read_apart_from_each_other() -> None:
    said = zlib.crc32(_long(1) + _sized(b"2026-11-01 06:30:00") + _sized(b"2026-11-01 05:30:00"))
    event = _event({"id": 1, "t": TWICE, "u": TWICE}, "t timestamp, u timestamp", {CHECKSUM: str(said)})
    assert _fault(event, zone=NEW_YORK) is None


def test_more_readings_than_can_be_tried_are_told_and_end() -> None:
    names = [f"t{number}" for number in range(30)]
    ddl = ", ".join(f"{name} timestamp" for name in names)
    event = _event({"id": 1, **dict.fromkeys(names, TWICE)}, ddl, {CHECKSUM: "7"})
    assert "can be read in more than 4096 ways" in (_fault(event, zone=NEW_YORK) or "")


@pytest.mark.parametrize(
    ("members", "label", "index"),
    [
        ("'a,b','c'", "c", 2),
        # a\ and b are written as a\,b, which is read as one member
        ("'a\\\\','b','c'", "c", 3),
        ("'it''s','x'", "it's", 1),
    ],
)
def test_an_enum_is_found_where_its_members_are_written_ambiguously(
    members: str, label: str, index: int
) -> None:
    said = str(zlib.crc32(_long(1) + _long(index)))
    assert _fault(_event({"id": 1, "e": label}, f"e enum({members})", {CHECKSUM: said})) is None


@pytest.mark.parametrize("said", ["", "0"])
def test_a_row_without_checksum_has_no_fault(said: str) -> None:
    assert _fault(_event({"id": 1, "v": 2}, "v int", {CHECKSUM: said})) is None


def test_a_row_the_producer_calls_corrupted_is_told_whatever_its_sum() -> None:
    said = str(zlib.crc32(_long(1) + _long(2)))
    good = _event({"id": 1, "v": 2}, "v int", {CHECKSUM: said})
    assert _fault(good) is None
    assert "_tidb_corrupted" in (_fault(good._replace(extension={CHECKSUM: said, CORRUPTED: True})) or "")


def test_events_of_other_forms_have_no_fault() -> None:
    codec = codec_with()
    assert checksum_fault(only_change(codec, message_of(codec, change()))) is None
    assert (
        checksum_fault(only_change(codec, message_of(codec, change(Op.DELETE, None, before=EVERY_VALUE))))
        is None
    )


def _wrong(mode: str) -> tuple[FlatAvroCodec, Message]:
    codec = codec_with(**SUMMED, checksum=mode)
    return codec, message_of(codec, _event({"id": 1, "v": 2}, "v int", {CHECKSUM: "77"}))


def test_a_wrong_sum_is_no_matter_where_nobody_asks() -> None:
    codec, message = _wrong("off")
    assert only_change(codec, message).after == {"id": 1, "v": 2}


def test_a_wrong_sum_is_logged_with_its_place_where_it_is_to_be_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    codec, message = _wrong("warn")
    with caplog.at_level(logging.WARNING):
        assert only_change(codec, message).after == {"id": 1, "v": 2}
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{TOPIC}[3]@42: The row's checksum is ")
    assert "TiCDC wrote '77'" in record.getMessage()


def test_a_wrong_sum_refuses_its_record_alone() -> None:
    codec, message = _wrong("reject")
    ours = zlib.crc32(_long(1) + _long(2))
    with pytest.raises(ChecksumError, match=rf"checksum is {ours}, but TiCDC wrote '77'") as caught:
        codec.decode(message)
    assert caught.value.context["offset"] == 42
    assert caught.value.remedy == "reject"
    good = message_of(codec, _event({"id": 1, "v": 2}, "v int"))
    assert only_change(codec, good).after == {"id": 1, "v": 2}


def test_classic_sums_by_column_id_and_the_new_architecture_in_table_order() -> None:
    schema = table("create table t (z int, id int primary key)")
    numbered = replace(
        schema, columns=tuple(replace(one, column_id=2 - at) for at, one in enumerate(schema.columns))
    )
    sums = {}
    for producer in ("classic", "new"):
        codec = codec_with(**SUMMED, producer=producer)
        found = only_change(codec, message_of(codec, change(after={"z": 1, "id": 2}, schema=numbered)))
        assert list(found.after or {}) == ["id", "z"]
        assert found.extension is not None
        sums[producer] = found.extension[CHECKSUM]
    assert sums["classic"] == str(zlib.crc32(_long(2) + _long(1)))
    assert sums["new"] == str(zlib.crc32(_long(1) + _long(2)))
