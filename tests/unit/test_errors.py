"""What errors say of themselves."""

from __future__ import annotations

from tidesink.errors import SourceError, error_text


class _CutOffError(Exception):
    def __str__(self) -> str:
        raise ConnectionError("the other process has ended")


def test_an_error_is_told_by_its_class_and_text() -> None:
    assert error_text(SourceError("no answer", topic="shop")) == "SourceError: shop: no answer"


def test_an_error_that_cannot_say_its_text_is_told_by_its_class() -> None:
    assert error_text(_CutOffError()).startswith("_CutOffError: The message is lost")
