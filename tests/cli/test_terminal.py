"""What stands on a narrow terminal, and what the log says there."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import structlog
from pydantic import BaseModel

from tests.unit.config.samples import FLAT_AVRO, right
from tidesink.cli import dev as demo
from tidesink.cli import terminal as failures
from tidesink.cli.main import show_report
from tidesink.cli.registry import CheckReport
from tidesink.cli.terminal import LogFormat, log_to_stderr, show_table
from tidesink.codecs.flat_avro.schema import value_record
from tidesink.codecs.options import FlatAvroOptions
from tidesink.ddl.catalog import parse_create_table
from tidesink.dev.demo import DemoResult
from tidesink.dev.lake_check import TableCheck
from tidesink.dev.workload import WorkloadReport
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.schema_registry.compatibility import verdict
from tidesink.sinks.laws.counts import Account
from tidesink.sinks.runtime.observers import RunReport, TableReport

COMMIT_TS = 461_234_567_890_123_456
COUNTS = Account(20_000, 12_000, 8_000).as_counters()


class Terminal(io.StringIO):
    """A stdout that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def _terminal() -> Iterator[Terminal]:
    """A terminal of 80 columns, without colours, as stdout."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(Terminal()) as screen:
        patch.setenv("COLUMNS", "80")
        patch.setenv("TERM", "dumb")
        yield screen


def test_no_line_is_filled_with_blanks() -> None:
    with _terminal() as terminal:
        show_table(None, ("column", "note"), [("a", "n" * 90), ("b", ""), ("c", "of few words")])
    lines = terminal.getvalue().splitlines()
    assert [line.rstrip() for line in lines] == lines
    assert lines[-2:] == ["b", "c       of few words"]


def _report(name: str) -> TableReport:
    return TableReport(
        TableId("shop", name), f"shop_{name}", "RUNNING", 3, 12, COMMIT_TS, 0, COUNTS, {"d": 2}
    )


NAMES = ("order_items", "customers", "every_type")


def test_a_runs_report_fits_80_columns() -> None:
    with _terminal() as terminal:
        show_report(RunReport("shop", tuple(map(_report, NAMES)), seconds=1.0), right(FLAT_AVRO).source)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for name in NAMES:
        assert [line.split()[0] for line in lines if name in line] == [f"shop.{name}"] * 2


def test_a_registrys_verdict_fits_80_columns() -> None:
    schema = parse_create_table(
        "CREATE TABLE shop.customers (id INT PRIMARY KEY, invoice_address_line VARCHAR(200) DEFAULT 'none', "
        "state ENUM('new','active','gone'))"
    )
    wider = replace(schema, columns=schema.columns[:2])
    options = FlatAvroOptions(avro_include_before_value=True, producer="new")
    old, new = (
        value_record(schema, schema.table, options).text,
        value_record(wider, schema.table, replace(options, enable_tidb_extension=True)).text,
    )
    registry = MemorySchemaRegistry(compatibility="FULL")
    registry.register("shop_customers-value", old)
    with _terminal() as terminal:
        CheckReport([verdict(registry, "shop_customers-value", new)], {}, {}, live=False).show()
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("_tidb_commit_physical_time") for line in lines)
    assert any(line.startswith("_ticdc_before.state") for line in lines)


def test_the_demos_tables_fit_80_columns(tmp_path: Path) -> None:
    checks = tuple(TableCheck(f"shop.{name}", 12_000, 42, ()) for name in NAMES)
    result = DemoResult(
        WorkloadReport(tmp_path / "expected.json", 20_000, 3, 100, {"shop_customers": 20_000}),
        RunReport("demo", tuple(map(_report, NAMES))),
        checks,
        {"worker": 60.0},
        tmp_path / "tidesink.yaml",
        tmp_path / "lake",
    )
    with _terminal() as terminal:
        demo._show(result)
    lines = terminal.getvalue().splitlines()
    table = [line for line in lines if str(tmp_path) not in line and not line.startswith("Right")]
    assert max(map(len, table)) <= 80
    for name in NAMES:
        assert [line.split()[0] for line in lines if name in line] == [f"shop.{name}"] * 2
        assert any(line.startswith(f"shop.{name}") and str(COMMIT_TS) in line for line in lines)
    assert lines[-1].endswith(f"status {tmp_path / 'tidesink.yaml'}")


def test_a_name_wider_than_the_terminal_stays_whole() -> None:
    with _terminal() as terminal:
        show_table(None, ("table", "note"), [("n" * 90, "what is said of it is long " * 3)], folded=("note",))
    assert "n" * 90 in terminal.getvalue()
    assert len(terminal.getvalue().splitlines()) > 2


@pytest.fixture
def log() -> Iterator[None]:
    """The log's settings as they were."""
    before = structlog.get_config()
    failures.set_debug(False)  # a test before may have asked for it
    yield
    structlog.configure(**before)
    failures.set_debug(False)


def _speak() -> None:
    log = structlog.get_logger("tidesink.worker")
    log.debug("batch abandoned", table="shop.a")
    log.warning("batches abandoned", tables=["shop.a", "shop.b"], error=None)
    log.error("table failed", table="shop.a", trace="Traceback\n  line\n")


@pytest.mark.usefixtures("log")
def test_the_log_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogFormat.TEXT)
    _speak()
    reported = [
        "warning: batches abandoned (tables: shop.a, shop.b)",
        "error: table failed (table: shop.a)",
        "Traceback",
        "  line",
    ]
    assert capsys.readouterr().err.splitlines() == reported
    failures.set_debug(True)
    log_to_stderr(LogFormat.TEXT)
    _speak()
    assert capsys.readouterr().err.splitlines() == ["debug: batch abandoned (table: shop.a)", *reported]


@pytest.mark.usefixtures("log")
def test_the_log_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogFormat.JSON)
    _speak()
    levels = [json.loads(line)["level"] for line in capsys.readouterr().err.splitlines()]
    assert levels == ["debug", "warning", "error"]


_SECRET: Final = "sesame"


class _Settings(BaseModel):
    port: int


def _driver_fails() -> None:
    raise OSError(f"password={_SECRET}: row ({_SECRET}, 7)")


def _model_fails() -> None:
    _Settings(port=_SECRET)  # type: ignore[arg-type]  # no number


@pytest.mark.parametrize("fails", [_driver_fails, _model_fails])
def test_a_traceback_has_no_text_of_others_errors(fails: Callable[[], None]) -> None:
    """Nor of those that led to one, raised from or while it was handled, nor the values of variables."""
    try:
        try:
            try:
                fails()
            except Exception as first:
                raise RuntimeError(_SECRET) from first
        except RuntimeError:
            raise ConfigError("the server refuses", key="target.url")  # noqa: B904
    except ConfigError as error:
        shown = failures.trace_of(error)
    assert _SECRET not in shown
    assert shown.count("Traceback (most recent call last)") == 3
    for part in (fails.__name__, "RuntimeError: (text left out)", "the server refuses"):
        assert part in shown
    assert shown.index(fails.__name__) < shown.index("RuntimeError") < shown.index("the server refuses")


def test_debug_and_faults_show_such_tracebacks() -> None:
    """The commands themselves, in a process."""
    script = """
import sys
from tidesink.cli import terminal
from tidesink.cli.main import app, run
from tidesink.dev.workload import WorkloadReport
from tidesink.errors import ConfigError

@app.command("fails")
@terminal.guarded
def fails(foreseen: bool):
    try:
        raise OSError("ses" + "ame")
    except OSError as error:
        if foreseen:
            raise ConfigError("no") from error
        raise
run()
"""
    for words in (["--debug", "fails", "1"], ["fails", "0"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode != 0
        assert "Traceback (most recent call last)" in done.stderr
        assert "OSError: (text left out)" in done.stderr
        assert _SECRET not in done.stderr
