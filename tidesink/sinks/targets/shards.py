"""Several source tables in one table of a target: what all targets do alike about them.

Each source table is a shard: its rows have its name in a column of the key, and its own ledger has its epoch,
its progress and the columns that its rows have. A shard's ledger is found by the name in that column, so that
no two source tables, of whatever pipelines, can have the same.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Final
from weakref import WeakValueDictionary

from tidesink.errors import SchemaRefusedError, StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.evolve import plan_evolution
from tidesink.sinks.shape import ShapeColumn, Shard, TableShape

_SHOWN: Final = 5


class _Turn:
    """The turn at one table; shards of a worker take it one after the other."""

    def __init__(self) -> None:
        self.lock = threading.RLock()


_turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
_giving = threading.Lock()


class Turns:
    """The turns of one table of this process: a commit of one shard must not undo another's work.

    Other processes are kept apart by the target itself, at the price of work done twice.
    """

    def __init__(self, location: str, shard: Shard | None) -> None:
        self._turn: _Turn | None = None
        if shard is not None:
            with _giving:
                self._turn = _turns.setdefault(location, _Turn())

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Nobody else of this process works at the table meanwhile; a table that is not shared needs none."""
        if self._turn is None:
            yield
            return
        with self._turn.lock:
            yield


def tag(shard: Shard) -> str:
    """A short name of a shard in which only digits and letters a to f stand."""
    return sha256(shard.value.encode()).hexdigest()[:16]


def names_of(shape: TableShape) -> tuple[str, ...]:
    """The columns a shard's rows have, as its ledger keeps them."""
    return tuple(sorted(shape.by_name))


def new_columns(shape: TableShape, known: Collection[str] | None) -> tuple[ShapeColumn, ...]:
    """The columns that a shard's rows from before have no value for; ``known`` None: it has no rows yet."""
    if known is None:
        return ()
    return tuple(column for column in shape.columns if column.name.lower() not in known)


def known_after(known: Collection[str] | None, shape: TableShape) -> tuple[str, ...] | None:
    """The columns that a shard's rows have once a shape is theirs; None where it has no rows."""
    return None if known is None else tuple(sorted({*known, *names_of(shape)}))


def holds(present: Mapping[str, str], shape: TableShape) -> bool:
    """Whether columns, as they were at some look, take a shape.

    If so they take it now: others of a shared table only add columns and widen them.
    """
    try:
        return not plan_evolution(present, shape).needed
    except SchemaRefusedError:
        return False


def not_shared(place: str, shard: Shard, *, table: TableId) -> StaleProgressError:
    """The error of a shard whose table was loaded without shards."""
    return StaleProgressError(
        f"{place} holds the rows of one source table, without the shard column {shard.column}: give the "
        "route another table (to), or remove the table and let the worker load it anew",
        table=str(table),
    )


def is_shared(place: str, shards: Iterable[str], *, table: TableId) -> StaleProgressError:
    """The error of a table that has no shard of its own where others have."""
    return StaleProgressError(
        f"several source tables share {place} ({shown(shards)}), each under its name in a column of the key, "
        "and this one has no route that gives it one: give it a route with the same shard-column, or another "
        "table",
        table=str(table),
    )


def others_columns(place: str, shard: Shard, *, table: TableId) -> SchemaRefusedError:
    """The error of a shard that drops or renames a column, in which other shards have values."""
    return SchemaRefusedError(
        f"several source tables share {place}, each under its name in {shard.column}: a column of it is not "
        "dropped or renamed for one of them, since the others have values there. Set drop and rename under "
        "schema-changes to ignore for this table; and once no source table has the column, drop it by hand",
        table=str(table),
    )


def taken(place: str, shard: Shard, *, pipeline: str, source: str, table: TableId) -> StaleProgressError:
    """The error of a shard whose name another source table, or another pipeline, has."""
    return StaleProgressError(
        f"the shard {shard.value!r} of {place} belongs to {source} of pipeline {pipeline!r}: "
        "give the route a shard that no other source table has",
        table=str(table),
    )


def also_of(error: SchemaRefusedError, place: str, shards: Iterable[str]) -> SchemaRefusedError:
    """The error of a shard whose types the table cannot take, with the others that share it."""
    return SchemaRefusedError(
        f"{error.message}. Others share {place}: {shown(shards)}; all of a column's types must be one, so "
        "route this source table to a table of its own",
        **error.context,
    )


def shown(names: Iterable[str]) -> str:
    """A few names of shards for people."""
    found = sorted(names)
    return ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
