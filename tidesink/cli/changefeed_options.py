"""A changefeed on the command line: its sink URI, its file, and which TiCDC runs it."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tidesink.config.changefeed import Changefeed, read_changefeed, read_toml_file
from tidesink.errors import ConfigError


class Producer(str, Enum):
    """Which TiCDC a changefeed runs on."""

    CLASSIC = "classic"
    NEW = "new"


SinkUri = Annotated[
    str | None,
    typer.Option(
        "--sink-uri",
        envvar="TIDESINK_SINK_URI",
        show_envvar=False,
        help="The changefeed's sink URI; TIDESINK_SINK_URI keeps its passwords out of the shell's history.",
    ),
]
ChangefeedFile = Annotated[Path | None, typer.Option("--changefeed", help="The changefeed's TOML file.")]
ProducerOption = Annotated[
    Producer, typer.Option("--producer", help="Which TiCDC runs it: classic, or the new architecture.")
]
Definitions = Annotated[
    Path | None, typer.Option("--table-definition", help="SQL DDL: tells the tables' keys and indexes.")
]


def changefeed_of(sink_uri: str | None, file: Path | None, producer: Producer) -> Changefeed:
    """The changefeed that a command line describes.

    Raises:
        ConfigError: there is no sink URI, the file cannot be read, or TiCDC refuses the changefeed.
    """
    if sink_uri is None:
        raise ConfigError("a changefeed needs --sink-uri: its brokers, topic and protocol stand in it")
    settings = read_toml_file(file) if file is not None else None
    return read_changefeed(sink_uri, settings, producer=producer.value)
