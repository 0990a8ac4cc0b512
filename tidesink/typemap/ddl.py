"""Table definitions from SQL: one statement, or a stream of them."""

from __future__ import annotations

from tidesink.errors import ConfigError
from tidesink.events import TableSchema
from tidesink.typemap.ddl_create import read_create_table, skip_create_table
from tidesink.typemap.definitions import TableDefinitions
from tidesink.typemap.sql_lexer import tokens
from tidesink.typemap.sql_reader import SqlReader

__all__ = ["TableDefinitions", "parse_create_table"]


def parse_create_table(sql: str, *, default_schema: str = "") -> TableSchema:
    """The table a CREATE TABLE statement makes.

    Raises:
        ConfigError: this is no CREATE TABLE statement, or not to be read.
    """
    reader = SqlReader(tokens(sql))
    if not skip_create_table(reader):
        raise ConfigError(f"expected a CREATE TABLE statement, not {sql[:40]!r}")
    return read_create_table(reader, default_schema).schema()
