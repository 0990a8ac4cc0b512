"""How many records the tasks of a worker fetch, whatever becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from tidesink.config import Config
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.fetch import FetchRange, KafkaFetch
from tidesink.sinks.runtime.context import StopFlag
from tidesink.sinks.runtime.observers import RunReport
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.worker.run import Worker, assembled

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class CountedFetch:
    """Reads Kafka, and leaves a file for each range that was read: how many records it gave."""

    fetch: KafkaFetch
    folder: Path

    def __call__(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        count = 0
        try:
            for batch in self.fetch(wanted):
                count += batch.num_rows
                yield batch
        finally:
            (self.folder / uuid4().hex).write_text(str(count))


def drained_counting(config: Config, folder: Path) -> tuple[RunReport, int]:
    """Run until nothing is left to read; the report, and how many records were fetched."""
    counts = folder / uuid4().hex
    counts.mkdir()
    fetch = CountedFetch(KafkaFetch(config.source.confluent_properties()), counts)
    source = KafkaSource(fetch, opens_up_to=config.source.opens_up_to)
    with assembled(config, (), StopFlag()) as around:
        topics = Topics.of(config, source, around.store)
        report = Worker(replace(around, source=source, topics=topics), until="drained").run()
    return report, sum(int(one.read_text()) for one in counts.iterdir())
