"""One table's dead letters as a batch: decoded by today's config, put in order, applied.

Under ``sequence_by: source`` the target itself leaves alone what is newer. Under Kafka's order it keeps no
positions, so that all that follows the first letter in its partition, up to what is applied, is read again,
and of the letters' keys the last event wins as in any batch. Reading a suffix again changes no other row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tidesink.errors import AccountingError, SchemaRefusedError, SourceError
from tidesink.sinks.accounting import Account, account_of
from tidesink.sinks.batch.run import Batch, Reduction
from tidesink.sinks.modes import kept_shape
from tidesink.sinks.replay_spark import (
    LetterEvents,
    LetterReader,
    concerning,
    events_that_stay,
    letter_events,
    outcomes,
)
from tidesink.sinks.schema_names import ChangesWaitError
from tidesink.sinks.schema_policy import Pending
from tidesink.sinks.source import translated_read_errors
from tidesink.sinks.summary import Truncate
from tidesink.sinks.targets.base import ApplyResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EMPTIED: Final = (
    "the table was truncated after the first of these letters: what came before is void. Drop the letters "
    "before it (tidesink dlq drop TABLE --below {offset}), then replay the others"
)


class Replayed(NamedTuple):
    """What came of the letters, in events, and the outcome of each as ``DeadLetters.settle`` takes it."""

    account: Account
    outcomes: DataFrame
    version: str


class ReplayBatch(Batch):
    """Runs once; a new object tries again."""

    letters: LetterReader
    count: int

    def take(self, letters: LetterReader, frame: DataFrame, count: int) -> ReplayBatch:
        """Say which letters: their reader, their frame, and how many records they are."""
        self.letters, self.count = letters, count
        self._letters_frame = frame
        return self

    def replay(self) -> Replayed:
        """Apply what the letters and what follows them say of the letters' keys.

        Raises: as ``Batch.run``; SourceError where the table was emptied after a letter, SchemaRefusedError
            where a change of the table's columns waits.
        """
        with translated_read_errors(self._plan.found.topic):
            self._decoding.catch_up(self._plan.ranges, self._plan.found)
            try:
                reduction = self._reduced(self._plan)
            except ChangesWaitError as exc:
                raise self._waits(exc.pending[0]) from exc
        try:
            if reduction.truncates:
                self._refuse(reduction.summary.truncates[0])
            return self._replayed(reduction)
        finally:
            reduction.frame.unpersist()

    def _grouped(self, decoded: DataFrame) -> DataFrame:
        whole = super()._grouped(decoded)
        return concerning(whole, self._letters_frame, super()._grouped(self._decoded_letters()))

    def _cut_at_truncate(self, reduction: Reduction) -> Reduction:
        return reduction

    def _decoded_letters(self) -> DataFrame:
        return self._decoded(self.letters.letters(self._session, self._decoding.apart()))

    def _refuse(self, truncate: Truncate) -> None:
        raise SourceError(
            _EMPTIED.format(offset=truncate.offset),
            topic=truncate.place.topic,
            partition=truncate.place.partition,
            offset=truncate.offset,
        )

    def _replayed(self, reduction: Reduction) -> Replayed:
        decoded = self._decoded_letters()
        events = letter_events(decoded)
        result = self._write(reduction) if reduction.summary.rows else None
        account = self._account(reduction, events, result)
        account.check(table=str(self._settings.table))
        version = result.version if result else ""
        found = outcomes(self._letters_frame, decoded, self._plan.found.topic_id)
        return Replayed(account, found, version)

    def _write(self, reduction: Reduction) -> ApplyResult:
        """Apply the rows in a batch of its own, whose progress reads no further."""
        before = self._hold.progress
        judged = self._judged(self._shape())
        if judged.pending:
            raise self._waits(judged.pending[0])
        progress = replace(before, epoch=self._hold.epoch, batch=before.batch + 1)
        self._around.stop.check()
        self._around.store.record_progress(progress)
        self._hold.table.evolve(kept_shape(judged.given, self._settings))
        result = self._commit(self._reduced_batch(reduction, judged, progress), progress)
        if result.applied + result.stale != reduction.summary.rows:
            raise AccountingError(
                f"{reduction.summary.rows} rows were to be applied and the target counts {result.applied} "
                f"applied and {result.stale} older ones: compare the table with the source, and report this",
                table=str(self._settings.table),
            )
        return result

    def _waits(self, pending: Pending) -> SchemaRefusedError:
        return SchemaRefusedError(
            f"the letters need a change of the table's columns that waits for a person ({pending.change}): "
            "let the worker come to it, and go on with tidesink resume --accept",
            table=str(self._settings.table),
        )

    def _account(self, reduction: Reduction, events: LetterEvents, result: ApplyResult | None) -> Account:
        """``read`` comes from the store of letters, what became of them from the frames and the target."""
        foreign = self._foreign()
        read = self.count + events.events - events.messages
        if self._sequenced:
            found = account_of(
                reduction.summary,
                kafka_records=self.count,
                applied_rows=result.applied if result else 0,
                rejected=events.bad,
                stale_rows=result.stale if result else 0,
            )
            return replace(found, read=read, filtered=found.filtered + foreign)
        stay = events_that_stay(reduction.frame, self._letters_frame)
        others = events.events - events.rows - events.bad
        return Account(read, stay, events.rows - stay, others + foreign, events.bad)

    def _foreign(self) -> int:
        """Letters that name another table today."""
        apart = self._decoding.apart()
        if apart is None:
            return 0
        return self.letters.letters(self._session, None).where(apart.foreign).count()
