"""An earlier schema in use again: what rows lack, and which schema is in use, for each cut and restart.

The order of reading is any, as long as each partition is read in its order: partitions may have been read
to different points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoded_batches import as_records
from tests.unit.config.samples import FLAT_AVRO, right
from tests.unit.sinks.batch.test_range_tasks import ID, NAME, NEW, OLD, STOCK, TABLE, Topic, summary
from tests.worker_contexts import worker_context
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import FlatAvroOptions
from tidesink.events import Column, ColumnType, Message, Row, TableSchema
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.batch.summaries import joined_summaries
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.schema_history import SchemaUse
from tidesink.sinks.decode.schema_source import Missed
from tidesink.sinks.decode.writer_schemas import FlatAvroDecoding, WriterSchemas, may_lag
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange, PartitionOffsets, TopicOffsets
from tidesink.sinks.laws.schema_rows import RowPosition, RowSpan
from tidesink.sinks.runtime.context import RetryPolicy
from tidesink.sinks.spark.payloads import unpack
from tidesink.sinks.worker.open_table import decoding_parts

RACK: Final = Column("rack", ColumnType("bigint"), default="9")
# ADD stock; DROP stock; ADD rack: a registry gives the ids 1, 2, 1, 3.
SCHEMAS: Final = (OLD, NEW, TableSchema(TABLE, (ID, NAME, RACK)))
SENT: Final = {"stock": 5, "rack": 6}
DEFAULTS: Final = {"stock": 7, "rack": 9}

Values = dict[int, dict[str, int | None]]


class Feed:
    """Rows in several partitions, one after the other; a row's key is its number among all."""

    def __init__(self, *, dated: bool = True) -> None:
        self.topic = Topic()
        if not dated:
            self.topic.codec = FlatAvroCodec(registry=self.topic.registry, options=FlatAvroOptions())
        self.parts: dict[int, list[Message]] = {0: [], 1: [], 2: []}
        self._columns: list[set[str]] = []

    def write(self, schema: TableSchema, partition: int, position: int | None = None) -> None:
        """One more row; ``position``: at the source, None: the row's number."""
        number, rows = len(self._columns), self.parts[partition]
        names = {column.name for column in schema.columns} & SENT.keys()
        row: Row = {"id": number, "name": "a", **{name: SENT[name] for name in names}}
        self.topic.write(schema, row, at=position)
        message = replace(self.topic.messages[-1], partition=partition, offset=len(rows), timestamp=number)
        rows.append(message)
        self._columns.append(names)

    @property
    def expected(self) -> Values:
        """What the rows must have if they are read now. A column in use has its default in all others."""
        found, had = {}, set[str]()
        for number, names in enumerate(self._columns):
            dropped = had - self._columns[-1]
            absent = {name: None if name in dropped else value for name, value in DEFAULTS.items()}
            found[number] = {name: SENT[name] if name in names else absent[name] for name in SENT}
            had |= names
        return found

    @property
    def found(self) -> TopicOffsets:
        """The ends of the partitions."""
        ends = {number: PartitionOffsets(0, len(rows)) for number, rows in self.parts.items()}
        return TopicOffsets("t", "an id", ends)

    def fetch(self, wanted: FetchRange) -> pa.RecordBatch:
        """The records of a range."""
        return as_records(self.parts[wanted.partition][wanted.start : wanted.end])


class Worker:
    """What a worker does with the records of one topic, without Kafka or a target."""

    def __init__(self, feed: Feed, folder: str) -> None:
        self._feed = feed
        source = KafkaSource(lambda wanted: iter([feed.fetch(wanted)]))
        around = worker_context(
            right(FLAT_AVRO), cast("Any", None), Path(folder), registry=feed.topic.registry
        )
        schemas = WriterSchemas(
            feed.topic.registry,
            "t",
            lag=RetryPolicy(0, passes=may_lag),
            subject_of=lambda name, part: f"{name}-{part}",
        )
        parts = decoding_parts(replace(around, source=source))
        self.decoding = FlatAvroDecoding(parts, "t", TABLE, schemas=schemas)
        self.decoding.prepare(feed.found)

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Values:
        """One batch of the ranges, by partition; decoded again as often as it teaches another plan."""
        wanted = [FetchRange("t", number, *part) for number, part in ranges.items()]
        for _ in range(5):
            task = RangeTask(tuple(wanted), self.decoding.columns())
            payloads = {one: list(task.packed(one, [self._feed.fetch(one)])) for one in wanted}
            whole = joined_summaries(
                [summary([row for one in found for row in one.to_pylist()]) for found in payloads.values()]
            )
            parts = [OffsetRange("t", one.partition, one.start, one.end) for one in wanted]
            if not (whole.is_to_learn and self.decoding.learn(Missed(whole, parts, self._feed.found))):
                break
        else:
            pytest.fail("the plan does not settle")
        rows = [
            row
            for found in payloads.values()
            for one in found
            for batch in unpack([one.select(["payload", "error"])])
            for row in batch.to_pylist()
        ]
        assert not [row for row in rows if row["_op"] != "upsert"]
        return {
            row["key"]["id"]: {name: row["after"][name] for name in SENT if name in row["after"]}
            for row in rows
        }


def _expected(feed: Feed, found: Values) -> Values:
    """What rows have, in the columns that were known when they were read."""
    return {
        number: {name: feed.expected[number][name] for name in values} for number, values in found.items()
    }


def test_columns_of_several_adds_and_drops_are_right_where_all_is_read_late(tmp_path: Path) -> None:
    """ADD stock; DROP stock; ADD rack: the first id is in use again, and is not the newest."""
    feed = Feed()
    for schema, partition in ((0, 0), (1, 0), (0, 1), (0, 0), (2, 0), (2, 1), (1, 1)):
        feed.write(SCHEMAS[schema], partition)
    for cuts in ([(0, 0, 4), (1, 0, 3)], [(1, 0, 3), (0, 0, 4)], [(0, at, at + 1) for at in range(4)]):
        (folder := tmp_path / str(len(cuts)) / str(cuts[0][0])).mkdir(parents=True)
        worker = Worker(feed, str(folder))
        for partition, first, end in cuts:
            values = worker.read({partition: (first, end)})
            assert values == _expected(feed, values)


histories = st.lists(
    st.tuples(st.sampled_from([0, 1, 2]), st.lists(st.integers(0, 2), min_size=1, max_size=4)),
    min_size=1,
    max_size=6,
)


def _written(history: Sequence[tuple[int, Sequence[int]]], *, dated: bool = True) -> Feed:
    feed = Feed(dated=dated)
    for schema, partitions in history:
        for partition in partitions:
            feed.write(SCHEMAS[schema], partition)
    return feed


@pytest.mark.law("L7")
@settings(max_examples=25, deadline=None)
@given(history=histories, data=st.data())
def test_a_worker_that_starts_late_reads_each_value_right(
    history: Sequence[tuple[int, Sequence[int]]], data: st.DataObject
) -> None:
    """Partitions are read in any order, with restarts, and some records again."""
    feed = _written(history)
    ends = {number: len(rows) for number, rows in feed.parts.items()}
    at = dict.fromkeys(ends, 0)
    found: Values = {}
    with TemporaryDirectory() as folder:
        worker = Worker(feed, folder)
        while at != ends:
            open_parts = [number for number, end in ends.items() if at[number] < end]
            chosen = data.draw(st.sets(st.sampled_from(open_parts), min_size=1))
            ranges = {
                n: (data.draw(st.integers(0, at[n])), data.draw(st.integers(at[n] + 1, ends[n])))
                for n in sorted(chosen)
            }
            found |= worker.read(ranges)
            at |= {n: end for n, (_, end) in ranges.items()}
            if data.draw(st.booleans()):
                worker = Worker(feed, folder)
    assert found.keys() == feed.expected.keys()
    assert found == _expected(feed, found)


@pytest.mark.law("L7")
@settings(max_examples=25, deadline=None)
@given(history=histories, data=st.data())
def test_a_worker_that_follows_reads_each_value_right(
    history: Sequence[tuple[int, Sequence[int]]], data: st.DataObject
) -> None:
    """Batches as rows come, with restarts."""
    feed, at = Feed(), dict.fromkeys(range(3), 0)
    rows = [(SCHEMAS[schema], partition) for schema, partitions in history for partition in partitions]
    found: Values = {}
    with TemporaryDirectory() as folder:
        worker = None
        while rows:
            count = data.draw(st.integers(1, len(rows)))
            for schema, partition in rows[:count]:
                feed.write(schema, partition)
            rows = rows[count:]
            if worker is None or data.draw(st.booleans()):
                worker = Worker(feed, folder)
            ends = {number: len(sent) for number, sent in feed.parts.items()}
            read = worker.read({n: (at[n], end) for n, end in ends.items() if at[n] < end})
            # Rows that were applied before a column was added again keep what they have.
            assert read == _expected(feed, read)
            found, at = found | read, ends
    assert found.keys() == feed.expected.keys()


@settings(max_examples=25, deadline=None)
@given(history=histories, data=st.data())
def test_one_partition_without_positions_is_read_right_by_its_offsets(
    history: Sequence[tuple[int, Sequence[int]]], data: st.DataObject
) -> None:
    feed = _written([(schema, [0] * len(partitions)) for schema, partitions in history], dated=False)
    with TemporaryDirectory() as folder:
        _check_read_in_cuts(feed, Worker(feed, folder), folder, data)


def _check_read_in_cuts(feed: Feed, worker: Worker, folder: str, data: st.DataObject) -> None:
    """Read the one partition in any cuts, by workers that start again at any of them; check all values."""
    at, end = 0, len(feed.parts[0])
    found: Values = {}
    while at < end:
        upto = data.draw(st.integers(at + 1, end))
        found |= worker.read({0: (at, upto)})
        at = upto
        if data.draw(st.booleans()):
            worker = Worker(feed, folder)
    assert found.keys() == feed.expected.keys()
    assert found == _expected(feed, found)


GROWN: Final = TableSchema(TABLE, (ID, NAME, STOCK, RACK))


@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(1, 3), min_size=2, max_size=3), data=st.data())
def test_columns_that_were_added_have_their_default_whatever_server_was_promoted(
    counts: list[int], data: st.DataObject
) -> None:
    """After a failover positions start again, at lower numbers."""
    schemas = [one for one, count in zip((OLD, NEW, GROWN), counts, strict=False) for _ in range(count)]
    promoted = data.draw(st.integers(1, len(schemas)))
    feed = Feed()
    for number, schema in enumerate(schemas):
        feed.write(schema, 0, 1000 + number if number < promoted else number)
    with TemporaryDirectory() as folder:
        worker = Worker(feed, folder)
        assert worker.decoding.columns().gone == frozenset()
        _check_read_in_cuts(feed, worker, folder, data)


def test_a_column_that_was_added_again_has_its_default_in_rows_of_between(tmp_path: Path) -> None:
    """ADD stock; DROP stock; ADD stock: the second ADD wrote the default into all rows that were there."""
    feed = Feed()
    for schema in (0, 1, 0, 1):
        feed.write(SCHEMAS[schema], 0)
    for at, cuts in enumerate(([(0, 4)], [(0, 1), (1, 3), (3, 4)], [(0, 3), (3, 4)])):
        (folder := tmp_path / str(at)).mkdir()
        worker, stocks = Worker(feed, str(folder)), dict[int, int | None]()
        for cut in cuts:
            stocks |= {number: row["stock"] for number, row in worker.read({0: cut}).items()}
        assert stocks == {0: 7, 1: 5, 2: 7, 3: 5}


# Which schema is in use


@st.composite
def seen_rows(draw: st.DrawFn) -> list[tuple[int, int, RowPosition]]:
    """Rows in the order in which they were written: schema, partition, and where. Some kinds are left out."""
    offsets = [0, 0, 0]
    has_source, has_time = draw(st.booleans()), draw(st.booleans())
    found = []
    for at, (schema_id, partition) in enumerate(
        draw(st.lists(st.tuples(st.sampled_from([10, 11, 12]), st.integers(0, 2)), min_size=1, max_size=12))
    ):
        source, time = (1, at) if has_source else None, at if has_time else None
        found.append((schema_id, partition, RowPosition(offsets[partition], source, time)))
        offsets[partition] += 1
    return found


def _saw(rows: Sequence[tuple[int, int, RowPosition]], use: SchemaUse[int] | None = None) -> SchemaUse[int]:
    use = use or SchemaUse[int]()
    for schema_id, partition, row in rows:
        use.saw(schema_id, partition, RowSpan.of(row))
    return use


@given(rows=seen_rows(), data=st.data())
def test_the_schema_in_use_is_a_function_of_the_set_of_rows(
    rows: list[tuple[int, int, RowPosition]], data: st.DataObject
) -> None:
    """In whatever order they were read, with some read twice, and stored in between."""
    whole = _saw(rows)
    versions = data.draw(st.permutations([10, 11, 12]))
    twice = data.draw(st.permutations([*rows, *data.draw(st.lists(st.sampled_from(rows)))]))
    cut = data.draw(st.integers(0, len(twice)))
    stored = _saw(twice[:cut]).stored
    other = _saw(twice[cut:], SchemaUse.restored(stored))
    assert other.stored.keys() == whole.stored.keys()
    assert other.order == whole.order
    assert other.newest(versions) == whole.newest(versions)


@given(rows=seen_rows(), data=st.data())
def test_the_schema_in_use_is_the_one_that_was_written_last(
    rows: list[tuple[int, int, RowPosition]], data: st.DataObject
) -> None:
    """Where positions tell, or each partition with rows has it last. Its rows count, and no version does."""
    newest = data.draw(st.sampled_from([10, 11, 12]))
    ends = {partition: row for _, partition, row in rows}
    last = max(row.time or 0 for row in ends.values())
    for partition, row in ends.items():
        source = None if row.source is None else (1, 100 + partition)
        time = None if row.time is None else last + 1
        rows = [*rows, (newest, partition, RowPosition(row.offset + 1, source, time))]
    others = [one for one in (10, 11, 12) if one != newest]
    # A version without a row may be about to be used: it is not the last one here.
    known = {schema_id for schema_id, _, _ in rows}
    versions = data.draw(st.permutations([newest, *others]).filter(lambda ids: ids[-1] in known))
    assert _saw(rows).newest(versions) == newest


@given(rows=seen_rows(), data=st.data())
def test_rows_that_are_said_to_change_nothing_change_nothing(
    rows: list[tuple[int, int, RowPosition]], data: st.DataObject
) -> None:
    """Also where positions start again, and where rows are read in another order."""
    shuffled = data.draw(st.permutations([*rows, *rows]))
    lowered = data.draw(st.integers(0, 12))
    use = SchemaUse[int]()
    for schema_id, partition, row in shuffled:
        if row.source is not None and row.source[1] >= lowered:
            row = row._replace(source=(0, row.source[1]))  # noqa: PLW2901
        before = use.order, use.started_again((10, 11, 12)), use.newest((10, 11, 12))
        if not use.saw(schema_id, partition, RowSpan.of(row)):
            assert (use.order, use.started_again((10, 11, 12)), use.newest((10, 11, 12))) == before
