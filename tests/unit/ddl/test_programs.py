"""Statements that hold other statements: programs execute none of them, and blocks may."""

from __future__ import annotations

import pytest

from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.row_changes import DdlEffects
from tidesink.events import TableId

NAMED, T, U = TableId("s", "named"), TableId("s", "t"), TableId("s", "u")
# All of it would be seen: rows that go, columns that come or get other names, tables that are made.
_INSIDE = (
    "TRUNCATE TABLE t; DROP TABLE t; RENAME TABLE t TO u; ALTER TABLE t ADD c INT, RENAME COLUMN a TO b; "
    "ALTER TABLE t MODIFY a BIGINT; CREATE TABLE u LIKE t; CREATE TABLE w (id INT); DROP DATABASE s; CALL q()"
)
_BODY = f"BEGIN {_INSIDE}; END"
_PROGRAMS = [
    f"CREATE DEFINER=`root`@`%` PROCEDURE p() {_BODY}",
    f"CREATE PROCEDURE p() {_BODY}",
    f"create procedure if not exists s.p (in a int, out b text) comment 'x' {_BODY}",
    f"CREATE OR REPLACE PROCEDURE p() {_BODY}",
    f"CREATE OR REPLACE DEFINER = CURRENT_USER() PROCEDURE IF NOT EXISTS p() {_BODY}",
    f"CREATE OR REPLACE DEFINER=CURRENT_ROLE AGGREGATE FUNCTION f(a INT) RETURNS INT {_BODY}",
    f"CREATE AGGREGATE FUNCTION IF NOT EXISTS f(a INT) RETURNS INT {_BODY}",
    f"CREATE FUNCTION f() RETURNS INT DETERMINISTIC READS SQL DATA SQL SECURITY INVOKER {_BODY}",
    f"CREATE DEFINER=root@localhost FUNCTION f() RETURNS INT {_BODY}",
    f"CREATE DEFINER = 'a b' @ '10.0.%' TRIGGER g AFTER DELETE ON t FOR EACH ROW FOLLOWS h {_BODY}",
    f"CREATE DEFINER=event@trigger TRIGGER g BEFORE INSERT ON t FOR EACH ROW {_BODY}",
    f"CREATE DEFINER=``@`localhost` TRIGGER IF NOT EXISTS `g` BEFORE UPDATE ON `t` FOR EACH ROW {_BODY}",
    f"CREATE EVENT e ON SCHEDULE EVERY 1 DAY STARTS '2026-01-01' ON COMPLETION PRESERVE DO {_BODY}",
    "CREATE EVENT e ON SCHEDULE AT NOW() DO DROP TABLE t",
    f"ALTER EVENT e ON SCHEDULE EVERY 1 HOUR DO {_BODY}",
    f"ALTER DEFINER=`a`@`b` EVENT e RENAME TO f ENABLE DO {_BODY}",
    "ALTER PROCEDURE p SQL SECURITY DEFINER COMMENT 'TRUNCATE TABLE t'",
    "ALTER FUNCTION f COMMENT 'x'; ",
    # Labels, nested blocks, control flow, cursors, text and comments with ends of their own.
    f"CREATE PROCEDURE p() l: BEGIN IF 1 THEN {_INSIDE}; END IF; WHILE 1 DO {_INSIDE}; END WHILE; END l",
    f"CREATE PROCEDURE p() IF a THEN {_INSIDE}; ELSE {_INSIDE}; END IF",
    f"CREATE PROCEDURE p() REPEAT {_INSIDE}; UNTIL 1 END REPEAT",
    f"CREATE PROCEDURE p() BEGIN DECLARE c CURSOR FOR SELECT 1; DECLARE EXIT HANDLER FOR 1051 {_BODY}; END",
    f"CREATE PROCEDURE p() BEGIN SELECT 'END;'; /* END; */ -- END;\n {_INSIDE}; END;",
    f"CREATE PROCEDURE p() BEGIN SELECT CASE WHEN 1 THEN 2 END; {_INSIDE}; END; {_INSIDE}",
    # Comments that a server executes, as dumps have them.
    f"/*!50003 CREATE*/ /*!50020 DEFINER=`root`@`%`*/ /*!50003 PROCEDURE p() {_BODY} */",
    f"/*!50106 CREATE*/ /*!50117 DEFINER=`a`@`%`*/ /*!50106 EVENT e ON SCHEDULE EVERY 1 DAY DO {_BODY} */ ;;",
    f"/*M!100100 CREATE OR REPLACE */ PROCEDURE p() {_BODY}",
    f"CREATE /* TABLE */ PROCEDURE p() {_BODY}",
    # MariaDB's settings, packages and Oracle's dialect.
    f"SET STATEMENT max_statement_time=5, sql_mode=ORACLE FOR CREATE PROCEDURE p AS {_BODY}",
    f"CREATE OR REPLACE PROCEDURE p AS a INT; b INT; {_BODY}",
    f"CREATE PACKAGE q AS PROCEDURE p; a INT; {_INSIDE}; END",
    f"CREATE OR REPLACE DEFINER=`a`@`b` PACKAGE BODY q AS a INT; PROCEDURE p AS {_BODY}; {_BODY}",
    # Bodies in other languages, which have other quotes, and a loadable function.
    "CREATE FUNCTION f(a INT) RETURNS INT LANGUAGE JAVASCRIPT AS $$ let b = 'it\\'s'; DROP TABLE t; \"` $$",
    "CREATE LIBRARY l LANGUAGE JAVASCRIPT AS $$ export function f() { /* ; DROP TABLE t; } $$",
    "CREATE FUNCTION f RETURNS STRING SONAME 'f.so'",
]
_BLOCKS = [
    f"BEGIN NOT ATOMIC {_INSIDE}; END",
    f"begin not atomic declare a int; {_INSIDE}; end;",
    f"/*M! BEGIN NOT ATOMIC */ {_INSIDE}; END",
    f"SET STATEMENT a=1 FOR BEGIN NOT ATOMIC {_INSIDE}; END",
    f"BEGIN {_INSIDE}; END",
    f"DECLARE a INT; {_BODY}",
    f"<<l>> BEGIN {_INSIDE}; END l",
    f"IF a THEN {_INSIDE}; END IF",
    f"CASE a WHEN 1 THEN {_INSIDE}; END CASE",
    f"LOOP {_INSIDE}; END LOOP",
    f"l: LOOP {_INSIDE}; END LOOP l",
    f"`l` : WHILE 1 DO {_INSIDE}; END WHILE",
    f"WHILE 1 DO {_INSIDE}; END WHILE",
    f"REPEAT {_INSIDE}; UNTIL 1 END REPEAT",
    f"FOR i IN 1..9 DO {_INSIDE}; END FOR",
]


def _kinds(sql: str) -> list[str]:
    return [f"{one.kind} {one.table}" for one in DdlEffects(sql, "s", about=NAMED).row_changes()]


@pytest.mark.parametrize("sql", [*_PROGRAMS, *_BLOCKS])
def test_what_a_body_holds_is_not_executed(sql: str) -> None:
    assert _kinds(sql) == (["unknown s.named"] if sql in _BLOCKS else [])
    effects = DdlEffects(sql, "s")
    assert effects.altered_tables() == effects.moved_tables() == effects.tables_made_like() == ()
    assert (effects.converted_columns(), effects.renamed_columns()) == ((), ())
    definitions = TableDefinitions()
    definitions.apply("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "s", since=1)
    before = definitions.to_json()
    assert definitions.apply(sql, "s") == ()
    assert (definitions.to_json(), [*definitions]) == (before, [T])
    assert definitions.declare(sql, "s") == ()
    assert definitions.to_json() == before


@pytest.mark.parametrize(
    ("sql", "changes"),
    [
        # Words that begin no program, and transactions.
        ("CREATE TABLE event (id INT); TRUNCATE t", ["truncate s.t"]),
        ("CREATE TABLE x (event INT, `trigger` INT, function INT); TRUNCATE t", ["truncate s.t"]),
        ("CREATE VIEW procedure_list AS SELECT event FROM x; TRUNCATE t", ["truncate s.t"]),
        ("DROP PROCEDURE p; TRUNCATE t", ["truncate s.t"]),
        ("DROP EVENT IF EXISTS e; TRUNCATE t", ["truncate s.t"]),
        ("ALTER TABLE t ADD event INT; TRUNCATE t", ["truncate s.t"]),
        ("BEGIN; TRUNCATE t; COMMIT", ["truncate s.t"]),
        ("BEGIN WORK; TRUNCATE t", ["truncate s.t"]),
        ("BEGIN PESSIMISTIC; TRUNCATE t", ["truncate s.t"]),
        ("BEGIN", []),
        ("XA BEGIN 'x'; TRUNCATE t", ["truncate s.t"]),
        ("SET STATEMENT a=(SELECT 1) FOR TRUNCATE t; TRUNCATE u", ["truncate s.t", "truncate s.u"]),
        ("SET STATEMENT a=1 FOR", []),
        # What a DELIMITER line names ends a statement, as at the clients.
        (f"DELIMITER //\nCREATE PROCEDURE p() {_BODY} //\nDELIMITER ;\nTRUNCATE u;", ["truncate s.u"]),
        (f"delimiter $$\nCREATE PROCEDURE p()\n{_BODY}$$\nTRUNCATE u$$", ["truncate s.u"]),
        (
            f"DELIMITER ;;\n/*!50003 CREATE TRIGGER g {_BODY} */;;\nDELIMITER ;\nDROP TABLE u",
            ["drop-table s.u"],
        ),
        (f"CREATE PROCEDURE p() {_BODY}\nDELIMITER ;\nTRUNCATE u", []),
        (f"CREATE PROCEDURE p() {_BODY};\nDELIMITER ;\nTRUNCATE u", ["truncate s.u"]),
        (
            "DELIMITER |\nTRUNCATE t|\nSELECT ';|'|\nTRUNCATE u",
            ["truncate s.t", "unknown s.named", "truncate s.u"],
        ),
        ("DELIMITER '//'\nTRUNCATE t//TRUNCATE u//", ["truncate s.t", "truncate s.u"]),
        ("CREATE TABLE x (id INT,\ndelimiter VARCHAR(1)); TRUNCATE t", ["truncate s.t"]),
    ],
)
def test_where_statements_end(sql: str, changes: list[str]) -> None:
    assert _kinds(sql) == changes


def test_a_dump_with_programs_declares_its_tables() -> None:
    dump = f"""
        CREATE TABLE t (id INT PRIMARY KEY);
        DELIMITER ;;
        /*!50003 CREATE*/ /*!50017 DEFINER=`root`@`%`*/ /*!50003 TRIGGER g BEFORE INSERT ON t FOR EACH ROW
        {_BODY} */;;
        DELIMITER ;
        CREATE TABLE u (id INT PRIMARY KEY);
    """
    definitions = TableDefinitions()
    assert definitions.declare(dump, "s") == (T, U)
    assert [*definitions] == [T, U]


def test_many_words_of_programs_are_read_in_time() -> None:
    """Each of them is looked at by itself: a text that is nothing else is read once."""
    assert _kinds("CREATE " + "event " * 20_000) == []
    assert _kinds("SET STATEMENT (" + "FOR " * 20_000) == []
    assert _kinds("x " + "FUNCTION " * 20_000) == ["unknown s.named"]
