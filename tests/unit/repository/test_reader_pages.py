"""The snippets of docs/lake-readers.md and docs/debezium-quickstart.md do what the pages say."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from typer.testing import CliRunner

from tidesink.cli.main import app
from tidesink.config import load_config

DOCS: Final = Path(__file__).parents[3] / "docs"


def snippets(page: str, language: str) -> list[str]:
    """A page's code blocks in one language."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_polars_and_delta_rs_read_a_table(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "total": [5, 7]})
    vectors = {"delta.enableDeletionVectors": "true"}
    write_deltalake(tmp_path / "shop" / "orders", rows, configuration=vectors)
    by_polars, by_delta_rs, *_ = snippets("lake-readers.md", "python")
    found: dict[str, pa.Table] = {}
    for program in (by_polars, by_delta_rs):
        exec(program.replace('"/lake', f'"{tmp_path}'), found)  # noqa: S102
    assert len(found["rows"]) == rows.num_rows
    exec(by_polars.replace('"/lake', f'"{tmp_path}'), found)  # noqa: S102
    assert len(found["orders"]) == rows.num_rows


def test_duckdb_reads_a_table_without_a_network(tmp_path: Path) -> None:
    """In the version that the page names."""
    rows = pa.table({"id": [1, 2], "total": [5, 7]})
    write_deltalake(tmp_path / "shop" / "orders", rows)
    (program,) = (text for text in snippets("lake-readers.md", "python") if "import_extension" in text)
    found: dict[str, list[tuple[int, int]]] = {}
    exec(program.replace("'/lake", f"'{tmp_path}"), found)  # noqa: S102
    assert sorted(found["rows"]) == [(1, 5), (2, 7)]
    named = set(re.findall(r"1\.5\.\d+", (DOCS / "lake-readers.md").read_text(encoding="utf-8")))
    assert named == {importlib.metadata.version("duckdb")}


@pytest.mark.parametrize("number", range(2))
def test_a_config_of_the_quickstart_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("TARGET_PASSWORD", "secret")
    path = tmp_path / "tidesink.yaml"
    path.write_text(snippets("debezium-quickstart.md", "yaml")[number], encoding="utf-8")
    assert load_config(path).pipeline == ("app-pg", "app-ice")[number]


def test_init_writes_what_the_quickstart_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, ice, postgres, *_ = snippets("debezium-quickstart.md", "sh")
    shown = {one["pipeline"]: one for one in map(yaml.safe_load, snippets("debezium-quickstart.md", "yaml"))}
    for command in (ice, postgres):
        # A port at which nothing listens: init asks a broker for its topics.
        arguments = shlex.split(command.replace("127.0.0.1:9092", "127.0.0.1:9"))[1:]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == os.EX_OK, result.output
        written = yaml.safe_load(Path(arguments[1]).read_text(encoding="utf-8"))
        target = shown[written["pipeline"]]["target"]
        target.pop("password", None)
        assert written["target"] == target
