"""The ledger entry of a table in a lake, which Delta and Iceberg store as the same JSON document."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tidesink.errors import ProgressError
from tidesink.events import TableId
from tidesink.sinks.state.documents import StoredForm, Version
from tidesink.sinks.state.progress import as_document, from_document
from tidesink.sinks.targets.ledger import Entry

EntryKind = Literal["claim", "batch"]
_FORMAT: Final = Version("tidesink", 1)
T = TypeVar("T")


@dataclass(frozen=True)
class LakeEntry(Entry):
    """An entry that a claim or a batch has committed to a table in a lake.

    Attributes:
        kind: Whether a claim or a batch wrote the entry.
        shard: In a table that several source tables share, the shard's name.
        source: In such a table, the shard's source table.
    """

    kind: EntryKind = "claim"
    shard: str | None = None
    source: TableId | None = None

    def to_json(self, **own: Any) -> str:
        """Return the entry as JSON text. ``own``: members of ``StoredEntry`` that only one format has."""
        stored = StoredEntry(
            tidesink=_FORMAT.number,
            kind=self.kind,
            pipeline=self.pipeline,
            epoch=self.epoch,
            batch=self.batch,
            keys=self.keys,
            progress=as_document(self.progress) if self.progress else None,
            shard=UNSET if self.shard is None else self.shard,
            source=UNSET if self.shard is None else self.source,
            columns=UNSET if self.shard is None else self.known,
            **own,
        )
        return json.dumps(msgspec.to_builtins(stored), separators=(",", ":"))


class StoredEntry(msgspec.Struct, kw_only=True):
    """The JSON document of an entry.

    Attributes:
        tidesink: The document's format version.
        snapshot: Iceberg: id of the snapshot with the rows of the progress.
        claimed_by: Iceberg: a new id for each claim.
        result: Iceberg: the members of the last batch's ``ApplyResult``, without ``stale`` if it is 0.
        progress: The applied progress (``as_document``).
        counts: Delta: for a history table, the batch's row counts.
        seen: Delta: the table version up to which the worker had checked other writers' commits.
        columns: For a shard, the columns of its rows.
    """

    tidesink: int
    kind: EntryKind
    pipeline: str
    epoch: int
    batch: int
    snapshot: int | UnsetType = UNSET
    keys: tuple[str, ...]
    claimed_by: str | UnsetType = UNSET
    result: list[int | str] | UnsetType | None = UNSET
    progress: dict[str, Any] | None
    counts: dict[str, int] | UnsetType = UNSET
    seen: int | UnsetType = UNSET
    shard: str | UnsetType = UNSET
    source: TableId | UnsetType | None = UNSET
    columns: tuple[str, ...] | UnsetType | None = UNSET

    @property
    def common(self) -> dict[str, Any]:
        """The fields of ``LakeEntry``, without the result."""
        return {
            "kind": self.kind,
            "pipeline": self.pipeline,
            "epoch": self.epoch,
            "keys": self.keys,
            "progress": from_document(self.progress) if self.progress else None,
            "shard": or_none(self.shard),
            "source": or_none(self.source),
            "known": or_none(self.columns),
        }


def or_none(member: T | UnsetType) -> T | None:
    """Return a member of a document; None if the document does not have it."""
    return None if member is UNSET else member


def form_of(subject: str, advice: str) -> StoredForm[StoredEntry]:
    """Return the form of the entry in a place that a message names.

    ``subject``: what a message calls the entry. ``advice``: what a user can do about a damaged entry.
    """
    return StoredForm(StoredEntry, subject, advice, ProgressError, _FORMAT)
