"""Which golden vectors a run uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vectors import REQUIRE, SUBSET, WHOLE, vectors_dir


def test_the_named_folder_wins(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "vectors", str(tmp_path))
    monkeypatch.setenv(REQUIRE, "1")
    assert vectors_dir(pytestconfig) == tmp_path


def test_a_named_folder_must_exist(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "vectors", str(tmp_path / "no"))
    with pytest.raises(pytest.UsageError, match=r"--vectors: there is no folder .*/no"):
        vectors_dir(pytestconfig)


def test_the_whole_set_can_be_demanded(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "vectors", None)
    monkeypatch.delenv(REQUIRE, raising=False)
    assert vectors_dir(pytestconfig, tmp_path / "no") == SUBSET
    monkeypatch.setenv(REQUIRE, "1")
    with pytest.raises(pytest.UsageError, match=f"{REQUIRE}=1: there is no folder"):
        vectors_dir(pytestconfig, tmp_path / "no")


def test_the_whole_set_is_the_default_where_it_is(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "vectors", None)
    monkeypatch.delenv(REQUIRE, raising=False)
    assert vectors_dir(pytestconfig) == (WHOLE if WHOLE.is_dir() else SUBSET)
