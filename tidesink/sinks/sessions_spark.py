"""Frames across sessions: every table has sessions of its own, on one context with one cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same rows as a frame of ``session``; what is persisted stays so, the cache is shared."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    if frame.sparkSession is session:
        return frame
    jvm: Any = session._jvm
    plan = frame._jdf.logicalPlan()
    rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return ClassicFrame(rows, session)
