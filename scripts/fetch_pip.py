"""Fetches pip's newest wheel from the package index and prints its path, for a Python without pip.

Uses only the standard library. A wheel of pip is a zip that Python runs: ``python pip.whl/pip install pip``.
"""

from __future__ import annotations

import hashlib
import html
import re
import sys
import urllib.parse
import urllib.request
from pathlib import Path

from package_index import index

# A line of the index's page (PEP 503): the file's address, its hash, and the supported Pythons.
LINK = re.compile(
    r'<a\s[^>]*href="(?P<url>[^"#]*/pip-(?P<version>[0-9.]+)-py3-none-any\.whl)#sha256=(?P<hash>\w+)"[^>]*>'
)
PYTHON = re.compile(r'data-requires-python="[^"]*>=(\d+)\.(\d+)')


def get(url: str) -> bytes:
    """Returns the body of a URL."""
    request = urllib.request.Request(url, headers={"Accept": "text/html"})  # noqa: S310 - the index's own
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return answer.read()


def runs_here(link: str) -> bool:
    """Returns True if a wheel supports this Python."""
    least = PYTHON.search(html.unescape(link))
    return least is None or sys.version_info >= tuple(int(part) for part in least.groups())


def main(folder: Path) -> None:
    """Fetches the newest wheel into the folder and checks it against the index's hash."""
    page = f"{index()}/pip/"
    links = [link for link in LINK.finditer(get(page).decode()) if runs_here(link.group(0))]
    newest = max(links, key=lambda link: [int(part) for part in link["version"].split(".")])
    body = get(urllib.parse.urljoin(page, newest["url"]))
    if hashlib.sha256(body).hexdigest() != newest["hash"]:
        raise SystemExit(f"{newest['url']} does not have the hash of the package index.")
    target = folder / newest["url"].rpartition("/")[2]
    target.write_bytes(body)
    print(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
