"""The ledger of targets that cannot keep one themselves: a document of the state store for each table.

A topic or an HTTP endpoint has no transaction with our progress, so it is written after all that a batch
sends was acknowledged: what was sent and not written down is sent again. Every change is a compare-and-set
in the store, so that of two workers one holds the table; a worker that lost it learns so before it sends
and after, but what it was sending when it lost the table is sent all the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tidesink.change import TableId
from tidesink.errors import ProgressError, SchemaRefusedError, StaleProgressError, TransientTargetError
from tidesink.sinks.progress import Progress, as_document, check_follows, from_document
from tidesink.sinks.shape import key_change
from tidesink.sinks.state_store import StateStore
from tidesink.sinks.targets.base import ApplyResult, Claim

KIND: Final = "target-ledger"
_VERSION: Final = 1
_LONGEST_PLACE: Final = 200
_TRIES: Final = 8


@dataclass(frozen=True)
class LedgerEntry:
    """What the store holds of one table. ``columns``: Spark types by name, of all that was ever sent."""

    pipeline: str
    keys: tuple[str, ...]
    epoch: int = 0
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
            "columns": None if self.columns is None else [list(one) for one in self.columns.items()],
            "progress": None if self.progress is None else as_document(self.progress),
            "result": None if result is None else [result.upserted, result.deleted, result.version],
        }


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


class StoreLedger:
    """One table's entry; used by one thread at a time. ``place``: the kind of target, and where it is."""

    def __init__(
        self,
        store: StateStore,
        place: tuple[str, ...],
        table: TableId,
        *,
        pipeline: str,
        keys: tuple[str, ...],
    ) -> None:
        self._store = store
        self._name = ledger_name(place, table)
        self._table = table
        self._pipeline = pipeline
        self._keys = keys
        self._epoch: int | None = None

    def claim(self) -> Claim:
        """Take the next epoch, then say what is applied.

        Raises:
            StaleProgressError: the table belongs to another pipeline.
            SchemaRefusedError: its rows were sent under another key.
            TransientTargetError: others kept claiming.
        """

        def claimed(entry: LedgerEntry) -> LedgerEntry:
            epoch = entry.epoch + 1
            progress = entry.progress and replace(entry.progress, epoch=epoch)
            return replace(
                entry, epoch=epoch, progress=progress, result=None
            )  # that batch was another epoch's

        entry = self._changed(claimed)
        self._epoch = entry.epoch
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
        if epoch is not None and epoch != self._epoch:
            raise StaleProgressError(
                f"this worker holds epoch {self._epoch}, and the batch is of epoch {epoch}",
                table=str(self._table),
            )
        return entry

    def done(self, progress: Progress) -> ApplyResult | None:
        """The result of this very batch where it is written down; None where it is to be sent.

        Raises:
            StaleProgressError: as ``held``, or as ``check_follows`` says.
        """
        entry = self.held(progress.epoch)
        if entry.progress == progress and entry.result is not None:
            return entry.result
        check_follows(progress, entry.progress)
        return None

    def write(self, progress: Progress, result: ApplyResult) -> None:
        """Write a batch down, all of which was acknowledged.

        Raises:
            StaleProgressError: another worker took the table meanwhile.
        """
        self._changed(lambda entry: replace(self._mine(entry), progress=progress, result=result))

    def write_columns(self, columns: Mapping[str, str]) -> None:
        """Write down which columns rows may have; raises as ``write``."""
        self._changed(lambda entry: replace(self._mine(entry), columns=dict(columns)))

    def _mine(self, entry: LedgerEntry) -> LedgerEntry:
        self._check_held(entry)
        return entry

    def _check_held(self, entry: LedgerEntry) -> None:
        if self._epoch is None:
            raise StaleProgressError("claim the table before writing to it", table=str(self._table))
        if entry.epoch != self._epoch:
            raise StaleProgressError(
                f"another worker holds this table: the ledger is at epoch {entry.epoch}, this worker holds "
                f"epoch {self._epoch}",
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
        if {key.lower() for key in entry.keys} != {key.lower() for key in self._keys}:
            raise SchemaRefusedError(
                f"rows were sent under the key ({', '.join(entry.keys)}), and the key is "
                f"({', '.join(self._keys)}) now: whoever keeps them could not find them. Send the table to a "
                "place of its own, or set keys to columns both have",
                table=str(self._table),
                **key_change(entry.keys, self._keys),
            )
        return entry
