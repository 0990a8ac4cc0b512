"""Routes that contradict each other, or have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tidesink.config.models import Config
from tidesink.config.problems import Problem
from tidesink.config.routes import Route, references

# Targets whose tables several source tables can share; held to their capabilities by a test.
SHARING_TARGETS: Final = frozenset({"delta", "iceberg", "memory", "postgres", "mysql"})


def route_problems(config: Config) -> Iterator[Problem]:
    """What is wrong with the routes of a config."""
    shared: dict[str, Route] = {}
    patterns: set[str] = set()
    for number, route in enumerate(config.routes):
        place = f"routes[{number}]"
        if route.match in patterns:
            yield Problem(
                f"{place}.match", "is an earlier route's: this one is never asked", "join the two routes"
            )
        patterns.add(route.match)
        yield from _groups(place, route)
        yield from _shard(place, route)
        yield from _together(place, route, shared)
        if route.shard_column is not None:
            yield from _obstacles(place, config)
        shared.setdefault(route.to, route)


def _groups(place: str, route: Route) -> Iterator[Problem]:
    texts: Mapping[str, str] = {"to": route.to, "shard": route.shard or ""}
    for name, text in texts.items():
        for group in sorted(references(text)):
            if group > route.groups:
                yield Problem(
                    f"{place}.{name}",
                    f"names group ${group}, and {route.match!r} has {route.groups}",
                    "put the part of the name into ( )",
                )


def _shard(place: str, route: Route) -> Iterator[Problem]:
    if route.shard_column is None:
        if route.shard is not None:
            yield Problem(f"{place}.shard", "has no effect without shard-column", "give one, or remove it")
        if route.merges:
            yield Problem(
                f"{place}.shard-column",
                f"several source tables may go to {route.to}, and rows of one key would overwrite each other",
                "name a column for the source table of each row, or put all that differs between the "
                "names into groups that stand in to",
            )
    elif route.shard is not None and route.merges and not references(route.shard):
        yield Problem(
            f"{place}.shard",
            "is the same for all source tables, so that nothing tells their rows apart",
            "name a group, as in $1, or leave it out",
        )


def _together(place: str, route: Route, shared: Mapping[str, Route]) -> Iterator[Problem]:
    """Routes to one table must agree on the column that tells its rows apart."""
    other = shared.get(route.to)
    if other is None:
        return
    if route.shard_column is None or other.shard_column != route.shard_column:
        yield Problem(
            f"{place}.shard-column",
            f"two routes go to {route.to}, with the shard columns {other.shard_column or '(none)'} and "
            f"{route.shard_column or '(none)'}",
            "give both the same shard-column",
        )


def _obstacles(place: str, config: Config) -> Iterator[Problem]:
    if config.target.type not in SHARING_TARGETS:
        yield Problem(
            f"{place}.shard-column",
            f"several source tables cannot share a table of a target of type {config.target.type}",
            "send each to a table of its own, or use another target",
        )
    orders = [config.defaults.sequence_by, *(entry.sequence_by for entry in config.tables)]
    if "source" in orders:
        yield Problem(
            f"{place}.shard-column",
            "tables ordered by the source cannot share a table in this version",
            "use sequence_by: kafka, or send each to a table of its own",
        )
    modes = {config.defaults.mode, *(entry.mode for entry in config.tables)} - {None, "upsert"}
    for mode in sorted(map(str, modes)):
        yield Problem(
            f"{place}.shard-column",
            f"tables in mode {mode} cannot share a table in this version",
            "use mode: upsert, or send each to a table of its own",
        )
