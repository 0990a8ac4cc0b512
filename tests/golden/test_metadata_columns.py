"""Metadata columns of real Debezium records, from the bytes to the rows that a target writes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.golden.debezium_captures import Capture, find_captures
from tests.spark.decoded import reduced_here
from tests.spark.test_golden_debezium_spark import by_topic, codec_of, plan_of
from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.vectors import SUBSET
from tidesink.config import TableConfig
from tidesink.events import ChangeEvent, Message, Op, TableId
from tidesink.sinks.decode.records import NO_RULES
from tidesink.sinks.decode.target_rows import Metadata
from tidesink.sinks.laws.modes import INDEX, OFFSET, OP, POSTIMAGE, PREIMAGE, UNAVAILABLE
from tidesink.typemap.projection import project

METADATA = {"op": "m_op", "position": "m_position", "offset": "m_offset", "batch": "m_batch"}


@pytest.fixture(params=["mdb_avro", "pg_precise"])
def capture(request: pytest.FixtureRequest) -> Capture:
    """A capture of a binlog, and one of Postgres, whatever vectors a run is given."""
    (found,) = [one for one in find_captures(SUBSET) if one.name == request.param]
    return found


def narrowest(capture: Capture) -> tuple[TableId, list[Message], list[ChangeEvent]]:
    """Of the capture's tables with rows that were changed and deleted the one with the fewest columns."""
    found = []
    for table, messages in by_topic(capture):
        decoded = [event for one in messages for event in codec_of(capture).decode(one)]
        events = [event for event in decoded if isinstance(event, ChangeEvent)]
        ops = Counter(event.op for event in events)
        if ops[Op.UPDATE] and ops[Op.DELETE] and not ops[Op.TRUNCATE] and all(event.key for event in events):
            found.append((table, messages, events))
    return min(found, key=lambda one: len(one[2][0].after or one[2][0].before or ()))


def written(capture: Capture, settings: TableConfig, messages: list[Message]) -> list[dict[str, Any]]:
    """The rows that a target is given, those of marked deletes among them."""
    logs = settings.mode == "append"
    inner = plan_of(capture, settings.table, messages, keyless=logs)
    projection = settings.projection
    laid = project(projection, inner.shape, own=())
    metadata = Metadata(projection.metadata, inner.shape.table)
    rows = replace(inner.rows, target=laid.shape, sources=laid.sources, metadata=metadata)
    plan = replace(inner, rows=rows).for_batch(7, NO_RULES, marks_deletes=settings.deletes == "soft")
    return [row["after"] for row in reduced_here(plan, messages).to_apply]


def settings_of(table: TableId, **defaults: Any) -> TableConfig:
    config = changed(
        CANAL_JSON, source__protocol="debezium-json", defaults={"metadata": METADATA, **defaults}
    )
    return right(config).table_config(table)


def test_a_row_says_where_its_last_change_stands(capture: Capture) -> None:
    table, messages, events = narrowest(capture)
    rows = written(capture, settings_of(table, deletes="soft"), messages)
    last = {tuple((event.key or {}).values()): event for event in events}
    assert {row["m_offset"]: (row["m_op"], row["m_position"]) for row in rows} == {
        event.position.offset: (event.op.value, event.position.source_text) for event in last.values()
    }
    assert {row["m_batch"] for row in rows} == {7}
    deleted = [row["m_position"] for row in rows if row["m_op"] == "delete"]
    assert deleted
    assert None not in deleted


def test_every_image_of_a_log_says_where_its_change_stands(capture: Capture) -> None:
    table, messages, events = narrowest(capture)
    rows = written(capture, settings_of(table, mode="append"), messages)
    places = {event.position.offset: event.position.source_text for event in events}
    assert {row[OFFSET]: row["m_position"] for row in rows} == places
    assert all((row["m_op"], row["m_offset"]) == (row[OP], row[OFFSET]) for row in rows)
    assert {row["m_op"] for row in rows} >= {POSTIMAGE, "delete"}
    assert capture.is_postgres or PREIMAGE in {row["m_op"] for row in rows}
    assert len({(row[OFFSET], row[INDEX]) for row in rows}) == len(rows)
    assert not [row for row in rows if "m_" in (row[UNAVAILABLE] or "")]
