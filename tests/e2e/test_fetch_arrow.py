"""Ranges of offsets as Arrow from a real broker: gaps, ends, sizes, and what Kafka no longer holds."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Generator, Mapping, Sequence
from itertools import zip_longest

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.servers import clean_at_once, create_topics, delete_topic, limit_messages
from tidesink.dev.stack import free_ports
from tidesink.errors import SourceError, SourceUnavailableError
from tidesink.sinks.kafka.fetch import SCHEMA, FetchLimits, FetchRange, fetch
from tidesink.sinks.kafka.offsets import KafkaOffsets

_PATIENCE = 60.0
Record = tuple[bytes | None, bytes | None]


@pytest.fixture(scope="session", autouse=True)
def _kept_classes() -> None:
    """No worker starts here, so nothing of Java is needed but the broker."""


@pytest.fixture
def topic(brokers: str, topic_prefix: str) -> str:
    create_topics(brokers, {topic_prefix: 1})
    return topic_prefix


def _produce(brokers: str, topic: str, records: Sequence[Record]) -> None:
    producer = Producer({"bootstrap.servers": brokers, "message.max.bytes": 16 << 20})
    for key, value in records:
        producer.produce(topic, value=value, key=key, partition=0)
    assert producer.flush(_PATIENCE) == 0


def _numbered(count: int) -> list[Record]:
    return [(f"k{n}".encode(), f"v{n}".encode()) for n in range(count)]


def _fetched(
    brokers: str,
    wanted: FetchRange,
    limits: FetchLimits | None = None,
    properties: Mapping[str, str] | None = None,
) -> pa.Table:
    batches = list(
        fetch(wanted, {"bootstrap.servers": brokers, **(properties or {})}, limits=limits or FetchLimits())
    )
    return pa.Table.from_batches(batches, SCHEMA)


def _offsets(table: pa.Table) -> list[int]:
    return list(table["offset"].to_pylist())


def _end(brokers: str, topic: str) -> int:
    return KafkaOffsets({"bootstrap.servers": brokers}).lookup([topic])[topic].partitions[0].latest


def test_columns_are_those_of_the_records(brokers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": brokers})
    producer.produce(topic, value=b"plain", key=b"k", timestamp=1_700_000_000_123)
    producer.produce(topic, value=None, key=b"gone", timestamp=1)
    producer.produce(topic, value=b"", key=None, timestamp=2, headers=[("h", b"\x00\xff"), ("h", None)])
    assert producer.flush(_PATIENCE) == 0
    table = _fetched(brokers, FetchRange(topic, 0, 0, 3))
    assert table.schema == SCHEMA
    assert table["topic"].to_pylist() == [topic] * 3
    assert table["partition"].to_pylist() == [0] * 3
    assert _offsets(table) == [0, 1, 2]
    assert table["timestamp"].to_pylist() == [1_700_000_000_123, 1, 2]
    for name in ("timestamp", "headers"):
        wanted = FetchRange(topic, 0, 0, 3, timestamps=name != "timestamp", headers=name != "headers")
        without = _fetched(brokers, wanted)
        assert without[name].null_count == 3
        assert without.drop_columns(name).equals(table.drop_columns(name))
    assert table["key"].to_pylist() == [b"k", b"gone", None]
    assert table["value"].to_pylist() == [b"plain", None, b""]
    assert table["headers"].to_pylist() == [
        None,
        None,
        [{"key": "h", "value": b"\x00\xff"}, {"key": "h", "value": None}],
    ]


def test_any_range_gives_its_records_in_batches_no_larger_than_the_limits(brokers: str, topic: str) -> None:
    records = _numbered(3000)
    _produce(brokers, topic, records)
    properties = {"bootstrap.servers": brokers}
    for start, end in ((0, 3000), (0, 1), (2999, 3000), (17, 1900)):
        batches = list(fetch(FetchRange(topic, 0, start, end), properties, limits=FetchLimits(records=700)))
        found = pa.Table.from_batches(batches)
        assert (
            list(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)) == records[start:end]
        )
        assert _offsets(found) == list(range(start, end))
        assert max(map(len, batches)) <= 700
    by_bytes = list(fetch(FetchRange(topic, 0, 0, 3000), properties, limits=FetchLimits(bytes=2000)))
    assert max(sum(map(len, batch["value"].to_pylist())) for batch in by_bytes) <= 2000
    assert len(by_bytes) > 5
    assert sum(map(len, by_bytes)) == 3000


def test_nulls_among_many_records_stay_where_they_are(brokers: str, topic: str) -> None:
    records = [
        *_numbered(700),
        (None, b"no key"),
        (b"gone", None),
        (b"", b""),
        *_numbered(700),
        (None, None),
    ]
    _produce(brokers, topic, records)
    found = _fetched(brokers, FetchRange(topic, 0, 0, len(records)))
    assert list(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)) == records
    assert (found["key"].null_count, found["value"].null_count) == (2, 2)
    found.validate(full=True)


def test_an_empty_range_asks_no_broker() -> None:
    assert list(fetch(FetchRange("any", 0, 7, 7), {"bootstrap.servers": "127.0.0.1:1"})) == []


def test_aborted_records_and_markers_at_the_end_of_a_range(brokers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": brokers, "transactional.id": topic})
    producer.init_transactions(_PATIENCE)
    committed = []
    for number, commit in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for part in range(3):
            producer.produce(topic, value=f"{number}-{part}".encode(), partition=0)
        assert producer.flush(_PATIENCE) == 0
        if commit:
            producer.commit_transaction(_PATIENCE)
            committed += [f"{number}-{part}".encode() for part in range(3)]
        else:
            producer.abort_transaction(_PATIENCE)
    end = _end(brokers, topic)
    assert end == 16  # four of three records and a marker each
    # Offsets: 0-2 committed, 3 marker, 4-6 aborted, 7 marker, 8-10 committed, 11 marker, and so on.
    for stop, count in ((16, 6), (13, 6), (12, 6), (11, 6), (9, 4), (8, 3), (6, 3), (4, 3), (3, 3), (2, 2)):
        found = _fetched(brokers, FetchRange(topic, 0, 0, stop))
        assert found["value"].to_pylist() == committed[:count], stop
    assert _fetched(brokers, FetchRange(topic, 0, 11, 16)).num_rows == 0
    assert _fetched(brokers, FetchRange(topic, 0, 4, 7)).num_rows == 0


def test_compaction_gap_at_the_end_of_a_range(brokers: str, topic_prefix: str) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
        "min.compaction.lag.ms": "0",
    }
    admin.create_topics([NewTopic(topic_prefix, 1, 1, config=config)])[topic_prefix].result(_PATIENCE)
    clean_at_once(brokers)
    _produce(brokers, topic_prefix, [(b"first", b"stays")] + [(b"k", str(n).encode()) for n in range(9)])
    deadline = time.monotonic() + _PATIENCE
    found: list[int] = []
    while found[:2] != [0, 9]:
        assert time.monotonic() < deadline, "the log was not compacted"
        time.sleep(0.3)
        _produce(brokers, topic_prefix, [(str(time.time()).encode(), b"rolls the segment")])
        found = _offsets(_fetched(brokers, FetchRange(topic_prefix, 0, 0, _end(brokers, topic_prefix))))
    assert _offsets(_fetched(brokers, FetchRange(topic_prefix, 0, 0, 9))) == [0]
    assert _offsets(_fetched(brokers, FetchRange(topic_prefix, 0, 3, 9))) == []
    assert _offsets(_fetched(brokers, FetchRange(topic_prefix, 0, 3, 10))) == [9]


def test_large_messages_among_small_ones(brokers: str, topic: str) -> None:
    limit_messages(brokers, topic, 16 << 20)
    large = bytes(range(256)) * (5 << 12)  # 5 MiB: more than one fetch asks for
    records: list[Record] = [*_numbered(300), (b"large", large), (b"large", large), *_numbered(300)]
    _produce(brokers, topic, records)
    batches = list(
        fetch(
            FetchRange(topic, 0, 0, 602),
            {"bootstrap.servers": brokers},
            limits=FetchLimits(bytes=6 << 20),
        )
    )
    found = pa.Table.from_batches(batches)
    assert found["value"].to_pylist() == [value for _, value in records]
    assert max(batch["value"].nbytes for batch in batches) <= 6 << 20


def test_expired_offsets_are_an_error_that_says_where_the_partition_begins(brokers: str, topic: str) -> None:
    _produce(brokers, topic, _numbered(10))
    admin = AdminClient({"bootstrap.servers": brokers})
    for future in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        future.result(_PATIENCE)
    with pytest.raises(SourceError, match="the partition begins at 6") as caught:
        _fetched(brokers, FetchRange(topic, 0, 2, 10))
    assert caught.value.context == {"topic": topic, "partition": 0, "offset": 2}
    assert not isinstance(caught.value, SourceUnavailableError)
    assert _offsets(_fetched(brokers, FetchRange(topic, 0, 6, 10))) == [6, 7, 8, 9]


def test_a_topic_created_again(brokers: str, topic: str) -> None:
    _produce(brokers, topic, _numbered(10))
    asked = KafkaOffsets({"bootstrap.servers": brokers})
    old = asked.lookup([topic])[topic].topic_id
    assert _fetched(brokers, FetchRange(topic, 0, 0, 10, old)).num_rows == 10
    delete_topic(brokers, topic)
    create_topics(brokers, {topic: 1})
    _produce(brokers, topic, [(b"other", b"other")] * 5)
    # From an offset that the new topic has not, and up to one that it has not.
    with pytest.raises(SourceError, match="the partition ends at 5"):
        _fetched(brokers, FetchRange(topic, 0, 7, 10))
    with pytest.raises(SourceError, match="The partition ends at offset 5"):
        _fetched(brokers, FetchRange(topic, 0, 0, 10), FetchLimits(refusal=2))
    # Where the new topic holds as many records, its id alone tells.
    with pytest.raises(SourceError, match="deleted and recreated"):
        _fetched(brokers, FetchRange(topic, 0, 0, 5, old))
    new = asked.lookup([topic])[topic].topic_id
    assert _fetched(brokers, FetchRange(topic, 0, 0, 5, new))["value"].to_pylist() == [b"other"] * 5


def test_silent_brokers_and_absent_topics_are_to_be_tried_again(brokers: str, topic_prefix: str) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(SourceUnavailableError, match="Kafka did not answer for 1 seconds"):
        _fetched(nobody, FetchRange("any", 0, 0, 1), FetchLimits(silence=1))
    with pytest.raises(SourceUnavailableError, match="does not have this partition") as caught:
        _fetched(
            brokers,
            FetchRange(topic_prefix, 0, 0, 1),
            properties={"topic.metadata.propagation.max.ms": "500"},
        )
    assert caught.value.context["topic"] == topic_prefix


def test_reads_that_are_left_or_run_side_by_side_do_not_disturb_each_other(brokers: str, topic: str) -> None:
    records = _numbered(2000)
    _produce(brokers, topic, records)
    properties, limits = {"bootstrap.servers": brokers}, FetchLimits(records=100)

    def values(start: int, end: int) -> Generator[bytes, None, None]:
        for batch in fetch(FetchRange(topic, 0, start, end), properties, limits=limits):
            yield from batch["value"].to_pylist()

    left = values(0, 2000)
    assert next(left) == b"v0"
    left.close()
    pairs = list(zip_longest(values(500, 1500), values(0, 1000)))
    assert pairs == [(f"v{n + 500}".encode(), f"v{n}".encode()) for n in range(1000)]


def _read_in_child(brokers: str, topic: str) -> None:
    assert _offsets(_fetched(brokers, FetchRange(topic, 0, 0, 10))) == list(range(10))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_process_reads_with_a_consumer_of_its_own(brokers: str, topic: str) -> None:
    _produce(brokers, topic, _numbered(10))
    _read_in_child(brokers, topic)  # leaves a consumer in this process
    child = multiprocessing.get_context("fork").Process(target=_read_in_child, args=(brokers, topic))
    child.start()
    child.join(_PATIENCE)
    assert child.exitcode == 0
    _read_in_child(brokers, topic)
