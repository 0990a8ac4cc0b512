"""The second phase of a resync (the sweep): deletes rows that exist only in the target.

The keys of the target table are divided into N parts by their hashes. For each part, one batch looks up the
part's keys in the source database, and deletes the target's rows whose keys the source does not have. A
resync that is limited to some keys, or to bounds of the key, looks up only these keys.

Rule for correctness (ADR 37), as for the rows of a snapshot: the offsets at which the table continues to read
Kafka are fixed before the source is queried, and the deletes are committed together with the table's
progress. With ``sequence_by: source``, the deletes are stored with a position in the source's log that was
read before the query.

The deletes are applied like deletes from a topic: Spark tasks receive the keys as records, and ``KeyDecoder``
turns each record into a delete event. The keys have the target's types, so they need no conversion from text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidesink.codecs.batch import ChangeTable, DecodedBatch
from tidesink.errors import LEAVE_OUT, ValueOutOfRangeError
from tidesink.events import Op, TableSchema
from tidesink.sinks.batch.source import checkpointed, fit_shuffle, unpacked_ranges
from tidesink.sinks.batch.source_rows import (
    KeyShare,
    NumberedDecoder,
    changes_of,
    numbered_records,
    rows_of,
    source_plan,
)
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.target_rows import TargetRows
from tidesink.sinks.jobs.base import Attempt, Inputs, SinkWish
from tidesink.sinks.snapshots.parts import SnapshotPart, all_ranges, least_position, open_source_database
from tidesink.sinks.snapshots.source_keys import (
    WantedKeys,
    compared_columns,
    key_columns,
    key_types,
    limits_of,
    no_resync,
    open_target_reader,
    source_task,
)
from tidesink.sinks.spark.attempts import task_attempt
from tidesink.sinks.spark.errors import Reporting
from tidesink.sinks.spark.session import in_session
from tidesink.source_database.key_bounds import from_lists
from tidesink.typemap.target_schema import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.tasks import Work
    from tidesink.sinks.decode.plans import DecodePlan
    from tidesink.sinks.spark.digests import ComparedColumn

_UNREADABLE: Final = (
    "The resync cannot continue: a row of the source has a value that the target cannot store, so the row's "
    f"key cannot be compared. Change the row at the source, or {LEAVE_OUT}. "
    "To end the resync, run `tidesink snapshot cancel TABLE`."
)


@dataclass(frozen=True)
class KeyDecoder(NumberedDecoder):
    """Converts records into delete events. Each record holds a key of the target, in the target's types."""

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """Return one delete event per record, for the key in the record."""
        count, keys = records.num_rows, rows_of(records)
        rows = pa.table(changes_of(records, Op.DELETE, key=keys, row=keys.type))
        tables = (ChangeTable(self.table, TableSchema(self.table, ()), None, rows),) if count else ()
        return DecodedBatch(tables, (), (), count, 0)


def deletes_plan(plan: DecodePlan) -> DecodePlan:
    """Return the decode plan for records with keys of the target, which ``KeyDecoder`` decodes.

    ``plan``: the table's decode plan.
    """
    shape = plan.shape
    own = {column.name: column.name for column in shape.key_columns}
    rows = TargetRows(shape, target=shape, sources=own, metadata=plan.rows.metadata)
    return replace(plan, rows=rows, decoder=KeyDecoder(plan.decoder), row_filter=None, ignores_nulls=False)


@dataclass(frozen=True)
class KeyTask:
    """A Spark task that passes its share of the target's keys to ``work``, as records.

    ``names``: names of the key columns. ``wanted``: the input, with the number of any task. ``commit_ts``:
    position (commit_ts) of the deletes, or None if they do not need a position.
    """

    names: tuple[str, ...]
    wanted: KeyShare
    work: Work
    commit_ts: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results of ``work`` on the keys in ``batches``, whose only column has them as structs."""
        wanted = replace(self.wanted, number=task_attempt().number)
        yield from self.work(wanted, self._records(batches, wanted))

    def _records(self, batches: Iterable[pa.RecordBatch], wanted: KeyShare) -> Iterator[pa.RecordBatch]:
        start = 0
        for batch in batches:
            keys = pa.StructArray.from_arrays(batch.column(0).flatten(), names=[*self.names])
            yield numbered_records(wanted, start, keys, commit_ts=self.commit_ts)
            start += batch.num_rows


@dataclass(frozen=True)
class TargetKeys:
    """Reads keys of the target as records.

    ``names``: names of the key columns. ``keys``: a frame with the keys as structs in the column ``value``.
    ``commit_ts``: position (commit_ts) of the deletes, or None if they do not need a position.
    """

    names: tuple[str, ...]
    keys: DataFrame = field(repr=False)
    commit_ts: int | None = None

    def over(self, session: SparkSession, ranges: Sequence[KeyShare], work: Work, ddl: str) -> DataFrame:
        """Return a frame with the results of ``work`` on the keys. ``ddl``: the frame's schema."""
        task = KeyTask(self.names, ranges[0], work, self.commit_ts)
        return in_session(self.keys.select("value"), session).mapInArrow(Reporting(task), ddl)


@dataclass(frozen=True)
class AbsentKeys:
    """Reads the keys of a part that exist in the target but not in the source. They are deleted."""

    def inputs(self, part: SnapshotPart, attempt: Attempt) -> Inputs:
        """Look up the part's keys in the source, and return the keys that it does not have.

        Raises:
            ValueOutOfRangeError: a row of the source cannot be stored in the target, so its key is unknown.
        """
        plan = attempt.decode_plan
        deletes, topic = deletes_plan(plan), attempt.plan.found.topic
        names = tuple(column.name for column in deletes.shape.key_columns)
        look_up = _LookUp(part, attempt, _position(attempt))
        reader = TargetKeys(names, look_up.only_at_target(), look_up.position)
        task = RangeTask((KeyShare(topic),), deletes)
        volatile = attempt.services.context.config.cuts is not None
        return Inputs(task, reader, SinkWish.of(attempt.plan.ranges), volatile=volatile)


def _position(attempt: Attempt) -> int | None:
    """Return the source's current position (commit_ts), or None if the deletes do not need a position."""
    since = least_position(attempt.hold, attempt.services)
    if since is None:
        return None
    with open_source_database(attempt.services.context.config) as database:
        return database.position(since=since)


@dataclass(frozen=True)
class _LookUp:
    """Looks up the keys of one part in the source.

    ``position``: the source's position (commit_ts) before it is queried, or None if the deletes do not need a
    position.
    """

    part: SnapshotPart
    attempt: Attempt
    position: int | None

    def only_at_target(self) -> DataFrame:
        """Return a frame with the keys of this part that exist in the target but not in the source.

        Raises:
            ValueOutOfRangeError: a row of the source cannot be stored in the target, so its key is unknown.
        """
        from tidesink.sinks.spark.digests import HASH, keys_of, named_keys, within

        plan, services, part = self.attempt.decode_plan, self.attempt.services, self.part
        key, missing = plan.shape.key_columns, no_resync(services.settings.table)
        reader = self.attempt.opened.enter_context(
            open_target_reader(services.context, plan.shape, missing=missing)
        )
        columns = compared_columns(reader, key)
        sweep = part.before.sweep
        assert sweep is not None  # noqa: S101  (else there is no such batch)
        fit_shuffle(reader.session, part.stored.rows // sweep.parts)
        source, _ = source_plan(plan, part.stored)
        limits = limits_of(source, from_lists(part.before.where), key_types(columns))
        rows = within(reader.rows(key), columns, limits)
        target_keys = keys_of(rows, columns, part=sweep.done, parts=sweep.parts)
        if part.keys is not None:
            texts = [*part.keys.in_order_of(column.name for column in key)]
            target_keys = target_keys.join(
                named_keys(reader.session, texts, columns).select(*HASH), [*HASH], "left_semi"
            )
        keys = self._stored(target_keys)
        try:
            there = self._at_source(reader.session, columns, keys, by_key=True)
        except ValueOutOfRangeError:
            # The source cannot be queried by a key of the target, and a retry would fail, too. Read all rows.
            there = self._at_source(reader.session, columns, keys, by_key=False)
        if there.where("bad").count():
            raise ValueOutOfRangeError(_UNREADABLE, table=str(services.settings.table))
        return keys.join(there.select(*HASH), [*HASH], "left_anti")

    def _at_source(
        self, session: SparkSession, columns: tuple[ComparedColumn, ...], keys: DataFrame, *, by_key: bool
    ) -> DataFrame:
        """Return a frame with the hashes of the keys that the source has.

        ``columns``: the key columns, with the types in which keys of source and target are compared.
        ``keys``: the keys of the target. ``by_key``: True to look up only these keys. If False, or if the
        source cannot be queried by these keys, all rows of the source are read.
        """
        from tidesink.sinks.spark.digests import HASH, digests

        config, stored = self.attempt.services.context.config, self.part.stored
        plan, _ = source_plan(self.attempt.decode_plan, stored)
        asked = key_columns(plan, stored.key, key_types(columns)) if by_key else None
        ranges = partial(all_ranges, config, self.attempt.services.settings.table, stored)
        wanted = ranges if asked is None else WantedKeys(asked, keys)
        topic = self.attempt.plan.found.topic
        task, source = source_task(config, plan, stored, topic, wanted, since=self.position)
        named = unpacked_ranges(session, task, source).where("_op IN ('upsert', 'bad')")
        values = (f"after.{quoted(column.name)}" for column in columns)
        rows = digests(named.selectExpr(*values, "_op = 'bad' AS bad"), columns)
        return self._stored(rows.select(*HASH, "bad"))

    def _stored(self, frame: DataFrame) -> DataFrame:
        """Store the rows of a frame in Spark until the batch ends, so that they are computed only once."""
        return checkpointed(frame, self.attempt.opened, table=str(self.attempt.services.settings.table))
