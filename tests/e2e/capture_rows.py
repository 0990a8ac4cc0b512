"""The rows that the events of a real connector tell, against those that its database has."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.e2e.vector_rows import DatabaseRows
from tests.golden.debezium_captures import Capture
from tests.spark.decoded import Decoded, decode_here
from tidesink.codecs.debezium.inference import first_row
from tidesink.codecs.options import DebeziumModes, DebeziumOptions
from tidesink.events import ColumnType, Message, TableId, TableSchema
from tidesink.schema_registry.naming import sanitize_name
from tidesink.sinks.decode.debezium_avro import debezium_avro_plan
from tidesink.sinks.decode.debezium_json import Writers, debezium_json_plan, first_writer
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings, SubjectSchemas
from tidesink.sinks.decode.records import TRUNCATE
from tidesink.sinks.spark.payloads import DELETE, UPSERT


def json_plan(
    table: TableId,
    messages: Iterable[Message],
    options: DebeziumOptions,
    definition: TableSchema | None,
    time_zone: str = "UTC",
) -> DecodePlan:
    """A plan over what each record of a row tells."""
    rows = (first_row([message], options, definition) for message in messages)
    writers = Writers().with_new(first_writer(row) for row in rows if row is not None)
    return debezium_json_plan(
        table, writers, PlanSettings(time_zone=time_zone, logs=True), definition=definition, options=options
    )


def as_declared(schema: TableSchema) -> TableSchema:
    """The table as a person declares it: a DECIMAL as DOUBLE, for TiCDC writes no more of it."""
    columns = (
        replace(one, type=ColumnType("double")) if one.type.name == "decimal" else one
        for one in schema.columns
    )
    return replace(schema, columns=tuple(columns))


def different(place: str, name: str, value: Any, expected: Any, plan: DecodePlan) -> Iterator[str]:
    same = value == expected or (value != value and expected != expected)  # noqa: PLR0124  (NaN is none)
    if type(value) is not type(expected) or not same:
        kind = plan.rows.shape.by_name[name.lower()].type
        yield f"{place} {name} {kind.name}: {value!r} is not {expected!r}"


def messages_of(capture: Capture, schema: str) -> dict[str, list[Message]]:
    """The records of each table, by its name."""
    found: dict[str, list[Message]] = {}
    for message in capture.messages:
        prefix, _, name = message.topic.partition(f".{schema}.")
        if name and prefix == capture.name:
            found.setdefault(name, []).append(message)
    return found


def table_differences(
    capture: Capture, table: TableId, rows: DatabaseRows, otherwise: Container[tuple[str, ...]]
) -> Iterator[str]:
    """In what the rows of a table in the database differ from the events of a capture.

    ``otherwise``: a table and its column, with a key between them for that row alone.
    """
    name = table.name
    messages = messages_of(capture, table.schema)[name]
    plan = _capture_plan(capture, table, messages)
    if plan is None:
        return
    last: dict[str, Decoded] = {}
    for event in decode_here(plan, messages):
        if event.kind == TRUNCATE:
            last.clear()
        elif event.kind in (UPSERT, DELETE):
            last[repr(event.key)] = event
    expected = {key: event for key, event in last.items() if event.kind == UPSERT}
    found = dict[str, dict[str, Any]]()
    for one, values in rows.decoded(plan):
        if one.kind == UPSERT:
            found[repr(one.key)] = values
        else:
            yield f"{name}: {one.reason}"
    if found.keys() != expected.keys():
        yield f"{name}: other keys: {found.keys() ^ expected.keys()}"
        return
    yield from _unrecorded(name, found, rows, otherwise)
    for key, values in found.items():
        event = expected[key]
        for column, value in values.items():
            known = {(name, column), (name, key, column)}
            if not any(one in otherwise for one in known) and column not in (event.raw.get("_kept") or ()):
                yield from different(f"{name} {key}", column, value, (event.after or {})[column], plan)


def _unrecorded(
    name: str,
    found: Mapping[str, Mapping[str, Any]],
    rows: DatabaseRows,
    otherwise: Container[tuple[str, ...]],
) -> Iterator[str]:
    """Columns of the database that no record has."""
    known = {sanitize_name(column) for values in found.values() for column in values}
    for column in rows.stored.types:
        if found and sanitize_name(column) not in known and (name, column) not in otherwise:
            yield f"{name}: no record has {column}"


def _capture_plan(capture: Capture, table: TableId, messages: list[Message]) -> DecodePlan | None:
    """None for a table that nothing defines: the capture's DDL drops it in the end."""
    options = DebeziumOptions(debezium=capture.modes, debezium_unwrapped=capture.is_unwrapped)
    if capture.is_avro:
        answers = json.loads((capture.path.parent / "avro_schemas.json").read_text(encoding="utf-8"))
        ids = {"key": set[int](), "value": set[int]()}
        for message in messages:
            for part, data in (("key", message.key), ("value", message.value)):
                if data is not None:
                    ids[part].add(int.from_bytes(data[1:5], "big"))
        keys, values = ({one: answers[str(one)]["schema"] for one in ids[part]} for part in ("key", "value"))
        return debezium_avro_plan(table, SubjectSchemas(keys, values), modes=capture.modes)
    with_schema = capture.connector.get("value.converter.schemas.enable") == "true"
    declarations = capture.definitions() if capture.is_postgres else capture.ddl_definitions()
    declared = None if with_schema or declarations is None else declarations.get(table)
    definition = None if declared is None else _as_sent(declared, capture.modes)
    if not (with_schema or definition):
        return None
    return json_plan(table, messages, options, definition)


def _as_sent(schema: TableSchema, modes: DebeziumModes) -> TableSchema:
    """A definition whose values the records can hold: a decimal that is sent as a double is one."""
    return as_declared(schema) if modes.decimal_handling_mode == "double" else schema
