"""The pictures of the documentation are what their texts say, and the rooms what imports are held to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.unit.repository.test_imports import FLOORS

ROOT: Final = Path(__file__).resolve().parents[3]
PICTURES: Final = ROOT / "docs" / "pictures"


def test_the_pictures_are_generated() -> None:
    command = [sys.executable, "scripts/generate_pictures.py", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert len([*PICTURES.glob("*.svg")]) == len([*PICTURES.glob("*.txt")]) == 3


def test_the_rooms_are_in_the_order_of_imports() -> None:
    boxes = re.findall(r"box: ([a-z_, ]+?) ::", (PICTURES / "rooms.txt").read_text("utf-8"))
    shown = [room for box in boxes for room in box.split(", ")]
    folders = {
        path.name for path in (ROOT / "tidesink" / "sinks").iterdir() if (path / "__init__.py").exists()
    }
    assert set(shown) >= folders
    order = [room for floor in reversed(FLOORS) for room in floor]
    rooms = [room for room in shown if room in order]
    assert rooms == sorted(rooms, key=lambda room: [room in floor for floor in reversed(FLOORS)].index(True))
    assert {*order} - {*rooms} <= {"sinks", "control", "kafka_client"}


def test_every_picture_is_shown_somewhere() -> None:
    pages = "".join(path.read_text("utf-8") for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
    assert all(f"pictures/{path.name})" in pages for path in PICTURES.glob("*.svg"))
