"""``mode`` in a config: taken where the target has it, refused by name elsewhere."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.unit.config_samples import FLAT_AVRO, changed, right, wrong
from tidesink.config.models import TableMode
from tidesink.config.modes import MODE_TARGETS
from tidesink.sinks.targets import TARGETS


def test_rows_are_kept_as_at_the_source_where_nothing_is_said() -> None:
    assert right(FLAT_AVRO).defaults.mode == "upsert"


@pytest.mark.parametrize("mode", ["append", "history"])
def test_a_target_without_the_mode_refuses_it(mode: TableMode) -> None:
    config = changed(FLAT_AVRO, target={"type": "http", "url": "http://127.0.0.1:1/"}, defaults__mode=mode)
    if "http" in MODE_TARGETS[mode]:
        pytest.skip("the target has it")
    assert "holds no table in mode" in wrong(config)["defaults.mode"].reason


@pytest.mark.parametrize("name", TARGETS)
def test_the_modes_are_those_of_the_targets_capabilities(name: str) -> None:
    capabilities = import_module(TARGETS[name]).CAPABILITIES
    assert capabilities.modes - {"upsert"} == {mode for mode, names in MODE_TARGETS.items() if name in names}
