"""Lists how each kind of SQL statement, and each part of an ALTER TABLE, affects a table's rows and columns.

``STATEMENTS`` and ``PARTS`` list the known statements and parts. A statement that is not listed counts as
``unknown``, and its table pauses. So a statement is skipped only if it is listed with the meaning
``nothing``.

Sources: MySQL 8.4 and 9.5 Reference Manual, chapter 15 (SQL statements); MariaDB Server documentation, "SQL
statements" (12.1); TiDB documentation, "SQL statements" (8.5), and its parser's grammar (pkg/parser). For
changes of rows without row events: MySQL's manual, 17.2.1 and 19.4 (binary log formats); TiDB's
documentation, "TiCDC overview", on IMPORT INTO, BR and FLASHBACK.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from tidesink.typemap.mysql_types import SqlReader

StatementMeaning = Literal[
    "nothing",
    "columns",
    "create-table",
    "create-database",
    "truncate",
    "drop-table",
    "drop-database",
    "rename-table",
    "alter-table",
    "brought-back",
    "unknown",
]
PartMeaning = Literal[
    "nothing",
    "columns",
    "column",
    "keys",
    "options",
    "order",
    "partition",
    "exchange-partition",
    "convert-partition",
    "convert-table",
    "convert-characters",
    "rename-table",
    "unknown",
]


class StatementRule(NamedTuple):
    """Assigns a meaning to SQL statements that begin with certain words.

    ``words``: the words. ``meaning``: kind of the statement's effect on the table. ``manuals``: names of the
    DBMSs whose manuals document the statement.
    """

    words: tuple[str, ...]
    meaning: StatementMeaning
    manuals: str


class PartRule(NamedTuple):
    """Assigns a meaning to parts of an ALTER TABLE that begin with certain words.

    ``words``: the words. ``meaning``: kind of the part's effect on the table. ``manuals``: names of the DBMSs
    whose manuals document the part. ``lists``: True if the part has a list of names, so that commas after it
    separate these names and not parts.
    """

    words: tuple[str, ...]
    meaning: PartMeaning
    manuals: str
    lists: bool = False


def _statements(meaning: StatementMeaning, manuals: str, *starts: str) -> Iterable[StatementRule]:
    return (StatementRule(tuple(start.split()), meaning, manuals) for start in starts)


def _parts(meaning: PartMeaning, manuals: str, *starts: str, lists: bool = False) -> Iterable[PartRule]:
    return (PartRule(tuple(start.split()), meaning, manuals, lists) for start in starts)


def _made(kinds: str) -> list[str]:
    """Returns the first words of CREATE, ALTER and DROP statements for each kind of object.

    ``kinds``: kinds separated by commas. For ``VIEW``, the result is ``CREATE VIEW``, ``ALTER VIEW``, ``DROP
    VIEW``.
    """
    return [f"{verb} {kind.strip()}" for kind in kinds.split(",") for verb in ("CREATE", "ALTER", "DROP")]


# The definer and OR REPLACE are skipped before a statement is looked up.
STATEMENTS: Final[tuple[StatementRule, ...]] = (
    *_statements("create-table", "MySQL, MariaDB, TiDB", "CREATE TABLE"),
    *_statements("create-database", "MySQL, MariaDB, TiDB", "CREATE DATABASE", "CREATE SCHEMA"),
    *_statements("truncate", "MySQL, MariaDB, TiDB", "TRUNCATE"),
    *_statements("drop-table", "MySQL, MariaDB, TiDB", "DROP TABLE", "DROP TABLES"),
    *_statements("drop-database", "MySQL, MariaDB, TiDB", "DROP DATABASE", "DROP SCHEMA"),
    *_statements("rename-table", "MySQL, MariaDB, TiDB", "RENAME TABLE", "RENAME TABLES"),
    *_statements("alter-table", "MySQL, MariaDB, TiDB", "ALTER TABLE"),
    *_statements("columns", "MySQL, MariaDB, TiDB", "CREATE UNIQUE INDEX", "CREATE UNIQUE KEY", "DROP INDEX"),
    *_statements(
        "nothing",
        "MySQL, MariaDB, TiDB",
        "CREATE INDEX",
        "CREATE FULLTEXT INDEX",
        "CREATE SPATIAL INDEX",
        "CREATE TEMPORARY TABLE",
        "DROP TEMPORARY TABLE",
        "DROP TEMPORARY TABLES",
        "DROP PREPARE",
        "ALTER DATABASE",
        "ALTER SCHEMA",
        *_made("VIEW, USER, ROLE, EVENT, FUNCTION, PROCEDURE, TRIGGER, SERVER, TABLESPACE"),
        "CREATE AGGREGATE FUNCTION",
        "RENAME USER",
        "GRANT",
        "REVOKE",
        "SET",
        "USE",
        "SHOW",
        "EXPLAIN",
        "DESCRIBE",
        "DESC",
        "HELP",
        "KILL",
        "ANALYZE",
        "OPTIMIZE",
        "CHECK",
        "CHECKSUM",
        "CACHE INDEX",
        "LOAD INDEX",
        "FLUSH",
        "RESET",
        "PURGE",
        "LOCK",
        "UNLOCK",
        "START TRANSACTION",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT",
        "RELEASE SAVEPOINT",
        "INSTALL",
        "UNINSTALL",
        "START REPLICA",
        "STOP REPLICA",
        "START SLAVE",
        "STOP SLAVE",
        "CHANGE MASTER",
        "CHANGE REPLICATION",
        "SHUTDOWN",
    ),
    *_statements(
        "nothing",
        "MySQL",
        *_made("LOGFILE GROUP, UNDO TABLESPACE, RESOURCE GROUP, SPATIAL REFERENCE SYSTEM, LIBRARY"),
        *_made("JSON DUALITY VIEW, JSON RELATIONAL DUALITY VIEW"),
        "ALTER INSTANCE",
        "RESTART",
        "CLONE",
        "START GROUP_REPLICATION",
        "STOP GROUP_REPLICATION",
    ),
    *_statements(
        "nothing",
        "MariaDB",
        *_made("SEQUENCE, PACKAGE, PACKAGE BODY, TEMPORARY SEQUENCE, CATALOG"),
        "BACKUP STAGE",
        "BACKUP LOCK",
        "BACKUP UNLOCK",
    ),
    *_statements(
        "nothing",
        "TiDB",
        *_made("PLACEMENT POLICY, BINDING, GLOBAL BINDING, SESSION BINDING, STATISTICS"),
        "CREATE VECTOR INDEX",
        "CREATE COLUMNAR INDEX",
        "CREATE HYPO INDEX",
        "CREATE GLOBAL TEMPORARY TABLE",
        "DROP GLOBAL TEMPORARY TABLE",
        "DROP HYPO INDEX",
        "DROP STATS",
        "ALTER RANGE",
        "ADMIN",
        "SPLIT",
        "DISTRIBUTE",
        "LOAD STATS",
        "REFRESH STATS",
        "CALIBRATE",
        "QUERY WATCH",
        "TRACE",
        "PLAN REPLAYER",
        "RECOMMEND INDEX",
        "CANCEL IMPORT",
        "CANCEL DISTRIBUTION",
    ),
    *_statements("brought-back", "TiDB", "RECOVER", "FLASHBACK"),
    *_statements(
        "unknown",
        "MySQL, MariaDB, TiDB",
        # If logged as text (binlog_format STATEMENT or MIXED), their row changes have no row events.
        "INSERT",
        "UPDATE",
        "DELETE",
        "REPLACE",
        "LOAD DATA",
        "LOAD XML",
        "CALL",
        "EXECUTE",
        "BINLOG",
        "IMPORT",
        "REPAIR",
    ),
    *_statements("unknown", "MySQL", "RENAME DATABASE", "RENAME SCHEMA"),
    *_statements("unknown", "MariaDB", "DELETE HISTORY"),
    # Blocks of statements, which the server executes. BEGIN of a transaction is read as START TRANSACTION.
    *_statements("unknown", "MariaDB", "BEGIN", "DECLARE", "IF", "CASE", "LOOP", "WHILE", "REPEAT", "FOR"),
    *_statements("unknown", "TiDB", "IMPORT INTO", "BATCH", "RESTORE", "ADMIN REPAIR TABLE", "ADMIN CLEANUP"),
    *_statements("nothing", "MySQL, MariaDB, TiDB", "XA"),
    *_statements("nothing", "TiDB", "BACKUP DATABASE", "BACKUP TABLE", "BACKUP LOGS"),
)

PARTS: Final[tuple[PartRule, ...]] = (
    *_parts("column", "MySQL, MariaDB, TiDB", "ADD", "MODIFY", "CHANGE"),
    *_parts("columns", "MySQL, MariaDB, TiDB", "DROP", "RENAME COLUMN", "ALTER"),
    *_parts(
        "keys",
        "MySQL, MariaDB, TiDB",
        "ADD CONSTRAINT",
        "ADD PRIMARY",
        "ADD UNIQUE",
        "ADD KEY",
        "ADD INDEX",
        "ADD FULLTEXT",
        "ADD SPATIAL",
        "ADD FOREIGN",
        "ADD CHECK",
        "ADD VECTOR INDEX",
        "ADD COLUMNAR INDEX",
        "DROP PRIMARY",
        "DROP KEY",
        "DROP INDEX",
        "DROP FOREIGN",
        "DROP CHECK",
        "DROP CONSTRAINT",
        "RENAME INDEX",
        "RENAME KEY",
        "ALTER INDEX",
        "ALTER KEY",
        "ALTER CHECK",
        "ALTER CONSTRAINT",
    ),
    *_parts("rename-table", "MySQL, MariaDB, TiDB", "RENAME"),
    *_parts("convert-characters", "MySQL, MariaDB, TiDB", "CONVERT TO"),
    *_parts("order", "MySQL, MariaDB, TiDB", "ORDER BY"),
    *_parts(
        "nothing",
        "MySQL, MariaDB, TiDB",
        "COALESCE PARTITION",
        "ADD PARTITION",
    ),
    *_parts(
        "nothing",
        "MySQL, MariaDB, TiDB",
        "REORGANIZE PARTITION",
        "ANALYZE PARTITION",
        "CHECK PARTITION",
        "OPTIMIZE PARTITION",
        "REBUILD PARTITION",
        lists=True,
    ),
    *_parts("partition", "MySQL, MariaDB, TiDB", "DROP PARTITION", "TRUNCATE PARTITION", lists=True),
    *_parts("exchange-partition", "MySQL, MariaDB, TiDB", "EXCHANGE PARTITION"),
    # REPAIR may lose damaged rows.
    *_parts("unknown", "MySQL, MariaDB", "REPAIR PARTITION", lists=True),
    *_parts(
        "unknown",
        "MySQL, MariaDB",
        "DISCARD TABLESPACE",
        "IMPORT TABLESPACE",
        "DISCARD PARTITION",
        "IMPORT PARTITION",
        lists=True,
    ),
    *_parts("nothing", "MySQL", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "UPGRADE PARTITIONING"),
    *_parts("convert-partition", "MariaDB", "CONVERT PARTITION"),
    *_parts("convert-table", "MariaDB", "CONVERT TABLE"),
    # These add and remove columns, and the rows of the table's history.
    *_parts(
        "unknown",
        "MariaDB",
        "ADD SYSTEM VERSIONING",
        "DROP SYSTEM VERSIONING",
        "ADD PERIOD FOR",
        "DROP PERIOD FOR",
        "WITH SYSTEM VERSIONING",
        "WITHOUT SYSTEM VERSIONING",
    ),
    *_parts(
        "nothing",
        "TiDB",
        "SET TIFLASH REPLICA",
        "SET HYPO TIFLASH REPLICA",
        "COMPACT",
        lists=True,
    ),
    *_parts(
        "nothing",
        "TiDB",
        "PARTITION",
        "LAST PARTITION",
        "MERGE FIRST PARTITION",
        "SPLIT MAXVALUE PARTITION",
    ),
    *_parts("partition", "TiDB", "FIRST PARTITION"),
)

# Table options that do not change rows, each with the number of words or groups that its value has.
OPTIONS: Final[Mapping[tuple[str, ...], int]] = MappingProxyType(
    {
        tuple(words.strip().split()): values
        for values, said in {
            0: "FORCE, ENABLE KEYS, DISABLE KEYS, WITH VALIDATION, WITHOUT VALIDATION, REMOVE PARTITIONING, "
            "CACHE, NOCACHE, REMOVE TTL, START TRANSACTION",
            1: "ALGORITHM, LOCK, AUTO_INCREMENT, AUTOEXTEND_SIZE, AVG_ROW_LENGTH, CHARACTER SET, CHARSET, "
            "CHAR SET, DEFAULT CHARACTER SET, DEFAULT CHARSET, DEFAULT CHAR SET, COLLATE, DEFAULT COLLATE, "
            "CHECKSUM, TABLE_CHECKSUM, COMMENT, COMPRESSION, DATA DIRECTORY, INDEX DIRECTORY, "
            "DELAY_KEY_WRITE, ENCRYPTION, ENGINE_ATTRIBUTE, SECONDARY_ENGINE, SECONDARY_ENGINE_ATTRIBUTE, "
            "INSERT_METHOD, KEY_BLOCK_SIZE, MAX_ROWS, MIN_ROWS, PACK_KEYS, PASSWORD, ROW_FORMAT, "
            "STATS_AUTO_RECALC, STATS_PERSISTENT, STATS_SAMPLE_PAGES, TABLESPACE, STORAGE, NODEGROUP, "
            # MariaDB's.
            "ENCRYPTED, ENCRYPTION_KEY_ID, IETF_QUOTES, ITEF_QUOTES, PAGE_CHECKSUM, PAGE_COMPRESSED, "
            "PAGE_COMPRESSION_LEVEL, TRANSACTIONAL, SEQUENCE, "
            # TiDB's.
            "FORCE AUTO_INCREMENT, FORCE AUTO_RANDOM_BASE, AUTO_ID_CACHE, AUTO_RANDOM_BASE, "
            "PRE_SPLIT_REGIONS, SHARD_ROW_ID_BITS, PLACEMENT POLICY, ATTRIBUTES, AFFINITY, STATS_OPTIONS, "
            "STATS_BUCKETS, STATS_TOPN, STATS_COL_CHOICE, STATS_COL_LIST, STATS_SAMPLE_RATE, TTL_ENABLE, "
            "TTL_JOB_INTERVAL",
        }.items()
        for words in said.split(",")
    }
)
# A table that is changed to any other engine (BLACKHOLE, FEDERATED, MERGE, CONNECT, …) may lose its rows.
KEEPING_ENGINES: Final = frozenset(
    {
        "ARCHIVE",
        "ARIA",
        "COLUMNSTORE",
        "CSV",
        "HEAP",
        "INNODB",
        "MEMORY",
        "MROONGA",
        "MYISAM",
        "NDB",
        "NDBCLUSTER",
        "ROCKSDB",
        "TOKUDB",
    }
)
_MOST_OPTION_WORDS: Final = 3
_STATEMENT_OF: Final = {rule.words: rule for rule in STATEMENTS}
_PART_OF: Final = {rule.words: rule for rule in PARTS}
_MOST_WORDS: Final = max(map(len, (*_STATEMENT_OF, *_PART_OF)))


def statement_rule(sql: SqlReader) -> StatementRule | None:
    """Returns the rule for a statement, or None if no rule matches its first words.

    If several rules match, the rule with the most words is returned.
    """
    return next((rule for words in _starts(sql) if (rule := _STATEMENT_OF.get(words))), None)


def part_rule(part: SqlReader) -> PartRule | None:
    """Returns the rule for a part of an ALTER TABLE, or None if no rule matches its first words.

    If several rules match, the rule with the most words is returned.
    """
    return next((rule for words in _starts(part) if (rule := _PART_OF.get(words))), None)


def _starts(sql: SqlReader, most: int = _MOST_WORDS) -> Iterable[tuple[str, ...]]:
    """Returns the first ``most`` words of a statement, in upper case, then one word fewer, down to one.

    There are fewer than ``most`` words if a quoted name, a number or a sign comes earlier.
    """
    words = list[str]()
    for ahead in range(most):
        token = sql.peek(ahead)
        if token.kind != "word" or not token.text.isascii():
            break
        words.append(token.text.upper())
    return (tuple(words[:count]) for count in range(len(words), 0, -1))


def skip_options(sql: SqlReader) -> bool:
    """Skips table options that do not change rows. Returns False if the reader finds any other option."""
    while not sql.done:
        if sql.skip("PARTITION", "BY"):
            sql.rest()
        elif sql.skip_any("ENGINE", "TYPE"):
            sql.skip("=")
            if sql.take().text.upper() not in KEEPING_ENGINES:
                return False
        elif sql.skip("TTL"):
            _skip_ttl(sql)
        elif not _skip_option(sql):
            return False
    return True


def _skip_option(sql: SqlReader) -> bool:
    words = next((words for words in _starts(sql, _MOST_OPTION_WORDS) if words in OPTIONS), None)
    if words is None:
        return False
    sql.skip(*words)
    for _ in range(OPTIONS[words]):
        sql.skip("=")
        sql.skip_item()
    return True


def _skip_ttl(sql: SqlReader) -> None:
    """Skips the value of TiDB's table option TTL, as in ``TTL = column + INTERVAL 3 MONTH``."""
    sql.skip("=")
    sql.name()
    sql.need("+", "INTERVAL")
    sql.skip_item()
    sql.take()
