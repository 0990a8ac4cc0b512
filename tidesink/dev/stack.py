"""The local stack as one thing: a broker and a registry, up or down together."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from tidesink.dev.broker import Broker
from tidesink.dev.processes import (
    READY_SECONDS,
    DaemonFiles,
    RunningDaemon,
    find_running,
    read_pid_file,
    stop_daemons,
    wait_ready,
)
from tidesink.dev.registry import Registry
from tidesink.errors import DevStackError
from tidesink.sinks.ivy import Progress, silent

DIRECTORY: Final = Path(".tidesink")
KAFKA_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
REGISTRY_PORT: Final = 8081

State = Literal["running", "starting", "stopped", "stale pid file"]


class StackAddresses(NamedTuple):
    """Where clients find the stack: ``bootstrap.servers`` and the registry's base URL."""

    brokers: str
    registry_url: str


class ServiceStatus(NamedTuple):
    """One service as it is now. ``detail`` is for people; a stopped one has no port: ``up`` is told it."""

    name: str
    state: State
    pid: int | None
    port: int | None
    detail: str


class Service(Protocol):
    """What the stack asks of a service."""

    @property
    def files(self) -> DaemonFiles: ...
    @property
    def port(self) -> int: ...
    @property
    def address(self) -> str: ...

    def prepare(self, progress: Progress) -> None: ...
    def start(self, progress: Progress) -> RunningDaemon: ...
    def answers(self) -> bool: ...


class DevStack:
    """A Kafka broker and a schema registry on loopback; their data survive ``down``.

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
        self._services: tuple[Service, ...] = (self._registry, self._broker)

    @property
    def addresses(self) -> StackAddresses:
        """Where the services are, or would be."""
        return StackAddresses(self._broker.address, self._registry.address)

    def up(self, progress: Progress = silent) -> StackAddresses:
        """Start what does not run yet and return when all of it answers.

        What this call started is stopped again when it fails or is interrupted. Raises DevStackError:
        no Java, jars not to be had, a busy port, a service that does not come up.
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
        return self.addresses

    def down(self, progress: Progress = silent) -> list[str]:
        """Stop everything; the names of the services that were running."""
        if not self.directory.is_dir():
            return []
        with self._alone(progress):
            return stop_daemons([service.files for service in self._services])

    def status(self) -> list[ServiceStatus]:
        """Each service as it is now."""
        return [_status(service) for service in (self._broker, self._registry)]

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
        """Hold the stack's lock: two ``up`` at once start one stack, ``down`` stops a whole one."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "stack.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress("another process starts or stops this stack, waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _is_running(service: Service) -> bool:
    running = find_running(service.files)
    if running is not None and running.port != service.port:
        raise DevStackError(
            f"{service.files.name} of this directory already runs on port {running.port}, "
            f"not {service.port}: use that port, or run `tidesink dev down` first"
        )
    return running is not None


def _status(service: Service) -> ServiceStatus:
    name, running, said = service.files.name, find_running(service.files), read_pid_file(service.files)
    if running is None and said is not None:
        return ServiceStatus(
            name, "stale pid file", None, said.port, f"pid {said.pid} is gone; up starts anew"
        )
    if running is None:
        return ServiceStatus(name, "stopped", None, None, "")
    if running.port != service.port:
        return ServiceStatus(name, "running", running.pid, running.port, "started with another port")
    state: State = "running" if service.answers() else "starting"
    return ServiceStatus(name, state, running.pid, running.port, service.address)
