"""Runs ``tidesink diff``: compares tables in the target with the source database, or with another pipeline's
copies.

``diff.comparison`` describes how rows are compared while they change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, cast

from tidesink.config import Config
from tidesink.errors import TidesinkError, ValueOutOfRangeError
from tidesink.events import TableId, folding
from tidesink.sinks.batch.source import RecordReader, fit_shuffle, unpacked_ranges
from tidesink.sinks.batch.source_rows import SourceDecoder, source_plan
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.diff.comparison import (
    ComparedSides,
    DiffOptions,
    Keep,
    TableComparison,
    TableDiff,
    at_target_alone,
)
from tidesink.sinks.diff.copies import CopyComparison
from tidesink.sinks.diff.table_copy import REFUSED, TableCopy, Tell
from tidesink.sinks.runtime.context import StopFlag, WorkerContext, raise_on_interrupt, signals_kept
from tidesink.sinks.runtime.observers import Listeners
from tidesink.sinks.snapshots.parts import all_ranges, open_source_database
from tidesink.sinks.snapshots.source_keys import (
    KeyedRows,
    WantedKeys,
    compared_columns,
    key_columns,
    key_types,
    limits_of,
    source_task,
)
from tidesink.sinks.spark.session import session_of
from tidesink.sinks.worker.run import assembled
from tidesink.source_database.key_bounds import checked_bounds
from tidesink.typemap.target_schema import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.sinks.decode.plans import DecodePlan
    from tidesink.sinks.diff.comparison import ChooseCut
    from tidesink.sinks.kafka.offsets import TopicOffsets
    from tidesink.sinks.targets.base import TableReader
    from tidesink.sinks.targets.cuts import CutTarget
    from tidesink.sinks.targets.lake.cuts import Cut, CutLog
    from tidesink.source_database.base import StoredTable

# If there are at most this many keys, the source is queried by key. For more, reading all rows is faster.
_FEW: Final = 10_000
# Also if there is at most one key per this many rows of the table.
_FEW_OF: Final = 20
_OPEN: Final = (
    "{} prepared XA transactions are open at the source (`XA RECOVER` lists them). Their changes are in "
    "Kafka, but no query shows them yet. Commit or roll back these transactions, and run the command again."
)


def diff(
    config: Config,
    tables: Sequence[TableId],
    options: DiffOptions,
    *,
    tell: Tell,
    keep: Keep | None = None,
    goes_on: bool = False,
    against: Config | None = None,
) -> Iterator[TableDiff]:
    """Compare tables in the target with the source, one after the other, and yield the result of each.

    Args:
        config: The pipeline's config.
        tables: The tables to compare.
        options: The rows to compare, and the limits of the comparison.
        tell: Receives progress messages for the user.
        keep: Receives every differing key, or None.
        goes_on: True to yield a result with ``refused`` for a table that cannot be compared, and continue
            with the next table. False to raise the error.
        against: The config of another pipeline. Its copies of the tables are compared instead of the source.

    Raises:
        ConfigError: a table cannot be compared as configured, or no worker applies its pending changes.
        TidesinkError: the source, the target, Kafka or the state store cannot be read.
    """
    with signals_kept(), ExitStack() as opened:
        contexts = _contexts(config, against, opened)
        cut = None if options.cut is None else _cut(contexts[0], options.cut, tell)
        raise_on_interrupt()
        for table in tables:
            with ExitStack() as stack:
                comparison = _comparison(contexts, cut, table, stack, tell, options, keep)
                try:
                    result = comparison.run()
                except TidesinkError as error:
                    # An error that may pass, such as an outage, does not make the table incomparable.
                    if not goes_on or error.remedy not in ("fix", "stop", "reject"):
                        raise
                    result = TableDiff(table, refused=error.message.removeprefix(REFUSED))
                yield result


def _cut(context: WorkerContext, choose: ChooseCut, tell: Tell) -> tuple[CutLog, Cut]:
    """Return the log of the cuts in a lake, and the cut that ``choose`` returns.

    Raises:
        ConfigError: the lake has no suitable cut.
    """
    log = cast("CutLog", cast("CutTarget", context.target).cut_log(context.config.pipeline))
    log.session.conf.set("spark.sql.session.timeZone", "UTC")  # digests convert key values to text
    cut = choose(log.cuts())
    tell(f"{context.config.pipeline}: the cut {cut.commit_ts} of {cut.time.isoformat()}")
    return log, cut


def _comparison(
    contexts: Sequence[WorkerContext],
    cut: tuple[CutLog, Cut] | None,
    table: TableId,
    stack: ExitStack,
    tell: Tell,
    options: DiffOptions,
    keep: Keep | None,
) -> TableComparison:
    """Return the object that compares a table.

    With one of ``contexts``, it compares the table with the source, as of ``cut`` if given. With two, it
    compares the table with its copy in the second pipeline.
    """
    if cut is not None:
        log, chosen = cut
        then = CutCopy(contexts[0], table, stack, tell, log=log, cut=chosen)
        return CutComparison(then, replace(options, lag=0), keep, as_of=chosen.commit_ts)
    copies = [TableCopy(context, table, stack, tell, options.waits, options.patience) for context in contexts]
    if len(copies) == 1:
        return SourceComparison(copies[0], options, keep)
    own, other = copies
    other.called = f"{other.context.config.pipeline}: "
    return CopyComparison(own, options, keep, other=other)


def _contexts(config: Config, against: Config | None, opened: ExitStack) -> list[WorkerContext]:
    """Open config, target and state store of one or both pipelines, with one Spark session for both."""
    if against is not None:
        opened.enter_context(session_of(config, against))
    configs = (config,) if against is None else (config, against)
    contexts = (
        opened.enter_context(assembled(pipeline_config, (), StopFlag())) for pipeline_config in configs
    )
    # Only workers may send heartbeats.
    return [replace(context, listeners=Listeners(())) for context in contexts]


@dataclass
class SourceComparison(TableComparison):
    """Compares a table in the target with the source database."""

    plan: DecodePlan = field(init=False)
    stored: StoredTable = field(init=False)
    # The commit_ts as of which the source is read, or None for its current rows.
    as_of: int | None = None
    # False once a key of the target was not a valid value of the source's columns: then all rows are read.
    by_key: bool = field(default=True, init=False)

    def _opened(self) -> ComparedSides:
        plan = self.own.open()
        with open_source_database(self.own.context.config, as_of=self.as_of) as database:
            self.stored = database.table(self.own.table)
        self.plan, gap = source_plan(plan, self.stored)
        fit_shuffle(self.own.reader.session, self.stored.rows)
        assert isinstance(self.plan.decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
        read = {source_column.recorded.name for source_column in self.plan.decoder.columns}
        names = tuple(self.own.reader.columns())
        fold = folding(names, (column.name for column in self.plan.shape.columns))
        present = {*map(fold, names)}
        sources, not_compared = self.plan.rows.value_sources, [*gap.new]
        chosen = []
        for column in self.plan.shape.columns:
            own = sources.get(column.name)
            if column.key or (own in read and fold(column.name) in present):
                chosen.append(column)
            elif own is not None:
                not_compared.append(column.name)
        not_compared += at_target_alone(self.own.reader, self.plan, not_compared)
        columns = compared_columns(self.own.reader, chosen)
        bounds = checked_bounds(self.options.where, self.stored)
        limits = limits_of(self.plan, bounds, key_types(columns))
        share = self.options.share_of(self.stored.rows)
        return ComparedSides(tuple(chosen), columns, tuple(not_compared), limits, share)

    def _first(self, sides: ComparedSides) -> tuple[DataFrame, bool]:
        self.tell(f"{self.own.table}: reading the source, about {self.stored.rows:,} rows")
        source = self.own.stored(lambda: self._source(sides))
        self._confirm_order()
        return source, self.own.await_applied(self.own.ends())

    def _source(self, sides: ComparedSides, wanted: DataFrame | None = None, count: int = 0) -> DataFrame:
        """Return a frame with the digests of the source's rows.

        ``wanted``: the keys whose rows are needed, for which detailed digests are made; None for all rows.
        ``count``: number of these keys.
        """
        from tidesink.sinks.spark.digests import digests, once, sampled, within

        task, reader = self._source_task(sides, wanted, count)
        frame = unpacked_ranges(self.own.reader.session, task, reader).where("_op IN ('upsert', 'bad')")
        values = (f"after.{quoted(column.name)}" for column in sides.shape_columns)
        named = frame.selectExpr(*values, "_op = 'bad' AS bad")
        # The rows are filtered once more, as the target's are. The source's query may count an invalid date
        # such as 0000-00-00 as within the bounds, and the target stores it as NULL.
        named = within(named, sides.columns, sides.limits)
        rows = sampled(digests(named, sides.columns, **self.details(wanted is not None)), sides.share)
        return once(rows) if isinstance(reader, KeyedRows) else rows

    def _source_task(
        self, sides: ComparedSides, wanted: DataFrame | None, count: int
    ) -> tuple[RangeTask, RecordReader]:
        """Return the Spark task that reads the source's rows, and its reader.

        It queries by key if there are few keys in ``wanted`` and the source can be queried by them. Otherwise
        it reads all rows. ``count``: number of keys in ``wanted``.
        """
        config, plan, stored = self.own.context.config, self.plan, self.stored
        asked = self.by_key and wanted is not None and count <= max(_FEW, stored.rows // _FEW_OF)
        columns = key_columns(plan, stored.key, key_types(sides.columns)) if asked else None
        keys = WantedKeys(columns, wanted) if wanted is not None and columns is not None else None
        where = tuple(limit.bound for limit in sides.limits)
        ranges = partial(all_ranges, config, self.own.table, stored, where, as_of=self.as_of)
        topic = self.own.topic
        return source_task(config, plan, stored, topic, keys or ranges, as_of=self.as_of)

    def _again(self, sides: ComparedSides, candidates: DataFrame, count: int) -> tuple[DataFrame, bool]:
        self._await_visible()
        rows = self._source_again(sides, candidates, count)
        self._confirm_order()
        if rows.isEmpty():
            return rows, True
        time.sleep(self.options.lag)
        return rows, self.own.await_applied(self.own.ends())

    def _await_visible(self) -> None:
        """Wait until queries of the source show all changes that are in Kafka now.

        Raises:
            ConfigError: transactions stay open whose changes may be in Kafka already.
        """
        if self.as_of is not None:
            return
        with open_source_database(self.own.context.config) as database:
            if left := database.unresolved():
                raise self.own.refused(_OPEN.format(len(left)))

    def _confirm_order(self) -> None:
        """Check that the source's key still sorts in the same order as when the comparison began.

        Raises:
            KeyOrderError: the key or its order has changed.
            ConfigError: the table has no key, or the database refuses the user.
            SourceError: the database has no such table.
            SourceUnavailableError: the database does not answer.
        """
        with open_source_database(self.own.context.config, as_of=self.as_of) as database:
            database.confirm_order(self.own.table, self.stored)

    def _source_again(self, sides: ComparedSides, candidates: DataFrame, count: int) -> DataFrame:
        """Read the rows of the differing keys (``candidates``) from the source again.

        Returns the candidates with the new digests. Queries the source by key, or reads all its rows if
        queries by key are not possible.
        """
        from tidesink.sinks.spark.digests import looked_at_source

        def look() -> DataFrame:
            return looked_at_source(candidates, self._source(sides, candidates, count))

        try:
            return self.own.stored(look)
        except ValueOutOfRangeError:
            if not self.by_key:
                raise
        # A key of the target is not a valid value of the source's columns, so all rows are read from now on.
        self.by_key = False
        return self.own.stored(look)


@dataclass
class CutCopy(TableCopy):
    """A table in a lake as of a cut (all tables as of one source transaction). A cut has no pending changes.

    ``log``: the log of the lake's cuts. ``cut``: the cut.
    """

    log: CutLog = field(kw_only=True)
    cut: Cut = field(kw_only=True)

    def check_begun(self) -> None:
        """Do nothing, because every table in a cut has finished its snapshot."""

    def await_applied(self, ends: TopicOffsets) -> bool:  # noqa: ARG002
        """Return True without waiting: all changes up to the cut were applied when it was published."""
        return True

    def _reader(self, plan: DecodePlan) -> TableReader:
        from tidesink.sinks.targets.lake.cuts import CutReader

        for cut_table in self.cut.tables:
            if cut_table.table == self.table:
                return CutReader(self.log, cut_table, plan.shape)
        raise self.refused(
            f"The cut {self.cut.commit_ts} does not contain the table. Choose a newer cut that contains the "
            "table."
        )


@dataclass
class CutComparison(SourceComparison):
    """Compares a table in a cut with the source as of the cut's commit_ts, so that no row changes meanwhile.

    Therefore a key that differs in the first look is different. The second look only finds which of its
    columns differ.
    """

    looks: ClassVar[int] = 0

    def run(self) -> TableDiff:
        """Compare the two sides, and return the result with the cut's commit_ts."""
        return replace(super().run(), as_of=self.as_of)
