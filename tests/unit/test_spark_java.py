"""Spark starts on a Java without the module it asks for and does not need."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tidesink.sinks.spark.jvm import JavaRuntime
from tidesink.sinks.spark.session import spark_java_environment


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDESINK_CACHE", str(tmp_path / "a cache"))


def _runtime(home: Path, release: str) -> JavaRuntime:
    """A Java that prints its arguments, one a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (home / "release").write_text(release, encoding="utf-8")
    return JavaRuntime(program, 21)


@pytest.mark.parametrize(
    "release", ['JAVA_VERSION="21"\n', 'MODULES="java.base jdk.incubator.vector java.sql"\n', ""]
)
def test_a_whole_java_is_used_as_it_is(tmp_path: Path, release: str) -> None:
    runtime = _runtime(tmp_path / "jdk", release)
    assert spark_java_environment(runtime) == {"JAVA_HOME": str(tmp_path / "jdk")}


def test_a_java_without_a_release_file_is_used_as_it_is(tmp_path: Path) -> None:
    runtime = _runtime(tmp_path / "jdk", "")
    (tmp_path / "jdk" / "release").unlink()
    assert spark_java_environment(runtime) == {"JAVA_HOME": str(tmp_path / "jdk")}


def test_a_cut_down_java_is_spared_the_module(tmp_path: Path) -> None:
    runtime = _runtime(tmp_path / "it's here", 'MODULES="java.base java.sql"\n')
    home = Path(spark_java_environment(runtime)["JAVA_HOME"])
    assert home != runtime.home
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "--add-opens=x"]
    said = subprocess.run([str(home / "bin/java"), *arguments], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:-1] == ["-Xmx1g", "-Da=b c", "", "--add-opens=x"]


def test_the_second_time_writes_nothing(tmp_path: Path) -> None:
    runtime = _runtime(tmp_path / "jre", 'MODULES="java.base"\n')
    program = Path(spark_java_environment(runtime)["JAVA_HOME"]) / "bin" / "java"
    before = program.stat().st_mtime_ns
    spark_java_environment(runtime)
    assert program.stat().st_mtime_ns == before
    program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    spark_java_environment(runtime)
    assert "exec" in program.read_text(encoding="utf-8")
