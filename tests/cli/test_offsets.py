"""``tidesink offsets``: where tables stand, and rewinds that are asked for or refused, by a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from tests.servers import create_topics
from tests.unit.config.samples import FLAT_AVRO, changed
from tidesink.cli.main import app
from tidesink.events import TableId
from tidesink.sinks.kafka.offsets import KafkaOffsets
from tidesink.sinks.runtime.control import RewindControl, read_controls
from tidesink.sinks.state.progress import PartitionProgress, Progress, TableStatus, TopicProgress
from tidesink.sinks.state.sql_store import SqlStateStore

pytestmark = pytest.mark.servers
ORDERS: Final = TableId("shop", "orders")
# 2026-11-26 08:00 UTC, in seconds; a record a minute comes from then on.
EIGHT: Final = 1_795_680_000
TSO: Final = EIGHT * 1000 << 18


class Bed:
    """A pipeline of one table, of whose topic of two partitions some is applied."""

    def __init__(self, folder: Path, brokers: str, topic: str) -> None:
        self.topic, self.brokers, self._folder = topic, brokers, folder
        self.store = SqlStateStore(str(folder / "state.db"))
        create_topics(brokers, {topic: 2})
        producer = Producer({"bootstrap.servers": brokers})
        for number in range(40):
            moment = (EIGHT + 60 * (number // 2)) * 1000
            producer.produce(topic, b"v", partition=number % 2, timestamp=moment)
        assert producer.flush(60) == 0
        found = KafkaOffsets({"bootstrap.servers": brokers}).lookup([topic])[topic]
        self.topic_id = found.topic_id

    def config(self, **more: Any) -> Path:
        source = {
            **FLAT_AVRO["source"],
            "brokers": self.brokers,
            "topics": f"{self.topic}{{schema}}{{table}}",
            "enable-tidb-extension": True,
        }
        path = self._folder / "shop.yaml"
        settings = changed(FLAT_AVRO, state=str(self._folder / "state.db"), source=source, **more)
        path.write_text(yaml.safe_dump(settings))
        return path

    def applies(self, *offsets: int, **more: Any) -> None:
        """A batch ends at these offsets."""
        at = {n: PartitionProgress(offset, offset, TSO + 7, **more) for n, offset in enumerate(offsets)}
        topics = {self.topic: TopicProgress(self.topic, self.topic_id, at)}
        progress = Progress(ORDERS, "shop", 1, 3, topics)
        self.store.record_progress(progress)
        details = {"topic": self.topic}
        status = TableStatus("shop", ORDERS, "IDLE", batch=3, epoch=1, commit_ts=TSO + 7, details=details)
        assert self.store.save_status(status)

    @property
    def asked(self) -> RewindControl | None:
        controls = read_controls(self.store, "shop")
        return controls[ORDERS].rewind if ORDERS in controls else None

    def run(self, *words: str, code: int = 0, **more: Any) -> str:
        done = CliRunner().invoke(app, ["offsets", *words, "-c", str(self.config(**more))])
        assert done.exit_code == code, done.output
        return done.output


@pytest.fixture
def bed(tmp_path: Path, brokers: str, topic_prefix: str) -> Iterator[Bed]:
    found = Bed(tmp_path, brokers, topic_prefix)
    yield found
    found.store.close()


def test_where_a_table_stands(bed: Bed) -> None:
    bed.applies(15, 20)
    (table,) = json.loads(bed.run("show", "-o", "json"))["tables"]
    assert table["table"] == {"schema": "shop", "name": "orders"}
    assert (table["topic"], table["topic_id"], table["reason"]) == (bed.topic, bed.topic_id, None)
    first, second = table["partitions"]
    assert first == {
        "partition": 0,
        "applied": 15,
        "again_to": None,
        "begins": 0,
        "ends": 20,
        "waiting": 5,
        "commit_ts": TSO + 7,
    }
    assert (second["applied"], second["waiting"]) == (20, 0)
    shown = bed.run("show", "SHOP.orders")
    assert "2026-11-26 08:00:00.000" in shown
    assert "rewound" not in shown
    bed.applies(4, 20, again_to=20)
    assert "rewound, and reading again: partition 0 from 4 to 20" in bed.run("show")
    assert "Pipeline shop has no table shop.others" in bed.run("show", "shop.others", code=2)


def test_a_topic_that_is_gone_or_another_one(bed: Bed) -> None:
    bed.topic_id = "other"
    bed.applies(15, 20)
    (table,) = json.loads(bed.run("show", "-o", "json"))["tables"]
    assert "created again" in table["reason"]
    assert "recreated" in bed.run("rewind", "shop.orders", "--to-beginning", code=2)
    bed.topic += "-gone"
    bed.applies(15, 20)
    (table,) = json.loads(bed.run("show", "-o", "json"))["tables"]
    assert table["reason"] == "the topic does not exist"
    assert table["partitions"][0] | {"commit_ts": None} == {
        "partition": 0,
        "applied": 15,
        "again_to": None,
        "begins": None,
        "ends": None,
        "waiting": None,
        "commit_ts": None,
    }
    assert "does not exist" in bed.run("rewind", "shop.orders", "--to-beginning", code=2)
    assert bed.asked is None


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        (["--to-offset", "0=3"], {0: 3}),
        (["--to-offset", "0=3", "--to-offset", "1=4"], {0: 3, 1: 4}),
        (["--to-beginning"], {0: 0, 1: 0}),
        (["--to-time", "2026-11-26T08:12:00Z"], {0: 12, 1: 12}),
        (["--to-time", "2026-11-26T09:12:00+01:00"], {0: 12, 1: 12}),
        # Of partition 0 nothing that is applied is that young.
        (["--to-time", "2026-11-26 08:15:30"], {1: 16}),
        # Ten minutes before the commit: clocks differ.
        (["--to-commit-ts", str(TSO + (12 * 60_000 << 18))], {0: 2, 1: 2}),
    ],
)
def test_a_place_to_go_back_to(bed: Bed, words: list[str], offsets: dict[int, int]) -> None:
    bed.applies(15, 20)
    status = TableStatus(
        "shop", ORDERS, "IDLE", batch=3, epoch=1, commit_ts=2 * TSO, details={"topic": bed.topic}
    )
    assert bed.store.save_status(status)
    output = bed.run("rewind", "shop.orders", *words)
    assert bed.asked is not None
    assert (bed.asked.topic, bed.asked.topic_id, dict(bed.asked.offsets)) == (
        bed.topic,
        bed.topic_id,
        offsets,
    )
    for number, offset in offsets.items():
        end = (15, 20)[number]
        assert f"partition {number} is read again from {offset} to {end}, {end - offset} offsets" in output
    assert "until this is done, rows may have earlier values" in output
    assert "The next worker handles the request" in output


def test_another_one_replaces_what_was_asked(bed: Bed) -> None:
    bed.applies(15, 20)
    bed.run("rewind", "shop.orders", "--to-beginning")
    first = bed.asked
    shown = json.loads(
        bed.run(
            "rewind", "shop.orders", "--to-offset", "0=3", "-o", "json", defaults={"sequence_by": "source"}
        )
    )
    assert shown["partitions"] == [{"partition": 0, "applied": 15, "offset": 3}]
    assert shown["steps_back"] is False
    assert first is not None
    assert bed.asked is not None
    assert bed.asked.number > first.number
    assert dict(bed.asked.offsets) == {0: 3}


def test_what_is_refused(bed: Bed) -> None:
    bed.applies(15, 20)
    for words, reason in (
        (["--to-offset", "0=16"], "Offset 16 of partition 0 is after the applied offset"),
        (["--to-offset", "0=15"], "already continues from the requested offset"),
        (["--to-offset", "0=-1"], "give PARTITION=OFFSET"),
        (["--to-offset", "2=1"], "The table has not read partition 2"),
        (["--to-time", "yesterday"], "give ISO 8601"),
        (["--to-time", "2026-11-26T09:00:00Z"], "already continues from the requested offset"),
        (["--to-commit-ts", str(TSO + 8)], "which is older"),
        (["--to-commit-ts", str(EIGHT * 1000)], "is not a commit_ts"),
        ([], "Give exactly one of --to-offset"),
        (["--to-beginning", "--to-offset", "0=1"], "Give exactly one of"),
    ):
        assert reason in bed.run("rewind", "shop.orders", *words, code=2), words
    assert "would be doubled" in bed.run(
        "rewind", "shop.orders", "--to-beginning", code=2, defaults={"mode": "append"}
    )
    assert bed.asked is None


def test_what_expired_is_refused(bed: Bed) -> None:
    bed.applies(15, 20)
    admin = AdminClient({"bootstrap.servers": bed.brokers})
    for done in admin.delete_records([TopicPartition(bed.topic, 0, 6)]).values():
        done.result(60)
    assert "no longer has offset 5 of partition 0" in bed.run(
        "rewind", "shop.orders", "--to-offset", "0=5", code=2
    )
    older = bed.run("rewind", "shop.orders", "--to-time", "2026-11-26T08:03:00Z", code=2)
    assert "partition 0 begins with offset 6, which was written later" in older
    assert bed.asked is None
    bed.run("rewind", "shop.orders", "--to-time", "2026-11-26T08:08:00Z")
    assert bed.asked is not None
    assert dict(bed.asked.offsets) == {0: 8, 1: 8}
    assert "cannot be read again: partition 0 with 6" in bed.run("rewind", "shop.orders", "--to-beginning")
    assert dict(bed.asked.offsets) == {0: 6, 1: 0}
