"""Records to decode, and how the tests call the commands."""

from __future__ import annotations

import base64
import json
from typing import Any

from typer.testing import CliRunner, Result

from tidesink.cli.main import app

KEY_SCHEMA = {
    "type": "record",
    "name": "t",
    "namespace": "default.shop",
    "fields": [{"name": "id", "type": {"type": "int", "connect.parameters": {"tidb_type": "INT"}}}],
}
VALUE_SCHEMA = {
    **KEY_SCHEMA,
    "fields": [
        *KEY_SCHEMA["fields"],
        {"name": "f", "type": {"type": "float", "connect.parameters": {"tidb_type": "FLOAT"}}},
        {"name": "b", "type": {"type": "bytes", "connect.parameters": {"tidb_type": "BLOB"}}},
        {
            "name": "d",
            "type": {
                "type": "bytes",
                "connect.parameters": {"tidb_type": "DECIMAL"},
                "logicalType": "decimal",
                "precision": 10,
                "scale": 4,
            },
        },
        {"name": "u", "type": {"type": "long", "connect.parameters": {"tidb_type": "BIGINT UNSIGNED"}}},
    ],
}
# id 7; 0.1 as a 32-bit float; bytes 01 02; -0.0001; 2^64-1
KEY = bytes.fromhex("0000000101" + "0e")
VALUE = bytes.fromhex("0000000102" + "0e" + "cdcccc3d" + "040102" + "02ff" + "01")
CANAL = {
    "id": 0,
    "database": "shop",
    "table": "t",
    "pkNames": ["id"],
    "isDdl": False,
    "type": "INSERT",
    "es": 1,
    "ts": 2,
    "sql": "",
    "sqlType": {"id": 4, "e": 4},
    "mysqlType": {"id": "int", "e": "enum"},
    "old": None,
    "data": [{"id": "7", "e": "2"}],
}


def run(*args: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(args), input=stdin)


def capture(key: bytes | None, value: bytes | None, offset: int = 17, topic: str = "shop_t") -> str:
    parts = {"key_b64": key, "value_b64": value}
    encoded = {
        name: None if part is None else base64.b64encode(part).decode() for name, part in parts.items()
    }
    return json.dumps({"topic": topic, "partition": 0, "offset": offset, "extra": 1, **encoded}) + "\n"


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def said(*args: str, code: int = 0) -> Any:
    """What a command of ``tidesink registry`` prints as JSON."""
    result = run("registry", *args, "-o", "json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)
