"""The virtual environment comes about whatever the system's Python lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.full import FULL

# An index of packages is asked, and each takes seconds.
pytestmark = pytest.mark.servers

SCRIPT: Final = Path(__file__).resolve().parents[2] / "scripts" / "make_venv.sh"
# Debian's python3 without python3-venv: it can make an environment, and put no pip into it.
_NO_ENSUREPIP: Final = (
    'case "$*" in *"-m venv"*--without-pip*) ;; *"-m venv"*) echo "no ensurepip" >&2; exit 1;; esac'
)
_NO_PIP: Final = 'case "$*" in *"-m pip"*) echo "No module named pip" >&2; exit 1;; esac'


def _python(folder: Path, *lacks: str) -> Path:
    """This Python, lacking something."""
    python = folder / "python-that-lacks"
    python.write_text("\n".join(["#!/bin/sh", *lacks, f'exec "{sys.executable}" "$@"', ""]), encoding="utf-8")
    python.chmod(0o755)
    return python


def _make(folder: Path, python: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "PYTHON": str(python), **environment}
    settings.pop("VIRTUAL_ENV", None)
    return subprocess.run(
        [str(SCRIPT), str(folder / "venv")], env=settings, capture_output=True, text=True, check=False
    )


def _has_pip(folder: Path) -> bool:
    command = [str(folder / "venv/bin/python"), "-m", "pip", "--version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@FULL
def test_with_a_whole_python_and_a_second_time(tmp_path: Path) -> None:
    made = _make(tmp_path, sys.executable)
    assert (made.returncode, made.stderr) == (0, "")
    assert _has_pip(tmp_path)
    mark = tmp_path / "venv" / "mark"
    mark.touch()
    assert _make(tmp_path, sys.executable).returncode == 0
    assert mark.exists()


@FULL
def test_makes_a_half_made_one_anew(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(tmp_path / "gone")
    assert _make(tmp_path, _python(tmp_path, _NO_ENSUREPIP)).returncode == 0
    assert _has_pip(tmp_path)


@FULL
def test_without_ensurepip_the_systems_pip_serves(tmp_path: Path) -> None:
    made = _make(tmp_path, _python(tmp_path, _NO_ENSUREPIP), PYTHON_WHEELS=str(tmp_path))
    assert made.returncode == 0, made.stderr
    assert _has_pip(tmp_path)


@FULL
def test_without_any_pip_it_is_fetched(tmp_path: Path) -> None:
    python = _python(tmp_path, _NO_ENSUREPIP, _NO_PIP)
    made = _make(tmp_path, python, PYTHON_WHEELS=str(tmp_path))
    assert made.returncode == 0, made.stderr
    assert _has_pip(tmp_path)


def test_says_what_to_install_when_nothing_helps(tmp_path: Path) -> None:
    python = _python(tmp_path, _NO_ENSUREPIP, _NO_PIP)
    made = _make(tmp_path, python, PYTHON_WHEELS=str(tmp_path), PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert made.returncode == 2
    assert "has no ensurepip" in made.stderr
    assert "apt-get install python3-venv" in made.stderr


def test_refuses_a_python_that_is_too_old(tmp_path: Path) -> None:
    python = _python(tmp_path, "exit 1")
    made = _make(tmp_path, python)
    assert made.returncode == 2
    assert "needs Python 3.10 to 3.13" in made.stderr
