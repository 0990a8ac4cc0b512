"""A table's snapshot: loads the rows of the source database while the worker keeps applying changes.

The rows are read in ranges of the primary key. A snapshot that is limited to some keys
(``snapshots.asked_keys``) reads the rows of these keys instead. A resync is a snapshot with a second phase,
which deletes rows that exist only in the target (``snapshots.sweep``).

A batch applies either changes from Kafka or one part of the snapshot (the rows of a few ranges or keys). It
commits the part's rows together with the table's progress, which records the last key that was read. If the
worker is killed, the next worker continues after that key.

Rule for correctness (ADR 32): first, the offsets at which the table continues to read Kafka are fixed. Then
the part is read from the database. So the part's rows contain all changes before these offsets. Each later
change is applied after the part, and replaces or deletes the whole row.

With ``sequence_by: source``, each row is stored with a position in the source's log that was read before the
row. In a table with ``mode: history``, the row becomes a row version that begins at that position, and is
read as of that position.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from tidesink.config import Config, TableConfig
from tidesink.config.table_checks import needs_positions
from tidesink.errors import LEAVE_OUT, ConfigError, SourceError, ValueOutOfRangeError
from tidesink.events import TableId
from tidesink.sinks.batch.source_rows import (
    ColumnGap,
    KeyRange,
    KeySet,
    MatchingRows,
    RowInput,
    SourceDecoder,
    SourceRows,
    key_ranges,
    log_offset,
    source_plan,
)
from tidesink.sinks.batch.tasks import RangeTask, RangeTooLargeError
from tidesink.sinks.decode.records import EventRules, TableDecoder
from tidesink.sinks.decode.schema_source import Missed
from tidesink.sinks.jobs.base import (
    Again,
    Attempt,
    BatchPlan,
    Go,
    Hold,
    Inputs,
    ReadingJob,
    Reduction,
    Services,
    SinkWish,
    TaskRun,
    Verdict,
    Waits,
    next_progress,
)
from tidesink.sinks.jobs.changes import check_partitions
from tidesink.sinks.kafka.offsets import TopicOffsets
from tidesink.sinks.laws.bound import is_outside
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.control import SnapshotControl, change_control
from tidesink.sinks.snapshots.asked_keys import AskedKeys, forget_keys, load_keys
from tidesink.sinks.snapshots.source_keys import (
    KEYS_A_QUERY,
    askable,
    check_limits,
    columns_of_keys,
    parts_of,
)
from tidesink.sinks.state.progress import Progress, SnapshotProgress, Sweep
from tidesink.sinks.state.source_reads import SourceRead, with_part
from tidesink.source_database.base import KeyTexts, StoredTable
from tidesink.source_database.database import (
    OPTION,
    begin_at_position,
    connected,
    open_transactions,
    stored_table,
    translated,
)
from tidesink.source_database.key_bounds import Bound, checked_bounds, from_lists

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tidesink.sinks.decode.plans import DecodePlan
    from tidesink.sinks.decode.schema_source import Decoding
    from tidesink.sinks.jobs.executor import TaskResults
    from tidesink.sinks.laws.counts import BadRow
    from tidesink.sinks.targets.base import ReducedBatch

_log = structlog.get_logger("tidesink.worker")

_KEYLESS: Final = (
    "A snapshot reads a table in ranges of its key. The table in the source database has no primary key, no "
    "unique key without NULLs, and no TiDB row ids (partitioned tables have none). Set `snapshot: never` for "
    "the table, and load its rows another way."
)

_LOST: Final = (
    "Column {} was dropped in the database, but the applied changes still contain it. The snapshot continues "
    "once the topic reports the drop."
)
_RENAMED: Final = (
    "The database no longer has column {0}, which the applied changes contain. Instead it has column {1}, "
    "which they do not contain. The snapshot continues once the topic has a change with the new columns. If "
    "no row of the table changes by itself, update one row in the source database."
)
_NEW: Final = (
    "Column {} is new in the database. The snapshot continues once the pending changes from Kafka are "
    "applied."
)
# Seconds that one part should take. Longer parts delay the table's changes; shorter ones cost more commits.
_SECONDS: Final = 5.0
# Seconds between two checks for open transactions.
_PAUSE: Final = 0.1
_UNFINISHED: Final = (
    "The table's snapshot has not finished, and a request that is limited to some rows would replace it. "
    "Wait until it finishes, or cancel it (`tidesink snapshot cancel TABLE`)."
)
_OPEN: Final = (
    "{} prepared XA transactions are open at the source (`XA RECOVER` lists them). Their changes are in "
    "Kafka, but no query shows them yet. The snapshot continues once they are committed or rolled back."
)
_REORDERED: Final = (
    "The order of the table's key changed in the database while rows were read in that order, so rows may "
    "have been skipped. Run the command again."
)
_OUTRUN: Final = (
    "The requested snapshot or resync did not begin. Its number ({}) is not above the last one's ({}), "
    "because the state store was lost or restored from a backup, and perhaps the clock of the machine that "
    "sent the request is slow. Run the command again."
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
    "The source database cannot be queried by keys of the target: their values cannot be converted back to "
    "the source's exactly, or no index covers them. Repair the whole table (`tidesink resync TABLE` "
    "without --differing or --key)."
)


class SnapshotRefusedError(ConfigError):
    """The requested snapshot is not possible for this table. The running one continues."""


class KeyOrderError(SourceError):
    """The sort order of the key changed while rows were read by key, so some rows may have been skipped."""


@dataclass(frozen=True)
class SnapshotPart:
    """A part of a snapshot, which one batch applies.

    Attributes:
        stored: The definition of the table in the source database.
        ranges: The key ranges or keys whose rows are read; empty in the second phase of a resync.
        before: The snapshot's progress before this part.
        gap: The columns that exist only in the database or only in the applied changes.
        is_last_try: True if a row that does not fit the target's columns is an error. False if the snapshot
            then waits for pending changes from Kafka, which may change the columns.
        sweep_parts: Number of parts of a resync's second phase, if this part has the last ranges; else 0.
        keys: The keys to which the snapshot is limited, or None.
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
        """Return True if the part belongs to the second phase of a resync, which deletes rows."""
        return self.before.sweep is not None and self.before.sweep.begun

    def after(self, rows: int) -> SnapshotProgress:
        """Return the snapshot's progress after this part. ``rows``: number of the part's rows or deletes."""
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
    """A connection from the Spark driver to the source database, and the limits for reading rows from it.

    Attributes:
        connection: The connection.
        rows: Maximum number of rows in a key range.
        bytes: Approximate maximum size of a key range in bytes, by the database's estimate of the row size.
        at_once: Number of ranges that are read in parallel.
        records: Maximum number of rows in a batch that has more than ``at_once`` ranges.
    """

    connection: Connection
    rows: int
    bytes: int
    at_once: int
    records: int

    def table(self, table: TableId) -> StoredTable:
        """Return the definition of a table in the source database.

        Raises:
            ConfigError: the table has no key, or the database refuses the user.
            SourceError: the database has no such table.
            SourceUnavailableError: the database does not answer.
        """
        with translated(OPTION):
            stored = stored_table(self.connection, table)
        if stored is None:
            raise SourceError(
                f"{OPTION} has no table {table}, or the user may not read it. Grant SELECT on the table.",
                table=str(table),
            )
        if not stored.key:
            raise ConfigError(_KEYLESS, table=str(table))
        return stored

    def confirm_order(self, table: TableId, stored: StoredTable) -> None:
        """Check that the table still has the same key and sort order as when its ranges were chosen.

        ``stored``: the table's definition when the ranges were chosen.

        Raises:
            KeyOrderError: the key or its order has changed.
            ConfigError: the table has no key, or the database refuses the user.
            SourceError: the database has no such table.
            SourceUnavailableError: the database does not answer.
        """
        current = self.table(table)
        if (current.key, current.order) != (stored.key, stored.order):
            raise KeyOrderError(_REORDERED, table=str(table))

    def unresolved(self, *, known: frozenset[str] = frozenset()) -> frozenset[str]:
        """Wait some seconds for open transactions to end, and return the transactions that are still open.

        Changes of an open transaction may be in Kafka already, although no query of the database shows them.
        If the result is empty, every change that was in Kafka before the call is visible in the database.
        Transactions that begin during the call are not waited for, because their changes reach Kafka later.

        ``known``: transactions that the previous call returned. If one of them is still open, this call
        returns at once.

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
        """Return the database's current commit_ts. Rows that are read later contain all changes up to it.

        ``since``: the lowest acceptable commit_ts.

        Raises:
            ConfigError: the database has no commit_ts.
            SourceUnavailableError: the database does not answer, or its current commit_ts is below ``since``.
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
        """Return the key ranges of the next batch.

        ``after``: the last key that was read, or None at the start. ``where``: bounds that limit the keys.
        ``rounds``: number of ranges that each connection reads, one after the other.

        Raises:
            ConfigError: the database refuses the user.
            SourceUnavailableError: the database does not answer.
        """
        rows, most = self.rows_of(stored), self.most_ranges(stored, rounds)
        return key_ranges(self.connection, table, stored, after=after, rows=rows, most=most, where=where)

    def most_ranges(self, stored: StoredTable, rounds: int) -> int:
        """Return the maximum number of ranges in a batch if each connection reads ``rounds`` of them."""
        return max(self.at_once, min(self.at_once * rounds, self.records // self.rows_of(stored)))

    def rows_of(self, stored: StoredTable) -> int:
        """Return the number of rows that a key range of a table may have, from the estimated row size."""
        size = max(1, stored.bytes // max(1, stored.rows))
        return max(1, min(self.rows, self.bytes // size))


def next_rounds(ranges: int, *, at_once: int, seconds: float) -> int:
    """Return how many ranges each connection should read in the next part, so that it takes ``_SECONDS``.

    ``ranges``: number of ranges in the last part. ``at_once``: number of connections. ``seconds``: time that
    the last part took.
    """
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
    """Divide a table in the source database into key ranges, and return all of them.

    ``where``: bounds that limit the keys. ``as_of``: commit_ts as of which the ranges are chosen, or None for
    the current rows.

    Raises:
        ConfigError: no database is configured, it refuses the user, or it cannot read as of ``as_of``.
        SourceUnavailableError: the database does not answer.
    """
    ranges: list[KeyRange] = []
    with open_source_database(config, as_of=as_of) as database:
        while not ranges or ranges[-1].up_to is not None:
            after = ranges[-1].up_to if ranges else None
            ranges += database.ranges(table, stored, after=after, where=where)
    return tuple(ranges)


@contextmanager
def open_source_database(config: Config, *, as_of: int | None = None) -> Iterator[SourceDatabase]:
    """Connect to the source database.

    ``as_of``: commit_ts as of which rows are read, or None for the current rows.

    Raises:
        ConfigError: no database is configured, it refuses the user, or it cannot read as of ``as_of``.
        SourceUnavailableError: the database does not answer.
    """
    settings = config.source.database
    if settings is None:
        raise ConfigError(
            f"A table's snapshot has not finished, and {OPTION} is not set. Set it, or cancel the snapshot "
            "(`tidesink snapshot cancel TABLE`).",
            key=OPTION,
        )
    at_once, batch = settings.connections, config.batch
    size, rows = batch.max_bytes // at_once, settings.chunk_rows
    if settings.range_rows_per_second is not None:
        rows = min(rows, max(1, int(settings.range_rows_per_second * _SECONDS)))
    url = settings.url.get_secret_value()
    with connected(url, as_of=as_of, replica=settings.replica) as connection:
        yield SourceDatabase(connection, rows, size, at_once, batch.max_records)


@dataclass(frozen=True)
class _Ahead:
    """The reason why a snapshot waits until pending changes from Kafka are applied.

    Either the source table has other columns than the applied changes (a difference), or a row of the source
    does not fit the target table's columns.

    Attributes:
        gap: The columns that exist only in the database or only in the applied changes.
        unfit: True if a row does not fit the target's columns.
        since: The applied offset per partition when this was found.
        catch_up_to: The topic's end offsets, looked up after this was found; None until then. The snapshot
            waits until the changes before these offsets are applied.
        again: True if the difference was found before, and applying the changes did not remove it.
    """

    gap: ColumnGap
    unfit: bool
    since: Mapping[int, int]
    catch_up_to: Mapping[int, int] | None = None
    again: bool = False

    @property
    def reason(self) -> str:
        """The text for users that explains what the snapshot waits for."""
        if self.unfit:
            return (
                "A row does not fit the table's current columns. The snapshot continues once the pending "
                "changes from Kafka are applied."
            )
        if self.gap.lost and self.gap.new:
            return _RENAMED.format(", ".join(self.gap.lost), ", ".join(self.gap.new))
        if self.gap.lost:
            return _LOST.format(", ".join(self.gap.lost))
        return _NEW.format(", ".join(self.gap.new))


class Snapshot:
    """Decides if the next part of a table's snapshot can be read, and plans the part.

    Used by one thread at a time. ``asked``: the user's requests about the table's snapshots.
    ``read_part_last``: True if the last turn in which a part could be read has read one.
    """

    def __init__(self, context: WorkerContext, settings: TableConfig) -> None:
        self._context = context
        self._settings = settings
        self._estimate: int | None = None
        self._ahead: _Ahead | None = None
        self._rounds = 1
        self._outside = False
        # The difference of columns with which the snapshot continues, since waiting did not remove it.
        self._settled = ColumnGap()
        # Open transactions that the snapshot waits for, and the monotonic time of the next check.
        self._open = frozenset[str]()
        self._looks_at = 0.0
        self.asked = SnapshotControl()
        self.read_part_last = False

    def is_due(self, progress: Progress) -> bool:
        """Return True if the table has a snapshot to begin or continue, and it is not paused."""
        return not self.asked.rests and self.is_under_way(progress)

    def is_under_way(self, progress: Progress) -> bool:
        """Return True if the table has a snapshot to begin or continue, even if it is paused.

        With ``snapshot: initial``, a snapshot begins if no batch was applied to the table.
        """
        asked, snapshot = self.asked, progress.snapshot
        if asked.cancelled >= max(asked.started, snapshot.number if snapshot else 0):
            return False
        if (
            snapshot is not None
            and snapshot.number >= asked.started
            and snapshot.keys != asked.keys
            and snapshot.keys
        ):
            return False  # the state store was lost, and the snapshot's keys with it
        if snapshot is None:
            return asked.started > 0 or (self._settings.snapshot == "initial" and progress.batch == 0)
        return snapshot.number < asked.started or not snapshot.done

    def repairs(self, progress: Progress) -> bool:
        """Return True if a resync of the whole table is requested and has not begun.

        Such a resync repairs the table even if changes were lost.
        """
        begun = progress.snapshot.number if progress.snapshot is not None else 0
        asked = self.asked
        return asked.deletes and not asked.limited and asked.started > max(begun, asked.cancelled)

    def is_outrun(self, progress: Progress) -> bool:
        """Return True if the requested snapshot can never begin.

        This is the case if its number is below the number of the last snapshot in the table's progress.
        """
        snapshot, asked = progress.snapshot, self.asked
        return snapshot is not None and asked.is_asked and asked.started < snapshot.number

    def tell_outrun(self, progress: Progress) -> str:
        """Remove a snapshot request that can never begin, and return the warning for the table's status.

        The last snapshot's number is stored in the requests, so that a new request gets a higher number.
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
        """Return True if a cut at ``bound`` leaves the table out, because its snapshot may have later rows.

        If ``progress`` is None, because the table is not open, returns the result of the last call.
        """
        if progress is not None:
            self._outside = is_outside(progress, bound, loads=self.is_under_way(progress))
        return self._outside

    def goes_on(self, progress: Progress, offsets: TopicOffsets, applied: Mapping[int, int]) -> bool:
        """Return True if the next part of the snapshot can be read now.

        False if no snapshot is due, or if pending changes must be applied first (``waits``). Also False while
        the table reads old records again after a rewind, because they would overwrite the newer rows of the
        part. ``applied``: the applied offset per partition.
        """
        topic_progress = progress.topics.get(offsets.topic)
        if topic_progress is not None and topic_progress.read_again:
            return False
        ends = {number: partition.latest for number, partition in offsets.partitions.items()}
        return self.is_due(progress) and not self.waits(applied, ends)

    def details(self, progress: Progress | None) -> dict[str, Any]:
        """Return the state of the table's snapshot for its status; empty if the table has no snapshot."""
        if progress is None or (progress.snapshot is None and not self.is_due(progress)):
            return {}
        snapshot = progress.snapshot or SnapshotProgress(())
        state = "done" if snapshot.done else "running"
        if self.is_due(progress):
            state = "running"
        elif not snapshot.done:
            state = "paused" if self.asked.rests else "cancelled"
        shown = {"state": state, "number": snapshot.number, "rows": snapshot.rows, "estimate": self._estimate}
        where = snapshot.where if snapshot.number >= self.asked.started else self.asked.where
        if where:
            shown["where"] = " and ".join(str(Bound._make(bound)) for bound in where)
        if snapshot.sweep is not None:
            shown["deletes"] = asdict(snapshot.sweep)
        if state == "running" and self._open:
            shown |= {"state": "waiting", "reason": _OPEN.format(len(self._open))}
        elif state == "running" and self._ahead is not None:
            shown |= {"state": "waiting", "reason": self._ahead.reason}
        return {"snapshot": shown}

    def waits(self, applied: Mapping[int, int], ends: Mapping[int, int]) -> bool:
        """Return True if the snapshot must wait until pending changes are applied.

        If the database has other columns than the applied changes, the snapshot waits until the topic is
        applied to its current end. Then the columns are compared again. If they still differ in the same way,
        the DDL is not in the topic yet, and the snapshot waits for the next change. It also waits for some
        seconds while transactions are open in the source database.

        ``applied``: the applied offset per partition. ``ends``: the topic's current end offsets.
        """
        if self._open and time.monotonic() < self._looks_at:
            return True
        ahead = self._ahead
        if ahead is None:
            return False
        if ahead.catch_up_to is None:
            # These end offsets are from after the comparison of the columns.
            ahead = self._ahead = replace(ahead, catch_up_to=dict(ends))
        if any(applied.get(number, 0) < end for number, end in (ahead.catch_up_to or {}).items()):
            return True
        return ahead.again and ahead.since == applied

    @property
    def looks_again(self) -> bool:
        """Return True if the snapshot waits for open transactions and it is time to check them again."""
        return bool(self._open) and time.monotonic() >= self._looks_at

    def _waits_for_open(self, database: SourceDatabase) -> bool:
        """Return True if transactions are open in the source database, for which the snapshot must wait.

        Their changes may be in Kafka already, although no query shows them. The snapshot checks again some
        seconds later.
        """
        previous, self._open = self._open, database.unresolved(known=self._open)
        self._looks_at = time.monotonic() + _SECONDS
        if self._open and not previous:
            _log.warning(
                "snapshot waits", table=str(self._settings.table), reason=_OPEN.format(len(self._open))
            )
        return bool(self._open)

    def row_does_not_fit(self, part: SnapshotPart, applied: Mapping[int, int]) -> None:
        """Make the snapshot wait for pending changes, because a row of ``part`` did not fit the target.

        The pending changes may contain the DDL that widens the column. ``applied``: the applied offset per
        partition.
        """
        self._ahead = _Ahead(part.gap, True, dict(applied))

    def took(self, part: SnapshotPart, seconds: float) -> None:
        """Record the seconds that a part took. They decide the number of ranges in the next part."""
        settings = self._context.config.source.database
        if settings is not None and part.ranges:
            self._rounds = next_rounds(len(part.ranges), at_once=settings.connections, seconds=seconds)

    def forget_keys(self, before: Progress, after: Progress) -> None:
        """Remove the stored keys of resyncs that are no longer listed in the table's progress.

        As long as a resync is listed, a replay of dead letters needs its keys to know which rows it has read.
        ``before``, ``after``: the progress before and after a part of the snapshot was applied.
        """
        left = {self.asked.keys, *(read.keys for read in after.source_reads)}
        for name in {read.keys for read in before.source_reads} - left:
            if name is not None:
                forget = partial(forget_keys, self._context.store, name)
                self._context.noted(self._settings.table, forget, unless="keys of a resync not removed")

    def next_part(
        self, progress: Progress, plan: DecodePlan, applied: Mapping[int, int]
    ) -> SnapshotPart | None:
        """Return the next part of the snapshot, or None if pending changes must be applied first.

        Queries the database for the table's definition and for the keys at which the ranges end.

        Args:
            progress: The table's progress.
            plan: The table's current decode plan.
            applied: The applied offset per partition.

        Raises:
            ConfigError: no database is configured, it refuses the user, or the table has no key.
            SourceError: the database has no such table.
            SourceUnavailableError: the database does not answer.
            SnapshotRefusedError: the requested snapshot is not possible for this table.
        """
        parts, keys = 0, None
        with open_source_database(self._context.config) as database:
            stored = database.table(self._settings.table)
            self._estimate = stored.rows
            source, gap = source_plan(plan, stored)
            projection, fold = self._settings.projection, plan.rows.shape.fold
            gap = gap._replace(new=tuple(name for name in gap.new if not projection.leaves_out(name, fold)))
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
        """Check that a request for some rows does not replace an unfinished snapshot of the whole table.

        Raises:
            SnapshotRefusedError: the request would replace it, and rows of the table would stay missing.
        """
        asked, snapshot = self.asked, progress.snapshot
        if not asked.limited or (snapshot is not None and snapshot.number >= asked.started):
            return
        begins = snapshot is None and self._settings.snapshot == "initial" and progress.batch == 0
        goes_on = snapshot is not None and not (snapshot.done or snapshot.limited)
        if (begins or goes_on) and asked.cancelled < (snapshot.number if snapshot else 0):
            raise SnapshotRefusedError(_UNFINISHED)

    def _check_positions(self, database: SourceDatabase, progress: Progress) -> None:
        """Check that the database has positions (commit_ts), if the rows of a new snapshot need them.

        Raises:
            SnapshotRefusedError: the rows need positions, but the database has none.
        """
        begun = progress.snapshot.number if progress.snapshot else 0
        if needs_positions(self._context.config, self._settings) and self.asked.started > begun:
            try:
                database.position(since=0)
            except ConfigError as error:
                raise SnapshotRefusedError(error.message) from error

    def _bounds(self, before: SnapshotProgress, plan: DecodePlan, stored: StoredTable) -> tuple[Bound, ...]:
        """Return the bounds of the primary key to which the snapshot is limited; empty for all rows.

        Raises:
            SnapshotRefusedError: a bound's column is not in the key, or its values sort differently in the
                target.
        """
        bounds = from_lists(before.where)
        if not bounds:
            return ()
        self._estimate = None
        if not {bound.column for bound in bounds} <= {*stored.key}:
            raise SnapshotRefusedError(_NO_COLUMN.format(", ".join(stored.key)))
        try:
            # The key's types may have changed since the request. A retry would fail, too.
            checked_bounds(bounds, stored)
        except ConfigError as error:
            raise SnapshotRefusedError(error.message) from error
        if before.sweep is not None and before.after is None and not before.sweep.begun:
            try:
                check_limits(self._context, plan, bounds)
            except ConfigError as error:
                raise SnapshotRefusedError(error.message) from error
        return bounds

    def _keys(self, before: SnapshotProgress, plan: DecodePlan) -> AskedKeys | None:
        """Return the keys that the snapshot is limited to, or None if it has no such limit.

        Raises:
            SnapshotRefusedError: the state store lost the keys, or they have other columns than the table's
                key.
        """
        if before.keys is None:
            return None
        asked = load_keys(self._context.store, before.keys)
        if asked is None:
            raise SnapshotRefusedError(_KEYS_GONE)
        self._estimate = len(asked.keys)
        names = [column.name for column in plan.shape.key_columns]
        if {*names} != {*asked.columns}:
            raise SnapshotRefusedError(_OTHER_KEY.format(", ".join(asked.columns), ", ".join(names)))
        return asked

    def _key_set(
        self,
        asked: AskedKeys,
        plan: DecodePlan,
        stored: StoredTable,
        *,
        after: KeyTexts | None,
        most: int,
    ) -> KeySet:
        """Return the next of the requested keys, converted to values of the source's columns.

        ``after``: the last key that was read, or None. ``most``: maximum number of keys. One query reads the
        rows of all these keys, so that no row is read twice.

        Raises:
            SnapshotRefusedError: the source cannot be queried by keys of the target.
        """
        columns = columns_of_keys(self._context, plan, stored)
        if columns is None:
            raise SnapshotRefusedError(_NO_WAY_BACK)
        left = asked.behind(after)
        keys = AskedKeys(asked.columns, left[:most])
        texts = askable(keys.in_order_of(column.name for column in plan.shape.key_columns), columns)
        last = keys.keys[-1] if len(left) > most else None
        return KeySet(tuple(column.name for column in columns), tuple(texts), last)

    def refuse(self, error: SnapshotRefusedError, progress: Progress) -> str:
        """Remove a snapshot request that is not possible, and return the warning for the table's status."""
        started, snapshot = self.asked.started, progress.snapshot
        before = snapshot.number if snapshot is not None and snapshot.number < started else 0
        begun = snapshot is not None and snapshot.number == started
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
        """Return True if the snapshot must wait because the database has other columns than the changes.

        It always waits until the topic is applied to its end. If the columns differ even then, it depends on
        what the topic can report:

        - The database has new columns only: the snapshot continues.
        - A column was dropped, and the topic has DDL: the snapshot waits, because the DDL always arrives.
        - A column was dropped, and only the rows in the topic show that: the snapshot continues, because such
          a row may never arrive. But if the database has a new column too, the snapshot waits: it may be the
          dropped column under a new name, whose values only come with a later row.
        - A column was dropped, and the topic never shows that: the snapshot continues.

        ``gap``: the columns that differ. ``applied``: the applied offset per partition.
        """
        drops = decoder.recorded_columns.drops
        waits = drops == "ddl" or (drops == "rows" and bool(gap.new))
        previous = self._ahead.gap if self._ahead is not None else self._settled
        again = self._ahead is not None and previous == gap
        if not (gap.lost or gap.new) or (gap == previous and not (gap.lost and waits)):
            self._settled = gap
            return False
        self._ahead = _Ahead(gap, False, dict(applied), again=again)
        return True

    def _before(self, snapshot: SnapshotProgress | None, stored: StoredTable) -> SnapshotProgress:
        """Return the snapshot progress from which the next part continues.

        It is at the beginning of the table if the snapshot is new, or if the table's key or its sort order
        has changed. ``snapshot``: the snapshot in the table's progress, or None. ``stored``: the table's
        definition in the database.
        """
        number = max(self.asked.started, snapshot.number if snapshot else 0)
        if snapshot is None or snapshot.number < number:
            sweep = Sweep() if self.asked.deletes else None
            return SnapshotProgress(
                stored.key,
                number=number,
                sweep=sweep,
                keys=self.asked.keys,
                where=self.asked.where,
                order=stored.order,
            )
        # If the rows are sorted differently, all of them are read and written again. The order does not
        # matter for requested keys, which have their own order, and for the second phase of a resync, which
        # uses hashes.
        by_order = snapshot.keys is None and not (snapshot.sweep is not None and snapshot.sweep.begun)
        same_order = snapshot.order == stored.order or not by_order
        snapshot, before = replace(snapshot, order=stored.order), snapshot.key
        if before == stored.key and same_order:
            return snapshot
        sweep = None if snapshot.sweep is None else Sweep()
        return replace(snapshot, key=stored.key, after=None, rows=0, done=False, number=number, sweep=sweep)


class PartSource(Protocol):
    """Reads a part of a snapshot: rows of the source, or keys that only the target has (``sweep``)."""

    def inputs(self, part: SnapshotPart, attempt: Attempt) -> Inputs:
        """Return what the tasks read. It is read before the batch commits, and possibly more than once."""


@dataclass(frozen=True)
class StoredRows:
    """Reads the rows of a part's key ranges or keys from the source database."""

    def inputs(self, part: SnapshotPart, attempt: Attempt) -> Inputs:
        """Return one input for each range or set of keys."""
        hold, services = attempt.hold, attempt.services
        database, stored = services.context.config.source.database, part.stored
        assert database is not None  # noqa: S101  (the part's bounds are from it)
        decode_plan, _ = source_plan(attempt.decode_plan, stored)
        assert isinstance(decode_plan.decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
        reader = SourceRows(
            database.url.get_secret_value(),
            decode_plan.decoder.stored,
            stored.key,
            stored.key_types,
            at_once=database.connections,
            since=least_position(hold, services),
            constants=stored.constants,
            rows_per_second=database.range_rows_per_second,
            replica=database.replica,
        )
        first = log_offset(hold.progress.batch + 1) if decode_plan.logs else 0
        topic, most = attempt.plan.found.topic, database.chunk_rows
        inputs = tuple(RowInput(topic, n, keys, most, first) for n, keys in enumerate(part.ranges))
        task = RangeTask(inputs, decode_plan)
        if services.history is not None:
            task = replace(task, only=MatchingRows())
        # With cuts, rows that are read again could be newer than the commit_ts that the progress records.
        wish = SinkWish.of(inputs)
        return Inputs(task, reader, wish, volatile=services.context.config.cuts is not None)


def least_position(hold: Hold, services: Services) -> int | None:
    """Return the lowest position (commit_ts) that a part's rows may have, or None if they need none.

    Rows need positions with ``sequence_by: source`` and with ``mode: history``. The position must be above
    the horizon, up to which the target may have removed tombstones (keys of deleted rows). A row with a lower
    position could be a deleted row.
    """
    ordered = services.sequenced or services.history is not None
    return (hold.horizon or 0) + 1 if ordered else None


@dataclass(frozen=True)
class PartJob(ReadingJob):
    """Applies one part of a snapshot.

    The batch reads no records from Kafka.

    Attributes:
        plan: The offsets at which the table's changes continue, as empty ranges.
        part: The part of the snapshot.
        source: Reads the part.
    """

    plan: BatchPlan
    part: SnapshotPart
    source: PartSource = StoredRows()

    def catch_up(self, decoding: Decoding) -> None:
        """Read all DDL in the topic.

        The part's rows are newer than this DDL. So DDL that empties the table must come first.
        """
        decoding.catch_up(None, self.plan.found)

    def rules(self, rules: EventRules) -> EventRules:
        """Return the rules for the batch's events, without the bound of a cut.

        The bound does not apply, because cuts leave out a table with an unfinished snapshot.
        """
        return replace(rules, bound=None)

    def inputs(self, attempt: Attempt) -> Inputs:
        """Return what the tasks read for the part.

        Raises:
            ConfigError: rows that are looked up for it are larger than a task may hold in memory.
        """
        with _limited_ranges(attempt.services.settings.table):
            return self.source.inputs(self.part, attempt)

    def read(self, run: TaskRun, hold: Hold, services: Services) -> TaskResults:
        """Run the tasks.

        Raises:
            ConfigError: a key range is larger than a task may hold in memory.
        """
        with _limited_ranges(services.settings.table):
            return super().read(run, hold, services)

    def accept(self, reduction: Reduction, hold: Hold, services: Services) -> Verdict:  # noqa: ARG002
        """Decide if the part can be applied as it was read.

        If a row does not fit the target's columns, the part waits: pending changes must be applied first,
        because they may change the columns.

        Raises:
            ValueOutOfRangeError: a row does not fit the target's columns, although all changes that were
                pending are applied.
            KeyOrderError: the key or its order has changed in the database.
        """
        # If a row does not fit, the known types of the table may be outdated. Learn them and try again.
        unfit = Missed(reduction.summary, (), reduction.plan.found)
        if reduction.summary.counts.bad and reduction.reads == 1 and services.decoding.learn(unfit):
            return Again()
        check_partitions(reduction, services)
        if reduction.summary.bad_rows:
            return self._unfit(reduction.summary.bad_rows[0], services)
        with open_source_database(services.context.config) as database:
            database.confirm_order(services.settings.table, self.part.stored)
        return Go()

    def _unfit(self, bad: BadRow, services: Services) -> Waits:
        """Let the part wait, unless this is its last try, because the target cannot store one of its rows.

        The row cannot become a dead letter, since it comes from no Kafka record.
        """
        if not self.part.is_last_try:
            return Waits()
        raise ValueOutOfRangeError(
            f"The target cannot store a row of the snapshot ({bad.error}: {bad.reason}). Change the row "
            f"at the source, or {LEAVE_OUT}.",
            table=str(services.settings.table),
        )

    def adjusted(self, batch: ReducedBatch) -> ReducedBatch:
        """Return the batch for the target. In a history, its rows are marked as read from the source."""
        if batch.how.history is None:
            return batch
        return replace(batch, since=None, how=replace(batch.how, reads=True))

    def progress(self, reduction: Reduction, hold: Hold, services: Services) -> Progress:
        """Return the table's progress after the part, with unchanged offsets.

        Raises:
            ConfigError: with cuts, the database has no commit_ts.
            SourceUnavailableError: with cuts, the database does not answer, or its commit_ts is below the
                table's.
        """
        after = next_progress(hold, self.plan, commit_ts=reduction.summary.max_commit_ts)
        after = replace(after, decided=reduction.settled.rows.decided)
        snapshot = self.part.after(reduction.summary.counts.read)
        snapshot = replace(snapshot, seen=_seen(hold, services))
        return replace(after, snapshot=snapshot, source_reads=self._source_reads(after, snapshot, services))

    def _source_reads(
        self, progress: Progress, snapshot: SnapshotProgress, services: Services
    ) -> tuple[SourceRead, ...]:
        """Return the list of snapshots and resyncs in the table's progress, with this part added.

        The list decides which dead letters may be replayed. It is not changed unless the table has ``mode:
        upsert`` and ``sequence_by: kafka``, because other tables do not need it.
        """
        if services.settings.mode != "upsert" or services.sequenced:
            return progress.source_reads
        part = self.part
        settles = snapshot.done and snapshot.sweep is not None
        read = SourceRead(snapshot.number, {}, settles, snapshot.keys, snapshot.where)
        # Rows that wait for a later bound of cuts are read again, from the first such row on.
        offsets = {
            name: {number: partition.low_water_offset for number, partition in topic.partitions.items()}
            for name, topic in progress.topics.items()
        }
        begins = part.before.after is None and not part.sweeps
        return with_part(progress.source_reads, read, offsets, begins=begins)


@contextmanager
def _limited_ranges(table: TableId) -> Iterator[None]:
    """Make a range that is larger than a task may hold in memory an error of the config."""
    try:
        yield
    except RangeTooLargeError as exc:
        # Fewer offsets would not help, because the part has none.
        raise ConfigError(exc.message, table=str(table)) from exc


def _seen(hold: Hold, services: Services) -> int | None:
    """Return the database's commit_ts after a part's rows were read; None if the config has no cuts.

    No row of the part is newer, so cuts at or after this commit_ts can include the table.
    """
    if services.context.config.cuts is None:
        return None
    with open_source_database(services.context.config) as database:
        return database.position(since=hold.progress.commit_ts or 0)
