"""The ledger of targets that cannot keep one themselves: a document of the state store for each table.

A topic or an HTTP endpoint has no transaction with our progress, so it is written after all that a batch
sends was acknowledged: what was sent and not written down is sent again. Every change is a compare-and-set
in the store, so that of two workers one holds the table; a worker that lost it learns so before it sends
and after, but what it was sending when it lost the table is sent all the same.

The store may be lost or brought back from a backup, and epochs that are counted in it go back with it. What
readers are sent therefore takes the clock: milliseconds since 1970, or one more than what was sent last.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tidesink.errors import ProgressError, SchemaRefusedError, StaleProgressError, TransientTargetError
from tidesink.events import TableId
from tidesink.sinks.state.progress import Progress, StateStore, as_document, check_follows, from_document
from tidesink.sinks.targets.base import ApplyResult, Claim
from tidesink.typemap.target_schema import key_change

KIND: Final = "target-ledger"
_VERSION: Final = 1
_LONGEST_PLACE: Final = 200
_TRIES: Final = 8
_CUT_DIGITS: Final = 16


@dataclass(frozen=True)
class LedgerEntry:
    """What the store holds of one table. ``columns``: Spark types by name, of all that was ever sent.

    ``sent_epoch`` is the epoch in what is sent: greater with each claim, whatever became of the store.
    ``follows`` is the one in which the batch before was written down, of a first batch that of the first
    claim. It is the same however often a batch is sent again, and another where the same number was given to
    a batch once more, since the store was lost.
    """

    pipeline: str
    keys: tuple[str, ...]
    epoch: int = 0
    sent_epoch: int = 0
    follows: int = 0
    columns: Mapping[str, str] | None = None
    progress: Progress | None = None
    result: ApplyResult | None = None

    def as_document(self) -> dict[str, Any]:
        """The entry as a JSON-able mapping."""
        result = self.result
        return {
            "version": _VERSION,
            "pipeline": self.pipeline,
            "keys": list(self.keys),
            "epoch": self.epoch,
            "told_epoch": self.sent_epoch,
            "follows": self.follows,
            "columns": None if self.columns is None else [list(one) for one in self.columns.items()],
            "progress": None if self.progress is None else as_document(self.progress),
            "result": None if result is None else [result.upserted, result.deleted, result.version],
        }

    def claimed(self, now: int) -> LedgerEntry:
        """The entry of the next claim, at ``now`` by the clock."""
        epoch, reported = self.epoch + 1, max(self.sent_epoch + 1, now)
        progress = self.progress and replace(self.progress, epoch=epoch)
        # The result was of another epoch's batch.
        return replace(
            self,
            epoch=epoch,
            sent_epoch=reported,
            follows=self.follows or reported,
            progress=progress,
            result=None,
        )

    def done(self, progress: Progress) -> ApplyResult | None:
        """The result of this very batch where it is written down; None where it is to be sent.

        Raises:
            StaleProgressError: as ``check_follows`` says.
        """
        if self.progress == progress and self.result is not None:
            return self.result
        check_follows(progress, self.progress)
        return None

    def cut(self, progress: Progress) -> str:
        """Stands for where a batch begins and ends, in keys of idempotency.

        It is the same when the batch is sent again, and another where a batch of its number ends elsewhere:
        since more had come, its rows may be newer than those sent before, though they look the same.
        """
        ends = [
            [
                name,
                topic.topic_id,
                sorted((number, at.next_offset) for number, at in topic.partitions.items()),
            ]
            for name, topic in sorted(progress.topics.items())
        ]
        return hashlib.sha256(json.dumps([self.follows, ends]).encode()).hexdigest()[:_CUT_DIGITS]


def _read(document: Any) -> LedgerEntry:
    try:
        if document["version"] != _VERSION:
            raise ProgressError(
                f"the ledger in the state store has format {document['version']!r}, this tidesink reads "
                f"{_VERSION}: run the tidesink version that wrote it, or a newer one"
            )
        columns, progress, result = (document[name] for name in ("columns", "progress", "result"))
        return LedgerEntry(
            pipeline=document["pipeline"],
            keys=tuple(document["keys"]),
            epoch=int(document["epoch"]),
            # Ledgers were written without these two: what was sent then is less than any clock.
            sent_epoch=int(document.get("told_epoch", 0)),
            follows=int(document.get("follows", 0)),
            columns=None if columns is None else dict(columns),
            progress=None if progress is None else from_document(progress),
            result=None if result is None else sent_result(*result),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise ProgressError(
            f"the ledger in the state store is damaged ({type(exc).__name__}: {exc})"
        ) from exc


def sent_result(upserts: int, deletes: int, version: str) -> ApplyResult:
    """The result of rows that were sent: nobody says which were there before, so none counts as absent."""
    return ApplyResult(upserts, 0, deletes, 0, version)


def ledger_name(place: tuple[str, ...], table: TableId) -> str:
    """The document's name: what the table is sent to, and the table; a long place by its hash."""
    shown = [
        part if len(part) <= _LONGEST_PLACE else hashlib.sha256(part.encode()).hexdigest() for part in place
    ]
    return json.dumps([*shown, *table], ensure_ascii=False)


def now_ms() -> int:
    """The clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class StoreLedger:
    """One table's entry; used by one thread at a time. ``place``: the kind of target, and where it is.

    ``table`` is the table's name there, ``source`` the source table where a route gave it another.
    """

    def __init__(
        self,
        store: StateStore,
        place: tuple[str, ...],
        table: TableId,
        *,
        pipeline: str,
        keys: tuple[str, ...],
        source: TableId | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._store = store
        self._name = ledger_name(place, table)
        self._table = source or table
        self._pipeline = pipeline
        self._keys = keys
        self._clock = clock
        self._claimed: LedgerEntry | None = None

    def claim(self) -> Claim:
        """Take the next epoch, then say what is applied.

        Raises:
            StaleProgressError: the table belongs to another pipeline, or another source table was sent.
            SchemaRefusedError: its rows were sent under another key.
            TransientTargetError: others kept claiming.
        """
        entry = self._changed(lambda entry: entry.claimed(self._clock()))
        self._claimed = entry
        return Claim(entry.epoch, entry.progress)

    def committed(self) -> Progress | None:
        """The progress that is written down."""
        return self.entry().progress

    def entry(self) -> LedgerEntry:
        """What the store holds now; an entry of its own where it holds nothing.

        Raises: as ``claim``.
        """
        return self._checked(self._store.load_document(KIND, self._name))

    def held(self, epoch: int | None = None) -> LedgerEntry:
        """What the store holds now; refused where another worker took the table.

        Raises:
            StaleProgressError: the table is not held, or ``epoch`` is another one than is held.
        """
        entry = self.entry()
        self._check_held(entry)
        if epoch is not None and epoch != entry.epoch:
            raise StaleProgressError(
                f"this worker holds epoch {entry.epoch}, and the batch is of epoch {epoch}",
                table=str(self._table),
            )
        return entry

    def write(self, progress: Progress, result: ApplyResult) -> None:
        """Write a batch down, all of which was acknowledged.

        Raises:
            StaleProgressError: another worker took the table meanwhile.
        """

        def written(entry: LedgerEntry) -> LedgerEntry:
            return replace(self._mine(entry), progress=progress, result=result, follows=entry.sent_epoch)

        self._changed(written)

    def write_columns(self, columns: Mapping[str, str]) -> None:
        """Write down which columns rows may have; raises as ``write``."""
        self._changed(lambda entry: replace(self._mine(entry), columns=dict(columns)))

    def _mine(self, entry: LedgerEntry) -> LedgerEntry:
        self._check_held(entry)
        return entry

    def _check_held(self, entry: LedgerEntry) -> None:
        mine = self._claimed
        if mine is None:
            raise StaleProgressError("claim the table before writing to it", table=str(self._table))
        # Both: a store that was lost or is an older one counts the same epochs once more.
        if (entry.epoch, entry.sent_epoch) != (mine.epoch, mine.sent_epoch):
            raise StaleProgressError(
                f"another worker holds this table: the ledger is at epoch {entry.epoch} (sent as "
                f"{entry.sent_epoch}), this worker holds epoch {mine.epoch} (sent as {mine.sent_epoch})",
                table=str(self._table),
            )

    def _changed(self, change: Callable[[LedgerEntry], LedgerEntry]) -> LedgerEntry:
        for _ in range(_TRIES):
            old = self._store.load_document(KIND, self._name)
            new = change(self._checked(old))
            if self._store.swap_document(KIND, self._name, old=old, new=new.as_document()):
                return new
        raise TransientTargetError("others kept writing to the table's ledger", table=str(self._table))

    def _checked(self, document: Any | None) -> LedgerEntry:
        entry = LedgerEntry(self._pipeline, self._keys) if document is None else _read(document)
        if entry.pipeline != self._pipeline:
            raise StaleProgressError(
                f"the table belongs to pipeline {entry.pipeline!r}: send it to a place of its own",
                table=str(self._table),
            )
        if entry.progress and entry.progress.table != self._table:
            raise StaleProgressError(
                f"the rows of {entry.progress.table} were sent to this place under this name, and this is "
                f"{self._table}: set routes in the config so that the two have different names",
                table=str(self._table),
            )
        if {key.lower() for key in entry.keys} != {key.lower() for key in self._keys}:
            raise SchemaRefusedError(
                f"rows were sent under the key ({', '.join(entry.keys)}), and the key is "
                f"({', '.join(self._keys)}) now: whoever keeps them could not find them. Send the table to a "
                "place of its own, or set keys to columns both have",
                table=str(self._table),
                **key_change(entry.keys, self._keys),
            )
        return entry
