"""A registry that follows another and lags behind it, and a clock that a test sets."""

from __future__ import annotations

import json

from tidesink.schema_registry import MemorySchemaRegistry

TOPIC = "shop_orders"


def text_of(*fields: str, name: str = "orders") -> str:
    """A record of INT columns, as TiCDC registers it."""
    column = {"type": "int", "connect.parameters": {"tidb_type": "INT"}}
    members = [{"name": field, "type": column} for field in fields]
    return json.dumps({"type": "record", "name": name, "namespace": "default.shop", "fields": members})


class Follower(MemorySchemaRegistry):
    """Knows what was registered after it was asked for so many ids."""

    def __init__(self, lag: int) -> None:
        super().__init__()
        self.lag = lag
        self.asked: list[int] = []

    @property
    def behind(self) -> bool:
        return len(self.asked) < self.lag

    def schema_by_id(self, schema_id: int) -> str:
        behind = self.behind
        self.asked.append(schema_id)
        return super().schema_by_id(-1 if behind else schema_id)

    def versions(self, subject: str) -> list[int]:
        return super().versions("nobody's" if self.behind else subject)


class Clock:
    """Shows the time it is given."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
