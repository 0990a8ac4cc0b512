"""A server that answers as the test says, and the fixtures that start and stop it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.local_server import LocalServer
from tidesink.schema_registry import RetryPolicy, SchemaRegistryClient

FAST = RetryPolicy(attempts=3, base_seconds=0.01)
ONCE = RetryPolicy(attempts=1)


@dataclass(frozen=True)
class Reply:
    """One scripted answer; ``body`` as JSON unless it is bytes."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class ScriptedRegistry:
    """A server that gives its replies in turn, the last one for ever, or by path."""

    def __init__(self, replies: Sequence[Reply] | dict[str, Reply]) -> None:
        self.replies = replies
        self.seen: list[Seen] = []
        self.closing = threading.Event()
        self.server = LocalServer(("127.0.0.1", 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server.server_address[1]}"

    def paths(self) -> list[str]:
        return [f"{one.method} {one.path}" for one in self.seen]

    def reply(self, method: str, path: str) -> Reply:
        if isinstance(self.replies, dict):
            return self.replies.get(
                f"{method} {path}", Reply(404, {"error_code": 404, "message": "HTTP 404 Not Found"})
            )
        return self.replies[min(len(self.seen), len(self.replies)) - 1]

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are two writes

            def answer(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                form = self.headers.get("Content-Type", "").endswith("x-www-form-urlencoded")
                body = raw.decode() if form else json.loads(raw) if raw else None
                registry.seen.append(Seen(self.command, self.path, dict(self.headers), body))
                reply = registry.reply(self.command, self.path)
                if registry.closing.wait(reply.delay):
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(reply.content())), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.content())

            do_GET = do_POST = do_PUT = answer  # noqa: N815  # the names http.server looks for

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


Serve = Callable[..., ScriptedRegistry]
Client = Callable[..., SchemaRegistryClient]


def scripted_registries() -> Iterator[Serve]:
    started: list[ScriptedRegistry] = []

    def start(*replies: Reply, by_path: dict[str, Reply] | None = None) -> ScriptedRegistry:
        registry = ScriptedRegistry(replies if by_path is None else by_path)
        registry.thread.start()
        started.append(registry)
        return registry

    yield start
    for registry in started:
        registry.close()


def registry_clients() -> Iterator[Client]:
    opened: list[SchemaRegistryClient] = []

    def connect(*urls: str, **options: Any) -> SchemaRegistryClient:
        opened.append(SchemaRegistryClient(list(urls), **{"retry": FAST, **options}))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()
