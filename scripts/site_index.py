"""A hook of MkDocs: README, CONTRIBUTING and CHANGELOG become pages of the site, with links that fit it."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"\]\((?!https?:|#)(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are files of the repository's root."""
    for page, name in PAGES.items():
        text = LINK.sub(lambda link: _link(link, config), (ROOT / name).read_text("utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, config: MkDocsConfig, **_page: object) -> str:
    """Have links to files that are no pages lead to the repository."""
    return re.sub(r"\]\(\.\./(?=(?:tidesink|tests|scripts)/)", f"]({config.repo_url}/blob/main/", markdown)


def _link(link: re.Match[str], config: MkDocsConfig) -> str:
    """A link of the root, as the site has it: to a page, or to the repository."""
    path, anchor = link["path"], link["anchor"] or ""
    page = next((page for page, name in PAGES.items() if name == path), None)
    page = path.removeprefix("docs/") if path.startswith("docs/") else page
    return f"]({page or f'{config.repo_url}/blob/main/{path}'}{anchor})"
