"""How rows are split among a lake's partitions, and how Delta and Iceberg spell these, without Spark."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidesink.errors import TargetError
from tidesink.sinks.targets.delta.file_format import (
    SplitByColumns,
    escaped,
    partition_text,
    partition_value,
)
from tidesink.sinks.targets.iceberg.partitions import (
    PartitionField,
    SplitBySpec,
    is_known,
    murmur3,
    transformed,
)
from tidesink.sinks.targets.lake.rows import (
    MOST_PARTITIONS,
    FileColumn,
    TooManyPartitionsError,
    folder_of,
    grouped,
    iso_text,
)


@given(st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 2)), st.sampled_from(["", "a", None]))))
def test_rows_are_grouped_as_a_dictionary_does(keys: list[tuple[int | None, str | None]]) -> None:
    if not keys:
        return
    by = [pa.chunked_array([pa.array([key[at] for key in keys])]) for at in (0, 1)]
    by = [one if one.type != pa.null() else one.cast(pa.string()) for one in by]
    wanted = defaultdict(list)
    for number, key in enumerate(keys):
        wanted[key].append(number)
    found = {
        keys[first]: part["n"].to_pylist() for first, part in grouped(pa.table({"n": range(len(keys))}), by)
    }
    assert found == wanted


def test_rows_of_very_many_partitions_are_not_split() -> None:
    rows = pa.table({"n": range(MOST_PARTITIONS + 1)})
    assert len([*grouped(rows.slice(1), [rows["n"].slice(1)])]) == MOST_PARTITIONS
    with pytest.raises(TooManyPartitionsError):
        next(grouped(rows, [rows["n"]]))


def test_a_long_name_of_a_folder_is_cut() -> None:
    assert folder_of(["a=1", "p=" + "ß" * 300]) == "a=1/p=" + "ß" * 126


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "1970-01-01"),
        (-719_528, "0000-01-01"),
        (-719_529, "-0001-12-31"),
        (2_932_896, "9999-12-31"),
        (2_932_897, "+10000-01-01"),
    ],
)
def test_dates_of_any_year(days: int, text: str) -> None:
    assert iso_text(pa.scalar(days, pa.int32()).cast(pa.date32())) == text
    moment = pa.scalar(days * 86_400_000_000 + 1, pa.int64()).cast(pa.timestamp("us", "UTC"))
    assert iso_text(moment) == f"{text}T00:00:00.000001"


# Delta.

TEXTS = [
    (pa.string(), "a/b %", "a/b %"),
    (pa.int64(), -5, "-5"),
    (pa.bool_(), True, "true"),
    (pa.date32(), date(2024, 2, 29), "2024-02-29"),
    (pa.decimal128(20, 10), Decimal("0E-10"), "0.0000000000"),
    (pa.timestamp("us"), datetime(2024, 2, 29, 1, 2, 3, 500_000), "2024-02-29 01:02:03.5"),
    (pa.timestamp("us"), datetime(2024, 2, 29), "2024-02-29 00:00:00"),
    (pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 1, tzinfo=timezone.utc), "2024-02-29T01:00:00.000000Z"),
    (pa.string(), None, None),
]


@pytest.mark.parametrize(("kind", "value", "text"), TEXTS)
def test_values_of_partitions_in_deltas_log(kind: pa.DataType, value: Any, text: str | None) -> None:
    scalar = pa.scalar(value, kind)
    assert partition_text(scalar) == text
    found = partition_value(text, kind)
    assert found is not None
    assert found.equals(scalar)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_values_of_far_years_are_read_back(kind: pa.DataType) -> None:
    width = pa.int32() if kind == pa.date32() else pa.int64()
    for number in (-800_000, 4_000_000, -719_528):
        scalar = pa.scalar(number * (1 if width == pa.int32() else 86_400_000_000), width).cast(kind)
        found = partition_value(partition_text(scalar), kind)
        assert found is not None
        assert found.equals(scalar)


def test_an_instant_without_its_zone_is_not_known() -> None:
    assert partition_value("2024-02-29 01:00:00", pa.timestamp("us", "UTC")) is None


def column(name: str, kind: pa.DataType) -> FileColumn:
    return FileColumn(name, f"the {name}", kind, None, False, False)


def test_delta_files_are_split_into_folders_as_sparks() -> None:
    rows = pa.table({"id": [1, 2, 3], "p": ["a/b =%", None, "a/b =%"], "q": ["ß:x", "y", "ß:x"]})
    split = SplitByColumns((column("p", pa.string()), column("q", pa.string())), named=True)
    found = {one.folder: (json.loads(one.values), part.to_pydict()) for one, part in split(rows)}
    assert found == {
        "p=a%2Fb %3D%25/q=ß%3Ax": ({"p": "a/b =%", "q": "ß:x"}, {"id": [1, 3]}),
        "p=__HIVE_DEFAULT_PARTITION__/q=y": ({"p": None, "q": "y"}, {"id": [2]}),
    }
    ((short, _),) = SplitByColumns((column("p", pa.string()),), named=False)(rows.slice(1, 1))
    assert len(short.folder) == 2


@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_that_delta_takes_for_null_is_refused(text: str) -> None:
    split = SplitByColumns((column("p", pa.string()),), named=True)
    with pytest.raises(TargetError, match=r"column=the p.*would read it back as NULL"):
        [*split(pa.table({"p": [text]}))]


def test_spark_escapes_these() -> None:
    assert escaped("a b<>|~&ß}\x01\t\x7f\"#%'*/:=?\\{[]^") == (
        "a b<>|~&ß}%01%09%7F%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%5B%5D%5E"
    )


# Iceberg: hashes are the specification's own (appendix B).

HASHES = [
    (pa.int32(), 34, 2017239379),
    (pa.int64(), 34, 2017239379),
    (pa.decimal128(9, 2), Decimal("14.20"), -500754589),
    (pa.date32(), date(2017, 11, 16), -653330422),
    (pa.timestamp("us"), datetime(2017, 11, 16, 22, 31, 8), -2047944441),
    (pa.timestamp("us", "UTC"), datetime(2017, 11, 16, 22, 31, 8, 1, tzinfo=timezone.utc), -1207196810),
    (pa.string(), "iceberg", 1210000089),
    (pa.binary(), b"\x00\x01\x02\x03", -188683207),
]


@pytest.mark.parametrize(("kind", "value", "hashed"), HASHES)
def test_buckets_are_of_icebergs_hashes(kind: pa.DataType, value: Any, hashed: int) -> None:
    for count in (7, 2**31 - 1):
        values = pa.chunked_array([pa.array([None, value], kind).slice(1), pa.array([None, value], kind)])
        bucket = (hashed & 0x7FFF_FFFF) % count
        assert transformed(values, f"bucket[{count}]").to_pylist() == [bucket, None, bucket]


def plain_murmur3(data: bytes) -> int:
    """As the algorithm is written down."""
    mask, found = 0xFFFF_FFFF, 0

    def mixed(block: int) -> int:
        block = block * 0xCC9E2D51 & mask
        block = (block << 15 | block >> 17) & mask
        return block * 0x1B873593 & mask

    for at in range(0, len(data) - 3, 4):
        found ^= mixed(int.from_bytes(data[at : at + 4], "little"))
        found = ((found << 13 | found >> 19) & mask) * 5 + 0xE6546B64 & mask
    found ^= mixed(int.from_bytes(data[len(data) // 4 * 4 :], "little")) ^ len(data)
    found = (found ^ found >> 16) * 0x85EBCA6B & mask
    found = (found ^ found >> 13) * 0xC2B2AE35 & mask
    return found ^ found >> 16


@given(st.lists(st.binary(max_size=13), max_size=9))
def test_many_pieces_are_hashed_at_once(pieces: list[bytes]) -> None:
    lengths = np.array([len(one) for one in pieces], np.int64)
    data = np.frombuffer(b"".join(pieces), np.uint8)
    found = murmur3(data, np.cumsum(lengths) - lengths, lengths)
    assert found.tolist() == [plain_murmur3(one) for one in pieces]


@pytest.mark.parametrize(
    ("kind", "transform", "value", "wanted"),
    [
        (pa.int32(), "truncate[10]", -1, -10),
        (pa.int64(), "truncate[10]", 19, 10),
        (pa.decimal128(4, 2), "truncate[50]", Decimal("-10.65"), Decimal("-11.00")),
        (pa.decimal128(38, 0), "truncate[10]", Decimal(-(10**38) + 11), Decimal(-(10**38) + 10)),
        (pa.string(), "truncate[2]", "ß\U0001f600x", "ß\U0001f600"),
        (pa.binary(), "truncate[1]", b"\x00\x01", b"\x00"),
        (pa.date32(), "year", date(1969, 12, 31), -1),
        (pa.date32(), "month", date(1970, 3, 1), 2),
        (pa.timestamp("us"), "hour", datetime(1969, 12, 31, 23, 59), -1),
        (pa.timestamp("us", "UTC"), "day", datetime(1969, 12, 31, tzinfo=timezone.utc), date(1969, 12, 31)),
        (pa.string(), "void", "x", None),
        (pa.string(), "identity", "x", "x"),
    ],
)
def test_transforms(kind: pa.DataType, transform: str, value: Any, wanted: Any) -> None:
    values = pa.chunked_array([pa.array([value, None], kind)])
    assert transformed(values, transform).to_pylist() == [wanted, None]


def test_a_truncated_decimal_of_too_many_digits_is_refused() -> None:
    """Iceberg's own writer refuses it, too."""
    with pytest.raises(TargetError, match=r"truncate\[10\].*more digits"):
        transformed(pa.chunked_array([pa.array([Decimal("-9.99")])]), "truncate[10]")


def test_other_transforms_are_not_known() -> None:
    assert [is_known(one) for one in ("bucket", "year[4]", "zorder[2]", "ns_hour", "truncate[1]")] == [
        False,
        False,
        False,
        False,
        True,
    ]


def test_iceberg_files_keep_all_columns_and_folders_say_the_values() -> None:
    moments = pa.array([datetime(2024, 2, 29, 5, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC"))
    rows = pa.table({"at": moments, "name": ["a b/ß", "null"]})
    fields = (
        PartitionField(1000, "at_hour", "at", "hour"),
        PartitionField(1001, "name", "name", "identity"),
    )
    found = {
        one.folder: (json.loads(one.values), part.to_pydict()) for one, part in SplitBySpec(fields)(rows)
    }
    hours = 474_773
    assert found == {
        "at_hour=2024-02-29-05/name=a+b%2F%C3%9F": (
            {"1000": hours, "1001": "a b/ß"},
            rows.slice(0, 1).to_pydict(),
        ),
        "at_hour=null/name=null": ({"1001": "null"}, rows.slice(1).to_pydict()),
    }
