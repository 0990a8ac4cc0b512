"""The HTTP endpoints of a worker: ``/metrics``, ``/healthz`` and ``/readyz``.

``/metrics`` returns the metrics in Prometheus' text format. ``/healthz`` and ``/readyz`` are for Kubernetes'
liveness and readiness probes: they return 200, or 503 with the reason as text.
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
from tidesink.sinks.runtime.observers import ALIVE_SECONDS, Turned, WorkerEvent

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# The application type of PEP 3333.
_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_OK: Final = "200 OK"
_NOT: Final = "503 Service Unavailable"


class Health:
    """A listener that decides from a worker's events if the worker is alive and ready.

    The worker is alive if its last event is at most ``seconds`` old. Its start counts as an event. Retries
    send events, too, so a worker that waits for Kafka counts as alive: a restart would not help it. The
    worker is ready once its main loop has started. ``clock``: returns monotonic seconds.
    """

    def __init__(self, seconds: float = ALIVE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last = clock()
        self._is_ready = False

    def hear(self, event: WorkerEvent) -> None:
        """Record the time of a worker's event, as a sign that the worker is alive."""
        self._last = self._clock()
        self._is_ready = self._is_ready or isinstance(event, Turned)

    def liveness(self) -> str | None:
        """Return the reason why the worker is not alive, or None if it is."""
        since = self._clock() - self._last
        return None if since <= self._seconds else f"The worker has sent no sign of life for {since:.0f} s."

    def readiness(self) -> str | None:
        """Return the reason why the worker is not ready, or None if it is."""
        return self.liveness() if self._is_ready else "The worker is starting."


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes arrive every few seconds."""


@contextmanager
def served(host: str, port: int, health: Health, registry: CollectorRegistry) -> Iterator[None]:
    """Serve the endpoints while the context is open.

    Raises:
        ConfigError: the server cannot listen on the address.
    """
    from prometheus_client import make_wsgi_app

    app = _application(health, make_wsgi_app(registry))
    try:
        server_class: type[_Server] = type("_Server", (_Server,), {"address_family": _family(host, port)})
        server = make_server(host, port, app, server_class=server_class, handler_class=_Silent)
    except OSError as error:
        raise ConfigError(f"Metrics cannot be served on {host}:{port}: {error.strerror}.") from error
    Thread(target=server.serve_forever, name="endpoints", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _family(host: str, port: int) -> int:
    """Return the address family to listen with: IPv4 if the host has an IPv4 address, else IPv6.

    Raises:
        OSError: the host's name has no address.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    families = [family for family, *_ in addresses]
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
