"""``sequence_by: source`` in a config: where it is taken, and where refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right, wrong
from tidesink.events import TableId


@pytest.mark.parametrize("base", [FLAT_AVRO, CANAL_JSON], ids=["flat-avro", "canal-json"])
def test_it_is_taken_where_events_have_a_commit_ts(base: dict[str, Any]) -> None:
    config = right(changed(base, defaults__sequence_by="source", source__enable_tidb_extension=True))
    assert config.defaults.sequence_by == "source"


@pytest.mark.parametrize(
    ("data", "field", "reason"),
    [
        (changed(FLAT_AVRO, defaults__sequence_by="source"), "defaults", "enable-tidb-extension=true"),
        (
            changed(CANAL_JSON, tables=[{"name": "a.b", "sequence_by": "source"}]),
            "tables[0]",
            "enable-tidb-extension=true",
        ),
        (
            changed(
                CANAL_JSON,
                source__protocol="debezium-json",
                source__topics="{schema}_{table}",
                source__debezium={"unwrapped": True},
                defaults__sequence_by="source",
            ),
            "defaults",
            "no source position",
        ),
    ],
)
def test_it_is_refused_where_they_have_none(data: dict[str, Any], field: str, reason: str) -> None:
    problem = wrong(data)[f"{field}.sequence_by"]
    assert reason in problem.reason
    assert "sequence_by: kafka" in problem.remedy


def test_it_is_taken_for_debeziums_messages_since_ticdc_writes_them_too() -> None:
    config = right(changed(FLAT_AVRO, source__protocol="debezium-avro", defaults__sequence_by="source"))
    assert config.defaults.sequence_by == "source"


def test_how_long_deletes_are_remembered_is_a_tables_own() -> None:
    ordered = {"sequence_by": "source", "tombstone-retention": "1h"}
    config = right(
        changed(
            FLAT_AVRO,
            source__enable_tidb_extension=True,
            defaults={"sequence_by": "source"},
            tables=[{"match": "a.*", "tombstone-retention": "2h"}, {"name": "b.c", **ordered}],
        )
    )
    kept = [config.table_config(TableId(*name)).tombstone_retention for name in ("ax", "bc", "cd")]
    assert kept == [7200.0, 3600.0, 7 * 86400.0]


@pytest.mark.parametrize(
    ("defaults", "reason"),
    [
        ({"sequence_by": "source", "tombstone-retention": "0s"}, "not a valid number"),
        ({"tombstone-retention": "1d"}, "has no effect with sequence_by: kafka"),
    ],
)
def test_a_retention_that_forgets_at_once_or_does_nothing_is_refused(
    defaults: dict[str, Any], reason: str
) -> None:
    problems = wrong(changed(FLAT_AVRO, source__enable_tidb_extension=True, defaults=defaults))
    assert reason in problems["defaults.tombstone-retention"].reason
