"""Names and texts keep their meaning in SQL and in paths."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidesink.sinks.targets.sharing import path_segment, quote_identifier, quote_path, quote_text


def test_backquotes_are_doubled() -> None:
    assert quote_identifier("a`b.c") == "`a``b.c`"
    assert quote_path("t", "a.b", "`") == "`t`.`a.b`.````"


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        quote_identifier("")


@given(st.text())
@example(":0000")
def test_a_text_is_one_literal(text: str) -> None:
    quoted = quote_text(text)
    inside = quoted[1:-1]
    assert (quoted[0], quoted[-1]) == ("'", "'")
    assert re.fullmatch(r"([A-Za-z0-9 ]|\\u[0-9a-f]{4}|\\U[0-9a-f]{8})*", inside)
    escape = r"\\U([0-9a-f]{8})|\\u([0-9a-f]{4})"
    assert re.sub(escape, lambda found: chr(int(found[1] or found[2], 16)), inside) == text


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_names_have_different_segments(one: str, other: str) -> None:
    assert (path_segment(one) == path_segment(other)) == (one == other)


@given(st.text(min_size=1))
def test_a_segment_is_one_visible_folder(name: str) -> None:
    segment = path_segment(name)
    assert "/" not in segment
    assert "\\" not in segment
    assert segment[0] not in "._"


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("orders", "orders"),
        ("größe_1", "größe_1"),
        ("a.b", "a.b"),
        ("..", "~2e."),
        ("_x", "~5fx"),
        ("a/b~c d", "a~2fb~7ec~20d"),
    ],
)
def test_segments(name: str, segment: str) -> None:
    assert path_segment(name) == segment
