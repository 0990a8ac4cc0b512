"""The stack of compose/stack.yaml with the worker's image, for ``make containers`` alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.compose_files import COMPOSE, env_example
from tests.image.engine import SECONDS, WORKER, compose, docker, is_right

# scripts/containers.sh has built the image and says so.
collect_ignore_glob = [] if os.environ.get("TIDESINK_TEST_IMAGE") else ["test_*.py"]

_CHOSEN: Final = {
    "LOG": "json",
    "WORKLOAD_EVENTS": "3000",
    "WORKLOAD_RATE": "1000",
    "KAFKA_PORT": "29392",
    "REGISTRY_PORT": "28381",
}


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of the stack's worker, which has written every change of the workload."""
    chosen = {**env_example(), **_CHOSEN}
    env = tmp_path_factory.mktemp("stack") / "env"
    env.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()), encoding="utf-8")
    file = Path(COMPOSE / "stack.yaml")
    try:
        compose(file, env, "up", "-d", "--no-build", "--pull", "never")
        assert docker("wait", "tidesink-stack-workload-1").strip() == "0"
        is_right(WORKER, seconds=SECONDS)
        yield WORKER
    finally:
        compose(file, env, "down", "--volumes", "--timeout", "5")
