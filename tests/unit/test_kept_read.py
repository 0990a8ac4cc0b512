"""A read that several tables share and that fails: who waited for it hears of it and does not wait again."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.surroundings import no_fetch
from tests.watched_lock import WatchedLock
from tidesink.errors import SourceUnavailableError
from tidesink.sinks.batch.shared_reads import KeptRead
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.offsets import OffsetRange, RecordSize

RANGES = (OffsetRange("t", 0, 0, 9),)
_SESSION = cast("Any", None)
TABLES = cast("Any", SimpleNamespace(known=lambda: ()))


class _Silent(KafkaSource):
    """Kafka, which says after a while that it does not answer."""

    def __init__(self) -> None:
        super().__init__(no_fetch)
        self.asked = 0
        self.begun, self.gives_up = threading.Event(), threading.Event()

    def over(self, *_asked: Any) -> Any:
        self.asked += 1
        self.begun.set()
        assert self.gives_up.wait(240)
        raise SourceUnavailableError("silence")


class _Asking(threading.Thread):
    """A table that asks for the records."""

    def __init__(self, kept: KeptRead) -> None:
        super().__init__(daemon=True)
        self._kept = kept
        self.heard: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._kept.frame(_SESSION)
        except SourceUnavailableError as exc:
            self.heard = exc


def test_a_read_that_fails_fails_for_all_who_waited() -> None:
    source = _Silent()
    kept = KeptRead(source, TABLES, RANGES, "topic id", RecordSize())
    kept._lock = lock = cast("Any", WatchedLock())
    first = _Asking(kept)
    assert source.begun.wait(240)
    others = [_Asking(kept) for _ in range(3)]
    lock.wait_for(1 + len(others))  # they wait for the first one's answer
    assert all(other.is_alive() for other in others)
    source.gives_up.set()
    for thread in (first, *others):
        thread.join(240)
    assert source.asked == 1
    assert all(isinstance(thread.heard, SourceUnavailableError) for thread in (first, *others))
    with pytest.raises(SourceUnavailableError):
        kept.frame(_SESSION)
    assert source.asked == 2
