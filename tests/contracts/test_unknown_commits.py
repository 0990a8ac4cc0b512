"""A worker whose commit is cut off asks the database first, and goes on with what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.contracts.coded_changes import CREATE, TABLE, TOPIC, Changefeed, first_changes, placed
from tests.contracts.coded_table import CodedTable, config_of, open_table
from tests.contracts.sql_beds import sql_bed, target_of
from tests.contracts.targets_bed import Bed
from tests.full import quick_on
from tests.tcp_proxy import Cut, commit_proxy
from tidesink.events import TableSchema
from tidesink.sinks.laws.counts import Account
from tidesink.sinks.runtime.observers import Listeners, StepRetried, WorkerEvent
from tidesink.sinks.targets.sql.dialect import Connections
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = quick_on("postgres")


# Of first_changes, the batch cut behind its first delete: a DDL, and three rows that newer changes replace.
COUNTS: Final = Account(read=13, applied=9, superseded=3, without_row=1).as_counters()


class Heard:
    """What a worker says of steps it tries again."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def hear(self, event: WorkerEvent) -> None:
        """Keep the reason of another try."""
        if isinstance(event, StepRetried):
            self.errors.append(event.error.message)


def open_on(bed: Bed, spark: SparkSession, folder: Path, feed: Changefeed, heard: Heard) -> CodedTable:
    """A table behind the changefeed's records, whose worker is heard."""
    config, messages = config_of(feed, retry_for="600s"), placed(feed.records)
    table = open_table(bed, spark, folder, feed=feed, messages=messages, config=config)
    return replace(table, around=replace(table.around, listeners=Listeners([heard])))


@pytest.mark.law("L8")
@pytest.mark.parametrize(
    ("how", "tried_again"),
    [
        ("unsent", ["The commit was interrupted and did not happen. The batch is tried again."]),
        ("unanswered", []),
    ],
)
def test_a_commit_that_is_cut_off_is_done_once(
    sql: Bed,
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    how: Cut,
    tried_again: list[str],
) -> None:
    feed = Changefeed("canal-json", TableSchema(TABLE, ()))
    feed.define(CREATE)
    first_changes(feed)
    heard, all_of_it = Heard(), len(feed.records)
    server = target_of(sql).connections
    with commit_proxy(server.endpoint.host, server.endpoint.port) as proxy:
        endpoint = replace(server.endpoint, host="127.0.0.1", port=proxy.port, tls="disable")
        bed = sql_bed(request, Connections(server.dialect, endpoint))
        table = open_on(bed, spark, tmp_path, feed, heard)
        with table.table_task() as table_task:
            table.take(table_task, 6)
            proxy.cut = how
            table.take(table_task, all_of_it)
            counted = table_task.report().counters
        assert (proxy.cuts, heard.errors) == (1, tried_again)
    assert counted == COUNTS
    assert replace(table, bed=sql).rows(shape_of(feed.schema)) == [
        row for _, row in sorted(feed.rows.items())
    ]
    progress = sql.target.open_table(shape_of(feed.schema), pipeline="shop").committed()
    assert progress is not None
    assert (progress.batch, progress.next_offset(TOPIC, 0)) == (2, all_of_it)
