"""What the decoders of debezium-avro and debezium-json tables have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.batch import ChangeTable, DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.debezium.stored import recorded_value
from tidesink.errors import SchemaMismatchError, TidesinkError, UnnamedRowError
from tidesink.events import ChangeEvent, Column, ColumnType, Event, Message, TableId, TableSchema, fold_name
from tidesink.sinks.batch.records import TableDecoder
from tidesink.typemap.table import ZeroDate
from tidesink.typemap.values import Convert

if TYPE_CHECKING:
    from tidesink.codecs.debezium.codec import DebeziumCodec


@dataclass(frozen=True)
class DebeziumDecoder(TableDecoder):
    """Decodes one table's records.

    ``definition`` gives types where the config has them. ``tells_old_keys``: an update may come with another
    key in the row before it. Debezium sends a changed key as a delete and an insert. ``row_keys``: as
    ``ValueOptions.keys``. ``is_ticdc``: TiCDC wrote some of them.
    """

    table: TableId
    options: CodecOptions
    zero_date: ZeroDate = "null"
    definition: TableSchema | None = None
    tells_old_keys: bool = True
    row_keys: frozenset[str] | None = None
    is_ticdc: bool = False

    @property
    @abstractmethod
    def _codec(self) -> DebeziumCodec:
        """The row codec; it has caches, and is made again in each process."""

    def decode(self, message: Message) -> tuple[Event, ...]:
        """One record's event."""
        return tuple(_with_own_key(event) for event in self._codec.decode(message))

    def decode_new_rows(self, records: pa.RecordBatch, keys: Sequence[str]) -> DecodedBatch:
        """As ``TableDecoder``."""
        named = frozenset(fold_name(name) for name in keys)

        def decode(message: Message) -> tuple[Event, ...]:
            return tuple(_with_own_key(one) for one in self._codec.decode_new_row(message, named))

        return rows_from_events(records, decode, self.values)

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

    def other_table(self, table: TableId) -> TidesinkError:
        """A bad record, with what to do."""
        return SchemaMismatchError(
            f"the change is of {table}, and this topic is read as {self.table}: a debezium topic must hold "
            "one table; name it under tables"
        )

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
        keys = {member.name for member in changes.rows.schema.field("key").type}
        others = [c.name for c in changes.schema.columns if not c.virtual and c.name not in keys]
        alone = pc.fill_null(pc.greater_equal(pc.list_value_length(unsent), len(others)), False)
        rows = pc.if_else(alone, pa.scalar(None, before.type), before)
        return rows, pc.if_else(alone, pa.scalar(None, unsent.type), unsent)


def _with_own_key(event: Event) -> Event:
    """The event; of its record's key nothing but columns of the row.

    ``ByLogicalTableRouter`` adds a field to keys that no row has.
    """
    if not isinstance(event, ChangeEvent) or event.schema is None or not event.key:
        return event
    own = event.schema.by_name
    if all(name in own for name in event.key):
        return event
    return event._replace(key={name: one for name, one in event.key.items() if name in own} or None)


def without_headers(records: pa.RecordBatch) -> pa.RecordBatch:
    """The records alone: whether a null value is a delete is known of a topic, and not by a header."""
    names = [name for name in records.schema.names if name != "headers"]
    return records.select(names)
