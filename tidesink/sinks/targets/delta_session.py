"""The Spark session of one Delta table.

Delta reads transaction ids, commit words and most tuning from session settings, so every table works in
a session of its own. It shares Spark's context, cache and catalog with the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_APPLICATION: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"

# Measured in docs/adr/0006-delta-small-batches.md.
SESSION_SETTINGS: Final[Mapping[str, str]] = {
    "spark.databricks.delta.snapshotPartitions": "2",
}


def open_session(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A new session beside ``spark``, with its settings, ours, and then ``settings``."""
    session = spark.newSession()
    # A new session knows the context's settings only; those set on the given session at run time count too.
    for name, value in {**SESSION_SETTINGS, **(settings or {})}.items():
        session.conf.set(name, value)
    return session


@contextmanager
def transaction(session: SparkSession, application: str, version: int) -> Iterator[None]:
    """Delta writes of ``session`` carry a transaction version while this holds.

    Delta skips, without a word, a write whose version is not above the one stored.
    """
    session.conf.set(_APPLICATION, application)
    session.conf.set(_VERSION, str(version))
    try:
        yield
    finally:
        session.conf.unset(_APPLICATION)
        session.conf.unset(_VERSION)


def in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same rows as a frame of ``session``; what is persisted stays so, the cache is shared."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    if frame.sparkSession is session:
        return frame
    jvm: Any = session._jvm
    plan = frame._jdf.logicalPlan()
    rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return ClassicFrame(rows, session)
