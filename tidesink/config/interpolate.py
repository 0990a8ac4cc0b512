"""``${env:NAME}`` and ``${file:path}`` in the config's values: the only place where they are resolved."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tidesink.config.problems import Problem, dotted

_NOTHING: Final = object()
_REFERENCE = re.compile(r"\$\{([^}]*)\}")


class Interpolated:
    """The config's data with references replaced, and where there were any.

    A setting whose references come to nothing counts as not given, and so does a section of nothing
    else: one file can then serve brokers with and without a password.
    """

    def __init__(self, data: Any, *, base: Path, environment: Mapping[str, str] | None = None) -> None:
        self._base = base
        self._environment = os.environ if environment is None else environment
        self.problems: list[Problem] = []
        self.places: set[str] = set()
        self.data = self._walk(data, ())

    def _walk(self, data: Any, place: tuple[str | int, ...]) -> Any:
        if isinstance(data, dict):
            walked = {key: self._walk(value, (*place, key)) for key, value in data.items()}
            kept = {key: value for key, value in walked.items() if value is not _NOTHING}
            return kept if kept or not data else _NOTHING
        if isinstance(data, list):
            return [self._walk(value, (*place, index)) for index, value in enumerate(data)]
        if isinstance(data, str) and "${" in data:
            return self._resolve(data, place)
        return data

    def _resolve(self, text: str, place: tuple[str | int, ...]) -> Any:
        self.places.add(dotted(place))
        return _REFERENCE.sub(lambda found: self._one(found.group(1), place), text) or _NOTHING

    def _one(self, reference: str, place: tuple[str | int, ...]) -> str:
        kind, _, name = reference.partition(":")
        if kind == "env" and name:
            return self._from_environment(name, place)
        if kind == "file" and name:
            return self._from_file(name, place)
        self._refuse(place, f"${{{reference}}} is no reference", "write ${env:NAME} or ${file:path}")
        return ""

    def _from_environment(self, name: str, place: tuple[str | int, ...]) -> str:
        if name not in self._environment:
            self._refuse(place, f"the environment has no {name}", f"set {name} before you start")
        return self._environment.get(name, "")

    def _from_file(self, name: str, place: tuple[str | int, ...]) -> str:
        path = self._base / Path(name).expanduser()
        try:
            # A secret file usually ends in the newline of the editor that wrote it.
            return path.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            self._refuse(place, f"{path} cannot be read: {reason}", "give a readable file")
            return ""

    def _refuse(self, place: tuple[str | int, ...], what: str, remedy: str) -> None:
        self.problems.append(Problem(dotted(place), what, remedy))
