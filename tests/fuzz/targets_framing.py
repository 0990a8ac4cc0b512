"""What lies around a payload: framing, compression, claim-check files, and rows cut down to their key."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final
from uuid import UUID

import orjson

from tests.fuzz import seeds
from tests.fuzz.inputs import packed, unpacked
from tests.fuzz.rules import decoded, refuses, require
from tests.fuzz.targets_codecs import message
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, schema_id_of
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.compression import compressed, decompressed
from tidesink.codecs.framing import HEADER_SIZE
from tidesink.codecs.large_messages import ClaimCheck, LargeMessages, LocalStorage
from tidesink.codecs.options import CanalJsonOptions
from tidesink.codecs.upstream import Texts, UpstreamRow
from tidesink.errors import FramingError
from tidesink.events import TableId
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.schema_registry.client import GlueSchemas
from tidesink.typemap.mysql_types import parse_sql_type

MOST: Final = 1 << 20
_FILE: Final = "0b5a7a9e-0000-4000-8000-000000000000.json"
_TEXT: Final = parse_sql_type("varchar(99)")


@cache
def _glue() -> tuple[Codec, dict[int, UUID]]:
    (folder, *_) = seeds.folders("avro")
    uuids = {schema_id: UUID(int=schema_id) for schema_id in folder.schemas}
    source = GlueSchemas({uuids[schema_id]: text for schema_id, text in folder.schemas.items()})
    return open_codec("flat-avro", registry=MemorySchemaRegistry(folder.schemas), glue=source), uuids


def framing_seeds() -> Iterator[bytes]:
    """Records under Confluent's header and under AWS Glue's, plain and deflated."""
    (folder, *_) = seeds.folders("avro")
    _, uuids = _glue()
    for at, one in enumerate(islice(seeds.messages(folder, "avro"), seeds.MOST_OF_ONE)):
        yield packed(one.key, one.value)
        yield packed(*(_as_glue(part, uuids, deflated=at % 2 == 0) for part in (one.key, one.value)))


def _as_glue(data: bytes | None, uuids: dict[int, UUID], *, deflated: bool) -> bytes | None:
    schema_id = int.from_bytes((data or b"")[1:HEADER_SIZE], "big")
    if not data or schema_id not in uuids:
        return data
    payload = data[HEADER_SIZE:]
    kind = b"\3\5" if deflated else b"\3\0"
    return kind + uuids[schema_id].bytes + (zlib.compress(payload) if deflated else payload)


def framing(data: bytes) -> None:
    """Confluent's header and AWS Glue's."""
    halves = unpacked(data)
    refuses(lambda: schema_id_of(halves.value or b"", "value"), FramingError)
    decoded(_glue()[0], message(halves))


def compression_seeds() -> Iterator[bytes]:
    """lz4 frames and snappy blocks, and what begins like them."""
    texts = (b"", b"a", b"tidesink" * 99, bytes(range(256)) * 8)
    for text in texts:
        yield from (compressed(text, "lz4"), compressed(text, "snappy"), text)
    for one in islice(seeds.messages(seeds.folders("canal-json")[0], "canal-json"), 20):
        yield from (compressed(one.value or b"", "lz4"), compressed(one.value or b"", "snappy"))


def compression(data: bytes) -> None:
    """Opening lz4 and snappy, within a limit."""
    opened: list[bytes | None] = []
    refuses(lambda: opened.append(decompressed(data, most=MOST)), FramingError)
    require(all(one is None or len(one) <= MOST for one in opened), "more came out than was allowed")


class _AnyRow:
    """An upstream that has every row, with the key's own columns."""

    def row(self, table: TableId, key: Texts, *, commit_ts: int) -> UpstreamRow:
        """A row of the key's texts."""
        require(bool(table.name) and 0 <= commit_ts < 1 << 64, "the upstream is asked for no row")
        return UpstreamRow({**key, "v": "1"}, dict.fromkeys([*key, "v"], _TEXT))


@cache
def _large() -> tuple[CanalJsonCodec, Path]:
    """A codec with storage and upstream; the folder goes with the process's others in the temporary one."""
    root = Path(tempfile.mkdtemp(prefix="tidesink-fuzz-"))
    claims = ClaimCheck(LocalStorage(root), most=MOST)
    options = CanalJsonOptions(max_decompressed_bytes=MOST)
    return CanalJsonCodec(
        options=options, large=LargeMessages(options, claims=claims, upstream=_AnyRow())
    ), root


def large_message_seeds() -> Iterator[bytes]:
    """Rows that lie in a file (the first half), and rows cut down to their handle key."""
    _, root = _large()
    for folder in seeds.folders("canal-json"):
        for one in islice(seeds.messages(folder, "canal-json"), seeds.MOST_OF_ONE):
            try:
                found = orjson.loads(one.value or b"")
            except orjson.JSONDecodeError:
                continue
            extension = found.get("_tidb") or {}
            location = {**extension, "claimCheckLocation": f"file://{root}/{_FILE}"}
            yield packed(one.value, orjson.dumps({**found, "_tidb": location}))
            yield packed(None, orjson.dumps({**found, "_tidb": {**extension, "onlyHandleKey": True}}))


def large_messages(data: bytes) -> None:
    """canal-json with storage and upstream; the first half is the file that messages may name."""
    halves = unpacked(data)
    codec, root = _large()
    file = root / _FILE
    file.unlink(missing_ok=True)
    if halves.key is not None:
        file.write_bytes(halves.key)
    decoded(codec, message(halves._replace(key=None)))
