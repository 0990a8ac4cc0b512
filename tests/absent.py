"""What happens to a test whose server is not installed: skipped on a user's machine, failed in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def without_server(reason: str) -> NoReturn:
    """Skip the test, or fail it where ``TIDESINK_REQUIRE_SERVERS`` is set."""
    if os.environ.get("TIDESINK_REQUIRE_SERVERS"):
        pytest.fail(reason)
    pytest.skip(reason)
