"""Which tables are loaded without a record, and by which topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.worker_contexts import no_spark
from tidesink.config import Config
from tidesink.errors import SourceError
from tidesink.events import TableId
from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.spark.engine import SparkEngine
from tidesink.sinks.state.progress import TopicProgress
from tidesink.sinks.worker.continuity import Continuity
from tidesink.sinks.worker.look_ups import QuietTables

DATABASE = {"url": "mysql+pymysql://root@127.0.0.1:1/"}
SOURCE = {"source": {**CANAL_JSON["source"], "database": DATABASE}}
NAMED = {"tables": [{"name": "shop.orders", "snapshot": "initial"}]}


TABLES = [TableId("shop", "orders"), TableId("shop", "visits")]


def _found(**changes: Any) -> list[tuple[str, str]]:
    config = Config.model_validate(changed({**CANAL_JSON, **SOURCE}, **changes))
    spark = SparkEngine(no_spark)
    quiet = QuietTables(
        cast("Any", SimpleNamespace(config=config, spark=spark)),
        tuple,
        lambda _config: TABLES,
    )
    assert quiet.tables() == ()
    if quiet.under_way is not None:
        quiet.under_way.result()
        quiet.collect()
    return [(topic, str(table)) for topic, table in quiet.tables()]


@pytest.mark.parametrize(
    ("changes", "topics"),
    [
        ({"source__topics": ["cdc"]}, ["cdc"]),
        ({"source__topics": ["{schema}_{table}"]}, ["shop_orders"]),
        ({"source__topics": ["cdc-{schema}"]}, ["cdc-shop"]),
        ({"source__topics": ["cdc", "more"]}, []),
        ({"tables": [{"name": "shop.other", "snapshot": "initial"}]}, []),
        ({"tables": [{"match": "shop.o*", "snapshot": "initial"}]}, ["app"]),
        ({"source__topics": ["cdc"], "source__database": None}, []),
        ({"source__topics": ["cdc"], "tables": [{"name": "shop.orders"}]}, []),
        (
            {"source__topics": ["cdc"], "tables": [{"name": "shop.orders"}], "defaults__snapshot": "initial"},
            ["cdc"],
        ),
        ({"source__topics": ["cdc"], "tables": [], "defaults__snapshot": "initial"}, []),
    ],
)
def test_a_table_that_the_config_names_has_the_only_topic_it_can_have(
    changes: dict[str, Any], topics: list[str]
) -> None:
    assert _found(**{**NAMED, **changes}) == [(topic, "shop.orders") for topic in topics]


def test_an_unforeseen_failure_of_the_look_stops_no_other_table() -> None:
    config = Config.model_validate(changed({**CANAL_JSON, **SOURCE}, **NAMED))

    def fails(_config: Config) -> list[TableId]:
        raise OSError("no more files")

    spark = SparkEngine(no_spark)
    quiet = QuietTables(cast("Any", SimpleNamespace(config=config, spark=spark)), tuple, fails)
    assert quiet.tables() == ()
    assert quiet.under_way is not None
    quiet.under_way.exception()
    quiet.collect()
    assert quiet.tables() == ()
    assert quiet.under_way is None


@pytest.mark.parametrize("mode", ["upsert", "history", "append"])
def test_a_topic_that_lost_its_beginning_says_a_way_out_that_the_mode_has(mode: str) -> None:
    """``tidesink resync`` is refused in the modes that keep what the source has no more."""
    config = right(changed(CANAL_JSON, source__enable_tidb_extension=True, defaults={"mode": mode}))
    context = cast("Any", SimpleNamespace(config=config, store=None, topics=SimpleNamespace(log=None)))
    checks = Continuity(context, "app", config.table_config(TABLES[0]))
    found = TopicOffsets("app", "id", {0: PartitionOffsets(5, 9)})
    with pytest.raises(SourceError, match="partition 0 at 5") as refused:
        checks.check_topic(TopicProgress("app", "", {}), found)
    assert ("`tidesink resync shop.orders`" in str(refused.value)) is (mode == "upsert")
    assert ("Load it again" in str(refused.value)) is (mode != "upsert")
