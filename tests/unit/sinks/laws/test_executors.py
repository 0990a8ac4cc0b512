"""Which executor runs the tasks of a batch."""

from __future__ import annotations

import pytest

from tidesink.config.models import BatchSettings
from tidesink.sinks.laws.executors import BatchSize, choose, shown_rule

AUTO = BatchSettings.model_validate({"local-records": 100, "local-bytes": 1_000})


@pytest.mark.parametrize(
    ("size", "executor"),
    [
        (BatchSize(0, 1.0), "local"),
        (BatchSize(100, 10.0), "local"),
        (BatchSize(101, 1.0), "spark"),
        (BatchSize(100, 10.1), "spark"),
    ],
)
def test_a_batch_within_both_limits_runs_in_this_process(size: BatchSize, executor: str) -> None:
    assert choose(AUTO, size).executor == executor


def test_the_setting_overrides_the_limits() -> None:
    settings = {name: AUTO.model_copy(update={"executor": name}) for name in ("local", "spark")}
    assert choose(settings["spark"], BatchSize(1, 1.0)).executor == "spark"
    assert choose(settings["local"], BatchSize(10**9, 1e6)).executor == "local"


def test_tasks_that_only_spark_can_run_stay_there_and_the_reason_says_why() -> None:
    local = AUTO.model_copy(update={"executor": "local"})
    assert choose(local, BatchSize(1, 1.0), needs_spark="the table has a filter") == (
        "spark",
        "the table has a filter",
    )


def test_the_rule_is_shown_with_its_limits() -> None:
    assert shown_rule(BatchSettings(), has_filter=False) == (
        "auto (local up to 10,000 records and 32 MiB; otherwise spark)"
    )
    assert shown_rule(BatchSettings(executor="spark"), has_filter=False) == "spark"
    assert shown_rule(BatchSettings(), has_filter=True) == "spark (Spark evaluates the table's filter)"
