"""The snippets of docs/cuts.md for Polars and DuckDB read the tables of a lake as of a cut."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from tidesink.sinks.targets.cuts import NAME
from tidesink.sinks.targets.lake.cuts import COLUMNS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cuts.md"
VERSION = 2
_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def _lake(root: Path) -> None:
    """An account whose rows have the balance of their version, and cuts of two pipelines."""
    for balance in range(VERSION + 2):
        rows = pa.table({"id": [1], "balance": [100 + balance]})
        # As a worker makes its tables: readers have to support deletion vectors.
        vectors = {"delta.enableDeletionVectors": "true"}
        write_deltalake(root / "bank" / "account", rows, mode="overwrite", configuration=vectors)
    now = datetime(2026, 11, 26, tzinfo=timezone.utc)
    cuts = [("bank", 7, VERSION - 1), ("bank", 9, VERSION), ("shop", 11, VERSION + 1)]
    place = str(root / "bank" / "account")
    values = [
        (pipeline, commit_ts, now, now, "bank", "account", place, version, None)
        for pipeline, commit_ts, version in cuts
    ]
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])
    rows = [dict(zip(schema.names, one, strict=True)) for one in values]
    write_deltalake(root / NAME, pa.Table.from_pylist(rows, schema))


def test_polars_and_duckdb_read_a_cut(tmp_path: Path) -> None:
    _lake(tmp_path / "lake")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (one for one in blocks if "polars" in one)
    program = block.replace('"/lake/', f'"{tmp_path}/lake/').replace("version=17", f"version={VERSION}")
    lines = program.strip().splitlines()
    assert lines[-1].startswith("duckdb.sql(")
    lines[-1] = f"print({lines[-1]}.fetchall())"
    shown = 'print({name: one.collect()["balance"].to_list() for name, one in tables.items()})'
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, shown])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    balance = 100 + VERSION
    assert done.stdout.splitlines() == [f"[({balance},)]", str({"bank.account": [balance]})]
