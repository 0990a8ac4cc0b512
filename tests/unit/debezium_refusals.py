"""Wrong configs of Debezium's protocols, as in ``config_refusals``."""

from __future__ import annotations

from typing import Any

from tests.unit.config_samples import CANAL_JSON, FLAT_AVRO, changed

DEBEZIUM: list[tuple[str, dict[str, Any], str, str, str]] = [
    (
        "debezium with a registry",
        changed(FLAT_AVRO, source__protocol="Debezium-JSON"),
        "source.schema-registry",
        "has no effect with protocol debezium-json",
        "remove it",
    ),
    (
        "debezium-avro without a registry",
        changed(CANAL_JSON, source__protocol="debezium-avro"),
        "source.schema-registry",
        "debezium-avro needs the schema registry",
        "schema-registry: http",
    ),
    (
        "TiCDC's options for debezium-avro",
        changed(FLAT_AVRO, source__protocol="debezium-avro", source__content_compatible=True),
        "source.content-compatible",
        "has no effect with protocol debezium-avro",
        "remove it",
    ),
    (
        "Debezium's options for flat-avro",
        changed(FLAT_AVRO, source__debezium={"binary-handling-mode": "hex"}),
        "source.debezium",
        "has no effect with protocol flat-avro",
        "remove it",
    ),
]
