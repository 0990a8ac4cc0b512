"""``tidesink decode --checksum`` and delete markers, from capture to lines and back."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from tests.cli.samples import KEY, capture, lines, run
from tests.unit.codecs.flat_avro.cases import TSO, change, table
from tests.unit.codecs.test_row_checksum import SUMMED
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.options import FlatAvroOptions
from tidesink.codecs.row_checksum import CHECKSUM
from tidesink.schema_registry.client import MemorySchemaRegistry

SUM = 2_999_888_777


@pytest.fixture
def summed(tmp_path: Path) -> tuple[str, str]:
    """A capture of one row with a wrong checksum, and its schemas' file."""
    registry = MemorySchemaRegistry()
    codec = FlatAvroCodec(registry=registry, options=FlatAvroOptions(**SUMMED))
    schema = table("create table t (id int primary key, v int)")
    event = change(after={"id": 1, "v": 2}, schema=schema, extension={CHECKSUM: str(SUM)})
    record = codec.encode(event, topic="shop_t")
    assert record is not None
    ids = range(1, 3)
    texts = [json.dumps({"id": one, "schema": registry.schema_by_id(one)}) for one in ids]
    (tmp_path / "schemas.jsonl").write_text("\n".join(texts))
    return capture(record.key, record.value), str(tmp_path / "schemas.jsonl")


def _decode(summed: tuple[str, str], *more: str) -> tuple[int, list[dict[str, object]], str]:
    stdin, schemas = summed
    options = ("--protocol", "avro", "--schemas", schemas, "--input", "-", "-o", "json", *more)
    result = run("decode", *options, stdin=stdin)
    return result.exit_code, lines(result), result.stderr


@pytest.mark.parametrize("more", [(), ("--checksum", "off")])
def test_checksums_are_not_asked_for_by_themselves(summed: tuple[str, str], more: tuple[str, ...]) -> None:
    code, (line,), reported = _decode(summed, *more)
    assert (code, line["type"], reported) == (0, "insert", "")


def test_a_wrong_checksum_is_told_on_stderr(summed: tuple[str, str]) -> None:
    code, (line,), reported = _decode(summed, "--checksum", "warn")
    assert (code, line["type"]) == (0, "insert")
    ours = zlib.crc32(struct.pack("<qq", 1, 2))
    assert reported.startswith(
        f"warning: shop_t[0]@17: The row's checksum is {ours}, but TiCDC wrote '{SUM}'"
    )
    assert len(reported.splitlines()) == 1


def test_a_wrong_checksum_is_an_error_line(summed: tuple[str, str]) -> None:
    code, (line,), _ = _decode(summed, "--checksum=reject")
    assert (code, line["type"], line["error"]) == (1, "error", "ChecksumError")
    assert f"TiCDC wrote '{SUM}'" in str(line["reason"])


def test_another_word_is_refused(summed: tuple[str, str]) -> None:
    code, found, reported = _decode(summed, "--checksum", "maybe")
    assert (code, found) == (2, [])
    assert "use off or warn or reject" in reported


def test_a_delete_marker_comes_back_byte_for_byte(schemas: str) -> None:
    stdin = capture(KEY, b"\x03" + TSO.to_bytes(8, "big"))
    options = ("--protocol", "avro", "--schemas", schemas, "--input", "-", "-o", "json")
    decoded = run("decode", *options, stdin=stdin)
    (line,) = lines(decoded)
    assert (line["type"], line["key"], line["after"], line["commit_ts"]) == ("delete", {"id": 7}, None, TSO)
    encoded = run("encode", "--protocol", "avro", "--schemas", schemas, "--input", "-", stdin=decoded.stdout)
    assert encoded.exit_code == 0, encoded.stderr
    (again,) = lines(encoded)
    sent = json.loads(stdin)
    assert (again["key_b64"], again["value_b64"]) == (sent["key_b64"], sent["value_b64"])
