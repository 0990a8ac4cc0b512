"""Beds of lakes in which a test decides how a table's batches are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.contracts.targets_bed import Bed
from tidesink.events import TableId
from tidesink.sinks.targets.lake.batches import FILE_LIMITS, FileLimits


@dataclass
class Watched:
    """A table's writer of files; while ``merging`` it gives every batch to MERGE, else none."""

    writer: Any
    merging: bool = False

    def plan(self, *given: Any) -> Any:
        """The writer's plan."""
        if self.merging:
            return "a test says so"
        plan = self.writer.plan(*given)
        assert not isinstance(plan, str), plan
        return plan

    def limit(self, limits: FileLimits = FILE_LIMITS) -> None:
        """Write with these limits from now on."""
        self.writer = replace(self.writer, limits=limits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)


def with_writers(bed: Bed, made: Callable[[Any], Any]) -> Bed:
    """The bed with ``made`` around the writer of files of each table that is opened."""

    def changed(target: Any) -> Any:
        make = target.file_writer
        return replace(target, file_writer=lambda *of: made(make(*of)))

    return replace(bed, target=changed(bed.target), reopen=lambda: changed(bed.reopen()))


def watched(bed: Bed) -> tuple[Bed, dict[TableId, Watched]]:
    """The bed with watched writers, and the newest of each source table."""
    writers = dict[TableId, Watched]()

    def made(writer: Any) -> Watched:
        writers[writer.name] = Watched(writer)
        return writers[writer.name]

    return with_writers(bed, made), writers
