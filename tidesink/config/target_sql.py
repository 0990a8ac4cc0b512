"""Settings of the targets that are SQL databases."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from tidesink.config.fields import LocalPath, Model

TlsMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]


def _database_url(scheme: str, url: str, *, needs_database: bool) -> str:
    parts = urlsplit(url)
    example = f"{scheme}://db.example.com:{5432 if scheme == 'postgresql' else 3306}/shop"
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("put user and password under user and password, and TLS under tls, not into the URL")
    try:
        fits = parts.scheme == scheme and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        fits = False
    if not fits or "/" in parts.path.strip("/") or (needs_database and not parts.path.strip("/")):
        raise ValueError(f"give a URL such as {example}")
    return url.rstrip("/")


def _postgres_url(url: str) -> str:
    return _database_url("postgresql", url, needs_database=True)


def _mysql_url(url: str) -> str:
    return _database_url("mysql", url, needs_database=False)


def _names_a_table(template: str) -> str:
    if "{schema}" not in template or "{table}" not in template:
        raise ValueError("use both placeholders, as in {schema}.{table}: two tables could share one place")
    rest = template.replace("{schema}", "").replace("{table}", "")
    if "{" in rest or "}" in rest:
        raise ValueError("it holds another placeholder: use {schema} and {table} only")
    if template.count(".") != 1 or not all(template.split(".")):
        raise ValueError(
            "give two names with a dot between them, as in {schema}.{table} or lake.{schema}_{table}"
        )
    return template


def _names_a_view(template: str) -> str:
    rest = template.replace("{table}", "")
    if "{table}" not in template or not rest or "{" in rest or "}" in rest or "." in rest:
        raise ValueError(
            "give one name with {table} and more in it, as in {table}_live, for a view beside it"
        )
    return template


SqlTemplate = Annotated[str, AfterValidator(_names_a_table)]


class SqlTls(Model):
    """TLS to a database, in Postgres's words."""

    mode: TlsMode = "prefer"
    """`disable`; `prefer`: where the server has it; `require`: without a look at its certificate;
    `verify-ca`; `verify-full`: the certificate is signed by `ca` and names the host."""
    ca: LocalPath | None = None
    """A PEM file with the authorities that sign the server's certificate."""
    certificate: LocalPath | None = None
    """A PEM file with the worker's own certificate."""
    key: LocalPath | None = None
    """A PEM file with its private key."""


class SqlSettings(Model):
    """What every SQL database needs."""

    default_port: ClassVar[int]

    url: str
    user: str
    """The user that the worker logs in as."""
    password: SecretStr | None = None
    """Its password, as `${env:NAME}` or `${file:path}`."""
    table: SqlTemplate = "{schema}.{table}"
    view: Annotated[str, AfterValidator(_names_a_view)] | None = None
    """The name of a view beside each table, as `{table}_live`, which shows its living rows without tidesink's
    own columns; must contain `{table}`, the table's own name. It is made, and kept in step with the table."""
    tls: SqlTls = Field(default_factory=SqlTls)
    """TLS to the database."""


class PostgresSettings(SqlSettings):
    """Tables in a Postgres database."""

    default_port: ClassVar[int] = 5432

    type: Literal["postgres"]
    """`postgres`: tables in a Postgres database."""
    url: Annotated[str, AfterValidator(_postgres_url)]
    """The database, as `postgresql://host:5432/database`, without user and password."""
    table: SqlTemplate = "{schema}.{table}"
    """A table's schema and name; must contain `{schema}` and `{table}`. Schemas are made where missing."""


class MysqlSettings(SqlSettings):
    """Tables in a MySQL or MariaDB server."""

    default_port: ClassVar[int] = 3306

    type: Literal["mysql"]
    """`mysql`: tables in a MySQL or MariaDB server."""
    url: Annotated[str, AfterValidator(_mysql_url)]
    """The server, as `mysql://host:3306`, without user and password."""
    table: SqlTemplate = "{schema}.{table}"
    """A table's database and name; must contain `{schema}` and `{table}`. Databases are made where
    missing."""
