"""A MariaDB for tests of what is asked of a MySQL-compatible upstream.

``TIDESINK_TEST_MARIADB`` is the SQLAlchemy URL of a running one to use instead; else a container where a
Docker engine answers, else a server of one's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from examples.first_load.mariadb import missing_programs, running_mariadb
from tests.absent import without_server
from tests.containers import container_mariadb, engine_answers


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
    if missing_programs():
        without_server("no mariadbd here: apt-get install mariadb-server-core, or set TIDESINK_TEST_MARIADB")
    folder = tmp_path_factory.mktemp("mariadb")
    with running_mariadb(folder, "innodb-buffer-pool-size=16M", "local-infile=1") as server:
        yield server.url
