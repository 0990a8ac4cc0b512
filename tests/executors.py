"""Which executor runs the batches of a test: the worker's process (``local``) or Spark (``batch.executor``).

With ``auto``, nearly every batch of a test is small enough for the worker's process. So the configs of tests
name one. ``make test`` chooses it for each test by the test's id; ``make test-all`` runs the tests of
``ON_BOTH`` on each. A batch that needs Spark runs on Spark in either case.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, Literal

import pytest

from tests.full import TEST_ALL

ExecutorName = Literal["local", "spark"]
EXECUTORS: Final[tuple[ExecutorName, ...]] = ("local", "spark")
# Modules whose tests ``make test-all`` runs on both: what a batch does to a table, and
# what kills leave of it. Each is ``tests/FOLDER/test_NAME.py``.
ON_BOTH: Final = {
    "contracts": {
        "changes_that_wait",
        "columns_chosen_later",
        "columns_that_went",
        "compacted_topic",
        "emptied_tables",
        "passing_failures",
        "status_of_a_table",
        "table_at_a_bound",
        "targets_codecs",
        "targets_modes",
        "targets_names_apart",
        "unknown_commits",
    },
    "e2e": {
        "append_mode",
        "bad_records",
        "bank",
        "compacted_topics",
        "connector_cuts",
        "cuts",
        "cuts_beside_snapshots",
        "database_cuts",
        "dead_letters",
        "debezium_replay",
        "emptied_tables",
        "history",
        "iceberg",
        "kill",
        "large_messages",
        "letters_of_targets",
        "live_kills",
        "message_targets",
        "prepared_transactions",
        "replay",
        "replay_letters",
        "replay_repaired",
        "restored",
        "resync",
        "rewind",
        "row_keyed",
        "schema_changes",
        "source_order",
        "sql_targets",
        "ticdc_kills",
        "traces",
        "worker_stops",
        "zombie",
    },
}


class _Chosen:
    """The executor of the test that runs."""

    name: ExecutorName | None = None


def executor_of_test() -> ExecutorName | Literal["auto"]:
    """The executor for the config of a worker of the test that runs."""
    return _Chosen.name or "auto"


def other_executor() -> ExecutorName:
    """The one that the test's workers do not have."""
    return "spark" if _Chosen.name == "local" else "local"


@pytest.fixture(autouse=True)
def executor(request: pytest.FixtureRequest) -> Iterator[ExecutorName]:
    """The executor of the test's workers: its parameter, or chosen by its id."""
    by_id = EXECUTORS[zlib.crc32(request.node.nodeid.encode()) % len(EXECUTORS)]
    chosen: ExecutorName = getattr(request, "param", by_id)
    _Chosen.name = chosen
    yield chosen
    _Chosen.name = None


def on_both(metafunc: pytest.Metafunc) -> None:
    """With ``make test-all``, run each test of ``ON_BOTH`` once on each executor."""
    path = metafunc.definition.path
    is_on_both = path.stem.removeprefix("test_") in ON_BOTH.get(path.parent.name, ())
    marks = metafunc.definition.iter_markers("parametrize")
    if any(mark.args[0] == "executor" for mark in marks) or "executor" not in metafunc.fixturenames:
        return
    if TEST_ALL and is_on_both:
        metafunc.parametrize("executor", EXECUTORS, indirect=True)
