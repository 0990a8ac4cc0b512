"""Each target in ``TARGETS`` has its entry in every other list of targets.

A missing entry is reported with the file and the name of the list (CONTRIBUTING.md, "Add a target").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final, get_args

import pytest

from tests.contracts.conftest import BEDS
from tests.e2e.changing_places import PLACES
from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.unit.sinks.worker.test_preflight import TARGET
from tidesink.cli.new_config import TargetType
from tidesink.cli.table_plans import live_rows_query
from tidesink.config.targets import TargetSettings
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.targets import TARGETS
from tidesink.sinks.targets.base import TargetModule
from tidesink.typemap.target_schema import shape_of

ROOT: Final = Path(__file__).parents[4]
PAGES: Final = sorted((ROOT / "docs").glob("targets-*.md"))
# The types that the config accepts, from the tags of ``TargetSettings``.
CONFIGURED: Final = frozenset(get_args(model)[1].tag for model in get_args(get_args(TargetSettings)[0]))
MODULE_NAMES: Final = (*TargetModule.__annotations__, "open_target", "place_of", "try_target")


def missing_entries(name: str) -> Iterator[str]:
    """Yield what a target still lacks, as file and list."""
    if name not in TARGETS:
        yield "TARGETS, tidesink/sinks/targets/__init__.py"
    if name not in CONFIGURED:
        yield "TargetSettings, tidesink/config/targets.py"
    if name not in {kind.value for kind in TargetType}:
        yield "TargetType and _TEMPLATES, tidesink/cli/new_config.py"
    if name not in BEDS:
        yield "BEDS, tests/contracts/conftest.py"
    if name not in PLACES:
        yield "PLACES, tests/e2e/changing_places.py"
    if name not in TARGET:
        yield "TARGET, tests/unit/sinks/worker/test_preflight.py"
    if not any(_describes(page, name) for page in PAGES):
        yield f"docs/targets-{name}.md, or `type: {name}` in the page of its family"


def _describes(page: Path, name: str) -> bool:
    example = re.search(rf"type: (\w+ +# or )?{name}\b", page.read_text(encoding="utf-8"))
    return page.stem == f"targets-{name}" or example is not None


@pytest.mark.parametrize("name", sorted({*TARGETS, *CONFIGURED, *(kind.value for kind in TargetType)}))
def test_a_target_has_its_entry_in_every_list(name: str) -> None:
    assert list(missing_entries(name)) == []


def test_a_missing_entry_is_reported() -> None:
    assert [entry.partition(",")[0] for entry in missing_entries("absent")] == [
        "TARGETS",
        "TargetSettings",
        "TargetType and _TEMPLATES",
        "BEDS",
        "PLACES",
        "TARGET",
        "docs/targets-absent.md",
    ]


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_module_has_all_names(name: str) -> None:
    module = import_module(TARGETS[name])
    assert [attribute for attribute in MODULE_NAMES if not hasattr(module, attribute)] == []


@pytest.mark.parametrize("name", TARGETS)
def test_the_target_and_its_settings_have_the_same_name_and_features(name: str) -> None:
    config = right({**CANAL_JSON, "target": TARGET[name]})
    capabilities = import_module(TARGETS[name]).CAPABILITIES
    assert (capabilities.name, capabilities.features) == (name, config.target.features)


@pytest.mark.parametrize("name", TARGETS)
def test_a_plan_shows_how_to_leave_out_rows_that_are_marked_as_deleted(name: str) -> None:
    """The query comes from ``_PLACES`` in ``cli/table_plans.py``."""
    capabilities = import_module(TARGETS[name]).CAPABILITIES
    if "soft-deletes" not in capabilities.features:
        return
    key = Column("id", ColumnType("bigint"), nullable=False, handle=True, primary_key=True)
    config = right({**changed(CANAL_JSON, defaults__deletes="soft"), "target": TARGET[name]})
    assert "_tidesink_deleted" in live_rows_query(config, shape_of(TableSchema(TableId("shop", "t"), (key,))))


@pytest.mark.parametrize("list_of_pages", ["README.md", "mkdocs.yml"])
def test_a_page_about_a_target_is_linked(list_of_pages: str) -> None:
    text = (ROOT / list_of_pages).read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.name not in text] == []
