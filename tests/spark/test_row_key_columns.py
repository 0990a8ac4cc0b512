"""Tables without a key under TiDB's row keys: in a frame as in the row codec."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.full import FULL
from tests.golden.vectors import VectorFolder, schema_of
from tests.multisets import CREATE, OPTIONS, SCHEMA, TABLE, change, copies, history, messages
from tests.spark.decoded import Decoded, decode_here, reduced_here
from tidesink.codecs.canal_json.codec import CanalJsonCodec, keyed_by_row
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import SchemaMismatchError
from tidesink.events import ChangeEvent, DdlEvent, Event, Message, Op, Position, Row, WatermarkEvent
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings
from tidesink.typemap.target_schema import RowKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST, MOST = -(1 << 63), (1 << 63) - 1
ROW: Final[Row] = {"name": "a", "amount": 1}
OTHER: Final[Row] = {"name": "b", "amount": None}
EXTREMES = [RowKey(r, t) for r in (LEAST, -1, 0, 1, MOST) for t in (LEAST, -1, 0, 1, MOST)]


def _codec() -> CanalJsonCodec:
    return CanalJsonCodec(options=OPTIONS, definitions=TableDefinitions([SCHEMA]))


def _plan() -> DecodePlan:
    return canal_json_plan(SCHEMA, by_row_key=True)


def _decoded(spark: SparkSession, sent: list[Message]) -> list[Decoded]:
    plan = _plan()
    return decode_here(plan, sent)


def _as_python(message: Message) -> tuple[Any, ...]:
    (event,) = _codec().decode(message)
    assert isinstance(event, ChangeEvent)
    named = keyed_by_row(event)
    return "delete" if event.op is Op.DELETE else "upsert", named.key, named.after, event.commit_ts


@FULL
def test_row_keys_are_read_as_in_python(spark: SparkSession) -> None:
    events, _ = history(Random(7), 60)
    events += [change(key, ROW, OTHER, at=60 + at) for at, key in enumerate(EXTREMES)]
    sent = messages(events)
    found = _decoded(spark, sent)
    assert [(row.kind, row.key, row.after, row.commit_ts) for row in found] == [*map(_as_python, sent)]
    # An update keeps its row, whatever its columns are.
    assert [row.old_key for row in found] == [None] * len(sent)


def test_a_batch_is_reduced_to_the_copies_there_are(spark: SparkSession) -> None:
    events, expected = history(Random(11), 200)
    plan = _plan()
    found = reduced_here(plan, messages(events))
    assert copies(row["after"] for row in found.to_apply if row["_op"] == "upsert") == expected


def _sent_as(offset: int, members: dict[str, Any], *, spaced: bool = False) -> Message:
    """A message as TiCDC writes it, or in another form."""
    text = json.dumps(members) if spaced else json.dumps(members, separators=(",", ":"))
    return Message("t", 0, offset, None, text.encode())


def _members(**more: Any) -> dict[str, Any]:
    (message,) = messages([change(RowKey(5, 104), None, ROW, at=0)])
    members: dict[str, Any] = json.loads(message.value or b"")
    return {**members, **more}


def _text(digits: str) -> str:
    return base64.b64encode(bytes.fromhex(digits)).decode()


NONE, OTHER_FORM = "has no _tidb.rowkey", "not the key of a row with a _tidb_rowid"
SENT: Final = "7480000000000000785f728000000000000001"
BAD: Final[list[tuple[dict[str, Any], str]]] = [
    ({"_tidb": {"commitTs": 1}}, NONE),
    ({"_tidb": {"commitTs": 1, "rowkey": 7}}, NONE),
    ({"_tidb": {"commitTs": 1, "rowkey": None}}, NONE),
    ({"_tidb": {"commitTs": 1, "rowkey": ""}}, OTHER_FORM),
    ({"_tidb": {"commitTs": 1, "rowkey": _text(SENT)[:-1]}}, OTHER_FORM),
    ({"_tidb": {"commitTs": 1, "rowkey": _text(SENT)[:-3] + "R=="}}, OTHER_FORM),
    ({"_tidb": {"commitTs": 1, "rowkey": _text(SENT)[:27] + "\n"}}, OTHER_FORM),
    ({"_tidb": {"commitTs": 1, "rowkey": "é" * 28}}, OTHER_FORM),
    ({"_tidb": {"commitTs": 1, "rowkey": _text(SENT + "00")}}, OTHER_FORM),
    ({"_tidb": {"commitTs": 1, "rowkey": _text(SENT.replace("5f72", "5f69"))}}, OTHER_FORM),
    ({"_tidb": {"commitTs": 1, "rowkey": _text("6d" + SENT[2:])}}, OTHER_FORM),
    ({"pkNames": ["name"]}, "The row's pkNames are not the table's key"),
    # One row key names one row.
    ({"data": [{"name": "a", "amount": "1"}, {"name": "b", "amount": None}]}, NONE),
]


@FULL
def test_what_no_row_key_names_is_bad_and_says_why(spark: SparkSession) -> None:
    sent = [_sent_as(at, _members(**more)) for at, (more, _) in enumerate(BAD)]
    found = _decoded(spark, sent)
    assert {row.offset: row.kind for row in found} == dict.fromkeys(range(len(BAD)), "bad")
    assert all(row.error == SchemaMismatchError.__name__ for row in found)
    assert [row.offset for row in found if BAD[row.offset][1] not in (row.reason or "")] == []
    # A message with two rows is bad as a whole.
    assert len(found) == len(BAD)


@FULL
def test_a_message_in_another_form_keeps_its_row_key(spark: SparkSession) -> None:
    regular, spaced = _sent_as(0, _members()), _sent_as(1, _members(), spaced=True)
    one, other = _decoded(spark, [regular, spaced])
    assert (one.key, one.after) == (other.key, other.after)
    assert one.key == {"_tidb_rowid": 5, "_tidb_table_id": 104}


@FULL
def test_a_row_key_names_its_row_without_a_commit_ts(spark: SparkSession) -> None:
    row_key = _members()["_tidb"]["rowkey"]
    sent = [
        _sent_as(0, _members(_tidb={"rowkey": row_key})),
        _sent_as(1, _members(_tidb={"rowkey": row_key}), spaced=True),
        _sent_as(2, _members(_tidb={"rowkey": row_key, "commitTs": 1005})),
    ]
    found = _decoded(spark, sent)
    assert [(row.kind, row.key, row.after, row.commit_ts) for row in found] == [*map(_as_python, sent)]
    assert [row.commit_ts for row in found] == [None, None, 1005]


@FULL
def test_what_is_no_row_needs_no_row_key(spark: SparkSession) -> None:
    codec, position = _codec(), Position("t", 0, 0)
    events: list[Event] = [DdlEvent(TABLE, CREATE, "CREATE", 1, position), WatermarkEvent(5, position)]
    records = [codec.encode(event, topic="t") for event in events]
    sent = [Message("t", 0, at, None, record.value) for at, record in enumerate(records) if record]
    assert [row.kind for row in _decoded(spark, sent)] == ["ddl", "watermark"]


@FULL
def test_a_table_with_a_key_goes_by_it_whatever_row_keys_say(spark: SparkSession) -> None:
    plan = canal_json_plan(SCHEMA, PlanSettings(keys=("name",)), by_row_key=True)
    (row,) = decode_here(plan, [_sent_as(0, _members(_tidb={"commitTs": 1}))])
    assert (row.kind, row.key) == ("upsert", {"name": "a"})


GOLDEN: Final = Path(__file__).parents[1] / "golden" / "data" / "canal-new"


@FULL
def test_row_keys_that_ticdc_wrote(spark: SparkSession) -> None:
    """Rows that name no primary key: nothing but a definition would tell of their table's unique key."""
    sent = [
        record
        for record in VectorFolder(GOLDEN).rows("canal-json")
        if record.raw["case"] == "before_uk_only_b" and record.options_of(CanalJsonOptions).sends_row_keys
    ]
    schema = schema_of(sent[0].event or {})
    keyless = replace(schema, columns=tuple(replace(column, handle=False) for column in schema.columns))
    plan = canal_json_plan(keyless, by_row_key=True)
    received = [record.message for record in sent]
    found = decode_here(plan, received)
    digits = [(record.event or {})["row_key_hex"] for record in sent]
    assert [row.kind for row in found] == ["upsert", "upsert", "delete"]
    assert [row.key for row in found] == [{"_tidb_rowid": 1, "_tidb_table_id": 0x7E}] * 3
    assert set(digits) == {"74800000000000007e5f728000000000000001"}
    assert [row["_op"] for row in reduced_here(plan, received).to_apply] == ["delete"]
