"""What the decoders of debezium-avro and debezium-json tables have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.batch import ChangeTable, DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.debezium.envelope import DOUBTED_KEY, OLD_KEY, POSTGRES
from tidesink.codecs.debezium.remarks import ROUTED, has_required_shapes, routed_field
from tidesink.codecs.debezium.stored import recorded_value
from tidesink.errors import SchemaMismatchError, TidesinkError, UnnamedRowError
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    Event,
    Message,
    Op,
    TableId,
    TableSchema,
    fold_name,
)
from tidesink.sinks.batch.records import TableDecoder
from tidesink.typemap.table import ZeroDate
from tidesink.typemap.values import Convert

if TYPE_CHECKING:
    from tidesink.codecs.debezium.codec import DebeziumCodec
    from tidesink.source_database.base import ReplicaIdentity


_OTHER_TABLE: Final = (
    "The change is of {}, and this topic is read as {}: a debezium topic must hold one table; name it under "
    "tables. If a transform routes several tables into the topic (ByLogicalTableRouter), let its keys have "
    "the field that tells the tables apart (key.enforce.uniqueness=true; {}), and "
    "leave that column among the table's keys (tables: keys). Or give each table a topic and bring them "
    "together with route and shard-column. Two tables whose names are the same in Kafka need topic names of "
    "their own"
)
_UNSURE: Final = (
    "The delete's key ({0}) has a value that Debezium writes for a column that Postgres did not send, and "
    "its old row shows no sign that the value is the row's. So the key may name another row than the deleted "
    "one: message.key.columns may name columns that are not in the replica identity. "
)
_UNSURE_KEY: Final = _UNSURE + (
    "If so, set REPLICA IDENTITY FULL on the table, or leave these columns out of message.key.columns. If "
    "the columns are the table's primary key or its replica identity, or if REPLICA IDENTITY FULL was set "
    "when the row was deleted, say so under tables: keys: [{0}]. If they are the primary key, a definition "
    "of the table that has it, or the URL of the database under source.database, does the same"
)
_DOUBTED: Final = (
    "A delete was applied by its key ({0}), whose column {1} has a value that Debezium writes for a column "
    "that Postgres did not send. This is right if the columns are the primary key or the replica identity, "
    "or if the table has REPLICA IDENTITY FULL: say so under tables: keys: [{0}]. Else the deleted row is "
    "still there: repair the table with tidesink resync, and leave the column out of message.key.columns"
)
_UNSURE_ROW: Final = _UNSURE + (
    "The table in source.database has REPLICA IDENTITY FULL now. If it had when the row was deleted, say so "
    "under tables: keys: [{0}]. If it was set later, repair the table with tidesink resync, and leave this "
    "delete out"
)
_UNSENT_KEY: Final = (
    "The delete's key is ({0}), and the replica identity in source.database lacks a column of it, so "
    "Postgres did not send that column of the deleted row. The key may name another row than the deleted "
    "one. Set REPLICA IDENTITY FULL on the table, or let message.key.columns name columns of the replica "
    "identity only. If the replica identity had these columns when the row was deleted, say so under "
    "tables: keys: [{0}]"
)


@dataclass(frozen=True)
class KeyFacts:
    """What is known, beside the records, of the columns that Postgres sends of a deleted row.

    ``stated``: the config has the key. ``primary``: the primary key in the config's definition.
    ``identity``: as ``source.database`` has it; None if it is not known.
    """

    stated: bool = False
    primary: frozenset[str] = frozenset()
    identity: ReplicaIdentity | None = None

    @classmethod
    def of(
        cls,
        keys: Collection[str] | None,
        definition: TableSchema | None = None,
        identity: ReplicaIdentity | None = None,
    ) -> KeyFacts:
        """The facts of a table; ``keys`` and ``definition`` are the config's."""
        columns = definition.columns if definition is not None else ()
        primary = frozenset(column.name for column in columns if column.primary_key)
        return cls(keys is not None, primary, identity)

    def are_sent(self, keys: Collection[str]) -> bool | None:
        """Whether Postgres sends all columns of a key of records; None if only its old rows may show it.

        Columns of the primary key are sent under ``REPLICA IDENTITY DEFAULT`` and under ``FULL``. Of other
        columns ``FULL`` tells nothing, since it may be newer than the record: the delete that was refused
        without it must not be applied because it was set. An index as the identity need not have the primary
        key, so the database decides over the ``definition``. It does not decide about a column that the
        table does not have, which a transform renamed.
        """
        known, named = self.identity, frozenset(keys)
        if self.stated:
            return True
        if not named:
            return None
        if known is None or not named <= known.columns:
            return True if named <= self.primary else None
        if known.is_full:
            return True if named <= known.primary else None
        return named <= known.sent

    def confirm(self, keys: Collection[str]) -> bool:
        """Whether something says that the columns of a key are sent, now and in later deletes."""
        is_full = self.identity is not None and self.identity.is_full
        return is_full or bool(self.are_sent(keys))


_NO_FACTS: Final = KeyFacts()


@dataclass(frozen=True)
class DebeziumDecoder(TableDecoder):
    """Decodes one table's records.

    ``definition`` gives types where the config has them. ``tells_old_keys``: an update may come with another
    key in the row before it. Debezium sends a changed key as a delete and an insert. ``row_keys``: as
    ``ValueOptions.keys``. ``is_ticdc``: TiCDC wrote some of them. ``key_facts``: what tells whether keys of
    deletes were sent. ``uses_headers``: a header is needed, such as the one that shows which inserts may have
    the stand-in for a geometry.
    """

    table: TableId
    options: CodecOptions
    zero_date: ZeroDate = "null"
    definition: TableSchema | None = None
    tells_old_keys: bool = True
    row_keys: frozenset[str] | None = None
    is_ticdc: bool = False
    key_facts: KeyFacts = _NO_FACTS
    uses_headers: bool = False

    @property
    @abstractmethod
    def _codec(self) -> DebeziumCodec:
        """The row codec; it has caches, and is made again in each process."""

    def decode(self, message: Message) -> tuple[Event, ...]:
        """One record's event."""
        return self._noting(self._codec.decode(message))

    def decode_new_rows(self, records: pa.RecordBatch, keys: Sequence[str]) -> DecodedBatch:
        """As ``TableDecoder``."""
        named = frozenset(fold_name(name) for name in keys)

        def decode(message: Message) -> tuple[Event, ...]:
            return self._noting(self._codec.decode_new_row(message, named))

        return rows_from_events(records, decode, self.values)

    def _noting(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        """The events; takes note of deletes whose key is doubted, for ``warnings``."""
        for event in events if self.warns else ():
            doubted = isinstance(event, ChangeEvent) and (event.extension or {}).get(DOUBTED_KEY)
            if isinstance(doubted, tuple):
                place = event.position
                self._doubts[place.topic, place.partition, place.offset] = doubted
        return events

    @property
    def warns(self) -> bool:
        """Whether keys of deletes may be doubted."""
        return not (self.key_facts.stated or self.is_ticdc)

    def warnings(self, changes: ChangeTable) -> pa.Array | None:
        """Deletes that are applied though a column of their key may not have been sent."""
        if not self._doubts:
            return None
        places = (changes.rows[name].to_pylist() for name in ("topic", "partition", "offset"))
        doubts = [self._doubts.pop(place, None) for place in zip(*places, strict=True)]
        key, names = self._key_names(changes)
        if self.key_facts.are_sent(names):
            return None
        reasons = (one and _DOUBTED.format(", ".join(key), ", ".join(one)) for one in doubts)
        return pa.array(reasons, pa.string())

    @cached_property
    def _doubts(self) -> dict[tuple[str, int, int], tuple[str, ...]]:
        """By topic, partition and offset, the doubted columns of a delete's key."""
        return {}

    @property
    def values(self) -> ValueOptions:
        """The policy for zero dates, the zone, and the table's key."""
        return ValueOptions(self.zero_date, self.options.time_zone, self.row_keys)

    @property
    def dated(self) -> bool:
        """As ``TableDecoder``."""
        return not self.options.debezium.commit_positions

    @property
    def old_keys(self) -> bool:
        """Whether the row before an update tells its key."""
        return self.tells_old_keys

    def recorded_value(self, stored: Column, column_type: ColumnType) -> Convert | None:
        """As ``TableDecoder``: by the connector's modes."""
        modes, bare = self.options.debezium, self.is_bare
        return recorded_value(stored, column_type, modes, is_ticdc=self.is_ticdc, bare=bare)

    @property
    def is_bare(self) -> bool:
        """Whether the records have no schemas."""
        return False

    @property
    def has_generated_columns(self) -> bool:
        """As ``TableDecoder``: a definition may list what is not sent."""
        return not self.is_bare

    @property
    def has_virtual_columns(self) -> bool:
        """As ``TableDecoder``: TiCDC lists them and leaves them out."""
        return not self.is_ticdc

    @abstractmethod
    def key_only(self, changes: ChangeTable) -> frozenset[str]:
        """The columns that only the keys of these changes have (``ByLogicalTableRouter``)."""

    def holds(self, changes: ChangeTable) -> bool:
        """As ``TableDecoder``; a field that only keys have keeps the rows of a routed topic apart."""
        key = changes.rows.schema.field("key").type
        names = (ROUTED, *self.key_only(changes))
        apart = {fold_name(name) for name in names if key.get_field_index(name) >= 0}
        return not apart.isdisjoint(self.row_keys or ()) or super().holds(changes)

    def wrong(self, changes: ChangeTable) -> Iterator[tuple[int, TidesinkError]]:
        """Deletes whose key may have a stand-in for a value that the source did not send."""
        key, names = self._key_names(changes)
        are_sent = self.key_facts.are_sent(names)
        if are_sent or not names:
            return
        deleted = pc.equal(changes.rows["op"].combine_chunks().dictionary_decode(), Op.DELETE.value)
        unsure = deleted.to_numpy(zero_copy_only=False)
        reason = _UNSENT_KEY
        if are_sent is None:
            unsure = unsure & (_listed(changes.rows["unavailable_before"].combine_chunks(), names) > 0)
            known = self.key_facts.identity
            reason = _UNSURE_ROW if known is not None and known.is_full else _UNSURE_KEY
        for at in np.flatnonzero(unsure).tolist():
            yield at, UnnamedRowError(reason.format(", ".join(key)))

    def _key_names(self, changes: ChangeTable) -> tuple[list[str], list[str]]:
        """The columns of the changes' key, and those of them that rows have too."""
        key, added = [member.name for member in changes.rows.schema.field("key").type], self.key_only(changes)
        return key, [name for name in key if name not in added]

    def other_table(self, changes: ChangeTable) -> TidesinkError:
        """A bad record, with what to do."""
        field = routed_field(self.key_only(changes))
        return SchemaMismatchError(_OTHER_TABLE.format(changes.table, self.table, field))

    def unnamed(self, keys: Sequence[str]) -> UnnamedRowError:
        """A bad record, with what to do at the connector."""
        return UnnamedRowError(
            f"a key column ({', '.join(keys)}) is null or not in the record, so the change names no row: set "
            "keys to columns that every record has; a delete needs them in its key or, with REPLICA IDENTITY "
            "FULL, in its old row"
        )

    def old_rows(self, changes: ChangeTable) -> tuple[pa.StructArray, pa.ListArray | None]:
        """The old rows; null where the source sent nothing but their key."""
        before, _ = super().old_rows(changes)
        unsent = changes.rows["unavailable_before"].combine_chunks()
        if unsent.null_count == len(unsent):
            return before, None
        alone = self._key_alone(changes)
        rows = pc.if_else(alone, pa.scalar(None, before.type), before)
        return rows, pc.if_else(alone, pa.scalar(None, unsent.type), unsent)

    def _key_alone(self, changes: ChangeTable) -> pa.Array:
        """Which old rows have nothing but their key."""
        keys = {member.name for member in changes.rows.schema.field("key").type}
        others = [c.name for c in changes.schema.columns if not c.virtual and c.name not in keys]
        unsent = changes.rows["unavailable_before"].combine_chunks()
        return pc.and_(unsent.is_valid(), pa.array(_listed(unsent, others) >= len(others)))


def _listed(unsent: pa.ListArray, names: Collection[str]) -> npt.NDArray[np.int64]:
    """How many of these columns each old row lacks."""
    among = pc.is_in(pc.list_flatten(unsent), pa.array([*names], pa.string()))
    rows = pc.list_parent_indices(unsent).filter(among)
    return np.bincount(rows.to_numpy(), minlength=len(unsent))


def needs_old_keys(lists: Iterable[Iterable[Column]], connector: str) -> bool:
    """Whether the header of a changed key is needed: an insert may have a stand-in for a geometry.

    ``lists`` are the columns of each writer. ``connector`` is empty if it is not known.
    """
    return connector in (POSTGRES, "") and any(map(has_required_shapes, lists))


def without_headers(records: pa.RecordBatch) -> pa.RecordBatch:
    """The records with no header but that of a changed key, which few have.

    Whether a null value is a delete is known of a topic.
    """
    if "headers" not in records.schema.names:
        return records
    found = records.column("headers")
    names = pc.struct_field(pc.list_flatten(found), "key")
    if not pc.any(pc.equal(names, OLD_KEY)).as_py():
        return records.select([name for name in records.schema.names if name != "headers"])
    named = [[one for one in row or () if one["key"] == OLD_KEY] for row in found.to_pylist()]
    place = records.schema.get_field_index("headers")
    return records.set_column(place, "headers", pa.array(named, found.type))
