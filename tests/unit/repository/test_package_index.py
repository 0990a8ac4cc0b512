"""Which index pip is fetched from, where the machine's Python has none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "package_index.py"


@pytest.fixture
def package_index() -> ModuleType:
    found = importlib.util.spec_from_file_location("package_index", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_environment_comes_first(
    package_index: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = http://mirror/simple/%40\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    assert package_index.index() == "http://mirror/simple/%40"
    monkeypatch.setenv("PIP_INDEX_URL", "http://other/simple/")
    assert package_index.index() == "http://other/simple"


def test_a_pip_on_the_machine_says_its_default(package_index: ModuleType) -> None:
    text = 'PyPI = PackageIndex(\n    "https://index.example/", file_storage_domain="x"\n)\nTestPyPI = 1\n'
    assert list(package_index.default_in(text)) == ["https://index.example/simple"]
