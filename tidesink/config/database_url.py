"""Databases that settings name by SQLAlchemy's URLs."""

from __future__ import annotations

from collections.abc import Iterator

from tidesink.config.problems import Problem


def database_url_problems(
    place: str, url: str, *, remedy: str, no_url: str = "is no SQLAlchemy URL"
) -> Iterator[Problem]:
    """A URL's database is one that SQLAlchemy knows, where it is installed; nothing is connected to.

    ``place`` is the setting's; the URL itself is never shown.
    """
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError:
        return
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # ValueError: of the port
        yield Problem(place, no_url, remedy)
        return
    try:
        parsed.get_dialect()
    except (NoSuchModuleError, ImportError):
        yield Problem(place, f"SQLAlchemy knows no database {parsed.drivername}", remedy)
