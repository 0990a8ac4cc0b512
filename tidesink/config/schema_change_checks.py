"""Which policies for changes of columns a pipeline can have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from tidesink.config.merged import words_of
from tidesink.config.models import Config, TableDefaults, TableOverride
from tidesink.config.problems import Problem
from tidesink.config.schema_changes import CHANGE_RULES, ChangeKind, SchemaChanges

# Kinds that only DDL tells for sure: a registry can hold an older schema as its newest.
TOLD_KINDS: Final[tuple[ChangeKind, ...]] = ("drop", "rename", "narrow")
# The protocols whose topics tell the worker DDL.
TELLING_PROTOCOLS: Final = frozenset({"canal-json"})
# The targets that can carry a kind out, where not all can; held to their capabilities by a test.
APPLYING_TARGETS: Final[Mapping[ChangeKind, frozenset[str]]] = MappingProxyType(
    {
        "drop": frozenset({"delta", "iceberg", "memory", "mysql", "postgres"}),
        "rename": frozenset({"delta", "iceberg", "memory", "mysql", "postgres"}),
    }
)
_IN_A_LOG: Final = (
    "has no effect in mode append: what is logged stays as it was, and a renamed column is a new one",
    "remove it",
)
# Targets that pass rows on as messages, each with the columns its row has.
PASSING_TARGETS: Final = frozenset({"http", "kafka"})


def schema_change_problems(config: Config) -> Iterator[Problem]:
    """The policies that have no effect on a pipeline, or that its target cannot follow."""
    sections: list[tuple[str, TableDefaults | TableOverride]] = [("defaults", config.defaults)]
    sections += [(f"tables[{number}]", entry) for number, entry in enumerate(config.tables)]
    for place, section in sections:
        changes = section.schema_changes
        said = [kind for kind in TOLD_KINDS if changes is not None and kind in changes.model_fields_set]
        logs = bool(said) and _is_all_logs(config, section)
        for kind in said:
            assert changes is not None  # noqa: S101  (some kind is said)
            for reason, remedy in [_IN_A_LOG] if logs else _obstacles(config, kind, changes):
                yield Problem(f"{place}.schema-changes.{kind}", reason, remedy)


def _is_all_logs(config: Config, section: TableDefaults | TableOverride) -> bool:
    """Whether no table can get a policy from a section but logs; one of another mode may inherit it."""
    if words_of(config, section).mode != "append":
        return False
    named = isinstance(section, TableOverride) and section.name is not None
    return named or all(entry.mode in (None, "append") for entry in config.tables)


def _obstacles(config: Config, kind: ChangeKind, section: SchemaChanges) -> Iterator[tuple[str, str]]:
    target, protocol = config.target.type, config.source.protocol
    if target in PASSING_TARGETS:
        yield (
            f"has no effect: a target of type {target} passes rows on with the columns they have",
            "remove it",
        )
    elif protocol not in TELLING_PROTOCOLS:
        yield f"has no effect: with {protocol} nothing tells of such a change for sure", "remove it"
    elif section.policy(kind) == "apply" and target not in APPLYING_TARGETS.get(kind, frozenset({target})):
        others = " or ".join(policy for policy in CHANGE_RULES[kind].allowed if policy != "apply")
        yield f"a target of type {target} cannot {kind} a column", f"use {others}"


def shown_policies(changes: SchemaChanges, config: Config, *, logs: bool = False) -> str:
    """The policies that have an effect on a pipeline, as one line; ``logs``: of a table in mode append."""
    passing = logs or config.target.type in PASSING_TARGETS
    told = config.source.protocol in TELLING_PROTOCOLS and not passing
    kinds = [kind for kind in CHANGE_RULES if told or kind not in TOLD_KINDS]
    return ", ".join(f"{kind} {changes.policy(kind)}" for kind in kinds)


def untold_changes(config: Config) -> Iterator[str]:
    """What of a table's changes nothing tells, or the target cannot do."""
    if config.target.type in PASSING_TARGETS:
        yield (
            f"a target of type {config.target.type} passes rows on with the columns they have: columns "
            "that are dropped or renamed at the source are so in its messages"
        )
    elif config.source.protocol not in TELLING_PROTOCOLS:
        yield (
            f"with {config.source.protocol} nothing tells for sure that a column was dropped, renamed or "
            "made narrower: the old one stays at the target"
        )
