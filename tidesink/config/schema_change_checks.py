"""Which policies for changes of columns a pipeline can have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from tidesink.config.models import Config
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
# Targets that pass rows on as messages, each with the columns its row has.
PASSING_TARGETS: Final = frozenset({"http", "kafka"})


def schema_change_problems(config: Config) -> Iterator[Problem]:
    """The policies that have no effect on a pipeline, or that its target cannot follow."""
    sections: list[tuple[str, SchemaChanges | None]] = [("defaults", config.defaults.schema_changes)]
    sections += [(f"tables[{number}]", entry.schema_changes) for number, entry in enumerate(config.tables)]
    for place, section in sections:
        for kind in TOLD_KINDS:
            if section is not None and kind in section.model_fields_set:
                for reason, remedy in _obstacles(config, kind, section):
                    yield Problem(f"{place}.schema-changes.{kind}", reason, remedy)


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


def shown_policies(changes: SchemaChanges, config: Config) -> str:
    """The policies that have an effect on a pipeline, as one line."""
    passing = config.target.type in PASSING_TARGETS
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
