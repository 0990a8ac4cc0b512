"""Comparison of a table in the target with its source while both change (``tidesink diff``).

The rows change while they are compared, so a difference may only mean that a change is not applied yet.
Therefore keys that differ are compared again, several times (ADR 33). One comparison of a key is a *look*:

1. Read the row of the key at the source: s.
2. Wait ``lag`` seconds, in which each change of the source must reach its topic. The first look skips this.
3. Look up the topic's end offsets, and wait until the target has applied everything before them.
4. Read the row of the key in the target: t.

The first look reads the rows of all keys, later looks only those of keys that differed. After each look:

- If t equals the s of this look or of the next one, the key is equal.
- If s and t differ, and are the same as in the previous look, the key is different once ``LOOKS`` looks in a
  row agree.
- Otherwise the key is still changing, and needs another look. After ``MOST_LOOKS`` it counts as unsettled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

from tidesink.config.table_checks import OWN_PREFIX
from tidesink.events import TableId, fold_name, folding
from tidesink.sinks.diff.table_copy import TableCopy
from tidesink.sinks.targets.base import TableReader
from tidesink.source_database.key_bounds import Bound
from tidesink.typemap.target_schema import TargetColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from tidesink.sinks.decode.plans import DecodePlan
    from tidesink.sinks.spark.digests import ComparedColumn, Limit, Verdict
    from tidesink.sinks.targets.lake.cuts import Cut

    # Chooses the cut to compare from all cuts, newest first. Raises ConfigError if none of them is suitable.
    ChooseCut = Callable[[Sequence[Cut]], Cut]


# Number of looks, without the first, that must agree with the previous look until a key counts as different.
LOOKS: Final = 2
# Maximum number of looks after the first one.
MOST_LOOKS: Final = 6

Kind = Literal["different", "only_at_source", "only_at_target"]


@dataclass(frozen=True)
class DiffOptions:
    """Options of ``tidesink diff``.

    Attributes:
        shown: Maximum number of differing keys to show per table.
        values: True to show the values of the columns that differ.
        waits: True to wait until changes in Kafka are applied.
        lag: Seconds within which a change of the source reaches its topic.
        patience: Seconds without an applied record after which a running worker counts as not reading the
            table; None for a time that is longer than any pause that the config allows.
        where: Bounds of the source's key that limit the rows to compare.
        sample: Approximate number of rows to compare, or None for all.
        cut: Chooses one of a lake's cuts (all tables as of one source transaction). The tables in the cut are
            compared with the source as of the cut's commit_ts. None to compare the current rows.
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
        """Return the share of a table's keys to compare, from 0 to 1. ``rows``: its approximate size."""
        return 1.0 if self.sample is None else self.sample / max(1, rows)


class Difference(NamedTuple):
    """A key whose rows in source and target differ.

    ``kind``: how they differ. ``key``: the key's values as texts, by column. ``columns``: names of the
    columns that differ. ``values``: for each of these columns its value in the source and in the target as
    texts, or None if values are not shown.
    """

    kind: Kind
    key: Mapping[str, str | None]
    columns: tuple[str, ...] = ()
    values: Mapping[str, tuple[str | None, str | None]] | None = None


@dataclass(frozen=True)
class TableDiff:
    """The result for one table.

    Attributes:
        table: The table.
        at_source: Number of rows at the source when they were first read.
        at_target: Number of rows in the target when they were first read.
        equal: Number of keys whose rows are equal.
        different: Number of keys whose rows differ.
        only_at_source: Number of keys that only the source has.
        only_at_target: Number of keys that only the target has.
        unsettled: Number of keys that differ but may not be different: they kept changing, or the comparison
            did not wait until their changes were applied.
        unreadable: Number of rows of the source with a value that the target cannot store.
        not_compared: Names of columns that only one side has, or that cannot be compared.
        shown: The first differing keys.
        refused: The reason why the table was not compared, or None.
        as_of: The commit_ts of the compared cut, or None if the current rows were compared.
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
        """Return True if a key is certainly different, or the target cannot store a row of the source."""
        return bool(self.different or self.only_at_source or self.only_at_target or self.unreadable)


Keep = Callable[[TableId, Difference], None]


@dataclass(frozen=True)
class ComparedSides:
    """The columns and keys that are compared. Columns are in the order of the target's schema.

    Attributes:
        shape_columns: The compared columns, as in the target's schema.
        columns: The same columns, with the types in which both sides are compared.
        not_compared: Names of columns that are not compared.
        limits: Bounds of the key that limit the rows to compare.
        share: The share of keys to compare, 1.0 for all.
    """

    shape_columns: tuple[TargetColumn, ...]
    columns: tuple[ComparedColumn, ...]
    not_compared: tuple[str, ...]
    limits: tuple[Limit, ...] = ()
    share: float = 1.0

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns of the compared table."""
        return tuple(column.name for column in self.columns if column.key)

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the columns that are not part of the key."""
        return tuple(column.name for column in self.columns if not column.key)


@dataclass
class TableComparison(ABC):
    """Compares a table in the target with another side: the source, or another copy of the table. Runs once.

    ``own``: the table in the target. ``keep``: receives every differing key, or None.
    """

    own: TableCopy
    options: DiffOptions
    keep: Keep | None = None

    # Number of looks, without the first, that must agree with the previous look until a key is different.
    looks: ClassVar[int] = LOOKS

    def run(self) -> TableDiff:
        """Compare the two sides, and return the result.

        Raises:
            ConfigError: the table cannot be compared as configured, or no worker applies its changes.
            TidesinkError: the source, the target, Kafka or the state store cannot be read.
        """
        from tidesink.sinks.spark.digests import compared, counts_of

        sides = self._opened()
        other, settled = self._first(sides)
        unreadable = other.where("bad").count()
        self.tell(f"{self.own.table}: reading the target")
        keys = self.own.stored(lambda: compared(other.where("NOT bad"), self._target(sides)))
        counts = counts_of(keys)
        count = keys.where("NOT same").count()
        result = TableDiff(self.own.table, *counts, unreadable=unreadable, not_compared=sides.not_compared)
        if not count:
            return result
        if not settled:
            return replace(result, unsettled=count)
        return self._settled(sides, result, keys, count)

    def tell(self, what: str) -> None:
        """Send a progress message to the user."""
        self.own.tell(what)

    @abstractmethod
    def _opened(self) -> ComparedSides:
        """Open both sides, and return the columns and keys to compare.

        Raises:
            ConfigError: the table cannot be compared.
        """

    @abstractmethod
    def _first(self, sides: ComparedSides) -> tuple[DataFrame, bool]:
        """Read all rows of the other side, wait for the target, and return the rows' digests.

        Also returns True if the target has applied all changes that the topic had after the rows were read.
        A digest has a hash of the key and a hash of the other values (``spark.digests``).
        """

    @abstractmethod
    def _again(self, sides: ComparedSides, candidates: DataFrame, count: int) -> tuple[DataFrame, bool]:
        """Read the rows of the differing keys from the other side again, and wait for the target.

        Returns the candidates with the newer digests, without the keys that are equal now. Also returns True
        if the target has applied all changes that the topic had after the rows were read.

        ``candidates``: the keys that differed, with their digests. ``count``: their number.
        """

    def _settled(self, sides: ComparedSides, result: TableDiff, keys: DataFrame, count: int) -> TableDiff:
        """Compare differing keys again until it is certain which are different, and return the comparison's
        result.

        ``result``: the result of the first look. ``keys``: all keys with the digests of both sides.
        ``count``: number of keys that differed.
        """
        from tidesink.sinks.spark.digests import candidates_of

        left, verdict = self._looked_again(sides, candidates_of(keys), count)
        return replace(
            result,
            equal=result.equal + count - sum(verdict),
            different=verdict.different,
            only_at_source=verdict.only_at_source,
            only_at_target=verdict.only_at_target,
            unsettled=verdict.open,
            shown=tuple(self._differences(sides, left)) if sum(verdict) > verdict.open else (),
        )

    def details(self, detailed: bool) -> dict[str, bool]:
        """Return keyword arguments for ``digests``.

        ``detailed``: True if digests must also describe every column, so that differing columns can be named.
        """
        return {"detailed": detailed, "shown": detailed and self.options.values}

    def _target(self, sides: ComparedSides, *, detailed: bool = False) -> DataFrame:
        """Return a frame with the digests of the target's rows, which are read when it is evaluated."""
        from tidesink.sinks.spark.digests import digests, sampled, within

        rows = within(self.own.reader.compared_rows(sides.shape_columns), sides.columns, sides.limits)
        return sampled(digests(rows, sides.columns, **self.details(detailed)), sides.share)

    def _looked_again(
        self, sides: ComparedSides, candidates: DataFrame, count: int
    ) -> tuple[DataFrame, Verdict]:
        """Compare the differing keys again until it is certain which are different, or ``MOST_LOOKS`` looks
        are done.

        Returns the keys that are different or unsettled, and the number of keys of each kind.
        """
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
        """Yield the first differing keys, at most ``options.shown``. Pass all differing keys to ``keep``."""
        from tidesink.sinks.spark.digests import differing

        frame = differing(candidates, looks=self.looks)
        rows = frame.toLocalIterator() if self.keep else iter(frame.limit(self.options.shown).collect())
        for number, row in enumerate(rows):
            difference = _difference(sides, row)
            if self.keep is not None:
                self.keep(self.own.table, difference)
            if number < self.options.shown:
                yield difference


def at_target_alone(reader: TableReader, plan: DecodePlan, named: Iterable[str]) -> Iterator[str]:
    """Yield the names of columns that a user added to the table in the target.

    These are columns that come neither from the source nor from tidesink. ``plan``: the table's decode plan.
    ``named``: names of columns that are reported already, and are skipped.
    """
    names, columns = tuple(reader.columns()), [column.name for column in plan.shape.columns]
    fold = folding(names, columns)
    expected = {*map(fold, (*columns, *named))}
    for name in names:
        if fold(name) not in expected and not fold_name(name).startswith(OWN_PREFIX):
            yield name


def _difference(sides: ComparedSides, row: Row) -> Difference:
    key = dict(zip(sides.keys, row["key"], strict=True))
    if not (row["at_source"] and row["at_target"]):
        kind: Kind = "only_at_source" if row["at_source"] else "only_at_target"
        return Difference(kind, key)
    here, there = row["of_source"], row["of_target"]
    hashes = zip(sides.values, here["columns"], there["columns"], strict=True)
    columns = tuple(name for name, source_hash, target_hash in hashes if source_hash != target_hash)
    if "texts" not in here:
        return Difference("different", key, columns)
    texts = zip(sides.values, here["texts"], there["texts"], strict=True)
    values = {name: (source_text, target_text) for name, source_text, target_text in texts if name in columns}
    return Difference("different", key, columns, values)
