"""flat-avro on the Spark path: delete markers, and rows that are not what their checksum says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.full import FULL
from tests.spark.decoded import reduced_here
from tests.spark.test_flat_avro_columns import Topic, table
from tests.unit.codecs.flat_avro.cases import TOPIC, TSO, change
from tests.unit.codecs.test_row_checksum import SUMMED
from tidesink.codecs.row_checksum import CHECKSUM
from tidesink.events import Op
from tidesink.sinks.decode.flat_avro import lacks_checksums
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.laws.counts import EventCounts, RowFindings, RowWarning, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = FULL

MARKING: dict[str, Any] = {"producer": "new", "enable_tidb_extension": True, "avro_enable_watermark": True}
SCHEMA = table("v int")


def _found(topic: Topic, plan: DecodePlan) -> tuple[EventCounts, RowFindings]:
    summary = reduced_here(plan, topic.messages).summary
    return summary.counts, summary.findings


def test_a_marker_deletes_the_row_its_key_names(spark: SparkSession) -> None:
    topic = Topic(**MARKING)
    for key in (1, 2):
        topic.send(change(after={"id": key, "v": 1}, schema=SCHEMA))
    marker = topic.send(change(Op.DELETE, None, before={"id": 1, "v": 1}, schema=SCHEMA))
    assert marker.value == b"\x03" + TSO.to_bytes(8, "big")
    plan = topic.plan()
    row = topic.rows(plan)[2]
    assert (row.kind, row.key, row.commit_ts, row.error, row.reason) == ("delete", {"id": 1}, TSO, None, None)
    applied = reduced_here(plan, topic.messages).to_apply
    assert sorted((one["_op"], one["key"]["id"]) for one in applied) == [("delete", 1), ("upsert", 2)]


def test_a_markers_key_is_planned_and_judged_as_any_other(spark: SparkSession) -> None:
    topic = Topic(**MARKING)
    topic.send(change(after={"id": 1, "v": 1}, schema=SCHEMA))
    marker = b"\x03" + TSO.to_bytes(8, "big")
    topic.put(b"\0" + (99).to_bytes(4, "big") + b"\x02", marker)
    topic.put(b"\x07" + bytes(8), marker)
    found = [(row.kind, row.error) for row in topic.rows()[1:]]
    assert found == [("unplanned", None), ("bad", "FramingError")]


def _mixed(**options: Any) -> Topic:
    """Five rows: right, wrong, superseded by a wrong one, without a sum, and called corrupted."""
    topic = Topic(**SUMMED, **options)
    given: list[tuple[int, dict[str, object] | None]] = [
        (1, None),
        (2, {CHECKSUM: "77"}),
        (3, {CHECKSUM: "78"}),
        (3, {CHECKSUM: "0"}),
        (4, {"_tidb_corrupted": True}),
    ]
    for key, extension in given:
        topic.send(change(after={"id": key, "v": 1}, schema=SCHEMA, extension=extension))
    return topic


def test_a_wrong_sum_is_no_matter_where_nobody_asks(spark: SparkSession) -> None:
    topic = _mixed()
    counts, findings = _found(topic, topic.plan())
    assert (counts.upserts, counts.bad, findings.warned, findings.first_warnings) == (4, 0, 0, ())


def test_rows_with_wrong_sums_are_applied_and_counted(spark: SparkSession) -> None:
    topic = _mixed()
    plan = topic.plan(checksum="warn")
    assert not lacks_checksums(topic.texts("value").values())
    rows = topic.rows(plan)
    assert [row.kind for row in rows] == ["upsert"] * 5
    assert [row.reason is not None for row in rows] == [False, True, True, False, True]
    counts, findings = _found(topic, plan)
    # The third row was superseded by one without a sum.
    assert (counts.upserts, counts.superseded, counts.bad, findings.warned) == (4, 1, 0, 2)
    assert findings.first_warnings == (RowWarning(TopicPartition(TOPIC, 0), 1, str(rows[1].reason)),)
    assert "TiCDC wrote '77'" in str(rows[1].reason)


def test_rows_with_wrong_sums_are_bad_with_both_numbers(spark: SparkSession) -> None:
    topic = _mixed()
    rows = topic.rows(topic.plan(checksum="reject"))
    assert [row.error for row in rows] == [None, "ChecksumError", "ChecksumError", None, "ChecksumError"]
    assert "TiCDC wrote '77'" in str(rows[1].reason)
    assert "_tidb_corrupted" in str(rows[4].reason)
    assert (rows[1].raw["_key"], rows[1].raw["_value"]) == (topic.messages[1].key, topic.messages[1].value)


def test_a_key_change_is_doubted_once(spark: SparkSession) -> None:
    topic = Topic(**SUMMED, producer="new", avro_include_before_value=True)
    old, new = {"id": 1, "v": 1}, {"id": 2, "v": 1}
    topic.send(change(Op.UPDATE, new, before=old, schema=SCHEMA, extension={CHECKSUM: "77"}))
    counts, findings = _found(topic, topic.plan(checksum="warn"))
    assert (counts.upserts, counts.deletes, counts.split_halves, findings.warned) == (1, 1, 1, 1)


def test_a_plan_whose_schemas_have_no_checksum_says_so(spark: SparkSession) -> None:
    topic = Topic(enable_tidb_extension=True)
    topic.send(change(after={"id": 1, "v": 1}, schema=SCHEMA))
    plan = topic.plan(checksum="reject")
    assert lacks_checksums(topic.texts("value").values())
    assert [row.kind for row in topic.rows(plan)] == ["upsert"]
