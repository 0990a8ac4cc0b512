"""``decode_batch`` over TiCDC's own canal-json equals the row codec; no usual row is left to it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.decoded_batches import as_records, assert_same
from tests.golden.large_messages import large_of, plain
from tests.golden.vectors import Record, Workload, find_folders, schema_of
from tests.vectors import vectors_dir
from tidesink.codecs.batch import DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import Message
from tidesink.typemap.table import ZeroDate

# Too large for Kafka, so cut down to the handle key, and files of several messages.
_SENT_OTHERWISE = (b'onlyHandleKey":true', b'claimCheckLocation"')


def _both(messages: Iterable[Message], codec: CanalJsonCodec, reference: CanalJsonCodec) -> DecodedBatch:
    records = as_records(messages)
    found = codec.decode_batch(records)
    assert_same(found, rows_from_events(records, reference.decode, ValueOptions()))
    return found


def _is_unusual(record: Record) -> bool:
    """Whether a record has no value, a part of the row, or several messages."""
    value = plain(record.message.value or b"")
    return not value or any(sign in value for sign in _SENT_OTHERWISE) or value.strip().count(b"\n") > 0


def _definitions(records: Iterable[Record], source: str) -> TableDefinitions:
    definitions = TableDefinitions()
    for event in (one.event for one in records if one.event is not None):
        if source == "definition":
            definitions.put(schema_of({**event, **event.get("rows", [{}])[0]}))
        for statement in event["ddl"] if source == "ddl" else ():
            definitions.apply(statement, "test")
    return definitions


@pytest.mark.parametrize("source", ["message", "ddl", "definition"])
def test_all_rows_of_a_producer_at_once(pytestconfig: pytest.Config, source: str) -> None:
    """Over one hundred tables in one batch, with every option; the row codec gets the unusual rows alone."""
    for folder in find_folders(vectors_dir(pytestconfig)):
        records = folder.rows("canal-json")
        codecs = [CanalJsonCodec(definitions=_definitions(records, source)) for _ in range(2)]
        found = _both((one.message for one in records), *codecs)
        usual = [one for one in records if not _is_unusual(one)]
        assert found.row_by_row_records == len(records) - len(usual) + _refused_values(found, usual)


def _refused_values(found: DecodedBatch, usual: Iterable[Record]) -> int:
    """Usual rows with a value that the definition at hand does not hold: tables of one name have several."""
    lines = {one.message.offset for one in usual}
    return sum(one.error.context["offset"] in lines for one in found.faults)


def test_what_large_messages_leave_out(pytestconfig: pytest.Config) -> None:
    for folder in find_folders(vectors_dir(pytestconfig)):
        for record in filter(_is_unusual, folder.rows("canal-json")):
            codecs = [
                CanalJsonCodec(definitions=_definitions([record], "ddl"), large=large_of(record))
                for _ in range(2)
            ]
            assert _both([record.message], *codecs).row_by_row_records == 1


def test_all_control_events_of_a_producer_at_once(pytestconfig: pytest.Config) -> None:
    for folder in find_folders(vectors_dir(pytestconfig)):
        _both((one.message for one in folder.control("canal-json")), CanalJsonCodec(), CanalJsonCodec())


@pytest.mark.golden_workload("canal-json")
@pytest.mark.parametrize("size", [10_000, 300, 7])
def test_a_whole_changefeed_in_batches(workload: Workload, size: int) -> None:
    """The topic's own DDL types the columns, in the middle of batches too."""
    messages, codec, reference = list(workload.messages()), CanalJsonCodec(), CanalJsonCodec()
    # Small batches are many: a part of the feed is enough.
    for start in range(0, min(len(messages), 20 * size), size):
        found = _both(messages[start : start + size], codec, reference)
        assert found.row_by_row_records == len(found.events)
    assert codec.unread_ddl == reference.unread_ddl


@pytest.mark.golden_workload("canal-json")
def test_dates_and_times_by_policy_and_zone(workload: Workload) -> None:
    records = as_records(workload.messages())
    zones: dict[ZeroDate, str] = {"error": "Europe/Berlin", "text": "Asia/Kathmandu"}
    for zero_date, zone in zones.items():
        options = CanalJsonOptions(time_zone=zone)
        codec, reference = CanalJsonCodec(options=options), CanalJsonCodec(options=options)
        found = codec.decode_batch(records, zero_date=zero_date)
        assert_same(found, rows_from_events(records, reference.decode, ValueOptions(zero_date, zone)))
