"""DDL that changes rows which are there: what each statement is, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.memory_target import CAPABILITIES
from tidesink.config.fields import SchemaChanges
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.row_changes import DdlEffects, RowChange, RowDdl
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.schema_changes.decisions import Policies
from tidesink.sinks.schema_changes.row_ddl import decide_rows, is_decided, unfollowed
from tidesink.sinks.state.progress import PartitionProgress, Progress, TopicProgress, from_json, to_json

T, U = TableId("s", "t"), TableId("s", "u")


@pytest.mark.parametrize(
    ("sql", "changes", "word"),
    [
        ("TRUNCATE TABLE `s`.`t`", ["truncate s.t"], "TRUNCATE"),
        ("truncate t", ["truncate s.t"], "TRUNCATE"),
        ("TRUNCATE t; TRUNCATE t; TRUNCATE o.t", ["truncate s.t", "truncate o.t"], "stay in the target"),
        ("DROP TABLE IF EXISTS t, o.u", ["drop-table s.t", "drop-table o.u"], "stay in the target"),
        ("DROP TABLE t; CREATE TABLE t (a INT)", ["drop-table s.t"], "created again"),
        ("DROP DATABASE IF EXISTS s", ["drop-table s."], "stay in the target"),
        ("RENAME TABLE t TO u", ["rename-table s.t", "rename-table s.u"], "was renamed from s.t"),
        ("RENAME TABLE t TO u, u TO t", ["rename-table s.t", "rename-table s.u"], "was renamed to s.u"),
        ("RENAME TABLE t TO o.t", ["rename-table s.t", "rename-table o.t"], "o.t"),
        ("ALTER TABLE t RENAME TO o.u", ["rename-table s.t", "rename-table o.u"], "o.u"),
        ("ALTER TABLE t RENAME AS u", ["rename-table s.t", "rename-table s.u"], ""),
        ("ALTER TABLE t DROP PARTITION p0", ["partition s.t"], "stay in the target"),
        ("ALTER TABLE t TRUNCATE PARTITION p0, p1", ["partition s.t"], "stay in the target"),
        ("ALTER TABLE t FIRST PARTITION LESS THAN (9)", ["partition s.t"], "stay in the target"),
        ("ALTER TABLE t ADD c INT, DROP PARTITION p", ["partition s.t"], ""),
        (
            "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE `u`",
            ["partition s.t", "partition s.u"],
            "from s.u to s.t",
        ),
        ("DROP TABLES t, u", ["drop-table s.t", "drop-table s.u"], "stay in the target"),
        ("RENAME TABLES IF EXISTS t TO u", ["rename-table s.t", "rename-table s.u"], "was renamed from s.t"),
        ("ALTER ONLINE IGNORE TABLE IF EXISTS t DROP PARTITION p0", ["partition s.t"], "stay in the target"),
        # MariaDB's.
        ("ALTER TABLE t WAIT 5 DROP PARTITION p0", ["partition s.t"], "stay in the target"),
        ("ALTER TABLE t NOWAIT RENAME TO u", ["rename-table s.t", "rename-table s.u"], ""),
        ("RENAME TABLE t WAIT 5 TO u, u NOWAIT TO t", ["rename-table s.t", "rename-table s.u"], ""),
        ("ALTER TABLE t IMPORT PARTITION p TABLESPACE", ["unknown s.t"], "not understood"),
        ("RECOVER TABLE t", ["unknown s.t"], "restored"),
        ("RECOVER TABLE BY JOB 5", ["unknown s.named"], "restored"),
        ("FLASHBACK TABLE t TO u", ["unknown s.t", "unknown s.u"], "restored"),
        ("FLASHBACK DATABASE s TO r", ["unknown s."], "restored"),
        ("FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01'", ["unknown ."], "restored"),
        ("MERGE INTO t", ["unknown s.named"], "not understood"),
        ("ALTER TABLE t CHANGE a A BIGINT", [], ""),
        ("ALTER TABLE t RENAME COLUMN a TO c, DROP COLUMN d", [], ""),
        ("ALTER TABLE t RENAME INDEX i TO j, ADD PARTITION (PARTITION p3 VALUES LESS THAN (9))", [], ""),
        ("ALTER TABLE t REMOVE PARTITIONING", [], ""),
        ("ALTER TABLE t COMMENT 'x', AUTO_INCREMENT = 5, SET TIFLASH REPLICA 1", [], ""),
        ("DROP INDEX i ON t", [], ""),
        ("DROP VIEW t", [], ""),
        ("DROP TEMPORARY TABLE t", [], ""),
        ("CREATE OR REPLACE VIEW t AS SELECT 1", [], ""),
        ("CREATE TABLE t LIKE u", [], ""),
        ("CREATE TABLE t AS SELECT * FROM u", [], ""),
        ("CREATE TABLE truncate_me (a INT COMMENT 'TRUNCATE TABLE t')", [], ""),
        ("ALTER DATABASE s CHARACTER SET = utf8", [], ""),
        ("RENAME USER a TO b", [], ""),
        ("", [], ""),
    ],
)
def test_what_a_statement_does_to_rows(sql: str, changes: list[str], word: str) -> None:
    found = DdlEffects(sql, "s", about=TableId("s", "named")).row_changes()
    assert [f"{one.kind} {one.table}" for one in found] == changes
    assert word in " ".join(one.effect for one in found)


def test_a_swap_of_names_says_both_at_each_table() -> None:
    first, second = DdlEffects("RENAME TABLE t TO x, u TO t, x TO u", "s").row_changes()[0:3:2]
    assert (first.table, "to s.x" in first.effect, "from s.u" in first.effect) == (T, True, True)
    assert (second.table, "to s.t" in second.effect, "from s.x" in second.effect) == (U, True, True)


def test_columns_that_are_renamed() -> None:
    assert DdlEffects("ALTER TABLE t RENAME COLUMN a TO c, CHANGE COLUMN d D INT", "s").renamed_columns() == (
        (T, "a", "c"),
    )
    assert DdlEffects("ALTER TABLE t ADD d INT, CHANGE a c BIGINT", "s").renamed_columns() == ((T, "a", "c"),)
    assert DdlEffects("ALTER TABLE t RENAME INDEX i TO j, RENAME TO u", "s").renamed_columns() == ()
    assert DdlEffects("ALTER TABLE t WAIT 5 RENAME COLUMN IF EXISTS a TO c", "s").renamed_columns() == (
        (T, "a", "c"),
    )


def test_each_question_reads_the_same_statements_from_their_start() -> None:
    effects = DdlEffects("CREATE TABLE t (a INT); ALTER TABLE t RENAME COLUMN a TO c; TRUNCATE t", "s")
    definitions = TableDefinitions()
    for _ in range(2):
        assert effects.made_tables() == effects.altered_tables() == (T,)
        assert effects.renamed_columns() == ((T, "a", "c"),)
        assert [change.kind for change in effects.row_changes()] == ["truncate"]
    assert definitions.apply_text(effects, since=5) == (T,)
    assert definitions.apply_text(effects, since=5) == ()
    schema = definitions.get(T)
    assert schema is not None
    assert [column.name for column in schema.columns] == ["c"]


@pytest.mark.parametrize(
    "sql", ["TRUNCATE (", "DROP TABLE 5", "RENAME TABLE t AS u", "ALTER TABLE t RENAME TO ("]
)
def test_a_statement_that_cannot_be_read(sql: str) -> None:
    with pytest.raises(ConfigError):
        DdlEffects(sql, "s").row_changes()


def _ddl(
    kind: Any = "truncate", moment: int | None = 50, *, offset: int = 5, sql: str = "TRUNCATE t"
) -> RowDdl:
    return RowDdl.of(RowChange(T, kind, "rows stay"), sql, moment=moment, offset=offset)


def _policies(accepted: dict[str, Any] | None = None, **said: str) -> Policies:
    named = {kind.replace("_", "-"): policy for kind, policy in said.items()}
    return Policies(SchemaChanges.model_validate(named), accepted or {}, CAPABILITIES)


NOTHING = Progress(T, "p", 1, 0)
LATER = replace(NOTHING, batch=3, decided=40, emptied=20)


def test_by_default_each_kind_waits_and_says_how_it_is_accepted() -> None:
    ways = {}
    for kind in ("truncate", "drop-table", "rename-table", "partition", "unknown"):
        (pending,) = decide_rows([_ddl(kind)], _policies(), NOTHING, "cdc").pending
        ways[kind] = pending.accepts
        shown = pending.as_json()
        assert (shown["kind"], shown["statement"], shown["column"]) == (kind, "TRUNCATE t", "")
        assert "rows stay" in pending.reason
    both = ("apply", "ignore")
    assert ways == {
        "truncate": both,
        "drop-table": both,
        "rename-table": ("ignore",),
        "partition": ("ignore",),
        "unknown": ("ignore",),
    }


def test_the_time_of_a_statement_is_shown() -> None:
    one = _ddl(moment=1_764_158_400_123 << 18 | 7)
    (pending,) = decide_rows([one], _policies(), NOTHING, "cdc").pending
    assert str(pending.change) == "truncate of 2025-11-26 12:00:00.123 UTC (TRUNCATE t)"
    assert pending.as_json()["time"] == "2025-11-26 12:00:00.123 UTC"
    assert (_ddl(moment=(1 << 63) - 1).time[:4], _ddl(moment=None).time) == ("3084", "")


def test_an_acceptance_is_of_one_statement_at_one_time() -> None:
    first = _ddl()
    (pending,) = decide_rows([first], _policies(), NOTHING, "cdc").pending
    accepted = _policies({pending.change.digest: "apply"})
    assert decide_rows([first], accepted, NOTHING, "cdc").empties == 50
    assert decide_rows([first._replace(offset=99)], accepted, NOTHING, "cdc").empties == 50  # sent again
    for other in (_ddl(moment=51), _ddl(sql="TRUNCATE TABLE t"), _ddl("drop-table")):
        found = decide_rows([first, other], accepted, NOTHING, "cdc")
        assert [one.change.digest for one in found.pending] != [pending.change.digest]
        assert len(found.pending) == 1


def test_what_is_accepted_in_other_ways_is_shown_afterwards() -> None:
    every = [_ddl(moment=1), _ddl("drop-table", 2), _ddl("partition", 3), _ddl(moment=4)]
    shown = decide_rows(every, _policies(), NOTHING, "cdc").pending
    assert [one.change.kind for one in shown] == ["truncate", "drop-table"]
    shown = decide_rows(every[2:], _policies(), NOTHING, "cdc").pending
    assert [one.change.kind for one in shown] == ["partition"]


def test_the_last_statement_that_empties_the_table_counts() -> None:
    policies = _policies(truncate="apply", drop_table="apply", partition="ignore")
    every = [_ddl(moment=30), _ddl(moment=50), _ddl("drop-table", 60), _ddl("partition", 70)]
    found = decide_rows(every, policies, LATER, "cdc")
    assert (found.pending, found.empties, found.decided) == ((), 60, 70)
    found = decide_rows(every[:1], policies, LATER, "cdc")
    assert (found.pending, found.empties, found.decided) == ((), None, 40)  # it was passed over before


def test_what_a_batch_knew_is_decided_whatever_the_policy_says_now() -> None:
    """Rows that are there may be later than the statement: to empty the table now would lose them."""
    for policies in (_policies(truncate="apply"), _policies()):
        assert decide_rows([_ddl(moment=40)], policies, LATER, "cdc") == decide_rows(
            [], policies, LATER, "cdc"
        )
    assert not is_decided(_ddl(moment=41), LATER, "cdc")


@pytest.mark.parametrize(
    ("commit_ts", "moment", "offset", "decided"),
    [(60, 50, 9, True), (60, 61, 1, False), (None, 50, 6, True), (None, 50, 7, False), (60, None, 6, True)],
)
def test_progress_without_decided_ddl(
    commit_ts: int | None, moment: int | None, offset: int, decided: bool
) -> None:
    topics = {"cdc": TopicProgress("cdc", "id", {0: PartitionProgress(7, 7)})}
    before = replace(NOTHING, batch=3, commit_ts=commit_ts, topics=topics)
    assert is_decided(_ddl(moment=moment, offset=offset), before, "cdc") == decided


def test_a_statement_without_a_time_can_only_be_ignored() -> None:
    (pending,) = decide_rows([_ddl(moment=None)], _policies(truncate="apply"), NOTHING, "cdc").pending
    assert (pending.accepts, "the statement has no commit time" in pending.reason) == (("ignore",), True)
    ignored = _policies({pending.change.digest: "ignore"})
    assert decide_rows([_ddl(moment=None)], ignored, LATER, "cdc").pending == ()
    (again,) = decide_rows([_ddl(moment=None, offset=6)], ignored, LATER, "cdc").pending
    assert again.change.digest != pending.change.digest


def test_a_statement_with_an_impossible_time_says_so_and_decides_no_later_one() -> None:
    odd, policies = _ddl(moment=None)._replace(odd_time="es 9"), _policies(truncate="apply")
    (pending,) = decide_rows([odd], policies, NOTHING, "cdc").pending
    assert (pending.accepts, "the statement's commit time is impossible (es 9)" in pending.reason) == (
        ("ignore",),
        True,
    )
    ignored = replace(policies, accepted={pending.change.digest: "ignore"})
    found = decide_rows([odd, _ddl(moment=60)], ignored, LATER, "cdc")
    assert (found.pending, found.empties, found.decided) == ((), 60, 60)


def test_a_history_is_not_emptied() -> None:
    policies = replace(_policies(truncate="apply"), added=("valid_from",))
    (pending,) = decide_rows([_ddl()], policies, NOTHING, "cdc").pending
    assert pending.accepts == ("ignore",)


def test_a_log_waits_for_nothing() -> None:
    found = decide_rows([_ddl()], replace(_policies(), logs=True), NOTHING, "cdc")
    assert (found.pending, found.empties, found.decided) == ((), None, None)


def test_what_was_passed_over_is_said_while_its_rows_are_there() -> None:
    every = [_ddl(moment=10), _ddl(moment=30), _ddl(moment=60), _ddl(moment=None, sql="TRUNCATE u")]
    said = list(unfollowed(every, _policies(), LATER, "cdc"))
    # One at 10 is before the table was emptied, one at 60 still waits.
    assert said == ["not applied, rows stay: TRUNCATE t", "not applied, rows stay: TRUNCATE u"]
    assert len(list(unfollowed(every, replace(_policies(), logs=True), LATER, "cdc"))) == 4
    assert list(unfollowed(None, _policies(), LATER, "cdc")) == []


def test_progress_has_it_after_a_restart() -> None:
    assert from_json(to_json(LATER)) == LATER
    assert from_json(to_json(NOTHING)) == NOTHING
    assert "decided" not in to_json(NOTHING)
