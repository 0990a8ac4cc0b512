"""Text from outside: DDL, and the lines that ``tidesink decode`` and ``tidesink encode`` read."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from tests.fuzz import seeds
from tests.fuzz.inputs import packed, unpacked
from tests.fuzz.rules import refuses
from tidesink.cli.codec import EncodeLine, given_bytes, line_encoder
from tidesink.cli.json_lines import capture_line, event_json, read_capture, read_schemas
from tidesink.cli.sources import Setting
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, EncodeError, RegistryError
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.typemap.mysql_types import parse_sql_type

_TABLES: Final = (
    "CREATE TABLE s.t (id INT PRIMARY KEY, e ENUM('a','b') DEFAULT 'a', n DECIMAL(9,2), UNIQUE u (n))"
)


def ddl_seeds() -> Iterator[bytes]:
    """The statements in the vectors, and the types in them."""
    yield _TABLES.encode()
    for folder in (*seeds.folders("canal-json"), *seeds.folders("avro")):
        for event in folder.events.values():
            for statement in event.get("ddl") or ():
                yield str(statement).encode()
    for folder in (*seeds.folders("canal-json"), *seeds.folders("debezium")):
        for record in (*folder.control("canal-json"), *folder.control("debezium")):
            yield str(record.raw.get("ddl_query", "")).encode()
    for word in ("decimal(65,30) unsigned", "enum('a','b''c')", "bit(64)", "datetime(6)", "set('x')"):
        yield word.encode()


def ddl(data: bytes) -> None:
    """The readers of statements and types: a producer's statement, a file's, and a type's words."""
    text = data.decode("utf-8", "replace")
    definitions = TableDefinitions()
    definitions.declare(_TABLES)
    refuses(lambda: definitions.apply(text, "s", since=len(data)), ConfigError)
    refuses(lambda: definitions.declare(text, "s"), ConfigError)
    refuses(lambda: parse_sql_type(text), ConfigError)
    TableDefinitions.from_json(definitions.to_json())


@cache
def _file() -> Path:
    return Path(tempfile.mkdtemp(prefix="tidesink-fuzz-")) / "lines.jsonl"


def input_line_seeds() -> Iterator[bytes]:
    """Captures and files of schemas."""
    for folder in seeds.folders("avro"):
        for schema_id, text in islice(folder.schemas.items(), 40):
            yield packed(None, orjson.dumps({"id": schema_id, "schema": json.loads(text)}), choice=1)
        for one in islice(seeds.messages(folder, "avro"), 40):
            yield packed(None, orjson.dumps(capture_line(one)))
    yield packed(None, b'{"id": "b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63", "schema": "{}"}', choice=1)
    yield packed(
        None, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00\x43\xbf\xa6\xa3\x02\x00\x00\x00"
    )


def input_lines(data: bytes) -> None:
    """``--input`` and ``--schemas`` of ``tidesink decode``."""
    halves = unpacked(data)
    _file().write_bytes(halves.value or b"")
    name = str(_file())
    if halves.choice % 2:
        refuses(lambda: read_schemas(name), ConfigError)
    else:
        refuses(lambda: list(read_capture(name)), ConfigError)


_PROTOCOLS: Final = (("canal-json", "canal-json"), ("debezium", "debezium-json"), ("avro", "flat-avro"))


@cache
def _encoders() -> tuple[EncodeLine, ...]:
    definitions = TableDefinitions()
    definitions.declare(
        "CREATE TABLE a.b (id INT PRIMARY KEY, d DECIMAL(20,6), dt DATETIME(6), y YEAR, bi BIT(9))"
    )
    made = []
    for codec, protocol in _PROTOCOLS:
        (folder, *_) = seeds.folders(codec)
        registry = MemorySchemaRegistry(folder.schemas)
        setting = Setting(protocol, CodecOptions(), {}, registry, definitions, None, None)
        made.append(line_encoder(setting, register=False))
    return tuple(made)


def event_line_seeds() -> Iterator[bytes]:
    """Lines that ``decode -o json`` prints."""
    for at, (codec, protocol) in enumerate(_PROTOCOLS):
        (folder, *_) = seeds.folders(codec)
        opened = open_codec(protocol, registry=MemorySchemaRegistry(folder.schemas))
        for one in islice(seeds.messages(folder, codec), 60):
            for line in _lines(opened, one):
                yield packed(None, orjson.dumps(line), choice=at)


def _lines(codec: Any, message: Any) -> Iterator[dict[str, Any]]:
    try:
        events = codec.decode(message)
    except Exception:  # noqa: BLE001  (a seed that is no record makes no line)
        return
    yield from map(event_json, events)


def event_lines(data: bytes) -> None:
    """What ``tidesink encode`` reads."""
    halves = unpacked(data)
    try:
        line = orjson.loads(halves.value or b"")
    except orjson.JSONDecodeError:
        return
    if not isinstance(line, dict):
        return
    encode = _encoders()[halves.choice % len(_PROTOCOLS)]
    read = given_bytes if line.get("type") == "error" else encode
    refuses(lambda: read(line), ConfigError, EncodeError, RegistryError)
