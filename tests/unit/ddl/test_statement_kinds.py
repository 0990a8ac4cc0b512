"""The list of statements: which change rows or columns, and that what is not in it waits."""

from __future__ import annotations

import pytest

from tidesink.ddl.row_changes import DdlEffects
from tidesink.ddl.statement_kinds import OPTIONS, PARTS, STATEMENTS, PartRule, StatementRule
from tidesink.events import TableId

NAMED = TableId("s", "named")


def _kinds(sql: str, schema: str = "s") -> list[str]:
    return [f"{one.kind} {one.table}" for one in DdlEffects(sql, schema, about=NAMED).row_changes()]


@pytest.mark.parametrize(
    ("sql", "changes"),
    [
        # The rows of before are gone, without a row event (MariaDB).
        ("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY)", ["drop-table s.t"]),
        ("create or replace table `o`.`t` like u", ["drop-table o.t"]),
        ("CREATE OR REPLACE TABLE t SELECT * FROM u", ["drop-table s.t"]),
        ("/*M!100100 CREATE OR REPLACE */ TABLE t (a INT)", ["drop-table s.t"]),
        ("CREATE OR REPLACE TEMPORARY TABLE t (a INT)", []),
        ("CREATE OR REPLACE DATABASE s", ["drop-table s."]),
        ("CREATE OR REPLACE SEQUENCE q", []),
        ("CREATE OR REPLACE ALGORITHM = MERGE DEFINER = `a`@`%` SQL SECURITY INVOKER VIEW v AS SELECT 1", []),
        ("CREATE DEFINER=root@localhost TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET @a = 1", []),
        ("CREATE DEFINER=CURRENT_USER() PROCEDURE p() DROP TABLE t", []),
        ("ALTER DEFINER='a'@'h' EVENT e DISABLE", []),
        # Partitions that become tables, and the other way round (MariaDB).
        ("ALTER TABLE t CONVERT PARTITION p0 TO TABLE o.u", ["partition s.t", "partition o.u"]),
        (
            "ALTER TABLE t CONVERT TABLE u TO PARTITION p0 VALUES LESS THAN (9)",
            ["partition s.t", "drop-table s.u"],
        ),
        ("ALTER TABLE o.t CONVERT PARTITION p0 TO TABLE u", ["partition o.t", "partition .u"]),
        # Variables for one statement (MariaDB).
        ("SET STATEMENT max_statement_time = 5, sql_mode = '' FOR DROP TABLE t", ["drop-table s.t"]),
        ("SET STATEMENT a = (1 + 1) FOR ALTER TABLE t DROP PARTITION p0", ["partition s.t"]),
        ("SET STATEMENT a = 1 FOR SELECT 1", ["unknown s.named"]),
        # Comments that a server executes.
        ("/*M! TRUNCATE TABLE t */", ["truncate s.t"]),
        ("/*!50100 ALTER TABLE t DROP PARTITION p0 */", ["partition s.t"]),
        ("ALTER TABLE t /*M!100601 DROP PARTITION p0 */", ["partition s.t"]),
        ("/*M!999999\\- enable the sandbox mode */", []),
        ("/* DROP TABLE t */ ALTER TABLE t ADD c INT", []),
        # Rows of history, which no event tells (MariaDB).
        ("ALTER TABLE t ADD SYSTEM VERSIONING", ["unknown s.t"]),
        ("ALTER TABLE t DROP SYSTEM VERSIONING", ["unknown s.t"]),
        ("ALTER TABLE t ADD COLUMN a TIMESTAMP(6), ADD PERIOD FOR SYSTEM_TIME(a, b)", ["unknown s.t"]),
        ("DELETE HISTORY FROM t BEFORE SYSTEM_TIME '2020-01-01'", ["unknown s.named"]),
        # Tablespaces, engines without rows, repairs.
        ("ALTER TABLE t DISCARD TABLESPACE", ["unknown s.t"]),
        ("ALTER TABLE t IMPORT PARTITION p0, p1 TABLESPACE", ["unknown s.t"]),
        ("IMPORT TABLE FROM '/tmp/t.sdi'", ["unknown s.named"]),
        ("ALTER TABLE t ENGINE = BLACKHOLE", ["unknown s.t"]),
        ("ALTER TABLE t COMMENT 'x' ENGINE=FEDERATED CONNECTION='c'", ["unknown s.t"]),
        ("ALTER TABLE t UNION = (a, b)", ["unknown s.t"]),
        ("ALTER TABLE t REPAIR PARTITION p0, p1", ["unknown s.t"]),
        ("REPAIR TABLE t", ["unknown s.named"]),
        # Rows that do not fit a key are removed.
        ("ALTER IGNORE TABLE t ADD UNIQUE KEY (a)", ["unknown s.t"]),
        ("ALTER IGNORE TABLE t MODIFY a TINYINT", ["unknown s.t"]),
        ("ALTER IGNORE TABLE t ADD INDEX (a)", []),
        # Rows that come or go beside the log of rows.
        ("IMPORT INTO t FROM 's3://b/t.csv'", ["unknown s.named"]),
        ("RESTORE DATABASE s FROM 's3://b'", ["unknown s.named"]),
        ("BATCH ON id LIMIT 100 DELETE FROM t", ["unknown s.named"]),
        ("LOAD DATA INFILE 'x' INTO TABLE t", ["unknown s.named"]),
        ("DELETE FROM t", ["unknown s.named"]),
        ("BEGIN NOT ATOMIC DROP TABLE t", ["unknown s.named"]),
        ("RENAME DATABASE s TO r", ["unknown s.named"]),
        ("ADMIN REPAIR TABLE t CREATE TABLE t (a INT)", ["unknown s.named"]),
        # Values that the database wrote into rows that were there.
        ("ALTER TABLE t ADD u CHAR(36) NOT NULL DEFAULT (UUID())", ["values s.t"]),
        ("ALTER TABLE t ADD u VARCHAR(36) DEFAULT uuid()", ["values s.t"]),
        ("ALTER TABLE t ADD n BIGINT NOT NULL DEFAULT (RAND() * 9)", ["values s.t"]),
        ("ALTER TABLE t ADD n BIGINT DEFAULT NEXT VALUE FOR q", ["values s.t"]),
        ("ALTER TABLE t ADD n BIGINT DEFAULT nextval(q)", ["values s.t"]),
        ("ALTER TABLE t ADD n BIGINT NOT NULL AUTO_INCREMENT UNIQUE", ["values s.t"]),
        ("ALTER TABLE t ADD n SERIAL", ["values s.t"]),
        ("ALTER TABLE t ADD (a INT, d DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6))", ["values s.t"]),
        ("ALTER TABLE t ADD d TIMESTAMP NOT NULL DEFAULT NOW() ON UPDATE NOW()", ["values s.t"]),
        ("ALTER TABLE t ADD d DATE DEFAULT (CURRENT_DATE)", ["values s.t"]),
        ("ALTER TABLE t ADD g INT AS (a + 1) STORED", ["values s.t"]),
        ("ALTER TABLE t CONVERT TO CHARACTER SET latin1", ["values s.t"]),
        ("ALTER TABLE t CONVERT TO CHARSET utf8mb3 COLLATE x", ["values s.t"]),
        ("ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", []),
        ("ALTER TABLE t ADD c INT DEFAULT 5, ADD d VARCHAR(5) NOT NULL DEFAULT ('x'), ADD e INT", []),
        ("ALTER TABLE t ADD c INT DEFAULT NULL, ADD d INT DEFAULT (NULL), ADD e INT NOT NULL", []),
        ("ALTER TABLE t ADD c TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP", []),
        # What nobody foresaw waits, in a part as in a statement.
        ("ALTER TABLE t SHUFFLE ROWS", ["unknown s.t"]),
        ("ALTER TABLE t ADD c INT, EMPTY PARTITION p0", ["unknown s.t"]),
        ("ALTER TABLE t ADD FOO BAR", ["unknown s.t"]),
        ("ALTER TABLE t AUTO_INCREMENT = 5 SHUFFLE", ["unknown s.t"]),
        ("ALTER TABLE t CONVERT ROWS", ["unknown s.t"]),
        ("SHUFFLE TABLE t", ["unknown s.named"]),
        ("CREATE SHADOW t", ["unknown s.named"]),
        ("(DROP TABLE t)", ["unknown s.named"]),
    ],
)
def test_what_changes_rows(sql: str, changes: list[str]) -> None:
    assert _kinds(sql) == changes


@pytest.mark.parametrize(
    "part",
    [
        "ENGINE=InnoDB",
        "engine innodb row_format = dynamic",
        "AUTO_INCREMENT = 5, COMMENT = 'x', DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin",
        "CHARACTER SET = utf8mb4, ALGORITHM=INPLACE, LOCK=NONE",
        "DEFAULT COLLATE utf8mb4_general_ci",
        "FORCE",
        "ORDER BY a, b DESC, c",
        "ENABLE KEYS",
        "DISABLE KEYS",
        "ADD c INT, WITH VALIDATION",
        "PARTITION BY RANGE COLUMNS (a) (PARTITION p0 VALUES LESS THAN (1), PARTITION p1 VALUES IN (2))",
        "COMMENT='x' PARTITION BY HASH (a) PARTITIONS 4",
        "ADD PARTITION (PARTITION p3 VALUES LESS THAN (9))",
        "REORGANIZE PARTITION p0, p1 INTO (PARTITION p VALUES LESS THAN (9))",
        "COALESCE PARTITION 2",
        "REMOVE PARTITIONING",
        "ANALYZE PARTITION p0, p1",
        "REBUILD PARTITION p0, truncate_me",
        "ADD UNIQUE KEY u (a, b), ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES o (x) ON DELETE CASCADE",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (id, k)",
        "DROP FOREIGN KEY f, DROP CHECK c, DROP CONSTRAINT d",
        "RENAME INDEX i TO j, RENAME KEY k TO l",
        "ALTER INDEX i INVISIBLE, ALTER COLUMN c SET INVISIBLE, ALTER c SET DEFAULT 5",
        "ADD COLUMN c VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL DEFAULT '' AFTER a",
        "ADD COLUMN c INT COMMENT 'DROP PARTITION' CHECK (c > 0) INVISIBLE",
        "ADD COLUMN u UUID, ADD COLUMN i INET6, ADD g POINT NOT NULL SRID 4326, ADD v VECTOR(3)",
        "ADD c VARCHAR(5) COMPRESSED, MODIFY d ENUM('a','b'), CHANGE e f NATIONAL CHARACTER VARYING(4)",
        "SET TIFLASH REPLICA 1 LOCATION LABELS 'a', 'b'",
        "TTL = created + INTERVAL 3 MONTH TTL_ENABLE = 'OFF'",
        "TTL_ENABLE='ON', TTL_JOB_INTERVAL='24h'",
        "REMOVE TTL",
        "SHARD_ROW_ID_BITS = 4",
        "FORCE AUTO_INCREMENT = 7",
        "AUTO_ID_CACHE 100",
        "PLACEMENT POLICY = p",
        "PARTITION p0 PLACEMENT POLICY = p",
        "PARTITION p0 ATTRIBUTES = 'merge_option=deny'",
        "CACHE",
        "NOCACHE",
        "COMPACT PARTITION p0, p1 TIFLASH REPLICA",
        "SPLIT MAXVALUE PARTITION LESS THAN (9)",
        "PAGE_COMPRESSED=1 PAGE_COMPRESSION_LEVEL=6 ENCRYPTED=YES",
        "STATS_PERSISTENT=0, STATS_SAMPLE_PAGES=DEFAULT, TABLESPACE ts STORAGE DISK",
        "SECONDARY_ENGINE = NULL",
        "SECONDARY_LOAD",
    ],
)
def test_parts_of_an_alter_that_change_no_row(part: str) -> None:
    assert _kinds(f"ALTER TABLE t {part}") == []


def _statement(words: tuple[str, ...]) -> str:
    return f"{' '.join(words)} x"


@pytest.mark.parametrize("rule", STATEMENTS, ids=lambda rule: " ".join(rule.words))
def test_each_statement_of_the_list_is_what_it_says(rule: StatementRule) -> None:
    """None of another meaning hides it, and the meanings that change no rows give nothing."""
    words, meaning = rule.words, rule.meaning
    if meaning in ("nothing", "columns"):
        assert _kinds(_statement(words)) == []
    elif meaning in ("unknown", "brought-back"):
        assert _kinds(_statement(words)) == ["unknown s.named"]


@pytest.mark.parametrize("rule", PARTS, ids=lambda rule: " ".join(rule.words))
def test_each_part_of_the_list_is_what_it_says(rule: PartRule) -> None:
    words, meaning = rule.words, rule.meaning
    if meaning in ("nothing", "keys", "columns", "order"):
        assert _kinds(f"ALTER TABLE t {' '.join(words)} x") == []
    elif meaning in ("unknown", "partition"):
        assert _kinds(f"ALTER TABLE t {' '.join(words)} x") == [f"{meaning} s.t"]


def test_the_list_has_each_statement_once() -> None:
    for rules in (STATEMENTS, PARTS):
        words = [rule.words for rule in rules]
        assert len(set(words)) == len(words)
    assert all(words and word.isupper() for words in OPTIONS for word in words)
