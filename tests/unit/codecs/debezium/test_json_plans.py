"""What debezium-json's plans are made of, and what their decoder tells the driver; without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.spark.decoded import decode_here
from tests.unit.config.samples import FLAT_AVRO, right
from tests.worker_contexts import worker_context
from tidesink.codecs.compression import Compression, compressed
from tidesink.codecs.debezium.inference import (
    InferredColumn,
    LoneCodec,
    RowFacts,
    facts_of,
    first_row,
    inferred_column,
)
from tidesink.codecs.options import DebeziumOptions
from tidesink.config.models import Definition
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import ChangeEvent, Column, ColumnType, Message, TableId, TableSchema
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.decode.debezium_json import (
    JsonWriter,
    Place,
    Writers,
    debezium_json_plan,
    first_writer,
    writer_of,
)
from tidesink.sinks.decode.open import open_decoding
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings
from tidesink.sinks.decode.schema_source import declared_table
from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.worker.open_table import decoding_parts
from tidesink.typemap.projection import Projection, project

Json = dict[str, Any]
_TABLE: Final = TableId("shop", "t")
_SOURCE: Final = {"connector": "mysql", "db": "shop", "table": "t"}
_TYPES: Final = {"id": "int64", "n": "string", "N": "string", "new": "string", "s": "string", "wide": "int32"}


def _plain(row: Json | None, key: Json | None = None, **envelope: Any) -> Message:
    value = {"before": None, "after": row, "source": _SOURCE, "op": "c", **envelope}
    return _message(value, key)


def _message(value: Json | None, key: Json | None) -> Message:
    key_bytes, value_bytes = (
        None if one is None else json.dumps(one, separators=(",", ":")).encode() for one in (key, value)
    )
    return Message("app.shop.t", 0, 0, key_bytes, value_bytes)


def _struct(names: dict[str, Json], **members: Any) -> Json:
    fields = [{"field": name, "optional": True, **kind} for name, kind in names.items()]
    return {"type": "struct", "fields": fields, **members}


def _typed(row: Json, *, key: tuple[str, ...] = ("id",), op: str = "c", **more: Json) -> Message:
    """A record with its schema; ``more``: members of a column's schema, or of the source block."""
    source = {**_SOURCE, **more.pop("source", {})}
    kinds = {name: {"type": _TYPES[name], **more.get(name, {})} for name in row}
    image = _struct(kinds, optional=True)
    kind = {True: "int64", False: "string"}
    named = _struct({name: {"type": kind[isinstance(one, int)]} for name, one in source.items()})
    schema = {
        "type": "struct",
        "fields": [
            {**image, "field": "before"},
            {**image, "field": "after"},
            {**named, "field": "source"},
            {"field": "op", "type": "string"},
        ],
    }
    images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    value = {"schema": schema, "payload": {**images, "source": source, "op": op}}
    named_key = {name: row[name] for name in key}
    key_value = {"schema": _struct({name: kinds[name] for name in key}), "payload": named_key}
    return _message(value, key_value if key else None)


def _batch(*messages: Message, stamped: bool = True, spread: bool = False) -> pa.RecordBatch:
    """Records of one partition, or (``spread``) of one each; the greater the offset the older the record."""
    columns = {
        "topic": pa.array([one.topic for one in messages]),
        "partition": pa.array([at if spread else 0 for at in range(len(messages))], pa.int32()),
        "offset": pa.array(range(len(messages)), pa.int64()),
        "key": pa.array([one.key for one in messages], pa.binary()),
        "value": pa.array([one.value for one in messages], pa.binary()),
    }
    if stamped:
        columns["timestamp"] = pa.array([1000 - at for at in range(len(messages))], pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def _writers(*messages: Message, options: DebeziumOptions | None = None) -> Writers:
    rows = [first_row([one], options or DebeziumOptions()) for one in messages]
    return Writers().with_new(first_writer(one) for one in rows if one is not None)


def _rows(plan: DecodePlan, *messages: Message, **kind: bool) -> list[Json]:
    found = decode_here(plan, _batch(*messages, **kind))
    return [
        one.raw | {"key": one.key, "old_key": one.old_key, "after": one.after, "before": one.before}
        for one in found
    ]


def _learnt(
    writers: Writers, *messages: Message, spread: bool = False, definition: TableSchema | None = None
) -> Writers:
    """What a worker knows after it decoded these records."""
    for _ in range(5):
        plan = debezium_json_plan(_TABLE, writers, definition=definition)
        lacking = {text for row in _rows(plan, *messages, spread=spread) for text in row["_fields"] or ()}
        if not lacking:
            return writers
        writers = writers.with_new(map(writer_of, lacking), later=True)
    raise AssertionError("the tasks ask for ever more")


@pytest.mark.parametrize("make", [_plain, _typed])
def test_a_name_of_another_case_is_another_column_of_postgres(make: Callable[..., Message]) -> None:
    """However many of the rows are known at first: the second name may come in a later batch."""
    one, other, both = (
        _of(make, "postgresql", **row) for row in ({"n": "a"}, {"N": "b"}, {"n": "c", "N": "d"})
    )
    expected = [("a", None), (None, "b"), ("c", "d")]
    for known, messages in (([one], [one, other]), ([one, other], [one, other]), ([one], [one, other, both])):
        plan = debezium_json_plan(_TABLE, _learnt(_writers(*known), *messages))
        found = [(row["after"]["n"], row["after"]["N"]) for row in _rows(plan, *messages)]
        assert found == expected[: len(messages)]


@pytest.mark.parametrize("make", [_plain, _typed])
def test_a_name_of_another_case_is_the_same_column_of_mysql(make: Callable[..., Message]) -> None:
    one, other = (_of(make, "mysql", **row) for row in ({"n": "a"}, {"N": "b"}))
    plan = debezium_json_plan(_TABLE, _learnt(_writers(one), one, other))
    (name,) = {column.name for column in plan.shape.columns} - {"id"}
    assert [row["after"][name] for row in _rows(plan, one, other)] == ["a", "b"]


def _of(make: Callable[..., Message], connector: str, **columns: str) -> Message:
    """A record of a connector."""
    source = {"connector": connector, "schema": "shop"}
    if make is _typed:
        return _typed({"id": 1, **columns}, source=source)
    return _plain({"id": 1, **columns}, {"id": 1}, source={**_SOURCE, **source})


def test_a_told_column_comes_back_as_it_was() -> None:
    reported = InferredColumn(Column("c", ColumnType("enum", members=("a", "b")), default="a"), guessed=False)
    assert inferred_column(reported.text) == reported


def test_a_writer_comes_back_as_it_was() -> None:
    reported = InferredColumn(Column("c", ColumnType("enum", members=("a", "b")), default="a"), guessed=True)
    writer = JsonWriter((reported,), ("c",), bare=True, is_ticdc=True, place=Place(5, 6, 7))
    assert writer_of(writer.text) == writer
    assert writer_of(writer.text).place == writer.place


def test_columns_that_nothing_types_are_text() -> None:
    definition = TableSchema(_TABLE, (Column("id", ColumnType("bigint")),))
    found = first_row([_plain({"id": 1, "n": 1.5}, {"id": 1})], DebeziumOptions(), definition)
    assert found is not None
    assert [(one.column.name, one.column.type.name, one.guessed) for one in found.columns] == [
        ("id", "bigint", False),
        ("n", "text", True),
    ]
    assert (found.table, found.keys, found.flattened, found.bare) == (_TABLE, ("id",), False, True)


@pytest.mark.parametrize("kind", ["lz4", "snappy"])
def test_compressed_records_are_planned_and_read_as_plain_ones(kind: Compression) -> None:
    """No setting is needed: first record, writers' schemas and rows, all or some of them compressed."""
    plain = [
        _typed({"id": 1, "n": "a" * 99}),
        _typed({"id": 2, "n": None}),
        _typed({"id": 1, "n": ""}, op="d"),
    ]
    packed = [
        replace(one, key=compressed(one.key or b"", kind), value=compressed(one.value or b"", kind))
        for one in plain
    ]
    writers = _writers(*packed)
    assert writers == _writers(*plain)
    plan = debezium_json_plan(_TABLE, writers)
    assert _rows(plan, *packed) == _rows(plan, packed[0], *plain[1:]) == _rows(plan, *plain)


def test_flattened_rows_are_told() -> None:
    message = Message("app.shop.t", 0, 0, b'{"id":1}', b'{"id":1,"__op":"c"}')
    found = first_row([Message("app.shop.t", 0, 0, None, b"no JSON"), message], DebeziumOptions())
    assert found is not None
    assert found.flattened


def test_a_null_value_of_a_flattened_topic_is_a_delete() -> None:
    row, gone = _message({"id": "a", "__op": "c", "__table": "t", "__db": "shop"}, {"id": "a"}), None
    first = first_row([row], DebeziumOptions())
    assert first is not None
    plan = debezium_json_plan(first.table, _writers(row))
    found = _rows(plan, row, _message(gone, {"id": "a"}))
    assert [one["_kind"] for one in found] == ["upsert", "delete" if first.table.name else "bad"]


def test_a_null_value_among_envelopes_is_a_delete_where_the_option_says_so() -> None:
    """Compaction leaves nothing else of a delete (``sinks/kafka/compaction.py``)."""
    written, deleted = _typed({"id": 1, "n": "a"}), _typed({"id": 1, "n": "a"}, op="d")
    tombstone, writers = replace(deleted, value=None), _writers(written)
    plan = debezium_json_plan(_TABLE, writers)
    assert [one["_kind"] for one in _rows(plan, written, deleted, tombstone)] == [
        "upsert",
        "delete",
        "message",
    ]
    plan = debezium_json_plan(_TABLE, writers, options=DebeziumOptions(debezium_unwrapped=True))
    _, before, alone = _rows(plan, written, deleted, tombstone)
    assert (alone["_kind"], alone["key"]) == ("delete", before["key"])


def _text_plan() -> DecodePlan:
    definition = TableSchema(
        _TABLE, (Column("id", ColumnType("bigint"), handle=True), Column("n", ColumnType("text")))
    )
    return debezium_json_plan(_TABLE, Writers(), definition=definition)


def test_facts_about_a_record_are_with_its_event() -> None:
    codec = LoneCodec(DebeziumOptions(), None)
    events = [*codec.decode(_plain({"id": 1}, {"id": 1})), *codec.decode(_typed({"id": 1}))]
    schemas = [event.schema for event in events if isinstance(event, ChangeEvent) and event.schema]
    assert [facts_of(replace(schema)) for schema in schemas] == [
        RowFacts(bare=True, guessed=frozenset({"id"})),
        RowFacts(),
    ]


def test_a_row_without_a_schema_comes_in_the_shapes_columns() -> None:
    plan = _text_plan()
    first, second = _rows(plan, _plain({"n": "1.5", "id": 7}, {"id": 7}), _plain({"id": 7}, {"id": 7}))
    assert (first["_kind"], first["key"], first["after"]) == ("upsert", {"id": 7}, {"id": 7, "n": "1.5"})
    assert second["after"] == {"id": 7, "n": None}


def test_a_guessed_value_is_text() -> None:
    writers = _writers(_plain({"id": 7, "n": 1}, {"id": 7}))
    plan = debezium_json_plan(_TABLE, writers)
    values = [1, 1.5, "a", True, None]
    found = _rows(plan, *(_plain({"id": 7, "n": one}, {"id": 7}) for one in values))
    assert [row["after"]["n"] for row in found] == ["1", "1.5", "a", "true", None]
    assert {row["after"]["id"] for row in found} == {"7"}


def test_a_column_that_the_plan_lacks_is_told() -> None:
    (found,) = _rows(_text_plan(), _plain({"id": 7, "new": True}, {"id": 7}))
    assert found["_kind"] == "unplanned"
    (writer,) = map(writer_of, found["_fields"])
    assert [(one.column.name, one.guessed) for one in writer.columns] == [("id", False), ("new", True)]
    assert (writer.bare, writer.keys) == (True, ("id",))


def test_all_records_of_a_writer_tell_the_same_with_the_oldest_place() -> None:
    rows = _rows(_text_plan(), *(_typed({"id": n, "n": "a", "new": "b"}) for n in range(3)))
    (text,) = {text for row in rows for text in row["_fields"]}
    assert writer_of(text).place == Place(998, 2, 0)
    assert not writer_of(text).bare


def test_a_value_that_is_none_of_the_columns_is_a_bad_record() -> None:
    plan = debezium_json_plan(_TABLE, _writers(_typed({"id": 7, "n": "a"})))
    (found,) = _rows(plan, _plain({"id": "seven", "n": "a"}, {"id": "seven"}))
    assert (found["_kind"], found["_error"]) == ("bad", "SchemaMismatchError")
    assert "'id' is bigint" in found["_reason"]


def test_half_a_surrogate_pair_is_a_bad_record() -> None:
    (found,) = _rows(_text_plan(), _plain({"id": 7, "n": "\ud800"}, {"id": 7}))
    assert found["_kind"] == "bad"
    assert "n" in found["_reason"]


def test_a_row_from_before_a_column_has_its_default_and_one_after_it_has_none() -> None:
    messages = [
        _typed({"id": 3, "n": "c"}, n={"parameters": {"x": "y"}}, key=("id",)),
        _typed({"id": 2, "n": "b", "new": "given"}, new={"default": "filled"}),
        _typed({"id": 1}),
    ]
    first = _writers(replace(messages[-1], timestamp=998, partition=2, offset=2))
    writers = _learnt(first, *messages, spread=True)
    assert [len(one.columns) for one in writers.with_schema] == [1, 3, 2]
    plan = debezium_json_plan(_TABLE, writers)
    found = [row["after"]["new"] for row in _rows(plan, *messages, spread=True)]
    assert found == [None, "given", "filled"]
    assert plan.gone == {"new"}


def test_rows_before_a_column_have_its_default_after_a_failover() -> None:
    """The promoted server is at a binlog file of a lower number, also in rows of other partitions."""

    def at(file: int) -> Json:
        return {"file": f"mysql-bin.{file:06}", "pos": 4, "row": 0}

    old = _typed({"id": 1, "n": "a"}, source=at(500))
    new = [
        _typed({"id": 2, "n": "b", "new": "given"}, new={"default": "filled"}, source=at(n)) for n in (501, 3)
    ]
    with_old = _learnt(_writers(replace(old, timestamp=1)), old)
    # Read in one batch; and the new server's rows first.
    for known, messages in ((with_old, [old, *new]), (_learnt(with_old, old, new[1]), [old])):
        plan = debezium_json_plan(_TABLE, _learnt(known, *messages))
        assert _rows(plan, *messages)[0]["after"]["new"] == "filled"
    first, later = (
        replace(writer, source=source, place=Place(time, 7, partition))
        for writer, source, time, partition in zip(
            _learnt(with_old, old, new[1]).with_schema, ((500, 4), (3, 4)), (1, 2), (0, 1), strict=True
        )
    )
    plan = debezium_json_plan(_TABLE, Writers(with_schema=(first, later)))
    assert _rows(plan, old)[0]["after"]["new"] == "filled"


def test_rows_after_a_drop_have_null_where_the_first_columns_are_in_use_again() -> None:
    """ADD COLUMN new DEFAULT 'filled'; DROP COLUMN new: the last row has the first row's schema."""
    messages = [
        _typed({"id": 1, "n": "a"}),
        _typed({"id": 2, "n": "b", "new": "given"}, new={"default": "filled"}),
        _typed({"id": 3, "n": "c"}),
    ]
    stamped = [replace(one, timestamp=at, offset=at) for at, one in enumerate(messages)]
    plan = debezium_json_plan(_TABLE, _writers(*stamped[:2]))
    assert [row["after"]["new"] for row in _rows(plan, *messages)] == ["filled", "given", None]


def test_a_snapshot_knows_that_the_first_columns_are_in_use_again(tmp_path: Path) -> None:
    """Or it would wait for a row that shows the DROP, which has come already."""
    first, second = _typed({"id": 1, "n": "a"}), _typed({"id": 2, "n": "b", "new": "given"})
    sent = [replace(one, timestamp=at, offset=at) for at, one in enumerate((first, second, first))]
    config = right(FLAT_AVRO)
    config = config.model_copy(
        update={"source": config.source.model_copy(update={"protocol": "debezium-json"})}
    )
    source = KafkaSource(lambda wanted: iter([as_records(sent[wanted.start : wanted.end])]))
    around = replace(worker_context(config, cast("Any", None), tmp_path), source=source)
    decoding = open_decoding(decoding_parts(around), "app.shop.t", _TABLE)

    def ends(latest: int) -> TopicOffsets:
        return TopicOffsets("app.shop.t", "an id", {0: PartitionOffsets(0, latest)})

    decoding.prepare(ends(1))
    decoding.catch_up(None, ends(2))
    assert decoding.columns().gone == frozenset()
    decoding.catch_up(None, ends(3))
    assert decoding.columns().gone == {"new"}


def test_the_plan_does_not_depend_on_which_record_was_looked_at_first() -> None:
    messages = [_typed({"id": 2, "n": "b", "new": "x"}), _typed({"id": 1, "n": "a"})]
    stamped = [replace(one, timestamp=1000 - at, offset=at) for at, one in enumerate(messages)]
    plans = [debezium_json_plan(_TABLE, _learnt(_writers(first), *messages)) for first in stamped]
    first, second = (_rows(plan, *messages) for plan in plans)
    assert [row["after"] for row in first] == [row["after"] for row in second]
    assert plans[0].gone == plans[1].gone == frozenset()


def test_old_rows_tell_keys_where_debezium_does_not_split() -> None:
    keyed, other = _typed({"id": 1, "n": "a"}), {"connector": "TiCDC", "commit_ts": 5}
    ticdc = _typed({"id": 1, "n": "a"}, source=other)
    bare = _plain({"id": 1}, {"id": 1})

    def old_keys(*messages: Message, keys: tuple[str, ...] | None = None) -> bool:
        return debezium_json_plan(_TABLE, _writers(*messages), PlanSettings(keys=keys)).decoder.old_keys

    assert not old_keys(keyed)
    assert old_keys(keyed, keys=("id",))
    assert old_keys(bare)
    assert old_keys(_typed({"id": 1, "n": "a"}, key=()), keys=("id",))
    learnt = _learnt(_writers(keyed), ticdc)
    assert debezium_json_plan(_TABLE, learnt).decoder.old_keys


def test_a_change_of_another_table_is_bad_with_what_to_do() -> None:
    other = _typed({"id": 1}, source={"table": "other"})
    plan = debezium_json_plan(_TABLE, _writers(_typed({"id": 1})))
    (found,) = _rows(plan, other)
    assert (found["_kind"], found["_error"]) == ("bad", "SchemaMismatchError")
    assert "A Debezium topic must hold only one table: name that table under tables" in found["_reason"]


def test_a_type_that_no_type_holds_is_refused_by_the_plan() -> None:
    writers = _writers(_typed({"id": 1, "n": "a"}))
    (found,) = _rows(debezium_json_plan(_TABLE, writers), _typed({"id": 1, "n": 5}, n={"type": "int32"}))
    assert found["_kind"] == "unplanned"
    with pytest.raises(SchemaRefusedError, match="'n'"):
        debezium_json_plan(_TABLE, writers.with_new(map(writer_of, found["_fields"])))


def test_a_table_without_a_key_is_refused_but_for_its_log() -> None:
    writers = _writers(_typed({"id": 1}, key=()))
    with pytest.raises(ConfigError, match="have no key, so it is unknown"):
        debezium_json_plan(_TABLE, writers)
    assert debezium_json_plan(_TABLE, writers, PlanSettings(logs=True)).shape.keys == ()
    with pytest.raises(ConfigError, match="no record with a row of"):
        debezium_json_plan(_TABLE, Writers(), PlanSettings(keys=("id",)))


def test_a_bad_value_of_the_row_before_an_update_does_no_harm() -> None:
    good = _typed({"id": 1, "wide": 5})
    plan = debezium_json_plan(_TABLE, _writers(good))
    assert good.value is not None
    value = good.value.replace(b'"before":null', b'"before":{"id":1,"wide":99999999999}')
    (found,) = _rows(plan, replace(good, value=value.replace(b'"op":"c"', b'"op":"u"')))
    assert (found["_kind"], found["after"]) == ("upsert", {"id": 1, "wide": 5})


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("known", ["first", "all"])
def test_columns_that_differ_in_case_keep_their_own_values(typed: bool, known: str) -> None:
    """Whether the second one is known from the start or comes later; with and without schemas."""
    images: list[Json] = [{"id": 1, "n": "old"}, {"id": 1, "n": "lower", "N": "UPPER"}, {"id": 2, "N": "B"}]
    rows = [_typed(row) if typed else _plain(row, {"id": row["id"]}) for row in images]
    writers = _learnt(_writers(rows[0]) if known == "first" else _writers(*rows), *rows)
    plan = debezium_json_plan(_TABLE, writers)
    assert {column.name for column in plan.shape.columns} == {"id", "n", "N"}
    found = [row["after"] for row in _rows(plan, *rows)]
    assert [(row["n"], row["N"]) for row in found] == [("old", None), ("lower", "UPPER"), (None, "B")]


def test_one_of_two_columns_that_differ_in_case_is_left_out_or_renamed() -> None:
    rows = [_typed({"id": 1, "n": "lower", "N": "UPPER"})]
    plan = debezium_json_plan(_TABLE, _writers(*rows))
    for projection, expected in (
        (Projection(rename={"N": "upper"}), {"n": "lower", "upper": "UPPER"}),
        (Projection(except_columns=("n",)), {"N": "UPPER"}),
    ):
        laid = project(projection, plan.shape, own=())
        target = replace(plan, rows=replace(plan.rows, target=laid.shape, sources=laid.sources))
        (row,) = _rows(target, *rows)
        assert {name: row["after"][name] for name in expected} == expected
        assert len(row["after"]) == len(expected) + 1


@pytest.mark.parametrize("members", ["'new','paid'", "'new','paid','returned'"])
@pytest.mark.parametrize("typed", [True, False])
def test_a_label_that_the_definitions_enum_lacks_is_stored_as_the_source_sent_it(
    members: str, typed: bool
) -> None:
    """It is a text of the source's, in a column of text: a list that is behind changes no value of it."""
    sql = f"create table t (id bigint primary key, s enum({members}))"
    kind = {"name": "io.debezium.data.Enum", "parameters": {"allowed": "new,paid,returned"}}
    images = [{"id": 1, "s": "paid"}, {"id": 2, "s": "returned"}, {"id": 3, "s": ""}]
    rows = [_typed(row, s=kind) if typed else _plain(row, {"id": row["id"]}) for row in images]
    definition = declared_table(Definition(sql=sql), _TABLE)
    writers = _learnt(_writers(rows[0]), *rows, definition=definition)
    plan = debezium_json_plan(_TABLE, writers, definition=definition)
    assert plan.shape.by_name["s"].spark == "string"
    found = _rows(plan, *rows)
    assert [(row["_kind"], row["after"]) for row in found] == [("upsert", image) for image in images]
