"""What one answer of Kafka says is not believed where it would stop a table: old answers, and silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, lake_rows, schema_of, shop_config
from tests.full import FULL
from tidesink.config import Config, load_config
from tidesink.errors import SourceUnavailableError
from tidesink.sinks.kafka.offsets import KafkaOffsets, Look, PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.context import LONGEST_PAUSE, StopFlag
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.worker.run import Worker, assembled, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OldAnswers(KafkaOffsets):
    """Every other answer lacks one topic, as that of a broker which has not heard of it."""

    def __init__(self, config: Config, topic: str) -> None:
        super().__init__(config.source.confluent_properties())
        self.topic = topic
        self.asked = 0

    def look(self, *asked: Any) -> Look:
        self.asked += 1
        hidden = self.topic if self.asked % 2 else None
        seen = super().look(*asked)
        return seen._replace(found={name: one for name, one in seen.found.items() if name != hidden})


class ShortAnswers(KafkaOffsets):
    """Every other answer, or each, ends a topic's partitions earlier, or lacks one of them."""

    def __init__(self, config: Config, *, always: bool, lacks: bool) -> None:
        super().__init__(config.source.confluent_properties())
        self.asked = 0
        self._always = always
        self._lacks = lacks

    def look(self, *asked: Any) -> Look:
        self.asked += 1
        seen = super().look(*asked)
        if not self._always and self.asked % 2 == 0:
            return seen
        shortened = {n: one._replace(partitions=self._shortened(one)) for n, one in seen.found.items()}
        return seen._replace(found=shortened)

    def _shortened(self, found: TopicOffsets) -> dict[int, PartitionOffsets]:
        if self._lacks:
            return {number: at for number, at in found.partitions.items() if number == 0}
        return {number: at._replace(latest=at.latest - 1) for number, at in found.partitions.items()}


class Silence(KafkaOffsets):
    """Answers until it is told to be silent."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.source.confluent_properties())
        self.silent = threading.Event()
        self.refused = 0

    def look(self, *asked: Any) -> Look:
        if self.silent.is_set():
            self.refused += 1
            raise SourceUnavailableError("Kafka does not answer")
        return super().look(*asked)


def test_a_topic_that_one_answer_lacks_is_not_gone(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    hidden, calm = (TableWriter(servers, schema_of(name)) for name in ("hidden", "calm"))
    for writer in (hidden, calm):
        writer.upsert({"id": 1, "name": "one"})
    config = load_config(shop_config(tmp_path, servers))
    assert run(config, until="drained").exit_code == 0
    for writer in (hidden, calm):
        writer.upsert({"id": 2, "name": "two"})
    with assembled(config, (), StopFlag()) as around:
        offsets = OldAnswers(config, hidden.topic)
        report = Worker(around, until="drained", offsets=offsets).run()
    assert {table.table.name: (table.state, table.error) for table in report.tables} == {
        "hidden": ("IDLE", None),
        "calm": ("IDLE", None),
    }
    assert report.exit_code == 0
    # The first look of the run, which remembers earlier runs, and later ones at an open table.
    assert offsets.asked >= 4
    assert set(lake_rows(tmp_path, "hidden")) == set(lake_rows(tmp_path, "calm")) == {1, 2}


@pytest.mark.parametrize("lacks", [True, pytest.param(False, marks=FULL)])
def test_an_answer_that_holds_less_than_was_read_is_believed_at_the_second_look(
    spark: SparkSession, tmp_path: Path, servers: Servers, lacks: bool
) -> None:
    writer = TableWriter(servers, schema_of("short"), partitions=2)
    for key in range(4):
        writer.upsert({"id": key, "name": "first"}, partition=key % 2)
    config = load_config(shop_config(tmp_path, servers))
    assert run(config, until="drained").exit_code == 0
    for always in (False, True):
        with assembled(config, (), StopFlag()) as around:
            offsets = ShortAnswers(config, always=always, lacks=lacks)
            report = Worker(around, until="drained", offsets=offsets).run()
        (table,) = report.tables
        assert offsets.asked > 1
        if not always:
            assert (table.state, table.error) == ("IDLE", None)
            continue
        assert table.state == "FAILING"
        assert ("Kafka no longer has this partition" if lacks else "Kafka lost records") in str(table.error)
        # Whoever looks at the failure sees which Kafka it was.
        assert f"brokers={servers['brokers']}" in str(table.error)


@FULL
def test_a_long_silence_of_kafka_is_no_deleted_topic(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    writer = TableWriter(servers, schema_of("patient"))
    writer.upsert({"id": 1, "name": "one"})
    config = load_config(shop_config(tmp_path, servers, {"retry": {"for": "1s"}}))
    stop, reports = StopFlag(), list[RunReport]()
    with assembled(config, (), stop) as around:
        offsets = Silence(config)
        worker = Worker(around, offsets=offsets)
        thread = threading.Thread(target=lambda: reports.append(worker.run()))
        thread.start()
        try:
            _wait(lambda: _has(tmp_path, {1}))
            offsets.silent.set()
            # Longer than the table's own pause, after which it is looked at again.
            time.sleep(LONGEST_PAUSE + 2)
            offsets.silent.clear()
            writer.upsert({"id": 2, "name": "two"})
            _wait(lambda: _has(tmp_path, {1, 2}))
        finally:
            stop.set()
            thread.join(240)
    assert offsets.refused > 1
    assert [(table.state, table.error) for table in reports[0].tables] == [("IDLE", None)]


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _has(folder: Path, ids: set[int]) -> bool:
    try:
        return set(lake_rows(folder, "patient")) == ids
    except (FileNotFoundError, KeyError):
        return False
