"""DDL that empties a table, into every target: what a worker's task makes of it, wherever its rows are."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.contracts.coded_changes import CREATE, NAME, TABLE, TOPIC, Changefeed, placed, sent_again
from tests.contracts.coded_table import CodedTable, config_of, open_table
from tests.contracts.conftest import memory_bed
from tests.contracts.targets_bed import Bed
from tests.full import FULL, needs, quick_on
from tests.unit.config.samples import CANAL_JSON, changed
from tidesink.cli.main import app
from tidesink.codecs.base import CodecOptions, EncodedRecord
from tidesink.events import ChangeEvent, DdlEvent, Message, TableId, TableSchema
from tidesink.sinks.runtime.control import Requests
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN
from tidesink.sinks.worker.table_task import TableTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
Sent = tuple[EncodedRecord, ChangeEvent | DdlEvent]


def _in_two_partitions(sent: list[Sent]) -> list[Message]:
    """As TiCDC spreads records: DDL on the first partition, each key on one of the two."""
    ends, found = [0, 0], []
    for record, event in sent:
        key = () if isinstance(event, DdlEvent) or event.key is None else tuple(event.key.values())
        partition = zlib.crc32(repr(key).encode()) % 2 if key else 0
        found.append(Message(TOPIC, partition, ends[partition], record.key, record.value))
        ends[partition] += 1
    return found


def _feed(options: CodecOptions | None = None) -> Changefeed:
    """Rows, a TRUNCATE, other rows of the same keys, a TRUNCATE with nothing before it, and the last rows."""
    feed = Changefeed("canal-json", TableSchema(TABLE, ()), options or CodecOptions())
    feed.define(CREATE)
    for number in range(6):
        feed.put(number, 0, "first", number, "größe")
    feed.delete(3, 0)
    feed.truncate()
    for number in (1, 3, 5, 7):
        feed.put(number, 0, "second", number, None)
    feed.delete(5, 0)
    feed.truncate()
    feed.truncate()
    for number in (2, 3):
        feed.put(number, 0, "third", number, "")
    return feed


def _drain(table: CodedTable, table_task: TableTask, upto: int) -> None:
    """Batches until all that was sent by then is applied."""
    for _ in range(8):
        table.offer(table_task, upto)
        assert table_task.state in ("RUNNING", "IDLE"), table_task.report().error
        table_task.look(table.topic.found())
        if not table_task.reading.lag:
            return
    raise AssertionError(table_task.reading.lag)


def _alive(table: CodedTable, feed: Changefeed) -> list[dict[str, Any]]:
    """The rows that a reader takes for the table's."""
    rows = [row for row in table.bed.read(TABLE) if not row.get(SOFT_DELETE_COLUMN)]
    names = [column.name for column in feed.schema.columns]
    return sorted(({name: row[name] for name in names} for row in rows), key=lambda row: row["id"])


@quick_on("memory", "delta", "postgres")
@needs("rows")
@pytest.mark.parametrize(
    "said",
    [
        pytest.param({}, id="hard"),
        pytest.param({"deletes": "soft"}, id="soft", marks=[FULL, needs("soft-deletes")]),
        pytest.param({"sequence_by": "source"}, id="source", marks=[FULL, needs("source-order")]),
    ],
)
def test_the_target_has_the_rows_since_the_last_truncate(
    bed: Bed, spark: SparkSession, tmp_path: Path, said: dict[str, Any]
) -> None:
    """However the topic is cut, with a suffix sent again, which begins before each TRUNCATE."""
    feed = _feed(CodecOptions(enable_tidb_extension=True))
    sent = list(zip(feed.records, feed.events, strict=True))
    messages = _in_two_partitions(sent_again(sent, 6, 12))
    config = config_of(feed, **said, schema_changes={"truncate": "apply"})
    table = open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config)
    for upto in (6, 10, len(feed.records), len(messages)):
        with table.table_task() as table_task:
            _drain(table, table_task, upto)
            counters = table_task.report().counters
    assert _alive(table, feed) == list(feed.rows.values())
    # All of the suffix but what came after the last TRUNCATE is void.
    assert counters["read"] == sum(counters[name] for name in ("applied", "superseded", "without_row"))
    assert counters["superseded"] > 0


def test_without_the_tidb_extension_the_time_is_a_millisecond(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    feed = _feed()
    sent = list(zip(feed.records, feed.events, strict=True))
    messages = _in_two_partitions(sent_again(sent, 6))
    config = config_of(feed, schema_changes={"truncate": "apply"})
    table = open_table(
        memory_bed(request, tmp_path), spark, tmp_path, feed=feed, messages=messages, config=config
    )
    for upto in (9, len(messages)):
        with table.table_task() as table_task:
            _drain(table, table_task, upto)
    assert _alive(table, feed) == list(feed.rows.values())


class Waiting:
    """A table with two rows, a DDL, and a row of later; and a person's ``tidesink``."""

    def __init__(self, table: CodedTable, feed: Changefeed, folder: Path, before: int) -> None:
        self.table, self.feed, self.folder, self.before = table, feed, folder, before

    def turn(self, table_task: TableTask) -> None:
        """A worker's turns: heed what was asked, and read what was sent unless the table waits."""
        for _ in range(4):
            asked = Requests(self.table.around.store, "shop")
            asked.look()
            table_task.apply_control(asked.of(TABLE))
            if table_task.state != "PAUSED":
                self.table.offer(table_task, len(self.feed.records))

    def pending(self) -> list[dict[str, Any]]:
        """What the status shows."""
        (status,) = self.table.around.store.statuses("shop")
        return list(status.details.get("pending", []))

    def tidesink(self, *words: str) -> str:
        """What a person's command about the table says."""
        path = self.folder / "shop.yaml"
        path.write_text(yaml.safe_dump(changed(CANAL_JSON, state=str(self.folder / "state.db"))))
        found = CliRunner().invoke(app, [*words, str(TABLE), "-c", str(path)])
        return f"{found.exit_code} {found.output}"

    def ids(self) -> list[int]:
        """The keys of the target's rows."""
        return sorted(row["id"] for row in self.table.bed.read(TABLE))


Begin = Callable[..., Waiting]


@pytest.fixture
def begin(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Begin:
    """Makes a feed of two rows, DDL, and a row of after it; into memory."""

    def begun(*ddl: str, **policies: str) -> Waiting:
        feed = Changefeed("canal-json", TableSchema(TABLE, ()))
        feed.define(CREATE)
        feed.put(1, 0, "one", 1, None)
        feed.put(2, 0, "two", 2, None)
        before = len(feed.records)
        for sql in ddl:
            (feed.define if "RENAME COLUMN" in sql else feed.tell)(sql)
        feed.put(3, 0, "three", 3, None)
        messages = _in_two_partitions(list(zip(feed.records, feed.events, strict=True)))
        config = config_of(feed, schema_changes=policies)
        table = open_table(
            memory_bed(request, tmp_path), spark, tmp_path, feed=feed, messages=messages, config=config
        )
        return Waiting(table, feed, tmp_path, before)

    return begun


TRUNCATE = f"TRUNCATE TABLE {NAME}"
DROP_PARTITION = f"ALTER TABLE {NAME} DROP PARTITION p0"


def test_a_truncate_waits_until_it_is_accepted(begin: Begin) -> None:
    waiting = begin(TRUNCATE)
    with waiting.table.table_task() as table_task:
        waiting.table.take(table_task, waiting.before)
        waiting.turn(table_task)
        assert (table_task.state, waiting.ids()) == ("PAUSED", [1, 2])
        (shown,) = waiting.pending()
        assert (shown["kind"], shown["statement"], shown["accepts"]) == (
            "truncate",
            TRUNCATE,
            ["apply", "ignore"],
        )
        assert shown["time"].startswith("1970-01-01 00:00:0")
        assert TRUNCATE in str(table_task.report().error)
        assert waiting.tidesink("resume").startswith("0")
        waiting.turn(table_task)
        assert (table_task.state, waiting.pending()) == ("PAUSED", [shown])
        assert "approved" in waiting.tidesink("ddl", "approve")
        waiting.turn(table_task)
        assert (table_task.state, waiting.ids(), waiting.pending()) == ("IDLE", [3], [])
        assert table_task.report().warnings == ()


@pytest.mark.parametrize("policy", ["apply", "ignore"])
def test_what_a_policy_makes_of_a_truncate_is_listed(begin: Begin, policy: str) -> None:
    waiting = begin(TRUNCATE, truncate=policy)
    with waiting.table.table_task() as table_task:
        waiting.table.take(table_task, waiting.before)
        waiting.turn(table_task)
        assert waiting.ids() == ([3] if policy == "apply" else [1, 2, 3])
    (one,) = json.loads(waiting.tidesink("ddl", "list", "-o", "json")[2:])["changes"]
    state = "applied by policy" if policy == "apply" else "ignored by policy"
    assert (one["state"], one["kind"], one["statement"]) == (state, "truncate", TRUNCATE)


def test_a_truncate_that_is_ignored_stays_said(begin: Begin) -> None:
    waiting = begin(TRUNCATE)
    with waiting.table.table_task() as table_task:
        waiting.table.take(table_task, waiting.before)
        waiting.turn(table_task)
        assert "rejected" in waiting.tidesink("ddl", "reject")
        waiting.turn(table_task)
        assert (table_task.state, waiting.ids()) == ("IDLE", [1, 2, 3])
    # Also by a worker that finds it ignored, whatever the policy says by then: a later row is there.
    with waiting.table.table_task() as table_task:
        waiting.table.offer(table_task, len(waiting.feed.records))
        (said,) = table_task.report().warnings
        assert said == f"not applied, rows that TRUNCATE removed at the source stay in the target: {TRUNCATE}"


@pytest.mark.parametrize("options", [CodecOptions(), CodecOptions(enable_tidb_extension=True)])
def test_a_truncate_of_an_impossible_time_makes_no_later_row_void(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, options: CodecOptions
) -> None:
    """It waits to be ignored, whatever the policy says; the next one, of a sound time, is followed."""
    feed = Changefeed("canal-json", TableSchema(TABLE, ()), options)
    feed.define(CREATE)
    feed.put(1, 0, "one", 1, None)
    feed.tell(TRUNCATE, at=4_000_000_000_000 << 18)
    feed.put(2, 0, "two", 2, None)
    before = len(feed.records)
    feed.tell(TRUNCATE)
    feed.put(3, 0, "three", 3, None)
    sent = list(zip(feed.records, feed.events, strict=True))
    messages = [replace(one, timestamp=1_764_158_400_000) for one in _in_two_partitions(sent)]
    table = open_table(
        memory_bed(request, tmp_path),
        spark,
        tmp_path,
        feed=feed,
        messages=messages,
        config=config_of(feed, schema_changes={"truncate": "apply"}),
    )
    waiting = Waiting(table, feed, tmp_path, before)
    with table.table_task() as table_task:
        table.offer(table_task, before)
        (shown,) = waiting.pending()
        assert (table_task.state, waiting.ids(), shown["accepts"]) == ("PAUSED", [], ["ignore"])
        assert "the statement's commit time is impossible" in shown["reason"]
        assert "rejected" in waiting.tidesink("ddl", "reject")
        asked = Requests(table.around.store, "shop")
        asked.look()
        table_task.apply_control(asked.of(TABLE))
        _drain(table, table_task, before)
        assert waiting.ids() == [1, 2]
        _drain(table, table_task, len(messages))
        assert waiting.ids() == [3]
        (said,) = table_task.report().warnings
        assert said.startswith("not applied, rows that TRUNCATE removed at the source stay")


@pytest.mark.parametrize("rename", ["apply", "pause"])
def test_a_column_is_renamed_before_the_table_is_emptied(begin: Begin, rename: str) -> None:
    """The rows behind both have the new name, and no rows are left in which the old one would be missed."""
    renaming = f"ALTER TABLE {NAME} RENAME COLUMN `select` TO `chosen`"
    waiting = begin(renaming, TRUNCATE, rename=rename, truncate="apply")
    with waiting.table.table_task() as table_task:
        waiting.table.take(table_task, waiting.before)
        waiting.turn(table_task)
        if rename == "pause":
            assert (table_task.state, waiting.ids()) == ("PAUSED", [1, 2])
            assert [one["kind"] for one in waiting.pending()] == ["rename"]
            assert "approved" in waiting.tidesink("ddl", "approve")
            waiting.turn(table_task)
        assert (table_task.state, waiting.ids()) == ("IDLE", [3])
        (row,) = waiting.table.bed.read(TABLE)
        assert {name: row.get(name) for name in ("chosen", "select")} == {"chosen": "three", "select": None}


@pytest.mark.parametrize(
    ("kind", "sql"),
    [
        ("drop-table", f"DROP TABLE {NAME}"),
        pytest.param("rename-table", f"RENAME TABLE {NAME} TO `sh``op`.gone", marks=FULL),
    ],
)
def test_a_table_that_is_gone_at_the_source_waits_for_a_person(begin: Begin, kind: str, sql: str) -> None:
    """No DDL has its columns any more: what is left of its rows is read as it was."""
    waiting = begin(sql)
    with waiting.table.table_task() as table_task:
        waiting.table.take(table_task, waiting.before)
        waiting.turn(table_task)
        assert (table_task.state, waiting.ids()) == ("PAUSED", [1, 2]), table_task.report().error
        assert [one["kind"] for one in waiting.pending()] == [kind]
        assert "rejected" in waiting.tidesink("ddl", "reject")
        waiting.turn(table_task)
        assert (table_task.state, waiting.ids()) == ("IDLE", [1, 2, 3]), table_task.report().error


OTHER = TableId(TABLE.schema, "other")


@pytest.mark.parametrize(
    ("kind", "sql", "alone"),
    [
        ("partition", f"ALTER TABLE `sh``op`.other EXCHANGE PARTITION p0 WITH TABLE {NAME}", True),
        ("partition", f"ALTER TABLE `sh``op`.other EXCHANGE PARTITION p0 WITH TABLE {NAME}", False),
        pytest.param("rename-table", f"RENAME TABLE {NAME} TO `sh``op`.other", True, marks=FULL),
        pytest.param("rename-table", f"RENAME TABLE {NAME} TO `sh``op`.other", False, marks=FULL),
    ],
)
@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=FULL)])
def test_ddl_under_another_tables_name_is_known_before_later_rows_of_the_same_partition(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    sql: str,
    alone: bool,
    at_once: bool,
) -> None:
    """Also where tables read together, and where the DDL comes with no row of this table."""
    feed = Changefeed("canal-json", TableSchema(TABLE, ()))
    feed.define(CREATE)
    feed.put(1, 0, "one", 1, None)
    before = len(feed.records)
    feed.tell(sql, of=OTHER)
    feed.put(2, 0, "two", 2, None)
    table = open_table(
        memory_bed(request, tmp_path),
        spark,
        tmp_path,
        feed=feed,
        messages=placed(feed.records),
        config=config_of(feed),
    )
    if not alone:
        table.around.topics.reads(TOPIC).expect(OTHER)
    with table.table_task() as table_task:
        table.take(table_task, before)
        for upto in (before + 2,) if at_once else (before + 1, before + 2):
            table.offer(table_task, upto)
        (status,) = table.around.store.statuses("shop")
        assert [one["kind"] for one in status.details.get("pending", ())] == [kind]
        assert (table_task.state, [row["id"] for row in table.bed.read(TABLE)]) == ("PAUSED", [1])


@FULL
def test_statements_that_cannot_be_followed_are_accepted_as_ignored(begin: Begin) -> None:
    waiting = begin(TRUNCATE, DROP_PARTITION, f"RECOVER TABLE {NAME}")
    with waiting.table.table_task() as table_task:
        waiting.table.take(table_task, waiting.before)
        waiting.turn(table_task)
        assert [one["kind"] for one in waiting.pending()] == ["truncate"]
        waiting.tidesink("ddl", "approve")
        waiting.turn(table_task)
        assert (table_task.state, waiting.ids()) == ("PAUSED", [1, 2])
        assert [(one["kind"], one["accepts"]) for one in waiting.pending()] == [
            ("partition", ["ignore"]),
            ("unknown", ["ignore"]),
        ]
        assert "cannot be approved" in waiting.tidesink("ddl", "approve")
        waiting.tidesink("ddl", "reject")
        waiting.turn(table_task)
        assert (table_task.state, waiting.ids()) == ("IDLE", [3])


@FULL
def test_a_table_that_is_dropped_and_made_again_has_the_new_ones_rows(begin: Begin) -> None:
    create = CREATE.replace("`select` VARCHAR(40)", "`select` VARCHAR(50)")
    waiting = begin(f"DROP TABLE {NAME}", create, **{"drop-table": "apply"})
    with waiting.table.table_task() as table_task:
        waiting.table.take(table_task, waiting.before)
        waiting.turn(table_task)
        assert (table_task.state, waiting.ids()) == ("IDLE", [3])


@FULL
def test_a_log_of_changes_waits_for_nothing(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    feed = _feed()
    messages = _in_two_partitions(list(zip(feed.records, feed.events, strict=True)))
    table = open_table(
        memory_bed(request, tmp_path),
        spark,
        tmp_path,
        feed=feed,
        messages=messages,
        config=config_of(feed, mode="append"),
    )
    with table.table_task() as table_task:
        table.take(table_task, len(messages))
        (said,) = table_task.report().warnings  # of each statement once
        assert "rows that TRUNCATE removed" in said
    # Inserts and deletes, of one image each.
    assert len(table.bed.read(TABLE)) == sum(isinstance(one, ChangeEvent) for one in feed.events)
