"""Rates of things that take turns: A B A B …, so that what else runs on the machine hurts all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Turn = Callable[[], object]
Seconds = Mapping[str, list[float]]


def take_turns(
    turns: Mapping[str, Turn],
    *,
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Seconds:
    """Seconds of each turn in each round by ``clock``; the first ``warm_up`` rounds do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(warm_up + rounds):
        for name, turn in turns.items():
            began = clock()
            turn()
            if number >= warm_up:
                seconds[name].append(clock() - began)
    return seconds


def rates(seconds: Seconds, events: int) -> dict[str, float]:
    """Events a second by each one's median."""
    return {name: events / statistics.median(taken) for name, taken in seconds.items()}


def ratio(seconds: Seconds, name: str, to: str) -> float:
    """How fast ``name`` is as a part of ``to``: the median of the rounds, each a ratio of neighbours."""
    return statistics.median(other / own for own, other in zip(seconds[name], seconds[to], strict=True))
