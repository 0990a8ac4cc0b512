"""The snippets of docs/how-to-codecs.md do what the page says, on a real broker and registry."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.samples import CANAL
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, schema_of
from tests.full import FULL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to-codecs.md"
DISPATCHERS = (
    "[sink]\ndispatchers=[{matcher=['*.*'],topic='PREFIX{schema}_{table}',partition='index-value'}]\n"
)


def snippets(language: str) -> list[str]:
    """The page's code blocks in one language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, servers: Servers) -> Path:
    """Where the page's commands run: a changefeed's file, a capture, and a topic with two rows."""
    orders = TableWriter(servers, schema_of("orders"))
    orders.upsert({"id": 1, "name": "one"})
    orders.delete({"id": 1, "name": "one"})
    (tmp_path / "changefeed.toml").write_text(DISPATCHERS.replace("PREFIX", servers["prefix"]))
    value = base64.b64encode(json.dumps(CANAL | {"es": "1"}).encode()).decode()
    line = {"topic": "t", "partition": 0, "offset": 0, "key_b64": None, "value_b64": value}
    (tmp_path / "canal.jsonl").write_text(json.dumps(line))
    return tmp_path


def here(text: str, servers: Servers) -> str:
    """A snippet with the addresses and the topic of this run."""
    found = text.replace("127.0.0.1:9092", servers["brokers"]).replace(
        "shop_orders", f"{servers['prefix']}shop_orders"
    )
    return found.replace("http://127.0.0.1:8081", servers["registry_url"])


def run(folder: Path, *command: str, code: int = 0) -> str:
    """What a command prints."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == code, done.stderr
    return done.stdout


@FULL
def test_the_page_does_what_it_says(folder: Path, servers: Servers) -> None:
    config, shell, strict = (here(text, servers) for text in snippets("sh"))
    assert "wrote tidesink.yaml" in run(folder, *shlex.split(config))

    events, plain, _ = (here(text, servers) for text in snippets("python"))
    # Ten lines and an import, as the page is meant to show.
    assert max(len([line for line in text.splitlines() if line]) for text in (events, plain)) <= 11
    insert, delete = run(folder, sys.executable, "-c", events).splitlines()
    assert insert.endswith("shop.orders {'id': 1} {'id': 1, 'name': 'one'} 0")
    assert delete == "delete shop.orders {'id': 1} None 1"
    assert run(folder, sys.executable, "-c", plain).count("ChangeEvent(op=") == 2

    decode, from_config = map(shlex.split, shell.splitlines())
    lines = [json.loads(line) for line in run(folder, *decode).splitlines()]
    assert [(line["type"], line["key"]) for line in lines] == [("upsert", {"id": 1}), ("delete", {"id": 1})]
    assert "shop.orders" in run(folder, *from_config)
    (wrong,) = map(json.loads, run(folder, *shlex.split(strict), code=1).splitlines())
    assert wrong["reason"].startswith("$.es: '1' is not of the type integer")


@FULL
def test_the_spark_snippet_decodes_the_topic(kept_classes: bool, folder: Path, servers: Servers) -> None:
    text = here(snippets("python")[2], servers)
    assert len([line for line in text.splitlines() if line]) <= 11
    shown = run(folder, sys.executable, "-c", text)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if "|" in line]
    assert rows == [
        ["offset", "op", "key", "after"],
        ["0", "upsert", "{1}", "{1, one}"],
        ["1", "delete", "{1}", "NULL"],
    ]
