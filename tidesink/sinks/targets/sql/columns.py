"""The columns of a SQL target's table: types, column changes, and the limits of the database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidesink.errors import NEEDED_COLUMNS, SchemaRefusedError
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
from tidesink.typemap.target_schema import TargetColumn, TargetSchema, without
from tidesink.typemap.values import MYSQL_MAX_PRECISION, MYSQL_MAX_SCALE, TargetValue

_DIGITS: Final = re.compile(r"(?:numeric|decimal)\(([0-9]+),([0-9]+)\)")
_LENGTH: Final = re.compile(r"(varchar|varbinary)\(([0-9]+)\)")
# Types that accept only texts of a certain form. They are replaced by the wanted type.
_FORMED: Final = frozenset({"json", "time(6)"})
# Prefix of tidesink's own column names.
OUR_PREFIX: Final = "_tidesink"
# Collations of MySQL and MariaDB that compare texts byte by byte, including trailing spaces.
KEY_COLLATIONS: Final = ("utf8mb4_0900_bin", "utf8mb4_nopad_bin")


@dataclass(frozen=True)
class SqlEvolution:
    """The column changes that a target table needs.

    ``added``: columns to add, each with its type in the database.
    ``widened``: the new type of each column to widen, by the column's name at the target.
    """

    added: tuple[tuple[TargetColumn, str], ...] = ()
    widened: Mapping[str, str] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """True if there is a column to add or to widen."""
        return bool(self.added or self.widened)


def wanted_type(
    column: TargetColumn,
    shape: TargetSchema,
    database: Database,
    present: str | None = None,
    *,
    key_length: int | None = None,
) -> str:
    """Return the database's type for a column of the source table.

    MySQL needs a length for a text or bytes key column, which the source may not report. Then an existing
    column keeps its type ``present``, and a new column gets the length ``key_length``.

    Raises:
        SchemaRefusedError: the length of a new key column is unknown, and ``key_length`` is None.
    """
    try:
        return sql_type(column, database, key_length if present is None else None)
    except KeyLengthUnknownError as exc:
        if present is not None:
            return present
        mysql, mariadb = KEY_COLLATIONS
        raise SchemaRefusedError(
            f"MySQL needs a length for the key column {column.name} ({column.comment}), but the records of "
            "the topic do not contain it. Create the table at the target with its primary key, and start "
            f"again. Declare a text key as varchar CHARACTER SET utf8mb4 COLLATE {mysql} (in MariaDB, "
            f"COLLATE {mariadb}). If the protocol is not flat-avro, you can instead set the table's "
            "`definition` in the config.",
            table=str(shape.table),
            column=column.name,
        ) from exc


# Takes a column's name in the table and the wanted type, and returns the statements that change the type.
Mend = Callable[[str, str], list[str]]


def check_natives(
    present: Mapping[str, str], shape: TargetSchema, database: Database, mend: Mend | None = None
) -> None:
    """Check that target columns of native types, which the user chose (such as ``uuid``), fit the source's
    types.

    ``present``: the table's columns: type by name.
    ``mend``: returns the statements that change a column's type, for the message.

    Raises:
        SchemaRefusedError: a column's native type cannot hold the values of its source column.
    """
    for name, column, fit in refused_natives(present, shape.columns, database):
        way = f" to {fit.wanted} and start again"
        if mend:
            way = f" and start again: {'; '.join(mend(name, fit.wanted))}"
        raise SchemaRefusedError(
            f"The column {name} of the target's table is {present[name]}, which {fit.why} the source's "
            f"column ({column.comment}). Exclude it with `except_column_list`, {NEEDED_COLUMNS}, or change "
            f"its type{way}",
            table=str(shape.source),
            column=name,
        )


def natives_of(present: Mapping[str, str], shape: TargetSchema, database: Database) -> dict[int, Native]:
    """Return how each column of a native type stores the source's values, by the column's index in ``shape``.

    A native type is a type that the user chose and tidesink would not create itself, such as ``uuid``.
    """
    fold = folding(present, (column.name for column in shape.columns))
    there = {fold(name): column_type for name, column_type in present.items()}
    natives = {}
    for index, column in enumerate(shape.columns):
        present_type = there.get(fold(column.name))
        fit = None if present_type is None else native_of(column, present_type, database)
        if isinstance(fit, Native):
            natives[index] = fit
    return natives


def plan_columns(
    present: Mapping[str, str], shape: TargetSchema, database: Database, mend: Mend | None = None
) -> SqlEvolution:
    """Compare a target table's columns with those that it should have (``shape``), and return the changes it
    needs.

    ``present``: the table's columns: type by name.
    ``mend``: returns the statements that change a column's type, for the message.

    Raises:
        SchemaRefusedError: a column's type can neither hold the source's values nor be widened.
    """
    check_natives(present, shape, database, mend)
    fold = folding(present, (column.name for column in shape.columns))
    columns = {fold(column.name): column for column in shape.columns}
    fits = {
        name: native_of(columns[fold(name)], column_type, database)
        for name, column_type in present.items()
        if fold(name) in columns
    }
    own = {name: column_type for name, column_type in present.items() if fits.get(name) is None}
    plan = _plan_own(own, without(shape, present.keys() - own.keys()), database)
    wider = {name: fit.wanted for name, fit in fits.items() if isinstance(fit, Wider)}
    return SqlEvolution(plan.added, {**plan.widened, **wider})


def _plan_own(present: Mapping[str, str], shape: TargetSchema, database: Database) -> SqlEvolution:
    """Plan column changes as ``plan_columns`` does, but for a table without columns of native types."""
    fold = folding(present, (column.name for column in shape.columns))
    there = {fold(name): column_type for name, column_type in present.items()}
    columns = {fold(column.name): column for column in shape.columns}
    wanted = {name: wanted_type(c, shape, database, there.get(name)) for name, c in columns.items()}
    as_spark = {
        name: columns[fold(name)].spark
        if wanted.get(fold(name)) == column_type
        else spark_of(column_type, database)
        for name, column_type in present.items()
    }
    plan = plan_evolution(as_spark, shape)
    widened = {name: of_spark(ddl, database) for name, ddl in plan.widened.items()}
    for name, column_type in present.items():
        column = columns.get(fold(name))
        if column is None or name in widened or wanted[fold(name)] == column_type:
            continue
        wider = _wider(column_type, wanted[fold(name)], column, database)
        if wider != column_type:
            widened[name] = wider
    added = tuple((column, wanted[fold(column.name)]) for column in plan.added)
    return SqlEvolution(added, widened)


def _wider(found: str, wanted: str, column: TargetColumn, database: Database) -> str:
    """Return the database type that holds the values of both ``found`` (at the target) and ``wanted``.

    It is called only if a comparison of their Spark types found nothing to widen.
    """
    if found in _FORMED:
        return wanted
    if found == "bigint unsigned" and column.spark == "decimal(20,0)":
        return wanted
    now, then = _DIGITS.fullmatch(found), _DIGITS.fullmatch(wanted)
    if now and wanted == DECIMAL_WORD["postgres"]:
        return wanted  # an unlimited numeric; a fixed scale would round some values
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
    added: tuple[tuple[TargetColumn, str], ...], shape: TargetSchema
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the default values that existing rows get in new columns, as texts by column name, and warnings.

    Each warning names a column whose default cannot be stored in its type, and therefore is not written.
    """
    return default_texts(tuple(column for column, _ in added), shape, literal=_literal)


def _literal(value: TargetValue) -> str:
    """Return a value as text. A boolean becomes 0 or 1, because MySQL stores booleans as numbers."""
    return literal_text(int(value) if isinstance(value, bool) else value)


_LONG: Final = frozenset({"text", "bytea", "json", "longtext", "longblob", "varchar", "varbinary"})


class SqlLimits(NamedTuple):
    """Limits of a DBMS on its tables, from its manual. A contract test checks them on real servers.

    ``keeper``: the name of the DBMS, for messages.
    ``columns``: maximum number of columns in a table.
    ``staged``: maximum number of columns that a staging table has in addition to the table's columns.
    ``long_values``: number of long texts and byte strings that fit in one row, however long they are.
    ``key_bytes``: maximum size of a key's values in bytes.
    ``too_long``: for messages, what happens to a row with more than ``long_values`` such values.
    ``too_long_key``: for messages, what happens to a key that is longer than ``key_bytes``.
    ``folds``: True if column names that differ only in case are the same name.
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
        """Maximum number of columns of a source table, so that its staging table does not have too many."""
        return self.columns - self.staged


POSTGRES_LIMITS: Final = SqlLimits(
    "Postgres",
    columns=1600,
    staged=len(STAGED_BESIDES["postgres"]),
    long_values=450,  # 18 bytes for each, of a page of 8 kB
    key_bytes=2704,
    too_long="A row with more long texts or byte strings stops its table",
    too_long_key="A row with a longer key stops its table",
    folds=False,
)
MYSQL_LIMITS: Final = SqlLimits(
    "MySQL",
    columns=1017,
    staged=len(STAGED_BESIDES["mysql"]),
    long_values=190,  # InnoDB counts 41 bytes for each, of half a page of 16 kB
    key_bytes=3072,
    too_long="MySQL refuses to create a table with more such columns (error 1118), and MariaDB a table with "
    "more than about 360",
    too_long_key="The server refuses to create a table whose keys may be longer (error 1071)",
    folds=True,
)


def check_sql_shape(shape: TargetSchema, limits: SqlLimits, quote: Callable[[str], str]) -> None:
    """Check that the database can store a table with the columns and key of ``shape``.

    Raises:
        SchemaRefusedError: ``shape`` has no key, too many columns, a column name that the database does not
            allow, or two column names that the database does not distinguish.
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
    shape: TargetSchema, limits: SqlLimits, database: Database, key_length: int | None
) -> Iterator[Limit]:
    """Yield the limits of the database on the length of rows and keys that this table may exceed."""
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
