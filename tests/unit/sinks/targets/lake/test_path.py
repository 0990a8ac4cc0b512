"""Whether the lake's path can be used, tried by ``validate --connect``; names too long for its folders."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.cli.samples import run
from tidesink.errors import ConfigError, SchemaRefusedError, TargetError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.targets.lake.tables import long_names_refused, try_path

LONG = "x" * 256


def _everything(folder: Path) -> list[tuple[str, int]]:
    return [(str(place), place.stat().st_mtime_ns) for place in sorted(folder.rglob("*"))]


def test_a_path_that_can_be_used_is_left_as_it_is(tmp_path: Path) -> None:
    lake = tmp_path / "a lake"
    before = _everything(tmp_path)
    assert (
        try_path(str(lake / "deep"))
        == f"{lake}/deep does not exist yet and is created by the first batch: {tmp_path} can be written to"
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
        with pytest.raises(ConfigError, match=r"cannot be used .*\. Set target.path to a directory"):
            try_path(str(path))


def test_other_file_systems_are_not_tried() -> None:
    assert "not checked here: the worker opens s3a through Spark" in try_path("s3a://bucket/lake")


def _opened(error: TargetError, cause: Exception, *names: str) -> TargetError:
    """What becomes of an error while a table with such folders is opened."""
    with pytest.raises(TargetError) as caught, long_names_refused(names, TableId("shop", "orders")):
        raise error from cause
    return caught.value


@pytest.mark.parametrize(
    "cause",
    [
        OSError(errno.ENAMETOOLONG, "File name too long"),
        RuntimeError("RemoteException: FSLimitException$PathComponentTooLongException: limit=255"),
        RuntimeError("ERROR: value too long for type character varying(255)"),
        RuntimeError("[DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/lake/x/_delta_log"),
        RuntimeError("java.io.IOException: Mkdirs failed to create /lake/x (exists=false, cwd=file:/)"),
    ],
    ids=["linux", "hdfs", "jdbc", "delta", "hadoop"],
)
def test_a_folder_whose_name_is_too_long_is_named_where_the_cause_says_it(cause: Exception) -> None:
    passing = TransientTargetError("The table cannot be read now.")
    refused = _opened(passing, cause, "lake", LONG, "short")
    assert isinstance(refused, SchemaRefusedError)
    assert f"'{LONG}' has 256 bytes" in refused.message
    assert _opened(passing, cause, "lake", LONG[1:]) is passing
    other = SchemaRefusedError("the key's column is missing")
    assert _opened(other, cause, LONG) is other


@pytest.mark.parametrize(
    "cause",
    [
        OSError(errno.EIO, "Input/output error"),
        RuntimeError("AWSServiceIOException: 503 Slow Down"),
        RuntimeError("[DELTA_CANNOT_CREATE_LOG_PATH] Cannot create s3a://lake/x/_delta_log"),
        RuntimeError("the request took too long"),
    ],
)
@pytest.mark.parametrize("kind", [TransientTargetError, TargetError])
def test_a_long_name_is_not_blamed_for_what_else_went_wrong(
    kind: type[TargetError], cause: Exception
) -> None:
    error = kind("The table cannot be read now.")
    assert _opened(error, cause, "lake", LONG) is error


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
