"""A registry that lags behind the producer: asked again before an id is called bad, and after."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from tests.lagging_registry import TOPIC, Clock, Follower, text_of
from tidesink.errors import RegistryError, RegistryUnavailableError, StopRequestedError
from tidesink.schema_registry import MemorySchemaRegistry, RegisteredSchema, subject
from tidesink.sinks.decode.writer_schemas import ASK_AGAIN_SECONDS, WriterSchemas, may_lag
from tidesink.sinks.runtime.context import RetryPolicy, StopFlag


def _schemas(
    registry: MemorySchemaRegistry, *, seconds: float = 10, clock: Clock | None = None
) -> WriterSchemas:
    lag = RetryPolicy(seconds, first_pause=0.001, passes=may_lag)
    return WriterSchemas(registry, TOPIC, lag=lag, clock=clock or Clock())


def test_an_id_that_is_new_to_the_registry_is_asked_for_again() -> None:
    registry = Follower(lag=3)
    one = registry.register(subject(TOPIC, "value"), text_of("id"))
    two = registry.register(subject(TOPIC, "value"), text_of("id", "name"))
    schemas = _schemas(registry)
    schemas.look_up({"value": (two,)})
    assert schemas.texts["value"].keys() == {one, two}
    assert schemas.unknown == {}
    assert registry.asked == [two] * 3


def test_an_id_that_stays_unknown_is_called_bad_after_the_time() -> None:
    registry = Follower(lag=10_000)
    schemas = _schemas(registry, seconds=1)
    started = time.monotonic()
    schemas.look_up({"key": (7,), "value": (8, 9)})
    assert time.monotonic() - started > 0.9
    assert schemas.unknown.keys() == {7, 8, 9}
    assert schemas.unknown[8].startswith("The schema registry has no schema id 8")
    assert len(registry.asked) > 3
    # Several ids wait together, not one after the other.
    assert registry.asked[:3] == [7, 8, 9]
    assert not schemas.lacks({"value": (8, 9)})


def test_an_id_called_bad_is_asked_for_again_after_a_while() -> None:
    clock, registry = Clock(), Follower(lag=10_000)
    one = registry.register(subject(TOPIC, "value"), text_of("id"))
    schemas = _schemas(registry, seconds=0, clock=clock)
    schemas.look_up({"value": (one,)})
    assert one in schemas.unknown
    registry.lag = 0
    asked = len(registry.asked)
    clock.now = ASK_AGAIN_SECONDS - 1
    assert not schemas.look_again()
    assert len(registry.asked) == asked
    clock.now = ASK_AGAIN_SECONDS
    assert schemas.look_again()
    assert (schemas.unknown, schemas.texts["value"]) == ({}, {one: text_of("id")})


def test_an_id_that_is_still_unknown_is_left_alone_for_as_long_again() -> None:
    clock, registry = Clock(), Follower(lag=10_000)
    schemas = _schemas(registry, seconds=0, clock=clock)
    schemas.look_up({"value": (9,)})
    clock.now = ASK_AGAIN_SECONDS
    assert not schemas.look_again()
    asked = len(registry.asked)
    clock.now += ASK_AGAIN_SECONDS - 1
    assert not schemas.look_again()
    assert len(registry.asked) == asked
    assert schemas.unknown.keys() == {9}


def test_another_tables_schema_is_an_answer_and_no_lag() -> None:
    registry = Follower(lag=0)
    registry.register(subject(TOPIC, "value"), text_of("id"))
    other = registry.register(subject("shop_other", "value"), text_of("id", name="other"))
    schemas = _schemas(registry)
    schemas.look_up({"value": (other,)})
    assert registry.asked == [other]
    assert "belongs to the Avro record default.shop.other" in schemas.unknown[other]


def test_a_version_that_is_listed_before_it_can_be_had_is_asked_for_again() -> None:
    class Torn(MemorySchemaRegistry):
        asked = 0

        def schema_by_version(self, subject: str, version: int) -> RegisteredSchema:
            self.asked += 1
            return super().schema_by_version(subject, version + (99 if self.asked == 1 else 0))

    registry = Torn()
    one = registry.register(subject(TOPIC, "key"), text_of("id"))
    schemas = _schemas(registry)
    schemas.read_subjects()
    assert schemas.texts["key"].keys() == {one}


def test_a_registry_that_is_down_is_no_lag() -> None:
    class Down(MemorySchemaRegistry):
        def versions(self, subject: str) -> list[int]:
            raise RegistryUnavailableError("down", subject=subject)

    schemas = _schemas(Down())
    with pytest.raises(RegistryUnavailableError):
        schemas.look_up({"value": (1,)})
    assert schemas.unknown == {}


def test_a_stop_ends_the_wait_and_calls_nothing_bad() -> None:
    stop = StopFlag()
    lag = RetryPolicy(60, stop=stop, first_pause=30, passes=may_lag)
    schemas = WriterSchemas(Follower(lag=10_000), TOPIC, lag=lag)
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(StopRequestedError):
        schemas.look_up({"value": (1,)})
    assert schemas.unknown == {}


class _Restored:
    """A registry with one schema, until another state of it is restored from a backup."""

    def __init__(self, *columns: str) -> None:
        self.restore(*columns)

    def restore(self, *columns: str) -> None:
        self._state = MemorySchemaRegistry()
        self._state.register(subject(TOPIC, "value"), text_of(*columns))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def test_an_id_that_is_given_to_another_schema_is_noticed() -> None:
    registry = _Restored("id")
    schemas = _schemas(cast("Any", registry))
    schemas.read_subjects()
    registry.restore("id", "other")
    with pytest.raises(RegistryError, match="a different schema under id 1 than when the worker started"):
        schemas.read_subjects()
