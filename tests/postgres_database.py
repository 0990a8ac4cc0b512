"""A database of a test's own in the session's Postgres, as a source."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa
from psycopg import sql

from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.source_database.database import begin_session, open_database


@contextmanager
def own_postgres(endpoint: Endpoint, form: str = 's"{}%', encoding: str = "UTF8") -> Iterator[str]:
    """The SQLAlchemy URL of a new database, whose name needs quotes; dropped at the end."""
    name = form.format(uuid.uuid4().hex[:8])
    other = f" TEMPLATE template0 LOCALE 'C' ENCODING '{encoding}'" if encoding != "UTF8" else ""
    with psycopg.connect(admin_dsn(endpoint), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}" + other).format(sql.Identifier(name)))
        try:
            yield database_url(endpoint, name)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def admin_dsn(endpoint: Endpoint, database: str | None = None) -> str:
    """libpq's words for a database of the server."""
    return psycopg.conninfo.make_conninfo(
        host=endpoint.host,
        port=endpoint.port,
        dbname=database or endpoint.database,
        user=endpoint.user,
        password=endpoint.password or None,
    )


def database_url(endpoint: Endpoint, database: str) -> str:
    """SQLAlchemy's URL of a database of the server."""
    url = sa.engine.URL.create(
        "postgresql+psycopg",
        endpoint.user,
        endpoint.password or None,
        endpoint.host,
        endpoint.port,
        database,
    )
    return url.render_as_string(hide_password=False)


@contextmanager
def source_connection(url: str) -> Iterator[sa.Connection]:
    """A connection as the driver has it."""
    engine = open_database(url)
    try:
        with engine.connect() as connection:
            begin_session(connection)
            yield connection
    finally:
        engine.dispose()


def plain_session(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """A session of psycopg's own in the database of a SQLAlchemy URL; it commits each statement."""
    parsed = sa.engine.make_url(url)
    return psycopg.connect(
        host=parsed.host,
        port=parsed.port,
        dbname=parsed.database,
        user=parsed.username,
        password=parsed.password,
        autocommit=True,
    )


def run_scripts(url: str, *scripts: str) -> None:
    """Scripts of many statements, each in a session of its own."""
    for script in scripts:
        with plain_session(url) as connection:
            for statement in script.split(";\n") if "BEGIN" not in script else [script]:
                connection.execute(statement.encode())
