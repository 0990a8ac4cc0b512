"""Comparison of a table at the target with its source while both change (``tidesink diff``).

The law (ADR 33). A *look* at a key reads its row at the source (s), then records the end offsets of the
topic, waits until the target has applied everything before them, and reads the row at the target (t). The
first look reads all rows. Later looks read only keys whose s and t differ:

- t equals the s of this look or of the next one: the key is equal.
- s and t equal those of the previous look, and differ: the key differs, once ``LOOKS`` looks agree.
- Otherwise the key is changing, and needs another look; after ``MOST_LOOKS`` it counts as unsettled.

The topic may be late. So ``lag`` passes between s and the end offsets, and each change of the source must
reach the topic within that time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

from tidesink.config.table_checks import OWN_PREFIX
from tidesink.events import TableId, fold_name, folding
from tidesink.sinks.targets.base import TableReader
from tidesink.sinks.worker.table_copy import TableCopy
from tidesink.source_database.key_bounds import Bound
from tidesink.typemap.target_schema import ShapeColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from tidesink.sinks.batch.decoders import DecodePlan
    from tidesink.sinks.spark.digests import ComparedColumn, Limit, Verdict
    from tidesink.sinks.targets.lake.cuts import Cut

    # Receives the cuts, newest first, and returns one of them, or raises ConfigError if none fits.
    ChooseCut = Callable[[Sequence[Cut]], Cut]


# Looks after the first that must agree with the previous one before a key counts as different.
LOOKS: Final = 2
MOST_LOOKS: Final = 6

Kind = Literal["different", "only_at_source", "only_at_target"]


@dataclass(frozen=True)
class DiffOptions:
    """Options of a comparison.

    ``shown``: maximum number of differing keys to show per table. ``values``: True to show their values.
    ``waits``: True to wait for changes that are not applied yet. ``lag``: seconds within which a change of
    the source reaches its topic. ``patience``: see ``TableCopy``. ``where``: parsed bounds of the source's
    key. ``sample``: approximate number of rows to compare, or None for all. ``cut``: chooses a cut, which is
    compared with the source at the cut's instant; None compares the current rows.
    """

    shown: int = 20
    values: bool = False
    waits: bool = True
    lag: float = 10.0
    patience: float | None = None
    where: tuple[Bound, ...] = ()
    sample: int | None = None
    cut: ChooseCut | None = None

    def share_of(self, rows: int) -> float:
        """Return the share of a table's keys to compare; ``rows``: the table's approximate size."""
        return 1.0 if self.sample is None else self.sample / max(1, rows)


class Difference(NamedTuple):
    """A key whose rows differ. ``values``: the source's and the target's text, for each differing column."""

    kind: Kind
    key: Mapping[str, str | None]
    columns: tuple[str, ...] = ()
    values: Mapping[str, tuple[str | None, str | None]] | None = None


@dataclass(frozen=True)
class TableDiff:
    """The result for one table.

    ``at_source``, ``at_target``: number of rows in the first look. ``unsettled``: keys that kept changing, or
    whose changes were not waited for. ``unreadable``: rows of the source that cannot be rows of the target.
    ``not_compared``: columns of either side. ``refused``: the reason why the table was not compared.
    ``as_of``: commit_ts of the compared cut, or None for current rows.
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
    as_of: int | None = None

    @property
    def differs(self) -> bool:
        """Return True if a key certainly differs, or a row of the source cannot be stored at the target."""
        return bool(self.different or self.only_at_source or self.only_at_target or self.unreadable)


Keep = Callable[[TableId, Difference], None]


@dataclass(frozen=True)
class ComparedSides:
    """Instructions to read both sides of a table: the columns to compare, in the target schema's order.

    ``shape_columns``: the target's own columns. ``share``: the share of keys to compare.
    """

    shape_columns: tuple[ShapeColumn, ...]
    columns: tuple[ComparedColumn, ...]
    not_compared: tuple[str, ...]
    limits: tuple[Limit, ...] = ()
    share: float = 1.0

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(one.name for one in self.columns if one.key)

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the other columns."""
        return tuple(one.name for one in self.columns if not one.key)


@dataclass
class TableComparison(ABC):
    """Compares a table at the target, ``own``, with another side. Runs once."""

    own: TableCopy
    options: DiffOptions
    keep: Keep | None = None

    # Looks after the first that must agree with the previous one before a key counts as different.
    looks: ClassVar[int] = LOOKS

    def run(self) -> TableDiff:
        """Compare the two sides.

        Raises:
            ConfigError: the table cannot be compared as configured, or no worker applies its changes.
            TidesinkError: a side, Kafka or the state store cannot be read.
        """
        from tidesink.sinks.spark.digests import compared, counts_of

        sides = self._opened()
        other, settled = self._first(sides)
        unreadable = other.where("bad").count()
        self.tell(f"{self.own.table}: reading the target")
        keys = self.own.stored(lambda: compared(other.where("NOT bad"), self._target(sides)))
        counts = counts_of(keys)
        count = keys.where("NOT same").count()
        found = TableDiff(self.own.table, *counts, unreadable=unreadable, not_compared=sides.not_compared)
        if not count:
            return found
        if not settled:
            return replace(found, unsettled=count)
        return self._settled(sides, found, keys, count)

    def tell(self, what: str) -> None:
        """Report a step to the user."""
        self.own.tell(what)

    @abstractmethod
    def _opened(self) -> ComparedSides:
        """Open both sides, and return how to read them.

        Raises:
            ConfigError: the table cannot be compared.
        """

    @abstractmethod
    def _first(self, sides: ComparedSides) -> tuple[DataFrame, bool]:
        """Return digests of the other side's rows, and True if the target has applied all it should have."""

    @abstractmethod
    def _again(self, sides: ComparedSides, candidates: DataFrame, count: int) -> tuple[DataFrame, bool]:
        """Return ``count`` candidates after a newer look at the other side, and the flag of ``_first``."""

    def _settled(self, sides: ComparedSides, found: TableDiff, keys: DataFrame, count: int) -> TableDiff:
        """Return the result after more looks at the keys that differ."""
        from tidesink.sinks.spark.digests import candidates_of

        left, verdict = self._looked_again(sides, candidates_of(keys), count)
        return replace(
            found,
            equal=found.equal + count - sum(verdict),
            different=verdict.different,
            only_at_source=verdict.only_at_source,
            only_at_target=verdict.only_at_target,
            unsettled=verdict.open,
            shown=tuple(self._differences(sides, left)) if sum(verdict) > verdict.open else (),
        )

    def details(self, detailed: bool) -> dict[str, bool]:
        """Return the options for detailed digests, which show columns and perhaps values."""
        return {"detailed": detailed, "shown": detailed and self.options.values}

    def _target(self, sides: ComparedSides, *, detailed: bool = False) -> DataFrame:
        """Return digests of the target's rows. The rows are read when the frame is evaluated."""
        from tidesink.sinks.spark.digests import digests, sampled, within

        rows = within(self.own.reader.compared_rows(sides.shape_columns), sides.columns, sides.limits)
        return sampled(digests(rows, sides.columns, **self.details(detailed)), sides.share)

    def _looked_again(
        self, sides: ComparedSides, candidates: DataFrame, count: int
    ) -> tuple[DataFrame, Verdict]:
        """Look again until the verdict is final; return the differing or unsettled keys and the verdict."""
        from tidesink.sinks.spark.digests import Verdict, looked_at_target, verdict_of

        verdict = Verdict(0, 0, 0, count)
        for _ in range(MOST_LOOKS):
            count = sum(verdict)
            self.tell(f"{self.own.table}: looking again at {count:,} keys")
            before, settled = self._again(sides, candidates, count)
            if before.isEmpty():
                return before, Verdict(0, 0, 0, 0)
            candidates = self.own.stored(
                lambda c=before: looked_at_target(c, self._target(sides, detailed=True))  # type: ignore[misc]
            )
            verdict = verdict_of(candidates, looks=self.looks)
            if not (verdict.open and settled):
                break
        return candidates, verdict

    def _differences(self, sides: ComparedSides, candidates: DataFrame) -> Iterator[Difference]:
        """Yield the differing keys to show, and pass all of them to ``keep``."""
        from tidesink.sinks.spark.digests import differing

        found = differing(candidates, looks=self.looks)
        rows = found.toLocalIterator() if self.keep else iter(found.limit(self.options.shown).collect())
        for number, row in enumerate(rows):
            one = _difference(sides, row)
            if self.keep is not None:
                self.keep(self.own.table, one)
            if number < self.options.shown:
                yield one


def at_target_alone(reader: TableReader, plan: DecodePlan, named: Iterable[str]) -> Iterator[str]:
    """Yield columns that a user added at the target: not the source's, not metadata, not tidesink's own."""
    names, columns = tuple(reader.columns()), [column.name for column in plan.shape.columns]
    fold = folding(names, columns)
    known = {*map(fold, (*columns, *named))}
    for name in names:
        if fold(name) not in known and not fold_name(name).startswith(OWN_PREFIX):
            yield name


def _difference(sides: ComparedSides, row: Row) -> Difference:
    key = dict(zip(sides.keys, row["key"], strict=True))
    if not (row["at_source"] and row["at_target"]):
        kind: Kind = "only_at_source" if row["at_source"] else "only_at_target"
        return Difference(kind, key)
    here, there = row["of_source"], row["of_target"]
    hashes = zip(sides.values, here["columns"], there["columns"], strict=True)
    columns = tuple(name for name, one, other in hashes if one != other)
    if "texts" not in here:
        return Difference("different", key, columns)
    texts = zip(sides.values, here["texts"], there["texts"], strict=True)
    values = {name: (one, other) for name, one, other in texts if name in columns}
    return Difference("different", key, columns, values)
