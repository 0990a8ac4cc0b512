"""constraints.txt holds together: what one pinned package asks of another, the other's pin meets."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

_FILE = Path(__file__).parents[3] / "constraints.txt"


def _pins() -> dict[str, Version]:
    lines = (line.split("#")[0].strip() for line in _FILE.read_text().splitlines())
    pinned = (Requirement(line) for line in lines if line)
    return {
        canonicalize_name(pin.name): Version(next(iter(pin.specifier)).version)
        for pin in pinned
        if pin.marker is None or pin.marker.evaluate()
    }


def _asked() -> Iterator[tuple[str, Requirement]]:
    """What each installed package asks for, whichever version of it is installed."""
    for distribution in distributions():
        for line in distribution.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield distribution.name, requirement


@pytest.mark.parametrize("name", ["requests", "pyspark", "python-dateutil"])
def test_what_is_asked_of_is_pinned(name: str) -> None:
    assert name in _pins()


def test_no_pin_refuses_what_another_package_asks() -> None:
    pins = _pins()
    refused = [
        f"{asker} asks for {asked}, pinned is {pins[name]}"
        for asker, asked in _asked()
        if (name := canonicalize_name(asked.name)) in pins
        and not asked.specifier.contains(pins[name], prereleases=True)
    ]
    assert refused == []
