"""What every codec of CODECS promises: on the bytes that our own encoders write."""

from __future__ import annotations

import json

import pytest

from tests.contracts.coded_changes import (
    CREATE,
    PROTOCOLS,
    TABLE,
    Changefeed,
    carries,
    first_changes,
    name_in,
    placed,
    wider_changes,
)
from tests.decoded_batches import as_records, assert_same
from tidesink.codecs import CODECS, open_codec
from tidesink.codecs.base import Codec
from tidesink.codecs.batch import ValueOptions, rows_from_events
from tidesink.codecs.open import ALIASES, Protocol
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError
from tidesink.events import ChangeEvent, DdlEvent, Message, Op, Row, TableSchema
from tidesink.schema_registry import MemorySchemaRegistry


@pytest.fixture(params=PROTOCOLS)
def feed(request: pytest.FixtureRequest) -> Changefeed:
    """What a changefeed of each protocol sends of one table."""
    protocol = str(request.param)
    sent = Changefeed(protocol, TableSchema(TABLE, ()), old_keys=carries(protocol).old_keys)
    sent.define(CREATE)
    first_changes(sent)
    wider_changes(sent)
    return sent


def codec_of(feed: Changefeed) -> Codec:
    """A reader's codec; where the messages do not tell every type, a person declared the table."""
    declared = None if carries(feed.protocol).types else TableDefinitions([feed.schema])
    return open_codec(
        feed.protocol, registry=feed.registry, table_of_topic=lambda _: TABLE, definitions=declared
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_columnar_step_has_a_text_about_the_records_that_it_leaves(protocol: str) -> None:
    codec = open_codec(protocol, registry=MemorySchemaRegistry())
    has_step = codec.columnar(ValueOptions()) is not None
    assert has_step == (CODECS[protocol].row_by_row != Protocol.row_by_row)


def test_no_two_protocols_share_a_name() -> None:
    assert len(ALIASES) == sum(1 + len(known.aliases) for known in CODECS.values())


def test_a_codec_knows_its_name(feed: Changefeed) -> None:
    assert codec_of(feed).name == feed.protocol


def test_what_was_encoded_is_decoded_again(feed: Changefeed) -> None:
    codec = codec_of(feed)
    for message, sent in zip(placed(feed.records), feed.events, strict=True):
        (event,) = codec.decode(message)
        assert isinstance(event, ChangeEvent | DdlEvent)
        assert event.table == sent.table
        assert event.position[:4] == (message.topic, message.partition, message.offset, 0)
        if isinstance(event, DdlEvent) or isinstance(sent, DdlEvent):
            assert isinstance(event, DdlEvent)
            assert isinstance(sent, DdlEvent)
            assert event.query == sent.query
            continue
        assert event.op in (sent.op, Op.UPSERT)
        assert event.after == _arrived(feed, sent.after)
        assert event.key == _arrived(feed, sent.key)
        assert event.before in (None, _arrived(feed, sent.before), event.key)
        assert event.schema is not None


def _arrived(feed: Changefeed, row: Row | None) -> Row | None:
    return row if row is None else {name_in(feed.protocol, name): value for name, value in row.items()}


def test_a_batch_is_what_its_records_are(feed: Changefeed) -> None:
    messages = [*placed(feed.records), *_damaged(feed)]
    reference = rows_from_events(as_records(messages), codec_of(feed).decode, ValueOptions())
    found = codec_of(feed).decode_batch(as_records(messages))
    assert_same(found, reference)
    assert {fault.record for fault in found.faults} == {*range(len(feed.records), len(messages))}


def test_what_cannot_be_decoded_names_its_place(feed: Changefeed) -> None:
    for message in _damaged(feed):
        with pytest.raises(DecodeError) as caught:
            codec_of(feed).decode(message)
        place = {"topic": message.topic, "partition": message.partition, "offset": message.offset}
        assert place.items() <= caught.value.context.items()


def _damaged(feed: Changefeed) -> list[Message]:
    """Values that are cut off, no message at all, or another program's."""
    last = feed.records[-1]
    assert last.value is not None
    values = [last.value[:-3], b"\xff no message", json.dumps({"hello": "world"}).encode(), b"[]", b"{"]
    at = len(feed.records)
    return [Message("shop_orders", 0, at + number, last.key, value) for number, value in enumerate(values)]
