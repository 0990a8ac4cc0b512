"""Observers hear the worker and can never fail it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.recorder import Recorder
from tidesink.errors import SourceUnavailableError
from tidesink.events import TableId
from tidesink.sinks.jobs.base import BatchOutcome
from tidesink.sinks.laws.counts import Account, RowFindings, RowWarning, TopicPartition
from tidesink.sinks.runtime.observers import (
    BatchApplied,
    BatchStarted,
    Listeners,
    LogListener,
    MetricsListener,
    RunReport,
    StepRetried,
    StillAtWork,
    TableChanged,
    TableReport,
    Waiting,
    WorkerEvent,
)
from tidesink.sinks.state.progress import Progress, TableState, TableStatus
from tidesink.sinks.worker.counters import TableCounters

TABLE = TableId("shop", "orders")
APPLIED = BatchApplied(
    TABLE, 7, Account(read=10, applied=6, superseded=4), "12", 42, bytes_read=1000, seconds={"read": 0.5}
)
EVENTS: list[WorkerEvent] = [
    Waiting("starting Spark"),
    StillAtWork(),
    BatchStarted(TABLE, 7, 10),
    APPLIED,
    StepRetried(None, SourceUnavailableError("down"), 0.5),
    TableChanged(TableStatus("shop", TABLE, "PAUSED", error="bad record")),
]


class _Broken:
    def hear(self, event: WorkerEvent) -> None:
        raise RuntimeError(f"an observer's own fault with {event}")


def test_a_broken_observer_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    listeners = Listeners([_Broken(), LogListener(), recorder])
    for event in EVENTS:
        listeners.hear(event)
    assert list(recorder.events) == EVENTS
    assert recorder.batches == (APPLIED,)
    assert "observer failed" in capsys.readouterr().out


def test_metrics_add_up() -> None:
    metrics = MetricsListener()
    for event in [*EVENTS, APPLIED]:
        metrics.hear(event)
    value = metrics.registry.get_sample_value
    assert value("tidesink_events_total", {"table": "shop.orders", "fate": "applied"}) == 12
    assert value("tidesink_events_total", {"table": "shop.orders", "fate": "read"}) == 20
    assert value("tidesink_batches_total", {"table": "shop.orders"}) == 2
    assert value("tidesink_read_bytes_total", {"table": "shop.orders"}) == 2000
    assert value("tidesink_commit_ts", {"table": "shop.orders"}) == 42
    assert value("tidesink_table_state", {"table": "shop.orders", "state": "PAUSED"}) == 1
    assert value("tidesink_table_state", {"table": "shop.orders", "state": "RUNNING"}) == 0


def test_fates_are_what_was_read_and_what_a_filter_took_out_is_counted_beside_them() -> None:
    metrics = MetricsListener()
    metrics.hear(replace(APPLIED, account=replace(APPLIED.account, filtered_out=3)))
    (events,) = (one for one in metrics.registry.collect() if one.name == "tidesink_events")
    fates = {one.labels["fate"]: one.value for one in events.samples if one.name.endswith("_total")}
    assert fates.pop("read") == sum(fates.values()) == 10
    value = metrics.registry.get_sample_value
    assert value("tidesink_filtered_out_total", {"table": "shop.orders"}) == 3
    metrics.hear(replace(APPLIED, account=replace(APPLIED.account, filtered_out=-1)))
    assert value("tidesink_filtered_out_total", {"table": "shop.orders"}) == 3
    assert value("tidesink_batches_total", {"table": "shop.orders"}) == 2


def test_a_number_below_0_costs_a_batch_none_of_its_other_numbers() -> None:
    metrics = MetricsListener()
    metrics.hear(replace(APPLIED, account=Account(read=1, applied=-1, superseded=2)))
    value = metrics.registry.get_sample_value
    assert value("tidesink_events_total", {"table": "shop.orders", "fate": "applied"}) == 0
    assert value("tidesink_events_total", {"table": "shop.orders", "fate": "superseded"}) == 2
    assert value("tidesink_batches_total", {"table": "shop.orders"}) == 1
    assert value("tidesink_read_bytes_total", {"table": "shop.orders"}) == 1000


@pytest.mark.parametrize(
    ("states", "interrupted", "error", "code"),
    [
        (["IDLE", "RUNNING"], False, None, 0),
        (["IDLE", "PAUSED"], False, None, 3),
        (["FAILING"], False, None, 3),
        ([], False, "Kafka went away", 3),
        (["FAILING"], True, None, 130),
    ],
)
def test_exit_codes(states: list[TableState], interrupted: bool, error: str | None, code: int) -> None:
    tables = tuple(TableReport(TABLE, "shop_orders", state) for state in states)
    assert RunReport("shop", tables, interrupted=interrupted, error=error).exit_code == code


@pytest.mark.parametrize(("abandoned", "code"), [(False, 0), (True, 143)])
def test_a_stop_by_sigterm_is_a_failure_if_it_lost_work(abandoned: bool, code: int) -> None:
    tables = (TableReport(TABLE, "shop_orders", "PAUSED"),)
    report = RunReport("shop", tables, interrupted=True, terminated=True, abandoned=abandoned)
    assert report.exit_code == code
    # What ails the run as a whole is none of the stop's.
    assert replace(report, error="Spark ended").exit_code == 3


def test_rows_whose_checksum_does_not_match_are_counted_and_told_once_a_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first_warnings = (
        RowWarning(TopicPartition("shop_orders", 1), 40, "sum 1 is not 2"),
        RowWarning(TopicPartition("shop_orders", 2), 7, "other"),
    )
    event = replace(APPLIED, warned=12, first_warnings=first_warnings)
    metrics = MetricsListener()
    for listener in (LogListener(), metrics):
        listener.hear(APPLIED)
        listener.hear(event)
    reported = [line for line in capsys.readouterr().out.splitlines() if "applied with a warning" in line]
    assert len(reported) == 1
    assert all(part in reported[0] for part in ("12", "shop_orders[1]@40", "sum 1 is not 2", "shop.orders"))
    assert metrics.registry.get_sample_value("tidesink_doubted_rows_total", {"table": "shop.orders"}) == 12


def test_a_table_with_such_rows_says_so_in_its_status() -> None:
    counters = TableCounters()
    outcome = BatchOutcome(Progress(TABLE, "p", 1, 1), account=Account(), findings=RowFindings(warned=1))
    for _ in range(2):
        counters.add(outcome)
    assert len(counters.warnings) == 1
    assert all(words in counters.warnings[0] for words in ("source.checksum: reject", "tables: keys"))
