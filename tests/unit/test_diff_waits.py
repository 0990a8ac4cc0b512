"""When a comparison gives up waiting for a worker that is alive."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from tests.unit.config_samples import CANAL_JSON, changed, right
from tidesink.events import TableId
from tidesink.sinks.worker.table_copy import Standstill, TableCopy

ORDERS = TableId("shop", "orders")


def test_a_table_that_nobody_comes_to_is_given_up() -> None:
    """Time counts from the last record that was applied, and not while a batch of the table is under way."""
    now = [0.0]
    still = Standstill(60, clock=lambda: now[0])
    course = [
        (0, 9, False, False),
        (59, 9, False, False),
        (60, 9, False, True),
        (61, 8, False, False),  # something was applied
        (120, 8, False, False),
        (130, 8, True, False),  # a batch has begun, and takes its time
        (999, 8, True, False),
        (1058, 8, False, False),
        (1059, 8, False, True),
    ]
    for seconds, waiting, at_work, expected in course:
        now[0] = seconds
        assert still.lasts(waiting, at_work=at_work) == expected, seconds


def test_a_worker_that_waits_for_the_next_cut_is_not_given_up() -> None:
    """What is above the bound is applied once all tables stand at it."""
    lake = changed(CANAL_JSON, source__enable_tidb_extension=True, target={"path": "./lake"})
    for every, least in (("1m", 60), ("2h", 7200)):
        context: Any = SimpleNamespace(config=right({**lake, "cuts": {"every": every}}))
        assert TableCopy(context, ORDERS, ExitStack(), lambda _: None)._patience() > 2 * least
