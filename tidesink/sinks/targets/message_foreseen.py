"""What can be said of tables passed on as messages before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from tidesink.errors import ConfigError
from tidesink.schema_registry.memory import MemorySchemaRegistry
from tidesink.sinks.shape import ShapeColumn, TableShape
from tidesink.sinks.targets.foreseen import Foreseen, Foresight, Limit
from tidesink.sinks.targets.kafka_encoding import prepare, written_type
from tidesink.sinks.targets.message_batches import check_shape
from tidesink.typemap.render import type_words
from tidesink.typemap.wire_text import json_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidesink.config import Config
    from tidesink.config.targets import KafkaSettings
    from tidesink.events import TableId

NO_TRUNCATE: Final = (
    "the source emptied the table, and a topic has no message for that which every reader knows. Have the "
    "connector skip truncates (skipped.operations: t, its default), delete the rows at the source in place "
    "of it, or send the table anew to another topic"
)
_MAY_TRUNCATE: Final = (
    "no message says that a table was emptied: a truncate at the source stops its table, unless the "
    "connector skips it (skipped.operations: t, its default)"
)
_LEFT_OUT: Final = (
    "no message says that a value was left out: an unchanged TOAST value stops its table. Set REPLICA "
    "IDENTITY FULL at the source, or write debezium-json or debezium-avro"
)


class HttpForesight(Foresight):
    """Of rows sent as JSON."""

    def column_type(self, settings: Any, column: ShapeColumn) -> str:  # noqa: ARG002
        """What its values are in JSON."""
        return json_type(column.type)

    def foresee(self, config: Config, shape: TableShape) -> Foreseen:
        """Nothing more than the capabilities say; raises as ``Foresight`` says."""
        check_shape(shape, config.table_config(shape.source).deletes)
        return Foreseen()


class KafkaForesight(Foresight):
    """Of rows written by one of our codecs."""

    def column_type(self, settings: Any, column: ShapeColumn) -> str:  # noqa: ARG002
        """The type of TiDB's that it is written as, whatever the protocol makes of that."""
        return type_words(written_type(column))

    def foresee(self, config: Config, shape: TableShape) -> Foreseen:
        """What the protocol has no word for; raises as ``Foresight`` says."""
        check_shape(shape, config.table_config(shape.source).deletes)
        settings = cast("KafkaSettings", config.target)
        topic = settings.rule.topic_for(shape.table)
        check_topic(topic, reads_of(config), shape.table)
        # As for the first row, with another registry: what the real one says is known when it is asked.
        prepare(
            shape,
            protocol=settings.protocol,
            options=settings.codec_options(),
            topic=topic,
            registry=MemorySchemaRegistry(),
        )
        if not config.source.protocol.startswith("debezium"):
            return Foreseen()  # TiCDC's rows are whole, and its TRUNCATE is DDL
        tells = settings.protocol.startswith("debezium")
        left_out = () if tells else (Limit("left-out-values", _LEFT_OUT),)
        return Foreseen((Limit("truncate", _MAY_TRUNCATE), *left_out))


def reads_of(config: Config) -> Callable[[str], bool] | None:
    """Whether a pipeline reads a topic of the brokers that it writes to; None where these are others."""
    settings = cast("KafkaSettings", config.target)
    return config.reads_topic if set(settings.brokers) & set(config.source.brokers) else None


def check_topic(topic: str, reads: Callable[[str], bool] | None, table: TableId) -> None:
    """Refuse to write what is read.

    Raises:
        ConfigError: the pipeline reads this very topic.
    """
    if reads is not None and reads(topic):
        raise ConfigError(
            f"the pipeline reads the topic {topic} that it would write: give target.topic a prefix",
            table=str(table),
        )
