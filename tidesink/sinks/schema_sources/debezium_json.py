"""Decoding a debezium-json table: its types are in its records, or in a definition, or nowhere.

The first record of a row tells the first plan. What other records have comes from the tasks that decode
them. Types that no definition and no schema tells are text, with a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidesink.codecs.debezium.inference import UNTYPED, first_row
from tidesink.events import TableId
from tidesink.sinks.batch.source import translated_read_errors
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets, growing_parts
from tidesink.sinks.plans.debezium_json import Writers, debezium_json_plan, first_writer, writer_of
from tidesink.sinks.schema_sources.base import Missed, declared_table
from tidesink.sinks.schema_sources.open import LoneDecoding
from tidesink.sinks.spark.record_frames import with_values
from tidesink.sinks.worker.context import WorkerContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# So many records of a topic are looked at first for what tells its columns.
_PEEKED_RECORDS: Final = 1_000


class DebeziumJsonDecoding(LoneDecoding):
    """One table's writers, and the plan they make."""

    def __init__(self, around: WorkerContext, topic: str, table: TableId, *, session: SparkSession) -> None:
        super().__init__(around, topic, table, session=session)
        self._declared = declared_table(self._settings.definition, table)
        self._options = around.config.source.codec_options()
        self._writers = Writers()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns whose type at the target is not the nearest one, with the reason; those nothing tells."""
        reported = self._writers.reported.values()
        texts = [f"column {one.column.name}: {UNTYPED}" for one in reported if one.guessed]
        return (*super().warnings, *texts)

    def prepare(self, found: TopicOffsets) -> None:
        """Look at the topic's first records until one tells the table's columns."""
        everything = [OffsetRange(self._topic, n, *at) for n, at in found.partitions.items()]
        for part in growing_parts(everything, _PEEKED_RECORDS):
            if self._tells(part):
                break
        self._make()

    def learn(self, missed: Missed) -> bool:
        """Take the writers that the batch has and the plan lacks."""
        new = [writer_of(text) for text in missed.summary.unplanned_columns]
        writers = self._writers.with_new(new, later=True)
        if writers == self._writers:
            return False
        self._writers = writers
        self._make()
        return True

    def _tells(self, ranges: Sequence[OffsetRange]) -> bool:
        """Look at some records; whether one of them gave the table's columns."""
        with translated_read_errors(self._topic):
            rows = with_values(self._around.source.frame(self._session, ranges))
            found = first_row(rows, self._options, self._declared)
        if found is not None:
            self._writers = self._writers.with_new([first_writer(found)])
        return found is not None

    def _make(self) -> None:
        settings = self._settings
        self._plan = debezium_json_plan(
            settings.table,
            writers=self._writers,
            base=self._plan.shape if self._plan else None,
            definition=self._declared,
            keys=settings.keys,
            zero_date=settings.zero_date,
            time_zone=settings.time_zone,
            options=self._options,
            logs=settings.mode == "append",
            positions="position" in settings.metadata_columns,
        )


def open_decoding(
    around: WorkerContext, topic: str, table: TableId, *, session: SparkSession
) -> DebeziumJsonDecoding:
    """The decoding of one topic's table.

    Raises:
        ConfigError: its definition is not of this table.
    """
    return DebeziumJsonDecoding(around, topic, table, session=session)
