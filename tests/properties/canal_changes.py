"""Canal-json messages, good and damaged, and what Spark and the Python codec each say of them."""

from __future__ import annotations

import json
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.spark.decoded import Decoded, Values, decode_here
from tests.spark.python_rows import stored
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.canal_json.envelope import objects
from tidesink.codecs.compression import decompressed
from tidesink.codecs.large_messages import LargeMessages
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions, parse_create_table
from tidesink.errors import DecodeError
from tidesink.events import ChangeEvent, Message, TableId
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.typemap.table import mysql_type_word
from tidesink.typemap.target_schema import shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE: Final = TableId("shop", "t")
SCHEMA: Final = parse_create_table(
    "CREATE TABLE shop.t (id INT PRIMARY KEY, ti TINYINT, bu BIGINT UNSIGNED, f FLOAT, d DOUBLE, "
    "de DECIMAL(6,2), wide DECIMAL(50,3), vc VARCHAR(20), bi VARBINARY(9), dt DATE, da DATETIME(3), "
    "ts TIMESTAMP, tm TIME, y YEAR, b BIT(9), e ENUM('x','y'), s SET('p','q','r'), j JSON)"
)
SHAPE: Final = shape_of(SCHEMA)
GOOD: Final[dict[str, str | None]] = {
    "id": "1", "ti": "-7", "bu": "18446744073709551615", "f": "0.1", "d": "1.5", "de": "-12.50",
    "wide": "1.500", "vc": 'a"\\{[:,<é', "bi": "\x00ÿ\n", "dt": "2020-02-29", "da": "2020-01-01 01:02:03.500",
    "ts": "2020-01-01 00:00:00", "tm": "-838:59:59", "y": "1999", "b": "511", "e": "2", "s": "5",
    "j": '{"a": 1}',
}  # fmt: skip
# Texts that some types take and others refuse, or that readers are known to differ on.
_TEXTS: Final = (
    None, "", " ", "0", "-0", "00", "007", "+1", " 1", "1 ", "-1", "1.0", "1.5", "1.555", "1e5", "127", "128",
    "-128", "-129", "512", "2147483648", "18446744073709551616", "9" * 25, "1" * 70, "3.5e38", "1e400", "NaN",
    "Infinity", "1_0", "１", "abc", "ā", "é", "0000-00-00", "0000-01-01", "2020-02-30", "2020-2-3",
    "2020-02-03",
    "2020-02-03 04:05:06", "2020-02-03T04:05:06", "2020-02-03 24:00:00", "0000-00-00 00:00:00", "12:00:00",
    "839:00:00", "99:60:00", "3", "4", "8", "null", "\n", "\\", '"', "\ud83d\ude00", "1\n", "12345.67", "٣",
)  # fmt: skip
_ODD: Final[tuple[object, ...]] = (
    None,
    True,
    5,
    -1.5,
    2**63,
    2**64,
    "",
    "x",
    [],
    {},
    [None],
    ["id"],
    [{}],
    [{"id": 1}],
    {"a": 1},
)
_MEMBERS: Final = (
    "id", "database", "table", "pkNames", "isDdl", "type", "es", "ts", "sql", "sqlType", "mysqlType", "old",
    "data", "_tidb",
)  # fmt: skip
_TYPES: Final = ("INSERT", "UPDATE", "DELETE", "QUERY", "TIDB_WATERMARK", "insert", "UPSERT")


def row_change(random: Random) -> dict[str, Any]:
    """The members of a good change."""
    row = {**GOOD, "id": str(random.randrange(4))}
    kind = random.choice(("INSERT", "UPDATE", "DELETE"))
    types = {column.name: mysql_type_word(column.type) for column in SCHEMA.columns}
    old = random.choice(({**row, "id": str(random.randrange(4))}, {"vc": "b"}, {}))
    return {
        "id": 0, "database": "shop", "table": "t", "pkNames": ["id"], "isDdl": False, "type": kind, "es": 1,
        "ts": 2, "sql": "", "sqlType": dict.fromkeys(row, 4), "mysqlType": types,
        "old": [old] if kind == "UPDATE" else None, "data": [row], "_tidb": {"commitTs": 470608476535259137},
    }  # fmt: skip


def _harm_value(message: dict[str, Any], random: Random) -> None:
    images = [
        image for image in (message.get("data"), message.get("old")) if isinstance(image, list) and image
    ]
    rows = [image[0] for image in images if isinstance(image[0], dict)]
    if rows:
        random.choice(rows)[random.choice(list(GOOD))] = random.choice((*_TEXTS, *_TEXTS, *_ODD))


def _harm_columns(message: dict[str, Any], random: Random) -> None:
    data = message.get("data")
    if not isinstance(data, list) or not data or not isinstance(data[0], dict):
        return
    row, name = data[0], random.choice(list(GOOD))
    match random.randrange(5):
        case 0:
            row.pop(name, None)
        case 1:
            row["new one"] = random.choice(_TEXTS)
        case 2:
            row[name.upper()] = row.pop(name, "1")
        case 3:
            data[0] = dict(random.sample(list(row.items()), len(row)))
        case _:
            data.append(dict(row, id="9"))
            message["old"] = [{}] * len(data) if message.get("old") else None


def _harm_member(message: dict[str, Any], random: Random) -> None:
    name = random.choice(_MEMBERS)
    match random.randrange(4):
        case 0:
            message.pop(name, None)
        case 1:
            message[random.choice((*_MEMBERS, "other"))] = message.pop(name, None)
        case 2:
            message["type"] = random.choice(_TYPES)
            message["isDdl"] = random.choice((True, False, None, "true"))
        case _:
            message[name] = random.choice(_ODD)


def _harm_extension(message: dict[str, Any], random: Random) -> None:
    member = random.choice(("commitTs", "watermarkTs", "onlyHandleKey", "claimCheckLocation", "rowkey"))
    message["_tidb"] = {"commitTs": 5, member: random.choice((*_ODD, "uri", True, 7))}


_HARMS: Final = (_harm_value, _harm_value, _harm_value, _harm_columns, _harm_member, _harm_extension)


def _harm_bytes(value: bytes, random: Random) -> bytes:
    at = random.randrange(len(value))
    piece = random.choice(
        (b"\xff", b"\x00", b'"', b"\\", b"{", b"]", b",", b" ", b"1", b"\n", b"\xc3", b"\\ud800")
    )
    forms = (
        value[:at], value[:at] + piece + value[at:], value[:at] + value[at + 1 :], value + piece,
        piece + value,
        value[:at] + piece + value[at + 1 :], value + b"\n" + value, value + value, b"", b"null", b"[]",
        b"\x04\x22\x4d\x18" + value, b"\xc8\x01\xf0\x63" + value, b"\xef\xbb\xbf" + value,
        value.replace(b'"data":', b'"data":null,"data":', 1), value.replace(b'"id":"', b'"id":"0","id":"', 1),
        value.replace(b'"data":[{"id":"', b'"data":[{"id":"0","id":"', 1),
    )  # fmt: skip
    return random.choice(forms)


def harmed(random: Random) -> bytes:
    """A change, more often damaged than not."""
    message = row_change(random)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        random.choice(_HARMS)(message, random)
    close = {"separators": (",", ":")} if random.random() < 0.85 else {"indent": 1}
    text = json.dumps(message, ensure_ascii=random.random() < 0.2, **close)
    value = text.encode("utf-8", "surrogatepass")
    return _harm_bytes(value, random) if random.random() < 0.3 else value


def decoded_in_spark(
    messages: list[Message], spark: SparkSession, options: CanalJsonOptions | None = None
) -> dict[int, list[Decoded]]:
    """As the worker does it."""
    plan = canal_json_plan(SCHEMA, options=options)
    found: dict[int, list[Decoded]] = defaultdict(list)
    for row in decode_here(plan, messages):
        found[row.offset].append(row)
    return found


def difference(message: Message, rows: list[Decoded], options: CanalJsonOptions | None = None) -> str | None:
    """What Spark says of a message that the Python codec does not; None where they agree."""
    if any(row.kind == "unplanned" for row in rows):
        return None if _has_new_column(message) else f"unplanned {rows[0].raw['_fields']}"
    verdicts = [_python(message, options), *_python_without_old(message, options)]
    reported = [_reported(row) for row in rows]
    return None if reported in verdicts else f"Spark {reported}\n Python {verdicts[0]}"


def _has_new_column(message: Message) -> bool:
    """Such a record is never judged by an old plan, whatever else is wrong with it."""
    rows = [row for line in objects(message.value, LargeMessages(CanalJsonOptions())) for row in line["data"]]
    return any(name.lower() not in SHAPE.by_name for row in rows for name in row)


def _reported(row: Decoded) -> Values:
    if row.kind not in ("upsert", "delete"):
        return {"kind": row.kind, "error": row.error}
    image = "key" if row.kind == "delete" else "after"
    values = {f"{image}.{name}": value for name, value in (getattr(row, image) or {}).items()}
    reported = {"kind": row.kind, "error": row.error, "commit_ts": row.commit_ts}
    # A column that the row lacks has no default here, so it is null.
    return reported | {name: value for name, value in values.items() if value is not None}


def _python(message: Message, options: CanalJsonOptions | None) -> list[Values]:
    codec = CanalJsonCodec(definitions=TableDefinitions([SCHEMA]), keys={TABLE: ["id"]}, options=options)
    try:
        events = codec.decode(message)
    except DecodeError as error:
        return [{"kind": "bad", "error": type(error).__name__}]
    reported = []
    for event in events:
        if not isinstance(event, ChangeEvent):
            reported.append({"kind": "ddl" if hasattr(event, "query") else "watermark", "error": None})
        elif any(name.lower() not in SHAPE.by_name for name in event.after or event.before or {}):
            reported.append({"kind": "unplanned"})
        elif (event.commit_ts or 0) >= 2**63:
            reported.append({"kind": "bad", "error": "ValueOutOfRangeError"})
        elif event.table != TABLE:
            reported.append({"kind": "bad", "error": "SchemaMismatchError"})
        else:
            row = stored(event, SHAPE)
            reported.append({n: v for n, v in row.items() if v is not None or n in ("error", "commit_ts")})
    return reported


def _python_without_old(message: Message, options: CanalJsonOptions | None) -> list[list[Values]]:
    """The verdict but for what stands in ``old`` beside the key: Spark makes nothing of those values."""
    try:
        value = message.value or b""
        parsed = json.loads(decompressed(value) or value)
        old = parsed["old"][0]
        parsed["old"] = [{name: old[name] for name in ("id",) if name in old}]
        value = json.dumps(parsed).encode()
    except (ValueError, KeyError, TypeError, IndexError, DecodeError):
        return []
    return [_python(Message(message.topic, message.partition, message.offset, None, value), options)]
