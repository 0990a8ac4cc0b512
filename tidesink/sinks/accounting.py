"""The law of every batch: read = applied + superseded + filtered + dead-lettered.

The unit is the event. ``read`` is counted from Kafka, where Spark's reader hands the records over;
``applied`` comes from the target's own numbers of its commit; the rest is counted by the reduction. The
three counts share no code, so that the law can fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tidesink.errors import AccountingError
from tidesink.sinks.summary import BatchSummary


@dataclass(frozen=True)
class Account:
    """The numbers of one batch, or of many added up, in events.

    A key change is one event, and the delete of an absent row is applied. ``unmatched`` is no part of the
    law's sum: so many of the applied and superseded ones are changes whose row the table's filter took out.
    Nor is ``row_codec``: the records that were decoded one by one, which is slower, since no columnar step
    could prove them; counted where tasks decode and reduce in one go.
    """

    read: int = 0
    applied: int = 0
    superseded: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    unmatched: int = 0
    row_codec: int = 0

    def __add__(self, other: Account) -> Account:
        mine, theirs = self.as_counters(), other.as_counters()
        return Account(**{name: count + theirs[name] for name, count in mine.items()})

    def values(self) -> tuple[int, int, int, int, int]:
        """The numbers in the order of the law."""
        return self.read, self.applied, self.superseded, self.filtered, self.dead_lettered

    def as_counters(self) -> dict[str, int]:
        """The numbers by name."""
        return asdict(self)

    @classmethod
    def from_counters(cls, counters: Mapping[str, int]) -> Account:
        """The numbers in a mapping by name; missing ones are 0."""
        return cls(**{name: counters.get(name, 0) for name in cls.__dataclass_fields__})

    def check(self, *, table: str) -> None:
        """Raise AccountingError where the law does not hold."""
        accounted = self.read - sum(self.values()[1:])
        numbers = ", ".join(f"{name} {count}" for name, count in self.as_counters().items())
        if accounted == 0:
            self._check_unmatched(numbers, table)
            return
        raise AccountingError(
            f"{abs(accounted)} events are {'missing' if accounted > 0 else 'too many'}: {numbers}. The table "
            "stops so that nothing is built on it; compare it with the source, and report this with the log",
            table=table,
        )

    def _check_unmatched(self, numbers: str, table: str) -> None:
        """A row that the filter took out is a delete: applied, or superseded."""
        if 0 <= self.unmatched <= self.applied + self.superseded:
            return
        raise AccountingError(
            f"the filter took out other rows than were applied or superseded: {numbers}. The table stops so "
            "that nothing is built on it; compare it with the source, and report this with the log",
            table=table,
        )


def account_of(
    summary: BatchSummary,
    *,
    kafka_records: int,
    applied_rows: int,
    rejected: int,
    stale_rows: int = 0,
    row_codec: int = 0,
) -> Account:
    """The account of one batch.

    ``kafka_records``: records Kafka gave. A record may hold several events, so what the summary counts
    above one a record is added. ``applied_rows``: rows by the target's own numbers; a key change is two
    rows and one event. ``rejected``: dead letters kept. ``stale_rows``: rows the target had newer ones of.
    """
    applied = applied_rows - summary.split_halves
    # Of a key change that the target had newer rows of, both halves are stale, and it is one event.
    stale = stale_rows + min(applied, 0)
    return Account(
        read=kafka_records + summary.read - summary.messages,
        applied=max(applied, 0),
        superseded=summary.superseded + stale,
        filtered=summary.filtered,
        dead_lettered=rejected,
        unmatched=summary.unmatched,
        row_codec=row_codec,
    )
