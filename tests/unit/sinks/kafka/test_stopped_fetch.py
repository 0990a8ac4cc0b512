"""A fetch whose worker was stopped does not wait until a silent broker counts as unavailable."""

from __future__ import annotations

import pickle
import socket

import pytest

from tidesink.errors import StopRequestedError
from tidesink.sinks.kafka.fetch import FetchLimits, FetchRange, KafkaFetch, fetch


def test_a_fetch_ends_soon_after_its_worker_was_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        properties = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        patient = FetchLimits(silence=3_600, refusal=3_600)
        wanted = FetchRange("t", 3, 0, 9)
        with pytest.raises(StopRequestedError):
            list(fetch(wanted, properties, limits=patient, is_stopped=lambda: True))


def test_a_fetch_of_a_spark_task_knows_no_stop() -> None:
    sent = KafkaFetch({"bootstrap.servers": "b:1"}, is_stopped=lambda: True)
    received = pickle.loads(pickle.dumps(sent))  # noqa: S301  (its own bytes)
    assert received == sent
    assert not received.is_stopped()
