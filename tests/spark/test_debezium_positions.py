"""Positions out of source blocks of every connector: Spark's text is the Python codec's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from tests.full import FULL
from tests.unit.test_debezium_source import POSITIONS, WRONG_NUMBERS, block
from tidesink.codecs.columns_debezium_position import position_of
from tidesink.codecs.columns_debezium_record import SOURCE_AND_POSITION
from tidesink.codecs.debezium.envelope import MONGODB, connector_of, position_of_source
from tidesink.events import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, FULL]
LONG_LSN = "f" * 32 + ":" + "f" * 16 + ":" + "f" * 16
MORE: list[dict[str, Any]] = [
    *(block(connector, **{member: wrong}) for connector, member in (("postgresql", "lsn"), ("oracle", "scn"))
      for wrong in WRONG_NUMBERS),
    *(block("mysql", file="b.000001", pos=wrong, row=0) for wrong in WRONG_NUMBERS),
    *(block("mysql", file=file, pos=4, row=7) for file in ("b.1.0007", "b.7x", "b.1\n", "b." + "1" * 19)),
    block("mysql", file="b.000000", pos="0007"),
    block("postgresql", snapshot=True, lsn=5),
    block("postgresql", snapshot=False, lsn=5),
    block("postgresql", snapshot=None, lsn=5),
    block("oracle", scn="0" * 38, commit_scn="9" * 38),
    block("sqlserver", commit_lsn=LONG_LSN, change_lsn=LONG_LSN, event_serial_no=2**31),
    block("db2", commit_lsn="0000:" * 3 + "0", change_lsn="x"),
    block("TiCDC", commit_ts=None),
    block("TiCDC", commit_ts=-(2**63)),
]  # fmt: skip


def as_text(value: Any) -> str | None:
    """A member as from_json has it where text is asked for."""
    return value if isinstance(value, str) or value is None else json.dumps(value)


def test_each_position_is_what_the_python_codec_reads(spark: SparkSession) -> None:
    sources = [one for one, _ in POSITIONS if connector_of(one) != MONGODB] + MORE
    rows = [(n, *(as_text(one.get(name)) for name in SOURCE_AND_POSITION)) for n, one in enumerate(sources)]
    members = ", ".join(f"`{name}` string" for name in SOURCE_AND_POSITION)
    frame = spark.createDataFrame(rows, f"n int, {members}")
    told = frame.select("n", position_of({name: F.col(name) for name in SOURCE_AND_POSITION}).alias("text"))
    found = {row["n"]: row["text"] for row in told.collect()}
    expected = [Position("", 0, 0, 0, position_of_source(one)).source_text for one in sources]
    assert [(one, found[n]) for n, one in enumerate(sources)] == list(zip(sources, expected, strict=True))
    assert sum(text is not None for text in expected) > 15


def test_members_that_no_writer_has_are_not_asked_for(spark: SparkSession) -> None:
    told = position_of({"connector": F.lit("mysql"), "file": F.lit("b.000003"), "pos": F.lit("4")})
    nothing = position_of({"connector": F.lit("postgresql"), "lsn": F.lit("4")})
    frame = spark.range(1).select(told, nothing, position_of({"lsn": F.lit("4")}))
    assert tuple(frame.collect()[0]) == ("3:4:0", "4", None)
    assert "ArrowEvalPython" not in frame._jdf.queryExecution().toString()
