"""One canal-json row, changed as a test likes."""

from __future__ import annotations

from typing import Any

import orjson

from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.events import ChangeEvent, Message, TableId

T = TableId("s", "t")
TS = 470608474040696834
ROW: dict[str, Any] = {
    "id": 0,
    "database": "s",
    "table": "t",
    "pkNames": ["id"],
    "isDdl": False,
    "type": "INSERT",
    "es": TS >> 18,
    "ts": 1795228859111,
    "sql": "",
    "sqlType": {"id": 4, "a": 12},
    "mysqlType": {"id": "int", "a": "varchar"},
    "old": None,
    "data": [{"id": "1", "a": "x"}],
}


def record_of(value: bytes | None) -> Message:
    """A Kafka record of a value."""
    return Message("topic", 2, 17, None, value)


def sent(**changes: Any) -> Message:
    """A record of the row with other members; ``...`` leaves one out."""
    return record_of(orjson.dumps({name: v for name, v in {**ROW, **changes}.items() if v is not ...}))


def decode_row(**changes: Any) -> ChangeEvent:
    """The event of the row with other members."""
    (event,) = CanalJsonCodec().decode(sent(**changes))
    assert isinstance(event, ChangeEvent)
    return event
