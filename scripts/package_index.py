"""The package index that pip would use, for a Python without pip; uses only the standard library."""

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
# pip's module with its default index, and the pattern of that default.
MODULE = "pip/_internal/models/index.py"
DEFAULT = re.compile(r'^PyPI = PackageIndex\(\s*"([^"]+)"', re.MULTILINE)


def index() -> str:
    """Returns the address of the package index, without a trailing slash."""
    found = os.environ.get("PIP_INDEX_URL") or configured() or next(defaults(), None)
    if not found:
        raise SystemExit("No package index is configured. Set PIP_INDEX_URL.")
    return found.rstrip("/")


def configured() -> str | None:
    """Returns the index in pip's config files; later files take precedence, as in pip."""
    parser = configparser.ConfigParser(interpolation=None)
    own = os.environ.get("PIP_CONFIG_FILE")
    parser.read([*(Path(name).expanduser() for name in CONFIG_FILES), *([own] if own else [])])
    return parser.get("global", "index-url", fallback=None)


def defaults() -> Iterator[str]:
    """Yields the default index of each pip on this machine, installed or as a wheel."""
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
    """Yields the index named in the text of pip's module."""
    for found in DEFAULT.finditer(module):
        yield urllib.parse.urljoin(found[1], "simple")
