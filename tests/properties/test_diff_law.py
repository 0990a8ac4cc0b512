"""The law of ``tidesink diff``, in a model: no false alarm while both sides change, and each fault is found.

A source commits versions of a row, each other than those before. Each is sent within ``LAG`` steps, and a
worker applies what was sent in its order. A look reads the source, lets ``LAG`` steps go by, takes note of
where the topic ends, and reads the target once all before that is applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.diff_law import Candidate, Version, first_look, next_look
from tidesink.sinks.worker.diff import LOOKS

LAG: Final = 3
_STEPS: Final = st.lists(st.sampled_from(("write", "delete", "send", "apply", "rest")), max_size=6)


@dataclass
class World:
    """One key. ``lag``: what the look waits for; less than ``LAG`` breaks its condition. ``loses``: versions
    that never come to the target."""

    lag: int = LAG
    loses: frozenset[int] = frozenset()
    now: int = 0
    source: Version = None
    target: Version = None
    written: int = 0
    # Versions with the moment of their commit, those that were sent, and how many of them are applied.
    late: list[tuple[int, Version]] = field(default_factory=list)
    topic: list[Version] = field(default_factory=list)
    applied: int = 0

    def step(self, name: str) -> None:
        """One thing happens, and time goes on; what is too late to wait is sent."""
        if name in ("write", "delete"):
            self.written += 1
            self.source = self.written if name == "write" else None
            self.late.append((self.now, self.source))
        elif name == "send" and self.late:
            self._send()
        elif name == "apply":
            self._apply()
        self.now += 1
        while self.late and self.now - self.late[0][0] >= LAG:
            self._send()

    def _send(self) -> None:
        self.topic.append(self.late.pop(0)[1])

    def _apply(self) -> None:
        if self.applied < len(self.topic):
            version = self.topic[self.applied]
            self.applied += 1
            if version not in self.loses:
                self.target = version

    def look(self, meanwhile: list[list[str]]) -> tuple[Version, Version]:
        """A look; what happens between its parts is given."""
        s = self.source
        for name in meanwhile[0]:
            self.step(name)
        for _ in range(self.lag):
            self.step("rest")
        end = len(self.topic)
        for name in meanwhile[1]:
            self.step(name)
        while self.applied < end:
            self._apply()
        return s, self.target


def _differs(world: World, before: list[str], looks: list[list[list[str]]]) -> Candidate | None:
    """What the looks find; None: the key is equal."""
    for name in before:
        world.step(name)
    found = first_look(*world.look(looks[0]))
    for meanwhile in looks[1:]:
        if found is None:
            return None
        for name in meanwhile[2]:
            world.step(name)
        found = next_look(found, *world.look(meanwhile))
    return found


_LOOKS: Final = st.lists(st.lists(_STEPS, min_size=3, max_size=3), min_size=2, max_size=6)


@settings(max_examples=500)
@given(_STEPS, _LOOKS)
def test_no_false_alarm(before: list[str], looks: list[list[list[str]]]) -> None:
    """One look that agrees is enough where no version comes twice; ``LOOKS`` is more."""
    found = _differs(World(), before, looks)
    assert found is None or found.agreed == 0
    assert LOOKS >= 1


@settings(max_examples=200)
@given(_STEPS, st.lists(st.lists(_STEPS, min_size=3, max_size=3), min_size=LOOKS + 1, max_size=LOOKS + 1))
def test_a_fault_is_found_once_the_row_rests(before: list[str], looks: list[list[list[str]]]) -> None:
    world = World()
    for name in ("write", *before):
        world.step(name)
    quiet = [[["rest"] for _ in part] for part in looks]
    for _ in range(LAG):
        world.step("rest")
    while world.applied < len(world.topic):
        world.step("apply")
    world.target = -1
    found = _differs(world, [], quiet)
    assert found is not None
    assert found.agreed == LOOKS


def test_a_topic_that_is_later_than_the_lag_gives_a_false_alarm() -> None:
    """Guards the first test: the model can fail."""
    nothing: list[list[str]] = [[], [], []]
    world = World(lag=0)
    with pytest.raises(AssertionError):
        assert _differs(world, ["write"], [nothing, nothing, nothing]) is None
    assert _differs(World(), ["write"], [nothing, nothing, nothing]) is None
