"""A registry server over HTTP as Confluent's is, with error codes of its own.

Confluent's registry is not to be had for tests; this one answers by its documented API (Schema Registry
API reference, 7.x): 40408 for a subject without a level.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.local_server import LocalServer
from tidesink.errors import IncompatibleSchemaError, RegistryError, SchemaNotFoundError
from tidesink.schema_registry import MemorySchemaRegistry, RegisteredSchema

Said = tuple[int, Any]


@dataclass
class ConfluentRegistry:
    """What the server holds."""

    memory: MemorySchemaRegistry = field(default_factory=MemorySchemaRegistry)
    admits: Callable[[str | None], bool] = lambda _header: True
    levels: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    # Schemas that refer to others, as Apicurio's converter registers them: by id, and by subject and version.
    referring: dict[int | tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    # By subject the ids of a registry context other than the default.
    contexts: dict[str, dict[int, str]] = field(default_factory=dict)
    bodies: list[Any] = field(default_factory=list)

    def answer(self, method: str, target: str, body: Any, header: str | None) -> Said:
        """Status and JSON body of one request."""
        self.log.append(f"{method} {target}")
        if not self.admits(header):
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = [unquote(part) for part in urlsplit(target).path.strip("/").split("/")]
        query = parse_qs(urlsplit(target).query)
        if body is not None:
            self.bodies.append(body)
        try:
            answer: Said = getattr(self, f"_{parts[0]}")(method, parts[1:], query, body)
        except IncompatibleSchemaError as error:
            return 409, {"error_code": 409, "message": error.message}
        except SchemaNotFoundError as error:
            code = 40403 if "schema_id" in error.context else 40402 if "version" in error.message else 40401
            return 404, {"error_code": code, "message": error.message}
        except RegistryError as error:
            return 422, {"error_code": 42201, "message": error.message}
        return answer

    def _subjects(self, method: str, parts: list[str], _query: Any, body: Any) -> Said:
        if not parts:
            return 200, self.memory.subjects()
        if len(parts) == 1:
            self.memory.versions(parts[0])
            held = self.memory.lookup(parts[0], body["schema"])
            return (200, _shown(held)) if held else (404, {"error_code": 40403, "message": "not found"})
        if method == "POST":
            return self._register(parts[0], body)
        if len(parts) == 3 and parts[2].isdecimal() and (parts[0], int(parts[2])) in self.referring:
            return 200, self.referring[parts[0], int(parts[2])]
        if len(parts) == 2:
            return 200, self.memory.versions(parts[0])
        found = (
            self.memory.latest(parts[0])
            if parts[2] == "latest"
            else self.memory.schema_by_version(parts[0], int(parts[2]))
        )
        return 200, _shown(found)

    def _register(self, subject: str, body: Any) -> Said:
        return 200, {"id": self.memory.register(subject, body["schema"])}

    def _schemas(self, _method: str, parts: list[str], query: Any, _body: Any) -> Said:
        schema_id = int(parts[1])
        elsewhere = self.contexts.get(query.get("subject", [""])[0], {})
        if schema_id in elsewhere:
            return 200, {"schema": elsewhere[schema_id]}
        if schema_id in self.referring:
            return 200, self.referring[schema_id]
        if parts[2:] == ["versions"]:
            places = self.memory.places(schema_id)
            return 200, [{"subject": subject, "version": version} for subject, version in places]
        return 200, {"schema": self.memory.schema_by_id(schema_id)}

    def _config(self, method: str, parts: list[str], query: Any, body: Any) -> Said:
        subject = parts[0] if parts else None
        if method == "PUT":
            self.memory.set_compatibility_level(body["compatibility"], subject=subject)
            self.levels.update(parts)
            return 200, {"compatibility": body["compatibility"]}
        if subject is not None and subject not in self.levels and "defaultToGlobal" not in query:
            return 404, {"error_code": 40408, "message": "no level"}
        return 200, {"compatibilityLevel": self.memory.compatibility_level(subject)}

    def _compatibility(self, _method: str, parts: list[str], _query: Any, body: Any) -> Said:
        self.memory.versions(parts[1])
        result = self.memory.check_compatibility(parts[1], body["schema"])
        return 200, {"is_compatible": result.compatible, "messages": list(result.messages)}


def _shown(item: RegisteredSchema) -> dict[str, Any]:
    return {
        "subject": item.subject,
        "version": item.version,
        "id": item.id,
        "schema": item.schema_text,
    }


class Server:
    """The registry behind a URL of this machine."""

    def __init__(self, registry: ConfluentRegistry) -> None:
        self.registry = registry
        self._server = LocalServer(("127.0.0.1", 0), _handler(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


Start = Callable[..., Server]


def confluent_servers() -> Iterator[Start]:
    """A function that starts servers, all of which are closed afterwards."""
    started: list[Server] = []

    def start(**options: Any) -> Server:
        started.append(Server(ConfluentRegistry(**options)))
        return started[-1]

    yield start
    for server in started:
        server.close()


def _handler(registry: ConfluentRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.loads(raw) if raw else None
            said = registry.answer(self.command, self.path, body, self.headers.get("Authorization"))
            data = b"" if said[1] is None else json.dumps(said[1]).encode()
            self.send_response(said[0])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815  # the names http.server looks for

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
