"""Spark starts without the module it asks for and does not need: some lack it, the others warn of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tidesink.sinks.spark.jvm import JavaRuntime
from tidesink.sinks.spark.session import spark_java_environment


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDESINK_CACHE", str(tmp_path / "a cache"))


def _runtime(home: Path) -> JavaRuntime:
    """A Java that prints its arguments, one a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return JavaRuntime(program, 21)


def test_java_is_spared_the_module(tmp_path: Path) -> None:
    runtime = _runtime(tmp_path / "it's here")
    home = Path(spark_java_environment(runtime)["JAVA_HOME"])
    assert home != runtime.home
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "--add-opens=x"]
    said = subprocess.run([str(home / "bin/java"), *arguments], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:-1] == ["-Xmx1g", "-Da=b c", "", "--add-opens=x"]


def test_the_second_time_writes_nothing(tmp_path: Path) -> None:
    runtime = _runtime(tmp_path / "jre")
    program = Path(spark_java_environment(runtime)["JAVA_HOME"]) / "bin" / "java"
    before = program.stat().st_mtime_ns
    spark_java_environment(runtime)
    assert program.stat().st_mtime_ns == before
    program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    spark_java_environment(runtime)
    assert "exec" in program.read_text(encoding="utf-8")


def test_where_nothing_can_be_written_java_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TIDESINK_CACHE", str(tmp_path / "file"))
    runtime = _runtime(tmp_path / "jdk")
    assert spark_java_environment(runtime) == {"JAVA_HOME": str(tmp_path / "jdk")}
