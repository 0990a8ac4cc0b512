"""Column types of debezium-json records without schemas, for ``validate --connect``.

The types are found in the same way as by a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tidesink.cli.sources import peek
from tidesink.cli.status import store_if_there
from tidesink.codecs.debezium.inference import (
    first_row,
)
from tidesink.codecs.options import DebeziumOptions
from tidesink.events import TableId
from tidesink.sinks.decode.debezium_json import JsonWriter, Writers, first_writer
from tidesink.sinks.decode.record_types import RecordTypes, newest_typed

if TYPE_CHECKING:
    from tidesink.config import Config

# Number of records to read at each partition's end, the same as in a worker.
_LAST_RECORDS: Final = 100
# Number of records to read at each partition's beginning to find a row.
_FIRST_RECORDS: Final = 20


def settled_types(
    config: Config, topic: str, table: TableId, writers: Writers
) -> tuple[RecordTypes, Writers]:
    """Return the types of a table's columns, and the writer schemas that the types came from.

    Raises:
        ConfigError: the type of a column is unknown, so that the table would wait in a worker; or the
            source database rejects the user.
        SourceUnavailableError: the source database or the broker does not answer.
        StateStoreError: the state store does not answer.
    """
    with store_if_there(config) as store:
        declared = config.definitions().get(table)
        types = RecordTypes.of(config, topic, table, declared, store, keeps=False)
        return types, types.settled(writers, lambda: _typed_at_ends(config, topic))


def _typed_at_ends(config: Config, topic: str) -> Iterator[JsonWriter]:
    properties, options = config.source.confluent_properties(), config.source.options_of(DebeziumOptions)
    messages = [*peek(properties, topic, most=_LAST_RECORDS, ends=True)]
    for number in sorted({message.partition for message in messages}):
        writer = newest_typed([record for record in messages if record.partition == number], options)
        if writer is not None:
            yield writer


def check_first_row(config: Config, topic: str) -> None:
    """Check that the column types of a topic's first row are known.

    Does nothing if the first records of the topic contain no row.

    Raises:
        ConfigError: the type of a column is unknown, so that the table would wait in a worker; or the
            source database rejects the user.
        SourceUnavailableError: the source database or the broker does not answer.
        StateStoreError: the state store does not answer.
    """
    properties, options = config.source.confluent_properties(), config.source.options_of(DebeziumOptions)
    row = first_row(peek(properties, topic, most=_FIRST_RECORDS), options)
    if row is not None:
        settled_types(config, topic, row.table, Writers().with_new([first_writer(row)]))
