"""The English of docstrings, comments, messages and pages: turns of phrase that make readers stumble."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.prose import READ, ROOT, count, sentences

MOST: float = 5.0


def test_readers_stumble_seldom(record_property: Callable[[str, object], None]) -> None:
    counted = count(ROOT / name for name in READ)
    record_property("stumbles per 100 sentences", f"{counted.figure:.1f}")
    assert counted.sentences > 10_000
    assert counted.figure <= MOST, "run `python -m tests.prose -v` to see each place"


def test_the_count_sees_docstrings_comments_messages_and_pages(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    lines = (
        '"""Whether it rains today."""',
        "# The sun alone shines.",
        'raise ValueError("the rain goes on and on")',
    )
    module.write_text("\n".join(lines))
    page = tmp_path / "page.md"
    page.write_text("The rain is gone now.\n\n```\nthe code is gone now\n```\n")
    counted = count([module, page])
    assert sorted(hit.sentence for hit in counted.hits) == [
        "The rain is gone now.",
        "The sun alone shines.",
        "Whether it rains today.",
        "the rain goes on and on",
    ]
    assert [*sentences("One two. One two three, `is none`.")] == ["One two three, X."]
