"""How much a table of Postgres or MySQL has room for: each limit once, for refusals, errors and plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.foreseen import Limit
from tidesink.sinks.targets.shape_checks import check_shape
from tidesink.sinks.targets.sql_stage import STAGED_BESIDES
from tidesink.typemap.render_sql import Database, key_bytes, shown_type

_LONG: Final = frozenset({"text", "bytea", "json", "longtext", "longblob", "varchar", "varbinary"})


class SqlLimits(NamedTuple):
    """Limits of a database's tables, by its manual; a contract test holds them to real servers.

    ``columns``: of one table. ``staged``: those of ours in a staging table, at the most. ``long_values``:
    texts and bytes that a row has room for, however long they are. ``key_bytes``: of the values of one key.
    ``too_long`` and ``too_long_key``: what becomes of more.
    """

    keeper: str
    columns: int
    staged: int
    long_values: int
    key_bytes: int
    too_long: str
    too_long_key: str

    @property
    def room(self) -> int:
        """How many columns a source's table can have, whatever its batches are like."""
        return self.columns - self.staged


POSTGRES_LIMITS: Final = SqlLimits(
    "Postgres",
    columns=1600,
    staged=len(STAGED_BESIDES["postgres"]),
    long_values=450,  # 18 bytes for each, of a page of 8 kB
    key_bytes=2704,
    too_long="a row of more long ones stops its table",
    too_long_key="a row with a longer one stops its table",
)
MYSQL_LIMITS: Final = SqlLimits(
    "MySQL",
    columns=1017,
    staged=len(STAGED_BESIDES["mysql"]),
    long_values=190,  # InnoDB reckons with 41 bytes for each, of half a page of 16 kB
    key_bytes=3072,
    too_long="MySQL makes no table of more (error 1118), and MariaDB none of more than some 360",
    too_long_key="a table whose keys may be longer is refused when it is made (error 1071)",
)


def check_sql_shape(shape: TableShape, limits: SqlLimits, quote: Callable[[str], str]) -> None:
    """Refuse a shape of which a database can make no table.

    Raises:
        SchemaRefusedError: it has no key, too many columns, or one with a name that is not to be had.
    """
    check_shape(shape)
    if len(shape.columns) > limits.room:
        raise SchemaRefusedError(
            f"the table has {len(shape.columns):,} columns, and {limits.room:,} are the most that "
            f"{limits.keeper} takes ({limits.columns:,}, of which tidesink's staging table may "
            f"need {limits.staged}): leave some out, by except_column_list or columns in the config",
            table=str(shape.source),
        )
    for column in shape.columns:
        try:
            quote(column.name)
        except SchemaRefusedError as refused:
            raise refused.with_context(table=str(shape.source), column=column.name) from None


def room_limits(shape: TableShape, limits: SqlLimits, database: Database) -> Iterator[Limit]:
    """What of a table may be too long: its rows, and its keys."""
    words = {column.name: shown_type(column, database).partition("(")[0] for column in shape.columns}
    if sum(word in _LONG for word in words.values()) > limits.long_values:
        yield Limit(
            "row-length",
            f"a row has room for some {limits.long_values} texts or bytes that are long: {limits.too_long}. "
            "except_column_list leaves some out",
        )
    if sum(key_bytes(column, database) for column in shape.key_columns) > limits.key_bytes:
        yield Limit(
            "key-length",
            f"a key has at most {limits.key_bytes:,} bytes: {limits.too_long_key}. keys in the config can "
            "name shorter columns",
            tuple(column.name for column in shape.key_columns),
        )
