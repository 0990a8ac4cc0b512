"""TiDB's row key: read as TiKV writes it, and as the key of a table without one."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.multisets import CREATE, OPTIONS, SCHEMA, change, messages
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right, wrong
from tidesink.cli.table_plans import plan_of
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.canal_json.codec import CanalJsonCodec, keyed_by_row, row_key_of
from tidesink.errors import ConfigError, SchemaMismatchError, SchemaRefusedError
from tidesink.events import ChangeEvent, Column, ColumnType, TableSchema
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.targets.stream.encoding import prepare
from tidesink.typemap.projection import Projection, project, read_filter
from tidesink.typemap.target_schema import (
    RowKey,
    merge_schemas,
    parse_row_key,
    render_row_key,
    row_keyed,
    shape_of,
    shown_columns,
)

SHAPE = row_keyed(shape_of(SCHEMA))
# Of a table that TiDB made: its 120th, its first row.
SENT = "7480000000000000785f728000000000000001"
_int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def _text(digits: str) -> str:
    return base64.b64encode(bytes.fromhex(digits)).decode()


def test_a_row_key_of_tidbs_own() -> None:
    assert parse_row_key(_text(SENT)) == RowKey(row_id=1, table_id=120)
    assert render_row_key(RowKey(1, 120)) == _text(SENT)


@given(_int64, _int64)
def test_every_row_key_is_read_back(row_id: int, table_id: int) -> None:
    assert parse_row_key(render_row_key(RowKey(row_id, table_id))) == RowKey(row_id, table_id)


@given(st.tuples(_int64, _int64), st.tuples(_int64, _int64))
def test_row_keys_compare_as_their_bytes_do(one: tuple[int, int], other: tuple[int, int]) -> None:
    def key(ids: tuple[int, int]) -> bytes:
        return base64.b64decode(render_row_key(RowKey(ids[1], ids[0])))

    assert (one < other) == (key(one) < key(other))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "has no _tidb.rowkey"),
        (7, "has no _tidb.rowkey"),
        ("", "not the key of a row with a _tidb_rowid"),
        (_text(SENT) + "\n", "not the key of a row"),
        (_text(SENT)[:-1], "not the key of a row"),
        (_text(SENT).replace("A", "é", 1), "not the key of a row"),
        # An index' key, another table's prefix, a clustered key of a text, one byte more.
        (_text(SENT.replace("5f72", "5f69")), "not the key of a row"),
        (_text("6d" + SENT[2:]), "not the key of a row"),
        (_text(SENT[:22] + "01616263000000000000f9"), "not the key of a row"),
        (_text(SENT + "00"), "not the key of a row"),
    ],
)
def test_what_is_no_row_key_is_refused(text: object, reason: str) -> None:
    with pytest.raises(SchemaMismatchError, match=reason):
        parse_row_key(text)


def test_an_event_is_named_by_its_row_key_in_all_its_images() -> None:
    event = change(RowKey(3, 104), {"name": "a", "amount": 1}, {"name": "b", "amount": 1}, at=1)
    (decoded,) = CanalJsonCodec(options=OPTIONS).decode(messages([event])[0])
    assert isinstance(decoded, ChangeEvent)
    assert decoded.key is None
    named = keyed_by_row(decoded)
    assert named.key == {"_tidb_rowid": 3, "_tidb_table_id": 104}
    assert named.after == {"_tidb_rowid": 3, "_tidb_table_id": 104, "name": "b", "amount": 1}
    assert named.before == {**named.after, "name": "a"}
    with pytest.raises(SchemaMismatchError, match="output-row-key=true"):
        row_key_of(event._replace(extension=None))


def test_the_shape_of_a_table_without_a_key_has_the_row_key_first() -> None:
    assert [column.name for column in SHAPE.columns] == ["_tidb_rowid", "_tidb_table_id", "name", "amount"]
    assert SHAPE.keys == ("_tidb_rowid", "_tidb_table_id") == tuple(c.name for c in SHAPE.key_columns)
    assert shown_columns(SHAPE) == shape_of(SCHEMA)
    keyed = shape_of(SCHEMA, keys=("name",))
    assert shown_columns(keyed) is keyed
    with pytest.raises(SchemaRefusedError, match=r"from \(_tidb_rowid, _tidb_table_id\) to \(name\)"):
        merge_schemas(SHAPE, keyed)


def test_a_column_of_the_sources_under_such_a_name_is_refused() -> None:
    taken = Column("_TiDB_Table_ID", ColumnType("int"))
    with pytest.raises(SchemaRefusedError, match="a name that the row key needs"):
        row_keyed(shape_of(TableSchema(SCHEMA.table, (*SCHEMA.columns, taken))))


def test_a_layout_keeps_the_row_key_under_its_names() -> None:
    found = project(Projection(columns=("amount",), rename={"amount": "n"}), SHAPE, own=())
    assert [column.name for column in found.shape.columns] == ["_tidb_rowid", "_tidb_table_id", "n"]
    assert found.shape.keys == SHAPE.keys
    assert project(Projection(row_filter=read_filter("_tidb_rowid > 5")), SHAPE, own=()).shape == SHAPE


@pytest.mark.parametrize(
    "projection",
    [
        Projection(except_columns=("_tidb_rowid",)),
        Projection(rename={"_TIDB_TABLE_ID": "tid"}),
        Projection(columns=("_tidb_rowid", "name")),
    ],
)
def test_a_layout_that_names_the_row_key_is_refused(projection: Projection) -> None:
    with pytest.raises(ConfigError, match=r"is not a column of shop\.visits, but the row key"):
        project(projection, SHAPE, own=())


@pytest.mark.parametrize("protocol", ["canal-json", "debezium-json", "debezium-avro"])
def test_messages_that_have_a_place_for_the_row_key(protocol: str) -> None:
    schema = prepare(
        SHAPE, protocol=protocol, options=CodecOptions(), topic="t", registry=MemorySchemaRegistry()
    ).schema
    assert [column.name for column in schema.primary_key] == [*SHAPE.keys]


def test_flat_avro_messages_have_none() -> None:
    with pytest.raises(SchemaRefusedError, match="readers treat a field whose name begins with _tidb_"):
        prepare(
            SHAPE, protocol="flat-avro", options=CodecOptions(), topic="t", registry=MemorySchemaRegistry()
        )


ROW_KEYS = changed(CANAL_JSON, source__enable_tidb_extension=True, source__output_row_key=True)


def test_the_plan_shows_the_row_key_and_why() -> None:
    plan = plan_of(right(ROW_KEYS), "app", SHAPE, types_from="ddl")
    assert (plan.keys, plan.problem) == (("_tidb_rowid", "_tidb_table_id"), None)
    keys = [(column.name, column.target_type) for column in plan.columns if column.key]
    assert keys == [("_tidb_rowid", "bigint"), ("_tidb_table_id", "bigint")]
    assert all("the table has no key" in column.note for column in plan.columns[:2])
    assert [column.note for column in plan.columns[2:]] == ["", ""]


@pytest.mark.law("L5")
@pytest.mark.parametrize(
    ("config", "told"), [(CANAL_JSON, "output-row-key=true"), (FLAT_AVRO, "canal-json of new TiCDC")]
)
def test_a_table_without_any_identity_is_a_problem_with_every_way_out(
    config: dict[str, Any], told: str
) -> None:
    plan = plan_of(right(config), "app", shape_of(SCHEMA), types_from="ddl")
    assert plan.problem is not None
    assert all(way in plan.problem for way in ("keys: [...]", "mode: append", told))


def test_a_filter_of_a_defined_table_may_name_the_row_key() -> None:
    table = {"name": "shop.visits", "definition": CREATE, "filter": "_tidb_rowid > 5"}
    assert right(changed(ROW_KEYS, tables=[table]))
    (problem,) = wrong(changed(CANAL_JSON, tables=[table])).values()
    assert "has no column _tidb_rowid" in problem.reason


@pytest.mark.parametrize(("protocol", "refused"), [("flat-avro", True), ("debezium-avro", False)])
def test_the_plan_says_which_messages_cannot_carry_the_row_key(protocol: str, refused: bool) -> None:
    target = {
        "type": "kafka",
        "brokers": "b:1",
        "topic": "copy_{schema}_{table}",
        "protocol": protocol,
        "schema-registry": "http://127.0.0.1:8081",
    }
    plan = plan_of(right(changed(ROW_KEYS, target=target)), "app", SHAPE, types_from="ddl")
    assert ("flat-avro cannot carry them" in (plan.problem or "")) is refused
