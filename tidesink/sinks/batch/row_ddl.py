"""Decisions on DDL that changes existing rows (ADR 34).

A TRUNCATE at commit time T makes every row committed up to T void, no matter when it is read. So a table is
emptied as soon as the DDL is known, in a separate batch whose progress contains T. From then on, rows up to T
are superseded in every partition, and so are replayed letters.

This is correct because no row later than T is applied before T is known: before each batch, the DDL in
partition 0 is read ahead of the batch's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from tidesink.ddl.row_changes import EMPTYING, RowDdl
from tidesink.sinks.batch.schema_changes import Pending, Policies, SchemaChange
from tidesink.sinks.batch.topic_ddl import DDL_PARTITION
from tidesink.sinks.state.progress import Progress

_SHOWN_SQL: Final = 200
_UNTIMED: Final = (
    "its commit time is not known, so earlier rows cannot be distinguished from later ones: have the "
    "producer write the time (TiCDC: enable-tidb-extension), or load the table again"
)
_ODD: Final = (
    "its commit time is impossible ({}), and following it would remove all rows up to that time. Correct the "
    "producer's clock (es is in milliseconds), and empty the target table by hand or load it again"
)
_VERSIONS: Final = (
    "this version cannot end the versions of a whole table in mode: history. Delete the rows at the source, "
    "or load the table again"
)
_BY_HAND: Final = (
    "{}. To bring the target in line with the source, reject the statement and run tidesink resync. Or "
    "change the target's rows by hand while the statement waits, and then reject it"
)
_IGNORED: Final = "if it is ignored, {}"


@dataclass(frozen=True)
class RowDecision:
    """The decision on DDL before a batch.

    ``pending``: statements that wait for a person; the batch is not applied until they are decided.
    ``empties``: the TSO up to which all rows of the table are void, if the table must be emptied first.
    ``decided``: the new value of ``Progress.decided`` once the batch is applied.
    """

    pending: tuple[Pending, ...] = ()
    empties: int | None = None
    decided: int | None = None


class TableEmptiesError(Exception):
    """DDL empties the table before the batch is applied."""

    def __init__(self, decision: RowDecision) -> None:
        super().__init__("DDL empties the table")
        self.decision = decision


def decide_rows(
    found: Sequence[RowDdl] | None, policies: Policies, progress: Progress, topic: str
) -> RowDecision:
    """Decides on a table's statements. ``found``: the statements known so far, or None if no DDL is read."""
    if found is None or not policies.follows:
        return RowDecision(decided=progress.decided)
    pending, empties = list[Pending](), list[int]()
    for one in found:
        change, refusal = _change_of(one), _refusal(one, policies)
        policy = "ignore" if is_decided(one, progress, topic) else policies.decide(change)
        if policy == "pause" or (policy == "apply" and (refusal or one.moment is None)):
            pending.append(policies.pending(change, reason=refusal)._replace(reason=refusal or _reason(one)))
        elif policy == "apply" and one.moment is not None:
            empties.append(one.moment)
    # One command decides all shown statements, so statements with other choices are shown later.
    shown = tuple(takewhile(lambda one: one.accepts == pending[0].accepts, pending))
    moments = (one.moment for one in found if one.moment is not None)
    return RowDecision(shown, max(empties, default=None), max((progress.decided or 0, *moments)))


def up_to(found: Sequence[RowDdl] | None, bound: int | None) -> Sequence[RowDdl] | None:
    """Returns the statements that are not above a bound: later statements wait, like later rows."""
    if found is None or bound is None:
        return found
    return tuple(one for one in found if one.moment is None or one.moment <= bound)


def is_decided(one: RowDdl, progress: Progress, topic: str) -> bool:
    """Returns True if a batch was applied that knew the statement, so that existing rows may be later.

    Progress of an earlier version, which did not follow such DDL, has no ``decided``. Then the result is True
    if rows later than the statement, or than its record, may be applied.
    """
    if progress.decided is not None:
        return one.moment is not None and one.moment <= progress.decided
    if one.moment is not None and progress.commit_ts is not None:
        return one.moment <= progress.commit_ts
    return one.offset < (progress.next_offset(topic, DDL_PARTITION) or 0)


def unfollowed(
    found: Sequence[RowDdl] | None, policies: Policies, progress: Progress, topic: str
) -> Iterator[str]:
    """Yields warnings about statements that were not followed, and whose rows still exist."""
    for one in found or ():
        passed_over = not policies.follows or one.moment is None or is_decided(one, progress, topic)
        void = policies.follows and one.moment is not None and one.moment <= (progress.emptied or 0)
        if passed_over and not void:
            yield f"not applied, {one.effect}: {one.statement[:_SHOWN_SQL]}"


def _change_of(one: RowDdl) -> SchemaChange:
    return SchemaChange(one.kind, "", one.time, one.statement, one.at)


def _refusal(one: RowDdl, policies: Policies) -> str:
    """Returns why a statement that empties the table cannot be followed; empty for all other statements."""
    if one.kind not in EMPTYING:
        return ""
    if one.moment is None:
        return _ODD.format(one.odd_time) if one.odd_time else _UNTIMED
    return _VERSIONS if policies.added else ""


def _reason(one: RowDdl) -> str:
    return (_IGNORED if one.kind in EMPTYING else _BY_HAND).format(one.effect)
