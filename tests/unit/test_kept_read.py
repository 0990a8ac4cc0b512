"""A read that several tables share and that fails: who waited for it hears of it and does not wait anew."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from tidesink.errors import SourceUnavailableError
from tidesink.sinks.kept_read_spark import KeptRead
from tidesink.sinks.ranges import OffsetRange, RecordSize
from tidesink.sinks.source import KafkaSource

RANGES = (OffsetRange("t", 0, 0, 9),)


class _Silent(KafkaSource):
    """Kafka, which says after a while that it does not answer."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked = 0
        self.begun, self.gives_up = threading.Event(), threading.Event()

    def frame(self, _session: Any, _ranges: Any) -> Any:
        self.asked += 1
        self.begun.set()
        assert self.gives_up.wait(20)
        raise SourceUnavailableError("silence")


class _Asking(threading.Thread):
    """A table that asks for the records."""

    def __init__(self, kept: KeptRead) -> None:
        super().__init__(daemon=True)
        self._kept = kept
        self.heard: Exception | None = None
        self.asks = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self._kept.records(_session(self.asks))
        except SourceUnavailableError as exc:
            self.heard = exc


def _session(asks: threading.Event | None = None) -> Any:
    if asks is not None:
        asks.set()
    return cast("Any", None)


def test_a_read_that_fails_fails_for_all_who_waited() -> None:
    source = _Silent()
    kept = KeptRead(source, cast("Any", None), RANGES, RecordSize())
    first = _Asking(kept)
    assert source.begun.wait(20)
    others = [_Asking(kept) for _ in range(3)]
    for other in others:
        assert other.asks.wait(20)
        other.join(0.1)  # it waits for the first one's answer
        assert other.is_alive()
    source.gives_up.set()
    for thread in (first, *others):
        thread.join(20)
    assert source.asked == 1
    assert all(isinstance(thread.heard, SourceUnavailableError) for thread in (first, *others))
    with pytest.raises(SourceUnavailableError):
        kept.records(_session())
    assert source.asked == 2
