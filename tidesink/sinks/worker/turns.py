"""Chooses what a table does next in its turn: open, rewind, check its topic, read a snapshot part or changes.

A turn is one call of ``TableTask.work``. The task looks at the facts (``TableFacts``), asks ``next_step``,
does the step, and looks again, until a step ends the turn. Some steps only find out facts (``Findings``), and
do not end the turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Step(Enum):
    """What a table does next.

    Attributes:
        OPEN: Open the table at the target. The turn continues, except if the table waits for a first record.
        REOPEN: Close and open the table, because its topic was replaced. The turn continues like after OPEN.
        REWIND: Set the table's offsets back, or refuse to. Ends the turn.
        OUTRUN: Refuse a snapshot request that can never begin. Ends the turn.
        CHECK: Check that no record of the topic was lost or replaced. The turn continues.
        FORGET_REWIND: Remove the request of a rewind that is done. The turn continues.
        SOURCE_DDL: Decide about DDL of the connector's DDL topic. The turn continues if the DDL must wait.
        SNAPSHOT_PART: Read and apply the next part of the table's snapshot. Ends the turn.
        CHANGES: Read and apply records of the topic. Ends the turn.
        REST: Do nothing. Ends the turn.
    """

    OPEN = auto()
    REOPEN = auto()
    REWIND = auto()
    OUTRUN = auto()
    CHECK = auto()
    FORGET_REWIND = auto()
    SOURCE_DDL = auto()
    SNAPSHOT_PART = auto()
    CHANGES = auto()
    REST = auto()


@dataclass(frozen=True)
class Findings:
    """The facts that earlier steps of the same turn have found out.

    Attributes:
        opened: True if the turn began with a closed table, and has opened it.
        reopened: True if the turn has closed the table and opened it again.
        awaits_record: True if the table could not be opened, because its topic has no record yet that shows
            its columns.
        continuous: True if the topic has all records that follow the table's progress. False if Kafka has
            replaced skipped records, which must be read first. None if this was not checked yet.
        ddl_waits: True if rows of the topic must be applied before the DDL of the DDL topic.
    """

    opened: bool = False
    reopened: bool = False
    awaits_record: bool = False
    continuous: bool | None = None
    ddl_waits: bool = False


@dataclass(frozen=True)
class TableFacts:
    """The facts of a table and of its topic's offsets at one moment of a turn.

    Attributes:
        is_open: True if the table is open at the target. Without it, all other facts are False.
        is_replaced: True if the topic was replaced before any of its records was applied.
        is_short: True if a partition ends below the table's next offset.
        may_read: False if cuts do not allow the table to read records now.
        rewind_asked: True if a rewind is requested, even if it is done already.
        rewind_due: True if the requested rewind was neither done nor refused.
        is_outrun: True if the requested snapshot can never begin.
        has_ddl: True if DDL of the connector's DDL topic must be decided about.
        has_part: True if the next part of the table's snapshot can be read now.
        read_part_last: True if the last turn in which a part could be read has read one.
        has_changes: True if the topic has unread records, with cuts up to the bound.
    """

    is_open: bool = False
    is_replaced: bool = False
    is_short: bool = False
    may_read: bool = False
    rewind_asked: bool = False
    rewind_due: bool = False
    is_outrun: bool = False
    has_ddl: bool = False
    has_part: bool = False
    read_part_last: bool = False
    has_changes: bool = False


def next_step(findings: Findings, facts: TableFacts) -> Step:
    """Return what a table does next.

    ``findings``: the facts that earlier steps of this turn have found out. ``facts``: the facts of now.
    """
    if findings.awaits_record:
        return Step.REST
    if not facts.is_open:
        return Step.OPEN
    if facts.is_replaced and not (findings.opened or findings.reopened):
        return Step.REOPEN
    if findings.opened and facts.is_short:
        return Step.REST  # another look-up of the offsets must confirm this first
    if facts.rewind_due and facts.may_read:
        # Before the continuity check: a new rewind may skip records that expired during the last one.
        return Step.REWIND
    if facts.is_outrun:
        return Step.OUTRUN
    if findings.continuous is None:
        return Step.CHECK
    if not findings.continuous or not facts.may_read:
        return Step.REST  # the skipped records must be read again, or the bound must be raised first
    if facts.rewind_asked:
        return Step.FORGET_REWIND  # a worker did the rewind, and was killed before it removed the request
    return _read(findings, facts)


def _read(findings: Findings, facts: TableFacts) -> Step:
    """Return from where the table reads next. Parts of its snapshot and unread changes alternate."""
    if facts.has_ddl and not findings.ddl_waits:
        return Step.SOURCE_DDL
    if facts.has_part and not (facts.read_part_last and facts.has_changes):
        return Step.SNAPSHOT_PART
    return Step.CHANGES
