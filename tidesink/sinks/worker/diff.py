"""Whether a table at the target is equal to its source, while both change (``tidesink diff``).

The law (ADR 33). A *look* at a key reads its row at the source (s), then takes note of where the topic ends,
waits until the target has applied all before that, and reads the row at the target (t). A first look reads
all rows; only keys whose s and t differ are looked at again:

- t is the s of this look, or of the next one: the key is equal.
- s and t are those of the look before, and differ: the key differs, once ``LOOKS`` looks say so.
- Else the key is changing, and is looked at again; after ``MOST_LOOKS`` it counts as unsettled.

The topic may be late: between s and the end that is taken note of lies ``lag``, within which each change of
the source has to come to the topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tidesink.config import Config
from tidesink.config.table_checks import OWN_PREFIX
from tidesink.config.targets import SqlSettings
from tidesink.errors import ConfigError, TidesinkError, ValueOutOfRangeError
from tidesink.events import TableId, fold_name
from tidesink.sinks.batch.context import StopFlag, WorkerContext, raise_on_interrupt, signals_kept
from tidesink.sinks.batch.observers import ALIVE_SECONDS, Listeners, is_alive, seconds_since_beat
from tidesink.sinks.batch.source import RecordReader, checkpointed, fit_shuffle, unpacked_ranges
from tidesink.sinks.batch.source_rows import SourceDecoder, source_plan
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets
from tidesink.sinks.schema_sources.open import open_decoding
from tidesink.sinks.state.progress import Progress, TableStatus
from tidesink.sinks.targets.base import TableReader
from tidesink.sinks.worker.run import assembled
from tidesink.sinks.worker.snapshot import all_ranges, open_source_database
from tidesink.sinks.worker.source_keys import (
    KeyedRows,
    WantedKeys,
    compared_columns,
    key_columns,
    key_types,
    limits_of,
    open_target_reader,
    source_task,
)
from tidesink.source_database.key_bounds import Bound, checked_bounds
from tidesink.typemap.target_schema import ShapeColumn, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from tidesink.sinks.batch.decoders import DecodePlan
    from tidesink.sinks.spark.digests import ComparedColumn, Limit, Verdict
    from tidesink.source_database.base import StoredTable


# So many looks after the first have to agree with the one before, until a key differs.
LOOKS: Final = 2
MOST_LOOKS: Final = 6
_POLL_SECONDS: Final = 0.5
# So many keys are asked for one by one, or up to one of so many rows; to read all rows takes less for more.
_FEW: Final = 10_000
_FEW_OF: Final = 20

_REFUSED: Final = "the table cannot be compared: "

Kind = Literal["different", "only_at_source", "only_at_target"]


@dataclass(frozen=True)
class DiffOptions:
    """``shown``: so many differing keys are shown of a table; ``values``: with their values.

    ``waits``: for changes that are not applied yet. ``lag``: seconds within which a change of the source is
    in its topic. ``patience``: seconds for which a worker may leave alone a table that it is not at; None:
    longer than a table rests by the config. ``where``: bounds of the source's key, as they are parsed.
    ``sample``: of about so many rows; None: of all.
    """

    shown: int = 20
    values: bool = False
    waits: bool = True
    lag: float = 10.0
    patience: float | None = None
    where: tuple[Bound, ...] = ()
    sample: int | None = None


class Difference(NamedTuple):
    """One key whose rows differ. ``values``: of each column that does, the source's and the target's text."""

    kind: Kind
    key: Mapping[str, str | None]
    columns: tuple[str, ...] = ()
    values: Mapping[str, tuple[str | None, str | None]] | None = None


@dataclass(frozen=True)
class TableDiff:
    """What came of one table. ``unsettled``: keys that kept changing, or whose changes were not waited for.

    ``unreadable``: rows of the source that cannot be rows of the target. ``at_source`` and ``at_target`` are
    those of the first look. ``not_compared``: columns of either side. ``refused``: why it was not compared.
    """

    table: TableId
    at_source: int = 0
    at_target: int = 0
    equal: int = 0
    different: int = 0
    only_at_source: int = 0
    only_at_target: int = 0
    unsettled: int = 0
    unreadable: int = 0
    not_compared: tuple[str, ...] = ()
    shown: tuple[Difference, ...] = ()
    refused: str | None = None

    @property
    def differs(self) -> bool:
        """Whether some key is known to differ, or a row has no place at the target."""
        return bool(self.different or self.only_at_source or self.only_at_target or self.unreadable)


Tell = Callable[[str], None]
Keep = Callable[[TableId, Difference], None]


def diff(
    config: Config,
    tables: Sequence[TableId],
    options: DiffOptions,
    *,
    tell: Tell,
    keep: Keep | None = None,
    goes_on: bool = False,
) -> Iterator[TableDiff]:
    """Compare tables with their source, one after the other.

    ``tell`` hears what is done, ``keep`` is given every key that differs. ``goes_on``: a table that cannot be
    compared is reported as refused, and the others are compared.

    Raises:
        ConfigError: a table cannot be compared as it is configured, or no worker applies what waits for it.
        TidesinkError: a side, Kafka or the state store cannot be asked.
    """
    with signals_kept(), assembled(config, (), StopFlag()) as context:
        raise_on_interrupt()
        # A sign of life is a worker's.
        quiet = replace(context, listeners=Listeners(()))
        for table in tables:
            with ExitStack() as kept:
                comparison = TableComparison(quiet, table, options, kept, tell=tell, keep=keep)
                try:
                    found = comparison.run()
                except TidesinkError as error:
                    # What may pass is no matter of this table.
                    if not goes_on or error.remedy not in ("fix", "stop"):
                        raise
                    found = TableDiff(table, refused=error.message.removeprefix(_REFUSED))
                yield found


def topic_of(status: TableStatus | None) -> str | None:
    """The topic that a table's changes were read from; None where none was."""
    topic = (status.details if status else {}).get("topic")
    return None if topic is None else str(topic)


def obstacle(config: Config, table: TableId, topic: str | None) -> str | None:
    """Why the config does not let a table be compared; None where it does."""
    settings = config.table_config(table)
    if "rows" not in config.target.features:
        return f"a target of type {config.target.type} forwards changes, and keeps no rows"
    if config.cuts is not None and isinstance(config.target, SqlSettings):
        return "with cuts a database has the rows of the last one, and not all that is applied"
    if settings.mode != "upsert":
        return f"mode: {settings.mode} keeps what the source has no more, so that its rows are others"
    if settings.ignore_null_updates:
        return "ignore_null_updates keeps values that are NULL at the source"
    if topic is not None and not config.reads_topic(topic):
        return f"its changes came by the topic {topic}, which source.topics does not name any more"
    return None


def refusal(table: TableId, reason: str) -> ConfigError:
    """What to say of a table that cannot be compared."""
    return ConfigError(_REFUSED + reason, table=str(table))


@dataclass(frozen=True)
class Side:
    """How both sides of a table are read: the columns that are compared, in the order of the shape."""

    plan: DecodePlan
    stored: StoredTable
    shape_columns: tuple[ShapeColumn, ...]
    columns: tuple[ComparedColumn, ...]
    not_compared: tuple[str, ...]
    limits: tuple[Limit, ...] = ()
    share: float = 1.0

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the key's columns."""
        return tuple(one.name for one in self.columns if one.key)

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the others."""
        return tuple(one.name for one in self.columns if not one.key)


@dataclass
class _Found:
    """What the looks found so far."""

    candidates: DataFrame
    count: int
    verdict: Verdict | None = None


@dataclass
class TableComparison:
    """The comparison of one table; ``kept`` lets go of what Spark keeps for it. Runs once."""

    context: WorkerContext
    table: TableId
    options: DiffOptions
    kept: ExitStack
    tell: Tell
    keep: Keep | None = None
    topic: str = field(init=False)
    reader: TableReader = field(init=False)
    # Whether the source may be asked for keys; not any more once it was asked for one that it cannot have.
    by_key: bool = field(default=True, init=False)

    def run(self) -> TableDiff:
        """Compare.

        Raises: as ``diff``.
        """
        from tidesink.sinks.spark.digests import compared, counts_of

        side = self._opened()
        fit_shuffle(self.reader.session, side.stored.rows)
        self.tell(f"{self.table}: reading the source, about {side.stored.rows:,} rows")
        source = self._stored(lambda: self._source(side))
        unreadable = source.where("bad").count()
        settled = self._await_target(self._ends())
        self.tell(f"{self.table}: reading the target")
        keys = self._stored(lambda: compared(source.where("NOT bad"), self._target(side)))
        counts = counts_of(keys)
        count = keys.where("NOT same").count()
        found = TableDiff(self.table, *counts, unreadable=unreadable, not_compared=side.not_compared)
        if not count:
            return found
        if not settled:
            return replace(found, unsettled=count)
        return self._settled(side, found, keys, count)

    def _settled(self, side: Side, found: TableDiff, keys: DataFrame, count: int) -> TableDiff:
        """The result once the keys that differ were looked at again."""
        from tidesink.sinks.spark.digests import candidates_of

        left, verdict = self._looked_again(side, candidates_of(keys), count)
        return replace(
            found,
            equal=found.equal + count - sum(verdict),
            different=verdict.different,
            only_at_source=verdict.only_at_source,
            only_at_target=verdict.only_at_target,
            unsettled=verdict.open,
            shown=tuple(self._differences(side, left)) if sum(verdict) > verdict.open else (),
        )

    # Opening

    def _opened(self) -> Side:
        """What both sides are read by, once the target is where the topic is.

        Raises:
            ConfigError: the table cannot be compared.
        """
        status = self.context.store.status_of(self.context.config.pipeline, self.table)
        topic = topic_of(status)
        if topic is None:
            raise self._refused("no worker has applied anything of it yet: let tidesink run begin")
        self.topic = topic
        found = self._ends()
        decoding = open_decoding(
            self.context, self.topic, self.table, session=self.context.spark.newSession()
        )
        decoding.prepare(found)
        self.reader = self._reader(decoding.columns())
        self._check_begun()
        # Columns change with what waits.
        self._await_target(found)
        # The source's rows are behind all that was sent.
        decoding.catch_up(None, found)
        return self._side(decoding.columns())

    def _reader(self, plan: DecodePlan) -> TableReader:
        missing = self._refused("the target has no such table: let tidesink run make it")
        return self.kept.enter_context(open_target_reader(self.context, plan.shape, missing=missing))

    def _check_begun(self) -> None:
        progress = self.reader.committed()
        if progress is None:
            raise self._refused("nothing of it is applied yet: let tidesink run begin")
        if progress.snapshot is not None and not (progress.snapshot.done or progress.snapshot.limited):
            raise self._refused(
                "its snapshot is not over, so that rows are missing: tidesink snapshot status shows how far "
                "it is"
            )

    def _refused(self, reason: str) -> ConfigError:
        return refusal(self.table, reason)

    def _side(self, plan: DecodePlan) -> Side:

        with open_source_database(self.context.config) as database:
            stored = database.table(self.table)
        plan, gap = source_plan(plan, stored)
        assert isinstance(plan.decoder, SourceDecoder)  # noqa: S101  (``source_plan`` makes it)
        read = {one.recorded.name for one in plan.decoder.columns}
        present = {fold_name(name) for name in self.reader.columns()}
        sources, not_compared = plan.rows.value_sources, [*gap.new]
        chosen = []
        for column in plan.shape.columns:
            own = sources.get(column.name)
            if column.key or (own in read and fold_name(column.name) in present):
                chosen.append(column)
            elif own is not None:
                not_compared.append(column.name)
        not_compared += self._at_target_alone(plan, not_compared)
        columns = compared_columns(self.reader, chosen)
        bounds = checked_bounds(self.options.where, stored)
        limits = limits_of(plan, bounds, key_types(columns))
        share = 1.0 if self.options.sample is None else self.options.sample / max(1, stored.rows)
        return Side(plan, stored, tuple(chosen), columns, tuple(not_compared), limits, share)

    def _at_target_alone(self, plan: DecodePlan, named: Iterable[str]) -> Iterator[str]:
        """Columns that somebody gave the target: neither the source's, nor metadata, nor tidesink's own."""
        known = {fold_name(column.name) for column in plan.shape.columns} | {*map(fold_name, named)}
        for name in self.reader.columns():
            if fold_name(name) not in known and not fold_name(name).startswith(OWN_PREFIX):
                yield name

    # Where the topic ends, and the target is

    def _ends(self) -> TopicOffsets:
        """Where the topic ends now."""
        return self.context.offsets_of(self.topic, self.table)

    def _ranges_of(self, found: TopicOffsets) -> list[OffsetRange]:
        """What of the topic is not applied."""
        progress = self.context.retry(self.table).call(self.reader.committed)
        return [
            OffsetRange(self.topic, number, max(at.earliest, _next(progress, self.topic, number)), at.latest)
            for number, at in found.partitions.items()
        ]

    def _await_target(self, ends: TopicOffsets) -> bool:
        """Wait until the target has applied all up to the ends; False where that is not waited for.

        Raises:
            ConfigError: nobody applies it.
        """
        still = Standstill(self._patience())
        announced = False
        while waiting := sum(max(0, part.records) for part in self._ranges_of(ends)):
            if not self.options.waits:
                return False
            self._check_worker(waiting, still)
            if not announced:
                self.tell(f"{self.table}: waiting until {waiting:,} records are applied")
                announced = True
            time.sleep(_POLL_SECONDS)
        return True

    def _patience(self) -> float:
        """Longer than a table rests that has little in its topic, or whose topic is not to be read."""
        if self.options.patience is not None:
            return self.options.patience
        config = self.context.config
        return ALIVE_SECONDS + config.retry.for_ + 2 * config.batch.watermark_interval

    def _check_worker(self, waiting: int, still: Standstill) -> None:
        store, pipeline = self.context.store, self.context.config.pipeline
        seconds = seconds_since_beat(store, pipeline)
        if not is_alive(seconds):
            raise self._refused(
                f"{waiting:,} records of {self.topic} are not applied, and no worker runs: start tidesink "
                "run beside this, or give --no-wait to compare all the same"
            )
        status = store.status_of(pipeline, self.table)
        if status is not None and status.state in ("PAUSED", "FAILING"):
            raise self._refused(
                f"{waiting:,} records of {self.topic} are not applied, and the table is {status.state} "
                f"({status.error}): mend that first, or give --no-wait to compare all the same"
            )
        state = status.state if status is not None else "unknown"
        if still.lasts(waiting, at_work=state == "RUNNING"):
            raise self._refused(
                f"{waiting:,} records of {self.topic} are not applied, and the worker that runs does not "
                f"come to the table, whose state is {state}: see whether its config leaves the table out, or "
                "give --no-wait to compare all the same"
            )

    # The sides

    def _stored(self, frame: Callable[[], DataFrame]) -> DataFrame:
        """A frame's rows as they are read now, which Spark never reads again; tried again where it fails."""

        def store() -> DataFrame:
            return checkpointed(frame(), self.kept, table=str(self.table))

        return self.context.retry(self.table).call(store)

    def _source(self, side: Side, wanted: DataFrame | None = None, count: int = 0) -> DataFrame:
        """The digests of the source's rows; with details of the ``count`` keys that are ``wanted``."""
        from tidesink.sinks.spark.digests import digests, once, sampled, within

        task, reader = self._source_task(side, wanted, count)
        found = unpacked_ranges(self.reader.session, task, reader).where("_op IN ('upsert', 'bad')")
        values = (f"after.{quoted(one.name)}" for one in side.shape_columns)
        named = found.selectExpr(*values, "_op = 'bad' AS bad")
        # As the target's rows: a date that no calendar has is within bounds at the source alone.
        named = within(named, side.columns, side.limits)
        rows = sampled(digests(named, side.columns, **self._details(wanted is not None)), side.share)
        return once(rows) if isinstance(reader, KeyedRows) else rows

    def _source_task(
        self, side: Side, wanted: DataFrame | None, count: int
    ) -> tuple[RangeTask, RecordReader]:
        """The task over all ranges of the source, or over a few keys where it can be asked for them."""
        config, plan, stored = self.context.config, side.plan, side.stored
        asked = self.by_key and wanted is not None and count <= max(_FEW, stored.rows // _FEW_OF)
        columns = key_columns(plan, stored.key, key_types(side.columns)) if asked else None
        keys = WantedKeys(columns, wanted) if wanted is not None and columns is not None else None
        where = tuple(one.bound for one in side.limits)
        ranges = partial(all_ranges, config, self.table, stored, where)
        return source_task(config, plan, stored, self.topic, wanted=keys, ranges=ranges)

    def _details(self, detailed: bool) -> dict[str, bool]:
        return {"detailed": detailed, "shown": detailed and self.options.values}

    def _target(self, side: Side, *, detailed: bool = False) -> DataFrame:
        """The digests of the target's rows, which are read when the frame is asked for."""
        from tidesink.sinks.spark.digests import digests, sampled, within

        rows = within(self.reader.rows(side.shape_columns), side.columns, side.limits)
        return sampled(digests(rows, side.columns, **self._details(detailed)), side.share)

    # Looking again

    def _looked_again(self, side: Side, candidates: DataFrame, count: int) -> tuple[DataFrame, Verdict]:
        """The keys that differ or are unsettled, once enough looks were taken."""
        from tidesink.sinks.spark.digests import Verdict, looked_at_target, verdict_of

        verdict = Verdict(0, 0, 0, count)
        for _ in range(MOST_LOOKS):
            before, count = candidates, sum(verdict)
            self.tell(f"{self.table}: looking again at {count:,} keys")
            candidates = self._source_again(side, before, count)
            if candidates.isEmpty():
                return candidates, Verdict(0, 0, 0, 0)
            time.sleep(self.options.lag)
            settled = self._await_target(self._ends())
            before = candidates
            candidates = self._stored(lambda c=before: looked_at_target(c, self._target(side, detailed=True)))  # type: ignore[misc]
            verdict = verdict_of(candidates, looks=LOOKS)
            if not (verdict.open and settled):
                break
        return candidates, verdict

    def _source_again(self, side: Side, candidates: DataFrame, count: int) -> DataFrame:
        """The candidates after a newer look at the source: by key, or at all rows."""
        from tidesink.sinks.spark.digests import looked_at_source

        def look() -> DataFrame:
            return looked_at_source(candidates, self._source(side, candidates, count))

        try:
            return self._stored(look)
        except ValueOutOfRangeError:
            if not self.by_key:
                raise
        # A key at the target is no value of the source's columns, which no later try mends.
        self.by_key = False
        return self._stored(look)

    def _differences(self, side: Side, candidates: DataFrame) -> Iterator[Difference]:
        """The keys that differ, as far as they are shown; all of them are given to ``keep``."""
        from tidesink.sinks.spark.digests import differing

        found = differing(candidates, looks=LOOKS)
        rows = found.toLocalIterator() if self.keep else iter(found.limit(self.options.shown).collect())
        for number, row in enumerate(rows):
            one = _difference(side, row)
            if self.keep is not None:
                self.keep(self.table, one)
            if number < self.options.shown:
                yield one


@dataclass
class Standstill:
    """Whether nothing was applied for so many seconds of what is waited for."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _waiting: int | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)

    def lasts(self, waiting: int, *, at_work: bool) -> bool:
        """As it is now; ``at_work``: a batch of the table is under way, which may take its time."""
        now = self.clock()
        if at_work or waiting != self._waiting:
            self._waiting, self._since = waiting, now
            return False
        return now - self._since >= self.seconds


def _next(progress: Progress | None, topic: str, partition: int) -> int:
    return (progress.next_offset(topic, partition) if progress else None) or 0


def _difference(side: Side, row: Row) -> Difference:
    key = dict(zip(side.keys, row["key"], strict=True))
    if not (row["at_source"] and row["at_target"]):
        kind: Kind = "only_at_source" if row["at_source"] else "only_at_target"
        return Difference(kind, key)
    here, there = row["of_source"], row["of_target"]
    hashes = zip(side.values, here["columns"], there["columns"], strict=True)
    columns = tuple(name for name, one, other in hashes if one != other)
    if "texts" not in here:
        return Difference("different", key, columns)
    texts = zip(side.values, here["texts"], there["texts"], strict=True)
    values = {name: (one, other) for name, one, other in texts if name in columns}
    return Difference("different", key, columns, values)
