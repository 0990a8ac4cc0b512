"""Rows of the database in a history: versions of which no change tells, from the moment of their read on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.e2e.forked_worker import die_at, drain
from tests.e2e.live_source import LiveTable, ask_snapshot, changing, live_config, live_table, shown_snapshot
from tests.e2e.places import Rows, place_of
from tests.e2e.replay import Servers
from tests.full import FULL
from tests.tidb_front import next_tso
from tidesink.cli.table_plans import by_topics, table_plans, with_snapshots
from tidesink.config import Config, load_config
from tidesink.events import TableId
from tidesink.sinks.laws.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN
from tidesink.sinks.worker.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

_NAMES = ("region", "id", "price", "note", "data")
_KINDS = ["delta", *(pytest.param(kind, marks=FULL) for kind in ("iceberg", "postgres", "mysql"))]
Key = tuple[str, int]


class Version(NamedTuple):
    """A row of a history as the test compares it; a mark has no values."""

    end: int | None
    values: tuple[Any, ...] | None
    read: bool


def _values(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(bytes(one) if isinstance(one, bytearray) else one for one in (row[name] for name in _NAMES))


def _held(rows: Rows | None) -> dict[Key, dict[int, Version]]:
    found: dict[Key, dict[int, Version]] = {}
    for row in rows or ():
        begin, end = row[FROM_COLUMN], row[TO_COLUMN]
        values = None if begin == end else _values(row)
        versions = found.setdefault((row["region"], int(row["id"])), {})
        assert begin not in versions
        versions[begin] = Version(end, values, bool(row[READ_COLUMN]))
    return found


def _told(commits: Iterable[tuple[Key, int, Mapping[str, Any] | None]]) -> dict[Key, dict[int, Any]]:
    """By key and commit_ts the values of a row, None for a delete."""
    found: dict[Key, dict[int, Any]] = {}
    for key, at, row in commits:
        found.setdefault(key, {})[at] = None if row is None else _values(row)
    return found


def _as_of(commits: Mapping[int, Any], moment: int) -> Any:
    """The values of a row as of a moment; None where there is none."""
    before = [at for at in commits if at <= moment]
    return commits[max(before)] if before else None


def _chosen(values: tuple[Any, ...]) -> bool:
    """What the table's filter leaves in."""
    return values[_NAMES.index("note")] is not None


def _check(table: LiveTable, rows: Rows | None, *, begun: int, ended: int) -> int:
    """Hold a history to what was committed and sent; how many versions begin with a read.

    ``begun``, ``ended``: moments before and behind all reads.
    """
    told, sent, held = _told(table.commits), _told(table.sent), _held(rows)
    reads = 0
    for key in told.keys() | held.keys():
        commits, events = told[key], dict(sent.get(key, {}))
        events = {at: row if row is not None and _chosen(row) else None for at, row in events.items()}
        read = [at for at, version in held.get(key, {}).items() if version.read]
        first = min(events, default=None)
        there = _as_of(commits, begun), _as_of(commits, ended)
        if all(one is not None and _chosen(one) for one in there) and (first is None or first > ended):
            assert read, key
        if read:
            (at,) = read
            # As of its moment, neither before nor behind it: what follows in the topic is no part of it.
            assert begun < at < ended
            assert first is None or at < first
            assert _chosen(_as_of(commits, at))
            events[at] = _as_of(commits, at)
            reads += 1
        assert held.get(key, {}) == _versions(events, set(read)), key
    return reads


def _versions(events: Mapping[int, Any], reads: set[int]) -> dict[int, Version]:
    """What a history has of a key with these events, by the words of the docs."""
    ordered: list[int | None] = [*sorted(events), None]
    found, before = dict[int, Version](), None
    for at, end in pairwise(ordered):
        assert at is not None
        if events[at] is not None:
            found[at] = Version(end, events[at], at in reads)
        elif before is None:
            found[at] = Version(at, None, False)
        before = events[at]
    return found


def _run(config: Config, *, batches: int) -> None:
    report = run(config, batches=batches)
    assert report.exit_code == 0, [one.error for one in report.tables]


@pytest.mark.parametrize("kind", _KINDS)
def test_rows_that_no_change_tells_of_are_versions_from_their_read_on(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,
    tidb_url: str,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """Changes from before, between and behind the parts come late, and workers are killed; then once more."""
    place, log = place_of(kind, request, tmp_path), tmp_path / "worker.log"
    # The session's own isolation is another one.
    url = f"{tidb_url}?init_command=SET+SESSION+TRANSACTION+ISOLATION+LEVEL+READ+COMMITTED"
    with live_table(tidb_url, servers, clock=next_tso) as table:
        table.load(600)
        with table.unsent():  # as long ago as the topic does not reach
            for _ in range(150):
                table.change()
        for _ in range(30):
            table.change()
        defaults = {"snapshot": "initial", "mode": "history", "filter": "note IS NOT NULL"}
        # MariaDB is the source, too: there the history needs a name of its own.
        apart, said = ("copy_", {"table": "copy_{schema}.{table}"}) if kind == "mysql" else ("", {})
        name = TableId(apart + table.name.schema, table.name.name)
        more = {"target": {**place.target, **said}, "defaults": defaults}
        path = live_config(tmp_path, servers, table, url, rows=60, **more)
        config = load_config(path)
        begun = next_tso()
        with table.held_back():
            for step in ("committing", "committed"):
                for _ in range(10):
                    table.change()
                die_at(step, spark, path, log)
            with changing(table.change, pause=0.05):
                _run(config, batches=3)
        with changing(table.change, pause=0.05):
            _run(config, batches=2)
        drain(spark, path, log)
        ended = next_tso()
        assert shown_snapshot(config)["state"] == "done"
        reads = _check(table, place.rows(name), begun=begun, ended=ended)
        # Late changes were of rows that had been read, and many rows never changed.
        assert 200 < reads < 600
        before = sorted(map(repr, place.rows(name) or ()))
        ask_snapshot(config, table, lambda asked: asked.start(float(ended)))
        drain(spark, path, log)
        assert sorted(map(repr, place.rows(name) or ())) == before


@FULL
def test_a_database_without_timestamps_is_refused_by_the_plan_and_the_worker(
    spark: SparkSession, tmp_path: Path, servers: Servers, mariadb_url: str
) -> None:
    with live_table(mariadb_url, servers, clock=next_tso) as table:
        table.load(10)
        table.change()
        defaults = {"snapshot": "initial", "mode": "history"}
        config = load_config(live_config(tmp_path, servers, table, mariadb_url, defaults=defaults))
        (planned,) = with_snapshots(config, by_topics(config, table_plans(config, sample=100)))
        (found,) = run(config, until="drained").tables
        for said in (planned.problem, found.error):
            assert "no timestamps that can be compared with a commit_ts" in str(said)
        assert found.state == "FAILING"
