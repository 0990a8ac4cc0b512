"""Damaged canal-json messages: the Spark path says of each what the Python codec says."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.full import FULL
from tests.properties.canal_changes import GOOD, SCHEMA, decoded_in_spark, difference, harmed, row_change
from tests.spark.decoded import decode_here
from tidesink.events import Message
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.plans import PlanSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = FULL


# One example is two Spark jobs over many messages: shrinking would run hundreds of them.
@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(start=st.integers(0, 1_000_000))
def test_damaged_messages_get_the_python_codecs_verdict(spark: SparkSession, start: int) -> None:
    random = Random(start)
    messages = [Message("t", 0, offset, None, harmed(random)) for offset in range(600)]
    found = decoded_in_spark(messages, spark)
    wrong = [
        f"{reported}: {message.value!r}"
        for message in messages
        for reported in [difference(message, found[message.offset])]
        if reported is not None
    ]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])
    kinds = {row.kind for rows in found.values() for row in rows}
    assert {"upsert", "delete", "bad", "unplanned"} <= kinds


def test_a_value_of_a_million_escapes_is_read(spark: SparkSession) -> None:
    text = json.dumps('"\\\n' * 1_000_000)
    message = row_change(Random(1))
    message["type"], message["old"] = "INSERT", None
    message["data"] = [GOOD | {"j": text}]
    value = json.dumps(message, separators=(",", ":")).encode()
    plan = canal_json_plan(SCHEMA)
    (row,) = decode_here(plan, [Message("t", 0, 0, None, value)])
    assert row.kind == "upsert"
    assert row.after is not None
    assert row.after["j"] == text


def test_what_the_row_says_of_its_key_and_members_is_held_against_the_definition(spark: SparkSession) -> None:
    words = {"e": "enum('x','y')", "s": "set('p','q','r')"}
    said: tuple[dict[str, object], ...] = (
        {},
        {"pkNames": ["id", "ti"]},
        {"pkNames": []},
        {"mysqlType": words},
        {"mysqlType": {**words, "e": "enum('y','x')"}},
        {"mysqlType": {**words, "s": "set('p','r','q')"}},
    )
    message = row_change(Random(1)) | {"type": "INSERT", "old": None, "data": [GOOD]}
    values = [json.dumps(message | more, separators=(",", ":")).encode() for more in said]
    messages = [Message("t", 0, offset, None, value) for offset, value in enumerate(values)]
    plan = canal_json_plan(SCHEMA)
    rows = decode_here(plan, messages)
    assert [row.kind for row in rows] == ["upsert", "bad", "upsert", "upsert", "bad", "bad"]
    own = canal_json_plan(SCHEMA, PlanSettings(keys=("id",)))
    assert [row.kind for row in decode_here(own, messages[:2])] == ["upsert"] * 2
