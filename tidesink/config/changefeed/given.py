"""What a changefeed was given: the sink URI taken apart, and the changefeed's TOML. Nothing is judged here.

A sink URI holds passwords: neither it nor a value behind a secret's name is ever part of an error.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tidesink.errors import ConfigError

KAFKA_SCHEMES = ("kafka", "kafka+ssl")
_DATABASES = ("mysql", "mysql+ssl", "tidb", "tidb+ssl")


@dataclass(frozen=True)
class Given:
    """The parts of a sink URI and the changefeed's settings. ``parameters`` may hold secrets."""

    scheme: str
    hosts: str
    path: str
    parameters: Mapping[str, str] = field(repr=False)
    settings: Mapping[str, Any] = field(repr=False)

    @property
    def kafka(self) -> bool:
        """Whether the changefeed writes to Kafka."""
        return self.scheme in KAFKA_SCHEMES

    @property
    def database(self) -> bool:
        """Whether it writes to a database of MySQL's kind."""
        return self.scheme in _DATABASES

    @property
    def brokers(self) -> tuple[str, ...]:
        """The bootstrap servers."""
        return tuple(self.hosts.split(","))

    @property
    def topic(self) -> str:
        """The topic in the path."""
        return self.path.strip("/")

    def setting(self, *place: str) -> Any:
        """A setting of the TOML by its place, or None.

        Raises:
            ConfigError: something else than a section stands on the way.
        """
        found: Any = self.settings
        for depth, name in enumerate(place):
            if not isinstance(found, Mapping):
                raise ConfigError(
                    f"changefeed: {'.'.join(place[:depth])} is a section, write it as [section]"
                )
            found = found.get(name)
            if found is None:
                return None
        return found

    @property
    def dispatchers(self) -> list[Mapping[str, Any]]:
        """The rules of ``[sink] dispatchers``.

        Raises:
            ConfigError: it is no list of rules.
        """
        rules = self.setting("sink", "dispatchers") or []
        if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
            raise ConfigError("changefeed: sink.dispatchers is a list: [{matcher = ['shop.*'], …}]")
        return rules


def read_given(sink_uri: str, settings: Mapping[str, Any] | None = None) -> Given:
    """The parts of a sink URI, beside the settings of the changefeed's TOML.

    Raises:
        ConfigError: it is no URI.
    """
    try:
        parts = urlsplit(sink_uri)
    except ValueError as error:
        raise ConfigError("sink-uri is no URI; give kafka://host:port/topic?protocol=…") from error
    if not parts.scheme or not sink_uri[len(parts.scheme) :].startswith("://"):
        raise ConfigError("sink-uri has no scheme; give kafka://host:port/topic?protocol=…")
    # Of a name given twice TiCDC takes the first, and drops a pair with a semicolon.
    pairs = (pair for pair in parse_qsl(parts.query, keep_blank_values=True) if ";" not in pair[0])
    parameters: dict[str, str] = {}
    for name, value in pairs:
        parameters.setdefault(name, value)
    hosts = parts.netloc.rpartition("@")[2]
    return Given(parts.scheme.lower(), hosts, unquote(parts.path), parameters, settings or {})


def read_toml(text: str) -> dict[str, Any]:
    """The settings in a changefeed's TOML.

    Raises:
        ConfigError: it is no TOML; or Python is 3.10 and has no package ``tomli``.
    """
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        toml = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"reading a changefeed's TOML needs the package {name}: pip install {name}"
        ) from error
    try:
        found: dict[str, Any] = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise ConfigError(f"the changefeed's settings are no TOML: {_first_line(error)}") from error
    return found


def read_toml_file(file: Path) -> dict[str, Any]:
    """The settings in a changefeed's file.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{file} cannot be read: {reason}") from error
    try:
        return read_toml(text)
    except ConfigError as error:
        error.with_context(file=str(file))
        raise


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
