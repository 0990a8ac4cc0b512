"""The HTTP endpoints of a worker: its metrics, and whether it lives and is ready.

``/metrics`` is in Prometheus' format. ``/healthz`` and ``/readyz`` have the meaning of Kubernetes' probes of
liveness and readiness: 200, or 503 with the reason as text.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from tidesink.errors import ConfigError
from tidesink.sinks.batch.observers import ALIVE_SECONDS, Turned, WorkerEvent

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# Of PEP 3333.
_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_OK: Final = "200 OK"
_NOT: Final = "503 Service Unavailable"


class Health:
    """Whether a worker lives and is ready; a listener of its events.

    It lives while it shows a sign of life at least every ``seconds``, its start being the first, and a step
    that is tried again one: no restart would help a worker that waits for Kafka. It is ready once it has
    begun to look at the topics. ``clock`` gives seconds that only rise.
    """

    def __init__(self, seconds: float = ALIVE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last = clock()
        self._is_ready = False

    def hear(self, event: WorkerEvent) -> None:
        """Take note of a sign of life."""
        self._last = self._clock()
        self._is_ready = self._is_ready or isinstance(event, Turned)

    def liveness(self) -> str | None:
        """Why the worker is not alive; None while it is."""
        since = self._clock() - self._last
        return None if since <= self._seconds else f"the worker has shown no sign of life for {since:.0f} s"

    def readiness(self) -> str | None:
        """Why the worker is not ready; None if it is."""
        return self.liveness() if self._is_ready else "the worker is starting"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a probe comes every few seconds."""


@contextmanager
def served(host: str, port: int, health: Health, registry: CollectorRegistry) -> Iterator[None]:
    """Serve the endpoints while the context is open.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    from prometheus_client import make_wsgi_app

    app = _application(health, make_wsgi_app(registry))
    try:
        server_class: type[_Server] = type("_Server", (_Server,), {"address_family": _family(host, port)})
        server = make_server(host, port, app, server_class=server_class, handler_class=_Silent)
    except OSError as error:
        raise ConfigError(f"metrics cannot be served on {host}:{port}: {error.strerror}") from error
    Thread(target=server.serve_forever, name="endpoints", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _family(host: str, port: int) -> int:
    """Return the address family to listen with: IPv6 only if the host has no IPv4 address.

    Raises:
        OSError: the host has no address.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    families = [family for family, *_ in found]
    return socket.AF_INET if socket.AF_INET in families else families[0]


def _application(health: Health, metrics: _Application) -> _Application:
    checks = {"/healthz": health.liveness, "/readyz": health.readiness}

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        check = checks.get(environ["PATH_INFO"])
        if check is None:
            return metrics(environ, start_response)
        reason = check()
        start_response(_OK if reason is None else _NOT, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{reason or 'ok'}\n".encode()]

    return application
