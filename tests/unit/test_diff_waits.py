"""When a comparison gives up waiting for a worker that is alive."""

from __future__ import annotations

from tidesink.sinks.worker.table_copy import Standstill


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
