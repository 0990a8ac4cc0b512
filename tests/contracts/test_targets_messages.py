"""What targets that pass changes on promise beside the contract: at least once, and what they refuse."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contracts.conftest import BEDS, MESSAGE_TARGETS
from tests.contracts.message_beds import kafka_bed, stamp_of
from tests.contracts.targets_bed import AMOUNT, Bed, progress, row, shape
from tests.kafka_topics import topic_messages
from tests.reduction_law import unsent_columns
from tests.servers import delete_topic, limit_messages
from tidesink.codecs.open import open_codec
from tidesink.codecs.options import PLACEHOLDER, DebeziumModes, DebeziumOptions
from tidesink.config.targets import KafkaSettings
from tidesink.errors import (
    SchemaRefusedError,
    StaleProgressError,
    StateStoreError,
    TargetError,
    TransientTargetError,
    ValueNotStoredError,
)
from tidesink.events import ChangeEvent, Column, ColumnType
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.base import Claim, ReducedBatch
from tidesink.sinks.targets.stream.http_endpoint import HttpTarget
from tidesink.sinks.targets.stream.kafka import (
    IDEMPOTENCY_HEADER,
    SOURCE_HEADER,
    KafkaTarget,
    place_of,
    try_target,
)

if TYPE_CHECKING:
    from tidesink.sinks.state.progress import StateStore

SHAPE = shape()
pytestmark = [pytest.mark.spark, pytest.mark.servers]


@pytest.fixture(params=MESSAGE_TARGETS)
def messages(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """Each target of messages."""
    return BEDS[request.param](request, tmp_path / "lake")


@pytest.fixture
def kafka(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """Kafka alone."""
    return kafka_bed(request, tmp_path / "lake")


class _CutOff(SqlStateStore):
    """A state store whose next write of a ledger fails."""

    armed = False

    def swap_document(self, kind: str, name: str, **more: Any) -> bool:
        if self.armed:
            self.armed = False
            raise StateStoreError("the state store does not answer")
        return super().swap_document(kind, name, **more)


def with_store(bed: Bed, store: StateStore) -> Any:
    assert isinstance(bed.target, HttpTarget | KafkaTarget)
    return replace(bed.target, store=store)


def test_what_was_sent_and_not_written_down_is_sent_again(messages: Bed, tmp_path: Path) -> None:
    store = _CutOff(str(tmp_path / "cut.db"))
    table = with_store(messages, store).open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(messages.batch(SHAPE, [row(1)]), progress(epoch, 1))
    batch = messages.batch(SHAPE, [row(1, "b"), row(2)], [{"id": 3}])
    store.armed = True
    with pytest.raises(StateStoreError):
        table.apply(batch, progress(epoch, 2))
    assert table.committed() == progress(epoch, 1)
    result = table.apply(batch, progress(epoch, 2))
    assert (result.upserted, result.deleted) == (2, 1)
    assert messages.rows() == [row(1, "b"), row(2)]
    assert table.committed() == progress(epoch, 2)
    store.close()


def test_a_newer_change_wins_after_the_store_was_lost_or_went_back(messages: Bed, tmp_path: Path) -> None:
    first, older = tmp_path / "first.db", tmp_path / "older.db"
    send(messages, first)
    shutil.copy(first, older)
    send(messages, first)
    send(messages, first, [row(1, "old"), row(2)])
    send(messages, tmp_path / "lost.db", [row(1, "old"), row(2)], [row(1, "newer")])
    assert messages.rows() == [row(1, "newer"), row(2)]
    send(messages, older, [row(1, "newest")])
    assert messages.rows() == [row(1, "newest"), row(2)]


def send(bed: Bed, path: Path, *batches: list[dict[str, Any]]) -> None:
    """The first batches of a table, by a worker that claims it in the store at a path."""
    with closing(SqlStateStore(str(path))) as store:
        table = with_store(bed, store).open_table(SHAPE, pipeline="shop")
        epoch = table.claim().epoch
        for number, rows in enumerate(batches, 1):
            table.apply(bed.batch(SHAPE, rows), progress(epoch, number))


def test_of_two_who_claim_the_ledger_one_holds_the_table(messages: Bed) -> None:
    first = messages.target.open_table(SHAPE, pipeline="shop")
    second = messages.reopen().open_table(SHAPE, pipeline="shop")
    assert {first.claim().epoch, second.claim().epoch} == {1, 2}
    with pytest.raises(StaleProgressError, match=r"[Aa]nother worker holds this table"):
        first.apply(messages.batch(SHAPE, [row(1)]), progress(1, 1))
    second.apply(messages.batch(SHAPE, [row(2)]), progress(2, 1))
    assert messages.rows() == [row(2)]


def test_rows_sent_under_another_key_are_no_longer_told_apart(messages: Bed) -> None:
    messages.target.open_table(SHAPE, pipeline="shop").claim()
    other = Column("name", ColumnType("varchar", length=20), nullable=False, handle=True, primary_key=True)
    with pytest.raises(SchemaRefusedError, match=r"under the key \(id\)"):
        messages.reopen().open_table(shape(AMOUNT, other), pipeline="shop").claim()


def test_soft_deletes_are_refused(messages: Bed) -> None:
    with pytest.raises(SchemaRefusedError, match="deletes: hard"):
        messages.target.open_table(SHAPE, pipeline="shop", delete_mode="soft")


def test_a_null_key_is_refused(messages: Bed) -> None:
    table = messages.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    with pytest.raises(TargetError, match="NULL") as caught:
        table.apply(messages.batch(SHAPE, [{"id": None, "name": "a", "amount": 1}]), progress(epoch, 1))
    assert not isinstance(caught.value, TransientTargetError)
    assert caught.value.context["table"] == "shop.orders"
    assert table.committed() is None


def test_a_value_that_was_left_out(messages: Bed) -> None:
    table = messages.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    kept = messages.batch(SHAPE, [row(1, None, 5)], kept=("name",))
    if messages.name == "kafka":  # canal-json has no word for it
        with pytest.raises(ValueNotStoredError, match=r"value of name.*debezium-json") as caught:
            table.apply(kept, progress(epoch, 1))
        assert caught.value.context["topic"] == "shop_orders"
        return
    table.apply(kept, progress(epoch, 1))
    assert messages.rows() == [row(1, None, 5)]  # the member is not there
    after_delete = messages.batch(SHAPE, [row(1, None, 6)], kept=("name",), after_delete=True)
    with pytest.raises(ValueNotStoredError, match="so the value is lost"):
        table.apply(after_delete, progress(epoch, 2))


def test_a_truncate(messages: Bed) -> None:
    table = messages.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(messages.batch(SHAPE, [row(1), row(2)]), progress(epoch, 1))
    empty = ReducedBatch(SHAPE, 0, 0, truncates=True)
    if messages.name == "kafka":
        with pytest.raises(
            TargetError, match="but no message that every reader understands can express that"
        ):
            table.apply(empty, progress(epoch, 2))
        assert len(messages.rows()) == 2
        return
    table.apply(empty, progress(epoch, 2))
    assert messages.rows() == []


def settings_of(bed: Bed, **more: Any) -> KafkaSettings:
    assert isinstance(bed.target, KafkaTarget)
    given = {name.replace("_", "-"): value for name, value in more.items()}
    known = bed.target.settings.model_dump(by_alias=True, exclude_unset=True)
    return KafkaSettings.model_validate({**known, **given})


def test_messages_say_their_batch_and_place_and_keep_to_one_partition(kafka: Bed, brokers: str) -> None:
    assert isinstance(kafka.target, KafkaTarget)
    table = kafka.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    for number in (1, 2):
        rows = [row(key, f"n{number}") for key in range(30)]
        table.apply(kafka.batch(SHAPE, rows), progress(epoch, number))
    topic = kafka.target.settings.rule.topic_for(SHAPE.table)
    found = topic_messages(brokers, topic)
    assert len(found) == 60
    keys = {(dict(one.headers)[IDEMPOTENCY_HEADER] or b"").rpartition(b"/")[0] for one in found}
    assert keys == {b"shop/shop.orders/1", b"shop/shop.orders/2"}
    stamps = {stamp_of(one) for one in found}
    assert (len({reported for reported, _ in stamps}), {batch for _, batch in stamps}) == (1, {1, 2})
    assert (dict(found[0].headers)[SOURCE_HEADER] or b"").startswith(b"shop_orders/0/")
    assert {one.partition for one in found} == {0, 1, 2}
    places: dict[bytes, set[int]] = {}
    for one in found:
        places.setdefault(dict(one.headers)[SOURCE_HEADER] or b"", set()).add(one.partition)
    assert {len(partitions) for partitions in places.values()} == {1}


def test_a_topic_is_made_as_asked_or_not_at_all(kafka: Bed, topic_prefix: str) -> None:
    named = {"topic": f"{topic_prefix}-other-{{schema}}_{{table}}"}
    refused = KafkaTarget(settings_of(kafka, **named, auto_create_topic=False), SqlStateStore(":memory:"))
    with pytest.raises(TargetError, match="auto-create-topic") as caught:
        refused.open_table(SHAPE, pipeline="shop")
    assert caught.value.context["topic"] == f"{topic_prefix}-other-shop_orders"
    settings = settings_of(kafka, **named, partition_num=5)
    assert try_target(settings).startswith(settings.bootstrap_servers)
    assert place_of(settings, SHAPE.table) == f"kafka:{topic_prefix}-other-shop_orders"
    too_many = KafkaTarget(settings_of(kafka, **named, replication_factor=99), SqlStateStore(":memory:"))
    with pytest.raises(TargetError, match="replication-factor"):
        too_many.open_table(SHAPE, pipeline="shop")


def test_a_topic_that_was_made_again_is_another(kafka: Bed, brokers: str) -> None:
    assert isinstance(kafka.target, KafkaTarget)
    table = kafka.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.apply(kafka.batch(SHAPE, [row(1)]), progress(epoch, 1))
    topic = kafka.target.settings.rule.topic_for(SHAPE.table)
    delete_topic(brokers, topic)
    with pytest.raises(StaleProgressError, match="Start the worker again"):
        table.apply(kafka.batch(SHAPE, [row(2)]), progress(epoch, 2))
    again = kafka.reopen().open_table(SHAPE, pipeline="shop")
    assert again.claim() == Claim(1, None)
    again.apply(kafka.batch(SHAPE, [row(1), row(2)]), progress(1, 1))
    assert kafka.rows() == [row(1), row(2)]


def test_a_message_that_is_too_large_ends_the_batch(kafka: Bed) -> None:
    target = KafkaTarget(settings_of(kafka, max_message_bytes=1000), SqlStateStore(":memory:"))
    table = target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    with pytest.raises(TargetError, match="max-message-bytes") as caught:
        table.apply(kafka.batch(SHAPE, [row(1, "x" * 2000)]), progress(epoch, 1))
    assert not isinstance(caught.value, TransientTargetError)
    assert table.committed() is None


def set_most_bytes(bed: Bed, brokers: str, most: int) -> None:
    assert isinstance(bed.target, KafkaTarget)
    limit_messages(brokers, bed.target.settings.rule.topic_for(SHAPE.table), most)


def test_a_message_above_the_topics_limit_ends_the_batch_and_is_not_lost(kafka: Bed, brokers: str) -> None:
    table = kafka.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    set_most_bytes(kafka, brokers, 20_000)
    table.apply(kafka.batch(SHAPE, [row(1)]), progress(epoch, 1))
    large = kafka.batch(SHAPE, [row(1, "b"), row(2, "x" * 30_000), row(3)], [{"id": 4}])
    with pytest.raises(
        TargetError, match=r"of 30\d{3} bytes \(row from shop_orders/0/1\) .*max.message"
    ) as caught:
        table.apply(large, progress(epoch, 2))
    assert not isinstance(caught.value, TransientTargetError)
    assert table.committed() == progress(epoch, 1)
    set_most_bytes(kafka, brokers, 40_000)
    again = kafka.reopen().open_table(SHAPE, pipeline="shop")
    epoch = again.claim().epoch
    assert again.apply(large, progress(epoch, 2)).applied == 4
    assert kafka.rows() == [row(1, "b"), row(2, "x" * 30_000), row(3)]


def test_messages_are_sent_together_up_to_the_size_that_the_target_says(kafka: Bed, brokers: str) -> None:
    kafka.target.open_table(SHAPE, pipeline="shop")
    set_most_bytes(kafka, brokers, 20_000)
    store = SqlStateStore(":memory:")
    rows = [row(number, "x" * 500) for number in range(300)]
    table = KafkaTarget(settings_of(kafka), store).open_table(SHAPE, pipeline="shop")
    with pytest.raises(TargetError, match=r"must be at least target\.max-message-bytes"):
        table.apply(kafka.batch(SHAPE, rows), progress(table.claim().epoch, 1))
    fitting = KafkaTarget(settings_of(kafka, max_message_bytes=20_000), store)
    table = fitting.open_table(SHAPE, pipeline="shop")
    table.apply(kafka.batch(SHAPE, rows), progress(table.claim().epoch, 1))
    assert kafka.rows() == rows


def test_no_broker_may_pass(kafka: Bed) -> None:
    settings = settings_of(kafka, brokers="127.0.0.1:9")
    with pytest.raises(TransientTargetError, match=r"target\.brokers"):
        try_target(settings)


@pytest.mark.parametrize("after_delete", [False, True])
def test_debezium_says_that_a_value_was_left_out(
    kafka: Bed, brokers: str, topic_prefix: str, after_delete: bool
) -> None:
    from pyspark.sql.functions import lit

    settings = settings_of(kafka, protocol="debezium-json", topic=f"{topic_prefix}-dbz-{{schema}}_{{table}}")
    table = KafkaTarget(settings, SqlStateStore(":memory:")).open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    batch = kafka.batch(SHAPE, [row(1, None, 5)], kept=("name",), after_delete=after_delete)
    assert batch.frame is not None
    frame = batch.frame.withColumn("_commit_ts", lit(1 << 20).cast("bigint"))
    batch = replace(batch, make_frame=lambda: frame)
    if after_delete:
        with pytest.raises(ValueNotStoredError, match="so the value is lost"):
            table.apply(batch, progress(epoch, 1))
        return
    table.apply(batch, progress(epoch, 1))
    (message,) = topic_messages(brokers, settings.rule.topic_for(SHAPE.table))
    reported = DebeziumOptions(debezium=DebeziumModes(unavailable_value_placeholder=PLACEHOLDER))
    (event,) = open_codec("debezium-json", options=reported).decode(message)
    assert isinstance(event, ChangeEvent)
    assert (event.after, event.commit_ts) == ({"id": 1, "amount": 5}, 1 << 20)
    assert unsent_columns(event) == ("name",)
