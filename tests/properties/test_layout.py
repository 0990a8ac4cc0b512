"""Filter, selection and names: the law in plain Python, and Spark equal to it wherever the stream is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.columns import ID
from tests.full import TEST_ALL
from tidesink.errors import ConfigError, FilterError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.frame_reduction import reduce_frame, rows_to_apply
from tidesink.sinks.batch.projection_frames import LaidOutColumns
from tidesink.sinks.batch.records import BAD, DELETE, NO_RULES, UPSERT, EventRules
from tidesink.typemap.projection import Layout, laid_out, read_filter
from tidesink.typemap.target_schema import TableShape, shape_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SHAPE = shape_of(
    TableSchema(TableId("shop", "t"), (ID, *(Column(n, ColumnType("int")) for n in ("n", "key b", "secret"))))
)
Row = dict[str, Any]
State = dict[int, Row]


class Event(NamedTuple):
    """One event; ``row`` None: a delete. ``old``: the key that an update had before."""

    key: int
    row: Row | None
    old: int | None = None
    kept: tuple[str, ...] = ()


class Decoded(NamedTuple):
    """A plan whose raw frame is decoded already."""

    shape: TableShape = SHAPE
    changes_keys: bool = True
    keeps_values: bool = False
    kept_columns: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()

    def decode(self, raw: DataFrame, _rules: EventRules = NO_RULES) -> DataFrame:
        return raw


def _layout(text: str | None = None, **reported: Any) -> Layout:
    return Layout(row_filter=read_filter(text) if text else None, **reported)


def _plan(spark: SparkSession, layout: Layout, inner: Decoded | None = None) -> LaidOutColumns:
    inner = inner or Decoded()
    return LaidOutColumns(inner, laid_out(layout, inner.shape, own=()), layout, spark)


def _frame(spark: SparkSession, events: Sequence[Event], start: int = 0) -> DataFrame:
    names = [column.name for column in SHAPE.columns]
    rows = [
        (
            "t", 0, at, 0, DELETE if event.row is None else UPSERT, (event.key,),
            None if event.old is None or event.row is None else (event.old,),
            None if event.row is None else tuple(event.row[name] for name in names),
            [] if event.row is None else ["secret", "key b"],
            list(event.kept) or None,
        )
        for at, event in enumerate(events, start)
    ]  # fmt: skip
    key = f"struct<{SHAPE.key_ddl}>"
    ddl = (
        f"_topic string, _partition int, _offset bigint, _index int, _kind string, key {key}, old_key {key}, "
        f"after struct<{SHAPE.ddl}>, _zero_dates array<string>, _kept array<string>"
    )
    nothing = {
        "_commit_ts": "bigint", "_error": "string", "_reason": "string", "_schema_key_id": "int",
        "_schema_value_id": "int", "_fields": "array<string>", "_key": "binary", "_value": "binary",
        "_wire_op": "string",
    }  # fmt: skip
    empty = [f"cast(null as {kind}) as {name}" for name, kind in nothing.items()]
    return spark.createDataFrame(rows, ddl).selectExpr("*", *empty)


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
        old = draw(st.none() | st.integers(0, 3).filter(lambda one, key=key: one != key))  # type: ignore[misc]
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
    layout = _layout(
        "N > 2 or secret is null", columns=("ID", "key b"), rename={"id": "number", "Key B": "B"}
    )
    plan = _plan(spark, layout)
    edges = sorted({0, len(events), *(min(cut, len(events)) for cut in cuts)})
    state: State = {}
    for start, end in pairwise(edges):
        decoded = plan.decode(_frame(spark, events[start:end], start))
        reduced = reduce_frame(decoded, plan.shape, changes_keys=True, filters=True)
        unmatched = [event for event in events[start:end] if event.row is not None and not matches(event.row)]
        assert sum(row["_unmatched"] for row in reduced.collect()) == len(unmatched)
        assert sum(row["_events"] - row["_superseded"] for row in reduced.where("not _half").collect()) <= (
            end - start
        )
        state = applied(reduced, state)
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
    plan = _plan(spark, _layout(ignore_nulls=True))
    state: State = {}
    for start, end in pairwise(sorted({0, min(cut, len(events)), len(events)})):
        decoded = plan.decode(_frame(spark, events[start:end], start).drop("_kept"))
        state = merged(
            reduce_frame(decoded, plan.shape, changes_keys=True, kept_columns=plan.kept_columns), state
        )
    assert state == folded(events)


def test_lists_of_names_are_the_targets(spark: SparkSession) -> None:
    plan = _plan(
        spark,
        _layout(except_columns=("secret",), rename={"key b": "B"}),
        Decoded(keeps_values=True, kept_columns=frozenset({"key b", "n", "secret"})),
    )
    assert plan.kept_columns == {"B", "n"}
    row = {"id": 1, "n": 1, "key b": None, "secret": 1}
    frame = _frame(spark, [Event(1, row, kept=("key b", "n")), Event(2, {**row, "id": 2}, kept=("secret",))])
    first, second = plan.decode(frame).orderBy("_offset").collect()
    assert (first["_zero_dates"], first["_kept"], second["_kept"]) == (["B"], ["B", "n"], None)
    assert first["after"].asDict() == {"id": 1, "n": 1, "B": None}


def test_old_rows_of_a_change_log_are_laid_out_too(spark: SparkSession) -> None:
    row = {"id": 1, "n": 1, "key b": 2, "secret": 1}
    frame = _frame(spark, [Event(1, row)])
    logged = frame.selectExpr("*", "after as before", "array('key b', 'secret') as _before_kept")
    layout = _layout(except_columns=("secret",), rename={"key b": "B"}, metadata={"batch": "no"})
    (found,) = _plan(spark, layout).decode(logged).collect()
    assert found["before"].asDict() == {"id": 1, "n": 1, "B": 2, "no": None}
    assert found["_before_kept"] == ["B"]


def test_a_row_that_the_filter_fails_on_is_bad_and_the_others_are_not(spark: SparkSession) -> None:
    plan = _plan(spark, _layout("10 / n > 4 and 10 / n < 11 or cast(concat('1', `key b`) as tinyint) = 13"))
    rows = [
        {"id": at, "n": n, "key b": b, "secret": 0}
        for at, (n, b) in enumerate([(2, 1), (0, 3), (5, 3), (5, 999)])
    ]
    events = [*(Event(row["id"], row, old=9) for row in rows), Event(4, None)]
    found = plan.decode(_frame(spark, events)).orderBy("_offset").collect()
    assert [row["_kind"] for row in found] == [UPSERT, BAD, UPSERT, BAD, DELETE]
    assert [row["_error"] for row in found if row["_kind"] == BAD] == [FilterError.__name__] * 2
    assert "10 / n > 4" in found[1]["_reason"]
    assert (found[1]["old_key"], found[0]["old_key"]["id"]) == (None, 9)


def test_a_row_without_a_value_that_the_filter_needs_is_bad(spark: SparkSession) -> None:
    plan = _plan(spark, _layout("n > 1"), Decoded(keeps_values=True))
    row = {"id": 1, "n": None, "key b": 1, "secret": None}
    frame = _frame(spark, [Event(1, row, kept=("secret",)), Event(2, {**row, "id": 2}, kept=("n",))])
    found = plan.decode(frame).orderBy("_offset").collect()
    assert [row["_kind"] for row in found] == [DELETE, BAD]
    assert (found[0]["after"], found[0]["_kept"]) == (None, None)
    assert "did not send" in found[1]["_reason"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("n", "of type int and no condition"), ("date_add(n, id) > n", "Spark does not take")],
)
def test_what_spark_does_not_take_as_a_condition_is_said(spark: SparkSession, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        _plan(spark, _layout(text))
