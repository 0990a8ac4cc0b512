"""The workload's records without a broker, and what is left of a table when they are read back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, CodecOptions
from tidesink.dev import shop
from tidesink.dev.shop import Change, ShopChanges
from tidesink.dev.workload import OutgoingRecord, RecordEncoder, resend_suffixes
from tidesink.events import ChangeEvent, Message, Op, Row, TableId, Value
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.schema_registry.naming import TopicRule

RULE = TopicRule.parse("{schema}_{table}")
PARTITIONS = 3
Rows = dict[TableId, dict[tuple[Value, ...], Row]]


class ShopRecords(NamedTuple):
    """All records in sending order; ``again`` says which of them were sent before."""

    changes: ShopChanges
    made: tuple[Change, ...]
    records: tuple[OutgoingRecord, ...]
    again: tuple[bool, ...]
    registry: MemorySchemaRegistry


def shop_records(
    protocol: str, *, seed: int = 1, events: int = 1_500, restart_every: int = 150, extension: bool = True
) -> ShopRecords:
    """What ``tidesink dev workload`` would send."""
    registry = MemorySchemaRegistry()
    options = CodecOptions(enable_tidb_extension=extension)
    encoder = RecordEncoder(open_codec(protocol, options=options, registry=registry), RULE, PARTITIONS)
    changes = ShopChanges(seed, events)
    made = tuple(change for transaction in changes.transactions() for change in transaction)
    encoded = [record for change in made if (record := encoder.encode(change)) is not None]
    sent = list(resend_suffixes(encoded, Random(seed), restart_every))
    return ShopRecords(
        changes, made, tuple(record for record, _ in sent), tuple(again for _, again in sent), registry
    )


def open_decoder(protocol: str, registry: MemorySchemaRegistry) -> Codec:
    """A codec that is told the tables of the topics, and no type."""
    tables = {RULE.topic_for(table): table for table in shop.CREATE}
    return open_codec(protocol, registry=registry, table_of_topic=tables.get)


def messages(records: Sequence[OutgoingRecord]) -> list[Message]:
    """The records as a broker would number them."""
    offsets: Counter[tuple[str, int]] = Counter()
    made = []
    for record in records:
        place = record.topic, record.partition
        made.append(Message(*place, offsets[place], record.key, record.value))
        offsets[place] += 1
    return made


def replayed(codec: Codec, sent: Sequence[Message]) -> Rows:
    """The rows left when every message is applied in its partition's order."""
    rows: Rows = {table: {} for table in shop.CREATE}
    for message in sent:
        for event in codec.decode(message):
            if isinstance(event, ChangeEvent):
                _apply(rows[event.table], event)
    return rows


def _apply(rows: dict[tuple[Value, ...], Row], event: ChangeEvent) -> None:
    assert event.key is not None
    key = tuple(event.key[name] for name in sorted(event.key))
    if event.op is Op.DELETE:
        rows.pop(key, None)
    else:
        assert event.after is not None
        rows[key] = event.after
