"""What a codec is told of a config's tables: which a flat-avro topic holds, and their keys.

Where the topic rule can be read twice, the registry tells.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tidesink.config.models import Config
from tidesink.errors import ConfigError, SchemaNotFoundError
from tidesink.events import TableId
from tidesink.schema_registry.base import SchemaReader
from tidesink.schema_registry.naming import subject


def topic_tables(config: Config, registry: SchemaReader) -> Callable[[str], TableId | None]:
    """``table_of_topic`` for ``open_codec``: answers are kept; the registry is asked only where needed."""
    known: dict[str, TableId | None] = {}

    def table_of(topic: str) -> TableId | None:
        if topic not in known:
            known[topic] = _table(config, registry, topic)
        return known[topic]

    return table_of


def stated_keys(config: Config) -> dict[TableId, tuple[str, ...]]:
    """The keys that a config gives to tables by name."""
    return {entry.table: entry.keys for entry in config.tables if entry.table and entry.keys}


def _table(config: Config, registry: SchemaReader, topic: str) -> TableId | None:
    table = config.table_of_topic(topic)
    if table is not None or config.source.protocol == "canal-json":
        return table
    table = config.table_of_topic(topic, record=_record(registry, topic))
    if table is None:
        raise ConfigError(
            "the topic rule can be read as several tables, and the registry does not tell which: "
            f"name the table under tables: {{name: schema.table, topic: {topic}}}",
            topic=topic,
        )
    return table


def _record(registry: SchemaReader, topic: str) -> TableId | None:
    """Database and table as the topic's newest Avro record names them (sanitised); None without one."""
    for part in ("value", "key"):
        try:
            record = json.loads(registry.latest(subject(topic, part)).schema_text)
        except SchemaNotFoundError:
            continue
        if isinstance(record, dict) and isinstance(record.get("namespace"), str):
            return TableId(record["namespace"].rpartition(".")[2], str(record.get("name")))
    return None
