"""The words for what a target's table holds: ours, and Databricks' numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

TableMode = Literal["upsert", "append", "history"]
ScdType = Literal[1, 2]
MODE_OF_SCD_TYPE: Final[Mapping[object, TableMode]] = MappingProxyType({1: "upsert", 2: "history"})
SOFT_DELETE: Final = "soft-delete"
_Words = Literal["upsert", "append", "history", "soft-delete"]
# ``soft-delete`` is taken apart by ``said_mode`` before the field sees it.
Mode = Annotated[TableMode, BeforeValidator(lambda mode: mode, json_schema_input_type=_Words)]


def said_mode(section: Any) -> Any:
    """A section of the config with its mode in our words: ``mode`` and ``deletes`` alone say it.

    Raises:
        ValueError: two words of it contradict each other.
    """
    if not isinstance(section, Mapping):
        return section
    said = dict(section)
    if said.get("mode") == SOFT_DELETE:
        if said.get("deletes", "soft") != "soft":
            raise ValueError("mode: soft-delete and deletes: hard contradict each other; remove one")
        said |= {"mode": "upsert", "deletes": "soft"}
    number = said.get("stored_as_scd_type")
    meant = MODE_OF_SCD_TYPE.get(number) if isinstance(number, int) else None
    if meant is not None and said.setdefault("mode", meant) != meant:
        raise ValueError(
            f"stored_as_scd_type: {number} is mode: {meant}, and mode says {said['mode']}; remove one"
        )
    return said
