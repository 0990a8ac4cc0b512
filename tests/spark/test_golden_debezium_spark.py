"""Debezium by the task that Spark runs, in this process.

Every captured record is what the Python codec reads, typed for Delta.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.golden.debezium_captures import Capture
from tests.golden.each_capture import each_capture
from tests.golden.vectors import Record, VectorFolder, find_folders
from tests.spark.debezium_rows import all_differences, place
from tests.spark.decoded import decode_here
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec
from tidesink.codecs.debezium.inference import first_row
from tidesink.codecs.options import DebeziumOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, Message, TableId, TableSchema
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.sinks.decode.debezium_avro import debezium_avro_plan
from tidesink.sinks.decode.debezium_json import Writers, debezium_json_plan, first_writer
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings, SubjectSchemas

if TYPE_CHECKING:
    pass

# Tables without a key record: these columns of theirs name a row.
_KEYS: Final = {"t_nopk": ("a", "b"), "p_nopk": ("a", "b")}


_NO_OPTIONS: Final = DebeziumOptions()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    each_capture(metafunc)


def by_topic(capture: Capture) -> Iterator[tuple[TableId, list[Message]]]:
    """The topics that hold rows, each with its one table."""
    topics: dict[str, list[Message]] = defaultdict(list)
    for message in capture.messages:
        topics[message.topic].append(message)
    codec = capture.codec()
    definitions = _definitions(capture)
    for messages in topics.values():
        tables = {
            event.table for one in messages for event in codec.decode(one) if isinstance(event, ChangeEvent)
        }
        for table in tables:  # one a topic
            # Renamed later, so that no statement is left of it: its rows would be text.
            if definitions is None or table in definitions:
                yield table, messages


def _definitions(capture: Capture) -> TableDefinitions | None:
    """Plain JSON of MariaDB has no types but in its DDL, which a worker is given beforehand."""
    plain = not (capture.is_avro or capture.is_postgres or capture.name == "mdb_schema")
    return capture.ddl_definitions() if plain else capture.definitions()


def codec_of(capture: Capture) -> Codec:
    """The Python codec, with what a worker is informed of the capture's tables."""
    definitions = _definitions(capture)
    if definitions is None:
        return capture.codec()
    return open_codec(
        "debezium-json", options=DebeziumOptions(debezium=capture.modes), definitions=definitions
    )


def plan_of(
    capture: Capture,
    table: TableId,
    messages: list[Message],
    *,
    keyless: bool = False,
    logs: bool = False,
) -> DecodePlan:
    """The plan that a worker makes of a topic's records; ``keyless``: of a log, where no key is needed."""
    keys = None if keyless else _KEYS.get(table.name)
    if capture.is_avro:
        return _avro_plan(capture, table, messages, keys, logs=logs or keyless)
    definitions = _definitions(capture)
    definition = definitions.get(table) if definitions else None
    options = DebeziumOptions(debezium=capture.modes)
    return debezium_json_plan(
        table,
        writers_of(messages, options, definition),
        PlanSettings(keys=keys, logs=logs or keyless),
        definition=definition,
        options=options,
    )


def writers_of(
    messages: Iterable[Message],
    options: DebeziumOptions = _NO_OPTIONS,
    definition: TableSchema | None = None,
) -> Writers:
    """What a worker knows of a topic after it has learnt all that each record tells."""
    rows = [first_row([one], options, definition) for one in messages]
    return Writers().with_new(first_writer(one) for one in rows if one is not None)


def _avro_plan(
    capture: Capture,
    table: TableId,
    messages: list[Message],
    keys: tuple[str, ...] | None,
    *,
    logs: bool,
) -> DecodePlan:
    answers = json.loads((capture.path.parent / "avro_schemas.json").read_text(encoding="utf-8"))

    def schemas(part: str) -> dict[int, str]:
        data = [getattr(one, part) for one in messages]
        ids = {int.from_bytes(one[1:5], "big") for one in data if one is not None}
        return {schema_id: answers[str(schema_id)]["schema"] for schema_id in ids}

    return debezium_avro_plan(
        table,
        SubjectSchemas(schemas("key"), schemas("value")),
        PlanSettings(keys=keys, logs=logs),
        modes=capture.modes,
    )


def test_every_record_is_what_the_python_codec_reads(capture: Capture) -> None:
    rows = placed = 0
    for table, messages in by_topic(capture):
        plan, codec = plan_of(capture, table, messages), codec_of(capture)
        decoded = decode_here(plan, messages)
        placed += sum(row.raw["_position"] is not None for row in decoded)
        wrong = all_differences(codec, sorted(messages, key=place), decoded, plan)
        assert not wrong, "\n".join([f"{table} {plan.shape.ddl}", *wrong[:30]])
        rows += sum(row.kind in ("upsert", "delete") for row in decoded)
    assert rows > 10
    # Flattened rows have the members that the connector was told to add.
    assert placed > 5 or capture.name == "mdb_unwrap"


def _folder_of_ticdc(vectors: Path) -> VectorFolder:
    """The new architecture's records; of a clone on its own, the subset it brings."""
    folders = {one.name: one for one in find_folders(vectors)}
    return folders.get("ticdc-new") or folders["debezium-ticdc"]


def test_every_row_of_ticdc_is_what_the_python_codec_reads(vectors: Path) -> None:
    """TiCDC's debezium-avro (b813e76), table by table, each under the options its vectors begin with."""
    folder = _folder_of_ticdc(vectors)
    first: dict[str, tuple[int | None, int]] = {}
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in folder.rows("debezium-avro"):
        # The producer's fault: records of the table named record are none of their schema.
        if record.message.value is None or record.raw["case"] == "name_reserved":
            continue
        ids = record.raw["key_schema_id"], record.raw["value_schema_id"]
        if first.setdefault(record.raw["case"], ids) == ids:
            groups[record.raw["case"]].append(record)
    wrong = [line for records in groups.values() for line in _ticdc_differences(folder, records)]
    assert not wrong, "\n".join(wrong[:40])
    assert len(groups) > (20 if folder.name == "ticdc-new" else 5)


def _ticdc_differences(folder: VectorFolder, records: list[Record]) -> list[str]:
    codec = open_codec("debezium-avro", registry=MemorySchemaRegistry(folder.schemas))
    messages = [replace(record.message, offset=record.line) for record in records]
    events = [event for one in messages for event in codec.decode(one) if isinstance(event, ChangeEvent)]
    assert events[0].schema is not None
    plan = debezium_avro_plan(
        events[0].table,
        SubjectSchemas(
            _schema(folder, records[0].raw["key_schema_id"]),
            _schema(folder, records[0].raw["value_schema_id"]),
        ),
        PlanSettings(keys=None if events[0].key else (events[0].schema.columns[0].name,)),
    )
    decoded = decode_here(plan, messages)
    return [
        f"{records[0].name}: {line}"
        for line in all_differences(codec, sorted(messages, key=place), decoded, plan)
    ]


def test_every_json_row_of_ticdc_is_what_the_python_codec_reads(vectors: Path) -> None:
    """TiCDC's debezium (b813e76) with its schemas, table by table."""
    folder = _folder_of_ticdc(vectors)
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in folder.rows("debezium"):
        if record.message.value is not None and b',"schema":' in record.message.value:
            groups[f"{record.raw['case']} {record.raw['config']} {record.raw['table']}"].append(record)
    wrong = [line for records in groups.values() for line in _ticdc_json_differences(records)]
    assert not wrong, "\n".join(wrong[:40])
    assert len(groups) > (10 if folder.name == "ticdc-new" else 4)


def _ticdc_json_differences(records: list[Record]) -> list[str]:
    codec = open_codec("debezium-json")
    messages = [replace(record.message, offset=record.line) for record in records]
    events = [event for one in messages for event in codec.decode(one) if isinstance(event, ChangeEvent)]
    assert events[0].schema is not None
    plan = debezium_json_plan(
        events[0].table,
        writers_of(messages),
        PlanSettings(keys=None if events[0].key else (events[0].schema.columns[0].name,)),
    )
    decoded = decode_here(plan, messages)
    return [
        f"{records[0].name}: {line}"
        for line in all_differences(codec, sorted(messages, key=place), decoded, plan)
    ]


def _schema(folder: VectorFolder, schema_id: int | None) -> dict[int, str]:
    return {} if schema_id is None else {schema_id: folder.schemas[schema_id]}
