"""The Spark session of one Delta table.

Delta reads transaction ids, commit words and most tuning from session settings, so every table works in
a session of its own. It shares Spark's context, cache and catalog with the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidesink.sinks.targets.base import ReducedBatch

_APPLICATION: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"

# Measured in docs/adr/0006-delta-small-batches.md.
SESSION_SETTINGS: Final[Mapping[str, str]] = {
    # A snapshot's state is computed anew for each version: 50 partitions cost more than they save.
    "spark.databricks.delta.snapshotPartitions": "2",
    # The batch is persisted by whoever made it: a second copy would only cost.
    "spark.databricks.delta.merge.materializeCachedSource": "false",
    # delta_compaction packs what is below 64 MiB into files of up to 128 MiB.
    "spark.databricks.delta.optimize.minFileSize": "67108864",
    "spark.databricks.delta.optimize.maxFileSize": "134217728",
    "spark.databricks.delta.autoCompact.enabled": "false",
}
# Up to this many rows a batch is shuffled into one partition: fewer tasks, and one new file.
SMALL_BATCH: Final = 10_000
_MATERIALIZE: Final = "spark.databricks.delta.merge.materializeSource"
_BROADCAST: Final = "spark.sql.autoBroadcastJoinThreshold"
_MEASURED_BROADCAST: Final = "spark.sql.adaptive.autoBroadcastJoinThreshold"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
# It reports as an error that a filter of Delta's own is not pushed down to Parquet.
_TOO_LOUD: Final = "org.apache.spark.sql.delta.DeltaParquetFileFormat"


def open_session(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A new session beside ``spark``: the settings of its context, ours, and then ``settings``."""
    session = spark.newSession()
    _quieten(session)
    _know_settings(session)
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


@contextmanager
def partitions_for(session: SparkSession, rows: int) -> Iterator[None]:
    """Shuffles of ``session`` have as many partitions as ``rows`` are worth while this holds."""
    usual = session.conf.get(_PARTITIONS) or "200"
    if rows <= SMALL_BATCH:
        session.conf.set(_PARTITIONS, "1")
    try:
        yield
    finally:
        session.conf.set(_PARTITIONS, usual)


@contextmanager
def source_of(session: SparkSession, batch: ReducedBatch) -> Iterator[None]:
    """A MERGE of ``session`` reads a checkpointed batch as it is while this holds, without a copy of its own.

    Delta copies the source of a MERGE, since its two reads of it must find the same rows. Those of a
    checkpoint do: its payloads are stored blocks, which Spark never computes again, and to unpack them
    depends on nothing else. Blocks that are lost with an executor fail the statement before its commit; the
    batch is then tried again from Kafka.
    """
    large = batch.upserts + batch.deletes > SMALL_BATCH
    settings = {_MATERIALIZE: "none"} if batch.checkpointed else {}
    if batch.checkpointed and large:
        # Spark takes a checkpoint for as small as the numbers of ranges it was made of, and would broadcast
        # it. What it measures while the statement runs is right.
        settings |= {_BROADCAST: "-1", _MEASURED_BROADCAST: "10MB"}
    usual = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, before in usual.items():
            if before is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, before)


def _know_settings(session: SparkSession) -> None:
    """Have Delta's settings registered, all of them; a thread that does so already is waited for.

    Spark refuses to set one that it knows of and that is not among SQL's yet (CANNOT_MODIFY_CONFIG): as they
    are for a moment when another table's thread is the first to use Delta.
    """
    jvm: Any = session._jvm
    getattr(getattr(jvm.org.apache.spark.sql.delta.sources, "DeltaSQLConf$"), "MODULE$")


def _quieten(session: SparkSession) -> None:
    jvm: Any = session._jvm
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(_TOO_LOUD, log4j.Level.OFF)
