"""``decode -o json`` and ``encode`` are inverses, over every golden vector and whole changefeeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from tests.golden.vectors import Record, VectorFolder, find_folders, find_workloads
from tidesink.cli.codec import Encoded, Observed, decoded_lines, given_bytes, joined, line_encoder
from tidesink.cli.sources import Setting
from tidesink.codecs import open_codec
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.compression import compression_of, decompressed
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import EncodeError
from tidesink.events import Message
from tidesink.schema_registry import MemorySchemaRegistry


def setting(protocol: str, registry: MemorySchemaRegistry) -> Setting:
    """No producer option is given: what has to be known stands in the lines."""
    return Setting(
        protocol=protocol,
        options=CodecOptions(),
        declared={},
        registry=registry,
        definitions=TableDefinitions(),
        table_of_topic=None,
        config=None,
    )


def decoded(found: Setting, messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    codec = open_codec(
        found.protocol, options=found.options, registry=found.registry, definitions=found.definitions
    )
    observed = Observed(found)
    for message in messages:
        for line in decoded_lines(codec, message, observed):
            yield orjson.loads(orjson.dumps(line))


def encoded(found: Setting, lines: Iterable[dict[str, Any]]) -> Iterator[Message | None]:
    encode_line = line_encoder(found, register=False)
    records = (
        Encoded(number, line, given_bytes(line) if line["type"] == "error" else encode_line(line))
        for number, line in enumerate(lines, start=1)
    )
    for one in joined(records):
        if isinstance(one, EncodeError):
            raise one
        yield one


def comparable(message: Message, protocol: str) -> tuple[Any, ...]:
    """The record's bytes; canal-json as parsed JSON without ``ts``, which is a wall clock.

    What is compressed is so again, if not by the same choices.
    """
    value: Any = message.value
    if protocol == "canal-json" and value is not None:
        try:
            kind = compression_of(value)
            value = [json.loads(part) for part in (decompressed(value) or value).splitlines()]
            for part in value:
                part.pop("ts", None)
            value.append(kind)
        except (ValueError, UnicodeDecodeError):
            value = message.value
    return message.topic, message.partition, message.offset, message.key, value


class Rewritten(NamedTuple):
    """Records that went through decode and encode, and how many of their lines were errors."""

    records: list[Any]
    errors: int


def rewritten(protocol: str, registry: MemorySchemaRegistry, messages: list[Message]) -> Rewritten:
    lines = list(decoded(setting(protocol, registry), messages))
    back = encoded(setting(protocol, registry), lines)
    records = [None if message is None else comparable(message, protocol) for message in back]
    return Rewritten(records, sum(line["type"] == "error" for line in lines))


def cases(folder: VectorFolder, codec: str) -> list[Record]:
    records = [*folder.rows(codec), *folder.control(codec)]
    return [record for record in records if "key_b64" in record.raw and "value_b64" in record.raw]


@pytest.mark.parametrize(("codec", "protocol"), [("avro", "flat-avro"), ("canal-json", "canal-json")])
def test_every_golden_vector_comes_back(vectors: Path, codec: str, protocol: str) -> None:
    tried = errors = 0
    different = []
    for folder in find_folders(vectors):
        registry = MemorySchemaRegistry(folder.schemas)
        for record in cases(folder, codec):
            found = rewritten(protocol, registry, [record.message])
            tried, errors = tried + 1, errors + found.errors
            if found.records != [comparable(record.message, protocol)]:
                different.append(record.name)
    assert different == []
    # Error lines come back by their bytes alone: they must stay few for this to say anything.
    assert 0 < errors * 4 < tried


@pytest.mark.parametrize("protocol", ["avro", "canal-json"])
def test_a_whole_changefeed_comes_back(vectors: Path, protocol: str) -> None:
    workloads = find_workloads(vectors, protocol)
    if not workloads:
        pytest.skip("this folder has no changefeed of this protocol")
    name = "flat-avro" if protocol == "avro" else protocol
    for workload in workloads:
        messages = list(workload.messages())
        found = rewritten(name, MemorySchemaRegistry(workload.schemas), messages)
        assert found == ([comparable(message, name) for message in messages], 0), workload.name
