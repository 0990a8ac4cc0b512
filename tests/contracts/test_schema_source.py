"""One contract, every source of AWS Glue's schemas: a file's, and the service's through boto3's own stub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from tidesink.errors import ConfigError, RegistryError, RegistryUnavailableError, SchemaNotFoundError
from tidesink.schema_registry.glue import AwsGlueSchemas, GlueSchemas, SchemaSource

KNOWN = UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
OTHER = UUID("00000000-0000-0000-0000-00000000000a")
TEXT = '{"type": "record", "name": "t", "fields": []}'


@pytest.fixture
def glue() -> Iterator[tuple[Any, Any]]:
    """A client of Glue and its stub: no request leaves the machine."""
    boto3 = pytest.importorskip("boto3", reason="boto3 is in the glue extra")
    from botocore.stub import Stubber

    client = boto3.client("glue", region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stub:
        yield client, stub
    client.close()


def answers(stub: Any, uuid: UUID, **answer: str) -> None:
    stub.add_response("get_schema_version", answer, {"SchemaVersionId": str(uuid)})


def from_service(request: pytest.FixtureRequest) -> SchemaSource:
    client, stub = request.getfixturevalue("glue")
    answers(stub, KNOWN, SchemaDefinition=TEXT, DataFormat="AVRO", Status="AVAILABLE")
    stub.add_client_error("get_schema_version", "EntityNotFoundException")
    return AwsGlueSchemas(client=client)


SOURCES: dict[str, Callable[[pytest.FixtureRequest], SchemaSource]] = {
    "file": lambda _: GlueSchemas({KNOWN: TEXT}, name="schemas.jsonl"),
    "service": from_service,
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> SchemaSource:
    return SOURCES[request.param](request)


def test_it_is_a_source(source: SchemaSource) -> None:
    assert isinstance(source, SchemaSource)


def test_a_schema_is_found_by_its_uuid_as_often_as_it_is_asked_for(source: SchemaSource) -> None:
    assert source.schema_by_uuid(KNOWN) == TEXT
    assert source.schema_by_uuid(KNOWN) == TEXT, "the stub answers once: the text is kept"
    with pytest.raises(SchemaNotFoundError, match=str(OTHER)):
        source.schema_by_uuid(OTHER)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("AccessDeniedException", RegistryError, "the credentials need glue:GetSchemaVersion"),
        ("ThrottlingException", RegistryUnavailableError, "it may pass"),
        ("InvalidInputException", SchemaNotFoundError, "the account and region"),
    ],
)
def test_what_glue_refuses_is_told_by_its_code(
    glue: tuple[Any, Any], code: str, kind: type[RegistryError], words: str
) -> None:
    client, stub = glue
    stub.add_client_error("get_schema_version", code, "secret words of the service")
    with pytest.raises(kind, match=words) as caught:
        AwsGlueSchemas(client=client).schema_by_uuid(KNOWN)
    assert type(caught.value) is kind
    assert "secret words" not in str(caught.value)


def test_a_schema_of_another_kind_is_refused(glue: tuple[Any, Any]) -> None:
    client, stub = glue
    answers(stub, KNOWN, SchemaDefinition="x", DataFormat="PROTOBUF")
    with pytest.raises(RegistryError, match="is of type PROTOBUF"):
        AwsGlueSchemas(client=client).schema_by_uuid(KNOWN)


def test_glue_that_cannot_be_reached_is_unavailable() -> None:
    boto3 = pytest.importorskip("boto3", reason="boto3 is in the glue extra")
    from botocore.config import Config

    client = boto3.client(
        "glue",
        region_name="eu-west-1",
        endpoint_url="http://127.0.0.1:1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2),
    )
    with pytest.raises(RegistryUnavailableError, match="AWS Glue gave no answer"):
        AwsGlueSchemas(client=client).schema_by_uuid(KNOWN)
    client.close()


def test_without_a_region_it_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3", reason="boto3 is in the glue extra")
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(ConfigError, match="AWS Glue cannot be opened"):
        AwsGlueSchemas()
