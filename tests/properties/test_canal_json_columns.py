"""``decode_batch`` of canal-json equals the row codec, whatever stands in a batch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoded_batches import as_records, assert_same
from tidesink.codecs.batch import DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.canal_json.columns import may_be_ddl
from tidesink.codecs.canal_json.scan import compacted
from tidesink.codecs.compression import compressed
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import Message

Json = dict[str, Any]

_WORDS: Final[dict[str, Json]] = {
    "a": {"id": "int", "n": "bigint unsigned", "d": "decimal", "t": "varchar", "b": "varbinary", "e": "enum"},
    "b": {"k1": "varchar", "k2": "date", "at": "datetime", "ts": "timestamp", "f": "double", "j": "json"},
}
_KEYS: Final = {"a": ["id"], "b": ["k1", "k2"]}
_TEXTS: Final = (
    "", "0", "-0", "007", "+1", " 1", "-1", "1.5", "12.50", "127", "18446744073709551615", "9" * 25, "1e400",
    "NaN", "abc", "é", "ÿ\x80", "ā", "0000-00-00", "2020-02-30", "2020-02-29", "2020-02-03 04:05:06",
    "0000-00-00 00:00:00", "2020-02-03 04:05:06.123456", "1", "2", "3", "null", "\n", "\x00", "\\", '"',
    '\\"',
    '","id":"5', '}],"_tidb":{"commitTs":1}}', '"data":[{', "😀", "\x7f", "\u2028", '{"a": [1, "x"]}', "٣",
)  # fmt: skip
_STATEMENTS: Final = (
    "CREATE TABLE `a` (`id` INT PRIMARY KEY, `n` BIGINT UNSIGNED, `d` DECIMAL(6,2), `t` VARCHAR(9), "
    "`b` VARBINARY(9), `e` ENUM('x','y'))",
    "ALTER TABLE `a` MODIFY COLUMN `e` ENUM('y','x')",
    "ALTER TABLE `a` MODIFY COLUMN `e` ENUM('y','x','z')",
    "ALTER TABLE `a` MODIFY COLUMN `d` DECIMAL(20,4)",
    "ALTER TABLE `a` ADD COLUMN `new` INT",
    "ALTER TABLE `a` DROP COLUMN `t`",
    "DROP TABLE `a`",
    "CREATE TABLE `b` (`k1` VARCHAR(9), `k2` DATE, `at` DATETIME(3), `ts` TIMESTAMP, `f` FLOAT, `j` JSON, "
    "PRIMARY KEY (`k1`, `k2`))",
    "no SQL at all (",
)  # fmt: skip
_GOOD: Final = {"id": "7", "k1": "x", "k2": "2024-01-02", "d": "1.25", "n": "5", "f": "1.5", "e": "2"}


def _row(random: Random, table: str) -> Json:
    """A row with a key, of usual values mostly."""
    row = {name: random.choice((None, _GOOD.get(name, "2020-02-03 04:05:06"))) for name in _WORDS[table]}
    row.update({name: _GOOD[name] for name in _KEYS[table]})
    for name in random.sample(list(row), random.choice((0, 0, 0, 1, 2))):
        row[name] = random.choice((None, *_TEXTS))
    return row


def _change(random: Random, number: int) -> Json:
    table = random.choice("aab")
    row, words = _row(random, table), _WORDS[table]
    kind = random.choice(("INSERT", "UPDATE", "DELETE"))
    if random.random() < 0.2:
        row["new"] = random.choice((None, "5"))
    before = {**row, **_row(random, table)}
    old = {name: before[name] for name in random.sample(list(before), random.randrange(len(before) + 1))}
    shuffled = random.sample(list(words.items()), len(words))
    return {
        "id": 0, "database": "s", "table": table, "pkNames": _KEYS[table], "isDdl": False, "type": kind,
        "es": 1_000_000 + number, "ts": random.choice((2, 1795449329656)), "sql": "",
        "sqlType": dict.fromkeys(row, 12), "mysqlType": dict(shuffled),
        "old": [random.choice((old, before))] if kind == "UPDATE" else None, "data": [row],
        **random.choice(({}, {"_tidb": {"commitTs": (1_000_000 + number) << 18}})),
    }  # fmt: skip


def _ddl(random: Random, number: int) -> Json:
    query = random.choice(_STATEMENTS)
    return {
        "id": 0, "database": "s", "table": "a", "pkNames": None, "isDdl": True, "type": "ALTER",
        "es": 1_000_000 + number, "ts": 1, "sql": query, "sqlType": None, "mysqlType": None, "data": None,
        "old": None, **random.choice(({}, {"_tidb": {"commitTs": (1_000_000 + number) << 18}})),
    }  # fmt: skip


def _watermark(random: Random, number: int) -> Json:
    return {
        "id": 0, "database": "", "table": "", "pkNames": None, "isDdl": False, "type": "TIDB_WATERMARK",
        "es": number, "ts": 1, "sql": "", "sqlType": None, "mysqlType": None, "data": None, "old": None,
        "_tidb": {"watermarkTs": number << 18},
    }  # fmt: skip


_ODD: Final[tuple[Any, ...]] = (
    None, True, 5, -1.5, 2**63, 2**64, "", "x", [], {}, [None], [{}], [{"id": 1}], [{"id": {"a": "1"}}],
    {"a": 1}, {"commitTs": None}, {"commitTs": -1}, {"commitTs": 2**63}, {"commitTs": 1e3},
    {"commitTs": 5, "rowkey": "dA=="}, {"commitTs": 5, "rowkey": None},
    {"commitTs": 5, "onlyHandleKey": True},
    {"commitTs": 5, "onlyHandleKey": False}, {"rowkey": "dA==", "commitTs": 5}, {"commitTs": "5"},
)  # fmt: skip


def _harmed(message: Json, random: Random) -> Json:
    """With a member or a value that no producer writes, or that only some do."""
    name = random.choice(list(message))
    rows = [rows[0] for rows in (message["data"], message["old"]) if rows]
    match random.randrange(7):
        case 0:
            message.pop(name)
        case 1:
            message[name] = random.choice(_ODD)
        case 2:
            message["_tidb"] = random.choice(_ODD)
        case 3:
            return dict(random.sample(list(message.items()), len(message)))
        case 4 if rows:
            row = random.choice(rows)
            row[random.choice((*_WORDS["a"], "other"))] = random.choice(_ODD)
        case 5 if rows:
            rows[0].pop(next(iter(rows[0])), None)
        case _:
            for member in ("data", "old"):
                message[member] = message[member] and message[member] * 2
    return message


def _spaced(value: bytes, random: Random) -> bytes:
    """A JSON text with white space anywhere between its tokens."""
    found, inside, escaped = bytearray(), False, False
    for one in value:
        structural = not inside and one in b'{}[]:,"'
        if structural:
            found += bytes(random.choices(b" \t\n\r", k=random.choice((0, 0, 1, 3))))
        found.append(one)
        inside, escaped = (inside != (one == ord('"') and not escaped)), inside and one == 92 and not escaped
        if not inside and one in b'{}[]:,"':
            found += bytes(random.choices(b" \t\n\r", k=random.choice((0, 0, 1, 3))))
    return bytes(found)


def _bytes(message: Json, random: Random) -> bytes:
    ascii_only = random.random() < 0.3
    compact = json.dumps(message, ensure_ascii=ascii_only, separators=(",", ":")).encode()
    match random.randrange(12):
        case 0:
            return json.dumps(message, ensure_ascii=ascii_only).encode()
        case 1:
            return json.dumps(message, ensure_ascii=ascii_only, indent=random.choice((1, "\t"))).encode()
        case 2:
            return _spaced(compact, random)
        case _:
            return compact


_PIECES: Final = (
    b"\xff",
    b"\x00",
    b'"',
    b"\\",
    b"{",
    b"]",
    b",",
    b" ",
    b"1",
    b"\n",
    b"\xc3",
    b"\\ud800",
    b"null",
)


def _harmed_bytes(value: bytes, random: Random) -> bytes:
    at, piece = random.randrange(len(value) + 1), random.choice(_PIECES)
    twice = value.replace(b'"data":', b'"data":null,"data":', 1)
    return random.choice(
        (
            value[:at], value[:at] + piece + value[at:], value[:at] + piece + value[at + 1 :],
            value[:at] + value[at + 1 :], value + piece, piece + value, value + b"\n" + value, value + value,
            value + b"\n", value + b"\r\n", b"", b"null", b"[]", b"\xef\xbb\xbf" + value, twice,
            value.replace(b'"id":"', b'"id":"0","id":"', 1), value.replace(b'"es":', b'"es":5,"es":', 1),
            value.replace(b'"isDdl":false', b'"isDdl":false,"isDd\\u006c":true', 1),
            compressed(value, "lz4"), compressed(value, "snappy"), compressed(value, "lz4")[:-3],
        )
    )  # fmt: skip


def _codecs() -> tuple[CanalJsonCodec, CanalJsonCodec]:
    return CanalJsonCodec(), CanalJsonCodec()


def _value(random: Random, number: int) -> bytes | None:
    make = random.choices((_change, _ddl, _watermark), (12, 1, 1))[0]
    message = make(random, number)
    if random.random() < 0.1:
        message = _harmed(message, random)
    value = _bytes(message, random)
    if random.random() < 0.1:
        return _harmed_bytes(value, random)
    return value if random.random() < 0.98 else None


def _both(values: list[bytes | None], codec: CanalJsonCodec, reference: CanalJsonCodec) -> DecodedBatch:
    records = as_records(Message("t", 3, at, None, value) for at, value in enumerate(values))
    found = codec.decode_batch(records)
    assert_same(found, rows_from_events(records, reference.decode, ValueOptions()))
    return found


@settings(max_examples=60, deadline=None)
@given(
    random=st.randoms(use_true_random=False),
    count=st.integers(1, 40),
    cut=st.integers(0, 40),
    known=st.booleans(),
)
def test_any_stream_is_read_as_by_the_row_codec(random: Random, count: int, cut: int, known: bool) -> None:
    """In two batches of one codec, with DDL, damaged records, and other forms among them."""

    def codec() -> CanalJsonCodec:
        definitions = TableDefinitions()
        for statement in (_STATEMENTS[0], _STATEMENTS[7]) if known else ():
            definitions.apply(statement, "s", since=1)
        return CanalJsonCodec(definitions=definitions)

    values = [_value(random, number) for number in range(count)]
    ours, reference = codec(), codec()
    for part in (values[:cut], values[cut:]):
        _both(part, ours, reference)
    assert ours.unread_ddl == reference.unread_ddl
    assert ours.definitions.to_json() == reference.definitions.to_json()


def _sample(kind: str = "UPDATE") -> bytes:
    row = {"id": "7", "n": None, "d": "1.25", "t": 'é"\\\n', "b": "\x00ÿ", "e": "1"}
    message = {
        "id": 0, "database": "s", "table": "a", "pkNames": ["id"], "isDdl": False, "type": kind, "es": 17,
        "ts": 0, "sql": "", "sqlType": {"id": 4}, "mysqlType": _WORDS["a"],
        "old": [{"t": "😀", "n": "5"}] if kind == "UPDATE" else None, "data": [row],
        "_tidb": {"commitTs": 4711},
    }  # fmt: skip
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


_DAMAGES: Final[tuple[Callable[[bytes, int], bytes], ...]] = (
    lambda value, at: value[:at],
    lambda value, at: value[:at] + value[at + 1 :],
    lambda value, at: value[:at] + value[at : at + 1] + value[at:],
    lambda value, at: value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :],
    lambda value, at: value[:at] + bytes([value[at] ^ 0x80]) + value[at + 1 :],
    *(
        lambda value, at, one=one: value[:at] + bytes([one]) + value[at + 1 :]
        for one in b'"\\:,}]{[n0 \n\xff'
    ),
    *(lambda value, at, one=one: value[:at] + bytes([one]) + value[at:] for one in b'"\\,}n0'),
)


@pytest.mark.parametrize("kind", ["INSERT", "UPDATE", "spaced UPDATE"])
def test_damage_at_every_place_of_a_record(kind: str) -> None:
    random = Random(3)
    good = _sample(kind.removeprefix("spaced "))
    if kind.startswith("spaced"):
        good = json.dumps(json.loads(good), ensure_ascii=False).encode()
    values: list[bytes | None] = []
    for at in range(len(good)):
        values += [damage(good, at) for damage in _DAMAGES if random.random() < 0.3]
        values.append(good)
    found = _both(values, *_codecs())
    assert found.row_by_row_records < len(values) - len(good)


def test_two_records_that_share_a_damage() -> None:
    """A text that ends in the next record, and structure that only both records together have."""
    good = _sample()
    for at in range(0, len(good), 9):
        _both(
            [good[:at], good[at:], good, good[:at] + good, good[:at], good],
            CanalJsonCodec(),
            CanalJsonCodec(),
        )


def test_usual_records_are_all_proven() -> None:
    values = [_sample(kind) for kind in ("INSERT", "UPDATE", "DELETE") for _ in range(4)]
    assert _both([*values], *_codecs()).row_by_row_records == 0


@pytest.mark.parametrize("style", ["spaces", "indented", "anywhere", "in some"])
def test_records_with_white_space_are_all_proven(style: str) -> None:
    random, values = Random(4), list[bytes]()
    for number in range(60):
        good = _sample(random.choice(("INSERT", "UPDATE", "DELETE")))
        parsed = json.loads(good)
        match style:
            case "spaces":
                values.append(json.dumps(parsed, ensure_ascii=False).encode())
            case "indented":
                values.append(json.dumps(parsed, ensure_ascii=False, indent=2).encode() + b"\r\n")
            case _:
                some = style == "in some" and number % 7
                values.append(good if some else _spaced(good, random))
    assert _both([*values], *_codecs()).row_by_row_records == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"commitTs":4711', b'"commitTs":47 11'),
        (b'"commitTs":4711', b'"commitTs": 4711 '),
        (b'"n":null', b'"n":nu ll'),
        (b'"es":17', b'"es":1 7'),
        (b'"isDdl":false', b'"isDdl":fal\nse'),
        (b'"t":"', b'"t":"a" "'),
        (b'"t":"', b'"t" "u":"'),
        (b'"t":"', b'"t": "  '),
        (b'"type":"INSERT"', b'"type":"INS ERT"'),
        (b',"data"', b' "data"'),
        (b"}", b"} {"),
        (b'"id":0', b'"id":\x0c0'),
        (b'"id":0', b'"id":\xc2\xa00'),
    ],
)
def test_white_space_in_the_wrong_place_is_no_other_value(before: bytes, after: bytes) -> None:
    good = _sample("INSERT")
    odd = good.replace(before, after, 1)
    assert odd != good
    spaced = json.dumps(json.loads(good), ensure_ascii=False).encode()
    _both([odd, good, spaced, odd + b" ", b" " + odd, spaced], *_codecs())


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\n\r]+', re.DOTALL)
_SPACE: Final = st.text(" \t\n\r", max_size=3).map(str.encode)
_NUMBER: Final = st.sampled_from(
    (
        b"1.0",
        b"1e400",
        b"-0",
        b"-0.0",
        b"1.50",
        b"1E+05",
        b"9" * 40,
        b"-1e-400",
        b"0.1",
        b"18446744073709551616",
    )
)
_STRING: Final = st.one_of(
    st.text(max_size=9).map(lambda text: json.dumps(text).encode()),
    st.text(max_size=9).map(lambda text: json.dumps(text, ensure_ascii=False).encode()),
    st.sampled_from((b'"\\\\"', b'"\\\\\\""', b'" , : { "', b'"\\/\\u0041"', b'"\xff"', b'"\\ud83d\\ude00"')),
)  # fmt: skip
_KEY: Final = st.one_of(st.just(b'"a"'), _STRING)


def _nested(inner: st.SearchStrategy[list[bytes]]) -> st.SearchStrategy[list[bytes]]:
    """The tokens of lists and of objects, in which a key may be there twice."""
    member = st.builds(lambda key, value: [key, b":", *value], _KEY, inner)

    def joined(parts: list[list[bytes]], begin: bytes, end: bytes) -> list[bytes]:
        some = [token for part in parts for token in (b",", *part)][1:]
        return [begin, *some, end]

    lists = st.builds(joined, st.lists(inner, max_size=4), st.just(b"["), st.just(b"]"))
    return lists | st.builds(joined, st.lists(member, max_size=4), st.just(b"{"), st.just(b"}"))


_TOKENS: Final = st.recursive(
    (_NUMBER | _STRING | st.sampled_from((b"null", b"true", b"false"))).map(lambda one: [one]),
    _nested,
    max_leaves=12,
)


@st.composite
def _json_texts(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A JSON text with white space anywhere between its tokens, and the same without it."""
    tokens = draw(_TOKENS)
    return draw(_SPACE) + b"".join(token + draw(_SPACE) for token in tokens), b"".join(tokens)


@settings(max_examples=200, deadline=None)
@given(st.lists(_json_texts(), min_size=1, max_size=5), st.integers(0, 4), st.booleans())
def test_white_space_is_taken_out_and_nothing_else(
    texts: list[tuple[bytes, bytes]], start: int, large: bool
) -> None:
    kind = pa.large_binary() if large else pa.binary()
    values = pa.array([None, *(spaced for spaced, _ in texts), b""], kind).slice(start)
    expected = [None, *(tight for _, tight in texts), b""][start:]
    found = compacted(values)
    assert (values if found is None else found).to_pylist() == expected


@settings(max_examples=200, deadline=None)
@given(_json_texts(), st.randoms(use_true_random=False))
def test_a_value_that_is_not_json_keeps_its_white_space(text: tuple[bytes, bytes], random: Random) -> None:
    value = _harmed_bytes(text[0], random)
    try:
        # Each byte is one character, since msgspec leaves UTF-8 to those who read the texts.
        json.loads(value.decode("latin-1"), parse_constant=_refused)
    except ValueError:
        expected = {value}
    else:
        whole = _TOKEN.sub(lambda one: "" if one[0][0] != '"' else one[0], value.decode("latin-1"))
        # Of a surrogate alone it says that it is no JSON.
        expected = {whole.encode("latin-1")} | ({value} if b"\\ud" in value.lower() else set())
    found = compacted(pa.array([value]))
    assert (value if found is None else found[0].as_py()) in expected


def _refused(word: str) -> None:
    raise ValueError(word)


def test_what_separates_two_values_stays_and_so_does_all_that_nests_too_deep() -> None:
    odd = [
        b"1 2",
        b'"a" "b"',
        b"nu ll",
        b'{"a": 1 2}',
        b" ",
        b'{ "a',
        b'{"a": 01 }',
        b"{ }{ }",
        b'["\\" ]',
        b"[NaN ]",
    ]
    odd.append(b"[ " * 100_000 + b"]" * 100_000)
    assert compacted(pa.array(odd)) is None
    assert compacted(pa.array([b"{}", None], pa.binary())) is None
    mixed = compacted(pa.array([*odd, b"[ 1.0 ]"]))
    assert mixed is not None
    assert mixed.to_pylist() == [*odd, b"[1.0]"]


def test_texts_with_escapes_and_beyond_the_first_plane_are_proven() -> None:
    random = Random(1)
    texts = [text for text in _TEXTS if text]
    messages = []
    for text in texts:
        message = _change(random, 1) | {"type": "INSERT", "old": None, "table": "a", "mysqlType": _WORDS["a"]}
        messages.append(message | {"pkNames": ["id"], "data": [{"id": "1", "t": text}]})
    for ascii_only in (True, False):
        values = [json.dumps(m, ensure_ascii=ascii_only, separators=(",", ":")).encode() for m in messages]
        assert _both([*values], *_codecs()).row_by_row_records == 0


def test_a_record_that_may_be_ddl_is_never_taken_for_a_row() -> None:
    for value in (
        b'{"isDdl":true}', b'{"isDd\\u006c":true,"isDdl":false}', b'{"isDdl":false}\n{"isDdl":true}',
        b'{"isDdl" :true}', b"\x04\x22\x4d\x18", b"[]", b'{"isDdl":false,"isDdl":true}', b'{"a":1}',
    ):  # fmt: skip
        assert may_be_ddl(value)
    assert not may_be_ddl(b'{"isDdl":false,"type":"TIDB_WATERMARK"}')


def test_many_tables_many_lengths() -> None:
    """More forms of heads than are looked for one by one, and rows of one table between them."""
    random = Random(2)
    values: list[bytes | None] = []
    for number in range(90):
        message = _change(random, number)
        message["table"] = "t" * (number % 40 + 1)
        values.append(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode())
    _both(values, *_codecs())


def test_slices_and_large_binary_are_read_alike() -> None:
    values = [_sample("INSERT"), None, _sample("DELETE"), b"{", _sample("UPDATE")] * 3
    whole = pa.table({"value": pa.array(values, pa.large_binary())})
    chunked = pa.table({"value": pa.chunked_array([pa.array(values[:4]), pa.array(values[4:])])})
    for records in (whole, whole.slice(2, 9), chunked, chunked.slice(3)):
        found = CanalJsonCodec().decode_batch(records)
        assert_same(found, rows_from_events(records, CanalJsonCodec().decode, ValueOptions()))
