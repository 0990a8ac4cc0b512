"""By keys of which types the source can be asked for rows: those with an exact way back from the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from tidesink.codecs.options import DebeziumModes, DebeziumOptions
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.batch.source_rows import source_plan
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.debezium_json import Writers, debezium_json_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings
from tidesink.sinks.snapshots.source_keys import KeyColumn, key_columns, limits_at_target
from tidesink.source_database.base import StoredTable
from tidesink.typemap.mysql_types import parse_sql_type

TABLE: Final = TableId("shop", "orders")
MODES: Final = DebeziumModes()
CUT: Final = replace(MODES, time_precision_mode="connect", binary_handling_mode="hex")


def _column(
    stored: ColumnType,
    recorded: ColumnType,
    modes: DebeziumModes | None,
    spark: str | None = None,
) -> KeyColumn | None:
    """How a key column is asked for; ``modes``: of a connector, None: the records are TiCDC's."""
    schema, plan = TableSchema(TABLE, (Column("k", recorded, nullable=False, handle=True),)), None
    if modes is None:
        plan = canal_json_plan(schema, PlanSettings(keys=("k",)))
    else:
        options = DebeziumOptions(debezium=modes)
        plan = debezium_json_plan(
            TABLE, Writers(), PlanSettings(keys=("k",)), definition=schema, options=options
        )
    found = _asked(plan, stored, spark)
    return None if found is None else found[0]


def _asked(plan: DecodePlan, stored: ColumnType, spark: str | None) -> tuple[KeyColumn, ...] | None:
    own, _ = source_plan(plan, StoredTable({"k": stored}, ("k",), 0, 0, required=frozenset({"k"})))
    (column,) = own.shape.key_columns
    types: Mapping[str, str] = {column.name: spark or column.spark}
    return key_columns(own, ("k",), types)


def _pg(name: str, sql: str, length: int | None = None) -> ColumnType:
    return ColumnType(name, length=length, sql=sql)


@pytest.mark.parametrize(
    ("sql", "modes", "way_back"),
    [
        ("bigint unsigned", MODES, True),
        ("decimal(10,2)", MODES, True),
        ("datetime(6)", None, True),
        ("datetime(6)", CUT, False),
        ("timestamp(6)", None, True),
        # An instant that is no time is the epoch there.
        ("timestamp(6)", MODES, False),
        ("date", MODES, False),
        ("time(6)", MODES, False),
        ("varbinary(9)", None, True),
        ("json", None, False),
    ],
)
def test_types_of_mysql(sql: str, modes: DebeziumModes | None, way_back: bool) -> None:
    kind = parse_sql_type(sql)
    assert (_column(kind, kind, modes) is not None) == way_back


@pytest.mark.parametrize(
    ("kind", "modes", "way_back"),
    [
        (_pg("bigint", "bigint"), MODES, True),
        (_pg("other text", "uuid"), MODES, True),
        (_pg("other text", "public.mood"), MODES, True),
        (_pg("instant", "timestamp with time zone"), MODES, True),
        (_pg("local date", "date"), CUT, True),
        (_pg("local datetime", "timestamp without time zone"), MODES, True),
        (_pg("local datetime", "timestamp without time zone"), CUT, False),
        (_pg("local time", "time without time zone"), MODES, False),
        (_pg("zoned time", "time with time zone"), MODES, False),
        (_pg("interval", "interval"), MODES, False),
        (_pg("array", "integer[]"), MODES, False),
        (_pg("map", "hstore"), MODES, False),
        (_pg("bit", "bit(9)", 9), MODES, True),
        (_pg("bit", "bit varying(9)", 9), MODES, False),
        (_pg("other binary", "bytea"), MODES, True),
        (_pg("other binary", "bit varying(90)", 90), MODES, False),
        (_pg("other binary", "public.cube"), MODES, False),
    ],
)
def test_types_of_postgres(kind: ColumnType, modes: DebeziumModes, way_back: bool) -> None:
    assert (_column(kind, kind, modes) is not None) == way_back


def test_a_number_that_became_a_boolean_has_none() -> None:
    """Of TINYINT(1) every number but 0 is true."""
    assert _column(parse_sql_type("tinyint(1)"), ColumnType("boolean"), MODES) is None
    one_bit = _column(parse_sql_type("bit(1)"), ColumnType("boolean"), MODES)
    assert one_bit is not None
    assert one_bit.back("true", one_bit.stored) == "1"


def test_bytes_that_became_text_have_none() -> None:
    for stored in (parse_sql_type("varbinary(9)"), _pg("other binary", "bytea")):
        assert _column(stored, ColumnType("text"), CUT) is None


def test_the_type_that_the_target_has_by_now_counts() -> None:
    kind = parse_sql_type("float")
    assert _column(kind, kind, None) is not None
    assert _column(kind, kind, None, "double") is None
    assert _column(parse_sql_type("int"), parse_sql_type("int"), None, "decimal(20,2)") is not None


def test_labels_whose_record_has_no_members_are_numbers() -> None:
    for sql, text, labels in (("enum('a','2')", "2", "2"), ("set('a','b')", "3", "a,b")):
        stored = parse_sql_type(sql)
        number = _column(stored, replace(stored, members=None), None)
        label = _column(stored, stored, None)
        assert number is not None
        assert label is not None
        assert number.back(text, stored) == text
        assert label.back(labels, stored) == ("2" if sql.startswith("enum") else "3")
    # "1" is the number of a label, and no label.
    enum = parse_sql_type("enum('a','2')")
    number = _column(enum, replace(enum, members=None), None)
    assert number is not None
    assert number.back("1", enum) == "1"


def test_a_bound_means_the_key_column_of_its_exact_name() -> None:
    """Names are folded only for Avro's, which have fewer letters, and only if one column can be meant."""
    columns = tuple(
        Column(name, ColumnType("int"), nullable=False, handle=True) for name in ("a", "A", "b_c")
    )
    plan = debezium_json_plan(TABLE, Writers(), definition=TableSchema(TABLE, columns))

    def limited(name: str) -> list[str] | None:
        found = limits_at_target(plan, [(name, ">", "5")])
        return None if found is None else [one.name for one in found]

    assert [limited(name) for name in ("a", "A", "b-c", "B_C")] == [["a"], ["A"], ["b_c"], ["b_c"]]
    assert limited("other") is None
    plan = debezium_json_plan(TABLE, Writers(), definition=TableSchema(TABLE, columns[:2]))
    assert limited("Á") is None
