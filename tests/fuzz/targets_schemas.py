"""Schemas from outside: a writer's Avro schema with a payload, and Kafka Connect's schemas in both forms."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import orjson

from tests.fuzz import seeds
from tests.fuzz.inputs import packed, unpacked
from tests.fuzz.rules import decoded, refuses
from tests.fuzz.targets_codecs import debezium_json_seeds, message
from tidesink.codecs import open_codec
from tidesink.codecs.base import header
from tidesink.codecs.debezium.connect_schema import connect_schema_of_avro, connect_schema_of_json
from tidesink.codecs.framing import HEADER_SIZE
from tidesink.errors import DecodeError
from tidesink.schema_registry import MemorySchemaRegistry

_ID: Final = 1
_PROTOCOLS: Final = ("flat-avro", "debezium-avro")


def writer_schema_seeds() -> Iterator[bytes]:
    """Schemas of values, each with a payload that was written with it."""
    for at, codec in enumerate(("avro", "debezium-avro")):
        for folder in seeds.folders(codec):
            for one in islice(seeds.messages(folder, codec), seeds.MOST_OF_ONE):
                schema_id = int.from_bytes((one.value or b"")[1:HEADER_SIZE], "big")
                if one.value and one.value[:1] == b"\0" and schema_id in folder.schemas:
                    text = folder.schemas[schema_id].encode()
                    yield packed(text, one.value[HEADER_SIZE:], choice=at)


def writer_schema(data: bytes) -> None:
    """Any text as the writer's schema, with any payload, for both Avro codecs."""
    halves = unpacked(data)
    text = (halves.key or b"").decode("utf-8", "replace")
    codec = open_codec(_PROTOCOLS[halves.choice % 2], registry=MemorySchemaRegistry({_ID: text}))
    payload = header(_ID) + (halves.value or b"")
    decoded(codec, message(halves._replace(key=payload if halves.choice & 2 else None, value=payload)))


def connect_schema_seeds() -> Iterator[bytes]:
    """Schemas of both forms."""
    for one in debezium_json_seeds():
        value = unpacked(one).value
        found: Any = orjson.loads(value) if value else None
        if isinstance(found, dict) and isinstance(found.get("schema"), dict):
            yield packed(None, orjson.dumps(found["schema"]), choice=0)
    texts = list(seeds.captured_schemas().values())
    for folder in seeds.folders("debezium-avro"):
        texts += folder.schemas.values()
    for text in texts:
        yield packed(None, text.encode(), choice=1)


_READERS: Final = (connect_schema_of_json, connect_schema_of_avro)


def connect_schema(data: bytes) -> None:
    """Any JSON as a Connect schema, in Connect's own JSON and in Avro."""
    halves = unpacked(data)
    try:
        found = orjson.loads(halves.value or b"")
    except orjson.JSONDecodeError:
        return
    read: Any = _READERS[halves.choice % 2]
    refuses(lambda: read(found), DecodeError)
