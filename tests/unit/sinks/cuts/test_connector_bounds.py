"""What a connector's offsets say, and which bound comes next by them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import pytest
from confluent_kafka import KafkaError, Message

from tests.unit.sinks.kafka.scripted_consumer import TOPIC, ScriptedConsumer, end, failure, record
from tidesink.cli.status import cut_lines
from tidesink.errors import BrokerUnavailableError, ConfigError, SourceError
from tidesink.events import TableId
from tidesink.sinks.cuts.bounds import ConnectorBounds, is_empty, read_checkpoint
from tidesink.sinks.cuts.checkpoints import Checkpoint, ConnectorCheckpoints
from tidesink.sinks.cuts.publishing import CutStatus
from tidesink.sinks.kafka.offsets import Look, PartitionOffsets, TopicOffsets, limited
from tidesink.sinks.state.progress import PartitionProgress, Progress, TopicProgress
from tidesink.sinks.worker.open_table import check_bounded

# As Debezium 3.5.0.Final wrote them.
_MARIADB: Final = {"ts_sec": 1795758780, "file": "binlog.000001", "pos": 21958, "gtids": "0-1-45"}
_POSTGRES: Final = {
    "lsn_proc": 26377080,
    "messageType": "UPDATE",
    "lsn_commit": 26377000,
    "lsn": 26377080,
    "txId": 750,
    "ts_usec": 1795758776210682,
}


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        # Within a transaction the position is where that begins.
        ({**_MARIADB, "row": 1, "server_id": 1, "event": 4}, Checkpoint(1 << 32 | 21958, 1795758780.0)),
        ({**_MARIADB, "server_id": 1}, Checkpoint(1 << 32 | 21958, 1795758780.0)),
        ({**_MARIADB, "ts_sec": None}, Checkpoint(1 << 32 | 21958, 0.0)),
        (_POSTGRES, Checkpoint(26377000, 1795758776.210682)),
        ({**_POSTGRES, "incremental_snapshot_collections": None}, Checkpoint(26377000, 1795758776.210682)),
    ],
)
def test_an_offset_is_a_checkpoint(offset: dict[str, Any], found: Checkpoint) -> None:
    assert read_checkpoint(offset) == found


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        ({**_MARIADB, "snapshot": "INITIAL"}, "snapshot has not finished"),
        ({**_POSTGRES, "snapshot": True, "last_snapshot_record": True}, "snapshot has not finished"),
        ({**_POSTGRES, "incremental_snapshot_collections": "[]"}, "snapshot has not finished"),
        ({**_MARIADB, "file": "binlog"}, "no position"),
        ({"lsn": 26377080, "txId": 750, "ts_usec": 1}, "no position"),
        ({"scn": "12345", "commit_scn": "12346"}, "no position"),
    ],
)
def test_an_offset_that_is_none_says_why(offset: dict[str, Any], reason: str) -> None:
    found = read_checkpoint(offset)
    assert isinstance(found, str)
    assert reason in found


def _stored(offset: int, position: int, partition: int = 0) -> Message:
    """A record of Kafka Connect's offsets topic."""
    value = json.dumps({**_MARIADB, "pos": position}).encode()
    return record(offset, partition, key=b'["bank", {"server": "bank"}]', value=value)


def _checkpoints(consumer: ScriptedConsumer) -> ConnectorCheckpoints:
    consumer.partitions = [0, 1]
    return ConnectorCheckpoints(dict, TOPIC, "bank", read_checkpoint, open_client=consumer.opened)


def test_a_look_without_the_ends_of_all_partitions_has_no_checkpoint() -> None:
    consumer = ScriptedConsumer([[_stored(0, 4), end(1)], [], [end(0, 1)]])
    checkpoints = _checkpoints(consumer)
    checkpoints.look()
    assert (checkpoints.newest, "partition 1" in checkpoints.reason) == (None, True)
    checkpoints.look()
    assert checkpoints.newest == Checkpoint(1 << 32 | 4, 1795758780.0)
    # Whatever comes later is read in the same way, with or without an end.
    consumer.calls = [[_stored(1, 9)], [_stored(2, 7), end(3)]]
    checkpoints.look()
    assert checkpoints.newest == Checkpoint(1 << 32 | 7, 1795758780.0)


def test_a_look_in_which_a_partition_fails_has_no_checkpoint() -> None:
    """The partition may hold a later record."""
    consumer = ScriptedConsumer([[_stored(0, 4), end(1), end(0, 1)]])
    checkpoints = _checkpoints(consumer)
    checkpoints.look()
    consumer.calls = [[_stored(1, 9), failure(KafkaError.NOT_LEADER_FOR_PARTITION, 1)]]
    with pytest.raises(BrokerUnavailableError):
        checkpoints.look()
    assert checkpoints.newest is None
    checkpoints.look()
    assert checkpoints.newest == Checkpoint(1 << 32 | 9, 1795758780.0)


def test_after_a_refusal_the_offsets_are_read_again_from_the_first() -> None:
    """The records that came with it were lost."""
    consumer = ScriptedConsumer([[_stored(0, 4), end(1), end(0, 1)]])
    checkpoints = _checkpoints(consumer)
    checkpoints.look()
    consumer.calls = [[_stored(1, 9), failure(KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)]]
    with pytest.raises(SourceError, match="needs permission"):
        checkpoints.look()
    consumer.assigned, consumer.calls = [], [[_stored(0, 4), _stored(1, 9), end(2)], [], [end(0, 1)]]
    checkpoints.look()
    assert (consumer.assigned, checkpoints.newest) == ([(0, 0), (1, 0)], None)
    checkpoints.look()
    assert checkpoints.newest == Checkpoint(1 << 32 | 9, 1795758780.0)


class _Broker:
    """In place of ``ConnectorCheckpoints``: what a test has it say."""

    def __init__(self) -> None:
        self.newest: Checkpoint | None = None
        self.reason = "none yet"
        self.end = 0
        self.asked: list[dict[str, list[int]]] = []
        self.fails = False

    def look(self) -> None:
        if self.fails:
            raise SourceError("the brokers have no topic")

    def ends(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, dict[int, int]]:
        if partitions:
            self.asked.append({topic: [*numbers] for topic, numbers in partitions.items()})
        return {topic: dict.fromkeys(numbers, self.end) for topic, numbers in partitions.items()}


class _Bed:
    def __init__(self) -> None:
        self.now, self.broker = 100.0, _Broker()
        self.bounds = ConnectorBounds(cast("ConnectorCheckpoints", self.broker), 60.0, clock=lambda: self.now)

    def comes(self, position: int, time: float = 7.0) -> None:
        self.broker.newest, self.broker.reason = Checkpoint(position, time), ""
        self.bounds.look((), Look({}, {}))


def test_the_newest_checkpoint_is_the_bound() -> None:
    bed = _Bed()
    bed.bounds.look((), Look({}, {}))
    assert (bed.bounds.next(above=None, least=None), bed.bounds.reason) == (None, "none yet")
    bed.comes(10)
    assert bed.bounds.next(above=10, least=None) is None  # there is a cut at it
    assert bed.bounds.next(above=9, least=10) == 10
    assert (bed.bounds.time_of(10).timestamp(), bed.bounds.reason) == (7.0, "")


def test_a_checkpoint_below_what_tables_have_is_none() -> None:
    bed = _Bed()
    bed.comes(10)
    assert bed.bounds.next(above=5, least=11) is None
    assert "is below the position that the tables have reached (11)" in bed.bounds.reason
    bed.comes(11)
    assert (bed.bounds.next(above=5, least=11), bed.bounds.reason) == (11, "")


def test_one_below_the_last_cut_is_said_too() -> None:
    bed = _Bed()
    bed.comes(10)
    assert bed.bounds.next(above=12, least=None) is None
    assert "is below" in bed.bounds.reason


def test_bounds_are_apart_and_wait_for_another_checkpoint() -> None:
    bed = _Bed()
    bed.comes(10)
    assert bed.bounds.next(above=None, least=None) == 10
    bed.comes(20)
    assert bed.bounds.after(10) == 10
    bed.now += 60
    assert bed.bounds.after(10) == 20
    bed.now += 60
    assert bed.bounds.after(20) == 20
    bed.comes(15)
    assert bed.bounds.after(20) == 20
    assert "is below the position that the tables have reached (20)" in bed.bounds.reason


def test_ends_are_asked_once_for_each_partition_and_bound() -> None:
    bed = _Bed()
    bed.bounds.ask_ends({"a": [0]})
    assert bed.broker.asked == []
    bed.comes(10)
    bed.bounds.next(above=None, least=None)
    bed.broker.end = 5
    bed.bounds.ask_ends({"a": [0, 1], "b": [0]})
    bed.broker.end = 6
    bed.bounds.ask_ends({"a": [0, 1, 2], "b": [0]})
    assert bed.broker.asked == [{"a": [0, 1], "b": [0]}, {"a": [2]}]
    assert (bed.bounds.ends("a"), bed.bounds.ends("c")) == ({0: 5, 1: 5, 2: 6}, {})
    bed.comes(20)
    bed.now += 60
    bed.bounds.after(10)
    assert bed.bounds.ends("a") == {}


def test_what_cannot_be_read_is_the_reason() -> None:
    bed = _Bed()
    bed.broker.fails = True
    bed.bounds.look((), Look({}, {}))
    assert bed.bounds.reason == "the brokers have no topic"


def _progress(bound: int | None, *, applied: bool = True) -> Progress:
    topics = {"a": TopicProgress("a", "id", {0: PartitionProgress(9, 9, None, None)})} if applied else {}
    return Progress(TableId("s", "a"), "p", 1, 1, topics, bound=bound)


def test_a_table_that_was_read_without_cuts_is_refused() -> None:
    check_bounded(_progress(10))
    check_bounded(_progress(None, applied=False))
    with pytest.raises(ConfigError, match="was read without cuts"):
        check_bounded(_progress(None))


def test_a_topic_that_is_empty_up_to_the_bound_is_in_no_cut() -> None:
    assert is_empty(None, {0: 0, 1: 3}, {0: 0, 1: 3})
    assert is_empty(_progress(None, applied=False), {0: 0}, {0: 0})
    assert not is_empty(None, {0: 0, 1: 3}, {0: 0, 1: 4})
    assert not is_empty(None, {0: 0, 1: 3}, {0: 0})
    assert not is_empty(_progress(10), {0: 0}, {0: 0})


def test_a_partition_is_read_to_its_end() -> None:
    found = TopicOffsets("a", "id", {number: PartitionOffsets(2, 9) for number in range(3)})
    assert limited(found, None) == found.partitions
    assert {n: at.latest for n, at in limited(found, {0: 5, 1: 12}).items()} == {0: 5, 1: 9, 2: 2}


def test_a_table_that_is_left_out_is_said_to_have_nothing() -> None:
    shown = CutStatus(last=None, published=None, next=10, waits="", held_back={}, excluded=("s.a",))
    assert [*cut_lines(shown)] == [
        "next cut: position 10",
        "the next cut leaves out s.a: its topic is still empty",
    ]


def test_a_database_that_uses_xa_refuses_cuts() -> None:
    """It is asked at each new checkpoint, and not at each turn of the worker."""
    now, broker, answers = [100.0], _Broker(), ["it uses XA", "", ""]
    bounds = ConnectorBounds(
        cast("ConnectorCheckpoints", broker), 60.0, clock=lambda: now[0], refusal=lambda: answers.pop(0)
    )
    broker.newest, broker.reason = Checkpoint(10, 7.0), ""
    for _ in range(3):
        bounds.look((), Look({}, {}))
        assert (bounds.next(above=None, least=None), bounds.reason) == (None, "it uses XA")
    assert len(answers) == 2
    now[0] += 60
    bounds.look((), Look({}, {}))
    assert (bounds.next(above=None, least=None), bounds.reason) == (10, "")
    now[0] += 60
    assert bounds.next(above=10, least=10) is None
    assert len(answers) == 1
