"""Any bytes at all: events, or a DecodeError, soon and in little room."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.full import TEST_ALL
from tests.properties.canal_changes import SCHEMA, TABLE, harmed
from tests.unit.codecs.canal_json.messages import message_of
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.compression import Compression, compressed
from tidesink.codecs.large_messages import LargeMessages, open_claim_check
from tidesink.codecs.options import CanalJsonOptions
from tidesink.codecs.upstream import Texts, UpstreamRow
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError
from tidesink.events import TableId

MANY: Final = settings(
    max_examples=1500 if TEST_ALL else 400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MOST_SECONDS: Final = 2.0
KINDS: Final[tuple[Compression, ...]] = ("none", "lz4", "snappy")
_SCALARS: Final = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=9)
_JSON: Final = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_MEMBERS: Final = (
    "database", "table", "pkNames", "isDdl", "type", "es", "sql", "mysqlType", "old", "data", "_tidb",
)  # fmt: skip
_EXTENSION: Final = ("commitTs", "watermarkTs", "onlyHandleKey", "claimCheckLocation", "rowkey")
_KIND: Final = st.sampled_from(["INSERT", "UPDATE", "DELETE", "QUERY", "TIDB_WATERMARK"])
_MESSAGE: Final = st.fixed_dictionaries(
    {"type": _KIND},
    optional={
        **{name: _JSON for name in _MEMBERS if name != "type"},
        "_tidb": _JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(_EXTENSION, _JSON)),
    },
)


class AnyRow:
    """An upstream that has every row, with the key's own columns."""

    def row(self, table: TableId, key: Texts, *, commit_ts: int) -> UpstreamRow:
        """A row of the key's texts."""
        assert table.name
        assert commit_ts >= 0
        return UpstreamRow(
            dict(key), {column.name: column.type for column in SCHEMA.columns if column.name in key}
        )


@pytest.fixture
def codec(tmp_path: Path) -> CanalJsonCodec:
    """A codec that has storage, upstream, and a definition of the table."""
    large = LargeMessages(CanalJsonOptions(), claims=open_claim_check(str(tmp_path)), upstream=AnyRow())
    return CanalJsonCodec(definitions=TableDefinitions([SCHEMA]), keys={TABLE: ["id"]}, large=large)


def _is_decoded_or_refused(codec: CanalJsonCodec, value: bytes) -> None:
    refused: DecodeError | None = None
    started = thread_time()  # of this thread's own work: what else the machine does is not counted
    try:
        codec.decode(message_of(value))
    except DecodeError as error:
        refused = error
    assert thread_time() - started < MOST_SECONDS
    assert refused is None or (refused.context["offset"] == 17 and len(str(refused)) < 2000)


@MANY
@given(value=st.binary(max_size=300) | st.binary(max_size=60).map(lambda rest: b"\x04\x22\x4d\x18" + rest))
def test_any_bytes(codec: CanalJsonCodec, value: bytes) -> None:
    _is_decoded_or_refused(codec, value)


@pytest.mark.slow
@MANY
@given(message=_MESSAGE, kind=st.sampled_from(KINDS))
def test_any_json_in_the_members_places(codec: CanalJsonCodec, message: Any, kind: Compression) -> None:
    text = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    _is_decoded_or_refused(codec, compressed(text, kind))


@MANY
@given(start=st.integers(0, 2**32), kind=st.sampled_from(KINDS), cut=st.integers(0, 2**16))
def test_damaged_changes(codec: CanalJsonCodec, start: int, kind: Compression, cut: int) -> None:
    value = compressed(harmed(Random(start)), kind)
    _is_decoded_or_refused(codec, value[: cut % (len(value) + 1)] if cut % 3 == 0 else value)


@pytest.mark.parametrize("nested", [b"[" * 500_000, b'{"a":' * 200_000, b'{"data":[' * 100_000])
@pytest.mark.parametrize("kind", KINDS)
def test_depth_is_bounded(codec: CanalJsonCodec, nested: bytes, kind: Compression) -> None:
    with pytest.raises(DecodeError):
        codec.decode(message_of(compressed(b'{"x":' + nested, kind)))
