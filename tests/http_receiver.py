"""A small HTTP endpoint in the test's process: it keeps rows by key and remembers idempotency keys.

``faults`` are answered first, one a request; ``requests`` is everything that came.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.local_server import LocalServer
from tidesink.events import TableId


class Request(NamedTuple):
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    objects: list[dict[str, Any]]
    status: int


class Fault(NamedTuple):
    """An answer in place of taking a request; ``taken``: the request is taken all the same."""

    status: int
    headers: Mapping[str, str] = MappingProxyType({})
    body: str = ""
    taken: bool = False


@dataclass
class Receiver:
    """What an endpoint keeps: of each table and key, the newest object by epoch and batch."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    kept: dict[TableId, dict[str, tuple[tuple[int, int], dict[str, Any]]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    on_taken: Callable[[Request], None] | None = None

    def count(self, *, batch: int) -> int:
        """How many requests of a batch came."""
        return sum(request.headers.get("tidesink-batch") == str(batch) for request in self.requests)

    def receive(self, request: Request) -> Fault:
        """Take a request, once for each idempotency key."""
        with self.lock:
            fault = self.faults.pop(0) if self.faults else Fault(200, taken=True)
            self.requests.append(request._replace(status=fault.status))
            name = request.headers.get("idempotency-key", "")
            if fault.taken and request.method != "HEAD" and name not in self.taken:
                self.taken.add(name)
                at = int(request.headers["tidesink-epoch"]), int(request.headers["tidesink-batch"])
                for one in request.objects:
                    self._keep(one, at)
                if self.on_taken is not None:
                    self.on_taken(request)
            return fault

    def _keep(self, one: dict[str, Any], at: tuple[int, int]) -> None:
        rows = self.kept.setdefault(TableId(one["table"]["schema"], one["table"]["name"]), {})
        if one["op"] == "truncate":
            rows.clear()
            return
        key = json.dumps(one["key"], sort_keys=True)
        if key not in rows or at >= rows[key][0]:
            rows[key] = (at, one)

    def objects(self, table: TableId) -> list[dict[str, Any]]:
        """The rows that a table has now, as they were sent."""
        found = self.kept.get(table, {}).values()
        return [one for _, one in found if one["op"] == "upsert"]


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args: Any) -> None:
            """Nothing: the test's output is its own."""

        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            lines = self.headers.get("Content-Type") == "application/x-ndjson"
            objects = [json.loads(line) for line in body.splitlines()] if lines else json.loads(body or b"[]")
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.receive(Request(self.command, self.path, headers, objects, 0))
            text = answer.body.encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_POST = do_PUT = do_HEAD = _take  # noqa: N815  the library's names

    return Handler


@contextmanager
def http_receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """An endpoint that listens on a port of its own."""
    receiver = Receiver()
    server = LocalServer(("127.0.0.1", 0), _handler(receiver))
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(120)
