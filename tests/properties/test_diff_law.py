"""The law of ``tidesink diff``, in a model: no false alarm while both sides change, and each fault is found.

A source commits versions of a row, each other than those before. Each is sent within ``LAG`` steps, and a
worker applies what was sent in its order. A look reads the source, lets ``LAG`` steps go by, takes note of
where the topic ends, and reads the target once all before that is applied. Of two copies each follows a topic
of its own; a look lets ``LAG`` steps go by, and reads both once each has applied what its topic held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.diff_law import Candidate, Version, first_look, next_look
from tidesink.sinks.diff.comparison import LOOKS

LAG: Final = 3
_STEPS: Final = st.lists(st.sampled_from(("write", "delete", "send", "apply", "rest")), max_size=6)


@dataclass
class Feed:
    """A topic of the key's changes, and the copy that follows it."""

    target: Version = None
    # Versions with the moment of their commit, those that were sent, and how many of them are applied.
    late: list[tuple[int, Version]] = field(default_factory=list)
    topic: list[Version] = field(default_factory=list)
    applied: int = 0

    def send(self) -> None:
        """Send the oldest version that is not."""
        if self.late:
            self.topic.append(self.late.pop(0)[1])

    def apply(self) -> None:
        """Apply the next one."""
        if self.applied < len(self.topic):
            self.target = self.topic[self.applied]
            self.applied += 1

    def apply_up_to(self, end: int) -> None:
        """Apply all before an end of the topic."""
        while self.applied < end:
            self.apply()


@dataclass
class World:
    """One key, and ``copies`` of it. ``lag``: what a look waits for; less than ``LAG`` breaks its condition.
    ``waited``: so many copies are waited for."""

    lag: int = LAG
    copies: int = 1
    waited: int = 2
    now: int = 0
    source: Version = None
    written: int = 0
    feeds: list[Feed] = field(init=False)

    def __post_init__(self) -> None:
        self.feeds = [Feed() for _ in range(self.copies)]

    def step(self, name: str) -> None:
        """One thing happens, and time goes on; what is too late to wait is sent."""
        word, _, other = name.partition(" ")
        feed = self.feeds[-1 if other else 0]
        if word in ("write", "delete"):
            self.written += 1
            self.source = self.written if word == "write" else None
            for one in self.feeds:
                one.late.append((self.now, self.source))
        elif word == "send":
            feed.send()
        elif word == "apply":
            feed.apply()
        self.now += 1
        for one in self.feeds:
            while one.late and self.now - one.late[0][0] >= LAG:
                one.send()

    def look(self, meanwhile: list[list[str]]) -> tuple[Version, Version]:
        """A look; what happens between its parts is given."""
        s = self.source
        self._happen(meanwhile[0])
        self._await(meanwhile[1])
        return s, self.feeds[0].target

    def look_at_copies(self, meanwhile: list[list[str]]) -> tuple[Version, Version]:
        """A look at two copies: the other one, and the target."""
        self._await(meanwhile[0])
        s = self.feeds[1].target
        self._happen(meanwhile[1])
        return s, self.feeds[0].target

    def _await(self, meanwhile: list[str]) -> None:
        self._happen(["rest"] * self.lag)
        ends = [len(one.topic) for one in self.feeds]
        self._happen(meanwhile)
        for one, end in [*zip(self.feeds, ends, strict=True)][: self.waited]:
            one.apply_up_to(end)

    def _happen(self, names: list[str]) -> None:
        for name in names:
            self.step(name)


def _differs(world: World, before: list[str], looks: list[list[list[str]]]) -> Candidate | None:
    """What the looks find; None: the key is equal."""
    look = world.look if world.copies == 1 else world.look_at_copies
    for name in before:
        world.step(name)
    found = first_look(*look(looks[0]))
    for meanwhile in looks[1:]:
        if found is None:
            return None
        for name in meanwhile[2]:
            world.step(name)
        found = next_look(found, *look(meanwhile))
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
    (feed,) = world.feeds
    feed.apply_up_to(len(feed.topic))
    feed.target = -1
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


_OF_TWO: Final = st.lists(
    st.sampled_from(("write", "delete", "send", "apply", "send other", "apply other", "rest")), max_size=6
)
_LOOKS_AT_TWO: Final = st.lists(st.lists(_OF_TWO, min_size=3, max_size=3), min_size=2, max_size=6)


@settings(max_examples=500)
@given(_OF_TWO, _LOOKS_AT_TWO)
def test_no_false_alarm_of_two_copies(before: list[str], looks: list[list[list[str]]]) -> None:
    found = _differs(World(copies=2), before, looks)
    assert found is None or found.agreed == 0


@settings(max_examples=200)
@given(_OF_TWO)
def test_a_fault_of_either_copy_is_found(before: list[str]) -> None:
    quiet: list[list[list[str]]] = [[[], [], []] for _ in range(LOOKS + 1)]
    for wrong in (0, 1):
        world = World(copies=2)
        for name in ("write", *before, *["rest"] * LAG):
            world.step(name)
        for feed in world.feeds:
            feed.apply_up_to(len(feed.topic))
        world.feeds[wrong].target = -1
        found = _differs(world, [], quiet)
        assert found is not None
        assert found.agreed == LOOKS


def test_a_copy_that_is_not_waited_for_gives_a_false_alarm() -> None:
    """Guards the test of two copies: the model can fail, where either condition is broken."""
    nothing: list[list[list[str]]] = [[[], [], []]] * 3
    begun = ["write", "send", "apply", "send other"]
    broken = _differs(World(copies=2, waited=1), begun, nothing)
    assert broken is not None
    assert broken.agreed == LOOKS
    assert _differs(World(copies=2), begun, nothing) is None
    late = _differs(World(copies=2, lag=0), ["write", "send"], nothing)
    assert late is not None
