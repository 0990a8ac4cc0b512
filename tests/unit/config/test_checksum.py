"""``source.checksum``: where it can have no effect it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right, wrong
from tidesink.codecs.options import FlatAvroOptions

EXTENDED = changed(FLAT_AVRO, source__enable_tidb_extension=True)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (changed(FLAT_AVRO, source__checksum="reject"), "TiCDC ignores it without the TiDB extension"),
        (changed(CANAL_JSON, source__checksum="warn"), "no effect with protocol canal-json"),
        (changed(EXTENDED, source__checksum="maybe"), "off"),
    ],
)
def test_a_checksum_that_cannot_be_is_refused(settings: dict[str, Any], reason: str) -> None:
    problem = wrong(settings)["source.checksum"]
    assert reason in f"{problem.reason} {problem.remedy}"


@pytest.mark.parametrize("mode", ["off", "warn", "reject"])
def test_a_checksum_reaches_the_codec(mode: str) -> None:
    found = right(changed(EXTENDED, source__checksum=mode))
    assert found.source.options_of(FlatAvroOptions).checksum == mode
