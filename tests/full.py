"""Which tests run with every change, and which in ``make test-all`` alone.

A test marked ``full`` shows again what another test shows: another capture, another seed, another target over
the same code. ``make test`` leaves it out; ``TIDESINK_TEST_ALL=1`` (``make test-all``) runs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

from tidesink.config.targets import TargetFeature

FULL: Final = pytest.mark.full
TEST_ALL: Final = bool(os.environ.get("TIDESINK_TEST_ALL"))


# The parameters and fixtures that take a target's name.
_TARGET: Final = ("bed", "sql", "place", "bank_run", "kind", "server", "kept")


def each(kinds: Iterable[object], *, full: Iterable[object]) -> list[Any]:
    """Parameters of a fixture or a test with every kind in turn, some of them in ``make test-all`` alone."""
    others = {*full}
    return [pytest.param(kind, marks=FULL if kind in others else ()) for kind in kinds]


def quick_on(*beds: str) -> pytest.MarkDecorator:
    """A mark for a module or a test with a parameter that names its target (``_TARGET``).

    ``make test`` runs it on these targets, ``make test-all`` on all. A test's mark replaces its module's.
    """
    return pytest.mark.quick_on(*beds)


def needs(feature: TargetFeature) -> pytest.MarkDecorator:
    """A mark for a module, a test or a parameter: on targets without the feature it is skipped."""
    return pytest.mark.needs(feature)


def is_full(item: pytest.Item) -> bool:
    """Whether a test is for ``make test-all`` alone."""
    if item.get_closest_marker("full") is not None:
        return True
    quick = item.get_closest_marker("quick_on")
    call = getattr(item, "callspec", None)
    if quick is None or call is None:
        return False
    return not {call.params[name] for name in _TARGET if name in call.params} <= {*quick.args}
