"""Dead letters: records that could not be decoded, kept whole where a person can look at them.

The table is part of the public interface; its columns are these, in this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tidesink.change import TableId
from tidesink.sinks.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEAD_LETTERS_NAME: Final = "_tidesink_dead_letters"

# (column, Spark type, comment)
DEAD_LETTER_COLUMNS: Final = (
    ("pipeline", "string", "the pipeline that read the record"),
    ("table", "string", "the source table as schema.name"),
    ("topic", "string", "Kafka topic"),
    ("partition", "int", "Kafka partition"),
    ("offset", "bigint", "Kafka offset"),
    ("key", "binary", "the record's key as it was read"),
    ("value", "binary", "the record's value as it was read"),
    ("schema_id", "int", "registry id the value was written with"),
    ("error", "string", "class of the error"),
    ("reason", "string", "what is wrong, and what mends it"),
    ("time", "timestamp", "Kafka timestamp of the record"),
    ("batch", "bigint", "the batch that met it first"),
)


class DeadLetters(Protocol):
    """Where bad records go under ``bad-record: dead-letter``."""

    def append(self, records: DataFrame, progress: Progress) -> int:
        """Keep the bad records of one batch, before the batch itself is applied; the number kept now.

        ``records`` has the columns topic, partition, offset, key, value, schema_id, error, reason, time.
        A record kept before (same pipeline, table, topic, partition and offset) is not kept twice, so
        a batch that is read again after a crash, in a later epoch too, adds nothing.

        Raises: as ``TargetTable.apply``.
        """

    def count(self, table: TableId) -> int:
        """How many records of a table are kept."""
