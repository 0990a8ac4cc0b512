"""Large messages of canal-json: the settings' types, and what contradicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, SecretStr, ValidationInfo

from tidesink.config.database_url import database_url_problems
from tidesink.config.fields import beside_config
from tidesink.config.problems import Problem

if TYPE_CHECKING:
    from tidesink.config.models import Config

_UPSTREAM_REMEDY = "give a URL such as mysql+pymysql://${env:TIDB_USER}:${env:TIDB_PASSWORD}@tidb:4000"


def _place(value: Any, info: ValidationInfo) -> Any:
    return beside_config(value, info) if isinstance(value, str) else value


# TiCDC takes an S3 access key behind the URI's ?, so that all of it is secret.
ClaimCheckPlace = Annotated[SecretStr, BeforeValidator(_place, json_schema_input_type=str)]


def large_message_problems(config: Config) -> Iterator[Problem]:
    """What TiCDC would refuse too (tiflow c7b2588), and an upstream that no driver is there for."""
    source = config.source
    option = source.large_message_handle_option
    if option != "none" and not source.enable_tidb_extension and source.protocol == "canal-json":
        yield Problem(
            "source.large-message-handle-option",
            f"{option} needs the TiDB extension: TiCDC refuses it without",
            "set enable-tidb-extension: true as the changefeed has it",
        )
    if option == "claim-check" and source.claim_check_storage_uri is None:
        yield Problem(
            "source.claim-check-storage-uri",
            "required with large-message-handle-option claim-check",
            "give the changefeed's claim-check-storage-uri, or a directory that holds the same files",
        )
    if source.upstream_url is not None:
        url = source.upstream_url.get_secret_value()
        yield from database_url_problems("source.upstream-url", url, remedy=_UPSTREAM_REMEDY)
