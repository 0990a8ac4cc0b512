"""A live connector's DDL: a partition goes, columns swap their names, a table is replaced."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from typer.testing import CliRunner

from examples.first_load.mariadb import missing_programs, running_mariadb
from tests.absent import without_server
from tests.connect_server import connect_server
from tests.e2e.debezium_mariadb import BINARY_LOG, mariadb_connector
from tests.e2e.debezium_postgres import wait_until_sent
from tests.e2e.live_shop import SENDER, MariaDbServer, new_name
from tests.e2e.places import Place, place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tests.full import FULL
from tests.servers import create_topics
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.events import TableId
from tidesink.sinks.worker.run import run
from tidesink.sinks.worker.source_ddl import SETTLED_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [FULL, pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1800)]
PARTS: Final = TableId("live", "parts")
T: Final = TableId("live", "t")
_CREATE: Final = """CREATE TABLE live.parts (id int, k int, PRIMARY KEY (id, k))
    PARTITION BY RANGE (k) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)"""


class Live:
    """A MariaDB whose changes a connector sends, and workers that copy one table of it."""

    def __init__(self, server: MariaDbServer, place: Place, path: Path, brokers: str, name: str) -> None:
        self._server, self._place, self._config = server, place, load_config(path)
        self._path, self._brokers, self._name = path, brokers, name
        self._known = 0.0

    def execute(self, *statements: str) -> list[tuple[int, ...]]:
        """Run statements at the source; what the last of them gives."""
        with closing(self._server.connect()) as session, session.cursor() as cursor:
            for one in statements:
                cursor.execute(one)
            session.commit()
            return [tuple(map(int, row)) for row in cursor.fetchall()]

    def sent(self, table: TableId, row: bytes, ddl: bytes = b"", *, count: int = 1) -> None:
        """Wait until the connector has sent rows, and DDL."""
        if ddl:
            wait_until_sent(self._brokers, self._name, 1, ddl)
            self._known = time.time()
        wait_until_sent(self._brokers, f"{self._name}.{table}", 3, row, count=count)

    def states(self) -> list[str]:
        """Of the tables, after workers have applied what they can."""
        return [one.state for one in run(self._config, until="drained").tables]

    def settled_states(self) -> list[str]:
        """The same, once a producer can hold back nothing of before the DDL."""
        time.sleep(max(0.0, self._known + SETTLED_SECONDS - time.time()))
        return self.states()

    def approve(self, table: TableId) -> None:
        """Have a resync follow the DDL for which a table waits."""
        answer = CliRunner().invoke(app, ["ddl", "approve", str(table), "-c", str(self._path)])
        assert answer.exit_code == 0, answer.output

    def copied(self, table: TableId, *columns: str) -> list[tuple[int, ...]]:
        """The rows of the target."""
        return sorted(tuple(row[name] for name in columns) for row in self._place.rows(table) or ())


@contextmanager
def _live(
    table: TableId,
    create: str,
    folder: Path,
    servers: Servers,
    request: pytest.FixtureRequest,
    changes: dict[str, str],
) -> Iterator[Live]:
    if missing_programs():
        without_server("no mariadbd here: apt-get install mariadb-server-core")
    place, name, brokers = place_of("postgres", request, folder), new_name(), servers["brokers"]
    (folder / "source").mkdir()
    create_topics(brokers, {f"{name}.{table}": 3, name: 1, f"{name}.history": 1})
    with (
        running_mariadb(folder / "source", *BINARY_LOG) as own,
        connect_server(brokers, folder, name, "mariadb") as connect,
    ):
        server = MariaDbServer(own)
        server.create()
        source = {
            "brokers": brokers,
            "protocol": "debezium-json",
            "topics": [f"{name}.{table}"],
            "debezium": {"schema-change-topic": name},
            "database": server.url,
        }
        settings = {"source": source, "target": place.target, "defaults": {"schema-changes": changes}}
        live = Live(server, place, shop_config(folder, servers, settings), brokers, name)
        live.execute(create)
        with mariadb_connector(connect, own, brokers, name, SENDER, ddl=True):
            yield live


def test_a_partition_that_goes_at_a_live_source(
    spark: SparkSession, tmp_path: Path, servers: Servers, request: pytest.FixtureRequest
) -> None:
    """The table waits by what the connector wrote; approved, the rows of the partition go."""
    with _live(PARTS, _CREATE, tmp_path, servers, request, {}) as live:
        live.execute("INSERT INTO live.parts SELECT seq, seq FROM live.seq_0_to_19")
        live.sent(PARTS, b'"op":"c"', count=20)
        assert (live.states(), len(live.copied(PARTS, "id"))) == (["IDLE"], 20)
        live.execute("ALTER TABLE live.parts DROP PARTITION p0", "INSERT INTO live.parts VALUES (99, 99)")
        live.sent(PARTS, b'"id":99', b"DROP PARTITION")
        assert live.states() == ["PAUSED"]
        live.approve(PARTS)
        assert live.settled_states() == ["IDLE"]
        copied = live.copied(PARTS, "id", "k")
        assert copied == sorted(live.execute("SELECT id, k FROM live.parts")) != []
        assert (1, 1) not in copied


def test_a_table_whose_columns_swap_names_and_that_is_replaced(
    spark: SparkSession, tmp_path: Path, servers: Servers, request: pytest.FixtureRequest
) -> None:
    """No column comes or goes, and rows go without an event: only the connector's DDL says so."""
    create = "TABLE live.t (id int PRIMARY KEY, a int, b int)"
    changes = {"rename": "pause", "drop-table": "apply"}
    with _live(T, f"CREATE {create}", tmp_path, servers, request, changes) as live:
        live.execute("INSERT INTO live.t VALUES (1, 10, 11), (2, 20, 21)")
        live.sent(T, b'"op":"c"', count=2)
        assert live.states() == ["IDLE"]
        assert live.copied(T, "id", "a", "b") == [(1, 10, 11), (2, 20, 21)]
        live.execute(f"CREATE OR REPLACE {create}", "INSERT INTO live.t VALUES (4, 40, 41)")
        live.sent(T, b'"id":4', b"OR REPLACE")
        # The connector read nothing of its columns, so that a person says whether they are the same.
        assert live.states() == ["PAUSED"]
        live.approve(T)
        assert live.settled_states() == ["IDLE"]
        assert live.copied(T, "id", "a", "b") == [(4, 40, 41)]
        live.execute("ALTER TABLE live.t RENAME COLUMN a TO b, RENAME COLUMN b TO a")
        live.sent(T, b'"id":4', b"RENAME COLUMN")
        assert live.states() == ["PAUSED"]
        live.approve(T)
        assert live.settled_states() == ["IDLE"]
        assert live.copied(T, "id", "a", "b") == [(4, 41, 40)]
