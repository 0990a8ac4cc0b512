"""A column that the target does not hold blocks no table, whatever types it has; in each protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from tests.spark.debezium_versions import TABLE, Version, Versions
from tests.spark.decoded import Decoded, decode_here
from tests.unit.codecs.canal_json.rows import T, sent
from tests.unit.codecs.debezium.test_json_plans import _plain, _typed, _writers
from tests.unit.sinks.batch.test_range_tasks import ID, NAME, Topic
from tidesink.config.models import Definition
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import SchemaRefusedError
from tidesink.events import Column, ColumnType, Message, TableId, TableSchema, Value
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.debezium_avro import debezium_avro_plan
from tidesink.sinks.decode.debezium_json import Writers, debezium_json_plan, writer_of
from tidesink.sinks.decode.flat_avro import flat_avro_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings, SubjectSchemas
from tidesink.sinks.decode.schema_source import declared_table
from tidesink.sinks.schema_changes.decisions import pending_of
from tidesink.typemap.projection import Projection, project, read_filter
from tidesink.typemap.target_schema import merged_in_order, shape_of

_DATE: Final = {"type": "int32", "name": "io.debezium.time.Date"}
_EXCEPT: Final = Projection(except_columns=("n",))


def _laid(plan: DecodePlan, projection: Projection = _EXCEPT) -> DecodePlan:
    found = project(projection, plan.shape, own=())
    return replace(plan, rows=replace(plan.rows, target=found.shape, sources=found.sources))


def _rows(plan: DecodePlan, messages: Sequence[Message]) -> list[Decoded]:
    found = decode_here(_laid(plan), [replace(one, offset=at) for at, one in enumerate(messages)])
    assert [one.raw["_kind"] for one in found] == ["upsert"] * len(messages)
    return found


def _learnt(writers: Writers, messages: Sequence[Message], projection: Projection) -> Writers:
    """What a worker knows after it decoded these records, which it has no type of its target for."""
    plan = debezium_json_plan(TableId("shop", "t"), writers, PlanSettings(left_out=projection.leaves_out))
    rows = decode_here(_laid(plan, projection), messages)
    lacking = {text for row in rows for text in row.raw["_fields"] or ()}
    return writers.with_new(map(writer_of, lacking), later=True)


@pytest.mark.parametrize("projection", [_EXCEPT, Projection(columns=("id", "new"))])
def test_a_type_change_in_the_schemas_of_debezium_json(projection: Projection) -> None:
    """A date column became boolean: the way out of the table that waits with it."""
    messages = [
        _typed({"id": 1, "n": 20000, "new": "a"}, n=_DATE),
        _typed({"id": 2, "n": True, "new": "b"}, n={"type": "boolean"}),
    ]
    with pytest.raises(SchemaRefusedError, match="'n'"):
        debezium_json_plan(TableId("shop", "t"), _writers(*messages))
    writers = _learnt(_writers(messages[0]), messages, projection)
    plan = debezium_json_plan(TableId("shop", "t"), writers, PlanSettings(left_out=projection.leaves_out))
    assert plan.shape.by_name["n"].spark == "boolean"
    assert [row.after for row in _rows(plan, messages)] == [{"id": 1, "new": "a"}, {"id": 2, "new": "b"}]
    # By a worker that has planned with the old type already.
    before = debezium_json_plan(
        TableId("shop", "t"), _writers(messages[0]), PlanSettings(left_out=projection.leaves_out)
    )
    after = debezium_json_plan(
        TableId("shop", "t"), writers, PlanSettings(base=before.shape, left_out=projection.leaves_out)
    )
    assert after.shape.by_name["n"].spark == "boolean"


def test_values_that_are_not_of_the_definition_in_debezium_json() -> None:
    sql = "create table t (id bigint primary key, n date, new varchar(9))"
    definition = declared_table(Definition(sql=sql), TableId("shop", "t"))
    messages = [_plain({"id": at, "n": one, "new": "a"}, {"id": at}) for at, one in enumerate((True, 7, "x"))]
    plan = debezium_json_plan(
        TableId("shop", "t"),
        _writers(messages[1]),
        PlanSettings(left_out=_EXCEPT.leaves_out),
        definition=definition,
    )
    assert [row.after for row in _rows(plan, messages)] == [{"id": at, "new": "a"} for at in range(3)]


def test_a_type_change_in_the_schemas_of_debezium_avro() -> None:
    date = {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}
    topic = Versions(Version({"a": "string", "n": date}), Version({"a": "string", "n": "boolean"}))
    topic.send(100, {"a": "x", "n": 20000})
    topic.send(101, {"a": "y", "n": True})
    schemas = SubjectSchemas(topic.key_texts, topic.texts)
    with pytest.raises(SchemaRefusedError, match="'n'"):
        debezium_avro_plan(TABLE, schemas)
    for definition in (None, declared_table(Definition(sql="create table t (id bigint, n date)"), TABLE)):
        plan = debezium_avro_plan(
            TABLE, schemas, PlanSettings(keys=("id",), left_out=_EXCEPT.leaves_out), definition=definition
        )
        assert [row.after for row in _rows(plan, topic.messages)] == [
            {"id": 0, "a": "x"},
            {"id": 1, "a": "y"},
        ]


def test_a_type_change_in_the_schemas_of_flat_avro() -> None:
    topic = Topic()
    rows: tuple[tuple[str, Value], ...] = (("date", "2020-01-01"), ("bigint", 5))
    for at, (kind, value) in enumerate(rows):
        schema = TableSchema(TableId("shop", "orders"), (ID, NAME, Column("n", ColumnType(kind))))
        topic.write(schema, {"id": at, "name": "a", "n": value})
    schemas = SubjectSchemas(topic.schemas("key"), topic.schemas("value"))
    table = TableId("shop", "orders")
    with pytest.raises(SchemaRefusedError, match="'n'"):
        flat_avro_plan(table, schemas)
    plan = flat_avro_plan(table, schemas, PlanSettings(left_out=_EXCEPT.leaves_out))
    assert [row.after for row in _rows(plan, topic.messages)] == [
        {"id": 0, "name": "a"},
        {"id": 1, "name": "a"},
    ]


@pytest.mark.parametrize(
    ("word", "text"), [("date", "2020-01-01"), ("tinyint", "1"), ("blob", "\u00ff"), ("enum('a')", "1")]
)
def test_a_type_change_in_canal_json(word: str, text: str) -> None:
    """Rows of before the change, of after it, and of a type that the plan does not know yet."""
    kinds = {"id": ColumnType("int"), "a": ColumnType("varchar", length=9)}
    columns = tuple(Column(name, kind, handle=name == "id") for name, kind in kinds.items())
    dated, flags = (TableSchema(T, (*columns, Column("n", ColumnType(name)))) for name in ("date", "boolean"))
    base = canal_json_plan(dated).shape
    with pytest.raises(SchemaRefusedError, match="'n'"):
        canal_json_plan(flags, PlanSettings(base=base))
    plan = canal_json_plan(flags, PlanSettings(base=base, left_out=_EXCEPT.leaves_out))
    row = sent(
        mysqlType={"id": "int", "a": "varchar", "n": word},
        sqlType={"id": 4, "a": 12, "n": 12},
        data=[{"id": "1", "a": "x", "n": text}],
    )
    assert [one.after for one in _rows(plan, [row])] == [{"id": 1, "a": "x"}]


def test_a_key_and_a_column_of_the_filter_are_needed() -> None:
    """The filter reads its columns, so a type that changes is a change for the table."""
    projection = replace(_EXCEPT, row_filter=read_filter("n is not null"))
    messages = [
        _typed({"id": 1, "n": 20000}, n=_DATE),
        _typed({"id": 2, "n": True}, n={"type": "boolean"}),
    ]
    with pytest.raises(SchemaRefusedError, match="'n'") as refused:
        debezium_json_plan(
            TableId("shop", "t"), _writers(*messages), PlanSettings(left_out=projection.leaves_out)
        )
    pending = pending_of(refused.value, projection)
    assert pending is not None
    assert pending.reason.endswith("remove the column from filter)")
    shapes = []
    for kind in ("int", "varchar(9)"):
        definitions = TableDefinitions()
        definitions.declare(f"create table t (n {kind} primary key)", "s")
        schema = definitions.get(TableId("s", "t"))
        assert schema is not None
        shapes.append(shape_of(schema))
    with pytest.raises(SchemaRefusedError, match="'n'"):
        merged_in_order(shapes, left_out=_EXCEPT.leaves_out)
