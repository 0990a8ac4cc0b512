"""Types of a table's options: modes, policies for changes of columns, metadata columns, inheritance.

Modes have our names, and Databricks' numbers. Additive changes of columns lose nothing and are applied
automatically; a change that would lose something waits for a person, or is ignored where that loses
nothing. A table inherits the options for which its own mode, or its own order, has a use; of several lists
of columns one holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BeforeValidator

from tidesink.config.fields import Model
from tidesink.typemap.target_schema import MetadataKind, default_name

TableMode = Literal["upsert", "append", "history"]


def _no_boolean(value: object) -> object:
    # For Python true is 1.
    if isinstance(value, bool):
        raise ValueError("must be 1 or 2")  # noqa: TRY004  (pydantic takes ValueErrors alone)
    return value


ScdType = Annotated[Literal[1, 2], BeforeValidator(_no_boolean)]
MODE_OF_SCD_TYPE: Final[Mapping[object, TableMode]] = MappingProxyType({1: "upsert", 2: "history"})
SOFT_DELETE: Final = "soft-delete"
_Words = Literal["upsert", "append", "history", "soft-delete"]
# ``soft-delete`` is taken apart by ``said_mode`` before the field sees it.
Mode = Annotated[TableMode, BeforeValidator(lambda mode: mode, json_schema_input_type=_Words)]


def said_mode(section: Any) -> Any:
    """A section of the config with its mode in our words: ``mode`` and ``deletes`` alone say it.

    Raises:
        ValueError: two words of it contradict each other.
    """
    if not isinstance(section, Mapping):
        return section
    said = dict(section)
    if said.get("mode") == SOFT_DELETE:
        if said.get("deletes", "soft") != "soft":
            raise ValueError("mode: soft-delete and deletes: hard contradict each other; remove one")
        said |= {"mode": "upsert", "deletes": "soft"}
    number = said.get("stored_as_scd_type")
    meant = MODE_OF_SCD_TYPE.get(number) if isinstance(number, int) else None
    if meant is not None and said.setdefault("mode", meant) != meant:
        raise ValueError(
            f"stored_as_scd_type: {number} is mode: {meant}, and mode says {said['mode']}; remove one"
        )
    return said


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


def _named_kinds(value: Any) -> Any:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    return {kind: default_name(str(kind)) for kind in value} if isinstance(value, list) else value


Metadata = Annotated[
    dict[MetadataKind, str],
    BeforeValidator(_named_kinds, json_schema_input_type=dict[MetadataKind, str] | list[MetadataKind] | str),
]


_LISTS: Final = ("columns", "except_column_list")


def selection(sections: Sequence[Model]) -> dict[str, Any]:
    """The lists of the first section that has one: of two lists from two places neither would hold."""
    own = ({name: getattr(section, name) for name in _LISTS} for section in sections)
    return next((found for found in own if any(value is not None for value in found.values())), {})


# A word of a table, and the settings that are then as if nothing were said of them.
_NO_USE: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = MappingProxyType(
    {
        ("mode", "append"): {"sequence_by": "kafka", "deletes": "hard", "ignore_null_updates": False},
        ("mode", "history"): {"deletes": "hard", "ignore_null_updates": False},
        ("sequence_by", "source"): {"ignore_null_updates": False},
    }
)


def without_use(sections: Sequence[Model], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What falls away of a table's merged settings: what a section says that comes after the word.

    ``sections``: what covers the table, the nearest first. What is said beside the word, or nearer to the
    table, is a contradiction and stays: ``merged_problems`` tells of it.
    """
    found: dict[str, Any] = {}
    for (word, value), nothing in _NO_USE.items():
        if settings[word] == value:
            at = _place(sections, word)
            found |= {name: as_if for name, as_if in nothing.items() if _place(sections, name) > at}
    return found


def _place(sections: Sequence[Model], name: str) -> int:
    """The first section that says something; the last, the defaults, always does."""
    return next(at for at, section in enumerate(sections) if getattr(section, name) is not None)
