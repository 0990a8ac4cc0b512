"""What a replay of dead letters refuses before it opens anything."""

from __future__ import annotations

import pytest

from tests.unit.config.samples import CANAL_JSON, changed
from tidesink.config import Config
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.sinks.laws.counts import Account
from tidesink.sinks.letters.topic import Chosen
from tidesink.sinks.worker.replay import ReplayReport, replay


@pytest.mark.parametrize("mode", ["append", "history"])
def test_tables_that_keep_what_came_in_order_take_no_replay(mode: str) -> None:
    settings = changed(CANAL_JSON, tables=[{"name": "shop.log", "mode": mode}])
    config = Config.model_validate(settings)
    with pytest.raises(ConfigError, match=f"table with mode: {mode} cannot replay"):
        replay(config, Chosen(config.pipeline, "shop.log"))


def test_what_is_left_is_what_was_not_dealt_with() -> None:
    report = ReplayReport(TableId("shop", "t"), Account(9, 3, 2, 1, 3), waiting=4, expired=5)
    assert report.left == 12
