"""First load, stream and comparison over TiCDC's own bytes, while the worker and all around it are killed.

A MariaDB goes through the captured changefeed, change by change, and the broker gets the bytes of each change
behind its commit. The first changes are not sent: they are what the first load is for.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pymysql
import pytest
from confluent_kafka import Producer

from examples.first_load.mariadb import MariaDb, missing_programs, running_mariadb
from tests.absent import without_server
from tests.e2e.diffing import tables_of_diff
from tests.e2e.killing import finish, start_worker
from tests.e2e.live_kills import Kills, LiveWorker, kill_broker, seed_of_run, snapshots
from tests.e2e.live_source import beside
from tests.e2e.replay import (
    PARTITIONS,
    Servers,
    captured,
    final_state,
    register_schemas,
    replay_config,
    with_own_id,
    wrong_values,
)
from tests.full import FULL
from tests.golden.vectors import unbase64
from tests.servers import create_topics, local_stack
from tidesink.dev.stack import DevStack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [FULL, pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(3600)]

KILLS: Final = int(os.environ.get("TIDESINK_LIVE_KILLS", "10"))
# Changes that are made and not sent.
UNSENT: Final = 2_000
READER: Final = "bank_reader"
_BYTES: Final = ("binary", "varbinary", "blob")
_NUMBERED: Final = ("enum", "set", "bit")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevStack]:
    """A broker that may be killed."""
    with local_stack(tmp_path_factory.mktemp("killed stack")) as found:
        yield found


class Bank:
    """The database that goes through the changefeed."""

    def __init__(self, server: MariaDb) -> None:
        self._server = server
        with closing(self._connect()) as session, session.cursor() as cursor:
            for host in ("%", "localhost"):
                cursor.execute(f"CREATE USER {READER}@'{host}'")
                cursor.execute(f"GRANT SELECT ON bank.* TO {READER}@'{host}'")
        self._session = self._connect()

    def _connect(self) -> Any:
        settings = "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,ALLOW_INVALID_DATES'"
        return pymysql.connect(
            host="127.0.0.1",
            port=self._server.port,
            user="root",
            charset="utf8mb4",
            init_command=settings,
            autocommit=True,
        )

    @property
    def url(self) -> str:
        """The reader's."""
        return f"mysql+pymysql://{READER}@{self._server.address}"

    def apply(self, event: dict[str, Any]) -> None:
        """What a canal-json event says."""
        with self._session.cursor() as cursor:
            if event["isDdl"]:
                cursor.execute(event["sql"])
                return
            table = f"bank.`{event['table']}`"
            (data,) = event["data"]
            row = {name: _value(text, event["mysqlType"][name]) for name, text in data.items()}
            key = {name: row[name] for name in event["pkNames"]}
            where = " AND ".join(f"`{name}` = %s" for name in key)
            if event["type"] == "DELETE":
                changed = cursor.execute(f"DELETE FROM {table} WHERE {where}", [*key.values()])  # noqa: S608
                assert changed == 1, event
            elif event["type"] == "UPDATE":
                given = ", ".join(f"`{name}` = %s" for name in row)
                statement = f"UPDATE {table} SET {given} WHERE {where}"  # noqa: S608
                cursor.execute(statement, [*row.values(), *key.values()])
            else:
                names, places = ", ".join(f"`{name}`" for name in row), ", ".join(["%s"] * len(row))
                cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", [*row.values()])  # noqa: S608

    def cut(self) -> bool:
        """End all connections of the reader; whether there were some."""
        with closing(self._connect()) as session, session.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (READER,))
            found = [number for (number,) in cursor.fetchall()]
            for number in found:
                try:
                    cursor.execute(f"KILL {number}")
                except pymysql.MySQLError:  # it has ended
                    found.remove(number)
        return bool(found)


def _value(text: str | None, kind: str) -> Any:
    if text is None:
        return None
    base = re.split(r"[ (]", kind)[0]
    if base in _BYTES:
        return text.encode("latin-1")
    return int(text) if base in _NUMBERED else text


class Feed:
    """The changefeed's bytes, each behind the change in the bank."""

    def __init__(self, workload: Path, configuration: str, servers: Servers, bank: Bank) -> None:
        avro = configuration.startswith("avro")
        changes = [*captured(workload, "canal" if avro else configuration)]
        records = iter([*captured(workload, configuration)])
        events = [json.loads(unbase64(one["value_b64"]) or b"") for one in changes]
        # Both are captures of the same transactions; flat-avro has no records of DDL.
        self._steps = [(event, None if avro and event["isDdl"] else next(records)) for event in events]
        sent = [record for _, record in self._steps if record is not None]
        topics = {f"{servers['prefix']}{record['topic']}" for record in sent}
        create_topics(servers["brokers"], dict.fromkeys(topics, PARTITIONS))
        register = (workload, sent, servers["registry_url"], servers["prefix"])
        self._ids = register_schemas(*register) if avro else {}
        self._servers, self._bank = servers, bank
        self._producer = Producer(
            {"bootstrap.servers": servers["brokers"], "enable.idempotence": True, "log_level": 0}
        )
        self.unsent = self.sent = 0

    def load(self) -> None:
        """The changes of before the first load: of these DDL alone is sent."""
        while self.unsent < UNSENT:
            event, record = self._steps.pop(0)
            self._bank.apply(event)
            if event["isDdl"] and record is not None:
                self._send(record)
            self.unsent += not event["isDdl"]

    def run(self, pause: float, stop: threading.Event) -> None:
        """One change after another, until there is none or ``stop`` is set."""
        while self._steps and not stop.wait(pause):
            self.step()

    def step(self) -> None:
        """The next change."""
        event, record = self._steps.pop(0)
        self._bank.apply(event)
        if record is not None:
            self._send(record)
            self.sent += 1

    def finish(self) -> None:
        """All that is left, and wait until the broker has it."""
        while self._steps:
            self.step()
        assert self._producer.flush(240) == 0

    def _send(self, record: dict[str, Any]) -> None:
        self._producer.produce(
            f"{self._servers['prefix']}{record['topic']}",
            key=with_own_id(unbase64(record["key_b64"]), self._ids),
            value=with_own_id(unbase64(record["value_b64"]), self._ids),
            partition=record["partition"],
        )
        self._producer.poll(0)


@pytest.mark.parametrize("configuration", ["avro_long", "canal", "canal_ext_partial", "avro_ext_string"])
def test_a_changefeed_is_copied_under_kills(
    spark: SparkSession,
    stack: DevStack,
    tmp_path: Path,
    workload: Path,
    topic_prefix: str,
    configuration: str,
) -> None:
    """The bytes of TiCDC follow each commit, while the worker dies; the rows of before were never sent."""
    if missing_programs():
        without_server("no mariadbd here: apt-get install mariadb-server-core")
    rng = random.Random(seed_of_run())
    brokers, registry_url = stack.addresses
    servers = Servers(brokers=brokers, registry_url=registry_url, prefix=f"{topic_prefix}-")
    with running_mariadb(tmp_path, "collation-server=utf8mb4_bin") as server:
        bank = Bank(server)
        feed = Feed(workload, configuration, servers, bank)
        feed.load()
        config = _config(tmp_path, configuration, servers, bank)
        worker = LiveWorker(config)
        others = {
            "task": lambda: worker.kill_a_task(rng),
            "broker": lambda: kill_broker(stack, rng),
            "connection to the source": bank.cut,
        }
        kills = Kills(worker, others, rng)
        try:
            with beside(partial(feed.run, 0.03)):
                kills.make(KILLS)
            worker.kill()
        finally:
            worker.end()
        streamed = feed.sent
        feed.finish()
        ending = finish(start_worker(config, tmp_path / "last.log"), tmp_path / "last.log")
        assert ending.code == 0, ending.output
        assert {*snapshots(config)} == {"done"}
        code, found = tables_of_diff(config)
        assert code == 0, found
        assert [one["equal"] for one in found] == [one["at_source"] for one in found]
        # What TiDB held at the end, which nobody here had to do with.
        expected = final_state(workload)
        assert wrong_values(tmp_path / "lake", expected) == []
        sys.stderr.write(
            f"{configuration}: {sum(len(one.rows) for one in expected)} rows, {feed.unsent} changes unsent, "
            f"{feed.sent} sent, {streamed} of them while workers were killed; {kills}\n"
        )


def _config(folder: Path, configuration: str, servers: Servers, bank: Bank) -> Path:
    path = replay_config(folder, configuration, servers=servers)
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["source"]["database"] = {"url": bank.url, "chunk-rows": 10, "connections": 2}
    settings["defaults"] = {"snapshot": "initial"}
    settings["batch"] = {**settings.get("batch", {}), "max-records": 100}
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path
