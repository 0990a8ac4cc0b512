"""Delete markers: what the new architecture writes in place of a deleted row's value."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.codecs.flat_avro.cases import (
    EVERY_VALUE,
    TOPIC,
    TSO,
    change,
    codec_with,
    message_of,
    only_change,
)
from tidesink.errors import DecodeError
from tidesink.events import Message, Op
from tidesink.schema_registry import MemorySchemaRegistry

MARKER = b"\x03" + TSO.to_bytes(8, "big")
MARKING: dict[str, Any] = {"producer": "new", "enable_tidb_extension": True, "avro_enable_watermark": True}


def test_a_marker_is_a_delete_with_its_commit_ts() -> None:
    registry = MemorySchemaRegistry()
    codec = codec_with(registry, **MARKING)
    message = message_of(codec, change(Op.DELETE, None, before=EVERY_VALUE))
    assert message.value == MARKER
    found = only_change(codec_with(registry), message)
    assert (found.op, found.after, found.commit_ts) == (Op.DELETE, None, TSO)
    assert found.key == found.before == {"id": EVERY_VALUE["id"]}
    assert found.position.source == (TSO,)
    assert found.schema_id is not None
    assert found.schema_id.value is None
    assert codec.encode_with_ids(found) == (message.key, MARKER)


def test_a_tombstone_stays_one() -> None:
    codec = codec_with(producer="new", enable_tidb_extension=True)
    message = message_of(codec, change(Op.DELETE, None, before=EVERY_VALUE))
    found = only_change(codec, message)
    assert (message.value, found.commit_ts) == (None, None)
    assert codec.encode_with_ids(found) == (message.key, None)


@pytest.mark.parametrize(
    "options",
    [
        {**MARKING, "producer": "classic"},
        {**MARKING, "enable_tidb_extension": False},
        {**MARKING, "avro_enable_watermark": False},
        {**MARKING, "avro_include_before_value": True},
    ],
)
def test_only_the_new_architecture_with_both_options_and_no_before_values_writes_one(
    options: dict[str, Any],
) -> None:
    message = message_of(codec_with(**options), change(Op.DELETE, None, before=EVERY_VALUE))
    assert message.value is None or message.value[0] == 0


def test_markers_of_many_commits_take_no_memory() -> None:
    codec = codec_with(**MARKING)
    message = message_of(codec, change(Op.DELETE, None, before=EVERY_VALUE))
    for offset in range(500):
        stamp = (TSO + (offset << 40)).to_bytes(8, "big")
        codec.decode(Message(TOPIC, 0, offset, message.key, b"\x03" + stamp))
    assert len(codec._plans) == 1


def test_a_marker_whose_key_is_damaged_is_refused() -> None:
    codec = codec_with(**MARKING)
    message = message_of(codec, change(Op.DELETE, None, before=EVERY_VALUE))
    assert message.key is not None
    with pytest.raises(DecodeError, match="The key"):
        codec.decode(Message(TOPIC, 0, 0, message.key[:-1], MARKER))
