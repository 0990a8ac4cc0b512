"""What ``plan`` makes of the sampled records of a topic, by the schema source of a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tests.unit.codecs.canal_json.messages import row_message
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right
from tidesink.cli.table_plans import Sample, TablePlan, _by_records, _canal_json, _flat_avro
from tidesink.cli.table_schemas import SampledRecords, SampledTopic
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.compression import compressed
from tidesink.config import Config
from tidesink.events import ChangeEvent, Message, TableId
from tidesink.schema_registry import MemorySchemaRegistry, subject
from tidesink.sinks.kafka.offsets import OffsetRange

T = TableId("s", "t")
TOPIC = "s_t"


def _canal(config: Config, *values: dict[str, Any] | bytes) -> list[TablePlan]:
    messages = [
        Message("app", 0, at, None, one if isinstance(one, bytes) else orjson.dumps(one), at)
        for at, one in enumerate(values)
    ]
    return list(_canal_json(config, Sample("app", 100, read=lambda *_, **__: iter(messages)), None))


BARE = row_message({"a": "1"}, pkNames=[], mysqlType={"a": "decimal"})


def test_a_table_without_a_key_is_shown_with_its_columns() -> None:
    (plan,) = _canal(right(CANAL_JSON), BARE)
    assert "keys: [...]" in (plan.problem or "")
    assert "mysqlType" in plan.warnings[0]
    assert ("no precision" in plan.columns[0].note, plan.types_from) == (True, "rows")
    (plan,) = _canal(right(changed(CANAL_JSON, tables=[{"name": "s.t", "keys": ["a"]}])), BARE)
    assert (plan.problem, plan.keys) == (None, ("a",))


def test_a_definition_gives_the_types() -> None:
    sql = "CREATE TABLE t (a DECIMAL(9,2) PRIMARY KEY)"
    (plan,) = _canal(right(changed(CANAL_JSON, tables=[{"name": "s.t", "definition": sql}])), BARE)
    assert (plan.types_from, plan.columns[0].target_type) == ("definition", "decimal(9,2)")


def test_a_record_that_cannot_be_decoded_hides_no_table() -> None:
    (plan,) = _canal(right(CANAL_JSON), row_message({"id": "1"}), b"{broken")
    assert "1 of the 2 sampled records cannot be decoded" in (plan.problem or "")
    assert plan.columns


def test_a_canal_json_table_has_the_columns_of_all_its_rows() -> None:
    other = row_message({"id": "1", "z": "1"}, table="u")
    plans = _canal(
        right(CANAL_JSON),
        row_message({"id": "1", "a": "x"}),
        other,
        row_message({"id": "2", "b": "x"}),
    )
    shown = {plan.table: [column.name for column in plan.columns] for plan in plans}
    assert shown == {T: ["id", "a", "b"], TableId("s", "u"): ["id", "z"]}


CREATED: dict[str, Any] = {
    **row_message({}, table="t"),
    **{"isDdl": True, "type": "CREATE", "sql": "CREATE TABLE t (id INT PRIMARY KEY)", "data": None},
}


def test_a_canal_json_table_has_the_columns_of_its_ddl_and_the_other_columns_of_its_rows() -> None:
    other = row_message({"id": "1"}, table="a")
    (_, plan) = _canal(right(CANAL_JSON), other, CREATED, row_message({"id": "1"}), row_message(BEYOND))
    assert (plan.types_from, [column.name for column in plan.columns]) == ("ddl", ["id", "b"])


BEYOND = {"id": "2", "b": "x"}


class _CountedRecords(SampledRecords):
    """Counts how often the records are read as they are stored."""

    reads = 0

    def as_stored(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        return super().as_stored(ranges)


@pytest.mark.parametrize(("rows", "reads"), [([{"id": "1"}], 0), ([{"id": "1"}, BEYOND], 2)])
def test_records_are_decoded_for_a_table_only_if_their_rows_have_a_column_that_the_plan_lacks(
    rows: list[dict[str, str]], reads: int
) -> None:
    codec, values = CanalJsonCodec(), [orjson.dumps(value) for value in (CREATED, *map(row_message, rows))]
    messages = [Message("app", 0, at, None, value, at) for at, value in enumerate(values)]
    changes = [event for message in messages for event in codec.decode(message)]
    schemas = [event.schema for event in changes if isinstance(event, ChangeEvent) and event.schema]
    topic = SampledTopic(right(CANAL_JSON), SampledRecords("app", messages))
    topic.read_ddl()
    records = _CountedRecords("app", messages, schemas=schemas)
    opened = topic.of_records(records).open(T)
    assert {column.name for column in opened.shape.columns} == {name for row in rows for name in row}
    assert records.reads == reads


def test_compressed_records_need_the_setting_of_their_changefeed() -> None:
    """A worker does not open them without the setting, although they show how they are compressed."""
    value = compressed(orjson.dumps(row_message({"id": "1"})), "lz4")
    (plan,) = _canal(right(CANAL_JSON), value)
    assert "large-message-handle-compression: lz4" in (plan.problem or "")
    (plan,) = _canal(right(changed(CANAL_JSON, source__large_message_handle_compression="lz4")), value)
    assert (plan.problem, plan.table, plan.keys) == (None, T, ("id",))


def _record(*names: str) -> str:
    fields = [{"name": name, "type": {"type": "int", "connect.parameters": INT}} for name in names]
    return json.dumps({"type": "record", "name": "t", "namespace": "default.s", "fields": fields})


INT = {"tidb_type": "INT"}


def _registered(keys: Sequence[str], values: Sequence[str], **settings: Any) -> TablePlan:
    registry = MemorySchemaRegistry()
    for text in keys:
        registry.register(subject(TOPIC, "key"), text)
    for text in values:
        registry.register(subject(TOPIC, "value"), text)
    return _flat_avro(right(changed(FLAT_AVRO, **settings)), registry, TOPIC, T)


def test_the_key_of_a_flat_avro_table_is_that_of_its_first_schema() -> None:
    """The target's table has this key. Records with another key are bad records."""
    plan = _registered([_record("a"), _record("a", "b")], [_record("a", "b")])
    assert (plan.keys, plan.problem) == (("a",), None)
    (warning,) = [text for text in plan.warnings if "are bad records" in text]
    assert "The key of the source table was changed" in warning
    newest = _registered([_record("a"), _record("a", "b")], [_record("a", "b")], defaults={"start": "latest"})
    assert newest.keys == ("a", "b")


def test_a_bad_schema_among_several_refuses_only_its_records() -> None:
    odd = json.dumps(
        {"type": "record", "name": "t", "namespace": "default.s", "fields": [{"name": "x", "type": "int"}]}
    )
    plan = _registered([_record("a")], [_record("a", "b"), odd])
    assert (plan.problem, [column.name for column in plan.columns]) == (None, ["a", "b"])
    (warning,) = [text for text in plan.warnings if "are bad records" in text]
    assert warning.startswith("Records whose value has the schema id")


def test_a_debezium_table_has_the_columns_of_all_schemas_that_its_records_have() -> None:
    def sent(at: int, **row: int) -> Message:
        value = {
            "before": None,
            "after": row,
            "op": "c",
            "source": {"connector": "mysql", "db": "s", "table": "t"},
        }
        return Message(TOPIC, 0, at, b'{"id":1}', orjson.dumps(value), at)

    messages = [sent(0, id=1, a=1), sent(1, id=2, b=1)]
    sql = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)"
    source = {"source__protocol": "debezium-json", "source__topics": "{schema}_{table}"}
    config = right(changed(CANAL_JSON, **source, tables=[{"name": "s.t", "definition": sql}]))
    plan = _by_records(config, None, Sample(TOPIC, 9, read=lambda *_, **__: iter(messages)), None)
    assert (plan.problem, [column.name for column in plan.columns]) == (None, ["id", "a", "b"])


def test_a_topic_whose_end_cannot_be_read_is_the_problem_of_its_table_alone() -> None:
    """Its first records have no types, and the brokers of the config do not answer."""
    source = {"connector": "mysql", "db": "s", "table": "t"}
    value = orjson.dumps({"before": None, "after": {"id": 1}, "op": "c", "source": source})
    messages = [Message(TOPIC, 0, at, b'{"id":1}', value, at) for at in range(2)]
    settings = {"source__protocol": "debezium-json", "source__topics": "{schema}_{table}"}
    config = right(changed(CANAL_JSON, source__brokers="none.invalid:1", **settings))
    plan = _by_records(config, None, Sample(TOPIC, 1, read=lambda *_, **__: iter(messages)), None)
    assert (plan.table, plan.columns) == (T, ())
    assert "No answer from" in (plan.problem or "")


@pytest.mark.parametrize(
    ("start", "types"),
    [
        ("latest", ["int", "bigint"]),
        ("1970-01-01T00:00:00.001Z", ["int", "bigint"]),
        ({0: 1}, ["int", "bigint"]),
        ("earliest", None),
        ({0: 0}, None),
    ],
)
def test_records_before_the_start_have_no_say(start: Any, types: list[str] | None) -> None:
    """They are not applied, and their columns are not used: the way past a change of type."""

    def sent(at: int, kind: str, value: object) -> Message:
        fields = [
            {"field": "id", "type": "int32", "optional": False},
            {"field": "a", "type": kind, "optional": True},
        ]
        struct = {"type": "struct", "name": "srv.s.t.Value", "optional": True, "fields": fields}
        parts = [{**struct, "field": "before"}, {**struct, "field": "after"}]
        envelope = {"type": "struct", "name": "srv.s.t.Envelope", "optional": False, "fields": parts}
        source = {"connector": "mysql", "db": "s", "table": "t"}
        payload = {"before": None, "after": {"id": 1, "a": value}, "op": "c", "source": source}
        key = {"schema": {"type": "struct", "fields": fields[:1], "optional": False}, "payload": {"id": 1}}
        whole = {"schema": envelope, "payload": payload}
        return Message(TOPIC, 0, at, orjson.dumps(key), orjson.dumps(whole), at)

    messages = [sent(0, "string", "x"), sent(1, "int64", 7)]
    source = {"source__protocol": "debezium-json", "source__topics": "{schema}_{table}"}
    config = right(changed(CANAL_JSON, **source, tables=[{"name": "s.t", "start": start}]))
    plan = _by_records(config, None, Sample(TOPIC, 9, read=lambda *_, **__: iter(messages)), None)
    if types is None:
        assert "no type holds both" in (plan.problem or "")
    else:
        assert (plan.problem, [column.target_type for column in plan.columns]) == (None, types)


@pytest.mark.parametrize(("start", "end", "offsets"), [(0, 9, [3, 5]), (4, 6, [5]), (6, 9, [])])
def test_a_range_of_a_sample_has_the_records_within(start: int, end: int, offsets: list[int]) -> None:
    plain = Message("t", 1, 5, None, b"x")
    records = SampledRecords("t", [plain, replace(plain, offset=3), plain])
    part = OffsetRange("t", 1, start, end)
    assert [message.offset for message in records.messages_here([part])] == offsets
    assert records.ranges() == (OffsetRange("t", 1, 3, 6),)
    assert records.ask([part], lambda batches: sum(batch.num_rows for batch in batches)) == [len(offsets)]
