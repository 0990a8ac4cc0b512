"""``fetch()`` beside a bare librdkafka consume loop: same partitions, settings and number of processes.

``python -m benchmarks.fetch SETTINGS`` reads a topic of random Avro-sized records with each in turn, several
times, and prints the rates. The bare loop calls ``consume`` and looks at nothing but the last offset; it
gets the best of several sizes of a consume call. The figure is the ratio of the medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidesink.sinks.kafka.fetch import FETCH_SETTINGS, FIXED_SETTINGS, FetchRange, fetch

PARTITIONS: Final = 4
PROCESSES: Final = 2
TOPIC: Final = "bench-fetch"
_ROUNDS: Final = 5
# Calls of the bare loop: the best of them is the baseline.
_CALLS: Final = (250, 1_000, 10_000)
_PATIENCE: Final = 60.0


class Reading(NamedTuple):
    """What one process reads in one round."""

    brokers: str
    partitions: tuple[int, ...]
    records: int  # of each partition


def bare(reading: Reading, most: int) -> int:
    """Consume and look at nothing."""
    settings = {"bootstrap.servers": reading.brokers, "group.id": "bench", **FETCH_SETTINGS, **FIXED_SETTINGS}
    consumer, read = _kept_consumer(settings), 0
    for number in reading.partitions:
        consumer.assign([TopicPartition(TOPIC, number, 0)])
        at = 0
        while at < reading.records:
            messages = consumer.consume(min(most, reading.records - at), 1.0)
            if messages:
                at = (messages[-1].offset() or 0) + 1
                read += len(messages)
    consumer.unassign()
    return read


_KEPT: Final[dict[str, Consumer]] = {}


def _kept_consumer(settings: Mapping[str, Any]) -> Consumer:
    """One a process, as ``fetch`` has it."""
    if "one" not in _KEPT:
        _KEPT["one"] = Consumer(dict(settings))
    return _KEPT["one"]


def ours(reading: Reading) -> int:
    """Fetch into Arrow record batches, as the tasks do: without timestamps and headers."""
    properties = {"bootstrap.servers": reading.brokers}
    ranges = [
        FetchRange(TOPIC, number, 0, reading.records, timestamps=False, headers=False)
        for number in reading.partitions
    ]
    return sum(batch.num_rows for wanted in ranges for batch in fetch(wanted, properties))


def measure(brokers: str, records: int) -> dict[str, float]:
    """Records a second of both, and their ratio; ``records`` is their number in the whole topic."""
    each = records // PARTITIONS
    readings = [
        Reading(brokers, tuple(range(first, PARTITIONS, PROCESSES)), each) for first in range(PROCESSES)
    ]
    ways: dict[str, Callable[[Reading], int]] = {f"bare {n}": partial(bare, most=n) for n in _CALLS}
    ways["ours"] = ours
    rates: dict[str, list[float]] = {name: [] for name in ways}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for number in range(_ROUNDS + 1):
            for name, way in ways.items():
                rate = _timed(pool, way, readings)
                if number:  # the first round warms up
                    rates[name].append(rate)
    middle = {name: statistics.median(found) for name, found in rates.items()}
    best = max(rate for name, rate in middle.items() if name != "ours")
    ratios = {f"ratio to {name}": middle["ours"] / rate for name, rate in middle.items() if name != "ours"}
    return {**middle, **ratios, "bare": best, "ratio": middle["ours"] / best}


def _timed(pool: ProcessPoolExecutor, way: Callable[[Reading], int], readings: list[Reading]) -> float:
    start = time.perf_counter()
    read = sum(pool.map(way, readings))
    assert read == sum(len(one.partitions) * one.records for one in readings)
    return read / (time.perf_counter() - start)


def fill(brokers: str, records: int) -> None:
    """A topic of so many records: 10 bytes of key, about 130 of value, compressed as producers do."""
    admin = AdminClient({"bootstrap.servers": brokers})
    if TOPIC in admin.list_topics(timeout=_PATIENCE).topics:
        return
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(_PATIENCE)
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 50, "compression.type": "lz4"})
    chosen = random.Random(1)
    values = [chosen.randbytes(60) + b"abcdef" * 12 for _ in range(5_000)]
    for number in range(records):
        key, value = (number % 200_000).to_bytes(10, "big"), values[number % len(values)]
        while True:
            try:
                producer.produce(TOPIC, value, key, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(_PATIENCE) == 0


def main() -> None:
    """Fill the topic and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", help='JSON: {"brokers": …, "events": …}')
    settings = json.loads(parser.parse_args().settings)
    records = int(settings.get("events", 1_000_000)) // PARTITIONS * PARTITIONS
    fill(settings["brokers"], records)
    print(json.dumps(measure(settings["brokers"], records)))


if __name__ == "__main__":
    main()
