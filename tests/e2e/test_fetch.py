"""Ivy fetches from a repository of our own on disk: whole, once, and again after an interruption."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Final

import pytest

from tests.full import FULL
from tidesink.errors import DevStackError
from tidesink.sinks.spark.jvm import Archive, Coordinate, JarSet, fetch

pytestmark = pytest.mark.servers

ONE: Final = Coordinate("org.example", "one", "1.0")
TWO: Final = Coordinate("org.example", "two", "1.0")
OLD_TWO: Final = Coordinate("org.example", "two", "0.9")
SETTINGS: Final = """<ivysettings><settings defaultResolver="disk"/><resolvers>
<ibiblio name="disk" m2compatible="true" usepoms="{poms}" root="{root}"/></resolvers></ivysettings>"""


def _publish(root: Path, module: Coordinate, needs: Coordinate | None = None) -> Path:
    group, name, version = module
    folder = root / group.replace(".", "/") / name / version
    folder.mkdir(parents=True)
    need = (
        f"<dependencies><dependency><groupId>{needs.group}</groupId><artifactId>{needs.name}</artifactId>"
        f"<version>{needs.version}</version></dependency></dependencies>"
        if needs
        else ""
    )
    (folder / f"{name}-{version}.pom").write_text(
        f"<project><modelVersion>4.0.0</modelVersion><groupId>{group}</groupId>"
        f"<artifactId>{name}</artifactId><version>{version}</version>{need}</project>"
    )
    jar = folder / f"{name}-{version}.jar"
    jar.write_bytes(name.encode() * 100)
    return jar


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    _publish(root, ONE, needs=TWO)
    _publish(root, TWO)
    _publish(root, OLD_TWO)
    _settings(tmp_path, monkeypatch, poms="true")
    monkeypatch.setenv("TIDESINK_CACHE", str(tmp_path / "cache"))
    return root


def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, poms: str) -> None:
    file = tmp_path / "ivysettings.xml"
    file.write_text(SETTINGS.format(root=(tmp_path / "repository").as_uri() + "/", poms=poms))
    monkeypatch.setenv("TIDESINK_IVY_SETTINGS", str(file))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.jar"))


def test_dependencies_come_too_and_only_once(repository: Path) -> None:
    said: list[str] = []
    folder = fetch(JarSet("x", (ONE,)), progress=said.append)
    assert _names(folder) == ["one-1.0.jar", "two-1.0.jar"]
    assert said[0].startswith(f"x: downloading jars from Maven Central to {folder}. This is done once")
    assert said[-1] == "x: download finished (files: 2)"
    # Files have lines of their own only if the download is slow.
    assert all(line.startswith("x: downloading file ") for line in said[1:-1])
    said.clear()
    shutil.rmtree(repository)  # so a second fetch could not succeed
    assert fetch(JarSet("x", (ONE,)), progress=said.append) == folder
    assert said == []


@FULL
def test_a_pin_wins_over_what_a_module_asks_for(repository: Path) -> None:
    assert _names(fetch(JarSet("x", (ONE,), pinned=(OLD_TWO,)))) == ["one-1.0.jar", "two-0.9.jar"]


@FULL
def test_an_excluded_module_stays_away(repository: Path) -> None:
    assert _names(fetch(JarSet("x", (ONE,), excluded=(("org.example", "two"),)))) == ["one-1.0.jar"]


def test_a_folder_that_lost_a_file_is_fetched_again(repository: Path) -> None:
    folder = fetch(JarSet("x", (ONE,)))
    (folder / "two-1.0.jar").unlink()
    assert _names(fetch(JarSet("x", (ONE,)))) == ["one-1.0.jar", "two-1.0.jar"]


@FULL
def test_an_archive_needs_no_parent_pom(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _settings(tmp_path, monkeypatch, poms="false")
    content = tmp_path / "readme"
    content.write_text("hello")
    archive = repository / "org/example/app/1.0/app-1.0-all.tar.gz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(content, "readme")
    app = JarSet("app", (Coordinate("org.example", "app", "1.0"),), archive=Archive("tar.gz", "all"))
    folder = fetch(app, finish=lambda files: (files / "finished").touch())
    assert (folder / "app-1.0-all.tar.gz").read_bytes() == archive.read_bytes()
    assert (folder / "finished").exists()


def test_what_is_not_there_is_named_with_the_way_out(repository: Path) -> None:
    said: list[str] = []
    missing = Coordinate("org.example", "three", "3.0")
    with pytest.raises(DevStackError) as caught:
        fetch(JarSet("x", (ONE, missing)), progress=said.append)
    assert "org.example:three:3.0" in str(caught.value)
    assert "TIDESINK_IVY_SETTINGS" in str(caught.value)
    assert [line for line in said if "the download failed" in line] == said[-2:]
    _publish(repository, missing)
    assert "three-3.0.jar" in _names(fetch(JarSet("x", (ONE, missing))))


FETCH: Final = """
import sys
from pathlib import Path
from tidesink.sinks.spark.jvm import fetch
from tidesink.sinks.spark.jvm import JarSet
from tidesink.sinks.spark.jvm import Coordinate

def slowly(folder: Path) -> None:
    print("half way", flush=True)
    sys.stdin.read()  # until the test lets go

one = JarSet("x", (Coordinate("org.example", "one", "1.0"),))
print(fetch(one, progress=lambda line: print(line, flush=True), finish=slowly), flush=True)
"""


def _start() -> subprocess.Popen[str]:
    """A fetch that stands half way until its standard input ends."""
    command = [sys.executable, "-c", FETCH]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def _read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(f"{word!r} was never said")


def test_killed_half_way_then_whole(repository: Path) -> None:
    with _start() as process:
        _read_until(process, "half way")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    jars = Path(os.environ["TIDESINK_CACHE"]) / "jars"
    assert [path.name for path in jars.iterdir() if path.is_dir() and path.suffix != ".partial"] == []
    assert _names(fetch(JarSet("x", (ONE,)))) == ["one-1.0.jar", "two-1.0.jar"]


@FULL
def test_two_at_once_fetch_once(repository: Path) -> None:
    said: list[str] = []
    with _start() as first:
        _read_until(first, "half way")
        second = threading.Thread(target=lambda: fetch(JarSet("x", (ONE,)), progress=said.append))
        second.start()
        deadline = time.monotonic() + 60
        while not said:
            assert time.monotonic() < deadline, "the second one does not wait"
            time.sleep(0.02)
        second.join(1)
        assert second.is_alive()
        first.communicate()
        second.join()
    assert [line for line in said if "waiting for another process" in line] == said
    assert len(said) == 1
