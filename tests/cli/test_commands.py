"""The commands as a user types them: what is printed where, and with which exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.samples import run
from tidesink import __version__
from tidesink.codecs import CODECS
from tidesink.config import load_config
from tidesink.events import TableId


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"tidesink {__version__}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("decode", "--input", "-"), "Give --protocol flat-avro, canal-json, "),
        (("decode", "--protocol", "avr", "--input", "-"), "Did you mean 'avro'?"),
        (("decode", "--protocol", "avro", "--input", "-"), "--schemas FILE"),
        (("decode", "--protocol", "canal-json"), "either --input FILE"),
        (("decode", "--protocol", "canal-json", "--input", "-", "--topic", "t"), "either --input FILE"),
        (("decode", "--protocol", "canal-json", "--input", "-", "--max", "0"), "--max 0"),
        (("decode", "--protocol", "canal-json", "--topic", "t"), "--brokers"),
        (
            ("decode", "--protocol", "canal-json", "--topic", "t", "--brokers", "b:1", "--from", "first"),
            "earliest, latest",
        ),
        (("decode", "--protocol", "canal-json", "--input", "/no/such"), "cannot be read"),
        (
            ("decode", "--protocol", "canal-json", "--input", "-", "--avro-decimal-handling-mode", "x"),
            "precise or string",
        ),
        (("validate", "/no/such"), "tidesink init writes one"),
        (("frobnicate",), "No such command"),
        (("decode", "--frob"), "No such option"),
    ],
)
def test_wrong_use_ends_with_2_and_says_what_to_do(args: tuple[str, ...], message: str) -> None:
    result = run(*args, stdin="")
    assert result.exit_code == 2
    assert message in re.sub(r"\s+", " ", result.stderr)
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_an_unreachable_broker_is_a_failure_at_run_time() -> None:
    result = run("decode", "--protocol", "canal-json", "--topic", "t", "--brokers", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "No answer from 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize("protocol", CODECS)
def test_settings_that_init_writes_as_comments_are_right(tmp_path: Path, protocol: str) -> None:
    file = tmp_path / "t.yaml"
    run("init", str(file), "--protocol", protocol)
    comment = r"(?m)^  # (?=mode:|schema-changes:)|^# (?=tables:|dead-letters:|  )"
    shown = re.sub(comment, "", file.read_text())
    shown = re.sub(r"(?m)^(?=mode:|schema-changes:)", "  ", shown)
    file.write_text(shown, encoding="utf-8")
    config = load_config(file)
    customers = config.table_config(TableId("shop", "customers"))
    assert "mode" in config.defaults.model_fields_set
    assert config.defaults.schema_changes.model_fields_set == {"add", "widen"}
    assert (customers.projection.except_columns, customers.filter) == (("card_number",), "status <> 'draft'")


@pytest.mark.parametrize("protocol", CODECS)
def test_init_writes_a_config_that_is_right(tmp_path: Path, protocol: str) -> None:
    file = tmp_path / "t.yaml"
    assert run("init", str(file), "--protocol", protocol, "--brokers", "k:9092").exit_code == 0
    config = load_config(file)
    assert (config.source.protocol, config.source.brokers) == (protocol, ("k:9092",))
    assert run("validate", str(file)).exit_code == 0
    again = run("init", str(file))
    assert again.exit_code == 2
    assert "--force" in again.stderr


def test_validate_lists_problems_for_programs_too(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    run("init", str(file))
    file.write_text(file.read_text().replace("max-tables: 2", "max-tables: none"))
    result = run("validate", "-c", str(file), "-o", "json")
    assert result.exit_code == 2
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem["field"] == "batch.max-tables"


@pytest.mark.slow
def test_validate_connect_says_what_does_not_answer(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    run("init", str(file), "--brokers", "127.0.0.1:1", "--schema-registry", "http://127.0.0.1:1")
    result = run("validate", str(file), "--connect", "-o", "json")
    assert result.exit_code == 1
    found = {answer["part"]: answer for answer in json.loads(result.stdout)["connections"]}
    assert (found["kafka"]["ok"], found["registry"]["ok"], found["state store"]["ok"]) == (False, False, True)
    assert "Check that it runs" in found["registry"]["detail"]


def test_status_before_the_first_run(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    run("init", str(file))
    assert json.loads(run("status", str(file), "-o", "json").stdout) == {
        "pipeline": "shop",
        "worker": {"alive": False, "seconds_since_turn": None, "failure": None},
        "asked_to_rest": [],
        "asked_to_rewind": [],
        "asked_to_snapshot": [],
        "tables": [],
    }
    assert not (tmp_path / ".tidesink").exists()


def test_status_shows_each_table_and_ends_with_3_where_one_is_unwell(tmp_path: Path) -> None:
    from tidesink.sinks.state.progress import TableStatus
    from tidesink.sinks.state.sql_store import open_state_store

    file = tmp_path / "t.yaml"
    run("init", str(file))
    store = open_state_store(load_config(file).state)
    store.save_status(
        TableStatus(
            "shop",
            TableId("shop", "a"),
            "IDLE",
            counters={"read": 5, "applied": 5, "filtered_out": 2},
            details={
                "left_to_spark": "merged by MERGE: the table has a CHECK constraint",
                "executor": {"name": "spark", "reason": "Spark evaluates the table's filter"},
            },
        )
    )
    healthy = run("status", str(file))
    assert healthy.exit_code == 0
    assert "shop.a: batches are merged by MERGE: the table has a CHECK constraint" in healthy.stdout
    assert "shop.a: the last batch ran on Spark: Spark evaluates the table's filter" in healthy.stdout
    assert "shop.a: filtered out: 2 changes of rows that do not satisfy" in healthy.stdout
    store.save_status(
        TableStatus("shop", TableId("shop", "b"), "PAUSED", error="FramingError: x", zero_dates={"d": 3})
    )
    store.close()
    shown = run("status", str(file))
    assert shown.exit_code == 3
    assert "FramingError: x" in shown.stdout
    assert "3 invalid dates of column d" in shown.stdout
    states = {
        t["table"]["name"]: t["state"]
        for t in json.loads(run("status", str(file), "-o", "json").stdout)["tables"]
    }
    assert states == {"a": "IDLE", "b": "PAUSED"}


def test_status_says_whether_somebody_works(tmp_path: Path) -> None:
    from tidesink.sinks.runtime.observers import Heartbeat
    from tidesink.sinks.state.progress import TableStatus
    from tidesink.sinks.state.sql_store import open_state_store

    file = tmp_path / "t.yaml"
    run("init", str(file))
    assert run("status", str(file)).stdout.splitlines()[-1] == "worker: no worker runs"
    store = open_state_store(load_config(file).state)
    Heartbeat(store, "shop").beat()
    shown = run("status", str(file)).stdout
    assert "no worker has read a table yet" in shown
    assert re.search(r"^worker: alive \(seen \d+ s ago\)$", shown, re.MULTILINE)
    Heartbeat(store, "shop", lambda: 86_400.0).beat()
    shown = run("status", str(file)).stdout.splitlines()[-1]
    assert shown.startswith("worker: not seen since 1970-01-02 00:00:0")
    store.save_status(TableStatus("shop", TableId("shop", "a"), "IDLE"))
    Heartbeat(store, "shop").end()
    store.close()
    shown = run("status", str(file)).stdout.splitlines()[-1]
    assert re.fullmatch(r"worker: no worker runs; last seen \d{4}-.* UTC", shown)


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in run("--debug", "decode", "--input", "-").stderr
