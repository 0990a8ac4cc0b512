"""How the ledgers are made in MySQL and MariaDB, and what one of an earlier version is given."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from tidesink.config.models import LONGEST_SHARD
from tidesink.sinks.targets.mysql_errors import code_of

_ADDED_BY_ANOTHER: Final = "1060"
_AFTER_THE_KEY: Final = MappingProxyType(
    {
        "source_table": "longtext NOT NULL",
        "pipeline": "longtext NOT NULL",
        "epoch": "bigint NOT NULL",
        "txn_version": "bigint NOT NULL",
        "progress": "longtext",
        "key_columns": "longtext NOT NULL",
        "result": "longtext",
        "commits": "bigint NOT NULL",
        "horizon": "bigint",
        "table_identity": "longtext",
        "updated_at": "timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP",
    }
)
_NAME: Final = "varchar(64) NOT NULL"
# The columns of the ledger, with their types.
LEDGER_COLUMNS: Final[Mapping[str, str]] = MappingProxyType({"table_name": _NAME, **_AFTER_THE_KEY})
# The columns of the ledger of tables that several source tables share.
SHARDS_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "table_name": _NAME,
        "shard": f"varchar({LONGEST_SHARD}) NOT NULL",
        "known_columns": "longtext",
        **_AFTER_THE_KEY,
    }
)


def prepare_ledger(
    cursor: Any, location: str, present: Mapping[str, str], columns: Mapping[str, str], collation: str
) -> None:
    """Make a ledger, or give one of an earlier version the columns that there were not: they take NULL."""
    if not present:
        spelt = ", ".join(f"{name} {found}" for name, found in columns.items())
        keys = ", ".join(name for name in ("table_name", "shard") if name in columns)
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {location} ({spelt}, PRIMARY KEY ({keys})) "
            f"ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"
        )
        return
    for name, found in columns.items():
        if name not in present and "NOT NULL" not in found:
            _add(cursor, f"ALTER TABLE {location} ADD COLUMN {name} {found}")


def _add(cursor: Any, statement: str) -> None:
    """MySQL's ADD COLUMN has no IF NOT EXISTS."""
    try:
        cursor.execute(statement)
    except cursor.connection.Error as exc:
        if code_of(exc) != _ADDED_BY_ANOTHER:
            raise
