"""What an Iceberg table needs now and then: small files packed, old snapshots let go.

Every batch leaves a data file and a file of deletes, and a snapshot; a MERGE reads each file its keys may be
in, and each commit writes the list of all snapshots anew.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tidesink.sinks.targets.iceberg_table import JvmTable, TableState
from tidesink.sinks.targets.identifier import quote_text
from tidesink.sinks.targets.spark_errors import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A table is packed when it has this many files more than after the last time.
FILES_BETWEEN: Final = 50
# Snapshots are let go when there are this many; readers at work keep an hour of them, and the newest.
SNAPSHOTS_BETWEEN: Final = 300
SNAPSHOTS_KEPT: Final = 100
_HOUR_MS: Final = 3_600_000
_AGE: Final = "history.expire.max-snapshot-age-ms"


class Upkeep:
    """The upkeep of one table in a catalog."""

    def __init__(self, session: SparkSession, table: JvmTable) -> None:
        self._session, self._table = session, table
        self._files_before = 0
        self._snapshots_before = 0

    def run_if_due(self, state: TableState) -> bool:
        """Pack files and let snapshots go where many have gathered; whether anything was tried.

        What fails leaves the table as it was, and mostly means that somebody else commits: it is tried
        again after as many files or snapshots more.
        """
        pack = _files(state) >= self._files_before + FILES_BETWEEN
        expire = state.snapshot_count() >= self._snapshots_before + SNAPSHOTS_BETWEEN
        if not pack and not expire:
            return False
        try:
            if expire:
                _expire(state)
            if pack:
                self._session.sql(_pack_statement(self._table.location))
            state = self._table.state()
        except SPARK_ERRORS:
            pass
        self._files_before = _files(state) if pack else self._files_before
        self._snapshots_before = state.snapshot_count() if expire else self._snapshots_before
        return True


def _files(state: TableState) -> int:
    totals = state.totals()
    return totals.get("total-data-files", 0) + totals.get("total-delete-files", 0)


def _pack_statement(location: str) -> str:
    catalog, _, name = location.partition(".")
    return (
        f"CALL {catalog}.system.rewrite_data_files(table => {quote_text(name)}, "
        "options => map('remove-dangling-deletes', 'true'))"
    )


def _expire(state: TableState) -> None:
    """Let snapshots go that are older than the table's property says (an hour, where it says nothing)."""
    age = int(state.property(_AGE) or _HOUR_MS)
    expiry = state.table.expireSnapshots().expireOlderThan(int(time.time() * 1000) - age)
    expiry.retainLast(SNAPSHOTS_KEPT).commit()
