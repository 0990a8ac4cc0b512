"""The headers of messages: a batch that is sent again says so, and one cut elsewhere is another."""

from __future__ import annotations

from dataclasses import replace

from tests.contracts.targets_bed import progress
from tidesink.sinks.state.progress import PartitionProgress, Progress, TopicProgress
from tidesink.sinks.targets.stream.kafka import message_headers
from tidesink.sinks.targets.stream.table import MessageEntry, MessageRow, Stamp

ENTRY = MessageEntry("shop", ("id",), epoch=1, sent_epoch=500, follows=300)
ROW = MessageRow("upsert", {"id": 1}, {"id": 1}, 5, (), ("shop_orders", 0, 7))


def _key(of: Progress, entry: MessageEntry = ENTRY) -> bytes | str | None:
    return dict(message_headers(Stamp.of(entry, of), ROW))["tidesink-idempotency-key"]


def _ending(of: Progress, *, topic_id: str = "topic-id", **partitions: int) -> Progress:
    ends = {int(name[1:]): PartitionProgress(end, end) for name, end in partitions.items()}
    return replace(of, topics={"shop_orders": TopicProgress("shop_orders", topic_id, ends)})


def test_a_batch_that_is_sent_again_by_another_epoch_has_the_same_key() -> None:
    first, again = progress(1, 7), progress(2, 7)
    assert _key(first) == _key(again, replace(ENTRY, epoch=2, sent_epoch=501))
    assert str(_key(first)).startswith("b'shop/shop.orders/7/")


def test_another_batch_and_one_cut_elsewhere_have_other_keys() -> None:
    known = progress(1, 7)
    others = [
        progress(1, 8),
        _ending(known, p0=71),
        _ending(known, p0=70, p1=1),
        _ending(known, topic_id="made again", p0=70),
    ]
    assert len({_key(known), *map(_key, others), _key(known, replace(ENTRY, pipeline="other"))}) == 6
    assert _key(_ending(known, p0=70)) == _key(known), "what it learnt on the way cuts nothing"


def test_a_batch_whose_number_comes_again_since_the_store_was_lost_has_another_key() -> None:
    assert _key(progress(1, 7)) != _key(progress(1, 7), replace(ENTRY, follows=500))


def test_a_message_says_its_epoch_and_batch_and_where_its_row_came_from() -> None:
    headers = dict(message_headers(Stamp.of(ENTRY, progress(3, 7)), ROW))
    assert (headers["tidesink-epoch"], headers["tidesink-batch"]) == (b"500", b"7")
    assert headers["tidesink-source"] == b"shop_orders/0/7"
    placeless = dict(message_headers(Stamp.of(ENTRY, progress(3, 7)), ROW._replace(place=None)))
    assert "tidesink-source" not in placeless
