"""The registry's settings in a file: each way to sign in, secrets from the environment, certificates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import self_signed, served_over_tls
from tests.cli.samples import KEY, KEY_SCHEMA, VALUE, VALUE_SCHEMA, capture, run
from tests.confluent_registry import Start, confluent_servers
from tests.scripted_registry import Reply, Serve, scripted_registries
from tests.token_endpoint import TokenEndpoint, token_endpoints
from tidesink.schema_registry import MemorySchemaRegistry

start = pytest.fixture(confluent_servers, name="start")
serve = pytest.fixture(scripted_registries, name="serve")
endpoint = pytest.fixture(token_endpoints, name="endpoint")

SECRET = "pa55:w0rd/+"


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        (tmp_path / "registry.yaml").write_text(text, encoding="utf-8")
        return str(tmp_path / "registry.yaml")

    return write


def listed(file: str) -> Any:
    result = run("registry", "list", "--registry-file", file, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_basic_from_the_environment(start: Start, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", SECRET)
    server = start(admits=lambda header: header == "Basic bWU6cGE1NTp3MHJkLys=")
    file = settings(f"url: {server.url}\nauth: {{username: me, password: '${{env:REGISTRY_PASSWORD}}'}}\n")
    assert listed(file)["subjects"] == []


def test_bearer_from_a_file_and_a_second_address(start: Start, settings: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n", encoding="ascii")
    server = start(admits=lambda header: header == f"Bearer {SECRET}")
    file = settings(f"urls: [http://127.0.0.1:1, {server.url}]\nauth: {{token: '${{file:token}}'}}\n")
    assert listed(file)["subjects"] == []


def test_oauth(start: Start, endpoint: TokenEndpoint, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", SECRET)
    server = start(admits=lambda header: header == "Bearer token-1")
    file = settings(
        f"url: {server.url}\nauth:\n  oauth:\n    token-url: {endpoint.url}\n    client-id: me\n"
        "    client-secret: ${env:CLIENT_SECRET}\n    scope: registry\n"
    )
    assert listed(file)["subjects"] == []
    endpoint.status, endpoint.body = 400, {"error": "invalid_scope"}
    result = run("--debug", "registry", "list", "--registry-file", file)
    assert result.exit_code == 1
    assert "invalid_scope" in result.stderr
    assert SECRET not in result.output


def test_decode_signs_in_by_the_same_file(start: Start, settings: Any) -> None:
    server = start(admits=lambda header: header == f"Bearer {SECRET}")
    server.registry.memory = MemorySchemaRegistry(
        {257: json.dumps(KEY_SCHEMA), 258: json.dumps(VALUE_SCHEMA)}
    )
    file = settings(f"url: {server.url}\nauth: {{token: {SECRET!r}}}\n")
    args = ("decode", "--protocol", "avro", "--input", "-", "-o", "json", "--registry-file", file)
    found = run(*args, stdin=capture(KEY, VALUE))
    assert json.loads(found.stdout)["after"]["id"] == 7, found.output
    both = run(*args, "--schema-registry", server.url, stdin="")
    assert both.exit_code == 2
    assert "exclude each other" in both.stderr


def test_mutual_tls_with_an_authority_of_ones_own(serve: Serve, settings: Any, tmp_path: Path) -> None:
    pem = self_signed(tmp_path)
    level = Reply(body={"compatibilityLevel": "FULL"})
    server = serve(by_path={"GET /config": level, "GET /subjects": Reply(body=[])})
    url = served_over_tls(server, pem, client_certificate=True)
    file = settings(f"url: {url}\ntls: {{ca: both.pem, certificate: both.pem}}\n")
    assert listed(file)["level"] == "FULL", "paths are read from beside the file"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("url: ftp://h", "give a URL such as"),
        (f"url: http://me:{SECRET.replace('/', '')}@h", "not into the URL"),
        (f"url: http://h\nauth: {{token: {SECRET!r}, username: me}}", "exclude each other"),
        (f"url: http://h\nauth: {{password: {SECRET!r}}}", "set username and password, token, or oauth"),
        (f"url: http://h\nauth: {{oauth: {{client-secret: {SECRET!r}}}}}", "auth.oauth.token-url: required"),
        (f"url: http://h\npasword: {SECRET!r}", "unknown setting"),
        (
            "url: http://h\nauth: {token: '${env:NO_SUCH_VARIABLE}'}",
            "the environment variable NO_SUCH_VARIABLE is not set",
        ),
        ("url: http://h\ntls: {ca: gone.pem}", "the file does not exist"),
        ("- a", "is not a section of settings"),
        ("url: [", "is not YAML"),
    ],
)
def test_wrong_settings_are_listed_without_secrets(settings: Any, text: str, words: str) -> None:
    result = run("registry", "list", "--registry-file", settings(text))
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())
    assert SECRET not in result.output
    assert SECRET.replace("/", "") not in result.output
