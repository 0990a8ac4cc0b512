"""Random tables of every type, random changes of their rows, and what harm can come to a message."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any, Final

from hypothesis import strategies as st

from tidesink.ddl.catalog import parse_create_table
from tidesink.events import ChangeEvent, Message, Op, Position, TableSchema

TOPIC: Final = "shop_t"
PARTITIONS: Final = 3
Row = dict[str, Any]

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_CLOCK = st.times().map(lambda time: f"{time.hour:02}:{time.minute:02}:{time.second:02}")
_ZERO_DAYS = st.sampled_from(["0000-00-00", "2020-00-00", "2020-02-30", "0000-01-01", "2023-02-29"])
_DAYS = st.dates().map(str) | _ZERO_DAYS | st.just("9999-12-31") | st.just("0001-01-01")


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high) | st.sampled_from([low, high, max(low, 0)])


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    end = 10**precision - 1
    return _integers(-end, end).map(lambda digits: Decimal((digits < 0, _digits(digits), -scale)))


def _digits(number: int) -> tuple[int, ...]:
    return tuple(int(digit) for digit in str(abs(number)))


def _moments(days: st.SearchStrategy[str], fraction: int) -> st.SearchStrategy[str]:
    """Texts of DATETIME and TIMESTAMP with a fraction of so many digits."""
    parts = st.tuples(days, _CLOCK, st.integers(0, 10**fraction - 1))
    return parts.map(lambda part: f"{part[0]} {part[1]}" + (f".{part[2]:0{fraction}}" if fraction else ""))


# TIMESTAMP holds 1970 to 2038.
_STAMP_DAYS = st.dates(date(1970, 1, 2), date(2038, 1, 18)).map(str)

VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "tinyint": _integers(-128, 127),
    "smallint unsigned": _integers(0, 65535),
    "int": _integers(-(2**31), 2**31 - 1),
    "int unsigned": _integers(0, 2**32 - 1),
    "bigint": _integers(-(2**63), 2**63 - 1),
    "bigint unsigned": _integers(0, 2**64 - 1),
    "year": _integers(1901, 2155),
    "bit(1)": _integers(0, 1),
    "bit(17)": _integers(0, 2**17 - 1),
    "bit(64)": _integers(0, 2**64 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False).map(
        lambda value: struct.unpack("<f", struct.pack("<f", value))[0]
    ),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "decimal(5,0)": _decimals(5, 0),
    "decimal(4,4)": _decimals(4, 4),
    "decimal(20,4)": _decimals(20, 4),
    "decimal(38,10)": _decimals(38, 10),
    "decimal(65,30)": _decimals(65, 30),
    "varchar(40)": _TEXT,
    "varbinary(40)": st.binary(max_size=12),
    "json": _TEXT,
    "date": _DAYS,
    "datetime": _moments(_DAYS, 0),
    "datetime(6)": _moments(_DAYS, 6),
    "timestamp": _moments(_STAMP_DAYS | st.just("0000-00-00"), 0),
    "timestamp(3)": _moments(_STAMP_DAYS, 3),
    "time(6)": st.tuples(st.integers(0, 838), _CLOCK).map(lambda part: f"-{part[0]:03}{part[1][2:]}.000001"),
    "enum('red','a b','ü','it''s')": st.sampled_from(["red", "a b", "ü", "it's"]),
    "set('x','y','z')": st.sampled_from(["", "x", "y,z", "x,y,z"]),
    "vector(2)": st.just("[1,-2.5]"),
}
KEY_VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "bigint": st.integers(-4, 4),
    "bigint unsigned": st.sampled_from([0, 1, 2**63, 2**64 - 1]),
    "varchar(40)": st.sampled_from(["a", "A", "ä", ""]),
    "decimal(20,4)": st.sampled_from([Decimal("1.5000"), Decimal("-0.0001")]),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableSchema, dict[str, str], dict[str, str]]:
    """A table, and the SQL types of its keys and of its other columns by name."""
    keys = draw(st.lists(st.sampled_from(sorted(KEY_VALUES)), min_size=1, max_size=2))
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=3, max_size=10, unique=True))
    key_types = {f"k{at}": sql for at, sql in enumerate(keys)}
    value_types = {f"c{at}": sql for at, sql in enumerate(types)}
    columns = [f"`{name}` {sql} not null" for name, sql in key_types.items()]
    columns += [f"`{name}` {sql}" for name, sql in value_types.items()]
    ddl = f"create table shop.t ({', '.join(columns)}, primary key ({', '.join(key_types)}))"
    return parse_create_table(ddl), key_types, value_types


@st.composite
def changes(draw: st.DrawFn, made: tuple[TableSchema, dict[str, str], dict[str, str]]) -> list[ChangeEvent]:
    """Changes of one table, in the order they happened."""
    schema, key_types, value_types = made
    events = []
    for at in range(draw(st.integers(6, 20))):
        keys = {name: draw(KEY_VALUES[sql]) for name, sql in key_types.items()}
        row = {**keys, **{name: draw(st.none() | VALUES[sql]) for name, sql in value_types.items()}}
        op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE]))
        old = {**row, **{name: draw(KEY_VALUES[sql]) for name, sql in key_types.items()}}
        before = old if op is Op.UPDATE else row
        events.append(
            ChangeEvent(
                op=op,
                table=schema.table,
                key=keys,
                before=None if op is Op.INSERT else before,
                after=None if op is Op.DELETE else row,
                commit_ts=470_000_000_000_000_000 + at,
                position=Position(TOPIC, 0, at),
                schema=schema,
            )
        )
    return events


def _cut(data: bytes, at: int) -> bytes:
    return data[: at % len(data)]


def _flip(data: bytes, at: int) -> bytes:
    place = 5 + at % max(1, len(data) - 5)
    return (
        data[:place] + bytes([data[place] ^ 1 << at % 8]) + data[place + 1 :] if place < len(data) else data
    )


HARMS: Final[dict[str, Callable[[bytes, int], bytes | None]]] = {
    "cut": _cut,
    "flip": _flip,
    "longer": lambda data, at: data + bytes(1 + at % 9),
    "another id": lambda data, _: data[:1] + (9999).to_bytes(4, "big") + data[5:],
    "magic": lambda data, at: bytes([1 + at % 9]) + data[1:],
    "empty": lambda *_: b"",
    "null": lambda *_: None,
}


@st.composite
def harmed(draw: st.DrawFn, messages: list[Message], share: int = 4) -> list[Message]:
    """The messages with one in ``share`` of them damaged, in its key or its value."""
    found = []
    for message in messages:
        if draw(st.integers(1, share)) == 1:
            part = draw(st.sampled_from(["key", "value"]))
            data = getattr(message, part)
            harm = HARMS[draw(st.sampled_from(sorted(HARMS)))]
            if data:
                changed = {
                    "key": message.key,
                    "value": message.value,
                    part: harm(data, draw(st.integers(0, 500))),
                }
                found.append(
                    Message(TOPIC, message.partition, message.offset, changed["key"], changed["value"])
                )
                continue
        found.append(message)
    return found
