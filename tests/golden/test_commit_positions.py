"""Commit positions of what real connectors wrote: each row has one, by columns the one that it has alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tests.decoded_batches import as_records, assert_same
from tests.golden.debezium_captures import Capture
from tests.golden.each_capture import each_capture
from tidesink.codecs.batch import ValueOptions, rows_from_events
from tidesink.codecs.options import DebeziumModes
from tidesink.events import ChangeEvent


@dataclass(frozen=True)
class _Numbered(Capture):
    """A capture as a pipeline with cuts reads it."""

    @property
    def modes(self) -> DebeziumModes:
        return replace(super().modes, commit_positions=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    each_capture(metafunc, kind=lambda one: not one.is_unwrapped)


def test_each_row_has_the_position_of_its_transaction(capture: Capture) -> None:
    numbered = _Numbered(capture.path)
    records = as_records(numbered.messages)
    found = numbered.codec().decode_batch(records)
    assert_same(found, rows_from_events(records, numbered.codec().decode, ValueOptions()))
    rows = [row for one in found.tables for row in one.rows.select(["commit_ts"]).to_pylist()]
    assert len(rows) > 10
    assert all(row["commit_ts"] is not None for row in rows)


def test_without_cuts_no_row_has_one(capture: Capture) -> None:
    codec = capture.codec()
    events = [event for one in capture.messages for event in codec.decode(one)]
    assert {event.commit_ts for event in events if isinstance(event, ChangeEvent)} == {None}
