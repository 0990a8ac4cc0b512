"""Exit codes, the same for every command."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNWELL: Final = 3  # finished, but some table is paused or failing
INTERRUPTED: Final = 130
