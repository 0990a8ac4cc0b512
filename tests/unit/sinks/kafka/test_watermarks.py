"""Which topics have nothing but watermarks for their tables, and when those are read all the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.codecs.canal_json.messages import row_bytes
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.options import FlatAvroOptions
from tidesink.events import Message, Position, WatermarkEvent
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.kafka.watermarks import UNSEEN_SECONDS, Standing, WatermarkFollower, watermark_reader

WATERMARK, ROW, LOST = b"watermark", b"row", None


class _Record:
    """One record as confluent-kafka gives it; a value of None is an error in its place."""

    def __init__(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        self._place, self._value = (topic, partition, offset), value

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._place[2]

    def value(self) -> bytes | None:
        return self._value

    def key(self) -> None:
        return None

    def headers(self) -> None:
        return None

    def error(self) -> str | None:
        return None if self._value is not None else "CRC"


class _Broker:
    """Partitions, and the one consumer that reads them; ``silent`` ones give nothing."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], list[bytes | None]] = {}
        self.at: dict[tuple[str, int], int] = {}
        self.silent: set[str] = set()
        self.assigned: list[tuple[str, int, int]] = []
        self.now = 0.0

    def found(self, topic: str, topic_id: str = "id", epoch: int = 0) -> TopicOffsets:
        ends = {n: PartitionOffsets(0, len(log)) for (name, n), log in self.logs.items() if name == topic}
        return TopicOffsets(topic, topic_id, ends, leader_epochs=dict.fromkeys(ends, epoch))

    def incremental_assign(self, places: list[Any]) -> None:
        assert not [one for one in places if (one.topic, one.partition) in self.at]
        self.at.update(((one.topic, one.partition), one.offset) for one in places)
        self.assigned += [(one.topic, one.partition, one.offset) for one in places]

    def incremental_unassign(self, places: list[Any]) -> None:
        for one in places:
            del self.at[one.topic, one.partition]

    def consume(self, _count: int, timeout: float) -> list[_Record]:
        self.now += timeout
        given = []
        for place, at in self.at.items():
            if place[0] not in self.silent:
                log = self.logs[place]
                given += [_Record(*place, offset, log[offset]) for offset in range(at, len(log))]
                self.at[place] = max(at, len(log))
        return given

    def close(self) -> None:
        self.at = {}


@pytest.fixture
def broker() -> _Broker:
    return _Broker()


def _follower(broker: _Broker, *, ends: bool = False) -> WatermarkFollower:
    return WatermarkFollower(
        dict,
        lambda message: 7 if message.value == WATERMARK else None,
        ends=ends,
        clock=lambda: broker.now,
        open_client=lambda *_: broker,
    )


def _standing(broker: _Broker, topic: str, starts: Mapping[int, int]) -> dict[str, Standing]:
    return {topic: Standing(broker.found(topic), starts)}


def test_a_topic_is_alone_until_another_record_comes(broker: _Broker) -> None:
    broker.logs = {("t", 0): [ROW, WATERMARK], ("t", 1): [WATERMARK]}
    follower = _follower(broker)
    assert follower.look(_standing(broker, "t", {0: 1, 1: 1})) == {"t"}
    broker.logs["t", 1] += [WATERMARK, ROW]
    assert follower.look(_standing(broker, "t", {0: 1, 1: 1})) == frozenset()
    # Nothing is read behind it until the tables are.
    assert broker.at == {}
    assert follower.look(_standing(broker, "t", {0: 1, 1: 2})) == frozenset()
    assert broker.assigned == [("t", 0, 1), ("t", 1, 1)]
    broker.logs["t", 0].append(WATERMARK)
    assert follower.look(_standing(broker, "t", {0: 2, 1: 3})) == {"t"}
    assert broker.assigned[2:] == [("t", 0, 2), ("t", 1, 3)]


def test_what_is_known_holds_when_tables_come_after_and_not_when_they_go_back(broker: _Broker) -> None:
    broker.logs = {("t", 0): [ROW, *[WATERMARK] * 5]}
    follower = _follower(broker)
    assert follower.look(_standing(broker, "t", {0: 2})) == {"t"}
    assert follower.look(_standing(broker, "t", {0: 6})) == {"t"}
    assert broker.assigned == [("t", 0, 2)]
    assert follower.look(_standing(broker, "t", {0: 0})) == frozenset()
    made_again = Standing(broker.found("t", "another id"), {0: 1})
    assert follower.look({"t": made_again}) == {"t"}
    assert follower.look({}) == frozenset()
    assert broker.at == {}


def test_what_is_known_does_not_hold_under_a_new_leader(broker: _Broker) -> None:
    """Its log may have been cut, and have rows now where there were watermarks."""
    broker.logs = {("t", 0): [ROW, *[WATERMARK] * 5]}
    follower = _follower(broker)
    assert follower.look(_standing(broker, "t", {0: 1})) == {"t"}
    broker.logs["t", 0][3] = ROW
    assert follower.look(_standing(broker, "t", {0: 1})) == {"t"}
    assert follower.look({"t": Standing(broker.found("t", epoch=1), {0: 1})}) == frozenset()


def test_records_that_do_not_come_are_left_to_a_batch(broker: _Broker) -> None:
    """So are offsets without a record, as a transaction leaves them."""
    broker.logs = {("t", 0): [WATERMARK], ("u", 0): [WATERMARK]}
    broker.silent = {"t"}
    follower = _follower(broker)
    both = {**_standing(broker, "t", {0: 0}), **_standing(broker, "u", {0: 0})}
    assert follower.look(both) == {"t", "u"}
    broker.now += UNSEEN_SECONDS
    assert follower.look(both) == {"u"}
    read = {**_standing(broker, "t", {0: 1}), **_standing(broker, "u", {0: 0})}
    assert follower.look(read) == {"t", "u"}


def test_a_record_that_has_just_come_does_not_count_for_those_before_it(broker: _Broker) -> None:
    """On a slow machine some record is always under way."""
    broker.logs = {("t", 0): [WATERMARK]}
    follower = _follower(broker)
    for _ in range(5):
        # The ends say one more than the consumer was given.
        ends = {0: PartitionOffsets(0, len(broker.logs["t", 0]) + 1)}
        assert follower.look({"t": Standing(TopicOffsets("t", "id", ends), {0: 0})}) == {"t"}
        broker.now += 0.6 * UNSEEN_SECONDS
        broker.logs["t", 0].append(WATERMARK)


def test_a_run_that_ends_takes_an_unseen_record_for_a_row(broker: _Broker) -> None:
    broker.logs, broker.silent = {("t", 0): [WATERMARK]}, {"t"}
    follower = _follower(broker, ends=True)
    assert follower.look(_standing(broker, "t", {0: 0})) == frozenset()
    broker.silent = set()
    assert follower.look(_standing(broker, "t", {0: 0})) == {"t"}


def test_a_record_that_cannot_be_read_is_left_to_a_batch(broker: _Broker) -> None:
    broker.logs = {("t", 0): [WATERMARK, LOST, WATERMARK]}
    follower = _follower(broker)
    assert follower.look(_standing(broker, "t", {0: 0})) == frozenset()
    assert follower.look(_standing(broker, "t", {0: 2})) == {"t"}


def _message(value: bytes | None, key: bytes | None = None) -> Message:
    return Message("app", 0, 7, key, value)


@pytest.mark.parametrize(
    ("config", "protocol", "options"),
    [
        (CANAL_JSON, "canal-json", CodecOptions(enable_tidb_extension=True)),
        (FLAT_AVRO, "flat-avro", FlatAvroOptions(enable_tidb_extension=True, avro_enable_watermark=True)),
    ],
)
def test_a_watermark_is_told_from_other_records(
    config: dict[str, Any], protocol: str, options: CodecOptions
) -> None:
    """No registry is asked for it."""
    codec = open_codec(protocol, options=options, registry=MemorySchemaRegistry())
    sent = codec.encode(WatermarkEvent(449, Position("app", 0, 0)), topic="app")
    assert sent is not None
    watermark_of = watermark_reader(right(changed(config, source__enable_tidb_extension=True)).source, None)
    assert watermark_of(_message(sent.value)) == 449
    row, framed = row_bytes({"id": "1"}), b"\x00\x00\x00\x00\x07\x02"
    others = (row, framed, b"{", b"", None)
    assert [watermark_of(_message(value, b"key")) for value in others] == [None] * len(others)
