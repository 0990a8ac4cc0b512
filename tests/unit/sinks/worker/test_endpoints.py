"""The worker's endpoints, asked over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import requests

from tidesink.dev.stack import free_ports
from tidesink.errors import ConfigError, SourceUnavailableError
from tidesink.sinks.runtime.observers import MetricsListener, StepRetried, StillAtWork, Turned, Waiting
from tidesink.sinks.worker.endpoints import Health, served


class _Served:
    def __init__(self, url: str, health: Health, metrics: MetricsListener, now: list[float]) -> None:
        self.url, self.health, self.metrics, self.now = url, health, metrics, now

    def answers(self) -> dict[str, tuple[int, str]]:
        found = {path: requests.get(f"{self.url}{path}", timeout=60) for path in ("/healthz", "/readyz")}
        return {path: (answer.status_code, answer.text) for path, answer in found.items()}


@pytest.fixture
def worker() -> Iterator[_Served]:
    (port,) = free_ports(1)
    now = [100.0]
    health, metrics = Health(60.0, lambda: now[0]), MetricsListener()
    with served("127.0.0.1", port, health, metrics.registry):
        yield _Served(f"http://127.0.0.1:{port}", health, metrics, now)


def test_a_worker_that_starts_lives_and_is_not_ready(worker: _Served) -> None:
    assert worker.answers() == {"/healthz": (200, "ok\n"), "/readyz": (503, "The worker is starting.\n")}
    worker.health.hear(Waiting("starting Spark"))
    assert worker.answers()["/readyz"][0] == 503
    worker.health.hear(Turned())
    assert worker.answers() == {"/healthz": (200, "ok\n"), "/readyz": (200, "ok\n")}


def test_a_worker_that_shows_no_sign_of_life_is_said(worker: _Served) -> None:
    worker.health.hear(Turned())
    worker.now[0] += 61.0
    said = "The worker has sent no sign of life for 61 s.\n"
    assert worker.answers() == {"/healthz": (503, said), "/readyz": (503, said)}
    for sign in (StepRetried(None, SourceUnavailableError("Kafka does not answer"), 1.0), StillAtWork()):
        worker.health.hear(sign)
        assert worker.answers() == {"/healthz": (200, "ok\n"), "/readyz": (200, "ok\n")}
        worker.now[0] += 61.0


def test_metrics_are_beside_them(worker: _Served) -> None:
    worker.metrics.hear(Turned())
    text = requests.get(f"{worker.url}/metrics", timeout=60).text
    (line,) = (one for one in text.splitlines() if one.startswith("tidesink_last_turn_timestamp_seconds "))
    assert float(line.split()[1]) > 1.7e9


def test_an_address_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"Metrics cannot be served on 127.0.0.1:{port}: "),
            served("127.0.0.1", port, Health(), MetricsListener().registry),
        ):
            pass


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6() -> None:
    (port,) = free_ports(1)
    with served("::1", port, Health(), MetricsListener().registry):
        assert requests.get(f"http://[::1]:{port}/healthz", timeout=60).text == "ok\n"


def test_a_name_with_addresses_of_both_kinds_is_served_on_that_of_ipv4() -> None:
    (port,) = free_ports(1)
    with served("localhost", port, Health(), MetricsListener().registry):
        assert requests.get(f"http://127.0.0.1:{port}/healthz", timeout=60).text == "ok\n"


def test_a_host_without_an_address_is_said() -> None:
    with (
        pytest.raises(ConfigError, match=r"Metrics cannot be served on no\.such\.host\.invalid:9"),
        served("no.such.host.invalid", 9, Health(), MetricsListener().registry),
    ):
        pass
