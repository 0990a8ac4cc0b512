"""``tidesink snapshot``: without a worker, by way of the state store; and ``plan`` with a real database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from tests.e2e.live_source import live_table
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tests.mysql_values import own_database
from tests.unit.config.samples import FLAT_AVRO, changed
from tidesink.cli.main import app
from tidesink.cli.offsets import _refuse_meanwhile
from tidesink.cli.snapshot import _change
from tidesink.config import load_config
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.runtime.control import (
    NOTHING_ASKED,
    RewindControl,
    SnapshotControl,
    change_control,
    read_controls,
)
from tidesink.sinks.snapshots.asked_keys import AskedKeys, load_keys
from tidesink.sinks.state.progress import Progress, SnapshotProgress, Sweep, TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore

ORDERS = TableId("shop", "orders")
DATABASE = "mysql+pymysql://reader:SECRET@127.0.0.1:1"


def _run(path: Path, *words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, [*words, "-c", str(path)])
    return found.exit_code, found.output


def _asked(store: SqlStateStore) -> SnapshotControl:
    return read_controls(store, "shop")[ORDERS].snapshot


def _config(folder: Path, **more: Any) -> Path:
    path = folder / "shop.yaml"
    settings = changed(FLAT_AVRO, state=str(folder / "state.db"), **more)
    # No broker listens there, whatever else runs on this machine.
    settings["source"] = {**settings["source"], "database": DATABASE, "brokers": "127.0.0.1:1"}
    path.write_text(yaml.safe_dump(settings))
    return path


@contextmanager
def _stored_orders(url: str, folder: Path, store: SqlStateStore) -> Iterator[tuple[Path, TableId]]:
    """A table in the database, with a key of two columns, that a worker knows."""
    with own_database(url) as (connection, schema):
        connection.exec_driver_sql(
            "CREATE TABLE orders (`Id` int, word varchar(9), PRIMARY KEY (`Id`, word))"
        )
        table = TableId(schema, "orders")
        store.save_status(TableStatus("shop", table, "IDLE"))
        path = _config(folder)
        settings = yaml.safe_load(path.read_text())
        settings["source"]["database"] = url
        path.write_text(yaml.safe_dump(settings))
        yield path, table


@pytest.fixture
def store(tmp_path: Path) -> SqlStateStore:
    found = SqlStateStore(str(tmp_path / "state.db"))
    found.save_status(TableStatus("shop", ORDERS, "IDLE"))
    return found


def test_a_snapshot_is_asked_for_rests_goes_on_and_ends(tmp_path: Path, store: SqlStateStore) -> None:
    path = _config(tmp_path)
    code, output = _run(path, "snapshot", "start", "SHOP.orders")
    assert code == 0
    assert "shop.orders: snapshot requested" in output
    first = _asked(store).started
    assert _run(path, "snapshot", "pause", "shop.orders")[0] == 0
    assert _asked(store) == SnapshotControl(first, rests=True)
    assert _run(path, "snapshot", "resume", "shop.orders")[0] == 0
    assert _asked(store) == SnapshotControl(first)
    assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    assert _asked(store) == SnapshotControl(first, cancelled=first)
    code, output = _run(path, "snapshot", "start", "shop.orders", "-o", "json")
    assert json.loads(output)["tables"] == [{"schema": "shop", "name": "orders"}]
    assert _asked(store).started > first
    # What is asked of the table itself stays.
    assert _run(path, "pause", "shop.orders")[0] == 0
    assert _run(path, "resume", "shop.orders")[0] == 0
    assert _asked(store).started > first


def test_what_the_target_has_counts_where_the_store_was_lost_and_the_clock_is_behind(
    tmp_path: Path, store: SqlStateStore
) -> None:
    path, ahead = _config(tmp_path), 9_000_000_000
    shown = {"state": "done", "number": ahead, "rows": 5, "estimate": 20}
    store.save_status(TableStatus("shop", ORDERS, "RUNNING", batch=1, details={"snapshot": shown}))
    for command in (("snapshot", "start"), ("resync",), ("resync",)):
        assert _run(path, *command, "shop.orders")[0] == 0
    assert _asked(store) == SnapshotControl(ahead + 3, deletes=True)
    assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    assert _asked(store).cancelled == ahead + 3


def test_a_resync_is_a_snapshot_that_deletes(tmp_path: Path, store: SqlStateStore) -> None:
    path = _config(tmp_path)
    code, output = _run(path, "resync", "SHOP.orders")
    assert code == 0
    assert "shop.orders: resync requested" in output
    first = _asked(store).started
    assert _asked(store) == SnapshotControl(first, deletes=True)
    assert _run(path, "snapshot", "pause", "shop.orders")[0] == 0
    assert _asked(store) == SnapshotControl(first, rests=True, deletes=True)
    assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    assert _run(path, "snapshot", "start", "shop.orders")[0] == 0
    assert not _asked(store).deletes
    code, output = _run(_config(tmp_path, defaults={"mode": "append"}), "resync", "shop.orders")
    assert code == 2
    assert "mode: append" in output


def test_a_resync_of_the_keys_of_a_report(tmp_path: Path, store: SqlStateStore) -> None:
    path, report = _config(tmp_path), tmp_path / "report.jsonl"
    words = ("resync", "shop.orders", "--differing", str(report))
    assert _run(path, *words)[0] == 2
    lines = [{"table": ORDERS._asdict(), "kind": "only_at_target", "key": {"id": key}} for key in ("2", None)]
    report.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    code, output = _run(path, *words)
    assert code == 0
    assert "shop.orders: resync of the report's keys requested" in output
    assert "1 key contains NULL. Rows with NULL in the key are left unchanged" in output
    first = _asked(store)
    assert first.deletes
    assert first.keys is not None
    assert load_keys(store, first.keys) == AskedKeys(("id",), (("2",),))
    # Another one replaces it, and its keys.
    report.write_text(report.read_text().replace("2", "3"))
    assert _run(path, *words)[0] == 0
    assert load_keys(store, first.keys) is None
    assert load_keys(store, _asked(store).keys or "") == AskedKeys(("id",), (("3",),))
    # A table that the report does not name has nothing to repair.
    second = _asked(store)
    report.write_text("")
    code, output = _run(path, *words, "-o", "json")
    assert code == 0
    assert "has no key of this table" in output
    assert _asked(store) == second
    # A snapshot of the whole table would not go on.
    shown = {"state": "running", "rows": 5, "estimate": 20}
    store.save_status(TableStatus("shop", ORDERS, "RUNNING", batch=1, details={"snapshot": shown}))
    code, output = _run(path, *words)
    assert code == 2
    assert "has not finished (running)" in output


def test_one_of_all_rows_that_no_worker_has_begun_is_not_replaced(
    tmp_path: Path, store: SqlStateStore
) -> None:
    """Nothing but what is asked knows of it yet."""
    path, report = _config(tmp_path), tmp_path / "report.jsonl"
    differing = {"table": ORDERS._asdict(), "kind": "only_at_target", "key": {"id": "2"}}
    report.write_text(f"{json.dumps(differing)}\n")
    words = ("resync", "shop.orders", "--differing", str(report))
    assert _run(path, "resync", "shop.orders")[0] == 0
    asked = _asked(store)
    code, output = _run(path, *words)
    assert (code, "no worker has begun" in output) == (2, True), output
    assert _asked(store) == asked
    # A worker did it, or it was cancelled.
    done = SnapshotProgress(("id",), done=True, number=asked.started)
    store.record_progress(Progress(ORDERS, "shop", 1, 4, snapshot=done))
    store.save_status(TableStatus("shop", ORDERS, "IDLE", batch=4))
    assert _run(path, *words)[0] == 0
    assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    assert _run(path, "snapshot", "start", "shop.orders")[0] == 0
    assert _run(path, *words)[0] == 2
    assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    assert _run(path, *words)[0] == 0


def test_a_request_that_no_worker_has_begun_is_shown(tmp_path: Path, store: SqlStateStore) -> None:
    """By status and snapshot status, until a worker begins it or it is cancelled."""
    path, report = _config(tmp_path), tmp_path / "report.jsonl"
    done = {"state": "done", "number": 5, "rows": 77, "estimate": 80}
    store.record_progress(
        Progress(ORDERS, "shop", 1, 4, snapshot=SnapshotProgress(("id",), rows=77, done=True, number=5))
    )
    idle = TableStatus("shop", ORDERS, "IDLE", batch=4, details={"snapshot": done})
    store.save_status(idle)

    def shown() -> tuple[dict[str, Any], dict[str, Any], str, str]:
        requests = json.loads(_run(path, "status", "-o", "json")[1])["asked_to_snapshot"]
        tables = json.loads(_run(path, "snapshot", "status", "-o", "json")[1])["tables"]
        of_status, of_snapshots = (
            " ".join(_run(path, *words)[1].split()) for words in (("status",), ("snapshot", "status"))
        )
        return {**(requests or [{}])[0]}, {**tables[0]}, of_status, of_snapshots

    request, snapshot, text, table = shown()
    assert (request, snapshot["state"], snapshot["rows"]) == ({}, "done", 77)
    assert "requested" not in text + table
    assert _run(path, "resync", "shop.orders")[0] == 0
    begins = "A worker begins it at the table's next turn, or when the table is resumed"
    # The worker looks at the request before it begins, and saves the earlier snapshot's rows as running.
    for entry in (idle, replace(idle, details={"snapshot": {**done, "state": "running"}})):
        store.save_status(entry)
        request, snapshot, text, table = shown()
        since = datetime.fromtimestamp(_asked(store).started, timezone.utc)
        assert request.pop("since") == since.isoformat()
        assert request.pop("table") == ORDERS._asdict()
        assert request == {"deletes": True, "limited": False, "keys": None, "where": None, "rests": False}
        assert (snapshot["state"], snapshot["rows"]) == ("requested", 0)
        assert snapshot["request"]["deletes"]
        for line in (text, table):
            assert (
                f"shop.orders: resync of all rows requested at {since:%Y-%m-%d %H:%M:%S} UTC. {begins}"
                in line
            )
            assert "77" not in line
    # What it waits for is shown besides.
    reason = "2 prepared XA transactions are open"
    waits = {**done, "state": "waiting", "reason": reason}
    store.save_status(replace(idle, details={"snapshot": waits}))
    assert shown()[1]["state"] == "waiting"
    assert reason in shown()[2]
    store.save_status(idle)
    assert _run(path, "snapshot", "pause", "shop.orders")[0] == 0
    assert shown()[0]["rests"]
    assert f"`tidesink snapshot resume --config {path} shop.orders` lets a worker begin it" in shown()[2]
    # A worker has begun it.
    begun = SnapshotProgress(("id",), number=_asked(store).started)
    store.record_progress(Progress(ORDERS, "shop", 1, 5, snapshot=begun))
    store.save_status(TableStatus("shop", ORDERS, "PAUSED", batch=5, details={}))
    assert "requested" not in _run(path, "status")[1]
    # One of some keys, which is cancelled.
    store.record_progress(Progress(ORDERS, "shop", 1, 6, snapshot=replace(begun, done=True)))
    store.save_status(TableStatus("shop", ORDERS, "IDLE", batch=6, details={"snapshot": done}))
    differing = {"table": ORDERS._asdict(), "kind": "only_at_target", "key": {"id": "2"}}
    report.write_text(f"{json.dumps(differing)}\n")
    assert _run(path, "resync", "shop.orders", "--differing", str(report))[0] == 0
    assert shown()[0]["keys"] == 1
    assert "resync of 1 key requested" in shown()[2]
    assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    assert "requested" not in _run(path, "status")[1]


_CUTS: Final[dict[str, Any]] = {
    "source__enable_tidb_extension": True,
    "source__avro_enable_watermark": True,
    "cuts": {},
}
_REWIND: Final = RewindControl(7, "shop_orders", "id", ((0, 5),))


def test_a_rewind_beside_a_requested_snapshot_is_refused(tmp_path: Path, store: SqlStateStore) -> None:
    """A worker would refuse it later."""
    path = _config(tmp_path)
    words = ("offsets", "rewind", "shop.orders", "--to-offset", "0=1")
    store.save_status(TableStatus("shop", ORDERS, "IDLE", details={"topic": "shop_orders"}))
    for command in (("resync",), ("snapshot", "start")):
        assert _run(path, *command, "shop.orders")[0] == 0
        code, output = _run(path, *words)
        assert code == 2
        assert "A snapshot of the table is running or requested" in " ".join(output.split())
        assert read_controls(store, "shop")[ORDERS].rewind is None
        assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    # The request is gone, so that the brokers are asked.
    code, output = _run(path, *words)
    assert (code, "snapshot of the table" in output) == (1, False), output


@pytest.mark.parametrize("command", [("resync",), ("snapshot", "start")])
def test_a_snapshot_beside_a_requested_rewind_is_refused(
    tmp_path: Path, store: SqlStateStore, command: tuple[str, ...]
) -> None:
    """A worker would refuse the rewind then, although it was requested first."""
    path, other = _config(tmp_path), TableId("shop", "other")
    store.save_status(TableStatus("shop", other, "IDLE"))
    change_control(store, "shop", ORDERS, lambda control: control.rewound(_REWIND))
    report = tmp_path / "report.jsonl"
    differing = {"table": ORDERS._asdict(), "kind": "only_at_target", "key": {"id": "2"}}
    report.write_text(f"{json.dumps(differing)}\n")
    more = ("--differing", str(report)) if command == ("resync",) else ()
    for words in ((*command, "shop.other", "shop.orders"), (*command, "shop.orders", *more)):
        code, output = _run(path, *words)
        assert code == 2
        assert "A rewind of shop.orders is requested, and no worker has done it" in output
        # Nothing is asked of the other table either.
        assert not any(control.snapshot.is_asked for control in read_controls(store, "shop").values())
    # Other requests are possible, and a rewind that a worker did is in no way.
    assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    store.record_progress(Progress(ORDERS, "shop", 1, 4, rewound=7))
    store.save_status(TableStatus("shop", ORDERS, "IDLE", batch=4))
    assert _run(path, *command, "shop.orders")[0] == 0


def test_a_rewind_that_comes_first_is_seen_when_the_request_is_stored(
    tmp_path: Path, store: SqlStateStore
) -> None:
    config = load_config(_config(tmp_path))

    def start(asked: SnapshotControl, last: int) -> SnapshotControl:
        if not asked.is_asked and read_controls(store, "shop").get(ORDERS, NOTHING_ASKED).rewind is None:
            change_control(store, "shop", ORDERS, lambda control: control.rewound(_REWIND))
        return asked.start(5, last=last)

    with pytest.raises(ConfigError, match=r"A rewind of shop\.orders is requested"):
        _change(store, config, ORDERS, start)
    assert not _asked(store).is_asked


def test_a_snapshot_does_not_replace_a_resync(tmp_path: Path, store: SqlStateStore) -> None:
    """Rows that the source no longer has would stay."""
    path = _config(tmp_path)
    assert _run(path, "resync", "shop.orders")[0] == 0
    asked = _asked(store)
    code, output = _run(path, "snapshot", "start", "shop.orders")
    assert (code, _asked(store)) == (2, asked)
    assert "A resync of shop.orders is requested, and no worker has begun it" in output
    # A worker has begun it.
    deletes = {"parts": 0, "done": 0, "deletes": 0}
    shown = {"state": "running", "number": asked.started, "rows": 5, "estimate": 20, "deletes": deletes}
    begun = SnapshotProgress(("id",), number=asked.started, sweep=Sweep())
    store.record_progress(Progress(ORDERS, "shop", 1, 4, snapshot=begun))
    store.save_status(TableStatus("shop", ORDERS, "RUNNING", batch=4, details={"snapshot": shown}))
    code, output = _run(path, "snapshot", "start", "shop.orders")
    assert (code, _asked(store)) == (2, asked)
    assert "A resync of shop.orders has not finished (running)" in output
    # It may begin again, and a resync may replace a snapshot.
    assert _run(path, "resync", "shop.orders")[0] == 0
    assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    shown["state"] = "cancelled"
    store.save_status(TableStatus("shop", ORDERS, "RUNNING", batch=4, details={"snapshot": shown}))
    code, output = _run(path, "snapshot", "start", "shop.orders")
    assert (code, "this replaces" in output) == (0, False)
    code, output = _run(path, "resync", "shop.orders")
    assert (code, _asked(store).deletes) == (0, True)
    assert "shop.orders: this replaces the snapshot of all rows requested" in output


_RESYNC: Final = SnapshotProgress(("id",), number=7, sweep=Sweep())
_SHOWN: Final = {"number": 7, "rows": 5, "estimate": 20, "deletes": {"parts": 0, "done": 0, "deletes": 0}}


def _begun(store: SqlStateStore, snapshot: SnapshotProgress, asked: SnapshotControl, **status: Any) -> None:
    """Store a snapshot that a worker has begun for a table, its request, and the table's status."""
    store.record_progress(Progress(ORDERS, "shop", 1, 4, snapshot=snapshot))
    store.save_status(TableStatus("shop", ORDERS, batch=4, **status))
    change_control(store, "shop", ORDERS, lambda control: replace(control, snapshot=asked))


@pytest.mark.parametrize("limited", [False, True])
def test_a_resync_of_a_table_whose_status_does_not_show_it_is_not_replaced(
    tmp_path: Path, store: SqlStateStore, *, limited: bool
) -> None:
    """A paused table, and one that is not open yet, saves a status without its snapshot."""
    path, report = _config(tmp_path), tmp_path / "report.jsonl"
    differing = {"table": ORDERS._asdict(), "kind": "only_at_target", "key": {"id": "2"}}
    report.write_text(f"{json.dumps(differing)}\n")
    keys = "keys-of-7" if limited else None
    asked = SnapshotControl(7, deletes=True, keys=keys)
    _begun(store, replace(_RESYNC, keys=keys), asked, state="PAUSED", details={"topic": "shop_orders"})
    for words in (
        ("snapshot", "start", "shop.orders"),
        ("resync", "shop.orders", "--differing", str(report)),
    ):
        code, output = _run(path, *words)
        assert (code, _asked(store)) == (2, asked), output
        assert "of shop.orders has not finished (the table is PAUSED)" in output
        assert f"`tidesink snapshot cancel --config {path} shop.orders`" in output
    code, output = _run(path, "offsets", "rewind", "shop.orders", "--to-offset", "0=1")
    assert (code, "A snapshot of the table is running or requested" in " ".join(output.split())) == (2, True)
    assert read_controls(store, "shop")[ORDERS].rewind is None
    # A resync of all rows does at least as much.
    assert _run(path, "resync", "shop.orders")[0] == 0


@pytest.mark.parametrize("is_known", [True, False], ids=["progress", "status only"])
def test_a_cancelled_resync_stops_no_request_although_the_status_shows_it(
    tmp_path: Path, store: SqlStateStore, *, is_known: bool
) -> None:
    """The status is the one that the worker saved before, until a worker runs again."""
    path = _config(tmp_path)
    shown = {"topic": "shop_orders", "snapshot": {**_SHOWN, "state": "running"}}
    asked = SnapshotControl(7, deletes=True)
    _begun(store, _RESYNC, asked, state="RUNNING", details=shown)
    if not is_known:
        store.save_status(TableStatus("shop", ORDERS, "RUNNING", batch=5, details=shown))
    rewind = ("offsets", "rewind", "shop.orders", "--to-offset", "0=1")
    for words in (("snapshot", "start", "shop.orders"), rewind):
        assert _run(path, *words)[0] == 2
        assert _asked(store) == asked
    assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    status = store.status_of("shop", ORDERS)
    assert status is not None
    _refuse_meanwhile(load_config(path), store, status, None)
    assert _run(path, "snapshot", "start", "shop.orders")[0] == 0
    assert _asked(store).started > 7


def test_a_done_resync_stops_no_request_while_the_status_shows_the_next_one(
    tmp_path: Path, store: SqlStateStore
) -> None:
    """The worker shows the numbers of the last snapshot as running until the requested one has begun."""
    path = _config(tmp_path)
    done = replace(_RESYNC, done=True, sweep=Sweep(1, 1))
    shown = {"snapshot": {**_SHOWN, "state": "running"}}
    _begun(store, done, SnapshotControl(8), state="RUNNING", details=shown)
    code, output = _run(path, "snapshot", "start", "shop.orders")
    assert (code, "this replaces the snapshot of all rows" in output) == (0, True), output


def test_a_cancelled_snapshot_is_the_one_of_the_progress(tmp_path: Path, store: SqlStateStore) -> None:
    """The requests were lost with the state store, and the status of a paused table has no number."""
    path = _config(tmp_path)
    _begun(store, _RESYNC, SnapshotControl(), state="PAUSED")
    assert _run(path, "snapshot", "start", "shop.orders")[0] == 2
    assert _run(path, "snapshot", "cancel", "shop.orders")[0] == 0
    assert _asked(store).cancelled == 7
    assert _run(path, "snapshot", "start", "shop.orders")[0] == 0


def test_a_resync_whose_keys_are_lost_stops_no_request(tmp_path: Path, store: SqlStateStore) -> None:
    """A worker does not continue it, and says that the command must be run again."""
    path = _config(tmp_path)
    _begun(store, replace(_RESYNC, keys="lost"), SnapshotControl(), state="IDLE")
    assert _run(path, "snapshot", "start", "shop.orders")[0] == 0


def test_a_resync_of_some_keys_is_not_replaced_by_what_deletes_nothing(
    tmp_path: Path, store: SqlStateStore
) -> None:
    path = _config(tmp_path)
    asked = SnapshotControl(7, deletes=True, keys="keys-of-7")
    change_control(store, "shop", ORDERS, lambda control: replace(control, snapshot=asked))
    code, output = _run(path, "snapshot", "start", "shop.orders")
    assert (code, _asked(store)) == (2, asked)
    assert "A resync of shop.orders is requested, and no worker has begun it" in output
    # Its keys are lost, and it is none of all rows for that.
    code, output = _run(path, "status")
    assert "resync of some keys requested at " in output
    request = json.loads(_run(path, "status", "-o", "json")[1])["asked_to_snapshot"][0]
    assert (request["keys"], request["limited"]) == (None, True)
    code, output = _run(path, "resync", "shop.orders")
    assert (code, "this replaces the resync of some keys" in output) == (0, True), output


def test_of_two_commands_at_once_the_one_of_some_rows_does_not_replace_all_rows(
    tmp_path: Path, store: SqlStateStore
) -> None:
    """Both passed their checks before one of them stored its request."""
    config = load_config(_config(tmp_path))
    everything = SnapshotControl(4, deletes=True)

    def start(asked: SnapshotControl, last: int) -> SnapshotControl:
        if not asked.is_asked and not read_controls(store, "shop"):
            change_control(store, "shop", ORDERS, lambda control: replace(control, snapshot=everything))
        return asked.start(5, last=last, deletes=True, keys="some")

    with pytest.raises(ConfigError, match=r"of all rows of shop\.orders is requested"):
        _change(store, config, ORDERS, start)
    assert _asked(store) == everything


def test_a_name_that_a_shell_would_split_is_quoted_in_every_suggested_command(
    tmp_path: Path, store: SqlStateStore
) -> None:
    path, odd = _config(tmp_path), TableId("shop", "my orders")
    store.save_status(TableStatus("shop", odd, "IDLE"))
    assert _run(path, "resync", str(odd))[0] == 0
    assert (
        f"`tidesink snapshot cancel --config {path} 'shop.my orders'`"
        in _run(path, "snapshot", "start", str(odd))[1]
    )
    change_control(store, "shop", odd, lambda _: NOTHING_ASKED.rewound(_REWIND))
    output = _run(path, "resync", str(odd))[1]
    assert f"`tidesink resume --config {path} 'shop.my orders'` if the table is paused" in output


@pytest.mark.parametrize("command", [("resync",), ("snapshot", "start"), ("diff",)])
def test_a_range_that_is_none_is_refused(
    tmp_path: Path, store: SqlStateStore, command: tuple[str, ...]
) -> None:
    path = _config(tmp_path)
    code, output = _run(path, *command, "shop.orders", "--where", "id > 1 or true")
    assert code == 2
    assert "Use comparisons of the source table's key columns" in output
    if command == ("resync",):
        both = ("--where", "id > 1", "--differing", "report.jsonl")
        assert (
            "Give only one of --differing, --key and --where" in _run(path, *command, "shop.orders", *both)[1]
        )
    assert read_controls(store, "shop") == {}


@pytest.mark.servers
def test_a_range_is_asked_for_in_the_words_of_the_database(
    tmp_path: Path, store: SqlStateStore, mariadb_url: str
) -> None:
    with _stored_orders(mariadb_url, tmp_path, store) as (path, table):
        code, output = _run(path, "snapshot", "start", str(table), "--where", "id < 007")
        assert code == 0, output
        asked = read_controls(store, "shop")[table].snapshot
        assert asked.where == (("Id", "<", "7"),)
        assert asked.limited
        code, output = _run(path, "resync", str(table), "--where", "word > 'a'")
        assert code == 2
        assert "word has the type varchar(9)" in output
        assert read_controls(store, "shop")[table].snapshot == asked


@pytest.mark.servers
def test_a_resync_of_keys_that_are_given(tmp_path: Path, store: SqlStateStore, mariadb_url: str) -> None:
    """A name that is none of the key is told at once, and nothing is asked."""
    with _stored_orders(mariadb_url, tmp_path, store) as (path, table):
        code, output = _run(path, "resync", str(table), "--key", "id=7,name=b")
        assert code == 2
        assert "has no value for word" in " ".join(output.split())
        assert read_controls(store, "shop") == {}
        code, output = _run(path, "resync", str(table), "--key", "word=b,id=7", "--key", "id=8,word=")
        assert code == 0, output
        assert "resync of 2 keys requested" in output
        asked = read_controls(store, "shop")[table].snapshot
        assert asked.deletes
        assert load_keys(store, asked.keys or "") == AskedKeys(("Id", "word"), (("7", "b"), ("8", "")))
        code, output = _run(path, "resync", str(table), "--key", "id=7,word=b", "--where", "id < 7")
        assert (code, "Give only one of --differing, --key and --where" in output) == (2, True)
        assert _run(path, "snapshot", "cancel", str(table))[0] == 0
        assert "resync of 1 key requested" in _run(path, "resync", str(table), "--key", "id=7,word=b")[1]
        code, output = _run(path, "resync", str(table), "shop.orders", "--key", "id=7,word=b")
        assert (code, "Name a single table" in output) == (2, True)


_HISTORY: Final = {"source__enable_tidb_extension": True, "defaults": {"mode": "history"}}
_DATABASE: Final = {"type": "postgres", "url": "postgresql://127.0.0.1:1/shop", "user": "tide"}


@pytest.mark.parametrize("target", [{}, {"target": _DATABASE}], ids=["lake", "database"])
def test_a_history_has_snapshots_and_no_resync(
    tmp_path: Path, store: SqlStateStore, target: dict[str, Any]
) -> None:
    path = _config(tmp_path, **_HISTORY, **target)
    code, output = _run(path, "resync", "shop.orders")
    assert (code, read_controls(store, "shop")) == (2, {})
    assert "which rows of the source cannot correct" in " ".join(output.split())
    assert _run(path, "snapshot", "start", "shop.orders")[0] == 0
    assert read_controls(store, "shop")[ORDERS].snapshot.started > 0


def test_what_cannot_have_a_snapshot_is_refused(tmp_path: Path, store: SqlStateStore) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text(yaml.safe_dump(changed(FLAT_AVRO, state=str(tmp_path / "state.db"))))
    code, output = _run(path, "snapshot", "start", "shop.orders")
    assert code == 2
    assert "source.database, which is not set" in output
    assert read_controls(store, "shop") == {}


def test_status_shows_cuts_beside_a_requested_snapshot(tmp_path: Path, store: SqlStateStore) -> None:
    path = _config(tmp_path, **_CUTS)
    assert json.loads(_run(path, "status", "-o", "json")[1])["cuts"] is None
    assert _run(path, "snapshot", "start", "shop.orders")[0] == 0
    by_time = {"last": 1 << 18, "published": 2.5, "next": 2 << 18, "held_back": {}, "excluded": ["shop.a"]}
    by_position = {**by_time, "last": 7, "last_time": None, "waits": "no offset"}
    for cuts, said in (
        (by_time, "last cut: 1970-01-01 00:00:00.001 UTC"),
        (by_position, "last cut: position 7"),
    ):
        store.save_document("cuts", "shop", cuts)
        shown = json.loads(_run(path, "status", "-o", "json")[1])
        assert shown["cuts"] == cuts
        assert [request["table"]["name"] for request in shown["asked_to_snapshot"]] == ["orders"]
        assert said in _run(path, "status")[1]


@pytest.mark.parametrize("target", [{}, {"target": _DATABASE}])
def test_cuts_leave_room_for_snapshots(tmp_path: Path, store: SqlStateStore, target: dict[str, Any]) -> None:
    for words in (("snapshot", "start"), ("resync",)):
        code, output = _run(_config(tmp_path, **_CUTS, **target), *words, "shop.orders")
        assert code == 0, output


def test_how_far_snapshots_are(tmp_path: Path, store: SqlStateStore) -> None:
    path = _config(tmp_path)
    assert "no table has a snapshot" in _run(path, "snapshot", "status")[1]
    shown = {"state": "running", "rows": 500, "estimate": 2000}
    store.save_status(TableStatus("shop", ORDERS, "RUNNING", batch=1, details={"snapshot": shown}))
    (table,) = json.loads(_run(path, "snapshot", "status", "-o", "json")[1])["tables"]
    assert table == {"table": {"schema": "shop", "name": "orders"}, **shown}
    assert "snapshot running: 500 rows of about 2000" in _run(path, "status")[1]
    assert "2000" in _run(path, "snapshot", "status")[1]
    for deletes, said in (
        ({"parts": 0, "done": 0, "deletes": 0}, "deletes begin after the last row"),
        ({"parts": 4, "done": 1, "deletes": 7}, "7 deletes, part 1 of 4"),
    ):
        details = {"snapshot": {**shown, "deletes": deletes}}
        store.save_status(TableStatus("shop", ORDERS, "RUNNING", batch=2, details=details))
        assert said in " ".join(_run(path, "status")[1].split())
        (table,) = json.loads(_run(path, "snapshot", "status", "-o", "json")[1])["tables"]
        assert table["deletes"] == deletes
    within = "id >= '100' and id < '200'"
    details = {"snapshot": {**shown, "where": within}}
    store.save_status(TableStatus("shop", ORDERS, "RUNNING", batch=3, details=details))
    assert f"snapshot running: 500 rows of about 2000; where {within}" in " ".join(
        _run(path, "status")[1].split()
    )
    assert within in " ".join(_run(path, "snapshot", "status")[1].split())
    (table,) = json.loads(_run(path, "snapshot", "status", "-o", "json")[1])["tables"]
    assert table["where"] == within


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"target": {"type": "http", "url": "http://127.0.0.1:1"}, "defaults": {"snapshot": "initial"}},
            "http",
        ),
    ],
)
def test_a_config_with_impossible_snapshots_is_refused(
    tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    code, output = _run(_config(tmp_path, **more), "validate")
    assert code == 2
    assert said in output
    assert "SECRET" not in output


def test_a_snapshot_needs_a_database(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump(changed(FLAT_AVRO, defaults={"snapshot": "initial"})))
    code, output = _run(path, "validate")
    assert code == 2
    assert "source.database" in output


@pytest.mark.servers
def test_plan_says_what_a_snapshot_reads(
    tmp_path: Path, brokers: str, registry_url: str, topic_prefix: str, mariadb_url: str
) -> None:
    servers = Servers(brokers=brokers, registry_url=registry_url, prefix=f"{topic_prefix}-")
    with live_table(mariadb_url, servers) as table:
        table.load(300)
        table.change()
        source = {
            "brokers": servers["brokers"],
            "protocol": "canal-json",
            "topics": [table.topic],
            "database": {"url": mariadb_url, "chunk-rows": 100},
        }
        more = {"source": source, "tables": [{"name": str(table.name), "snapshot": "initial"}]}
        path = shop_config(tmp_path, servers, more)
        code, output = _run(path, "plan")
        assert code == 0, output
        assert "ranges of (region, id)" in output
        (found,) = json.loads(_run(path, "plan", "-o", "json")[1])["tables"]
        assert found["snapshot"]["key"] == ["region", "id"]
        assert found["snapshot"]["rows"] > 0
        source["database"] = {"url": mariadb_url.replace("root@", "nobody:SECRET@")}
        code, output = _run(shop_config(tmp_path, servers, {**more, "source": source}), "plan")
        assert code == 2
        assert "refuses the user" in output
        assert "SECRET" not in output
