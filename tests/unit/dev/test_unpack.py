"""Unpacking what was fetched, on Pythons with tarfile's filters and without."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tidesink.dev.stack import unpack
from tidesink.errors import DevStackError


@pytest.fixture(params=[True, False], ids=["filters", "no filters"], autouse=True)
def _filters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


def _archive(path: Path, *members: tarfile.TarInfo) -> tarfile.TarFile:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return tarfile.open(path)


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    member.size = 3 if kind == tarfile.REGTYPE else 0
    member.mode = 0o755
    return member


def test_files_and_folders_are_unpacked(tmp_path: Path) -> None:
    with _archive(tmp_path / "a.tar.gz", _member("d", tarfile.DIRTYPE), _member("d/f")) as tar:
        unpack(tar, tmp_path / "out")
    assert (tmp_path / "out/d/f").read_bytes() == b"xxx"


@pytest.mark.parametrize(
    "member",
    [_member("../f"), _member("l", tarfile.SYMTYPE, "/etc/passwd"), _member("p", tarfile.FIFOTYPE)],
    ids=["outside", "link", "pipe"],
)
def test_anything_else_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with (
        _archive(tmp_path / "a.tar.gz", member) as tar,
        pytest.raises(DevStackError, match="does not only contain plain files and folders"),
    ):
        unpack(tar, tmp_path / "out")
    assert not (tmp_path / "f").exists()
