"""Retries, time-outs, second addresses and TLS, over real sockets."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest

from tests.certificates import self_signed, served_over_tls
from tests.scripted_registry import (
    ONCE,
    Client,
    Reply,
    Serve,
    registry_clients,
    scripted_registries,
)
from tidesink.dev.stack import free_ports
from tidesink.errors import RegistryError, RegistryUnavailableError, SchemaNotFoundError
from tidesink.schema_registry import (
    RetryPolicy,
    Timeouts,
    TlsOptions,
)
from tidesink.schema_registry.transport import Endpoint, Transport

serve = pytest.fixture(scripted_registries, name="serve")
client = pytest.fixture(registry_clients, name="client")

OLD = '"int"'


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(serve: Serve, client: Client, status: int) -> None:
    server = serve(Reply(status, b"later"), Reply(status, b"later"), Reply(body={"schema": OLD}))
    assert client(server.url).schema_by_id(1) == OLD
    assert len(server.seen) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422])
def test_any_other_refusal_is_final_even_with_a_second_address(
    serve: Serve, client: Client, status: int
) -> None:
    server, second = serve(Reply(status, {"error_code": status * 100, "message": "no"})), serve(Reply())
    with pytest.raises(RegistryError) as caught:
        client(server.url, second.url).schema_by_id(1)
    assert not isinstance(caught.value, RegistryUnavailableError)
    assert (len(server.seen), len(second.seen)) == (1, 0)


def test_a_registry_that_stays_down_is_unavailable(serve: Serve, client: Client) -> None:
    server = serve(Reply(503, b"no leader"))
    with pytest.raises(RegistryUnavailableError) as caught:
        client(server.url).subjects()
    message = str(caught.value)
    assert re.match(
        r"The schema registry did not answer the request in 3 attempts over \d+\.\d s ", message
    ), message
    assert message.endswith(
        f"({server.url}: HTTP 503 (no leader)). Check that it runs, and that its URL is right."
    )
    assert caught.value.remedy == "retry"
    assert len(server.seen) == 3


def test_a_slow_registry_is_unavailable(serve: Serve, client: Client) -> None:
    server = serve(Reply(delay=30))
    with pytest.raises(
        RegistryUnavailableError, match=r"1 attempt over \d+\.\d s .*: no answer within 0\.2 s"
    ):
        client(server.url, retry=ONCE, timeouts=Timeouts(1, 0.2)).subjects()


def test_a_refused_connection_is_unavailable(client: Client) -> None:
    with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.1:\d+: connection refused\)"):
        client(f"http://127.0.0.1:{free_ports(1)[0]}", retry=ONCE).subjects()


def test_an_unknown_host_is_unavailable(client: Client) -> None:
    with pytest.raises(RegistryUnavailableError, match="the host name cannot be resolved"):
        client("http://registry.invalid:8081", retry=ONCE).subjects()


def test_a_connection_cut_in_mid_answer_is_tried_again(serve: Serve, client: Client) -> None:
    cut = Reply(200, b'{"schema', {"Content-Length": "100", "Connection": "close"})
    server = serve(cut, Reply(body={"schema": OLD}))
    assert client(server.url, timeouts=Timeouts(1, 1)).schema_by_id(1) == OLD


def test_the_second_address_answers_when_the_first_does_not(serve: Serve, client: Client) -> None:
    down, up = serve(Reply(503)), serve(Reply(body={"schema": OLD}))
    registry = client(f"http://127.0.0.1:{free_ports(1)[0]}", down.url, up.url)
    assert registry.schema_by_id(1) == OLD
    assert registry.schema_by_id(2) == OLD
    assert (len(down.seen), len(up.seen)) == (1, 2), "the address that answered is asked first from then on"


def test_when_all_addresses_fail_each_is_named(serve: Serve, client: Client) -> None:
    dead, down = f"http://127.0.0.1:{free_ports(1)[0]}", serve(Reply(500, b"oops"))
    with pytest.raises(RegistryUnavailableError) as caught:
        client(dead, down.url, retry=ONCE).subjects()
    assert f"({dead}: connection refused; {down.url}: HTTP 500 (oops))" in str(caught.value)


def recording(url: str, policy: RetryPolicy) -> tuple[Transport, list[float]]:
    slept: list[float] = []
    return Transport([Endpoint.parse(url)], retry=policy, sleep=slept.append), slept


def test_waits_are_random_up_to_a_doubling_ceiling(serve: Serve) -> None:
    server = serve(Reply(503))
    rounds = []
    for _ in range(20):
        transport, slept = recording(server.url, RetryPolicy(5, base_seconds=1, longest_wait_seconds=3))
        with pytest.raises(RegistryUnavailableError, match="5 attempts"):
            transport.send("GET", "/subjects")
        transport.close()
        rounds.append(slept)
    for waits in rounds:
        assert all(0 <= wait <= ceiling for wait, ceiling in zip(waits, (1, 2, 3, 3), strict=True))
    assert min(waits[0] for waits in rounds) < 0.5 < max(waits[0] for waits in rounds)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(serve: Serve, form: str) -> None:
    started = time.monotonic()
    date = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=21), usegmt=True)
    value = {"seconds": "20", "date": date}[form]
    server = serve(Reply(429, headers={"Retry-After": value}), Reply(body=[]))
    transport, slept = recording(server.url, RetryPolicy())
    assert transport.send("GET", "/subjects").body == []
    transport.close()
    (waits,) = slept
    # The date is without its fraction, and some of the time to it has passed when it is read.
    assert 19.5 - (time.monotonic() - started) < waits < 21.5


def test_a_retry_after_beyond_the_time_given_ends_at_once(serve: Serve) -> None:
    transport, slept = recording(serve(Reply(429, headers={"Retry-After": "3600"})).url, RetryPolicy())
    with pytest.raises(RegistryUnavailableError, match="it asks to retry in 3600 s"):
        transport.send("GET", "/subjects")
    transport.close()
    assert slept == []


def test_a_retry_after_that_says_nothing_is_ignored(serve: Serve, client: Client) -> None:
    server = serve(Reply(503, headers={"Retry-After": "soon"}), Reply(body=[]))
    assert client(server.url).subjects() == []


def test_netrc_is_not_read(
    serve: Serve, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hush\n", encoding="ascii")
    monkeypatch.setenv("NETRC", str(netrc))
    server = serve(Reply(body=[]))
    assert client(server.url).subjects() == []
    assert "Authorization" not in server.seen[0].headers


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return self_signed(tmp_path)


def test_a_certificate_nobody_vouches_for_is_final(serve: Serve, client: Client, pem: Path) -> None:
    url = served_over_tls(serve(Reply(body=[])), pem)
    with pytest.raises(RegistryError, match=r"is not trusted\. Set `ca` under tls") as caught:
        client(url).subjects()
    assert type(caught.value) is RegistryError
    assert client(url, tls=TlsOptions(ca=pem)).subjects() == []


def test_a_client_certificate_is_shown(serve: Serve, client: Client, pem: Path) -> None:
    url = served_over_tls(serve(Reply(body=["s"])), pem, client_certificate=True)
    assert client(url, tls=TlsOptions(ca=pem, client_cert=pem)).subjects() == ["s"]
    with pytest.raises(RegistryUnavailableError):
        client(url, retry=ONCE, tls=TlsOptions(ca=pem)).subjects()


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stop_leaves_a_request_behind_that_hangs(serve: Serve, client: Client) -> None:
    """The time-outs of before the stop are far longer than the test waits."""
    server, stop = serve(Reply(delay=600)), threading.Event()
    asking = client(server.url, timeouts=Timeouts(600, 600), retry=RetryPolicy(), stop=stop)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(asking.subjects)
        _until(lambda: server.seen)
        stop.set()
        with pytest.raises(RegistryUnavailableError, match=r"1 attempt .* 2 s after a stop was requested"):
            asked.result(60)
        # Nor does what is asked for later wait.
        with pytest.raises(RegistryUnavailableError, match="1 attempt "):
            pool.submit(asking.subjects).result(60)


def test_a_stop_has_one_time_for_all_addresses(serve: Serve, client: Client) -> None:
    servers, stop = [serve(Reply(delay=600)) for _ in range(3)], threading.Event()
    stop.set()
    asking = client(*(one.url for one in servers), timeouts=Timeouts(600, 600), stop=stop)
    with pytest.raises(RegistryUnavailableError) as told:
        asking.subjects()
    assert [one.url in str(told.value) for one in servers] == [True, False, False]


def test_a_stop_ends_the_wait_for_the_next_attempt(serve: Serve, client: Client) -> None:
    server, stop = serve(Reply(503, headers={"Retry-After": "600"})), threading.Event()
    policy = RetryPolicy(total_seconds=6000)
    asking = client(server.url, retry=policy, stop=stop)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(asking.subjects)
        _until(lambda: server.seen)
        stop.set()
        with pytest.raises(RegistryUnavailableError, match=r"1 attempt .*HTTP 503"):
            asked.result(60)


def test_who_may_be_stopped_gets_answers_and_tries_again_like_anyone(serve: Serve, client: Client) -> None:
    server, stop = (
        serve(Reply(503), Reply(body={"schema": OLD}), Reply(404, {"error_code": 40403})),
        threading.Event(),
    )
    asking = client(server.url, stop=stop)
    assert asking.schema_by_id(1) == OLD
    assert len(server.seen) == 2
    # An answer that comes in time counts after a stop too.
    stop.set()
    with pytest.raises(SchemaNotFoundError):
        asking.schema_by_id(2)
