"""A Postgres and a MariaDB for the time of a measurement, set up as a small server of each is."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidesink.dev.stack import free_ports
from tidesink.errors import TidesinkError
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.mysql import MysqlDialect

_POSTGRES = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
shared_buffers = 512MB
max_wal_size = 4GB
"""
_MARIADB = """[mariadbd]
datadir={folder}/data
socket={folder}/mariadb.sock
pid-file={folder}/mariadb.pid
port={port}
bind-address=127.0.0.1
user=root
character-set-server=utf8mb4
innodb-buffer-pool-size=512M
innodb-log-file-size=512M
local-infile=1
"""


@contextmanager
def postgres(folder: Path) -> Iterator[Endpoint]:
    """A Postgres of the newest version here, as the package's user where we are root."""
    (port,) = free_ports(1)
    folder.mkdir(parents=True)
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda found: int(found.parent.name))
    owner: list[str | Path] = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if owner:
        shutil.chown(folder, "postgres")
        for parent in folder.parents[:2]:
            parent.chmod(parent.stat().st_mode | 0o011)
    data = folder / "data"
    initdb = [*owner, programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8"]
    subprocess.run(initdb, check=True, capture_output=True)
    config = data / "postgresql.conf"
    config.write_text(config.read_text() + _POSTGRES.format(port=port, folder=folder))
    control = [*owner, programs / "pg_ctl", "-D", data, "-w"]
    subprocess.run([*control, "-l", folder / "log", "start"], check=True, capture_output=True)
    try:
        yield Endpoint("127.0.0.1", port, "postgres", "postgres", "")
    finally:
        subprocess.run([*control, "-m", "fast", "stop"], check=True, capture_output=True)


@contextmanager
def mariadb(folder: Path) -> Iterator[Endpoint]:
    """A MariaDB, its binary log off."""
    (port,) = free_ports(1)
    folder.mkdir(parents=True)
    config = folder / "my.cnf"
    config.write_text(_MARIADB.format(folder=folder, port=port))
    defaults = f"--defaults-file={config}"
    install = ["mariadb-install-db", defaults, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(install, check=True, capture_output=True)
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(["mariadbd", defaults], stdout=log, stderr=log)
    endpoint = Endpoint("127.0.0.1", port, "", "root", "")
    try:
        _wait(endpoint)
        yield endpoint
    finally:
        server.terminate()
        server.wait(60)


def _wait(endpoint: Endpoint) -> None:
    connections = Connections(MysqlDialect(), endpoint)
    until = time.monotonic() + 60
    while True:
        try:
            with connections.transaction("bench"):
                break
        except TidesinkError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    connections.close()
