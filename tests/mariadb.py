"""A MariaDB for tests of what is asked of a MySQL-compatible upstream.

``TIDESINK_TEST_MARIADB`` is the SQLAlchemy URL of a running one to use instead; else a container where a
Docker engine answers, else a server of one's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pymysql
import pytest

from tests.absent import without_server
from tests.containers import container_mariadb, engine_answers
from tidesink.dev.stack import free_ports

_CONFIG: Final = """[mariadbd]
datadir={0}/data
socket={0}/mariadb.sock
pid-file={0}/mariadb.pid
port={1}
bind-address=127.0.0.1
user=root
character-set-server=utf8mb4
innodb-buffer-pool-size=16M
skip-log-bin
local-infile=1
"""
_PATIENCE: Final = 240.0


@pytest.fixture(scope="session")
def mariadb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The SQLAlchemy URL of a MariaDB server that answers."""
    given = os.environ.get("TIDESINK_TEST_MARIADB")
    if given:
        yield given
        return
    if engine_answers():
        with container_mariadb() as (host, port):
            yield f"mysql+pymysql://root@{host}:{port}"
        return
    if shutil.which("mariadbd") is None or shutil.which("mariadb-install-db") is None:
        without_server("no mariadbd here: apt-get install mariadb-server-core, or set TIDESINK_TEST_MARIADB")
    with _server(tmp_path_factory.mktemp("mariadb")) as port:
        yield f"mysql+pymysql://root@127.0.0.1:{port}"


@contextmanager
def _server(folder: Path) -> Iterator[int]:
    (port,) = free_ports(1)
    config = folder / "my.cnf"
    config.write_text(_CONFIG.format(folder, port), encoding="utf-8")
    defaults = f"--defaults-file={config}"
    install = ["mariadb-install-db", defaults, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(install, check=True, capture_output=True, timeout=_PATIENCE)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["mariadbd", defaults], stdout=log, stderr=log)
    try:
        _wait(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=_PATIENCE)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            pymysql.connect(host="127.0.0.1", port=port, user="root").close()
        except pymysql.OperationalError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return
