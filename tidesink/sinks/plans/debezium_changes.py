"""What the decoders of debezium-avro and debezium-json tables have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.batch import ChangeTable, DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.debezium.remarks import ROUTED, routed_field
from tidesink.codecs.debezium.stored import recorded_value
from tidesink.errors import SchemaMismatchError, TidesinkError, UnnamedRowError
from tidesink.events import Column, ColumnType, Event, Message, Op, TableId, TableSchema, fold_name
from tidesink.sinks.batch.records import TableDecoder
from tidesink.typemap.table import ZeroDate
from tidesink.typemap.values import Convert

if TYPE_CHECKING:
    from tidesink.codecs.debezium.codec import DebeziumCodec


_EPOCH: Final = datetime(1970, 1, 1)
# By Arrow type what Debezium writes for a NOT NULL value that was not sent.
_ZEROS: Final[dict[int, Any]] = {
    **{kind.id: 0 for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind.id: 0.0 for kind in (pa.float32(), pa.float64())},
    pa.decimal128(1).id: Decimal(0),
    pa.bool_().id: False,
    pa.string().id: "",
    pa.binary().id: b"",
    pa.date32().id: _EPOCH.date(),
    pa.timestamp("us").id: _EPOCH,
}
_UNTYPED_ZEROS: Final = ("0", "false")
_OTHER_TABLE: Final = (
    "The change is of {}, and this topic is read as {}: a debezium topic must hold one table; name it under "
    "tables. If a transform routes several tables into the topic (ByLogicalTableRouter), let its keys have "
    "the field that tells the tables apart (key.enforce.uniqueness=true; {}), and "
    "leave that column among the table's keys (tables: keys). Or give each table a topic and bring them "
    "together with route and shard-column. Two tables whose names are the same in Kafka need topic names of "
    "their own"
)
_UNSURE_KEY: Final = (
    "The delete has only its key ({}), and a column of it has the value that Debezium writes for one that "
    "Postgres did not send. So the key may name another row than the deleted one: that is so where "
    "message.key.columns names columns outside of the replica identity. Set REPLICA IDENTITY FULL on the "
    "table. If these columns are the table's primary key or its replica identity, say so under tables: keys: "
    "[{}]"
)


@dataclass(frozen=True)
class DebeziumDecoder(TableDecoder):
    """Decodes one table's records.

    ``definition`` gives types where the config has them. ``tells_old_keys``: an update may come with another
    key in the row before it. Debezium sends a changed key as a delete and an insert. ``row_keys``: as
    ``ValueOptions.keys``. ``is_ticdc``: TiCDC wrote some of them. ``keys_stated``: the config says the key.
    """

    table: TableId
    options: CodecOptions
    zero_date: ZeroDate = "null"
    definition: TableSchema | None = None
    tells_old_keys: bool = True
    row_keys: frozenset[str] | None = None
    is_ticdc: bool = False
    keys_stated: bool = False

    @property
    @abstractmethod
    def _codec(self) -> DebeziumCodec:
        """The row codec; it has caches, and is made again in each process."""

    def decode(self, message: Message) -> tuple[Event, ...]:
        """One record's event."""
        return self._codec.decode(message)

    def decode_new_rows(self, records: pa.RecordBatch, keys: Sequence[str]) -> DecodedBatch:
        """As ``TableDecoder``."""
        named = frozenset(fold_name(name) for name in keys)

        def decode(message: Message) -> tuple[Event, ...]:
            return self._codec.decode_new_row(message, named)

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
        if self.keys_stated or changes.rows.schema.field("key").type.num_fields < 2:
            return
        key = changes.rows["key"].combine_chunks()
        blank = np.zeros(len(key), np.bool_)
        for member in key.type:
            values = pc.struct_field(key, member.name)
            found = [_ZEROS[member.type.id]] if member.type.id in _ZEROS else []
            # Without a schema a number that nothing types is text.
            found += _UNTYPED_ZEROS if self.is_bare and pa.types.is_string(member.type) else []
            for zero in found:
                zeros = pc.fill_null(pc.equal(values, pa.scalar(zero).cast(member.type)), False)
                blank |= zeros.to_numpy(zero_copy_only=False)
        if not blank.any():
            return
        deleted = pc.equal(changes.rows["op"].combine_chunks().dictionary_decode(), Op.DELETE.value)
        blank &= deleted.to_numpy(zero_copy_only=False) & self._key_alone(changes).to_numpy(
            zero_copy_only=False
        )
        names = ", ".join(member.name for member in key.type)
        for at in np.flatnonzero(blank).tolist():
            yield at, UnnamedRowError(_UNSURE_KEY.format(names, names))

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
        unsent = changes.rows["unavailable_before"].combine_chunks()
        keys = {member.name for member in changes.rows.schema.field("key").type}
        others = [c.name for c in changes.schema.columns if not c.virtual and c.name not in keys]
        return pc.fill_null(pc.greater_equal(pc.list_value_length(unsent), len(others)), False)


def without_headers(records: pa.RecordBatch) -> pa.RecordBatch:
    """The records alone: whether a null value is a delete is known of a topic, and not by a header."""
    names = [name for name in records.schema.names if name != "headers"]
    return records.select(names)
