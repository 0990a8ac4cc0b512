"""A Postgres server for tests of the target.

``TIDESINK_TEST_POSTGRES`` is the URL of a running one to use instead
(``postgresql://user:password@host:port/database``), whose user must be allowed to make schemas; else a
container where a Docker engine answers, else a server of one's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.absent import without_server
from tests.containers import container_postgres, engine_answers
from tidesink.dev.stack import free_ports
from tidesink.sinks.targets.sql.location import Endpoint

_CONFIG: Final = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
fsync = off
shared_buffers = 32MB
max_connections = 50
wal_level = logical
"""
_OWNER: Final = "postgres"
# The one role that a server of one's own asks for a password.
WITH_PASSWORD: Final = "tidesink_locked"
_SECONDS: Final = 240


@pytest.fixture(scope="session")
def postgres() -> Iterator[Endpoint]:
    """A Postgres server that answers."""
    given = os.environ.get("TIDESINK_TEST_POSTGRES")
    if given:
        parts = urlsplit(given)
        yield Endpoint(
            parts.hostname or "127.0.0.1",
            parts.port or 5432,
            parts.path.strip("/"),
            parts.username or _OWNER,
            parts.password or "",
        )
        return
    if engine_answers():
        with container_postgres() as endpoint:
            yield endpoint
        return
    programs = _programs()
    if programs is None:
        without_server("no Postgres server here: apt-get install postgresql, or set TIDESINK_TEST_POSTGRES")
    # Not in pytest's folder, which nobody else may enter.
    with TemporaryDirectory(prefix="tidesink-postgres-") as folder, _server(programs, Path(folder)) as own:
        yield own.endpoint


@contextmanager
def standby_server() -> Iterator[Endpoint]:
    """A server of one's own that is in recovery, as a hot standby is."""
    programs = _programs()
    if programs is None:
        without_server("no Postgres server's programs here: apt-get install postgresql")
    with (
        TemporaryDirectory(prefix="tidesink-standby-") as folder,
        _server(programs, Path(folder), standby=True) as own,
    ):
        yield own.endpoint


@contextmanager
def stoppable_server() -> Iterator[OwnServer]:
    """A server of one's own, to be stopped and started."""
    programs = _programs()
    if programs is None:
        without_server("no Postgres server's programs here: apt-get install postgresql")
    with (
        TemporaryDirectory(prefix="tidesink-stopped-") as folder,
        _server(programs, Path(folder)) as own,
    ):
        yield own


class OwnServer(NamedTuple):
    """A server that a test started; ``control``: pg_ctl with its folder, as the server's user."""

    endpoint: Endpoint
    control: Sequence[str | Path]
    log: Path

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._run("-l", self.log, "start")

    def stop(self) -> None:
        """Stop it at once."""
        self._run("-m", "immediate", "stop")

    def _run(self, *words: str | Path) -> None:
        command = [*self.control, *words]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS + 30)


def _programs() -> Path | None:
    """The newest server's programs, which are on nobody's PATH in Debian."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    program = shutil.which("initdb")
    return Path(program).parent if program else None


@contextmanager
def _server(programs: Path, folder: Path, *, standby: bool = False) -> Iterator[OwnServer]:
    (port,) = free_ports(1)
    data = folder / "data"
    # Postgres does not run as root: there it is the user of the package.
    as_owner = ["runuser", "-u", _OWNER, "--"] if os.geteuid() == 0 else []
    if as_owner:
        shutil.chown(folder, _OWNER)
    initdb: list[str | Path] = [
        programs / "initdb",
        "-D",
        data,
        "-A",
        "trust",
        "-U",
        _OWNER,
        "-E",
        "UTF8",
        "--locale=C",
        "-N",
    ]
    subprocess.run([*as_owner, *initdb], check=True, capture_output=True, timeout=_SECONDS)
    trusted = data / "pg_hba.conf"
    trusted.write_text(f"host all {WITH_PASSWORD} all scram-sha-256\n" + trusted.read_text(encoding="utf-8"))
    config = data / "postgresql.conf"
    config.write_text(config.read_text(encoding="utf-8") + _CONFIG.format(port=port, folder=folder))
    if standby:
        (data / "standby.signal").touch()
        with config.open("a", encoding="utf-8") as more:
            more.write("max_connections = 100\n")  # no fewer than what initdb had
    control: list[str | Path] = [*as_owner, programs / "pg_ctl", "-D", data, "-w", "-t", str(_SECONDS)]
    own = OwnServer(Endpoint("127.0.0.1", port, "postgres", _OWNER, ""), control, folder / "log")
    own.start()
    try:
        yield own
    finally:
        own.stop()
