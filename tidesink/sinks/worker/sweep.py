"""The second phase of a resync: deletes rows that exist only in the target.

Part i of N looks up in the source the target's keys whose hash belongs to i, or the keys that a user named. A
batch deletes the rows of keys that the source does not have. The law (ADR 37) is that of a snapshot's rows:
the offsets at which the table's changes continue are fixed before the source is queried, and deletes and
progress are committed together. With ``sequence_by: source``, deletes get a position of the database that was
read before the source was queried.

These deletes use the path of deletes from the topic: tasks receive the keys as records, and a decoder of
their own passes them through. The keys have the target's types, so that no key is rebuilt from texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from tidesink.codecs.batch import ChangeTable, DecodedBatch
from tidesink.errors import ValueOutOfRangeError
from tidesink.events import Op, TableSchema
from tidesink.sinks.batch.run import BatchOutcome
from tidesink.sinks.batch.source import checkpointed, fit_shuffle, unpacked_ranges
from tidesink.sinks.batch.source_rows import (
    NumberedDecoder,
    changes_of,
    numbered_records,
    rows_of,
    source_plan,
)
from tidesink.sinks.batch.target_rows import TargetRows
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.spark.errors import Reporting
from tidesink.sinks.spark.payloads import task_number
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.worker.snapshot import SnapshotBatch, all_ranges, open_source_database
from tidesink.sinks.worker.source_keys import (
    WantedKeys,
    compared_columns,
    key_columns,
    key_types,
    limits_of,
    no_resync,
    open_target_reader,
    source_task,
)
from tidesink.source_database.key_bounds import from_lists
from tidesink.typemap.target_schema import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.decoders import DecodePlan
    from tidesink.sinks.batch.run import BatchPlan
    from tidesink.sinks.batch.tasks import Work
    from tidesink.sinks.spark.digests import ComparedColumn

_UNREADABLE: Final = (
    "A row of the source cannot be a row of the target, so its key cannot be looked up. Change the row at "
    "the source, or leave the column out (except_column_list). `tidesink snapshot cancel` ends the resync."
)


@dataclass(frozen=True)
class KeyDecoder(NumberedDecoder):
    """Decodes keys of the target, in its types, as deletes."""

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """Return a delete for each key."""
        count, keys = records.num_rows, rows_of(records)
        rows = pa.table(changes_of(records, Op.DELETE, key=keys, row=keys.type))
        tables = (ChangeTable(self.table, TableSchema(self.table, ()), None, rows),) if count else ()
        return DecodedBatch(tables, (), (), count, 0)


def deletes_plan(plan: DecodePlan) -> DecodePlan:
    """Return the plan for deletes whose keys are the target's own."""
    shape = plan.shape
    own = {column.name: column.name for column in shape.key_columns}
    rows = TargetRows(shape, target=shape, sources=own, metadata=plan.rows.metadata)
    return replace(plan, rows=rows, decoder=KeyDecoder(plan.decoder), row_filter=None, ignores_nulls=False)


@dataclass(frozen=True)
class KeyTask:
    """The code of a Spark task for its share of the keys. Each key is a record."""

    names: tuple[str, ...]
    wanted: FetchRange
    work: Work
    commit_ts: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the result of the work for the keys, which are a struct in the only column."""
        # Each task has a range of its own.
        wanted = self.wanted._replace(partition=task_number())
        yield from self.work(wanted, self._records(batches, wanted))

    def _records(self, batches: Iterable[pa.RecordBatch], wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        start = 0
        for batch in batches:
            keys = pa.StructArray.from_arrays(batch.column(0).flatten(), names=[*self.names])
            yield numbered_records(wanted, start, keys, commit_ts=self.commit_ts)
            start += batch.num_rows


@dataclass(frozen=True)
class TargetKeys:
    """Returns keys of the target as records; a ``RecordReader`` that ignores the requested ranges.

    ``keys``: a frame with the keys in the column ``value``, as ``names``. ``commit_ts``: time of the deletes
    in the source's order.
    """

    names: tuple[str, ...]
    keys: DataFrame = field(repr=False)
    commit_ts: int | None = None

    def over(self, session: SparkSession, ranges: Sequence[FetchRange], work: Work, ddl: str) -> DataFrame:
        """Return the result of ``work`` for the keys."""
        task = KeyTask(self.names, ranges[0], work, self.commit_ts)
        return in_session(self.keys.select("value"), session).mapInArrow(Reporting(task), ddl)


class _Asked(NamedTuple):
    """Keys of the target to look up in the source, and the columns by which they are compared.

    ``position``: the source's position before it is queried.
    """

    plan: DecodePlan
    topic: str
    columns: tuple[ComparedColumn, ...]
    keys: DataFrame
    position: int | None


class SweepBatch(SnapshotBatch):
    """Applies a part of the second phase. Runs once; a retry needs a new object."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._kept = ExitStack()

    def _outcome(self) -> BatchOutcome:
        with self._kept:
            return super()._outcome()

    def _range_task(self, plan: BatchPlan) -> RangeTask:
        """Return the task with the keys that the source lacks; reads target and source."""
        table_plan = self._table_plan()
        deletes = deletes_plan(table_plan)
        names = tuple(column.name for column in deletes.shape.key_columns)
        position = self._position()
        only = self._only_at_target(table_plan, plan.found.topic, position)
        self._reader = TargetKeys(names, only, position)
        return RangeTask.of(
            [OffsetRange(plan.found.topic, 0, 0, 1)], "", deletes, self._row_sink(plan, deletes)
        )

    def _position(self) -> int | None:
        """Return the position at which missing keys are deleted; None in Kafka's order."""
        since = self._since()
        if since is None:
            return None
        with open_source_database(self._context.config) as database:
            return database.position(since=since)

    def _only_at_target(self, plan: DecodePlan, topic: str, position: int | None) -> DataFrame:
        """Return the part's keys that exist only in the target."""
        from tidesink.sinks.spark.digests import HASH, keys_of, named_keys, within

        key = plan.shape.key_columns
        missing = no_resync(self._settings.table)
        reader = self._kept.enter_context(open_target_reader(self._context, plan.shape, missing=missing))
        columns = compared_columns(reader, key)
        sweep = self._part.before.sweep
        assert sweep is not None  # noqa: S101  (else there is no such batch)
        fit_shuffle(reader.session, self._part.stored.rows // sweep.parts)
        source, _ = source_plan(plan, self._part.stored)
        limits = limits_of(source, from_lists(self._part.before.where), key_types(columns))
        rows = within(reader.rows(key), columns, limits)
        found = keys_of(rows, columns, part=sweep.done, parts=sweep.parts)
        if self._part.keys is not None:
            texts = [*self._part.keys.in_order_of(one.name for one in key)]
            found = found.join(named_keys(reader.session, texts, columns).select(*HASH), [*HASH], "left_semi")
        keys = self._stored(found)
        asked = _Asked(plan, topic, columns, keys, position)
        try:
            there = self._at_source(reader.session, asked, by_key=True)
        except ValueOutOfRangeError:
            # A key at the target is not a value of the source's columns, so a retry would fail, too.
            there = self._at_source(reader.session, asked, by_key=False)
        if there.where("bad").count():
            raise ValueOutOfRangeError(_UNREADABLE, table=str(self._settings.table))
        return keys.join(there.select(*HASH), [*HASH], "left_anti")

    def _at_source(self, session: SparkSession, asked: _Asked, *, by_key: bool) -> DataFrame:
        """Return the hashes of keys in the source: at least those of the requested keys."""
        from tidesink.sinks.spark.digests import HASH, digests

        config, stored = self._context.config, self._part.stored
        plan, _ = source_plan(asked.plan, stored)
        columns = key_columns(plan, stored.key, key_types(asked.columns)) if by_key else None
        wanted = WantedKeys(columns, asked.keys) if columns is not None else None
        ranges = partial(all_ranges, config, self._settings.table, stored)
        since = asked.position
        task, source = source_task(
            config, plan, stored, asked.topic, wanted=wanted, ranges=ranges, since=since
        )
        named = unpacked_ranges(session, task, source).where("_op IN ('upsert', 'bad')")
        values = (f"after.{quoted(one.name)}" for one in asked.columns)
        found = digests(named.selectExpr(*values, "_op = 'bad' AS bad"), asked.columns)
        return self._stored(found.select(*HASH, "bad"))

    def _stored(self, frame: DataFrame) -> DataFrame:
        """Store a frame's current rows."""
        return checkpointed(frame, self._kept, table=str(self._settings.table))
