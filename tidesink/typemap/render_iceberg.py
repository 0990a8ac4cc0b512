"""A column's type in Iceberg's own words. Tables are made through Spark, whose types these are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Spark type -> Iceberg's; the others have Spark's word. A contract test holds it to Iceberg's own library.
_OF_SPARK: Final[Mapping[str, str]] = MappingProxyType(
    {"bigint": "long", "timestamp_ntz": "timestamp", "timestamp": "timestamptz"}
)


def iceberg_type(spark: str) -> str:
    """The Iceberg type of a Spark DDL type."""
    return _OF_SPARK.get(spark, spark)
