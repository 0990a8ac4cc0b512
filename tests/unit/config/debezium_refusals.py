"""Wrong configs of Debezium's protocols, as in ``refusals``."""

from __future__ import annotations

from typing import Any

from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed

CONNECTOR = changed(CANAL_JSON, source__protocol="debezium-json", target={"path": "./lake"})
OFFSETS = {"offsets-topic": "connect-offsets", "connector-name": "bank"}
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
    (
        "a connector's offsets without its name",
        changed(CONNECTOR, source__debezium={"offsets-topic": "connect-offsets"}, cuts={}),
        "source.debezium.connector-name",
        "offsets-topic and connector-name must both be set",
        "add it",
    ),
    (
        "a connector's name without its offsets",
        changed(CONNECTOR, source__debezium={"connector-name": "bank"}),
        "source.debezium.offsets-topic",
        "must both be set",
        "add it",
    ),
    (
        "a connector's offsets without cuts",
        changed(CONNECTOR, source__debezium=OFFSETS),
        "source.debezium.offsets-topic",
        "has no effect without cuts",
        "set cuts, or remove it",
    ),
    (
        "cuts of a connector without its offsets",
        changed(CONNECTOR, cuts={}),
        "cuts",
        "need watermarks in the topics, which these settings do not provide",
        "set offsets-topic and connector-name under source.debezium",
    ),
    (
        "cuts of a connector and its DDL",
        changed(CONNECTOR, source__debezium={**OFFSETS, "schema-change-topic": "bank"}, cuts={}),
        "source.debezium.schema-change-topic",
        "not possible with cuts",
        "remove it, or remove cuts",
    ),
    *(
        (
            f"cuts of a connector and {name}",
            changed(CONNECTOR, source__debezium=OFFSETS, cuts={}, defaults={name: value}),
            f"defaults.{name}",
            reason,
            "remove",
        )
        for name, value, reason in (
            ("mode", "history", "needs the commit_ts of each change"),
            ("sequence_by", "source", "needs the commit_ts of each change"),
            ("snapshot", "initial", "a snapshot reads the present rows"),
        )
    ),
]
