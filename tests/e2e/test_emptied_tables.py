"""A TRUNCATE in a topic of two partitions, and workers that are killed around it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.e2e.forked_worker import die_at, drain
from tests.e2e.places import KINDS, Place, place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter, schema_of, shop_config
from tests.full import TEST_ALL, quick_on
from tests.servers import create_topics
from tidesink.codecs.base import CodecOptions
from tidesink.events import TableId
from tidesink.sinks.runtime.context import FAILPOINTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]
TABLE: Final = TableId("shop", "told")
# The steps of a batch that empties the table: it reads nothing and has no row to stage.
BEFORE: Final = ("planned", "recorded", "evolved", "committing") if TEST_ALL else ("committing",)
AFTER: Final = FAILPOINTS[FAILPOINTS.index("committed") :] if TEST_ALL else ("committed",)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Every target whose tables keep rows and outlive the worker."""
    return str(request.param)


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where it has its tables."""
    return place_of(kind, request, tmp_path)


def _names(place: Place) -> dict[int, Any]:
    return {row["id"]: row["name"] for row in place.rows(TABLE) or ()}


@quick_on("delta")
def test_a_kill_at_every_step_around_a_truncate(
    spark: SparkSession, tmp_path: Path, servers: Servers, place: Place
) -> None:
    """Whatever worker goes on, the target is as the source was before it, at it, or after it."""
    topic = f"{servers['prefix']}cdc"
    create_topics(servers["brokers"], {topic: 2})
    options = CodecOptions(enable_tidb_extension=True)
    told = TableWriter(servers, schema_of("told"), protocol="canal-json", topic=topic, options=options)
    source = {
        "brokers": servers["brokers"],
        "protocol": "canal-json",
        "topics": [topic],
        "enable-tidb-extension": True,
    }
    defaults = {"schema-changes": {"truncate": "apply"}}
    config = shop_config(tmp_path, servers, {"source": source, "target": place.target, "defaults": defaults})
    log, clock = tmp_path / "worker.log", 1

    def write(*ids: int) -> None:
        nonlocal clock
        for number in ids:
            clock += 1
            told.upsert({"id": number, "name": f"of {clock}"}, partition=number % 2, commit_ts=clock << 18)

    def truncate() -> None:
        nonlocal clock
        clock += 1
        told.ddl("TRUNCATE TABLE shop.told", commit_ts=clock << 18)

    told.ddl("CREATE TABLE shop.told (id BIGINT PRIMARY KEY, name VARCHAR(40))", commit_ts=1 << 18)
    write(1, 2)
    drain(spark, config, log)
    before = _names(place)
    write(3)  # never applied: the DDL behind it is known first
    truncate()
    write(5)
    for step in BEFORE:
        die_at(step, spark, config, log)
        assert _names(place) == before
    for step in AFTER:
        die_at(step, spark, config, log)
        assert _names(place) == {}
        # The rows of after it, and the next one.
        drain(spark, config, log)
        assert _names(place) == {5: f"of {clock}"}
        truncate()
        write(5)
    # The state store is lost, and a first row is sent again: by the target's progress it is void.
    config.with_name("state.db").unlink()
    drain(spark, config, log)
    told.upsert({"id": 1, "name": "late"}, partition=1, commit_ts=2 << 18)
    drain(spark, config, log)
    assert _names(place) == {5: f"of {clock}"}
