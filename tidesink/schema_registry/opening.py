"""A schema registry by its URL."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

from tidesink.errors import ConfigError
from tidesink.schema_registry.auth import Auth, TlsOptions
from tidesink.schema_registry.base import SchemaRegistry
from tidesink.schema_registry.client import SchemaRegistryClient
from tidesink.schema_registry.memory import MemorySchemaRegistry
from tidesink.schema_registry.transport import RetryPolicy, Timeouts

_MEMORY = "memory://"
# A comma inside a password is no separator.
_BETWEEN_URLS = re.compile(r"\s*,\s*(?=(?:https?|memory)://)")

_in_process: dict[str, MemorySchemaRegistry] = {}
_lock = threading.Lock()


def open_registry(
    url: str | Sequence[str],
    *,
    auth: Auth | None = None,
    tls: TlsOptions | None = None,
    timeouts: Timeouts | None = None,
    retry: RetryPolicy | None = None,
) -> SchemaRegistry:
    """The registry at a URL, or at the first that answers of several (a sequence, or joined by commas).

    ``memory://name`` is one registry for the whole process, the same each time it is opened.
    """
    urls = _BETWEEN_URLS.split(url.strip()) if isinstance(url, str) else list(url)
    if not any(one.startswith(_MEMORY) for one in urls):
        return SchemaRegistryClient(urls, auth=auth, tls=tls, timeouts=timeouts, retry=retry)
    if len(urls) > 1:
        raise ConfigError("a memory:// registry stands alone: it has no second address", key="url")
    with _lock:
        return _in_process.setdefault(urls[0], MemorySchemaRegistry(url=urls[0]))
