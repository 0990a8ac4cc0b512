"""Which schemas stand in debezium-json records: asked of a batch by one job, with a row a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_debezium_json_schema import (
    PAYLOAD_FIRST,
    SCHEMA_FIRST,
    THEN_PAYLOAD,
    THEN_SCHEMA,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# More are no schemas of one table's writers, but damaged records.
MOST_HEADS: Final = 200
_PARTS: Final = ("key", "value")


class Heads(NamedTuple):
    """What stands around the payloads of keys and of values, oldest first (``debezium_json_columns``)."""

    key: tuple[str, ...] = ()
    value: tuple[str, ...] = ()

    def with_new(self, other: Heads) -> Heads:
        """These, and behind them those of ``other`` that are new; ``MOST_HEADS`` at most."""
        key, value = (
            tuple(dict.fromkeys((*mine, *new)))[:MOST_HEADS] for mine, new in zip(self, other, strict=True)
        )
        return Heads(key, value)


def heads_in(raw: DataFrame) -> Heads:
    """The schemas in a raw Kafka frame, each once, in the order in which they came up."""
    place = F.struct("timestamp", "offset", "partition")
    parts = F.array(
        *(F.struct(F.lit(part).alias("part"), _head(F.col(part)).alias("head")) for part in _PARTS)
    )
    each = raw.select(F.explode(parts).alias("found"), place.alias("place"))
    named = each.select("found.part", "found.head", "place").where(F.col("head").isNotNull())
    first = named.groupBy("part", "head").agg(F.min("place").alias("place"))
    rows = first.orderBy("place").limit(2 * MOST_HEADS).collect()
    key, value = (tuple(row["head"] for row in rows if row["part"] == part) for part in _PARTS)
    return Heads(key, value)


def _head(data: Column) -> Column:
    """All up to the payload, or from behind it; null for what is in neither form."""
    text = data.cast("string")
    before = F.substring_index(text, THEN_PAYLOAD, 1)
    behind = F.substring_index(text, "}" + THEN_SCHEMA, -1)
    first = F.startswith(text, F.lit(SCHEMA_FIRST)) & (before != text)
    last = F.startswith(text, F.lit(PAYLOAD_FIRST)) & (behind != text)
    found = F.when(first, F.concat(before, F.lit(THEN_PAYLOAD)))
    found = found.when(last, F.concat(F.lit(THEN_SCHEMA), behind))
    # What is no text is no schema: its bytes would not be found again.
    return F.when(F.is_valid_utf8(text), found)
