"""A table that gets an earlier schema again: ADD COLUMN c DEFAULT 7; DROP COLUMN c; and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.lagging_registry import TOPIC, Clock, text_of
from tests.unit.config.samples import FLAT_AVRO, right
from tests.unit.sinks.batch.test_range_tasks import NEW, OLD, TABLE, WANTED, Topic, run, summary
from tests.worker_contexts import worker_context
from tidesink.schema_registry import MemorySchemaRegistry, subject
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.flat_avro import flat_avro_plan
from tidesink.sinks.decode.plans import SubjectSchemas
from tidesink.sinks.decode.schema_history import MOST_SCHEMAS, SchemaUse
from tidesink.sinks.decode.schema_source import Missed
from tidesink.sinks.decode.target_rows import DroppedById, dropped_in_order
from tidesink.sinks.decode.writer_schemas import FlatAvroDecoding, WriterSchemas, may_lag
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange, PartitionOffsets, TopicOffsets
from tidesink.sinks.laws.schema_rows import FirstRows, RowPosition, RowSpan
from tidesink.sinks.runtime.context import RetryPolicy
from tidesink.sinks.worker.open_table import decoding_parts

COLUMNS: Final = {10: ("id",), 11: ("id", "c"), 12: ("id", "c", "d")}


@pytest.fixture
def topic() -> Topic:
    """Rows before the ADD, with the column, and after the DROP."""
    found = Topic()
    found.write(OLD, {"id": 1, "name": "before"})
    found.write(NEW, {"id": 2, "name": "with", "stock": 5})
    found.write(OLD, {"id": 3, "name": "after"})
    return found


def _stocks(topic: Topic, history: Sequence[int], first: int, end: int) -> dict[int, int | None]:
    plan = flat_avro_plan(
        TABLE, SubjectSchemas(topic.schemas("key"), topic.schemas("value"), history=history)
    )
    rows, _ = run(RangeTask((WANTED,), plan), topic.batches(1)[first:end])
    return {row["key"]["id"]: row["after"]["stock"] for row in rows}


def test_rows_after_a_drop_have_null_and_rows_before_the_add_the_default(topic: Topic) -> None:
    """By the registry the first and the last row have one id."""
    old, new = sorted(topic.schemas("value"))
    assert _stocks(topic, (old, new, old), 0, 3) == {1: 7, 2: 5, 3: None}
    assert _stocks(topic, (old, new, old), 2, 3) == {3: None}
    # While the column is there, a row without it is from before.
    assert _stocks(topic, (old, new), 0, 1) == {1: 7}


def test_columns_that_are_gone_are_those_of_the_schema_in_use(topic: Topic) -> None:
    old, new = sorted(topic.schemas("value"))
    schemas = SubjectSchemas(topic.schemas("key"), topic.schemas("value"))
    assert flat_avro_plan(TABLE, replace(schemas, history=(old, new, old))).gone == {"stock"}
    assert flat_avro_plan(TABLE, replace(schemas, history=(old, new))).gone == frozenset()
    # The ids need not grow with the versions.
    assert flat_avro_plan(TABLE, replace(schemas, history=(new, old))).gone == {"stock"}


def test_a_task_says_which_schema_each_partition_had_last(topic: Topic) -> None:
    old, new = sorted(topic.schemas("value"))
    plan = flat_avro_plan(TABLE, SubjectSchemas(topic.schemas("key"), topic.schemas("value")))
    _, payloads = run(RangeTask((WANTED,), plan), topic.batches(2))
    (place,) = summary(payloads).places.values()
    assert place.writers == {
        old: RowSpan(RowPosition(0, (0,)), RowPosition(2, (2,))),
        new: RowSpan.of(RowPosition(1, (1,))),
    }
    assert summary(payloads).is_to_learn


@pytest.mark.parametrize(
    ("history", "first", "again"),
    [
        ((10, 11), {10: "", 11: ""}, {}),
        ((11, 10), {11: "", 10: "c"}, {}),
        ((10, 11, 10), {10: "", 11: ""}, {10: "c"}),
        ((10, 11, 12, 11), {10: "", 11: "", 12: ""}, {11: "d"}),
        ((10, 11, 12, 10, 11), {10: "", 11: "", 12: ""}, {10: "cd", 11: "d"}),
        ((12, 11, 10, 11), {12: "", 11: "d", 10: "cd"}, {}),
    ],
)
def test_what_each_schema_lacks(history: Sequence[int], first: dict[int, str], again: dict[int, str]) -> None:
    found = dropped_in_order(COLUMNS, history)
    assert found[0] == {one: frozenset(names) for one, names in first.items()}
    assert found[1] == {one: frozenset(names) for one, names in again.items()}


def test_a_schema_that_is_used_again_counts_where_one_lacks_a_column() -> None:
    assert DroppedById.of(COLUMNS, (10, 11)).can_return
    # The column that was dropped may be added again, which brings the first schema back.
    assert DroppedById.of(COLUMNS, (11, 10)).can_return
    assert not DroppedById.of(COLUMNS, (11,)).can_return
    assert not DroppedById.of({10: ("id",), 11: ("ID",)}, (10, 11)).can_return


def _seen(*rows: tuple[int, int, RowPosition]) -> SchemaUse[int]:
    found = SchemaUse[int]()
    for schema_id, partition, row in rows:
        found.saw(schema_id, partition, RowSpan.of(row))
    return SchemaUse.restored(found.stored)


@pytest.mark.parametrize(
    ("rows", "newest"),
    [
        ((), 11),
        # The schema was registered, and no row of it has come: it is about to be used.
        (((10, 0, RowPosition(5, (50,))),), 11),
        (((10, 0, RowPosition(5)), (11, 0, RowPosition(6))), 11),
        (((10, 0, RowPosition(7)), (11, 0, RowPosition(6))), 10),
        # A row that is sent again has the position that it had.
        (((10, 0, RowPosition(7, (3,))), (11, 0, RowPosition(6, (4,)))), 11),
        (((10, 1, RowPosition(1, (5,))), (11, 0, RowPosition(6, (4,)))), 10),
        # The same row read again, after a rewind.
        (((10, 0, RowPosition(3)), (11, 0, RowPosition(6)), (10, 0, RowPosition(4))), 11),
        # Two partitions without positions: Kafka's time, if both have one.
        (((10, 1, RowPosition(1)), (11, 0, RowPosition(6))), 11),
        (((10, 1, RowPosition(1, None, 9)), (11, 0, RowPosition(6, None, 8))), 10),
        # Partitions that disagree.
        (
            (
                (10, 0, RowPosition(7)),
                (11, 0, RowPosition(6)),
                (10, 1, RowPosition(1)),
                (11, 1, RowPosition(2)),
            ),
            11,
        ),
    ],
)
def test_the_schema_in_use(rows: Sequence[tuple[int, int, RowPosition]], newest: int) -> None:
    assert _seen(*rows).newest((10, 11)) == newest


def _span(schema_id: int, first: RowPosition, last: RowPosition) -> tuple[int, int, RowSpan]:
    return schema_id, 0, RowSpan(first, last)


@pytest.mark.parametrize(
    "spans",
    [
        # The promoted server is at its own file 3. The column is added after the failover, or before it.
        (
            _span(10, RowPosition(0, (500, 1)), RowPosition(9, (501, 9))),
            _span(11, RowPosition(10, (3, 1)), RowPosition(99, (7, 9))),
        ),
        (
            _span(10, RowPosition(0, (3, 1)), RowPosition(9, (500, 9))),
            _span(11, RowPosition(10, (3, 5)), RowPosition(99, (7, 9))),
        ),
    ],
)
def test_positions_that_started_again_are_not_compared(spans: Sequence[tuple[int, int, RowSpan]]) -> None:
    use = SchemaUse[int]()
    for schema_id, partition, rows in spans:
        use.saw(schema_id, partition, rows)
    assert use.started_again((10, 11))
    assert use.newest((10, 11)) == 11
    assert not use.first_rows_in((10, 11))[11].are_comparable


def test_rows_that_are_sent_again_do_not_look_like_another_server() -> None:
    use = SchemaUse[int]()
    sent = [(10, 1), (11, 2), (11, 3), (10, 1), (11, 2), (11, 3), (10, 4), (11, 3), (10, 4)]
    for offset, (schema_id, position) in enumerate(sent):
        use.saw(schema_id, 0, RowSpan.of(RowPosition(offset, (position,))))
        assert not use.started_again((10, 11))
    assert use.newest((10, 11)) == 10


def test_rows_of_the_schema_in_use_that_follow_change_nothing() -> None:
    """So that a batch costs nothing while the schemas stay as they are."""
    use = SchemaUse[int]()
    for at, schema_id in enumerate((10, 11)):
        assert use.saw(schema_id, 0, RowSpan.of(RowPosition(at, (at,), at)))
    assert not use.saw(11, 0, RowSpan(RowPosition(2, (2,), 2), RowPosition(9, (9,), 9)))
    assert not use.saw(10, 0, RowSpan.of(RowPosition(0, (0,), 0)))
    assert use.saw(11, 1, RowSpan.of(RowPosition(0, (10,), 10)))
    assert use.saw(10, 0, RowSpan.of(RowPosition(10, (11,), 11)))
    assert use.newest((10, 11)) == 10


def test_the_rows_of_the_newest_schemas_are_known_and_the_last_ones() -> None:
    use, versions = SchemaUse[int](), tuple(range(3 * MOST_SCHEMAS))
    for at, schema_id in enumerate((*versions, 7)):
        use.saw(schema_id, 0, RowSpan.of(RowPosition(at, (at,))))
    use.forget_old(versions)
    assert use.first_rows.keys() == {7, *versions[-MOST_SCHEMAS:]}
    assert use.newest(versions) == 7


def _are_before(first: FirstRows, *rows: tuple[int, int, tuple[int, ...] | None]) -> list[bool | None]:
    """``rows``: partition, offset and position of each."""
    partitions, offsets, sources = zip(*rows, strict=True)
    table = pa.table(
        {
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "source": pa.array(sources, pa.list_(pa.int64())),
        }
    )
    found: list[bool | None] = first.are_before(table).to_pylist()
    return found


def test_rows_before_the_first_row_that_has_a_column() -> None:
    first = FirstRows({0: 10}, (50, 0), {0: (50, 0)})
    # Sent again, with a higher offset; of the same server; and without a position.
    assert _are_before(first, (0, 20, (49, 9)), (0, 20, (50, 1)), (0, 9, None), (0, 11, None)) == [
        True,
        False,
        True,
        False,
    ]
    # A lower offset and a greater position: of another server.
    assert _are_before(first, (0, 9, (500, 0)), (1, 9, (500, 0)), (1, 9, None)) == [True, False, None]
    # Positions that cannot be compared are not.
    first = first._replace(are_comparable=False)
    assert _are_before(first, (0, 20, (49, 9)), (0, 9, (500, 0)), (1, 9, (1, 0))) == [False, True, None]
    assert not first.joined(FirstRows()).are_comparable


def test_schemas_are_in_the_order_of_versions_and_not_of_ids() -> None:
    """A registry gives a schema the id that it has under another subject."""
    registry = MemorySchemaRegistry()
    late = registry.register("elsewhere", text_of("id", "c"))
    early = registry.register(subject(TOPIC, "value"), text_of("id"))
    assert registry.register(subject(TOPIC, "value"), text_of("id", "c")) == late < early
    schemas = WriterSchemas(registry, TOPIC, lag=RetryPolicy(0), clock=Clock())
    schemas.read_subjects()
    assert schemas.versions("value") == (early, late)
    # One that has no version follows all smaller ids.
    other = registry.register("elsewhere", text_of("id", "c", "d"))
    schemas.look_up({"value": (other,)})
    assert schemas.versions("value") == (early, late, other)


class Worker:
    """What a worker does with the records of one topic, batch by batch, without Kafka or a target."""

    def __init__(self, topic: Topic, folder: Path) -> None:
        self._topic = topic
        source = KafkaSource(lambda wanted: iter([self._between(wanted)]))
        around = worker_context(right(FLAT_AVRO), cast("Any", None), folder, registry=topic.registry)
        lag = RetryPolicy(0, passes=may_lag)
        schemas = WriterSchemas(topic.registry, "t", lag=lag, subject_of=lambda name, part: f"{name}-{part}")
        parts = decoding_parts(replace(around, source=source))
        self.decoding = FlatAvroDecoding(parts, "t", TABLE, schemas=schemas)
        self.decoding.prepare(self._found)

    @property
    def _found(self) -> TopicOffsets:
        return TopicOffsets("t", "an id", {0: PartitionOffsets(0, len(self._topic.messages))})

    def _between(self, wanted: FetchRange) -> pa.RecordBatch:
        return as_records(self._topic.messages[wanted.start : wanted.end])

    def stocks(self, first: int, end: int) -> dict[int, int | None]:
        """Read some records, with another plan as often as the batch teaches one."""
        records = [as_records(self._topic.messages[first:end])]
        for _ in range(4):
            rows, payloads = run(RangeTask((WANTED,), self.decoding.columns()), records)
            missed = Missed(summary(payloads), (OffsetRange("t", 0, first, end),), self._found)
            if not (missed.summary.is_to_learn and self.decoding.learn(missed)):
                break
        return {row["key"]["id"]: row["after"]["stock"] for row in rows if row["after"]}


def test_a_worker_finds_the_schema_in_use_in_each_cut_and_after_a_restart(tmp_path: Path) -> None:
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": "before"})
    live = Worker(topic, tmp_path)
    assert "stock" not in live.decoding.columns().shape.by_name
    topic.write(NEW, {"id": 2, "name": "with", "stock": 5})
    assert live.stocks(1, 2) == {2: 5}
    assert live.decoding.columns().gone == frozenset()
    topic.write(OLD, {"id": 3, "name": "after"})
    assert live.stocks(2, 3) == {3: None}
    assert live.decoding.columns().gone == {"stock"}
    topic.write(OLD, {"id": 4, "name": "later"})
    assert Worker(topic, tmp_path).stocks(3, 4) == {4: None}
    (tmp_path / "late").mkdir()
    late = Worker(topic, tmp_path / "late")
    assert late.stocks(0, 4) == {1: 7, 2: 5, 3: None, 4: None}
    # The column comes back: that wrote the default into all rows. Then it goes again.
    topic.write(NEW, {"id": 5, "name": "again", "stock": 6})
    assert live.stocks(4, 5) == {5: 6}
    assert live.decoding.columns().gone == frozenset()
    topic.write(OLD, {"id": 6, "name": "without"})
    assert live.stocks(5, 6) == {6: None}
    assert live.decoding.columns().gone == {"stock"}
