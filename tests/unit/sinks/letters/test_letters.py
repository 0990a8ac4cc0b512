"""Dead letters as tasks write them, and as a replay reads them again with what follows."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.properties.test_reduce_columns import tables_of
from tests.unit.sinks.batch.test_range_tasks import NEW, OLD, TABLE, WANTED, Given, Topic, run, shape, summary
from tidesink.events import ChangeEvent, Message, Op, Position, Row, WatermarkEvent
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.decode.records import EventRules
from tidesink.sinks.decode.target_rows import DroppedById, TargetRows
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.letters.tasks import (
    Bounds,
    EventKeys,
    FollowedFetch,
    LetterFetch,
    LetterRows,
    LetterTask,
    faults_by_place,
    limited_reads,
    offsets_by_partition,
    sorted_letters,
)
from tidesink.sinks.letters.topic import LETTER_SCHEMA, Letter, LetterStamp, LetterTopic
from tidesink.sinks.state.source_reads import SourceRead, Span
from tidesink.sinks.worker.replay import LetterEvent, standing_of_letter

LETTERS = LetterTopic("letters", {})
STAMP = LetterStamp("p", "shop.orders", "topic id", 1, 2, "tidesink.codecs.flat_avro")


def letter(partition: int, offset: int) -> Letter:
    return Letter(
        "p", "shop.orders", "topic id", "t", partition, offset, "DecodeError", "odd", at=100 + offset
    )


def test_letters_are_sorted_by_what_was_applied_and_what_kafka_holds() -> None:
    bounds = {0: Bounds(5, 9), 1: Bounds(0, 3)}
    found = sorted_letters([letter(0, n) for n in (4, 8, 5, 9)] + [letter(1, 2), letter(2, 0)], bounds)
    assert [(one.partition, one.offset) for one in found.ready] == [(0, 8), (0, 5), (1, 2)]
    assert (found.waiting, found.expired, found.first) == (2, 1, {0: 5, 1: 2})
    places = {partition: offsets.tolist() for partition, offsets in offsets_by_partition(found.ready).items()}
    assert places == {0: [5, 8], 1: [2]}


def test_letters_that_a_resync_repaired_are_none_to_apply() -> None:
    whole = SourceRead(1, {"t": {0: Span(4, 6)}}, settles=True)
    keys = SourceRead(2, {"t": {0: Span(8, 8)}}, settles=True, keys="some")
    bounds = {0: Bounds(3, 20)}
    found = sorted_letters([letter(0, n) for n in (1, 3, 4, 5, 6, 8, 20)], bounds, (whole,))
    assert [one.offset for one in found.ready] == [6, 8]
    # One that expired, or cannot be decoded, is settled all the same.
    assert [one.offset for one in found.settled] == [1, 3]
    assert (found.unsure, found.waiting, found.expired) == (2, 1, 0)
    # Their keys may tell that the resync of some keys settled them.
    found = sorted_letters([letter(0, n) for n in (3, 4, 5, 6, 8)], bounds, (whole, keys))
    assert [one.offset for one in found.ready] == [4, 5, 6, 8]
    assert [[one.number for one in limited_reads(letter(0, n), (whole, keys))] for n in (7, 8)] == [[2], []]


def test_a_letter_stands_by_all_of_its_events() -> None:
    reads = (
        SourceRead(1, {"t": {0: Span(8, 9)}}, settles=True, keys="some"),
        SourceRead(2, {"t": {0: Span(5, 5)}}, settles=False, where=(("id", ">=", "5"),)),
    )

    def standing(offset: int, *has_read: bool | None, commit_ts: int = 5, bound: int | None = None) -> str:
        events = [LetterEvent(commit_ts, {1: one, 2: False}) for one in has_read]
        return standing_of_letter(letter(0, offset), events, reads, bound)

    assert [standing(7, one) for one in (True, False, None)] == ["settled", "open", "unsure"]
    assert [standing(8, one) for one in (True, False, None)] == ["unsure", "open", "unsure"]
    assert standing(9, True) == "open"
    # A key change: the resync read one of the rows, or both.
    assert (standing(7, True, False), standing(7, True, True)) == ("unsure", "settled")
    # What is still bad, or no row event.
    assert standing(7) == "open"
    assert standing(7, True, commit_ts=5, bound=5) == "settled"
    assert standing(7, True, commit_ts=6, bound=5) == "later"
    # Nothing tells of the range any more.
    events = [LetterEvent(5, {1: False})]
    assert [standing_of_letter(letter(0, n), events, reads, None) for n in (4, 5)] == ["unsure", "open"]


def test_a_letter_is_the_record_as_kafka_has_it_and_one_of_its_faults() -> None:
    asked: list[FetchRange] = []

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        asked.append(wanted)
        headers = ((("h", b"x"),), ())
        yield as_records(
            Message("t", wanted.partition, n, b"k", b"v%d" % n, timestamp=7, headers=headers[n % 2])
            for n in range(wanted.start, wanted.end)
        )

    same = {"error": "FilterError", "key_id": 6, "value_id": None}
    faults = [
        {"_topic": "t", "_partition": part, "_offset": at, "_detail": {**same, "reason": why}}
        for part, at, why in ((0, 4, "a"), (1, 4, "c"), (0, 9, "d"), (0, 4, "a"))
    ]
    bad = faults_by_place([pa.RecordBatch.from_pylist(faults[:2]), pa.RecordBatch.from_pylist(faults[2:])])
    found = pa.Table.from_batches(LetterTask(fetch, LETTERS, STAMP).letters(bad), LETTER_SCHEMA).to_pylist()
    assert asked == [FetchRange("t", 0, 4, 10, "topic id"), FetchRange("t", 1, 4, 5, "topic id")]
    assert [(one["partition"], one["offset"], one["value"], one["reason"]) for one in found] == [
        (0, 4, b"v4", "a"),
        (0, 9, b"v9", "d"),
        (1, 4, b"v4", "c"),
    ]
    assert found[0]["headers"] == [{"key": "h", "value": b"x"}]
    assert (found[1]["headers"], found[1]["timestamp"], found[1]["key_schema_id"]) == (None, 7, 6)


def _task(topic: Topic, *letters: int) -> RangeTask:
    """A task that keeps what concerns the letters at these offsets, as a replay makes it."""
    plan = topic.task(TargetRows(shape(OLD, NEW), DroppedById({}))).plan
    own = topic.batches(100)[0].take(pa.array(letters))
    (payload, *_) = RangeTask((WANTED,), plan).packed(WANTED, [own])
    hashes = np.frombuffer(payload["hashes"][0].as_py(), np.uint64)
    only = LetterRows(hashes, {0: np.array(letters, np.int64)})
    task: RangeTask = pickle.loads(pickle.dumps(replace(RangeTask((WANTED,), plan), only=only)))  # noqa: S301
    return task


@pytest.mark.parametrize("size", [1, 100])
def test_of_what_follows_the_rows_that_letters_name_are_kept(size: int) -> None:
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": "a"})  # 0: a letter
    topic.write(OLD, {"id": 2, "name": "b"})
    topic.write(OLD, {"id": 3, "name": "c"})  # 2: a letter
    topic.send(b"\0\0\0\0", b"?")  # 3: bad, and no letter
    topic.write(NEW, {"id": 1, "name": "d", "stock": 5})
    topic.write(OLD, {"id": 2, "name": "b"}, Op.DELETE)
    topic.send(b"x", None)
    rows, payloads = run(_task(topic, 0, 2), topic.batches(size))
    assert sorted((row["after"]["id"], row["after"]["name"], row["_offset"]) for row in rows) == [
        (1, "d", 4),
        (3, "c", 2),
    ]
    found = summary(payloads).counts
    assert (found.upserts, found.superseded, found.bad, found.filtered) == (2, 1, 0, 0)


@pytest.mark.law("L4")
def test_of_a_key_change_behind_a_letter_the_other_key_stays_as_it_is() -> None:
    """What the table holds under a key that no letter names is newer than the key change."""

    def event(at: int, old: int | None, new: int, name: str) -> ChangeEvent:
        before: Row | None = None if old is None else {"id": old, "name": "old"}
        after: Row = {"id": new, "name": name}
        op = Op.INSERT if old is None else Op.UPDATE
        return ChangeEvent(op, TABLE, {"id": new}, before, after, at, Position("t", 0, at), OLD)

    events = [
        event(0, None, 1, "letter"),
        event(1, 1, 3, "moved away"),
        event(2, None, 3, "newest of 3"),
        event(3, 4, 1, "moved here"),
        event(4, None, 4, "newest of 4"),
    ]
    records = as_records(Message("t", 0, at, b"k", b"v") for at in range(len(events)))

    def task(*chosen: ChangeEvent) -> RangeTask:
        return RangeTask((WANTED,), DecodePlan(TargetRows(shape(OLD)), Given(tables_of(chosen))))

    (letters, *_) = task(events[0]).packed(WANTED, [records.slice(0, 1)])
    hashes = np.frombuffer(letters["hashes"][0].as_py(), np.uint64)
    for count, row in ((2, ("delete", None, True)), (5, ("upsert", "moved here", False))):
        only = LetterRows(hashes, {0: np.array([0], np.int64)})
        rows, payloads = run(replace(task(*events[:count]), only=only), [records.slice(0, count)])
        found = [(one["_op"], (one["after"] or {}).get("name"), one["_half"]) for one in rows]
        assert ([one["key"] for one in rows], found) == ([{"id": 1}], [row])
        assert summary(payloads).counts.rows == 1


def test_a_letter_that_is_bad_today_stays_among_what_is_kept() -> None:
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": "a"})
    topic.send(b"\0\0\0\0", b"?")
    rows, payloads = run(_task(topic, 1), topic.batches(100))
    assert [(row["_op"], row["_offset"]) for row in rows] == [("bad", 1)]
    assert (summary(payloads).counts.bad, summary(payloads).counts.rows) == (1, 0)


def test_of_a_letter_each_key_is_told_with_its_place() -> None:
    """As a resync of some keys compares them: in the target's columns, of a key change both."""

    def event(op: Op, at: int, old: int | None, new: int) -> ChangeEvent:
        before: Row | None = None if old is None else {"id": old, "name": "b"}
        after: Row | None = {"id": new, "name": "a"}
        if op is Op.DELETE:
            before, after = after, None
        return ChangeEvent(op, TABLE, {"id": new}, before, after, 100 + at, Position("t", 0, at), OLD)

    changes = [event(Op.INSERT, 3, None, 1), event(Op.UPDATE, 5, 2, 3), event(Op.DELETE, 6, None, 4)]
    records = as_records(Message("t", 0, at, b"k", b"v") for at in (3, 5, 6))
    rows = TargetRows(shape(OLD))
    plan = DecodePlan(rows, Given(tables_of(changes)), rules=EventRules(bound=1))
    keys: EventKeys = pickle.loads(pickle.dumps(EventKeys(plan)))  # noqa: S301
    assert keys.ddl == "`c0` bigint, partition int, offset bigint, commit_ts bigint"
    found = [row for batch in keys(WANTED, [records]) for row in batch.to_pylist()]
    assert sorted((row["offset"], row["c0"], row["commit_ts"]) for row in found) == [
        (3, 1, 103),
        (5, 2, 105),
        (5, 3, 105),
        (6, 4, 106),
    ]


def test_what_was_read_under_a_bound_is_read_whole_again() -> None:
    """A watermark among the letters ends nothing: what follows in Kafka came before the bound was passed."""
    topic = Topic()
    topic.write(OLD, {"id": 1, "name": "a"})
    watermark = topic.codec.encode(WatermarkEvent(9, Position("t", 0, 1)), topic="t")
    assert watermark is not None
    topic.send(watermark.key, watermark.value)
    for name in ("b", "c"):
        topic.write(OLD, {"id": 1, "name": name})  # at 2 and 3, which is above the bound
    task = topic.task(TargetRows(shape(OLD)))
    task = replace(task, plan=replace(task.plan, rules=EventRules(bound=2)))
    names = [
        [row["after"]["name"] for row in run(one, topic.batches(1))[0]]
        for one in (task, replace(task, was_read=True))
    ]
    assert names == [["a"], ["b"]]


def test_what_follows_comes_behind_the_letters_and_without_any_letter() -> None:
    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        yield as_records(Message("t", 0, n, None, b"v") for n in range(wanted.start, wanted.end))

    whole = FollowedFetch(
        LetterFetch(LETTERS, {}), fetch, {0: FetchRange("t", 0, 3, 7)}, {0: np.array([1, 4], np.int64)}
    )
    (found,) = whole(FetchRange("t", 0, 2, 7))
    assert found["offset"].to_pylist() == [3, 5, 6]
    assert list(whole(FetchRange("t", 1, 0, 7))) == []
