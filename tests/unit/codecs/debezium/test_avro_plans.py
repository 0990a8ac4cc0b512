"""Which debezium-avro records a plan knows, and what it makes of old rows; without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.spark.debezium_versions import TABLE, Version, Versions, framed
from tests.spark.decoded import decode_here
from tidesink.codecs.debezium.remarks import ROUTED
from tidesink.errors import ConfigError
from tidesink.events import Message
from tidesink.sinks.decode.debezium_avro import DebeziumAvroDecoder, debezium_avro_plan
from tidesink.sinks.decode.debezium_changes import DatabaseFacts
from tidesink.sinks.decode.plans import DEFAULT_SETTINGS, DecodePlan, PlanSettings, SubjectSchemas
from tidesink.source_database.base import ReplicaIdentity

Json = dict[str, Any]
_TEXT: Final = ["null", "string"]
_HEARTBEAT: Final = {"type": "record", "name": "Heartbeat", "fields": [{"name": "ts_ms", "type": "long"}]}
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _rows(plan: DecodePlan, *messages: Message) -> list[Json]:
    columns = {
        "topic": pa.array([one.topic for one in messages]),
        "partition": pa.array([0] * len(messages), pa.int32()),
        "offset": pa.array(range(len(messages)), pa.int64()),
        "key": pa.array([one.key for one in messages], pa.binary()),
        "value": pa.array([one.value for one in messages], pa.binary()),
        "headers": pa.array([[{"key": "__op", "value": b"d"}]] * len(messages), _HEADERS),
    }
    found = decode_here(plan, pa.RecordBatch.from_pydict(columns))
    return [
        one.raw | {"key": one.key, "old_key": one.old_key, "after": one.after, "before": one.before}
        for one in found
    ]


def _plan(
    topic: Versions,
    settings: PlanSettings = DEFAULT_SETTINGS,
    *,
    identity: ReplicaIdentity | None = None,
    **schemas: Any,
) -> DecodePlan:
    known = SubjectSchemas(topic.key_texts, {**topic.texts, 50: json.dumps(_HEARTBEAT)})
    return debezium_avro_plan(
        TABLE, replace(known, **schemas), settings, database=DatabaseFacts(identity=identity)
    )


@pytest.fixture
def topic() -> Versions:
    """One row of one schema."""
    found = Versions(Version({"a": _TEXT, "b": _TEXT}))
    found.send(100, {"a": "x", "b": "y"})
    return found


def _of_new_key(message: Message) -> Message:
    return replace(message, key=b"\0" + (999).to_bytes(4, "big") + b"\2")


def test_a_row_with_a_new_id_is_unplanned_and_one_looked_up_in_vain_is_bad(topic: Versions) -> None:
    (row,) = topic.messages
    (found,) = _rows(_plan(topic), _of_new_key(row))
    assert (found["_kind"], found["_schema_key_id"], found["_schema_value_id"]) == ("unplanned", 999, 100)
    (found,) = _rows(_plan(topic, unknown={999: "no such id"}), _of_new_key(row))
    assert (found["_kind"], found["_error"]) == ("bad", "SchemaNotFoundError")
    assert found["_reason"] == "key: no such id"


def test_what_changes_no_row_needs_no_known_key(topic: Versions) -> None:
    (row,) = topic.messages
    beat = replace(row, value=framed(50, _HEARTBEAT, {"ts_ms": 1}))
    found = _rows(_plan(topic), *map(_of_new_key, (beat, replace(row, value=None), beat)))
    assert [one["_kind"] for one in found] == ["message"] * 3


def test_a_bad_value_is_bad_whatever_its_key(topic: Versions) -> None:
    (row,) = topic.messages
    (found,) = _rows(_plan(topic), _of_new_key(replace(row, value=b"no header")))
    assert (found["_kind"], found["_error"]) == ("bad", "FramingError")


def _with_before(topic: Versions, before: Json, connector: str) -> Message:
    row = {"id": 1, "a": "x", "b": "y"}
    source = {"connector": connector, "db": "lab", "schema": "lab", "table": "t"}
    record = {"before": before, "after": row, "source": source, "op": "u"}
    value = framed(100, json.loads(topic.texts[100]), record)
    return replace(topic.messages[0], key=topic.messages[0].key, value=value)


@pytest.mark.parametrize(
    ("connector", "before", "expected", "kept"),
    [
        ("postgresql", {"id": 1, "a": None, "b": None}, None, None),
        ("mysql", {"id": 1, "a": None, "b": None}, {"id": 1, "a": None, "b": None}, None),
        ("postgresql", {"id": 1, "a": "o", "b": None}, {"id": 1, "a": "o", "b": None}, None),
        (
            "postgresql",
            {"id": 1, "a": "o", "b": "__debezium_unavailable_value"},
            {"id": 1, "a": "o", "b": None},
            ["b"],
        ),
    ],
)
def test_old_rows_that_have_their_key_alone_are_none(
    topic: Versions, connector: str, before: Json, expected: Json | None, kept: list[str] | None
) -> None:
    (found,) = _rows(_plan(topic, PlanSettings(logs=True)), _with_before(topic, before, connector))
    assert (found["before"], found["_before_kept"], found["_change"]) == (expected, kept, "update")


def test_old_rows_tell_keys_where_the_key_is_the_configs_or_ticdcs(topic: Versions) -> None:
    assert not _plan(topic).decoder.old_keys
    assert _plan(topic, PlanSettings(keys=("a",))).decoder.old_keys
    ticdc = Versions(Version({"a": _TEXT}, kinds={"commit_ts": "long"}))
    assert _plan(ticdc).decoder.old_keys
    (found,) = _rows(
        _plan(topic, PlanSettings(keys=("a",))),
        _with_before(topic, {"id": 1, "a": "was", "b": None}, "mysql"),
    )
    assert (found["key"], found["old_key"]) == ({"a": "x"}, {"a": "was"})


def test_a_delete_that_shows_another_replica_identity_than_its_key_is_refused() -> None:
    topic = Versions(Version({"mail": "string", "b": _TEXT}))
    topic.send(100, {"mail": "m", "b": "y"})
    source = {"connector": "postgresql", "db": "lab", "schema": "lab", "table": "t"}
    columns = frozenset({"id", "mail", "b"})

    def kind(before: Json, *, sent: str | None = None, keys: tuple[str, ...] | None = None) -> str:
        identity = None if sent is None else ReplicaIdentity(frozenset({sent}), columns)
        plan = _plan(topic, PlanSettings(keys=keys), identity=identity)
        record = {"before": before, "after": None, "source": source, "op": "d"}
        value = framed(100, json.loads(topic.texts[100]), record)
        ((number, text),) = topic.key_texts.items()
        key = framed(number, json.loads(text), {"id": before["id"]})
        (found,) = _rows(plan, replace(topic.messages[0], key=key, value=value))
        return str(found["_kind"])

    assert kind({"id": 0, "mail": "a@b", "b": None}) == "bad"
    assert kind({"id": 0, "mail": "a@b", "b": None}, keys=("id",)) == "delete"
    assert kind({"id": 0, "mail": "a@b", "b": None}, sent="id") == "delete"
    assert kind({"id": 5, "mail": "", "b": None}, sent="mail") == "bad"
    assert kind({"id": 0, "mail": "a@b", "b": "y"}) == "delete"  # REPLICA IDENTITY FULL
    assert kind({"id": 0, "mail": "", "b": None}) == "delete"
    assert kind({"id": 5, "mail": "a@b", "b": None}) == "delete"


def test_a_table_without_a_key_is_refused_but_for_its_log(topic: Versions) -> None:
    with pytest.raises(ConfigError, match="have no key, so it is unknown"):
        _plan(topic, keys={})
    assert _plan(topic, PlanSettings(logs=True), keys={}).shape.keys == ()
    with pytest.raises(ConfigError, match="no schema of a row in the registry yet"):
        _plan(topic, PlanSettings(keys=("id",)), keys={}, values={})


def test_rows_of_routed_tables_are_kept_apart_by_the_field_of_their_key() -> None:
    topic = Versions(Version({"a": _TEXT}))
    topic.send(100, {"a": "x"})
    (row,) = topic.messages
    fields = [{"name": "id", "type": "long"}, {"name": ROUTED, "type": "string"}]
    key = {"type": "record", "name": "Key", "fields": fields}
    keyed = [
        replace(row, offset=at, key=framed(7, key, {"id": 0, ROUTED: name}))
        for at, name in enumerate(("app.t_1", "app.t_2"))
    ]
    plan = debezium_avro_plan(TABLE, SubjectSchemas({7: json.dumps(key)}, topic.texts))
    assert set(plan.rows.keys) == {"id", ROUTED}
    assert isinstance(plan.decoder, DebeziumAvroDecoder)
    assert plan.decoder.added == {ROUTED}
    found = _rows(plan, *keyed)
    assert [one["after"] for one in found] == [
        {"id": 0, "a": "x", ROUTED: name} for name in ("app.t_1", "app.t_2")
    ]


def test_a_schema_with_a_name_that_is_not_known_is_refused_with_its_column() -> None:
    topic = Versions(Version({"a": ["null", {"type": "long", "connect.name": "io.debezium.time.Future"}]}))
    topic.send(100, {"a": 1})
    (found,) = _rows(_plan(topic), *topic.messages)
    assert found["_kind"] == "bad"
    assert "'a'" in found["_reason"]
    assert "io.debezium.time.Future" in found["_reason"]
