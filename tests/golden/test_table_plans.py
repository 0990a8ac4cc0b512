"""``plan`` shows what a worker opens: the key, the columns and their types, for every golden capture.

The worker's side reads each topic in small batches, and learns after each one what its records have. ``plan``
has the topic's records as a sample.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.golden.debezium_captures import Capture
from tests.golden.each_capture import each_capture
from tests.golden.vectors import Record, Workload, find_folders, find_workloads, schema_texts, table_of
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right
from tests.unit.sinks.batch.test_range_tasks import run, summary
from tests.vectors import vectors_dir
from tests.worker_contexts import worker_context
from tidesink.cli.table_plans import Sample, TablePlan, _by_records, _canal_json, _flat_avro
from tidesink.codecs import CODECS
from tidesink.config import Config
from tidesink.errors import TidesinkError
from tidesink.events import Message, TableId
from tidesink.schema_registry import MemorySchemaRegistry, SubjectPart, subject
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.open import open_decoding
from tidesink.sinks.decode.schema_source import Missed
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange, PartitionOffsets, TopicOffsets
from tidesink.sinks.laws.modes import kept_shape
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.worker.open_table import decoding_parts
from tidesink.sinks.worker.preflight import column_type

R = TypeVar("R")

# Records in a batch of the worker.
_AT_ONCE = 7
# Options of a changefeed that are settings of ``source`` too.
_SETTINGS = {
    "flat-avro": (
        "enable-tidb-extension",
        "avro-decimal-handling-mode",
        "avro-bigint-unsigned-handling-mode",
        "time-zone",
    ),
    "canal-json": ("enable-tidb-extension", "content-compatible", "time-zone"),
    "debezium-json": ("time-zone",),
    "debezium-avro": ("time-zone",),
}
_BASES = {
    "flat-avro": FLAT_AVRO,
    "canal-json": CANAL_JSON,
    "debezium-json": changed(CANAL_JSON, source__protocol="debezium-json", source__topics="{schema}_{table}"),
    "debezium-avro": changed(FLAT_AVRO, source__protocol="debezium-avro"),
}
_PROTOCOLS = {
    "avro": "flat-avro",
    "canal-json": "canal-json",
    "debezium": "debezium-json",
    "debezium-avro": "debezium-avro",
}

Columns = list[tuple[str, str]]
_SEVERAL_TABLES = "The topic holds rows of several tables"


class Shown(NamedTuple):
    """A table as ``plan`` shows it, or as a worker opens it; ``problem``: the reason why it does not."""

    keys: tuple[str, ...]
    columns: Columns
    problem: str | None = None


class Held(KafkaSource):
    """A topic that has these records and is asked without Spark."""

    def __init__(self, messages: Sequence[Message]) -> None:
        super().__init__(self._fetched)
        self._messages = messages

    def _fetched(self, wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        yield as_records(
            m
            for m in self._messages
            if m.partition == wanted.partition and wanted.start <= m.offset < wanted.end
        )

    def ask(
        self, _session: Any, ranges: Sequence[OffsetRange], question: Callable[[Iterator[pa.RecordBatch]], R]
    ) -> list[R]:
        return [question(self.read_here([part])) for part in ranges]

    @cached_property
    def found(self) -> TopicOffsets:
        """The offsets of the topic."""
        partitions = {
            number: PartitionOffsets(0, 1 + max(m.offset for m in self._messages if m.partition == number))
            for number in sorted({m.partition for m in self._messages})
        }
        return TopicOffsets(self._messages[0].topic, "an id", partitions)

    @property
    def batches(self) -> Iterator[FetchRange]:
        """The ranges of a worker's batches."""
        for number, ends in self.found.partitions.items():
            for start in range(ends.earliest, ends.latest, _AT_ONCE):
                yield FetchRange(self.found.topic, number, start, min(start + _AT_ONCE, ends.latest))


class Given(NamedTuple):
    """The records of topics under one config."""

    name: str
    config: Config
    topics: Mapping[str, Sequence[Message]]
    tables: Mapping[str, frozenset[TableId]]
    registry: MemorySchemaRegistry | None


def _opened(given: Given, topic: str, table: TableId, folder: Path) -> Shown:
    """The table as a worker opens it, after it has read the topic batch by batch."""
    config, source = given.config, Held(given.topics[topic])
    around = worker_context(config, cast("Any", None), folder, registry=given.registry)
    topics = Topics(config.pipeline, source, around.store, ask=lambda: cast("Any", Brokers(source)))
    topics.tables(topic).add(given.tables[topic])
    parts = decoding_parts(replace(around, source=source, topics=topics))
    try:
        decoding = open_decoding(parts, topic, table)
        decoding.prepare(source.found)
        for wanted in source.batches:
            while True:
                _, payloads = run(RangeTask((wanted,), decoding.columns()), [*source.fetch(wanted)])
                missed = Missed(summary(payloads), (OffsetRange(*wanted[:4]),), source.found)
                if not (missed.summary.is_to_learn and decoding.learn(missed)):
                    break
        shape = kept_shape(decoding.columns().shape, config.table_config(table))
    except TidesinkError as error:
        return Shown((), [], error.message)
    return Shown(shape.keys, [(column.name, column_type(config, column)) for column in shape.columns])


class Brokers:
    """Brokers that know the offsets of one topic."""

    def __init__(self, source: Held) -> None:
        self._source = source

    def lookup(self, _topics: Iterable[str]) -> dict[str, TopicOffsets]:
        return {self._source.found.topic: self._source.found}


def _planned(given: Given, topic: str) -> Iterator[tuple[TableId, Shown]]:
    """The tables of a topic as ``plan`` shows them."""
    for plan in _plans(given, topic):
        if plan.table is not None:
            columns = [(column.name, column.target_type) for column in plan.columns]
            yield plan.table, Shown(plan.keys, columns, plan.problem)


def _plans(given: Given, topic: str) -> Iterator[TablePlan]:
    sample = Sample(topic, 100_000, read=lambda *_, **__: iter(given.topics[topic]))
    if given.config.source.protocol == "canal-json":
        yield from _canal_json(given.config, sample, None)
    elif given.config.source.protocol == "flat-avro":
        assert given.registry is not None
        for table in given.tables[topic]:
            yield _flat_avro(given.config, given.registry, topic, table)
    else:
        yield _by_records(given.config, given.registry, sample, None)


def _differences(givens: Iterable[Given], folder: Path) -> tuple[int, list[str]]:
    """The number of tables that were compared, and those that a worker opens in another way."""
    count, found = 0, []
    for number, given in enumerate(givens):
        for topic in given.topics:
            for table, shown in _planned(given, topic):
                (home := folder / f"{number}-{count}").mkdir()
                count += 1
                opened = _opened(given, topic, table, home)
                if shown.problem is not None and shown.problem.startswith(_SEVERAL_TABLES):
                    # Only a plan looks for this before rows are applied.
                    same = len(given.tables[topic]) > 1
                elif opened.problem is not None or shown.problem is not None:
                    # A plan shows the columns of a table that lacks a key all the same.
                    same = opened.problem is not None and shown.problem is not None
                else:
                    same = opened == shown
                if not same:
                    found.append(f"{given.name} {topic} {table}:\n  plan   {shown}\n  worker {opened}")
    return count, found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    each_capture(metafunc)
    root = vectors_dir(metafunc.config)
    if "cases" in metafunc.fixturenames:
        metafunc.parametrize(
            "cases",
            [
                pytest.param((folder, codec), id=f"{folder.name}-{codec}")
                for folder in find_folders(root)
                for codec in _PROTOCOLS
                if folder.rows(codec)
            ],
        )
    if "whole" in metafunc.fixturenames:
        found = [one for protocol in ("avro", "canal-json") for one in find_workloads(root, protocol)]
        metafunc.parametrize("whole", [pytest.param(one, id=one.name) for one in found])


def _config(protocol: str, options: Mapping[str, Any], **more: Any) -> Config:
    names = [name for name in _SETTINGS[protocol] if name in options]
    settings = {f"source__{name.replace('-', '_')}": options[name] for name in names}
    return right(changed(_BASES[protocol], **settings, **more))


def _with_registry(
    topics: Mapping[str, Sequence[Message]], texts: Mapping[int, str], *, flat: bool
) -> tuple[dict[str, list[Message]], MemorySchemaRegistry]:
    """The records with the ids that a registry gives their schemas, under the subjects of their topics."""
    registry = MemorySchemaRegistry()

    def renumbered(message: Message, part: SubjectPart, data: bytes | None) -> bytes | None:
        if data is None or data[:1] != b"\0" or int.from_bytes(data[1:5], "big") not in texts:
            return data
        text = texts[int.from_bytes(data[1:5], "big")]
        name = subject(message.topic, part) if flat else f"{message.topic}-{part}"
        return data[:1] + registry.register(name, text).to_bytes(4, "big") + data[5:]

    numbered = {
        topic: [
            replace(
                message,
                key=renumbered(message, "key", message.key),
                value=renumbered(message, "value", message.value),
            )
            for message in messages
        ]
        for topic, messages in topics.items()
    }
    return numbered, registry


def _given(
    name: str,
    config: Config,
    records: Iterable[tuple[TableId | None, Message]],
    texts: Mapping[int, str] | None = None,
) -> Given:
    topics, tables = defaultdict[str, list[Message]](list), defaultdict[str, set[TableId]](set)
    for table, message in records:
        topics[message.topic].append(message)
        tables[message.topic] |= set() if table is None else {table}
    numbered: Mapping[str, Sequence[Message]] = topics
    registry = None
    if texts is not None:
        numbered, registry = _with_registry(topics, texts, flat=config.source.protocol == "flat-avro")
    return Given(
        name, config, numbered, {topic: frozenset(found) for topic, found in tables.items()}, registry
    )


def _cases(records: Sequence[Record], protocol: str, texts: Mapping[int, str]) -> Iterator[Given]:
    """The records of a folder: those of one configuration are the records of one changefeed."""
    changefeeds = defaultdict[str, list[Record]](list)
    for record in records:
        plain = record.config.get("large-message-handle-option", "none") == "none"
        if (
            plain
            and record.message.value is not None
            and record.config.get("large-message-handle-compression", "none") == "none"
        ):
            changefeeds[str(sorted(record.config.items()))].append(record)
    for name, found in changefeeds.items():
        counts: dict[str, int] = defaultdict(int)
        sent = []
        for record in found:
            assert record.event is not None
            topic = "app" if protocol == "canal-json" else record.message.topic
            message = replace(record.message, topic=topic, offset=counts[topic], timestamp=counts[topic])
            counts[topic] += 1
            sent.append((table_of(record.event), message))
        registered = texts if CODECS[protocol].registry else None
        yield _given(name, _config(protocol, found[0].config), sent, registered)


def test_the_records_of_each_changefeed(cases: Any, tmp_path: Path) -> None:
    folder, codec = cases
    texts = schema_texts(folder.path)
    count, found = _differences(_cases(folder.rows(codec), _PROTOCOLS[codec], texts), tmp_path)
    assert found == []
    assert count


def test_a_whole_workload(whole: Workload, tmp_path: Path) -> None:
    protocol = _PROTOCOLS[whole.config["protocol"]]
    messages = [*whole.messages()]
    config = _config(protocol, whole.config)
    records = [(config.table_of_topic(message.topic), message) for message in messages]
    given = _given(whole.name, config, records, whole.schemas if protocol == "flat-avro" else None)
    count, found = _differences([given], tmp_path)
    assert found == []
    assert count


def test_a_connectors_capture(capture: Capture, tmp_path: Path) -> None:
    protocol = "debezium-avro" if capture.is_avro else "debezium-json"
    modes = capture.settings
    settings = {"source__debezium": modes} if modes and protocol == "debezium-json" else {}
    config = _config(protocol, {}, defaults={"zero-date": "text"}, **settings)
    texts = json.loads((capture.path.parent / "avro_schemas.json").read_text(encoding="utf-8"))
    schemas = {int(number): answer["schema"] for number, answer in texts.items()}
    records = [(None, message) for message in capture.messages]
    given = _given(capture.name, config, records, schemas if capture.is_avro else None)
    count, found = _differences([given], tmp_path)
    assert found == []
    assert count
