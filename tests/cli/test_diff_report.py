"""The report of ``tidesink diff``, by which a comparison that was cut off goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.test_diff import ORDERS, diff_config, run_diff
from tidesink.cli.diff_report import Report, kept
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.diff.comparison import Difference, TableDiff
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore

OTHERS: Final = TableId("shop", "others")
OF: Final[Mapping[str, Any]] = {"pipeline": "shop", "where": None, "sample": None, "at": None}


def test_the_file_of_a_report_has_its_own_errors_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"), kept(tmp_path / "no" / "file"):
        pass
    with pytest.raises(FileNotFoundError, match="of the comparison"), kept(tmp_path / "file"):
        raise FileNotFoundError("of the comparison")
    with (
        pytest.raises(ConfigError, match="cannot be written: No space left"),
        kept(Path("/dev/full")) as report,
    ):
        report.keep(ORDERS, Difference("only_at_source", {"id": "1"}))


def test_a_report_says_with_what_was_compared(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    with kept(path, "other") as report:
        report.keep(ORDERS, Difference("only_at_source", {"id": "1"}))
        report.keep(ORDERS, Difference("different", {"id": "2"}, ("note",), {"note": ("a", None)}))
    first, second = map(json.loads, path.read_text().splitlines())
    assert first["kind"] == "only_at_other"
    assert second["values"] == {"note": {"other": "a", "target": None}}


def _cut_off(path: Path, **of: Any) -> TableDiff:
    """A comparison of two tables that ends in the second; what came of the first."""
    missing = Difference("different", {"id": "1"}, ("note",), {"note": ("a", None)})
    found = TableDiff(ORDERS, 8, 7, equal=6, different=1, not_compared=("extra",), shown=(missing,))

    def compare(report: Report) -> None:
        report.keep(ORDERS, missing)
        report.done(found)
        report.done(TableDiff(TableId("shop", "refused"), refused="it has no key"))
        report.keep(OTHERS, Difference("only_at_source", {"id": "2"}))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), kept(path, of={**OF, **of}) as report:
        compare(report)
    return found


def _kinds(path: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()]


def test_a_report_goes_on_behind_the_last_table_that_is_done(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    found = _cut_off(path)
    assert _kinds(path) == ["different", "only_at_source"]
    with kept(path, of=OF, resume=True) as report:
        assert report.found == [found]
        report.keep(OTHERS, Difference("only_at_target", {"id": "3"}))
        report.done(TableDiff(OTHERS, 1, 2, only_at_target=1))
    assert _kinds(path) == ["different", "only_at_target"]
    assert [one.name for one in tmp_path.iterdir()] == ["report.jsonl"]
    # No interrupted comparison is left.
    with (
        pytest.raises(ConfigError, match="There is no comparison to continue"),
        kept(path, of=OF, resume=True),
    ):
        pass
    assert _kinds(path) == ["different", "only_at_target"]


def test_one_that_begins_again_knows_nothing_of_what_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    _cut_off(path)
    with kept(path, of=OF) as report:
        assert report.found == []
    assert path.read_text() == ""


def test_a_report_goes_on_with_the_same_comparison_alone(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    _cut_off(path, sample=10)
    with (
        pytest.raises(ConfigError, match="pipeline shop, sample 10, not pipeline shop"),
        kept(path, of=OF, resume=True),
    ):
        pass
    assert _kinds(path) == ["different", "only_at_source"]


def test_tables_that_are_done_are_shown_and_not_compared_again(tmp_path: Path) -> None:
    path, report = diff_config(tmp_path), tmp_path / "report.jsonl"
    SqlStateStore(str(tmp_path / "state.db")).save_status(TableStatus("shop", ORDERS, "IDLE"))
    code, output = run_diff(path, "--resume")
    assert (code, "Give --report FILE" in output) == (2, True)
    code, output = run_diff(path, "--resume", "--report", str(report))
    assert (code, "cannot be written: No such file" in output) == (2, True), output
    _cut_off(report)
    code, output = run_diff(path, "--resume", "--report", str(report), "-o", "json")
    (table,) = json.loads(output.splitlines()[-1])["tables"]
    assert (code, table["at_source"], table["different"]) == (3, 8, 1)
    assert table["differences"][0]["key"] == {"id": "1"}
    assert _kinds(report) == ["different"]
