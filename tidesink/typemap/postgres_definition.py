"""Postgres' CREATE TABLE as a table's columns, for topics that do not tell types (JSON without schemas).

The types are those that Debezium's PostgreSQL connector (3.5) writes them as. A type that Postgres' own
catalog does not have by that name (an enum, a domain, a composite) is text: name its base type instead
where it is another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import ConfigError
from tidesink.events import Column, ColumnType, TableId, TableSchema

if TYPE_CHECKING:
    from sqlglot import exp

# By sqlglot's name of the type.
_TYPES: Final[Mapping[str, ColumnType]] = {
    **dict.fromkeys(("SMALLINT", "SMALLSERIAL"), ColumnType("smallint")),
    **dict.fromkeys(("INT", "SERIAL"), ColumnType("int")),
    **dict.fromkeys(("BIGINT", "BIGSERIAL"), ColumnType("bigint")),
    "MONEY": ColumnType("decimal", precision=19, scale=2),
    "FLOAT": ColumnType("float"),
    "DOUBLE": ColumnType("double"),
    "BOOLEAN": ColumnType("boolean"),
    "VARBINARY": ColumnType("blob"),
    "DATE": ColumnType("local date"),
    "TIME": ColumnType("time", fsp=6),
    "TIMETZ": ColumnType("zoned time"),
    "TIMESTAMP": ColumnType("local datetime", fsp=6),
    "TIMESTAMPTZ": ColumnType("instant"),
    "INTERVAL": ColumnType("interval"),
    "HSTORE": ColumnType("map"),
    "ARRAY": ColumnType("array"),
    **dict.fromkeys(("JSON", "JSONB"), ColumnType("json")),
    "UUID": ColumnType("uuid"),
    "XML": ColumnType("xml"),
    "POINT": ColumnType("point"),
}
# sqlglot reads the short name alone; pg_dump prints the long one.
_VARBIT: Final = "varbit"
_BIT_VARYING: Final = re.compile(r"\bbit\s+varying\b", re.IGNORECASE)


def read_postgres_tables(sql: str, default_schema: str) -> tuple[TableSchema, ...]:
    """The tables that Postgres' statements create; other statements say nothing here.

    Raises:
        ConfigError: sqlglot is not installed, or the text is not Postgres' SQL.
    """
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError as exc:
        raise ConfigError(
            "Postgres' definitions are read by sqlglot, which is not installed: pip install sqlglot"
        ) from exc
    try:
        found = sqlglot.parse(_BIT_VARYING.sub(_VARBIT, sql), read="postgres")
    except SqlglotError as exc:
        raise ConfigError(f"the definition is not Postgres' SQL: {str(exc).splitlines()[0]}") from exc
    return tuple(_tables(found, default_schema))


def _tables(statements: list[Any], default_schema: str) -> Iterator[TableSchema]:
    from sqlglot import exp

    for statement in statements:
        if isinstance(statement, exp.Create) and isinstance(statement.this, exp.Schema):
            table = statement.this.this
            columns = _columns(statement.this.expressions)
            yield TableSchema(TableId(table.db or default_schema, table.name), tuple(columns))


def _columns(parts: list[Any]) -> Iterator[Column]:
    from sqlglot import exp

    keys = {
        name.name
        for part in parts
        for key in ([part] if isinstance(part, exp.PrimaryKey) else part.find_all(exp.PrimaryKey))
        for name in key.find_all(exp.Identifier)
    }
    for part in parts:
        if isinstance(part, exp.ColumnDef):
            constraints = {type(one.kind): one.kind for one in part.constraints}
            key = part.name in keys or exp.PrimaryKeyColumnConstraint in constraints
            default = constraints.get(exp.DefaultColumnConstraint)
            yield Column(
                part.name,
                _type_of(part.kind),
                nullable=not key and exp.NotNullColumnConstraint not in constraints,
                default=_literal(default.this) if default is not None else None,
                handle=key,
                primary_key=key,
            )


def _literal(value: exp.Expression) -> str | None:
    """A default's text; None for what Postgres computes."""
    from sqlglot import exp

    inner = value.this if isinstance(value, exp.Cast) else value
    return str(inner.this) if isinstance(inner, exp.Literal) else None


def _type_of(kind: exp.DataType | None) -> ColumnType:
    if kind is None:
        return ColumnType("text")
    name = kind.this.name
    numbers = [int(one.name) for one in kind.expressions if one.name.isdigit()]
    if name == "DECIMAL":
        precision, scale = (*numbers, None, None)[:2]
        return ColumnType("decimal", precision=precision, scale=scale or (0 if numbers else None))
    if name == "BIT":
        return ColumnType("bit", length=numbers[0] if numbers else 1)
    if name == "USERDEFINED" and str(kind.args.get("kind")).lower() == _VARBIT:
        return ColumnType("bit", length=numbers[0] if numbers else None)
    return _TYPES.get(name, ColumnType("text"))
