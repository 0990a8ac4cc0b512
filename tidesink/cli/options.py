"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidesink.config import Config, load_config

DEFAULT_CONFIG = Path("tidesink.yaml")

ConfigArgument = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="The config file; tidesink.yaml if not given.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="TIDESINK_CONFIG", help="The config file, as an option."),
]


def config_path(argument: Path | None, option: Path | None) -> Path:
    """Which config file is meant."""
    return argument or option or DEFAULT_CONFIG


def chosen_config(argument: Path | None, option: Path | None) -> Config:
    """The config that a command was given.

    Raises:
        ConfigError: it cannot be read, or is wrong; all problems are listed.
    """
    return load_config(config_path(argument, option))
