"""Filter, selection and names: the law in plain Python, and Spark equal to it wherever the stream is cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.columns import ID
from tests.full import TEST_ALL
from tests.spark.decoded import GivenEvents, messages_of, reduced_in_spark
from tidesink.config.models import Destination
from tidesink.errors import ConfigError, FilterError
from tidesink.events import UNAVAILABLE, ChangeEvent, Column, ColumnType, Op, Position, TableId, TableSchema
from tidesink.sinks.batch.source import RangeFrame, rows_to_apply
from tidesink.sinks.decode.filtering import check_condition
from tidesink.sinks.decode.plans import DecodePlan
from tidesink.sinks.decode.records import BAD
from tidesink.sinks.decode.schema_source import ProjectedDecoding
from tidesink.sinks.decode.target_rows import TargetRows
from tidesink.sinks.spark.payloads import DELETE, UPSERT
from tidesink.typemap.projection import Projection, read_filter
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TABLE = TableId("shop", "t")
SCHEMA = TableSchema(TABLE, (ID, *(Column(n, ColumnType("int")) for n in ("n", "key b", "secret"))))
SHAPE = shape_of(SCHEMA)
Row = dict[str, Any]
State = dict[int, Row]


class Event(NamedTuple):
    """One event; ``row`` None: a delete. ``old``: the key that an update had before."""

    key: int
    row: Row | None
    old: int | None = None
    kept: tuple[str, ...] = ()


def _projection(text: str | None = None, **reported: Any) -> Projection:
    return Projection(row_filter=read_filter(text) if text else None, **reported)


def _reduced(
    spark: SparkSession,
    projection: Projection,
    events: Sequence[Event],
    start: int = 0,
    *,
    keeps_values: bool = False,
) -> RangeFrame:
    """What the tasks make of the events, from this offset on."""
    found = list(_changes(events, start))
    plan = DecodePlan(TargetRows(SHAPE), GivenEvents(found, SCHEMA), keeps_values=keeps_values)
    decoding = ProjectedDecoding(
        cast("Any", Inner(plan)), projection, Destination(TABLE), partial(check_condition, session=spark)
    )
    return reduced_in_spark(spark, decoding.columns(), messages_of(found))


@dataclass
class Inner:
    """A decoding with a plan that is made already."""

    plan: DecodePlan

    def columns(self) -> DecodePlan:
        return self.plan

    def reported(self) -> None:
        return None


def _changes(events: Sequence[Event], start: int) -> Iterator[ChangeEvent]:
    for at, event in enumerate(events, start):
        key, place = {"id": event.key}, Position("t", 0, at)
        if event.row is None:
            yield ChangeEvent(Op.DELETE, TABLE, key, key, None, None, place)
            continue
        before = None if event.old is None else {"id": event.old}
        row = {name: value for name, value in event.row.items() if name not in event.kept}
        extension = {UNAVAILABLE: event.kept} if event.kept else None
        yield ChangeEvent(Op.UPDATE, TABLE, key, before, row, None, place, extension=extension)


def expected(events: Sequence[Event]) -> State:
    """What the target holds: two columns of the rows with ``n > 2 or secret is null``."""
    source: State = {}
    for event in events:
        if event.old is not None and event.row is not None:
            source.pop(event.old, None)
        source.pop(event.key, None)
        if event.row is not None:
            source[event.key] = event.row
    return {key: {"number": key, "B": row["key b"]} for key, row in source.items() if matches(row)}


def matches(row: Mapping[str, Any]) -> bool:
    """Whether a row satisfies ``n > 2 or secret is null``."""
    return (row["n"] is not None and row["n"] > 2) or row["secret"] is None


def applied(reduced: DataFrame, state: State) -> State:
    """The target after a batch."""
    after = dict(state)
    for row in rows_to_apply(reduced).collect():
        after.pop(row["key"]["number"], None)
        if row["after"] is not None:
            after[row["key"]["number"]] = row["after"].asDict()
    return after


_NUMBERS = st.none() | st.integers(0, 5)


def _keys_but(key: int) -> st.SearchStrategy[int]:
    return st.integers(0, 3).filter(lambda one: one != key)


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Changes of four keys, some of which change another's key."""
    events = []
    for _ in range(draw(st.integers(1, 14))):
        key = draw(st.integers(0, 3))
        if draw(st.integers(0, 3)) == 0:
            events.append(Event(key, None))
            continue
        row = {"id": key, **{name: draw(_NUMBERS) for name in ("n", "key b", "secret")}}
        old = draw(st.none() | _keys_but(key))
        events.append(Event(key, row, old))
    return events


@settings(
    max_examples=10 if TEST_ALL else 4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(streams(), st.lists(st.integers(0, 14), max_size=2))
def test_the_target_holds_the_rows_that_satisfy_wherever_it_is_cut(
    spark: SparkSession, events: list[Event], cuts: list[int]
) -> None:
    projection = _projection(
        "N > 2 or secret is null", columns=("ID", "key b"), rename={"id": "number", "Key B": "B"}
    )
    edges = sorted({0, len(events), *(min(cut, len(events)) for cut in cuts)})
    state: State = {}
    for start, end in pairwise(edges):
        reduced = _reduced(spark, projection, events[start:end], start)
        unmatched = [event for event in events[start:end] if event.row is not None and not matches(event.row)]
        counts = reduced.summary.counts
        assert counts.unmatched == len(unmatched)
        assert counts.read == counts.applied + counts.superseded == end - start
        state = applied(reduced.frame, state)
    assert state == expected(events)


def folded(events: Sequence[Event]) -> State:
    """What the target holds where a null leaves the stored value."""
    state: State = {}
    for event in events:
        if event.old is not None and event.row is not None:
            state.pop(event.old, None)
        if event.row is None:
            state.pop(event.key, None)
            continue
        stored = state.get(event.key, dict.fromkeys(("n", "key b", "secret")))
        reported = {name: value for name, value in event.row.items() if value is not None and name != "id"}
        state[event.key] = {**stored, **reported}
    return state


def merged(reduced: DataFrame, state: State) -> State:
    """The target after a lenient batch."""
    after = dict(state)
    for row in rows_to_apply(reduced).collect():
        stored = after.pop(row["key"]["id"], None)
        if row["after"] is not None:
            values = {name: value for name, value in row["after"].asDict().items() if name != "id"}
            kept = {} if stored is None or row["_after_delete"] else stored
            after[row["key"]["id"]] = {**values, **{name: kept.get(name) for name in row["_kept"] or ()}}
    return after


@settings(
    max_examples=8 if TEST_ALL else 3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(streams(), st.integers(0, 14))
def test_a_null_leaves_what_is_stored_wherever_the_stream_is_cut(
    spark: SparkSession, events: list[Event], cut: int
) -> None:
    state: State = {}
    for start, end in pairwise(sorted({0, min(cut, len(events)), len(events)})):
        reduced = _reduced(spark, _projection(ignore_nulls=True), events[start:end], start)
        state = merged(reduced.frame, state)
    assert state == folded(events)


def test_lists_of_names_are_the_targets(spark: SparkSession) -> None:
    projection = _projection(except_columns=("secret",), rename={"key b": "B"})
    row = {"id": 1, "n": 1, "key b": None, "secret": 1}
    events = [Event(1, row, kept=("key b", "n")), Event(2, {**row, "id": 2}, kept=("secret",))]
    first, second = _reduced(spark, projection, events, keeps_values=True).frame.orderBy("_offset").collect()
    assert (sorted(first["_kept"]), second["_kept"]) == (["B", "n"], None)
    assert first["after"].asDict() == {"id": 1, "n": None, "B": None}


def test_a_row_that_the_filter_fails_on_is_bad_and_the_others_are_not(spark: SparkSession) -> None:
    text = "10 / n > 4 and 10 / n < 11 or cast(concat('1', `key b`) as tinyint) = 13"
    rows = [
        {"id": at, "n": n, "key b": b, "secret": 0}
        for at, (n, b) in enumerate([(2, 1), (0, 3), (5, 3), (5, 999)])
    ]
    events = [*(Event(row["id"], row, old=9 - row["id"]) for row in rows), Event(4, None)]
    found = _reduced(spark, _projection(text), events)
    rest = found.frame.orderBy("_offset", "key.id").collect()
    assert [(row["_offset"], row["_op"], row["key"] and row["key"]["id"]) for row in rest] == [
        (0, UPSERT, 0), (0, DELETE, 9), (1, BAD, None), (2, UPSERT, 2), (2, DELETE, 7), (3, BAD, None),
        (4, DELETE, 4),
    ]  # fmt: skip
    bad = [row["_detail"] for row in rest if row["_op"] == BAD]
    assert [one["error"] for one in bad] == [FilterError.__name__] * 2
    assert "10 / n > 4" in bad[0]["reason"]
    assert (found.summary.counts.bad, found.summary.counts.unmatched) == (2, 0)


def test_a_row_without_a_value_that_the_filter_needs_is_bad(spark: SparkSession) -> None:
    row = {"id": 1, "n": None, "key b": 1, "secret": None}
    events = [Event(1, row, kept=("secret",)), Event(2, {**row, "id": 2}, kept=("n",))]
    found = (
        _reduced(spark, _projection("n > 1"), events, keeps_values=True).frame.orderBy("_offset").collect()
    )
    assert [row["_op"] for row in found] == [DELETE, BAD]
    assert (found[0]["after"], found[0]["_kept"]) == (None, None)
    assert "needs a column whose value is not in this event" in found[1]["_detail"]["reason"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("n", "is a value of type int, not a condition"), ("date_add(n, id) > n", "Spark does not accept")],
)
def test_what_spark_does_not_take_as_a_condition_is_said(spark: SparkSession, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        _reduced(spark, _projection(text), [])
