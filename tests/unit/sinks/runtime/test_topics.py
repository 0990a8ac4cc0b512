"""What the tables of a topic share: one client asks the brokers for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tests.worker_contexts import no_fetch
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.offsets import KafkaOffsets, PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.shared_reads import Topics

FOUND = TopicOffsets("t", "one", {0: PartitionOffsets(0, 3)})


class _Brokers(KafkaOffsets):
    """Brokers with one topic; ``made`` are the clients that asked them."""

    made: list[Mapping[str, str]] = []  # noqa: RUF012  emptied by each test
    holds: dict[str, TopicOffsets] = {}  # noqa: RUF012

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.made.append(properties)

    def lookup(self, topics: Sequence[str]) -> dict[str, TopicOffsets]:
        return {name: at for name, at in self.holds.items() if name in topics}


def _topics() -> Topics:
    _Brokers.made.clear()
    return Topics(
        "p",
        KafkaSource(no_fetch),
        cast("Any", None),
        ask=lambda: cast("Any", _Brokers({"bootstrap.servers": "k:1"})),
    )


def test_one_client_asks_where_topics_end_for_every_batch_of_every_table() -> None:
    topics = _topics()
    assert _Brokers.made == [], "a topic that nobody asks for needs none"
    later = FOUND._replace(partitions={0: PartitionOffsets(0, 9)})
    _Brokers.holds = {"t": later}
    assert [topics.ends_now(FOUND) for _ in range(5)] == [later] * 5
    assert _Brokers.made == [{"bootstrap.servers": "k:1"}]


def test_a_topic_that_is_gone_or_made_again_ends_where_it_was_found() -> None:
    topics = _topics()
    _Brokers.holds = {}
    assert topics.ends_now(FOUND) == FOUND
    _Brokers.holds = {"t": FOUND._replace(topic_id="two")}
    assert topics.ends_now(FOUND) == FOUND
