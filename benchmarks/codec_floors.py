"""The floors: what somebody writes by hand for this one table, knowing all of its columns beforehand.

No floor checks anything, none knows NULL, another table, or a message of another kind, and none makes
anything but the row. Each one gives the same values of the same Python types as the codec.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any, Final

import fastavro
import orjson

from benchmarks.turns import Turn
from tidesink.codecs.framing import HEADER_SIZE
from tidesink.events import ChangeEvent, Message

_EPOCH: Final = datetime(1970, 1, 1)
_TYPES: Final = {
    "sqlType": {"id": -5, "amount": 4, "total": -5, "name": 12, "note": 12, "ratio": 8, "price": 3, "at": 93}
    | {"digest": 2004, "flag": -6},
    "mysqlType": {"id": "bigint", "amount": "int", "total": "bigint", "name": "varchar", "note": "varchar"}
    | {"ratio": "double", "price": "decimal", "at": "datetime", "digest": "varbinary", "flag": "tinyint"},
}


def canal_row(value: bytes) -> dict[str, Any]:
    """``orjson.loads`` and the conversion of each column that is no text."""
    row: dict[str, Any] = orjson.loads(value)["data"][0]
    row["id"] = int(row["id"])
    row["amount"] = int(row["amount"])
    row["total"] = int(row["total"])
    row["ratio"] = float(row["ratio"])
    row["price"] = Decimal(row["price"])
    row["digest"] = row["digest"].encode("latin-1")
    row["flag"] = int(row["flag"])
    return row


def canal_value(row: Mapping[str, Any], commit_ts: int) -> bytes:
    """The conversion of each column that is no text, and ``orjson.dumps``."""
    return orjson.dumps(
        {
            "id": 0,
            "database": "bench",
            "table": "events",
            "pkNames": ["id"],
            "isDdl": False,
            "type": "INSERT",
            "es": commit_ts >> 18,
            "ts": commit_ts >> 18,
            "sql": "",
            **_TYPES,
            "old": None,
            "data": [
                {
                    "id": str(row["id"]),
                    "amount": str(row["amount"]),
                    "total": str(row["total"]),
                    "name": row["name"],
                    "note": row["note"],
                    "ratio": repr(row["ratio"]),
                    "price": str(row["price"]),
                    "at": row["at"],
                    "digest": row["digest"].decode("latin-1"),
                    "flag": str(row["flag"]),
                }
            ],
            "_tidb": {"commitTs": commit_ts},
        }
    )


def debezium_row(key: bytes, value: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """``orjson.loads`` of the key and the value, and the conversion of the columns that JSON has not."""
    row: dict[str, Any] = orjson.loads(value)["payload"]["after"]
    row["at"] = str(_EPOCH + timedelta(milliseconds=row["at"]))
    row["digest"] = b64decode(row["digest"])
    found: dict[str, Any] = orjson.loads(key)["payload"]
    return found, row


class DebeziumText:
    """``orjson.dumps`` of both payloads, with the schemas' text at hand from a sample of the codec's."""

    def __init__(self, key: bytes, value: bytes) -> None:
        self._source = orjson.loads(value)["payload"]["source"]
        self._tails = [part[part.index(b',"schema":') :] for part in (key, value)]

    def record(self, row: Mapping[str, Any], commit_ts: int) -> tuple[bytes, bytes]:
        """The key and the value of one inserted row."""
        moment = (datetime.fromisoformat(row["at"]) - _EPOCH) // timedelta(milliseconds=1)
        payload = {
            "source": {**self._source, "ts_ms": commit_ts >> 18, "commit_ts": commit_ts},
            "ts_ms": commit_ts >> 18,
            "transaction": None,
            "op": "c",
            "before": None,
            "after": {
                **row,
                "price": float(row["price"]),
                "at": moment,
                "digest": b64encode(row["digest"]).decode(),
            },
        }
        head, (key_tail, value_tail) = b'{"payload":', self._tails
        return (
            head + orjson.dumps({"id": row["id"]}) + key_tail,
            head + orjson.dumps(payload) + value_tail,
        )


def avro_reader(schemas: Sequence[Any], messages: Iterable[Message]) -> Turn:
    """``fastavro.schemaless_reader`` of the key and the value, with the schemas as the registry has them."""
    key_schema, value_schema = schemas
    pairs = [(message.key or b"", message.value or b"") for message in messages]

    def read() -> None:
        for key, value in pairs:
            fastavro.schemaless_reader(BytesIO(key[HEADER_SIZE:]), key_schema, None)
            fastavro.schemaless_reader(BytesIO(value[HEADER_SIZE:]), value_schema, None)

    return read


def avro_writer(schemas: Sequence[Any], records: Iterable[tuple[Any, Any]]) -> Turn:
    """``fastavro.schemaless_writer`` of keys and values that are ready to be written, with the header."""
    made = list(records)

    def write() -> None:
        for record in made:
            for schema, part in zip(schemas, record, strict=True):
                stream = BytesIO()
                stream.write(b"\0\0\0\0\1")
                fastavro.schemaless_writer(stream, schema, part)
                stream.getvalue()

    return write


def flat_records(events: Iterable[ChangeEvent]) -> list[tuple[Any, Any]]:
    """What ``avro_writer`` needs of flat-avro: the row is the key and the value."""
    rows = [dict(event.after or {}) for event in events]
    return [(row, row) for row in rows]


def debezium_records(schemas: Sequence[Any], messages: Iterable[Message]) -> list[tuple[Any, Any]]:
    """What ``avro_writer`` needs of debezium-avro: the envelopes, read back from the codec's own messages."""
    return [(_read(message.key, schemas[0]), _read(message.value, schemas[1])) for message in messages]


def _read(data: bytes | None, schema: Any) -> Any:
    return fastavro.schemaless_reader(BytesIO((data or b"")[HEADER_SIZE:]), schema, None)
