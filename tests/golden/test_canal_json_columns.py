"""``decode_batch`` over TiCDC's own canal-json equals the row codec; no usual row is left to it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.decoded_batches import as_records, assert_same
from tests.golden.large_messages import large_of
from tests.golden.vectors import Record, Workload, find_folders, schema_of
from tests.vectors import vectors_dir
from tidesink.change import Message
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.batch import DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.canal_json import CanalJsonCodec
from tidesink.typemap.ddl import TableDefinitions

# Too large for Kafka, so cut down to the handle key, and files of several messages.
_SENT_OTHERWISE = (b'onlyHandleKey":true', b'claimCheckLocation"')


def _both(messages: Iterable[Message], codec: CanalJsonCodec, reference: CanalJsonCodec) -> DecodedBatch:
    records = as_records(messages)
    found = codec.decode_batch(records)
    assert_same(found, rows_from_events(records, reference.decode, ValueOptions()))
    return found


@pytest.mark.golden("canal-json", "rows")
def test_a_record_alone(record: Record) -> None:
    """With the definitions and whatever else its options make it need."""
    codecs = [CanalJsonCodec(definitions=_definitions(record), large=large_of(record)) for _ in range(2)]
    found = _both([record.message], *codecs)
    assert found.row_codec_records == _is_unusual(record)


def _definitions(record: Record) -> TableDefinitions:
    definitions = TableDefinitions()
    if record.event is None:
        return definitions
    if record.line % 2:
        definitions.put(schema_of({**record.event, **record.event.get("rows", [{}])[0]}))
        return definitions
    for statement in record.event["ddl"]:
        definitions.apply(statement, "test")
    return definitions


def _is_unusual(record: Record) -> bool:
    """Whether a record has no value, a part of the row, several messages, or a value TiCDC never made."""
    value = CanalJsonCodec()._large.plain(record.message.value or b"") or record.message.value or b""
    return not value or any(sign in value for sign in _SENT_OTHERWISE) or value.strip().count(b"\n") > 0


@pytest.mark.parametrize("kind", ["rows", "control"])
def test_all_records_of_a_producer_at_once(pytestconfig: pytest.Config, kind: str) -> None:
    """Over one thousand forms of tables beside each other in one batch."""
    for folder in find_folders(vectors_dir(pytestconfig)):
        records = getattr(folder, kind)("canal-json")
        _both((one.message for one in records), CanalJsonCodec(), CanalJsonCodec())


@pytest.mark.golden_workload("canal-json")
@pytest.mark.parametrize("size", [10_000, 300, 7])
def test_a_whole_changefeed_in_batches(workload: Workload, size: int) -> None:
    """The topic's own DDL types the columns, in the middle of batches too."""
    messages, codec, reference = list(workload.messages()), CanalJsonCodec(), CanalJsonCodec()
    # Small batches are many: a part of the feed is enough.
    for start in range(0, min(len(messages), 20 * size), size):
        found = _both(messages[start : start + size], codec, reference)
        assert found.row_codec_records == len(found.events)
    assert codec.unread_ddl == reference.unread_ddl


@pytest.mark.golden_workload("canal-json")
def test_dates_and_times_by_policy_and_zone(workload: Workload) -> None:
    records = as_records(workload.messages())
    for zero_date, zone in (("error", "Europe/Berlin"), ("text", "Asia/Kathmandu")):
        options = CodecOptions(time_zone=zone)
        codec, reference = CanalJsonCodec(options=options), CanalJsonCodec(options=options)
        found = codec.decode_batch(records, zero_date=zero_date)  # type: ignore[arg-type]
        assert_same(found, rows_from_events(records, reference.decode, ValueOptions(zero_date, zone)))  # type: ignore[arg-type]
