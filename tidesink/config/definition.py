"""A table definition in the config: SQL in place, or the name of a file that holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationInfo

from tidesink.config.fields import Model
from tidesink.ddl.catalog import TableDefinitions

Dialect = Literal["mysql", "postgres"]


class Definition(Model):
    """``CREATE TABLE`` text in the source's SQL; ``file`` says where it was read from."""

    sql: str
    file: str | None = None
    dialect: Dialect = "mysql"

    def declare_in(self, definitions: TableDefinitions, default_schema: str) -> None:
        """Declare what the text defines.

        Raises:
            ConfigError: the text cannot be read.
        """
        if self.dialect == "mysql":
            definitions.declare(self.sql, default_schema)
            return
        from tidesink.ddl.catalog import read_postgres_tables

        for schema in read_postgres_tables(self.sql, default_schema):
            definitions.put(schema)


class DefinitionFile(Model):
    """SQL kept in a file of its own."""

    file: str
    """Read from beside the config."""
    dialect: Dialect = "mysql"
    """Whose SQL it is."""


class DefinitionText(Model):
    """SQL in place, of another database than TiDB and MySQL."""

    sql: str
    """The CREATE TABLE statement."""
    dialect: Dialect = "mysql"
    """Whose SQL it is."""


def read_definition(value: Any, info: ValidationInfo) -> Any:
    """Text is the SQL itself, TiDB's or MySQL's; ``{file: path}`` is read from beside the config."""
    if isinstance(value, str):
        return {"sql": value}
    if not isinstance(value, dict) or "file" not in value or "sql" in value:
        return value
    path = ((info.context or {}).get("base") or Path()) / str(value["file"])
    try:
        return {**value, "sql": path.read_text(encoding="utf-8"), "file": str(path)}
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"give a readable file of SQL: {path} cannot be read") from error
