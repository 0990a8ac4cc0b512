"""Rows that came before the table was emptied: left out before anything is asked of them, and counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.decoded_batches import as_records
from tidesink.codecs.compression import compressed
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import Message
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.plans import PlanSettings
from tidesink.sinks.decode.records import DecodedRecords, EventRules, decoded_records

SCHEMA = parse_create_table("CREATE TABLE shop.t (id INT PRIMARY KEY, es INT, day DATE)")
# The DDL was committed in millisecond 10, with the TSO of its fifth transaction.
EMPTIED = 10 << 18 | 5


def _value(es: Any = 9, *, commit_ts: int | None = None, table: str = "t", day: str = "2026-01-01") -> bytes:
    """A row as TiCDC writes it; its own column ``es`` is no time."""
    row = f'{{"id":"1","es":"20","day":"{day}"}}'
    extension = "" if commit_ts is None else f',"_tidb":{{"commitTs":{commit_ts}}}'
    return (
        f'{{"id":0,"database":"shop","table":"{table}","pkNames":["id"],"isDdl":false,"type":"INSERT","es":{es},'
        '"ts":30,"sql":"","sqlType":{"id":4,"es":4,"day":91},"mysqlType":{"id":"int","es":"int","day":"date"},'
        f'"old":null,"data":[{row}]{extension}}}'
    ).encode()


def _decoded(
    *values: bytes, emptied: int | None = EMPTIED, options: CanalJsonOptions | None = None
) -> DecodedRecords:
    plan = canal_json_plan(SCHEMA, PlanSettings(zero_date="error"), options=options)
    records = as_records(Message("cdc", 0, at, None, value) for at, value in enumerate(values))
    return decoded_records(records, plan.decoder, plan.rows, rules=EventRules(emptied=emptied))


def _void(*values: bytes, **given: Any) -> tuple[int, int]:
    """How many rows are void, and how many are not."""
    found = _decoded(*values, **given)
    assert not found.others, found.others
    assert found.void == found.void_records
    return found.void, sum(one.rows.num_rows for one in found.tables)


@pytest.mark.parametrize(
    ("es", "commit_ts", "void"),
    [
        (9, None, 1),
        (10, None, 0),  # the DDL's own millisecond counts as later
        (11, None, 0),
        (0, None, 0),  # nothing says when
        (1 << 46, None, 0),
        (9, EMPTIED, 1),
        (9, EMPTIED + 1, 0),
        (11, 1, 1),  # the commit ts says it, whatever es does
    ],
)
def test_a_row_is_void_up_to_the_time_of_the_ddl(es: int, commit_ts: int | None, void: int) -> None:
    value = _value(es, commit_ts=commit_ts)
    other_order = json.dumps(dict(reversed(json.loads(value).items()))).encode()
    for one in (value, other_order):
        assert _void(one) == (void, 1 - void)
        assert _void(one, _value(99), one) == (2 * void, 3 - 2 * void)
        assert _void(one, emptied=None) == (0, 1)


def test_rows_of_one_record_have_each_the_time_of_their_message() -> None:
    """As files of cloud storage have them: a record that begins with a void row is one of theirs."""
    found = _decoded(b"\n".join([_value(9), _value(11), _value(8)]), _value(11))
    assert (found.void, found.void_records) == (2, 1)
    assert sum(one.rows.num_rows for one in found.tables) == 2


def test_compressed_records_have_their_time_too() -> None:
    options = CanalJsonOptions(large_message_handle_compression="lz4")
    values = [compressed(_value(es), "lz4") for es in (9, 11)]
    assert _void(*values, options=options) == (1, 1)


def test_nothing_is_asked_of_a_void_row() -> None:
    late = _decoded(_value(11, day="0000-00-00"))
    assert [one.kind for one in late.others] == ["bad"]
    assert _void(_value(9).replace(b'"es":"20"', b'"new":"20"')) == (1, 0)


def test_a_row_of_another_table_is_none_of_this_ones() -> None:
    found = _decoded(_value(9, table="u"))
    assert (found.void, [one.kind for one in found.others]) == (0, ["bad"])
