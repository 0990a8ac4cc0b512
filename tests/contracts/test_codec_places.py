"""Each codec of CODECS is listed in all places that have an entry, a page or files for each codec."""

from __future__ import annotations

from typing import Final

import pytest
from pydantic import BaseModel

from tests.contracts.coded_changes import PROTOCOLS
from tests.fuzz.targets import TARGETS
from tests.vectors import ROOT, SUBSET
from tidesink.codecs.open import CODECS
from tidesink.config.source import SourceSettings
from tidesink.config.targets import KafkaSettings
from tidesink.sinks.decode.open import DECODINGS
from tidesink.sinks.spark.daemon import MODULES
from tidesink.typemap.target_schema import IDENTITIES

_LISTS: Final = {
    "DECODINGS in tidesink/sinks/decode/open.py": DECODINGS.keys(),
    "IDENTITIES in tidesink/typemap/target_schema.py": IDENTITIES.keys(),
    "TARGETS in tests/fuzz/targets.py": TARGETS.keys(),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_codec_has_an_entry_in_each_list(protocol: str) -> None:
    assert [place for place, names in _LISTS.items() if protocol not in names] == []


def test_workers_read_no_protocol_that_is_not_a_codec() -> None:
    assert DECODINGS.keys() == CODECS.keys()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spark_imports_the_plans_of_a_codec_before_its_workers_fork(protocol: str) -> None:
    module = f"tidesink.sinks.decode.{protocol.replace('-', '_')}"
    assert module in MODULES, "Add it to MODULES in tidesink/sinks/spark/daemon.py."


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_codec_has_golden_records(protocol: str) -> None:
    names = (protocol, *CODECS[protocol].aliases)
    files = [file for name in names for file in SUBSET.rglob(f"{name}.rows.jsonl")]
    assert files, f"Add tests/golden/data/<folder>/{protocol}.rows.jsonl."


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_pages_name_a_codec(protocol: str) -> None:
    page = (ROOT / "docs" / "codecs.md").read_text(encoding="utf-8")
    assert f"\n## {protocol}\n" in page or f"`{protocol}`" in page, "Add a section to docs/codecs.md."
    settings: list[type[BaseModel]] = [SourceSettings]
    if CODECS[protocol].writes is not None:
        settings.append(KafkaSettings)
    for model in settings:
        text = model.model_fields["protocol"].description or ""
        assert f"`{protocol}`" in text, f"Name the protocol in the docstring of {model.__name__}.protocol."
