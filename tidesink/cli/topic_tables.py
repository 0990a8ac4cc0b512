"""Tables of a pipeline's topics that a worker would refuse, for ``tidesink validate --connect``.

The tables are found in the same way as by a worker, but only in the first records of each topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

from tidesink.cli.sources import peek
from tidesink.codecs import CODECS, open_codec
from tidesink.config.models import topic_tables
from tidesink.errors import ConfigError, TidesinkError, UnusableSchemaError
from tidesink.sinks.worker.preflight import Goals

if TYPE_CHECKING:
    from tidesink.config import Config
    from tidesink.events import TableId

# Number of records to read at each partition's beginning.
_FIRST_RECORDS: Final = 20

TablesOf = Callable[[str], Sequence["TableId"]]


def doubtful_topics(config: Config, topics: Sequence[str], most: int) -> list[str]:
    """Return up to ``most`` topics, sorted. Topics whose names suggest the same table are preferred."""
    named = {topic: config.table_of_topic(topic) for topic in topics}
    shared = Counter(named.values())
    preferred = sorted(topics, key=lambda topic: (named[topic] is None or shared[named[topic]] < 2, topic))
    return sorted(preferred[:most])


def refusals(config: Config, topics: Sequence[str], tables_of: TablesOf) -> Iterator[TidesinkError]:
    """Yield the error of each table that a worker would refuse because of another table or topic.

    ``tables_of``: returns the tables of a topic. It raises ConfigError if the config does not show them, and
        UnusableSchemaError if the topic's schema cannot be read. Other topics are checked all the same.
    """
    goals = Goals.of(config)
    for topic in topics:
        try:
            tables = tables_of(topic)
        except (ConfigError, UnusableSchemaError) as error:
            yield error.with_context(topic=topic)
            continue
        for table in tables:
            refused = goals.refusal(table, topic)
            if refused is not None:
                yield refused


def table_refusals(config: Config, topics: Sequence[str]) -> list[TidesinkError]:
    """Return the errors of ``refusals`` for the tables in the first records of the topics.

    Raises:
        SourceUnavailableError: the broker does not answer.
        RegistryError: the registry does not answer or refuses access.
    """
    # Imported here because this module imports Spark's session, which takes a second to load.
    from tidesink.sinks.worker.look_ups import table_of_record

    source, protocol = config.source, CODECS[config.source.protocol]
    with ExitStack() as opened:
        registry = None
        if protocol.registry:
            registry = opened.enter_context(closing(source.open_registry()))
        table_of = topic_tables(config, registry) if registry and source.protocol == "flat-avro" else None
        codec = open_codec(source.protocol, options=source.codec_options(), registry=registry)

        def tables_of(topic: str) -> list[TableId]:
            if table_of is not None:
                named = table_of(topic)
                return [] if named is None else [named]
            named = None if protocol.shares_topics else config.named_table_of_topic(topic)
            if named is not None:
                return [named]
            records = peek(source.confluent_properties(), topic, most=_FIRST_RECORDS)
            found = (table_of_record(codec, message) for message in records)
            tables = list(dict.fromkeys(table for table in found if table is not None))
            return tables if protocol.shares_topics else tables[:1]

        return list(refusals(config, topics, tables_of))
