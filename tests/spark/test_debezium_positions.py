"""Positions out of source blocks of every connector: the decoded frame's text is the row codec's."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.spark.decoded import decode_here
from tests.unit.codecs.debezium.test_source import POSITIONS, WRONG_NUMBERS, block
from tidesink.codecs.debezium.envelope import MONGODB, connector_of, position_of_source, table_of_source
from tidesink.codecs.debezium.inference import first_row
from tidesink.codecs.options import DebeziumOptions
from tidesink.events import Message, Position
from tidesink.sinks.decode.debezium_json import Writers, debezium_json_plan, first_writer
from tidesink.sinks.decode.plans import PlanSettings

LONG_LSN: Final = "f" * 20 + ":" + "f" * 8 + ":" + "f" * 3
MORE: list[dict[str, Any]] = [
    *(block(connector, **{member: wrong}) for connector, member in (("postgresql", "lsn"), ("oracle", "scn"))
      for wrong in WRONG_NUMBERS),
    *(block("mysql", file="b.000001", pos=wrong, row=0) for wrong in WRONG_NUMBERS),
    *(block("mysql", file=file, pos=4, row=7) for file in ("b.1.0007", "b.7x", "b.1\n", "b." + "1" * 19)),
    block("mysql", file="b.000000", pos="0007"),
    block("postgresql", snapshot=True, lsn=5),
    block("postgresql", snapshot=False, lsn=5),
    block("postgresql", snapshot=None, lsn=5),
    block("oracle", scn="0" * 38, commit_scn="9" * 38),
    block("sqlserver", commit_lsn="00000027:00000758:0005", change_lsn=LONG_LSN, event_serial_no=2**31),
    block("db2", commit_lsn="0000:" * 2 + "0", change_lsn="x"),
    block("TiCDC", commit_ts=None),
]  # fmt: skip
_TABLE: Final = {"connector": "unknown", "db": "d", "schema": "s", "table": "t"}
SOURCES: Final = [one for one, _ in POSITIONS if connector_of(one) != MONGODB] + MORE


def _texts(source: dict[str, Any], schema: dict[str, Any] | None) -> list[tuple[str, str | None]]:
    """Kind and position of a record with this source block; with a schema beside it the columnar step's."""
    source = {**_TABLE, **source}
    row = {"id": 1}
    payload = {"before": None, "after": row, "source": source, "op": "c"}
    value = payload if schema is None else {"schema": schema, "payload": payload}
    message = Message("t", 0, 0, None, json.dumps(value, separators=(",", ":")).encode())
    first = first_row([message], DebeziumOptions())
    assert first is not None
    plan = debezium_json_plan(
        table_of_source(source), Writers().with_new([first_writer(first)]), PlanSettings(keys=("id",))
    )
    names = ("topic", "partition", "offset", "key", "value")
    columns = {name: [getattr(message, name)] for name in names}
    records = pa.RecordBatch.from_pydict({**columns, "key": pa.array([None], pa.binary())})
    return [(row.kind, row.raw["_position"]) for row in decode_here(plan, records)]


def _schema(source: dict[str, Any]) -> dict[str, Any]:
    kinds = {bool: "boolean", int: "int64", str: "string"}
    members = [
        {"field": name, "type": kinds.get(type(one), "string"), "optional": True}
        for name, one in {**_TABLE, **source}.items()
    ]
    row = {"type": "struct", "fields": [{"field": "id", "type": "int64"}], "optional": True}
    fields = [{**row, "field": "before"}, {**row, "field": "after"}]
    fields += [{"type": "struct", "fields": members, "field": "source"}, {"type": "string", "field": "op"}]
    return {"type": "struct", "fields": fields}


@pytest.mark.parametrize("source", SOURCES, ids=lambda one: json.dumps(one)[:80])
def test_each_position_is_what_the_row_codec_reads(source: dict[str, Any]) -> None:
    numbers = position_of_source(source)
    expected = Position("", 0, 0, 0, numbers).source_text
    if numbers == (2**64 - 1,):  # no commit_ts of TiDB's, which is a signed number here
        assert _texts(source, None) == [("bad", None)]
        return
    assert _texts(source, None) == [("upsert", expected)]
    if not any(isinstance(one, float | dict | list) for one in source.values()):
        assert _texts(source, _schema(source)) == [("upsert", expected)]


def test_positions_are_seen() -> None:
    assert sum(position_of_source(one) is not None for one in SOURCES) > 15


def test_a_position_of_more_than_38_digits_is_a_bad_record() -> None:
    source = block("sqlserver", commit_lsn="f" * 32 + ":" + "f" * 16, change_lsn="0", event_serial_no=1)
    assert _texts(source, None) == [("bad", None)]
