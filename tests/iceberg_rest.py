"""A REST catalog of Iceberg for tests: its protocol in front of pyiceberg's catalog in a SQLite database.

Only what Spark's client asks for. It can lose the answer to a commit, as a gateway does that gives up, or
that sends the request again by itself and passes on the second answer, a conflict.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from flask import Flask, Response, jsonify, request
from pydantic import TypeAdapter
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from werkzeug.serving import make_server

_SEPARATOR: Final = "\x1f"
_ERRORS: Final[dict[type[Exception], int]] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class RestCatalog:
    """A server of one catalog.

    ``lost``: the HTTP statuses that answer the next commits, each of which is made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.catalog = SqlCatalog(
            "tests", uri=f"sqlite:///{folder}/catalog.db", warehouse=(folder / "tables").as_uri()
        )
        self.lost: list[int] = []
        self.app = Flask(__name__)
        self._lock = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self.app, threaded=True)
        self._routes()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self._server.port}"

    def serve(self) -> None:
        """Answer until it is closed."""
        self._server.serve_forever()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self.catalog.close()

    def _routes(self) -> None:
        namespace, table = "/v1/namespaces/<name>", "/v1/namespaces/<name>/tables/<table>"
        for rule, method, answer in (
            ("/v1/config", "GET", lambda: {"defaults": {}, "overrides": {}}),
            ("/v1/namespaces", "POST", self._create_namespace),
            (namespace, "GET", self._namespace),
            (f"{namespace}/tables", "POST", self._create_table),
            (table, "GET", self._table),
            (table, "POST", self._commit),
            (f"{table}/metrics", "POST", lambda **_: None),
        ):
            self.app.add_url_rule(rule, f"{method} {rule}", self._locked(answer), methods=[method])
        for kind, code in _ERRORS.items():
            self.app.register_error_handler(kind, _error(kind.__name__, code))
        self.app.register_error_handler(404, _error("NoSuchTableException", 404))

    def _locked(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        def locked(**names: str) -> Any:
            with self._lock:
                found = answer(**names)
            return Response(status=204) if found is None else found

        return locked

    def _create_namespace(self) -> Any:
        asked = request.get_json()
        self.catalog.create_namespace(tuple(asked["namespace"]))
        return {"namespace": asked["namespace"], "properties": {}}

    def _namespace(self, name: str) -> Any:
        levels = tuple(name.split(_SEPARATOR))
        self.catalog.load_namespace_properties(levels)
        return {"namespace": list(levels), "properties": {}}

    def _create_table(self, name: str) -> Any:
        asked = request.get_json()
        table = self.catalog.create_table(
            (*name.split(_SEPARATOR), asked["name"]),
            Schema.model_validate(asked["schema"]),
            partition_spec=PartitionSpec.model_validate(asked.get("partition-spec") or {"fields": []}),
            properties=asked.get("properties") or {},
        )
        return _loaded(table)

    def _table(self, name: str, table: str) -> Any:
        return _loaded(self.catalog.load_table((*name.split(_SEPARATOR), table)))

    def _commit(self, name: str, table: str) -> Any:
        asked = request.get_json()
        known = self.catalog.load_table((*name.split(_SEPARATOR), table))
        for one in asked["updates"]:  # pyiceberg wants each of them to be there
            if one["action"] == "remove-properties":
                one["removals"] = [key for key in one["removals"] if key in known.properties]
        updates = TypeAdapter(tuple[TableUpdate, ...]).validate_python(asked["updates"])
        requirements = TypeAdapter(tuple[TableRequirement, ...]).validate_python(asked["requirements"])
        self.catalog.commit_table(known, requirements, updates)
        status = self.lost.pop(0) if self.lost else None
        if status is not None:
            error = "CommitFailedException" if status == 409 else "ServiceFailureException"
            return _error(error, status)(OSError("the answer was lost"))
        return _loaded(self.catalog.load_table((*name.split(_SEPARATOR), table)))


def _error(name: str, code: int) -> Callable[[Exception], tuple[Response, int]]:
    def answer(exc: Exception) -> tuple[Response, int]:
        return jsonify({"error": {"message": str(exc), "type": name, "code": code}}), code

    return answer


def _loaded(table: Table) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": table.metadata.model_dump(mode="json", by_alias=True, exclude_none=True),
        "config": {},
    }


@contextmanager
def rest_catalog(folder: Path) -> Iterator[RestCatalog]:
    """A catalog in a folder for as long as a test wants it."""
    catalog = RestCatalog(folder)
    thread = threading.Thread(target=catalog.serve, daemon=True)
    thread.start()
    try:
        yield catalog
    finally:
        catalog.close()
        thread.join()
