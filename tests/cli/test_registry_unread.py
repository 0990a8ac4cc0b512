"""What ``tidesink registry check --topic`` says of records it cannot read."""

from __future__ import annotations

import pytest

from tidesink.cli.registry_check import Candidates, of_records
from tidesink.cli.sources import Setting
from tidesink.codecs.base import CodecOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import Message, TableId
from tidesink.schema_registry import MemorySchemaRegistry

ROW = (
    b'{"id":0,"database":"shop","table":"t","pkNames":["id"],"isDdl":false,"type":"INSERT","es":1,"ts":1,'
    b'"sql":"","sqlType":{"id":4},"mysqlType":{"id":"int"},"old":null,"data":[{"id":"1"}]}'
)


def _found(protocol: str, *values: bytes) -> Candidates:
    setting = Setting(protocol, CodecOptions(), {}, MemorySchemaRegistry(), TableDefinitions(), None, None)
    messages = [Message("app", 0, offset, None, value) for offset, value in enumerate(values)]

    def topic_of(table: TableId) -> str:
        return f"{table.schema}_{table.name}"

    return of_records(messages, setting, "app", topic_of)


@pytest.mark.parametrize(("protocol", "value"), [("flat-avro", ROW), ("canal-json", b"\0\0\0\0\1\2")])
def test_a_wrong_protocol_is_said_once(protocol: str, value: bytes) -> None:
    found = _found(protocol, *[value] * 50)
    assert found.found == []
    ((place, reason),) = found.skipped.items()
    assert place == "app[0]@0"
    assert "(and 49 more like it)" in reason
    assert f"no record can be read as {protocol}: check --protocol" in reason


def test_one_bad_record_is_no_wrong_protocol() -> None:
    found = _found("canal-json", ROW, b"{", ROW)
    assert [candidate.subject for candidate in found.found] == ["shop_t-key", "shop_t-value"]
    ((place, reason),) = found.skipped.items()
    assert place == "app[0]@1"
    assert "more like it" not in reason
    assert "--protocol" not in reason
