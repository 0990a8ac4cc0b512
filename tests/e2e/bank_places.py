"""The bank's tables at a target, looked at beside the worker that keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.e2e.bank import ACCOUNT, LASTING, SCHEMAS, Bank, Key, key_of
from tests.e2e.places import Place, Rows
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tidesink.codecs.base import CodecOptions
from tidesink.events import SequenceBy, TableSchema
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN


class Way(NamedTuple):
    """How the bank's changes come to a target, and whose order they are applied in."""

    protocol: str
    sequence_by: SequenceBy = "kafka"

    @property
    def options(self) -> CodecOptions:
        """The source's order needs a commit_ts in every message."""
        return CodecOptions(enable_tidb_extension=self.sequence_by == "source")


# Both codecs of TiCDC's own and both orders, each into a lake and into a database.
WAYS: Final = {
    "delta": Way("flat-avro"),
    "iceberg": Way("canal-json", "source"),
    "postgres": Way("canal-json", "source"),
    "mysql": Way("flat-avro"),
}


def bank_config(folder: Path, servers: Servers, place: Place, way: Way, *, batch: int) -> Path:
    """Every table of the bank, all tables at once, in batches of so many records."""
    more = {"target": place.target, "batch": {"max-records": batch}}
    path = shop_config(folder, servers, {**more, "defaults": {"sequence_by": way.sequence_by}})
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["source"]["protocol"] = way.protocol
    settings["source"]["enable-tidb-extension"] = way.options.enable_tidb_extension
    if way.protocol != "flat-avro":
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
    """The rows that a reader is meant to see by their key, each key once in the table."""
    names = [column.name for column in schema.columns]
    keys = {key_of(schema, row) for row in rows}
    assert len(keys) == len(rows), f"{schema.table}: a row is there twice"
    living = [row for row in rows if not row.get(SOFT_DELETE_COLUMN)]
    return {key_of(schema, row): {name: row[name] for name in names} for row in living}


def check_end(place: Place, bank: Bank) -> None:
    """The target holds what the bank does: every row, every total."""
    found = {s.table.name: by_key(s, place.rows(s.table) or []) for s in SCHEMAS}
    assert found == bank.rows
    assert sum(row["balance"] for row in found["account"].values()) == bank.total
    assert sum(row["amount"] for row in found["entry"].values()) == bank.total
