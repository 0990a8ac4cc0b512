"""canal-json rows from before a rename, read by the column's new name: each form a row can have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.columns import ID
from tests.full import FULL
from tests.spark.decoded import decode_here
from tidesink.events import Column, ColumnType, Message, TableId, TableSchema
from tidesink.sinks.decode.canal_json import canal_json_plan

if TYPE_CHECKING:
    pass

pytestmark = FULL

SIZE = Column("size", ColumnType("int"), default="7", origin_default="7")
SCHEMA = TableSchema(TableId("shop", "t"), (ID, SIZE))
# size was called Wide, and before that width.
RENAMED = {"Wide": "size", "width": "size"}


def _message(
    row: dict[str, str | None], *, kind: str = "INSERT", old: Any = None, spaced: bool = False
) -> bytes:
    words = {name: "bigint" if name == "id" else "int" for name in row}
    message = {
        "id": 0, "database": "shop", "table": "t", "pkNames": ["id"], "isDdl": False, "type": kind, "es": 1,
        "ts": 0, "sql": "", "sqlType": dict.fromkeys(row, 4), "mysqlType": words, "old": old, "data": [row],
    }  # fmt: skip
    return json.dumps(message, separators=(", ", ": ") if spaced else (",", ":")).encode()


def test_rows_are_read_by_the_newest_name_they_have() -> None:
    values = [
        _message({"id": "1", "size": "1"}),
        _message({"id": "2", "Wide": "2"}),
        _message({"id": "3", "width": "3"}),
        _message({"id": "4", "Wide": None}),
        _message({"id": "5"}),
        _message({"id": "6", "width": "0", "Wide": "6"}),
        _message({"id": "7", "width": "7"}, kind="UPDATE", old=[{"id": "7", "width": "0"}]),
        # Not in the producer's own form: the Python codec reads it.
        _message({"id": "8", "Wide": "8"}, spaced=True),
    ]
    plan = canal_json_plan(SCHEMA, renamed=RENAMED)
    found = decode_here(plan, [Message("t", 0, n, None, value) for n, value in enumerate(values)])
    sizes = [(row.after or {})["size"] if row.after else row.reason for row in found]
    # A row without the column under any name is from before it was added; NULL is a value.
    assert [sizes[n] for n in (0, 1, 2, 3, 4, 6, 7)] == [1, 2, 3, None, 7, 7, 8]
    # Two columns that were one: nobody knows which, and the row is not taken for either.
    assert found[5].raw["_fields"] == ("width",)


def test_without_renames_an_old_name_is_a_new_column() -> None:
    message = Message("t", 0, 0, None, _message({"id": "2", "Wide": "2"}))
    (row,) = decode_here(canal_json_plan(SCHEMA), [message])
    assert row.raw["_fields"] == ("Wide",)
