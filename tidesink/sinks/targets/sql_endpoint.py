"""Where a database answers, and who asks: goes to the executors, and never shows its password."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from tidesink.config.targets import SqlSettings

CONNECT_SECONDS = 10
# How long a statement waits for another's lock before the batch is tried again.
LOCK_SECONDS = 60
# How long a transaction of ours may say nothing until the server ends it: a worker that froze in one lets go
# of the ledger's row, and another takes the table. So none is open while Spark works.
SILENT_SECONDS = 300


@dataclass(frozen=True)
class Endpoint:
    """A database server; ``tls`` in Postgres's words: disable, prefer, require, verify-ca, verify-full.

    ``silence``: after how many seconds without a statement the server ends a transaction.
    """

    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    tls: str = "prefer"
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    silence: int = SILENT_SECONDS

    @property
    def shown(self) -> str:
        """The server for messages: host, port and database."""
        return f"{self.host}:{self.port}" + (f"/{self.database}" if self.database else "")


def endpoint_of(settings: SqlSettings) -> Endpoint:
    """The server that settings name."""
    parts = urlsplit(settings.url)
    tls = settings.tls
    return Endpoint(
        parts.hostname or "",
        parts.port or settings.default_port,
        unquote(parts.path.strip("/")),
        settings.user,
        settings.password.get_secret_value() if settings.password else "",
        tls.mode,
        tls.ca,
        tls.certificate,
        tls.key,
    )
