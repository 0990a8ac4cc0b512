"""A live connector's DDL: a partition goes at the source while the table changes."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from typer.testing import CliRunner

from tests.absent import without_server
from tests.connect_server import connect_server
from tests.e2e.debezium_mariadb import BINARY_LOG, mariadb_connector
from tests.e2e.debezium_postgres import wait_until_sent
from tests.e2e.live_shop import SENDER, MariaDbServer, new_name
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tests.full import FULL
from tests.servers import create_topics
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.dev.mariadb import missing_programs, running_mariadb
from tidesink.events import TableId
from tidesink.sinks.worker.run import run
from tidesink.sinks.worker.source_ddl import SETTLED_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [FULL, pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1800)]
PARTS: Final = TableId("live", "parts")
_CREATE: Final = """CREATE TABLE live.parts (id int, k int, PRIMARY KEY (id, k))
    PARTITION BY RANGE (k) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)"""


def test_a_partition_that_goes_at_a_live_source(
    spark: SparkSession, tmp_path: Path, servers: Servers, request: pytest.FixtureRequest
) -> None:
    """The table waits by what the connector wrote; approved, the rows of the partition go."""
    if missing_programs():
        without_server("no mariadbd here: apt-get install mariadb-server-core")
    place, name, brokers = place_of("postgres", request, tmp_path), new_name(), servers["brokers"]
    topic = f"{name}.live.parts"
    (tmp_path / "source").mkdir()
    create_topics(brokers, {topic: 3, name: 1, f"{name}.history": 1})
    with (
        running_mariadb(tmp_path / "source", *BINARY_LOG) as own,
        connect_server(brokers, tmp_path, name, "mariadb") as connect,
    ):
        server = MariaDbServer(own)
        server.create()

        def execute(*statements: str) -> list[tuple[int, int]]:
            with closing(server.connect()) as session, session.cursor() as cursor:
                for one in statements:
                    cursor.execute(one)
                session.commit()
                return [(int(a), int(b)) for a, b in cursor.fetchall()]

        execute(_CREATE)
        with mariadb_connector(connect, own, brokers, name, SENDER, ddl=True):
            source = {
                "brokers": brokers,
                "protocol": "debezium-json",
                "topics": [topic],
                "debezium": {"schema-change-topic": name},
                "database": server.url,
            }
            path = shop_config(tmp_path, servers, {"source": source, "target": place.target})
            config = load_config(path)

            def states() -> list[str]:
                return [one.state for one in run(config, until="drained").tables]

            def copied() -> list[tuple[int, int]]:
                return sorted((row["id"], row["k"]) for row in place.rows(PARTS) or ())

            execute("INSERT INTO live.parts SELECT seq, seq FROM live.seq_0_to_19")
            wait_until_sent(brokers, topic, 3, b'"op":"c"', count=20)
            assert (states(), len(copied())) == (["IDLE"], 20)
            execute("ALTER TABLE live.parts DROP PARTITION p0", "INSERT INTO live.parts VALUES (99, 99)")
            wait_until_sent(brokers, name, 1, b"DROP PARTITION")
            wait_until_sent(brokers, topic, 3, b'"id":99')
            known = time.time()
            assert states() == ["PAUSED"]
            answer = CliRunner().invoke(app, ["ddl", "approve", str(PARTS), "-c", str(path)])
            assert answer.exit_code == 0, answer.output
            # What the producer may still hold back goes first.
            time.sleep(max(0.0, known + SETTLED_SECONDS - time.time()))
            assert states() == ["IDLE"]
            assert copied() == sorted(execute("SELECT id, k FROM live.parts")) != []
            assert (1, 1) not in copied()
