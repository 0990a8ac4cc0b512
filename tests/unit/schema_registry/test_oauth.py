"""OAuth tokens: got when needed, kept until they expire, renewed once after a 401, and never shown."""

from __future__ import annotations

import threading
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote_plus

import pytest

from tests.certificates import self_signed, served_over_tls
from tests.confluent_registry import Start, confluent_servers
from tests.scripted_registry import Client, Reply, Serve, registry_clients, scripted_registries
from tests.token_endpoint import TokenEndpoint, token_endpoints
from tidesink.errors import ConfigError, RegistryError, RegistryUnavailableError
from tidesink.schema_registry import RetryPolicy, TlsOptions
from tidesink.schema_registry.transport import OAuthClient

serve = pytest.fixture(scripted_registries, name="serve")
start = pytest.fixture(confluent_servers, name="start")
client = pytest.fixture(registry_clients, name="client")
endpoint = pytest.fixture(token_endpoints, name="endpoint")

SECRET = "s3cr3t/+ %"


class Clock:
    """Seconds that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def oauth(
    endpoint: TokenEndpoint, clock: Callable[[], float] = time.monotonic, scope: str = ""
) -> OAuthClient:
    return OAuthClient(endpoint.url, "me", SECRET, scope=scope, clock=clock)


def test_a_token_is_asked_for_as_the_rfc_says_and_used_for_all_requests(
    endpoint: TokenEndpoint, start: Start, client: Client
) -> None:
    server = start(admits=lambda header: header == "Bearer token-1")
    registry = client(server.url, auth=oauth(endpoint, scope="registry read"))
    assert registry.subjects() == []
    assert registry.register("s-value", '"int"') == 1
    (asked,) = endpoint.asked
    assert asked.form == {"grant_type": ["client_credentials"], "scope": ["registry read"]}
    name, _, secret = b64decode(asked.authorization.removeprefix("Basic ")).decode().partition(":")
    assert (unquote_plus(name), unquote_plus(secret)) == ("me", SECRET)


def test_a_token_is_kept_until_shortly_before_it_expires(endpoint: TokenEndpoint) -> None:
    clock = Clock()
    auth = oauth(endpoint, clock)
    assert auth.header() == "Bearer token-1"
    clock.now += 3600 - 31
    assert auth.header() == "Bearer token-1"
    clock.now += 2
    assert auth.header() == "Bearer token-2"


def test_a_token_that_lasts_seconds_is_used_for_half_of_them(endpoint: TokenEndpoint) -> None:
    endpoint.expires_in = 10
    clock = Clock()
    auth = oauth(endpoint, clock)
    auth.header()
    clock.now += 4
    assert auth.header() == "Bearer token-1"
    clock.now += 2
    assert auth.header() == "Bearer token-2"


def test_an_endpoint_that_does_not_say_how_long_is_asked_every_five_minutes(endpoint: TokenEndpoint) -> None:
    endpoint.expires_in = None
    clock = Clock()
    auth = oauth(endpoint, clock)
    auth.header()
    clock.now += 269
    assert auth.header() == "Bearer token-1"
    clock.now += 2
    assert auth.header() == "Bearer token-2"


def test_a_refused_token_is_renewed_once(endpoint: TokenEndpoint, start: Start, client: Client) -> None:
    """A token may be revoked before its time: the registry's 401 is what tells."""
    server = start(admits=lambda header: header == "Bearer token-2")
    assert client(server.url, auth=oauth(endpoint)).subjects() == []
    assert len(endpoint.asked) == 2
    assert server.registry.log == ["GET /subjects"] * 2


def test_a_registry_that_wants_others_is_final(endpoint: TokenEndpoint, start: Start, client: Client) -> None:
    server = start(admits=lambda _header: False)
    with pytest.raises(RegistryError, match="credentials are missing or wrong") as caught:
        client(server.url, auth=oauth(endpoint)).subjects()
    assert type(caught.value) is RegistryError
    assert len(endpoint.asked) == 2


def test_basic_credentials_are_not_sent_twice(start: Start, client: Client) -> None:
    server = start(admits=lambda _header: False)
    with pytest.raises(RegistryError, match="HTTP 401"):
        client(server.url.replace("//", "//me:secret@")).subjects()
    assert server.registry.log == ["GET /subjects"]


def test_a_client_that_is_refused_is_told_without_the_secret(endpoint: TokenEndpoint, client: Client) -> None:
    endpoint.status, endpoint.body = 401, {"error": "invalid_client", "error_description": SECRET}
    auth = oauth(endpoint)
    with pytest.raises(RegistryError, match=r"refuses client 'me' \(HTTP 401, invalid_client\)") as caught:
        client("http://127.0.0.1:1", auth=auth).subjects()
    assert type(caught.value) is RegistryError, "final: the registry is not tried again"
    assert len(endpoint.asked) == 1
    assert SECRET not in f"{caught.value} {caught.value.__cause__!r} {auth!r}"


def test_a_server_that_repeats_the_secret_does_not_make_it_shown(
    endpoint: TokenEndpoint, serve: Serve, client: Client
) -> None:
    said = {"error_code": 42201, "message": f"you sent {SECRET} and token-1"}
    with pytest.raises(RegistryError) as caught:
        client(serve(Reply(422, said)).url, auth=oauth(endpoint)).subjects()
    assert "you sent *** and ***" in str(caught.value)


def test_an_endpoint_in_trouble_is_tried_again(endpoint: TokenEndpoint, start: Start, client: Client) -> None:
    endpoint.troubles = 2
    server = start()
    assert client(server.url, auth=oauth(endpoint)).subjects() == []
    assert len(endpoint.asked) == 3


def test_an_endpoint_that_is_down_is_named(client: Client) -> None:
    auth = OAuthClient("http://127.0.0.1:1/token", "me", SECRET)
    once = RetryPolicy(attempts=1)
    with pytest.raises(RegistryUnavailableError, match=r"endpoint http://127\.0\.0\.1:1/token does not"):
        client("http://127.0.0.1:2", auth=auth, retry=once).subjects()


@pytest.mark.parametrize("body", [{}, {"access_token": ""}, {"access_token": "two\nlines"}, ["x"], b"<html>"])
def test_an_answer_that_is_no_token_is_refused(endpoint: TokenEndpoint, body: object) -> None:
    endpoint.body = body
    with pytest.raises(
        RegistryError,
        match=r"answers without an access_token\. Check that oauth.token-url "
        r"is the URL of a token endpoint",
    ):
        oauth(endpoint).header()


def test_threads_share_one_token(endpoint: TokenEndpoint) -> None:
    auth = oauth(endpoint)
    seen: list[str | None] = []
    threads = [threading.Thread(target=lambda: seen.append(auth.header())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["Bearer token-1"] * 8
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("url", ["login.example.com/token", "ftp://h/t", "https://me:s3cr3t@h/token"])
def test_a_url_that_is_none_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError, match="not the URL of a token endpoint") as caught:
        OAuthClient(url, "me", SECRET)
    assert "s3cr3t" not in str(caught.value)


def test_a_second_address_is_asked_with_the_same_token(
    endpoint: TokenEndpoint, start: Start, client: Client
) -> None:
    server = start(admits=lambda header: header == "Bearer token-1")
    registry = client("http://127.0.0.1:1", server.url, auth=oauth(endpoint))
    assert registry.subjects() == []
    assert len(endpoint.asked) == 1


def test_the_endpoints_certificate_must_be_trusted(tmp_path: Path, serve: Serve) -> None:
    pem = self_signed(tmp_path)
    server = serve(Reply(body={"access_token": "token-1", "expires_in": 60}))
    url = served_over_tls(server, pem)
    with pytest.raises(RegistryError, match=r"is not trusted. Set oauth\.ca to the PEM file"):
        OAuthClient(url, "me", SECRET).header()
    assert OAuthClient(url, "me", SECRET, tls=TlsOptions(ca=pem)).header() == "Bearer token-1"
