"""Configs to start from, and what reading them gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tidesink.config import Config, Problem, parse_config

FLAT_AVRO: dict[str, Any] = {
    "pipeline": "shop",
    "source": {
        "brokers": "127.0.0.1:9092",
        "protocol": "flat-avro",
        "topics": "{schema}_{table}",
        "schema-registry": "http://127.0.0.1:8081",
    },
    "target": {"path": "./lake"},
}
CANAL_JSON: dict[str, Any] = {
    "pipeline": "shop",
    "source": {"brokers": ["a:1", "b:2"], "protocol": "canal-json", "topics": ["app"]},
    "target": {"path": "gs://bucket/lake"},
}

# Names that keep their underscores.
AS_DATABRICKS = ("sequence_by", "except_column_list", "ignore_null_updates")


def changed(base: dict[str, Any], **places: Any) -> dict[str, Any]:
    """A copy with settings replaced; ``source__kafka`` stands for source.kafka, None removes one."""
    copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(base))
    for place, value in places.items():
        *sections, name = place.split("__")
        section = copy
        for part in sections:
            section = section.setdefault(part.replace("_", "-"), {})
        name = name if name in AS_DATABRICKS else name.replace("_", "-")
        if value is None:
            section.pop(name)
        else:
            section[name] = value
    return copy


def right(data: dict[str, Any], base: Path = Path("/base")) -> Config:
    config, problems = parse_config(data, base=base, environment={"SECRET": "s3cr3t"})
    assert problems == []
    assert config is not None
    return config


def wrong(data: dict[str, Any], base: Path = Path("/base")) -> dict[str, Problem]:
    config, problems = parse_config(data, base=base, environment={"SECRET": "s3cr3t"})
    assert config is None
    return {problem.field: problem for problem in problems}
