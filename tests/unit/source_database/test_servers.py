"""Which servers of MySQL's protocol are replicas, and whether XA transactions may be open in them.

The answers are those of MySQL 8.4 and MariaDB 11, to statements that a MySQL server alone refuses.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from tidesink.errors import ConfigError
from tidesink.source_database.base import IS_REPLICA
from tidesink.source_database.mysql import check_current, open_transactions, uses_xa

OLD: Final = 2 * 24 * 3600
_hosts = itertools.count()


class _RefusedError(Exception):
    pass


@dataclass
class Server:
    """What a server answers. ``channels``: None if the user may not list them; so is ``prepared``."""

    variables: Mapping[str, str] = field(default_factory=dict)
    status: Mapping[str, int] = field(default_factory=dict)
    channels: Sequence[Mapping[str, Any]] | None = ()
    prepared: Sequence[str] | None = ()
    is_mariadb: bool = False
    replica: bool = False

    def __post_init__(self) -> None:
        self.dialect = SimpleNamespace(is_mariadb=self.is_mariadb)
        self.info = {"tidesink.variables": dict(self.variables), IS_REPLICA: self.replica}
        # A warning is logged once for each server.
        self.engine = SimpleNamespace(url=SimpleNamespace(host=f"server{next(_hosts)}", port=3306))

    def exec_driver_sql(self, statement: str) -> Any:
        """The rows of an answer."""
        if statement.startswith("SHOW GLOBAL STATUS"):
            return _answer([(name, str(n)) for name, n in self.status.items() if f"'{name}'" in statement])
        if statement.startswith("XA RECOVER"):
            self._refuse_none(self.prepared, 1401)
            return _answer([("1", "1", "0", name) for name in self.prepared or ()])
        own = "SHOW ALL SLAVES STATUS" if self.is_mariadb else "SHOW REPLICA STATUS"
        self._refuse_none(None if statement != own else (), 1064)
        self._refuse_none(self.channels, 1227)
        return _answer(list(self.channels or ()))

    def _refuse_none(self, found: object, code: int) -> None:
        if found is None:
            raise DBAPIError.instance(None, None, _RefusedError(code, "no"), _RefusedError)


def _answer(rows: list[Any]) -> Any:
    return SimpleNamespace(all=lambda: rows, mappings=lambda: SimpleNamespace(all=lambda: rows))


def _channel(io: str, sql: str, name: str = "", word: str = "Replica") -> dict[str, Any]:
    return {"Channel_Name": name, f"{word}_IO_Running": io, f"{word}_SQL_Running": sql, "Source_Host": "b"}


STOPPED: Final = _channel("No", "No")


@pytest.mark.parametrize(
    "server",
    [
        Server({"read_only": "ON"}),
        Server({"super_read_only": "1"}, channels=[STOPPED]),
        Server(channels=[_channel("Yes", "Yes")]),
        Server(channels=[STOPPED, _channel("Connecting", "No", "other")]),
        Server(channels=[_channel("No", "Yes")]),
        Server(channels=[_channel("Preparing", "No", word="Slave")], is_mariadb=True),
        Server(channels=None, status={"Slaves_running": 1}),
    ],
)
def test_a_server_that_is_read_only_or_replicates_is_a_replica(server: Server) -> None:
    with pytest.raises(ConfigError, match="is a replica"):
        check_current(cast(Any, server))


@pytest.mark.parametrize(
    ("server", "warns"),
    [
        (Server({"read_only": "OFF"}), False),
        (Server(channels=[_channel("Yes", "Yes", "group_replication_applier")]), False),
        (Server(channels=None, status={"Slaves_running": 0}), False),
        # It was promoted, and takes the writes.
        (Server(channels=[STOPPED]), True),
        (Server(channels=[_channel("No", "No", word="Slave"), _channel("No", "No", "b", "Slave")]), True),
        (Server(channels=[_channel("No", "No", word="Slave")], is_mariadb=True), True),
        (Server({"tidb_snapshot": "", "read_only": "ON"}), False),
    ],
)
def test_a_server_that_takes_writes_and_runs_no_channel_is_none(server: Server, warns: bool) -> None:
    with capture_logs() as logs:
        check_current(cast(Any, server))
        check_current(cast(Any, server))
    assert ["RESET REPLICA ALL" in one["reason"] for one in logs] == [True] * warns


@pytest.mark.parametrize("counter", ["start", "end", "prepare", "commit", "rollback"])
def test_each_statement_of_xa_shows_that_applications_use_it(counter: str) -> None:
    """After a restart the counters begin at 0; what survived it is committed or rolled back."""
    status = {f"Com_xa_{counter}": 1, "Uptime": OLD}
    with pytest.raises(ConfigError, match="XA_RECOVER_ADMIN"):
        open_transactions(cast(Any, Server(status=status, prepared=None)))
    assert open_transactions(cast(Any, Server(status=status))) == frozenset()
    assert uses_xa(cast(Any, Server(status=status)))
    assert uses_xa(cast(Any, Server(status=status, prepared=None)))


def test_open_transactions_are_listed() -> None:
    server = Server(prepared=["a", "b"], replica=True)
    assert open_transactions(cast(Any, server)) == {"1 1 0 a", "1 1 0 b"}
    assert uses_xa(cast(Any, server))
    assert not uses_xa(cast(Any, Server(status={"Com_xa_recover": 5, "Uptime": 1})))


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (Server(status={"Uptime": 60}, prepared=None), "started less than a day ago"),
        (Server(status={"Uptime": OLD}, prepared=None, replica=True), "does not count the XA"),
        (Server(status={"Uptime": OLD}, prepared=None), ""),
    ],
)
def test_where_open_transactions_can_be_neither_listed_nor_counted_a_warning_says_so(
    server: Server, words: str
) -> None:
    """Cuts are refused there, as one could hold a part of a transaction."""
    with capture_logs() as logs:
        assert open_transactions(cast(Any, server)) == frozenset()
        assert open_transactions(cast(Any, server)) == frozenset()
    assert [words in one["reason"] and "XA_RECOVER_ADMIN" in one["reason"] for one in logs] == (
        [True] if words else []
    )
    if not words:
        assert not uses_xa(cast(Any, server))
        return
    with pytest.raises(ConfigError, match=rf"{words}.*A cut could.*XA_RECOVER_ADMIN"):
        uses_xa(cast(Any, server))
