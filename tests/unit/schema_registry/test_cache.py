"""Answers are remembered as long as they are good."""

from __future__ import annotations

from tidesink.schema_registry.client import TtlCache


def test_a_value_is_forgotten_after_its_time() -> None:
    now = [100.0]
    cache: TtlCache[str, int] = TtlCache(30, clock=lambda: now[0])
    assert cache.get("a") is None
    assert cache.put("a", 1) == 1
    now[0] = 129.9
    assert cache.get("a") == 1
    now[0] = 130.0
    assert cache.get("a") is None
    cache.put("a", 2)
    assert cache.get("a") == 2


def test_without_a_limit_a_value_stays() -> None:
    now = [0.0]
    cache: TtlCache[int, str] = TtlCache(None, clock=lambda: now[0])
    cache.put(1, "x")
    now[0] = 1e12
    assert cache.get(1) == "x"


def test_forget_drops_one_value() -> None:
    cache: TtlCache[int, str] = TtlCache(None)
    cache.put(1, "x")
    cache.put(2, "y")
    cache.forget(1)
    cache.forget(3)
    assert (cache.get(1), cache.get(2)) == (None, "y")
