"""Which changes of a table's columns are carried out, left undone, or wait for a person; pure.

What a person accepted is kept by the digest of exactly the change that was shown: another change of the
same column is another digest, and waits again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

from tidesink.config.schema_changes import CHANGE_RULES, ChangeKind, ChangePolicy, SchemaChanges
from tidesink.errors import SchemaRefusedError
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import SchemaGap

# What a person may make of a change that waits, by the digest of the change.
Accepted = Mapping[str, ChangePolicy]


class SchemaChange(NamedTuple):
    """One change: of which column, from what to what (types, or key columns); empty where there is none."""

    kind: ChangeKind
    column: str
    before: str = ""
    after: str = ""

    @property
    def digest(self) -> str:
        """Tells this very change from any other of the table."""
        return hashlib.sha256(json.dumps(list(self), ensure_ascii=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """The change in words."""
        column = f" column {self.column}" if self.column else ""
        return f"{self.kind}{column} ({' -> '.join(part for part in (self.before, self.after) if part)})"


class Pending(NamedTuple):
    """A change that waits. ``accepts``: what ``tidesink resume`` may make of it; nothing: see ``reason``."""

    change: SchemaChange
    accepts: tuple[ChangePolicy, ...] = ()
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """As the status shows it."""
        change = self.change
        return {
            "kind": change.kind,
            "column": change.column,
            "from": change.before,
            "to": change.after,
            "policy": "pause",
            "accepts": list(self.accepts),
            "reason": self.reason,
            "digest": change.digest,
        }


@dataclass(frozen=True)
class Judgement:
    """What is done with a batch: ``given`` is the shape the target gets, unless some change waits."""

    given: TableShape
    left_out: tuple[str, ...] = ()
    pending: tuple[Pending, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is lost by policy."""
        return tuple(
            f"column {name} is new at the source and not taken (schema-changes: add: ignore): its values are "
            "lost"
            for name in self.left_out
        )


def judge(gap: SchemaGap, shape: TableShape, *, policies: SchemaChanges, accepted: Accepted) -> Judgement:
    """What becomes of the changes between a target's columns and a shape."""
    added = [SchemaChange("add", name, after=shape.by_name[name.lower()].comment) for name in gap.added]
    widened = [SchemaChange("widen", name, *types) for name, types in gap.widened.items()]
    decided = [(one, accepted.get(one.digest, policies.policy(one.kind))) for one in (*added, *widened)]
    left_out = tuple(c.column for c, policy in decided if (c.kind, policy) == ("add", "ignore"))
    pending = tuple(Pending(c, acceptable(c.kind)) for c, policy in decided if policy == "pause")
    return Judgement(without(shape, left_out), left_out, pending)


def acceptable(kind: ChangeKind) -> tuple[ChangePolicy, ...]:
    """What may be made of a change of a kind that waits."""
    return tuple(policy for policy in CHANGE_RULES[kind].allowed if policy != "pause")


def pending_of(error: SchemaRefusedError) -> Pending | None:
    """The change that a target or a shape refused; None where it refused something else."""
    kind = error.context.get("change")
    if kind not in get_args(ChangeKind):
        return None
    said = (str(error.context.get(name, "")) for name in ("column", "before", "after"))
    return Pending(SchemaChange(kind, *said), reason=error.message)  # type: ignore[arg-type]


def without(shape: TableShape, names: Iterable[str]) -> TableShape:
    """A shape that lacks some columns."""
    gone = {name.lower() for name in names}
    if not gone:
        return shape
    return replace(shape, columns=tuple(c for c in shape.columns if c.name.lower() not in gone))
