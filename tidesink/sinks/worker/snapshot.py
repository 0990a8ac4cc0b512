"""A table's snapshot: rows of the source's database, in ranges of its key, while its changes are applied.

Of one that deletes, a second phase takes away what the target alone has (``worker.sweep``). One of some keys
(``worker.asked_keys``) reads these in place of ranges.

A batch is either changes or a part of the snapshot. Rows and progress of both are committed together, and the
progress says which key was read last. The law (ADR 32): a part is read after the offsets at which the
table's changes go on were fixed, and committed with them. So it shows at least what the changes before them
made of its rows, and each later change is a whole row, or a delete, that is applied after it.

In the source's order a row stands at a position of the database that was taken before the row was read. In a
history it is a version from that position on, as of which it was read.
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
    "a snapshot reads a table in ranges of a key, and the source's table has neither a primary key nor a "
    "unique key without NULLs, nor row ids of TiDB, which a partitioned table has not for all of it: set "
    "snapshot: never for it, and load its rows some other way"
)

_LOST: Final = (
    "the database has no column {} any more, and the changes that were applied still have: it goes on when "
    "they tell"
)
_RENAMED: Final = (
    "The database no longer has column {0}, which the applied changes have, and has column {1}, which they "
    "do not have. The snapshot continues once the topic has a change with the new columns. If no row of the "
    "table changes by itself, update one row in the source database."
)
_NEW: Final = "the database has a column {} that the changes have not yet: those that wait go first"
# A part is to take about so long: the changes of its table wait for it, and it ends with a commit.
_SECONDS: Final = 5.0
# Between two looks at transactions that are open.
_PAUSE: Final = 0.1
_TOO_LARGE: Final = (
    f"a range of the snapshot has more than {MOST_BYTES >> 20} MiB, which a task does not hold at once: "
    "lower source.database.chunk-rows"
)
_UNFINISHED: Final = (
    "its snapshot is not over, which would not go on then: wait until it is, or cancel it (tidesink snapshot "
    "cancel)"
)
_OPEN: Final = (
    "{} prepared XA transactions are open at the source (XA RECOVER). Their changes are in Kafka, and no "
    "query shows them yet. Rows are read once they are committed or rolled back"
)
_REORDERED: Final = "the order of the key changed in the database while rows were read by it"
_OUTRUN: Final = (
    "The snapshot or resync that was asked for did not begin. Its number ({}) is not above that of the last "
    "one ({}): the state store was lost or brought back from a backup, and the clock of the machine that "
    "asked may be behind. Run the command again"
)
_KEYS_GONE: Final = "the state store has not the keys that it is of: ask again"
_OTHER_KEY: Final = (
    "the keys that were asked for are of ({}), and the table's key at the target is ({}): ask again, with a "
    "new report of tidesink diff"
)
_NO_COLUMN: Final = "the key of the source's table is ({}), which --where is not of: ask again"
_NO_WAY_BACK: Final = (
    "the source cannot be asked for a key of the target, as its values have no exact way back or no index "
    "serves them: repair the whole table (tidesink resync without --differing)"
)


class SnapshotRefusedError(ConfigError):
    """A snapshot that was asked for is none that the table can have; what was under way goes on."""


class KeyOrderError(SourceError):
    """The order of the key changed while rows were read by it: some may have been passed over."""


@dataclass(frozen=True)
class SnapshotPart:
    """Some ranges of a table, which one batch reads; or keys of the target. ``before``: how far it was.

    ``keys``: of a part of the target's keys, those that are looked up; None: all of it.
    ``gap``: in what the database's columns differ. ``is_last_try``: a row that does not fit is an error.
    ``sweep_parts``: of the last ranges, the parts of the phase that comes then; 0: none does.
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
        """Whether it is of the target's keys."""
        return self.before.sweep is not None and self.before.sweep.begun

    def after(self, rows: int) -> SnapshotProgress:
        """How far the snapshot is once so many rows of the ranges, or deletes, are applied."""
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
    """The source's database, asked by the driver.

    A range has ``rows`` rows at most, and about ``bytes`` by the database's estimate of a row. ``at_once``
    ranges are read at once. A batch of more ranges than these has ``records`` rows at most.
    """

    connection: Connection
    rows: int
    bytes: int
    at_once: int
    records: int

    def table(self, table: TableId) -> StoredTable:
        """A table, which has a key.

        Raises:
            ConfigError: it has none, or the database refuses the user.
            SourceError: there is no such table.
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
        """See that rows were read in the order in which their ranges were cut.

        Raises: as ``table``, and:
            KeyOrderError: the key has another order by now.
        """
        found = self.table(table)
        if (found.key, found.order) != (stored.key, stored.order):
            raise KeyOrderError(_REORDERED, table=str(table))

    def unresolved(self, *, known: frozenset[str] = frozenset()) -> frozenset[str]:
        """Of the transactions whose changes no query shows yet, those that stay so for some seconds.

        A change that was in Kafka before the call is visible afterwards where there are none. Transactions
        that begin meanwhile do not count: their changes come to Kafka later. ``known``: these did not end
        before, and are not waited for again.

        Raises:
            ConfigError: the user may not see whether there are any.
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
        """A commit_ts up to which all that is read later shows every change; ``since`` or later.

        Raises:
            ConfigError: the database has none.
            SourceUnavailableError: it does not answer, or reads as of a moment before ``since``.
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
        """The ranges that a batch reads behind a key, within bounds, in so many rounds.

        Raises: as ``table``.
        """
        rows, most = self.rows_of(stored), self.most_ranges(stored, rounds)
        return key_ranges(self.connection, table, stored, after=after, rows=rows, most=most, where=where)

    def most_ranges(self, stored: StoredTable, rounds: int) -> int:
        """How many ranges a batch reads in so many rounds."""
        return max(self.at_once, min(self.at_once * rounds, self.records // self.rows_of(stored)))

    def rows_of(self, stored: StoredTable) -> int:
        """The rows of a range of a table."""
        size = max(1, stored.bytes // max(1, stored.rows))
        return max(1, min(self.rows, self.bytes // size))


def next_rounds(ranges: int, *, at_once: int, seconds: float) -> int:
    """How many rounds of ranges the next part reads, by how long the last one took."""
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
    """All ranges of a table of the source, within bounds. Raises: as ``SourceDatabase.table``."""
    found: list[KeyRange] = []
    with open_source_database(config, as_of=as_of) as database:
        while not found or found[-1].up_to is not None:
            after = found[-1].up_to if found else None
            found += database.ranges(table, stored, after=after, where=where)
    return tuple(found)


@contextmanager
def open_source_database(config: Config, *, as_of: int | None = None) -> Iterator[SourceDatabase]:
    """A connection to the source's database, which reads as of a commit_ts, or as of now.

    Raises:
        ConfigError: none is configured, it refuses the user, or cannot read as of a moment.
        SourceUnavailableError: it does not answer.
    """
    settings = config.source.database
    if settings is None:
        raise ConfigError(f"a table's snapshot is not over, and {OPTION} is not set", key=OPTION)
    at_once, batch = settings.connections, config.batch
    size, rows = batch.max_bytes // at_once, settings.chunk_rows
    if settings.range_rows_per_second is not None:
        rows = min(rows, max(1, int(settings.range_rows_per_second * _SECONDS)))
    url = settings.url.get_secret_value()
    with connected(url, as_of=as_of, replica=settings.replica) as connection:
        yield SourceDatabase(connection, rows, size, at_once, batch.max_records)


@dataclass(frozen=True)
class _Ahead:
    """The database's columns are not those of the changes that were applied; or a row does not fit.

    ``unfit``: the latter. ``since``: the offsets that were applied when it was found. ``goal``: where the
    topic ended behind it; None: not looked up yet. ``again``: it was found a second time, with all changes up
    to an earlier goal applied.
    """

    gap: ColumnGap
    unfit: bool
    since: Mapping[int, int]
    goal: Mapping[int, int] | None = None
    again: bool = False

    @property
    def reason(self) -> str:
        """What is waited for."""
        if self.unfit:
            return "a row does not fit the columns as they are by now: the changes that wait go first"
        if self.gap.lost and self.gap.new:
            return _RENAMED.format(", ".join(self.gap.lost), ", ".join(self.gap.new))
        if self.gap.lost:
            return _LOST.format(", ".join(self.gap.lost))
        return _NEW.format(", ".join(self.gap.new))


class Snapshot:
    """When a table's next batch is a part of its snapshot, and which part. Used by one thread at a time."""

    def __init__(self, context: WorkerContext, settings: TableConfig) -> None:
        self._context = context
        self._settings = settings
        self._read_last = False
        self._estimate: int | None = None
        self._ahead: _Ahead | None = None
        self._rounds = 1
        self._outside = False
        # Columns that the database alone has, though all changes of the time when it was found are applied.
        self._settled = ColumnGap()
        # The key's order when it was first seen, of a progress of an earlier version, which does not have it.
        self._first_order: str | None = None
        # Prepared transactions that are waited for, and until when nobody looks whether they ended.
        self._open = frozenset[str]()
        self._looks_at = 0.0
        # What is asked of it.
        self.asked = SnapshotControl()

    def is_due(self, progress: Progress) -> bool:
        """Whether a snapshot is to go on, or to begin; with ``initial`` a table's first batch begins one."""
        return not self.asked.rests and self.is_under_way(progress)

    def is_under_way(self, progress: Progress) -> bool:
        """Whether a snapshot is not over, or is to begin; also one that rests."""
        asked, found = self.asked, progress.snapshot
        if asked.cancelled >= max(asked.started, found.number if found else 0):
            return False
        if found is not None and found.number >= asked.started and found.keys != asked.keys and found.keys:
            return False  # the store was lost, and with it the keys
        if found is None:
            return asked.started > 0 or (self._settings.snapshot == "initial" and progress.batch == 0)
        return found.number < asked.started or not found.done

    def repairs(self, progress: Progress) -> bool:
        """Whether a resync of the whole table was asked for and has not begun: no lost change matters."""
        begun = progress.snapshot.number if progress.snapshot is not None else 0
        asked = self.asked
        return asked.deletes and not asked.limited and asked.started > max(begun, asked.cancelled)

    def is_outrun(self, progress: Progress) -> bool:
        """Return True if the request's number is below the last snapshot's, so that it would never begin."""
        found, asked = progress.snapshot, self.asked
        return found is not None and asked.is_asked and asked.started < found.number

    def tell_outrun(self, progress: Progress) -> str:
        """What was asked for is asked for no more; what the table's status says of it.

        Asked for again it has a number that is above that of the last one.
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
        """Whether a cut at a bound leaves the table out; without progress, what was known of it before."""
        if progress is not None:
            self._outside = is_outside(progress, bound, loads=self.is_under_way(progress))
        return self._outside

    def goes_on(self, progress: Progress, found: TopicOffsets, applied: Mapping[int, int]) -> bool:
        """Whether a part can be read before changes that are waited for; ``applied`` as of ``waits``.

        Its rows are of now: later than changes that are read again.
        """
        known = progress.topics.get(found.topic)
        if known is not None and known.read_again:
            return False
        ends = {number: at.latest for number, at in found.partitions.items()}
        return self.is_due(progress) and not self.waits(applied, ends)

    def details(self, progress: Progress | None) -> dict[str, Any]:
        """What the status shows; nothing of a table without a snapshot."""
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
        """Whether changes go first, by the offsets that are applied and those at which the topic ends.

        Until the topic has been read as far as it went when the columns were seen; then the database is
        asked again. Where it lacks columns still, their DDL is not in the topic yet: what comes goes first.
        While transactions are open they go first, too, for some seconds.
        """
        if self._open and time.monotonic() < self._looks_at:
            return True
        ahead = self._ahead
        if ahead is None:
            return False
        if ahead.goal is None:
            # A look behind the one at the columns.
            ahead = self._ahead = replace(ahead, goal=dict(ends))
        if any(applied.get(number, 0) < end for number, end in (ahead.goal or {}).items()):
            return True
        return ahead.again and ahead.since == applied

    @property
    def looks_again(self) -> bool:
        """Whether it is time to see whether open transactions have ended."""
        return bool(self._open) and time.monotonic() >= self._looks_at

    def _waits_for_open(self, database: SourceDatabase) -> bool:
        """Whether changes that are applied may be invisible in the database; it is asked again later."""
        known, self._open = self._open, database.unresolved(known=self._open)
        self._looks_at = time.monotonic() + _SECONDS
        if self._open and not known:
            _log.warning(
                "snapshot waits", table=str(self._settings.table), reason=_OPEN.format(len(self._open))
            )
        return bool(self._open)

    def row_does_not_fit(self, part: SnapshotPart, applied: Mapping[int, int]) -> None:
        """A row of a part may be of columns that the changes have not yet: they go first."""
        self._ahead = _Ahead(part.gap, True, dict(applied))

    def took(self, part: SnapshotPart, seconds: float) -> None:
        """Know how long a part took, by which the next one is sized."""
        settings = self._context.config.source.database
        if settings is not None and part.ranges:
            self._rounds = next_rounds(len(part.ranges), at_once=settings.connections, seconds=seconds)

    def forget_keys(self, before: Progress, after: Progress) -> None:
        """Remove the keys of resyncs that say nothing of dead letters any more, once a part is applied."""
        left = {self.asked.keys, *(one.keys for one in after.source_reads)}
        for name in {one.keys for one in before.source_reads} - left:
            if name is not None:
                forget = partial(forget_keys, self._context.store, name)
                self._context.noted(self._settings.table, forget, unless="keys of a resync not removed")

    def comes_next(self, progress: Progress, *, waiting: bool) -> bool:
        """Whether the next batch is a part: every second one while changes wait."""
        if not self.is_due(progress):
            return False
        self._read_last = not (self._read_last and waiting)
        return self._read_last

    def next_part(
        self, progress: Progress, plan: DecodePlan, applied: Mapping[int, int]
    ) -> SnapshotPart | None:
        """What the next batch reads; asks the database for a few keys. None: it ``waits`` for changes.

        ``plan`` is the table's as it stands, ``applied`` the offsets up to which its changes are applied.

        Raises:
            ConfigError: no database is configured, it refuses the user, or the table has no key.
            SourceError: the database has no such table.
            SourceUnavailableError: it does not answer.
            SnapshotRefusedError: what is asked for cannot be.
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
            # Asked behind the offsets at which the table's changes go on, and before its rows.
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
        """Refuse one of some rows in place of one of all that is not over.

        Raises:
            SnapshotRefusedError: it is.
        """
        asked, found = self.asked, progress.snapshot
        if not asked.limited or (found is not None and found.number >= asked.started):
            return
        begins = found is None and self._settings.snapshot == "initial" and progress.batch == 0
        goes_on = found is not None and not (found.done or found.limited)
        if (begins or goes_on) and asked.cancelled < (found.number if found else 0):
            raise SnapshotRefusedError(_UNFINISHED)

    def _check_positions(self, database: SourceDatabase, progress: Progress) -> None:
        """Refuse one that was asked for and has rows that need positions, which the database has not."""
        begun = progress.snapshot.number if progress.snapshot else 0
        if needs_positions(self._context.config, self._settings) and self.asked.started > begun:
            try:
                database.position(since=0)
            except ConfigError as error:
                raise SnapshotRefusedError(error.message) from error

    def _bounds(self, before: SnapshotProgress, plan: DecodePlan, stored: StoredTable) -> tuple[Bound, ...]:
        """The bounds that the rows of a snapshot are within.

        Raises:
            SnapshotRefusedError: the key has not their columns any more, or the target compares otherwise.
        """
        found = from_lists(before.where)
        if not found:
            return ()
        self._estimate = None
        if not {one.column for one in found} <= {*stored.key}:
            raise SnapshotRefusedError(_NO_COLUMN.format(", ".join(stored.key)))
        try:
            # The key's types may be others than when it was asked for, which no later try mends.
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
        """The keys that a snapshot is of; None where it is of all.

        Raises:
            SnapshotRefusedError: they are gone, or of another key than the table has.
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
        """The next of the keys, so many at most: of one query, so that no row is found twice.

        Raises:
            SnapshotRefusedError: the source cannot be asked for them.
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
        """What was asked for is asked for no more; what the table's status says of it."""
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
        return f"the resync that was asked for is refused: {error.message}"

    def _is_ahead(self, gap: ColumnGap, decoder: TableDecoder, applied: Mapping[int, int]) -> bool:
        """Whether changes go first; a difference that they did not settle stays, or is waited for.

        DDL that drops a column comes for certain. A row that shows the drop may never come, so the database
        is believed once the topic was read to its end. A new column beside the dropped one may be the same
        under another name, with values that only a later row brings: then a row is waited for.
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
        """How far the snapshot is: nowhere, if it is a new one, or the table has another key by now."""
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
        # Another key, or order of it, orders the rows differently: they are read and written again. Keys that
        # were asked for are in an order of their own, and a sweep goes by hashes.
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
    """Applies a part of a snapshot; its plan has the offsets at which the table's changes go on.

    Runs once; a new object tries again.
    """

    def __init__(self, *parts: Any, part: SnapshotPart, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._part = part

    def _outcome(self) -> BatchOutcome:
        self._context.failpoints.reach("planned")
        # The rows are behind all DDL that was sent: one that empties the table must not come after them.
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
            # A row that does not fit may be of a type that is known better by now.
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
        """Rows of the database are no changes that could wait: their table is outside of cuts."""
        return replace(super()._rules(), bound=None)

    @property
    def _checkpoints(self) -> bool:
        """With cuts no row is read again behind the commit_ts that was asked after the rows."""
        return super()._checkpoints or self._context.config.cuts is not None

    def _range_task(self, plan: BatchPlan) -> RangeTask:
        """The part's ranges as tasks, by the table's plan as it stands."""
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
        """The first position that rows may have; None where they need none, in Kafka's order.

        Of a row that was read up to the horizon nothing would tell whether it was deleted since.
        """
        ordered = self._sequenced or self._history is not None
        return (self._hold.horizon or 0) + 1 if ordered else None

    def _reduced_batch(self, reduction: Reduction, schema_decision: SchemaDecision) -> ReducedBatch:
        found = super()._reduced_batch(reduction, schema_decision)
        return found if self._history is None else replace(found, reads=True, since=None)

    def _topic_progress(self, plan: BatchPlan, _summary: BatchSummary) -> TopicProgress:
        """Nothing of the topic was read: the ranges whose numbers the summary has are of the key."""
        return super()._topic_progress(plan, BatchSummary())

    def _table_plan(self) -> DecodePlan:
        """The table's plan as it stands."""
        number, marks = self._hold.progress.batch + 1, self._settings.deletes == "soft"
        return self._decoding.columns().for_batch(number, self._rules(), marks_deletes=marks)

    def _database(self) -> DatabaseSettings:
        found = self._context.config.source.database
        assert found is not None  # noqa: S101  (the part's bounds are from it)
        return found

    def _refuse_bad(self, summary: BatchSummary) -> None:
        """Stop at a row that the target cannot hold: there is no record to put aside.

        The first time a change of the column's type may be ahead in the topic, and goes first.
        """
        if summary.bad_records:
            if not self._part.is_last_try:
                raise ChangesWaitError(())
            bad = summary.bad_records[0]
            raise ValueOutOfRangeError(
                f"a row of the snapshot cannot be a row of the target ({bad.error}: {bad.reason}): change "
                "the row at the source, or leave the column out (except_column_list)",
                table=str(self._settings.table),
            )

    def _next_progress(self, reduction: Reduction) -> Progress:
        progress = super()._next_progress(reduction)
        snapshot = replace(self._part.after(reduction.summary.read), seen=self._seen())
        return replace(progress, snapshot=snapshot, source_reads=self._source_reads(progress, snapshot))

    def _source_reads(self, progress: Progress, snapshot: SnapshotProgress) -> tuple[SourceRead, ...]:
        """Return the source reads with this part; unchanged unless upsert goes by Kafka's order."""
        if self._settings.mode != "upsert" or self._sequenced:
            return progress.source_reads
        part = self._part
        settles = snapshot.done and snapshot.sweep is not None
        read = SourceRead(snapshot.number, {}, settles, snapshot.keys, snapshot.where)
        # What waits for another bound is read again from the first row that waits.
        offsets = {
            name: {number: at.low_water_offset for number, at in topic.partitions.items()}
            for name, topic in progress.topics.items()
        }
        begins = part.before.after is None and not part.sweeps
        return with_part(progress.source_reads, read, offsets, begins=begins)

    def _seen(self) -> int | None:
        """With cuts, a commit_ts that no row which was read is later than; asked behind the rows.

        Raises:
            ConfigError: the database has none.
            SourceUnavailableError: it does not answer, or another cluster does.
        """
        if self._context.config.cuts is None:
            return None
        with open_source_database(self._context.config) as database:
            return database.position(since=self._hold.progress.commit_ts or 0)
