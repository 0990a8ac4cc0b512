"""Row checksums against the producer's own: each one that stands in the vectors, read and written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.golden.vectors import (
    Json,
    Record,
    VectorFolder,
    after_of,
    before_of,
    change_of,
    find_folders,
    schema_of,
)
from tests.vectors import WHOLE, vectors_dir
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import FlatAvroOptions
from tidesink.codecs.row_checksum import (
    CHECKSUM,
    NO_CHECKSUM,
    VERSION,
    RowSums,
    checksum_fault,
    summed_order,
)
from tidesink.errors import ChecksumError
from tidesink.events import ChangeEvent, Op
from tidesink.schema_registry.client import MemorySchemaRegistry

Found = list[tuple[VectorFolder, Record]]
# New-architecture TiCDC sums in table order, which the topic does not tell; here it is not the order of ids.
UNTOLD = "chk_column_order#1"
# The old row of a column added since: TiDB summed it without that column.
OLDER = "chk_column_order#2"


@pytest.fixture(scope="module")
def found(pytestconfig: pytest.Config) -> Found:
    """Every record with the three checksum fields."""
    folders = find_folders(vectors_dir(pytestconfig))
    return [(folder, record) for folder in folders for record in folder.rows("avro") if _has_fields(record)]


def _has_fields(record: Record) -> bool:
    return (
        record.options_of(FlatAvroOptions).row_checksum
        and not record.raw.get("error")
        and record.message.value is not None
    )


def _decoded(folder: VectorFolder, record: Record) -> ChangeEvent:
    registry = MemorySchemaRegistry(folder.schemas)
    (event,) = FlatAvroCodec(registry=registry, options=FlatAvroOptions(checksum="reject")).decode(
        record.message
    )
    assert isinstance(event, ChangeEvent)
    return event


def is_untold(record: Record) -> bool:
    """Whether a record is one whose sum nobody can tell."""
    return record.producer == "new" and record.raw["event"] == UNTOLD


def test_every_checksum_is_that_of_its_row(found: Found) -> None:
    seen = [_decoded(folder, record) for folder, record in found if not is_untold(record)]
    summed = [event for event in seen if (event.extension or {})[CHECKSUM] not in NO_CHECKSUM]
    assert len(summed) > len(seen) / 2 > 0
    assert [event for event in seen if checksum_fault(event) is not None] == []
    for event in summed:
        harmed = event._replace(after={**(event.after or event.before or {}), "id": -77})
        assert "but TiCDC wrote" in (checksum_fault(harmed) or "")


def test_a_sum_in_table_order_is_told_with_both_numbers(found: Found) -> None:
    for folder, record in found:
        if is_untold(record):
            with pytest.raises(ChecksumError, match=r"checksum is 3407634592, but TiCDC wrote '1117608343'"):
                _decoded(folder, record)


def test_the_checksum_is_computed_where_the_event_has_none(found: Found) -> None:
    for folder, record in found:
        codec = FlatAvroCodec(
            registry=MemorySchemaRegistry(folder.schemas), options=record.options_of(FlatAvroOptions)
        )
        assert record.event is not None
        split = record.event["checksum"]["current"] == 0 and record.raw["op"] != Op.DELETE.value
        # The half of a split update has none at classic TiCDC, which no row tells.
        extension = {CHECKSUM: "0", VERSION: 2} if split else None
        event = change_of(record.event, producer=record.producer, extension=extension)
        encoded = codec.encode(event, topic=record.message.topic)
        assert encoded is not None
        assert encoded.value is not None
        assert record.message.value is not None
        # The ids in front are of another registry.
        assert (record.name, encoded.value[5:]) == (record.name, record.message.value[5:])


def test_every_sum_that_tidb_kept_of_a_row_is_computed_alike(pytestconfig: pytest.Config) -> None:
    root = vectors_dir(pytestconfig)
    sums = [one for folder in find_folders(root) for event in folder.events.values() for one in _sums(event)]
    assert len(sums) >= (50 if root == WHOLE else 4)
    assert [one for one in sums if one[1] not in one[2]] == []


def _sums(event: Json) -> Iterator[tuple[str, int, list[int]]]:
    """A row's name, the sum TiDB kept, and ours by either producer's order."""
    kept = event.get("checksum") or {}
    for name, image in (("current", after_of), ("previous", before_of)):
        if kept.get(name) and not (event["event"] == OLDER and name == "previous"):
            schema = schema_of(event)
            orders = [
                summed_order(schema.columns, FlatAvroOptions(producer=one)) for one in ("classic", "new")
            ]
            row = image(event, schema) or {}
            yield event["event"], kept[name], [RowSums(order, "UTC").sum(row) for order in orders]
