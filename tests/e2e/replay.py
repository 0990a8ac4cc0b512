"""Replays the captured changefeed of ``vectors/workload`` into a real broker and registry.

Everything the config of a replay names is brokers, registry, topics, protocol and modes.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from confluent_kafka import Producer

from tests.executors import executor_of_test
from tests.golden.vectors import unbase64
from tests.servers import create_topics
from tests.sessions import SMALL_SPARK
from tidesink.dev.lake_check import check_table
from tidesink.dev.shop import ExpectedTable
from tidesink.events import TableId
from tidesink.schema_registry import open_registry, subject
from tidesink.sinks.runtime.observers import RunReport, TableReport

CONFIGURATIONS = ("avro_long", "avro_ext_string", "canal", "canal_ext", "canal_ext_partial")
PARTITIONS = 4


class Servers(TypedDict):
    """Where a replay goes, and what its topics begin with."""

    brokers: str
    registry_url: str
    prefix: str


@dataclass(frozen=True)
class Replayed:
    """A changefeed in Kafka: the topic prefix, and how many records each topic got."""

    prefix: str
    records: Mapping[str, int]


def captured(workload: Path, configuration: str) -> Iterator[dict[str, Any]]:
    """The producer's records, in its order."""
    with gzip.open(workload / f"{configuration}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def replay(
    workload: Path,
    configuration: str,
    *,
    servers: Servers,
    only: Collection[str] | None = None,
) -> Replayed:
    """Make the topics, register the schemas, and produce every record to its own partition.

    ``only``: the captured topics to replay; all of them where it is None.
    """
    brokers, registry_url, prefix = servers["brokers"], servers["registry_url"], servers["prefix"]
    records = [r for r in captured(workload, configuration) if only is None or r["topic"] in only]
    topics = sorted({record["topic"] for record in records})
    create_topics(brokers, {f"{prefix}{topic}": PARTITIONS for topic in topics})
    ids = (
        register_schemas(workload, records, registry_url, prefix) if configuration.startswith("avro") else {}
    )
    counts = dict.fromkeys(topics, 0)
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 20})
    for record in records:
        counts[record["topic"]] += 1
        producer.produce(
            f"{prefix}{record['topic']}",
            key=with_own_id(unbase64(record["key_b64"]), ids),
            value=with_own_id(unbase64(record["value_b64"]), ids),
            partition=record["partition"],
            timestamp=record["timestamp"],
        )
        producer.poll(0)
    assert producer.flush(120) == 0
    return Replayed(prefix, counts)


def _used_ids(records: list[dict[str, Any]]) -> set[int]:
    found = (unbase64(record[part]) for record in records for part in ("key_b64", "value_b64"))
    return {struct.unpack(">I", data[1:5])[0] for data in found if data}


def register_schemas(
    workload: Path, records: list[dict[str, Any]], registry_url: str, prefix: str
) -> dict[int, int]:
    """The registry's own ids by the captured ones.

    The schemas are registered in the order in which the producer got them.
    """
    used = _used_ids(records)
    registry = open_registry(registry_url)
    lines = (workload / "schemas.jsonl").read_text(encoding="utf-8").splitlines()
    schemas = sorted((json.loads(line) for line in lines), key=lambda found: found["id"])
    ids: dict[int, int] = {}
    for found in schemas:
        if found["id"] in used:
            for name in found["subjects"]:
                topic, _, part = name.rpartition("-")
                ids[found["id"]] = registry.register(subject(f"{prefix}{topic}", part), found["schema"])
    registry.close()
    return ids


def with_own_id(data: bytes | None, ids: Mapping[int, int]) -> bytes | None:
    """A captured key or value, which names its schema by the registry's own id."""
    if not ids or not data:
        return data
    return data[:1] + struct.pack(">I", ids[struct.unpack(">I", data[1:5])[0]]) + data[5:]


KEYS = {"account": ("id",), "movement": ("acc", "seq"), "wide": ("id",), "pair": ("a", "b")}
# SELECT's own names for columns it had to render: hex(bin), b1+0.
_RENDERED = re.compile(r"hex\((\w+)\)|(\w+)\+0")
_NULL = "<nil>"


def final_state(workload: Path) -> list[ExpectedTable]:
    """What TiDB answered for every table after the last transaction."""
    document = json.loads((workload / "final_state.json").read_text(encoding="utf-8"))
    return [_expected(name, found) for name, found in document.items()]


def _expected(name: str, found: Mapping[str, Any]) -> ExpectedTable:
    columns = [_RENDERED.sub(r"\1\2", column) for column in found["columns"]]
    rows = [[None if text == _NULL else text for text in row] for row in found["rows"]]
    return ExpectedTable(TableId("bank", name), dict.fromkeys(columns, ""), KEYS[name], rows)


def replay_config(
    directory: Path,
    configuration: str,
    *,
    servers: Servers,
    max_records: int | None = None,
) -> Path:
    """A config file that names brokers, registry, topics, protocol and modes: nothing else of the data."""
    source: dict[str, Any] = {
        "brokers": servers["brokers"],
        "protocol": "flat-avro" if configuration.startswith("avro") else "canal-json",
        "topics": f"{servers['prefix']}{{schema}}_{{table}}",
        **_MODES[configuration],
    }
    if source["protocol"] == "flat-avro":
        source["schema-registry"] = servers["registry_url"]
    settings: dict[str, Any] = {
        "pipeline": "replay",
        "source": source,
        "target": {"type": "delta", "path": "./lake"},
        "state": "./state.db",
        "retry": {"for": "120s"},
        "batch": {"executor": executor_of_test()},
        "spark": {"master": "local[2]", "conf": {**SMALL_SPARK, "spark.driver.memory": "1g"}},
    }
    if max_records is not None:
        settings["batch"]["max-records"] = max_records
    path = directory / "tidesink.yaml"
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return path


# As configs.json beside the capture says.
_MODES: dict[str, dict[str, Any]] = {
    "avro_long": {},
    "avro_ext_string": {
        "enable-tidb-extension": True,
        "avro-decimal-handling-mode": "string",
        "avro-bigint-unsigned-handling-mode": "string",
    },
    "canal": {},
    "canal_ext": {"enable-tidb-extension": True},
    "canal_ext_partial": {"enable-tidb-extension": True, "only-output-updated-columns": True},
}


def wrong_values(lake: Path, expected: Iterable[ExpectedTable]) -> list[str]:
    """Every difference between the lake and the expected rows, and columns nobody expects."""
    checks = [check_table(lake / found.table.schema / found.table.name, found) for found in expected]
    return [f"{check.table}: {difference}" for check in checks for difference in check.differences]


def by_name(report: RunReport) -> dict[str, TableReport]:
    """What a run says of each table, by the table's name without its schema."""
    return {table.table.name: table for table in report.tables}
