"""The trace of a pipeline: what its commands passed, and what they left in the state store and the target.

A trace is JSON that is the same in every run of the same script. ``tests/golden/traces`` has one file for
each script. Everything is read as another program would read it: the failpoints from the file that
``TIDESINK_FAILPOINT_TRACE`` names, the state store with SQLite, a lake from its log, a database with SQL.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import date, datetime
from datetime import time as day_time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from psycopg import sql
from typer.testing import CliRunner

from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tests.letters import written_letters
from tests.postgres_database import admin_dsn
from tidesink.cli.main import app
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import LOGICAL_BITS
from tidesink.sinks.targets.sql.location import Endpoint

Json = dict[str, Any]
GOLDEN: Final = Path(__file__).parents[1] / "golden" / "traces"
WRITES: Final = bool(os.environ.get("TIDESINK_WRITE_TRACES"))
_WIDTH: Final = 110
# A row stays on one line as long as this.
_ROW_WIDTH: Final = 400
_DAY: Final = 86_400
# Units of a time since 1970: seconds, and finer.
_UNITS: Final = (1, 10**3, 10**6, 10**9, 10**3 << LOGICAL_BITS)
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")
_NUMBER: Final = re.compile(r"\d{10,}")


class Pipeline:
    """A pipeline of one test, and the trace of the commands that the test runs on it.

    Args:
        folder: The test's own folder, with the config, the state store and a lake.
        servers: The broker and the schema registry, and the prefix of the test's topics.
        target: The config's section of the target.
        read: Returns what the target holds.
        names: Texts that differ between runs, and their placeholders.
    """

    def __init__(
        self,
        folder: Path,
        servers: Servers,
        target: Mapping[str, Any],
        read: Callable[[], Json],
        names: Mapping[str, str],
    ) -> None:
        self.folder, self.servers = folder, servers
        self.source: Json = {
            "brokers": servers["brokers"],
            "topics": f"{servers['prefix']}{{schema}}_{{table}}",
        }
        self._target, self._read = dict(target), read
        self._names = {str(folder): "<folder>", servers["brokers"]: "<brokers>", **names}
        self._names |= {servers["registry_url"]: "<registry>", servers["prefix"]: "<prefix>"}
        self._began = time.time()
        self._commands: list[Json] = []
        self.config = folder / "shop.yaml"

    def hide(self, names: Mapping[str, str]) -> None:
        """Add texts that differ between runs, with their placeholders."""
        self._names |= names

    def configure(self, source: Mapping[str, Any], **more: Any) -> None:
        """Write the config. ``source``: settings of the source in addition to the broker and the topics."""
        found = {**self.source, **source}
        shop_config(self.folder, self.servers, {"source": found, "target": self._target, **more})

    def tidesink(self, *words: str, code: int = 0) -> Any:
        """Run a command with JSON output, and return its output. ``code``: the expected exit code."""
        reached = self.folder / "failpoints"
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("TIDESINK_FAILPOINT_TRACE", str(reached))
            done = CliRunner().invoke(app, [*words, "--config", str(self.config), "--output", "json"])
        assert done.exit_code == code, (done.output, done.exception)
        lines = reached.read_text(encoding="utf-8").splitlines() if reached.exists() else []
        reached.unlink(missing_ok=True)
        printed = json.loads(done.stdout) if done.stdout else None
        entry = {
            "command": " ".join(words),
            "exit": code,
            "failpoints": _batches(lines),
            "output": printed,
        }
        self._commands.append(entry)
        return printed

    def drain(self, *, code: int = 0) -> Any:
        """Run the worker until all records are applied."""
        return self.tidesink("run", "--until", "drained", code=code)

    def check(self, name: str) -> None:
        """Compare the trace with the golden one, or write it if TIDESINK_WRITE_TRACES is set."""
        letters = written_letters(self.servers["brokers"], self.servers["prefix"])
        plain = _Plain({**self._names, **self._topic_ids()}, self._began)
        found = {
            "commands": self._commands,
            "store": stored(self.folder / "state.db"),
            "target": self._read(),
            "letters": [_headers(letter.said) for letter in letters],
        }
        text = "\n".join(formatted({part: plain(value) for part, value in found.items()})) + "\n"
        golden = GOLDEN / f"{name}.json"
        if WRITES:
            golden.write_text(text, encoding="utf-8")
            return
        wanted = golden.read_text(encoding="utf-8")
        changes = difflib.unified_diff(
            wanted.splitlines(), text.splitlines(), f"golden/traces/{name}.json", "this run", lineterm="", n=2
        )
        assert text == wanted, "The trace has changed.\n" + "\n".join(changes)

    def _topic_ids(self) -> dict[str, str]:
        """The ids of the test's topics, with their placeholders."""
        admin, prefix = AdminClient({"bootstrap.servers": self.servers["brokers"]}), self.servers["prefix"]
        names = [name for name in admin.list_topics(timeout=60).topics if name.startswith(prefix)]
        described = admin.describe_topics(TopicCollection(names)) if names else {}
        return {
            str(future.result(60).topic_id): f"<id of {name.removeprefix(prefix)}>"
            for name, future in described.items()
        }


def _headers(said: Mapping[str, str]) -> Json:
    """The headers of a dead letter; the registry numbers the schemas of all tests."""
    return {name: "<schema id>" if name.endswith(".schema.id") else text for name, text in said.items()}


def _batches(lines: Sequence[str]) -> dict[str, list[str]]:
    """Group the failpoints by the thread that passed them, in lines that begin with ``planned``.

    The thread of a table's batch has the table's name. The worker's loop is in the main thread. The order of
    the tables is left out: it depends on which table a worker finds first.
    """
    found = dict[str, list[str]]()
    for line in lines:
        thread, _, step = line.partition("\t")
        batches = found.setdefault("worker" if thread == "MainThread" else thread, [])
        if batches and step != "planned":
            batches[-1] += f" {step}"
        else:
            batches.append(step)
    return found


def stored(path: Path) -> Json:
    """Everything that a state store in SQLite holds, except when it was written."""
    with closing(sqlite3.connect(path)) as store:
        documents = store.execute("SELECT kind, name, document FROM documents ORDER BY kind, name").fetchall()
        history = store.execute(
            "SELECT table_name, txn_version, progress FROM progress_history ORDER BY table_name, txn_version"
        ).fetchall()
        statuses = store.execute("SELECT table_name, status FROM table_status ORDER BY table_name").fetchall()
    return {
        "documents": [
            {"kind": kind, "name": name, "document": _unpacked(text)} for kind, name, text in documents
        ],
        "progress": [
            {"table": name, "version": version, "progress": _unpacked(text)}
            for name, version, text in history
        ],
        "status": [{"table": name, "status": _of_each_executor(text)} for name, text in statuses],
    }


def _of_each_executor(text: str) -> Json:
    """A status without the executor: everything else is the same for each."""
    status: Json = _unpacked(text)
    status["details"].pop("executor", None)
    return status


def lake(folder: Path) -> Json:
    """Every Delta table below a folder: columns, rows, properties, and the commits with their ledger."""
    tables = sorted(log.parent for log in folder.rglob("_delta_log"))
    return {table.relative_to(folder).as_posix(): _delta_table(table) for table in tables}


def _delta_table(path: Path) -> Json:
    table = open_lake_table(path)
    logs = sorted((path / "_delta_log").glob("*.json"))
    commits = [[json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] for log in logs]
    properties = [
        one["metaData"]["configuration"] for commit in commits for one in commit if "metaData" in one
    ]
    return {
        "columns": [f"{name} {kind}" for name, kind in table.columns.items()],
        "properties": properties[-1],
        "rows": _sorted(table.read().to_pylist()),
        "commits": [_delta_commit(commit) for commit in commits],
    }


def _delta_commit(actions: Sequence[Json]) -> Json:
    (info,) = (one["commitInfo"] for one in actions if "commitInfo" in one)
    kinds = Counter(kind for one in actions for kind in one)
    versions = {one["txn"]["appId"]: one["txn"]["version"] for one in actions if "txn" in one}
    return {
        "operation": info["operation"],
        "actions": dict(sorted(kinds.items())),
        "txn": versions,
        "userMetadata": _unpacked(info.get("userMetadata")),
    }


def database(endpoint: Endpoint) -> Json:
    """Every table and view of a Postgres database: columns and rows. The ledger is one of them."""
    with psycopg.connect(admin_dsn(endpoint)) as connection:
        tables = connection.execute(
            "SELECT oid, relnamespace::regnamespace::text, relname FROM pg_class "
            "WHERE relkind IN ('r', 'v', 'm', 'p') AND relnamespace NOT IN "
            "('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'pg_toast'::regnamespace) "
            "ORDER BY 2, 3"
        ).fetchall()
        found = {
            f"{schema}.{name}": _sql_table(connection, oid, schema, name) for oid, schema, name in tables
        }
    names = {str(oid): f"<{schema}.{name}>" for oid, schema, name in tables}
    for row in (row for table in found.values() for row in table["rows"] if "table_identity" in row):
        # The ledger has the server's numbers of itself and of the table.
        row["table_identity"] = ":".join(names.get(oid, oid) for oid in row["table_identity"].split(":"))
    return found


def _sql_table(connection: psycopg.Connection[Any], oid: int, schema: str, name: str) -> Json:
    columns = connection.execute(
        "SELECT attname, concat(format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN ' not null' END) "
        "FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (oid,),
    ).fetchall()
    found = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, name))).fetchall()
    rows = [dict(zip(dict(columns), row, strict=True)) for row in found]
    if name.startswith("_tidesink"):
        rows = [{column: _unpacked(value) for column, value in row.items()} for row in rows]
    return {"columns": [f"{column} {kind}" for column, kind in columns], "rows": _sorted(rows)}


def _sorted(rows: Sequence[Json]) -> list[Json]:
    return sorted(rows, key=lambda row: json.dumps(row, default=_text))


def _unpacked(value: Any) -> Any:
    """JSON in a text becomes what it stands for."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(json.JSONDecodeError):
            return _unpacked(json.loads(value))
    if isinstance(value, dict):
        return {name: _unpacked(part) for name, part in value.items()}
    return [*map(_unpacked, value)] if isinstance(value, list) else value


def _text(value: object) -> str:
    """A value of a row that JSON does not have."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, datetime | date | day_time):
        return value.isoformat()
    assert isinstance(value, Decimal), type(value)
    return str(value)


class _Plain:
    """Replaces what differs between two runs: given names, UUIDs, and times near the present.

    Scripts use times of years ago, which stay.
    """

    def __init__(self, names: Mapping[str, str], began: float) -> None:
        self._names = sorted(names.items(), key=lambda one: -len(one[0]))
        self._began = began

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict):
            # The durations that commands print have one name.
            shown = {**value, "seconds": "<seconds>"} if "seconds" in value else value
            return {self(name): self(part) for name, part in sorted(shown.items())}
        if isinstance(value, list | tuple):
            return [*map(self, value)]
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int | float):
            return "<time>" if self._is_now(value) else value
        return self._plain_text(value if isinstance(value, str) else _text(value))

    def _plain_text(self, text: str) -> str:
        for name, placeholder in self._names:
            text = text.replace(name, placeholder)
        text = _UUID.sub("<uuid>", text)
        text = _MOMENT.sub(lambda found: "<time>" if self._is_moment(found[0]) else found[0], text)
        return _NUMBER.sub(lambda found: "<time>" if self._is_now(int(found[0])) else found[0], text)

    def _is_now(self, number: float) -> bool:
        return any(abs(number / unit - self._began) < _DAY for unit in _UNITS)

    def _is_moment(self, text: str) -> bool:
        # Python 3.10 reads neither Z nor all lengths of a fraction: minutes are enough.
        with suppress(ValueError):
            return self._is_now(datetime.fromisoformat(text[:16] + "+00:00").timestamp())
        return False


def formatted(value: Any, *, indent: int = 0, name: str = "") -> list[str]:
    """JSON in lines, with each part that fits into a line on one line."""
    before = " " * indent + name
    whole = before + json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list):
        return [whole]
    is_row = isinstance(value, dict) and not any(isinstance(one, dict | list) for one in value.values())
    if len(whole) <= (_ROW_WIDTH if is_row else _WIDTH):
        return [whole]
    if isinstance(value, dict):
        named = [(f"{json.dumps(key, ensure_ascii=False)}: ", part) for key, part in value.items()]
    else:
        named = [("", part) for part in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    lines = [before + begin]
    for number, (key, part) in enumerate(named, 1):
        lines += formatted(part, indent=indent + 1, name=key)
        lines[-1] += "," if number < len(named) else ""
    return [*lines, " " * indent + end]
