"""Debezium's records that say less than they seem to: routed tables, keys, geometries, defaults; without
Spark.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.spark.decoded import decode_here
from tidesink.cli.table_plans import routed_problem
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.debezium.inference import first_row, key_only
from tidesink.codecs.debezium.remarks import ROUTED, column_remarks
from tidesink.errors import DecodeError
from tidesink.events import ChangeEvent, Column, ColumnType, Message, TableId
from tidesink.sinks.batch.decoders import DecodePlan
from tidesink.sinks.batch.source_rows import ColumnGap, SourceDecoder, source_plan
from tidesink.sinks.plans.debezium_json import Writers, debezium_json_plan, first_writer
from tidesink.source_database.base import StoredTable

Json = dict[str, Any]
_TABLE: Final = TableId("public", "t")
_INT: Final = {"type": "int32", "optional": False}
_TEXT: Final = {"type": "string", "optional": True}
_GEOMETRY: Final = {
    "type": "struct",
    "name": "io.debezium.data.geometry.Geometry",
    "fields": [{"type": "bytes", "field": "wkb"}, {"type": "int32", "optional": True, "field": "srid"}],
}
_EMPTY: Final = {"wkb": "AQcAAAAAAAAA", "srid": None}
_POINT: Final = {"wkb": "AQEAAAAAAAAAAADwPwAAAAAAAABA", "srid": 4326}


def _struct(kinds: Json, **more: Any) -> Json:
    return {"type": "struct", "fields": [{**kind, "field": name} for name, kind in kinds.items()], **more}


def _message(
    kinds: Json,
    *,
    key: Json,
    op: str = "c",
    before: Json | None = None,
    after: Json | None = None,
    **more: Any,
) -> Message:
    """A record with its schema; ``more``: members of the source block."""
    source = {"connector": "postgresql", "schema": "public", "table": "t", "lsn": 200, **more}
    image, names = _struct(kinds, optional=True), {True: "int64", False: "string"}
    schema = _struct(
        {
            "before": image,
            "after": image,
            "source": _struct({name: {"type": names[isinstance(one, int)]} for name, one in source.items()}),
            "op": {"type": "string"},
        }
    )
    payload = {"before": before, "after": after, "source": source, "op": op}
    key_schema = _struct({name: kinds.get(name, {"type": "string"}) for name in key})
    halves = ({"schema": key_schema, "payload": key}, {"schema": schema, "payload": payload})
    return Message("app.t", 0, 0, *(json.dumps(one, separators=(",", ":")).encode() for one in halves))


def _plan(*messages: Message, **options: Any) -> DecodePlan:
    rows = [first_row([one], CodecOptions()) for one in messages]
    writers = Writers().with_new(first_writer(one) for one in rows if one is not None)
    return debezium_json_plan(_TABLE, writers=writers, **options)


def _rows(plan: DecodePlan, *messages: Message) -> list[Json]:
    columns = {
        "topic": pa.array([one.topic for one in messages]),
        "partition": pa.array([0] * len(messages), pa.int32()),
        "offset": pa.array(range(len(messages)), pa.int64()),
        "key": pa.array([one.key for one in messages], pa.binary()),
        "value": pa.array([one.value for one in messages], pa.binary()),
        "timestamp": pa.array([1] * len(messages), pa.int64()),
    }
    found = decode_here(plan, pa.RecordBatch.from_pydict(columns))
    return [{"kind": one.kind, "reason": one.reason, "key": one.key, "after": one.after} for one in found]


# Several tables that ByLogicalTableRouter writes into one topic


def _shards() -> tuple[Message, ...]:
    kinds = {"id": _INT, "a": _TEXT}
    return tuple(
        _message(
            kinds,
            key={"id": 1, ROUTED: f"app.{name}"},
            after={"id": 1, "a": name},
            connector="mysql",
            db="shop",
        )
        for name in ("t_1", "t_2")
    )


def test_rows_of_routed_tables_are_kept_apart_by_the_field_of_their_key() -> None:
    messages = _shards()
    plan = _plan(messages[0])
    assert set(plan.rows.keys) == {"id", ROUTED}
    found = _rows(plan, *messages)
    assert [one["after"] for one in found] == [
        {"id": 1, "a": name, ROUTED: f"app.{name}"} for name in ("t_1", "t_2")
    ]


def test_a_delete_of_a_routed_row_has_its_table_in_the_key() -> None:
    kinds = {"id": _INT, "a": _TEXT}
    delete = _message(kinds, key={"id": 1, ROUTED: "app.t_2"}, op="d", before={"id": 1, "a": "x"})
    (found,) = _rows(_plan(_shards()[0]), delete)
    assert found["key"] == {"id": 1, ROUTED: "app.t_2"}


def test_routed_tables_without_the_field_in_the_key_are_no_rows_of_one_table() -> None:
    first, other = (
        _message(
            {"id": _INT, "a": _TEXT}, key={"id": 1, ROUTED: name}, after={"id": 1, "a": name}, table=name
        )
        for name in ("t", "t_2")
    )
    found = _rows(_plan(first, keys=("id",)), first, other)
    assert [one["kind"] for one in found] == ["upsert", "bad"]
    assert "ByLogicalTableRouter" in found[1]["reason"]


def test_a_field_of_the_key_with_another_name_keeps_routed_rows_apart() -> None:
    kinds = {"id": _INT, "a": _TEXT}
    shards = [
        _message(kinds, key={"id": 1, "shard_id": f"s{at}"}, after={"id": 1, "a": "x"}, table=name)
        for at, name in enumerate(("t", "t_2"))
    ]
    delete = _message(kinds, key={"id": 1, "shard_id": "s1"}, op="d", before={"id": 1, "a": "x"}, table="t_2")
    found = _rows(_plan(shards[0]), *shards, delete)
    assert [one["kind"] for one in found] == ["upsert", "upsert", "delete"]
    assert [one["key"] for one in found[1:]] == [{"id": 1, "shard_id": "s1"}] * 2
    # Not among the keys, it keeps nothing apart.
    refused = _rows(_plan(shards[0], keys=("id",)), *shards)
    assert [one["kind"] for one in refused] == ["upsert", "bad"]
    assert "key.field.name: shard_id" in refused[1]["reason"]


def test_plan_names_the_field_that_keeps_routed_tables_apart() -> None:
    tables = [_TABLE, TableId("public", "t_2")]
    assert routed_problem(tables, ("id", "shard_id"), {"shard_id"}) is None
    assert routed_problem(tables, ("id", ROUTED)) is None
    assert routed_problem([_TABLE], ("id",)) is None
    problem = routed_problem(tables, ("id",), {"shard_id"})
    assert problem is not None
    assert "the field that it adds (key.field.name: shard_id)" in problem
    assert f"key.field.name, {ROUTED} by default" in (routed_problem(tables, ("id", "other")) or "")
    (record,) = open_codec("debezium-json").decode(
        _message({"id": _INT}, key={"id": 1, "shard_id": "s1"}, after={"id": 1})
    )
    assert isinstance(record, ChangeEvent)
    assert key_only(record) == {"shard_id"}


# Keys of message.key.columns

_KEYED: Final = {"id": _INT, "tenant": _INT, "a": _TEXT}


def _delete(before: Json, key: Json) -> Message:
    return _message(_KEYED, key=key, op="d", before=before)


def test_a_delete_whose_key_may_have_a_stand_in_is_refused() -> None:
    insert = _message(_KEYED, key={"id": 1, "tenant": 5}, after={"id": 1, "tenant": 5, "a": "x"})
    delete = _delete({"id": 1, "tenant": 0, "a": None}, {"id": 1, "tenant": 0})
    found = _rows(_plan(insert), insert, delete)
    assert [one["kind"] for one in found] == ["upsert", "bad"]
    assert "REPLICA IDENTITY FULL" in found[1]["reason"]
    assert "keys: [id, tenant]" in found[1]["reason"]


def test_so_is_one_without_a_schema() -> None:
    source = {"connector": "postgresql", "schema": "public", "table": "t"}

    def record(key: Json, op: str, before: Json | None, after: Json | None) -> Message:
        value = {"before": before, "after": after, "source": source, "op": op}
        return Message("app.t", 0, 0, *(json.dumps(one).encode() for one in (key, value)))

    insert = record({"id": 1, "tenant": 5}, "c", None, {"id": 1, "tenant": 5, "a": "x"})
    delete = record({"id": 1, "tenant": 0}, "d", {"id": 1, "tenant": 0, "a": None}, None)
    assert [one["kind"] for one in _rows(_plan(insert), insert, delete)] == ["upsert", "bad"]


@pytest.mark.parametrize(
    ("delete", "keys"),
    [
        (_delete({"id": 1, "tenant": 5, "a": None}, {"id": 1, "tenant": 5}), None),
        (_delete({"id": 1, "tenant": 0, "a": "x"}, {"id": 1, "tenant": 0}), None),  # REPLICA IDENTITY FULL
        (_delete({"id": 1, "tenant": 0, "a": None}, {"id": 1, "tenant": 0}), ("id", "tenant")),
        (_delete({"id": 0, "tenant": 0, "a": None}, {"id": 0}), None),
    ],
)
def test_a_delete_whose_key_is_sure_is_a_delete(delete: Message, keys: tuple[str, ...] | None) -> None:
    (found,) = _rows(_plan(delete, keys=keys), delete)
    assert found["kind"] == "delete"


# PostGIS: an unchanged value that is stored out of line

_SHAPED: Final = {"id": _INT, "area": {**_GEOMETRY, "optional": False}}


@pytest.mark.parametrize(
    ("op", "before", "area", "connector", "kind"),
    [
        ("u", None, _EMPTY, "postgresql", "bad"),
        ("u", {"id": 1, "area": _POINT}, _EMPTY, "postgresql", "upsert"),
        ("u", None, _POINT, "postgresql", "upsert"),
        ("c", None, _EMPTY, "postgresql", "upsert"),
        ("u", None, _EMPTY, "mysql", "upsert"),
    ],
)
def test_an_empty_geometry_in_an_update_is_refused_where_it_may_stand_for_another(
    op: str, before: Json | None, area: Json, connector: str, kind: str
) -> None:
    after = {"id": 1, "area": area}
    message = _message(_SHAPED, key={"id": 1}, op=op, before=before, after=after, connector=connector)
    first = _message(_SHAPED, key={"id": 1}, after={"id": 1, "area": _POINT}, connector=connector)
    plan = debezium_json_plan(
        TableId("public" if connector == "postgresql" else "", "t"),
        writers=Writers().with_new([first_writer(_first(first))]),
    )
    (found,) = _rows(plan, message)
    assert found["kind"] == kind, found["reason"]
    if kind == "bad":
        assert "REPLICA IDENTITY FULL" in found["reason"]


def _first(message: Message) -> Any:
    return first_row([message], CodecOptions())


# Warnings of plan and status


def test_columns_whose_values_no_record_tells_are_named() -> None:
    columns = (
        Column("id", ColumnType("int"), nullable=False, default="7"),
        Column("n", ColumnType("int"), default="7"),
        Column("at", ColumnType("local datetime", fsp=9)),
        Column("fine", ColumnType("local datetime", fsp=12)),
        Column("area", ColumnType("geometry")),
        Column("isbn", ColumnType("text", named="com.example.Isbn")),
    )
    found = [*column_remarks(columns, connector="postgresql", keys=("id",), gone=("up",))]
    assert [(text.split(":")[0]) for text in found] == [
        "column isbn",
        "columns at",
        "columns n",
        "columns area",
        "columns up",
    ]
    for text, words in zip(
        found,
        (
            "com.example.Isbn",
            "NanoTimestamp",
            "replace.null.with.default=false",
            "REPLICA IDENTITY FULL",
            "generated",
        ),
        strict=True,
    ):
        assert words in text
    assert "ignore.default.for.nullables=true" in found[2]
    assert [*column_remarks(columns[1:2], connector="TiCDC")] == []


def test_a_plan_warns_of_defaults_and_of_columns_that_are_no_longer_sent() -> None:
    old = {"id": _INT, "name": {**_TEXT, "default": "x"}, "up": _TEXT}
    new = {"id": _INT, "name": {**_TEXT, "default": "x"}}
    read = _message(old, key={"id": 1}, op="r", after={"id": 1, "name": "ann", "up": "ANN"})
    update = _message(new, key={"id": 1}, op="u", after={"id": 1, "name": "bob"})
    assert [text.split(":")[0] for text in _plan(read).warnings] == ["columns name"]
    plan = _plan(read, replace(update, offset=1))
    assert plan.gone == {"up"}
    assert [text.split(":")[0] for text in plan.warnings] == ["columns name", "columns up"]


def test_a_generated_column_that_changes_lack_is_not_read_from_the_database() -> None:
    read = _message({"id": _INT, "up": _TEXT}, key={"id": 1}, op="r", after={"id": 1, "up": "ANN"})
    update = replace(_message({"id": _INT}, key={"id": 1}, op="u", after={"id": 1}), offset=1)
    generated = {"up": ColumnType("text")}
    stored = StoredTable({"id": ColumnType("int")}, ("id",), 0, 0, generated=generated)
    for plan, names in ((_plan(read), ["id", "up"]), (_plan(read, update), ["id"])):
        source, gap = source_plan(plan, stored)
        assert isinstance(source.decoder, SourceDecoder)
        assert [one.recorded.name for one in source.decoder.columns] == names
        assert gap == ColumnGap()


# What cannot be decoded is shown


def test_records_that_are_all_refused_name_their_table_and_their_reason() -> None:
    cell = _struct({"value": {"type": "int32"}, "set": {"type": "boolean"}})
    row = {"id": {"value": 1, "set": True}}
    message = _message({"id": cell}, key=row, after=row)
    faults: list[DecodeError] = []
    assert first_row([message], CodecOptions(), faults=faults) is None
    assert "cell of value and set" in str(faults[0])
    assert open_codec("debezium-json").table_of(message) == _TABLE
