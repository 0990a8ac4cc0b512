"""Decoded events as rows of a change log: what each becomes, and how a batch of them is counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.full import FULL
from tests.spark.decoded import reduced_here
from tests.unit.codecs.canal_json.messages import row_bytes
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import Message
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings
from tidesink.sinks.laws.counts import account_of
from tidesink.sinks.laws.modes import (
    COMMIT_TS,
    INDEX,
    OFFSET,
    OP,
    PARTITION,
    POSTIMAGE,
    PREIMAGE,
    UNAVAILABLE,
)
from tidesink.typemap.projection import Projection, project

SCHEMA = parse_create_table("CREATE TABLE s.t (id INT PRIMARY KEY, v VARCHAR(9), d DATE, n INT DEFAULT 7)")
KEYLESS = parse_create_table("CREATE TABLE s.t (v VARCHAR(9), n INT)")
WATERMARK = json.dumps(
    {"id": 0, "database": "", "table": "", "pkNames": None, "isDdl": False, "type": "TIDB_WATERMARK",
     "es": 5, "ts": 6, "sql": "", "sqlType": None, "mysqlType": None, "old": None, "data": None,
     "_tidb": {"watermarkTs": 99}}, separators=(",", ":")
).encode()  # fmt: skip


def row(**values: str | None) -> dict[str, str | None]:
    return {"id": "1", "v": "a", "d": "2020-01-01", "n": "5", **values}


def change(data: Mapping[str, str | None], kind: str = "INSERT", **members: Any) -> bytes:
    types = {"id": "int", "v": "varchar", "d": "date", "n": "int"}
    reported = {"type": kind, "mysqlType": {name: types[name] for name in data}, "_tidb": {"commitTs": 40}}
    return row_bytes({}, **{"data": [data], **reported, **members})


def messages(*values: bytes) -> list[Message]:
    return [Message("t", 3, offset, None, value) for offset, value in enumerate(values)]


def logged(plan: DecodePlan, *values: bytes) -> tuple[list[dict[str, Any]], Any]:
    """The rows of the log in their order, and the summary of the batch."""
    found = reduced_here(plan, messages(*values))
    assert all(one["key"].items() <= one["after"].items() for one in found.to_apply)
    rows = [one["after"] for one in found.to_apply]
    assert rows == sorted(rows, key=lambda one: (one[OFFSET], one[INDEX]))
    return rows, found.summary


def test_each_image_of_each_event_is_a_row() -> None:
    plan = canal_json_plan(SCHEMA, PlanSettings(logs=True))
    rows, summary = logged(
        plan,
        change(row()),
        change(row(v="b"), "UPDATE", old=[{"v": "a"}]),
        change(row(id="2", v=None), "UPDATE", old=[row(v="b", d="0000-00-00")]),
        change(row(id="2", v=None), "DELETE"),
        change({"id": "9"}, "DELETE"),
        WATERMARK,
        change(row(n="x")),
        change(row(), "UPDATE", old=[row(n="x")]),
    )
    own = (PARTITION, OFFSET, INDEX, OP, COMMIT_TS, UNAVAILABLE)
    day = row_day()
    assert [
        (*(one[name] for name in own), *(one[name] for name in ("id", "v", "d", "n"))) for one in rows
    ] == [
        (3, 0, 0, "insert", 40, None, 1, "a", day, 5),
        (3, 1, 0, PREIMAGE, 40, None, 1, "a", day, 5),
        (3, 1, 1, POSTIMAGE, 40, None, 1, "b", day, 5),
        (3, 2, 0, PREIMAGE, 40, None, 1, "b", None, 5),
        (3, 2, 1, POSTIMAGE, 40, None, 2, None, day, 5),
        (3, 3, 0, "delete", 40, None, 2, None, day, 5),
        (3, 4, 0, "delete", 40, '["v","d","n"]', 9, None, None, None),
    ]
    counts = summary.counts
    assert (counts.read, counts.upserts, counts.split_halves, counts.filtered) == (8, 7, 2, 1)
    assert [(bad.offset, bad.error) for bad in summary.bad_records] == [(6, "ValueOutOfRangeError")]
    assert counts.bad == 2
    account = account_of(counts, kafka_records=8, applied_rows=7, rejected=2)
    account.check(table="t")
    assert (account.read, account.applied, account.without_row, account.dead_lettered) == (8, 5, 1, 2)
    with pytest.raises(Exception, match="1 events are missing"):
        account_of(counts, kafka_records=8, applied_rows=6, rejected=2).check(table="t")


def row_day() -> Any:
    from datetime import date

    return date(2020, 1, 1)


def test_a_table_without_a_key_has_all_its_rows() -> None:
    plan = canal_json_plan(KEYLESS, PlanSettings(logs=True))
    one = {"v": "a", "n": "5"}
    same: dict[str, Any] = {"pkNames": None, "_tidb": {"commitTs": 40}}
    values = (
        change(one, **same),
        change(one, **same),
        change(one | {"n": "6"}, "UPDATE", old=[one], **same),
        change(one, "DELETE", **same),
    )
    rows, summary = logged(plan, *values)
    assert [(found[OP], found["v"], found["n"]) for found in rows] == [
        ("insert", "a", 5),
        ("insert", "a", 5),
        (PREIMAGE, "a", 5),
        (POSTIMAGE, "a", 6),
        ("delete", "a", 5),
    ]
    assert (summary.counts.read, summary.counts.applied, summary.mixed_keys) == (4, 4, ())


@FULL
def test_chosen_and_renamed_columns_are_those_of_old_rows_too() -> None:
    plan = canal_json_plan(SCHEMA, PlanSettings(logs=True))
    projection = Projection(except_columns=("d", "n"), rename={"v": "value"})
    laid = project(projection, plan.shape, own=())
    rows = replace(plan.rows, target=laid.shape, sources=laid.sources)
    chosen = replace(plan, rows=rows)
    found, _ = logged(chosen, change(row(v="b"), "UPDATE", old=[row()]), change({"id": "9"}, "DELETE"))
    assert [(one[OP], one["id"], one["value"], one[UNAVAILABLE]) for one in found] == [
        (PREIMAGE, 1, "a", None),
        (POSTIMAGE, 1, "b", None),
        ("delete", 9, None, '["value"]'),
    ]
    assert "d" not in found[0]
