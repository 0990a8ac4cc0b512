"""A copy that is not equal to its source is repaired while both change."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.e2e.forked_worker import die_at, drain
from tests.e2e.killing import steps_of, steps_of_a_part
from tests.e2e.live_source import (
    LiveTable,
    ask_snapshot,
    changing,
    in_order,
    live_config,
    live_table,
    shown_snapshot,
)
from tests.e2e.places import KINDS, Place, place_of
from tests.e2e.replay import Servers
from tests.full import FULL, quick_on
from tidesink.cli.main import app
from tidesink.config import Config, load_config
from tidesink.dev.lake_check import open_lake_table
from tidesink.events import TableId
from tidesink.sinks.runtime.control import read_controls
from tidesink.sinks.snapshots.asked_keys import AskedKeys, store_keys
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]


def _place(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    """A target; MariaDB is the source, too, so that the copy there has a name of its own."""
    found = place_of(kind, request, folder)
    if kind != "mysql":
        return found
    target = {**found.target, "table": "copy_{schema}.{table}"}
    return Place(target, lambda table: found.rows(TableId(f"copy_{table.schema}", table.name)))


def _ask(config: Config, table: LiveTable) -> None:
    """As ``tidesink resync`` does."""
    ask_snapshot(config, table, lambda asked: asked.start(time.time(), deletes=True))


def _run(config: Config, **how: Any) -> None:
    report = run(config, **how)
    assert report.exit_code == 0, [one.error for one in report.tables]


def _equal(place: Place, table: LiveTable) -> bool:
    return in_order(place.rows(table.name) or []) == in_order(table.rows())


def _spoil(place: Place, table: LiveTable) -> int:
    """Rows are missing, have other values, and are the target's alone; how many the last are."""
    with table.unsent():
        for _ in range(400):
            table.change()
    keys = {(row["region"], int(row["id"])) for row in table.rows()}
    alone = {(row["region"], int(row["id"])) for row in place.rows(table.name) or ()} - keys
    assert len(alone) > 50
    return len(alone)


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_a_copy_is_repaired_while_both_change(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    place = _place(kind, request, tmp_path)
    with live_table(mariadb_url, servers) as table:
        table.load(3_000)
        table.change()
        # MariaDB is the source, too: the copy needs a name of its own.
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, target=place.target))
        _run(config, until="drained")
        assert _equal(place, table)
        alone = _spoil(place, table)
        assert not _equal(place, table)
        _ask(config, table)
        with changing(table.change):
            _run(config, batches=12)
        _run(config, until="drained")
        shown = shown_snapshot(config)
        assert shown["state"] == "done"
        assert (shown["deletes"]["parts"], shown["deletes"]["done"]) == (2, 2)
        # Those of which the writer made rows again, or whose key it changed, are none of it any more.
        assert 0.5 * alone < shown["deletes"]["deletes"] <= alone
        assert _equal(place, table)


@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_killed_at_each_step_of_a_part_of_the_deletes(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    place, log = _place(kind, request, tmp_path), tmp_path / "worker.log"
    with live_table(mariadb_url, servers) as table:
        table.load(1_800)
        table.change()
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, target=place.target))
        _run(config, until="drained")
        # Keys of about four parts, since a part has five times as many as a batch of rows.
        path = live_config(tmp_path, servers, table, mariadb_url, rows=50, target=place.target)
        config = load_config(path)
        _spoil(place, table)
        _ask(config, table)
        _run(config, batches=15)
        while not shown_snapshot(config)["deletes"]["parts"]:
            _run(config, batches=1)
        assert shown_snapshot(config)["deletes"]["done"] == 0
        assert shown_snapshot(config)["deletes"]["parts"] >= 4
        for step in steps_of_a_part(kind):
            for _ in range(10):
                table.change()
            die_at(step, spark, path, log)
        drain(spark, path, log)
        assert shown_snapshot(config)["state"] == "done"
        assert _equal(place, table)


@pytest.mark.parametrize("kind", KINDS)
@quick_on("delta")
def test_only_the_keys_of_a_report_are_repaired(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """Half of them, while the table changes."""
    place = _place(kind, request, tmp_path)
    with live_table(mariadb_url, servers) as table:
        path = live_config(tmp_path, servers, table, mariadb_url, rows=600, target=place.target)

        def repair(config: Config) -> None:
            with changing(table.change, pause=0.1):
                _run(config, batches=3)
            _run(config, until="drained")

        _repair_half(table, place, path, tmp_path, repair)


@pytest.mark.parametrize("kind", KINDS)
@FULL
def test_killed_at_each_step_of_a_resync_of_keys(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    place, log = _place(kind, request, tmp_path), tmp_path / "worker.log"
    with live_table(mariadb_url, servers) as table:
        path = live_config(tmp_path, servers, table, mariadb_url, rows=60, target=place.target)

        def repair(_config: Config) -> None:
            for step in steps_of(kind):
                for _ in range(5):
                    table.change()
                die_at(step, spark, path, log)
            drain(spark, path, log)

        _repair_half(table, place, path, tmp_path, repair)


@FULL
@pytest.mark.parametrize("kind", KINDS)
@quick_on("postgres")
def test_only_a_range_of_the_key_is_compared_and_repaired(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """While the table changes; the range is another worker's, too, that goes on behind the first part."""
    place = _place(kind, request, tmp_path)
    with live_table(mariadb_url, servers) as table:
        table.load(600)
        table.change()
        path = live_config(tmp_path, servers, table, mariadb_url, rows=90, target=place.target)
        config = load_config(path)
        _run(config, until="drained")
        _spoil(place, table)
        keys = _reported(path, tmp_path / "report.jsonl")
        inside, outside = ("--where", "id >= 300"), ("--where", "300 > id")
        below = {key for key in keys if int(key[1]) < 300}
        assert _reported(path, tmp_path / "outside.jsonl", *outside) == below
        assert _reported(path, tmp_path / "inside.jsonl", *inside) == keys - below
        words = ["resync", str(table.name), "-c", str(path)]
        refused = CliRunner().invoke(app, [*words, "--where", "region > 'a'"])
        assert refused.exit_code == 2
        assert CliRunner().invoke(app, [*words, *inside]).exit_code == 0
        with changing(table.change, pause=0.1):
            _run(config, batches=2)
        assert shown_snapshot(config)["state"] == "running"
        _run(config, until="drained")
        shown = shown_snapshot(config)
        assert shown["state"] == "done"
        assert shown["deletes"]["deletes"] > 20
        assert _reported(path, tmp_path / "left.jsonl") <= below
        found = CliRunner().invoke(app, ["diff", "-c", str(path), "--lag", "0", *inside])
        assert found.exit_code == 0, found.output


@FULL
def test_a_key_that_is_given_is_repaired_and_no_other(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str, request: pytest.FixtureRequest
) -> None:
    place = _place("delta", request, tmp_path)
    with live_table(mariadb_url, servers) as table:
        table.load(200)
        table.change()
        path = live_config(tmp_path, servers, table, mariadb_url, target=place.target)
        config = load_config(path)
        _run(config, until="drained")
        _spoil(place, table)
        keys = _reported(path, tmp_path / "report.jsonl")
        given = sorted(keys)[::9]
        words = ["resync", str(table.name), "-c", str(path)]
        for region, number in given:
            words += ["--key", f"id={number},region={region}"]
        assert CliRunner().invoke(app, words).exit_code == 0
        _run(config, until="drained")
        assert shown_snapshot(config)["state"] == "done"
        assert _reported(path, tmp_path / "left.jsonl") == keys - {*given}


@FULL
def test_keys_that_the_table_cannot_be_asked_for_are_refused(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    """By the worker, which knows the table: a warning, and what is under way goes on."""
    with live_table(mariadb_url, servers) as table:
        table.load(600)
        table.change()
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, rows=100))

        def ask(*columns: str) -> None:
            with closing(open_state_store(config.state)) as store:
                asked = AskedKeys(columns, (("1",) * len(columns),))
                name = store_keys(store, config.pipeline, table.name, asked)
            ask_snapshot(config, table, lambda asked: asked.start(time.time(), deletes=True, keys=name))

        def refused(said: str) -> None:
            with closing(open_state_store(config.state)) as store:
                (status,) = store.statuses(config.pipeline)
                assert read_controls(store, config.pipeline)[table.name].snapshot.keys is None
            assert any(said in one for one in status.warnings), status.warnings

        _run(config, batches=1)
        ask("region", "id")
        _run(config, batches=2)
        refused("snapshot has not finished")
        _run(config, until="drained")
        assert shown_snapshot(config)["rows"] == len(table.rows())
        ask("id")
        _run(config, until="drained")
        refused("The requested keys have the columns (id), but the table's key at the target is (region, id)")
        assert shown_snapshot(config)["state"] == "done"
        # A key that no row has.
        ask("region", "id")
        _run(config, until="drained")
        assert (shown_snapshot(config)["state"], shown_snapshot(config)["rows"]) == ("done", 0)


def _repair_half(
    table: LiveTable, place: Place, path: Path, folder: Path, repair: Callable[[Config], None]
) -> None:
    """Have half of the keys that differ repaired, and see that the others are left as they are."""
    table.load(600)
    table.change()
    config = load_config(path)
    _run(config, until="drained")
    _spoil(place, table)
    report, half = folder / "report.jsonl", folder / "half.jsonl"
    keys = _reported(path, report)
    lines = report.read_text(encoding="utf-8").splitlines(keepends=True)[::2]
    half.write_text("".join(lines), encoding="utf-8")
    asked = {_key_of(line) for line in lines}
    kinds = {json.loads(line)["kind"] for line in lines}
    assert kinds == {"different", "only_at_source", "only_at_target"}
    words = ["resync", str(table.name), "--differing", str(half), "-c", str(path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    repair(config)
    shown = shown_snapshot(config)
    assert shown["state"] == "done"
    assert 0 < shown["rows"] <= len(asked)
    assert (shown["deletes"]["parts"], shown["deletes"]["done"]) == (1, 1)
    assert shown["deletes"]["deletes"] > 20
    left = _reported(path, folder / "left.jsonl")
    assert left <= keys - asked
    assert len(left) > len(asked) // 2


def _key_of(line: str) -> tuple[str, ...]:
    return tuple(json.loads(line)["key"].values())


def _reported(config: Path, report: Path, *more: str) -> set[tuple[str, ...]]:
    """The keys that a comparison's report names."""
    words = ["diff", "-c", str(config), "--lag", "0", "--report", str(report), *more]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 3, found.output
    return {_key_of(line) for line in report.read_text(encoding="utf-8").splitlines()}


@FULL
def test_deletes_mark_and_a_shard_keeps_to_its_rows(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    """Columns that are left out, renamed or the target's own, a filter, and another table's rows beside."""
    with live_table(mariadb_url, servers) as table, live_table(mariadb_url, servers) as other:
        settings = {
            "except_column_list": ["data"],
            "rename": {"note": "remark", "region": "area"},
            "filter": "price IS NULL OR price > 0",
            "metadata": {"batch": "of_batch"},
            "deletes": "soft",
        }
        more: dict[str, Any] = {
            "tables": [{"name": str(one.name), **settings} for one in (table, other)],
            "routes": [{"match": ".*", "to": "all.orders", "shard-column": "origin"}],
        }
        for one in (table, other):
            one.load(600)
            one.change()
        path = live_config(tmp_path, servers, table, mariadb_url, **more)
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
        written["source"]["topics"] = [table.topic, other.topic]
        path.write_text(yaml.safe_dump(written), encoding="utf-8")
        config = load_config(path)
        _run(config, until="drained")
        assert _diff(path) == 0
        with table.unsent():
            for _ in range(300):
                table.change()
        assert _diff(path) == 3
        before = len(open_lake_table(tmp_path / "lake" / "all" / "orders").read())
        _ask(config, table)
        _run(config, until="drained")
        assert _diff(path) == 0
        assert len(open_lake_table(tmp_path / "lake" / "all" / "orders").read()) >= before
        with closing(open_state_store(config.state)) as store:
            status = store.status_of(config.pipeline, table.name)
        assert status is not None
        assert status.details["snapshot"]["deletes"]["deletes"] > 20


def _diff(config: Path) -> int:
    """The exit code of a comparison of both tables."""
    found = CliRunner().invoke(app, ["diff", "-c", str(config), "--lag", "0"])
    assert found.exit_code in (0, 3), found.output
    return found.exit_code


@FULL
def test_where_the_source_has_no_index_of_the_key_all_its_rows_are_read(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    mariadb_url: str,
    request: pytest.FixtureRequest,
) -> None:
    place = place_of("delta", request, tmp_path)
    with live_table(mariadb_url, servers) as table:
        table.load(900)
        table.change()
        tables = [{"name": str(table.name), "keys": ["id"]}]
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, tables=tables))
        _run(config, until="drained")
        _spoil(place, table)
        _ask(config, table)
        _run(config, until="drained")
        assert shown_snapshot(config)["deletes"]["parts"] == 1
        assert shown_snapshot(config)["deletes"]["deletes"] > 20
        assert _equal(place, table)
