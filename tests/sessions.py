"""One small Spark session for every test of a run that asks for ``spark``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from tests.full import TEST_ALL
from tidesink.dev.stack import broker_jars, registry_runner
from tidesink.sinks.spark.jvm import (
    IN_SPARK,
    Coordinate,
    JarSet,
    drop_shipped,
    fetch,
    spark_connector_jars,
    spark_jars_directory,
)
from tidesink.sinks.spark.session import build_session, make_class_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.events import Message

_MEMORY: Final = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
_REST_SECONDS: Final = 60.0
# Small frames: one partition is quicker than many.
_SMALL: Final = {
    "spark.sql.shuffle.partitions": "2",
    # Tests also write to Delta tables as others would, in this session: 50 tasks for a few files take long.
    "spark.databricks.delta.snapshotPartitions": "2",
}
# For a worker of its own process, which ends too soon for the optimising compiler to be of use.
SMALL_SPARK: Final = {**_SMALL, "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 {_MEMORY}"}
# The one session of make test-all lasts long enough for that compiler. Delta contracts took about half
# the processor time without it (one run each, on a busy machine).
_LASTING: Final = {**_SMALL, "spark.driver.extraJavaOptions": _MEMORY} if TEST_ALL else SMALL_SPARK
# Contracts are many small queries, each with code to generate and compile: 18 % of the time of those
# over all codecs (docs/adr/0009). End-to-end tests, and all of make test-all, run generated code.
_INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
# The one session of a run also has the jars of the targets that bring their own.
WITH_TARGET: Final = "iceberg"
# For a catalog of Iceberg's in a database.
_SQLITE: Final = JarSet(
    "sqlite-jdbc", (Coordinate("org.xerial", "sqlite-jdbc", "3.46.1.3"),), excluded=(("org.slf4j", "*"),)
)


_AMAZON: Final = "software.amazon.awssdk"
_AMAZON_PARTS: Final = ("s3", "s3-transfer-manager", "sts", "kms", "apache-client", "url-connection-client")


def _s3_client() -> JarSet:
    """Hadoop's client of S3, with the parts that it needs of Amazon's instead of their bundle of 600 MB."""
    shipped = next(spark_jars_directory().glob("hadoop-client-api-*.jar"))
    hadoop = ("hadoop-client-api", "hadoop-client-runtime")
    return JarSet(
        "hadoop-aws",
        (
            Coordinate("org.apache.hadoop", "hadoop-aws", shipped.stem.rpartition("-")[2]),
            *(Coordinate(_AMAZON, name, "2.57.8") for name in _AMAZON_PARTS),
        ),
        excluded=(
            (_AMAZON, "bundle"),
            *(("org.apache.hadoop", name) for name in hadoop),
            *(one for one in IN_SPARK if one[0] != "org.apache.hadoop"),
        ),
    )


def sqlite_driver() -> Path:
    """The jar of SQLite's JDBC driver."""
    return next(fetch(_SQLITE).glob("sqlite-jdbc-*.jar"))


def beside_spark() -> list[Path]:
    """The jars that tests need and workers do not: SQLite's JDBC driver, and Hadoop's client of S3."""
    return [sqlite_driver(), *sorted(fetch(_s3_client(), finish=drop_shipped).glob("*.jar"))]


def hadoop_settings(session: SparkSession) -> Any:
    """Hadoop's settings of the process (Java's ``Configuration``)."""
    java: Any = session
    return java._jsc.hadoopConfiguration()


def keep_classes() -> bool:
    """Fetch the jars and keep Spark's classes, unless they are there: a run starts Spark again and again."""
    beside_spark()
    spark_connector_jars(targets=[WITH_TARGET])
    return make_class_archive()


@pytest.fixture(scope="session")
def kept_classes() -> bool:
    """Whether Spark's classes are kept."""
    return keep_classes()


@pytest.fixture(scope="session")
def spark(kept_classes: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores."""
    conf = {**_LASTING, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    if os.environ.get("TIDESINK_TEST_INTERPRETED"):
        conf |= _INTERPRETED
    with pytest.MonkeyPatch.context() as environment:
        # Spark puts this last on the class path: the classes that are kept fit what is in front of it.
        environment.setenv("SPARK_DIST_CLASSPATH", os.pathsep.join(map(str, beside_spark())))
        session = build_session(master="local[2]", conf=conf, targets=[WITH_TARGET], driver_memory="3g")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def let_go(request: pytest.FixtureRequest) -> Iterator[None]:
    """Frames that a test left persisted are let go of: each holds its session, and a run has a thousand."""
    yield
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        # To let go of frames and a job that fills one lock each other out for good (Spark 4.0).
        if _is_at_rest(session):
            session.catalog.clearCache()


def _is_at_rest(spark: SparkSession) -> bool:
    """Wait until no job runs: what a killed worker asked of the JVM goes on there. False where it goes on."""
    scheduler: Any = spark.sparkContext._jsc.sc().dagScheduler()
    deadline = time.monotonic() + _REST_SECONDS
    while scheduler.activeJobs().size():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def raw_frame(spark: SparkSession, messages: list[Message]) -> DataFrame:
    """Messages as a frame of Kafka's records."""
    # A small Arrow table is a relation of the plan's own: no job runs to read it.
    return spark.createDataFrame(raw_table(messages))


def raw_table(messages: Sequence[Message]) -> pa.Table:
    """Messages as Kafka's records."""
    columns = {
        "topic": pa.array([message.topic for message in messages], pa.string()),
        "partition": pa.array([message.partition for message in messages], pa.int32()),
        "offset": pa.array([message.offset for message in messages], pa.int64()),
        "timestamp": pa.array([None] * len(messages), pa.timestamp("us", "UTC")),
        "key": pa.array([message.key for message in messages], pa.binary()),
        "value": pa.array([message.value for message in messages], pa.binary()),
    }
    return pa.table(columns)


if __name__ == "__main__":
    # All that the tests download, before they run.
    broker_jars()
    registry_runner()
    keep_classes()
