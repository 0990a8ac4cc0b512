"""The marks of tests that take too long for every change: ``make soak`` runs them."""

from __future__ import annotations

import os
from typing import Final

import pytest

SOAK: Final = (
    pytest.mark.soak,
    pytest.mark.skipif(not os.environ.get("TIDESINK_SOAK"), reason="long: make soak"),
)
