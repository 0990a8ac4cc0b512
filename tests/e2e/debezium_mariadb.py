"""A Debezium connector that reads a MariaDB of a test's own as it changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from examples.first_load.mariadb import MariaDb
from tests.connect_server import Connect

# What a server needs so that a connector can follow it.
BINARY_LOG = ("log-bin=binlog", "binlog-format=ROW", "binlog-row-image=FULL", "server-id=1")


@contextmanager
def mariadb_connector(
    connect: Connect,
    server: MariaDb,
    brokers: str,
    name: str,
    user: str,
    *,
    ddl: bool = False,
    **modes: str,
) -> Iterator[None]:
    """A connector that sends changes alone, to topics that begin with its name, unless ``modes`` say more.

    It follows the log from where that ends when it comes: changes that follow are sent. ``ddl``: to the topic
    of its name, too.
    """
    properties = {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "tasks.max": "1",
        "topic.prefix": name,
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": user,
        "database.password": "",
        "database.server.id": "501",
        "database.include.list": "live",
        "database.ssl.mode": "disable",
        "schema.history.internal.kafka.bootstrap.servers": brokers,
        "schema.history.internal.kafka.topic": f"{name}.history",
        "include.schema.changes": str(ddl).lower(),
        "snapshot.mode": "no_data",
        "poll.interval.ms": "50",
        "connect.keep.alive.interval.ms": "1000",
        "bigint.unsigned.handling.mode": "precise",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
        **{key.replace("_", "."): value for key, value in modes.items()},
    }
    connect.create(name, properties)
    try:
        yield
    finally:
        connect.delete(name)
