"""debezium-avro tables with several writer schemas in one topic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tests.full import FULL
from tests.spark.debezium_rows import all_differences
from tests.spark.debezium_versions import TABLE, Version, Versions
from tests.spark.decoded import Decoded, decode_here
from tidesink.codecs import open_codec
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.sinks.decode.debezium_avro import debezium_avro_plan
from tidesink.sinks.decode.plans import DecodePlan, SubjectSchemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = FULL

_INT: Final = ["null", "int"]
_LONG: Final = ["null", "long"]
_TEXT: Final = ["null", "string"]
_ENUM: Final = "io.debezium.data.Enum"


def _plan(topic: Versions) -> DecodePlan:
    return debezium_avro_plan(TABLE, SubjectSchemas(topic.key_texts, topic.texts))


def _rows(spark: SparkSession, topic: Versions, plan: DecodePlan) -> list[Decoded]:
    """The decoded rows, once each is what the Python codec reads."""
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry({**topic.key_texts, **topic.texts}))
    rows = decode_here(plan, topic.messages)
    wrong = all_differences(codec, topic.messages, rows, plan)
    assert not wrong, "\n".join(wrong)
    return rows


def _enum(labels: str) -> list[Any]:
    kind = {"type": "string", "connect.name": _ENUM, "connect.parameters": {"allowed": labels}}
    return ["null", kind]


def test_rows_of_all_versions_are_what_the_python_codec_reads(spark: SparkSession) -> None:
    topic = Versions(
        Version({"a": _INT, "s": _TEXT}),
        Version({"a": _INT, "new": _TEXT, "s": _TEXT}, ("ts_us",)),
        Version({"a": "int", "new": _TEXT}, ("ts_us", "sequence")),
        Version({"a": _LONG, "new": _TEXT, "e": _enum("x")}),
        Version({"e": _enum("x,y"), "new": _TEXT, "a": _LONG}),
    )
    topic.send(100, {"a": 1, "s": "one"})
    topic.send(101, {"a": 2, "new": "two", "s": "zwei"})
    topic.send(102, {"a": 3, "new": "__debezium_unavailable_value"})
    topic.send(103, {"a": 2**40, "e": "x"})
    topic.send(104, {"a": None, "e": "y", "new": "five"})
    topic.send(101, {"id": 0}, op="d")
    plan = _plan(topic)
    rows = _rows(spark, topic, plan)
    assert rows[0].after == {"id": 0, "a": 1, "s": "one", "new": None, "e": None}
    assert rows[1].after == {"id": 1, "a": 2, "s": "zwei", "new": "two", "e": None}
    assert rows[4].after == {"id": 4, "a": None, "s": None, "new": "five", "e": "y"}
    assert [row.kind for row in rows] == ["upsert"] * 5 + ["delete"]


def test_a_value_that_was_not_sent_is_a_connectors_and_a_text_ticdcs_in_one_topic(
    spark: SparkSession,
) -> None:
    """TiCDC sends every value; the connector that wrote to the topic before it did not."""
    ticdc = Version({"s": _TEXT}, ("commit_ts",), {"commit_ts": "long"})
    topic = Versions(Version({"s": _TEXT}), ticdc)
    value = "__debezium_unavailable_value"
    topic.send(100, {"s": value})
    topic.send(101, {"s": value}, connector="TiCDC", db="lab", commit_ts=5)
    plan = _plan(topic)
    unsent, sent = _rows(spark, topic, plan)
    assert (unsent.raw["_kept"], sent.raw["_kept"]) == (["s"], None)
    assert (sent.after or {})["s"] == value


def test_a_row_from_before_a_column_has_its_default_and_one_after_it_has_none(spark: SparkSession) -> None:
    topic = Versions(
        Version({"a": _INT}),
        Version({"a": _INT, "d": [{"type": "string", "connect.default": "filled"}, "null"]}),
        Version({"a": _INT}, ("ts_us",)),
    )
    for schema_id in (100, 101, 101, 102):
        topic.send(schema_id, {"a": 1})
    topic.send(101, {"a": 1, "d": "given"})
    plan = _plan(topic)
    after = [row.after or {} for row in decode_here(plan, topic.messages)]
    assert [row["d"] for row in after] == ["filled", None, None, None, "given"]


def test_a_record_of_another_schema_than_its_id_says_is_bad(spark: SparkSession) -> None:
    topic = Versions(Version({"a": _INT}), Version({"a": _INT, "b": _TEXT}))
    topic.send(101, {"a": 1, "b": "x"})
    topic.send(100, {"a": 1})
    for place, schema_id in enumerate((100, 101)):
        message = topic.messages[place]
        assert message.value is not None
        wrong = b"\0" + schema_id.to_bytes(4, "big") + message.value[5:]
        topic.messages[place] = replace(message, value=wrong)
    rows = _rows(spark, topic, _plan(topic))
    assert [row.kind for row in rows] == ["bad", "bad"]
    assert "written with a different schema than its id names" in str(rows[0].reason)


def test_positions_of_versions_that_say_them_in_other_types(spark: SparkSession) -> None:
    topic = Versions(
        Version({"a": _INT}, kinds={"snapshot": ["null", "boolean"], "lsn": "long"}),
        Version({"a": _INT}, ("snapshot", "lsn")),
    )
    topic.send(100, {"a": 1}, snapshot=True, lsn=4)
    topic.send(100, {"a": 1}, snapshot=False, lsn=5)
    topic.send(101, {"a": 2}, snapshot="last", lsn="6")
    topic.send(101, {"a": 2}, snapshot="false", lsn="7")
    plan = _plan(topic)
    assert [row.raw["_position"] for row in _rows(spark, topic, plan)] == [None, "5", None, "7"]
