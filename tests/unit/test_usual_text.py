"""The quick look at a row's texts: it calls none usual that the type's reader reads otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidesink.errors import ValueOutOfRangeError
from tidesink.events import ColumnType
from tidesink.typemap.parse import text_reader, usual_row, usual_text

TYPES = {
    "tinyint": ColumnType("tinyint"),
    "tinyint unsigned": ColumnType("tinyint unsigned"),
    "smallint": ColumnType("smallint"),
    "int": ColumnType("int"),
    "int unsigned": ColumnType("int unsigned"),
    "bigint": ColumnType("bigint"),
    "bigint unsigned": ColumnType("bigint unsigned"),
    "year": ColumnType("year"),
    "double": ColumnType("double"),
    "decimal(20,4)": ColumnType("decimal", 20, 4),
    "decimal(4,4)": ColumnType("decimal", 4, 4),
    "decimal(5,0)": ColumnType("decimal", 5, 0),
    "decimal": ColumnType("decimal"),
    "date": ColumnType("date"),
    "datetime(3)": ColumnType("datetime", fsp=3),
    "timestamp": ColumnType("timestamp"),
    "time": ColumnType("time"),
}
USUAL = {
    "tinyint": ["0", "-1", "100", "-119", "9"],
    "tinyint unsigned": ["0", "199", "249"],
    "smallint": ["29999", "-7"],
    "int": ["1999999999", "-1999999999", "12"],
    "int unsigned": ["3999999999"],
    "bigint": ["1767225600000000001", "-8999999999999999999"],
    "bigint unsigned": ["9999999999999999999"],
    "year": ["1901", "2026", "0000"],
    "double": ["0.5", "-12.25", "0"],
    "decimal(20,4)": ["1.0000", "-9999999999999999.9999"],
    "datetime(3)": ["2026-01-01 00:00:00.000", "0000-00-00 00:00:00.000"],
    "time": ["-838:59:59"],
}
NUMBER_CHARACTERS = "0123456789-+._eE ٣\n\0n"


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in USUAL.items() for text in texts])
def test_usual_texts_are_seen_as_such(name: str, text: str) -> None:
    usual = usual_row([("a", TYPES[name])])
    row: dict[str, Any] = {"a": text}
    assert usual is not None
    assert usual.read(row)
    assert row == {"a": text_reader(TYPES[name])(text)}
    assert type(row["a"]) is type(text_reader(TYPES[name])(text))


@pytest.mark.parametrize("name", TYPES)
@given(
    text=st.text(NUMBER_CHARACTERS, max_size=22) | st.from_regex(r"\A-?[0-9]{1,21}\Z") | st.text(max_size=5)
)
def test_a_usual_text_is_read_as_its_reader_reads_it(name: str, text: str) -> None:
    _same_or_left(TYPES[name], text)


@pytest.mark.parametrize("name", ["date", "datetime(3)", "timestamp", "time", "decimal(20,4)"])
@given(data=st.data())
def test_texts_near_the_pattern_too(name: str, data: st.DataObject) -> None:
    usual = usual_text(TYPES[name])
    assert usual is not None
    text = data.draw(st.from_regex(usual.pattern, fullmatch=False))
    _same_or_left(TYPES[name], text)


def _same_or_left(column_type: ColumnType, text: str) -> None:
    usual = usual_row([("a", column_type), ("b", TYPES["int"])])
    row: dict[str, Any] = {"a": text, "b": "1"}
    assert usual is not None
    if usual.read(row):
        assert row == {"a": text_reader(column_type)(text), "b": 1}
    else:
        assert row == {"a": text, "b": "1"}


@pytest.mark.parametrize("text", ["128", "-129", "1_0", " 1", "+1", "٣", "1\0001", "", "1\n"])
def test_what_is_no_value_is_left_to_the_reader(text: str) -> None:
    row: dict[str, Any] = {"a": text, "b": "1"}
    usual = usual_row([("a", TYPES["tinyint"]), ("b", TYPES["tinyint"])])
    assert usual is not None
    assert not usual.read(row)
    with pytest.raises(ValueOutOfRangeError):
        text_reader(TYPES["tinyint"])(text)


@pytest.mark.parametrize("value", [None, 1, ["1"], {"a": "1"}])
def test_null_and_what_is_no_text_leave_the_row_as_it_was(value: object) -> None:
    usual = usual_row([("a", TYPES["int"]), ("b", TYPES["int"])])
    row: dict[str, Any] = {"a": "1", "b": value}
    assert usual is not None
    assert not usual.read(row)
    assert row == {"a": "1", "b": value}


def test_texts_and_labels_are_not_looked_at() -> None:
    assert usual_row([("a", ColumnType("varchar")), ("b", ColumnType("enum", members=("x",)))]) is None
    assert usual_text(ColumnType("float")) is None
