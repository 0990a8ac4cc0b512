"""What the bytes say about the producer's options, against what was declared. The bytes win."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tidesink.cli.sources import Setting
from tidesink.errors import RegistryError
from tidesink.events import ChangeEvent, Event

# How TiCDC writes a type in an Avro field, and the option that says so (tiflow c7b2588).
_MODES = {
    ("DECIMAL", "bytes"): ("avro_decimal_handling_mode", "precise"),
    ("DECIMAL", "string"): ("avro_decimal_handling_mode", "string"),
    ("BIGINT UNSIGNED", "long"): ("avro_bigint_unsigned_handling_mode", "long"),
    ("BIGINT UNSIGNED", "string"): ("avro_bigint_unsigned_handling_mode", "string"),
}
_MARKS = {"enable_tidb_extension": "_tidb_commit_ts", "avro_include_before_value": "_ticdc_before"}


class Observed:
    """Collects what was seen of each declared option; a difference is told once."""

    def __init__(self, setting: Setting) -> None:
        self._declared = setting.declared
        self._is_debezium = setting.protocol.startswith("debezium")
        self._registry = setting.registry
        self._schemas: set[int] = set()
        self._seen: dict[str, set[Any]] = {}

    def see(self, event: Event) -> None:
        """Take note of one event."""
        if not self._declared or not isinstance(event, ChangeEvent) or self._is_debezium:
            return
        if event.schema_id is None:
            self._note("enable_tidb_extension", event.commit_ts is not None)
        elif event.schema_id.value is not None and event.schema_id.value not in self._schemas:
            self._schemas.add(event.schema_id.value)
            self._see_schema(event.schema_id.value)

    def _see_schema(self, schema_id: int) -> None:
        if self._registry is None:
            return
        try:
            record = json.loads(self._registry.schema_by_id(schema_id))
        except (RegistryError, ValueError):
            return  # decoding has told of it already
        fields = {field["name"]: field for field in record.get("fields", ())}
        for option, mark in _MARKS.items():
            self._note(option, mark in fields)
        for field in fields.values():
            mode = _MODES.get(_spelling(field))
            if mode is not None:
                self._note(*mode)

    def _note(self, option: str, value: Any) -> None:
        self._seen.setdefault(option, set()).add(value)

    def warnings(self) -> Iterator[str]:
        """One text for each declared option that the bytes contradict."""
        for option, declared in self._declared.items():
            others = self._seen.get(option, set()) - {declared}
            if others:
                name = option.replace("_", "-")
                said = _word(others.pop())
                yield f"{name} is declared as {_word(declared)}, the bytes say {said}: the bytes win"


def _spelling(field: dict[str, Any]) -> tuple[str, str]:
    """``tidb_type`` and Avro type of a field, out of its union where it has one."""
    branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
    for branch in branches:
        if isinstance(branch, dict) and "connect.parameters" in branch:
            return str(branch["connect.parameters"].get("tidb_type")), str(branch.get("type"))
    return "", ""


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
