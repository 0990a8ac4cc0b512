"""Comparison of a table in the target with another pipeline's copy of the same source table.

This is ``tidesink diff --against``. The source is not read. The two copies may be loaded from the same topic
or from different ones. Before both copies are read again, the comparison waits ``lag`` seconds, and then
until both have applied all records that their topics have. So each copy shows at least the state that the
source had when the copies were read the last time (ADR 33).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tidesink.errors import ConfigError
from tidesink.events import folding
from tidesink.sinks.batch.source import fit_shuffle
from tidesink.sinks.diff.comparison import ComparedSides, TableComparison, at_target_alone
from tidesink.sinks.diff.table_copy import TableCopy
from tidesink.sinks.snapshots.source_keys import compared_columns, is_ranged
from tidesink.sinks.spark.session import in_session
from tidesink.sinks.targets.sharing import quote_text
from tidesink.source_database.base import StoredTable
from tidesink.source_database.key_bounds import OPTION, checked_bounds
from tidesink.typemap.target_schema import TargetColumn, quoted, wider_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.sinks.decode.plans import DecodePlan
    from tidesink.sinks.spark.digests import ComparedColumn, Limit


class _Pair(NamedTuple):
    """A column of the target, and the same column of the other copy, or None for a shard column."""

    own: TargetColumn
    other: TargetColumn | None


@dataclass
class CopyComparison(TableComparison):
    """Compares a table with its copy in the target of another pipeline (``tidesink diff --against``).

    ``other``: the other pipeline's copy. ``pairs``: the columns that are compared. ``shard``: the value of
    the table's shard column, or empty.
    """

    other: TableCopy = field(kw_only=True)
    pairs: tuple[_Pair, ...] = field(default=(), init=False)
    shard: str = field(default="", init=False)

    def _opened(self) -> ComparedSides:
        plan, others = self.own.open(), self.other.open()
        mine, theirs = _held(self.own, plan), _held(self.other, others)
        self._check_keys(mine, theirs)
        not_compared = [own_column.name for name, own_column in mine.items() if name not in theirs]
        not_compared += [other_column.name for name, other_column in theirs.items() if name not in mine]
        for copy, its in ((self.own, plan), (self.other, others)):
            not_compared += at_target_alone(copy.reader, its, not_compared)
        pairs = [_Pair(own_column, theirs[name]) for name, own_column in mine.items() if name in theirs]
        chosen: list[tuple[_Pair, ComparedColumn]] = []
        for pair, column, kinds in self._typed(pairs):
            if column is not None:
                chosen.append((pair, column))
            elif pair.own.key:
                raise self.own.refused(
                    f"The two copies store the key column {pair.own.name} as {kinds}, and no type can hold "
                    "the values of both. Compare each copy with the source instead, without --against."
                )
            else:
                not_compared.append(f"{pair.own.name} ({kinds})")
        chosen += self._shard_of(plan)
        self.pairs = tuple(pair for pair, _ in chosen)
        columns = tuple(column for _, column in chosen)
        limits = tuple(self._limits(plan, mine, columns))
        own = tuple(pair.own for pair in self.pairs)
        return ComparedSides(own, columns, tuple(not_compared), limits, self._share())

    def _check_keys(self, mine: Mapping[str, TargetColumn], theirs: Mapping[str, TargetColumn]) -> None:
        keys, other = ([name for name, column in held.items() if column.key] for held in (mine, theirs))
        if {*keys} != {*other}:
            raise self.own.refused(
                f"Its key is ({', '.join(keys)}), but in pipeline {self.other.context.config.pipeline} its "
                f"key is ({', '.join(other)})."
            )

    def _typed(self, pairs: Sequence[_Pair]) -> Iterator[tuple[_Pair, ComparedColumn | None, str]]:
        """Yield each pair of columns, the column to compare, and the pair's types as a text for messages.

        The column to compare has a type that holds the values of both. It is None if there is no such type.
        """
        own = compared_columns(self.own.reader, [pair.own for pair in pairs])
        other = compared_columns(self.other.reader, [pair.other for pair in pairs if pair.other])
        for pair, mine, its in zip(pairs, own, other, strict=True):
            kind = wider_ddl(mine.type, its.type)
            # If one side writes values of the type in its own way, both sides' texts are converted to it.
            column = (
                None if kind is None else mine._replace(type=kind, spelling=mine.spelling or its.spelling)
            )
            yield pair, column, f"{mine.type} and {its.type}"

    def _shard_of(self, plan: DecodePlan) -> Iterator[tuple[_Pair, ComparedColumn]]:
        """Yield the target's shard column, if it has one. It is part of the key, and the same in all rows."""
        shard = plan.shape.shard
        for column in plan.shape.key_columns:
            if shard is not None and column.name == shard.column:
                self.shard = shard.value
                (compared,) = compared_columns(self.own.reader, [column])
                yield _Pair(column, None), compared

    def _limits(
        self, plan: DecodePlan, mine: Mapping[str, TargetColumn], columns: Sequence[ComparedColumn]
    ) -> Iterator[Limit]:
        """Yield the bounds of ``--where``, which name the source's columns, as bounds of target columns.

        Raises:
            ConfigError: a column is not in the key, or the target may compare its values differently.
        """
        from tidesink.sinks.spark.digests import Limit

        shape, types = plan.rows.shape, {column.name: column.type for column in columns}
        keys = {
            shape.by_name[name].name: shape.by_name[name].type for name, column in mine.items() if column.key
        }
        for bound in checked_bounds(self.options.where, StoredTable(keys, tuple(keys), 0, 0)):
            name = mine[shape.fold(bound.column)].name
            if not is_ranged(keys[bound.column], types[name], bound.text):
                raise ConfigError(
                    f"The target stores {bound.column} as {types[name]}, so it may sort the values in "
                    "another order than the source. Run the command again without --where.",
                    key=OPTION,
                )
            yield Limit(name, bound)

    def _share(self) -> float:
        if self.options.sample is None:
            return 1.0
        return self.options.share_of(
            self.own.reader.rows([pair.own for pair in self.pairs if pair.own.key]).count()
        )

    def _first(self, sides: ComparedSides) -> tuple[DataFrame, bool]:
        settled = self._both_applied()
        self.tell(f"{self.own.table}: reading {self.other.context.config.pipeline}")
        rows = self._kept(lambda: self._other(sides))
        fit_shuffle(self.own.reader.session, rows.count())
        return rows, settled

    def _both_applied(self) -> bool:
        """Wait until both copies have applied all records that their topics have now, and return True.

        Returns False if records are not applied and the options do not allow to wait for them.
        """
        ends = [(copy, copy.ends()) for copy in (self.own, self.other)]
        return all(copy.await_applied(end) for copy, end in ends)

    def _kept(self, frame: Callable[[], DataFrame]) -> DataFrame:
        """Store rows of the other copy in Spark, and return them as a frame of the target's own session.

        They must be read in the other copy's session, which has the credentials and settings for its files.
        """
        return in_session(self.other.stored(frame), self.own.reader.session)

    def _other(self, sides: ComparedSides, *, detailed: bool = False) -> DataFrame:
        """Return a frame with the digests of the copy's rows, which are in the other pipeline's target."""
        from tidesink.sinks.spark.digests import ODD, digests, sampled, within

        asked = [pair.other for pair in self.pairs if pair.other is not None]
        rows = self.other.reader.compared_rows(asked)
        values = [
            quote_text(self.shard) if pair.other is None else quoted(pair.other.name) for pair in self.pairs
        ]
        if ODD in rows.columns:
            odd = (
                "CAST(NULL AS STRING)" if pair.other is None else f"{ODD}[{asked.index(pair.other)}]"
                for pair in self.pairs
            )
            values.append(f"array({', '.join(odd)}) AS {ODD}")
        rows = within(rows.selectExpr(*values), sides.columns, sides.limits)
        return sampled(digests(rows, sides.columns, **self.details(detailed)), sides.share)

    def _again(self, sides: ComparedSides, candidates: DataFrame, count: int) -> tuple[DataFrame, bool]:  # noqa: ARG002
        from tidesink.sinks.spark.digests import HASH, looked_at_source

        time.sleep(self.options.lag)
        settled = self._both_applied()
        wanted = in_session(candidates.select(*HASH), self.other.reader.session)
        rows = self._kept(lambda: self._other(sides, detailed=True).join(wanted, [*HASH], "left_semi"))
        return self.own.stored(lambda: looked_at_source(candidates, rows)), settled


def _held(copy: TableCopy, plan: DecodePlan) -> dict[str, TargetColumn]:
    """Return the columns of a copy that come from the source, by their names in the source.

    The names are folded: names that differ only in case, where the source ignores it, are equal.
    """
    names = tuple(copy.reader.columns())
    fold, at_source = folding(names, (column.name for column in plan.shape.columns)), plan.rows.shape.fold
    present = {*map(fold, names)}
    shard, sources = plan.shape.shard, plan.rows.sources or {}
    own = {
        **{column.name: sources.get(column.name, column.name) for column in plan.shape.key_columns},
        **plan.rows.value_sources,
    }
    return {
        at_source(own[column.name]): column
        for column in plan.shape.columns
        if column.name in own
        and fold(column.name) in present
        and not (shard is not None and column.name == shard.column)
    }
