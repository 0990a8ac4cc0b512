"""The producers' golden vectors, one folder at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.vectors import VectorFolder, find_folders


@pytest.fixture(scope="module", params=["ticdc", "ticdc-new"])
def golden_folder(request: pytest.FixtureRequest, vectors: Path) -> VectorFolder:
    """The vectors of one producer."""
    found = {folder.name: folder for folder in find_folders(vectors)}
    if request.param not in found:
        pytest.skip(f"the vectors have no folder {request.param}")
    return found[request.param]
