"""``tidesink decode``: the stated lines, bad input as error lines, wrong use."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest

from tests.cli.samples import CANAL, KEY, VALUE, capture, lines, run
from tidesink.codecs.canal_json.codec import CanalJsonCodec


def test_decode_prints_the_stated_lines(schemas: str) -> None:
    stdin = capture(KEY, VALUE) + capture(KEY, None, 18)
    result = run(
        "decode", "--protocol", "AVRO", "--schemas", schemas, "--input", "-", "-o", "json", stdin=stdin
    )
    assert result.exit_code == 0, result.stderr
    assert lines(result) == [
        {
            "type": "upsert",
            "table": {"schema": "shop", "name": "t"},
            "key": {"id": 7},
            "before": None,
            "after": {
                "id": 7,
                "f": 0.1,
                "b": {"base64": "AQI="},
                "d": "-0.0001",
                "u": 18446744073709551615,
            },
            "commit_ts": None,
            "schema_id": {"key": 257, "value": 258},
            "position": {"topic": "shop_t", "partition": 0, "offset": 17, "index": 0},
        },
        {
            "type": "delete",
            "table": {"schema": "shop", "name": "t"},
            "key": {"id": 7},
            "before": {"id": 7},
            "after": None,
            "commit_ts": None,
            "schema_id": {"key": 257, "value": None},
            "position": {"topic": "shop_t", "partition": 0, "offset": 18, "index": 0},
        },
    ]


BAD_AVRO = [
    ("truncated", KEY, VALUE[:-2], "SchemaMismatchError", "cut short"),
    ("goes on", KEY, VALUE + b"\x00", "SchemaMismatchError", "has 1 more bytes after its record"),
    ("wrong magic byte", KEY, b"\x09" + VALUE[1:], "FramingError", "09"),
    ("shorter than its header", KEY, b"\x00\x00", "FramingError", "2 bytes"),
    ("empty key", b"", VALUE, "FramingError", "key"),
    ("unknown schema id", KEY, b"\x00\x00\x00\xff\xff" + VALUE[5:], "SchemaNotFoundError", "65535"),
    ("no key, no value", None, None, "UnnamedRowError", "avro-include-before-value"),
    ("delete marker", KEY, b"\x03" + bytes(7), "SchemaMismatchError", "delete marker"),
]


@pytest.mark.parametrize(
    ("key", "value", "error", "reason"), [case[1:] for case in BAD_AVRO], ids=[c[0] for c in BAD_AVRO]
)
def test_bad_avro_is_an_error_line_and_the_rest_goes_on(
    schemas: str, key: bytes | None, value: bytes | None, error: str, reason: str
) -> None:
    stdin = capture(key, value) + capture(KEY, VALUE, 18)
    result = run(
        "decode", "--protocol", "avro", "--schemas", schemas, "--input", "-", "-o", "json", stdin=stdin
    )
    assert result.exit_code == 1
    bad, good = lines(result)
    assert (bad["type"], bad["error"]) == ("error", error)
    assert reason in bad["reason"]
    assert bad["remedy"]
    assert bad["position"] == {"topic": "shop_t", "partition": 0, "offset": 17, "index": 0}
    assert bad["value_b64"] == (None if value is None else base64.b64encode(value).decode())
    assert bad["key_b64"] == (None if key is None else base64.b64encode(key).decode())
    assert good["type"] == "upsert"


BAD_CANAL: list[tuple[str, bytes | None, str, str]] = [
    ("not JSON", b"hello", "FramingError", "not JSON"),
    ("a list", b"[1]", "SchemaMismatchError", "JSON object"),
    ("no type", b"{}", "SchemaMismatchError", "'type'"),
    ("invalid UTF-8", b'{"type":"\xff"}', "FramingError", "not JSON"),
    ("null", None, "FramingError", "no value"),
    ("empty", b"", "FramingError", "no value"),
    ("number", json.dumps({**CANAL, "data": [{"id": 7}]}).encode(), "SchemaMismatchError", "text or null"),
    ("no int", json.dumps({**CANAL, "data": [{"id": "x"}]}).encode(), "ValueOutOfRangeError", "'x'"),
    ("null key", json.dumps({**CANAL, "data": [{"id": None}]}).encode(), "UnnamedRowError", "id"),
]


@pytest.mark.parametrize(
    ("value", "error", "reason"), [case[1:] for case in BAD_CANAL], ids=[c[0] for c in BAD_CANAL]
)
def test_bad_canal_json_is_an_error_line(value: bytes | None, error: str, reason: str) -> None:
    result = run(
        "decode", "--protocol", "canal-json", "--input", "-", "-o", "json", stdin=capture(None, value)
    )
    assert result.exit_code == 1
    (bad,) = lines(result)
    assert bad["error"] == error
    assert reason in bad["reason"]


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        ('{"topic":', "line 1 is not JSON"),
        ("\n\n[1]\n", "line 3 is not a JSON object"),
        ('{"topic":"t","partition":0,"offset":1,"key_b64":null}', "value_b64 is missing"),
        (
            '{"topic":"t","partition":0,"offset":"1","key_b64":null,"value_b64":null}',
            "offset must be an integer, not '1'",
        ),
        ('{"topic":"t","partition":0,"offset":1,"key_b64":"??","value_b64":null}', "key_b64 is not base64"),
    ],
)
def test_a_line_that_is_no_record_is_wrong_use(stdin: str, message: str) -> None:
    result = run("decode", "--protocol", "canal-json", "--input", "-", stdin=stdin)
    assert result.exit_code == 2
    assert message in result.stderr


def test_empty_and_gzipped_input(tmp_path: Path) -> None:
    options = ("decode", "--protocol", "canal-json", "-o", "json", "--input")
    assert run(*options, "-", stdin="").exit_code == 0
    packed = tmp_path / "capture.gz"
    packed.write_bytes(gzip.compress(capture(None, json.dumps(CANAL).encode()).encode()))
    assert lines(run(*options, str(packed)))[0]["after"] == {"id": 7, "e": 2}
    assert lines(run(*options, "-", stdin=packed.read_bytes()))[0]["after"] == {"id": 7, "e": 2}
    packed.write_bytes(packed.read_bytes()[:-20])
    broken = run(*options, str(packed))
    assert broken.exit_code == 2
    assert "cannot be read" in broken.stderr


@pytest.mark.parametrize(
    "spelling",
    [("--enable-tidb-extension",), ("--enable-tidb-extension=true",), ("--enable-tidb-extension", "true")],
)
def test_options_that_the_bytes_contradict_are_a_warning(schemas: str, spelling: tuple[str, ...]) -> None:
    result = run(
        "decode", "--protocol", "avro", "--schemas", schemas, "--input", "-", "-o", "json", *spelling,
        "--avro-decimal-handling-mode", "string", "--avro-bigint-unsigned-handling-mode", "long",
        stdin=capture(KEY, VALUE),
    )  # fmt: skip
    assert result.exit_code == 0
    assert lines(result)[0]["after"]["d"] == "-0.0001"
    assert result.stderr.splitlines() == [
        "warning: enable-tidb-extension is declared as true, but records were written with false. "
        "These records are decoded as they were written",
        "warning: avro-decimal-handling-mode is declared as string, but records were written with precise. "
        "These records are decoded as they were written",
    ]


def test_a_boolean_that_is_none() -> None:
    result = run("decode", "--protocol", "avro", "--enable-tidb-extension=maybe")
    assert result.exit_code == 2
    assert "neither true nor false" in result.stderr


def test_text_is_for_people(schemas: str) -> None:
    stdin = capture(KEY, VALUE) + capture(None, None, 18)
    result = run("decode", "--protocol", "avro", "--schemas", schemas, "--input", "-", stdin=stdin)
    assert result.stdout.splitlines() == [
        "upsert shop.t  shop_t[0]@17",
        "  id  7",
        "  f   0.1",
        "  b   base64 AQI=",
        "  d   -0.0001",
        "  u   18446744073709551615",
        "error  shop_t[0]@18",
        *result.stdout.splitlines()[7:8],
        "  key null, value null (bytes: -o json)",
    ]
    assert "UnnamedRowError" in result.stdout


def test_max_stops_early() -> None:
    stdin = "".join(capture(None, json.dumps(CANAL).encode(), offset) for offset in range(5))
    result = run(
        "decode", "--protocol", "canal-json", "--input", "-", "-o", "json", "--max", "2", stdin=stdin
    )
    assert [line["position"]["offset"] for line in lines(result)] == [0, 1]


def test_ddl_in_the_topic_gives_types_to_what_follows() -> None:
    from tidesink.events import DdlEvent, Position, TableId

    query = "CREATE TABLE `shop`.`t` (`id` INT PRIMARY KEY,`e` ENUM('x','y'))"
    ddl = CanalJsonCodec().encode(
        DdlEvent(TableId("shop", "t"), query, "CREATE", 1 << 18, Position("shop_t", 0, 1)), topic="shop_t"
    )
    assert ddl is not None
    stdin = capture(None, ddl.value, 1) + capture(None, json.dumps(CANAL).encode(), 2)
    first, second = lines(
        run("decode", "--protocol", "canal-json", "--input", "-", "-o", "json", stdin=stdin)
    )
    assert (first["type"], first["query"]) == ("ddl", query)
    assert second["after"] == {"id": 7, "e": "y"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n  "type": "record"\n}', "line 1 is not JSON"),
        ('[{"id": 1, "schema": "\\"int\\""}]', "line 1 is not a JSON object"),
        ('{"type": "record", "name": "r", "fields": []}', "line 1 is not a schema with its id"),
    ],
)
def test_a_schemas_file_of_another_form(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "one.avsc"
    file.write_text(text, encoding="utf-8")
    result = run("decode", "--protocol", "avro", "--schemas", str(file), "--input", "-", stdin="")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert f"--schemas {file}, {words}" in said
    assert 'Give JSON Lines with one schema per line: {"id": 1, "schema": …}' in said
    assert "`tidesink registry export` writes such a file" in said
