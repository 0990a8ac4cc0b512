"""What the decoders of debezium-avro and debezium-json tables have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.batch import ChangeTable, ValueOptions
from tidesink.errors import SchemaMismatchError, TidesinkError
from tidesink.events import TableId, TableSchema
from tidesink.sinks.batch.decoders import TableDecoder
from tidesink.typemap.render import ZeroDate

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class DebeziumDecoder(TableDecoder):
    """Decodes one table's records.

    ``definition`` gives types where the config has them. ``tells_old_keys``: an update may come with another
    key in the row before it. Debezium sends a changed key as a delete and an insert.
    """

    table: TableId
    options: CodecOptions
    zero_date: ZeroDate = "null"
    definition: TableSchema | None = None
    tells_old_keys: bool = True

    @property
    def values(self) -> ValueOptions:
        """The policy for zero dates, and the zone."""
        return ValueOptions(self.zero_date, self.options.time_zone)

    @property
    def old_keys(self) -> bool:
        """Whether the row before an update tells its key."""
        return self.tells_old_keys

    def other_table(self, table: TableId) -> TidesinkError:
        """A bad record, with what to do."""
        return SchemaMismatchError(
            f"the change is of {table}, and this topic is read as {self.table}: a debezium topic must hold "
            "one table; name it under tables"
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


def without_headers(records: pa.RecordBatch) -> pa.RecordBatch:
    """The records alone: whether a null value is a delete is known of a topic, and not by a header."""
    names = [name for name in records.schema.names if name != "headers"]
    return records.select(names)
