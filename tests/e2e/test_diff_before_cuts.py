"""``tidesink diff`` of a database with cuts: what is applied counts, whether readers see it yet or not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.books import Books, books, books_config
from tests.e2e.diffing import differing, drain, table_of_diff
from tests.e2e.live_source import changing
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tests.full import quick_on
from tidesink.config import load_config
from tidesink.events import TableId
from tidesink.sinks.batch.context import StopFlag
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["books"]
pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]


@contextmanager
def _working(config: Path, books: Books) -> Iterator[None]:
    """A worker runs, and the tables change all the time."""
    flag, codes = StopFlag(), list[int]()

    def work() -> None:
        codes.append(run(load_config(config), stop=flag).exit_code)

    worker = threading.Thread(target=work)
    with changing(books.work, pause=0.1):
        worker.start()
        try:
            yield
        finally:
            flag.set()
            worker.join()
    assert codes == [0]


@quick_on("postgres")
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_database_with_cuts_is_compared_as_it_is_applied(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    tidb_url: str,
    books: Books,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    # The source is a database of the same server.
    target = {**place_of(kind, request, tmp_path).target, "table": "copy_{schema}.{table}"}
    config = books_config(tmp_path, servers, tidb_url, target)
    for _ in range(70):
        books.work()
    drain(config)
    name = str(TableId(books.schema, "debit"))
    with _working(config, books):
        _, found = table_of_diff(config, name, "--lag", "1")
        assert differing(found) == (0, 0, 0)
        assert found["equal"] > 40
        books.tamper("debit", 100)
        _, found = table_of_diff(config, name, "--lag", "1")
    assert differing(found) == (0, 1, 0)
    assert found["differences"] == [{"kind": "only_at_source", "key": {"id": "100"}}]
