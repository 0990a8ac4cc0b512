"""What a target that passes rows on cannot do, said before a row is sent."""

from __future__ import annotations

from collections.abc import Iterator

from tidesink.config.models import Config
from tidesink.config.problems import Problem
from tidesink.config.target_messages import HttpSettings, KafkaSettings


def message_target_problems(config: Config) -> Iterator[Problem]:
    """Settings that contradict a target which keeps no rows."""
    if not isinstance(config.target, KafkaSettings | HttpSettings):
        return
    deletes = [("defaults", config.defaults.deletes)]
    deletes += [(f"tables[{number}]", entry.deletes or "hard") for number, entry in enumerate(config.tables)]
    for place, mode in deletes:
        if mode == "soft":
            yield Problem(
                f"{place}.deletes",
                f"a {config.target.type} target sends deletes on and keeps no row to mark",
                "use deletes: hard",
            )
    if isinstance(config.target, KafkaSettings):
        yield from _kafka(config, config.target)


def _kafka(config: Config, target: KafkaSettings) -> Iterator[Problem]:
    source = config.source
    if set(target.brokers) & set(source.brokers) and target.topic in source.topics:
        yield Problem(
            "target.topic",
            "is a topic rule that the pipeline reads from the same brokers",
            "give it a prefix, such as copy_{schema}_{table}",
        )
    tells_none = source.protocol in ("flat-avro", "canal-json") and not source.enable_tidb_extension
    if tells_none and target.protocol.startswith("debezium"):
        yield Problem(
            "target.protocol",
            f"{target.protocol} says the commit_ts of each row, and the source tells none",
            "set enable-tidb-extension = true at the changefeed and under source, or write flat-avro or "
            "canal-json",
        )
    elif tells_none and target.enable_tidb_extension:
        yield Problem(
            "target.enable-tidb-extension",
            "says the commit_ts of each row, and the source tells none",
            "set enable-tidb-extension = true at the changefeed and under source, or remove it here",
        )
