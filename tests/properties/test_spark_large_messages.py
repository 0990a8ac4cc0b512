"""Large canal-json messages: compressed, in claim-check files, cut down; Spark says what Python says."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.full import FULL
from tests.properties.canal_changes import decoded_in_spark, difference, harmed, row_change
from tidesink.codecs.compression import Compression, compressed
from tidesink.codecs.options import CanalJsonOptions
from tidesink.events import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = FULL

Make = Callable[[Random, Path], bytes]


def _compressed(random: Random, _claims: Path) -> bytes:
    value = compressed(harmed(random), random.choice(_KINDS))
    match random.randrange(8):
        case 0:
            return value[: random.randrange(len(value))]
        case 1:
            at = random.randrange(len(value))
            return value[:at] + bytes([random.randrange(256)]) + value[at + 1 :]
        case 2:
            return compressed(value, random.choice(_KINDS))
        case _:
            return value


_KINDS: Final[tuple[Compression, ...]] = ("lz4", "snappy")


def _cut_down(random: Random, claims: Path) -> bytes:
    """A change with its key alone, and a file of it, each a little other than it should be at times."""
    whole = row_change(random)
    name = f"{uuid.UUID(int=random.getrandbits(128), version=4)}.json"
    _write(claims / name, whole, random)
    key = [{"id": whole["data"][0]["id"]}]
    place = random.choice((f"file://{claims}", f"file://{claims}", "file:///elsewhere", "/etc/..", "s3://b"))
    members: dict[str, Any] = {"claimCheckLocation": f"{place}/{name}"}
    if random.random() < 0.3:
        members = {"onlyHandleKey": random.choice((True, True, True, 1, "x"))}
    cut = {
        **whole, "data": key, "old": None if whole["old"] is None else random.choice((key, [{}])),
        "mysqlType": {"id": "int"}, "sqlType": {"id": 4}, "_tidb": {**whole["_tidb"], **members},
    }  # fmt: skip
    value = json.dumps(cut, separators=(",", ":")).encode()
    return compressed(value, random.choice(("none", *_KINDS)))


def _write(path: Path, whole: dict[str, Any], random: Random) -> None:
    if random.random() < 0.1:
        return
    if random.random() < 0.1:
        whole = {**whole, "table": "other"}
    text = json.dumps(whole, ensure_ascii=False).encode()
    value = compressed(text, random.choice(("none", *_KINDS)))
    raw = random.random() < 0.5
    path.write_bytes(
        value if raw else json.dumps({"key": None, "value": base64.b64encode(value).decode()}).encode()
    )


# One example is two Spark jobs over many messages: shrinking would run hundreds of them.
@settings(
    max_examples=1,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(start=st.integers(0, 1_000_000))
@pytest.mark.parametrize("make", [_compressed, _cut_down])
def test_spark_gives_the_python_codecs_verdict(
    spark: SparkSession, tmp_path: Path, make: Make, start: int
) -> None:
    random = Random(start)
    messages = [Message("t", 0, offset, None, make(random, tmp_path)) for offset in range(400)]
    options = CanalJsonOptions(large_message_handle_compression="lz4", claim_check_storage_uri=str(tmp_path))
    found = decoded_in_spark(messages, spark, options)
    wrong = [
        f"{reported}: {message.value!r}"
        for message in messages
        for reported in [difference(message, found[message.offset], options)]
        if reported is not None
    ]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])
    kinds = [row.kind for rows in found.values() for row in rows]
    assert min(kinds.count(kind) for kind in ("upsert", "delete", "bad")) > 20


def test_what_a_plan_was_not_told_to_open_is_refused_with_the_setting(spark: SparkSession) -> None:
    value = compressed(json.dumps(row_change(Random(1))).encode(), "lz4")
    ((row,),) = decoded_in_spark([Message("t", 0, 0, None, value)], spark).values()
    assert (row.kind, row.error) == ("bad", "FramingError")
    assert row.reason is not None
    assert "Set source.large-message-handle-compression" in row.reason
