"""Columns to which a definition gives a type that is not the wire's: Spark's value is the Python codec's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.full import FULL
from tests.spark.debezium_rows import all_differences
from tests.spark.debezium_versions import TABLE, Version, Versions
from tests.spark.decoded import decode_here
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError
from tidesink.events import Message
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.sinks.decode.debezium_avro import debezium_avro_plan
from tidesink.sinks.decode.plans import SubjectSchemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, FULL]
# What a connector is set to send otherwise than the column's own type says, and that type.
DEFINED: Final = {
    "double": ("DECIMAL(12,2)", "FLOAT", "BIGINT", "BIGINT UNSIGNED"),
    "float": ("DECIMAL(9,3)", "DOUBLE", "INT"),
    "string": ("DECIMAL(40,2)", "DOUBLE", "FLOAT", "BIGINT UNSIGNED", "VARBINARY(20)", "BIT(9)", "YEAR"),
    "long": ("DECIMAL(12,2)", "DOUBLE", "FLOAT", "BIGINT UNSIGNED", "BOOLEAN", "BIT(64)"),
}
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "double": (None, 0.0, -12.34, 7.0, 1e300, float("nan"), 123456789012.25),
    "float": (None, 0.0, -12.5, 7.0, 3.0e38, float("inf"), 0.125),
    "string": (None, "0", "-12.34", "7", "1e300", "", "18446744073709551615"),
    "long": (None, 0, -12, 7, 2**63 - 1, -(2**63), 1),
}


@pytest.mark.parametrize("wire", DEFINED)
def test_a_defined_type_is_read_from_any_wire(spark: SparkSession, wire: str) -> None:
    types = dict(enumerate(DEFINED[wire]))
    definitions = TableDefinitions([])
    columns = ", ".join(f"c{number} {kind}" for number, kind in types.items())
    definitions.apply(f"CREATE TABLE t (id BIGINT PRIMARY KEY, {columns})", TABLE.schema)
    definition = definitions.get(TABLE)
    assert definition is not None

    topic = Versions(Version({f"c{number}": ["null", wire] for number in types}))
    for number in types:
        for value in VALUES[wire]:
            topic.send(100, {f"c{number}": value})
    plan = debezium_avro_plan(TABLE, SubjectSchemas(topic.key_texts, topic.texts), definition=definition)
    registry = MemorySchemaRegistry({**topic.key_texts, **topic.texts})
    codec = open_codec("debezium-avro", registry=registry, definitions=definitions)
    rows = decode_here(plan, topic.messages)
    wrong = all_differences(codec, topic.messages, rows, plan)
    assert not wrong, "\n".join(wrong)
    assert {row.kind for row in rows} == {"upsert", "bad"}
    first = [message for message in topic.messages if rows[message.offset].reason and message.offset < 7]
    assert [rows[one.offset].reason for one in first] == [refusal(codec, one) for one in first] != []


def refusal(codec: Codec, message: Message) -> str:
    """What the Python codec says of a value of the first column, which is a decimal."""
    with pytest.raises(DecodeError) as refused:
        codec.decode(message)
    return f"column 'c0': {refused.value.message}"
