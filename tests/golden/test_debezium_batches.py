"""``decode_batch`` of both Debezium codecs over all public vectors: equal to the row path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records, assert_same
from tests.golden.debezium_captures import Capture
from tests.golden.each_capture import each_capture
from tests.golden.test_debezium_ticdc import _definitions
from tests.golden.vectors import Record, VectorFolder, change_of, find_folders
from tests.vectors import vectors_dir
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.codecs.batch import DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.options import DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, Message, Op
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.typemap.table import ZeroDate

_POLICIES: Final[tuple[ZeroDate, ...]] = ("null", "error", "text")
_CODECS: Final = {"debezium": "debezium-json", "debezium-avro": "debezium-avro"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    each_capture(metafunc, name="capture", kind=lambda _: True)
    each_capture(metafunc, name="with_schemas", kind=lambda one: one.name.endswith(("_schema", "_avro")))


def _held(
    codec: Codec,
    reference: Codec,
    messages: Iterable[Message],
    zero_date: ZeroDate,
    zone: str = "UTC",
) -> DecodedBatch:
    """The batch, held to the row path of another codec like it."""
    records = as_records(messages)
    found = codec.decode_batch(records, zero_date=zero_date)
    assert_same(found, rows_from_events(records, reference.decode, ValueOptions(zero_date, zone)))
    return found


@pytest.mark.parametrize("zero_date", _POLICIES)
def test_a_capture_is_what_the_row_path_gives(capture: Capture, zero_date: ZeroDate) -> None:
    _held(capture.codec(), capture.codec(), capture.messages, zero_date)


def test_rows_of_captures_are_read_in_columns(with_schemas: Capture) -> None:
    """Only what is no row, TRUNCATE, and in Avro the values of arrays are left to the row codec."""
    codec = with_schemas.codec()
    for message in with_schemas.messages:
        events = codec.decode(message)
        rows = [one for one in events if isinstance(one, ChangeEvent) and one.op is not Op.TRUNCATE]
        arrays = with_schemas.is_avro and message.topic.endswith(("p_arr", "p_toast", "p_toast_full"))
        if rows and not arrays:
            batch = codec.decode_batch(as_records([message]))
            assert batch.row_by_row_records == 0, message


def test_batches_of_any_cut_are_equal(with_schemas: Capture) -> None:
    """One codec over batches of seven records, so that it knows schemas from the batches before."""
    codec, reference = with_schemas.codec(), with_schemas.codec()
    messages = list(with_schemas.messages)
    for start in range(0, len(messages), 7):
        _held(codec, reference, messages[start : start + 7], "null")


def test_a_part_of_a_batch_is_read_where_it_stands(with_schemas: Capture) -> None:
    """Sliced arrays, whose first value is not their buffers' first, and those of long offsets."""
    whole = as_records(with_schemas.messages)
    for kind in (pa.binary(), pa.large_binary()):
        columns = {name: whole[name] for name in whole.schema.names}
        columns |= {name: whole[name].cast(kind) for name in ("key", "value")}
        part = pa.record_batch(columns).slice(5, len(whole) - 9)
        reference = rows_from_events(part, with_schemas.codec().decode, ValueOptions())
        assert_same(with_schemas.codec().decode_batch(part), reference)


def _folders(config: pytest.Config) -> list[VectorFolder]:
    return list(find_folders(Path(vectors_dir(config))))


def _ticdc(
    record: Record, folder: VectorFolder, definitions: TableDefinitions | None = None, zone: str = "UTC"
) -> Codec:
    return open_codec(
        _CODECS[record.raw["codec"]],
        registry=MemorySchemaRegistry(folder.schemas),
        definitions=definitions,
        options=DebeziumOptions(time_zone=zone),
    )


@pytest.mark.parametrize("codec", sorted(_CODECS))
@pytest.mark.parametrize("zero_date", _POLICIES)
def test_ticdcs_records_are_what_the_row_path_gives(
    codec: str, zero_date: ZeroDate, pytestconfig: pytest.Config
) -> None:
    for folder in _folders(pytestconfig):
        records = [*folder.rows(codec), *folder.control(codec)]
        if records:
            mine, theirs = (_ticdc(records[0], folder) for _ in range(2))
            _held(mine, theirs, [one.message for one in records], zero_date)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai"])
@pytest.mark.parametrize("codec", sorted(_CODECS))
def test_ticdcs_rows_with_definitions_are_what_the_row_path_gives(
    codec: str, zone: str, pytestconfig: pytest.Config
) -> None:
    for folder in _folders(pytestconfig):
        cases: dict[str, list[Record]] = defaultdict(list)
        for record in folder.rows(codec):
            if record.message.value is not None and record.event is not None:
                cases[str(change_of(record.event, producer="classic").schema)].append(record)
        for records in cases.values():
            assert records[0].event is not None
            schema = change_of(records[0].event, producer="classic").schema
            assert schema is not None
            definitions = _definitions(schema, is_json=codec == "debezium")
            mine, theirs = (_ticdc(records[0], folder, definitions, zone) for _ in range(2))
            _held(mine, theirs, [one.message for one in records], "null", zone)
