"""What a table does next, by the facts of a moment."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Final

import pytest

from tidesink.sinks.worker.turns import Findings, Step, TableFacts, next_step

# An open table in the middle of a turn: its topic was checked.
OPEN: Final = TableFacts(is_open=True, may_read=True)
BEGUN, CHECKED = Findings(), Findings(continuous=True)


@pytest.mark.parametrize(
    ("findings", "facts", "step"),
    [
        # A closed table is opened first. One without a record that shows its columns waits.
        (BEGUN, TableFacts(), Step.OPEN),
        (Findings(opened=True, awaits_record=True), TableFacts(), Step.REST),
        (Findings(reopened=True, awaits_record=True), TableFacts(), Step.REST),
        # Its topic was replaced before anything of it was applied: the start is resolved again, once.
        (BEGUN, replace(OPEN, is_replaced=True), Step.REOPEN),
        (BEGUN, replace(OPEN, is_replaced=True, rewind_due=True), Step.REOPEN),
        (BEGUN, replace(OPEN, is_replaced=True, is_outrun=True), Step.REOPEN),
        (Findings(reopened=True), replace(OPEN, is_replaced=True), Step.CHECK),
        (Findings(opened=True), replace(OPEN, is_replaced=True), Step.CHECK),
        # Offsets below those of a table that was just opened may be outdated. Later they are an error.
        (Findings(opened=True), replace(OPEN, is_short=True), Step.REST),
        (Findings(opened=True), replace(OPEN, is_short=True, rewind_due=True), Step.REST),
        (Findings(opened=True), replace(OPEN, is_short=True, is_outrun=True), Step.REST),
        (Findings(reopened=True), replace(OPEN, is_short=True), Step.CHECK),
        (BEGUN, replace(OPEN, is_short=True), Step.CHECK),
        # A rewind comes before the check, which records that it skips could fail.
        (BEGUN, replace(OPEN, rewind_due=True, rewind_asked=True), Step.REWIND),
        (Findings(opened=True), replace(OPEN, rewind_due=True, rewind_asked=True), Step.REWIND),
        (BEGUN, replace(OPEN, rewind_due=True, is_outrun=True), Step.REWIND),
        (BEGUN, replace(OPEN, rewind_due=True, is_short=True), Step.REWIND),
        (BEGUN, replace(OPEN, rewind_due=True, may_read=False), Step.CHECK),
        (Findings(continuous=True), replace(OPEN, rewind_due=True, may_read=False), Step.REST),
        # A snapshot that can never begin needs no topic.
        (BEGUN, replace(OPEN, is_outrun=True), Step.OUTRUN),
        (BEGUN, replace(OPEN, is_outrun=True, may_read=False), Step.OUTRUN),
        # The topic is checked in each turn, even if the table may read nothing.
        (BEGUN, OPEN, Step.CHECK),
        (Findings(opened=True), OPEN, Step.CHECK),
        (BEGUN, replace(OPEN, may_read=False), Step.CHECK),
        (BEGUN, replace(OPEN, rewind_asked=True, has_ddl=True, has_part=True), Step.CHECK),
        (Findings(continuous=False), replace(OPEN, has_changes=True), Step.REST),
        (Findings(continuous=False), replace(OPEN, rewind_asked=True, has_ddl=True), Step.REST),
        (CHECKED, replace(OPEN, may_read=False, has_ddl=True, has_part=True, has_changes=True), Step.REST),
        # The request of a rewind that is done is removed before anything is read.
        (CHECKED, replace(OPEN, rewind_asked=True, has_changes=True), Step.FORGET_REWIND),
        (CHECKED, replace(OPEN, rewind_asked=True, has_ddl=True, has_part=True), Step.FORGET_REWIND),
        # DDL comes before rows, until it is known that rows come first.
        (CHECKED, replace(OPEN, has_ddl=True, has_part=True, has_changes=True), Step.SOURCE_DDL),
        (replace(CHECKED, ddl_waits=True), replace(OPEN, has_ddl=True), Step.CHANGES),
        (replace(CHECKED, ddl_waits=True), replace(OPEN, has_ddl=True, has_part=True), Step.SNAPSHOT_PART),
        # Parts and changes alternate while both wait.
        (CHECKED, replace(OPEN, has_part=True), Step.SNAPSHOT_PART),
        (CHECKED, replace(OPEN, has_part=True, has_changes=True), Step.SNAPSHOT_PART),
        (CHECKED, replace(OPEN, has_part=True, read_part_last=True), Step.SNAPSHOT_PART),
        (CHECKED, replace(OPEN, has_part=True, read_part_last=True, has_changes=True), Step.CHANGES),
        # Changes are also the last resort: their plan finds out if there is something to read.
        (CHECKED, OPEN, Step.CHANGES),
        (CHECKED, replace(OPEN, has_changes=True), Step.CHANGES),
    ],
)
def test_the_next_step(findings: Findings, facts: TableFacts, step: Step) -> None:
    assert next_step(findings, facts) is step


def test_parts_and_changes_take_turns_while_both_wait() -> None:
    steps, facts = list[Step](), replace(OPEN, has_part=True, has_changes=True)
    for _ in range(4):
        steps.append(next_step(CHECKED, facts))
        facts = replace(facts, read_part_last=steps[-1] is Step.SNAPSHOT_PART)
    assert steps == [Step.SNAPSHOT_PART, Step.CHANGES] * 2


def _after(step: Step, findings: Findings, facts: TableFacts) -> tuple[Findings, TableFacts] | None:
    """The facts after a step that does not end the turn."""
    after = {
        Step.OPEN: (replace(findings, opened=True), replace(facts, is_open=True)),
        Step.REOPEN: (replace(findings, reopened=True), facts),
        Step.CHECK: (replace(findings, continuous=True), facts),
        Step.FORGET_REWIND: (findings, replace(facts, rewind_asked=False)),
        Step.SOURCE_DDL: (replace(findings, ddl_waits=True), facts),
    }
    return after.get(step)


def test_every_turn_ends_and_reads_nothing_unchecked() -> None:
    names = [fact.name for fact in fields(TableFacts)]
    for values in itertools.product((False, True), repeat=len(names)):
        facts = TableFacts(**dict(zip(names, values, strict=True)))
        steps, known = list[Step](), (Findings(), facts)
        after: tuple[Findings, TableFacts] | None = known
        while after is not None:
            known = after
            steps.append(next_step(*known))
            after = _after(steps[-1], *known)
        assert len(steps) == len({*steps})
        if steps[-1] in (Step.SNAPSHOT_PART, Step.CHANGES):
            assert Step.CHECK in steps
            assert facts.may_read
