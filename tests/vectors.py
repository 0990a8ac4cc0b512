"""Where the golden vectors are: ``--vectors DIR``, else the whole set beside us, else our subset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
WHOLE: Final = ROOT.parent / "shared" / "vectors"
SUBSET: Final = ROOT / "tests" / "golden" / "data"
REQUIRE: Final = "TIDESINK_REQUIRE_VECTORS"


def vectors_dir(config: pytest.Config, whole: Path = WHOLE) -> Path:
    """The folder of vectors for this run. ``whole``: where the whole set is, if it is there.

    Raises pytest.UsageError when the folder that was named, or that ``TIDESINK_REQUIRE_VECTORS=1``
    demands, is not there.
    """
    named = config.getoption("--vectors")
    if named is not None:
        return _existing(Path(str(named)), "--vectors")
    if os.environ.get(REQUIRE) == "1":
        return _existing(whole, f"{REQUIRE}=1")
    return whole if whole.is_dir() else SUBSET


def _existing(folder: Path, asked_by: str) -> Path:
    if not folder.is_dir():
        raise pytest.UsageError(f"{asked_by}: there is no folder {folder}")
    return folder.resolve()
