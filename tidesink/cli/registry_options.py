"""What the commands of ``tidesink registry`` share: which registry is meant, and its options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tidesink.cli import sources
from tidesink.cli.capture import json_lines
from tidesink.config import Config, load_config
from tidesink.config.load import load_registry_settings
from tidesink.errors import ConfigError, RegistryError
from tidesink.schema_registry import SchemaRegistry, open_registry
from tidesink.schema_registry.copy import SubjectEntry, entries_of, memory_registry

Url = sources.RegistryUrl
SettingsFile = sources.RegistryFile
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Take the registry of a config file's source.")
]
Export = Annotated[
    Path | None,
    typer.Option("--schemas", help="A file of `tidesink registry export`, in place of a registry."),
]
Patterns = Annotated[
    list[str] | None, typer.Argument(metavar="[SUBJECT]...", help="Subjects, or patterns such as shop_*.")
]

_EXPORT_LINES = "a file of tidesink registry export: JSON Lines, one version of a subject a line"


class Place(NamedTuple):
    """How the command line says which registry is meant."""

    url: str | None
    file: Path | None
    config: Path | None
    schemas: Path | None = None


class Opened(NamedTuple):
    """A registry; ``live``: it can be asked, and is no file."""

    registry: SchemaRegistry
    live: bool
    name: str
    config: Config | None


@contextmanager
def opened(place: Place) -> Iterator[Opened]:
    """The registry of a command, closed afterwards.

    Raises:
        ConfigError: none is given, several are, or its settings are wrong.
    """
    found = _open(place)
    try:
        yield found
    finally:
        found.registry.close()


def any_given(place: Place) -> bool:
    """Whether a registry is named, a config's aside."""
    return any(part is not None for part in (place.url, place.file, place.schemas))


def _open(place: Place) -> Opened:
    given = {
        "--schema-registry": place.url,
        "--registry-file": place.file,
        "--schemas": place.schemas,
    }
    several = [name for name, value in given.items() if value is not None]
    if len(several) > 1:
        raise ConfigError(f"{' and '.join(several)} exclude each other: keep one")
    config = load_config(place.config) if place.config else None
    if place.schemas is not None:
        name = place.schemas.name
        return Opened(memory_registry(read_export(place.schemas), name=name), False, name, config)
    registry = _live(place, config)
    return Opened(registry, True, str(getattr(registry, "urls", ("memory",))[0]), config)


def _live(place: Place, config: Config | None) -> SchemaRegistry:
    if place.url is not None:
        return open_registry(place.url)
    if place.file is not None:
        return load_registry_settings(place.file).open()
    if config is not None:
        return config.source.open_registry()
    raise ConfigError("which registry? Give --schema-registry URL, --registry-file FILE or --config FILE")


def read_export(file: Path) -> tuple[SubjectEntry, ...]:
    """The subjects of an export file.

    Raises:
        ConfigError: it cannot be read, or holds no subjects.
    """
    try:
        found = entries_of(json_lines(str(file), form=_EXPORT_LINES), name=file.name)
    except RegistryError as error:
        raise ConfigError(error.message, **error.context) from error
    if not found:
        raise ConfigError(f"{file} holds no subjects: tidesink registry export writes such a file")
    return found
