"""Golden canal-json rows by the task that Spark runs, in this process.

Against what TiDB held, and against the Python codec.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.golden.large_messages import HeldFiles, is_cut_down
from tests.golden.vectors import (
    Json,
    Record,
    VectorFolder,
    after_of,
    before_of,
    schema_of,
    typed_value,
)
from tests.spark.decoded import Decoded, Values, decode_here
from tests.spark.held import compare, held_value
from tests.spark.python_rows import stored
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError
from tidesink.events import ChangeEvent, TableId, TableSchema
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.plans import DecodePlan, PlanSettings
from tidesink.typemap.table import spark_type
from tidesink.typemap.target_schema import TargetColumn

Group = tuple[TableId, str, str]


@pytest.fixture(scope="module")
def golden(golden_folder: VectorFolder, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden(golden_folder, tmp_path_factory.mktemp("claims"))


class Case:
    """The records of one case, decoded by one plan: the table as it stood at the end."""

    def __init__(self, group: Group, records: list[Record], claims: Path, *, logs: bool) -> None:
        table, _, zone = group
        self._logs = logs
        self.records = {record.line: record for record in records}
        self.schemas = list(dict.fromkeys(schema_of(event) for event in _in_order(records)))
        self.schema = self.schemas[-1]
        options = _options(records, claims)
        self.plan = self._plan(zone, options)
        keys = {table: self.plan.shape.keys}
        definitions = TableDefinitions([self.schema])
        self.codec = CanalJsonCodec(definitions=definitions, keys=keys, options=options)
        self.found: dict[int, list[Decoded]] = defaultdict(list)

    def _plan(self, zone: str, options: CanalJsonOptions) -> DecodePlan:
        # A table without a key has its keys from the config.
        columns = self.schema.handle_columns or self.schema.columns[:1]
        keys, base = tuple(column.name for column in columns), None
        for schema in self.schemas:
            plan = canal_json_plan(
                schema, PlanSettings(base=base, keys=keys, time_zone=zone, logs=self._logs), options=options
            )
            base = plan.shape
        return plan

    def decode(self) -> None:
        """Reads the records."""
        messages = [record.message for record in self.records.values()]
        for row in decode_here(self.plan, messages):
            self.found[row.offset].append(row)


class Golden:
    """One folder's records, decoded case by case."""

    def __init__(self, folder: VectorFolder, claims: Path, *, logs: bool = False) -> None:
        groups: dict[Group, list[Record]] = defaultdict(list)
        for record in folder.rows("canal-json"):
            if record.message.value is not None:
                groups[_group(record)].append(record)
        self.cases = [
            Case(group, part, claims, logs=logs)
            for group, records in groups.items()
            for part in _parts(records)
        ]
        for case in self.cases:
            case.decode()


def _options(records: list[Record], claims: Path) -> CanalJsonOptions:
    """What a reader is configured with for these records; the files they name are put where it looks."""
    kinds = {record.options_of(CanalJsonOptions).large_message_handle_compression for record in records} - {
        "none"
    }
    for record in records:
        for name, data in HeldFiles(record).files.items():
            (claims / name).write_bytes(data)
    compression = kinds.pop() if kinds else "none"
    return CanalJsonOptions(large_message_handle_compression=compression, claim_check_storage_uri=str(claims))


def _group(record: Record) -> Group:
    zone = record.config.get("time-zone") or "UTC"
    return schema_of(_rows(record)[0]).table, record.raw["case"], zone


def _parts(records: list[Record]) -> list[list[Record]]:
    """Records that one shape holds: apart where a column's type changed into another."""
    parts: list[list[Record]] = []
    types: dict[str, str] = {}
    for record in sorted(records, key=lambda record: _commit_ts(_rows(record)[-1])):
        now = {c.name: spark_type(c.type).ddl for c in schema_of(_rows(record)[-1]).columns}
        if not parts or any(types.get(name, ddl) != ddl for name, ddl in now.items()):
            types = {}
            parts.append([])
        types |= now
        parts[-1].append(record)
    return parts


def _in_order(records: list[Record]) -> list[Json]:
    return sorted((event for record in records for event in _rows(record)), key=_commit_ts)


def _rows(record: Record) -> list[Json]:
    event = record.event
    assert event is not None
    return [{**event, **row} for row in event.get("rows", [event])]


def _commit_ts(event: Json) -> int:
    return int(event["commit_ts"])


def test_every_row_is_what_tidb_held(golden: Golden) -> None:
    wrong, compared = [], 0
    for case in golden.cases:
        for record in case.records.values():
            wrong += list(_differences(case, record))
            compared += 1
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:50])
    assert compared > 20


def test_every_row_is_what_the_python_codec_reads(golden: Golden) -> None:
    wrong = [
        line
        for case in golden.cases
        for record in case.records.values()
        for line in _python_differences(case, record)
    ]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:50])


def _differences(case: Case, record: Record) -> Iterator[str]:
    found, events = case.found[record.line], _rows(record)
    if is_cut_down(record) and events[0]["op"] != "delete":
        # Its other columns are not in the vectors: the upstream is asked in a test of its own.
        yield from compare(record, {"errors": ["RowUnavailableError"]}, {"errors": [r.error for r in found]})
        return
    yield from compare(record, {"rows": list(range(len(events)))}, {"rows": [row.index for row in found]})
    for event, row in zip(events, found, strict=False):
        yield from compare(record, _expected(case, record, event), _found(row))


def _expected(case: Case, record: Record, event: Json) -> Values:
    deleted = event["op"] == "delete"
    ts = event["commit_ts"] if record.options_of(CanalJsonOptions).enable_tidb_extension else None
    schema = schema_of(event)
    after, before = after_of(event, schema), before_of(event, schema)
    row = after or before or {}
    if any(row[key.name] is None for key in case.plan.shape.key_columns):
        return {"kind": "bad", "error": "UnnamedRowError"}
    expected: Values = {"kind": "delete" if deleted else "upsert", "error": None, "commit_ts": ts}
    targets = case.plan.shape.columns
    for target in targets if not deleted else case.plan.shape.key_columns:
        expected[f"key.{target.name}" if deleted else f"after.{target.name}"] = _held(
            row, schema, target, case
        )
    if after is not None and before is not None:
        keys = case.plan.shape.key_columns
        old, new = ([_held(image, schema, target, case) for target in keys] for image in (before, after))
        expected["old_key"] = None if old == new else {k.name: v for k, v in zip(keys, old, strict=True)}
    return expected


def _found(row: Decoded) -> Values:
    found: Values = {"kind": row.kind, "error": row.error, "commit_ts": row.commit_ts, "old_key": row.old_key}
    for image in ("key", "after"):
        found.update({f"{image}.{name}": value for name, value in (getattr(row, image) or {}).items()})
    return found


def _held(row: Mapping[str, Any], schema: TableSchema, target: TargetColumn, case: Case) -> Any:
    """TiDB's value as the target's type holds it; a column that came later has its default."""
    column = schema.by_name.get(target.name)
    if column is None:
        return _default(target, case) if target.name in case.schema.by_name else None
    return held_value(row[column.name], column, target, zone=case.plan.shape.time_zone)


def _default(target: TargetColumn, case: Case) -> Any:
    text, column = target.default, case.schema.by_name[target.name]
    if text is None or text == "CURRENT_TIMESTAMP":
        return None
    value = typed_value({"value": text}, column) if column.type.name not in ("enum", "set") else text
    return held_value(value, column, target, zone=case.plan.shape.time_zone)


def _python_differences(case: Case, record: Record) -> Iterator[str]:
    found = case.found[record.line]
    try:
        events = case.codec.decode(record.message)
    except DecodeError as error:
        expected = {"errors": [type(error).__name__]}
        yield from compare(record, expected, {"errors": [row.error for row in found]})
        return
    for event, row in zip(events, found, strict=True):
        assert isinstance(event, ChangeEvent)
        yield from compare(record, stored(event, case.plan.shape), _found(row))
