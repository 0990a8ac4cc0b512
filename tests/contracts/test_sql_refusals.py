"""What real servers refuse: the error names what is missing, and the statement or setting that mends it.

Without Spark: the table is opened and claimed, as a worker does before its first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.contracts.sql_beds import mysql_server, postgres_database
from tests.contracts.targets_bed import shape
from tests.postgres import WITH_PASSWORD
from tests.unit.config.samples import CANAL_JSON, changed, right
from tidesink.cli.plan import target_answer
from tidesink.errors import ConfigError, TargetError, TransientTargetError
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.sql.dialect import Connections, Dialect
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.mysql import mysql_dialect
from tidesink.sinks.targets.sql.postgres import postgres_dialect
from tidesink.sinks.targets.sql.target import SqlTarget

pytestmark = pytest.mark.servers
SHAPE = shape()
USER = WITH_PASSWORD


@dataclass
class Server:
    """A database with the table of ``SHAPE``, made by an owner; ``user`` may log in and no more."""

    dialect: Dialect
    owner: Endpoint
    user: Endpoint
    run: Callable[[str], None]

    def claim(self) -> None:
        """Open and claim the table as ``user``."""
        connections = Connections(self.dialect, self.user)
        try:
            SqlTarget(connections).open_table(SHAPE, pipeline="shop").claim()
        finally:
            connections.close()

    def config(self, **target: Any) -> Any:
        """The config of a pipeline that writes the table as ``user``."""
        kind = self.dialect.database
        scheme = "postgresql" if kind == "postgres" else "mysql"
        url = f"{scheme}://{self.user.host}:{self.user.port}/{self.user.database}"
        section = {"type": kind, "url": url, "user": self.user.user, "password": self.user.password}
        tables = [{"name": str(SHAPE.table)}]
        return right(changed(CANAL_JSON, target={**section, **target}, tables=tables))

    def missing(self) -> tuple[str, ...]:
        """What ``validate --connect`` says is missing."""
        config = self.config()
        missing = target_module(config.target).PREFLIGHT.missing_grants(config, [SHAPE.table])
        assert missing is not None
        return missing


@pytest.fixture(params=["postgres", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A user without rights beside the table of another one."""
    dialect: Dialect
    if request.param == "postgres":
        dialect, owner = postgres_dialect(), postgres_database(request)
        made = f"CREATE ROLE {USER} LOGIN PASSWORD 'opensesame'"
        dropped = f"DROP OWNED BY {USER}; DROP ROLE {USER}"
    else:
        dialect, owner = mysql_dialect(), mysql_server(request)
        made, dropped = f"CREATE USER {USER}@'%' IDENTIFIED BY 'opensesame'", f"DROP USER {USER}@'%'"
    connections = Connections(dialect, owner)

    def run(statement: str) -> None:
        with connections.transaction("test") as cursor:
            cursor.execute(statement)

    SqlTarget(connections).open_table(SHAPE, pipeline="shop").claim()
    run(made)
    yield Server(dialect, owner, replace(owner, user=USER, password="opensesame"), run)
    run(dropped)
    connections.close()


def test_missing_rights_are_named_with_the_statements_that_grant_them(server: Server) -> None:
    missing = server.missing()
    assert missing
    with pytest.raises(TargetError, match=f"The user '{USER}' lacks a privilege") as refused:
        server.claim()
    assert type(refused.value) is TargetError
    for statement in missing:
        assert statement in refused.value.message
        assert USER in statement
    if server.dialect.database == "postgres":
        assert missing[0] == f'GRANT USAGE, CREATE ON SCHEMA "shop" TO {USER}'
        assert f'GRANT SELECT, INSERT, UPDATE, DELETE ON "shop"."orders" TO {USER}' in missing
        assert "permission denied for" in refused.value.message
        assert missing[-1] == f'ALTER TABLE "shop"."orders" OWNER TO {USER}'
    else:
        assert missing[0].startswith("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE")
        assert f"Access denied for user '{USER}'" in refused.value.message
    for statement in missing:
        server.run(statement)
    assert server.missing() == ()
    server.claim()


def test_validate_says_of_rights_one_thing_at_a_time(server: Server) -> None:
    """Neither that schemas must exist beside statements for a schema that does, nor that all is well."""
    config, tables = server.config(), [SHAPE.table]
    with pytest.raises(ConfigError, match=r"^The target answers, but its user lacks privileges\.") as lacking:
        target_answer(config, tables)
    missing = server.missing()
    assert [line.strip(" ;") for line in lacking.value.message.splitlines()[1:]][: len(missing)] == [*missing]
    assert "must exist" not in lacking.value.message
    assert "create schemas" not in lacking.value.message
    assert "No table is known yet" in target_answer(config, ())
    for statement in missing:
        server.run(statement)
    answer = target_answer(config, tables)
    assert answer.endswith(". Checked the user's privileges for 1 known table: none is missing")
    if server.dialect.database == "postgres":
        assert "the user may not create schemas." in answer
        server.run(f"ALTER ROLE {USER} SET default_transaction_read_only TO on")
        with pytest.raises(ConfigError, match=r"accepts no writes.*target\.url to the primary"):
            target_answer(config, tables)


def test_a_reader_is_told_what_a_writer_needs(server: Server) -> None:
    """A role that may only read: the statements are of the rights that it lacks, and of no other."""
    if server.dialect.database != "postgres":
        pytest.skip("the rights of MySQL are those of a database")
    server.run(f'GRANT USAGE ON SCHEMA "shop" TO {USER}')
    server.run(f'GRANT SELECT ON ALL TABLES IN SCHEMA "shop" TO {USER}')
    assert server.missing()[:2] == (
        f'GRANT CREATE ON SCHEMA "shop" TO {USER}',
        f'GRANT INSERT, UPDATE, DELETE ON "shop"."_tidesink_ledger" TO {USER}',
    )
    with pytest.raises(ConfigError, match='GRANT CREATE ON SCHEMA "shop"'):
        target_answer(server.config(), [SHAPE.table])


def test_each_way_not_to_be_let_in_has_its_own_words(server: Server) -> None:
    name, user = server.dialect.database, server.user
    cases: list[tuple[Endpoint, type[TargetError], str]] = [
        (replace(user, port=1), TransientTargetError, r"does not answer .*connection refused.*target\.url"),
        (replace(user, host="no.such.invalid"), TransientTargetError, r"host not found.*target\.url"),
        (replace(user, database="no_such"), TargetError, "no_such"),
        (replace(user, user="nobody"), TargetError, r"refuses the user 'nobody'.*Check target\.user"),
    ]
    wrong = {"postgres": "password authentication failed", "mysql": "Access denied"}[name]
    cases.append(
        (replace(user, password="shut"), TargetError, rf"refuses the user '{USER}' .*{wrong}.*Check")
    )
    no_tls = {"postgres": r"it has no TLS.*target\.tls\.mode", "mysql": r"TLS.*target\.tls\.mode|trusted"}[
        name
    ]
    cases.append((replace(user, tls="require"), TargetError, no_tls))
    for endpoint, error, says in cases:
        with pytest.raises(error, match=says) as refused:
            server.dialect.driver.connect(endpoint)
        assert type(refused.value) is error
        assert "opensesame" not in str(refused.value)


def test_a_server_that_takes_no_writes_is_named(server: Server) -> None:
    read_only = {
        "postgres": f"ALTER ROLE {USER} SET default_transaction_read_only TO on",
        "mysql": "SET GLOBAL read_only = 1",
    }[server.dialect.database]
    for statement in server.missing():
        server.run(statement)
    server.run(read_only)
    try:
        with pytest.raises(TransientTargetError, match=r"accepts no writes.*target\.url to the primary"):
            server.claim()
    finally:
        if server.dialect.database == "mysql":
            server.run("SET GLOBAL read_only = 0")


def test_a_wrong_password_fails_validate(server: Server) -> None:
    config = server.config(password="shut")
    with pytest.raises(ConfigError, match=f"refuses the user '{USER}'"):
        target_module(config.target).try_target(config.target)
