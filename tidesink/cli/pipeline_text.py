"""The text of a new config: the template beside this module with its places filled."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml

from tidesink.config import parse_config
from tidesink.config.changefeed.pipeline import CLAIM_CHECK_VARIABLE, KAFKA_VARIABLE, REGISTRY_VARIABLE
from tidesink.errors import ConfigError

# Words, paths and URLs; or addresses such as 127.0.0.1:9092. Anything else is quoted.
_PLAIN: Final = re.compile(r"[A-Za-z./][\w./:+-]*|\d+(\.\d+){3}:[\w.:,-]+", re.ASCII)
_WORDS: Final = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
# What stands in other places of the template, or is written by lines of its own.
_ELSEWHERE: Final = ("brokers", "protocol", "topics", "kafka")
_KAFKA_EXAMPLE: Final = """\
  # Kafka client properties:
  # kafka:
  #   security.protocol: SASL_SSL
  #   sasl.mechanism: SCRAM-SHA-512
  #   sasl.username: tidesink
  #   sasl.password: ${env:KAFKA_PASSWORD}
  #   ssl.ca.location: ca.pem
"""
_TABLES_EXAMPLE: Final = """\
# tables:
#   - name: shop.orders
#     keys: [id]         # where neither a key record nor pkNames says them
#     deletes: soft
#   - name: shop.customers
#     except_column_list: [card_number]        # or columns: [id, name, ...]
#     rename: {total: amount}                  # source: target
#     filter: "status <> 'draft'"              # rows for which it is true (docs/how-to-columns.md)
#   - match: "audit.*"
#     bad-record: dead-letter
"""


@dataclass(frozen=True)
class PipelineText:
    """The places of the template as YAML text; ``codec``, ``kafka`` and ``tables`` are whole lines."""

    brokers: str
    protocol: str
    topics: str
    codec: str
    kafka: str
    tables: str

    def filled(self, **more: str) -> str:
        """The template with every place filled."""
        text = (files("tidesink.cli") / "pipeline.yaml").read_text(encoding="utf-8")
        values = asdict(self) | more
        return re.sub(r"@(\w+)@", lambda place: values[place[1]], text)


def scalar(value: Any) -> str:
    """A value as YAML on one line; a reference such as ``${env:NAME}`` stays as it is."""
    if isinstance(value, str) and (value.startswith("${") or _is_plain(value)):
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_plain(text: str) -> bool:
    return _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS and not text.endswith(":")


def codec_lines(source: Mapping[str, Any]) -> str:
    """The registry and the codec options of ``source``."""
    lines = ["  # As in the changefeed:"]
    for name, value in source.items():
        if name not in _ELSEWHERE:
            lines += _lines(name, value, "  ")
    return "\n".join(lines) + "\n"


def _lines(name: str, value: Any, indent: str) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"{indent}{name}: {scalar(value)}"]
    inner = [line for part, found in value.items() for line in _lines(part, found, indent + "  ")]
    return [f"{indent}{name}:", *inner]


def kafka_lines(properties: Mapping[str, str] | None) -> str:
    """The Kafka client properties, or an example of them."""
    if not properties:
        return _KAFKA_EXAMPLE
    return "\n".join(["  # Kafka client properties:", *_lines("kafka", properties, "  ")]) + "\n"


def tables_lines(tables: Sequence[Mapping[str, Any]]) -> str:
    """The tables that have settings of their own, or an example of them."""
    if not tables:
        return _TABLES_EXAMPLE
    lines = ["tables:"]
    for table in tables:
        first, *rest = [f"{name}: {scalar(value)}" for name, value in table.items()]
        lines += [f"  - {first}", *(f"    {line}" for line in rest)]
    return "\n".join(lines) + "\n"


def checked(text: str) -> str:
    """The text itself, if it is a right config.

    Files it names and variables it refers to need not be there yet.

    Raises:
        ConfigError: something in the changefeed is not for a pipeline; lists all of it.
    """
    unset = dict.fromkeys((KAFKA_VARIABLE, REGISTRY_VARIABLE, CLAIM_CHECK_VARIABLE), "-")
    _, problems = parse_config(yaml.safe_load(text), base=Path(), environment=unset)
    left = [one for one in problems if not one.field.startswith("source.kafka.ssl.")]
    if left:
        lines = ["the config of this changefeed would be wrong", *(f"  {one}" for one in left)]
        raise ConfigError("\n".join(lines))
    return text
