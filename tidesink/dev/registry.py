"""Apicurio Registry with its Confluent-compatible API on loopback, its schemas in an H2 file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import requests

from tidesink.dev.ivy import registry_runner
from tidesink.dev.java import find_java
from tidesink.dev.ports import LOOPBACK
from tidesink.dev.processes import DaemonFiles, RunningDaemon, accepts, require_free_port, start_daemon
from tidesink.sinks.ivy import Progress

NAME: Final = "registry"
API: Final = "/apis/ccompat/v7"
_HTTP_OK: Final = 200


@dataclass(frozen=True)
class Registry:
    """The registry of one stack directory: its data stands in ``registry/``, its pid and log in ``run/``."""

    directory: Path
    port: int

    @property
    def files(self) -> DaemonFiles:
        return DaemonFiles(NAME, self.directory / "run")

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}{API}"

    def prepare(self, progress: Progress) -> None:
        """Fetch the jars and check the port.

        Raises DevStackError when one of these cannot be done.
        """
        registry_runner(progress=progress)
        require_free_port(self.port, name="registry", option="--registry-port")
        self._data.mkdir(parents=True, exist_ok=True)

    def start(self, progress: Progress) -> RunningDaemon:
        """Start the process; it answers some seconds later."""
        progress(f"registry: starting on {self.address}")
        return start_daemon(self.files, self._command(), port=self.port)

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

    def _command(self) -> list[str]:
        return [
            str(find_java().path), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={self.port}",
            "-Dquarkus.log.level=WARN", "-Dquarkus.banner.enabled=false",
            f"-Dapicurio.datasource.url=jdbc:h2:file:{(self._data / 'registry').resolve()}",
            "-jar", str(registry_runner()),
        ]  # fmt: skip
