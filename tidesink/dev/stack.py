"""The local stack: a one-node Apache Kafka (KRaft) and Apicurio Registry on loopback.

The registry has its Confluent-compatible API, and its schemas in an H2 file. Both run from their published
jars, at fixed versions, on the same Java as Spark. Version ranges are not used: Kafka 4.4.0 was published
in part only. Apicurio 3.0.9 is the last which runs on Java 17 and opens no management port beside its own.

Each is a daemon: a process in a session of its own, a pid file, a log file, and a port on loopback. A pid
file names the process by pid and by when it started, so that a pid which the system has given to another
process is never taken for ours and never killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import re
import signal
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import requests

from tidesink.errors import DevStackError
from tidesink.sinks.spark.jvm import Archive, Coordinate, JarSet, Progress, fetch, find_java, silent

# A JVM beside others on a small machine takes a minute; one that ends is seen at once.
READY_SECONDS: Final = 240.0
STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.1
_LOG_LINES: Final = 15


@dataclass(frozen=True)
class RunningDaemon:
    """A process as its pid file describes it. ``started`` is opaque: equal only for the same process."""

    pid: int
    started: str
    port: int


@dataclass(frozen=True)
class DaemonFiles:
    """Where a daemon keeps its pid and its log."""

    name: str
    directory: Path

    @property
    def pid_file(self) -> Path:
        return self.directory / f"{self.name}.pid"

    @property
    def log_file(self) -> Path:
        return self.directory / f"{self.name}.log"


def start_daemon(files: DaemonFiles, command: Sequence[str], *, port: int) -> RunningDaemon:
    """Start the command in its own session, its output in the log file, and write its pid file.

    The log of the last run stays beside it with ``.1``. Raises DevStackError when it cannot start.
    """
    files.directory.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        files.log_file.replace(files.log_file.with_suffix(".log.1"))
    with interrupts_wait():
        process = _start(files, command)
        # The daemon outlives this object on purpose; without a code its collection would warn of that.
        process.returncode = 0
        try:
            return _record(files, process.pid, port)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # without a pid file nobody could ever stop it
            raise


def _start(files: DaemonFiles, command: Sequence[str]) -> subprocess.Popen[bytes]:
    with files.log_file.open("wb") as log:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            raise DevStackError(f"{files.name} cannot start: {command[0]}: {exc.strerror}") from exc


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C takes effect behind the block: between a fork and its pid file it would leave an orphan.

    Without effect in other threads than the main one, which alone receives Ctrl-C.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for number in waiting[:1]:
            signal.raise_signal(number)


def find_running(files: DaemonFiles) -> RunningDaemon | None:
    """The live process of the pid file; None if there is none, or its pid belongs to another one by now."""
    daemon = read_pid_file(files)
    if daemon is not None and start_of(daemon.pid) == daemon.started:
        return daemon
    return None


def read_pid_file(files: DaemonFiles) -> RunningDaemon | None:
    """The process of the pid file, alive or not; None when the file is missing or unreadable."""
    try:
        found = json.loads(files.pid_file.read_text(encoding="utf-8"))
        return RunningDaemon(int(found["pid"]), str(found["started"]), int(found["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stop_daemons(all_files: Sequence[DaemonFiles], *, grace: float = STOP_SECONDS) -> list[str]:
    """End the processes together: SIGTERM, after ``grace`` seconds SIGKILL. The names of those that ran."""
    running = {files.name: daemon for files in all_files if (daemon := find_running(files))}
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, STOP_SECONDS)):
        deadline = time.monotonic() + seconds
        for daemon in running.values():
            _signal(daemon, number)
        if all(_wait_gone(daemon, deadline) for daemon in running.values()):
            break
    for files in all_files:
        files.pid_file.unlink(missing_ok=True)
    return list(running)


def wait_ready(
    files: DaemonFiles,
    daemon: RunningDaemon,
    answers: Callable[[], bool],
    *,
    deadline: float,
) -> None:
    """Wait until ``answers()``; ``deadline`` is a ``time.monotonic()`` value.

    Raises DevStackError with the end of the log when the process ends first or the time is up.
    """
    while True:
        # Ours must be alive: another program on its port could answer in its place.
        if start_of(daemon.pid) != daemon.started:
            raise DevStackError(f"{files.name} ended while starting.{_log_tail(files)}")
        if answers():
            return
        if time.monotonic() > deadline:
            raise DevStackError(f"{files.name} does not answer on port {daemon.port}.{_log_tail(files)}")
        time.sleep(_POLL_SECONDS)


def require_free_port(port: int, *, name: str, option: str) -> None:
    """Raise DevStackError when something listens on the loopback port."""
    if not 0 < port < 65536:
        raise DevStackError(
            f"port {port} for the {name} is not between 1 and 65535; choose another with {option}"
        )
    refused = _bind_error(port)
    if refused == errno.EADDRINUSE:
        raise DevStackError(
            f"port {port} for the {name} is in use; stop that, or choose another with {option}"
        )
    if refused is not None:
        raise DevStackError(f"the {name} cannot use port {port}: {os.strerror(refused)}; choose {option}")


def _bind_error(port: int) -> int | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as exc:
            return exc.errno or errno.EINVAL
    return None


def accepts(port: int) -> bool:
    """True when something accepts connections on the loopback port."""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def start_of(pid: int) -> str | None:
    """When the process started, as text equal only for the same process; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _start_by_ps(pid)
    fields = stat.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    # A killed JVM's first thread is a zombie while others still close its ports: that is not gone yet.
    ended = fields[0] in "ZX" and int(fields[17]) <= 1
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return None if ended else f"{boot}/{fields[19]}"


def _start_by_ps(pid: int) -> str | None:
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or None


def _record(files: DaemonFiles, pid: int, port: int) -> RunningDaemon:
    started = start_of(pid)
    if started is None:
        raise DevStackError(f"{files.name} ended at once.{_log_tail(files)}")
    daemon = RunningDaemon(pid, started, port)
    part = files.pid_file.with_suffix(".pid.part")
    part.write_text(json.dumps(asdict(daemon)), encoding="utf-8")
    part.replace(files.pid_file)
    return daemon


def _signal(daemon: RunningDaemon, number: signal.Signals) -> None:
    if start_of(daemon.pid) == daemon.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, number)


def _wait_gone(daemon: RunningDaemon, deadline: float) -> bool:
    while start_of(daemon.pid) == daemon.started:
        if time.monotonic() > deadline:
            return False
        _reap(daemon.pid)
        time.sleep(_POLL_SECONDS / 2)
    _reap(daemon.pid)
    return True


def _reap(pid: int) -> None:
    """Collect the process if it is our own child, so that no zombie stays while we live."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _log_tail(files: DaemonFiles) -> str:
    try:
        lines = files.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f" No log at {files.log_file}."
    return "\n".join([f" The end of {files.log_file}:", *lines[-_LOG_LINES:]])


LOOPBACK: Final = "127.0.0.1"
# Below lie the ports of well-known services, above Kubernetes' NodePorts and those of connections.
_OURS: Final = range(10_000, 30_000)
_GIVEN_OUT: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES: Final = 100


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on at this moment, tried in random order.

    The system assigns none of them by itself: a service takes seconds to start, and would find its port in
    use. Raises OSError if there is none.
    """
    ours = _OURS
    with contextlib.suppress(OSError, ValueError):
        ours = range(ours.start, min(ours.stop, int(_GIVEN_OUT.read_text(encoding="ascii").split()[0])))
    # In the end any port that the system has.
    candidates = [*random.SystemRandom().sample(ours, min(len(ours), _TRIES + count)), *[0] * count]
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in candidates if count else ():
            one = stack.enter_context(socket.socket())
            try:
                one.bind((LOOPBACK, port))
            except OSError:
                if port == 0:
                    raise
                continue
            found.append(one.getsockname()[1])
            if len(found) == count:
                break
    return found


DIRECTORY: Final = Path(".tidesink")
KAFKA_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
REGISTRY_PORT: Final = 8081


class StackAddresses(NamedTuple):
    """Where clients find the stack: ``bootstrap.servers`` and the registry's base URL."""

    brokers: str
    registry_url: str


@dataclass(frozen=True)
class Service:
    """One service of a stack directory: its data has a folder there, its pid and log stand in ``run/``."""

    name: ClassVar[str]

    directory: Path
    port: int

    @property
    def files(self) -> DaemonFiles:
        return DaemonFiles(self.name, self.directory / "run")

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self, progress: Progress) -> RunningDaemon:
        """Start the process; it answers some seconds later."""
        progress(f"{self.name}: starting on {self.address}")
        return start_daemon(self.files, self.command(), port=self.port)

    def prepare(self, progress: Progress) -> None:
        """Fetch the jars, check the ports, and make the data folder.

        Raises DevStackError when one of these cannot be done.
        """
        raise NotImplementedError

    def command(self) -> list[str]:
        """The process to start."""
        raise NotImplementedError

    def answers(self) -> bool:
        """True when the service does its work, not only when its port is open."""
        raise NotImplementedError


class ServiceGroup:
    """Services of one directory, started and stopped together; their data survive ``down``."""

    def __init__(self, directory: Path, services: Sequence[Service]) -> None:
        self.directory = directory
        self._services = tuple(services)

    def up(self, progress: Progress = silent) -> None:
        """Start what does not run yet and return when all of it answers.

        What this call started is stopped again when it fails or is interrupted. Raises DevStackError:
        something to run is not to be had, a busy port, a service that does not come up.
        """
        with self._alone(progress):
            missing = [service for service in self._services if not _is_running(service)]
            for service in missing:
                service.prepare(progress)
            try:
                self._start(missing, progress)
            except BaseException:
                stop_daemons([service.files for service in missing])
                raise

    def down(self, progress: Progress = silent) -> list[str]:
        """Stop everything; the names of the services that were running."""
        if not self.directory.is_dir():
            return []
        with self._alone(progress):
            return stop_daemons([service.files for service in self._services])

    def _start(self, missing: list[Service], progress: Progress) -> None:
        for service in missing:  # started together, then waited for together
            service.start(progress)
        deadline = time.monotonic() + READY_SECONDS
        for service in self._services:
            running = find_running(service.files) or RunningDaemon(0, "gone", service.port)
            wait_ready(service.files, running, service.answers, deadline=deadline)
            progress(f"{service.files.name}: ready on {service.address}")

    @contextmanager
    def _alone(self, progress: Progress) -> Iterator[None]:
        """Hold the lock: two ``up`` at once start one group, ``down`` stops a whole one."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "stack.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress("another process starts or stops this stack, waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class DevStack:
    """A Kafka broker and a schema registry on loopback.

    Ports are TCP ports on 127.0.0.1. Everything is kept under ``directory``.
    """

    def __init__(
        self,
        directory: Path = DIRECTORY,
        *,
        kafka_port: int = KAFKA_PORT,
        controller_port: int = CONTROLLER_PORT,
        registry_port: int = REGISTRY_PORT,
    ) -> None:
        if len({kafka_port, controller_port, registry_port}) < 3:
            raise DevStackError(
                f"three different ports are needed, not {kafka_port}, {controller_port}, {registry_port}: "
                "--kafka-port, --controller-port, --registry-port"
            )
        self.directory = directory.resolve()
        self._broker = Broker(self.directory, kafka_port, controller_port)
        self._registry = Registry(self.directory, registry_port)
        self._group = ServiceGroup(self.directory, (self._registry, self._broker))

    @property
    def addresses(self) -> StackAddresses:
        """Where the services are, or would be."""
        return StackAddresses(self._broker.address, self._registry.address)

    def up(self, progress: Progress = silent) -> StackAddresses:
        """Start both, as ``ServiceGroup.up``. Raises DevStackError."""
        self._group.up(progress)
        return self.addresses

    def down(self, progress: Progress = silent) -> list[str]:
        """Stop both; the names of those that were running."""
        return self._group.down(progress)


def _is_running(service: Service) -> bool:
    running = find_running(service.files)
    if running is not None and running.port != service.port:
        raise DevStackError(
            f"{service.files.name} of this directory already runs on port {running.port}, "
            f"not {service.port}: use that port, or run `tidesink dev down` first"
        )
    return running is not None


# Always the same: Kafka's tool outlives a killed ``up``, and may meet the next one's.
_CLUSTER_ID: Final = "tidesinkDevStack000000"
# Kafka's word that a folder is formatted, and of which cluster.
_FORMATTED: Final = "meta.properties"
_CLUSTER: Final = "__cluster_metadata-0"
_PARTITION: Final = re.compile(r".+-\d+")
_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")

# Retention is off: a demo that is looked at again next week must not find its topics expired.
# 16 MiB messages: TiCDC's users raise max-message-bytes, and oversize values are tried here.
_PROPERTIES: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
delete.topic.enable=true
log.retention.ms=-1
message.max.bytes=16777216
replica.fetch.max.bytes=16777216
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@dataclass(frozen=True)
class Broker(Service):
    """The broker; its data folder is formatted when it is new."""

    name = "kafka"
    controller_port: int

    def prepare(self, progress: Progress) -> None:
        """As ``Service``."""
        jars = broker_jars(progress=progress)
        require_free_port(self.port, name="broker", option="--kafka-port")
        require_free_port(self.controller_port, name="broker's controller", option="--controller-port")
        self._data.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(
            _PROPERTIES.format(
                host=LOOPBACK, port=self.port, controller_port=self.controller_port, data=self._data.resolve()
            ),
            encoding="utf-8",
        )
        if not (self._data / _FORMATTED).is_file():
            _require_no_topics(self._data.resolve())
            progress("kafka: formatting its storage")
            _format(jars, self._properties)

    def command(self) -> list[str]:
        """As ``Service``."""
        return _java(broker_jars(), "kafka.Kafka", self._properties)

    def answers(self) -> bool:
        """True when the broker serves metadata, not only when its port is open."""
        return accepts(self.port) and _serves_metadata(self.address)

    @property
    def _data(self) -> Path:
        return self.directory / "kafka" / "data"

    @property
    def _properties(self) -> Path:
        return self.directory / "kafka" / "server.properties"


def _require_no_topics(data: Path) -> None:
    """A broker has been at work there where a partition is; formatting leaves one, without segments."""
    partitions = [child for child in data.iterdir() if _PARTITION.fullmatch(child.name) and child.is_dir()]
    if any(child.name != _CLUSTER or any(child.glob("*.log")) for child in partitions):
        raise DevStackError(
            f"{data} holds topics without the {_FORMATTED} they were written under: put that file back, or "
            "move what is there away to begin with an empty broker. Nothing was changed"
        )


def _java(jars: Path, main: str, *arguments: str | Path) -> list[str]:
    return [str(find_java().path), "-Xmx512m", *_JVM, "-cp", f"{jars}/*", main, *map(str, arguments)]


def _format(jars: Path, properties: Path, seconds: float = READY_SECONDS) -> None:
    """Format the storage; whatever a killed ``up`` left of it is completed."""
    command = _java(jars, "kafka.tools.StorageTool", "format", "--ignore-formatted")
    command += [f"--cluster-id={_CLUSTER_ID}", "-c", str(properties)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as exc:
        raise DevStackError(
            f"Kafka has not formatted its storage ({properties}) within {seconds:.0f} s; is the machine "
            "busy, or its disk full? Run the command again"
        ) from exc
    if answer.returncode:
        output = (answer.stderr + answer.stdout).strip()[-2000:]
        raise DevStackError(f"Kafka cannot format its storage ({properties}):\n{output}")


def _serves_metadata(address: str) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    # Refused connections are what waiting looks like: no log lines for them.
    client = AdminClient({"bootstrap.servers": address, "log_level": 0, "socket.timeout.ms": 3000})
    try:
        return bool(client.list_topics(timeout=3).brokers)
    except KafkaException:
        return False


API: Final = "/apis/ccompat/v7"
_HTTP_OK: Final = 200


@dataclass(frozen=True)
class Registry(Service):
    """The registry."""

    name = "registry"

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}{API}"

    def prepare(self, progress: Progress) -> None:
        """As ``Service``."""
        registry_runner(progress=progress)
        require_free_port(self.port, name="registry", option="--registry-port")
        self._data.mkdir(parents=True, exist_ok=True)

    def answers(self) -> bool:
        """True when the Confluent-compatible API lists its subjects."""
        if not accepts(self.port):
            return False
        try:
            return requests.get(f"{self.address}/subjects", timeout=3).status_code == _HTTP_OK
        except requests.RequestException:
            return False

    @property
    def _data(self) -> Path:
        return self.directory / "registry"

    def command(self) -> list[str]:
        """As ``Service``."""
        return [
            str(find_java().path), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={self.port}",
            "-Dquarkus.log.level=WARN", "-Dquarkus.banner.enabled=false",
            f"-Dapicurio.datasource.url=jdbc:h2:file:{(self._data / 'registry').resolve()}",
            "-jar", str(registry_runner()),
        ]  # fmt: skip


def running_stack(directory: Path = DIRECTORY) -> StackAddresses | None:
    """Where the broker and the registry of a directory run; None unless both do."""
    # The pid files know the ports, whatever options the stack was started with.
    broker = find_running(Broker(directory, 0, 0).files)
    registry = find_running(Registry(directory, 0).files)
    if broker is None or registry is None:
        return None
    return DevStack(directory, kafka_port=broker.port, registry_port=registry.port).addresses


KAFKA: Final = JarSet(
    "kafka",
    (
        Coordinate("org.apache.kafka", "kafka_2.13", "4.1.1"),
        Coordinate("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
)
APICURIO: Final = JarSet(
    "apicurio-registry",
    (Coordinate("io.apicurio", "apicurio-registry-app", "3.0.9"),),
    archive=Archive("tar.gz", "all"),
)
RUNNER: Final = "apicurio-registry-app-*-runner.jar"


def broker_jars(*, progress: Progress = silent) -> Path:
    """The folder of the broker's jars.

    Raises DevStackError when they cannot be fetched.
    """
    return fetch(KAFKA, progress=progress)


def registry_runner(*, progress: Progress = silent) -> Path:
    """The registry's runnable jar, its libraries beside it.

    Raises DevStackError when it cannot be fetched.
    """
    folder = fetch(APICURIO, progress=progress, finish=_unpack)
    runners = sorted(folder.glob(RUNNER))
    if not runners:
        raise DevStackError(f"{folder} holds no {RUNNER}; remove the folder and try again")
    return runners[0]


def _unpack(folder: Path) -> None:
    for archive in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            unpack(tar, folder)
        archive.unlink()


def unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack files and folders, nothing that would land elsewhere.

    Raises DevStackError for an archive that holds anything else.
    """
    if hasattr(tarfile, "data_filter"):
        try:
            tar.extractall(folder, filter="data")
        except tarfile.FilterError as exc:
            raise DevStackError(f"{tar.name!r} is no archive of plain files: {exc}") from exc
        return
    # Debian 12's Python (3.11.2) and others before 3.10.12 and 3.11.4 have no filters.
    for member in tar.getmembers():
        inside = (folder / member.name).resolve().is_relative_to(folder.resolve())
        if not inside or not (member.isfile() or member.isdir()):
            raise DevStackError(f"{tar.name!r} is no archive of plain files: {member.name}")
    tar.extractall(folder)  # noqa: S202
