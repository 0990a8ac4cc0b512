"""Tables in this process's memory: what every target must do, in the fewest lines.

It takes the same batches as the others, as rows or as a frame, and is what tests hold them equal to.
Each call works on a copy and replaces the state at its end, as a commit does.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.history_law import Kind, Moment, Span, difference, span_values
from tidesink.config.targets import ALL_FEATURES
from tidesink.errors import (
    SchemaRefusedError,
    TargetError,
    ValueNotStoredError,
    ValueOutOfRangeError,
)
from tidesink.events import TableId
from tidesink.sinks.laws.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN
from tidesink.sinks.spark.errors import NOT_STORED
from tidesink.sinks.state.progress import Progress, check_held, done_before
from tidesink.sinks.targets.base import (
    SEQUENCE_COLUMN,
    SEQUENCE_DDL,
    SOFT_DELETE_COLUMN,
    ApplyResult,
    Capabilities,
    Claim,
    Collected,
    DeleteMode,
    EvolveResult,
    ReducedBatch,
    ReducedRow,
    RowSequence,
    SchemaGap,
    Target,
    check_key,
    check_order,
    check_versions,
)
from tidesink.sinks.targets.column_changes import Evolution, gap_of, plan_evolution
from tidesink.sinks.targets.sharing import Owner, also_of, is_shared, names_of, new_columns, not_shared
from tidesink.typemap.target_schema import Shard, TargetSchema, default_value


class MemoryColumns(ABC):
    """The part of a table that renames and drops columns."""

    _state: _State

    @abstractmethod
    def _held(self, epoch: int | None = None) -> object:
        """Refuse a table that another worker holds."""

    @abstractmethod
    def _plan(self, shape: TargetSchema) -> Evolution:
        """What the columns lack for a shape."""

    def gap(self, shape: TargetSchema) -> SchemaGap:
        """What the columns lack."""
        return gap_of(self._state.columns, self._plan(shape))

    def rename_column(self, old: str, new: str) -> None:
        """Give a column, and each row's value in it, another name."""
        with self._state.lock:
            self._held()
            self._take({name: new if name == old else name for name in self._state.columns})

    def drop_columns(self, names: Sequence[str]) -> None:
        """Drop columns and each row's values in them."""
        with self._state.lock:
            self._held()
            self._take({name: name for name in self._state.columns if name not in names})

    def _take(self, names: Mapping[str, str]) -> None:
        """These columns alone, each under its new name."""
        state = self._state
        state.columns = {names[name]: ddl for name, ddl in state.columns.items() if name in names}
        rows = state.rows.items()
        state.rows = {key: {names[n]: value for n, value in row.items() if n in names} for key, row in rows}


CAPABILITIES: Final = Capabilities(
    name="memory",
    exactly_once=True,
    features=ALL_FEATURES,
)
_Rows = dict[tuple[Any, ...], dict[str, Any]]


@dataclass
class _Ledger:
    """Who writes a table, or a shard of it, and what is applied; ``known`` are the columns its rows have."""

    pipeline: str
    source: TableId
    keys: tuple[str, ...]
    epoch: int = 0
    progress: Progress | None = None
    applied: ApplyResult | None = None
    known: frozenset[str] | None = None


@dataclass
class _State:
    """One table: columns with their types, rows by key, and the ledger of each shard (None: of the table)."""

    columns: dict[str, str]
    rows: _Rows = field(default_factory=dict)
    ledgers: dict[str | None, _Ledger] = field(default_factory=dict)
    version: int = 0
    horizon: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryTarget(Target):
    """Tables that live as long as this object."""

    def __init__(self) -> None:
        self._tables: dict[TableId, _State] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What memory can do."""
        return CAPABILITIES

    def open_table(
        self, shape: TargetSchema, *, pipeline: str, delete_mode: DeleteMode = "hard"
    ) -> MemoryTable:
        """The table of ``shape``, created when missing."""
        check_key(shape)
        created = shape.table not in self._tables
        if created:
            columns = {column.name: column.spark for column in shape.columns}
            self._tables[shape.table] = _State(columns)
        state = self._tables[shape.table]
        if delete_mode == "soft":
            state.columns.setdefault(SOFT_DELETE_COLUMN, "boolean")
        return MemoryTable(state, shape, pipeline=pipeline, created=created)

    def rows(self, table: TableId) -> list[dict[str, Any]]:
        """A table's rows, columns that a row has no value for as None; in no order."""
        state = self._tables[table]
        return [{name: row.get(name) for name in state.columns} for row in state.rows.values()]


class MemoryTable(MemoryColumns):
    """One table in memory."""

    def __init__(self, state: _State, shape: TargetSchema, *, pipeline: str, created: bool) -> None:
        self._state = state
        self._table = shape.source
        self._place = f"memory:{shape.table}"
        self._shard = shape.shard
        self._owner = Owner(
            pipeline, self._table, shape.keys, self._place, "give it another name", self._shard
        )
        self._created = created
        self._epoch: int | None = None

    def claim(self) -> Claim:
        """Take the next epoch; older holders are refused from here on."""
        with self._state.lock:
            ledger = self._ledger()
            if ledger.progress:
                self._owner.check_keys(ledger.keys)
            ledger.epoch += 1
            self._epoch = ledger.epoch
            if ledger.progress:
                ledger.progress = replace(ledger.progress, epoch=self._epoch)
                ledger.applied = None  # that batch was another epoch's
            return Claim(self._epoch, ledger.progress)

    def committed(self) -> Progress | None:
        """What is applied."""
        return self._ledger().progress

    def evolve(self, shape: TargetSchema) -> EvolveResult:
        """Add columns with their defaults for rows already there; widen types by name."""
        with self._state.lock:
            ledger = self._held()
            plan = self._plan(shape)
            created, self._created = self._created, False
            self._state.columns.update(plan.widened)
            self._state.columns.update({column.name: column.spark for column in plan.added})
            new = plan.added if self._shard is None else new_columns(shape, ledger.known)
            filled, warnings = [], []
            for column in new:
                try:
                    value = default_value(column, shape)
                except ValueOutOfRangeError as exc:
                    warnings.append(f"column {column.name!r}: {exc.message}")
                    continue
                if value is not None:
                    filled.append(column.name)
                    self._fill(column.name, value)
            ledger.known = frozenset(names_of(shape)) | (ledger.known or frozenset())
            added = tuple(column.name for column in plan.added)
            return EvolveResult(created, added, tuple(plan.widened), tuple(filled), tuple(warnings))

    def apply(self, batch: ReducedBatch, progress: Progress) -> ApplyResult:
        """Merge a batch and its progress."""
        with self._state.lock:
            ledger, state = self._held(progress.epoch), self._state
            done = done_before(progress, ledger.progress, ledger.applied)
            if done is not None:
                return done
            version = state.version + 1
            check_order(batch, state.columns, table=self._table)
            if batch.how.mode == "history":
                rows, result = merged_versions(state.rows, batch, _rows_of(batch), version=version)
            elif batch.truncates:
                rows, result = _emptied(state.rows, batch, version=version)
            elif batch.how.mode == "append":
                rows, result = _appended(state.rows, batch, version=version)
            elif batch.sequenced:
                state.columns |= {SOFT_DELETE_COLUMN: "boolean", SEQUENCE_COLUMN: SEQUENCE_DDL}
                rows, result = _sequenced(state.rows, batch, version=version)
            else:
                rows, result = _merged(state.rows, batch, state.columns, version=version)
            batch.hooks.on_staged()
            state.rows, ledger.progress, ledger.applied = rows, progress, result
            ledger.known = frozenset(names_of(batch.shape)) | (ledger.known or frozenset())
            state.version += 1
            return result

    def horizon(self) -> int | None:
        """Up to which commit_ts deletes may be forgotten."""
        return self._state.horizon

    def collect(self, horizon: int) -> Collected:
        """Forget deletes up to a commit_ts."""
        with self._state.lock:
            self._held()
            state = self._state
            state.horizon = max(horizon, state.horizon or 0)
            marked = {
                k: r[SEQUENCE_COLUMN].source[0] for k, r in state.rows.items() if r.get(SOFT_DELETE_COLUMN)
            }
            gone = {key for key, ts in marked.items() if ts <= state.horizon}
            state.rows = {key: row for key, row in state.rows.items() if key not in gone}
            left = [ts for key, ts in marked.items() if key not in gone]
            return Collected(state.horizon, len(gone), len(left), min(left, default=None))

    def close(self) -> None:
        """Nothing is held open."""

    def _plan(self, shape: TargetSchema) -> Evolution:
        try:
            return plan_evolution(self._state.columns, shape)
        except SchemaRefusedError as exc:
            others = {str(name) for name in self._state.ledgers if name != self._name}
            raise also_of(exc, self._place, others) if others else exc from None

    def _fill(self, column: str, value: Any) -> None:
        """Give a column's value to the rows from before, of our shard where there are shards."""
        self._state.rows = {
            key: {**row, column: value} if _of(row, self._shard) else row
            for key, row in self._state.rows.items()
        }

    @property
    def _name(self) -> str | None:
        return self._shard.value if self._shard else None

    def _ledger(self) -> _Ledger:
        """Our ledger, made when missing; refuses the table that others have, or have in another way."""
        ledgers = self._state.ledgers
        if self._shard is not None and None in ledgers:
            raise not_shared(self._place, self._shard, table=self._table)
        others = {str(name) for name in ledgers if name is not None}
        if self._shard is None and others:
            raise is_shared(self._place, others, table=self._table)
        owner = self._owner
        ledger = ledgers.setdefault(self._name, _Ledger(owner.pipeline, owner.table, owner.keys))
        owner.check_writer(ledger.pipeline, ledger.source)
        return ledger

    def _held(self, epoch: int | None = None) -> _Ledger:
        ledger = self._ledger()
        claimed = None if self._epoch is None else (self._epoch,)
        check_held((ledger.epoch,), claimed, table=self._table, batch=epoch)
        return ledger


def _of(row: Mapping[str, Any], shard: Shard | None) -> bool:
    return shard is None or row[shard.column] == shard.value


def _emptied(rows: _Rows, batch: ReducedBatch, *, version: int) -> tuple[_Rows, ApplyResult]:
    soft = batch.how.delete_mode == "soft"
    own = {key: row for key, row in rows.items() if _of(row, batch.shape.shard)}
    living = [key for key, row in own.items() if not row.get(SOFT_DELETE_COLUMN)]
    marked = {key: {**row, SOFT_DELETE_COLUMN: True} for key, row in own.items()} if soft else {}
    left = {key: row for key, row in rows.items() if key not in own} | marked
    return left, ApplyResult(0, 0, len(living), 0, str(version))


def _appended(rows: _Rows, batch: ReducedBatch, *, version: int) -> tuple[_Rows, ApplyResult]:
    keys = batch.shape.keys
    new = {tuple(row.key[name] for name in keys): dict(row.after or {}) for row in _rows_of(batch)}
    if len(new) != batch.upserts or not new.keys().isdisjoint(rows):
        raise TargetError("a row of the batch is there already", table=str(batch.shape.table))
    return {**rows, **new}, ApplyResult(len(new), 0, 0, 0, str(version))


def _merged(
    rows: _Rows, batch: ReducedBatch, columns: Mapping[str, str], *, version: int
) -> tuple[_Rows, ApplyResult]:
    soft = batch.how.delete_mode == "soft"
    mark = {SOFT_DELETE_COLUMN: False} if SOFT_DELETE_COLUMN in columns else {}
    merged = dict(rows)
    inserted = updated = deleted = absent = 0
    for row in _rows_of(batch):
        key = tuple(row.key[name] for name in batch.shape.keys)
        if row.op == "upsert":
            kept = _kept(row, merged.get(key), batch)
            inserted, updated = (inserted, updated + 1) if key in merged else (inserted + 1, updated)
            written = {name: value for name, value in (row.after or {}).items() if name not in kept}
            merged[key] = {**merged.get(key, {}), **written, **mark}
        elif key not in merged:
            absent += 1
        else:
            deleted += 1
            if soft:
                merged[key] = {**merged[key], **_on_delete(row, batch), SOFT_DELETE_COLUMN: True}
            else:
                del merged[key]
    return merged, ApplyResult(inserted, updated, deleted, absent, str(version))


def _sequenced(rows: _Rows, batch: ReducedBatch, *, version: int) -> tuple[_Rows, ApplyResult]:
    """Rows that are newer than what is stored; a delete stays as its key, its mark and its position."""
    merged = dict(rows)
    inserted = updated = stale = 0
    for row in _rows_of(batch):
        key = tuple(row.key[name] for name in batch.shape.keys)
        stored = merged.get(key)
        at = stored.get(SEQUENCE_COLUMN) if stored is not None else None
        if row.sequence is None:
            raise TargetError(
                "a row of a batch in the source's order has no position", table=str(batch.shape.table)
            )
        if at is not None and row.sequence <= at:
            stale += 1
            continue
        inserted, updated = (inserted + 1, updated) if stored is None else (inserted, updated + 1)
        keeps = row.op == "upsert" or batch.how.delete_mode == "soft"
        kept = stored if stored is not None and keeps else {}
        marks = {SOFT_DELETE_COLUMN: row.op == "delete", SEQUENCE_COLUMN: row.sequence}
        written = {**row.key, **_on_delete(row, batch)} if row.op == "delete" else row.after or {}
        merged[key] = {**kept, **written, **marks}
    return merged, ApplyResult(inserted, updated, 0, 0, str(version), stale)


def _on_delete(row: ReducedRow, batch: ReducedBatch) -> dict[str, Any]:
    """What a soft delete writes besides its mark."""
    return {name: (row.after or {}).get(name) for name in batch.how.on_delete}


def _kept(row: ReducedRow, stored: Mapping[str, Any] | None, batch: ReducedBatch) -> tuple[str, ...]:
    """The columns that stay as stored; refuses a row that leaves out values of which none is."""
    gone = stored is None or row.after_delete or bool(stored.get(SOFT_DELETE_COLUMN))
    if not (row.kept and gone):
        return row.kept
    if batch.how.lenient:
        return ()
    raise ValueNotStoredError(NOT_STORED.format(columns=", ".join(row.kept)), table=str(batch.shape.table))


def _rows_of(batch: ReducedBatch) -> Iterator[ReducedRow]:
    if batch.rows is not None:
        yield from batch.rows
        return
    if batch.frame is None:
        return
    dated = ["_commit_ts"] if batch.how.mode == "history" else []
    more = [
        *dated,
        *(("_kept", "_after_delete") if batch.keeps else ()),
        *(("_seq",) if batch.sequenced else ()),
    ]
    for row in batch.frame.select("_op", "key", "after", *more).toLocalIterator():
        after = row["after"].asDict() if row["after"] is not None else None
        kept, after_delete = (row["_kept"], row["_after_delete"]) if batch.keeps else (None, False)
        at = row["_seq"] if batch.sequenced else None
        sequence = RowSequence(tuple(at["source"]), *at[1:]) if at is not None else None
        moment = row["_commit_ts"] if dated else None
        yield ReducedRow(
            row["_op"], row["key"].asDict(), after, tuple(kept or ()), after_delete, sequence, moment
        )


Rows = dict[tuple[Any, ...], dict[str, Any]]
_COUNTED: Final = ("begun", "ends", "absent", "stale")


def merged_versions(
    rows: Rows, batch: ReducedBatch, events: Iterable[ReducedRow], *, version: int
) -> tuple[Rows, ApplyResult]:
    """The rows of a table, by key and begin, after a batch."""
    check_versions(batch)
    merged, counts = dict(rows), dict.fromkeys(_COUNTED, 0)
    for key, sent in _by_key(batch, events).items():
        stored = {row[FROM_COLUMN]: row for at, row in rows.items() if at[:-1] == key}
        spans = [Span(start, row[TO_COLUMN], bool(row.get(READ_COLUMN))) for start, row in stored.items()]
        found = difference(spans, [Moment(at, _kind(row, batch)) for at, row in sent.items()])
        for at in found.forgotten:
            del merged[_place(key, at)]
        for span in found.ended:
            merged[_place(key, span.from_ts)] = {**stored[span.from_ts], **_times(span, batch)}
        for span in (*found.begun, *(Span(at, at) for at in found.marked)):
            row = sent.get(span.from_ts)
            values = dict(zip(batch.shape.keys, key, strict=True)) if row is None else _values(row)
            merged[_place(key, span.from_ts)] = {**values, **_times(span, batch)}
        for name in _COUNTED:
            counted = getattr(found, name)
            counts[name] += counted if isinstance(counted, int) else len(counted)
    result = ApplyResult(counts["begun"], 0, counts["ends"], counts["absent"], str(version), counts["stale"])
    return merged, result


def _by_key(
    batch: ReducedBatch, events: Iterable[ReducedRow]
) -> dict[tuple[Any, ...], dict[int, ReducedRow]]:
    found: dict[tuple[Any, ...], dict[int, ReducedRow]] = {}
    for row in events:
        if row.commit_ts is None:
            raise TargetError("a row of a history has no commit_ts", table=str(batch.shape.table))
        found.setdefault(tuple(row.key[name] for name in batch.shape.keys), {})[row.commit_ts] = row
    return found


def _kind(row: ReducedRow, batch: ReducedBatch) -> Kind:
    if batch.how.reads:
        return Kind.READ
    return Kind.WRITE if row.op == "upsert" else Kind.DELETE


def _place(key: tuple[Any, ...], from_ts: int) -> tuple[Any, ...]:
    return (*key, from_ts)


def _values(row: ReducedRow) -> Mapping[str, Any]:
    return row.key if row.after is None else row.after


def _times(span: Span, batch: ReducedBatch) -> dict[str, object]:
    if batch.how.history is None:
        raise TargetError("the batch does not name the columns of a history", table=str(batch.shape.table))
    return span_values(span, batch.how.history)
