"""Checkpoints are read from a real broker as Kafka Connect writes them, and ends as they are there."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.servers import create_topics
from tidesink.errors import SourceError
from tidesink.sinks.cuts.bounds import read_checkpoint
from tidesink.sinks.cuts.checkpoints import Checkpoint, ConnectorCheckpoints

pytestmark = pytest.mark.servers


class _Bed:
    def __init__(self, brokers: str) -> None:
        self.settings = {"bootstrap.servers": brokers}
        self.topic, self.rows = f"offsets-{uuid.uuid4().hex[:8]}", f"rows-{uuid.uuid4().hex[:8]}"
        create_topics(brokers, {self.topic: 5, self.rows: 2})
        self.reader = self.of(self.topic)
        self.producer = Producer(self.settings)

    def of(self, topic: str, **more: str) -> ConnectorCheckpoints:
        return ConnectorCheckpoints(lambda: {**self.settings, **more}, topic, "bank", read_checkpoint)

    def commit(self, value: Any, key: Any = ("bank", {"server": "bank"})) -> None:
        data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
        self.producer.produce(self.topic, key=json.dumps(key).encode(), value=data)
        assert self.producer.flush(60) == 0


@pytest.fixture
def bed(brokers: str) -> Iterator[_Bed]:
    found = _Bed(brokers)
    yield found
    found.reader.close()


def _at(pos: int, **more: Any) -> dict[str, Any]:
    return {"ts_sec": 5, "file": "binlog.000002", "pos": pos, **more}


def _checkpoint(pos: int) -> Checkpoint:
    return Checkpoint(2 << 32 | pos, 5.0)


def _comes(reader: ConnectorCheckpoints, position: int | None, reason: str = "") -> None:
    """Look until it is there: a look does not wait for what just came."""
    expected = None if position is None else _checkpoint(position)
    deadline = time.monotonic() + 60
    while (reader.newest, reader.reason) != (expected, reason):
        assert time.monotonic() < deadline, (reader.newest, reader.reason)
        time.sleep(0.05)
        reader.look()


def _look_to_the_end(reader: ConnectorCheckpoints) -> None:
    """Look until the topic is read to its end: on a busy machine, one look can end before that."""
    deadline = time.monotonic() + 60
    while True:
        reader.look()
        if "is not read to its end yet" not in reader.reason:
            return
        assert time.monotonic() < deadline, reader.reason


def test_the_newest_offset_of_the_connector_is_read(bed: _Bed) -> None:
    _look_to_the_end(bed.reader)
    none = (
        f"Topic {bed.topic} has no offset of connector bank yet. Check that source.debezium.connector-name "
    )
    assert (bed.reader.newest, bed.reader.reason) == (None, f"{none}is its name in Kafka Connect.")
    bed.commit(_at(4))
    bed.commit(_at(90), key=("other", {"server": "bank"}))
    bed.commit(b"no json", key="bank")
    _comes(bed.reader, 4)
    bed.commit(_at(7, ts_sec=0))
    while (at := bed.reader.newest) == _checkpoint(4):
        bed.reader.look()
    assert at is not None
    assert at.time == pytest.approx(time.time(), abs=600)
    bed.commit(_at(8))
    _comes(bed.reader, 8)
    # One that begins reads all that is there.
    another = bed.of(bed.topic)
    _look_to_the_end(another)
    assert another.newest == _checkpoint(8)
    another.close()
    bed.commit(_at(9, snapshot="INITIAL"))
    loads = "The Debezium connector's snapshot has not finished. Cuts are published once it has."
    _comes(bed.reader, None, loads)
    bed.commit(None)
    _comes(bed.reader, None, "The connector's offset was removed.")


def test_an_offset_in_an_open_transaction_is_none_yet_and_its_rows_are_before_the_ends(bed: _Bed) -> None:
    bed.commit(_at(4))
    _comes(bed.reader, 4)
    writer = Producer({**bed.settings, "transactional.id": bed.topic})
    writer.init_transactions(60)
    writer.begin_transaction()
    key = json.dumps(("bank", {"server": "bank"})).encode()
    writer.produce(bed.rows, b"row", partition=1)
    writer.produce(bed.topic, key=key, value=json.dumps(_at(9)).encode())
    assert writer.flush(60) == 0
    another = bed.of(bed.topic)
    _look_to_the_end(another)
    assert another.newest == _checkpoint(4)
    another.close()
    assert bed.reader.ends({bed.rows: [0, 1]}) == {bed.rows: {0: 0, 1: 1}}
    writer.commit_transaction(60)
    _comes(bed.reader, 9)


def test_what_is_no_topic_of_offsets_is_said(bed: _Bed) -> None:
    with pytest.raises(SourceError, match="not have topic none-such, which"):
        bed.of("none-such").look()
    bed.commit(_at(4))
    bed.commit(_at(4), key=("bank", {"server": "bank", "database": "b"}))
    another = bed.of(bed.topic)
    for _ in range(2):
        with pytest.raises(SourceError, match="offsets of several sources"):
            _look_to_the_end(another)
    assert another.newest is None
    another.close()


def test_the_offset_of_a_former_prefix_counts_until_it_is_removed(bed: _Bed) -> None:
    bed.commit(_at(90), key=("bank", {"server": "former"}))
    bed.commit(_at(4))
    another = bed.of(bed.topic)
    with pytest.raises(SourceError, match="offsets of several sources"):
        another.look()
    bed.commit(None, key=("bank", {"server": "former"}))
    deadline = time.monotonic() + 60
    while another.newest != _checkpoint(4) and time.monotonic() < deadline:
        with suppress(SourceError):
            another.look()
    assert (another.newest, another.reason) == (_checkpoint(4), "")
    another.close()


def test_a_topic_that_is_read_in_part_has_no_checkpoint(bed: _Bed) -> None:
    """The connector may have been set back behind what is read."""
    for pos in (90, 4, 5):
        bed.commit(_at(pos, gtids="x" * 2000))
    # One record for each fetch, seconds apart.
    slow = {"queued.min.messages": "1", "fetch.queue.backoff.ms": "3000", "max.partition.fetch.bytes": "1000"}
    another = bed.of(bed.topic, **slow, **{"fetch.max.bytes": "1000", "message.max.bytes": "1000"})
    seen = set()
    deadline = time.monotonic() + 60
    while another.newest is None and time.monotonic() < deadline:
        another.look()
        seen.add(another.reason.partition(" (")[0])
    assert (another.newest, another.reason) == (_checkpoint(5), "")
    # How many looks it takes is the client's matter; none of them took an offset before the last one.
    assert seen <= {f"Topic {bed.topic} is not read to its end yet", ""}
    another.close()
