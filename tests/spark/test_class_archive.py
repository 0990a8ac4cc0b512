"""Spark's classes, kept between starts: they are used, and what does not fit stands in nobody's way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.full import FULL
from tidesink.sinks.spark.jvm import all_connector_jars, cache_directory, find_java, spark_connector_jars
from tidesink.sinks.spark.session import archive_options, class_archive, make_class_archive
from tidesink.sinks.targets import TARGETS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_starts_from_the_kept_classes(kept_classes: bool, spark: SparkSession) -> None:
    assert kept_classes
    gateway: Any = spark.sparkContext._gateway
    # The launcher's shell is replaced by the JVM: one process.
    maps = Path(f"/proc/{gateway.proc.pid}/maps").read_text(encoding="utf-8")
    assert str(class_archive(spark_connector_jars())) in maps


def test_without_an_archive_there_is_nothing_to_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDESINK_CACHE", str(tmp_path))
    assert archive_options(()) == ""


@FULL
def test_an_archive_that_does_not_fit_is_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDESINK_CACHE", str(tmp_path))
    archive = class_archive(())
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"no archive at all" * 1_000)
    command = [str(find_java().path), *archive_options(()).split(), "-cp", "x.jar", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "version" in answer.stderr
    assert "shared" not in answer.stderr.lower().replace("sharing", "")


def test_a_path_with_a_space_is_not_handed_to_the_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDESINK_CACHE", str(tmp_path / "two words"))
    class_archive(()).parent.mkdir(parents=True)
    class_archive(()).write_bytes(b"x")
    assert archive_options(()) == ""


def test_an_archive_whose_making_was_cut_off_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jars").symlink_to(cache_directory() / "jars")
    monkeypatch.setenv("TIDESINK_CACHE", str(tmp_path))
    assert not make_class_archive(seconds=0.01)
    assert [*(tmp_path / "classes").iterdir()] == []


def test_a_container_finds_the_archive_that_its_image_was_built_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer of an image keeps no fractions of a second."""
    monkeypatch.setenv("TIDESINK_CACHE", str(tmp_path))
    jar = tmp_path / "delta-1.jar"
    jar.write_bytes(b"x")
    os.utime(jar, ns=(1_700_000_000_987_654_321,) * 2)
    built = class_archive([jar])
    os.utime(jar, ns=(1_700_000_000_000_000_000,) * 2)
    assert class_archive([jar]) == built
    os.utime(jar, ns=(1_700_000_001_000_000_000,) * 2)
    assert class_archive([jar]) != built


def test_all_targets_have_one_class_path_once_their_jars_are_here() -> None:
    ahead = all_connector_jars()
    assert len(set(ahead)) == len(ahead)
    assert {jar.name.split("-")[0] for jar in ahead} >= {"delta", "iceberg"}
    for target in TARGETS:
        assert spark_connector_jars(targets=[target]) == ahead
    assert spark_connector_jars() == ahead
