"""The compose files as Compose itself reads them: variables filled in, extensions merged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

COMPOSE: Final = Path(__file__).resolve().parents[1] / "compose"
# ${NAME}, ${NAME-default}, ${NAME:-default}, ${NAME:?message}: the forms of the Compose specification.
VARIABLE: Final = re.compile(r"\$\{(?P<name>\w+)(?P<how>:?[-?])?(?P<rest>[^}]*)\}")


def env_example() -> dict[str, str]:
    """The variables of ``.env.example``."""
    lines = (COMPOSE / ".env.example").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def variables(name: str) -> set[str]:
    """The variables a compose file uses."""
    return {found["name"] for found in VARIABLE.finditer((COMPOSE / name).read_text(encoding="utf-8"))}


def compose_file(name: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A compose file with its variables filled in from the environment (``.env.example`` by default)."""
    values = env_example() if environment is None else environment
    document: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text(encoding="utf-8"))
    filled: dict[str, Any] = _filled(document, values)
    return filled


def _filled(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(part, environment) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, environment) for part in value]
    if not isinstance(value, str):
        return value
    return VARIABLE.sub(lambda found: _one(found, environment), value)


def _one(found: re.Match[str], environment: Mapping[str, str]) -> str:
    value, how = environment.get(found["name"]), found["how"] or ""
    if value is None or (not value and ":" in how):
        if how.endswith("?"):
            raise KeyError(f"{found['name']}: {found['rest']}")
        return found["rest"] if how.endswith("-") else ""
    return value


def service_environment(
    file: str, service: str, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What a service's process finds in its environment."""
    found = compose_file(file, environment)["services"][service]["environment"]
    return {name: str(value) for name, value in found.items()}
