"""At every cut of a live database the money is all there, while worker and connector are killed.

Writers move it between two tables without a pause, and Debezium's connector sends what they do. A writer
counts its transactions in a row of each table: a cut that has a part of a transaction has two counts.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.testing import CliRunner

from examples.first_load.mariadb import missing_programs, running_mariadb
from tests.absent import without_server
from tests.connect_server import Connect, connect_server
from tests.e2e.debezium_mariadb import BINARY_LOG, mariadb_connector
from tests.e2e.debezium_postgres import connector
from tests.e2e.live_kills import LiveWorker, seed_of_run
from tests.e2e.live_shop import SENDER, LiveServer, MariaDbServer, PostgresServer, new_name
from tests.e2e.live_source import beside
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tests.full import TEST_ALL, each
from tests.postgres_database import own_postgres
from tests.servers import create_topics
from tidesink.cli.main import app
from tidesink.dev.lake_check import open_lake_table
from tidesink.sinks.targets.sql.location import Endpoint

if TYPE_CHECKING:
    import threading

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1800)]
TABLES: Final = ("debts", "savings")
ACCOUNTS: Final = 30
WRITERS: Final = 2
# One of Kafka Connect and one of the worker in turn.
KILLS: Final = 6 if TEST_ALL else 2
_OPENING: Final = 1_000


def _counter(writer: int) -> int:
    return -1 - writer


COUNTERS: Final = frozenset(map(_counter, range(WRITERS)))


class Bank:
    """Two tables of one database whose sum is always the same, and their writers."""

    def __init__(self, server: LiveServer, seed: int) -> None:
        self.transactions = 0
        self._server, self._seed = server, seed

    def open(self) -> None:
        """The tables, before the connector: it sends them by its snapshot."""
        with closing(self._server.connect()) as session, session.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"CREATE TABLE live.{table} (id int PRIMARY KEY, amount bigint NOT NULL)")
                rows = [(number, _OPENING) for number in range(ACCOUNTS)]
                rows += [(_counter(writer), 0) for writer in range(WRITERS)]
                cursor.executemany(f"INSERT INTO live.{table} VALUES (%s, %s)", rows)  # noqa: S608
            session.commit()

    def write(self, writer: int, stop: threading.Event) -> None:
        """Move money until it is to stop. Each writer has accounts of its own, so that none waits."""
        rng, count = random.Random(self._seed + writer), 0
        own = range(writer, ACCOUNTS, WRITERS)
        with closing(self._server.connect()) as session, session.cursor() as cursor:

            def change(table: str, number: int, assigned: str, value: int) -> None:
                cursor.execute(
                    f"UPDATE live.{table} SET amount = {assigned} WHERE id = %s",  # noqa: S608
                    (value, number),
                )

            while not stop.wait(0.01):
                count += 1
                change(TABLES[0], _counter(writer), "%s", count)
                for _ in range(rng.randrange(1, 4)):
                    amount = rng.randrange(-99, 100)
                    for table, part in zip(rng.sample(TABLES, 2), (amount, -amount), strict=True):
                        change(table, rng.choice(own), "amount + %s", part)
                    if rng.random() < 0.2:
                        # The connector may commit its offset within a transaction.
                        stop.wait(0.05)
                if rng.random() < 0.2:
                    self._replace(cursor, rng.choice(TABLES), rng.choice(own))
                change(TABLES[1], _counter(writer), "%s", count)
                session.commit()
                self.transactions += 1

    @staticmethod
    def _replace(cursor: Any, table: str, number: int) -> None:
        """Delete an account, and open it again."""
        cursor.execute(f"SELECT amount FROM live.{table} WHERE id = %s", (number,))  # noqa: S608
        (amount,) = cursor.fetchone()
        cursor.execute(f"DELETE FROM live.{table} WHERE id = %s", (number,))  # noqa: S608
        cursor.execute(f"INSERT INTO live.{table} VALUES (%s, %s)", (number, amount))  # noqa: S608

    def rows(self) -> dict[str, dict[int, int]]:
        """What the tables hold now."""
        with closing(self._server.connect()) as session, session.cursor() as cursor:
            found = {}
            for table in TABLES:
                cursor.execute(f"SELECT id, amount FROM live.{table}")  # noqa: S608
                found[table] = {int(number): int(amount) for number, amount in cursor.fetchall()}
            return found


def check(rows: dict[str, dict[int, int]], earlier: list[int]) -> list[int]:
    """Every transaction is there as a whole, and none of before is missing; how many there are of each."""
    counts = [[rows[table][_counter(writer)] for writer in range(WRITERS)] for table in TABLES]
    assert counts[0] == counts[1], "a transaction is there in part"
    assert all(now >= before for now, before in zip(counts[0], earlier, strict=True)), "a cut went back"
    money = [amount for table in rows.values() for number, amount in table.items() if number not in COUNTERS]
    assert (len(money), sum(money)) == (2 * ACCOUNTS, 2 * ACCOUNTS * _OPENING)
    return counts[0]


class Reader:
    """Reads each new cut, whole, by what is not tidesink's worker, and holds it to the bank's law."""

    def __init__(self, lake: Path) -> None:
        self.seen: dict[int, dict[str, dict[int, int]]] = {}
        self._lake = lake
        self._counts = [0] * WRITERS
        self._versions: dict[int, dict[str, int]] = {}

    def look(self) -> None:
        """Read the cuts that are new, the oldest first."""
        if not (self._lake / "_tidesink_cuts" / "_delta_log").exists():
            return
        versions: dict[int, dict[str, int]] = {}
        for row in open_lake_table(self._lake / "_tidesink_cuts").read().to_pylist():
            versions.setdefault(row["commit_ts"], {})[row["table"]] = row["version"]
        for commit_ts in sorted(versions.keys() - self.seen.keys()):
            self._versions[commit_ts] = versions[commit_ts]
            rows = self._rows(commit_ts)
            self._counts = check(rows, self._counts)
            self.seen[commit_ts] = rows

    def look_again(self) -> None:
        """What a cut names stays."""
        assert {at: self._rows(at) for at in self.seen} == self.seen

    def _rows(self, commit_ts: int) -> dict[str, dict[int, int]]:
        found = {}
        for table in TABLES:
            version = self._versions[commit_ts][table]
            read = open_lake_table(self._lake / "live" / table, version).read().to_pylist()
            found[table] = {row["id"]: row["amount"] for row in read}
            assert len(found[table]) == len(read)
        return found


@contextmanager
def _server(source: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    with ExitStack() as until_the_end:
        found: LiveServer
        if source == "mariadb":
            if missing_programs():
                without_server("no mariadbd here: apt-get install mariadb-server-core")
            found = MariaDbServer(until_the_end.enter_context(running_mariadb(folder, *BINARY_LOG)))
        else:
            endpoint: Endpoint = request.getfixturevalue("postgres")
            url = until_the_end.enter_context(own_postgres(endpoint, "live{}"))
            found = PostgresServer(endpoint, url.rpartition("/")[2])
        found.create()
        if isinstance(found, PostgresServer):
            until_the_end.callback(found.drop_reader)
        yield found


@contextmanager
def _sending(connect: Connect, server: LiveServer, brokers: str, name: str) -> Iterator[None]:
    """The connector, with its own snapshot, and heartbeats, by which the last transaction is known to end."""
    modes: dict[str, Any] = {"snapshot_mode": "initial", "heartbeat_interval_ms": "500"}
    if isinstance(server, MariaDbServer):
        with mariadb_connector(connect, server.server, brokers, name, SENDER, **modes):
            yield
    else:
        with connector(connect, server.admin_url, name, **modes):
            yield


def _config(folder: Path, servers: Servers, name: str) -> Path:
    source = {
        "brokers": servers["brokers"],
        "protocol": "debezium-json",
        "topics": [f"{name}.live.{table}" for table in TABLES],
        "debezium": {"offsets-topic": f"{name}.offsets", "connector-name": name},
    }
    return shop_config(folder, servers, {"source": source, "cuts": {"every": "2s"}})


@pytest.mark.parametrize("source", each(("mariadb", "postgres"), full=("postgres",)))
def test_the_money_is_all_there_at_every_cut_of_a_live_database(
    tmp_path: Path, servers: Servers, source: str, request: pytest.FixtureRequest
) -> None:
    seed, name, brokers = seed_of_run(), new_name(), servers["brokers"]
    rng = random.Random(seed)
    (tmp_path / "source").mkdir()
    topics = {f"{name}.live.{table}": 3 for table in TABLES}
    create_topics(brokers, {**topics, f"{name}.history": 1, f"__debezium-heartbeat.{name}": 1})
    config = _config(tmp_path, servers, name)
    with (
        _server(source, tmp_path / "source", request) as server,
        connect_server(brokers, tmp_path, name, source) as connect,
    ):
        bank = Bank(server, seed)
        bank.open()
        with ExitStack() as writing, _sending(connect, server, brokers, name):
            for writer in range(WRITERS):
                writing.enter_context(beside(partial(bank.write, writer)))
            worker, reader = LiveWorker(config), Reader(tmp_path / "lake")
            try:
                worker.wait_until(lambda: _has_more(reader, 1))
                for kill in range(KILLS):
                    time.sleep(rng.uniform(0, 4))
                    if kill % 2:
                        worker.kill()
                        worker.start()
                    else:
                        connect.kill()
                    before = len(reader.seen)
                    worker.wait_until(lambda: _has_more(reader, before + 1))  # noqa: B023  (done at once)
                writing.close()
                last = bank.rows()
                worker.wait_until(lambda: _has_more(reader, 1) and reader.seen[max(reader.seen)] == last)
                worker.wait_until(lambda: _is_shown(config, max(reader.seen)))
            finally:
                worker.end()
            reader.look_again()
    sys.stderr.write(f"{source}: {bank.transactions} transactions, {len(reader.seen)} cuts\n")


def _has_more(reader: Reader, count: int) -> bool:
    reader.look()
    return len(reader.seen) >= count


def _is_shown(config: Path, last: int) -> bool:
    """Whether the commands show a cut, with its time, and that its number is a position."""
    runner = CliRunner()
    found = runner.invoke(app, ["status", "--config", str(config)])
    assert found.exit_code == 0, found.output
    if f"s ago (position {last})" not in found.stdout:
        return False  # the lake has it before the state store
    listed = runner.invoke(app, ["cut", "list", "--config", str(config), "--output", "json"])
    times: dict[int, str] = {one["commit_ts"]: one["time"] for one in json.loads(listed.stdout)["cuts"]}
    return times[last].startswith("20")
