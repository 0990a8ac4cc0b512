"""Small canal-json messages, as TiCDC writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tidesink.events import Message


def row_message(row: Mapping[str, str | None], **members: Any) -> dict[str, Any]:
    """The members of an INSERT of one row, with others over them."""
    return {
        "id": 0, "database": "s", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "INSERT", "es": 5,
        "ts": 6, "sql": "", "sqlType": dict.fromkeys(row, 12),
        "mysqlType": {name: "int" if name == "id" else "varchar" for name in row}, "old": None,
        "data": [row], **members,
    }  # fmt: skip


def row_bytes(row: Mapping[str, str | None], **members: Any) -> bytes:
    """The bytes of an INSERT of one row."""
    return orjson.dumps(row_message({"id": "1", **row}, **members))


def message_of(value: bytes | None) -> Message:
    """A Kafka record of a value."""
    return Message("topic", 2, 17, None, value)
