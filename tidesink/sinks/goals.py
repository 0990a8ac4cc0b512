"""Where the source tables of a worker go, and that no two of them overwrite each other there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidesink.errors import ConfigError
from tidesink.events import TableId

if TYPE_CHECKING:
    from tidesink.config import Config
    from tidesink.config.models import Destination


class Goals:
    """The tables of the target that source tables were given, in the order in which they came."""

    def __init__(self, destination: Callable[[TableId], Destination]) -> None:
        self._destination = destination
        self._columns: dict[TableId, tuple[TableId, str | None]] = {}
        self._owners: dict[Destination, TableId] = {}

    def refusal(self, table: TableId) -> ConfigError | None:
        """Why a source table must not go where its route says; None where it may, and has its place then."""
        try:
            goal = self._destination(table)
        except ConfigError as error:
            return error
        column = goal.shard.column if goal.shard else None
        first, known = self._columns.setdefault(goal.table, (table, column))
        owner = self._owners.setdefault(goal, table)
        if owner != table:
            return _one_place(table, owner, goal)
        if known != column:
            return ConfigError(
                f"{first} and {table} both go to {goal.table}, with the shard columns {known or '(none)'} "
                f"and {column or '(none)'}: give their routes one shard-column, or different tables",
                table=str(table),
            )
        return None


def _one_place(table: TableId, owner: TableId, goal: Destination) -> ConfigError:
    if goal.shard is None:
        return ConfigError(
            f"{owner} goes to {goal.table} already, and rows of one key would overwrite each other: give the "
            "route a shard-column, or another table (to)",
            table=str(table),
        )
    return ConfigError(
        f"{owner} goes to {goal.table} as shard {goal.shard.value!r} already: give the route a shard that "
        "differs for both, or none for the whole name",
        table=str(table),
    )


def shown_goal(config: Config, table: TableId) -> dict[str, str]:
    """A routed table's name at the target and its shard there, for the state store; empty for others."""
    try:
        goal = config.destination(table)
    except ConfigError:
        return {}
    if goal.table == table and goal.shard is None:
        return {}
    shard = {"shard": goal.shard.value} if goal.shard else {}
    return {"target_table": str(goal.table), **shard}
