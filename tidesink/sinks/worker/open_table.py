"""Opens one table: learns its columns from its topic, and claims it at the target."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import structlog

from tidesink.config import TableConfig
from tidesink.errors import ConfigError, StaleProgressError, StateStoreError
from tidesink.events import TableId
from tidesink.sinks.batch.source import WorkerReader
from tidesink.sinks.decode.filtering import check_condition
from tidesink.sinks.decode.open import open_decoding
from tidesink.sinks.decode.parts import DecodingParts
from tidesink.sinks.decode.schema_source import Decoding
from tidesink.sinks.jobs.base import BatchOutcome, Hold
from tidesink.sinks.kafka.offsets import TopicOffsets, topic_progress
from tidesink.sinks.laws.modes import first_shape
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.control import Pauses, check_not_restored
from tidesink.sinks.schema_changes.decisions import KnownColumns
from tidesink.sinks.state.progress import Progress, TopicProgress
from tidesink.sinks.targets.base import SequencedTable, TargetTable
from tidesink.sinks.worker.continuity import Continuity
from tidesink.sinks.worker.counters import TableCounters, Tombstones
from tidesink.sinks.worker.starts import Start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.decode.plans import DecodePlan

_log = structlog.get_logger("tidesink.worker")


class OpenTable:
    """One table that the worker opens and closes, with its progress and the decoding of its topic.

    Used by one thread at a time.

    Attributes:
        topic: The topic of the table's changes.
        table: The table.
        settings: The table's config.
        start: The table's start in its topic (the setting ``start``).
        counters: The table's counters. A claim of the table adds what identifies this worker.
        pauses: The reasons why the table is paused. A claim checks the faults among them.
        hold: The table at the target, claimed for this worker, with its progress. None while it is closed.
        decoding: Decodes the topic's records. None until the table is opened the first time, and before its
            columns are learned again.
        tombstones: Removes old tombstones of the table; None if the target stores no tombstones.
        continuity: Checks that no record of the topic was lost since the table was opened.
        was_opened: True if the table was opened in this run.
        awaits_record: True while the table's columns are unknown, because the topic has no record after the
            start.
    """

    def __init__(
        self, context: WorkerContext, topic: str, table: TableId, counters: TableCounters, pauses: Pauses
    ) -> None:
        """Create the object. The table is not opened yet."""
        self.topic = topic
        self.table = table
        self.settings = context.config.table_config(table)
        self.start = Start.of(context, topic, self.settings)
        self.hold: Hold | None = None
        self.decoding: Decoding | None = None
        self.tombstones: Tombstones | None = None
        self.continuity = Continuity(context, topic, self.settings)
        self.was_opened = self.awaits_record = False
        self._context = context
        self._session: SparkSession | None = None
        self.counters = counters
        self.pauses = pauses

    def session(self) -> SparkSession:
        """Return the Spark session of the table's batches. Starts Spark if it does not run."""
        spark = self._context.spark.session()
        if self._session is None:
            self._session = spark.newSession()
        return self._session

    @property
    def progress(self) -> Progress | None:
        """The table's progress, or None if the table is not open."""
        return self.hold.progress if self.hold is not None else None

    @property
    def committed(self) -> Progress:
        """The progress of the open table. Must only be called while the table is open."""
        assert self.hold is not None  # noqa: S101  (opened before)
        return self.hold.progress

    @property
    def topic_progress(self) -> TopicProgress | None:
        """The table's progress in its topic. None if the table is not open, or nothing was applied."""
        return self.hold.progress.topics.get(self.topic) if self.hold is not None else None

    def stored_progress(self) -> TopicProgress | None:
        """Load the table's progress in its topic after its last batch from the state store.

        None if the state store does not have it or does not answer.
        """
        context, counters = self._context, self.counters
        try:
            counters.resume(context, self.table)
            progress = context.store.progress_of_batch(context.config.pipeline, self.table, counters.batch)
        except StateStoreError:
            return None
        return progress.topics.get(self.topic) if progress is not None else None

    def note_start(self, offsets: TopicOffsets) -> None:
        """Resolve and store the setting ``start: latest`` at once, before more records arrive."""
        start = self.start
        if self.hold is not None or not start.moves_with_time or start.is_stored(offsets):
            return
        with suppress(StateStoreError):  # the next look tries again
            start.settle(offsets)

    def is_replaced(self, offsets: TopicOffsets) -> bool:
        """Return True if the topic was replaced before any of its records was applied.

        The start must then be resolved again.
        """
        return self.topic_progress is None and self.start.is_other_topic(offsets)

    def try_open(self, offsets: TopicOffsets) -> bool:
        """Open the table. Return False if it cannot be opened without a first record.

        The topic may have no record after the table's start, so that its columns are unknown.

        Raises:
            TidesinkError: the table cannot be opened (``open``).
        """
        try:
            self.open(offsets)
        except ConfigError as exc:
            if not self.start.offsets or self.start.has_records(offsets):
                raise
            # The columns are unknown until a record arrives.
            _log.info("table waits for a record behind its start", table=str(self.table), reason=exc.message)
            self.awaits_record = True
            return False
        self.awaits_record = False
        self.was_opened = True
        self.continuity = Continuity(self._context, self.topic, self.settings)
        return True

    def open(self, offsets: TopicOffsets) -> Hold:
        """Open the table with retries, if it is not open, and return it.

        Raises:
            ConfigError: the table's columns are not known, or the config does not fit the table.
            AccountingError: the event counts of an earlier batch did not add up, and no user accepted that.
            StaleProgressError: another worker took over the table, or it was restored from a backup.
            TargetError: the target refuses the table.
            SourceError: the topic cannot be read.
        """
        if self.hold is None:
            self.hold = self._context.retry(self.table).call(lambda: self._open(offsets))
        return self.hold

    def _open(self, offsets: TopicOffsets) -> Hold:
        """Resolve the setting ``start``, learn the table's columns, and open the table at the target.

        If the table's progress then shows that the start is wrong, the start is corrected and the table is
        opened again.
        """
        self.start.settle(offsets)
        hold = self._open_at_start(offsets)
        if not hold.progress.topics and self.start.is_stale():
            # The table was removed and is loaded again. The stored start is that of the previous table.
            hold.table.close()
            self.decoding = None
            self.start.begin(offsets)
            return self._open_at_start(offsets)
        progress = hold.progress.topics.get(self.topic)
        partitions = progress.partitions if progress is not None else {}
        if progress is not None and self.start.lower(
            {n: partition.low_water_offset for n, partition in partitions.items()}
        ):
            hold.table.close()
            self.decoding = None
            return self._open_at_start(offsets)
        return hold

    def _open_at_start(self, offsets: TopicOffsets) -> Hold:
        context = self._context
        if self.decoding is None:
            self.decoding = open_decoding(decoding_parts(context), self.topic, self.table)
        self.decoding.prepare(offsets, self.start.offsets)
        hold, self.tombstones = _opened(context, self.decoding, self.settings, self.counters, self.pauses)
        return hold

    def check_topic_name(self) -> None:
        """Check that the open table's rows are from the topic that the config names.

        Raises:
            ConfigError: they are from another topic.
        """
        if self.hold is not None:
            topic_progress(self.hold.progress, self.topic)

    def take(self, outcome: BatchOutcome) -> None:
        """Update the table's progress after a batch, and remove old tombstones if that is due."""
        if self.hold is None:
            return
        self.hold = replace(self.hold, progress=outcome.progress)
        if self.hold.known is not None and self.decoding is not None:
            self.hold.known.applied(self.decoding, outcome.progress)
        if self.tombstones is not None:
            self.tombstones.collect_if_due(outcome.progress, self.topic)
            self.hold = replace(self.hold, horizon=self.tombstones.horizon)

    def columns(self, offsets: TopicOffsets) -> DecodePlan:
        """Return the decode plan for rows that are newer than all records, such as rows of a snapshot.

        ``offsets``: the topic's current offsets. DDL before them is read first.
        """
        assert self.decoding is not None  # noqa: S101  (opened before)
        self.decoding.catch_up(None, offsets)
        return self.decoding.columns()

    def forget_columns(self) -> None:
        """Learn the table's columns anew when it is opened the next time."""
        self.decoding = None

    def close(self) -> None:
        """Close the table at the target, if it is open."""
        if self.hold is not None:
            self.hold.table.close()
            self.hold = None


def decoding_parts(context: WorkerContext) -> DecodingParts:
    """Return the parts with which a worker finds a table's columns."""
    return DecodingParts(
        context.config,
        context.store,
        context.registry,
        context.topics,
        WorkerReader(context.source, context.spark),
        lambda row_filter, shape: check_condition(row_filter, shape, context.spark.new_session()),
        context.retry,
        context.noted,
        context.stop.check,
    )


def _opened(
    context: WorkerContext, decoding: Decoding, settings: TableConfig, counters: TableCounters, pauses: Pauses
) -> tuple[Hold, Tombstones | None]:
    """Open the table at the target and claim it for this worker. Close it again if the claim fails.

    Returns the open table with its progress (``Hold``), and the object that removes its old tombstones. The
    latter is None if the target stores no tombstones (keys of deleted rows).

    Raises:
        AccountingError: the event counts of an earlier batch did not add up, and no user accepted that.
        ConfigError: the config has cuts, but records were applied to the table before cuts were configured.
        StaleProgressError: another worker took over the table, or it was restored from a backup.
        TargetError: the target refuses the table.
    """
    shape = first_shape(decoding.columns().shape, settings)
    pipeline = context.config.pipeline
    table = context.target.open_table(shape, pipeline=pipeline, delete_mode=settings.deletes)
    try:
        hold, tombstones = _claimed(context, table, settings.table, counters, pauses)
        if context.config.source.has_commit_positions:
            check_bounded(hold.progress)
    except BaseException:
        table.close()
        raise
    return hold, tombstones


def _claimed(
    context: WorkerContext, table: TargetTable, name: TableId, counters: TableCounters, pauses: Pauses
) -> tuple[Hold, Tombstones | None]:
    """Claim an open table for this worker, so that other workers can no longer commit to it.

    The claim increases the table's epoch, a number that each commit must have. Returns the open table with
    its progress (``Hold``), and the object that removes its old tombstones. The latter is None if the target
    stores no tombstones (keys of deleted rows).

    Raises:
        AccountingError: the event counts of an earlier batch did not add up, and no user accepted that.
        StaleProgressError: another worker took over the table, or it was restored from a backup.
    """
    pipeline, settings = context.config.pipeline, context.config.table_config(name)
    # Must be read before the claim: if the new epoch is not above the status's epoch, the table at the target
    # is a new one, or was restored.
    before, location = context.store.status_of(pipeline, name), context.place_of(name)
    pauses.check_law(before, location)
    claim = table.claim()
    counters.claimed(claim.epoch, before)
    progress = table.committed()
    if progress != claim.progress:
        raise StaleProgressError(
            "The table's progress in the target changed while this worker took over the table, so another "
            "worker writes to it. Run only one worker for each table.",
            table=str(name),
        )
    check_not_restored(context.store, progress, location, life=counters.life)
    counters.resume(context, name)
    fresh = Progress(name, pipeline, claim.epoch, 0, sequence_by=settings.sequence_by)
    current = progress if progress is not None else fresh
    counters.stands(current, location)
    tombstones = _tombstones(table, settings)
    horizon = tombstones.horizon if tombstones else None
    columns = KnownColumns(context.store, current, settings.projection)
    current = replace(current, sequence_by=settings.sequence_by)
    return Hold(table, claim.epoch, current, horizon=horizon, known=columns), tombstones


def _tombstones(table: TargetTable, settings: TableConfig) -> Tombstones | None:
    if settings.sequence_by != "source" or settings.mode != "upsert":
        return None
    retention = settings.tombstone_retention if settings.deletes == "hard" else None
    return Tombstones(cast(SequencedTable, table), retention)


def check_bounded(progress: Progress) -> None:
    """Check that no record was applied to a table while the config had no cuts.

    Raises:
        ConfigError: records were applied without cuts, so the source position of the table's rows is unknown.
    """
    if progress.topics and progress.bound is None:
        raise ConfigError(
            f"{progress.table} was read without cuts, so its position in the source's log is unknown, and a "
            "cut could show a part of a transaction. Remove cuts from the config. Or load the table again "
            "under cuts: remove it at the target, or choose another target.path.",
            table=str(progress.table),
        )
