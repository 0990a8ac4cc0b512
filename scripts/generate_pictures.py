"""Writes docs/pictures/*.svg from the texts in the same folder; with --check, only compares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from picture_svg import drawn

PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"


def main() -> int:
    """Writes or compares the pictures; returns 1 if a picture does not match its text."""
    found = {path.with_suffix(".svg"): drawn(path.read_text("utf-8")) for path in PICTURES.glob("*.txt")}
    stale = [path for path, text in found.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if "--check" in sys.argv[1:]:
            print(f"{path.name} does not match its text: run `make docs`", file=sys.stderr)
        else:
            path.write_text(found[path], encoding="utf-8")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
