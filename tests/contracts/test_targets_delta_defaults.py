"""Defaults of added columns that are still to be filled, when a worker that lost the table wakes up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contracts.interrupted import Forestalled
from tests.contracts.targets_bed import Bed
from tests.contracts.test_targets_delta import SHAPE, WIDER, loaded
from tidesink.errors import StaleProgressError
from tidesink.sinks.targets.delta import schema as delta_schema
from tidesink.sinks.targets.delta.log import DeltaLog
from tidesink.sinks.targets.delta.table import DeltaTarget

pytestmark = pytest.mark.spark


def test_a_lost_worker_takes_none_away_that_others_are_to_fill(delta: Bed, tmp_path: Path) -> None:
    """It slept behind its claim; the one that took the table is between a default and its column by now."""
    spark: Any = delta.spark
    session: Any = Forestalled(spark, word="ALTER TABLE")
    log = DeltaLog(spark, loaded(delta).path)
    other = DeltaTarget(session, str(tmp_path / "lake")).open_table(SHAPE, pipeline="shop")
    other.claim()

    def wake() -> None:
        assert delta_schema.pending_defaults(log) == {"state": "7"}
        with pytest.raises(StaleProgressError, match="Another worker claimed"):
            delta_schema.fill_pending(spark, log, other.location, epoch=1)

    session.ahead = wake
    assert other.evolve(WIDER).backfilled == ("state",)
    assert [row["state"] for row in delta.rows()] == [7, 7, 7]
