"""flat-avro by the task that Spark runs, in this process.

Against the producer's own bytes: each row as TiDB held it, typed for Delta.

What is expected comes from ``events.jsonl`` alone, and from none of the readers under test.
"""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from tests.golden.test_row_checksum import is_untold
from tests.golden.vectors import (
    Json,
    Record,
    VectorFolder,
    after_of,
    before_of,
    schema_of,
    table_of,
)
from tests.spark.decoded import Decoded, Values, decode_here
from tests.spark.held import compare, held_value
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import FlatAvroOptions
from tidesink.codecs.row_checksum import checksum_fault
from tidesink.errors import DecodeError
from tidesink.events import ChangeEvent, Column, TableId
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.schema_registry.naming import sanitize_name
from tidesink.sinks.decode.flat_avro import flat_avro_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings, SubjectSchemas
from tidesink.typemap.target_schema import TargetColumn
from tidesink.typemap.values import target_reader

Group = tuple[TableId, str, str]


@pytest.fixture(scope="module")
def golden(golden_folder: VectorFolder) -> Golden:
    return Golden(golden_folder)


class Golden:
    """One folder's rows, decoded table by table: the schemas of a case are planned together."""

    def __init__(self, folder: VectorFolder, *, logs: bool = False) -> None:
        self.folder, self._logs = folder, logs
        self.rows: list[tuple[Record, Decoded, DecodePlan]] = []
        groups: dict[Group, list[Record]] = defaultdict(list)
        for record in folder.rows("avro"):
            if not record.raw.get("error"):
                groups[_group(record)].append(record)
        for (table, _, zone), records in groups.items():
            self._decode(table, zone, records)

    def _decode(self, table: TableId, zone: str, records: list[Record]) -> None:
        keys = {sanitize_name(column.name) for record in records for column in _keys(record)}
        plan = flat_avro_plan(
            table,
            SubjectSchemas(self._schemas(records, "key"), self._schemas(records, "value")),
            PlanSettings(keys=tuple(sorted(keys)), time_zone=zone, logs=self._logs),
            checksum="warn",
        )
        by_line = {record.line: record for record in records}
        rows = decode_here(plan, [record.message for record in records])
        assert [row.offset for row in rows] == sorted(by_line)
        self.rows += [(by_line[row.offset], row, plan) for row in rows]

    def _schemas(self, records: list[Record], part: str) -> dict[int, str]:
        named = {record.raw.get(f"{part}_schema_id") for record in records}
        ids: set[int] = {schema_id for schema_id in named if schema_id is not None}
        return {schema_id: self.folder.schemas[schema_id] for schema_id in ids}


def _group(record: Record) -> Group:
    # Modes change a column's Avro type, and a case may have both: Spark is given them together where one
    # shape holds both, as after a changed option.
    modes = "+".join(str(record.config.get(f"avro-{mode}-handling-mode")) for mode in ("decimal",))
    assert record.event is not None
    return table_of(record.event), f"{record.raw['case']} {modes}", record.config.get("time-zone") or "UTC"


def _keys(record: Record) -> tuple[Column, ...]:
    assert record.event is not None
    schema = schema_of(record.event)
    if record.raw.get("key_schema_id") is not None and record.options_of(FlatAvroOptions).producer == "new":
        return schema.primary_key
    # A table without a key record has its keys from the config.
    return schema.handle_columns or schema.columns[:1]


def test_every_row_is_what_tidb_held(golden: Golden) -> None:
    wrong = [line for record, row, plan in golden.rows for line in _differences(record, row, plan)]
    assert not wrong, "\n".join(wrong[:50])
    assert len(golden.rows) > 20


def test_every_row_is_what_the_python_codec_reads(golden: Golden) -> None:
    codec = FlatAvroCodec(registry=MemorySchemaRegistry(golden.folder.schemas))
    wrong = [
        line for record, row, plan in golden.rows for line in _python_differences(codec, record, row, plan)
    ]
    assert not wrong, "\n".join(wrong[:50])


def _differences(record: Record, row: Decoded, plan: DecodePlan) -> list[str]:
    event = record.event
    assert event is not None
    message = record.message
    if message.key is None and message.value is None:
        return compare(record, {"error": "UnnamedRowError"}, {"error": row.error})
    if message.key is None and record.raw["value_b64"].startswith("Aw"):  # a marker that names no row
        return compare(record, {"error": "UnnamedRowError"}, {"error": row.error})
    schema = schema_of(event)
    held = after_of(event, schema) or before_of(event, schema) or {}
    deleted = event["op"] == "delete"
    tombstone = message.value is None
    extended = record.options_of(FlatAvroOptions).enable_tidb_extension and not tombstone
    expected: Values = {
        "kind": "delete" if deleted else "upsert",
        "error": None,
        "warned": is_untold(record),
    }
    expected["commit_ts"] = event["commit_ts"] if extended else None
    found: Values = {"kind": row.kind, "error": row.error, "commit_ts": row.commit_ts}
    found["warned"] = row.reason is not None
    for image, columns in (("key", plan.shape.key_columns), ("after", plan.shape.columns)):
        if image == "after" and deleted:
            continue
        values = getattr(row, image) or {}
        for column, target in _pairs(event, columns, record):
            expected[f"{image}.{target.name}"] = held_value(
                held[column.name], column, target, zone=plan.shape.time_zone
            )
            found[f"{image}.{target.name}"] = values.get(target.name)
    return compare(record, expected, found)


def _pairs(
    event: Json, targets: tuple[TargetColumn, ...], record: Record
) -> list[tuple[Column, TargetColumn]]:
    by_name = {sanitize_name(column.name).lower(): column for column in schema_of(event).columns}
    pairs = [(by_name.get(target.name.lower()), target) for target in targets]
    return [(column, target) for column, target in pairs if column is not None]


def _python_differences(codec: FlatAvroCodec, record: Record, row: Decoded, plan: DecodePlan) -> list[str]:
    try:
        (event,) = codec.decode(record.message)
    except DecodeError as error:
        return compare(record, {"error": type(error).__name__}, {"error": row.error})
    assert isinstance(event, ChangeEvent)
    warning = checksum_fault(event, time_zone=plan.shape.time_zone)
    expected: Values = {"commit_ts": event.commit_ts, "error": None, "reason": warning}
    found: Values = {"commit_ts": row.commit_ts, "error": row.error, "reason": row.reason}
    zone = ZoneInfo(plan.shape.time_zone)
    for name, value in (event.after or {}).items():
        target = plan.shape.by_name[name.lower()]
        assert event.schema is not None
        read = target_reader(event.schema.by_name[name].type, time_zone=zone, zero_date="null")
        expected[name], found[name] = read(value), (row.after or {}).get(name)
        if target.spark.startswith("decimal") and expected[name] is not None:
            expected[name] = Decimal(str(expected[name]))
        if target.spark == "string" and isinstance(expected[name], Decimal):
            expected[name] = format(expected[name], "f")
    return compare(record, expected, found)
