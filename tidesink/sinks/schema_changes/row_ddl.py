"""Decisions on DDL that changes existing rows, such as TRUNCATE (ADR 34).

A TRUNCATE with commit time T makes every row with a commit_ts up to T void. So as soon as the worker has read
the DDL, it empties the target table in a batch of its own. The batch's progress records T. From then on, a
change with a commit_ts up to T counts as superseded in every partition, also when it is a replayed dead
letter.

No row later than T can be in the target before the table is emptied: the DDL in partition 0 is read before
each batch, up to its current end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from tidesink.ddl.row_changes import EMPTYING, RowDdl
from tidesink.ddl.topic_statements import SHOWN_SQL
from tidesink.sinks.decode.topic_ddl import DDL_PARTITION
from tidesink.sinks.schema_changes.decisions import (
    Chosen,
    DecidedChange,
    Pending,
    Policies,
    SchemaChange,
    chosen_of,
)
from tidesink.sinks.state.progress import Progress

_UNTIMED: Final = (
    "the statement has no commit time, so rows from before it cannot be distinguished from later rows: load "
    "the table again. With TiCDC, set enable-tidb-extension=true in the changefeed's sink URI, so that later "
    "statements have a commit time"
)
_ODD: Final = (
    "the statement's commit time is impossible ({}), and applying it would remove all rows up to that time. "
    "Correct the producer's clock (es is in milliseconds). Then empty the target table by hand, or load it "
    "again"
)
_VERSIONS: Final = (
    "in mode: history, a statement that empties the table cannot be applied, because this version of "
    "tidesink cannot end the row versions of a whole table. Delete the rows at the source, or load the table "
    "again"
)
_BY_HAND: Final = (
    "{}. To correct the target, reject the statement and then run `tidesink resync TABLE`. Or change the "
    "target's rows by hand while the statement waits for a decision, and then reject it"
)
_IGNORED: Final = "if the statement is ignored, {}"


@dataclass(frozen=True)
class RowDecision:
    """The decision, made before a batch, on DDL that changes existing rows.

    ``pending``: statements that wait for a person's decision. The batch is not applied until all of them are
    decided. ``empties``: the TSO up to which rows are void, if DDL empties the table, else None. The table is
    emptied before the batch is applied. ``decided``: the newest commit time among the known statements. It
    becomes ``Progress.decided``. ``chosen``: the decisions that policies in the config made.
    """

    pending: tuple[Pending, ...] = ()
    empties: int | None = None
    decided: int | None = None
    chosen: Chosen = field(default_factory=dict)


def decide_rows(
    statements: Sequence[RowDdl], policies: Policies, progress: Progress, topic: str
) -> RowDecision:
    """Decides on DDL statements that change a table's existing rows, such as TRUNCATE.

    ``statements``: the statements known so far.
    """
    if not policies.follows:
        return RowDecision(decided=progress.decided)
    undecided = (ddl for ddl in statements if not is_decided(ddl, progress, topic))
    decisions = decided_statements(undecided, policies)
    pending, empties = list[Pending](), list[int]()
    for ddl, decision in decisions:
        policy, refusal = decision.policy, _refusal(ddl, policies)
        if policy == "pause" or (policy == "apply" and (refusal or ddl.moment is None)):
            waits = policies.pending(decision.change, reason=refusal)
            pending.append(waits._replace(reason=refusal or _reason(ddl)))
        elif policy == "apply" and ddl.moment is not None:
            empties.append(ddl.moment)
    moments = (ddl.moment for ddl in statements if ddl.moment is not None)
    newest = max((progress.decided or 0, *moments))
    chosen = chosen_of(decision for _, decision in decisions)
    return RowDecision(shown_together(pending), max(empties, default=None), newest, chosen)


def decided_statements(
    statements: Iterable[RowDdl], policies: Policies
) -> list[tuple[RowDdl, DecidedChange]]:
    """Returns the statements, each with the decision that a person or the policies made on it."""
    return [(ddl, policies.decide(change_of(ddl))) for ddl in statements]


def shown_together(pending: Iterable[Pending]) -> tuple[Pending, ...]:
    """Returns the first of the waiting statements, up to one that allows other decisions.

    One command decides all statements that are shown. So only statements that allow the same decisions are
    shown together, and the others after these are decided.
    """
    waiting = list(pending)
    return tuple(takewhile(lambda other: other.accepts == waiting[0].accepts, waiting))


def up_to(statements: Sequence[RowDdl], bound: int | None) -> Sequence[RowDdl]:
    """Returns the statements whose commit time is at or below ``bound``, and those without a commit time.

    Later statements wait for a higher bound, as later rows do.
    """
    if bound is None:
        return statements
    return tuple(ddl for ddl in statements if ddl.moment is None or ddl.moment <= bound)


def is_decided(ddl: RowDdl, progress: Progress, topic: str) -> bool:
    """Returns True if the statement was known when an earlier batch was applied. It is not decided again,
    because the target's rows may be later than the statement.

    A table has no ``Progress.decided`` if it is new, or if no DDL was decided for it so far, for example in
    ``mode: append``. Without it, the result is True if the table has applied changes after the statement's
    commit time. For a statement without a commit time, and for a new table, it is True if the table is read
    from a later offset than the statement's.
    """
    if progress.decided is not None:
        return ddl.moment is not None and ddl.moment <= progress.decided
    if ddl.moment is not None and progress.commit_ts is not None:
        return ddl.moment <= progress.commit_ts
    return ddl.offset < (progress.next_offset(topic, DDL_PARTITION) or 0)


def unfollowed(
    statements: Sequence[RowDdl] | None, policies: Policies, progress: Progress, topic: str
) -> Iterator[str]:
    """Yields a warning for each statement, such as TRUNCATE, that was not applied to the target's rows."""
    for ddl in statements or ():
        passed_over = not policies.follows or ddl.moment is None or is_decided(ddl, progress, topic)
        void = policies.follows and ddl.moment is not None and ddl.moment <= (progress.emptied or 0)
        if passed_over and not void:
            yield not_applied(ddl)


def not_applied(ddl: RowDdl) -> str:
    """Returns the warning about a statement that was not applied to the target's rows."""
    return f"not applied, {ddl.effect}: {ddl.statement[:SHOWN_SQL]}"


def change_of(ddl: RowDdl) -> SchemaChange:
    """Returns the statement as a schema change, which policies and people decide on."""
    return SchemaChange(ddl.kind, "", ddl.time, ddl.statement, ddl.at)


def _refusal(ddl: RowDdl, policies: Policies) -> str:
    """Returns the reason why a statement that empties the table cannot be applied; empty if it can be.

    The reason is also empty for statements of other kinds.
    """
    if ddl.kind not in EMPTYING:
        return ""
    if ddl.moment is None:
        return _ODD.format(ddl.odd_time) if ddl.odd_time else _UNTIMED
    return _VERSIONS if policies.added else ""


def _reason(ddl: RowDdl) -> str:
    return (_IGNORED if ddl.kind in EMPTYING else _BY_HAND).format(ddl.effect)
