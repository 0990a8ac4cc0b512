"""Any bytes give events or a DecodeError: real records, cut, spliced and flipped, and JSON of any shape."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.golden.debezium_captures import Capture, find_captures
from tests.vectors import SUBSET
from tidesink.cli.json_lines import event_json
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.codecs.options import DebeziumOptions
from tidesink.errors import DecodeError, SchemaNotFoundError
from tidesink.events import Message

# Our own subset, so that a failing input is the same wherever the test runs.
CAPTURES: Final = find_captures(SUBSET)
_SETTINGS: Final = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def _messages(capture: Capture) -> tuple[Message, ...]:
    return tuple(capture.messages)


@cache
def _codec(capture: Capture) -> Codec:
    return capture.codec()


def _check(codec: Codec, message: Message) -> None:
    refused: DecodeError | SchemaNotFoundError | None = None
    try:
        events = codec.decode(message)
    except (DecodeError, SchemaNotFoundError) as error:
        refused, events = error, ()
    for event in events:
        json.dumps(event_json(event))
    if refused is not None:
        assert refused.context["topic"] == message.topic
        assert len(str(refused)) < 2000


@st.composite
def _spoiled(draw: st.DrawFn, data: bytes | None) -> bytes | None:
    if not data:
        return draw(st.none() | st.binary(max_size=40))
    kind = draw(st.sampled_from(["cut", "flip", "insert", "repeat", "none"]))
    at = draw(st.integers(0, len(data) - 1))
    if kind == "cut":
        return data[:at]
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
    if kind == "insert":
        return data[:at] + draw(st.binary(min_size=1, max_size=9)) + data[at:]
    return data + data if kind == "repeat" else data


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda one: one.name)
@_SETTINGS
@given(data=st.data())
def test_spoiled_records_never_raise_anything_else(capture: Capture, data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(_messages(capture)))
    spoiled = Message(
        message.topic,
        message.partition,
        message.offset,
        data.draw(_spoiled(message.key)),
        data.draw(_spoiled(message.value)),
        message.timestamp,
        message.headers,
    )
    _check(_codec(capture), spoiled)


_SCALARS: Final = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(
        ["mysql", "postgresql", "mongodb", "TiCDC", "c", "u", "d", "r", "t", "m", "true", "b.01"]
    )
)
_NAMES: Final = (
    st.sampled_from(["before", "after", "source", "op", "ts_ms", "schema", "payload", "ddl", "tableChanges"])
    | st.sampled_from(["status", "id", "event_count", "data_collections", "message", "prefix", "content"])
    | st.sampled_from(["connector", "db", "table", "file", "pos", "row", "lsn", "commit_ts", "snapshot"])
    | st.sampled_from(["type", "fields", "field", "optional", "name", "parameters", "default", "items"])
    | st.sampled_from(["__op", "__deleted", "__table", "__lsn"])
    | st.text(max_size=4)
)
_JSON: Final = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=7)
)


@_SETTINGS
@given(key=_JSON, value=_JSON, unwrapped=st.booleans())
@example(
    key=None,
    value={"op": "c", "source": {"connector": "mysql", "table": "t"}, "after": {"a": {}}},
    unwrapped=False,
)
def test_json_of_any_shape(key: Any, value: Any, unwrapped: bool) -> None:
    codec = open_codec("debezium-json", options=DebeziumOptions(debezium_unwrapped=unwrapped))
    _check(codec, Message("a.b.c", 0, 0, json.dumps(key).encode(), json.dumps(value).encode()))


@_SETTINGS
@given(
    op=st.sampled_from("curdt"),
    connector=st.sampled_from(["mysql", "postgresql", "mongodb", "oracle", "sqlserver", "TiCDC", "x"]),
    images=st.tuples(_JSON, _JSON),
    source=st.dictionaries(_NAMES, _SCALARS, max_size=9),
)
def test_envelopes_of_any_content(op: str, connector: str, images: tuple[Any, Any], source: Any) -> None:
    block = {**source, "connector": connector, "table": "t"}
    value = {"before": images[0], "after": images[1], "op": op, "source": block}
    _check(open_codec("debezium-json"), Message("t", 0, 0, b'{"id":1}', json.dumps(value).encode()))
