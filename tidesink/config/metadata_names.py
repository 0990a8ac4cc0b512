"""The names of metadata columns, as a config gives them: each by its kind, or kinds alone."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from tidesink.typemap.target_schema import MetadataKind, default_name


def _named_kinds(value: Any) -> Any:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    return {kind: default_name(str(kind)) for kind in value} if isinstance(value, list) else value


Metadata = Annotated[
    dict[MetadataKind, str],
    BeforeValidator(_named_kinds, json_schema_input_type=dict[MetadataKind, str] | list[MetadataKind] | str),
]
