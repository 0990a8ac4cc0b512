"""A partition whose log was cut and grew again: it is noticed, and a rewind goes on behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.full import FULL
from tests.kafka_cluster import TwoBrokers, two_brokers
from tidesink.errors import SourceError
from tidesink.sinks.kafka.leader_epochs import LeaderEpochs
from tidesink.sinks.kafka.offsets import KafkaOffsets, TopicOffsets
from tidesink.sinks.state.progress import LastRecord

pytestmark = [pytest.mark.servers, FULL]
PLACE = "t"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TwoBrokers]:
    with two_brokers(tmp_path) as cluster:
        yield cluster


def write(cluster: TwoBrokers, count: int, *, acks: str = "1") -> None:
    """So many records, which the leader alone has acknowledged."""
    producer = Producer({"bootstrap.servers": cluster.brokers, "acks": acks, "log_level": 0})
    for number in range(count):
        producer.produce(PLACE, key=str(number), value=b"record")
    assert producer.flush(120) == 0


def found(cluster: TwoBrokers) -> TopicOffsets:
    return KafkaOffsets({"bootstrap.servers": cluster.brokers}).lookup([PLACE])[PLACE]


def cut_and_grown(cluster: TwoBrokers, *, before: int, lost: int, written: int) -> dict[int, LastRecord]:
    """Have the log cut by an election, and grow again; what was known at its end before."""
    cluster.make_topic(PLACE)
    cluster.await_leader(PLACE, 1, followers=2)
    write(cluster, before, acks="all")
    cluster.kill(2)
    cluster.await_leader(PLACE, 1, followers=1)
    write(cluster, lost)
    log, offsets = LeaderEpochs({"bootstrap.servers": cluster.brokers}), found(cluster)
    known = log.last(PLACE, {0: before + lost}, offsets.partitions)
    assert known[0].offset == before + lost - 1
    log.check(PLACE, known, offsets.partitions)
    cluster.kill(1)
    cluster.start(2)
    cluster.await_leader(PLACE, 2)
    write(cluster, written)
    return known


def test_an_unclean_election_is_noticed_behind_the_offsets_that_were_read(cluster: TwoBrokers) -> None:
    known = cut_and_grown(cluster, before=20, lost=5, written=30)
    properties, offsets = {"bootstrap.servers": cluster.brokers}, found(cluster)
    assert offsets.partitions[0].latest == 50
    for _ in range(2):  # a client that is used again notices it as well
        with pytest.raises(SourceError, match="From offset 20 on there are other records now") as caught:
            LeaderEpochs(properties).checked(PLACE, offsets.topic_id, known, {0: 50}, offsets.partitions)
        assert "--to-offset 0=20" in str(caught.value)
    # A record that both logs have is the one that was read, and so is the newest one.
    log = LeaderEpochs(properties)
    log.check(PLACE, {0: LastRecord(19, known[0].epoch)}, offsets.partitions)
    now = log.last(PLACE, {0: 50}, offsets.partitions)
    assert now[0].offset == 49
    assert now[0].epoch > known[0].epoch
    log.check(PLACE, now, offsets.partitions)
    # An offset that has no record any more: the leader is asked where the epoch ended.
    assert log._is_cut(PLACE, 0, known[0])
    assert not log._is_cut(PLACE, 0, LastRecord(19, known[0].epoch))
    assert not log._is_cut(PLACE, 0, now[0])
