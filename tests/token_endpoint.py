"""An OAuth token endpoint: a new token each time it is asked, unless the test says otherwise."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from tests.local_server import LocalServer


class Asked(NamedTuple):
    """One request for a token."""

    authorization: str
    form: dict[str, list[str]]


@dataclass
class TokenEndpoint:
    """What it answers: ``status`` and ``body`` in place of a token; ``troubles``: 503 so many times first."""

    url: str = ""
    expires_in: int | None = 3600
    status: int = 200
    body: Any = None
    troubles: int = 0
    asked: list[Asked] = field(default_factory=list)

    def answer(self, asked: Asked) -> tuple[int, bytes]:
        """Status and body."""
        self.asked.append(asked)
        if len(self.asked) <= self.troubles:
            return 503, b"busy"
        if isinstance(self.body, bytes):
            return self.status, self.body
        if self.body is not None:
            return self.status, json.dumps(self.body).encode()
        token = {"access_token": f"token-{len(self.asked)}", "token_type": "Bearer"}
        lasts = {} if self.expires_in is None else {"expires_in": self.expires_in}
        return 200, json.dumps({**token, **lasts}).encode()


def token_endpoints() -> Iterator[TokenEndpoint]:
    """One endpoint, closed afterwards."""
    endpoint = TokenEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            asked = Asked(self.headers.get("Authorization", ""), parse_qs(raw))
            status, body = endpoint.answer(asked)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = LocalServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/token"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield endpoint
    server.shutdown()
    server.server_close()
    thread.join()
