"""Dead letters are replayed behind what is newer at each target.

Targets of messages keep no rows: their reader takes of each key the newest epoch and batch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.e2e.asking import letters_of
from tests.e2e.passed_on import Rows, reduced, rows_of_objects
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.e2e.test_message_targets import kafka_target
from tests.e2e.test_replay_letters import NEVER, Shop, counted
from tests.full import FULL
from tests.http_receiver import http_receiver
from tests.kafka_topics import topic_messages
from tidesink.codecs import open_codec
from tidesink.events import TableId
from tidesink.schema_registry import open_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]


TABLE = TableId("shop", "replayed")


class _Reader(NamedTuple):
    """A target's section of the config, and the name of each row by its id, as its reader ends with it."""

    target: dict[str, Any]
    names: Callable[[], dict[int, str]]


def _by_id(rows: Rows) -> dict[int, str]:
    return {int(key): row["name"] for (key,), row in rows.items()}


def _of_kafka(servers: Servers) -> _Reader:
    codec = open_codec("flat-avro", registry=open_registry(servers["registry_url"]))
    topic = f"to-{servers['prefix']}{TABLE.schema}_{TABLE.name}"

    def names() -> dict[int, str]:
        return _by_id(reduced(topic_messages(servers["brokers"], topic), codec, ("id",)))

    return _Reader(kafka_target(servers, "flat-avro"), names)


def _of_endpoint(request: pytest.FixtureRequest) -> _Reader:
    listening = http_receiver()
    receiver = listening.__enter__()
    request.addfinalizer(lambda: listening.__exit__(None, None, None))
    target = {"type": "http", "url": f"{receiver.url}/in"}
    return _Reader(target, lambda: _by_id(rows_of_objects(receiver.objects(TABLE), ("id",))))


def _reader(kind: str, request: pytest.FixtureRequest, folder: Path, servers: Servers) -> _Reader:
    if kind == "kafka":
        return _of_kafka(servers)
    if kind == "http":
        return _of_endpoint(request)
    place = place_of(kind, request, folder)
    return _Reader(place.target, lambda: {row["id"]: row["name"] for row in place.rows(TABLE) or ()})


# test_replay_letters is about Delta.
@FULL
@pytest.mark.parametrize(
    "kind",
    ["iceberg", "postgres", "kafka", "mysql", "http"],
)
def test_a_newer_change_wins_over_a_replayed_one(
    servers: Servers, spark: SparkSession, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    target, names = _reader(kind, request, tmp_path, servers)
    shop = Shop(servers, tmp_path, "replayed", target=target)
    shop.put(1, "one")
    shop.put(1, "too late", NEVER)  # 1
    shop.put(2, "lost", NEVER)  # 2: nothing of its row comes later
    shop.put(1, "uno")
    shop.put(3, "gone", NEVER)  # 4
    shop.writer.delete({"id": 3, "name": "gone", "day": "2026-01-01"})
    shop.drain()
    assert (names(), letters_of(shop.config)) == ({1: "uno"}, [("ValueOutOfRangeError", 3, 1)])
    shop.with_zero_date("null")
    assert counted(shop.replay()) == (3, 1, 2, 0, 0, 0, 0)
    assert (names(), letters_of(shop.config)) == ({1: "uno", 2: "lost"}, [])
    # The worker goes on where it stood.
    shop.put(2, "found")
    (table,) = shop.drain().tables
    assert (table.counters["read"], names()) == (1, {1: "uno", 2: "found"})
