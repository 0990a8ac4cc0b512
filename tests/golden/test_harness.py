"""What the golden tests make of records that the vectors at hand do not hold."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.golden.changefeeds import Json, lines
from tests.golden.debezium_captures import Capture
from tests.golden.test_canal_json import test_row_key_and_types_travel_in_the_extension as judge_row_key
from tests.golden.test_changefeed import test_a_row_goes_where_ticdc_sends_it as judge_route
from tests.golden.test_debezium_ticdc import test_json_rows_are_the_producers_bytes as judge_bytes
from tests.golden.test_debezium_ticdc import test_json_rows_are_what_tidb_held as judge_row
from tests.golden.test_debezium_ticdc_round_trip import test_json_rows as judge_round_trip
from tests.golden.test_flat_avro import test_a_row_decodes_to_what_tidb_held as judge_avro_row
from tests.golden.test_flat_avro import test_an_event_encodes_to_the_producers_bytes as judge_avro_bytes
from tests.golden.vectors import Record, VectorFolder, change_of
from tests.vectors import SUBSET
from tidesink.codecs import open_codec
from tidesink.codecs.base import EncodedRecord
from tidesink.codecs.compression import compressed, compression_of
from tidesink.codecs.options import CanalJsonOptions, DebeziumOptions, FlatAvroOptions
from tidesink.events import ChangeEvent
from tidesink.schema_registry import MemorySchemaRegistry

TICDC = SUBSET / "debezium-ticdc"
NAMES = ("id", "v", "created", "note")
SQL = {"id": "int(11)", "v": "varchar(20)", "created": "timestamp(3)", "note": "text"}
VALUES = {"id": "1", "v": "x", "created": "0000-00-00 00:00:00.000", "note": "n"}
DEBEZIUM = {
    "protocol": "debezium",
    "cluster-id": "default",
    "debezium-output-old-value": True,
    "enable-tidb-extension": True,
}
AVRO = {"protocol": "avro", "namespace": "default", "enable-tidb-extension": True}


def _event(**more: Any) -> Json:
    columns = [
        {
            "name": name,
            "type": SQL[name],
            "id": at,
            "is_key": name == "id",
            "flags": ["primary_key", "handle_key"] if name == "id" else ["nullable"],
            "value": VALUES[name],
        }
        for at, name in enumerate(NAMES, start=1)
    ]
    event = {"event": "own#0", "case": "own", "table": "test.t", "op": "insert", "commit_ts": 5 << 18}
    return {**event, "start_ts": 4 << 18, "ddl": [], "columns": columns, **more}


def _folder(path: Path, codec: str, config: Json, event: Json, written: EncodedRecord, **raw: Any) -> Record:
    """A folder of one record as the vectors have it."""
    halves = {
        f"{name}_b64": None if half is None else base64.b64encode(half).decode()
        for name, half in zip(("key", "value"), written, strict=True)
    }
    length = sum(len(half or b"") for half in written) + 36
    line = {"case": "own", "event": "own#0", "codec": codec, "topic": "t", "config": config, **halves, **raw}
    (path / "events.jsonl").write_text(json.dumps(event) + "\n")
    (path / f"{codec}.rows.jsonl").write_text(json.dumps({**line, "message_length": length}) + "\n")
    (record,) = VectorFolder(path).rows(codec)
    return record


def _change(event: Json) -> ChangeEvent:
    return change_of(event, producer="classic")


def _debezium(event: Json, **options: Any) -> EncodedRecord:
    codec = open_codec("debezium", options=DebeziumOptions(enable_tidb_extension=True, **options))
    found = codec.encode(_change(event), topic="t")
    assert found is not None
    return found


def _judge(record: Record, path: Path) -> None:
    folder = VectorFolder(path)
    judge_row(record, folder)
    judge_bytes(record)
    judge_round_trip(record, folder)


@pytest.mark.parametrize(
    ("rules", "selected"),
    [
        (
            [{"matcher": ["other.*"], "columns": ["id"]}, {"matcher": ["test.*"], "columns": ["id", "v"]}],
            "id v",
        ),
        ([{"matcher": ["*.*"], "columns": ["*", "!n?te"]}], "id v created"),
        (["*", "!V"], "id created note"),
        ("id, note", "id note"),
        ([{"matcher": ["other.*"], "columns": ["id"]}], "id v created note"),
    ],
)
def test_column_selectors_leave_their_columns(tmp_path: Path, rules: Any, selected: str) -> None:
    event = _event()
    kept = [one for one in event["columns"] if one["name"] in selected.split()]
    written = _debezium({**event, "columns": kept})
    record = _folder(tmp_path, "debezium", {**DEBEZIUM, "column-selectors": rules}, event, written)
    _judge(record, tmp_path)
    if len(kept) < len(NAMES):
        with pytest.raises(AssertionError):
            judge_row(replace(record, event=event), VectorFolder(tmp_path))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York"])
def test_a_zero_timestamp_is_the_epoch_in_the_changefeeds_zone(tmp_path: Path, zone: str) -> None:
    event = _event()
    record = _folder(tmp_path, "debezium", {**DEBEZIUM, "time-zone": zone}, event, _debezium(event))
    _judge(record, tmp_path)


@pytest.mark.parametrize("kind", ["lz4", "snappy"])
def test_compressed_records_are_judged_opened(tmp_path: Path, kind: Any) -> None:
    event, plain = _event(), _debezium(_event())
    written = EncodedRecord(*(compressed(half or b"", kind) for half in plain))
    config = {**DEBEZIUM, "large-message-handle-compression": kind}
    record = _folder(tmp_path, "debezium", config, event, written)
    assert compression_of(record.message.key or b"") == kind
    _judge(record, tmp_path)
    half = _folder(tmp_path, "debezium", config, event, EncodedRecord(plain.key, written.value))
    with pytest.raises(AssertionError):
        judge_bytes(half)


def _avro(path: Path, event: Json, config: Json, **changed: Any) -> Record:
    registry = MemorySchemaRegistry()
    options = FlatAvroOptions(
        enable_tidb_extension=True,
        row_checksum="integrity-check-level" in config,
        avro_decimal_handling_mode="string",
        avro_bigint_unsigned_handling_mode="string",
    )
    codec = open_codec("avro", registry=registry, options=options)
    written = codec.encode(_change(event)._replace(**changed), topic="t")
    assert written is not None
    ids = [int.from_bytes((half or b"")[1:5], "big") for half in written]
    parts = dict(zip(("key", "value"), ids, strict=True))
    schemas = [{"id": one, "schema": registry.schema_by_id(one)} for one in ids]
    (path / "schemas.jsonl").write_text("\n".join(map(json.dumps, schemas)))
    modes = {"avro-decimal-handling-mode": "string", "avro-bigint-unsigned-handling-mode": "string"}
    raw: dict[str, Any] = {f"{part}_schema_id": found for part, found in parts.items()}
    raw |= {f"{part}_subject": f"t-{part}" for part in parts}
    return _folder(path, "avro", {**config, **modes}, event, written, **raw)


def test_a_row_without_a_checksum_has_the_extensions_defaults(tmp_path: Path) -> None:
    config = {**AVRO, "integrity-check-level": "correctness"}
    names = ("_tidb_row_level_checksum", "_tidb_corrupted", "_tidb_checksum_version")
    for values, is_right in ((("", False, 0), True), (("7", False, 2), False)):
        extension = dict(zip(names, values, strict=True))
        record = _avro(tmp_path, _event(), config, extension=extension)
        folder = VectorFolder(tmp_path)
        for judge in (judge_avro_row, judge_avro_bytes):
            if is_right:
                judge(record, folder)
            else:
                with pytest.raises(AssertionError):
                    judge(record, folder)


def test_a_renamed_table_keeps_its_old_record_under_a_fixed_topic(tmp_path: Path) -> None:
    event = _event(table="test.t_new", ddl=["rename table test.t to test.t_new"])
    record = _avro(tmp_path, event, AVRO, table=_change(_event()).table)
    folder = VectorFolder(tmp_path)
    judge_avro_row(record, folder)
    judge_avro_bytes(record, folder)
    other = replace(record, event={**event, "ddl": []})
    with pytest.raises(AssertionError):
        judge_avro_row(other, folder)


@pytest.mark.parametrize(
    ("digits", "other"),
    [
        ("7480000000000000685f728000000000000001", "7480000000000000685f728000000000000002"),
        ("7480000000000000c45f72010041004200430000fd", "7480000000000000c45f728000000000000002"),
    ],
)
def test_a_row_key_is_a_row_id_or_a_clustered_key(tmp_path: Path, digits: str, other: str) -> None:
    options = CanalJsonOptions(enable_tidb_extension=True, output_row_key=True)
    config = {"protocol": "canal-json", "enable-tidb-extension": True, "output-row-key": True}
    event = _event(row_key_hex=digits)
    extension = {"_tidb": {"rowkey": base64.b64encode(bytes.fromhex(digits)).decode()}}
    written = open_codec("canal-json", options=options).encode(
        _change(event)._replace(extension=extension), topic="t"
    )
    assert written is not None
    record = _folder(tmp_path, "canal-json", config, event, written)
    judge_row_key(record)
    with pytest.raises(AssertionError):
        judge_row_key(replace(record, event={**event, "row_key_hex": other}))


def test_a_route_that_ticdc_refuses_is_refused() -> None:
    _, line = next(one for one in lines(SUBSET, "route.jsonl") if one[1].get("columns"))
    gone = "[sink]\ndispatchers=[{matcher=['*.*'],partition='columns',columns=['gone']}]\n"
    judge_route({**line, "changefeed_toml": gone, "error": "column not found"})
    with pytest.raises(pytest.fail.Exception):
        judge_route({**line, "error": "nothing is wrong"})


def _postgres_capture(path: Path, value: Json, **properties: str) -> Capture:
    """A record of plain JSON in the table p_num, from a connector with these properties."""
    connector = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        **properties,
    }
    (path / "connectors.json").write_text(json.dumps({"own": connector}))
    halves = {
        f"{name}_b64": base64.b64encode(json.dumps(half).encode()).decode()
        for name, half in (("key", {"id": 1}), ("value", value))
    }
    line = {"topic": "own.lab.p_num", "partition": 0, "offset": 0, "headers": [], "timestamp": 1, **halves}
    (path / "own.jsonl").write_text(json.dumps(line) + "\n")
    return Capture(path / "own.jsonl")


def test_decimals_of_a_plain_capture_in_double_mode_are_doubles(tmp_path: Path) -> None:
    source = {"connector": "postgresql", "name": "own", "schema": "lab", "table": "p_num", "lsn": 1}
    row = {"id": 1, "n10_2": 12.5, "n38_10": 0.1}
    value = {"before": None, "after": row, "source": source, "op": "c", "ts_ms": 1}
    (event,) = _postgres_capture(tmp_path, value, **{"decimal.handling.mode": "double"}).events()
    assert isinstance(event, ChangeEvent)
    assert event.after == row
    assert event.schema is not None
    assert event.schema.by_name["n10_2"].type.name == "double"
    (exact,) = _postgres_capture(tmp_path, value).events()
    assert isinstance(exact, ChangeEvent)
    assert exact.schema is not None
    assert exact.schema.by_name["n10_2"].type.name == "decimal"


def test_an_unwrapped_capture_has_no_op(tmp_path: Path) -> None:
    unwrap = {"transforms.own.type": "io.debezium.transforms.ExtractNewRecordState"}
    capture = _postgres_capture(tmp_path, {"id": 1, "i": 2, "__deleted": "false"}, **unwrap)
    assert capture.is_unwrapped
    (event,) = capture.events()
    assert isinstance(event, ChangeEvent)
    assert event.after == {"id": 1, "i": 2}
    assert "op" not in (event.extension or {})
