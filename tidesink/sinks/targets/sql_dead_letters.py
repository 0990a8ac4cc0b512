"""Dead letters in the target's own database (``sql_records``)."""

# ruff: noqa: S608  every name in a statement is quoted by the dialect, every value a parameter
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidesink.change import TableId
from tidesink.errors import TargetError
from tidesink.sinks.rejects import DEAD_LETTERS, Chosen
from tidesink.sinks.targets.sql_dialect import Dialect
from tidesink.sinks.targets.sql_endpoint import Endpoint
from tidesink.sinks.targets.sql_place import Place
from tidesink.sinks.targets.sql_record_tasks import KEY, RecordReader, RecordSettler
from tidesink.sinks.targets.sql_records import SqlRecords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ: Final = ("topic", "partition", "offset", "time", "key", "value")
_SCHEMA: Final = "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"


class SqlDeadLetters(SqlRecords):
    """The dead letters of a database; ``spark`` is needed for ``frame`` alone."""

    def __init__(
        self,
        dialect: Dialect,
        endpoint: Endpoint,
        place_of: Callable[[TableId], Place],
        spark: SparkSession | None = None,
    ) -> None:
        super().__init__(dialect, endpoint, place_of, DEAD_LETTERS)
        self._spark = spark

    def frame(self, chosen: Chosen) -> DataFrame:
        """The chosen letters as Spark reads Kafka's records; lazy, read by one task."""
        if self._spark is None:
            raise TargetError("dead letters are read as a frame by a replay alone, which has Spark")
        names = ", ".join(map(self._quoted, _READ))
        with self.transaction(self.table.name, writes=False) as cursor:
            queries = [
                (f"SELECT {names} FROM {location} WHERE {where}", values)
                for location, where, values in self.selections(cursor, chosen)
            ]
        reader = RecordReader(self.dialect.database, self.endpoint, queries)
        return self._spark.range(1, numPartitions=1).mapInArrow(reader, _SCHEMA)

    def settle(self, outcomes: DataFrame, *, pipeline: str, table: TableId) -> int:
        """Forget the letters that are dealt with, and keep the new reason of the others."""
        # One task: each is a transaction, and what replays is settled whole or not at all.
        settled = outcomes.coalesce(1)
        chosen = Chosen(pipeline, str(table))
        with self.transaction(self.table.name, writes=False) as cursor:
            locations = [found.location for found in self.selections(cursor, chosen)]
        return sum(
            self.run(settled, self._settler(place, pipeline, table), table=str(table)) for place in locations
        )

    def _settler(self, location: str, pipeline: str, table: TableId) -> RecordSettler:
        key, error, reason = map(self._quoted, (KEY, "error", "reason"))
        delete = f"DELETE FROM {location} WHERE {key} = %s"
        update = f"UPDATE {location} SET {error} = %s, {reason} = %s WHERE {key} = %s"
        return RecordSettler(self.dialect.database, self.endpoint, delete, update, pipeline, str(table))
