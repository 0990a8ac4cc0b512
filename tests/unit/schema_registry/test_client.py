"""The HTTP client against a server that misbehaves in every way a registry, or what stands before it, can."""

from __future__ import annotations

import base64
import json
import threading

import pytest

from tests.scripted_registry import (
    FAST,
    Client,
    Reply,
    Serve,
    registry_clients,
    scripted_registries,
)
from tidesink.dev.stack import free_ports
from tidesink.errors import (
    ConfigError,
    IncompatibleSchemaError,
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from tidesink.schema_registry import (
    BasicAuth,
    BearerAuth,
    MemorySchemaRegistry,
    RegisteredSchema,
    SchemaRegistryClient,
    open_registry,
)

serve = pytest.fixture(scripted_registries, name="serve")
client = pytest.fixture(registry_clients, name="client")

OLD = json.dumps({"type": "record", "name": "t", "fields": [{"name": "qty", "type": "int"}]})
NEW = json.dumps({"type": "record", "name": "t", "fields": [{"name": "qty", "type": "string"}]})


def test_a_schema_by_id_is_asked_for_once(serve: Serve, client: Client) -> None:
    server = serve(Reply(body={"schema": OLD}))
    registry = client(server.url)
    assert [registry.schema_by_id(7), registry.schema_by_id(7)] == [OLD, OLD]
    assert server.paths() == ["GET /schemas/ids/7"]
    assert "Authorization" not in server.seen[0].headers


def test_an_unknown_id_says_where_it_was_looked_for_and_is_not_asked_at_once_again(
    serve: Serve, client: Client
) -> None:
    server = serve(Reply(404, {"error_code": 40403, "message": "Schema 77 not found"}))
    registry = client(server.url)
    for _ in range(3):
        with pytest.raises(SchemaNotFoundError) as caught:
            registry.schema_by_id(77)
        assert str(caught.value) == (
            f"url={server.url} schema_id=77: The registry does not have this schema id. "
            "Check that it is the registry that the producer uses."
        )
    assert len(server.seen) == 1


def test_a_schema_of_another_kind_is_refused(serve: Serve, client: Client) -> None:
    server = serve(
        Reply(body={"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"}),
        Reply(body={"schema": OLD, "references": [{"name": "x", "subject": "x", "version": 1}]}),
    )
    registry = client(server.url)
    with pytest.raises(RegistryError, match="has type PROTOBUF, but TiCDC writes Avro schemas"):
        registry.schema_by_id(1)
    # The answer refers to itself.
    with pytest.raises(RegistryError, match=r"schema has references to other .* the references form a cycle"):
        registry.schema_by_id(1)


def test_latest_is_remembered_for_its_time_and_forgotten_on_register(serve: Serve, client: Client) -> None:
    held = {"id": 3, "subject": "s", "version": 1, "schema": OLD}
    server = serve(
        by_path={
            "GET /subjects/s/versions/latest": Reply(body=held),
            "POST /subjects/s/versions": Reply(body={"id": 4}),
        }
    )
    registry = client(server.url)
    assert registry.latest("s") == registry.latest("s") == RegisteredSchema(3, OLD, "s", 1)
    assert registry.register("s", NEW) == registry.register("s", NEW) == 4
    registry.latest("s")
    assert server.paths() == [
        "GET /subjects/s/versions/latest",
        "POST /subjects/s/versions",
        "GET /subjects/s/versions/latest",
    ]
    stale = client(server.url, latest_ttl_seconds=0)
    stale.latest("s")
    stale.latest("s")
    assert len(server.seen) == 5


def test_registration_sends_the_schema_alone_as_ticdc_does(serve: Serve, client: Client) -> None:
    server = serve(Reply(body={"id": 9}))
    assert client(server.url).register("a b/c-value", OLD) == 9
    assert server.paths() == ["POST /subjects/a%20b%2Fc-value/versions"]
    assert server.seen[0].body == {"schema": OLD}
    assert server.seen[0].headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"


def test_confluents_refusal_names_the_field_and_quotes_the_registry(serve: Serve, client: Client) -> None:
    reason = "{errorType:'TYPE_MISMATCH', description:'The type (path '/fields/0/type') of a field …'}"
    server = serve(
        by_path={
            "POST /subjects/s-value/versions": Reply(
                409, {"error_code": 409, "message": "Schema being registered is incompatible"}
            ),
            "GET /config/s-value?defaultToGlobal=true": Reply(body={"compatibilityLevel": "BACKWARD"}),
            "GET /subjects/s-value/versions": Reply(body=[1]),
            "GET /subjects/s-value/versions/1": Reply(
                body={"id": 3, "subject": "s-value", "version": 1, "schema": OLD}
            ),
            "POST /compatibility/subjects/s-value/versions/latest?verbose=true": Reply(
                body={"is_compatible": False, "messages": [reason]}
            ),
        }
    )
    with pytest.raises(IncompatibleSchemaError) as caught:
        client(server.url).register("s-value", NEW)
    assert str(caught.value) == (
        f"url={server.url} subject=s-value column=qty: The schema registry refuses the schema under "
        "BACKWARD compatibility: field 'qty' changed from int to string; message of the registry: "
        f"{reason}. Change the table in a way that the compatibility level allows, or lower the subject's "
        "level."
    )
    assert caught.value.remedy == "stop"


def test_a_refusal_stays_a_refusal_where_nothing_more_can_be_asked(serve: Serve, client: Client) -> None:
    server = serve(
        by_path={
            "POST /subjects/s/versions": Reply(
                409, {"error_code": 409, "message": "incompatible: qty at /fields/0"}
            ),
        }
    )
    with pytest.raises(
        IncompatibleSchemaError, match="message of the registry: incompatible: qty at /fields/0"
    ):
        client(server.url).register("s", NEW)


def test_an_older_registry_compares_with_the_latest_version_only(serve: Serve, client: Client) -> None:
    latest = "POST /compatibility/subjects/s/versions/latest?verbose=true"
    server = serve(
        by_path={
            "GET /config/s?defaultToGlobal=true": Reply(body={"compatibilityLevel": "FULL_TRANSITIVE"}),
            latest: Reply(body={"is_compatible": False, "messages": ["why"]}),
        }
    )
    result = client(server.url).check_compatibility("s", NEW)
    assert (result.compatible, result.messages) == (False, ("why",))


def test_a_subject_without_a_level_has_the_registrys(serve: Serve, client: Client) -> None:
    config = "GET /config/s?defaultToGlobal=true"
    missing = Reply(
        404, {"error_code": 40408, "message": "Subject 's' does not have subject-level compatibility"}
    )
    server = serve(by_path={config: missing, "GET /config": Reply(body={"compatibilityLevel": "FULL"})})
    assert client(server.url).compatibility_level("s") == "FULL"


def test_a_level_that_is_none_is_refused_before_anything_is_sent(serve: Serve, client: Client) -> None:
    server = serve(Reply())
    with pytest.raises(
        ConfigError, match=r"'SIDEWAYS' is not a compatibility level\. Use one of NONE, BACKWARD"
    ):
        client(server.url).set_compatibility_level("SIDEWAYS")  # type: ignore[arg-type]  # no level
    assert server.seen == []


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (
            401,
            "the credentials are missing or wrong. Check the registry's username and password, or its token.",
        ),
        (
            403,
            "the user lacks permission for this request. Grant it in the registry, or use another user.",
        ),
    ],
)
def test_a_refused_sign_in_is_final_and_shows_no_secret(
    serve: Serve, client: Client, status: int, hint: str
) -> None:
    token = base64.b64encode(b"me:hush-hush").decode()
    echo = f"<html>Authorization: Basic {token} password=hush-hush</html>".encode()
    server = serve(Reply(status, echo))
    url = server.url.replace("http://", "http://me:hush-hush@")
    with pytest.raises(RegistryError) as caught:
        client(url).subjects()
    assert str(caught.value) == f"url={server.url}: The schema registry answers HTTP {status}: {hint}"
    assert caught.value.remedy == "fix"
    assert len(server.seen) == 1
    assert server.seen[0].headers["Authorization"] == f"Basic {token}"


def test_a_server_that_echoes_a_secret_does_not_bring_it_into_the_error(serve: Serve, client: Client) -> None:
    server = serve(Reply(200, b"<html>\x1b[31mBearer to-ken, hi</html>"), Reply(503, b"Bearer to-ken"))
    registry = client(server.url, auth=BearerAuth("to-ken"))
    with pytest.raises(RegistryError, match=r"Bearer \*\*\*, hi") as caught:
        registry.subjects()
    assert "\x1b" not in str(caught.value)
    with pytest.raises(RegistryUnavailableError, match=r"HTTP 503 \(Bearer \*\*\*\)"):
        registry.subjects()
    assert server.seen[0].headers["Authorization"] == "Bearer to-ken"


def test_an_invalid_request_carries_the_registrys_words(serve: Serve, client: Client) -> None:
    server = serve(Reply(422, {"error_code": 42201, "message": "Invalid schema:\n oops"}))
    with pytest.raises(RegistryError) as caught:
        client(server.url).register("s", "{}")
    assert str(caught.value) == (
        f"url={server.url} subject=s: The schema registry refuses the request (HTTP 422, code 42201): "
        "Invalid schema: oops"
    )
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, b"<!DOCTYPE html><title>Welcome</title>"),
        Reply(200, b""),
        Reply(200, b"\xff\xfe\x00"),
        Reply(200, {"hello": "world"}),
        Reply(200, [1, 2]),
        Reply(200, {"schema": 5}),
        Reply(404, b"<html>no such page</html>"),
        Reply(404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
        Reply(302, b"", {"Location": "http://sso.example/login"}),
        Reply(400, b"plain HTTP request was sent to HTTPS port"),
    ],
)
def test_an_answer_that_is_no_registrys_asks_about_the_url(
    serve: Serve, client: Client, reply: Reply
) -> None:
    server = serve(reply)
    with pytest.raises(
        RegistryError, match=rf"This URL does not answer like a schema registry \(HTTP {reply.status}"
    ) as caught:
        client(server.url).schema_by_id(1)
    assert type(caught.value) is RegistryError
    assert len(str(caught.value)) < 450
    assert len(server.seen) == 1


def test_a_list_of_the_wrong_things_is_no_registrys_answer(serve: Serve, client: Client) -> None:
    with pytest.raises(RegistryError, match="This URL does not answer like a schema registry"):
        client(serve(Reply(200, [1, 2])).url).subjects()


def test_no_url_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="No URL of a schema registry is set"):
        SchemaRegistryClient([])


def test_one_client_serves_many_threads(serve: Serve, client: Client) -> None:
    server = serve(Reply(body={"schema": OLD}))
    registry = client(server.url)
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.extend(registry.schema_by_id(i) for i in (n, n + 1)))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [OLD] * 32


def test_open_registry_by_url(serve: Serve) -> None:
    server = serve(Reply(body=[]))
    with SchemaRegistryClient(server.url) as direct:
        assert direct.subjects() == []
    opened = open_registry(f"http://u:pa,ss@127.0.0.1:{free_ports(1)[0]}, {server.url}", retry=FAST)
    assert opened.subjects() == []
    opened.close()
    assert "pa,ss" not in repr(opened)
    assert open_registry("memory://unit-open") is open_registry("memory://unit-open")
    assert open_registry("memory://unit-open") is not open_registry("memory://unit-other")
    assert isinstance(open_registry("memory://unit-open"), MemorySchemaRegistry)
    with pytest.raises(ConfigError, match="A memory:// registry cannot be combined"):
        open_registry(["memory://unit-open", server.url])
    with pytest.raises(ConfigError, match="contains credentials, and other credentials are configured"):
        open_registry("http://u:p@127.0.0.1", auth=BasicAuth("u", "p"))
