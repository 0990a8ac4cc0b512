"""The registry's settings in a file of their own, for those who use the registry and no workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidesink.config.checks import registry_auth_problems
from tidesink.config.interpolate import Interpolated
from tidesink.config.load import read_yaml
from tidesink.config.problems import Problem, problems_of
from tidesink.config.source import RegistrySettings, registry_section
from tidesink.errors import ConfigError


def load_registry_settings(path: str | Path) -> RegistrySettings:
    """The settings in a YAML file: the same members as ``source.schema-registry`` in a config.

    Raises:
        ConfigError: the file cannot be read, or settings are wrong; the message lists all of them.
    """
    file = Path(path)
    found = Interpolated(read_yaml(file), base=file.resolve().parent)
    problems = list(found.problems)
    settings = _validated(found.data, file, problems)
    if settings is None or problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ConfigError(f"these settings of a registry are wrong:\n{listed}", file=str(file))
    return settings


def _validated(data: Any, file: Path, problems: list[Problem]) -> RegistrySettings | None:
    if not isinstance(data, dict):
        problems.append(Problem("(file)", "is no mapping of settings", "write urls: http://host:port"))
        return None
    context = {"base": file.resolve().parent}
    try:
        settings = RegistrySettings.model_validate(registry_section(data), context=context)
    except ValidationError as error:
        # A secret may stand anywhere in it: no value is repeated.
        problems += problems_of(error, RegistrySettings, hidden=lambda _field: True)
        return None
    problems += registry_auth_problems(settings, "registry")
    return settings
