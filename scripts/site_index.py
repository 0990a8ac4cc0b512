"""An MkDocs hook: README, CONTRIBUTING and CHANGELOG become pages of the site, with adapted links."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"\]\((?!https?:|#)(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are files in the repository's root."""
    for page, name in PAGES.items():
        text = LINK.sub(lambda link: _link(link, config), (ROOT / name).read_text("utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, config: MkDocsConfig, **_page: object) -> str:
    """Points links to files that are not pages to the repository."""
    return re.sub(r"\]\(\.\./(?=(?:tidesink|tests|scripts)/)", f"]({config.repo_url}/blob/main/", markdown)


def _link(link: re.Match[str], config: MkDocsConfig) -> str:
    """Converts a link of the root to the site's form: to a page, or to the repository."""
    path, anchor = link["path"], link["anchor"] or ""
    page = next((page for page, name in PAGES.items() if name == path), None)
    page = path.removeprefix("docs/") if path.startswith("docs/") else page
    return f"]({page or f'{config.repo_url}/blob/main/{path}'}{anchor})"
