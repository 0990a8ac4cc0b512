"""The consumers that a process keeps between two ranges."""

from __future__ import annotations

import pytest

from tidesink.sinks.kafka.fetch import close_idle_consumers, open_consumer

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


def test_idle_consumers_are_closed_at_the_end_of_a_worker() -> None:
    with open_consumer(NOBODY) as used:
        pass
    with open_consumer(NOBODY) as again:
        assert again is used
        close_idle_consumers()
        assert again.consumer.assignment() == []  # one that is in use stays open
    close_idle_consumers()
    with pytest.raises(RuntimeError, match="closed"):
        used.consumer.assignment()
    with open_consumer(NOBODY) as other:
        assert other is not used
    close_idle_consumers()
