"""Debezium's records that say less than they seem to: routed tables, keys, geometries, defaults; without
Spark.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.spark.decoded import decode_here
from tidesink.cli.table_plans import TablePlan, routed_problem, with_identity
from tidesink.codecs import open_codec
from tidesink.codecs.debezium.inference import first_row, key_only
from tidesink.codecs.debezium.remarks import ROUTED, column_remarks, key_remark
from tidesink.codecs.options import DebeziumOptions
from tidesink.errors import ConfigError, DecodeError, SourceUnavailableError, TidesinkError
from tidesink.events import ChangeEvent, Column, ColumnType, Message, TableId, TableSchema
from tidesink.sinks.batch.source_rows import ColumnGap, SourceDecoder, source_plan
from tidesink.sinks.decode.database_types import AskedIdentity
from tidesink.sinks.decode.debezium_changes import DatabaseFacts, KeyFacts
from tidesink.sinks.decode.debezium_json import (
    JsonWriter,
    Writers,
    debezium_json_plan,
    first_writer,
)
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings
from tidesink.source_database.base import ReplicaIdentity, StoredTable

Json = dict[str, Any]
_TABLE: Final = TableId("public", "t")
_INT: Final = {"type": "int32", "optional": False}
_TEXT: Final = {"type": "string", "optional": True}
_GEOMETRY: Final = {
    "type": "struct",
    "name": "io.debezium.data.geometry.Geometry",
    "fields": [{"type": "bytes", "field": "wkb"}, {"type": "int32", "optional": True, "field": "srid"}],
}
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
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
    return Message(
        "app.t",
        0,
        0,
        json.dumps({"schema": key_schema, "payload": key}, separators=(",", ":")).encode(),
        json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode(),
    )


def _bare(
    key: Json, *, op: str = "c", before: Json | None = None, after: Json | None = None, **more: Any
) -> Message:
    """A record without a schema."""
    source = {"connector": "postgresql", "schema": "public", "table": "t", **more}
    value = {"before": before, "after": after, "source": source, "op": op}
    return Message("app.t", 0, 0, json.dumps(key).encode(), json.dumps(value).encode())


def _plan(
    *messages: Message, keys: tuple[str, ...] | None = None, identity: ReplicaIdentity | None = None
) -> DecodePlan:
    rows = [first_row([one], DebeziumOptions()) for one in messages]
    writers = Writers().with_new(first_writer(one) for one in rows if one is not None)
    return debezium_json_plan(
        _TABLE, writers, PlanSettings(keys=keys), database=DatabaseFacts(identity=identity)
    )


def _rows(plan: DecodePlan, *messages: Message) -> list[Json]:
    columns = {
        "topic": pa.array([one.topic for one in messages]),
        "partition": pa.array([0] * len(messages), pa.int32()),
        "offset": pa.array(range(len(messages)), pa.int64()),
        "key": pa.array([one.key for one in messages], pa.binary()),
        "value": pa.array([one.value for one in messages], pa.binary()),
        "timestamp": pa.array([1] * len(messages), pa.int64()),
    }
    if plan.decoder.uses_headers:
        named = [[{"key": name, "value": value} for name, value in one.headers] for one in messages]
        columns["headers"] = pa.array(named, _HEADERS)
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


def _sent(
    *names: str, table: Collection[str], is_full: bool = False, primary: Collection[str] = ()
) -> ReplicaIdentity:
    """What Postgres sends of the deleted rows of a table with these columns."""
    return ReplicaIdentity(frozenset(names), frozenset(table), is_full, frozenset(primary))


_KEYED: Final = {"id": _INT, "tenant": _INT, "a": _TEXT}


def _delete(before: Json, key: Json) -> Message:
    return _message(_KEYED, key=key, op="d", before=before)


def test_a_delete_whose_key_may_have_a_stand_in_is_refused() -> None:
    insert = _message(_KEYED, key={"id": 1, "tenant": 5}, after={"id": 1, "tenant": 5, "a": "x"})
    delete = _delete({"id": 1, "tenant": 0, "a": None}, {"id": 1, "tenant": 0})
    found = _rows(_plan(insert, identity=_sent("id", table=_KEYED)), insert, delete)
    assert [one["kind"] for one in found] == ["upsert", "bad"]
    assert "REPLICA IDENTITY FULL" in found[1]["reason"]
    assert "keys: [id, tenant]" in found[1]["reason"]


def test_so_is_one_without_a_schema() -> None:
    insert = _bare({"id": 1, "tenant": 5}, after={"id": 1, "tenant": 5, "a": "x"})
    delete = _bare({"id": 1, "tenant": 0}, op="d", before={"id": 1, "tenant": 0, "a": None})
    found = _rows(_plan(insert, identity=_sent("id", table=_KEYED)), insert, delete)
    assert [one["kind"] for one in found] == ["upsert", "bad"]


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


_REQUIRED: Final = {"type": "string", "optional": False}
_REGION: Final = {"type": "string", "optional": False, "default": "eu"}


@pytest.mark.parametrize(
    ("kinds", "key", "before"),
    [
        # The primary key is id, and message.key.columns names other columns.
        ({"id": _INT, "tenant": _INT, "a": _TEXT}, ["tenant"], {"id": 1, "tenant": 0, "a": None}),
        ({"id": _INT, "tenant": _INT}, ["tenant"], {"id": 1, "tenant": 0}),
        (
            {"id": _INT, "tenant": _INT, "region": _REQUIRED, "a": _TEXT},
            ["tenant", "region"],
            {"id": 1, "tenant": 0, "region": "", "a": None},
        ),
        # The default of the column stands for the value.
        (
            {"id": _INT, "region": _REGION, "a": {**_TEXT, "default": "x"}},
            ["region"],
            {"id": 1, "region": "eu", "a": "x"},
        ),
        # REPLICA IDENTITY USING INDEX (mail): the primary key is not sent either.
        (
            {"id": _INT, "mail": _REQUIRED, "tenant": _INT, "a": _TEXT},
            ["tenant"],
            {"id": 0, "mail": "a@b", "tenant": 0, "a": None},
        ),
        ({"id": _INT, "mail": _REQUIRED, "a": _TEXT}, ["id"], {"id": 0, "mail": "a@b", "a": None}),
        # A column that may be NULL is in no replica identity.
        (
            {"id": _INT, "code": {**_TEXT, "default": "x"}, "n": _INT, "a": _TEXT},
            ["id", "code"],
            {"id": 1, "code": "x", "n": 3, "a": None},
        ),
        (
            {"id": _INT, "code": {**_TEXT, "default": "x"}, "a": _TEXT},
            ["id", "code"],
            {"id": 1, "code": "x", "a": None},
        ),
    ],
)
def test_a_delete_that_shows_another_replica_identity_than_its_key_is_refused(
    kinds: Json, key: list[str], before: Json
) -> None:
    values = {name: before[name] for name in key}
    delete = _message(kinds, key=values, op="d", before=before)
    first = _message(kinds, key=values, op="r", after=before)
    (found,) = _rows(_plan(first), delete)
    assert found["kind"] == "bad", found
    assert f"keys: [{', '.join(key)}]" in found["reason"]
    (stated,) = _rows(_plan(first, keys=tuple(key)), delete)
    assert (stated["kind"], stated["key"]) == ("delete", values)
    # Only Postgres leaves columns out.
    others = [
        _message(kinds, key=values, op=op, connector="mysql", db="public", **{image: before})
        for op, image in (("r", "after"), ("d", "before"))
    ]
    plan = debezium_json_plan(_TABLE, Writers().with_new([first_writer(_first(others[0]))]))
    assert [one["kind"] for one in _rows(plan, *others)] == ["upsert", "delete"]


def test_so_is_a_delete_without_a_schema_in_which_only_other_columns_have_values() -> None:
    for before in ({"id": 1, "tenant": 0, "a": None}, {"id": 1, "tenant": 0}):
        key = {"tenant": 0}
        first = _bare(key, op="r", after={"id": 2, "tenant": 0, "a": "x"})
        found = _rows(_plan(first), _bare(key, op="d", before=before))
        assert [one["kind"] for one in found] == ["bad"]


_ORDERS: Final = {"nr": _INT, "line": _INT, "amount": _INT, "note": _TEXT}


@pytest.mark.parametrize(
    ("bare", "before"),
    [
        *(
            (bare, before)
            for bare in (False, True)
            for before in (
                {"nr": 7, "line": 0, "amount": 0, "note": None},  # the key alone, or a whole row
                {"nr": 0, "line": 0, "amount": 0, "note": None},
                {"nr": 7, "line": 0, "amount": 3, "note": None},  # REPLICA IDENTITY FULL
                {"nr": 7, "line": 0, "amount": 3, "note": "x"},
            )
        ),
        # The schema says that a note may be NULL, so the row is whole.
        (False, {"nr": 0, "line": 0, "amount": 3, "note": "x"}),
    ],
)
def test_a_primary_key_with_a_zero_in_it_is_deleted(bare: bool, before: Json) -> None:
    key, after = {"nr": before["nr"], "line": before["line"]}, {**before, "note": "y"}
    delete = _bare(key, op="d", before=before) if bare else _message(_ORDERS, key=key, op="d", before=before)
    first = _bare(key, op="r", after=after) if bare else _message(_ORDERS, key=key, op="r", after=after)
    (found,) = _rows(_plan(first), delete)
    assert found["kind"] == "delete", found["reason"]
    assert {name: int(one) for name, one in found["key"].items()} == key


_LINES: Final = {"nr": _INT, "line": _INT, "n": _INT, "is_gift": {"type": "boolean"}, "region": _REGION}
_CODED: Final = {"nr": _INT, "b": _INT, "code": _REQUIRED, "note": _TEXT}


@pytest.mark.parametrize(
    ("kinds", "key", "before"),
    [
        # REPLICA IDENTITY FULL, and a line with the number 0.
        (_LINES, ["nr", "line"], {"nr": 7, "line": 0, "n": 3, "is_gift": False, "region": "us"}),
        (_LINES, ["nr", "line"], {"nr": 7, "line": 0, "n": 3, "is_gift": True, "region": "eu"}),
        (_LINES, ["nr", "line"], {"nr": 7, "line": 0, "n": 3, "is_gift": True, "region": "us"}),
        (_ORDERS, ["nr", "line"], {"nr": 7, "line": 0, "amount": 3, "note": None}),
        # The primary key may be (nr, b) as well, and code not sent.
        (_CODED, ["nr", "code"], {"nr": 7, "b": 3, "code": "", "note": None}),
    ],
)
@pytest.mark.parametrize("bare", [False, True])
def test_a_delete_whose_key_is_blank_in_part_is_applied_with_a_warning(
    bare: bool, kinds: Json, key: list[str], before: Json
) -> None:
    values = {name: before[name] for name in key}
    after = {**before, **dict.fromkeys(before.keys() & {"note"}, "x")}
    if bare:
        first, delete = _bare(values, op="r", after=after), _bare(values, op="d", before=before)
    else:
        first = _message(kinds, key=values, op="r", after=after)
        delete = _message(kinds, key=values, op="d", before=before)
    sent, full = (
        _sent(*names, table=kinds, is_full=is_full, primary=key)
        for names, is_full in ((key, False), (kinds, True))
    )
    # Each of them confirms the key.
    for keys, identity in ((tuple(key), None), (None, sent), (None, full)):
        (found,) = _rows(_plan(first, keys=keys, identity=identity), delete)
        assert (found["kind"], found["reason"]) == ("delete", None)
    (found,) = _rows(_plan(first), delete)
    assert found["kind"] == "delete"
    assert {name: str(one) for name, one in found["key"].items()} == {k: str(v) for k, v in values.items()}
    for words in (f"keys: [{', '.join(key)}]", f"column {key[1]} ", "tidesink resync"):
        assert words in found["reason"]


def test_no_delete_is_warned_of_that_shows_no_other_identity() -> None:
    key = {"nr": 7, "line": 0}
    first = _message(_ORDERS, key=key, op="r", after={**key, "amount": 3, "note": "x"})
    for amount, note in ((0, None), (3, "x")):
        delete = _message(_ORDERS, key=key, op="d", before={**key, "amount": amount, "note": note})
        (found,) = _rows(_plan(first), delete)
        assert (found["kind"], found["reason"]) == ("delete", None)


def test_the_database_says_whether_a_key_was_sent() -> None:
    key = {"nr": 0, "line": 0}
    first = _message(_ORDERS, key=key, op="r", after={**key, "amount": 3, "note": "x"})
    delete = _message(_ORDERS, key=key, op="d", before={**key, "amount": 3, "note": None})
    sent = {"nr": 7, "line": 5}
    other = _message(_ORDERS, key=sent, op="d", before={**sent, "amount": 0, "note": None})
    renamed = {"order", "line", "amount", "note"}
    for identity, kinds in (
        (None, ["bad", "delete"]),
        (_sent("nr", "line", table=_ORDERS), ["delete", "delete"]),
        (_sent("nr", "line", "amount", table=_ORDERS), ["delete", "delete"]),
        (_sent("nr", table=_ORDERS), ["bad", "bad"]),
        (_sent(table=_ORDERS), ["bad", "bad"]),  # REPLICA IDENTITY NOTHING
        (_sent("order", table=renamed), ["bad", "delete"]),  # a transform renamed a column
    ):
        plan = _plan(first, identity=identity)
        found = _rows(plan, delete, other)
        assert [one["kind"] for one in found] == kinds
        reasons = [one["reason"] for one in found if one["kind"] == "bad"]
        assert all("REPLICA IDENTITY FULL" in one for one in reasons)


def test_a_replica_identity_that_was_set_later_confirms_no_earlier_delete() -> None:
    key = {"nr": 0, "line": 0}
    first = _message(_ORDERS, key=key, op="r", after={**key, "amount": 3, "note": "x"})
    doubtful = _message(_ORDERS, key=key, op="d", before={**key, "amount": 3, "note": None})
    plan = _plan(first, identity=_sent(*_ORDERS, table=_ORDERS, is_full=True))
    (found,) = _rows(plan, doubtful)
    assert found["kind"] == "bad"
    assert "has REPLICA IDENTITY FULL now" in found["reason"]
    assert "keys: [nr, line]" in found["reason"]
    assert "set REPLICA IDENTITY FULL" not in found["reason"]
    assert not any("message.key.columns" in text for text in plan.warnings)


def _defined(*primary: str) -> TableSchema:
    """A definition of the orders with this primary key."""
    numbers = (
        Column(name, ColumnType("int"), nullable=False, primary_key=name in primary)
        for name in _ORDERS
        if name != "note"
    )
    return TableSchema(_TABLE, (*numbers, Column("note", ColumnType("text"))))


@pytest.mark.parametrize("bare", [False, True])
def test_columns_of_the_primary_key_are_sent_whether_the_old_row_is_whole_or_not(bare: bool) -> None:
    """REPLICA IDENTITY FULL may be newer than the record; before it the primary key was sent, too."""
    key, full = {"nr": 0, "line": 0}, _sent(*_ORDERS, table=_ORDERS, is_full=True)
    both = {"nr", "line"}
    after, before = {**key, "amount": 3, "note": "x"}, {**key, "amount": 3, "note": None}
    if bare:
        first, delete = _bare(key, op="r", after=after), _bare(key, op="d", before=before)
    else:
        first = _message(_ORDERS, key=key, op="r", after=after)
        delete = _message(_ORDERS, key=key, op="d", before=before)
    for identity, definition, kind in (
        (None, None, "bad"),
        (full, None, "bad"),
        (full._replace(primary=frozenset(both)), None, "delete"),
        (full._replace(primary=frozenset({*both, "amount"})), None, "delete"),
        (full._replace(primary=frozenset({"nr"})), None, "bad"),
        (None, ("nr", "line"), "delete"),
        (None, ("nr", "line", "amount"), "delete"),
        (None, ("nr",), "bad"),
        # The database decides: an index is the identity, or the table has another primary key by now.
        (_sent("amount", table=_ORDERS, primary=both), ("nr", "line"), "bad"),
        (full._replace(primary=frozenset({"nr"})), ("nr", "line"), "bad"),
        # A transform renamed a column, so that the database tells nothing of it.
        (_sent("number", table={"number", "line"}, primary={"number"}), ("nr", "line"), "delete"),
    ):
        defined = None if definition is None else _defined(*definition)
        row = first_row([first], DebeziumOptions(), defined)
        assert row is not None
        plan = _plan_of(first_writer(row), definition=defined, identity=identity)
        (found,) = _rows(plan, delete)
        assert found["kind"] == kind, (identity, definition, found["reason"])


def test_a_refused_delete_names_each_setting_that_would_tell_its_key() -> None:
    key = {"nr": 0, "line": 0}
    first = _message(_ORDERS, key=key, op="r", after={**key, "amount": 3, "note": "x"})
    (found,) = _rows(
        _plan(first), _message(_ORDERS, key=key, op="d", before={**key, "amount": 3, "note": None})
    )
    for words in ("tables: keys: [nr, line]", "definition", "source.database", "REPLICA IDENTITY FULL"):
        assert words in found["reason"]


def test_no_old_row_without_a_schema_contradicts_the_database() -> None:
    # The default of tenant, which nothing in the record tells.
    key = {"tenant": 5}
    first = _bare(key, op="r", after={"id": 2, "tenant": 5, "a": "x"})
    delete = _bare(key, op="d", before={"id": 1, "tenant": 5, "a": None})
    for identity, kind in ((None, "delete"), (_sent("id", table={"id", "tenant", "a"}), "bad")):
        (found,) = _rows(_plan(first, identity=identity), delete)
        assert found["kind"] == kind


def test_the_field_of_a_routed_key_is_in_no_replica_identity() -> None:
    kinds = {"id": _INT, "a": _TEXT}
    for field in (ROUTED, "shard_id"):
        key = {"id": 0, field: "s1"}
        first = _message(kinds, key=key, after={"id": 0, "a": "x"})
        delete = _message(kinds, key=key, op="d", before={"id": 0, "a": None})
        plan = _plan(first, identity=_sent("id", table=kinds))
        (found,) = _rows(plan, delete)
        assert (found["kind"], found["key"]) == ("delete", key)
    warned = _plan(_message(kinds, key={"id": 0, ROUTED: "s1"}, after={"id": 0, "a": "x"})).warnings
    assert not any("message.key.columns" in text for text in warned)


@pytest.mark.parametrize(
    ("before", "bare", "defined"),
    [
        ({"nr": 0, "line": 0, "amount": 3, "note": "x"}, "bad", "delete"),  # a note may be NULL: whole
        ({"nr": 7, "line": 0, "amount": 0, "region": "us"}, "delete", "delete"),
        ({"nr": 0, "line": 0, "amount": 0, "region": "eu"}, "bad", "delete"),  # the default
        ({"nr": 0, "line": 0, "amount": 2, "region": "eu"}, "bad", "bad"),
        ({"nr": 7, "line": 0, "amount": 0, "note": None, "region": "eu"}, "delete", "delete"),
        ({"nr": 7, "line": 0, "amount": 3, "note": None}, "delete", "delete"),
    ],
)
def test_a_definition_tells_which_columns_may_be_null_where_no_schema_does(
    before: Json, bare: str, defined: str
) -> None:
    # Without a primary key: with one that has these columns the key is sent.
    columns = tuple(Column(name, ColumnType("int"), nullable=False) for name in ("nr", "line"))
    definition = TableSchema(
        _TABLE,
        (
            *columns,
            Column("amount", ColumnType("int"), nullable=False),
            Column("note", ColumnType("text")),
            Column("region", ColumnType("text"), nullable=False, default="eu"),
        ),
    )
    key = {"nr": before["nr"], "line": before["line"]}
    first = _bare(key, op="r", after={**dict.fromkeys(("note", "region"), "y"), **before, "note": "y"})
    for known, kind in ((None, bare), (definition, defined)):
        row = first_row([first], DebeziumOptions(), known)
        assert row is not None
        plan = _plan_of(first_writer(row), definition=known)
        (found,) = _rows(plan, _bare(key, op="d", before=before))
        assert found["kind"] == kind, found["reason"]


def test_a_key_of_several_columns_of_postgres_is_warned_of() -> None:
    key = {"nr": 7, "line": 1}
    first = _message(_ORDERS, key=key, op="r", after={**key, "amount": 3, "note": "x"})
    warned = [text for text in _plan(first).warnings if "message.key.columns" in text]
    assert len(warned) == 1
    assert warned[0].startswith("Columns nr, line:")
    for plan in (
        _plan(first, keys=("nr", "line")),
        _plan(first, identity=_sent("nr", "line", table=_ORDERS)),
    ):
        assert not any("message.key.columns" in text for text in plan.warnings)
    single = _message(_ORDERS, key={"nr": 7}, op="r", after={**key, "amount": 3, "note": "x"})
    assert not any("message.key.columns" in text for text in _plan(single).warnings)


def test_plan_takes_the_warning_away_where_the_database_answers() -> None:
    (text,) = key_remark(("nr", "line"))
    plan = TablePlan(_TABLE, "app.t", keys=("nr", "line"), warnings=("other", text))
    types = {name: ColumnType("int") for name in ("nr", "line")}
    for identity, warnings, is_problem in (
        (None, ("other", text), False),
        (frozenset({"nr", "line"}), ("other",), False),
        (frozenset({"nr"}), ("other",), True),
    ):
        found = with_identity(plan, StoredTable(types, ("nr",), 0, 0, identity=identity))
        assert (found.warnings, found.problem is not None) == (warnings, is_problem)
    found = with_identity(plan, StoredTable(types, ("nr",), 0, 0, sends_rows=True))
    assert (found.warnings, found.problem) == (("other",), None)


def test_a_database_is_asked_for_the_replica_identity_until_it_answers() -> None:
    for answer in (None, _sent("nr", table=_ORDERS), ConfigError("refuses the user")):
        answers: list[Any] = [answer, SourceUnavailableError("down"), SourceUnavailableError("down")]

        def ask(answers: list[Any] = answers) -> ReplicaIdentity | None:
            found = answers.pop()
            if isinstance(found, TidesinkError):
                raise found
            assert found is None or isinstance(found, ReplicaIdentity)
            return found

        asked, told = AskedIdentity(ask), answer if isinstance(answer, ReplicaIdentity) else None
        # A third answer would be one too many: the list is empty by then.
        assert [asked.get() for _ in range(5)] == [None, None, told, told, told]


def test_a_stored_table_tells_its_primary_key_with_its_identity() -> None:
    types, primary = {name: ColumnType("int") for name in ("nr", "line", "n")}, frozenset({"nr", "line"})
    stored = StoredTable(types, ("nr", "line"), 0, 0, primary=primary)
    for one in (stored._replace(sends_rows=True), stored._replace(identity=primary)):
        identity = one.replica_identity
        assert identity is not None
        assert identity.primary == primary
        assert KeyFacts(identity=identity).are_sent(["nr", "line"])


# PostGIS: an unchanged value that is stored out of line

_SHAPED: Final = {"id": _INT, "area": {**_GEOMETRY, "optional": False}}


@pytest.mark.parametrize(
    ("op", "before", "area", "connector", "kind"),
    [
        ("u", None, _EMPTY, "postgresql", "bad"),
        ("u", {"id": 1, "area": _POINT}, _EMPTY, "postgresql", "upsert"),
        ("u", {"id": 1, "area": _EMPTY}, _EMPTY, "postgresql", "bad"),  # REPLICA IDENTITY USING INDEX
        ("u", {"id": 0, "area": _EMPTY}, _EMPTY, "postgresql", "bad"),
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
        Writers().with_new([first_writer(_first(first))]),
    )
    (found,) = _rows(plan, message)
    assert found["kind"] == kind, found["reason"]
    if kind == "bad":
        assert "REPLICA IDENTITY FULL" in found["reason"]


def test_an_empty_geometry_is_refused_in_the_insert_of_a_changed_key() -> None:
    first = _message(_SHAPED, key={"id": 1}, after={"id": 1, "area": _POINT})
    insert = _message(_SHAPED, key={"id": 2}, after={"id": 2, "area": _EMPTY})
    moved = replace(insert, headers=(("__debezium.oldkey", b'{"id":1}'), ("other", None)))
    plan = _plan(first)
    assert plan.decoder.uses_headers
    assert [one["kind"] for one in _rows(plan, insert, moved)] == ["upsert", "bad"]
    sent = replace(_message(_SHAPED, key={"id": 2}, after={"id": 2, "area": _POINT}), headers=moved.headers)
    assert [one["kind"] for one in _rows(plan, sent)] == ["upsert"]


def test_so_is_it_where_nothing_types_the_column_or_only_an_older_schema_says_not_null() -> None:
    headers = (("__debezium.oldkey", b'{"id":1}'),)
    first = _bare({"id": 1}, after={"id": 1, "area": _POINT})
    insert = _bare({"id": 2}, after={"id": 2, "area": _EMPTY})
    moved = replace(insert, headers=headers)
    assert [one["kind"] for one in _rows(_plan(first), insert, moved)] == ["upsert", "bad"]
    nullable = {"id": _INT, "area": {**_GEOMETRY, "optional": True}}
    older = _message(_SHAPED, key={"id": 1}, after={"id": 1, "area": _POINT})
    newer = replace(_message(nullable, key={"id": 1}, after={"id": 1, "area": _POINT}), offset=9)
    moved = replace(_message(_SHAPED, key={"id": 2}, after={"id": 2, "area": _EMPTY}), headers=headers)
    assert [one["kind"] for one in _rows(_plan(older, newer), moved)] == ["bad"]


def test_headers_are_fetched_for_geometries_of_postgres_alone() -> None:
    plain = _message({"id": _INT, "a": _TEXT}, key={"id": 1}, after={"id": 1, "a": "x"})
    optional = {"id": _INT, "area": {**_GEOMETRY, "optional": True}}
    shaped = _message(optional, key={"id": 1}, after={"id": 1, "area": _POINT})
    bare = _bare({"id": 1}, after={"id": 1, "a": "x"}, connector="mysql", db="public")
    assert not any(_plan(one).decoder.uses_headers for one in (plain, shaped))
    writer = first_writer(_first(bare))
    assert not _plan_of(writer, keys=("id",)).decoder.uses_headers


def test_a_whole_old_row_shows_that_a_geometry_is_empty() -> None:
    kinds = {**_SHAPED, "a": _TEXT}
    first = _message(kinds, key={"id": 1}, after={"id": 1, "area": _POINT, "a": "x"})
    after = {"id": 1, "area": _EMPTY, "a": "y"}
    for old, kind in (("x", "upsert"), (None, "bad")):
        before = {"id": 1, "area": _EMPTY, "a": old}
        (found,) = _rows(_plan(first), _message(kinds, key={"id": 1}, op="u", before=before, after=after))
        assert found["kind"] == kind


@pytest.mark.parametrize(("nullable", "kind"), [(False, "bad"), (True, "upsert"), (None, "bad")])
def test_so_is_an_empty_geometry_without_a_schema(nullable: bool | None, kind: str) -> None:
    definition = None
    if nullable is not None:
        columns = (Column("id", ColumnType("int")), Column("area", ColumnType("geometry"), nullable))
        definition = TableSchema(_TABLE, columns)
    first = _bare({"id": 1}, after={"id": 1, "area": _POINT})
    update = _bare({"id": 1}, op="u", after={"id": 1, "area": _EMPTY})
    row = first_row([first], DebeziumOptions(), definition)
    assert row is not None
    plan = _plan_of(first_writer(row), definition=definition)
    found = _rows(plan, first, update)
    assert [one["kind"] for one in found] == ["upsert", kind]


def test_so_is_it_in_a_flattened_update() -> None:
    codec = open_codec("debezium-json")

    def row(area: Json, **added: Any) -> Message:
        kinds = {**_SHAPED, **{name: {"type": "string", "optional": True} for name in added}}
        value = {"schema": _struct(kinds), "payload": {"id": 1, "area": area, **added}}
        key = {"schema": _struct({"id": _INT}), "payload": {"id": 1}}
        return Message("app.public.t", 0, 0, json.dumps(key).encode(), json.dumps(value).encode())

    for added in ({"__op": "u", "__lsn": "1"}, {"__deleted": "false"}, {"__op": "u"}):
        assert codec.decode(row(_POINT, **added))
        with pytest.raises(DecodeError, match="empty geometry"):
            codec.decode(row(_EMPTY, **added))
    for added in ({"__op": "c", "__lsn": "1"}, {"__op": "r"}, {"__op": "u", "__connector": "mysql"}):
        assert codec.decode(row(_EMPTY, **added))


def test_a_workers_plan_knows_the_connector_of_json() -> None:
    optional = {"id": _INT, "area": {**_GEOMETRY, "optional": True}}
    for connector, warned in (("postgresql", 1), ("mysql", 0)):
        message = _message(optional, key={"id": 1}, after={"id": 1, "area": _POINT}, connector=connector)
        row = first_row([message], DebeziumOptions())
        assert row is not None
        plan = debezium_json_plan(_TABLE, Writers().with_new([first_writer(row)]))
        assert sum("stored out of line" in text for text in plan.warnings) == warned


def _plan_of(
    writer: JsonWriter,
    *,
    keys: tuple[str, ...] | None = None,
    definition: TableSchema | None = None,
    identity: ReplicaIdentity | None = None,
) -> DecodePlan:
    return debezium_json_plan(
        _TABLE,
        Writers().with_new([writer]),
        PlanSettings(keys=keys),
        definition=definition,
        database=DatabaseFacts(identity=identity),
    )


def _first(message: Message) -> Any:
    return first_row([message], DebeziumOptions())


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
        "Column isbn",
        "Columns at",
        "Columns n",
        "Columns area",
        "Columns up",
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
    assert [text.split(":")[0] for text in _plan(read).warnings] == ["Columns name"]
    plan = _plan(read, replace(update, offset=1))
    assert plan.gone == {"up"}
    assert [text.split(":")[0] for text in plan.warnings] == ["Columns name", "Columns up"]


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
    assert first_row([message], DebeziumOptions(), faults=faults) is None
    assert "objects of the members value and set" in str(faults[0])
    assert open_codec("debezium-json").table_of(message) == _TABLE
