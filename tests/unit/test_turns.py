"""What a table does next, by the facts of a moment."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Final

import pytest

from tidesink.sinks.worker.turns import Job, Look, Steps, next_job

# An open table in the middle of a turn: its topic was checked.
OPEN: Final = Look(is_open=True, may_read=True)
BEGUN, CHECKED = Steps(), Steps(continuous=True)


@pytest.mark.parametrize(
    ("steps", "look", "job"),
    [
        # A closed table is opened first. One without a record that shows its columns waits.
        (BEGUN, Look(), Job.OPEN),
        (Steps(opened=True, awaits_record=True), Look(), Job.REST),
        (Steps(reopened=True, awaits_record=True), Look(), Job.REST),
        # Its topic was replaced before anything of it was applied: the start is resolved again, once.
        (BEGUN, replace(OPEN, is_replaced=True), Job.REOPEN),
        (BEGUN, replace(OPEN, is_replaced=True, rewind_due=True), Job.REOPEN),
        (BEGUN, replace(OPEN, is_replaced=True, is_outrun=True), Job.REOPEN),
        (Steps(reopened=True), replace(OPEN, is_replaced=True), Job.CHECK),
        (Steps(opened=True), replace(OPEN, is_replaced=True), Job.CHECK),
        # Offsets below those of a table that was just opened may be outdated. Later they are an error.
        (Steps(opened=True), replace(OPEN, is_short=True), Job.REST),
        (Steps(opened=True), replace(OPEN, is_short=True, rewind_due=True), Job.REST),
        (Steps(opened=True), replace(OPEN, is_short=True, is_outrun=True), Job.REST),
        (Steps(reopened=True), replace(OPEN, is_short=True), Job.CHECK),
        (BEGUN, replace(OPEN, is_short=True), Job.CHECK),
        # A rewind comes before the check, which records that it skips could fail.
        (BEGUN, replace(OPEN, rewind_due=True, rewind_asked=True), Job.REWIND),
        (Steps(opened=True), replace(OPEN, rewind_due=True, rewind_asked=True), Job.REWIND),
        (BEGUN, replace(OPEN, rewind_due=True, is_outrun=True), Job.REWIND),
        (BEGUN, replace(OPEN, rewind_due=True, is_short=True), Job.REWIND),
        (BEGUN, replace(OPEN, rewind_due=True, may_read=False), Job.CHECK),
        (Steps(continuous=True), replace(OPEN, rewind_due=True, may_read=False), Job.REST),
        # A snapshot that can never begin needs no topic.
        (BEGUN, replace(OPEN, is_outrun=True), Job.OUTRUN),
        (BEGUN, replace(OPEN, is_outrun=True, may_read=False), Job.OUTRUN),
        # The topic is checked in each turn, even if the table may read nothing.
        (BEGUN, OPEN, Job.CHECK),
        (Steps(opened=True), OPEN, Job.CHECK),
        (BEGUN, replace(OPEN, may_read=False), Job.CHECK),
        (BEGUN, replace(OPEN, rewind_asked=True, has_ddl=True, has_part=True), Job.CHECK),
        (Steps(continuous=False), replace(OPEN, has_changes=True), Job.REST),
        (Steps(continuous=False), replace(OPEN, rewind_asked=True, has_ddl=True), Job.REST),
        (CHECKED, replace(OPEN, may_read=False, has_ddl=True, has_part=True, has_changes=True), Job.REST),
        # The request of a rewind that is done is removed before anything is read.
        (CHECKED, replace(OPEN, rewind_asked=True, has_changes=True), Job.FORGET_REWIND),
        (CHECKED, replace(OPEN, rewind_asked=True, has_ddl=True, has_part=True), Job.FORGET_REWIND),
        # DDL comes before rows, until it is known that rows come first.
        (CHECKED, replace(OPEN, has_ddl=True, has_part=True, has_changes=True), Job.SOURCE_DDL),
        (replace(CHECKED, ddl_waits=True), replace(OPEN, has_ddl=True), Job.CHANGES),
        (replace(CHECKED, ddl_waits=True), replace(OPEN, has_ddl=True, has_part=True), Job.SNAPSHOT_PART),
        # Parts and changes alternate while both wait.
        (CHECKED, replace(OPEN, has_part=True), Job.SNAPSHOT_PART),
        (CHECKED, replace(OPEN, has_part=True, has_changes=True), Job.SNAPSHOT_PART),
        (CHECKED, replace(OPEN, has_part=True, read_part_last=True), Job.SNAPSHOT_PART),
        (CHECKED, replace(OPEN, has_part=True, read_part_last=True, has_changes=True), Job.CHANGES),
        # Changes are also the last resort: their plan finds out if there is something to read.
        (CHECKED, OPEN, Job.CHANGES),
        (CHECKED, replace(OPEN, has_changes=True), Job.CHANGES),
    ],
)
def test_the_next_job(steps: Steps, look: Look, job: Job) -> None:
    assert next_job(steps, look) is job


def test_parts_and_changes_take_turns_while_both_wait() -> None:
    jobs, look = list[Job](), replace(OPEN, has_part=True, has_changes=True)
    for _ in range(4):
        jobs.append(next_job(CHECKED, look))
        look = replace(look, read_part_last=jobs[-1] is Job.SNAPSHOT_PART)
    assert jobs == [Job.SNAPSHOT_PART, Job.CHANGES] * 2


def _after(job: Job, steps: Steps, look: Look) -> tuple[Steps, Look] | None:
    """The facts after a job that does not end the turn."""
    after = {
        Job.OPEN: (replace(steps, opened=True), replace(look, is_open=True)),
        Job.REOPEN: (replace(steps, reopened=True), look),
        Job.CHECK: (replace(steps, continuous=True), look),
        Job.FORGET_REWIND: (steps, replace(look, rewind_asked=False)),
        Job.SOURCE_DDL: (replace(steps, ddl_waits=True), look),
    }
    return after.get(job)


def test_every_turn_ends_and_reads_nothing_unchecked() -> None:
    names = [fact.name for fact in fields(Look)]
    for values in itertools.product((False, True), repeat=len(names)):
        steps, look = Steps(), Look(**dict(zip(names, values, strict=True)))
        jobs = list[Job]()
        facts: tuple[Steps, Look] | None = (steps, look)
        while facts is not None:
            jobs.append(next_job(*facts))
            facts = _after(jobs[-1], *facts)
        assert len(jobs) == len({*jobs})
        if jobs[-1] in (Job.SNAPSHOT_PART, Job.CHANGES):
            assert Job.CHECK in jobs
            assert look.may_read
