"""Dead letters as a Delta table beside the lake's tables (``delta_records``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidesink.change import TableId
from tidesink.sinks.rejects import DEAD_LETTERS, Chosen
from tidesink.sinks.targets.delta_records import DeltaRecords, same_record
from tidesink.sinks.targets.identifier import quote_identifier, quote_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DeltaDeadLetters(DeltaRecords):
    """The dead letters of a lake. One object a worker thread: it has a Spark session of its own."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        super().__init__(spark, root, DEAD_LETTERS)

    def frame(self, chosen: Chosen) -> DataFrame:
        """The chosen letters as Spark reads Kafka's records. The table must be there."""
        return self.chosen_frame(chosen).selectExpr(
            "topic", "partition", "offset", "`time` AS timestamp", "key", "value"
        )

    def settle(self, outcomes: DataFrame, *, pipeline: str, table: TableId) -> int:
        """Forget the letters that are dealt with, and keep the new reason of the others, in one commit."""
        same = same_record(quote_text(pipeline), quote_text(str(table)))

        def merge() -> int:
            with self.view_of(outcomes) as view:
                found = self.sql(
                    f"MERGE INTO {self.location} AS t USING {quote_identifier(view)} AS s ON {same} "
                    "WHEN MATCHED AND s.error IS NULL THEN DELETE "
                    "WHEN MATCHED THEN UPDATE SET t.error = s.error, t.reason = s.reason"
                )
            return int(found[0]["num_affected_rows"]) if found else 0

        return self.writing(merge, table=str(table))
