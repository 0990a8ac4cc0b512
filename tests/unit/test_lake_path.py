"""Whether the lake's path can be used: tried by ``validate --connect``, with nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.samples import run
from tidesink.errors import ConfigError
from tidesink.sinks.targets.lake_path import try_path


def _everything(folder: Path) -> list[tuple[str, int]]:
    return [(str(place), place.stat().st_mtime_ns) for place in sorted(folder.rglob("*"))]


def test_a_path_that_can_be_used_is_left_as_it_is(tmp_path: Path) -> None:
    lake = tmp_path / "a lake"
    before = _everything(tmp_path)
    assert (
        try_path(str(lake / "deep"))
        == f"{lake}/deep is made by the first batch: {tmp_path} can be written to"
    )
    (lake / "shop").mkdir(parents=True)
    assert _everything(tmp_path) != before
    before = _everything(tmp_path)
    for path in (str(lake), lake.as_uri()):
        assert try_path(path) == f"{lake} can be written to, and holds 1 directories"
    assert _everything(tmp_path) == before


def test_a_path_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    file = tmp_path / "lake"
    file.write_text("")
    for path in (file, file / "deep", Path("/proc/lake")):
        with pytest.raises(ConfigError, match=r"cannot be used .*: give target.path a directory"):
            try_path(str(path))


def test_other_file_systems_are_not_tried() -> None:
    assert "not tried here: the worker opens s3a through Spark" in try_path("s3a://bucket/lake")


@pytest.mark.slow
def test_validate_says_it(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    run("init", str(file), "--brokers", "127.0.0.1:1", "--schema-registry", "http://127.0.0.1:1")
    for path, ok in (("./lake", True), ("./t.yaml/lake", False)):
        file.write_text(file.read_text().replace("path: ./lake", f"path: {path}"))
        result = run("validate", str(file), "--connect", "-o", "json")
        found = {answer["part"]: answer["ok"] for answer in json.loads(result.stdout)["connections"]}
        assert found["target"] is ok
    assert sorted(place.name for place in tmp_path.iterdir() if place.name != ".tidesink") == ["t.yaml"]
