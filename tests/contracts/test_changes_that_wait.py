"""Changes of a table before which a worker's task waits, and how it goes on (``docs/schema-changes.md``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.contracts.coded_changes import NAME, TABLE, Changefeed, placed
from tests.contracts.coded_table import CodedTable, config_of, open_table
from tests.contracts.conftest import memory_bed
from tests.full import FULL
from tests.unit.config.samples import CANAL_JSON, changed
from tidesink.cli.main import app
from tidesink.events import TableSchema
from tidesink.sinks.runtime.control import Requests
from tidesink.sinks.schema_changes.decisions import read_choices
from tidesink.sinks.worker.table_task import TableTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
CREATE = f"CREATE TABLE {NAME} (id BIGINT PRIMARY KEY, name VARCHAR(9) NOT NULL, size INT, note INT)"
CHANGED = f"ALTER TABLE {NAME} MODIFY COLUMN size BIGINT, DROP COLUMN note"
RENAMED = f"{CHANGED}, RENAME COLUMN name TO title"
REKEYED = f"ALTER TABLE {NAME} DROP PRIMARY KEY, ADD PRIMARY KEY (name)"


@dataclass(frozen=True)
class Waiting:
    """A changefeed with a DDL in its middle, a task over it, and a person's ``tidesink``."""

    feed: Changefeed
    table: CodedTable
    folder: Path
    before: int

    def rows(self) -> list[tuple[Any, ...]]:
        """What is at the target, with whichever columns it has."""
        return sorted(tuple(row.values()) for row in self.table.bed.read(TABLE))

    def turn(self, table_task: TableTask, upto: int | None = None) -> None:
        """A worker's turn: heed what was asked, and read what was sent unless the table waits."""
        asked = Requests(self.table.around.store, "shop")
        asked.look()
        table_task.apply_control(asked.of(TABLE))
        if table_task.state != "PAUSED":
            self.table.offer(table_task, len(self.feed.records) if upto is None else upto)

    def pending(self) -> dict[str, dict[str, Any]]:
        """By its kind, each change that the status shows."""
        (status,) = self.table.around.store.statuses("shop")
        return {one["kind"]: one for one in status.details.get("pending", [])}

    def tidesink(self, *words: str) -> int:
        """What a person's command about the table exits with."""
        path = self.folder / "shop.yaml"
        path.write_text(yaml.safe_dump(changed(CANAL_JSON, state=str(self.folder / "state.db"))))
        return CliRunner().invoke(app, [*words, str(TABLE), "-c", str(path)]).exit_code


Begin = Callable[..., Waiting]


@pytest.fixture
def begin(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Begin:
    """Makes a feed of two rows, a DDL, and rows that are inserted afterwards; into memory."""

    def begun(ddl: str, *inserted: tuple[Any, ...], **policies: str) -> Waiting:
        feed = Changefeed("canal-json", TableSchema(TABLE, ()))
        feed.define(CREATE)
        feed.put(1, "one", 10, 100)
        feed.put(2, "two", 20, 200)
        before = len(feed.records)
        feed.define(ddl)
        for row in inserted:
            feed.put(*row)
        config = config_of(feed, schema_changes=policies)
        bed, messages = memory_bed(request, tmp_path), placed(feed.records)
        table = open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config)
        return Waiting(feed, table, tmp_path, before)

    return begun


FIRST = [(1, "one", 10, 100), (2, "two", 20, 200)]


@pytest.mark.law("L7")
def test_a_wider_type_and_a_dropped_column_wait_until_they_are_accepted(begin: Begin) -> None:
    waiting = begin(CHANGED, (3, "three", 2**40), widen="pause", drop="pause")
    with waiting.table.table_task() as table_task:
        waiting.turn(table_task, waiting.before)
        waiting.turn(table_task)
        assert table_task.state == "PAUSED"
        shown = waiting.pending()
        assert {kind: (one["column"], one["from"], one["to"]) for kind, one in shown.items()} == {
            "widen": ("size", "int", "bigint"),
            "drop": ("note", "int(11)", ""),
        }
        assert waiting.tidesink("resume") == 0
        waiting.turn(table_task)
        assert (table_task.state, waiting.pending(), waiting.rows()) == ("PAUSED", shown, FIRST)
        assert waiting.tidesink("ddl", "approve") == 0
        waiting.turn(table_task)
        assert (table_task.state, waiting.pending()) == ("RUNNING", {})
    assert waiting.rows() == [(1, "one", 10), (2, "two", 20), (3, "three", 2**40)]


def test_what_policies_do_by_themselves_is_kept_once(begin: Begin) -> None:
    """However many batches find it, and workers; a rename before what waits, too, since it is done."""
    waiting = begin(RENAMED, (3, "three", 2**40), rename="apply", widen="pause")
    store = waiting.table.around.store

    def kept() -> list[tuple[str, str, str]]:
        found = read_choices(store, "shop", TABLE)
        return sorted((one.change["kind"], one.policy, one.change["column"]) for one in found)

    with waiting.table.table_task() as table_task:
        waiting.turn(table_task, waiting.before)
        assert kept() == []
        waiting.turn(table_task)
        assert (table_task.state, kept()) == ("PAUSED", [("rename", "apply", "name")])
        assert waiting.tidesink("ddl", "approve") == 0
        waiting.turn(table_task)
        assert table_task.state == "RUNNING"
    decided = [("drop", "ignore", "note"), ("rename", "apply", "name")]
    assert kept() == decided
    waiting.feed.put(4, "four", 40)
    with waiting.table.table_task() as table_task:
        waiting.turn(table_task)
    assert kept() == decided


@FULL
def test_another_key_waits_until_the_config_names_the_old_one(begin: Begin) -> None:
    waiting = begin(REKEYED, (3, "three", 30, 300))
    with waiting.table.table_task() as table_task:
        waiting.turn(table_task, waiting.before)
        waiting.turn(table_task)
        assert table_task.state == "PAUSED"
    # A worker that knows nothing but the new key finds what the rows were written under.
    with waiting.table.table_task() as table_task:
        waiting.turn(table_task)
        assert table_task.state == "PAUSED"
        change = waiting.pending()["key"]
        assert (change["from"], change["to"], change["accepts"]) == ("id", "name", [])
        assert waiting.tidesink("ddl", "approve") == 2
        assert waiting.tidesink("resume") == 0
        waiting.turn(table_task)
        assert (table_task.state, waiting.rows()) == ("PAUSED", FIRST)
    reported = replace(waiting.table.around, config=config_of(waiting.feed, keys=["id"]))
    with replace(waiting.table, around=reported).table_task() as table_task:
        waiting.turn(table_task)
        assert table_task.state == "RUNNING"
    assert waiting.rows() == [*FIRST, (3, "three", 30, 300)]
