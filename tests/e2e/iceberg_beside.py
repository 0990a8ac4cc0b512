"""What is read of Iceberg tables beside a worker, without a catalog."""

from __future__ import annotations

from pathlib import Path


def newest_metadata(table: Path) -> str:
    """The newest metadata file of a table in a catalog that is a folder."""
    version = (table / "metadata" / "version-hint.text").read_text(encoding="utf-8").strip()
    return str(table / "metadata" / f"v{version}.metadata.json")
