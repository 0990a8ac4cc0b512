"""Where a pipeline's dead letters and DDL events are kept, by its config, and what plan says of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.config_samples import CANAL_JSON, FLAT_AVRO, changed, right
from tidesink.change import TableId
from tidesink.cli.plan import kept_records
from tidesink.errors import ConfigError
from tidesink.sinks.records_place import ddl_events_of, dead_letters_of, kept_in, needs_spark
from tidesink.sinks.rejects import DDL_EVENTS, DEAD_LETTERS
from tidesink.sinks.targets.sql_dead_letters import SqlDeadLetters
from tidesink.sinks.targets.sql_records import SqlRecords

TARGETS: dict[str, dict[str, Any]] = {
    "postgres": {
        "type": "postgres",
        "url": "postgresql://db:5432/shop",
        "user": "u",
        "password": "opensesame",
    },
    "mysql": {"type": "mysql", "url": "mysql://db:3306", "user": "u", "password": "opensesame"},
}
PLACES = {"postgres": "db:5432/shop _tidesink_dead_letters", "mysql": "db:3306 _tidesink_dead_letters"}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_database_keeps_its_own_and_takes_no_spark(kind: str) -> None:
    config = right(changed(FLAT_AVRO, target=TARGETS[kind], defaults__bad_record="dead-letter"))
    assert (kept_in(config, DEAD_LETTERS), needs_spark(config)) == (PLACES[kind], False)
    letters, events = dead_letters_of(config, None), ddl_events_of(config, None)
    assert isinstance(letters, SqlDeadLetters)
    assert isinstance(events, SqlRecords)
    assert (letters.place, events.table) == (PLACES[kind], DDL_EVENTS)
    assert "opensesame" not in repr(vars(letters)) + letters.place


@pytest.mark.parametrize("kind", TARGETS)
def test_a_path_that_the_config_gives_stays_the_place(kind: str) -> None:
    given = {
        "target": TARGETS[kind],
        "defaults__bad_record": "dead-letter",
        "dead_letters__path": "s3://b/kept/",
    }
    config = right(changed(FLAT_AVRO, **given))
    assert kept_in(config, DEAD_LETTERS) == "s3://b/kept/_tidesink_dead_letters"
    assert needs_spark(config)
    with pytest.raises(ConfigError):
        dead_letters_of(config, None)


def test_records_stand_where_routes_bring_the_rows() -> None:
    target = {**TARGETS["postgres"], "table": "lake_{schema}.{table}"}
    routes = [{"match": "app\\.orders_(.)", "to": "all.orders", "shard-column": "s"}]
    letters = dead_letters_of(right(changed(CANAL_JSON, target=target, routes=routes)), None)
    assert isinstance(letters, SqlDeadLetters)
    places = [letters._place_of(TableId("app", name)) for name in ("orders_1", "other")]
    assert [(place.schema, place.source.name) for place in places] == [
        ("lake_all", "orders_1"),
        ("lake_app", "other"),
    ]


def test_plan_says_what_is_kept_where() -> None:
    lake = right(changed(FLAT_AVRO, target__path="s3://b/lake"))
    assert kept_records(lake) == {}
    kept = changed(CANAL_JSON, defaults__bad_record="dead-letter")
    assert kept_records(right(kept)) == {
        "dead_letters": "s3://bucket/lake/_tidesink_dead_letters",
        "ddl_events": "s3://bucket/lake/_tidesink_ddl",
    }
    database = right(changed(CANAL_JSON, target=TARGETS["mysql"]))
    assert kept_records(database) == {"ddl_events": "db:3306 _tidesink_ddl"}
    http = {"type": "http", "url": "https://x.example/{schema}/{table}"}
    assert kept_records(right(changed(CANAL_JSON, target=http))) == {"ddl_events": None}
