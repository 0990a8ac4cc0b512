"""When a comparison gives up waiting for a worker that is alive."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.unit.sinks.worker.bed import worker_context
from tests.worker_contexts import no_fetch
from tidesink.ddl.topic_statements import DdlStatement
from tidesink.errors import TidesinkError
from tidesink.events import TableId
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.decode.topic_ddl import TOPIC_ABSENT
from tidesink.sinks.diff.table_copy import Standstill, TableCopy
from tidesink.sinks.kafka.offsets import TopicOffsets
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore

ORDERS = TableId("shop", "orders")


def test_a_table_that_nobody_comes_to_is_given_up() -> None:
    """Time counts from the last record that was applied, and not while a batch of the table is under way."""
    now = [0.0]
    still = Standstill(60, clock=lambda: now[0])
    course = [
        (0, 9, False, False),
        (59, 9, False, False),
        (60, 9, False, True),
        (61, 8, False, False),  # something was applied
        (120, 8, False, False),
        (130, 8, True, False),  # a batch has begun, and takes its time
        (999, 8, True, False),
        (1058, 8, False, False),
        (1059, 8, False, True),
    ]
    for seconds, waiting, at_work, expected in course:
        now[0] = seconds
        assert still.lasts(waiting, at_work=at_work) == expected, seconds


def test_a_worker_that_waits_for_the_next_cut_is_not_given_up() -> None:
    """What is above the bound is applied once all tables stand at it."""
    lake = changed(CANAL_JSON, source__enable_tidb_extension=True, target={"path": "./lake"})
    for every, least in (("1m", 60), ("2h", 7200)):
        context: Any = SimpleNamespace(config=right({**lake, "cuts": {"every": every}}))
        assert TableCopy(context, ORDERS, ExitStack(), lambda _: None)._patience() > 2 * least


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ({TOPIC_ABSENT: True}, "The target has no such table"),
        ({}, "The topic was deleted"),
    ],
)
def test_a_table_whose_topic_is_not_there_yet_is_compared(
    details: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """It goes on to the target: nothing waits in a topic that is to come. One that was there is gone."""
    config = right(CANAL_JSON)
    with closing(SqlStateStore(str(tmp_path / "state.db"))) as store:
        brokers = cast("Any", SimpleNamespace(lookup=lambda _topics: {}))
        topics = Topics("shop", KafkaSource(no_fetch), store, ask=lambda: brokers)
        created = DdlStatement("shop", "CREATE TABLE orders (id int PRIMARY KEY)", 1)
        topics.ddl("app").define(TopicOffsets("app", "", {}), created)
        store.save_status(TableStatus("shop", ORDERS, "IDLE", details={"topic": "app", **details}))
        context = replace(worker_context(config, store=store), topics=topics)
        with pytest.raises(TidesinkError, match=said):
            TableCopy(context, ORDERS, ExitStack(), lambda _: None).open()
