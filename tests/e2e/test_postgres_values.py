"""A row that is read from Postgres has the values that its change event has: each row of the captures."""

from __future__ import annotations

from typing import Final

import pytest

from tests.e2e.capture_rows import messages_of, table_differences
from tests.e2e.vector_rows import DatabaseRows
from tests.golden.debezium_captures import Capture
from tests.golden.each_capture import each_capture
from tests.postgres_database import own_postgres, run_scripts, source_connection
from tidesink.events import TableId
from tidesink.sinks.targets.sql.location import Endpoint

pytestmark = pytest.mark.servers


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    each_capture(metafunc, kind=lambda one: one.is_postgres)


# Without a key, and without rows in the end.
_LEFT_OUT: Final = ("p_nopk", "p_uidx")
_OTHERWISE: Final = {
    ("p_num", "{'id': 3}", "m"): "the connector's own snapshot reads money as a double",
    ("p_time", "{'id': 3}", "d"): "and a date before Christ as one after it",
    ("p_time", "{'id': 2}", "ts3"): "and the days before 1582 by the calendar that held then",
    ("p_time", "{'id': 2}", "tstz"): "the same",
    ("p_str", "nm"): "a name, which is null where it is streamed, but under include.unknown.datatypes",
    (
        "p_toast",
        "{'id': 2}",
        "bigb",
    ): "a value that is left out, for which binary.handling.mode base64 has null",
    ("p_str", "ad"): "a composite, which is sent under include.unknown.datatypes alone",
}
# These began before the last script.
_EARLIER: Final = ("pg_avro", "pg_plain", "pg_schema")


def test_rows_of_a_capture(capture: Capture, postgres: Endpoint) -> None:
    """A connector's events and the database that it read, as its statements leave it."""
    with own_postgres(postgres) as url:
        scripts = sorted(capture.path.parent.glob("postgres_*.sql"))[: 2 if capture.name in _EARLIER else 3]
        run_scripts(url, *(one.read_text(encoding="utf-8") for one in scripts))
        tables = [name for name in messages_of(capture, "lab") if name not in _LEFT_OUT]
        assert len(tables) >= 3
        differing = list[str]()
        with source_connection(url) as connection:
            for name in tables:
                rows = DatabaseRows.of(connection, url, TableId("lab", name))
                differing += table_differences(capture, TableId("lab", name), rows, _OTHERWISE)
    assert not differing, "\n".join(differing)
