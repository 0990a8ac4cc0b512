"""A table's snapshot: rows of the source database, read in ranges of its key while changes are applied.

A resync has a second phase: it deletes rows that exist only in the target (``worker.sweep``). A snapshot of
selected keys (``worker.asked_keys``) reads these instead of ranges.

A batch holds either changes or one part of the snapshot. Both commit their rows together with the progress,
which records the last key that was read. The law (ADR 32): the offsets at which the table's changes continue
are fixed first, then the part is read, and both are committed together. So the part shows at least the
changes before those offsets, and each later change is a whole row or a delete that is applied afterwards.

With ``sequence_by: source``, a row gets a position of the database that was read before the row. A history
gets the row as a version that begins at that position, and reads it as of that position.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidesink.config import Config, TableConfig
from tidesink.config.table_checks import needs_positions
from tidesink.errors import ConfigError, SourceError, ValueOutOfRangeError
from tidesink.events import TableId
from tidesink.sinks.batch.context import WorkerContext
from tidesink.sinks.batch.counts import BadRecord, BatchSummary
from tidesink.sinks.batch.cuts import is_outside
from tidesink.sinks.batch.records import EventRules, TableDecoder
from tidesink.sinks.batch.row_ddl import TableEmptiesError
from tidesink.sinks.batch.run import (
    Batch,
    BatchOutcome,
    BatchPlan,
    Reduction,
    released_on_error,
)
from tidesink.sinks.batch.schema_changes import ChangesWaitError
from tidesink.sinks.batch.schema_source import Missed
from tidesink.sinks.batch.source_rows import (
    OPTION,
    ColumnGap,
    KeyRange,
    KeySet,
    MatchingRows,
    SourceDecoder,
    SourceRows,
    connected,
    key_ranges,
    log_offset,
    source_plan,
)
from tidesink.sinks.batch.tasks import MOST_BYTES, RangeTask, RangeTooLargeError
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets
from tidesink.sinks.state.progress import Progress, SnapshotProgress, Sweep, TopicProgress
from tidesink.sinks.state.source_reads import SourceRead, with_part
from tidesink.sinks.worker.asked_keys import AskedKeys, forget_keys, load_keys
from tidesink.sinks.worker.control import SnapshotControl, change_control
from tidesink.sinks.worker.source_keys import (
    KEYS_A_QUERY,
    askable,
    check_limits,
    columns_of_keys,
    parts_of,
)
from tidesink.source_database.base import KeyTexts, StoredTable
from tidesink.source_database.database import (
    begin_at_position,
    open_transactions,
    stored_table,
    translated,
)
from tidesink.source_database.key_bounds import Bound, checked_bounds, from_lists

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tidesink.config.source import DatabaseSettings
    from tidesink.sinks.batch.decoders import DecodePlan
    from tidesink.sinks.batch.schema_changes import SchemaDecision
    from tidesink.sinks.targets.base import ReducedBatch

_log = structlog.get_logger("tidesink.worker")

_KEYLESS: Final = (
    "A snapshot reads a table in ranges of its key. The source's table has no primary key, no unique key "
    "without NULLs, and no row ids of TiDB (a partitioned table has none that cover all of it). Set "
    "`snapshot: never` for the table, and load its rows another way."
)

_LOST: Final = (
    "Column {} was dropped in the database, but the applied changes still contain it. The snapshot continues "
    "once the topic reports the drop."
)
_RENAMED: Final = (
    "The database no longer has column {0}, which the applied changes have, and has column {1}, which they "
    "do not have. The snapshot continues once the topic has a change with the new columns. If no row of the "
    "table changes by itself, update one row in the source database."
)
_NEW: Final = "Column {} is new in the database. Pending changes are applied first."
# Seconds that one part should take: the table's changes wait for it, and each part costs a commit.
_SECONDS: Final = 5.0
# Seconds between two checks for open transactions.
_PAUSE: Final = 0.1
_TOO_LARGE: Final = (
    f"A range of the snapshot has more than {MOST_BYTES >> 20} MiB, which is more than a task may hold in "
    "memory. Lower source.database.chunk-rows."
)
_UNFINISHED: Final = (
    "The table's snapshot has not finished, and a request for some rows would replace it. Wait until it "
    "finishes, or cancel it (`tidesink snapshot cancel`)."
)
_OPEN: Final = (
    "{} prepared XA transactions are open at the source (XA RECOVER). Their changes are in Kafka, but no "
    "query shows them yet. Rows are read once these transactions are committed or rolled back."
)
_REORDERED: Final = "The order of the table's key changed in the database while rows were read in that order."
_OUTRUN: Final = (
    "The requested snapshot or resync did not begin. Its number ({}) is not above the last one's ({}). The "
    "state store was lost or restored from a backup, and the clock of the machine that sent the request may "
    "be slow. Run the command again."
)
_KEYS_GONE: Final = "The state store no longer has the keys of this resync. Run the command again."
_OTHER_KEY: Final = (
    "The requested keys have the columns ({}), but the table's key at the target is ({}). Run the command "
    "again with a new report of `tidesink diff`."
)
_NO_COLUMN: Final = (
    "--where uses columns that are not part of the table's key ({}). Run the command again with key columns."
)
_NO_WAY_BACK: Final = (
    "The source cannot be queried by the target's keys: their values cannot be converted back exactly, or no "
    "index covers them. Repair the whole table (`tidesink resync` without --differing)."
)


class SnapshotRefusedError(ConfigError):
    """The requested snapshot is not possible for this table. The running one continues."""


class KeyOrderError(SourceError):
    """The order of the key changed while rows were read in that order: some rows may have been skipped."""


@dataclass(frozen=True)
class SnapshotPart:
    """A part of a snapshot, which one batch applies: ranges of the table, or keys of the target.

    ``before``: the snapshot's progress before this part. ``gap``: how the database's columns differ from the
    changes'. ``is_last_try``: True if a row that does not fit is an error. ``sweep_parts``: with the last
    ranges, the number of parts of the second phase, or 0. ``keys``: the keys to look up, or None for all.
    """

    stored: StoredTable
    ranges: tuple[KeyRange | KeySet, ...]
    before: SnapshotProgress
    gap: ColumnGap = ColumnGap()  # noqa: RUF009  (it is frozen)
    is_last_try: bool = True
    sweep_parts: int = 0
    keys: AskedKeys | None = None

    @property
    def sweeps(self) -> bool:
        """Return True if the part belongs to the second phase, which looks up the target's keys."""
        return self.before.sweep is not None and self.before.sweep.begun

    def after(self, rows: int) -> SnapshotProgress:
        """Return the snapshot's progress after this part; ``rows``: number of rows or deletes it applied."""
        before, sweep = self.before, self.before.sweep
        if sweep is not None and sweep.begun:
            sweep = replace(sweep, done=sweep.done + 1, deletes=sweep.deletes + rows)
            return replace(before, sweep=sweep, done=sweep.done == sweep.parts)
        last = self.ranges[-1].up_to
        if sweep is not None and last is None:
            sweep = replace(sweep, parts=self.sweep_parts)
        done = last is None and sweep is None
        return replace(before, after=last, rows=before.rows + rows, done=done, sweep=sweep)


@dataclass(frozen=True)
class SourceDatabase:
    """A connection of the driver to the source database.

    ``rows``: maximum number of rows in a range. ``bytes``: approximate maximum size of a range, by the
    database's estimate of a row's size. ``at_once``: number of ranges that are read in parallel. ``records``:
    maximum number of rows in a batch that has more ranges than that.
    """

    connection: Connection
    rows: int
    bytes: int
    at_once: int
    records: int

    def table(self, table: TableId) -> StoredTable:
        """Return the definition of a table that has a key.

        Raises:
            ConfigError: the table has no key, or the database refuses the user.
            SourceError: the database has no such table.
            SourceUnavailableError: the database does not answer.
        """
        with translated(OPTION):
            found = stored_table(self.connection, table)
        if found is None:
            raise SourceError(f"{OPTION} has no table {table}", table=str(table))
        if not found.key:
            raise ConfigError(_KEYLESS, table=str(table))
        return found

    def confirm_order(self, table: TableId, stored: StoredTable) -> None:
        """Check that the table's key still has the order in which its ranges were cut.

        Raises:
            KeyOrderError: the key or its order has changed.
            ConfigError: the table has no key, or the database refuses the user.
            SourceError: the database has no such table.
            SourceUnavailableError: the database does not answer.
        """
        found = self.table(table)
        if (found.key, found.order) != (stored.key, stored.order):
            raise KeyOrderError(_REORDERED, table=str(table))

    def unresolved(self, *, known: frozenset[str] = frozenset()) -> frozenset[str]:
        """Wait some seconds for open transactions, and return the ones whose changes no query shows yet.

        If the result is empty, every change that was in Kafka before the call is visible in the database.
        Transactions that begin during the call do not count: their changes reach Kafka later. ``known``:
        transactions that an earlier call waited for in vain. If one of them is still open, the call does not
        wait.

        Raises:
            ConfigError: the user may not list open transactions.
            SourceUnavailableError: the database does not answer.
        """
        ends = time.monotonic() + _SECONDS
        with translated(OPTION):
            left = open_transactions(self.connection)
            while left and not left & known and time.monotonic() < ends:
                time.sleep(_PAUSE)
                left &= open_transactions(self.connection)
        return left

    def position(self, *, since: int) -> int:
        """Return a commit_ts, ``since`` or later: everything read afterwards shows all changes up to it.

        Raises:
            ConfigError: the database has no commit_ts.
            SourceUnavailableError: the database does not answer, or reads as of a moment before ``since``.
        """
        with translated(OPTION):
            return begin_at_position(self.connection, since=since)

    def ranges(
        self,
        table: TableId,
        stored: StoredTable,
        *,
        after: KeyTexts | None,
        where: tuple[Bound, ...] = (),
        rounds: int = 1,
    ) -> tuple[KeyRange, ...]:
        """Return the key ranges of the next batch, after the key ``after`` and within the bounds ``where``.

        ``rounds``: how often each connection reads a range.

        Raises:
            ConfigError: the database refuses the user.
            SourceUnavailableError: the database does not answer.
        """
        rows, most = self.rows_of(stored), self.most_ranges(stored, rounds)
        return key_ranges(self.connection, table, stored, after=after, rows=rows, most=most, where=where)

    def most_ranges(self, stored: StoredTable, rounds: int) -> int:
        """Return the number of ranges that a batch reads in ``rounds`` rounds."""
        return max(self.at_once, min(self.at_once * rounds, self.records // self.rows_of(stored)))

    def rows_of(self, stored: StoredTable) -> int:
        """Return the number of rows in one range of a table."""
        size = max(1, stored.bytes // max(1, stored.rows))
        return max(1, min(self.rows, self.bytes // size))


def next_rounds(ranges: int, *, at_once: int, seconds: float) -> int:
    """Return the number of rounds for the next part, from the ``seconds`` that the last one took."""
    rounds = -(-ranges // at_once)
    return max(1, int(rounds * _SECONDS / max(seconds, 0.001)))


def all_ranges(
    config: Config,
    table: TableId,
    stored: StoredTable,
    where: tuple[Bound, ...] = (),
    *,
    as_of: int | None = None,
) -> tuple[KeyRange, ...]:
    """Return all key ranges of a source table within the bounds ``where``.

    Raises:
        ConfigError: no database is configured, or it refuses the user or the moment ``as_of``.
        SourceUnavailableError: the database does not answer.
    """
    found: list[KeyRange] = []
    with open_source_database(config, as_of=as_of) as database:
        while not found or found[-1].up_to is not None:
            after = found[-1].up_to if found else None
            found += database.ranges(table, stored, after=after, where=where)
    return tuple(found)


@contextmanager
def open_source_database(config: Config, *, as_of: int | None = None) -> Iterator[SourceDatabase]:
    """Connect to the source database, reading as of a commit_ts, or the current rows without ``as_of``.

    Raises:
        ConfigError: no database is configured, it refuses the user, or it cannot read as of a moment.
        SourceUnavailableError: the database does not answer.
    """
    settings = config.source.database
    if settings is None:
        raise ConfigError(f"A table's snapshot has not finished, and {OPTION} is not set.", key=OPTION)
    at_once, batch = settings.connections, config.batch
    size, rows = batch.max_bytes // at_once, settings.chunk_rows
    if settings.range_rows_per_second is not None:
        rows = min(rows, max(1, int(settings.range_rows_per_second * _SECONDS)))
    url = settings.url.get_secret_value()
    with connected(url, as_of=as_of, replica=settings.replica) as connection:
        yield SourceDatabase(connection, rows, size, at_once, batch.max_records)


@dataclass(frozen=True)
class _Ahead:
    """Why changes go first: the database's columns differ from the applied changes', or a row does not fit.

    ``unfit``: True in the second case. ``since``: offsets that were applied when the difference was found.
    ``goal``: end offsets of the topic at a later moment; None until they are looked up. ``again``: True if
    the same difference was found before, and all changes up to the earlier goal are applied.
    """

    gap: ColumnGap
    unfit: bool
    since: Mapping[int, int]
    goal: Mapping[int, int] | None = None
    again: bool = False

    @property
    def reason(self) -> str:
        """Explain what the snapshot waits for."""
        if self.unfit:
            return "A row does not fit the table's current columns. Pending changes are applied first."
        if self.gap.lost and self.gap.new:
            return _RENAMED.format(", ".join(self.gap.lost), ", ".join(self.gap.new))
        if self.gap.lost:
            return _LOST.format(", ".join(self.gap.lost))
        return _NEW.format(", ".join(self.gap.new))


class Snapshot:
    """Decides if a table's next batch is a part of its snapshot. Used by one thread at a time."""

    def __init__(self, context: WorkerContext, settings: TableConfig) -> None:
        self._context = context
        self._settings = settings
        self._read_last = False
        self._estimate: int | None = None
        self._ahead: _Ahead | None = None
        self._rounds = 1
        self._outside = False
        # Columns that exist only in the database, although all changes up to their discovery are applied.
        self._settled = ColumnGap()
        # The key's first known order: progress of earlier versions does not record it.
        self._first_order: str | None = None
        # Prepared transactions that the snapshot waits for, and the time of the next check.
        self._open = frozenset[str]()
        self._looks_at = 0.0
        # The user's requests.
        self.asked = SnapshotControl()

    def is_due(self, progress: Progress) -> bool:
        """Return True if a snapshot is to begin or continue; ``initial`` begins with the first batch."""
        return not self.asked.rests and self.is_under_way(progress)

    def is_under_way(self, progress: Progress) -> bool:
        """Return True if a snapshot is unfinished or is to begin, even if it is paused."""
        asked, found = self.asked, progress.snapshot
        if asked.cancelled >= max(asked.started, found.number if found else 0):
            return False
        if found is not None and found.number >= asked.started and found.keys != asked.keys and found.keys:
            return False  # the store was lost, and the keys with it
        if found is None:
            return asked.started > 0 or (self._settings.snapshot == "initial" and progress.batch == 0)
        return found.number < asked.started or not found.done

    def repairs(self, progress: Progress) -> bool:
        """Return True if a resync of the whole table is requested and not begun: it repairs lost changes."""
        begun = progress.snapshot.number if progress.snapshot is not None else 0
        asked = self.asked
        return asked.deletes and not asked.limited and asked.started > max(begun, asked.cancelled)

    def is_outrun(self, progress: Progress) -> bool:
        """Return True if the request's number is below the last snapshot's, so that it would never begin."""
        found, asked = progress.snapshot, self.asked
        return found is not None and asked.is_asked and asked.started < found.number

    def tell_outrun(self, progress: Progress) -> str:
        """Withdraw a request that would never begin, and return the text for the table's status.

        The user's next request gets a number above the last snapshot's.
        """
        assert progress.snapshot is not None  # noqa: S101  (``is_outrun`` looked)
        started, number = self.asked.started, progress.snapshot.number
        context, table = self._context, self._settings.table

        def change() -> None:
            change_control(
                context.store,
                context.config.pipeline,
                table,
                lambda asked: replace(asked, snapshot=asked.snapshot.outrun(started, number)),
            )

        context.noted(table, change, unless="that a snapshot did not begin not noted")
        self.asked = self.asked.outrun(started, number)
        text = _OUTRUN.format(started, number)
        _log.warning("snapshot not begun", table=str(table), reason=text)
        return text

    def is_outside(self, progress: Progress | None, bound: int | None) -> bool:
        """Return True if a cut at ``bound`` leaves the table out; without progress, the last known answer."""
        if progress is not None:
            self._outside = is_outside(progress, bound, loads=self.is_under_way(progress))
        return self._outside

    def goes_on(self, progress: Progress, found: TopicOffsets, applied: Mapping[int, int]) -> bool:
        """Return True if a part can be read now, and no changes must go first; ``applied``: see ``waits``.

        False for a table that reads its topic again: the rows are newer than the changes that it reads again.
        """
        known = progress.topics.get(found.topic)
        if known is not None and known.read_again:
            return False
        ends = {number: at.latest for number, at in found.partitions.items()}
        return self.is_due(progress) and not self.waits(applied, ends)

    def details(self, progress: Progress | None) -> dict[str, Any]:
        """Return the snapshot's part of the table's status; empty for a table without a snapshot."""
        if progress is None or (progress.snapshot is None and not self.is_due(progress)):
            return {}
        found = progress.snapshot or SnapshotProgress(())
        state = "done" if found.done else "running"
        if self.is_due(progress):
            state = "running"
        elif not found.done:
            state = "paused" if self.asked.rests else "cancelled"
        shown = {"state": state, "number": found.number, "rows": found.rows, "estimate": self._estimate}
        where = found.where if found.number >= self.asked.started else self.asked.where
        if where:
            shown["where"] = " and ".join(str(Bound._make(one)) for one in where)
        if found.sweep is not None:
            shown["deletes"] = asdict(found.sweep)
        if state == "running" and self._open:
            shown |= {"state": "waiting", "reason": _OPEN.format(len(self._open))}
        elif state == "running" and self._ahead is not None:
            shown |= {"state": "waiting", "reason": self._ahead.reason}
        return {"snapshot": shown}

    def waits(self, applied: Mapping[int, int], ends: Mapping[int, int]) -> bool:
        """Return True if changes go first; ``applied``: applied offsets, ``ends``: the topic's end offsets.

        Changes go first until the topic is read up to the end that it had when the columns were compared.
        Then the database is asked again. If it still lacks a column, the topic does not have the DDL yet, and
        the next changes go first. Changes also go first for some seconds while transactions are open.
        """
        if self._open and time.monotonic() < self._looks_at:
            return True
        ahead = self._ahead
        if ahead is None:
            return False
        if ahead.goal is None:
            # The end offsets must be newer than the comparison of the columns.
            ahead = self._ahead = replace(ahead, goal=dict(ends))
        if any(applied.get(number, 0) < end for number, end in (ahead.goal or {}).items()):
            return True
        return ahead.again and ahead.since == applied

    @property
    def looks_again(self) -> bool:
        """Return True if it is time to check again if open transactions have ended."""
        return bool(self._open) and time.monotonic() >= self._looks_at

    def _waits_for_open(self, database: SourceDatabase) -> bool:
        """Return True if the database may not show changes that are already applied; check again later."""
        known, self._open = self._open, database.unresolved(known=self._open)
        self._looks_at = time.monotonic() + _SECONDS
        if self._open and not known:
            _log.warning(
                "snapshot waits", table=str(self._settings.table), reason=_OPEN.format(len(self._open))
            )
        return bool(self._open)

    def row_does_not_fit(self, part: SnapshotPart, applied: Mapping[int, int]) -> None:
        """Let changes go first: a row of a part may have columns that the applied changes do not have yet."""
        self._ahead = _Ahead(part.gap, True, dict(applied))

    def took(self, part: SnapshotPart, seconds: float) -> None:
        """Record the seconds that a part took, which decide the size of the next one."""
        settings = self._context.config.source.database
        if settings is not None and part.ranges:
            self._rounds = next_rounds(len(part.ranges), at_once=settings.connections, seconds=seconds)

    def forget_keys(self, before: Progress, after: Progress) -> None:
        """Remove the keys of resyncs that no longer affect dead letters, after a part is applied."""
        left = {self.asked.keys, *(one.keys for one in after.source_reads)}
        for name in {one.keys for one in before.source_reads} - left:
            if name is not None:
                forget = partial(forget_keys, self._context.store, name)
                self._context.noted(self._settings.table, forget, unless="keys of a resync not removed")

    def comes_next(self, progress: Progress, *, waiting: bool) -> bool:
        """Return True if the next batch is a part of the snapshot: every second batch if changes wait."""
        if not self.is_due(progress):
            return False
        self._read_last = not (self._read_last and waiting)
        return self._read_last

    def next_part(
        self, progress: Progress, plan: DecodePlan, applied: Mapping[int, int]
    ) -> SnapshotPart | None:
        """Plan the next batch, asking the database where its ranges end; None if changes go first.

        ``plan``: the table's current decode plan. ``applied``: the offsets up to which changes are applied.

        Raises:
            ConfigError: no database is configured, it refuses the user, or the table has no key.
            SourceError: the database has no such table.
            SourceUnavailableError: the database does not answer.
            SnapshotRefusedError: the request is not possible for this table.
        """
        parts, keys = 0, None
        with open_source_database(self._context.config) as database:
            stored = database.table(self._settings.table)
            self._estimate = stored.rows
            source, gap = source_plan(plan, stored)
            layout, fold = self._settings.layout, plan.rows.shape.fold
            gap = gap._replace(new=tuple(one for one in gap.new if not layout.leaves_out(one, fold)))
            if self._is_ahead(gap, plan.decoder, applied):
                return None
            # Must come after the offsets of the table's changes are fixed, and before its rows are read.
            if self._waits_for_open(database):
                return None
            self._check_replaced(progress)
            self._check_positions(database, progress)
            before = self._before(progress.snapshot, stored)
            keys, where = self._keys(before, source), self._bounds(before, source, stored)
            ranges: tuple[KeyRange | KeySet, ...] = ()
            if before.sweep is not None and before.sweep.begun:
                pass
            elif keys is not None:
                most, parts = min(KEYS_A_QUERY, database.rows_of(stored)), 1
                ranges = (self._key_set(keys, source, stored, after=before.after, most=most),)
            else:
                ranges = database.ranges(
                    self._settings.table, stored, after=before.after, where=where, rounds=self._rounds
                )
                if before.sweep is not None and ranges[-1].up_to is None:
                    rows = database.rows_of(stored) * database.at_once
                    parts = parts_of(self._context, source, stored, rows=rows, where=where)
        last_try, self._ahead = self._ahead is not None and self._ahead.unfit, None
        return SnapshotPart(stored, ranges, before, gap, last_try, parts, keys)

    def _check_replaced(self, progress: Progress) -> None:
        """Refuse a request for some rows that would replace an unfinished snapshot of the whole table.

        Raises:
            SnapshotRefusedError: the snapshot of the whole table is unfinished.
        """
        asked, found = self.asked, progress.snapshot
        if not asked.limited or (found is not None and found.number >= asked.started):
            return
        begins = found is None and self._settings.snapshot == "initial" and progress.batch == 0
        goes_on = found is not None and not (found.done or found.limited)
        if (begins or goes_on) and asked.cancelled < (found.number if found else 0):
            raise SnapshotRefusedError(_UNFINISHED)

    def _check_positions(self, database: SourceDatabase, progress: Progress) -> None:
        """Refuse a request whose rows need positions if the database has no positions."""
        begun = progress.snapshot.number if progress.snapshot else 0
        if needs_positions(self._context.config, self._settings) and self.asked.started > begun:
            try:
                database.position(since=0)
            except ConfigError as error:
                raise SnapshotRefusedError(error.message) from error

    def _bounds(self, before: SnapshotProgress, plan: DecodePlan, stored: StoredTable) -> tuple[Bound, ...]:
        """Return the bounds of the snapshot's rows.

        Raises:
            SnapshotRefusedError: the bounds' columns left the key, or the target compares them differently.
        """
        found = from_lists(before.where)
        if not found:
            return ()
        self._estimate = None
        if not {one.column for one in found} <= {*stored.key}:
            raise SnapshotRefusedError(_NO_COLUMN.format(", ".join(stored.key)))
        try:
            # The key's types may have changed since the request, so a later try would fail too.
            checked_bounds(found, stored)
        except ConfigError as error:
            raise SnapshotRefusedError(error.message) from error
        if before.sweep is not None and before.after is None and not before.sweep.begun:
            try:
                check_limits(self._context, plan, found)
            except ConfigError as error:
                raise SnapshotRefusedError(error.message) from error
        return found

    def _keys(self, before: SnapshotProgress, plan: DecodePlan) -> AskedKeys | None:
        """Return the keys that the snapshot is limited to, or None if it has no such limit.

        Raises:
            SnapshotRefusedError: the keys are lost, or their columns are not the table's key.
        """
        if before.keys is None:
            return None
        found = load_keys(self._context.store, before.keys)
        if found is None:
            raise SnapshotRefusedError(_KEYS_GONE)
        self._estimate = len(found.keys)
        names = [one.name for one in plan.shape.key_columns]
        if {*names} != {*found.columns}:
            raise SnapshotRefusedError(_OTHER_KEY.format(", ".join(found.columns), ", ".join(names)))
        return found

    def _key_set(
        self,
        asked: AskedKeys,
        plan: DecodePlan,
        stored: StoredTable,
        *,
        after: KeyTexts | None,
        most: int,
    ) -> KeySet:
        """Return the next keys, at most ``most``: one query reads them, so that no row is found twice.

        Raises:
            SnapshotRefusedError: the source cannot be queried by these keys.
        """
        columns = columns_of_keys(self._context, plan, stored)
        if columns is None:
            raise SnapshotRefusedError(_NO_WAY_BACK)
        left = asked.behind(after)
        keys = AskedKeys(asked.columns, left[:most])
        texts = askable(keys.in_order_of(one.name for one in plan.shape.key_columns), columns)
        last = keys.keys[-1] if len(left) > most else None
        return KeySet(tuple(one.name for one in columns), tuple(texts), last)

    def refuse(self, error: SnapshotRefusedError, progress: Progress) -> str:
        """Withdraw a request that is not possible, and return the text for the table's status."""
        started, found = self.asked.started, progress.snapshot
        before = found.number if found is not None and found.number < started else 0
        begun = found is not None and found.number == started
        context, table = self._context, self._settings.table

        def change() -> None:
            change_control(
                context.store,
                context.config.pipeline,
                table,
                lambda asked: replace(asked, snapshot=asked.snapshot.refused(started, before, begun=begun)),
            )

        context.noted(table, change, unless="that a resync is refused not noted")
        self.asked = self.asked.refused(started, before, begun=begun)
        _log.warning("table not resynced", table=str(table), error=error.message)
        return f"The requested snapshot or resync was refused. {error.message}"

    def _is_ahead(self, gap: ColumnGap, decoder: TableDecoder, applied: Mapping[int, int]) -> bool:
        """Return True if changes go first because columns differ, unless earlier changes did not settle that.

        DDL that drops a column always arrives. A row that shows the drop may never arrive, so the database
        is trusted once the topic was read to its end. If a column is dropped and another one is new, the new
        one may be the old one renamed, and only a later row brings its values: then the snapshot waits.
        """
        waits = decoder.tells_dropped and (bool(gap.new) or not decoder.rows_tell_dropped)
        known = self._ahead.gap if self._ahead is not None else self._settled
        again = self._ahead is not None and known == gap
        if not (gap.lost or gap.new) or (gap == known and not (gap.lost and waits)):
            self._settled = gap
            return False
        self._ahead = _Ahead(gap, False, dict(applied), again=again)
        return True

    def _before(self, found: SnapshotProgress | None, stored: StoredTable) -> SnapshotProgress:
        """Return the snapshot's progress: from the start if it is new or the table's key has changed."""
        number = max(self.asked.started, found.number if found else 0)
        if found is None or found.number < number:
            sweep = Sweep() if self.asked.deletes else None
            return SnapshotProgress(
                stored.key,
                number=number,
                sweep=sweep,
                keys=self.asked.keys,
                where=self.asked.where,
                order=stored.order,
            )
        # Another key, or another order of the key, sorts the rows differently: they are read and written
        # again. Requested keys have an order of their own, and a sweep uses hashes.
        by_order = found.keys is None and not (found.sweep is not None and found.sweep.begun)
        if found.order is None and self._first_order is None:
            self._first_order = stored.order
        known_order = self._first_order if found.order is None else found.order
        same_order = known_order == stored.order or not by_order
        found, before = replace(found, order=stored.order), found.key
        if before == stored.key and same_order:
            return found
        sweep = None if found.sweep is None else Sweep()
        return replace(found, key=stored.key, after=None, rows=0, done=False, number=number, sweep=sweep)


class SnapshotBatch(Batch):
    """Applies a part of a snapshot. Its plan has the offsets at which the table's changes continue.

    An object runs once; a retry needs a new object.
    """

    def __init__(self, *parts: Any, part: SnapshotPart, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._part = part

    def _outcome(self) -> BatchOutcome:
        self._context.failpoints.reach("planned")
        # The rows are newer than all DDL sent so far: DDL that empties the table must not come after them.
        self._decoding.catch_up(None, self._plan.found)
        try:
            reduction = self._reduced(self._plan)
            with released_on_error(reduction.release), open_source_database(self._context.config) as database:
                database.confirm_order(self._settings.table, self._part.stored)
        except ChangesWaitError as exc:
            return BatchOutcome(self._hold.progress, pending=exc.pending)
        except TableEmptiesError as exc:
            return self._emptied(exc.decision)
        try:
            return self._applied(reduction)
        finally:
            reduction.release()

    def _reduced(self, plan: BatchPlan, _bad: BadRecord | None = None) -> Reduction:
        self._context.stop.check()
        self._settle()
        try:
            reduction = self._reduce_once(plan)
            # A row may not fit because the table's types are outdated: learn them and try again.
            missed = Missed(reduction.summary, (), plan.found)
            with released_on_error(reduction.release):
                again = reduction.summary.bad > 0 and self._decoding.learn(missed)
            if again:
                reduction.release()
                reduction = self._reduce_once(plan)
        except RangeTooLargeError as exc:
            raise ConfigError(_TOO_LARGE, table=str(self._settings.table)) from exc
        with released_on_error(reduction.release):
            self._check_partitions(reduction.summary)
            self._refuse_bad(reduction.summary)
        return reduction

    def _rules(self) -> EventRules:
        """Return rules without a bound: rows never wait for a cut, because their table is outside of cuts."""
        return replace(super()._rules(), bound=None)

    @property
    def _checkpoints(self) -> bool:
        """Return True with cuts: rows must not be read again after ``_seen`` took their commit_ts."""
        return super()._checkpoints or self._context.config.cuts is not None

    def _range_task(self, plan: BatchPlan) -> RangeTask:
        """Return the part's ranges as a task, with the table's current plan."""
        database, stored, part = self._database(), self._part.stored, self._part
        decode_plan, _ = source_plan(self._table_plan(), stored)
        assert isinstance(decode_plan.decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
        self._reader = SourceRows(
            database.url.get_secret_value(),
            decode_plan.decoder.stored,
            stored.key,
            stored.key_types,
            part.ranges,
            at_once=database.connections,
            since=self._since(),
            constants=stored.constants,
            rows_per_second=database.range_rows_per_second,
            replica=database.replica,
        )
        first = log_offset(self._hold.progress.batch + 1) if decode_plan.logs else 0
        ranges = [
            OffsetRange(plan.found.topic, n, first, first + database.chunk_rows)
            for n in range(len(part.ranges))
        ]
        sink = self._row_sink(replace(plan, ranges=tuple(ranges)), decode_plan)
        task = RangeTask.of(ranges, "", decode_plan, sink)
        return task if self._history is None else replace(task, only=MatchingRows())

    def _since(self) -> int | None:
        """Return the first position that rows may have, or None in Kafka's order, which needs none.

        A row at or before the horizon could have been deleted since, and no memory of the delete is left.
        """
        ordered = self._sequenced or self._history is not None
        return (self._hold.horizon or 0) + 1 if ordered else None

    def _reduced_batch(self, reduction: Reduction, schema_decision: SchemaDecision) -> ReducedBatch:
        found = super()._reduced_batch(reduction, schema_decision)
        return found if self._history is None else replace(found, reads=True, since=None)

    def _topic_progress(self, plan: BatchPlan, _summary: BatchSummary) -> TopicProgress:
        """Return progress that reads nothing of the topic: the summary's range numbers are key ranges."""
        return super()._topic_progress(plan, BatchSummary())

    def _table_plan(self) -> DecodePlan:
        """Return the table's current plan."""
        number, marks = self._hold.progress.batch + 1, self._settings.deletes == "soft"
        return self._decoding.columns().for_batch(number, self._rules(), marks_deletes=marks)

    def _database(self) -> DatabaseSettings:
        found = self._context.config.source.database
        assert found is not None  # noqa: S101  (the part's bounds are from it)
        return found

    def _refuse_bad(self, summary: BatchSummary) -> None:
        """Stop at a row that the target cannot hold: no Kafka record exists that could be a dead letter.

        The first time, changes go first: the topic may have a change of the column's type.
        """
        if summary.bad_records:
            if not self._part.is_last_try:
                raise ChangesWaitError(())
            bad = summary.bad_records[0]
            raise ValueOutOfRangeError(
                f"A row of the snapshot cannot be a row of the target ({bad.error}: {bad.reason}). Change "
                "the row at the source, or leave the column out (except_column_list).",
                table=str(self._settings.table),
            )

    def _next_progress(self, reduction: Reduction) -> Progress:
        progress = super()._next_progress(reduction)
        snapshot = replace(self._part.after(reduction.summary.read), seen=self._seen())
        return replace(progress, snapshot=snapshot, source_reads=self._source_reads(progress, snapshot))

    def _source_reads(self, progress: Progress, snapshot: SnapshotProgress) -> tuple[SourceRead, ...]:
        """Return the source reads including this part; unchanged unless upsert goes by Kafka's order."""
        if self._settings.mode != "upsert" or self._sequenced:
            return progress.source_reads
        part = self._part
        settles = snapshot.done and snapshot.sweep is not None
        read = SourceRead(snapshot.number, {}, settles, snapshot.keys, snapshot.where)
        # Records that wait for another bound are read again, from the first that waits.
        offsets = {
            name: {number: at.low_water_offset for number, at in topic.partitions.items()}
            for name, topic in progress.topics.items()
        }
        begins = part.before.after is None and not part.sweeps
        return with_part(progress.source_reads, read, offsets, begins=begins)

    def _seen(self) -> int | None:
        """With cuts, return a commit_ts that is not older than any row read, obtained after the rows.

        Raises:
            ConfigError: the database has no commit_ts.
            SourceUnavailableError: the database does not answer, or another cluster answers.
        """
        if self._context.config.cuts is None:
            return None
        with open_source_database(self._context.config) as database:
            return database.position(since=self._hold.progress.commit_ts or 0)
