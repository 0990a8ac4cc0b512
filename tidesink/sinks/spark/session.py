"""Spark sessions of workers, and an archive of Java classes with which Spark starts faster.

A JVM reads some 15,000 classes before Spark's first job. HotSpot can store the classes of the class path in
their in-memory form (application class-data sharing, JEP 350). With such an archive, a session and its first
job start with 40 % less CPU time (docs/adr/0011). The archive is created once for each pair of Spark and
Java, by a JVM that starts Spark, runs a small job and exits. If the archive is missing or does not fit, Spark
starts without it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidesink.errors import ConfigError, SparkEndedError
from tidesink.sinks.spark.daemon import import_modules
from tidesink.sinks.spark.java_names import java_names
from tidesink.sinks.spark.jvm import (
    JavaRuntime,
    Progress,
    cache_directory,
    find_java,
    silent,
    spark_connector_jars,
    spark_jars_directory,
    spark_version,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config


_log = structlog.get_logger("tidesink.spark")
# The generated code of a wide table's MERGE is one method with more than 8,000 bytes of bytecode. By default
# HotSpot does not compile such a method.
_JAVA_OPTIONS: Final = "-XX:+IgnoreUnrecognizedVMOptions -XX:-DontCompileHugeMethods"
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")
# Makes the same appenders write JSON: Log4j merges several files by the names of their elements.
_LOG4J_JSON: Final = Path(__file__).with_name("log4j2-json.properties")
# A setting of tidesink in Spark's conf. With ``json``, the JVM's log has lines of JSON.
LOG_FORM: Final = "spark.tidesink.log"
# JVM options of a local master, unless the user sets some. The JVM's remaining work, which is MERGE and a
# table's log, ends before compiling with C2 would save time (docs/adr/0028-one-jvm.md). Without C2, Java
# reserves 48 MB for compiled code, and stops compiling once they are full. That happens after some hundred
# batches, because each batch has its own classes.
_LOCAL_JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseParallelGC -XX:GCTimeRatio=9"
)

# Settings that values depend on. A user's conf may repeat them, but not change them.
FIXED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Texts in statements that select rows contain escape sequences.
    "spark.sql.parser.escapedStringLiterals": "false",
}

# Settings with which a user's conf would make written values differ from the source's.
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
    # Otherwise each call on a Column asks the JVM for its position in the source code: half of the planning
    # time.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A MERGE has about 120 generated classes. By default Spark caches 100, so each batch would compile all of
    # them again.
    "spark.sql.codegen.cache.maxEntries": "4000",
    # A worker runs for months. By default Spark remembers 1,000 finished jobs and queries.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
}
# Forks the Python workers of a local master. A cluster's executors may not have the tidesink package.
_DAEMON: Final = "tidesink.sinks.spark.daemon"
# Arguments that PySpark passes to spark-submit, apart from settings.
_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
_FILE_OPTION: Final = "--properties-file"
# Settings whose values Spark hides in its UI and its event log. The first pattern is Spark's own default.
_REDACTED: Final = "spark.redaction.regex"
_USUALLY_REDACTED: Final = "(?i)secret|password|token|access[.]?key"
# Maximum number of seconds that a stop waits for Python workers that are just starting.
_FIRST_WORKERS_SECONDS: Final = 5.0
# Settings of catalogs, which targets set in the sessions of tables.
_CATALOGS: Final = r"^spark\.sql\.catalog\."
_HADOOP: Final = "spark.hadoop."
_JAVA_KEYS: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


@contextmanager
def session_of(
    config: Config, *others: Config, modules: Sequence[str] | None = None, progress: Progress = silent
) -> Iterator[SparkSession]:
    """Yield a Spark session for a pipeline's config: the running session, or a new one that is stopped at the
    end.

    Args:
        config: Config of the pipeline.
        others: Configs of other pipelines whose targets use the same session.
        modules: Python modules that the next jobs import. A local master starts Python workers with them in
            the background. None: no workers are started ahead.
        progress: Receives a line of text before each wait.

    Raises:
        ConfigError: Two configs have different values of a setting, pyspark is missing, or a config changes a
            setting that changes how values are read or written.
        DevStackError: Java is not found, or the jars cannot be fetched.
    """
    was_there = running_session() is not None
    types = [pipeline.target.type for pipeline in (config, *others)]
    session = build_session(
        app_name=f"tidesink {config.pipeline}",
        master=config.spark.master,
        conf=_joined_conf((config, *others)),
        targets=types,
        progress=progress,
    )
    first: threading.Thread | None = None
    if modules is not None and not was_there and _is_one_jvm(config.spark.master):
        first = _start_python_workers(session, modules)
    try:
        yield session
    finally:
        if first is not None:
            # Spark logs errors for a job that runs when it stops.
            first.join(_FIRST_WORKERS_SECONDS)
        if not was_there:
            stop_session(session)


def check_spark_settings(config: Config) -> None:
    """Check the Spark settings of a pipeline's config without starting Spark.

    Raises:
        ConfigError: The config changes a setting that changes how values are read or written.
    """
    session_settings(master=config.spark.master, conf=config.spark.conf_values())


def _joined_conf(configs: Sequence[Config]) -> dict[str, str]:
    """Returns the Spark settings of all configs together.

    Raises:
        ConfigError: Two configs have different values of a setting.
    """
    settings: dict[str, str] = {}
    for config in configs:
        for name, value in config.spark.conf_values().items():
            if settings.setdefault(name, value) != value:
                raise ConfigError(
                    f"Pipelines {configs[0].pipeline} and {config.pipeline} have different values of "
                    f"{name} under spark.conf. They share one Spark session, so set the same value in both.",
                    key=name,
                )
    return settings


def build_session(
    *,
    app_name: str = "tidesink",
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    jars: Sequence[Path] | None = None,
    targets: Iterable[str] = (),
    driver_memory: str = "2g",
    progress: Progress = silent,
) -> SparkSession:
    """Returns a Spark session that can write Delta: the running session with its settings, or a new session.

    Spark logs only errors, unless ``conf`` has a ``spark.log.level`` or the user has a Log4j configuration.

    Args:
        app_name: Name of a new session.
        master: Spark's master. For a cluster it is a URL, and Spark sends the jars to the executors.
        conf: Settings for Spark.
        jars: Connector jars. None: the jars for the installed Spark and for ``targets``, which are fetched if
            they are missing.
        targets: Types of targets.
        driver_memory: Heap size of the driver's JVM.
        progress: Receives a line of text before each wait.

    Raises:
        ConfigError: pyspark is missing. Or ``conf`` or the running session changes a setting that changes how
            values are read or written.
        DevStackError: Java is not found, or the jars cannot be fetched.
    """
    settings = session_settings(master=master, conf=conf or {}, driver_memory=driver_memory)
    running = running_session()
    if running is not None:
        _check_settings(running)
        return running
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Otherwise Spark starts the first python3 on the PATH, which does not have tidesink's packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jar_files = list(jars) if jars is not None else spark_connector_jars(targets=targets, progress=progress)
    settings |= _with_jars(jar_files, settings, master=master)
    settings |= {"spark.app.name": app_name, "spark.master": master}
    remark = memory_remark(settings["spark.driver.memory"], memory_limit())
    if remark is not None:
        _log.warning(remark)
    progress("starting Spark")
    _quieten_calls_cut_off()
    _start_jvm(settings)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    _quieten_broken_connections(session)
    return session


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM if it does not run yet.

    The JVM reads the settings from a file that only this user can read. The file is removed after the start.
    PySpark would pass the settings on the command line, which every user of the machine can read.
    """
    from pyspark import SparkContext

    words = shlex.split(os.environ.get(_SUBMIT, "pyspark-shell"))
    if any(word.partition("=")[0] == _FILE_OPTION for word in words):
        raise ConfigError(
            f"{_SUBMIT} passes a {_FILE_OPTION} to Spark, but tidesink needs this option. Move the file's "
            "content into Spark's conf/spark-defaults.conf, or under spark.conf in tidesink's config."
        )
    with tempfile.NamedTemporaryFile("w", prefix="tidesink-", suffix=".properties", encoding="ascii") as file:
        file.writelines(f"{_property(name)}={_property(value)}\n" for name, value in settings.items())
        file.flush()
        given = {_SUBMIT: shlex.join([_FILE_OPTION, file.name, "--load-spark-defaults", *words])}
        # find_java skips a JAVA_HOME that cannot run Spark, so its result replaces JAVA_HOME.
        with _environment({**given, **spark_java_environment()}):
            SparkContext._ensure_initialized()


def _property(text: str) -> str:
    """Escape a name or a value for a Java properties file."""
    units = memoryview(text.encode("utf-16", "surrogatepass")[2:]).cast("H")
    return "".join(chr(unit) if unit < 128 and chr(unit).isalnum() else f"\\u{unit:04x}" for unit in units)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _with_jars(jars: Sequence[Path], settings: Mapping[str, str], *, master: str) -> dict[str, str]:
    """Returns the Spark settings with which a session uses the connector jars.

    If driver and executors share one JVM, the jars are on its class path. Otherwise Spark sends them to the
    executors. With one JVM, sending them would copy all jars, and read their classes again each time.
    """
    if not jars:
        return {}
    if not _is_one_jvm(master):
        return {"spark.jars": ",".join([*map(str, jars), *filter(None, [settings.get("spark.jars")])])}
    options, own = settings[_JAVA_KEYS[0]], settings.get("spark.driver.extraClassPath")
    return {
        "spark.driver.extraClassPath": os.pathsep.join([*map(str, jars), *filter(None, [own])]),
        _JAVA_KEYS[0]: f"{archive_options(jars)} {options}".strip(),
    }


def _quieten_broken_connections(session: SparkSession) -> None:
    """Do not print an error if the connection on which tasks report to this process is interrupted.

    This is expected, because the JVM may end before this process.
    """
    server: Any = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda _request, _address: _log.debug("a task's report was cut off")


def _quieten_calls_cut_off() -> None:
    """Do not log calls into the JVM that were interrupted, which py4j does with tracebacks.

    The JVM ended before this process, or a signal interrupted the call. The caller receives the error anyway.
    """
    # py4j logs such errors on the root logger and on its own loggers, with the traceback, and also raises
    # them.
    for name in (None, "py4j.java_gateway", "py4j.clientserver"):
        logging.getLogger(name).addFilter(_is_not_cut_off)


def _is_not_cut_off(record: logging.LogRecord) -> bool:
    from py4j.protocol import Py4JNetworkError

    error = record.exc_info[1] if record.exc_info else None
    cut_off = Py4JNetworkError | OSError | KeyboardInterrupt
    return not (record.module in ("java_gateway", "clientserver") and isinstance(error, cut_off))


def running_session() -> SparkSession | None:
    """Returns the running session of this process, or None."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # getActiveSession only returns a session of the calling thread.
    return SparkSession.builder.getOrCreate() if SparkContext._active_spark_context else None


def _check_settings(session: SparkSession) -> None:
    """Check that no setting of the running session changes how values are read or written.

    The current settings are checked, and those with which Spark was started, because the sessions of tables
    begin with them.

    Raises:
        ConfigError: Such a setting has another value than tidesink needs.
    """
    for spark_session in (session, session.newSession()):
        for name, value in FIXED.items():
            current = str(spark_session.conf.get(name))
            if current.lower() != value.lower():
                raise _refused(name, current, f"must be {value}")
        for name, value in LOSES.items():
            if str(spark_session.conf.get(name)).upper() == value:
                raise _refused(name, value, "truncates values")


def _refused(name: str, found: str, reason: str) -> ConfigError:
    return ConfigError(
        f"The running Spark session has {name} {found}, which {reason}. Start Spark with another "
        "value (SparkSession.builder.config), or let the worker start a session in a separate process.",
        key=name,
    )


def stop_session(session: SparkSession) -> None:
    """Stop Spark. Does nothing if the JVM has already ended."""
    with _jvm_may_be_gone():
        session.stop()


def check_jvm(session: SparkSession, seconds: float = 0.0) -> None:
    """Check whether Spark's JVM has ended. If it still runs, wait up to ``seconds`` for its end.

    Raises:
        SparkEndedError: The JVM has ended.
    """
    process: Any = getattr(session.sparkContext._gateway, "proc", None)
    code = None if process is None else _end_of(process, seconds)
    if code is None:
        return
    limit = memory_limit()
    room = "" if limit is None else f" The memory limit of this container is {_shown_bytes(limit)}."
    killed = (
        "was killed, usually because memory ran out"
        if code == -signal.SIGKILL
        else f"ended with exit code {code}"
    )
    raise SparkEndedError(
        f"Spark's JVM {killed}.{room} No data is lost: a restarted worker continues. If this happens again,"
        " give the container more memory, or lower spark.driver.memory under spark.conf."
    )


def _end_of(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Returns a child process's exit code, or the negative number of the signal that ended it.

    Returns None if the process runs or is not a child. ``Popen.wait`` would return 0 for a process that
    belongs to the parent of a forked process.
    """
    if process.returncode is not None:
        return process.returncode
    deadline = time.monotonic() + seconds
    while True:
        try:
            result = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except (ChildProcessError, AttributeError):  # macOS has no waitid before Python 3.13
            return None
        if result is not None:
            return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        if time.monotonic() >= deadline:
            return None
        time.sleep(_END_LOOK_SECONDS)


_END_LOOK_SECONDS: Final = 0.05
# Memory that a worker needs in addition to the JVM's heap: the JVM's other memory, and Python with Arrow
# batches.
_BESIDE_HEAP: Final = 700 * 2**20
# Files of cgroup v2 and v1. Without a limit, the file of v1 has a number close to 2**63.
_MEMORY_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def memory_limit(files: Iterable[Path] = _MEMORY_LIMITS) -> int | None:
    """Returns the memory limit of this process's cgroup in bytes, or None without a limit.

    Source: Linux, Documentation/admin-guide/cgroup-v2 (``memory.max``) and cgroup-v1 (memory).
    """
    for file in files:
        try:
            text = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        return int(text) if text.isdigit() and int(text) < 2**60 else None
    return None


def memory_remark(heap: str, limit: int | None) -> str | None:
    """Returns a warning if Spark's heap (``spark.driver.memory``) is too large for a memory limit in bytes,
    else None.
    """
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", heap.strip().lower())
    if match is None or limit is None:
        return None
    # Spark reads a number without a unit as MiB.
    size = int(match[1]) * _UNITS[match[2] or "m"]
    if size + _BESIDE_HEAP <= limit:
        return None
    return (
        f"The memory limit of this container is {_shown_bytes(limit)}, and spark.driver.memory sets "
        f"Spark's heap to {_shown_bytes(size)}. About {_shown_bytes(_BESIDE_HEAP)} are needed in addition "
        "to the heap, so the kernel may kill Spark. Raise the container's limit, or lower "
        "spark.driver.memory under spark.conf."
    )


def _shown_bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count // 2**20} MiB"


def cancel_jobs(session: SparkSession, tag: str) -> None:
    """Cancel the running Spark jobs of the threads that have this tag (``threads_tagged``)."""
    with _jvm_may_be_gone():
        session.sparkContext.cancelJobsWithTag(tag)


@contextmanager
def _jvm_may_be_gone() -> Iterator[None]:
    """Ignore errors of the calls in the block, because the JVM may have ended already.

    Use it only for calls that end something, such as a session. A signal to the process group also ends the
    JVM.
    """
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as exc:
        _log.debug("the JVM does not answer", error=type(exc).__name__)


def session_settings(*, master: str, conf: Mapping[str, str], driver_memory: str = "2g") -> dict[str, str]:
    """Returns the settings of a session without its jars: defaults, overridden by ``conf``, and the fixed
    settings.

    Raises:
        ConfigError: ``conf`` changes a setting that changes how values are read or written.
    """
    for name, value in FIXED.items():
        if conf.get(name, value).lower() != value.lower():
            raise ConfigError(
                f"spark.conf: {name} must stay {value}, because the written values depend on it. Remove it.",
                key=name,
            )
    for name, value in LOSES.items():
        if conf.get(name, "").upper() == value:
            raise ConfigError(f"spark.conf: {name} {value} truncates values. Remove it.", key=name)
    settings = {**_DEFAULTS, "spark.driver.memory": driver_memory}
    settings["spark.sql.shuffle.partitions"] = str(2 * local_cores(master))
    if _is_one_jvm(master):
        settings["spark.python.daemon.module"] = _DAEMON
    settings.update(conf)
    settings.update(FIXED)
    usual = _LOCAL_JAVA_OPTIONS if _is_one_jvm(master) else ""
    for name in _JAVA_KEYS:
        settings[name] = f"{_JAVA_OPTIONS} {conf.get(name, usual)}".strip()
    settings[_REDACTED] = "|".join([conf.get(_REDACTED, _USUALLY_REDACTED), _CATALOGS, *_whole_names(conf)])
    if not _has_own_log4j(settings[_JAVA_KEYS[0]]):
        files = [_LOG4J, *([_LOG4J_JSON] if conf.get(LOG_FORM) == "json" else [])]
        listed = ",".join(file.as_uri() for file in files)
        settings[_JAVA_KEYS[0]] = f"-Dlog4j2.configurationFile={listed} {settings[_JAVA_KEYS[0]]}"
    return settings


def _whole_names(conf: Mapping[str, str]) -> list[str]:
    """Returns patterns that match the names of the user's own settings, whose values Spark then hides.

    Hadoop's settings are also matched by their names without the prefix ``spark.hadoop.``.
    """
    names = [*conf, *(name.removeprefix(_HADOOP) for name in conf if name.startswith(_HADOOP))]
    return [f"^{re.escape(name)}$" for name in names]


def _has_own_log4j(java_options: str) -> bool:
    """Returns True if the user has a Log4j configuration: by a Java option, an environment variable or a
    file.
    """
    if "log4j" in java_options or "LOG4J_CONFIGURATION_FILE" in os.environ:
        return True
    home = Path(os.environ.get("SPARK_HOME", spark_jars_directory().parent))
    files = Path(os.environ.get("SPARK_CONF_DIR", home / "conf")).glob("log4j2*")
    return any(file.suffix != ".template" for file in files)


def _is_one_jvm(master: str) -> bool:
    """Returns True if driver and executors share one JVM: with ``local[...]``, but not with
    ``local-cluster[...]``.
    """
    return master.partition("[")[0] == "local"


def tasks_of(master: str) -> int | None:
    """Returns the number of tasks that Spark runs at the same time, or None if only Spark knows it."""
    return local_cores(master) if _is_one_jvm(master) else None


def local_cores(master: str) -> int:
    """Returns the number of cores of a ``local[...]`` master.

    For a cluster returns 100, which Spark adapts.
    """
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside.isdigit():
        return int(inside)
    if inside == "*":
        return os.cpu_count() or 1
    return 1 if master.startswith("local") else 100


_MODULE: Final = "jdk.incubator.vector"
_PROGRAM: Final = """#!/bin/sh
# Made by tidesink: Spark asks for {module} and does not need it. A Java that has it says so
# on stderr; one that lacks it does not start.
for argument in "$@"; do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def spark_java_environment(runtime: JavaRuntime | None = None) -> dict[str, str]:
    """Returns environment variables for starting pyspark on a Java runtime without printed warnings.

    ``runtime``: the runtime; None: the one that ``find_java`` returns.

    Raises:
        DevStackError: No Java was found.
    """
    java = runtime or find_java()
    try:
        return {"JAVA_HOME": str(_home_without_module(java))}
    except OSError:
        # Without a writable cache, Spark can still start if the Java runtime is complete.
        return {"JAVA_HOME": str(java.home)}


def _home_without_module(runtime: JavaRuntime) -> Path:
    name = hashlib.sha256(str(runtime.path).encode()).hexdigest()[:12]
    program = cache_directory() / "java" / f"{runtime.version}-{name}" / "bin" / "java"
    text = _PROGRAM.format(module=_MODULE, java=shlex.quote(str(runtime.path)))
    if not (program.is_file() and program.read_text(encoding="utf-8") == text):
        _write_program(program, text)
    return program.parent.parent


def _write_program(program: Path, text: str) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=program.parent)  # two workers may start at the same time
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(part).chmod(0o755)
    Path(part).replace(program)


# Silences the JVM's message about an archive that does not fit, because the JVM starts without the archive.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
_MAKING_SECONDS: Final = 300


def class_archive(connectors: Sequence[Path]) -> Path:
    """Returns the path of the archive for the installed Spark, its connectors and Java.

    It may not exist yet.
    """
    fingerprint = _fingerprint(find_java(), connectors)
    return cache_directory() / "classes" / f"spark-{spark_version()}-{fingerprint}.jsa"


def _fingerprint(runtime: JavaRuntime, connectors: Sequence[Path]) -> str:
    """Returns a hash of what the JVM compares before it uses an archive: the Java runtime, and each jar's
    path, size and time.

    Times are in whole seconds, as in the JVM itself (JDK 17, ``SharedClassPathEntry``). The layers of an
    image store no fractions of seconds, so a container would see other times than the build.
    """
    jars = sorted(spark_jars_directory().glob("*.jar"))
    release = runtime.home / "release"
    files = [*connectors, *jars, *([release] if release.is_file() else [])]
    reported = [(str(file), file.stat().st_size, int(file.stat().st_mtime)) for file in files]
    return hashlib.sha256(repr((str(runtime.path), reported)).encode()).hexdigest()[:16]


def archive_options(connectors: Sequence[Path]) -> str:
    """Returns the JVM options that use the archive. Empty if there is no archive."""
    missing = next((jar for jar in connectors if not jar.is_file()), None)
    if missing is not None:
        # Spark starts without this jar, and reports which class it does not find.
        _log.warning("a jar is not there, so that what needs it fails: is its path right?", jar=str(missing))
        return ""
    archive = class_archive(connectors)
    # The JVM splits its options at spaces.
    if not archive.is_file() or " " in str(archive):
        return ""
    return f"-Xshare:auto -XX:SharedArchiveFile={archive} {_QUIET}"


def make_class_archive(progress: Progress = silent, seconds: float = _MAKING_SECONDS) -> bool:
    """Create the archive of Spark's classes, unless it exists. Returns True if the archive exists afterwards.

    The archive only saves time, so no error is raised if a JVM cannot create it within ``seconds``.
    """
    archive = class_archive(spark_connector_jars())
    if archive.is_file():
        return True
    progress("Storing Spark's classes, so that later starts are faster (only once)")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        part = Path(work) / "part.jsa"
        if not _start_once(part, seconds):
            return False
        part.replace(archive)
    return True


def _start_once(part: Path, seconds: float) -> bool:
    """Write the archive to ``part`` in a separate process.

    Returns False if the process failed or took too long.
    """
    command = [sys.executable, "-m", "tidesink.sinks.spark.session", str(part)]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, cwd=part.parent
        )
    except subprocess.TimeoutExpired:
        # The JVM may still be writing to ``part``.
        _log.warning("Spark's classes could not be kept: a start took too long", seconds=seconds)
        return False
    if answer.returncode != 0 or not part.is_file():
        _log.warning("Spark's classes could not be kept", said=answer.stderr[-500:])
        return False
    return True


def _run_and_keep(part: Path) -> None:
    """Start Spark on a JVM that writes its classes to ``part`` when it exits, run a small job, and wait for
    the exit.
    """
    options = f"-XX:ArchiveClassesAtExit={part} {_QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    conf = {"spark.driver.extraJavaOptions": options, "spark.sql.warehouse.dir": str(part.parent)}
    jars = spark_connector_jars()
    has_iceberg = any(jar.name.startswith("iceberg-") for jar in jars)
    if has_iceberg:
        catalog = "spark.sql.catalog.iceberg"
        conf |= {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": str(part.parent),
        }
    session = build_session(
        app_name="tidesink-classes", master="local[2]", conf=conf, jars=jars, driver_memory="1g"
    )
    _small_job(session, part.with_name("table"), has_iceberg=has_iceberg)
    process = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    session.stop()
    # The JVM exits, and then writes the archive, once its standard input is closed.
    process.stdin.close()
    process.wait()


def _small_job(session: SparkSession, path: Path, *, has_iceberg: bool) -> None:
    """Run an aggregation and a join, and write and read a table, so that the JVM loads the classes that a
    batch needs.
    """
    rows = session.range(1_000).selectExpr(
        "id", "cast(id % 7 as string) as text", "current_timestamp() as at"
    )
    rows.write.format("delta").save(str(path))
    reads = [session.read.format("delta").load(str(path))]
    if has_iceberg:
        rows.writeTo("iceberg.kept.rows").using("iceberg").create()
        reads.append(session.table("iceberg.kept.rows"))
    for read in reads:
        read.groupBy("text").agg({"id": "max", "at": "max"}).join(rows.limit(10), "text").collect()


if __name__ == "__main__":
    _run_and_keep(Path(sys.argv[1]))


def _start_python_workers(spark: SparkSession, modules: Sequence[str]) -> threading.Thread:
    """Make Spark start one Python worker per core, in the background. Returns the thread that waits for them.

    The process that forks the workers takes 2 s to start, which is most of a first batch's time. So it starts
    while topics are looked up. If it fails to start, the first batch fails.
    """
    cores = spark.sparkContext.defaultParallelism
    first = FirstTask(tuple(modules))

    def run() -> None:
        try:
            spark.range(0, cores, 1, cores).mapInArrow(first, "id bigint").collect()
        except Exception as exc:  # noqa: BLE001  (the first batch reports it)
            _log.debug("Python workers not started ahead", error=type(exc).__name__)
        finally:
            close_connection(spark)

    thread = threading.Thread(target=run, name="first Python workers", daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True)
class FirstTask:
    """Imports modules in a Python worker. Used with ``mapInArrow``."""

    modules: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Import the modules, then yield the batches unchanged."""
        import_modules(self.modules)
        yield from batches


def close_connection(spark: SparkSession) -> None:
    """Close the calling thread's connection to the JVM, if it has one."""
    from py4j.protocol import Py4JError

    gateway: Any = spark.sparkContext._gateway
    try:
        client = gateway._gateway_client
        connection = client.get_thread_connection()
        if connection is not None:
            client.deque.remove(connection)
            connection.close()
    except (AttributeError, ValueError, OSError, Py4JError):
        # Not a gateway with pinned threads, or the JVM has ended. There is nothing to close.
        return


def in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Returns a frame's rows as a frame of another session.

    Persisted rows stay persisted, because all sessions share Spark's cache.
    """
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    if frame.sparkSession is session:
        return frame
    plan = frame._jdf.logicalPlan()
    datasets = java_names(session).org.apache.spark.sql.classic.Dataset
    rows = datasets.ofRows(session._jsparkSession, plan)
    return ClassicFrame(rows, session)
