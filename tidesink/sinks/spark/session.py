"""Spark sessions for workers, and the archive of Spark's classes with which they start sooner.

A JVM reads some 15,000 classes before Spark's first job. HotSpot can store the classes of the class path in
their in-memory form (application class-data sharing, JEP 350). Then a session and its first job start with 40
% less CPU time (docs/adr/0011). The archive is created once per Spark and Java, by a JVM that starts Spark,
runs a small job and ends. If it is missing, or the JVM finds that it does not fit, Spark starts without it.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from tidesink.errors import ConfigError, SparkEndedError
from tidesink.sinks.spark.daemon import import_modules
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
# The generated code of a wide table's MERGE is one method of more than 8,000 bytes of bytecode, which
# HotSpot only interprets by default.
_JAVA_OPTIONS: Final = "-XX:+IgnoreUnrecognizedVMOptions -XX:-DontCompileHugeMethods"
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")
# Makes the same appenders write JSON: Log4j merges several files by the names of their elements.
_LOG4J_JSON: Final = Path(__file__).with_name("log4j2-json.properties")
# A setting of tidesink in Spark's conf: ``json`` if the JVM's log is lines of JSON.
LOG_FORM: Final = "spark.tidesink.log"
# Options of a local master's JVM, unless the user sets some. Its remaining work, MERGE and a table's log,
# ends before C2's code would pay for its compilation (docs/adr/0028-one-jvm.md). Without C2, Java keeps 48 MB
# for compiled code, and stops to compile once they are full: after some hundred batches, each of which has
# classes of its own.
_LOCAL_JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseParallelGC -XX:GCTimeRatio=9"
)

# Values depend on these. A user's conf may repeat them, but not change them.
FIXED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Texts in statements that find rows use escape codes.
    "spark.sql.parser.escapedStringLiterals": "false",
}

# Values of a user's conf with which the written values would differ from the source's.
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
    # Otherwise each call on a Column queries the JVM for its place in the source: half the time of planning.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A MERGE has some 120 generated classes. Spark keeps 100 by default, so each batch would compile them all
    # again.
    "spark.sql.codegen.cache.maxEntries": "4000",
    # A worker runs for months. By default Spark keeps 1,000 finished jobs and queries.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
}
# Forks the Python workers of a local master. A cluster's executors may lack the tidesink package.
_DAEMON: Final = "tidesink.sinks.spark.daemon"
# The arguments that PySpark passes to spark-submit, apart from settings.
_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
_FILE_OPTION: Final = "--properties-file"
# Settings whose values Spark hides on its pages and in its event log. The first is Spark's own default.
_REDACTED: Final = "spark.redaction.regex"
_USUALLY_REDACTED: Final = "(?i)secret|password|token|access[.]?key"
# Targets set them in the sessions of tables.
_CATALOGS: Final = r"^spark\.sql\.catalog\."
_HADOOP: Final = "spark.hadoop."
_JAVA_KEYS: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


@contextmanager
def session_of(
    config: Config, *others: Config, modules: Sequence[str] | None = None, progress: Progress = silent
) -> Iterator[SparkSession]:
    """Yields the running session, or a new one for a pipeline's config, which is stopped at the end.

    It also serves the targets of ``others``. ``modules``: imports of the next jobs. A local master starts its
    Python workers with them in the meantime.

    Raises:
        ConfigError: Two of the configs set one setting to different values; or see ``build_session``.
        DevStackError: For the same reasons as ``build_session``.
    """
    was_there = running_session() is not None
    types = [one.target.type for one in (config, *others)]
    session = build_session(
        app_name=f"tidesink {config.pipeline}",
        master=config.spark.master,
        conf=_joined_conf((config, *others)),
        targets=types,
        progress=progress,
    )
    if modules is not None and not was_there and _is_one_jvm(config.spark.master):
        _start_python_workers(session, modules)
    try:
        yield session
    finally:
        if not was_there:
            stop_session(session)


def _joined_conf(configs: Sequence[Config]) -> dict[str, str]:
    """Returns the Spark settings of the configs."""
    found: dict[str, str] = {}
    for config in configs:
        for name, value in config.spark.conf_values().items():
            if found.setdefault(name, value) != value:
                raise ConfigError(
                    f"spark.conf of {configs[0].pipeline} and {config.pipeline} have two values of {name}. "
                    "One Spark serves both, so set the same value in both.",
                    key=name,
                )
    return found


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
    """Returns a Spark session that can write Delta: the running one, with its own settings, or a new one.

    Args:
        app_name: Name of a new session.
        master: Spark's master. For a cluster it is a URL, and Spark ships the jars.
        conf: Settings for Spark.
        jars: Connector jars. Default: those of the installed Spark, and those that ``targets`` need. Missing
            jars are fetched.
        targets: Types of targets.
        driver_memory: The heap of the driver.
        progress: Receives a line for each wait.

    Spark logs only errors, unless ``conf`` has a ``spark.log.level`` or the user has a Log4j configuration.

    Raises:
        ConfigError: pyspark is missing. Or ``conf``, or the running session, has another value of a setting
            that values depend on.
        DevStackError: There is no Java, or the jars cannot be fetched.
    """
    settings = session_settings(master=master, conf=conf or {}, driver_memory=driver_memory)
    running = running_session()
    if running is not None:
        _check_settings(running)
        return running
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Otherwise Spark starts the first python3 on the PATH, which lacks our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = list(jars) if jars is not None else spark_connector_jars(targets=targets, progress=progress)
    settings |= _with_jars(found, settings, master=master)
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
    """Start the JVM, unless it runs.

    It reads the settings from a file that only this user can read, and that is removed after the start.
    PySpark would put them on its command line, which every user of the machine can read.
    """
    from pyspark import SparkContext

    words = shlex.split(os.environ.get(_SUBMIT, "pyspark-shell"))
    if any(word.partition("=")[0] == _FILE_OPTION for word in words):
        raise ConfigError(
            f"{_SUBMIT} passes a {_FILE_OPTION} to Spark, but tidesink needs this option. Move its content "
            "into conf/spark-defaults.conf of Spark, or under spark.conf."
        )
    with tempfile.NamedTemporaryFile("w", prefix="tidesink-", suffix=".properties", encoding="ascii") as file:
        file.writelines(f"{_property(name)}={_property(value)}\n" for name, value in settings.items())
        file.flush()
        given = {_SUBMIT: shlex.join([_FILE_OPTION, file.name, "--load-spark-defaults", *words])}
        # find_java skips a JAVA_HOME that cannot run Spark, so its result replaces it.
        with _environment({**given, **spark_java_environment()}):
            SparkContext._ensure_initialized()


def _property(text: str) -> str:
    """Escape a name or a value for a Java properties file."""
    units = memoryview(text.encode("utf-16", "surrogatepass")[2:]).cast("H")
    return "".join(chr(one) if one < 128 and chr(one).isalnum() else f"\\u{one:04x}" for one in units)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context."""
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


def _with_jars(found: Sequence[Path], settings: Mapping[str, str], *, master: str) -> dict[str, str]:
    """Returns settings for the connector jars: on the class path of a single JVM, else shipped by Spark.

    A session with a single JVM would otherwise copy all of them, and read their classes again each time.
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
    """Do not print reports of interrupted tasks: the JVM may end before this process."""
    server: Any = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda _request, _address: _log.debug("a task's report was cut off")


def _quieten_calls_cut_off() -> None:
    """Do not print interrupted calls of the JVM with their tracebacks.

    The JVM ended before this process, or a signal interrupted the call. The caller gets the error anyway.
    """
    # py4j logs them on the root logger and on its own, with the traceback, and also raises them.
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

    # getActiveSession only knows the session of the calling thread.
    return SparkSession.builder.getOrCreate() if SparkContext._active_spark_context else None


def _check_settings(session: SparkSession) -> None:
    """Refuse a session that would read or write values differently, by its start or current settings.

    Tables have sessions of their own, which begin with the settings with which Spark was started.
    """
    for one in (session, session.newSession()):
        for name, value in FIXED.items():
            found = str(one.conf.get(name))
            if found.lower() != value.lower():
                raise _refused(name, found, f"must be {value}")
        for name, value in LOSES.items():
            if str(one.conf.get(name)).upper() == value:
                raise _refused(name, value, "cuts values short")


def _refused(name: str, found: str, reason: str) -> ConfigError:
    return ConfigError(
        f"The running Spark session has {name} {found}, which {reason}. Start Spark with another "
        "value (SparkSession.builder.config), or let the worker start a session in a separate process.",
        key=name,
    )


def stop_session(session: SparkSession) -> None:
    """Stop Spark. Does nothing if its JVM has already ended."""
    with _jvm_may_be_gone():
        session.stop()


def check_jvm(session: SparkSession, seconds: float = 0.0) -> None:
    """Check that the JVM of this process runs, and wait up to ``seconds`` for its end.

    Raises:
        SparkEndedError: The JVM has ended.
    """
    process: Any = getattr(session.sparkContext._gateway, "proc", None)
    code = None if process is None else _end_of(process, seconds)
    if code is None:
        return
    limit = memory_limit()
    room = "" if limit is None else f" This container may use {_shown_bytes(limit)} of memory."
    killed = "was killed, usually for lack of memory" if code == -signal.SIGKILL else f"ended with {code}"
    raise SparkEndedError(
        f"Spark's JVM {killed}.{room} Nothing is lost: a restarted worker continues. If this is repeated, "
        " give the container more memory, or lower spark.driver.memory under spark.conf."
    )


def _end_of(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Returns the exit code of a child process, or the negative signal; None if it runs or is not a child.

    ``Popen.wait`` treats a process that a forked child inherited as one that ended successfully.
    """
    if process.returncode is not None:
        return process.returncode
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except (ChildProcessError, AttributeError):  # macOS has no waitid before Python 3.13
            return None
        if found is not None:
            return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        if time.monotonic() >= deadline:
            return None
        time.sleep(_END_LOOK_SECONDS)


_END_LOOK_SECONDS: Final = 0.05
# Memory that a worker needs in addition to the JVM's heap: the rest of the JVM, and Python with Arrow
# batches.
_BESIDE_HEAP: Final = 700 * 2**20
# cgroup v2 and v1; without a limit v1 has a number close to 2**63.
_MEMORY_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def memory_limit(files: Iterable[Path] = _MEMORY_LIMITS) -> int | None:
    """Returns the memory limit of this process's cgroup in bytes; None without a limit.

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
    """Returns a warning about a heap (``spark.driver.memory``) above a limit in bytes; None if it fits."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", heap.strip().lower())
    if match is None or limit is None:
        return None
    # Spark reads a number without a unit as MiB.
    size = int(match[1]) * _UNITS[match[2] or "m"]
    if size + _BESIDE_HEAP <= limit:
        return None
    return (
        f"This container may use {_shown_bytes(limit)} of memory, and spark.driver.memory gives Spark's heap "
        f"{_shown_bytes(size)} of it. About {_shown_bytes(_BESIDE_HEAP)} more are needed, so the "
        "kernel may kill Spark. Give the container more, or lower spark.driver.memory under spark.conf."
    )


def _shown_bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count // 2**20} MiB"


def cancel_jobs(session: SparkSession, tag: str) -> None:
    """Cancel the running Spark jobs of threads with this tag (``threads_tagged``), and no others."""
    with _jvm_may_be_gone():
        session.sparkContext.cancelJobsWithTag(tag)


@contextmanager
def _jvm_may_be_gone() -> Iterator[None]:
    """Ignore a missing JVM in calls that only end things: a signal to the process group ends it first."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as exc:
        _log.debug("the JVM does not answer", error=type(exc).__name__)


def session_settings(*, master: str, conf: Mapping[str, str], driver_memory: str = "2g") -> dict[str, str]:
    """Returns all settings of a session except its jars: defaults, then ``conf``, then the fixed ones.

    Raises:
        ConfigError: ``conf`` changes a setting that values depend on.
    """
    for name, value in FIXED.items():
        if conf.get(name, value).lower() != value.lower():
            raise ConfigError(
                f"spark.conf: {name} must stay {value}, because values depend on it. Remove it.", key=name
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
    """Returns patterns of a user's settings, all of which are secret.

    Hadoop has shorter names for its own.
    """
    names = [*conf, *(name.removeprefix(_HADOOP) for name in conf if name.startswith(_HADOOP))]
    return [f"^{re.escape(name)}$" for name in names]


def _has_own_log4j(java_options: str) -> bool:
    """Returns True if the user has a Log4j configuration, by option, variable, or Spark's conf folder."""
    if "log4j" in java_options or "LOG4J_CONFIGURATION_FILE" in os.environ:
        return True
    home = Path(os.environ.get("SPARK_HOME", spark_jars_directory().parent))
    found = Path(os.environ.get("SPARK_CONF_DIR", home / "conf")).glob("log4j2*")
    return any(file.suffix != ".template" for file in found)


def _is_one_jvm(master: str) -> bool:
    """Returns True if driver and executors share a JVM: ``local[...]``, but not ``local-cluster[...]``."""
    return master.partition("[")[0] == "local"


def local_cores(master: str) -> int:
    """Returns the cores of a ``local[...]`` master; for a cluster a number that Spark adapts."""
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
    """Returns environment variables with which pyspark starts silently on ``runtime`` (None: the one found).

    Raises:
        DevStackError: No Java was found.
    """
    found = runtime or find_java()
    try:
        return {"JAVA_HOME": str(_home_without_module(found))}
    except OSError:
        # Spark can start without a writable cache, on a complete Java.
        return {"JAVA_HOME": str(found.home)}


def _home_without_module(runtime: JavaRuntime) -> Path:
    name = hashlib.sha256(str(runtime.path).encode()).hexdigest()[:12]
    program = cache_directory() / "java" / f"{runtime.version}-{name}" / "bin" / "java"
    text = _PROGRAM.format(module=_MODULE, java=shlex.quote(str(runtime.path)))
    if not (program.is_file() and program.read_text(encoding="utf-8") == text):
        _write_program(program, text)
    return program.parent.parent


def _write_program(program: Path, text: str) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=program.parent)  # two workers may start at once
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(part).chmod(0o755)
    Path(part).replace(program)


# Silences a JVM whose archive does not fit: it starts all the same.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
_MAKING_SECONDS: Final = 300


def class_archive(connectors: Sequence[Path]) -> Path:
    """Returns the path of the archive for Spark, its connectors and the Java found, even if it is missing."""
    found = _fingerprint(find_java(), connectors)
    return cache_directory() / "classes" / f"spark-{spark_version()}-{found}.jsa"


def _fingerprint(runtime: JavaRuntime, connectors: Sequence[Path]) -> str:
    """Changes with the facts that the JVM checks: itself, and each jar's path, size and time.

    Times are whole seconds, as in the JVM itself (JDK 17, ``SharedClassPathEntry``). The layers of an image
    keep no fractions, so a container sees other times than the build did.
    """
    jars = sorted(spark_jars_directory().glob("*.jar"))
    release = runtime.home / "release"
    files = [*connectors, *jars, *([release] if release.is_file() else [])]
    reported = [(str(file), file.stat().st_size, int(file.stat().st_mtime)) for file in files]
    return hashlib.sha256(repr((str(runtime.path), reported)).encode()).hexdigest()[:16]


def archive_options(connectors: Sequence[Path]) -> str:
    """Returns the JVM options that use the archive; empty without an archive."""
    missing = next((jar for jar in connectors if not jar.is_file()), None)
    if missing is not None:
        # Spark starts without it, and reports which class it does not find.
        _log.warning("a jar is not there, so that what needs it fails: is its path right?", jar=str(missing))
        return ""
    archive = class_archive(connectors)
    # The JVM splits its options at spaces.
    if not archive.is_file() or " " in str(archive):
        return ""
    return f"-Xshare:auto -XX:SharedArchiveFile={archive} {_QUIET}"


def make_class_archive(progress: Progress = silent, seconds: float = _MAKING_SECONDS) -> bool:
    """Create the archive for the existing jars, unless it exists. Returns True if it exists afterwards.

    The archive only saves time, so it is not an error if a JVM cannot create it within ``seconds``.
    """
    archive = class_archive(spark_connector_jars())
    if archive.is_file():
        return True
    progress("Spark's classes are stored for the next starts (once)")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        part = Path(work) / "part.jsa"
        if not _start_once(part, seconds):
            return False
        part.replace(archive)
    return True


def _start_once(part: Path, seconds: float) -> bool:
    """Have a process write the archive to ``part``. Return False if it did not end, or not well."""
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
    """Start Spark on a JVM that writes its classes to ``part`` when it ends, and wait for the end."""
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
    # The JVM ends, and writes, when its standard input is closed.
    process.stdin.close()
    process.wait()


def _small_job(session: SparkSession, path: Path, *, has_iceberg: bool) -> None:
    """Load what each batch loads first: an aggregation, a join, a table written and read."""
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


T = TypeVar("T")
# The job tag of the current thread.
_tag_here: Final[ContextVar[str | None]] = ContextVar("job tag", default=None)


@contextmanager
def threads_tagged(tag: str) -> Iterator[None]:
    """Threads that are started within, and their own threads, have Spark jobs for ``cancel_jobs``."""
    before = _tag_here.set(tag)
    try:
        yield
    finally:
        _tag_here.reset(before)


def start_thread(spark: SparkSession, work: Callable[[], T], *, name: str) -> Future[T]:
    """Run ``work`` in a thread. The future has its result.

    Its Spark jobs have the tag of the calling thread (``threads_tagged``).

    PySpark opens a connection and a JVM thread for every thread, which stay open until garbage is collected.
    Here they are closed with the thread.
    """
    future: Future[T] = Future()
    tag = _tag_here.get()

    def run() -> None:
        try:
            if tag is not None:
                _tag_here.set(tag)
                spark.sparkContext.addJobTag(tag)
            result = work()
        except BaseException as exc:  # noqa: BLE001  (the future raises it)
            _close_connection(spark)
            future.set_exception(exc)
        else:
            _close_connection(spark)
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _start_python_workers(spark: SparkSession, modules: Sequence[str]) -> Future[None]:
    """Make Spark start one Python worker per core, in the background.

    The process that forks them takes 2 s to start, most of a first batch. It starts while topics are looked
    up. The first batch shows any failure.
    """
    cores = spark.sparkContext.defaultParallelism
    first = FirstTask(tuple(modules))

    def run() -> None:
        spark.range(0, cores, 1, cores).mapInArrow(first, "id bigint").collect()

    return start_thread(spark, run, name="first Python workers")


@dataclass(frozen=True)
class FirstTask:
    """Imports modules in a Python worker; for ``mapInArrow``."""

    modules: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the batches unchanged."""
        import_modules(self.modules)
        yield from batches


def _close_connection(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError

    gateway: Any = spark.sparkContext._gateway
    try:
        client = gateway._gateway_client
        connection = client.get_thread_connection()
        if connection is not None:
            client.deque.remove(connection)
            connection.close()
    except (AttributeError, ValueError, OSError, Py4JError):
        # Not PySpark's pinned-thread gateway, or the JVM has ended: there is nothing to close.
        return


def in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Returns the rows as a frame of ``session``.

    Persisted rows stay persisted, because the cache is shared.
    """
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    if frame.sparkSession is session:
        return frame
    jvm: Any = session._jvm
    plan = frame._jdf.logicalPlan()
    rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return ClassicFrame(rows, session)
