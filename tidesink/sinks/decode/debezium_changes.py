"""The common base class of the decoders of debezium-avro and debezium-json tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import ChangeTable, DecodedBatch, ValueOptions, Warn, rows_from_events
from tidesink.codecs.debezium.envelope import DOUBTED_KEY, OLD_KEY, POSTGRES
from tidesink.codecs.debezium.remarks import ROUTED, has_required_shapes, routed_field
from tidesink.codecs.debezium.stored import recorded_value
from tidesink.codecs.options import DebeziumOptions
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
from tidesink.sinks.decode.records import RecordedColumns, TableDecoder
from tidesink.typemap.table import ZeroDate
from tidesink.typemap.values import Convert

if TYPE_CHECKING:
    from tidesink.codecs.debezium.codec import DebeziumCodec
    from tidesink.source_database.base import ReplicaIdentity


_OTHER_TABLE: Final = (
    "The change belongs to table {}, but this topic is read as table {}. A Debezium topic must hold only "
    "one table: name that table under tables. If a transform routes several tables into the topic "
    "(ByLogicalTableRouter), configure it so that the keys have a field that separates the tables "
    "(key.enforce.uniqueness=true; {}), and keep that column among the table's keys (tables: keys). Or "
    "configure a topic for each table, and combine the tables with route and shard-column. Two tables that "
    "have the same name in Kafka need different topic names."
)
_UNSURE: Final = (
    "The key of a delete ({0}) has a value that Debezium also writes for a column that Postgres did not "
    "send, and the delete's old row does not confirm the value. So the key may identify another row than "
    "the deleted one: message.key.columns may name columns that are not in the replica identity. "
)
_UNSURE_KEY: Final = _UNSURE + (
    "In this case set REPLICA IDENTITY FULL on the table, or remove these columns from "
    "message.key.columns. If the columns are the table's primary key or its replica identity, or if "
    "REPLICA IDENTITY FULL was set when the row was deleted, confirm the key under tables: keys: [{0}]. If "
    "they are the primary key, a definition of the table that has it, or the URL of the database under "
    "source.database, confirms it too."
)
_UNCERTAIN: Final = (
    "A delete was applied by its key ({0}), whose column {1} has a value that Debezium also writes for a "
    "column that Postgres did not send. This is correct if the columns are the primary key or the replica "
    "identity, or if the table has REPLICA IDENTITY FULL. Then confirm the key under tables: keys: [{0}]. "
    "Otherwise the deleted row still exists: repair the table with `tidesink resync TABLE`, and remove the "
    "column from message.key.columns."
)
_UNSURE_ROW: Final = _UNSURE + (
    "The table in the source database has REPLICA IDENTITY FULL now. If this was set before the row was "
    "deleted, confirm the key under tables: keys: [{0}]. If it was set after the delete, repair the table "
    "with `tidesink resync TABLE`, and skip this delete."
)
_UNSENT_KEY: Final = (
    "The key of a delete is ({0}), but the table's replica identity in the source database lacks one of "
    "these columns. So Postgres did not send that column of the deleted row. The key may identify another "
    "row than the deleted one. Set REPLICA IDENTITY FULL on the table, or name only columns of the replica "
    "identity in message.key.columns. If the replica identity had these columns when the row was deleted, "
    "confirm the key under tables: keys: [{0}]."
)


@dataclass(frozen=True)
class DatabaseFacts:
    """What the source database shows about a table. Everything is unknown if it is not queried.

    Attributes:
        columns: The table's columns with their types, or None.
        identity: The table's replica identity, which decides what Postgres sends for deleted rows, or None.
        connector: The Debezium connector that fits the database, or empty. If the records do not name their
            connector, it decides whether column names that differ only in case are different columns.
    """

    columns: TableSchema | None = None
    identity: ReplicaIdentity | None = None
    connector: str = ""


NO_DATABASE: Final = DatabaseFacts()


@dataclass(frozen=True)
class KeyFacts:
    """Facts about the columns that Postgres sends for a deleted row. They come from config and database.

    Attributes:
        stated: True if the config names the table's key columns.
        primary: The primary key columns in the config's definition.
        identity: The table's replica identity in the source database; None if not known.
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
        """Create the facts of a table from the config (``keys``, ``definition``) and its replica identity."""
        columns = definition.columns if definition is not None else ()
        primary = frozenset(column.name for column in columns if column.primary_key)
        return cls(keys is not None, primary, identity)

    def are_sent(self, keys: Collection[str]) -> bool | None:
        """Returns True if Postgres sends all columns of a key for deleted rows, False if one is not sent.

        Returns None if this is not known. Then only the old row in a delete's record may show it.

        Primary key columns are sent with ``REPLICA IDENTITY DEFAULT`` and with ``FULL``. For other columns
        ``FULL`` proves nothing, because it may have been set after the record was written: if a delete was
        rejected, setting ``FULL`` must not apply it. An index that is the replica identity may lack primary
        key columns, so the database takes precedence over the ``definition``. A column that the table does
        not have in the database was renamed by a transform, so the database does not decide about it.
        """
        identity, named = self.identity, frozenset(keys)
        if self.stated:
            return True
        if not named:
            return None
        if identity is None or not named <= identity.columns:
            return True if named <= self.primary else None
        if identity.is_full:
            return True if named <= identity.primary else None
        return named <= identity.sent

    def confirm(self, keys: Collection[str]) -> bool:
        """Returns True if Postgres sends all columns of a key for deletes from now on, as far as is known."""
        is_full = self.identity is not None and self.identity.is_full
        return is_full or bool(self.are_sent(keys))


_NO_FACTS: Final = KeyFacts()


@dataclass(frozen=True)
class DebeziumDecoder(TableDecoder):
    """Decodes the Debezium records of one table.

    Attributes:
        definition: The column types in the config, or None.
        tells_old_keys: True if an update's old row may have another key than its new row. False for
            Debezium's connectors, which write a changed key as a delete and an insert.
        row_keys: Names of the key columns in lower case. If None, they are the columns of the records' keys.
        is_ticdc: True if TiCDC wrote some of the records.
        key_facts: Facts about the key columns that Postgres sends for deleted rows.
        uses_headers: True if record headers are needed. For example, a header marks an insert after a changed
            key, which may have a placeholder for a geometry.
    """

    table: TableId
    options: DebeziumOptions
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
        """The row codec (the decoder of single records). It has caches, so each process opens its own."""

    def decode(self, message: Message) -> tuple[Event, ...]:
        """Decode one record with the row codec (the decoder of single records), and return its event."""
        return self._codec.decode(message)

    def decode_new_rows(self, records: pa.RecordBatch, keys: Sequence[str]) -> DecodedBatch:
        named = frozenset(fold_name(name) for name in keys)

        def decode(message: Message) -> tuple[Event, ...]:
            return self._codec.decode_new_row(message, named)

        return rows_from_events(records, decode, self.values, self.warn)

    @property
    def warn(self) -> Warn | None:
        """Function that returns the warning about a delete whose key may not have been sent, or None.

        None if the keys of all deletes were sent.
        """
        return None if self.key_facts.stated or self.is_ticdc else self._key_warning

    def _key_warning(self, event: ChangeEvent) -> str | None:
        uncertain = (event.extension or {}).get(DOUBTED_KEY)
        if not isinstance(uncertain, tuple):
            return None
        assert event.schema is not None  # noqa: S101  (Debezium's events have one)
        key = tuple(event.key or ())
        if self.key_facts.are_sent(self._row_names(key, event.schema)):
            return None
        return _UNCERTAIN.format(", ".join(key), ", ".join(uncertain))

    @property
    def values(self) -> ValueOptions:
        """The policy for zero dates, the time zone, and the table's key."""
        return ValueOptions(self.zero_date, self.options.time_zone, self.row_keys)

    @property
    def dated(self) -> bool:
        return not self.options.debezium.commit_positions

    @property
    def old_keys(self) -> bool:
        """True if an update's old row may have another key than its new row."""
        return self.tells_old_keys

    def recorded_value(self, stored: Column, column_type: ColumnType) -> Convert | None:
        """Returns a function that converts a column's value in the database to its value in records."""
        modes, bare = self.options.debezium, self.is_bare
        return recorded_value(stored, column_type, modes, is_ticdc=self.is_ticdc, bare=bare)

    @property
    def is_bare(self) -> bool:
        """True if the records have no schemas."""
        return False

    @property
    def recorded_columns(self) -> RecordedColumns:
        """The columns that records contain. Only rows without a column show that it was dropped.

        Records with a schema contain all columns of the schema, but TiCDC omits the values of virtual
        columns. If records have no schema, a definition may list generated columns that are not sent.
        """
        return RecordedColumns("rows", generated=not self.is_bare, virtual=not self.is_ticdc)

    @abstractmethod
    def key_only(self, key: Collection[str], schema: TableSchema) -> frozenset[str]:
        """Returns the columns that exist only in the keys of records.

        The transform ``ByLogicalTableRouter`` adds such columns to the keys. ``key``: the columns of the
        records' keys. ``schema``: the schema of the records' changes.
        """

    def holds(self, changes: ChangeTable) -> bool:
        """Returns True if the changes belong to this table.

        If a transform routes several tables into the topic, their changes count as changes of this table if
        its key has a column that exists only in the records' keys, which separates the tables' rows.
        """
        key = _key_of(changes)
        names = (ROUTED, *self.key_only(key, changes.schema))
        apart = {fold_name(name) for name in names if name in key}
        return not apart.isdisjoint(self.row_keys or ()) or super().holds(changes)

    def wrong(self, changes: ChangeTable) -> Iterator[tuple[int, TidesinkError]]:
        """Yields an error for each delete whose key may have a placeholder for a value that was not sent.

        The error comes with the number of the delete's row in ``changes``.
        """
        key = _key_of(changes)
        names = self._row_names(key, changes.schema)
        are_sent = self.key_facts.are_sent(names)
        if are_sent or not names:
            return
        deleted = pc.equal(changes.rows["op"].combine_chunks().dictionary_decode(), Op.DELETE.value)
        unsure = deleted.to_numpy(zero_copy_only=False)
        reason = _UNSENT_KEY
        if are_sent is None:
            unsure = unsure & (_listed(changes.rows["unavailable_before"].combine_chunks(), names) > 0)
            identity = self.key_facts.identity
            reason = _UNSURE_ROW if identity is not None and identity.is_full else _UNSURE_KEY
        for number in np.flatnonzero(unsure).tolist():
            yield number, UnnamedRowError(reason.format(", ".join(key)))

    def _row_names(self, key: Collection[str], schema: TableSchema) -> list[str]:
        """Returns the names of the key's columns that the rows have too."""
        added = self.key_only(key, schema)
        return [name for name in key if name not in added]

    def other_table(self, changes: ChangeTable) -> TidesinkError:
        """Returns the error for changes of another table."""
        field = routed_field(self.key_only(_key_of(changes), changes.schema))
        return SchemaMismatchError(_OTHER_TABLE.format(changes.table, self.table, field))

    def unnamed(self, keys: Sequence[str]) -> UnnamedRowError:
        """Returns the error for a change without a value in a key column."""
        return UnnamedRowError(
            f"A key column ({', '.join(keys)}) is null or missing in the record, so the change does not "
            "identify a row. Set keys to columns that every record has. A delete needs them in its key or, "
            "with REPLICA IDENTITY FULL, in its old row."
        )

    def old_rows(self, changes: ChangeTable) -> tuple[pa.StructArray, pa.ListArray | None]:
        """Returns the old rows of changes, and for each old row the columns that the source did not send.

        An old row is null if the source sent only its key.
        """
        before, _ = super().old_rows(changes)
        unsent = changes.rows["unavailable_before"].combine_chunks()
        if unsent.null_count == len(unsent):
            return before, None
        alone = self._key_alone(changes)
        rows = pc.if_else(alone, pa.scalar(None, before.type), before)
        return rows, pc.if_else(alone, pa.scalar(None, unsent.type), unsent)

    def _key_alone(self, changes: ChangeTable) -> pa.Array:
        """Returns True for each old row of which the source sent only the key."""
        keys = _key_of(changes)
        others = [c.name for c in changes.schema.columns if not c.virtual and c.name not in keys]
        unsent = changes.rows["unavailable_before"].combine_chunks()
        return pc.and_(unsent.is_valid(), pa.array(_listed(unsent, others) >= len(others)))


def _key_of(changes: ChangeTable) -> tuple[str, ...]:
    """Returns the names of the key columns of changes."""
    return tuple(member.name for member in changes.rows.schema.field("key").type)


def _listed(unsent: pa.ListArray, names: Collection[str]) -> npt.NDArray[np.int64]:
    """Returns one number per old row: how many of the columns ``names`` the source did not send.

    ``unsent``: the columns that were not sent, per old row.
    """
    among = pc.is_in(pc.list_flatten(unsent), pa.array([*names], pa.string()))
    rows = pc.list_parent_indices(unsent).filter(among)
    return np.bincount(rows.to_numpy(), minlength=len(unsent))


def needs_old_keys(lists: Iterable[Iterable[Column]], connector: str) -> bool:
    """Returns True if the decoder needs the record header that marks an insert after a changed key.

    Such an insert of Postgres' connector may have a placeholder for a geometry. ``lists``: the columns of
    each schema with which records were written. ``connector``: name of the connector; empty if not known.
    """
    return connector in (POSTGRES, "") and any(map(has_required_shapes, lists))


def without_headers(records: pa.RecordBatch) -> pa.RecordBatch:
    """Remove all headers from the records, except the header that marks a changed key.

    Few records have it. Other headers are not needed: some show if a null value is a delete, but this is
    known for the whole topic.
    """
    if "headers" not in records.schema.names:
        return records
    headers = records.column("headers")
    names = pc.struct_field(pc.list_flatten(headers), "key")
    if not pc.any(pc.equal(names, OLD_KEY)).as_py():
        return records.select([name for name in records.schema.names if name != "headers"])
    named = [[header for header in row or () if header["key"] == OLD_KEY] for row in headers.to_pylist()]
    index = records.schema.get_field_index("headers")
    return records.set_column(index, "headers", pa.array(named, headers.type))
