"""Values of other databases' types in ``decode -o json`` and back."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from tidesink.cli.json_lines import event_json, event_of
from tidesink.errors import EncodeError
from tidesink.events import ChangeEvent, Column, ColumnType, Op, Position, TableId, TableSchema

TABLE = TableId("lab", "t")
VALUES: list[tuple[ColumnType, Any]] = [
    (ColumnType("boolean"), True),
    (ColumnType("boolean"), False),
    (ColumnType("local date"), "0044-03-15 BC"),
    (ColumnType("local datetime"), "infinity"),
    (ColumnType("instant"), "2024-02-29 10:34:56.5+00:00"),
    (ColumnType("microseconds"), -2629800000000),
    (ColumnType("array"), "[1.10,null]"),
    (ColumnType("geometry"), b"\x01\x01\x00"),
    (ColumnType("decimal"), Decimal("1.10")),
]


def _event(column_type: ColumnType, value: Any) -> ChangeEvent:
    schema = TableSchema(TABLE, (Column("c", column_type),))
    return ChangeEvent(Op.INSERT, TABLE, None, None, {"c": value}, None, Position("t", 0, 0), schema)


@pytest.mark.parametrize(("column_type", "value"), VALUES)
def test_a_line_has_the_value_whole(column_type: ColumnType, value: Any) -> None:
    event = _event(column_type, value)
    line = json.loads(json.dumps(event_json(event)))
    found = event_of(line, lambda _: event.schema or TableSchema(TABLE, ()))
    assert isinstance(found, ChangeEvent)
    assert found.after == {"c": value}
    assert found.after is not None
    assert type(found.after["c"]) is type(value)


def test_a_boolean_is_true_or_false() -> None:
    event = _event(ColumnType("boolean"), True)
    line = event_json(event) | {"after": {"c": 1}}
    with pytest.raises(EncodeError, match="boolean"):
        event_of(line, lambda _: event.schema or TableSchema(TABLE, ()))
