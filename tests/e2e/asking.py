"""What the command line says of a pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tidesink.cli.main import app


def asked(config: Path, *words: str, code: int = 0) -> str:
    """What a command prints."""
    done = CliRunner().invoke(app, [*words, "--config", str(config)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def answered(config: Path, *words: str) -> Any:
    """What a command prints for programs."""
    return json.loads(asked(config, *words, "-o", "json"))


def letters_of(config: Path) -> list[tuple[str, int, int]]:
    """Error, count and first offset of the letters, as ``dlq list`` has them."""
    groups = answered(config, "dlq", "list")["dead_letters"]
    return [(group["error"], group["count"], group["first_offset"]) for group in groups]
