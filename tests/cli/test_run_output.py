"""What a run tells while it works and when it ends, without a worker."""

from __future__ import annotations

import json

import pytest
import typer

from tests.unit.config.samples import FLAT_AVRO, changed, right
from tidesink.cli.main import _with_spark_conf, log_report, report_json, show_report
from tidesink.cli.terminal import LogFormat, ProgressLines, guarded
from tidesink.errors import BrokerUnavailableError, ConfigError, SourceUnavailableError
from tidesink.events import TableId
from tidesink.sinks.laws.counts import Account
from tidesink.sinks.runtime.observers import (
    BatchApplied,
    BatchStarted,
    RunReport,
    StepRetried,
    TableChanged,
    TableReport,
    Waiting,
)
from tidesink.sinks.state.progress import TableStatus

ORDERS = TableId("shop", "orders")
SOURCE = right(FLAT_AVRO).source
REPORT = RunReport(
    "shop",
    (
        TableReport(
            ORDERS, "shop_orders", "IDLE", 3, 2, 9 << 18, 0, Account(7, 4, 2, 1).as_counters(), {"d": 2}
        ),
        TableReport(
            TableId("shop", "bad"), "shop_bad", "PAUSED", error="FramingError: no JSON", warnings=("w",)
        ),
    ),
    seconds=1.25,
)


def test_the_report_for_programs() -> None:
    shown = report_json(REPORT)
    assert shown["exit_code"] == 3
    assert shown["tables"][0]["table"] == {"schema": "shop", "name": "orders"}
    assert shown["tables"][0]["counters"]["applied"] == 4
    assert shown["tables"][1]["error"] == "FramingError: no JSON"


def test_the_report_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    show_report(REPORT, SOURCE)
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines() if line.startswith("shop.orders")]
    assert rows == [
        ["shop.orders", "IDLE", "2", "0", "1970-01-01", "00:00:00.009"],
        ["shop.orders", "7", "4", "2", "1", "0"],
    ]
    assert out.splitlines()[-1] == "shop: done after 1.2 s"
    assert err.splitlines() == [
        "shop.orders: 2 invalid dates of column d became NULL (zero-date: null)",
        "shop.bad: error: FramingError: no JSON",
        "shop.bad: warning: w",
    ]


def test_the_report_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    @guarded
    def run(*, log: LogFormat) -> None:
        log_report(REPORT)
        raise ConfigError("a setting is wrong", key="topics")

    with pytest.raises(typer.Exit):
        run(log=LogFormat.JSON)
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in err.splitlines()]
    assert out == ""
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    good, bad, ended, refused = lines
    assert (good["table"], good["applied"], good["level"]) == ("shop.orders", 4, "info")
    assert (bad["error"], bad["warnings"], bad["level"]) == ("FramingError: no JSON", ["w"], "warning")
    assert (ended["event"], ended["ending"], ended["exit_code"]) == ("run ended", "done", 3)
    assert (refused["event"], refused["error"], refused["next"]) == (
        "a setting is wrong",
        "ConfigError",
        "Correct this and run the command again.",
    )
    assert "topics" in refused["where"]


def test_what_a_filter_took_out_is_said_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    account = Account(7, 4, 3, filtered_out=2)
    show_report(
        RunReport("shop", (TableReport(ORDERS, "t", "IDLE", counters=account.as_counters()),)), SOURCE
    )
    assert "shop.orders: filtered out: 2 changes of rows that do not satisfy" in capsys.readouterr().err
    reported: list[str] = []
    ProgressLines(reported.append, brokers="b:1").hear(BatchApplied(ORDERS, 4, account, "v", None))
    assert "applied 4, superseded 3, filtered_out 2 in" in reported[0]


def test_progress_is_a_line_a_step() -> None:
    reported: list[str] = []
    progress = ProgressLines(reported.append, brokers="b:1,c:2")
    failing = TableStatus("shop", ORDERS, "FAILING", error="SourceUnavailableError: x")
    progress.hear(Waiting("starting Spark"))
    progress.hear(BatchStarted(ORDERS, 4, 10))
    progress.hear(BatchApplied(ORDERS, 4, Account(10, 6, 4), "v", None, seconds={"a": 1.0, "b": 0.5}))
    progress.hear(StepRetried(None, BrokerUnavailableError("no answer"), 2.0))
    progress.hear(TableChanged(TableStatus("shop", ORDERS, "RUNNING")))
    progress.hear(TableChanged(failing))
    progress.hear(TableChanged(failing))
    assert reported == [
        "starting Spark",
        "shop.orders  batch 4: 10 records",
        "shop.orders  batch 4: read 10, applied 6, superseded 4 in 1.5 s",
        "all tables  BrokerUnavailableError: no answer (brokers b:1,c:2); again in 2.0 s",
        "shop.orders  FAILING: SourceUnavailableError: x",
    ]


def test_a_command_names_the_table_of_its_line_and_no_other() -> None:
    reported: list[str] = []
    progress = ProgressLines(reported.append, brokers="b:1")
    error = SourceUnavailableError("Run `tidesink resync TABLE`.")
    progress.hear(StepRetried(ORDERS, error, 2.0))
    progress.hear(StepRetried(None, error, 2.0))
    assert "Run `tidesink resync shop.orders`." in reported[0]
    assert "Run `tidesink resync TABLE`." in reported[1]


@pytest.mark.parametrize(("given", "level"), [({}, "WARN"), ({"spark.log.level": "INFO"}, "INFO")])
def test_verbose_shows_spark_s_warnings_unless_the_config_has_a_level(
    given: dict[str, str], level: str
) -> None:
    config = right(changed(FLAT_AVRO, spark__conf=given))
    assert _with_spark_conf(config, {"spark.log.level": "WARN"}).spark.conf_values() == {
        "spark.log.level": level
    }
