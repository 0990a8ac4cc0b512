"""The bank's tables at a target, looked at beside the worker that keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.e2e.bank import ACCOUNT, LASTING, SCHEMAS, Bank, Key, key_of
from tests.e2e.places import Place, Rows
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tidesink.change import TableSchema

# The codec that each target is fed by here: both of TiCDC's own, each into a lake and into a database.
PROTOCOLS: Final = {
    "delta": "flat-avro",
    "iceberg": "canal-json",
    "postgres": "canal-json",
    "mysql": "flat-avro",
}


def bank_config(folder: Path, servers: Servers, place: Place, protocol: str, *, batch: int) -> Path:
    """Every table of the bank, all tables at once, in batches of so many records."""
    path = shop_config(folder, servers, {"target": place.target, "batch": {"max-records": batch}})
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["source"]["protocol"] = protocol
    if protocol != "flat-avro":
        del settings["source"]["schema-registry"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


class Watch:
    """Looks at a target while workers come and go: no account twice, none missing, none going back."""

    def __init__(self, place: Place) -> None:
        self.looks = 0
        self._place = place
        self._versions: dict[int, int] = {}

    def look(self) -> None:
        """One look at the accounts, and at the keys of every table."""
        for schema in SCHEMAS:
            rows = self._place.rows(schema.table)
            if rows is not None:
                self._check(schema, rows)

    def _check(self, schema: TableSchema, rows: Rows) -> None:
        found = by_key(schema, rows)
        if schema is not ACCOUNT:
            return
        self.looks += 1
        versions = {number: found[(number,)]["version"] for number in LASTING if (number,) in found}
        assert self._versions.keys() <= versions.keys(), "an account is missing"
        for number, version in versions.items():
            assert version >= self._versions.get(number, 0), f"account {number} went back"
        self._versions = versions


def by_key(schema: TableSchema, rows: Rows) -> dict[Key, dict[str, Any]]:
    """Rows by key, each once."""
    found = {key_of(schema, row): row for row in rows}
    assert len(found) == len(rows), f"{schema.table}: a row is there twice"
    return found


def check_end(place: Place, bank: Bank) -> None:
    """The target holds what the bank does: every row, every total."""
    found = {s.table.name: by_key(s, place.rows(s.table) or []) for s in SCHEMAS}
    assert found == bank.rows
    assert sum(row["balance"] for row in found["account"].values()) == bank.total
    assert sum(row["amount"] for row in found["entry"].values()) == bank.total
