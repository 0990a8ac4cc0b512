"""A Debezium connector that reads a test's own database in Postgres as it changes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from confluent_kafka import Consumer, TopicPartition

from tests.connect_server import Connect
from tests.golden.debezium_captures import Capture
from tests.postgres_database import plain_session
from tidesink.ddl.catalog import TableDefinitions, read_postgres_tables

_SECONDS: Final = 240


@contextmanager
def connector(connect: Connect, url: str, name: str, **modes: str) -> Iterator[dict[str, str]]:
    """A connector that sends changes alone, to topics that begin with its name; its properties.

    Its slot is there when it runs: changes that follow are sent.
    """
    parsed = sa.engine.make_url(url)
    properties = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "topic.prefix": name,
        "database.hostname": str(parsed.host),
        "database.port": str(parsed.port or 5432),
        "database.user": str(parsed.username),
        "database.password": parsed.password or "none",
        "database.dbname": str(parsed.database),
        "plugin.name": "pgoutput",
        "slot.name": f"slot_{name}",
        "publication.name": f"pub_{name}",
        "publication.autocreate.mode": "filtered",
        "schema.include.list": "live",
        "snapshot.mode": "no_data",
        "poll.interval.ms": "50",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
        **{key.replace("_", "."): value for key, value in modes.items()},
    }
    connect.create(name, properties)
    try:
        _wait_for_slot(url, f"slot_{name}")
        yield properties
    finally:
        connect.delete(name)
        _drop_slot(url, f"slot_{name}")


def _wait_for_slot(url: str, slot: str) -> None:
    deadline = time.monotonic() + _SECONDS
    with plain_session(url) as session:
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        while session.execute(query, (slot,)).fetchone() != (True,):
            assert time.monotonic() < deadline, f"{slot} is not used"
            time.sleep(0.1)


def _drop_slot(url: str, slot: str) -> None:
    """A database with a slot cannot be dropped."""
    deadline = time.monotonic() + _SECONDS
    with plain_session(url) as session:
        slots = "FROM pg_replication_slots WHERE slot_name = %s"
        while session.execute(f"SELECT {slots} AND active".encode(), (slot,)).rowcount:
            assert time.monotonic() < deadline, f"{slot} stays in use"
            time.sleep(0.1)
        session.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}".encode(), (slot,))


def wait_until_sent(
    brokers: str,
    topic: str,
    partitions: int,
    word: bytes,
    *,
    count: int = 1,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Wait until a topic has ``count`` keys with this word in a value, of the last that was committed.

    ``meanwhile`` is done now and then.
    """
    settings = {"bootstrap.servers": brokers, "group.id": topic, "enable.auto.commit": False}
    deadline, consumer = time.monotonic() + _SECONDS, Consumer(settings)
    found = set[bytes | None]()
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        while len(found) < count:
            assert time.monotonic() < deadline, "the connector does not come after"
            message = consumer.poll(1)
            if message is None:
                meanwhile()
            elif message.error() is None and word in (message.value() or b""):
                found.add(message.key())
    finally:
        consumer.close()


@dataclass(frozen=True)
class LiveCapture(Capture):
    """What a connector wrote, in the form of the golden captures; ``sql`` is the tables' DDL."""

    sql: str = ""

    def definitions(self) -> TableDefinitions | None:
        """The tables as their DDL says, where records have no types."""
        return None if self.carries_types else TableDefinitions(read_postgres_tables(self.sql, "live"))


def save_capture(brokers: str, folder: Path, properties: Mapping[str, str], topics: list[str]) -> Path:
    """The records of topics as a capture; its file."""
    name = properties["topic.prefix"]
    (folder / "connectors.json").write_text(json.dumps({name: dict(properties)}), encoding="utf-8")
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": name, "enable.partition.eof": False})
    lines = []
    try:
        for topic in topics:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
            consumer.assign([TopicPartition(topic, 0, 0)])
            read = 0
            while read < end:
                message = consumer.poll(60)
                assert message is not None
                assert message.error() is None
                offset = message.offset()
                assert offset is not None
                read = offset + 1
                lines.append(_line(message))
    finally:
        consumer.close()
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _line(message: object) -> str:
    from confluent_kafka import Message

    assert isinstance(message, Message)

    def encoded(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode("ascii")

    return json.dumps(
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "key_b64": encoded(message.key()),
            "value_b64": encoded(message.value()),
            "headers": [],
            "timestamp": message.timestamp()[1],
        }
    )
