"""What the demo shows while it works: a line a step, and on a terminal what goes on right now."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from tidesink.dev.workload import WorkloadReport
from tidesink.sinks.listener import BatchApplied, BatchStarted, StepRetried, WorkerEvent


class DemoSteps:
    """Lines on stderr with the seconds since the start; a spinner where a person looks.

    A listener of the worker as well: it counts the records applied so far. Its methods may be called from
    several threads.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._records = 0
        self._applied = 0
        self._status = Status("the demo starts", console=console) if console.is_terminal else None

    def shown(self) -> AbstractContextManager[object]:
        """Where a terminal is there, shows the spinner while the context is open."""
        return self._status if self._status is not None else nullcontext()

    def say(self, text: str) -> None:
        """Tell that something begins."""
        seconds = time.monotonic() - self._started
        self._console.print(f"[dim]{seconds:6.1f} s[/dim]  {escape(text)}", soft_wrap=True)
        self._now(text)

    def written(self, workload: WorkloadReport) -> None:
        """Take note of how many records there are to apply."""
        self._records = sum(workload.by_topic.values())
        self.say(
            f"workload: {self._records:,} records in {len(workload.by_topic)} topics, "
            f"{workload.resent:,} of them sent again as after a restart of the changefeed"
        )

    def hear(self, event: WorkerEvent) -> None:
        """Show where the worker is."""
        with self._lock:
            if isinstance(event, BatchStarted):
                self._now(f"worker: {event.table} batch {event.batch}, {event.records:,} records")
            elif isinstance(event, BatchApplied):
                self._applied += event.account.read
                of = f"{self._applied:,} of {self._records:,} records are in the lake"
                self.say(f"worker: {event.table} batch {event.batch} is applied; {of}")
            elif isinstance(event, StepRetried):
                self.say(f"worker: {type(event.error).__name__}, again in {event.pause:.1f} s")

    def _now(self, text: str) -> None:
        if self._status is not None:
            self._status.update(escape(text))
