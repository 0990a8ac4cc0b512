"""The law of reduction in pure Python: of a key's events in a batch the greatest position stays.

This is the oracle of ``laws.reduce``. Keys compare as exact values, text byte by byte: a collation
at the source that holds 'a' and 'A' for one key never sends both as two rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from tidesink.errors import MixedPartitionsError, ProgressError, UnnamedRowError
from tidesink.events import UNAVAILABLE, ChangeEvent, Op, Position, Row, Value
from tidesink.sinks.laws.reduce import mixed_message

if TYPE_CHECKING:
    from tidesink.events import SequenceBy


Key = tuple[Value, ...]
OrderKey = tuple[int | tuple[int, ...], ...]


class ReducedRow(NamedTuple):
    """What is to be done with one key. ``row`` is None for a delete.

    ``half`` marks the delete half of a key change: its event is counted with the half that writes.
    ``kept`` columns are not in ``row``: the source did not send them, and what is stored stays.
    ``after_delete``: the batch deletes the key before it writes this row: nothing stored is the row's.
    """

    position: Position
    commit_ts: int | None
    row: Row | None
    half: bool
    kept: tuple[str, ...] = ()
    after_delete: bool = False


@dataclass(frozen=True)
class Reduced:
    """A batch with one row a key, and the count of row events that a later one of their key replaced."""

    rows: dict[Key, ReducedRow]
    superseded: int

    @property
    def upserts(self) -> dict[Key, Row]:
        """Rows to write, by key."""
        return {key: kept.row for key, kept in self.rows.items() if kept.row is not None}

    @property
    def deletes(self) -> frozenset[Key]:
        """Keys to remove."""
        return frozenset(key for key, kept in self.rows.items() if kept.row is None)

    @property
    def split_halves(self) -> int:
        """Rows to apply which are the delete half of a key change."""
        return sum(kept.half for kept in self.rows.values())


def order_key(
    position: Position, op: Op, sequence_by: SequenceBy = "kafka", *, half: bool = False
) -> OrderKey:
    """What the events of one key are ordered by; the greatest stays.

    ``kafka``: (partition, offset, index, the delete half of a key change before its other half).
    ``source``: the source's own position first, then a delete before an insert, since TiCDC splits an
    update that touches a unique column into both with one commit_ts, then Kafka's order.

    Raises:
        ProgressError: ``source`` is asked for and the event has no position of its own.
    """
    writes = int(not half and op is not Op.DELETE)
    kafka = (position.partition, position.offset, position.index, int(not half))
    if sequence_by == "kafka":
        return kafka
    if position.source is None:
        raise ProgressError(
            "sequence_by: source needs a position in every event, and this one has none; enable the "
            "TiDB extension at the producer, or set sequence_by: kafka",
            topic=position.topic,
            partition=position.partition,
            offset=position.offset,
        )
    return (position.source, writes, *kafka)


def reduce(events: Iterable[ChangeEvent], keys: Sequence[str], sequence_by: SequenceBy = "kafka") -> Reduced:
    """The events of one table's batch as one row a key.

    Raises:
        MixedPartitionsError: ``kafka`` order, and one key came in two topic-partitions.
        ProgressError: ``source`` order, and an event has no position of its own.
        UnnamedRowError: an event lacks a key column.
    """
    found: dict[Key, list[tuple[OrderKey, ReducedRow]]] = {}
    places: dict[Key, tuple[str, int]] = {}
    read = 0
    for event in events:
        read += 1
        for key, op, kept in row_events(event, keys):
            _check_place(places, key, kept.position, sequence_by)
            order = order_key(kept.position, op, sequence_by, half=kept.half)
            found.setdefault(key, []).append((order, kept))
    rows = {key: _last(ordered) for key, ordered in found.items()}
    counted = sum(not kept.half for kept in rows.values())
    return Reduced(rows, superseded=read - counted)


def _last(events: list[tuple[OrderKey, ReducedRow]]) -> ReducedRow:
    """The last of a key's rows; values it leaves out come from those before it, back to a delete."""
    (_, last), *later = sorted(events, key=itemgetter(0))
    deleted = last.row is None
    for _, event in later:
        last = _completed(event, last) if event.kept else event
        deleted |= event.row is None
    return last._replace(after_delete=bool(last.kept) and deleted)


def _completed(event: ReducedRow, before: ReducedRow) -> ReducedRow:
    known, row = before.row or {}, event.row or {}
    reported = {name: known[name] for name in event.kept if name in known}
    left = tuple(name for name in event.kept if name not in reported)
    return event._replace(row={**row, **reported}, kept=left)


def row_events(event: ChangeEvent, keys: Sequence[str]) -> Iterable[tuple[Key, Op, ReducedRow]]:
    """The rows one event stands for: two where an update changes the key."""
    position, commit_ts = event.position, event.commit_ts
    if event.op is Op.DELETE:
        key = _key_of(event, keys, event.key or {}, event.before or {})
        return [(key, Op.DELETE, ReducedRow(position, commit_ts, None, half=False))]
    after = event.after or {}
    key = _key_of(event, keys, after, event.key or {})
    written = ReducedRow(position, commit_ts, after, half=False, kept=unsent_columns(event))
    rows: list[tuple[Key, Op, ReducedRow]] = [(key, event.op, written)]
    if event.before is not None:
        # A partial before image holds what changed: a key column it lacks kept its value.
        old = _key_of(event, keys, event.before, after)
        if old != key:
            rows.insert(0, (old, Op.DELETE, ReducedRow(position, commit_ts, None, half=True)))
    return rows


def unsent_columns(event: ChangeEvent) -> tuple[str, ...]:
    """Names of the columns whose values the source did not send."""
    names = (event.extension or {}).get(UNAVAILABLE, ())
    return tuple(map(str, names)) if isinstance(names, tuple | list) else ()


def _key_of(event: ChangeEvent, keys: Sequence[str], first: Row, second: Row) -> Key:
    values = tuple(first[name] if name in first else second.get(name) for name in keys)
    if not keys or None in values:
        position = event.position
        raise UnnamedRowError(
            f"the event of {event.table} has no value for each of its keys ({', '.join(keys) or 'none'})",
            topic=position.topic,
            partition=position.partition,
            offset=position.offset,
        )
    return values


def _check_place(
    places: dict[Key, tuple[str, int]], key: Key, position: Position, sequence_by: SequenceBy
) -> None:
    place = (position.topic, position.partition)
    if sequence_by == "kafka" and places.setdefault(key, place) != place:
        raise MixedPartitionsError(mixed_message([repr(key)]), topic=position.topic)
