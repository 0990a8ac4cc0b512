"""A captured changefeed through the worker into Kafka in another codec, and into an HTTP endpoint.

What was sent, decoded and reduced by its keys, is what TiDB held; after SIGKILL in the middle of a batch's
requests as well. SIGKILL at each named step of a batch: ``test_kill``.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.killing import finish, kill_group, start_worker
from tests.e2e.passed_on import reduced, rows_of_objects, wrong_rows
from tests.e2e.replay import Servers, captured, final_state, replay, replay_config
from tests.full import FULL
from tests.http_receiver import Receiver, Request, http_receiver
from tests.kafka_topics import topic_messages
from tidesink.codecs import CODECS
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.open import open_codec
from tidesink.config import load_config
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import TableId
from tidesink.schema_registry import open_registry
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def config_for(
    folder: Path, configuration: str, servers: Servers, target: Mapping[str, Any], size: int
) -> Path:
    """The replay's config with another target."""
    path = replay_config(folder, configuration, servers=servers, max_records=size)
    settings = {**json.loads(path.read_text(encoding="utf-8")), "target": dict(target)}
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return path


def kafka_target(servers: Servers, protocol: str, **more: Any) -> dict[str, Any]:
    """Topics of the same broker, beside those that are read."""
    registry = {"schema-registry": servers["registry_url"]} if CODECS[protocol].registry else {}
    topic = f"to-{servers['prefix']}{{schema}}_{{table}}"
    return {
        "type": "kafka",
        "brokers": servers["brokers"],
        "topic": topic,
        "protocol": protocol,
        **registry,
        **more,
    }


def captured_definitions(workload: Path) -> TableDefinitions:
    """The tables by their own DDL: a canal-json reader knows ENUM labels from nowhere else."""
    import base64

    from tidesink.events import Message

    codec = CanalJsonCodec()
    for record in captured(workload, "canal"):
        value = base64.b64decode(record["value_b64"])
        if b'"isDdl":true' in value:
            codec.decode(Message(record["topic"], 0, 0, None, value))
    return codec.definitions


def _only(table: TableId, _topic: str) -> TableId:
    return table


def wrong_in_kafka(workload: Path, servers: Servers, protocol: str, tables: set[str]) -> list[str]:
    """Every difference between what the topics leave and what TiDB held."""
    wrong = []
    for expected in final_state(workload):
        if expected.table.name not in tables:
            continue
        codec = open_codec(
            protocol,
            registry=open_registry(servers["registry_url"]),
            table_of_topic=partial(_only, expected.table),
            definitions=captured_definitions(workload),
        )
        topic = f"to-{servers['prefix']}{expected.table.schema}_{expected.table.name}"
        wrong += wrong_rows(reduced(topic_messages(servers["brokers"], topic), codec, expected.key), expected)
    return wrong


ALL = {"account", "movement", "pair", "wide"}


@pytest.mark.parametrize(
    ("configuration", "protocol"),
    [
        pytest.param("avro_ext_string", "canal-json", marks=FULL),
        pytest.param("canal", "flat-avro", marks=FULL),
        pytest.param("canal_ext", "debezium-avro", marks=FULL),
    ],
)
def test_one_codec_into_another(
    spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers, configuration: str, protocol: str
) -> None:
    replay(workload, configuration, servers=servers)
    # What TiCDC's Debezium has no other place for: numbers from 2^63 on.
    more = {f"avro-{what}-handling-mode": "string" for what in ("decimal", "bigint-unsigned")}
    target = kafka_target(servers, protocol, **(more if protocol == "debezium-avro" else {}))
    report = run(load_config(config_for(tmp_path, configuration, servers, target, 900)), until="drained")
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    assert wrong_in_kafka(workload, servers, protocol, ALL) == []


# A worker into messages: above. Requests: the contracts, by a whole stream in test_targets_codecs.py.
@FULL
def test_a_changefeed_into_an_endpoint(
    spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers
) -> None:
    replay(workload, "canal_ext", servers=servers)
    with http_receiver() as receiver:
        target = {"type": "http", "url": f"{receiver.url}/{{schema}}/{{table}}", "batch-rows": 100}
        config = config_for(tmp_path, "canal_ext", servers, target, 900)
        report = run(load_config(config), until="drained")
    assert report.exit_code == 0, [(table.table, table.error) for table in report.tables]
    assert wrong_at(receiver, workload, ALL) == []


def wrong_at(receiver: Receiver, workload: Path, tables: set[str]) -> list[str]:
    """Every difference between what an endpoint keeps and what TiDB held."""
    wrong = []
    for expected in final_state(workload):
        if expected.table.name in tables:
            rows = rows_of_objects(receiver.objects(expected.table), expected.key)
            wrong += wrong_rows(rows, expected)
    return wrong


def test_a_topic_that_the_pipeline_reads_is_no_target(
    spark: SparkSession, tmp_path: Path, workload: Path, servers: Servers
) -> None:
    replay(workload, "canal", servers=servers, only={"bank_account"})
    # The very rule of the source is refused with the config; a topic that it matches shows when it is opened.
    target = kafka_target(servers, "canal-json", topic=f"{servers['prefix']}bank_account")
    report = run(load_config(config_for(tmp_path, "canal", servers, target, 900)), until="drained")
    assert report.exit_code != 0
    assert "Add a prefix to `target.topic`" in (report.tables[0].error or "")


@FULL
def test_an_endpoint_after_a_kill_between_two_requests_of_a_batch(
    tmp_path: Path, workload: Path, servers: Servers
) -> None:
    """The third request of a batch is taken and its answer never read: the restart sends the same slices."""
    replay(workload, "canal_ext", servers=servers, only={"bank_account"})
    table = TableId("bank", "account")
    with http_receiver() as receiver:
        target = {"type": "http", "url": f"{receiver.url}/in", "batch-rows": 20, "parallel-requests": 1}
        config = config_for(tmp_path, "canal_ext", servers, target, 300)
        log = tmp_path / "worker.log"
        worker = start_worker(config, log)

        def kill(request: Request) -> None:
            if int(request.headers["tidesink-batch"]) == 2 and receiver.count(batch=2) == 3:
                kill_group(worker)

        receiver.on_taken = kill
        assert finish(worker, log).code == -signal.SIGKILL
        assert receiver.count(batch=2) == 3
        receiver.on_taken = None
        ending = finish(start_worker(config, log), log)
        assert ending.code == 0, ending.output
        assert wrong_at(receiver, workload, {"account"}) == []
        again = [one.headers["idempotency-key"] for one in receiver.requests]
        assert len(again) - len(set(again)) >= 2  # slices that were taken before came under the same keys
        assert len(receiver.taken) == len(set(again))
    assert receiver.objects(table)
