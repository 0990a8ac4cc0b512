"""The snippets of docs/how-to-arrow.md do what the page says, on a real broker and registry."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.replay import Servers
from tests.e2e.test_howto_codecs import here
from tests.e2e.writing import TableWriter, schema_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to-arrow.md"


def test_the_page_decodes_a_topic_for_each_library(tmp_path: Path, servers: Servers) -> None:
    orders = TableWriter(servers, schema_of("orders"))
    orders.upsert({"id": 1, "name": "one"})
    orders.upsert({"id": 2, "name": "two"})
    orders.delete({"id": 1, "name": "one"})
    orders.send(orders.upsert({"id": 2, "name": "last"}).key, b"no Avro")
    read, *libraries, faults = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [text.split()[1] for text in libraries] == ["polars", "pandas", "duckdb"]
    program = "\nprint('---')\n".join([here(read, servers), *libraries, faults])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tables, polars, pandas, duckdb, wrong = done.stdout.split("---\n")
    assert tables.count("shop.orders") == 2  # rows, and the delete's key
    for shown in (polars, pandas, duckdb):
        assert "last" in shown
        assert "one" not in shown
        assert "two" not in shown
    assert wrong.startswith("4 FramingError ")
