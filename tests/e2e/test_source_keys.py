"""A row of the source is found by its key as the target has it, whatever the key's type is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from tests.full import FULL
from tests.mysql_values import COLUMNS, make_wide, own_database
from tests.spark.decoded import decode_here
from tidesink.events import Column, TableId, TableSchema
from tidesink.sinks.batch.decoders import DecodePlan
from tidesink.sinks.batch.source_rows import KeyRange, SourceDecoder, SourceRows, source_plan
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.plans.canal_json import canal_json_plan
from tidesink.sinks.spark.digests import ComparedColumn, digests
from tidesink.sinks.worker.source_keys import KeyedTask, key_columns
from tidesink.source_database.base import StoredTable
from tidesink.source_database.mysql import stored_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers, FULL]

# Of these there is no text of a value that a key could have: a key is never null.
_NO_KEYS: Final = ("nu", "d0", "dn", "t0")
_ONE: Final = FetchRange("rows", 0, 0, 1)
ZONE: Final = "Europe/Berlin"


def _plan(table: TableId, stored: StoredTable, keys: tuple[str, ...]) -> DecodePlan:
    columns = tuple(Column(name, kind) for name, kind in stored.types.items())
    plan, _ = source_plan(canal_json_plan(TableSchema(table, columns), keys=keys, time_zone=ZONE), stored)
    return plan


def _texts(spark: SparkSession, plan: DecodePlan, row: dict[str, Any]) -> dict[str, str]:
    """The values as a comparison has those of keys."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    shape = plan.shape
    frame = session.createDataFrame([tuple(row[one.name] for one in shape.columns)], shape.ddl)
    columns = [ComparedColumn(one.name, one.spark, True) for one in shape.columns]
    (found,) = digests(frame, columns).select("key").collect()
    return dict(zip(row, found["key"], strict=True))


def test_a_row_is_found_by_a_key_of_each_type(spark: SparkSession, mariadb_url: str) -> None:
    with own_database(mariadb_url) as (connection, schema):
        make_wide(connection, "wide", "id")
        table = TableId(schema, "wide")
        stored = stored_table(connection, table)
        assert stored is not None
        plan = _plan(table, stored, ("id",))
        assert isinstance(plan.decoder, SourceDecoder)
        rows = SourceRows(mariadb_url, plan.decoder.stored, ("id",), stored.types, (KeyRange(),))
        (records,) = rows(_ONE)
        (whole,) = decode_here(plan, records)
        assert whole.after is not None
        texts = _texts(spark, plan, whole.after)
        missed = []
        for key in (*((name,) for name in COLUMNS if name not in _NO_KEYS), ("id", "vc", "ts")):
            asked = key_columns(_plan(table, stored, key), key)
            assert asked is not None, key
            # As the shape has the key's columns, whatever order they were given in.
            named = [one.name for one in sorted(asked, key=lambda one: one.at)]
            task = KeyedTask(rows, asked, 0, _ONE, lambda _wanted, found: iter([*found]))
            wanted = pa.record_batch({"key": pa.array([[texts[name] for name in named]])})
            found = [one for batch in task([wanted]) for one in decode_here(plan, batch)]
            if [one.after for one in found] != [whole.after]:
                missed.append((key, named, [texts[name] for name in named]))
        assert missed == []


def test_what_is_not_exact_or_has_no_index_is_not_asked_for(mariadb_url: str) -> None:
    with own_database(mariadb_url) as (connection, schema):
        make_wide(connection, "wide", "id")
        table = TableId(schema, "wide")
        stored = stored_table(connection, table)
        assert stored is not None
        assert key_columns(_plan(table, stored, ("vc",)), ("id",)) is None
        assert key_columns(_plan(table, stored, ("id", "vc")), ("id",)) is not None
