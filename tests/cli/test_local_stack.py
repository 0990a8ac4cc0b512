"""``tidesink init`` and the stack of ``tidesink dev up``: the tutorial's commands, one after the other."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests.cli.samples import run
from tests.servers import local_stack
from tidesink.config import load_config
from tidesink.dev.stack import API, DIRECTORY, Broker, DaemonFiles, Registry, running_stack, start_of

README: Final = Path(__file__).resolve().parents[2] / "README.md"


def _runs(files: DaemonFiles, port: int, *, started: str | None = None) -> None:
    """A pid file as the stack leaves it; this process stands in for the service."""
    files.directory.mkdir(parents=True, exist_ok=True)
    document = {"pid": os.getpid(), "started": started or start_of(os.getpid()), "port": port}
    files.pid_file.write_text(json.dumps(document))


def test_init_names_the_stack_that_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _runs(Broker(DIRECTORY, 0, 0).files, 19_092)
    assert running_stack() is None
    _runs(Registry(DIRECTORY, 0).files, 18_081)
    result = run("init")
    assert result.exit_code == 0, result.stderr
    assert f": 127.0.0.1:19092, http://127.0.0.1:18081{API}" in result.stderr
    source = load_config(Path("tidesink.yaml")).source
    assert source.brokers == ("127.0.0.1:19092",)
    assert source.schema_registry is not None
    assert f"http://127.0.0.1:18081{API}" in Path("tidesink.yaml").read_text()


def test_what_options_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _runs(Broker(DIRECTORY, 0, 0).files, 19_092)
    _runs(Registry(DIRECTORY, 0).files, 18_081)
    result = run("init", "--brokers", "k:1")
    assert "local stack" not in result.stderr
    text = Path("tidesink.yaml").read_text()
    assert "brokers: k:1" in text
    assert "schema-registry: http://127.0.0.1:8081\n" in text


def test_a_stack_that_is_gone_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _runs(Broker(DIRECTORY, 0, 0).files, 19_092, started="another boot/1")
    _runs(Registry(DIRECTORY, 0).files, 18_081, started="another boot/1")
    result = run("init")
    assert "local stack" not in result.stderr
    assert "brokers: 127.0.0.1:9092" in Path("tidesink.yaml").read_text()


def _tutorial() -> list[list[str]]:
    """The tutorial's tidesink commands, comments left out."""
    text = README.read_text(encoding="utf-8").partition("## Tutorial")[2]
    # Every second part is inside a fence; those that begin with a language hold no commands.
    blocks = "".join(part for part in text.split("```")[1::2] if part.startswith("\n")).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in blocks.splitlines()]
    return [line[1:] for line in lines if line[:1] == ["tidesink"]]


def test_the_tutorial_is_seen() -> None:
    """Guards the test below: it would also pass if it saw no command."""
    seen = [" ".join(command) for command in _tutorial()]
    first = [seen.index(text) for text in ("dev up", "init", "validate --connect", "plan")]
    assert first == sorted(first)


@pytest.mark.servers
def test_the_tutorial_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its commands but the worker itself; the ports are others, so that two runs do not meet."""
    monkeypatch.chdir(tmp_path)
    with local_stack(tmp_path / DIRECTORY) as stack:
        brokers, registry = stack.addresses
        for command in _tutorial():
            if command[:2] in (["dev", "up"], ["run", "--until"]):
                continue
            own = [
                word.replace("127.0.0.1:9092", brokers).replace(f"http://127.0.0.1:8081{API}", registry)
                for word in command
            ]
            result = run(*own)
            assert result.exit_code == 0, f"{command}: {result.stdout}{result.stderr}"
