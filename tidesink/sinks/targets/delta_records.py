"""Kept records as one Delta table beside the lake's tables.

Records are merged in by their identity in Kafka, so that a batch read again, in whatever epoch, keeps each
only once. The table is partitioned by pipeline and source table, and the statements name both, so that
tables which write at the same time do not conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidesink.change import TableId
from tidesink.errors import TidesinkError
from tidesink.sinks.progress import Progress
from tidesink.sinks.rejects import IDENTITY, PLACE, Chosen, RecordGroup, RecordTable, in_order
from tidesink.sinks.sessions_spark import in_session
from tidesink.sinks.targets.delta_errors import SPARK_ERRORS, reading_error, translated
from tidesink.sinks.targets.delta_log import DeltaLog
from tidesink.sinks.targets.delta_session import open_session
from tidesink.sinks.targets.identifier import quote_identifier, quote_path, quote_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# ruff: noqa: S608  every name and text in a statement is quoted by identifier.py
T = TypeVar("T")
_VIEW: Final = "_tidesink_kept"
# Several tables meet their first DDL at once, and of those who make a Delta table at once all but one fail.
_MAKING: Final = Lock()
# Views have names of their own, in whichever session and thread they are made.
_NUMBERS: Final = count()


class DeltaRecords:
    """One table of kept records. One object a worker thread: it has a Spark session of its own."""

    def __init__(self, spark: SparkSession, root: str, table: RecordTable) -> None:
        self.table = table
        self.path = f"{root.rstrip('/')}/{table.name}"
        self.location = f"delta.{quote_identifier(self.path)}"
        self._session = open_session(spark)
        self._log = DeltaLog(self._session, self.path)

    @property
    def place(self) -> str:
        """The table's folder."""
        return self.path

    def append(self, records: DataFrame, progress: Progress) -> int:
        """Keep the records of one batch that are not kept yet; how many of the batch's are kept now."""
        table = str(progress.table)

        def merge() -> int:
            if self._log.exists:
                self._complete()
            else:
                self._create()
            with self.view_of(records) as view:
                self.sql(_insert_statement(self.location, view, self.table, progress))
                return int(self.sql(_kept_statement(self.location, view, progress))[0][0])

        records.persist()  # they come from Kafka, and are looked at twice
        try:
            return self.writing(merge, table=table)
        finally:
            records.unpersist()

    def _create(self) -> None:
        """Make the table, unless another thread of this worker did meanwhile."""
        with _MAKING:
            if not self._log.exists:
                self._session.sql(_create_statement(self.location, self.table))

    def _complete(self) -> None:
        """Give a table of an earlier version the columns it lacks."""
        there = set(self._all().columns)
        lacks = [column for column in self.table.columns if column[0] not in there]
        if lacks:
            self._session.sql(f"ALTER TABLE {self.location} ADD COLUMNS ({_spelt(lacks)})")

    def count(self, table: TableId) -> int:
        """How many records of a table are kept, of all pipelines."""
        return self._reading(lambda: self._all().where(f"`table` = {quote_text(str(table))}").count(), 0)

    def groups(self, chosen: Chosen) -> tuple[RecordGroup, ...]:
        """The chosen records counted by table, partition and sort."""
        return in_order(self._reading(lambda: self._groups(chosen), []))

    def rows(self, chosen: Chosen, *, limit: int) -> tuple[dict[str, Any], ...]:
        """The first of the chosen records, whole."""
        return tuple(self._reading(lambda: self._rows(chosen, limit), []))

    def remove(self, chosen: Chosen) -> int:
        """Forget the chosen records; how many they were."""

        def delete() -> int:
            if not self._log.exists:
                return 0
            done = self._session.sql(f"DELETE FROM {self.location} WHERE {condition(chosen, self.table)}")
            return max(0, int(done.collect()[0]["num_affected_rows"]))

        return self.writing(delete, table=chosen.table or chosen.pipeline)

    def chosen_frame(self, chosen: Chosen) -> DataFrame:
        """The chosen records; lazy. The table must be there."""
        return self._all().where(condition(chosen, self.table))

    @property
    def exists(self) -> bool:
        """Whether anything was ever kept."""
        return self._log.exists

    @contextmanager
    def view_of(self, records: DataFrame) -> Iterator[str]:
        """A name for records in a statement, theirs alone; what is under it is let go of afterwards."""
        view = f"{_VIEW}_{next(_NUMBERS)}"
        in_session(records, self._session).createOrReplaceTempView(view)
        try:
            yield view
        finally:
            self._session.catalog.dropTempView(view)

    def writing(self, step: Callable[[], T], *, table: str) -> T:
        """What a step that commits gives, its errors as tidesink's."""
        try:
            return step()
        except SPARK_ERRORS as exc:
            raise self._error(translated(exc, table=table)) from exc

    def sql(self, statement: str) -> list[Any]:
        """The rows of a statement in this table's session."""
        return self._session.sql(statement).collect()

    def _all(self) -> DataFrame:
        return self._session.read.format("delta").load(self.path)

    def _reading(self, question: Callable[[], T], nothing: T) -> T:
        try:
            if not self._log.exists:
                return nothing
            self._complete()
            return question()
        except SPARK_ERRORS as exc:
            raise self._error(reading_error(exc, table=self.table.name)) from exc

    def _groups(self, chosen: Chosen) -> list[RecordGroup]:
        from pyspark.sql import functions as F  # noqa: N812

        grouped = self.chosen_frame(chosen).groupBy(
            "table", "topic", "topic_id", "partition", self.table.kind
        )
        # Times as numbers: Spark would hand them over in this machine's time zone.
        time = F.unix_micros("time")
        found = grouped.agg(F.count("*"), F.min("offset"), F.max("offset"), F.min(time), F.max(time))
        rows = map(tuple, found.collect())
        return [
            RecordGroup(table, topic, part, kind, number, least, most, moment(first), moment(last), topic_id)
            for table, topic, topic_id, part, kind, number, least, most, first, last in rows
        ]

    def _rows(self, chosen: Chosen, limit: int) -> list[dict[str, Any]]:
        from pyspark.sql import functions as F  # noqa: N812

        frame = self.chosen_frame(chosen).withColumn("time", F.unix_micros("time"))
        found = frame.orderBy("table", *PLACE).limit(limit).select(*self.table.names).collect()
        return [read_row(row.asDict()) for row in found]

    def _error(self, error: TidesinkError) -> TidesinkError:
        return error.with_context(place=self.path)


def condition(chosen: Chosen, table: RecordTable) -> str:
    """The chosen records as a condition; it names the partition columns first."""
    micros = None if chosen.before is None else int(chosen.before.timestamp() * 1_000_000)
    named = ("pipeline", "table", "topic", "topic_id")
    texts = [(name, getattr(chosen, name)) for name in named]
    numbers = (
        ("partition", "=", chosen.partition),
        ("offset", "=", chosen.offset),
        ("offset", "<", chosen.below),
    )
    said = [f"{quote_identifier(name)} = {quote_text(text)}" for name, text in texts if text is not None]
    said += [
        f"{quote_identifier(name)} {sign} {number}" for name, sign, number in numbers if number is not None
    ]
    if chosen.kind is not None:
        said.append(f"{quote_identifier(table.kind)} = {quote_text(chosen.kind)}")
    if micros is not None:
        said.append(f"`time` < timestamp_micros({micros})")
    return " AND ".join(said)


def moment(micros: int | None) -> datetime | None:
    """A moment by its microseconds since 1970, UTC."""
    return None if micros is None else datetime.fromtimestamp(micros / 1_000_000, timezone.utc)


def read_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its bytes and its time as Python has them; Spark gives binary as bytearray."""
    plain = {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.items()}
    return {**plain, "time": moment(row["time"])}


def _create_statement(location: str, table: RecordTable) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {location} ({_spelt(table.columns)}) USING delta "
        f"PARTITIONED BY (`pipeline`, `table`) COMMENT {quote_text(table.comment)} "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )


def _spelt(columns: Sequence[tuple[str, str, str]]) -> str:
    return ", ".join(
        f"{quote_identifier(name)} {ddl} COMMENT {quote_text(comment)}" for name, ddl, comment in columns
    )


def _insert_statement(location: str, view: str, table: RecordTable, progress: Progress) -> str:
    given = {
        "pipeline": quote_text(progress.pipeline),
        "table": quote_text(str(progress.table)),
        "batch": f"{progress.batch}L",
    }
    columns = ", ".join(map(quote_identifier, table.names))
    values = [given.get(name, quote_path("s", name)) for name in table.names]
    return (
        f"MERGE INTO {location} AS t USING {quote_identifier(view)} AS s "
        f"ON {same_record(given['pipeline'], given['table'])} "
        f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({', '.join(values)})"
    )


def _kept_statement(location: str, view: str, progress: Progress) -> str:
    same = same_record(quote_text(progress.pipeline), quote_text(str(progress.table)))
    return f"SELECT count(*) FROM {quote_identifier(view)} AS s LEFT SEMI JOIN {location} AS t ON {same}"


def same_record(pipeline: str, table: str) -> str:
    """Equality of a kept record ``t`` and ``s``; ``pipeline`` and ``table`` are literals."""
    places = (f"{quote_path('t', name)} = {quote_path('s', name)}" for name in IDENTITY)
    return f"t.`pipeline` = {pipeline} AND t.`table` = {table} AND {' AND '.join(places)}"
