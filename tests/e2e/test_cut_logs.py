"""A partition whose log was cut and grew again: it is noticed, and a rewind goes on behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.full import FULL
from tests.kafka_cluster import TwoBrokers, two_brokers
from tidesink.errors import BrokerUnavailableError
from tidesink.sinks.kafka.fetch import FetchRange, fetch, last_record
from tidesink.sinks.kafka.leader_epochs import CheckedLogs, LeaderEpochs, _Look, follows
from tidesink.sinks.kafka.offsets import KafkaOffsets, PartitionOffsets, TopicOffsets
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


def fetched(cluster: TwoBrokers, start: int, end: int) -> LastRecord:
    """The last record of a range, as the fetch of a batch brings it."""
    batches = [*fetch(FetchRange(PLACE, 0, start, end), {"bootstrap.servers": cluster.brokers})]
    record = last_record(batches[-1])
    assert record is not None
    return record


def ended(cluster: TwoBrokers, record: LastRecord) -> set[int]:
    """Whether the leader says that the epoch of a record ends before it."""
    look = _Look({"bootstrap.servers": cluster.brokers}, PLACE, lambda: False, 60.0)
    try:
        return look.ended({0: record})
    finally:
        look.close()


def test_an_unclean_election_is_noticed_behind_the_offsets_that_were_read(cluster: TwoBrokers) -> None:
    """Broker 2 leads without the records that broker 1 alone had, and gets others at their offsets."""
    properties: dict[str, Any] = {"bootstrap.servers": cluster.brokers}
    cluster.make_topic("u", replicas=[[2], [1]])
    cluster.make_topic(PLACE)
    cluster.await_leader(PLACE, 1, followers=2)
    write(cluster, 20, acks="all")
    cluster.kill(2)
    cluster.await_leader(PLACE, 1, followers=1)
    write(cluster, 5)
    before, known = found(cluster), {0: fetched(cluster, 0, 25)}
    assert known == LeaderEpochs(properties).last(before, {0: 25})
    assert known[0].offset == 24
    # The leader that wrote the record leads, so that nothing is looked up.
    assert before.leader_epochs == {0: known[0].epoch}
    nobody = LeaderEpochs({"bootstrap.servers": "127.0.0.1:1"}, is_stopped=lambda: True)
    logs = CheckedLogs(nobody)
    assert logs.cuts(before, known) == {}

    cluster.kill(1)
    cluster.start(2)
    cluster.await_leader(PLACE, 2)
    # The new leader's epoch is known before anything is written under it.
    cut = found(cluster)
    elected = cut.leader_epochs[0]
    assert (cut.partitions[0].latest, elected > known[0].epoch) == (20, True)
    # Nobody has written since: the record is looked up once the log has grown.
    assert logs.cuts(cut, known) == {}
    write(cluster, 30)
    offsets = found(cluster)
    assert (offsets.partitions[0].latest, offsets.leader_epochs) == (50, {0: elected})
    with pytest.raises(BrokerUnavailableError):
        logs.cuts(offsets, known)
    log = LeaderEpochs(properties)
    for _ in range(2):  # what was found once is found again
        assert CheckedLogs(log).cuts(offsets, known) == {0: 20}
    # A record that both logs have is the one that was read, and so is the newest one.
    assert log.cuts(offsets, {0: LastRecord(19, known[0].epoch)}) == {}
    now = {0: fetched(cluster, 20, 50)}
    # Read with a look from before the election they would not count.
    assert not follows(before, known, now)
    assert follows(offsets, {0: LastRecord(19, known[0].epoch)}, now)
    assert now == {0: LastRecord(49, elected)} == log.last(offsets, {0: 50})
    assert log.cuts(offsets, now) == {}
    # An offset that has no record any more: the leader is asked where the epoch ended.
    assert ended(cluster, known[0]) == {0}
    assert ended(cluster, LastRecord(19, known[0].epoch)) == set()
    assert ended(cluster, now[0]) == set()
    # What has expired since the ends were asked for is not taken for cut off.
    admin = AdminClient({**properties, "log_level": 0})
    place = TopicPartition(PLACE, 0, 40)
    admin.delete_records([place])[place].result()
    assert log.cuts(offsets, {0: LastRecord(25, elected)}) == {}
    # A partition whose leader is down, beside one that answers.
    producer = Producer({**properties, "log_level": 0})
    for _ in range(5):
        producer.produce("u", value=b"record", partition=0)
    assert producer.flush(120) == 0
    both = {0: PartitionOffsets(0, 5), 1: PartitionOffsets(0, 5)}
    silent = TopicOffsets("u", "id", both, leader_epochs={0: 9, 1: 9})
    with pytest.raises(BrokerUnavailableError, match="The partition's leader did not answer") as caught:
        LeaderEpochs(properties, seconds=5.0).cuts(silent, {0: LastRecord(0, 0), 1: LastRecord(0, 0)})
    assert caught.value.context["partition"] == 1
