"""Delta tables written by hand, file by file, to test what reads them without any writer of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class HandMadeTable:
    """One Delta table; each call of ``commit`` is a version."""

    def __init__(self, path: Path, types: Mapping[str, str]) -> None:
        self.path = path
        self.log = path / "_delta_log"
        self.log.mkdir(parents=True)
        self._version = 0
        self._types = dict(types)

    def commit(self, *actions: Mapping[str, Any]) -> None:
        """Write one commit."""
        lines = "\n".join(json.dumps(action) for action in actions)
        (self.log / f"{self._version:020d}.json").write_text(lines + "\n", encoding="utf-8")
        self._version += 1

    def schema(self, physical: Mapping[str, str] | None = None, **more: str) -> dict[str, Any]:
        """A metaData action with the table's columns, ``more`` of them added at the end."""
        self._types.update(more)
        fields = [
            {"name": name, "type": text, "nullable": True, "metadata": _mapping(name, physical)}
            for name, text in self._types.items()
        ]
        return {"metaData": {"id": "t", "schemaString": json.dumps({"type": "struct", "fields": fields})}}

    def add(self, name: str, vector: Mapping[str, Any] | None = None, **columns: pa.Array) -> dict[str, Any]:
        """An add action; writes the file unless it is there."""
        if columns:
            pq.write_table(pa.table(columns), self.path / name)
        size = (self.path / name).stat().st_size
        action = {"path": name, "partitionValues": {}, "size": size, "dataChange": True}
        return {"add": {**action, "deletionVector": vector} if vector else action}

    def remove(self, name: str, vector: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A remove action."""
        return {"remove": {"path": name, **({"deletionVector": vector} if vector else {})}}


def _mapping(name: str, physical: Mapping[str, str] | None) -> dict[str, str]:
    return {"delta.columnMapping.physicalName": physical[name]} if physical and name in physical else {}


_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def z85_of(data: bytes) -> str:
    """Bytes as a deletion vector's descriptor spells them, with zeros at the end to a multiple of four."""
    text = ""
    for at in range(0, len(data), 4):
        number = int.from_bytes(data[at : at + 4].ljust(4, b"\0"), "big")
        text += "".join(_Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text
