"""Why a table rests: a person asked it to, or a change of its columns waits for one."""

from __future__ import annotations

from typing import Any, Literal

from tidesink.events import TableId
from tidesink.sinks.schema_policy import Accepted, Pending
from tidesink.sinks.state_store import TableState
from tidesink.sinks.table_control import TableControl

Turn = Literal["rest", "go on"]


class Pauses:
    """What one lane was asked, and what it waits for. Used by one thread at a time."""

    def __init__(self, table: TableId) -> None:
        self._table = table
        self._asked = False
        self._resumed: int | None = None
        self._pending: tuple[Pending, ...] = ()
        self.accepted: Accepted = {}

    def heed(self, asked: TableControl, *, waits: bool) -> Turn | None:
        """What to do now; ``waits``: the table is paused or failing. The first look finds no news."""
        before, self._resumed = self._resumed, asked.resumed
        self.accepted = asked.accepted
        if asked.rests:
            news, self._asked = not self._asked, True
            return "rest" if news else None
        rested, self._asked = self._asked, False
        told = before is not None and asked.resumed > before
        return "go on" if rested or (told and waits) else None

    def wait_for(self, pending: tuple[Pending, ...]) -> None:
        """Changes that wait for a person."""
        self._pending = pending

    def state_is(self, state: TableState) -> None:
        """What was waited for is over in any state but PAUSED."""
        if state != "PAUSED":
            self._pending = ()

    @property
    def reason(self) -> str:
        """Why the table rests, and the way on."""
        if self._asked:
            return f"rests as it was asked to: tidesink resume {self._table} goes on"
        return "; ".join(_reason(pending, self._table) for pending in self._pending)

    def details(self) -> dict[str, Any]:
        """What the status shows."""
        shown: dict[str, Any] = {"rests": True} if self._asked else {}
        if self._pending:
            shown["pending"] = [pending.as_json() for pending in self._pending]
        return shown


def _reason(pending: Pending, table: TableId) -> str:
    if not pending.accepts:
        return f"a change of the schema waits, {pending.change}: {pending.reason}"
    ways = {"apply": "--accept", "ignore": "--accept --ignore"}
    named = " or ".join(f"tidesink resume {table} {ways[policy]}" for policy in pending.accepts)
    why = f"{pending.reason}; " if pending.reason else ""
    return f"a change of the schema waits, {pending.change}: {why}{named}"
