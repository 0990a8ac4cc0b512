"""Two tables that were given one place, and one table in two topics, stay refused whatever is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.unit.sinks.worker.bed import worker_context
from tidesink.config import Config
from tidesink.errors import ConfigError, SourceUnavailableError
from tidesink.events import TableId
from tidesink.sinks.kafka.offsets import Look, PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.control import NOTHING_ASKED, TableControl
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.discovery import TableTasks
from tidesink.sinks.worker.table_task import TableTask

SALES, LEGACY = TableId("sales", "orders"), TableId("legacy", "orders")
HTTP = {"type": "http", "url": "http://127.0.0.1:1/x"}
ROUTED = changed(CANAL_JSON, target=HTTP, routes=[{"match": r"legacy\.orders", "to": "sales.orders"}])


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Callable[[Config], WorkerContext]]:
    store = SqlStateStore(str(tmp_path / "state.db"))
    yield partial(worker_context, store=store)
    store.close()


def _offsets(topic: str) -> TopicOffsets:
    return TopicOffsets(topic, f"id of {topic}", {0: PartitionOffsets(0, 9)})


def _followed(around: WorkerContext, **tables: tuple[TableId, ...]) -> tuple[TableTask, TableTask]:
    table_tasks = TableTasks(around, lambda found, _read: tables[found.topic])
    table_tasks.follow(Look({topic: _offsets(topic) for topic in tables}, {}), {})
    first, second = table_tasks
    return first, second


Asked = Callable[[], tuple[TableControl, ...]]
RESUMED: Asked = lambda: (NOTHING_ASKED, NOTHING_ASKED.resume({}))  # noqa: E731
RESTED: Asked = lambda: (NOTHING_ASKED.pause(), NOTHING_ASKED.pause().resume({}))  # noqa: E731


@pytest.mark.parametrize("asked", [RESUMED, RESTED])
@pytest.mark.parametrize(
    ("data", "tables", "reason"),
    [
        (ROUTED, {"app": (SALES, LEGACY)}, "sales.orders goes to sales.orders already"),
        (CANAL_JSON, {"app": (SALES,), "again": (SALES,)}, "appears in two topics, app and again"),
    ],
)
def test_going_on_lifts_no_refusal(
    around: Callable[[Config], WorkerContext],
    asked: Asked,
    data: dict[str, Any],
    tables: dict[str, tuple[TableId, ...]],
    reason: str,
) -> None:
    healthy, refused = _followed(around(right(data)), **tables)
    for control in asked():
        for table_task in (healthy, refused):
            table_task.apply_control(control)
    assert (healthy.state, refused.state) == ("IDLE", "FAILING")
    assert reason in str(refused.report().error)
    found = _offsets(refused.topic)
    assert not refused.has_work(found)
    assert healthy.has_work(found._replace(topic=healthy.topic))


def test_a_table_that_failed_for_another_reason_goes_on(around: Callable[[Config], WorkerContext]) -> None:
    table_task, _ = _followed(around(right(CANAL_JSON)), app=(SALES, LEGACY))
    table_task.fail(SourceUnavailableError("no answer"))
    for control in RESUMED():
        table_task.apply_control(control)
    assert table_task.state == "IDLE"


def test_a_failure_that_stays_is_not_waited_for_after_one_that_might_pass(
    around: Callable[[Config], WorkerContext],
) -> None:
    table_task, _ = _followed(around(right(CANAL_JSON)), app=(SALES, LEGACY))
    table_task.fail(SourceUnavailableError("no answer"))
    assert not table_task.status.is_stuck
    for control in RESUMED():
        table_task.apply_control(control)
    table_task.fail(ConfigError("no such thing"))
    assert table_task.status.is_stuck
    assert not table_task.status.cooldown.started


def test_a_topic_whose_only_table_is_refused_when_it_is_met_is_followed_again(
    around: Callable[[Config], WorkerContext],
) -> None:
    """Nobody else would meet the tables behind it: of a table that waits the next look is told."""
    reported: list[tuple[str, bool]] = []

    def tables_of(found: TopicOffsets, read: Mapping[int, int] | None) -> tuple[TableId, ...]:
        reported.append((found.topic, read is not None))
        return (SALES,)

    table_tasks = TableTasks(around(right(CANAL_JSON)), tables_of)

    def look() -> Look:
        return Look({topic: _offsets(topic) for topic in ("app", "again")}, {})

    table_tasks.follow(look(), {})
    assert table_tasks.newly_stuck()
    table_tasks.follow(look(), {})
    assert not table_tasks.newly_stuck()
    assert reported == [("app", False), ("again", False), ("app", False), ("again", True)]
