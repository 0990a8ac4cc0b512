"""A MariaDB that cannot be started says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.first_load.mariadb import running_mariadb
from tidesink.errors import DevStackError


def test_a_machine_without_mariadb_is_told_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(
            DevStackError, match=r"mariadbd is not on the PATH.*apt-get install mariadb-server-core"
        ),
        running_mariadb(tmp_path / "server"),
    ):
        pass


def test_what_the_installer_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mariadbd", "mariadb-install-db"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho the disk is full >&2\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with (
        pytest.raises(DevStackError, match=r"cannot create .*\n.*the disk is full"),
        running_mariadb(tmp_path / "server"),
    ):
        pass
