"""What decodings that make a plan of their own have in common, and those whose topic has one table alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.batch.decoded_frame import DecodePlan
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decoding import Apart, Missed, ToldColumns
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange
from tidesink.sinks.surroundings import Surroundings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.batch.tasks import Fetch


class PlannedDecoding:
    """One table's settings, and the plan they make with what its records tell."""

    def __init__(self, around: Surroundings, topic: str, table: TableId, *, session: SparkSession) -> None:
        self._around = around
        self._topic = topic
        self._table = table
        self._settings = around.config.table_config(table)
        self._session = session
        self._plan: DecodePlan | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns whose type at the target is not the nearest one, with the reason."""
        columns = self._plan.shape.columns if self._plan else ()
        return tuple(f"column {column.name}: {column.reason}" for column in columns if column.reason)

    def range_task(self, ranges: Sequence[OffsetRange], fetch: Fetch) -> RangeTask | None:
        """Tasks for the ranges; None for a plan whose frame has more than rows to reduce."""
        plan = self.columns()
        if not plan.reduces_in_tasks:
            return None
        wanted = tuple(FetchRange(*part) for part in ranges if part.records)
        return RangeTask(wanted, fetch, plan)

    def columns(self) -> DecodePlan:
        """The plan over all that is known.

        Raises:
            ConfigError: nothing was prepared.
        """
        if self._plan is None:
            raise ConfigError("prepare the table first", table=str(self._table))
        return self._plan


class LoneDecoding(PlannedDecoding, ABC):
    """A table that has its topic for itself, and whose types come with its records: no DDL is read."""

    @abstractmethod
    def prepare(self, found: TopicOffsets) -> None:
        """Make the plan."""

    @abstractmethod
    def learn(self, missed: Missed) -> bool:
        """Look up what a batch lacked; True where the plan is another one now."""

    def catch_up(self, _ranges: Sequence[OffsetRange], _found: TopicOffsets) -> None:
        """Nothing: a record that needs more than is known says so."""

    def told(self) -> ToldColumns | None:
        """Nothing: no DDL is read."""
        return None

    def read_as(self, _renamed: Mapping[str, str], _held: Mapping[str, str]) -> None:
        """Never asked: no DDL tells of a rename."""

    def apart(self) -> Apart | None:
        """The topic holds one table."""
        return None

    def meet_others(self, _missed: Missed) -> None:
        """Never: there are no others, and a row of another table is a bad record."""

    def take_ddl(self, _reduced: DataFrame, _missed: Missed) -> bool:
        """Nothing: what DDL there is changes no type that is known."""
        return False
