"""``decode_batch`` over the producer's own bytes: as the row path has them, and proven in columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.decoded_batches import as_records, assert_same
from tests.golden.vectors import Record, VectorFolder, Workload, find_folders
from tests.vectors import vectors_dir
from tidesink.codecs.batch import ValueOptions, rows_from_events
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import FlatAvroOptions
from tidesink.events import DdlEvent
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.typemap.table import ZeroDate


def _streams(root: Path) -> Iterator[tuple[VectorFolder, list[Record]]]:
    """The records that each configuration of a changefeed wrote, rows and control events."""
    for folder in find_folders(root):
        streams = defaultdict(list)
        for record in (*folder.rows("avro"), *folder.control("avro")):
            if not record.raw.get("error"):
                streams[str(sorted(record.config.items()))].append(record)
        yield from ((folder, records) for records in streams.values())


@pytest.mark.parametrize("zero_date", ["null", "text", "error"])
def test_a_batch_of_each_configuration_is_as_its_records_one_by_one(
    pytestconfig: pytest.Config, zero_date: ZeroDate
) -> None:
    count = 0
    for folder, records in _streams(vectors_dir(pytestconfig)):
        codec = FlatAvroCodec(
            registry=MemorySchemaRegistry(folder.schemas), options=records[0].options_of(FlatAvroOptions)
        )
        batch = as_records(record.message for record in records)
        found = codec.decode_batch(batch, zero_date=zero_date)
        options = ValueOptions(zero_date, records[0].options_of(FlatAvroOptions).time_zone)
        assert_same(found, rows_from_events(batch, codec.decode, options))
        # DDL is JSON and rare; a fault is the row codec's to name. Everything else is read in columns.
        left = len(found.faults) + sum(isinstance(event, DdlEvent) for event in found.events)
        assert found.row_by_row_records == left
        count += len(records)
    assert count > 0


@pytest.mark.golden_workload("avro")
def test_a_whole_changefeed_is_read_in_columns(workload: Workload) -> None:
    codec = FlatAvroCodec(
        registry=MemorySchemaRegistry(workload.schemas), options=workload.options_of(FlatAvroOptions)
    )
    batch = as_records(workload.messages())
    found = codec.decode_batch(batch)
    assert found.row_by_row_records == 0
    options = ValueOptions(time_zone=workload.options_of(FlatAvroOptions).time_zone)
    assert_same(found, rows_from_events(batch, codec.decode, options))
