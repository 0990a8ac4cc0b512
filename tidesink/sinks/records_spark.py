"""Questions about raw Kafka records that Spark answers: which schema ids, DDL, tables and forms of row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own name for it)

from tidesink.codecs.compression import Compression, compression_of
from tidesink.events import Message, TableId
from tidesink.sinks.batch.records import DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DDL_MARK: Final = b'"isDdl":true'
# Between a database's and a table's name; no name holds it.
_BETWEEN: Final = "\x00"


def schema_heads(raw: DataFrame) -> list[Any]:
    """The distinct first five bytes of keys and values, as hexadecimal text."""
    heads = [F.hex(F.substring(part, 1, 5)).alias(part) for part in ("key", "value")]
    return raw.select(*heads).distinct().collect()


def with_values(raw: DataFrame) -> Iterator[Message]:
    """The records with a value, partition after partition, as they are asked for."""
    names = ("topic", "partition", "offset", "key", "value")
    moment = F.unix_millis("timestamp").alias("timestamp")
    for row in raw.where(F.col("value").isNotNull()).select(*names, moment).toLocalIterator():
        key = None if row["key"] is None else bytes(row["key"])
        place = (row["topic"], row["partition"], row["offset"])
        yield Message(*place, key, bytes(row["value"]), row["timestamp"])


def marked_ddl(raw: DataFrame) -> list[bytes]:
    """The values that may be canal-json DDL events, in the order of their offsets.

    A cheap test in the JVM: a row that has these bytes in a value is among them.
    """
    marked = raw.where(F.contains("value", F.lit(bytearray(_DDL_MARK)))).select("offset", "value")
    return [bytes(row["value"]) for row in sorted(marked.collect(), key=lambda row: int(row["offset"]))]


def named_tables(raw: DataFrame) -> list[TableId]:
    """The tables that canal-json rows among the records name."""
    database, name, is_ddl = (_member(part) for part in ("database", "table", "isDdl"))
    named = raw.where(is_ddl == "false").select(database.alias("schema"), name.alias("name"))
    rows = named.where("name <> ''").distinct().collect()
    return sorted(TableId(row["schema"] or "", row["name"]) for row in rows)


def compression_in(raw: DataFrame) -> Compression:
    """How one of the values is compressed that do not begin as JSON does; ``none`` where there is none."""
    odd = raw.where(~F.startswith("value", F.lit(bytearray(b"{")))).select("value").limit(1).collect()
    return compression_of(bytes(odd[0]["value"])) if odd else "none"


def is_row() -> Column:
    """Whether a canal-json record is of a row, and not of a DDL event or a watermark."""
    return F.coalesce((_member("isDdl") == "false") & (_member("type") != "TIDB_WATERMARK"), F.lit(False))


def full_name(table: TableId) -> str:
    """A table as ``named_table`` names it."""
    return _BETWEEN.join(table)


def named_table() -> Column:
    """The full name of the table a record says it is of; null for what names none, or cannot be read."""
    database, named = _member("database"), _member("table")
    return F.when(named != "", F.concat(F.coalesce(database, F.lit("")), F.lit(_BETWEEN), named))


def foreign_to(*tables: TableId) -> Column:
    """Whether a record says it is of none of these tables; false for what names no table, or cannot be read.

    TiCDC's messages begin with id, database and table, so that most of the first table's are told by
    their first bytes.
    """
    schema, name = (json.dumps(part, ensure_ascii=False) for part in tables[0])
    start = f'{{"id":0,"database":{schema},"table":{name},'.encode()
    other = ~named_table().isin(*(full_name(table) for table in tables))
    mine = F.startswith(F.col("value"), F.lit(bytearray(start)))
    return F.when(mine, F.lit(False)).otherwise(F.coalesce(other, F.lit(False)))


def row_forms(raw: DataFrame, table: TableId) -> list[Any]:
    """The forms of a table's canal-json rows: ``names`` in order, and JSON texts of ``types`` and ``keys``.

    Of each form the newest row's words are taken.
    """
    mine = raw.where(~foreign_to(table) & (_member("isDdl") == "false"))
    rows = mine.select(
        F.json_object_keys(_member("data[0]")).alias("names"),
        F.struct(_member("mysqlType").alias("types"), _member("pkNames").alias("keys")).alias("words"),
        "offset",
    )
    forms = rows.where("names is not null").groupBy("names").agg(F.max_by("words", "offset").alias("words"))
    return forms.select("names", "words.types", "words.keys").collect()


def last_ddl_offset(reduced: DataFrame, partition: int) -> int | None:
    """The greatest offset of a DDL event of one partition in a reduced frame."""
    here = reduced.where((F.col("_op") == DDL) & (F.col("_partition") == partition))
    found: int | None = here.agg(F.max("_offset").alias("last")).collect()[0]["last"]
    return found


def _member(name: str) -> Column:
    """A member of a canal-json message, as text; null where the value is no JSON object that has it."""
    return F.get_json_object(F.col("value").cast("string"), f"$.{name}")
