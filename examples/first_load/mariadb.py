"""Runs a MariaDB server on loopback, as a source database for demos, tests and measurements.

The server's programs must be installed on the ``PATH``. All files that the server writes are in one folder.
The server's user ``root`` has no password, and SQL statements can only write files in that folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidesink.dev.stack import LOOPBACK, READY_SECONDS, Service, ServiceGroup, accepts, free_ports
from tidesink.errors import ConfigError, DevStackError
from tidesink.sinks.spark.jvm import Progress, silent

_SERVER: Final = "mariadbd"
_INSTALLER: Final = "mariadb-install-db"
# The socket has a relative name in the data folder, because the length of a socket's path is limited.
_CONFIG: Final = """[mariadbd]
datadir={data}
tmpdir={temporary}
socket=mariadb.sock
pid-file={data}/mariadb.pid
port={port}
bind-address={host}
secure-file-priv={data}
skip-log-bin
character-set-server=utf8mb4
"""


def missing_programs() -> list[str]:
    """Returns the names of MariaDB's programs that are not on the ``PATH``."""
    return [name for name in (_SERVER, _INSTALLER) if shutil.which(name) is None]


@dataclass(frozen=True)
class MariaDb(Service):
    """A MariaDB server on loopback. ``settings``: additional lines of its configuration."""

    name = "mariadb"
    settings: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the server."""
        return f"mysql+pymysql://root@{self.address}"

    def prepare(self, progress: Progress) -> None:
        """Writes the server's configuration, and creates its data folder if it does not exist.

        Raises:
            DevStackError: The server or the Python driver is not installed, or the data folder cannot be
                created.
        """
        missing = missing_programs()
        if missing:
            raise DevStackError(
                f"{missing[0]} is not on the PATH. Install MariaDB's server (Debian and Ubuntu: apt-get "
                "install mariadb-server-core mariadb-client-core; others: mariadb-server). Debian has it in "
                "/usr/sbin."
            )
        try:
            _driver()
        except ConfigError as error:
            raise DevStackError(
                "MariaDB needs PyMySQL 1.2 or newer: pip install 'tidesink[mysql]'"
            ) from error
        # A folder for temporary tables of its own: at its start a server removes all tables in this folder.
        places = {"data": self._data.resolve(), "temporary": self._data.resolve().with_name("tmp")}
        for folder in places.values():
            folder.mkdir(parents=True, exist_ok=True)
        lines = [_CONFIG.format(**places, host=LOOPBACK, port=self.port), *self.settings]
        if os.geteuid() == 0:
            lines.append("user=root")  # the server does not run as root without this setting
        self._config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if not (self._data / "mysql").is_dir():
            progress("mariadb: creating its data folder")
            self._install()

    def command(self) -> list[str]:
        return [_SERVER, self._defaults]

    def answers(self) -> bool:
        """Returns True if the server accepts a connection."""
        if not accepts(self.port):
            return False
        driver = _driver()
        try:
            driver.connect(host=LOOPBACK, port=self.port, user="root", connect_timeout=3).close()
        except driver.MySQLError:
            return False
        return True

    def _install(self) -> None:
        command = [_INSTALLER, self._defaults, "--auth-root-authentication-method=normal", "--skip-test-db"]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=READY_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise DevStackError(
                f"{_INSTALLER} did not finish ({type(exc).__name__}). Run the command again."
            ) from exc
        if answer.returncode:
            output = (answer.stdout + answer.stderr).strip()[-2000:]
            raise DevStackError(f"{_INSTALLER} cannot create {self._data}:\n{output}")

    @property
    def _defaults(self) -> str:
        return f"--defaults-file={self._config.resolve()}"

    @property
    def _data(self) -> Path:
        return self.directory / "mariadb" / "data"

    @property
    def _config(self) -> Path:
        return self.directory / "mariadb" / "my.cnf"


def _driver() -> Any:
    from tidesink.sinks.targets.sql.mysql import pymysql

    return pymysql()


@contextmanager
def running_mariadb(
    directory: Path, *settings: str, say: Callable[[str], None] = silent
) -> Iterator[MariaDb]:
    """Runs a MariaDB server on a free port, and stops it at the end. Its data stay in ``directory``.

    Raises:
        DevStackError: The server cannot be started.
    """
    (port,) = free_ports(1)
    server = MariaDb(directory, port, settings)
    group = ServiceGroup(directory, (server,))
    group.up(say)
    try:
        yield server
    finally:
        group.down()
