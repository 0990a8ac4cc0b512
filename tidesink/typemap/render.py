"""A column's type on each side of the wire and in Iceberg, by look-up in the table.

Iceberg tables are made through Spark, so Iceberg's type names are those of Spark's types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from tidesink.events import ColumnType
from tidesink.typemap.table import SPARK_MAX_PRECISION, TypeRow, find_row, row_of

DecimalMode = Literal["precise", "string"]
UnsignedMode = Literal["long", "string"]
ZeroDate = Literal["null", "error", "text"]

CALENDAR_READERS = frozenset({"date", "datetime", "timestamp", "local_date", "local_datetime", "instant"})
# Spark's timestamps end at microseconds.
_SPARK_FSP = 6


@dataclass(frozen=True)
class SparkType:
    """A Spark (and Delta) type as DDL text, and why it is not the nearest one, where it is not."""

    ddl: str
    reason: str | None = None


def spark_type(column_type: ColumnType, *, zero_date: ZeroDate = "null") -> SparkType:
    """The Spark and Delta type that holds every value of a column exactly."""
    row = row_of(column_type)
    if row.reader == "decimal":
        return _spark_decimal(column_type)
    if row.reader == "bit" and column_type.length is None:
        return SparkType("decimal(20,0)", "the topic carries no length for this bit column")
    if row.reader == "bit" and (column_type.length or 0) > 63:
        return SparkType("decimal(20,0)")
    if row.reader in ("enum", "set") and column_type.members is None:
        return SparkType(
            row.spark,
            f"nothing tells the members of this {row.name}: where the topic has their numbers, as canal-json "
            "has, the numbers are kept as text; give a table definition to have the labels",
        )
    if row.reader in CALENDAR_READERS and zero_date == "text":
        return SparkType("string", "zero-date: text keeps dates no calendar has")
    if row.reader in ("local_datetime", "instant") and (column_type.fsp or 0) > _SPARK_FSP:
        return SparkType("string", "Spark's timestamps have no nanoseconds: kept exactly as text")
    return SparkType(row.spark)


def _spark_decimal(column_type: ColumnType) -> SparkType:
    precision, scale = column_type.precision, column_type.scale
    if precision is None or scale is None:
        return SparkType(
            "string",
            "the topic carries no precision for this decimal: kept exactly as text; "
            "give a table definition to have a decimal",
        )
    if precision > SPARK_MAX_PRECISION:
        return SparkType(
            "string",
            f"decimal({precision},{scale}) has more than {SPARK_MAX_PRECISION} digits: kept exactly as text",
        )
    return SparkType(f"decimal({precision},{scale})")


def avro_type(
    column_type: ColumnType, *, decimal_mode: DecimalMode = "precise", unsigned_mode: UnsignedMode = "long"
) -> dict[str, object]:
    """The Avro type object TiCDC writes for a column, ``connect.parameters`` included.

    Key order is the producer's (tiflow c7b2588: type, connect.parameters, logicalType, precision, scale).
    """
    row = row_of(column_type)
    parameters: dict[str, str] = {"tidb_type": row.tidb_type}
    if row.parameter == "length":
        parameters["length"] = str(column_type.length or 1)
    if row.parameter == "allowed":
        parameters["allowed"] = escape_allowed(column_type.members or ())
    avro = row.avro
    string_mode = decimal_mode if row.reader == "decimal" else unsigned_mode
    if row.avro_string_mode and string_mode == "string":
        avro = row.avro_string_mode
    if avro != "decimal":
        return {"type": avro, "connect.parameters": parameters}
    return {
        "type": "bytes",
        "connect.parameters": parameters,
        "logicalType": "decimal",
        "precision": column_type.precision if column_type.precision is not None else 10,
        "scale": column_type.scale or 0,
    }


def escape_allowed(members: tuple[str, ...]) -> str:
    """ENUM or SET members as ``connect.parameters.allowed`` holds them: ``,`` as ``\\,``, joined by ``,``."""
    return ",".join(member.replace(",", "\\,").replace("\\'", "'").replace("''", "'") for member in members)


def split_allowed(allowed: str) -> tuple[str, ...]:
    """The members in ``allowed``. A member that ends in a backslash is ambiguous at the producer."""
    members, current, index = [], "", 0
    while index < len(allowed):
        if allowed.startswith("\\,", index):
            current, index = current + ",", index + 2
            continue
        if allowed[index] == ",":
            members.append(current)
            current = ""
        else:
            current += allowed[index]
        index += 1
    return (*members, current)


def type_words(column_type: ColumnType) -> str:
    """A type as its DDL says it, or by its name and what is known of its digits, length and members."""
    if column_type.sql:
        return column_type.sql
    if column_type.members is not None:
        return f"{column_type.name}({','.join(map(repr, column_type.members))})"
    sizes = (column_type.precision, column_type.scale, column_type.length, column_type.fsp)
    known = ",".join(str(size) for size in sizes if size is not None)
    return f"{column_type.name}({known})" if known else column_type.name


def mysql_type_word(column_type: ColumnType) -> str:
    """canal-json's short ``mysqlType``: the name without precision, length or fsp."""
    row = row_of(column_type)
    spelt = (column_type.sql or row.name).lower()
    if find_row(spelt.partition("(")[0].strip()) is None and row.reader == "text" and "(" not in spelt:
        return spelt  # a type this version does not know, kept as the producer spelt it
    word = row.name
    attributes = spelt.rpartition(")")[2].split()
    for attribute in ("unsigned", "zerofill"):
        if attribute in attributes and attribute not in word.split():
            word += f" {attribute}"
    return word


def mysql_type_text(column_type: ColumnType) -> str | None:
    """canal-json's content-compatible ``mysqlType``, the full text; None where too little is known."""
    row = row_of(column_type)
    sql = column_type.sql
    if sql is not None and ("(" in sql or _needs_no_arguments(row)):
        return sql
    if row.name == "decimal":
        return f"decimal({column_type.precision},{column_type.scale or 0})" if column_type.precision else None
    if row.parameter == "allowed":
        return None if column_type.members is None else f"{row.name}({render_members(column_type.members)})"
    if row.reader in _FRACTIONAL:
        return f"{row.name}({column_type.fsp})" if column_type.fsp else row.name
    width = column_type.length or row.display_width
    if width is None:
        return row.name if _needs_no_arguments(row) else None
    base, _, unsigned = row.name.partition(" ")
    return f"{base}({width}) {unsigned}".strip()


_FRACTIONAL = frozenset({"datetime", "timestamp", "time"})
_SIZED = frozenset({"char", "varchar", "binary", "varbinary"})


def _needs_no_arguments(row: TypeRow) -> bool:
    return row.display_width is None and row.parameter is None and row.name not in (*_SIZED, "decimal")


def render_members(members: Sequence[str]) -> str:
    """The argument list of an ENUM or SET."""
    return ",".join("'" + member.replace("'", "''") + "'" for member in members)


def sql_type_code(column_type: ColumnType, value: object) -> int:
    """canal-json's ``sqlType`` for a value: unsigned integers are promoted above their signed range."""
    row = row_of(column_type)
    if row.sql_type_above and isinstance(value, int) and value > row.sql_type_above[0]:
        return row.sql_type_above[1]
    return row.sql_type


# Spark type -> Iceberg's; the others have Spark's word. A contract test holds it to Iceberg's own library.
_OF_SPARK: Final[Mapping[str, str]] = MappingProxyType(
    {"bigint": "long", "timestamp_ntz": "timestamp", "timestamp": "timestamptz"}
)


def iceberg_type(spark: str) -> str:
    """The Iceberg type of a Spark DDL type."""
    return _OF_SPARK.get(spark, spark)
