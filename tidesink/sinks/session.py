"""The Spark session a worker runs in, with defaults that suit one machine.

ANSI mode is on, the session's zone is UTC, and the connector jars come from Spark's own Ivy. What the
user sets in ``conf`` wins, save the few settings that values depend on.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidesink.errors import ConfigError
from tidesink.sinks.class_archive import archive_options
from tidesink.sinks.ivy import spark_connector_jars
from tidesink.sinks.spark_java import spark_java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = structlog.get_logger("tidesink.spark")
# The generated code of a wide table's MERGE is one method of more than 8,000 bytes of bytecode, which
# HotSpot only interprets unless told otherwise.
_JAVA_OPTIONS: Final = "-XX:+IgnoreUnrecognizedVMOptions -XX:-DontCompileHugeMethods"
# The JVM of a local master, unless a user gives options of their own. What is left to it, MERGE and a table's
# log, is over before C2's code pays for its compilation (docs/adr/0028-one-jvm.md).
_LOCAL_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC"

# Values depend on these: a user's conf may repeat them and not change them.
FIXED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Texts in statements, by which rows are found, are spelt by codes.
    "spark.sql.parser.escapedStringLiterals": "false",
}

# Values of a user's conf under which others are written than those of the source.
LOSES: Final[Mapping[str, str]] = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}

_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Each call on a Column would ask the JVM for its place in the source: half the time of planning.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A MERGE has some 120 generated classes. Spark keeps 100, so that each batch would compile them all anew.
    "spark.sql.codegen.cache.maxEntries": "4000",
    # A worker lives for months: Spark keeps 1,000 finished jobs and queries otherwise.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
}
_JAVA_KEYS: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def build_session(
    *,
    app_name: str = "tidesink",
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    jars: Sequence[Path] | None = None,
    target: str | None = None,
    driver_memory: str = "2g",
    log_level: str = "ERROR",
) -> SparkSession:
    """A Spark session that writes Delta.

    ``jars`` are the connector jars (default: those of the installed Spark, with what a ``target`` of this
    type needs besides, fetched when not yet here).
    On a cluster ``master`` is its URL and jars are shipped by Spark.

    Raises:
        ConfigError: pyspark is missing, or ``conf`` changes a setting that values depend on.
        DevStackError: no Java, or the jars cannot be fetched.
    """
    settings = session_settings(master=master, conf=conf or {}, driver_memory=driver_memory)
    # find_java passes over a JAVA_HOME that cannot run Spark, so what it found replaces it.
    os.environ.update(spark_java_environment())
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Spark starts whatever python3 stands first on the PATH otherwise, without our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = list(jars) if jars is not None else spark_connector_jars(target=target)
    settings |= _with_jars(found, settings, master=master)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    _quieten_broken_connections(session)
    return session


def _with_jars(found: Sequence[Path], settings: Mapping[str, str], *, master: str) -> dict[str, str]:
    """The settings that bring the connectors: on the class path of the one JVM, else shipped by Spark.

    A session of one JVM would otherwise copy them all for itself, and read their classes anew each time.
    """
    if not found:
        return {}
    if not _is_one_jvm(master):
        return {"spark.jars": ",".join([*map(str, found), *filter(None, [settings.get("spark.jars")])])}
    options, own = settings[_JAVA_KEYS[0]], settings.get("spark.driver.extraClassPath")
    return {
        "spark.driver.extraClassPath": os.pathsep.join([*map(str, found), *filter(None, [own])]),
        _JAVA_KEYS[0]: f"{archive_options(found)} {options}".strip(),
    }


def _quieten_broken_connections(session: SparkSession) -> None:
    """Have connections to the JVM that break not printed with their tracebacks.

    They break where the JVM ends before us; whoever waits for an answer hears of that by itself.
    """
    # py4j logs them on the root logger and on its own, with the traceback, beside raising them.
    for name in (None, "py4j.java_gateway", "py4j.clientserver"):
        logging.getLogger(name).addFilter(_is_no_broken_connection)
    server: Any = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda _request, _address: _log.debug("a task's report was cut off")


def _is_no_broken_connection(record: logging.LogRecord) -> bool:
    from py4j.protocol import Py4JNetworkError

    error = record.exc_info[1] if record.exc_info else None
    return not (
        record.module in ("java_gateway", "clientserver") and isinstance(error, Py4JNetworkError | OSError)
    )


def running_session() -> SparkSession | None:
    """The session of this process, where one runs."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # getActiveSession answers for the calling thread alone.
    return SparkSession.builder.getOrCreate() if SparkContext._active_spark_context else None


def stop_session(session: SparkSession) -> None:
    """Stop Spark; where its JVM has ended already there is nothing to stop."""
    with _jvm_may_be_gone():
        session.stop()


def cancel_jobs(session: SparkSession) -> None:
    """Cancel every Spark job under way."""
    with _jvm_may_be_gone():
        session.sparkContext.cancelAllJobs()


@contextmanager
def _jvm_may_be_gone() -> Iterator[None]:
    """For calls that only end things: a signal to the whole process group ends the JVM before us."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as exc:
        _log.debug("the JVM does not answer", error=type(exc).__name__)


def session_settings(*, master: str, conf: Mapping[str, str], driver_memory: str = "2g") -> dict[str, str]:
    """Every setting of a session but its jars: defaults, then ``conf``, then what values depend on.

    Raises:
        ConfigError: ``conf`` changes a setting that values depend on.
    """
    for name, value in FIXED.items():
        if conf.get(name, value).lower() != value.lower():
            raise ConfigError(
                f"spark.conf: {name} must stay {value}, since values depend on it; remove it", key=name
            )
    for name, value in LOSES.items():
        if conf.get(name, "").upper() == value:
            raise ConfigError(f"spark.conf: {name} {value} cuts values short: remove it", key=name)
    settings = {**_DEFAULTS, "spark.driver.memory": driver_memory}
    settings["spark.sql.shuffle.partitions"] = str(2 * local_cores(master))
    settings.update(conf)
    settings.update(FIXED)
    usual = _LOCAL_JAVA_OPTIONS if _is_one_jvm(master) else ""
    for name in _JAVA_KEYS:
        settings[name] = f"{_JAVA_OPTIONS} {conf.get(name, usual)}".strip()
    return settings


def _is_one_jvm(master: str) -> bool:
    """Whether driver and executors share a JVM: ``local[...]``, and not ``local-cluster[...]``."""
    return master.partition("[")[0] == "local"


def local_cores(master: str) -> int:
    """The cores of a ``local[...]`` master; for a cluster a start that adaptive execution corrects."""
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside.isdigit():
        return int(inside)
    if inside == "*":
        return os.cpu_count() or 1
    return 1 if master.startswith("local") else 100
