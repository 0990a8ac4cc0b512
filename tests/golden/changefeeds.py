"""Lines of ``config.jsonl`` and ``route.jsonl``: what TiCDC makes of a changefeed, where it sends rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.vectors import POSITION, typed_value
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, Op, Row, TableId, TableSchema

Json = dict[str, Any]


def lines(root: Path, file: str) -> list[tuple[str, Json]]:
    """The lines of a file at ``root`` or right under it, each with a name of its own."""
    paths = [root / file, *sorted(root.glob(f"*/{file}"))]
    found = []
    for path in paths:
        if path.is_file():
            texts = path.read_text(encoding="utf-8").splitlines()
            for number, raw in enumerate(map(json.loads, texts), start=1):
                found.append((f"{path.parent.name}/{raw['case']}:{number}", raw))
    return found


def definitions_of(raw: Json) -> TableDefinitions:
    """The tables that a route line's DDL makes."""
    definitions = TableDefinitions()
    for statement in raw["ddl"]:
        definitions.declare(statement, "test")
    return definitions


def event_of(raw: Json, definitions: TableDefinitions) -> ChangeEvent:
    """The row event of a route line."""
    table = table_of(raw)
    schema = definitions.get(table)
    assert schema is not None
    after = _row(raw.get("columns"), schema)
    before = _row(raw.get("pre_columns"), schema)
    return ChangeEvent(Op(raw["op"]), table, None, before, after, raw["commit_ts"], POSITION, schema)


def table_of(raw: Json) -> TableId:
    """The line's table."""
    schema, _, name = raw["table"].partition(".")
    return TableId(schema, name)


def _row(columns: list[Json] | None, schema: TableSchema) -> Row | None:
    if not columns:
        return None
    return dict(_values(columns, schema))


def _values(columns: list[Json], schema: TableSchema) -> Iterator[tuple[str, Any]]:
    for raw in columns:
        yield raw["name"], typed_value(raw, schema.by_name[raw["name"]])
