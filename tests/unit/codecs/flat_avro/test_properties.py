"""Any table of any types, any values: written and read back to the same, by either producer's rules."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.codecs.flat_avro.cases import change, codec_with, message_of, only_change, table
from tidesink.events import Op

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_MEMBERS = ("red", "a b", "ü", "it's", "")
_FLOATS = st.floats(width=32, allow_nan=False)
_CLOCK = st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0 if low <= 0 <= high else low]))


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    end = 10**precision - 1
    return _integers(-end, end).map(lambda digits: Decimal(f"{digits}e-{scale}"))


_TYPES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": _integers(-128, 127),
    "int": _integers(-(2**31), 2**31 - 1),
    "int unsigned": _integers(0, 2**32 - 1),
    "bigint": _integers(-(2**63), 2**63 - 1),
    "bigint unsigned": _integers(0, 2**64 - 1),
    "year": _integers(0, 2155),
    "bit(1)": _integers(0, 1),
    "bit(17)": _integers(0, 2**17 - 1),
    "bit(64)": _integers(0, 2**64 - 1),
    "float": _FLOATS.map(lambda value: struct.unpack("<f", struct.pack("<f", value))[0]),
    "double": st.floats(allow_nan=False),
    "decimal(5,0)": _decimals(5, 0),
    "decimal(20,4)": _decimals(20, 4),
    "decimal(65,30)": _decimals(65, 30),
    "varchar(40)": _TEXT,
    "longtext": _TEXT,
    "varbinary(40)": st.binary(max_size=20),
    "json": _TEXT,
    "date": st.dates().map(str),
    "datetime(3)": _CLOCK.map(lambda clock: "0000-00-00 {:02d}:{:02d}:{:02d}.125".format(*clock)),
    "time(6)": _CLOCK.map(lambda clock: "-{:03d}:{:02d}:{:02d}.000001".format(*clock)),
    "enum('red','a b','ü','it''s','')": st.sampled_from(_MEMBERS),
    "set('x','y','z')": st.sampled_from(["", "x", "y,z", "x,y,z"]),
    "vector(2)": st.just("[1,-2.5]"),
}


@st.composite
def _tables(draw: st.DrawFn) -> tuple[Any, list[dict[str, Any]]]:
    """A table and two of its rows."""
    types = draw(st.lists(st.sampled_from(sorted(_TYPES)), min_size=1, max_size=8))
    required = draw(st.lists(st.booleans(), min_size=len(types), max_size=len(types)))
    columns = [
        f"`c{at}` {sql}{' not null' if must else ''}"
        for at, (sql, must) in enumerate(zip(types, required, strict=True))
    ]
    rows = [
        {
            "id": draw(_TYPES["bigint"]),
            **{
                f"c{at}": draw(_TYPES[sql] if must else st.none() | _TYPES[sql])
                for at, (sql, must) in enumerate(zip(types, required, strict=True))
            },
        }
        for _ in range(2)
    ]
    return table(f"create table t (id bigint primary key, {', '.join(columns)})"), rows


_OPTIONS = st.fixed_dictionaries(
    {
        "producer": st.sampled_from(["classic", "new"]),
        "enable_tidb_extension": st.booleans(),
        "avro_include_before_value": st.booleans(),
        "avro_decimal_handling_mode": st.sampled_from(["precise", "string"]),
        "avro_bigint_unsigned_handling_mode": st.sampled_from(["long", "string"]),
    }
)


@settings(max_examples=150, deadline=None)
@given(made=_tables(), options=_OPTIONS, op=st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]))
def test_any_change_comes_back_and_goes_back(made: Any, options: dict[str, Any], op: Op) -> None:
    schema, (old, new) = made
    codec = codec_with(**options)
    before = None if op is Op.INSERT else old
    after = None if op is Op.DELETE else new
    message = message_of(codec, change(op, after, before=before, schema=schema))
    found = only_change(codec, message)
    assert found.after == after
    with_before = options["producer"] == "new" and options["avro_include_before_value"]
    if with_before:
        assert (found.op, found.before) == (op, before)
    elif op is Op.DELETE:
        assert found.before == found.key == {"id": old["id"]}
    # Bit widths follow the producer option where the schema does not show the new architecture.
    assert codec.encode_with_ids(found._replace(schema=None)) == (message.key, message.value)
