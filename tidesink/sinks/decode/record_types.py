"""Column types of debezium-json records without schemas, and the error if a table must wait for types.

Kafka Connect's JsonConverter without schemas (``schemas.enable: false``) and TiCDC with
``debezium-disable-schema`` write values with JSON's own types. A DECIMAL is then base64 text and a DATETIME a
number, and neither is useful in a text column.

A column's type comes from the first of these sources that has it: the definition in the config; schemas of
other records; the source database. If no source has it, the newest records are searched for schemas. If they
have no schema either, the table waits. But it does not wait if the config accepts text, has a definition, or
names a database that has the table: then a column without a type is text, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tidesink.codecs.debezium.inference import first_row
from tidesink.codecs.options import DebeziumOptions
from tidesink.events import Message, TableId, TableSchema
from tidesink.sinks.decode.database_types import DatabaseColumns, look_up_in
from tidesink.sinks.decode.debezium_json import (
    JsonWriter,
    Writers,
    first_writer,
    joined_types,
    typed_names,
    untyped_columns,
    untyped_refusal,
)
from tidesink.typemap.target_schema import LeftOut, needed_definition, needs_all

if TYPE_CHECKING:
    from tidesink.config import Config
    from tidesink.sinks.state.progress import StatusStore


class RecordTypes:
    """The column types of a topic's table whose records have no schemas. Used by one thread at a time.

    ``stores_text``: True if columns without a type may be stored as text. ``left_out``: returns True for a
    column that the target does not have, and that needs no type.
    """

    def __init__(
        self,
        topic: str,
        table: TableId,
        declared: TableSchema | None,
        database: DatabaseColumns,
        *,
        stores_text: bool,
        left_out: LeftOut = needs_all,
    ) -> None:
        self._topic = topic
        self._table = table
        self._declared = declared
        self._database = database
        self._stores_text = stores_text
        self._left_out = left_out

    @classmethod
    def of(
        cls,
        config: Config,
        topic: str,
        table: TableId,
        declared: TableSchema | None,
        store: StatusStore | None,
        *,
        keeps: bool = True,
    ) -> RecordTypes:
        """Create the object for a table from the config.

        ``store``: has the database's earlier answers. ``keeps``: False to store no new answers.
        """
        is_text = config.source.debezium.untyped_columns == "text"
        look = look_up_in(config.source.database)
        database = DatabaseColumns(config.pipeline, table, store, look, keeps=keeps, was_text=is_text)
        left_out = config.table_config(table).projection.leaves_out
        return cls(topic, table, declared, database, stores_text=is_text, left_out=left_out)

    @property
    def stored(self) -> TableSchema | None:
        """The columns that were found in the source database, or None."""
        return self._database.schema

    @property
    def schema(self) -> TableSchema | None:
        """The columns of the definition and of the source database. Their types decide how rows are read.

        Columns that the target does not have are left out, because their values need no type.
        """
        return needed_definition(joined_types(self._declared, self.stored), self._left_out)

    def untyped(self, writers: Writers) -> tuple[str, ...]:
        """Returns the columns that are stored as text because their types are unknown."""
        return untyped_columns(writers, self.schema, self._left_out)

    def settled(
        self,
        writers: Writers,
        newest: Callable[[], Iterable[JsonWriter]],
        joined: Callable[[Iterable[JsonWriter]], Writers] | None = None,
    ) -> Writers:
        """Find the types of all columns. Returns ``writers``, with the writers that were read to find types.

        ``writers``: the known writers (schemas of records). ``newest``: reads the newest writers with a
        schema from the topic. ``joined``: adds them to ``writers``.

        Raises:
            ConfigError: A column has no type and may not be text, so the table waits. Or the database refuses
                the user.
            SourceUnavailableError: The database does not answer.
            StateStoreError: The state store does not answer.
        """
        names = self.untyped(writers)
        if names:
            self._database.decide(names, typed_names(writers))
        if self._refused(writers):
            # The connector may send schemas by now. They supply the types of earlier records too.
            newest_writers = [*newest()]
            writers = writers.with_new(newest_writers) if joined is None else joined(newest_writers)
        if refused := self._refused(writers):
            asked, is_ticdc = self._database.can_ask, writers.reported_ticdc
            raise untyped_refusal(self._topic, self._table, refused, asked=asked, is_ticdc=is_ticdc)
        return writers

    def _refused(self, writers: Writers) -> tuple[str, ...]:
        """Returns the columns without a type that may not be text. If there are any, the table waits."""
        if self._stores_text or self._declared is not None:
            return ()
        return tuple(name for name in self.untyped(writers) if not self._database.covers(name))


def newest_typed(messages: Sequence[Message], options: DebeziumOptions) -> JsonWriter | None:
    """Returns the writer (schema) of the newest record that has both a schema and all columns, or None."""
    rows = (first_row([message], options) for message in reversed(messages))
    return next((first_writer(row) for row in rows if row is not None and not row.bare), None)
