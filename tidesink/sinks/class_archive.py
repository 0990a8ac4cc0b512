"""Spark's classes kept parsed and verified in a file of the JVM's own, so that Spark starts sooner.

A JVM reads some 15,000 classes before Spark's first job. HotSpot can keep those of the class path as it
holds them in memory (application class-data sharing, JEP 350): starting a session and its first job then
take 40 % less CPU time (docs/adr/0011). The file is made once a Spark and a Java, by a JVM that starts
Spark, runs a small job and ends. Where it is missing, or the JVM finds that it does not fit, Spark starts
as it does without.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from tidesink.sinks.ivy import Progress, cache_directory, silent, spark_connector_jars
from tidesink.sinks.java import JavaRuntime, find_java
from tidesink.sinks.spark_versions import spark_jars_directory, spark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = structlog.get_logger("tidesink.spark")
# Whoever starts a JVM with an archive that does not fit hears nothing of it: it starts all the same.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
_MAKING_SECONDS: Final = 300


def class_archive(connectors: Sequence[Path]) -> Path:
    """Where the archive for Spark, its connectors and the Java found is kept, whether it exists or not."""
    found = _fingerprint(find_java(), connectors)
    return cache_directory() / "classes" / f"spark-{spark_version()}-{found}.jsa"


def _fingerprint(runtime: JavaRuntime, connectors: Sequence[Path]) -> str:
    """Changes with what the JVM holds an archive against: itself, and each jar's path, size and time."""
    jars = sorted(spark_jars_directory().glob("*.jar"))
    release = runtime.home / "release"
    files = [*connectors, *jars, *([release] if release.is_file() else [])]
    told = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((str(runtime.path), told)).encode()).hexdigest()[:16]


def archive_options(connectors: Sequence[Path]) -> str:
    """The JVM options that use the archive; empty where there is none."""
    missing = next((jar for jar in connectors if not jar.is_file()), None)
    if missing is not None:
        # Spark starts without it, and says itself which class it does not find.
        _log.warning("a jar is not there, so that what needs it fails: is its path right?", jar=str(missing))
        return ""
    archive = class_archive(connectors)
    # The JVM splits its options at spaces.
    if not archive.is_file() or " " in str(archive):
        return ""
    return f"-Xshare:auto -XX:SharedArchiveFile={archive} {_QUIET}"


def make_class_archive(progress: Progress = silent, *, target: str | None = None) -> bool:
    """Make the archive unless it is there; True where it is there afterwards.

    ``target`` is the type of a target that has jars of its own. The archive only saves time, so that
    a JVM which cannot make one is no error.
    """
    archive = class_archive(spark_connector_jars(target=target))
    if archive.is_file():
        return True
    progress("Spark's classes are kept for the next starts (once)")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        part = Path(work) / "part.jsa"
        _start_once(part, target)
        if not part.is_file():
            return False
        part.replace(archive)
    return True


def _start_once(part: Path, target: str | None) -> None:
    command = [sys.executable, "-m", "tidesink.sinks.class_archive", str(part), *([target] if target else [])]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_MAKING_SECONDS, check=False, cwd=part.parent
        )
    except subprocess.TimeoutExpired:
        _log.warning("Spark's classes could not be kept: a start took too long", seconds=_MAKING_SECONDS)
        return
    if answer.returncode != 0 or not part.is_file():
        _log.warning("Spark's classes could not be kept", said=answer.stderr[-500:])


def _run_and_keep(part: Path, target: str | None = None) -> None:
    """Start Spark on a JVM that writes its classes to ``part`` when it ends, and wait for that."""
    from tidesink.sinks.session import build_session

    options = f"-XX:ArchiveClassesAtExit={part} {_QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    conf = {"spark.driver.extraJavaOptions": options, "spark.sql.warehouse.dir": str(part.parent)}
    session = build_session(
        app_name="tidesink-classes", master="local[2]", conf=conf, target=target, driver_memory="1g"
    )
    _small_job(session, part.with_name("table"))
    process = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    session.stop()
    # The JVM ends, and writes, when its standard input is closed.
    process.stdin.close()
    process.wait(_MAKING_SECONDS)


def _small_job(session: SparkSession, path: Path) -> None:
    """What each batch loads first: an aggregation, a join, a Delta table written and read."""
    rows = session.range(1_000).selectExpr(
        "id", "cast(id % 7 as string) as text", "current_timestamp() as at"
    )
    rows.write.format("delta").save(str(path))
    read = session.read.format("delta").load(str(path))
    read.groupBy("text").agg({"id": "max", "at": "max"}).join(rows.limit(10), "text").collect()


if __name__ == "__main__":
    _run_and_keep(Path(sys.argv[1]), *sys.argv[2:])
