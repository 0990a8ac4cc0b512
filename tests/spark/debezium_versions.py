"""Debezium's Avro of one table in several versions of its schema: what a connector registers over time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import fastavro

from tidesink.codecs.base import header
from tidesink.events import Message, TableId

TABLE: Final = TableId("lab", "t")
TOPIC: Final = "app.lab.t"
KEY_ID: Final = 1
_SOURCE: Final = {"connector": "postgresql", "db": "shop", "schema": "lab", "table": "t"}

Columns = Mapping[str, Any]


class Version(NamedTuple):
    """One registered version: its columns by name with their Avro types, and more members of ``source``.

    Those are texts but for the ones in ``kinds``.
    """

    columns: Columns
    source: tuple[str, ...] = ()
    kinds: Columns = MappingProxyType({})

    def schema(self, number: int) -> dict[str, Any]:
        """The envelope's schema; names and docs are of this version alone."""
        fields = [{"name": "id", "type": "long"}]
        fields += [{"name": name, "type": kind} for name, kind in self.columns.items()]
        row = {"type": "record", "name": "Value", "namespace": f"v{number}", "fields": fields}
        kinds = {**dict.fromkeys((*_SOURCE, *self.source), "string"), **self.kinds}
        members = [{"name": name, "type": kind} for name, kind in kinds.items()]
        source = {"type": "record", "name": "Source", "doc": f"version {number}", "fields": members}
        envelope = [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", f"v{number}.Value"]},
            {"name": "source", "type": {**source, "connect.version": number}},
            {"name": "op", "type": "string"},
        ]
        return {"type": "record", "name": "Envelope", "namespace": f"v{number}", "fields": envelope}


class Versions:
    """Schemas of one topic under the ids 100, 101, …, and records written with them."""

    def __init__(self, *versions: Version) -> None:
        self._schemas = {100 + place: one.schema(place) for place, one in enumerate(versions)}
        self._key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
        self._source = {name: name for one in versions for name in one.source} | _SOURCE
        self._columns = {100 + place: one.columns for place, one in enumerate(versions)}
        self.messages: list[Message] = []

    @property
    def texts(self) -> dict[int, str]:
        """The values' schemas by id."""
        return {schema_id: json.dumps(schema) for schema_id, schema in self._schemas.items()}

    @property
    def key_texts(self) -> dict[int, str]:
        """The key's schema by id."""
        return {KEY_ID: json.dumps(self._key)}

    def send(self, schema_id: int, row: Mapping[str, Any], *, op: str = "c", **source: Any) -> None:
        """Write a row with a schema; columns not given are null. ``source``: members of that block."""
        number = len(self.messages)
        image = {"id": number, **dict.fromkeys(self._columns[schema_id]), **row}
        images = {"before": image, "after": None} if op == "d" else {"before": None, "after": image}
        record = {**images, "source": self._source | source, "op": op}
        value = framed(schema_id, self._schemas[schema_id], record)
        key = framed(KEY_ID, self._key, {"id": image["id"]})
        self.messages.append(Message(TOPIC, 0, number, key, value))


def framed(schema_id: int, schema: Mapping[str, Any], record: Mapping[str, Any]) -> bytes:
    """A record behind its Confluent header."""
    out = BytesIO(header(schema_id))
    out.seek(0, 2)
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), record)
    return out.getvalue()
