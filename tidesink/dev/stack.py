"""Runs the local stack: Apache Kafka (KRaft, one node) and Apicurio Registry on loopback.

The registry serves its Confluent-compatible API, and stores schemas in an H2 file. Both services run from
their published jars, on the same Java as Spark. The versions are fixed: Kafka 4.4.0 was only partly
published, and Apicurio 3.0.9 is the last version that runs on Java 17 and does not open a separate management
port.

Each service is a daemon: a process in its own session, with a pid file, a log file and a port on loopback.
The pid file has the pid and the start time of the process, so that another process that got the same pid is
never killed.
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

# On a small, busy machine a JVM needs a minute to start. A JVM that ends early is noticed at once.
READY_SECONDS: Final = 240.0
STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.1
_LOG_LINES: Final = 15


@dataclass(frozen=True)
class RunningDaemon:
    """A process that a pid file describes.

    started: Start time of the process, as text that is only compared for equality.
    """

    pid: int
    started: str
    port: int


@dataclass(frozen=True)
class DaemonFiles:
    """The paths of a daemon's pid file and log file."""

    name: str
    directory: Path

    @property
    def pid_file(self) -> Path:
        return self.directory / f"{self.name}.pid"

    @property
    def log_file(self) -> Path:
        return self.directory / f"{self.name}.log"


def start_daemon(files: DaemonFiles, command: Sequence[str], *, port: int) -> RunningDaemon:
    """Starts a command as a daemon: in its own session, with its output in the log file, and a pid file.

    The log of the previous run is kept with the suffix ``.1``.

    Raises:
        DevStackError: The command cannot be started, or ended at once.
    """
    files.directory.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        files.log_file.replace(files.log_file.with_suffix(".log.1"))
    with interrupts_wait():
        process = _start(files, command)
        # The daemon may outlive this object. With a return code, Python does not warn about that.
        process.returncode = 0
        try:
            return _record(files, process.pid, port)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # without a pid file no command could stop the process
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
    """Delays Ctrl-C to the end of this context.

    An interrupt after a process has started and before its pid file is written would leave the process
    running. Has no effect outside the main thread, which is the only thread that receives Ctrl-C.
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
    """Returns the process of a pid file if it is running; None if it has ended or its pid was reused."""
    daemon = read_pid_file(files)
    if daemon is not None and start_of(daemon.pid) == daemon.started:
        return daemon
    return None


def read_pid_file(files: DaemonFiles) -> RunningDaemon | None:
    """Returns the process that a pid file describes, which may have ended; None without a readable file."""
    try:
        document = json.loads(files.pid_file.read_text(encoding="utf-8"))
        return RunningDaemon(int(document["pid"]), str(document["started"]), int(document["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stop_daemons(all_files: Sequence[DaemonFiles], *, grace: float = STOP_SECONDS) -> list[str]:
    """Stops all processes at the same time with SIGTERM, and with SIGKILL after ``grace`` seconds.

    Returns the names of the processes that were running.
    """
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
    """Waits until ``answers()`` returns True, at the latest until ``deadline`` (of ``time.monotonic()``).

    Raises:
        DevStackError: The process ended, or did not answer in time. The message has the end of its log.
    """
    while True:
        # The process is checked first, because another program may answer on the port.
        if start_of(daemon.pid) != daemon.started:
            raise DevStackError(f"{files.name} ended while it was starting.{_log_tail(files)}")
        if answers():
            return
        if time.monotonic() > deadline:
            raise DevStackError(f"{files.name} does not answer on port {daemon.port}.{_log_tail(files)}")
        time.sleep(_POLL_SECONDS)


def require_free_port(port: int, *, name: str, option: str) -> None:
    """Checks that a loopback port can be used. ``name``: the service. ``option``: the option for the port.

    Raises:
        DevStackError: The port is in use, not allowed, or not a port number.
    """
    if not 0 < port < 65536:
        raise DevStackError(
            f"Port {port} for the {name} is not between 1 and 65535. Choose another port with {option}."
        )
    refused = _bind_error(port)
    if refused == errno.EADDRINUSE:
        raise DevStackError(
            f"Port {port} for the {name} is in use. Stop the program that uses it, or choose another port "
            f"with {option}."
        )
    if refused is not None:
        raise DevStackError(
            f"The {name} cannot use port {port}: {os.strerror(refused)}. Choose another port with {option}."
        )


def _bind_error(port: int) -> int | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as exc:
            return exc.errno or errno.EINVAL
    return None


def accepts(port: int) -> bool:
    """Returns True if a program accepts connections on a loopback port."""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def start_of(pid: int) -> str | None:
    """Returns the start time of a process, as text for comparison; None if the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _start_by_ps(pid)
    fields = stat.rpartition(")")[2].split()  # the process's name, in brackets, may itself contain brackets
    # A process whose first thread is a zombie still runs if it has other threads, as a JVM that is killed.
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
    """Reaps a process if it is a child of this process, so that it does not stay a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _log_tail(files: DaemonFiles) -> str:
    try:
        lines = files.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f" No log at {files.log_file}."
    return "\n".join([f" The end of {files.log_file}:", *lines[-_LOG_LINES:]])


LOOPBACK: Final = "127.0.0.1"
# Lower ports belong to well-known services, and higher ones to Kubernetes and outgoing connections.
_OURS: Final = range(10_000, 30_000)
_GIVEN_OUT: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES: Final = 100


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Returns ``count`` different ports of ``host`` on which no program listens, chosen at random.

    The ports are outside the range that the system uses for outgoing connections, so that they stay free
    while a service starts.

    Raises:
        OSError: There are not enough free ports, or ``host`` is not an address of this machine.
    """
    ours = _OURS
    with contextlib.suppress(OSError, ValueError):
        ours = range(ours.start, min(ours.stop, int(_GIVEN_OUT.read_text(encoding="ascii").split()[0])))
    # If none of these ports is free, the system chooses a port (0).
    candidates = [*random.SystemRandom().sample(ours, min(len(ours), _TRIES + count)), *[0] * count]
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in candidates if count else ():
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind((host, port))
            except OSError:
                if port == 0:
                    raise
                continue
            ports.append(probe.getsockname()[1])
            if len(ports) == count:
                break
    return ports


DIRECTORY: Final = Path(".tidesink")
KAFKA_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
REGISTRY_PORT: Final = 8081


class StackAddresses(NamedTuple):
    """Client addresses of the stack: ``bootstrap.servers`` and the registry's base URL."""

    brokers: str
    registry_url: str


@dataclass(frozen=True)
class Service:
    """A service of the local stack. ``directory`` has a folder for its data, and ``run/`` for pid and log."""

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
        """Starts the service's process without waiting until it answers."""
        progress(f"{self.name}: starting on {self.address}")
        return start_daemon(self.files, self.command(), port=self.port)

    def prepare(self, progress: Progress) -> None:
        """Downloads what the service needs, checks its ports, and creates its data folder.

        Raises:
            DevStackError: One of these steps failed.
        """
        raise NotImplementedError

    def command(self) -> list[str]:
        """Returns the command that runs the service."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Returns True if the service answers a request; an open port is not enough."""
        raise NotImplementedError


class ServiceGroup:
    """Services of one directory that are started and stopped together. ``down`` keeps their data."""

    def __init__(self, directory: Path, services: Sequence[Service]) -> None:
        self.directory = directory
        self._services = tuple(services)

    def up(self, progress: Progress = silent) -> None:
        """Starts the services that are not running, and waits until all services answer.

        If this fails or is interrupted, the services that it started are stopped.

        Raises:
            DevStackError: A program or jar is missing, a port is in use, or a service does not start.
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
        """Stops all services. Returns the names of the services that were running."""
        if not self.directory.is_dir():
            return []
        with self._alone(progress):
            return stop_daemons([service.files for service in self._services])

    def _start(self, missing: list[Service], progress: Progress) -> None:
        for service in missing:  # all are started before the first wait, to save time
            service.start(progress)
        deadline = time.monotonic() + READY_SECONDS
        for service in self._services:
            running = find_running(service.files) or RunningDaemon(0, "gone", service.port)
            wait_ready(service.files, running, service.answers, deadline=deadline)
            progress(f"{service.files.name}: ready on {service.address}")

    @contextmanager
    def _alone(self, progress: Progress) -> Iterator[None]:
        """Holds the directory's lock, so that only one process at a time starts or stops the services."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "stack.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress("waiting for another process that starts or stops the servers of this folder")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class DevStack:
    """A Kafka broker and a schema registry on 127.0.0.1, with all their files in ``directory``."""

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
                f"The servers need three different ports, not {kafka_port}, {controller_port}, "
                f"{registry_port}. Set --kafka-port, --controller-port and --registry-port."
            )
        self.directory = directory.resolve()
        self._broker = Broker(self.directory, kafka_port, controller_port)
        self._registry = Registry(self.directory, registry_port)
        self._group = ServiceGroup(self.directory, (self._registry, self._broker))

    @property
    def addresses(self) -> StackAddresses:
        """The addresses of the broker and the registry, which need not be running."""
        return StackAddresses(self._broker.address, self._registry.address)

    def up(self, progress: Progress = silent) -> StackAddresses:
        """Starts the broker and the registry, and waits until both answer. Returns their addresses.

        Raises:
            DevStackError: A jar is missing, a port is in use, or a service does not start.
        """
        self._group.up(progress)
        return self.addresses

    def down(self, progress: Progress = silent) -> list[str]:
        """Stops the broker and the registry. Returns the names of the services that were running."""
        return self._group.down(progress)


def _is_running(service: Service) -> bool:
    running = find_running(service.files)
    if running is not None and running.port != service.port:
        raise DevStackError(
            f"{service.files.name} of this folder already runs on port {running.port}, "
            f"not {service.port}. Use that port, or run `tidesink dev down` first."
        )
    return running is not None


# The same id for every folder, because the formatting tool of a killed ``up`` may still run during the next.
_CLUSTER_ID: Final = "tidesinkDevStack000000"
# The file with the cluster's id, which Kafka writes when it formats a folder.
_FORMATTED: Final = "meta.properties"
_CLUSTER: Final = "__cluster_metadata-0"
_PARTITION: Final = re.compile(r".+-\d+")
_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")

# Retention is off, so that the topics of a demo can still be read a week later. Messages may have 16 MiB,
# because users of TiCDC raise max-message-bytes, and such values are tried on this broker.
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
    """The Kafka broker. Its data folder is formatted at the first start."""

    name = "kafka"
    controller_port: int

    def prepare(self, progress: Progress) -> None:
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
        return _java(broker_jars(), "kafka.Kafka", self._properties)

    def answers(self) -> bool:
        """Returns True if the broker answers a request for metadata."""
        return accepts(self.port) and _serves_metadata(self.address)

    @property
    def _data(self) -> Path:
        return self.directory / "kafka" / "data"

    @property
    def _properties(self) -> Path:
        return self.directory / "kafka" / "server.properties"


def _require_no_topics(data: Path) -> None:
    """Checks that an unformatted data folder has no topics, which formatting would make unreadable.

    Raises:
        DevStackError: The folder has topics.
    """
    partitions = [child for child in data.iterdir() if _PARTITION.fullmatch(child.name) and child.is_dir()]
    if any(child.name != _CLUSTER or any(child.glob("*.log")) for child in partitions):
        raise DevStackError(
            f"{data} has topics, but their file {_FORMATTED} is missing. Restore the file, or move the "
            "folder's content away to begin with an empty broker. Nothing was changed."
        )


def _java(jars: Path, main: str, *arguments: str | Path) -> list[str]:
    return [str(find_java().path), "-Xmx512m", *_JVM, "-cp", f"{jars}/*", main, *map(str, arguments)]


def _format(jars: Path, properties: Path, seconds: float = READY_SECONDS) -> None:
    """Formats the broker's storage, even if an earlier ``up`` was killed while formatting it.

    Raises:
        DevStackError: Kafka's tool failed or did not end in time.
    """
    command = _java(jars, "kafka.tools.StorageTool", "format", "--ignore-formatted")
    command += [f"--cluster-id={_CLUSTER_ID}", "-c", str(properties)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as exc:
        raise DevStackError(
            f"Kafka did not format its storage ({properties}) within {seconds:.0f} s. Is the machine "
            "busy, or its disk full? Run the command again."
        ) from exc
    if answer.returncode:
        output = (answer.stderr + answer.stdout).strip()[-2000:]
        raise DevStackError(f"Kafka cannot format its storage ({properties}):\n{output}")


def _serves_metadata(address: str) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    # Refused connections are normal while the broker starts, so they are not logged.
    client = AdminClient({"bootstrap.servers": address, "log_level": 0, "socket.timeout.ms": 3000})
    try:
        return bool(client.list_topics(timeout=3).brokers)
    except KafkaException:
        return False


API: Final = "/apis/ccompat/v7"
_HTTP_OK: Final = 200


@dataclass(frozen=True)
class Registry(Service):
    """The schema registry (Apicurio)."""

    name = "registry"

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}{API}"

    def prepare(self, progress: Progress) -> None:
        registry_runner(progress=progress)
        require_free_port(self.port, name="registry", option="--registry-port")
        self._data.mkdir(parents=True, exist_ok=True)

    def answers(self) -> bool:
        """Returns True if the registry's Confluent-compatible API lists the subjects."""
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
        return [
            str(find_java().path), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={self.port}",
            "-Dquarkus.log.level=WARN", "-Dquarkus.banner.enabled=false",
            f"-Dapicurio.datasource.url=jdbc:h2:file:{(self._data / 'registry').resolve()}",
            "-jar", str(registry_runner()),
        ]  # fmt: skip


def running_stack(directory: Path = DIRECTORY) -> StackAddresses | None:
    """Returns the addresses of the broker and registry of a directory; None unless both are running."""
    # The ports are read from the pid files, since they depend on the options of ``up``.
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
    """Returns the folder with the broker's jars, which are downloaded if they are missing.

    Raises:
        DevStackError: The jars cannot be downloaded.
    """
    return fetch(KAFKA, progress=progress)


def registry_runner(*, progress: Progress = silent) -> Path:
    """Returns the path of the registry's runnable jar, which is downloaded if it is missing.

    Raises:
        DevStackError: The jar cannot be downloaded.
    """
    folder = fetch(APICURIO, progress=progress, finish=_unpack)
    runners = sorted(folder.glob(RUNNER))
    if not runners:
        raise DevStackError(f"{folder} does not contain {RUNNER}. Delete the folder, and try again.")
    return runners[0]


def _unpack(folder: Path) -> None:
    for archive in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            unpack(tar, folder)
        archive.unlink()


def unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpacks an archive of plain files and folders into ``folder``.

    Raises:
        DevStackError: The archive has other entries, such as links, or paths outside ``folder``.
    """
    if hasattr(tarfile, "data_filter"):
        try:
            tar.extractall(folder, filter="data")
        except tarfile.FilterError as exc:
            raise DevStackError(f"{tar.name!r} does not only contain plain files and folders: {exc}") from exc
        return
    # tarfile has no filters before Python 3.10.12 and 3.11.4, as in Debian 12 (3.11.2).
    for member in tar.getmembers():
        inside = (folder / member.name).resolve().is_relative_to(folder.resolve())
        if not inside or not (member.isfile() or member.isdir()):
            raise DevStackError(f"{tar.name!r} does not only contain plain files and folders: {member.name}")
    tar.extractall(folder)  # noqa: S202
