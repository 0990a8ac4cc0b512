"""Errors that real servers raise: each class of them has its own cause and remedy.

Without Spark: a statement is run as a worker runs its own. How a connection is refused, and which rights are
missing, is in ``test_sql_refusals``; a commit without an answer in ``test_unknown_commits``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

import pytest

from tests.contracts.sql_beds import mysql_server, postgres_database
from tidesink.errors import SchemaRefusedError, TargetError, TidesinkError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.targets.sql import mysql_merge, postgres_merge
from tidesink.sinks.targets.sql.dialect import Connections, Dialect
from tidesink.sinks.targets.sql.mysql import mysql_dialect
from tidesink.sinks.targets.sql.postgres import postgres_dialect

pytestmark = pytest.mark.servers
TABLE: Final = str(TableId("shop", "orders"))
# A value of a row, which no error may show.
VALUE: Final = "opensesame"


class Case(NamedTuple):
    """Statements of which the last is refused, in one transaction; ``{}`` is a table of the case's own.

    One that begins with ``other:`` is another session's and committed at once; with ``held:``, another's
    that keeps its locks until the refusal; with ``waits:``, one more of that session, which waits for a lock
    then.
    """

    code: str
    error: type[TidesinkError]
    cause: str
    remedy: str
    statements: tuple[str, ...]
    prepared: tuple[str, ...] = ()


_OTHER: Final = "other program that writes"
_INSERT: Final = f"INSERT INTO {{}} VALUES (9, '{VALUE}', 1)"  # noqa: S608  a name of the test's own
_LOCKED: Final = "UPDATE {} SET n = 5 WHERE id = 1"
# For what a test cannot bring about. The words are not the server's, and are not shown.
_AS_POSTGRES: Final = "DO $$ BEGIN RAISE EXCEPTION 'a row of " + VALUE + "' USING ERRCODE = '%s'; END $$"

POSTGRES: Final = (
    Case(
        "40001",
        TransientTargetError,
        "Another transaction changed the same rows",
        _OTHER,
        ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT n FROM {}", f"other:{_LOCKED}", _LOCKED),
    ),
    Case(
        "40P01",
        TransientTargetError,
        "deadlock",
        _OTHER,
        (
            "SET LOCAL deadlock_timeout TO '10ms'",
            "UPDATE {} SET n = 5 WHERE id = 2",
            f"held:{_LOCKED}",
            "waits:UPDATE {} SET n = 5 WHERE id = 2",
            _LOCKED,
        ),
    ),
    Case(
        "55P03",
        TransientTargetError,
        "holds a lock on the rows or the table",
        "pg_blocking_pids",
        ("SET LOCAL lock_timeout TO '20ms'", f"held:{_LOCKED}", _LOCKED),
    ),
    Case("53100", TransientTargetError, "disk is full", "Make room on the disk", (_AS_POSTGRES % "53100",)),
    Case(
        "53200",
        TransientTargetError,
        "out of memory",
        "Give the server more memory",
        ("SELECT count(pg_advisory_xact_lock(n)) FROM generate_series(1, 1000000) AS n",),
    ),
    Case(
        "53300",
        TransientTargetError,
        "no connections left",
        "raise max_connections at the server",
        (_AS_POSTGRES % "53300",),
    ),
    Case(
        "53400",
        TransientTargetError,
        "no disk space, memory or connections left",
        "server's log",
        (
            "SET LOCAL temp_file_limit TO 0",
            "SET LOCAL work_mem TO '64kB'",
            "SELECT * FROM generate_series(1, 100000) AS n ORDER BY md5(n::text)",
        ),
    ),
    Case(
        "57014",
        TransientTargetError,
        "cancelled a statement",
        "SET statement_timeout = 0",
        ("SET LOCAL statement_timeout TO '20ms'", "SELECT pg_sleep(60)"),
    ),
    Case(
        "25006",
        TransientTargetError,
        "accepts no writes",
        "to the primary",
        ("SET TRANSACTION READ ONLY", _INSERT),
    ),
    Case(
        "23502",
        TargetError,
        "no value for a column that is NOT NULL at the target in table shop.",
        "DROP NOT NULL",
        (f"INSERT INTO {{}} VALUES (NULL, '{VALUE}', 1)",),  # noqa: S608
    ),
    Case(
        "23503",
        TargetError,
        "foreign key",
        "Drop the foreign key",
        ("UPDATE {} SET n = 77",),
        ("ALTER TABLE {} ADD FOREIGN KEY (n) REFERENCES {}",),
    ),
    Case(
        "23505",
        TargetError,
        "unique index that is not the key",
        "Drop that index",
        (f"UPDATE {{}} SET name = '{VALUE}'",),  # noqa: S608
        ("CREATE UNIQUE INDEX ON {} (name)",),
    ),
    Case(
        "23514",
        TargetError,
        "violates a CHECK",
        "drop the CHECK",
        (_INSERT,),
        ("ALTER TABLE {} ADD CHECK (id < 9)",),
    ),
    Case(
        "23P01",
        TargetError,
        "violates a constraint",
        "Drop the constraint",
        (f"UPDATE {{}} SET name = '{VALUE}'",),  # noqa: S608
        ("ALTER TABLE {} ADD EXCLUDE (name WITH =)",),
    ),
    Case(
        "22001",
        TargetError,
        "does not fit its column",
        "change it back",
        (f"INSERT INTO {{}} VALUES (9, '{VALUE * 9}', 1)",),  # noqa: S608
    ),
    Case(
        "42P10",
        SchemaRefusedError,
        "no unique index on the key's columns",
        "primary key",
        (f"{_INSERT} ON CONFLICT (n) DO NOTHING",),
    ),
    Case(
        "42P01",
        TransientTargetError,
        "A table at the target was dropped",
        "program that drops tables",
        ("other:DROP TABLE {}", _INSERT),
    ),
    Case(
        "42701",
        TransientTargetError,
        "Another worker added the same column",
        "tried again",
        ("ALTER TABLE {} ADD COLUMN n int",),
    ),
    Case(
        "54011",
        SchemaRefusedError,
        "The table exceeds a limit",
        "except_column_list",
        ("ALTER TABLE {} " + ", ".join(f"ADD COLUMN c{n} int" for n in range(1601)),),
    ),
    Case(
        "2BP01",
        TargetError,
        "needs the column",
        "Drop that object",
        ("ALTER TABLE {} DROP COLUMN n",),
        ("CREATE VIEW {}_seen AS SELECT n FROM {}",),
    ),
    Case(
        "0A000",
        TargetError,
        "cannot make this change of the table",
        "create it again after the change",
        ("ALTER TABLE {} ALTER COLUMN n TYPE bigint",),
        ("CREATE VIEW {}_seen AS SELECT n FROM {}",),
    ),
    Case(
        "P0001",
        TargetError,
        "A trigger or a function at the target raises an error",
        "server's log",
        (_INSERT,),
        (
            "CREATE FUNCTION {}_refuses() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'not %', NEW.name; END $$",
            "CREATE TRIGGER refuses BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION {}_refuses()",
        ),
    ),
    Case(
        "38000",
        TargetError,
        "A trigger or a function at the target raises an error",
        "Correct the trigger",
        (_AS_POSTGRES % "38000",),
    ),
    Case(
        "39000",
        TargetError,
        "A trigger or a function at the target raises an error",
        "Correct the trigger",
        (_AS_POSTGRES % "39000",),
    ),
    Case(
        "3F000",
        TransientTargetError,
        "A schema at the target no longer exists",
        "program that drops schemas",
        ("CREATE UNLOGGED TABLE no_such.stage (n int)",),
    ),
    Case(
        "55000",
        TargetError,
        "REPLICA IDENTITY is NOTHING",
        "server's log",
        ("UPDATE {} SET n = 5",),
        ("CREATE PUBLICATION seen FOR TABLE {}", "ALTER TABLE {} REPLICA IDENTITY NOTHING"),
    ),
    Case(
        "42703",
        TargetError,
        "A column of the table at the target no longer exists",
        "undo its change",
        ("other:ALTER TABLE {} DROP COLUMN n", "UPDATE {} SET n = 1"),
    ),
    Case(
        "42883",
        TargetError,
        "Postgres refuses the statement",
        "undo its change",
        ("SELECT no_such_function()",),
    ),
    Case(
        "58P01",
        TransientTargetError,
        "cannot read or write a file",
        "check its disks",
        ("COPY {} FROM '/no/such/file'",),
    ),
    Case(
        "XX000",
        TargetError,
        "an internal error, or damaged data",
        "server's log",
        ("SELECT acldefault('z', 10)",),
    ),
)

# For what a test cannot bring about: the server sends this number by itself.
_SIGNAL: Final = "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = %s, MESSAGE_TEXT = 'as the server says it'"
MARIADB: Final = (
    Case(
        "1213",
        TransientTargetError,
        "deadlock",
        _OTHER,
        (
            "UPDATE {} SET n = 5 WHERE id = 2",
            "held:UPDATE {} SET n = 5 WHERE id <> 2",
            "waits:UPDATE {} SET n = 5 WHERE id = 2",
            _LOCKED,
        ),
    ),
    Case(
        "1205",
        TransientTargetError,
        "holds a lock on the rows or the table",
        "SHOW PROCESSLIST",
        (f"held:{_LOCKED}", "SELECT n FROM {} FOR UPDATE NOWAIT"),
    ),
    Case(
        "1020",
        TransientTargetError,
        "Another transaction changed the same rows",
        _OTHER,
        (
            "SET SESSION innodb_snapshot_isolation = ON",
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "COMMIT",
            "SELECT n FROM {}",
            f"other:{_LOCKED}",
            _LOCKED,
        ),
    ),
    Case(
        "1969",
        TransientTargetError,
        "cancelled a statement",
        "raise it for tidesink's user",
        (
            "SET SESSION max_statement_time = 0.02",
            "SELECT sum(seq * seq % 7) FROM shop.seq_1_to_1000000000",
        ),
    ),
    Case(
        "1114",
        TransientTargetError,
        "disk or tablespace is full",
        "Make room",
        (
            "SET SESSION max_heap_table_size = 16384",
            "CREATE TEMPORARY TABLE shop.full_one (n bigint) ENGINE = MEMORY",
            "INSERT INTO shop.full_one SELECT seq FROM shop.seq_1_to_100000",
        ),
    ),
    Case("1041", TransientTargetError, "out of memory", "Give the server more memory", (_SIGNAL % 1041,)),
    Case(
        "1203",
        TransientTargetError,
        "no connections left for the user",
        "raise max_connections",
        (_SIGNAL % 1203,),
    ),
    Case(
        "1792",
        TransientTargetError,
        "accepts no writes",
        "to the primary",
        ("COMMIT", "START TRANSACTION READ ONLY", _INSERT),
    ),
    Case(
        "1062",
        TargetError,
        "unique index that is not the key",
        "Drop that index",
        (f"UPDATE {{}} SET name = '{VALUE}'",),  # noqa: S608
        ("ALTER TABLE {} ADD UNIQUE (name)",),
    ),
    Case(
        "1048",
        TargetError,
        "no value for a column that is NOT NULL",
        "MODIFY",
        (f"INSERT INTO {{}} VALUES (NULL, '{VALUE}', 1)",),  # noqa: S608
    ),
    Case(
        "1406",
        TargetError,
        "does not fit its column",
        "target.key-length",
        (f"INSERT INTO {{}} VALUES (9, '{VALUE * 9}', 1)",),  # noqa: S608
    ),
    Case(
        "1452",
        TargetError,
        "foreign key",
        "Drop the foreign key",
        (f"INSERT INTO {{}} VALUES (9, '{VALUE}', 7)",),  # noqa: S608
        ("ALTER TABLE {} ADD FOREIGN KEY (n) REFERENCES {} (id)",),
    ),
    Case(
        "4025",
        TargetError,
        "violates a CHECK",
        "Drop the CHECK",
        (_INSERT,),
        ("ALTER TABLE {} ADD CHECK (id < 9)",),
    ),
    Case(
        "1071",
        SchemaRefusedError,
        "The table exceeds a limit",
        "except_column_list",
        ("CREATE TABLE {}_long (k varchar(4000) CHARACTER SET utf8mb4 PRIMARY KEY)",),
    ),
    Case(
        "1005",
        SchemaRefusedError,
        "storage engine cannot create the table",
        "SHOW ENGINE INNODB STATUS",
        ("CREATE TABLE {}_child (id int, FOREIGN KEY (id) REFERENCES {} (n)) ENGINE = InnoDB",),
    ),
    Case(
        "1103",
        SchemaRefusedError,
        "does not allow this name",
        "target.table",
        (f"CREATE TABLE shop.{'x' * 65} (id int)",),
    ),
    Case(
        "1146",
        TransientTargetError,
        "A table at the target was dropped",
        "program that drops tables",
        ("other:DROP TABLE {}", _INSERT),
    ),
    Case(
        "1060",
        TransientTargetError,
        "Another worker added the same column",
        "tried again",
        ("ALTER TABLE {} ADD COLUMN n int",),
    ),
    Case("1194", TransientTargetError, "marked as crashed", "REPAIR TABLE", (_SIGNAL % 1194,)),
    Case("3161", TargetError, "disabled_storage_engines", "variable's list", (_SIGNAL % 3161,)),
    Case(
        "1173",
        TargetError,
        "does not allow a table without a primary key",
        "Give the table a primary key",
        ("CREATE TABLE {}_bare (n int) ENGINE = InnoDB",),
        ("SET GLOBAL innodb_force_primary_key = ON",),
    ),
    Case("1786", TargetError, "enforce_gtid_consistency", "Convert the table to InnoDB", (_SIGNAL % 1786,)),
    Case(
        "1153",
        TargetError,
        "longer than the server accepts",
        "Raise the server's variable max_allowed_packet",
        (_SIGNAL % 1153,),
    ),
    Case(
        "1644",
        TargetError,
        "A trigger or a function at the target raises an error",
        "Correct the trigger",
        (_INSERT,),
        (
            "CREATE TRIGGER {}_refuses BEFORE INSERT ON {} FOR EACH ROW "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = NEW.name",
        ),
    ),
    Case(
        "1412",
        TransientTargetError,
        "Another session changed the table's columns",
        "program that alters tables",
        (
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "COMMIT",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            "other:ALTER TABLE {} ADD COLUMN more int, ALGORITHM = COPY",
            "SELECT n FROM {}",
        ),
    ),
    Case("1047", TransientTargetError, "accepts no statements", "wsrep_ready", (_SIGNAL % 1047,)),
    Case(
        "1054",
        TargetError,
        "A column of the table at the target no longer exists",
        "undo its change",
        ("other:ALTER TABLE {} DROP COLUMN n", "UPDATE {} SET n = 1"),
    ),
)
# Shown by other tests with real servers: test_sql_refusals, and for LOAD DATA test_targets_sql.
ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    "postgres": ("28", "3D000", "42501"),
    "mysql": ("1045", "1142", "1148", "1049"),
}
_UNDONE: Final = {"1173": "SET GLOBAL innodb_force_primary_key = OFF"}
_WAITS: Final = {
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


@dataclass(frozen=True)
class Server:
    """A database with a schema ``shop``."""

    dialect: Dialect
    connections: Connections

    def run(self, *statements: str) -> None:
        """Statements of another session, committed."""
        with self.connections.transaction("test") as cursor:
            for statement in statements:
                cursor.execute(statement)

    def asked(self, query: str) -> Any:
        """The one value of a query."""
        with self.connections.transaction("test", writes=False) as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]


_NAMES: Final = count()


@pytest.fixture(scope="module", params=["postgres", "mysql"])
def servers(request: pytest.FixtureRequest) -> Iterator[Server]:
    dialect: Dialect
    if request.param == "postgres":
        dialect, endpoint = postgres_dialect(), postgres_database(request)
    else:
        dialect, endpoint = mysql_dialect(), mysql_server(request)
    server = Server(dialect, Connections(dialect, endpoint))
    server.run("CREATE SCHEMA shop")
    yield server
    server.connections.close()


def _refused(server: Server, case: Case) -> TidesinkError:
    """The error of the case's last statement."""
    table = f"shop.t{next(_NAMES)}"
    prepared, statements = (
        [statement.replace("{}", table) for statement in some] for some in (case.prepared, case.statements)
    )
    made = f"CREATE TABLE {table} (id int PRIMARY KEY, name varchar(20), n int)"
    rows = f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 1), (4, 'd', 1)"  # noqa: S608
    server.run(made, rows, *prepared)
    done: list[str] = []
    with pytest.raises(TidesinkError) as caught:
        _run(server, statements, done)
    assert done == statements[:-1]
    return caught.value


def _run(server: Server, statements: list[str], done: list[str]) -> None:
    """Run the statements of a case; ``done`` grows with each that is not refused."""
    # The other session ends when the refused transaction is undone, and what waits for its locks with it.
    with (
        server.connections.transaction("test") as other,
        ThreadPoolExecutor(1) as pool,
        server.connections.transaction(TABLE) as cursor,
    ):
        for statement in statements:
            kind, _, words = statement.partition(":")
            if kind == "other":
                server.run(words)
            elif kind == "held":
                other.execute(words)
            elif kind == "waits":
                pool.submit(other.execute, words)
                while not server.asked(_WAITS[server.dialect.database]):
                    pass
            else:
                cursor.execute(statement)
            done.append(statement)


@pytest.mark.parametrize(
    ("servers", "case"),
    [
        pytest.param(database, case, id=f"{database}-{case.code}")
        for database, cases in (("postgres", POSTGRES), ("mysql", MARIADB))
        for case in cases
    ],
    indirect=["servers"],
)
def test_each_class_of_errors_has_its_own_cause_and_remedy(servers: Server, case: Case) -> None:
    try:
        found = _refused(servers, case)
    finally:
        if case.code in _UNDONE:
            servers.run(_UNDONE[case.code])
    assert case.code in found.message
    assert type(found) is case.error
    assert case.cause in found.message
    assert case.remedy in found.message.partition(case.code)[2]
    assert found.context["table"] == TABLE
    assert VALUE not in str(found)


def test_a_session_that_the_server_ends_is_tried_again(servers: Server) -> None:
    session, end = {
        "postgres": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
        "mysql": ("SELECT connection_id()", "KILL {}"),
    }[servers.dialect.database]

    def ended() -> None:
        with servers.connections.transaction(TABLE) as cursor:
            cursor.execute(session)
            servers.run(end.format(cursor.fetchone()[0]))
            cursor.execute("SELECT 1")

    with pytest.raises(TransientTargetError, match=r"does not answer .*\. Nothing of this batch was written"):
        ended()


def test_no_class_is_left_out() -> None:
    postgres = (*(case.code for case in POSTGRES), *ELSEWHERE["postgres"])
    for state, *_ in postgres_merge.STATES:
        assert any(code.startswith(state) for code in postgres), state
    mysql = {*(int(case.code) for case in MARIADB), *map(int, ELSEWHERE["mysql"])}
    for numbers, meaning in mysql_merge.NUMBERS:
        assert mysql & {*numbers}, meaning.cause
