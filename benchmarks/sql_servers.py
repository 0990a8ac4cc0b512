"""A Postgres and a MariaDB for the time of a measurement, set up as a small server of each is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.first_load.mariadb import running_mariadb
from tidesink.dev.stack import free_ports
from tidesink.sinks.targets.sql.location import Endpoint

_POSTGRES = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
shared_buffers = 512MB
max_wal_size = 4GB
"""
_MARIADB = ("innodb-buffer-pool-size=512M", "innodb-log-file-size=512M", "local-infile=1")


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
    with running_mariadb(folder, *_MARIADB) as server:
        yield Endpoint("127.0.0.1", server.port, "", "root", "")
