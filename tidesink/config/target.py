"""Where tables go: one model of settings for each type of target, picked by ``type``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Discriminator, Tag

from tidesink.config.fields import LocalPath, Model
from tidesink.config.target_iceberg import CatalogName, IcebergSettings
from tidesink.config.target_messages import HttpSettings, KafkaSettings
from tidesink.config.target_sql import MysqlSettings, PostgresSettings

DEFAULT_TYPE: Final = "delta"


def _tells_tables_apart(template: str) -> str:
    if "{schema}" not in template or "{table}" not in template:
        raise ValueError("use both placeholders, as in {schema}/{table}: two tables could share one place")
    rest = template.replace("{schema}", "").replace("{table}", "")
    if "{" in rest or "}" in rest:
        raise ValueError("it holds another placeholder: use {schema} and {table} only")
    return template


TableTemplate = Annotated[str, AfterValidator(_tells_tables_apart)]


class DeltaSettings(Model):
    """Delta tables under one root, ``path``, each at ``table`` below it."""

    type: Literal["delta"] = "delta"
    """`delta`: Delta tables in a lake."""
    path: LocalPath
    """The lake's root: a folder, or a URL that Spark's file systems know."""
    table: TableTemplate = "{schema}/{table}"
    """A table's path under the root; must contain `{schema}` and `{table}`."""
    catalog_table: CatalogName | None = None
    """The name that each table has in Spark's catalog besides, as `{schema}.{table}` or with the catalog
    before: readers find it there, and its rows stay at its path."""


class MemorySettings(Model):
    """Tables in the worker's own memory."""

    type: Literal["memory"]
    """`memory`: gone with the process, for trying things out."""


def _type_of(settings: Any) -> str | None:
    """The type that settings name; Delta where they name none, None where they are no settings."""
    named = settings.get("type", DEFAULT_TYPE) if isinstance(settings, Mapping) else None
    named = getattr(settings, "type", named)
    return named if isinstance(named, str) else None


TargetSettings = Annotated[
    Annotated[DeltaSettings, Tag("delta")]
    | Annotated[HttpSettings, Tag("http")]
    | Annotated[KafkaSettings, Tag("kafka")]
    | Annotated[IcebergSettings, Tag("iceberg")]
    | Annotated[PostgresSettings, Tag("postgres")]
    | Annotated[MysqlSettings, Tag("mysql")]
    | Annotated[MemorySettings, Tag("memory")],
    Discriminator(_type_of),
]
"""The settings of a target. A new type is one model and one line here."""
