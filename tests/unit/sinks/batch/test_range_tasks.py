"""What a task makes of a range's records: payloads that hold the rows to apply, and counts that add up."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.properties.test_reduce_columns import tables_of
from tidesink.codecs.base import Codec
from tidesink.codecs.batch import ChangeTable, DecodedBatch, ValueOptions
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import FlatAvroOptions
from tidesink.config.models import Destination
from tidesink.errors import SourceError
from tidesink.events import (
    UNAVAILABLE,
    ChangeEvent,
    Column,
    ColumnType,
    DdlEvent,
    Message,
    Op,
    Position,
    Row,
    TableId,
    TableSchema,
)
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.batch.tasks import RangeTask, RangeTooLargeError, mixed_hashes
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.debezium_json import Writers, debezium_json_plan
from tidesink.sinks.decode.flat_avro import FlatAvroDecoder, flat_avro_plan
from tidesink.sinks.decode.plans import (
    DecodePlan,
    PlanSettings,
    RegisteredSchemas,
    SideSchemas,
    SubjectSchemas,
)
from tidesink.sinks.decode.records import NO_RULES, EventRules, TableDecoder
from tidesink.sinks.decode.target_rows import DroppedById, Metadata, TargetRows
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.laws.counts import BatchSummary, DdlStatement, TopicPartition
from tidesink.sinks.laws.modes import routed_shape
from tidesink.sinks.spark.errors import TaskError, task_error
from tidesink.sinks.spark.payloads import unpack
from tidesink.sinks.state.progress import MOST_EVENTS, MOST_QUERY
from tidesink.typemap.projection import Projection, project
from tidesink.typemap.table import ZeroDate
from tidesink.typemap.target_schema import (
    MetadataKind,
    Shard,
    TargetColumn,
    TargetSchema,
    merge_schemas,
    shape_of,
)

TABLE = TableId("shop", "orders")
ID = Column("id", ColumnType("bigint"), nullable=False, handle=True, primary_key=True)
NAME = Column("name", ColumnType("varchar"))
STOCK = Column("stock", ColumnType("bigint unsigned"), default="7")
OLD, NEW = TableSchema(TABLE, (ID, NAME)), TableSchema(TABLE, (ID, NAME, STOCK))
WANTED = FetchRange("t", 0, 0, 100)
OPTIONS = FlatAvroOptions(enable_tidb_extension=True, avro_enable_watermark=True, producer="new")


class Topic:
    """Records as TiCDC would write them, and what decodes them."""

    def __init__(self) -> None:
        self.registry = MemorySchemaRegistry()
        self.codec = FlatAvroCodec(registry=self.registry, options=OPTIONS)
        self.messages: list[Message] = []

    def write(self, schema: TableSchema, row: Row, op: Op = Op.INSERT, *, at: int | None = None) -> None:
        """One more event; ``at`` is its commit_ts, None: its offset."""
        at = len(self.messages) if at is None else at
        before, after = (row, None) if op is Op.DELETE else (None, row)
        event = ChangeEvent(op, TABLE, {"id": row["id"]}, before, after, at, Position("t", 0, at), schema)
        record = self.codec.encode(event, topic="t")
        assert record is not None
        self.send(record.key, record.value)

    def send(self, key: bytes | None, value: bytes | None) -> None:
        """One more record."""
        self.messages.append(Message("t", 0, len(self.messages), key, value))

    def ddl(self, query: str, commit_ts: int) -> None:
        """A DDL event, with a time of Kafka's."""
        event = DdlEvent(TABLE, query, "5", commit_ts, Position("t", 0, 0), None)
        record = self.codec.encode(event, topic="t")
        assert record is not None
        number = len(self.messages)
        self.messages.append(Message("t", 0, number, record.key, record.value, 1_000 + number))

    def schemas(self, part: str) -> dict[int, str]:
        """The registered schemas of keys or values."""
        subject = f"t-{part}"
        if subject not in self.registry.subjects():
            return {}
        found = [
            self.registry.schema_by_version(subject, number) for number in self.registry.versions(subject)
        ]
        return {one.id: one.schema_text for one in found}

    def task(self, rows: TargetRows, **unusable: SideSchemas) -> RangeTask:
        """The task that reads this topic."""
        sides = {part: SideSchemas(self.schemas(part)) for part in ("key", "value")} | unusable
        schemas = RegisteredSchemas(sides["key"], sides["value"])
        plan = DecodePlan(rows, FlatAvroDecoder(TABLE, schemas, "UTC", "null"))
        # As it travels to the tasks.
        task: RangeTask = pickle.loads(pickle.dumps(RangeTask((WANTED,), plan)))  # noqa: S301
        return task

    def batches(self, size: int) -> list[pa.RecordBatch]:
        """The records in batches of so many."""
        return [as_records(self.messages[at : at + size]) for at in range(0, len(self.messages), size)]


def shape(*schemas: TableSchema) -> TargetSchema:
    whole = shape_of(schemas[0])
    for one in schemas[1:]:
        whole = merge_schemas(whole, shape_of(one))
    return whole


def run(task: RangeTask, batches: Sequence[pa.RecordBatch]) -> tuple[list[dict[str, Any]], list[Any]]:
    """The rows of the reduced frame, and the payloads that they came in."""
    payloads = list(task.packed(WANTED, batches))
    rows = [
        row
        for payload in payloads
        for batch in unpack([payload.select(["payload", "error"])])
        for row in batch.to_pylist()
    ]
    return rows, [row for payload in payloads for row in payload.to_pylist()]


def summary(payloads: Sequence[dict[str, Any]]) -> BatchSummary:
    """What the task counted."""
    (found,) = (pickle.loads(one["summary"]) for one in payloads if one["summary"])  # noqa: S301
    assert isinstance(found, BatchSummary)
    return found


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_last_event_of_each_key_is_applied_and_all_are_counted(size: int) -> None:
    topic = Topic()
    for key, name in ((1, "a"), (2, "b"), (1, "c")):
        topic.write(OLD, {"id": key, "name": name})
    topic.write(OLD, {"id": 2, "name": "b"}, Op.DELETE)
    topic.write(NEW, {"id": 3, "name": "d", "stock": 2**64 - 1})
    rows, payloads = run(topic.task(TargetRows(shape(OLD, NEW))), topic.batches(size))
    found = {row["key"]["id"]: (row["_op"], row["after"]) for row in rows}
    assert found == {
        1: ("upsert", {"id": 1, "name": "c", "stock": 7}),
        2: ("delete", None),
        3: ("upsert", {"id": 3, "name": "d", "stock": 2**64 - 1}),
    }
    whole = summary(payloads)
    counts = whole.counts
    assert (counts.read, counts.messages, counts.superseded) == (5, 5, 2)
    assert (counts.upserts, counts.deletes, whole.max_commit_ts) == (2, 1, 4)
    assert whole.row_facts.key_range == (1, 3)
    assert sum(one["records"] for one in payloads) == 5
    assert sum(one["bytes"] for one in payloads) == sum(
        len(message.key or b"") + len(message.value or b"") for message in topic.messages
    )


def test_tasks_fetch_what_their_decoder_uses() -> None:
    flat_avro = Topic().task(TargetRows(shape(OLD))).plan
    canal_json = canal_json_plan(OLD)
    debezium = debezium_json_plan(TABLE, Writers(), definition=OLD)
    ranges = (OffsetRange("t", 0, 3, 9), OffsetRange("t", 1, 5, 5))
    for plan, timestamps in ((flat_avro, False), (canal_json, True), (debezium, True)):
        task = RangeTask.of(ranges, "topic id", plan)
        assert task.ranges == (FetchRange("t", 0, 3, 9, "topic id", timestamps=timestamps, headers=False),)


def test_what_is_no_row_is_told_apart_and_counted() -> None:
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": "a"})
    topic.send(None, b"\x02" + (90).to_bytes(8, "big"))
    topic.send(None, b"\x02" + (95).to_bytes(8, "big"))
    topic.send(b"\0\0\0\0", b"?")
    topic.send(topic.messages[0].key, b"\0\0\0\0\x63rest")
    rows, payloads = run(topic.task(TargetRows(shape(OLD))), topic.batches(100))
    kinds = {row["_op"]: row for row in rows}
    assert kinds.keys() == {"upsert", "bad"}
    whole = summary(payloads)
    counts = whole.counts
    assert (counts.watermarks, counts.filtered, counts.bad, counts.unplanned) == (2, 2, 1, 1)
    assert whole.places[TopicPartition("t", 0)].watermark == 95
    assert kinds["bad"]["_detail"]["error"] == "FramingError"
    assert whole.unplanned.value_ids == (0x63,)
    assert counts.messages == payloads[0]["records"] == 5


def test_a_summary_has_the_newest_ddl_and_the_payloads_have_none() -> None:
    topic = Topic()
    for number in range(MOST_EVENTS + 5):
        topic.ddl(f"ALTER TABLE orders ADD c{number} INT" + "x" * (70_000 if number == 100 else 0), number)
    rows, payloads = run(topic.task(TargetRows(shape(OLD))), topic.batches(50))
    assert rows == []
    whole = summary(payloads)
    assert (whole.counts.ddl, whole.counts.filtered) == (MOST_EVENTS + 5,) * 2
    assert [record.offset for record in whole.ddl] == list(range(5, MOST_EVENTS + 5))
    first = whole.ddl[0]
    assert first.place == TopicPartition("t", 0)
    assert first.statement == DdlStatement(5, "5", "ALTER TABLE orders ADD c5 INT", 1_005)
    assert len(whole.ddl[95].statement.query) == MOST_QUERY
    # They were decoded, so they count as memory of the task.
    assert payloads[0]["decoded"] > 30 * MOST_EVENTS


def test_schemas_that_cannot_be_used_make_bad_records() -> None:
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": "a"})
    topic.write(NEW, {"id": 2, "name": "b", "stock": 1})
    (first, text), (second, _) = sorted(topic.schemas("value").items())
    side = SideSchemas({first: text}, refused={second: "not flat-avro"})
    rows, _ = run(topic.task(TargetRows(shape(OLD)), value=side), topic.batches(100))
    (bad,) = (row for row in rows if row["_op"] == "bad")
    assert (bad["_detail"]["error"], bad["_detail"]["reason"]) == (
        "SchemaMismatchError",
        "value: not flat-avro",
    )


def test_a_change_that_names_no_row_is_bad() -> None:
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": None})
    other = replace(shape(OLD), keys=("name",))
    columns = tuple(replace(column, key=column.name == "name") for column in other.columns)
    rows, _ = run(topic.task(TargetRows(replace(other, columns=columns))), topic.batches(100))
    (bad,) = rows
    assert (bad["_op"], bad["_detail"]["error"]) == ("bad", "UnnamedRowError")


def test_a_column_dropped_before_a_schema_is_null_and_has_no_default() -> None:
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": "a"})
    (value_id,) = topic.schemas("value")
    rows_of = TargetRows(shape(OLD, NEW), DroppedById({value_id: frozenset(["stock"])}))
    rows, _ = run(topic.task(rows_of), topic.batches(9))
    assert rows[0]["after"] == {"id": 1, "name": "a", "stock": None}


def test_an_error_keeps_its_class() -> None:
    def fails() -> Any:
        raise SourceError("expired", topic="t", partition=0, offset=3)
        yield

    payloads = list(Topic().task(TargetRows(shape(OLD))).packed(WANTED, fails()))
    (payload,) = payloads
    error = pickle.loads(payload.to_pylist()[0]["error"])  # noqa: S301
    assert (type(error), error.context) == (SourceError, {"topic": "t", "partition": 0, "offset": 3})


def test_an_empty_range_has_one_payload_without_rows() -> None:
    rows, payloads = run(Topic().task(TargetRows(shape(OLD))), [])
    assert (rows, [one["records"] for one in payloads]) == ([], [0])


def test_a_value_that_does_not_fit_is_a_bad_record() -> None:
    topic = Topic()
    topic.write(NEW, {"id": 1, "name": "a", "stock": 2**64 - 1})
    topic.write(NEW, {"id": 2, "name": "b", "stock": 7})
    narrow = shape(NEW)
    columns = tuple(replace(one, spark="int") if one.name == "stock" else one for one in narrow.columns)
    rows, _ = run(topic.task(TargetRows(replace(narrow, columns=columns))), topic.batches(9))
    kinds = {row["_op"]: row for row in rows}
    assert kinds["upsert"]["after"] == {"id": 2, "name": "b", "stock": 7}
    assert kinds["bad"]["_detail"]["error"] == "SchemaMismatchError"
    assert "column 'stock'" in kinds["bad"]["_detail"]["reason"]


def test_a_payload_that_is_lost_and_cannot_be_made_again_is_no_empty_one() -> None:
    """Spark runs a task again whose payload it lost; what that one raises must not read as no rows."""
    error = pickle.dumps(SourceError("gone"))
    batch = pa.record_batch({"payload": pa.nulls(1, pa.binary()), "error": pa.array([error], pa.binary())})
    with pytest.raises(TaskError) as caught:
        list(unpack([batch]))
    assert type(task_error(caught.value)) is SourceError


def test_a_null_key_is_never_that_of_the_row_before() -> None:
    before = Topic()
    before.codec = FlatAvroCodec(
        registry=before.registry, options=replace(OPTIONS, avro_include_before_value=True)
    )
    event = ChangeEvent(
        Op.UPDATE,
        TABLE,
        {"id": 1},
        {"id": 1, "name": "a"},
        {"id": 1, "name": None},
        5,
        Position("t", 0, 0),
        OLD,
    )
    record = before.codec.encode(event, topic="t")
    assert record is not None
    before.send(record.key, record.value)
    whole = shape(OLD)
    columns = tuple(replace(column, key=column.name == "name") for column in whole.columns)
    by_name = replace(whole, keys=("name",), columns=columns)
    rows, _ = run(before.task(TargetRows(by_name)), before.batches(9))
    assert [(row["_op"], row["_detail"]["error"]) for row in rows] == [("bad", "UnnamedRowError")]


def test_where_nulls_are_left_out_keys_have_the_targets_type_too() -> None:
    """A decimal key, which an earlier writer had as text."""
    key = replace(ID, type=ColumnType("decimal", precision=10, scale=2))
    known = shape(TableSchema(TABLE, (key, NAME)))
    columns = tuple(replace(one, spark="string") if one.key else one for one in known.columns)
    events = [
        ChangeEvent(
            op,
            TABLE,
            {"id": Decimal("1.50")},
            None,
            {"id": Decimal("1.50"), "name": name},
            at,
            Position("t", 0, at),
            TableSchema(TABLE, (key, NAME)),
        )
        for at, (op, name) in enumerate([(Op.INSERT, "a"), (Op.UPDATE, None)])
    ]
    rows = TargetRows(replace(known, columns=columns))
    plan = DecodePlan(rows, Given(tables_of(events)), keeps_values=True, ignores_nulls=True)
    records = as_records([Message("t", 0, at, b"k", b"v") for at in range(2)])
    (row,), _ = run(RangeTask((WANTED,), plan), [records])
    assert (row["key"], row["after"]) == ({"id": "1.50"}, {"id": "1.50", "name": "a"})


def test_keys_of_two_writers_compare_in_the_targets_type() -> None:
    narrow = TableSchema(TABLE, (replace(ID, type=ColumnType("decimal", precision=10, scale=2)), NAME))
    wide = TableSchema(TABLE, (replace(ID, type=ColumnType("decimal", precision=12, scale=4)), NAME))
    rows, hashes = [], set()
    for schema in (narrow, wide):
        topic = Topic()
        topic.write(schema, {"id": Decimal("5.00"), "name": "a"})
        found, payloads = run(topic.task(TargetRows(shape(narrow, wide))), topic.batches(9))
        rows += found
        hashes.add(payloads[0]["hashes"])
    assert rows[0]["key"] == rows[1]["key"] == {"id": Decimal("5.0000")}
    assert len(hashes) == 1


def test_a_watermark_beyond_64_bits_is_counted() -> None:
    topic = Topic()
    topic.send(None, b"\x02" + b"\xff" * 8)
    rows, payloads = run(topic.task(TargetRows(shape(OLD))), topic.batches(9))
    whole = summary(payloads)
    place = whole.places[TopicPartition("t", 0)]
    assert (rows, whole.counts.watermarks, place.watermark) == ([], 1, None)


@pytest.mark.parametrize(
    ("kind", "spark_type", "default", "value"),
    [
        (ColumnType("int"), "int", "12", 12),
        (ColumnType("int"), "int", "many", None),
        (ColumnType("bit", length=8), "bigint", "\x05", 5),
        (ColumnType("varbinary"), "binary", "\xff", b"\xff"),
        (ColumnType("varbinary"), "binary", "\u1234", None),
        (ColumnType("enum", members=("a", "b")), "string", "b", "b"),
        (ColumnType("datetime"), "timestamp_ntz", "CURRENT_TIMESTAMP(3)", None),
        (ColumnType("date"), "date", "0000-00-00", None),
        (ColumnType("varchar"), "string", None, None),
    ],
)
def test_a_row_from_before_a_column_has_its_default(
    kind: ColumnType, spark_type: str, default: str | None, value: object
) -> None:
    whole = replace(shape(OLD), columns=(TargetColumn("c", kind, spark_type, default=default),))
    changes = ChangeTable(TABLE, OLD, None, pa.table({}))
    found = TargetRows(whole).row(changes, pa.array([{"id": 1}]))
    assert found.to_pylist() == [{"c": value}]


def test_hashes_that_came_in_two_partitions_are_found() -> None:
    def reported(partition: int, *hashes: int) -> tuple[tuple[str, int], bytes]:
        return ("t", partition), np.array(hashes, np.uint64).tobytes()

    assert mixed_hashes([reported(0, 1, 2), reported(1, 3), reported(0, 2)]).tolist() == []
    assert mixed_hashes([reported(0, 1, 2), reported(1, 3, 2)]).tolist() == [2]
    assert mixed_hashes([]).tolist() == []


@pytest.mark.parametrize("zero_date", ["null", "text"])
def test_dates_follow_the_tables_key_and_not_the_records(zero_date: ZeroDate) -> None:
    """The record's key has the date too; the table goes by another one."""
    at = Column("at", ColumnType("datetime"), handle=True, primary_key=True)
    topic = Topic()
    schema = TableSchema(TABLE, (ID, at, replace(at, name="beside", handle=False, primary_key=False)))
    for number, text in enumerate(("2020-01-01 00:00:00", "0000-00-00 00:00:00")):
        topic.write(schema, {"id": number, "at": text, "beside": text})
    key, value = (topic.schemas(part) for part in ("key", "value"))
    plan = flat_avro_plan(TABLE, SubjectSchemas(key, value), PlanSettings(keys=("id",), zero_date=zero_date))
    rows, _ = run(RangeTask((WANTED,), plan), topic.batches(9))
    assert [row["_op"] for row in rows] == ["upsert", "upsert"]
    assert all(row["after"]["at"] == row["after"]["beside"] for row in rows)


def test_rows_come_out_in_the_columns_that_the_target_has() -> None:
    """One column left out, the key renamed, a metadata column, and a shard's column in the key."""
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": "a"})
    topic.write(NEW, {"id": 2, "name": "b", "stock": 5}, Op.UPDATE)
    topic.write(OLD, {"id": 3, "name": "c"}, Op.DELETE)
    whole = shape(OLD, NEW)
    projection = Projection(rename={"id": "Number"}, except_columns=("name",), metadata={"op": "what"})
    found = project(projection, whole, own=())
    goal = Destination(TableId("lake", "all"), Shard("shard", "here"))
    target, metadata = routed_shape(found.shape, goal), Metadata(projection.metadata, TABLE)
    task = topic.task(TargetRows(whole, target=target, sources=found.sources, metadata=metadata))
    rows, payloads = run(task, topic.batches(2))
    written = {"shard": "here", "stock": 7}
    assert {row["key"]["Number"]: (row["_op"], row["after"]) for row in rows} == {
        1: ("upsert", {"Number": 1, "what": "insert", **written}),
        2: ("upsert", {"Number": 2, "what": "update", **written, "stock": 5}),
        3: ("delete", None),
    }
    assert {row["key"]["shard"] for row in rows} == {"here"}
    assert summary(payloads).row_facts.key_range == (1, 3)


KINDS: dict[MetadataKind, str] = {
    kind: f"_{kind}"
    for kind in ("op", "commit_ts", "position", "database", "table", "topic", "partition", "offset", "batch")
}


@pytest.mark.parametrize("marks_deletes", [True, False])
def test_metadata_is_stamped_where_rows_are_made(*, marks_deletes: bool) -> None:
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": "a"})
    topic.write(OLD, {"id": 2, "name": "b"}, Op.UPDATE)
    topic.write(OLD, {"id": 1, "name": "a"}, Op.DELETE)
    found = project(Projection(metadata=KINDS), shape(OLD), own=())
    metadata = Metadata(KINDS, TABLE)
    task = topic.task(TargetRows(shape(OLD), target=found.shape, sources=found.sources, metadata=metadata))
    plan = task.plan.for_batch(7, NO_RULES, marks_deletes=marks_deletes)
    rows, _ = run(replace(task, plan=plan), topic.batches(2))
    alike = {"_database": "shop", "_table": "orders", "_topic": "t", "_partition": 0, "_batch": 7}
    deleted = {"id": None, "name": None, "_op": "delete", "_commit_ts": 2, "_position": "2", "_offset": 2}
    assert {row["key"]["id"]: row["after"] for row in rows} == {
        1: deleted | alike if marks_deletes else None,
        2: {"id": 2, "name": "b", "_op": "update", "_commit_ts": 1, "_position": "1", "_offset": 1} | alike,
    }


def test_names_of_columns_are_the_targets_and_those_left_out_go() -> None:
    found = project(Projection(rename={"name": "called"}), shape(OLD), own=())
    rows = TargetRows(shape(OLD), target=found.shape, sources=found.sources)
    lists = pa.array([None, ["NAME", "gone"], ["gone"], []], pa.list_(pa.string()))
    assert rows.names(lists).to_pylist() == [None, ["called"], None, None]
    assert rows.source_names(lists).to_pylist() == [None, ["name"], None, None]


# What a batch asks of its events
_Sent = tuple[Row, Op, int | None]


def _under(rules: EventRules, events: Sequence[_Sent]) -> tuple[list[dict[str, Any]], Any]:
    """The rows and the summary of row events with these commit_ts."""
    changes = tables_of(
        [
            ChangeEvent(
                op,
                TABLE,
                {"id": row["id"]},
                row if op is Op.DELETE else None,
                None if op is Op.DELETE else row,
                commit_ts,
                Position("t", 0, at, 0, () if commit_ts is None else (commit_ts,)),
                OLD,
            )
            for at, (row, op, commit_ts) in enumerate(events)
        ]
    )
    plan = DecodePlan(TargetRows(shape(OLD)), Given(changes), rules=rules)
    records = as_records([Message("t", 0, at, b"k", b"v") for at in range(len(events))])
    rows, payloads = run(RangeTask((WANTED,), plan), [records])
    return rows, summary(payloads)


@dataclass(frozen=True)
class Given(TableDecoder):
    """Gives the changes that it was made with."""

    changes: Sequence[ChangeTable]
    table: TableId = TABLE

    @property
    def values(self) -> ValueOptions:
        return ValueOptions()

    @property
    def _codec(self) -> Codec:
        raise NotImplementedError

    def decode_batch(self, _records: pa.RecordBatch) -> DecodedBatch:
        return DecodedBatch(tuple(self.changes), (), (), 0, 0)


def test_in_the_sources_order_the_greatest_commit_ts_stays_and_its_position_is_told() -> None:
    rows, whole = _under(
        EventRules(sequenced=True),
        [
            ({"id": 1, "name": "new"}, Op.INSERT, 9),
            ({"id": 1, "name": "old"}, Op.INSERT, 5),
            ({"id": 2, "name": "gone"}, Op.DELETE, 7),
            ({"id": 2, "name": "back"}, Op.INSERT, 7),
        ],
    )
    found = {row["key"]["id"]: (row["after"]["name"], row["_seq"]) for row in rows}
    assert found == {
        1: ("new", {"source": [9], "writes": True, "partition": 0, "offset": 0, "index": 0}),
        2: ("back", {"source": [7], "writes": True, "partition": 0, "offset": 3, "index": 0}),
    }
    assert (whole.counts.read, whole.counts.upserts, whole.counts.superseded) == (4, 2, 2)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (EventRules(sequenced=True), "no commit_ts"),
        (EventRules(versions=True), "needs a commit_ts"),
    ],
)
def test_an_event_without_a_commit_ts_is_a_bad_record(rules: EventRules, said: str) -> None:
    events: list[_Sent] = [
        ({"id": 1, "name": "a"}, Op.INSERT, 5),
        ({"id": 1, "name": "b"}, Op.DELETE, None),
    ]
    rows, whole = _under(rules, events)
    assert [(row["_op"], row["_offset"]) for row in rows] == [("upsert", 0), ("bad", 1)]
    assert said in rows[1]["_detail"]["reason"]
    assert (whole.counts.bad, whole.counts.read) == (1, 2)


def test_an_event_up_to_the_horizon_is_a_bad_record() -> None:
    events = [({"id": number, "name": "a"}, Op.INSERT, number) for number in (5, 6)]
    rows, _ = _under(EventRules(sequenced=True, horizon=5), events)
    assert [(row["_op"], row["_offset"]) for row in rows] == [("upsert", 1), ("bad", 0)]
    assert (rows[1]["_detail"]["error"], "commit_ts 5" in rows[1]["_detail"]["reason"]) == (
        "HorizonError",
        True,
    )


def test_a_row_that_leaves_values_out_has_no_place_in_the_sources_order() -> None:
    """Nothing says whether the row that has them came before it."""
    whole = ChangeEvent(
        Op.INSERT, TABLE, {"id": 1}, None, {"id": 1, "name": "a"}, 5, Position("t", 0, 0), OLD
    )
    partial = whole._replace(
        op=Op.UPDATE,
        commit_ts=6,
        after={"id": 1},
        position=Position("t", 0, 1),
        extension={UNAVAILABLE: ("name",)},
    )
    plan = DecodePlan(
        TargetRows(shape(OLD)),
        Given(tables_of([whole, partial])),
        keeps_values=True,
        rules=EventRules(sequenced=True),
    )
    records = as_records([Message("t", 0, at, b"k", b"v") for at in range(2)])
    rows, _ = run(RangeTask((WANTED,), plan), [records])
    assert [(row["_op"], row["_offset"]) for row in rows] == [("upsert", 0), ("bad", 1)]
    assert "omits values" in rows[1]["_detail"]["reason"]


def test_every_row_of_a_shared_log_has_the_shard_of_its_source() -> None:
    """A truncate too, which has no row."""
    whole = ChangeEvent(
        Op.INSERT, TABLE, {"id": 1}, None, {"id": 1, "name": "a"}, 5, Position("t", 0, 0), OLD
    )
    emptied = whole._replace(op=Op.TRUNCATE, key=None, after=None, position=Position("t", 0, 1))
    goal = Destination(TableId("lake", "all"), Shard("shard", "here"))
    target = routed_shape(shape(OLD), goal)
    plan = DecodePlan(TargetRows(shape(OLD), target=target), Given(tables_of([whole, emptied])), logs=True)
    rows, _ = run(
        RangeTask((WANTED,), plan), [as_records([Message("t", 0, n, b"k", b"v") for n in range(2)])]
    )
    assert [(row["after"]["_tidesink_op"], row["after"]["shard"]) for row in rows] == [
        ("insert", "here"),
        ("truncate", "here"),
    ]


def test_a_range_heavier_than_a_task_decodes_as_a_whole_is_refused_by_a_class_of_its_own() -> None:
    topic = Topic()
    for number in range(9):
        topic.write(OLD, {"id": number, "name": "n" * 100})
    task = replace(topic.task(TargetRows(shape(OLD))), most_bytes=400)
    with pytest.raises(TaskError) as raised:
        run(task, topic.batches(2))
    assert type(task_error(raised.value)) is RangeTooLargeError


def test_what_empties_the_table_is_a_bad_record_where_the_topic_has_several_partitions() -> None:
    events: list[_Sent] = [
        ({"id": 1, "name": "a"}, Op.INSERT, 5),
        ({"id": None, "name": None}, Op.TRUNCATE, 6),
    ]
    rows, whole = _under(EventRules(truncates=False), events)
    assert [(row["_op"], row["_offset"]) for row in rows] == [("upsert", 0), ("bad", 1)]
    assert whole.truncates == ()
