"""A table's columns in a database: their types, the changes that a shape needs, and limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidesink.errors import SchemaRefusedError
from tidesink.events import fold_name, folding
from tidesink.sinks.targets.base import Limit, check_shape
from tidesink.sinks.targets.column_changes import default_texts, literal_text, plan_evolution
from tidesink.sinks.targets.sql.load import STAGED_BESIDES
from tidesink.typemap.native_sql import Native, Wider, native_of, refused_natives
from tidesink.typemap.render_sql import (
    DECIMAL_WORD,
    OF_SPARK,
    Database,
    KeyLengthUnknownError,
    key_bytes,
    of_spark,
    shown_type,
    spark_of,
    sql_type,
)
from tidesink.typemap.target_schema import ShapeColumn, TableShape, without
from tidesink.typemap.values import MYSQL_MAX_PRECISION, MYSQL_MAX_SCALE, TargetValue

_DIGITS: Final = re.compile(r"(?:numeric|decimal)\(([0-9]+),([0-9]+)\)")
_LENGTH: Final = re.compile(r"(varchar|varbinary)\(([0-9]+)\)")
# Types that accept only texts of a certain form.
_FORMED: Final = frozenset({"json", "time(6)"})
# Prefix of tidesink's own column names.
OUR_PREFIX: Final = "_tidesink"
# Collations of MySQL and MariaDB that compare texts byte by byte, including trailing spaces.
KEY_COLLATIONS: Final = ("utf8mb4_0900_bin", "utf8mb4_nopad_bin")


@dataclass(frozen=True)
class SqlEvolution:
    """Columns to add, and new types of columns to change, by the target's own column name."""

    added: tuple[tuple[ShapeColumn, str], ...] = ()
    widened: Mapping[str, str] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """True if anything must change."""
        return bool(self.added or self.widened)


def wanted_type(
    column: ShapeColumn,
    shape: TableShape,
    database: Database,
    present: str | None = None,
    *,
    key_length: int | None = None,
) -> str:
    """Return the type that a column of a shape should have.

    If the source's type has no length for a key column, its ``present`` type is used. A new key column gets
    ``key_length``.

    Raises:
        SchemaRefusedError: a key column's length cannot be determined.
    """
    try:
        return sql_type(column, database, key_length if present is None else None)
    except KeyLengthUnknownError as exc:
        if present is not None:
            return present
        mysql, mariadb = KEY_COLLATIONS
        raise SchemaRefusedError(
            f"MySQL needs a length for the key column {column.name} ({column.comment}), but the topic does "
            "not contain it. Create the table at the target with its primary key and start again (a text as "
            f"varchar CHARACTER SET utf8mb4 COLLATE {mysql}, in MariaDB {mariadb}). If the protocol is not "
            "flat-avro, you can set the column's definition in the config instead.",
            table=str(shape.table),
            column=column.name,
        ) from exc


# (column name in the table, wanted type) -> statements that change the column's type.
Mend = Callable[[str, str], list[str]]


def check_natives(
    present: Mapping[str, str], shape: TableShape, database: Database, mend: Mend | None = None
) -> None:
    """Refuse a table with a column of a native type that cannot hold the source's values.

    ``mend``: returns the statements that change the column's type to a suitable one.

    Raises:
        SchemaRefusedError: the table has such a column.
    """
    for name, column, fit in refused_natives(present, shape.columns, database):
        way = f" to {fit.wanted} and start again"
        if mend:
            way = f" and start again: {'; '.join(mend(name, fit.wanted))}"
        raise SchemaRefusedError(
            f"The column {name} of the target's table is {present[name]}, which {fit.why} the source's "
            f"column ({column.comment}). Exclude it with `except_column_list`, or change its type{way}",
            table=str(shape.source),
            column=name,
        )


def natives_of(present: Mapping[str, str], shape: TableShape, database: Database) -> dict[int, Native]:
    """Return how columns of native types store the shape's values, by the column's index in the shape."""
    fold = folding(present, (column.name for column in shape.columns))
    there = {fold(name): found for name, found in present.items()}
    found = {}
    for at, column in enumerate(shape.columns):
        kept = there.get(fold(column.name))
        fit = None if kept is None else native_of(column, kept, database)
        if isinstance(fit, Native):
            found[at] = fit
    return found


def plan_columns(
    present: Mapping[str, str], shape: TableShape, database: Database, mend: Mend | None = None
) -> SqlEvolution:
    """Compare a table's columns with a shape and return the changes that it needs.

    ``present``: the database's type by column name.
    ``mend``: see ``check_natives``.

    Raises:
        SchemaRefusedError: a column's present type cannot hold the shape's values.
    """
    check_natives(present, shape, database, mend)
    fold = folding(present, (column.name for column in shape.columns))
    columns = {fold(column.name): column for column in shape.columns}
    fits = {
        name: native_of(columns[fold(name)], found, database)
        for name, found in present.items()
        if fold(name) in columns
    }
    own = {name: found for name, found in present.items() if fits.get(name) is None}
    plan = _plan_own(own, without(shape, present.keys() - own.keys()), database)
    wider = {name: fit.wanted for name, fit in fits.items() if isinstance(fit, Wider)}
    return SqlEvolution(plan.added, {**plan.widened, **wider})


def _plan_own(present: Mapping[str, str], shape: TableShape, database: Database) -> SqlEvolution:
    """Plan the changes of columns with types that tidesink itself creates."""
    fold = folding(present, (column.name for column in shape.columns))
    there = {fold(name): found for name, found in present.items()}
    columns = {fold(column.name): column for column in shape.columns}
    wanted = {name: wanted_type(c, shape, database, there.get(name)) for name, c in columns.items()}
    as_spark = {
        name: columns[fold(name)].spark if wanted.get(fold(name)) == found else spark_of(found, database)
        for name, found in present.items()
    }
    plan = plan_evolution(as_spark, shape)
    widened = {name: of_spark(ddl, database) for name, ddl in plan.widened.items()}
    for name, found in present.items():
        column = columns.get(fold(name))
        if column is None or name in widened or wanted[fold(name)] == found:
            continue
        wider = _wider(found, wanted[fold(name)], column, database)
        if wider != found:
            widened[name] = wider
    added = tuple((column, wanted[fold(column.name)]) for column in plan.added)
    return SqlEvolution(added, widened)


def _wider(found: str, wanted: str, column: ShapeColumn, database: Database) -> str:
    """Return the wider of two types that are the same type in Spark."""
    if found in _FORMED:
        return wanted
    if found == "bigint unsigned" and column.spark == "decimal(20,0)":
        return wanted
    now, then = _DIGITS.fullmatch(found), _DIGITS.fullmatch(wanted)
    if now and wanted == DECIMAL_WORD["postgres"]:
        return wanted  # has any number of digits; a fixed scale would round some values
    if now and then:
        return _wider_digits(tuple(map(int, now.groups())), tuple(map(int, then.groups())), database)  # type: ignore[arg-type]
    held, asked = _LENGTH.fullmatch(found), _LENGTH.fullmatch(wanted)
    if held and asked and held[1] == asked[1] and column.key:
        return wanted if int(asked[2]) > int(held[2]) else found
    return found


def _wider_digits(now: tuple[int, int], then: tuple[int, int], database: Database) -> str:
    scale = max(now[1], then[1])
    precision = max(now[0] - now[1], then[0] - then[1]) + scale
    if database == "mysql" and (precision > MYSQL_MAX_PRECISION or scale > MYSQL_MAX_SCALE):
        return OF_SPARK["mysql"]["string"]
    return f"{DECIMAL_WORD[database]}({precision},{scale})"


def default_literals(
    added: tuple[tuple[ShapeColumn, str], ...], shape: TableShape
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return literals of the values that old rows get in new columns, and warnings for missing defaults."""
    return default_texts(tuple(column for column, _ in added), shape, literal=_literal)


def _literal(value: TargetValue) -> str:
    """Convert a boolean to a number, as MySQL stores it."""
    return literal_text(int(value) if isinstance(value, bool) else value)


_LONG: Final = frozenset({"text", "bytea", "json", "longtext", "longblob", "varchar", "varbinary"})


class SqlLimits(NamedTuple):
    """Limits of a database's tables, from its manual. A contract test checks them on real servers.

    ``columns``: most columns of one table.
    ``staged``: most columns that tidesink adds to a staging table.
    ``long_values``: number of texts and bytes that fit in a row, however long they are.
    ``key_bytes``: most bytes of the values of one key.
    ``folds``: column names that differ only in case are the same to the database.
    ``too_long``, ``too_long_key``: what happens above these limits.
    """

    keeper: str
    columns: int
    staged: int
    long_values: int
    key_bytes: int
    too_long: str
    too_long_key: str
    folds: bool

    @property
    def room(self) -> int:
        """The most columns that a source table can have, whatever its batches contain."""
        return self.columns - self.staged


POSTGRES_LIMITS: Final = SqlLimits(
    "Postgres",
    columns=1600,
    staged=len(STAGED_BESIDES["postgres"]),
    long_values=450,  # 18 bytes for each, of a page of 8 kB
    key_bytes=2704,
    too_long="A row with more of them stops its table",
    too_long_key="A row with a longer key stops its table",
    folds=False,
)
MYSQL_LIMITS: Final = SqlLimits(
    "MySQL",
    columns=1017,
    staged=len(STAGED_BESIDES["mysql"]),
    long_values=190,  # InnoDB counts 41 bytes for each, of half a page of 16 kB
    key_bytes=3072,
    too_long="MySQL refuses to create a table with more (error 1118), and MariaDB with more than about 360",
    too_long_key="A table whose keys may be longer is refused when it is created (error 1071)",
    folds=True,
)


def check_sql_shape(shape: TableShape, limits: SqlLimits, quote: Callable[[str], str]) -> None:
    """Refuse a shape for which the database cannot create a table.

    Raises:
        SchemaRefusedError: it has no key, too many columns, a column name that the database does not allow,
            or two columns whose names are the same to the database.
    """
    check_shape(shape)
    if len(shape.columns) > limits.room:
        raise SchemaRefusedError(
            f"The table has {len(shape.columns):,} columns, but at most {limits.room:,} are possible in "
            f"{limits.keeper} ({limits.columns:,}, of which tidesink's staging table may "
            f"need {limits.staged}). Exclude some with `except_column_list` or `columns` in the config.",
            table=str(shape.source),
        )
    spelled: dict[str, str] = {}
    for column in shape.columns if limits.folds else ():
        other = spelled.setdefault(fold_name(column.name), column.name)
        if other != column.name:
            raise SchemaRefusedError(
                f"The columns {other} and {column.name} differ only in case, so they are the same column in "
                f"{limits.keeper}. Exclude one of them (`except_column_list`), or give it another name at "
                "the target (`rename`).",
                table=str(shape.source),
                column=column.name,
            )
    for column in shape.columns:
        try:
            quote(column.name)
        except SchemaRefusedError as refused:
            raise refused.with_context(table=str(shape.source), column=column.name) from None


def room_limits(
    shape: TableShape, limits: SqlLimits, database: Database, key_length: int | None
) -> Iterator[Limit]:
    """Yield limits that a table may exceed: the length of its rows and of its keys."""
    words = {column.name: shown_type(column, database).partition("(")[0] for column in shape.columns}
    if sum(word in _LONG for word in words.values()) > limits.long_values:
        yield Limit(
            "row-length",
            f"A row can hold about {limits.long_values} long texts or byte strings. {limits.too_long}. "
            "Exclude some with `except_column_list`.",
        )
    if sum(key_bytes(column, database, key_length) for column in shape.key_columns) > limits.key_bytes:
        yield Limit(
            "key-length",
            f"A key can have at most {limits.key_bytes:,} bytes. {limits.too_long_key}. Set `keys` in the "
            "config to shorter columns.",
            tuple(column.name for column in shape.key_columns),
        )
