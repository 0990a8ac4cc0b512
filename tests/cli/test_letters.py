"""``tidesink dlq``: what is refused before Spark starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.config.samples import CANAL_JSON, changed
from tidesink.cli.dead_letters import (
    check_one_topic,
    chosen_records,
    error_name,
    group_json,
    letter_json,
    not_stored,
    record_json,
    remedy_lines,
)
from tidesink.cli.main import app
from tidesink.cli.terminal import complete, error_block
from tidesink.config import load_config
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.letters.topic import Letter, RecordGroup
from tidesink.sinks.runtime.observers import Heartbeat
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import open_state_store


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tidesink.yaml"
    tables = [{"name": "shop.log", "mode": "append"}]
    settings = changed(CANAL_JSON, state=str(tmp_path / "state.db"), tables=tables)
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


def _work(config: Path, *tables: str) -> None:
    settings = load_config(config)
    store = open_state_store(settings.state)
    for name in tables:
        store.save_status(TableStatus(settings.pipeline, TableId("shop", name), "IDLE"))
    store.close()


def _asked(config: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["dlq", *words, "--config", str(config)])
    assert "starting Spark" not in done.output
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("replay", "shop.order"), "did you mean shop.orders?"),
        (("replay", "shop.orders", "17"), "'17' is not a place"),
        (("replay", "shop.orders", "--error", "FramingErr"), "did you mean FramingError?"),
        (("replay", "shop.log"), "A table with mode: append cannot replay dead letters"),
        (("drop", "shop.orders", "--error", "FramingErr", "--yes"), "did you mean FramingError?"),
        (("drop", "--all", "--error", "no", "--yes"), "--error no: there is no such error."),
    ],
)
def test_arguments_are_judged_before_spark_starts(config: Path, words: tuple[str, ...], said: str) -> None:
    _work(config, "orders", "log")
    code, output = _asked(config, *words)
    assert (code, said in output) == (2, True), output


def test_a_name_that_is_none_is_refused_before_any_worker_ran(config: Path) -> None:
    code, output = _asked(config, "replay", "orders")
    assert code == 2
    assert "'orders' is not a table's name. Give it as schema.table" in output


def test_a_worker_at_work_is_met_before_spark_starts(config: Path) -> None:
    _work(config, "orders")
    settings = load_config(config)
    store = open_state_store(settings.state)
    Heartbeat(store, settings.pipeline).beat()
    store.close()
    code, output = _asked(config, "replay", "shop.orders")
    assert code == 1
    assert f"A worker of {settings.pipeline} is running" in output


def test_tables_are_told_as_everywhere_whichever_part_holds_a_dot() -> None:
    dotted = TableId("a.b", "c")
    group = RecordGroup("a.b.c", "t", 0, "FramingError", 1, 5, 5, None, None)
    assert group_json(group, [dotted])["table"] == {"schema": "a.b", "name": "c"}
    row = {"table": "shop.orders", "time": None, "key": None, "value": b"v"}
    assert record_json(row, [dotted])["table"] == {"schema": "shop", "name": "orders"}


def test_a_place_of_a_topic_that_was_made_again_names_no_one_record() -> None:
    topics = [("t", topic_id) for topic_id in ("i", "j", None)]
    check_one_topic(topics[:1], "0@5")
    with pytest.raises(ConfigError, match=r"at 0@5: t \(id not stored\), t \(i\), t \(j\).*--topic-id"):
        check_one_topic(topics, "0@5")
    assert chosen_records("shop", "a.b", "0@5", "j").topic_id == "j"


def test_errors_are_named_in_any_case() -> None:
    assert [error_name(name) for name in (None, "framingerror", "FilterError")] == [
        None,
        "FramingError",
        "FilterError",
    ]
    with pytest.raises(ConfigError, match="there is no such error"):
        error_name("")


def test_what_is_not_there_is_said_with_what_was_looked_for() -> None:
    chosen = chosen_records("shop", "shop.orders", "cdc[2]@17")
    said = error_block(not_stored(chosen, "./lake"))
    assert "table shop.orders at partition 2, offset 17 of cdc in ./lake" in said
    assert "stops" not in said


def test_a_letter_says_what_can_be_done_about_it() -> None:
    (replayed,) = remedy_lines("shop.orders", "0@17", decodes=True)
    assert "`tidesink dlq replay shop.orders 0@17`" in replayed
    lines = complete("\n".join(remedy_lines("shop.orders", "0@17", decodes=False)), Path("my file.yaml"))
    assert "`tidesink dlq replay --config 'my file.yaml' shop.orders 0@17`" in lines
    assert "`tidesink dlq drop --config 'my file.yaml' shop.orders 0@17`" in lines
    assert "`tidesink resync --config 'my file.yaml' shop.orders --key ...`" in lines
    assert "Repair the row instead: UPDATE it in the source database" in lines


def test_letters_are_told_without_their_bytes() -> None:
    letter = Letter("shop", "shop.orders", "i", "app", 0, 17, "FramingError", "no JSON", time=1_000, at=9)
    shown = letter_json(letter, [TableId("shop", "orders")])
    assert shown["table"] == {"schema": "shop", "name": "orders"}
    assert (shown["offset"], shown["time"]) == (17, "1970-01-01T00:00:01+00:00")
    assert not {"at", "key_b64", "value_b64"} & shown.keys()
