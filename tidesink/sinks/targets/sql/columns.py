"""A table's columns at a database: their types, what must change for a schema, and limits."""

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
# Texts of a certain form, which other texts do not fit.
_FORMED: Final = frozenset({"json", "time(6)"})
# How the names of tidesink's own columns begin.
OUR_PREFIX: Final = "_tidesink"
# MySQL's and MariaDB's collation that tells texts apart by every byte, spaces at their end too.
KEY_COLLATIONS: Final = ("utf8mb4_0900_bin", "utf8mb4_nopad_bin")


@dataclass(frozen=True)
class SqlEvolution:
    """Columns to add, and columns to change by the target's name for them, with their types."""

    added: tuple[tuple[ShapeColumn, str], ...] = ()
    widened: Mapping[str, str] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """True when something must change."""
        return bool(self.added or self.widened)


def wanted_type(
    column: ShapeColumn,
    shape: TableShape,
    database: Database,
    present: str | None = None,
    *,
    key_length: int | None = None,
) -> str:
    """The type of a column of a shape.

    Of a key whose own type says no length ``present``, the type it has, says it; if it is new ``key_length``.

    Raises:
        SchemaRefusedError: a key column whose length nothing tells.
    """
    try:
        return sql_type(column, database, key_length if present is None else None)
    except KeyLengthUnknownError as exc:
        if present is not None:
            return present
        mysql, mariadb = KEY_COLLATIONS
        raise SchemaRefusedError(
            f"MySQL needs a length for the key column {column.name} ({column.comment}), and the topic does "
            "not say it: make the table at the target with its primary key and start again (a text as "
            f"varchar CHARACTER SET utf8mb4 COLLATE {mysql}, in MariaDB {mariadb}), or, where the protocol "
            "is not flat-avro, give it a definition in the config",
            table=str(shape.table),
            column=column.name,
        ) from exc


# The statements that give a column, by the table's name for it, another type.
Mend = Callable[[str, str], list[str]]


def check_natives(
    present: Mapping[str, str], shape: TableShape, database: Database, mend: Mend | None = None
) -> None:
    """Refuse a table with a column of a native type that does not hold the source's values.

    ``mend`` says how the column gets a type that does.

    Raises:
        SchemaRefusedError: there is one.
    """
    for name, column, fit in refused_natives(present, shape.columns, database):
        way = f" to {fit.wanted} and start again"
        if mend:
            way = f" and start again: {'; '.join(mend(name, fit.wanted))}"
        raise SchemaRefusedError(
            f"The column {name} of the target's table is {present[name]}, which {fit.why} the source's "
            f"column ({column.comment}). Exclude it with except_column_list, or change its type{way}",
            table=str(shape.source),
            column=name,
        )


def natives_of(present: Mapping[str, str], shape: TableShape, database: Database) -> dict[int, Native]:
    """How columns of native types take the shape's values, by the position in the shape."""
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
    """What ``present`` (column name to the database's type) lacks for a shape; ``mend``: see check_natives.

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
    """The plan of the columns that have types of tidesink's own."""
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
    """The type for two that are one to Spark."""
    if found in _FORMED:
        return wanted
    if found == "bigint unsigned" and column.spark == "decimal(20,0)":
        return wanted
    now, then = _DIGITS.fullmatch(found), _DIGITS.fullmatch(wanted)
    if now and wanted == DECIMAL_WORD["postgres"]:
        return wanted  # of any number of digits: fewer after the point would be rounded off
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
    """The literal text of what old rows get in new columns, and warnings for those who get nothing."""
    return default_texts(tuple(column for column, _ in added), shape, literal=_literal)


def _literal(value: TargetValue) -> str:
    """MySQL's booleans are numbers."""
    return literal_text(int(value) if isinstance(value, bool) else value)


_LONG: Final = frozenset({"text", "bytea", "json", "longtext", "longblob", "varchar", "varbinary"})


class SqlLimits(NamedTuple):
    """Limits of a database's tables, by its manual; a contract test holds them to real servers.

    ``columns``: of one table. ``staged``: those of ours in a staging table, at the most. ``long_values``:
    texts and bytes that a row has room for, however long they are. ``key_bytes``: of the values of one key.
    ``folds``: the database takes names that differ only in case for one.
    ``too_long`` and ``too_long_key``: what becomes of more.
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
    folds=False,
)
MYSQL_LIMITS: Final = SqlLimits(
    "MySQL",
    columns=1017,
    staged=len(STAGED_BESIDES["mysql"]),
    long_values=190,  # InnoDB reckons with 41 bytes for each, of half a page of 16 kB
    key_bytes=3072,
    too_long="MySQL makes no table of more (error 1118), and MariaDB none of more than some 360",
    too_long_key="a table whose keys may be longer is refused when it is made (error 1071)",
    folds=True,
)


def check_sql_shape(shape: TableShape, limits: SqlLimits, quote: Callable[[str], str]) -> None:
    """Refuse a shape of which a database can make no table.

    Raises:
        SchemaRefusedError: it has no key, too many columns, one with a name that is not to be had, or two
            whose names are one to the database.
    """
    check_shape(shape)
    if len(shape.columns) > limits.room:
        raise SchemaRefusedError(
            f"the table has {len(shape.columns):,} columns, and {limits.room:,} are the most that "
            f"{limits.keeper} takes ({limits.columns:,}, of which tidesink's staging table may "
            f"need {limits.staged}): leave some out, by except_column_list or columns in the config",
            table=str(shape.source),
        )
    spelled: dict[str, str] = {}
    for column in shape.columns if limits.folds else ():
        other = spelled.setdefault(fold_name(column.name), column.name)
        if other != column.name:
            raise SchemaRefusedError(
                f"{limits.keeper} takes the columns {other} and {column.name} for one, since their names "
                "differ only in case: leave one out (except_column_list), or give it another name at the "
                "target (rename)",
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
    """What of a table may be too long: its rows, and its keys."""
    words = {column.name: shown_type(column, database).partition("(")[0] for column in shape.columns}
    if sum(word in _LONG for word in words.values()) > limits.long_values:
        yield Limit(
            "row-length",
            f"a row has room for some {limits.long_values} texts or bytes that are long: {limits.too_long}. "
            "except_column_list leaves some out",
        )
    if sum(key_bytes(column, database, key_length) for column in shape.key_columns) > limits.key_bytes:
        yield Limit(
            "key-length",
            f"a key has at most {limits.key_bytes:,} bytes: {limits.too_long_key}. keys in the config can "
            "name shorter columns",
            tuple(column.name for column in shape.key_columns),
        )
