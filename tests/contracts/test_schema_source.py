"""The contract of a source of AWS Glue's schemas, held to the one that a schemas file fills."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidesink.errors import SchemaNotFoundError
from tidesink.schema_registry import GlueSchemas
from tidesink.schema_registry.base import SchemaSource

KNOWN = UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
OTHER = UUID("00000000-0000-0000-0000-00000000000a")
TEXT = '{"type": "record", "name": "t", "fields": []}'


def test_a_schema_is_found_by_its_uuid_as_often_as_it_is_asked_for() -> None:
    source = GlueSchemas({KNOWN: TEXT}, name="schemas.jsonl")
    assert isinstance(source, SchemaSource)
    assert source.schema_by_uuid(KNOWN) == TEXT
    assert source.schema_by_uuid(KNOWN) == TEXT
    with pytest.raises(SchemaNotFoundError, match=rf"schemas\.jsonl has no Glue schema version {OTHER}"):
        source.schema_by_uuid(OTHER)
