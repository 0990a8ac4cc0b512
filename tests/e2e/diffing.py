"""Asks ``tidesink diff`` about a pipeline whose source is a database of the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tidesink.cli.main import app
from tidesink.config import load_config
from tidesink.sinks.worker.run import run


def diff_config(folder: Path, servers: Servers, topic: str, url: str, **more: Any) -> Path:
    """A pipeline of one canal-json topic that begins with a snapshot; ``more`` replaces sections."""
    source = {
        "brokers": servers["brokers"],
        "protocol": "canal-json",
        "topics": [topic],
        "database": {"url": url, "chunk-rows": 250, "connections": 2},
        **more.pop("source", {}),
    }
    return shop_config(folder, servers, {"source": source, "defaults": {"snapshot": "initial"}, **more})


def tables_of_diff(config: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and what is said of each table."""
    found = CliRunner().invoke(app, ["diff", "-c", str(config), "-o", "json", "--lag", "0", *words])
    assert found.exit_code in (0, 2, 3), (found.output, found.exception)
    assert found.stdout, found.output
    return found.exit_code, json.loads(found.stdout)["tables"]


def table_of_diff(config: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The same of the one table, which was compared."""
    code, (table,) = tables_of_diff(config, *words)
    assert code != 2, table
    return code, table


def differing(found: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of keys that differ, by how."""
    return differing_from(found, "source")


def differing_from(found: Mapping[str, Any], side: str) -> tuple[int, ...]:
    """The same of a comparison with another ``side``."""
    return tuple(found[name] for name in ("different", f"only_at_{side}", "only_at_target"))


def drain(config: Path) -> None:
    """Apply all that waits."""
    report = run(load_config(config), until="drained")
    assert report.exit_code == 0, [one.error for one in report.tables]
