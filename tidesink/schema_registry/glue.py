"""Schemas that the AWS Glue schema registry keeps: by the UUID of a schema version.

Producers that use it (TiCDC with ``schema-registry-type`` glue) write that UUID before each payload. The
Glue service itself needs the optional ``glue`` extra; a file of schemas does as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable
from uuid import UUID

from tidesink.errors import ConfigError, RegistryError, RegistryUnavailableError, SchemaNotFoundError

# What Glue's API calls the errors of a request that asked for nothing there is, or may not ask.
_NOT_FOUND: Final = frozenset({"EntityNotFoundException", "InvalidInputException"})
_PASSING: Final = frozenset({"InternalServiceException", "OperationTimeoutException", "ThrottlingException"})


@runtime_checkable
class SchemaSource(Protocol):
    """Where the schema behind a UUID comes from. Threads may share one."""

    def schema_by_uuid(self, uuid: UUID) -> str:
        """The text of a schema version; raises SchemaNotFoundError, or another RegistryError."""


class GlueSchemas:
    """Schemas by UUID in memory, as a schemas file holds them; ``name`` is the file's, for messages."""

    def __init__(self, schemas: Mapping[UUID, str], *, name: str = "memory") -> None:
        self._schemas = dict(schemas)
        self._name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, {len(self._schemas)} schemas)"

    def schema_by_uuid(self, uuid: UUID) -> str:
        """The text of a schema version; raises SchemaNotFoundError."""
        if uuid not in self._schemas:
            raise SchemaNotFoundError(f"no Glue schema version {uuid} in {self._name}: add its line")
        return self._schemas[uuid]


class AwsGlueSchemas:
    """Schemas from the Glue service, each asked for once.

    ``client``: a boto3 client of ``glue``; made for ``region`` with boto3's own credentials if not given.
    Raises ConfigError where boto3 is not installed, or is not configured.
    """

    def __init__(self, *, region: str | None = None, client: Any = None) -> None:
        self._client = client or _glue_client(region)
        self._texts: dict[UUID, str] = {}
        self._lock = threading.Lock()

    def schema_by_uuid(self, uuid: UUID) -> str:
        """The text of a schema version.

        Raises:
            SchemaNotFoundError: Glue has no such version.
            RegistryUnavailableError: Glue does not answer now.
            RegistryError: Glue refuses us, or the version is no Avro schema.
        """
        with self._lock:
            if uuid not in self._texts:
                self._texts[uuid] = self._asked(uuid)
            return self._texts[uuid]

    def _asked(self, uuid: UUID) -> str:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client.get_schema_version(SchemaVersionId=str(uuid))
        except ClientError as error:
            raise _refusal(uuid, error.response.get("Error", {})) from error
        except BotoCoreError as error:
            raise RegistryUnavailableError(
                f"AWS Glue gave no answer ({type(error).__name__}): are region and credentials set, and is "
                "the network open?"
            ) from error
        kind = answer.get("DataFormat", "AVRO")
        if kind != "AVRO":
            raise RegistryError(
                f"Glue schema version {uuid} is of type {kind}, and TiCDC writes Avro: is the topic TiCDC's?"
            )
        return str(answer["SchemaDefinition"])


def _refusal(uuid: UUID, said: Mapping[str, Any]) -> RegistryError:
    code = str(said.get("Code", ""))
    kinds: tuple[tuple[frozenset[str], Callable[[str], RegistryError], str], ...] = (
        (_NOT_FOUND, SchemaNotFoundError, "is this the account and region the producer writes to?"),
        (_PASSING, RegistryUnavailableError, "it may pass"),
    )
    for codes, kind, hint in kinds:
        if code in codes:
            return kind(f"AWS Glue has no answer for schema version {uuid} ({code}): {hint}")
    return RegistryError(
        f"AWS Glue refuses schema version {uuid} ({code}): the credentials need glue:GetSchemaVersion"
    )


def _glue_client(region: str | None) -> Any:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise ConfigError(
            "schemas of AWS Glue need boto3: install tidesink[glue], or give --schemas FILE with lines "
            '{"id": "<uuid>", "schema": …}'
        ) from error
    try:
        return boto3.client("glue", region_name=region)
    except BotoCoreError as error:
        raise ConfigError(f"AWS Glue cannot be opened: {error}") from error
