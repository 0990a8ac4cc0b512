"""The package index that pip would ask, for a Python that has no pip. Standard library alone."""

from __future__ import annotations

import configparser
import os
import re
import sys
import sysconfig
import urllib.parse
import zipfile
from collections.abc import Iterator
from pathlib import Path

CONFIG_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
# Where pip says its default, and how.
MODULE = "pip/_internal/models/index.py"
DEFAULT = re.compile(r'^PyPI = PackageIndex\(\s*"([^"]+)"', re.MULTILINE)


def index() -> str:
    """The address of the package index, without a slash at its end."""
    found = os.environ.get("PIP_INDEX_URL") or configured() or next(defaults(), None)
    if not found:
        raise SystemExit("no package index is known here: set PIP_INDEX_URL")
    return found.rstrip("/")


def configured() -> str | None:
    """The index in pip's config files; the later file counts, as for pip."""
    parser = configparser.ConfigParser(interpolation=None)
    own = os.environ.get("PIP_CONFIG_FILE")
    parser.read([*(Path(name).expanduser() for name in CONFIG_FILES), *([own] if own else [])])
    return parser.get("global", "index-url", fallback=None)


def defaults() -> Iterator[str]:
    """The default index of each pip on this machine, installed or as a wheel."""
    library = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})
    for folder in (library, "/usr/lib/python3/dist-packages"):
        module = Path(folder, MODULE)
        if module.is_file():
            yield from default_in(module.read_text(encoding="utf-8"))
    bundled = Path(sysconfig.get_path("stdlib"), "ensurepip", "_bundled")
    for wheels in (bundled, Path(os.environ.get("PYTHON_WHEELS", "/usr/share/python-wheels"))):
        for wheel in sorted(wheels.glob("pip-*.whl")):
            with zipfile.ZipFile(wheel) as files:
                yield from default_in(files.read(MODULE).decode())


def default_in(module: str) -> Iterator[str]:
    """The index that the text of pip's module names."""
    for found in DEFAULT.finditer(module):
        yield urllib.parse.urljoin(found[1], "simple")
