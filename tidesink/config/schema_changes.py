"""What becomes of a change of a source table's columns: kinds of change, and a policy for each.

Additive changes lose nothing and are applied by themselves. Whatever would lose something waits for a
person, or is left undone where that loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from tidesink.config.fields import Model

ChangeKind = Literal["add", "widen", "drop", "rename", "narrow", "nullability", "type", "key"]
ChangePolicy = Literal["apply", "ignore", "pause"]


class ChangeRule(NamedTuple):
    """What a kind of change is, what may be done with it, and what is done if nothing is said."""

    default: ChangePolicy
    allowed: tuple[ChangePolicy, ...]
    means: str


# The kinds with one policy are no settings: there is nothing to choose.
CHANGE_RULES: Final[Mapping[ChangeKind, ChangeRule]] = MappingProxyType(
    {
        "add": ChangeRule("apply", ("apply", "ignore", "pause"), "a column that the target lacks"),
        "widen": ChangeRule("apply", ("apply", "pause"), "a type that holds the target's and more"),
        "drop": ChangeRule("ignore", ("ignore", "apply", "pause"), "a column that the source has no more"),
        "rename": ChangeRule("pause", ("pause", "apply", "ignore"), "a column under another name"),
        "narrow": ChangeRule("ignore", ("ignore", "pause"), "a type that holds less than the target's"),
        "nullability": ChangeRule("ignore", ("ignore",), "columns beside the key take NULL at every target"),
        "type": ChangeRule("pause", ("pause",), "a type that cannot be one with the target's"),
        "key": ChangeRule("pause", ("pause",), "other key columns, under which no row would be found"),
    }
)


class SchemaChanges(Model):
    """What becomes of a change of the source table's columns; see `docs/schema-changes.md`."""

    add: Literal["apply", "ignore", "pause"] = "apply"
    """A new column. `apply` adds it, and rows already there get the default it was added with; `ignore` goes
    on without it: its values are lost; `pause` waits before the first batch of a worker that knows it."""
    widen: Literal["apply", "pause"] = "apply"
    """A type that holds more than the target's: `apply` widens the target's column."""

    drop: Literal["ignore", "apply", "pause"] = "ignore"
    """A column that DDL dropped. `ignore` keeps it at the target, NULL in new rows; `apply` drops it there
    with all its values. Only where the topic tells DDL: canal-json."""
    rename: Literal["pause", "apply", "ignore"] = "pause"
    """A column that DDL renamed. `apply` renames it at the target, and rows from before are read by the new
    name; `ignore` keeps the old column and adds the new one. Only where the topic tells DDL: canal-json."""
    narrow: Literal["ignore", "pause"] = "ignore"
    """A type that holds less than the target's: the target's column stays as it is. Only where the topic
    tells DDL: canal-json."""

    def policy(self, kind: ChangeKind) -> ChangePolicy:
        """The policy of a kind; the only one there is where it is no setting."""
        found: ChangePolicy = getattr(self, kind, CHANGE_RULES[kind].default)
        return found


def merged_changes(defaults: SchemaChanges, own: Iterable[SchemaChanges | None]) -> SchemaChanges:
    """The policies of one table, kind by kind: its own sections in order, then the defaults."""
    sections = [section for section in own if section is not None]
    said = [{name: getattr(one, name) for name in one.model_fields_set} for one in reversed(sections)]
    return defaults.model_copy(update={name: value for one in said for name, value in one.items()})
