"""What ``tidesink plan`` says of records that cannot be decoded, and how it shows a table's policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.unit.config.samples import CANAL_JSON, changed, right
from tidesink.cli.plan import policy_lines
from tidesink.cli.table_plans import Sample, TablePlan, Undecodable, _table_named, sample_warning, shown_error
from tidesink.errors import FramingError, ValueOutOfRangeError
from tidesink.events import Message, TableId

ORDERS = TableId("shop", "orders")


def test_records_that_become_dead_letters_are_a_warning_and_others_a_problem() -> None:
    bad = Undecodable(200, ["FramingError: no JSON", "another"])
    plan = TablePlan(ORDERS, "app", warnings=("first",))
    set_aside = bad.reported_in(right(changed(CANAL_JSON, **_KEPT)), plan)
    assert set_aside.problem is None
    assert set_aside.warnings == (
        "first",
        "2 of the 200 sampled records cannot be decoded. The first error: FramingError: no JSON. The "
        "worker stores such records as dead letters (bad-record: dead-letter).",
    )
    stopped = bad.reported_in(right(changed(CANAL_JSON)), plan)
    assert "2 of the 200 sampled records cannot be decoded" in str(stopped.problem)
    assert "bad-record: dead-letter" in str(stopped.problem)
    known = TablePlan(ORDERS, "app", problem="no key")
    assert bad.reported_in(right(changed(CANAL_JSON)), known).problem == "no key"
    assert Undecodable(200).reported_in(right(changed(CANAL_JSON)), plan) == plan


def test_a_record_that_may_be_before_the_tables_start_is_a_warning() -> None:
    """Whether the table reads it is known once the worker resolves the start."""
    config = right(changed(CANAL_JSON, defaults={"start": "latest"}))
    reported = Undecodable(14, ["FramingError: no JSON"]).reported_in(config, TablePlan(ORDERS, "app"))
    assert reported.problem is None
    (warning,) = reported.warnings
    assert "does not read records before its start" in warning
    assert "it stops (bad-record: pause)" in warning


def test_a_plan_names_the_way_out_of_a_type_change() -> None:
    """The same as the worker's state and the letter do."""
    changed_type = ValueOutOfRangeError("True is not a valid date.", column="born", table="shop.orders")
    text = shown_error(changed_type)
    assert "add born to except_column_list" in text
    assert text.endswith('docs/schema-changes.md, "A type that cannot be followed", has all ways.')
    stopped = Undecodable(1, [text]).reported_in(right(changed(CANAL_JSON)), TablePlan(ORDERS, "app"))
    assert text in str(stopped.problem)
    assert shown_error(FramingError("no JSON")) == "no JSON"


_KEPT = {
    "defaults": {"bad-record": "dead-letter"},
    "dead-letters": {"errors.deadletterqueue.topic.name": "letters"},
}


def test_a_topic_of_which_nothing_can_be_decoded_is_a_problem_under_either_policy() -> None:
    plan = TablePlan(None, "app", warnings=("None of the sampled records changes a row.",))
    reported_in = Undecodable(1, ["FramingError: x"]).reported_in(right(changed(CANAL_JSON, **_KEPT)), plan)
    assert (reported_in.warnings, "1 of the 1 sampled records" in str(reported_in.problem)) == ((), True)


@pytest.mark.parametrize(
    ("value", "table"),
    [
        (b'{"database": "shop", "table": "orders", "data": 7}', ORDERS),
        (b'{"database": "shop", "table": 7}', None),
        (b'{"database": "shop"}', None),
        (b"[1]", None),
        (b"{broken", None),
        (b"\xff\xfe", None),
        (None, None),
    ],
)
def test_the_table_of_a_bad_record_is_the_one_that_it_names(
    value: bytes | None, table: TableId | None
) -> None:
    assert _table_named(Message("app", 0, 1, None, value)) == table


def _topic_of(count: int) -> Callable[..., Iterator[Message]]:
    def read(_properties: object, topic: str, *, start: object, limit: int) -> Iterator[Message]:
        del start
        yield from (Message(topic, 0, offset, None, b"{}") for offset in range(min(count, limit)))

    return read


@pytest.mark.parametrize(("count", "more"), [(0, False), (9, False), (10, False), (11, True), (99, True)])
def test_a_plan_by_the_first_records_says_whether_the_topic_has_more(count: int, more: bool) -> None:
    read = Sample("app", 10, read=_topic_of(count))
    assert len(list(read.records(right(changed(CANAL_JSON))))) == min(count, 10)
    plan = read.noted(TablePlan(ORDERS, "app"))
    assert plan.sampled == (10 if more else 0)
    assert plan.as_json()["sampled"] == plan.sampled
    warning = sample_warning([plan, TablePlan(ORDERS, "other")])
    assert (warning is not None) == more
    if warning is not None:
        assert "Only the first 10 records of each topic were read" in warning
        assert "these topics have more: app." in warning
        assert "`tidesink plan --sample 100` " in warning


def test_of_many_topics_some_are_named() -> None:
    planned = [TablePlan(ORDERS, f"t{number}", sampled=5) for number in range(8)]
    assert ": t0, t1, t2, t3, t4 and 3 more." in str(sample_warning(planned))


def test_policies_have_a_line_for_each_decision() -> None:
    policies = {"mode": "upsert", "schema-changes": "add apply, drop pause, widen apply", "time-zone": "UTC"}
    assert list(policy_lines(policies)) == [
        "mode: upsert, time-zone: UTC",
        "schema-changes:",
        "  apply: add, widen",
        "  pause: drop",
    ]
    assert list(policy_lines({})) == []
