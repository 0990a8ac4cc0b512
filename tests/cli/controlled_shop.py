"""A pipeline as a worker left it in the state store, and a person's ``tidesink`` over it."""

from __future__ import annotations

from pathlib import Path

import yaml
from typer.testing import CliRunner

from tests.unit.config.samples import FLAT_AVRO, changed
from tidesink.cli.main import app
from tidesink.events import TableId
from tidesink.sinks.runtime.control import NOTHING_ASKED, TableControl, read_controls
from tidesink.sinks.schema_changes.decisions import Pending, SchemaChange
from tidesink.sinks.state.progress import TableState, TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore

ORDERS = TableId("shop", "orders")
ADDED = Pending(SchemaChange("add", "label", after="varchar(9)"), ("apply", "ignore"))


class Shop:
    """A pipeline whose worker left some statuses."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.yaml"
        self.path.write_text(yaml.safe_dump(changed(FLAT_AVRO, state=str(folder / "state.db"))))
        self.store = SqlStateStore(str(folder / "state.db"))

    def waits(self, *pending: Pending, table: TableId = ORDERS) -> None:
        """Have a table wait for changes; for none, go on."""
        details = {"topic": "shop_orders", "pending": [one.as_json() for one in pending]}
        state: TableState = "PAUSED" if pending else "IDLE"
        self.store.save_status(TableStatus("shop", table, state, details=details))

    def run(self, *words: str) -> tuple[int, str]:
        """What a command exits with, and says."""
        found = CliRunner().invoke(app, [*words, "-c", str(self.path)])
        return found.exit_code, found.output

    def asked(self, table: TableId = ORDERS) -> TableControl:
        """What is asked of a table."""
        return read_controls(self.store, "shop").get(table, NOTHING_ASKED)
