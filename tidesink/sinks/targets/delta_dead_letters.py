"""Dead letters as one Delta table beside the lake's tables.

Records are merged in by their place in Kafka, so that a batch read again, in whatever epoch, keeps each
only once. The table is partitioned by pipeline and source table, and the MERGE names both, so that
tables which write at the same time do not conflict.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Final

from tidesink.change import TableId
from tidesink.errors import TidesinkError
from tidesink.sinks.progress import Progress
from tidesink.sinks.rejects import DEAD_LETTER_COLUMNS, DEAD_LETTERS_NAME
from tidesink.sinks.sessions_spark import in_session
from tidesink.sinks.targets.delta_errors import SPARK_ERRORS, reading_error, translated
from tidesink.sinks.targets.delta_log import DeltaLog
from tidesink.sinks.targets.delta_session import open_session
from tidesink.sinks.targets.identifier import quote_identifier, quote_path, quote_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# ruff: noqa: S608  every name and text in a statement is quoted by identifier.py
_VIEW: Final = "_tidesink_dead"
# Views have names of their own, in whichever session and thread they are made.
_NUMBERS: Final = count()
_PLACE: Final = ("topic", "partition", "offset")


class DeltaDeadLetters:
    """The dead letters of a lake. One object a worker thread: it has a Spark session of its own."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.path = f"{root.rstrip('/')}/{DEAD_LETTERS_NAME}"
        self.location = f"delta.{quote_identifier(self.path)}"
        self._session = open_session(spark)
        self._log = DeltaLog(self._session, self.path)

    def append(self, records: DataFrame, progress: Progress) -> int:
        """Keep the bad records of one batch that are not kept yet; how many were new."""
        try:
            if not self._log.exists:
                self._session.sql(_create_statement(self.location))
            with self._view_of(records) as view:
                merged = self._session.sql(_merge_statement(self.location, view, progress)).collect()
        except SPARK_ERRORS as exc:
            raise self._error(translated(exc, table=str(progress.table))) from exc
        return int(merged[0]["num_inserted_rows"]) if merged else 0

    def count(self, table: TableId) -> int:
        """How many records of a table are kept."""
        try:
            if not self._log.exists:
                return 0
            frame = self._session.read.format("delta").load(self.path)
            return frame.where(frame["table"] == str(table)).count()
        except SPARK_ERRORS as exc:
            raise self._error(reading_error(exc, table=str(table))) from exc

    @contextmanager
    def _view_of(self, records: DataFrame) -> Iterator[str]:
        """A name for the records in a statement, theirs alone; what is under it is let go of afterwards."""
        view = f"{_VIEW}_{next(_NUMBERS)}"
        in_session(records, self._session).createOrReplaceTempView(view)
        try:
            yield view
        finally:
            self._session.catalog.dropTempView(view)

    def _error(self, error: TidesinkError) -> TidesinkError:
        return error.with_context(place=self.path)


def _create_statement(location: str) -> str:
    columns = ", ".join(
        f"{quote_identifier(name)} {ddl} COMMENT {quote_text(comment)}"
        for name, ddl, comment in DEAD_LETTER_COLUMNS
    )
    return (
        f"CREATE TABLE IF NOT EXISTS {location} ({columns}) USING delta PARTITIONED BY (`pipeline`, `table`) "
        "COMMENT 'records tidesink could not decode' TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )


def _merge_statement(location: str, view: str, progress: Progress) -> str:
    given = {
        "pipeline": quote_text(progress.pipeline),
        "table": quote_text(str(progress.table)),
        "batch": f"{progress.batch}L",
    }
    names = [name for name, _, _ in DEAD_LETTER_COLUMNS]
    columns = ", ".join(map(quote_identifier, names))
    values = [given.get(name, quote_path("s", name)) for name in names]
    same_place = " AND ".join(f"{quote_path('t', name)} = {quote_path('s', name)}" for name in _PLACE)
    return (
        f"MERGE INTO {location} AS t USING {quote_identifier(view)} AS s "
        f"ON t.`pipeline` = {given['pipeline']} AND t.`table` = {given['table']} AND {same_place} "
        f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({', '.join(values)})"
    )
