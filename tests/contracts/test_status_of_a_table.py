"""The word on a table in the state store: of the worker that holds it, and of every batch it applied."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.columns import ID
from tests.contracts.coded_changes import NAME, TABLE, TOPIC, Changefeed, placed
from tests.contracts.coded_table import CodedTable, config_of, open_table
from tests.contracts.conftest import BEDS, memory_bed
from tests.contracts.targets_bed import Bed, shape, sql
from tests.full import FULL
from tidesink.cli.plan import with_merge_reason
from tidesink.cli.table_plans import plan_of
from tidesink.errors import StateStoreError
from tidesink.events import TableId, TableSchema
from tidesink.sinks.kafka.offsets import OffsetRange, RecordSize
from tidesink.sinks.runtime.context import Failpoints
from tidesink.sinks.runtime.control import TableControl
from tidesink.sinks.runtime.shared_reads import Limits
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.sharing import quote_identifier
from tidesink.sinks.worker.table_task import TableTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROWS: Final = 3
# Before the rows is the DDL that makes their table.
FIRST: Final = 2


@pytest.fixture
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> CodedTable:
    """One in memory."""
    return _behind_rows(memory_bed(request, tmp_path), spark, tmp_path)


def _behind_rows(bed: Bed, spark: SparkSession, folder: Path) -> CodedTable:
    """A bed's table behind a topic of its DDL and some rows."""
    feed = Changefeed("canal-json", TableSchema(TABLE, ()))
    feed.define(f"CREATE TABLE {NAME} (id BIGINT PRIMARY KEY, size INT)")
    for number in range(ROWS):
        feed.put(number, number)
    return open_table(bed, spark, folder, feed=feed, messages=placed(feed.records), config=config_of(feed))


def _status(table: CodedTable) -> TableStatus:
    status = table.around.store.status_of("shop", TABLE)
    assert status is not None
    return status


def _work_off(table: CodedTable, table_task: TableTask) -> TableStatus:
    """Apply what is left, record by record, and rest; the status then."""
    for upto in range(table.topic.sent + 1, FIRST + ROWS):
        table.take(table_task, upto)
    table_task.rest()
    return _status(table)


def _has_lost(table_task: TableTask) -> bool:
    return table_task.state == "FAILING" and str(table_task.report().error).startswith("StaleProgressError: ")


class _Then(Failpoints):
    """Has something happen once, at a step of a batch."""

    def __init__(self, step: str, then: Callable[[], None]) -> None:
        super().__init__(None)
        self._step: str | None = step
        self._then = then

    def reach(self, name: str) -> None:
        """Do it where this is the step."""
        if name == self._step:
            self._step = None
            self._then()


def test_one_that_rested_when_another_took_its_table_says_so_in_its_own_report_alone(
    table: CodedTable,
) -> None:
    with table.table_task() as rested, table.table_task() as holds:
        table.take(rested, FIRST)
        rested.rest()
        table.take(holds, FIRST + 1)
        holds.rest()
        status = _status(table)
        assert (status.batch, status.counters["read"], status.state) == (2, FIRST + 1, "IDLE")
        table.offer(rested, FIRST + 2)
        assert _has_lost(rested)
        assert _status(table) == status


@FULL
def test_one_that_slept_between_its_commit_and_its_word_on_it_has_lost_the_table(table: CodedTable) -> None:
    said = []
    with table.table_task() as holds:
        asleep = _Then("committed", lambda: said.append(_work_off(table, holds)))
        around = replace(table.around, failpoints=asleep)
        with replace(table, around=around).table_task() as slept:
            table.offer(slept, FIRST)
            assert (said[0].state, said[0].batch) == ("IDLE", ROWS)
            assert _has_lost(slept)
            assert slept.report().counters["read"] == FIRST  # it did apply them
            slept.rest()
            assert _has_lost(slept)
        assert _status(table) == said[0]


@FULL
def test_nobody_keeps_records_for_one_that_learns_at_rest_that_it_lost_its_table(table: CodedTable) -> None:
    reads, limits = table.around.topics.reads(TOPIC), Limits(10, 10_000, RecordSize())
    with table.table_task() as table_task:
        table.take(table_task, FIRST)
        table.around.store.save_status(replace(_status(table), epoch=2))
        table_task.rest()
        assert _has_lost(table_task)
        ahead = OffsetRange(TOPIC, 0, FIRST, FIRST + 1)
        assert reads.plan(TableId("shop", "other"), [ahead], table.topic.found(), limits=limits).kept is None


@FULL
def test_a_table_that_is_loaded_anew_has_a_status_of_its_own(
    table: CodedTable, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with table.table_task() as former:
        table.take(former, FIRST)
        table.take(former, FIRST + 1)
        again = replace(table, bed=memory_bed(request, tmp_path))  # whose epochs begin again
        with again.table_task() as table_task:
            again.take(table_task, FIRST)
            status = _status(table)
            assert (status.state, status.batch, status.epoch) == ("RUNNING", 1, 1)
            former.rest()
            assert _has_lost(former)
            assert _status(table) == status


def test_a_worker_counts_on_from_what_others_counted_since_it_began(table: CodedTable) -> None:
    with table.table_task() as waits, table.table_task() as holds:
        table.take(holds, FIRST)
        waits.apply_control(TableControl(rests=True))
        assert _status(table).state == "PAUSED"
        table.take(holds, FIRST + 1)
        waits.apply_control(TableControl())
        table.take(waits, FIRST + 2)
    assert _status(table).counters["read"] == FIRST + 2


class _Silent(SqlStateStore):
    """A state store that now and then does not answer to what is informed of a batch."""

    silent = False

    def save_status(self, status: TableStatus) -> bool:
        self._answer()
        return super().save_status(status)

    def save_document(self, kind: str, name: str, document: Any) -> None:
        self._answer()
        super().save_document(kind, name, document)

    def swap_document(self, kind: str, name: str, *, old: Any | None, new: Any) -> bool:
        self._answer()
        return super().swap_document(kind, name, old=old, new=new)

    def _answer(self) -> None:
        if self.silent:
            raise StateStoreError("locked")


def test_a_batch_counts_though_the_state_store_was_silent_behind_its_commit(
    table: CodedTable, tmp_path: Path
) -> None:
    store = _Silent(str(tmp_path / "state.db"))
    silence = _Then("committed", lambda: setattr(store, "silent", True))
    silenced = replace(table, around=replace(table.around, store=store, failpoints=silence))
    with silenced.table_task() as table_task:
        silenced.take(table_task, FIRST)
        assert table_task.report().counters["read"] == FIRST
        assert _known(store) is None
        store.silent = False
        silenced.take(table_task, FIRST + 1)
        assert _status(table).counters["read"] == FIRST + 1
        # What the first batch could not have kept, the second did.
        assert _known(store) == ["id", "size"]
    store.close()


def _known(store: SqlStateStore) -> Any:
    """The columns of the table's last batch, as far as the state store knows them."""
    document = store.load_document("known-columns", json.dumps(["shop", *TABLE], ensure_ascii=False))
    return None if document is None else document["columns"]


# What has Spark write the batches of a table that is there, the reason, and what ends it.
LEFT: Final = [
    pytest.param(
        "delta",
        "ADD CONSTRAINT small CHECK (size < 1000)",
        "the table has a CHECK constraint",
        "DROP CONSTRAINT small",
        id="delta",
    ),
    pytest.param(
        "iceberg",
        "SET TBLPROPERTIES ('write.merge.mode' = 'copy-on-write')",
        "the table's property write.merge.mode is copy-on-write",
        "SET TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')",
        id="iceberg",
        marks=FULL,
    ),
]


@pytest.mark.parametrize(("kind", "change", "reason", "back"), LEFT)
def test_why_a_lake_is_merged_is_known_until_it_is_not(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    change: str,
    reason: str,
    back: str,
) -> None:
    """Also to ``plan``, which asks no target, and while the next worker has applied nothing yet."""
    bed = BEDS[kind](request, tmp_path / "lake")
    target: Any = bed.target
    delta = kind == "delta"
    location = f"delta.{quote_identifier(target.path_of(TABLE))}" if delta else target.location_of(TABLE)
    table = _behind_rows(bed, spark, tmp_path)

    def planned(path: str | None = None) -> list[str]:
        found = plan_of(table.around.config, TOPIC, shape(ID, table=TABLE), types_from="ddl")
        found = replace(found, path=path or found.path)
        return [one.text for one in with_merge_reason(found, _status(table)).limits if one.kind == "merge"]

    with table.table_task() as first:
        table.take(first, FIRST)
        assert planned() == []
        ran = _status(table).details["executor"]
        assert ran["name"] == table.around.config.batch.executor
        sql(bed, f"ALTER TABLE {location} {change}")
        table.take(first, FIRST + 1)
        assert _status(table).details["left_to_spark"] == f"merged by MERGE: {reason}"
        assert planned() == [f"batches of the existing table are merged by MERGE: {reason}"]
        assert planned("elsewhere") == []
    with table.table_task() as second:
        table.offer(second, FIRST + 1)
        assert second.state == "IDLE"
        assert _status(table).details["executor"] == ran
        assert len(planned()) == 1
        sql(bed, f"ALTER TABLE {location} {back}")
        table.take(second, FIRST + 2)
        assert planned() == []
    assert len(bed.read(TABLE)) == ROWS
