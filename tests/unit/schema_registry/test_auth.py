"""Credentials sign requests and are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidesink.errors import ConfigError
from tidesink.schema_registry import BasicAuth, BearerAuth, NoAuth, SchemaRegistryClient, TlsOptions
from tidesink.schema_registry.transport import Endpoint, hide, safe_url


def test_credentials_in_a_url_move_into_auth() -> None:
    endpoint = Endpoint.parse("https://us%40er:p%2Fss%3A@host:8081/apis/ccompat/v7/")
    assert endpoint.url == "https://host:8081/apis/ccompat/v7"
    assert endpoint.auth == BasicAuth("us@er", "p/ss:")
    assert "p/ss" not in repr(endpoint)


def test_auth_headers() -> None:
    assert BasicAuth("Aladdin", "open sesame").header() == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    assert BearerAuth("abc").header() == "Bearer abc"
    assert NoAuth().header() is None


def test_secrets_are_not_in_a_repr() -> None:
    client = SchemaRegistryClient(["http://u:hush@a:1", "http://b:2"])
    shown = f"{client!r} {client.__dict__!r} {BasicAuth('u', 'hush')!r} {BearerAuth('hush')!r}"
    client.close()
    assert "hush" not in shown
    assert "SchemaRegistryClient('http://a:1', 'http://b:2')" in shown


@pytest.mark.parametrize(
    "url",
    [
        "ftp://u:hush@host",
        "http://u:hu/sh@host:8081",
        "http://u:hush@host:notaport",
        "u:hush@host:8081",
        "//u:hush@host",
        "http://u:hush@",
        "http://u:hush@host:99999",
        "http://u:hush@host:0",
        "http://u:hush@[::1",
        "http://u:hush@bad host/",
        "http://host:8081/?token=hush",
        "http://host:8081/#hush",
        "",
    ],
)
def test_a_url_that_is_none_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError, match="URL of a schema registry") as caught:
        Endpoint.parse(url)
    assert "hush" not in str(caught.value)
    assert "hu/sh" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_credentials_given_twice_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"http://\*\*\*@host contains credentials, and other credentials are configured"
    ):
        Endpoint.parse("http://u:hush@host", BearerAuth("token"))


@pytest.mark.parametrize("token", ["", "two\nlines", "naïve"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="Check that its file does not end in a line break") as caught:
        BearerAuth(token)
    assert token not in str(caught.value) or not token


def test_tls_files_must_be_there(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.write_text("x", encoding="ascii")
    with pytest.raises(ConfigError, match=r"key=tls\.ca: The file .*gone\.pem does not exist"):
        TlsOptions(ca=tmp_path / "gone.pem")
    with pytest.raises(ConfigError, match="A client key is set, but no client certificate"):
        TlsOptions(client_key=pem)
    assert TlsOptions().verify_argument() is True
    assert TlsOptions(verify=False, ca=pem).verify_argument() is False
    assert TlsOptions(ca=pem).verify_argument() == str(pem)
    assert TlsOptions(client_cert=pem).cert_argument() == str(pem)
    assert TlsOptions(client_cert=pem, client_key=pem).cert_argument() == (str(pem), str(pem))


def test_hide_takes_the_longest_secret_first() -> None:
    assert hide("a hushhush b hush c", ["hush", "", "hushhush"]) == "a *** b *** c"


def test_safe_url_drops_credentials_query_and_fragment() -> None:
    assert safe_url("http://u:p@h:1/x?token=1#2") == "http://***@h:1/x"
