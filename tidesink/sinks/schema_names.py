"""Columns that the source renamed: which of them the target has to rename, and which are read by both names.

The target says by its columns what became of a rename, so that nothing else has to be remembered:

- the old name alone: it is still to be judged;
- the new name, or neither: rows that have the old one are read as if they had the new one;
- both: the rename was ignored, and each column goes on by itself.

That fails where one of the two names was another column's too: a target that has both may never have heard
of the rename. Then nothing but a person's word, or the policy, says that it is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidesink.sinks.decoding import Renamed
from tidesink.sinks.schema_policy import Pending, Policies, SchemaChange

if TYPE_CHECKING:
    from tidesink.sinks.decoding import Decoding, ToldColumns
    from tidesink.sinks.targets.base import TargetTable

_UNREADABLE: Final = (
    "rows from before it cannot be read by what the column is now: accept it as ignore to go on with both "
    "columns, or load the table again"
)
_KEY: Final = (
    "a key column has another name at the source, and rows already there would not be found under it: rename "
    "it back, name other keys, or load the table again under another name"
)


class ChangesWaitError(Exception):
    """Changes of the columns wait for a person: nothing of the batch is applied."""

    def __init__(self, pending: tuple[Pending, ...]) -> None:
        super().__init__("changes of the columns wait")
        self.pending = pending


def told_of(decoding: Decoding, policies: Policies) -> ToldColumns | None:
    """What DDL told of a table's columns, where the target keeps rows to follow it."""
    return decoding.told() if policies.follows else None


def settle_names(table: TargetTable, decoding: Decoding, policies: Policies) -> None:
    """Rename at the target what is to be renamed, and have rows read by the columns that the target has.

    Raises:
        ChangesWaitError: a rename waits for a person.
        TidesinkError: as ``gap``, ``rename_column`` and ``read_as``.
    """
    told = told_of(decoding, policies)
    if told is None:
        return
    if not told.renamed and not told.former:
        decoding.read_as({}, {})
        return
    shape = decoding.columns().shape
    gap = table.gap(shape)
    present = {name.lower(): name for name in gap.columns if name.lower() not in policies.own}
    keys = frozenset(name.lower() for name in shape.keys)
    decided = {
        old: _key_waits(old, new, present, keys) or _decided(old, new, present, policies)
        for old, new in _told_apart(told, present)
    }
    waiting = tuple(found for found in decided.values() if isinstance(found, Pending))
    if waiting:
        raise ChangesWaitError(waiting)
    for old, found in decided.items():
        if found == "apply":
            new = told.renamed[old]
            table.rename_column(present[(new.was or old).lower()], new.target or new.name)
    read = {old: told.renamed[old].name for old, found in decided.items() if found in ("apply", "read")}
    held = {name.casefold(): found for name, found in gap.held.items() if name.lower() in present}
    decoding.read_as(read, held)


def _key_waits(old: str, new: Renamed, present: Mapping[str, str], keys: frozenset[str]) -> Pending | None:
    """A rename of a key column that the target has, by the plan's keys of before it or after it."""
    was, name = new.was or old, new.target or new.name
    if was.lower() not in present or keys.isdisjoint((was.lower(), name.lower())):
        return None
    return Pending(SchemaChange("key", was, was, name, new.at), reason=_KEY)


def _told_apart(told: ToldColumns, present: Mapping[str, str]) -> Iterator[tuple[str, Renamed]]:
    """Renames that are to be decided, newest first.

    One to a name that some column had left before says as little as one to a reused name. Of several names
    that one column had, the newest that the target has is the column: an older one there was ignored.
    """
    goals = set()
    for old, new in told.renamed.items():
        goal = (new.target or new.name).casefold()
        if (new.was or old).lower() in present:
            if goal in goals and not new.reused:
                continue
            goals.add(goal)
        yield old, new._replace(returned=goal in told.partings)


def _decided(old: str, new: Renamed, present: Mapping[str, str], policies: Policies) -> Pending | str:
    """What becomes of one rename: ``apply`` it, ``read`` the old name as the new one, or ``ignore`` it."""
    was, name = new.was or old, new.target or new.name
    there = (was.lower() in present, name.lower() in present)
    if there == (False, True) or (there == (False, False) and not new.reused):
        return "read" if new.readable else "ignore"
    if there == (True, True) and not (new.reused or new.returned):
        return "ignore"
    follows = there == (True, False) and new.readable
    change = SchemaChange("rename", was, was, name, new.at)
    policy = policies.decide(change)
    if policy == "pause" or (policy == "apply" and not follows):
        return policies.pending(change, reason="" if follows else new.why or _UNREADABLE)
    return policy
