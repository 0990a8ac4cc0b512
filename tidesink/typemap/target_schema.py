"""The schema of a table at a target: its columns, their Spark types, its keys, and its metadata columns.

A schema changes only in ways that lose no data: columns are added, and integers and decimals become wider.
Any other difference between two schemas of one table raises an error that names the column. Column names are
compared without regard to case, as MySQL compares them, unless a table has two names that differ only in case
(see ``events.folding``). If the source is Postgres, the names in the config must have the source's spelling
(``TargetSchema.exact_names``). The reason is that a second column whose name differs only in case may be
added later, and a setting must not change its meaning then.

A table without a key can use TiDB's row key. TiDB identifies the rows of a table that has neither a primary
key nor a unique key of NOT NULL columns by an internal number, ``_tidb_rowid``. New TiCDC (ticdc b813e76)
writes this number in canal-json with ``output-row-key`` and the TiDB extension: ``_tidb.rowkey`` is the
base64 text of the row's key in TiKV without the prefix of a keyspace: ``t``, the table's id, ``_r``, the
row's id. Both ids have 8 bytes, big-endian, with the sign bit flipped, so that bytes compare like the
numbers. In a partitioned table the table's id is the partition's id. TRUNCATE changes the table's id: the
same row id under another table id is another row.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timezone
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from tidesink.errors import (
    LOAD_AGAIN,
    VALUES_STAY,
    ConfigError,
    SchemaMismatchError,
    SchemaRefusedError,
    ValueOutOfRangeError,
)
from tidesink.events import (
    UNKNOWN_DEFAULT,
    Column,
    ColumnType,
    EarlierType,
    NameFold,
    TableId,
    TableSchema,
    Value,
    fold_name,
    folding,
)
from tidesink.typemap.mysql_types import CURRENT_TIME, default_as
from tidesink.typemap.table import (
    KEY_POLICIES,
    SPARK_MAX_PRECISION,
    AmbiguousTime,
    SparkType,
    TimePolicies,
    ZeroDate,
    row_of,
    spark_type,
)
from tidesink.typemap.values import TargetValue, target_reader, text_reader

_DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")
# Digits before and after the point needed for every value of an integer type.
_WHOLE_DIGITS = {"int": 10, "bigint": 20}
_DECIMAL_DDL = "decimal({},{})"


@dataclass(frozen=True)
class TargetColumn:
    """One column of a table at the target.

    ``spark``: the column's type in Spark and Delta, as DDL text. ``reason``: why this is not the type nearest
    to the source's type, or None. ``default``: text of the default with which the column was added, as TiDB
    stores it; rows older than the column have this value, even if the default was changed later. ``key``:
    True for a key column, which is never null. ``earlier``: the types with which older rows were written.
    ``hidden``: True for a part of TiDB's row key, which is not a column of the source table. ``instead_of``:
    lower-case names of the columns that disappeared when this column appeared; this column may be one of them
    under a new name.
    """

    name: str
    type: ColumnType
    spark: str
    reason: str | None = None
    default: str | None = None
    key: bool = False
    earlier: tuple[EarlierType, ...] = ()
    hidden: bool = False
    instead_of: frozenset[str] = frozenset()

    @property
    def comment(self) -> str:
        """The column's comment in the target's catalog.

        It contains the column's type at the source, and ``reason`` if there is one.
        """
        source = self.type.sql or self.type.name
        return f"{source}; {self.reason}" if self.reason else source


class Shard(NamedTuple):
    """Marks the rows of one source table in a target table that several source tables share.

    ``column`` is part of the target's key and has the value ``value`` in each row of this source table.
    """

    column: str
    value: str


@dataclass(frozen=True)
class TargetSchema:
    """The schema of one table at the target: its columns in order, and its keys in column order.

    ``time_zone``: zone in which the table's TIMESTAMP texts are read. ``ambiguous_time``: policy for local
    times that occur twice in that zone. ``origin``: the source table, if the target table has another name.
    ``shard``: set if several source tables share the target table. ``omitted``: lower-case names of source
    columns that the config excludes. ``exact_names``: True for Postgres, which distinguishes names that
    differ only in case, so that the config must use the source's spelling.
    """

    table: TableId
    columns: tuple[TargetColumn, ...]
    keys: tuple[str, ...]
    zero_date: ZeroDate = "null"
    time_zone: str = "UTC"
    origin: TableId | None = None
    shard: Shard | None = None
    omitted: frozenset[str] = field(default=frozenset(), compare=False)
    ambiguous_time: AmbiguousTime = "first"
    exact_names: bool = field(default=False, compare=False)

    def policies_of(self, column: TargetColumn) -> TimePolicies:
        """Returns the policies for zero dates and for local times that occur twice in a column."""
        if column.key:
            return KEY_POLICIES
        return TimePolicies(zero_date=self.zero_date, ambiguous_time=self.ambiguous_time)

    @property
    def source(self) -> TableId:
        """The source table."""
        return self.origin or self.table

    @cached_property
    def fold(self) -> NameFold:
        """Function that folds a column's name to compare it with the names of this table's columns."""
        return folding(column.name for column in self.columns)

    @cached_property
    def by_name(self) -> Mapping[str, TargetColumn]:
        """Columns by name. The names are folded by ``fold``, for comparison."""
        return {self.fold(column.name): column for column in self.columns}

    def find(self, name: str) -> TargetColumn | None:
        """Returns the column with this name, or None if the table has no such column."""
        return self.by_name.get(self.fold(name))

    @cached_property
    def key_columns(self) -> tuple[TargetColumn, ...]:
        """The key's columns, in column order; empty for a table without a key."""
        return tuple(column for column in self.columns if column.key)

    @property
    def ddl(self) -> str:
        """All columns as Spark DDL text: ```id` bigint, `name` string``."""
        return columns_ddl(self.columns)

    @property
    def key_ddl(self) -> str:
        """The key columns as Spark DDL text."""
        return columns_ddl(self.key_columns)


def columns_ddl(columns: tuple[TargetColumn, ...]) -> str:
    """Returns columns as Spark DDL text with quoted names."""
    return ", ".join(f"{quoted(column.name)} {column.spark}" for column in columns)


def quoted(name: str) -> str:
    """Quotes a column name for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def shape_of(
    schema: TableSchema,
    *,
    keys: tuple[str, ...] | None = None,
    zero_date: ZeroDate = "null",
    time_zone: str = "UTC",
    ambiguous_time: AmbiguousTime = "first",
) -> TargetSchema:
    """Returns the target schema for a source table. Virtual columns are omitted, because no codec sends them.

    ``keys``: names of columns that replace the source's key, or None. In a key column an invalid calendar
    date is always an error, because a null key would identify no row.

    Raises:
        ConfigError: ``keys`` names a column that the table does not have.
    """
    wanted = keys if keys is not None else tuple(column.name for column in schema.handle_columns)
    fold = folding(column.name for column in schema.columns)
    folded = {fold(name) for name in wanted}
    columns = tuple(
        _shape_column(column, key=fold(column.name) in folded, zero_date=zero_date)
        for column in schema.columns
        if not column.virtual
    )
    missing = folded - {fold(column.name) for column in columns}
    if missing:
        raise ConfigError(
            f"keys: {schema.table} has no column {', '.join(sorted(missing))}; "
            f"its columns are {', '.join(column.name for column in columns)}",
            table=str(schema.table),
        )
    return TargetSchema(
        schema.table,
        columns,
        tuple(c.name for c in columns if c.key),
        zero_date=zero_date,
        time_zone=time_zone,
        ambiguous_time=ambiguous_time,
    )


def check_spelling(setting: str, name: str, shape: TargetSchema) -> None:
    """Checks that the config spells a column's name as the source does, if the source distinguishes case.

    ``setting``: the config's setting that contains the name, for the message.

    Raises:
        ConfigError: The spelling differs; the message has both names.
    """
    column = shape.find(name)
    if shape.exact_names and column is not None and column.name != name:
        raise ConfigError(
            f"{setting}: {shape.source} has no column {name}, but a column {column.name}. In "
            "PostgreSQL and YugabyteDB, names that differ only in case are different columns. If you "
            f"mean {column.name}, use this spelling. If you mean {name}, add it to the setting once "
            "the table has this column.",
            table=str(shape.source),
            column=name,
        )


def _shape_column(column: Column, *, key: bool, zero_date: ZeroDate) -> TargetColumn:
    # A key is never stored as text because of zero dates: in a key such a date is an error.
    spark: SparkType = spark_type(column.type, zero_date=KEY_POLICIES["zero_date"] if key else zero_date)
    shaped = TargetColumn(
        column.name, column.type, spark.ddl, spark.reason, column.backfill, key, column.earlier
    )
    for was in column.earlier:
        shaped = _holding(shaped, spark_type(was.type).ddl)
    return shaped


def _holding(column: TargetColumn, was: str) -> TargetColumn:
    """Widens the column's type so that it also holds the values of older rows, of the Spark type ``was``."""
    ddl = wider_ddl(was, column.spark)
    if ddl is None or ddl == column.spark:
        return column
    return replace(column, type=_wider_type(column.type, ddl, column.type.members), spark=ddl)


# Returns True if the target omits a column and no filter uses it; names are compared by the NameFold.
LeftOut = Callable[[str, NameFold], bool]


def needs_all(_name: str, _fold: NameFold) -> bool:
    """Default for ``left_out``: returns False, because the values of every column are needed."""
    return False


def unread_columns(shape: TargetSchema, left_out: LeftOut) -> frozenset[str]:
    """Returns the names of the columns whose values are not read: excluded columns outside of the key.

    ``left_out``: returns True for an excluded column.
    """
    return frozenset(c.name for c in shape.columns if not c.key and left_out(c.name, shape.fold))


def needed_definition(definition: TableSchema | None, left_out: LeftOut) -> TableSchema | None:
    """Returns a table definition without the columns whose values need no conversion.

    ``left_out``: returns True for such a column. Key columns are never removed.
    """
    if definition is None:
        return None
    fold = folding(column.name for column in definition.columns)
    needed = (column for column in definition.columns if column.handle or not left_out(column.name, fold))
    return replace(definition, columns=tuple(needed))


def merged_in_order(
    shapes: Sequence[TargetSchema], base: TargetSchema | None = None, *, left_out: LeftOut = needs_all
) -> TargetSchema:
    """Merges several schemas of one table, oldest first, and sets ``instead_of`` of their columns.

    ``base``: a schema that is older than all of these schemas; its columns get the defaults from them.
    ``left_out``: returns True for an excluded column, whose types in the schemas may conflict.

    Raises:
        SchemaRefusedError: No type holds both types of a column, or the keys differ.
    """
    whole = shapes[0]
    for before, after in pairwise(shapes):
        whole = merge_schemas(whole, _coming_instead(after, before, whole), left_out=left_out)
    return whole if base is None else merge_schemas(with_defaults(base, whole), whole, left_out=left_out)


def _coming_instead(after: TargetSchema, before: TargetSchema, whole: TargetSchema) -> TargetSchema:
    """Returns the schema ``after`` with ``instead_of`` set for the columns that ``before`` does not have.

    ``before`` is the previous schema of the table, and ``whole`` the merged schema up to ``before``.
    ``instead_of`` is set to the columns of ``before`` that ``after`` no longer has, together with the
    ``instead_of`` of those columns.
    """
    fold = _fold_of(after, before, whole)
    had = {fold(column.name) for column in before.columns}
    went = had - {fold(column.name) for column in after.columns}
    for column in whole.columns:
        if fold(column.name) in went:
            went = went | column.instead_of
    if not went:
        return after
    columns = (c if fold(c.name) in had else replace(c, instead_of=frozenset(went)) for c in after.columns)
    return replace(after, columns=tuple(columns))


def merge_schemas(old: TargetSchema, new: TargetSchema, *, left_out: LeftOut = needs_all) -> TargetSchema:
    """Returns the schema ``old`` with the additional columns and the wider types of ``new``.

    No column is removed, and new columns come last. If both schemas have a column, its name and default come
    from ``old``, and its ENUM or SET members from ``new``. An excluded column (``left_out`` returns True) may
    have two types that no type can hold; it gets the newer type, because its values are not read.

    Raises:
        SchemaRefusedError: No type holds both types of a column, or the keys differ; the message names them.
    """
    fold = _fold_of(old, new)
    _check_keys(old, new, fold)
    newer = {fold(column.name): column for column in new.columns}
    kept = []
    for column in old.columns:
        unread = not column.key and left_out(column.name, fold)
        kept.append(_joined(old, column, newer.pop(fold(column.name), None), unread=unread))
    return replace(old, columns=(*kept, *newer.values()))


def _fold_of(*shapes: TargetSchema) -> NameFold:
    """Returns the function that folds column names for a comparison across several schemas of one table.

    If the source distinguishes names by case, names that differ in case are different columns, even if no
    single schema has both.
    """
    lists = [[column.name for column in shape.columns] for shape in shapes]
    if all(shape.exact_names for shape in shapes):
        lists = [[name for names in lists for name in names]]
    return folding(*lists)


def _check_keys(old: TargetSchema, new: TargetSchema, fold: NameFold) -> None:
    if {fold(key) for key in old.keys} != {fold(key) for key in new.keys}:
        raise SchemaRefusedError(
            f"The key changed from ({', '.join(old.keys)}) to ({', '.join(new.keys)}), and existing "
            "rows cannot be found by the new key. Set keys to columns that the table had before the "
            f"change and still has, or {LOAD_AGAIN}, with a start: after the change.",
            table=str(old.table),
            **key_change(old.keys, new.keys),
        )


def key_change(before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """Returns the context of an error about a changed key (see ``TidesinkError.context``)."""
    return {"change": "key", "before": ", ".join(before), "after": ", ".join(after)}


def without(shape: TargetSchema, names: Iterable[str]) -> TargetSchema:
    """Returns a schema without the columns that have these names."""
    removed = {shape.fold(name) for name in names}
    if not removed:
        return shape
    return replace(shape, columns=tuple(c for c in shape.columns if shape.fold(c.name) not in removed))


def with_dropped(shape: TargetSchema, columns: Iterable[Column]) -> TargetSchema:
    """Adds columns that the table had in the past to a schema, outside of the key."""
    added = (_shape_column(column, key=False, zero_date=shape.zero_date) for column in columns)
    return replace(shape, columns=(*shape.columns, *added))


def with_defaults(shape: TargetSchema, reported: TargetSchema) -> TargetSchema:
    """Returns the schema ``shape`` with the column defaults of ``reported``, another schema of the table.

    ``reported`` must contain more of the table's history, so that its defaults are the right ones.
    """
    fold = _fold_of(shape, reported)
    by_name = {fold(column.name): column for column in reported.columns}
    columns = []
    for column in shape.columns:
        newer = by_name.get(fold(column.name))
        if newer is not None:
            column = replace(column, default=default_as(newer.default, newer.type, column.type))  # noqa: PLW2901
        columns.append(column)
    return replace(shape, columns=tuple(columns))


def with_dropped_types(shape: TargetSchema, earlier: Iterable[Column]) -> TargetSchema:
    """Widens columns that were dropped at the source, so that they hold all values from before the drop.

    ``earlier`` holds the dropped columns with their last type at the source. If no type holds both that type
    and the target's type, the column stays unchanged. Rows with a value of its last type then raise an error
    that names the column.
    """
    types = {shape.fold(column.name): column for column in earlier}
    return replace(
        shape, columns=tuple(_as_it_was(shape, c, types.get(shape.fold(c.name))) for c in shape.columns)
    )


def default_value(column: TargetColumn, shape: TargetSchema) -> TargetValue:
    """Returns the value that a column has in rows older than itself, as the target stores it; None for NULL.

    Raises:
        ValueOutOfRangeError: The default's text is not a value of the column's type, or is the current time,
            or is unknown.
    """
    text, reader = column.default, row_of(column.type).reader
    if text is None:
        return None
    if text == UNKNOWN_DEFAULT:
        raise ValueOutOfRangeError(
            "No event reports the values that the database wrote into existing rows. They are NULL "
            "at the target until a resync loads them (`tidesink resync TABLE`)."
        )
    if text.upper().startswith(CURRENT_TIME):
        raise ValueOutOfRangeError(
            "The database wrote the time of the DDL statement into existing rows, and the topic does "
            "not report this time. The values are NULL at the target until a resync loads them "
            "(`tidesink resync TABLE`)."
        )
    if reader == "bit":
        # TiDB stores the default of a BIT column as bytes, one character each.
        try:
            at_source: Value = int.from_bytes(text.encode("latin-1"), "big")
        except UnicodeEncodeError as error:
            raise ValueOutOfRangeError("The default of a BIT column is not bytes.") from error
    elif reader in ("enum", "set"):
        at_source = text  # a label, although rows in canal-json have the number
    else:
        at_source = text_reader(column.type)(text)
    zone = timezone.utc if shape.time_zone == "UTC" else ZoneInfo(shape.time_zone)
    return target_reader(column.type, time_zone=zone, **shape.policies_of(column))(at_source)


def ways_out(name: str, *, key: bool = False) -> str:
    """Returns what the user can do if no target type holds two source types of a column, for a message."""
    again = f"{LOAD_AGAIN}, with a start: after the change"
    if key:
        return f"The column is part of the key and cannot be left out: {again}"
    return (
        f"To continue without this column, add {name} to except_column_list, unless the table's filter uses "
        f"it: {VALUES_STAY}. To use its new type, {again}"
    )


def _as_it_was(shape: TargetSchema, column: TargetColumn, earlier: Column | None) -> TargetColumn:
    if earlier is None:
        return column
    new = _shape_column(earlier, key=column.key, zero_date=shape.zero_date)
    if wider_ddl(column.spark, new.spark, text_holds=row_of(new.type).reader == "decimal") is None:
        return column
    return _joined(shape, column, new)


def _joined(
    shape: TargetSchema, old: TargetColumn, new: TargetColumn | None, *, unread: bool = False
) -> TargetColumn:
    if new is None:
        return old
    ddl = wider_ddl(old.spark, new.spark, text_holds=row_of(new.type).reader == "decimal")
    if ddl is None and unread and not new.key:
        return replace(new, name=old.name, default=None, instead_of=old.instead_of | new.instead_of)
    if ddl is None:
        raise SchemaRefusedError(
            f"Column {old.name!r} is {old.spark} ({old.type.sql or old.type.name}), and a newer "
            f"schema has {new.spark} ({new.type.sql or new.type.name}): no type holds both. "
            f"{ways_out(old.name, key=old.key)}.",
            table=str(shape.table),
            column=old.name,
            change="type",
            before=old.spark,
            after=new.spark,
        )
    base = new if ddl == new.spark else old
    members = new.type.members if new.type.members is not None else old.type.members
    if row_of(base.type).parameter != "allowed":
        members = None
    # Rows without the column existed when it was added: a default set later does not apply to them.
    return replace(
        base,
        name=old.name,
        type=_wider_type(base.type, ddl, members),
        spark=ddl,
        default=default_as(old.default, old.type, base.type),
        key=old.key,
        earlier=new.earlier,
        instead_of=old.instead_of | new.instead_of,
    )


def _wider_type(column_type: ColumnType, ddl: str, members: tuple[str, ...] | None) -> ColumnType:
    digits = _DECIMAL.fullmatch(ddl)
    if digits and row_of(column_type).reader == "decimal":
        precision, scale = int(digits.group(1)), int(digits.group(2))
        if (precision, scale) != (column_type.precision, column_type.scale):
            return ColumnType("decimal", precision=precision, scale=scale)
    return replace(column_type, members=members)


def wider_ddl(old: str, new: str, *, text_holds: bool = False) -> str | None:
    """Returns the Spark type that holds the values of both types; None if there is no such type.

    ``old`` is the target's current type. ``text_holds``: True if ``old`` may stay as it is if one of the two
    types is string. A string column then stores the new values as text, and a decimal column accepts decimals
    of unknown precision.
    """
    if old == new:
        return old
    if text_holds and (old == "string" or new == "string"):
        return old
    if {old, new} == {"float", "double"}:
        return "double"
    if {old, new} == {"int", "bigint"}:
        return "bigint"
    return _wider_decimal(_digits(old), _digits(new))


def _digits(ddl: str) -> tuple[int, int] | None:
    match = _DECIMAL.fullmatch(ddl)
    if match:
        return int(match.group(1)) - int(match.group(2)), int(match.group(2))
    return (_WHOLE_DIGITS[ddl], 0) if ddl in _WHOLE_DIGITS else None


def _wider_decimal(old: tuple[int, int] | None, new: tuple[int, int] | None) -> str | None:
    if old is None or new is None:
        return None
    whole, scale = max(old[0], new[0]), max(old[1], new[1])
    return _DECIMAL_DDL.format(whole + scale, scale) if whole + scale <= SPARK_MAX_PRECISION else None


MetadataKind = Literal[
    "op", "commit_ts", "position", "database", "table", "topic", "partition", "offset", "batch"
]

_TYPES: Final[Mapping[MetadataKind, ColumnType]] = MappingProxyType(
    {
        "op": ColumnType("varchar", length=16, sql="varchar(16)"),
        "commit_ts": ColumnType("bigint", sql="bigint"),
        "position": ColumnType("varchar", length=255, sql="varchar(255)"),
        "database": ColumnType("varchar", length=255, sql="varchar(255)"),
        "table": ColumnType("varchar", length=255, sql="varchar(255)"),
        "topic": ColumnType("varchar", length=255, sql="varchar(255)"),
        "partition": ColumnType("int", sql="int"),
        "offset": ColumnType("bigint", sql="bigint"),
        "batch": ColumnType("bigint", sql="bigint"),
    }
)


# Kinds that every row of a change log has, in columns named by ``default_name``.
_IN_LOGS: Final = frozenset({"op", "commit_ts", "partition", "offset"})


def default_name(kind: str) -> str:
    """Returns the name that a metadata column of this kind has if the config sets no name."""
    return f"_tidesink_{kind}"


def beside_log(names: Mapping[MetadataKind, str]) -> dict[MetadataKind, str]:
    """Returns the metadata columns (names by kind) that a change log needs in addition to its own columns.

    A change log always has columns for the kinds in ``_IN_LOGS``, under their default names.
    """
    return {
        kind: name
        for kind, name in names.items()
        if kind not in _IN_LOGS or fold_name(name) != default_name(kind)
    }


def metadata_columns(names: Mapping[MetadataKind, str]) -> tuple[TargetColumn, ...]:
    """Returns the metadata columns of a table, in the order of the config."""
    return tuple(
        TargetColumn(name, _TYPES[kind], spark_type(_TYPES[kind]).ddl) for kind, name in names.items()
    )


# No column can have the first name in TiDB. It comes first because its range selects the files and pages of a
# batch, while the table's id is the same in all rows.
ROW_ID: Final = "_tidb_rowid"
TABLE_ID: Final = "_tidb_table_id"
_DEBEZIUM: Final = (
    "Debezium's records contain nothing else that identifies a row, because a source "
    "position identifies an event, not the row that it changes"
)
# By protocol: how rows of a table without a key can be identified.
IDENTITIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "canal-json": "canal-json of new TiCDC contains TiDB's row keys, which identify rows (set "
        "output-row-key=true and enable-tidb-extension=true in the changefeed and under source)",
        "flat-avro": "flat-avro records contain nothing else that identifies a row, but canal-json of new "
        "TiCDC contains TiDB's row keys (output-row-key=true)",
        "debezium-avro": _DEBEZIUM,
        "debezium-json": _DEBEZIUM,
    }
)
_FORM: Final = "'t', 8 bytes of the table's id, '_r', 8 bytes of the row's id, in base64"
# 19 bytes in base64: 18 in groups of three, the last one as two characters, the second with four bits.
BASE64_FORM: Final = "^[A-Za-z0-9+/]{25}[AQgw]==$"
_KEY: Final = struct.Struct(">cQ2sQ")
_SIGN: Final = 1 << 63


class RowKey(NamedTuple):
    """TiDB's row key: the id of a row, and the id of the table (or table partition) that contains the row."""

    row_id: int
    table_id: int


def parse_row_key(text: object) -> RowKey:
    """Parses the text of ``_tidb.rowkey``.

    Raises:
        SchemaMismatchError: The text is missing, or is not a row key that contains a ``_tidb_rowid``.
    """
    if type(text) is not str:
        raise SchemaMismatchError(NO_ROW_KEY)
    if re.fullmatch(BASE64_FORM, text) is None:
        raise SchemaMismatchError(OTHER_ROW_KEY)
    first, table, between, row = _KEY.unpack(base64.b64decode(text))
    if (first, between) != (b"t", b"_r"):
        raise SchemaMismatchError(OTHER_ROW_KEY)
    return RowKey(row - _SIGN, table - _SIGN)


def render_row_key(key: RowKey) -> str:
    """Converts a row key to the text that TiCDC writes in ``_tidb.rowkey``."""
    packed = _KEY.pack(b"t", key.table_id + _SIGN, b"_r", key.row_id + _SIGN)
    return base64.b64encode(packed).decode()


NO_ROW_KEY: Final = (
    "The row has no _tidb.rowkey, and nothing else identifies a row of a table without a "
    "key. Set output-row-key=true and enable-tidb-extension=true in the changefeed, or list "
    "columns that identify the rows under tables: keys."
)
OTHER_ROW_KEY: Final = (
    f"_tidb.rowkey is not the key of a row with a _tidb_rowid ({_FORM}), which rows of a "
    "table without a key have. If the table has a key, list its columns under tables: keys, "
    "or add the table's definition to the config."
)
# For a target that writes flat-avro.
NO_FLAT_AVRO: Final = (
    "The table has no key, so its rows are identified by TiDB's row keys, and flat-avro "
    "cannot carry them: readers treat a field whose name begins with _tidb_ as TiCDC's own "
    "field, not as a column. Set the target's protocol to canal-json, debezium-json or "
    "debezium-avro, or list columns that identify the rows under tables: keys."
)
# Used if a table is known only from its rows.
UNREPORTED_KEY: Final = (
    "Rows are identified by TiDB's row keys, because no pkNames and no DDL in the topic name "
    "a key. If the table has a unique key of NOT NULL columns, list these columns under "
    "tables: keys, because the changefeed may send a row to another partition when its "
    "unique key changes."
)
_WHY: Final = "the table has no key: TiDB's internal number of {}, from _tidb.rowkey (output-row-key)"

_BIGINT: Final = ColumnType("bigint", sql="bigint")
ROW_KEY_COLUMNS: Final = tuple(
    TargetColumn(name, _BIGINT, "bigint", key=True, hidden=True) for name in (ROW_ID, TABLE_ID)
)
WHY_OF: Final = {ROW_ID: _WHY.format("the row"), TABLE_ID: _WHY.format("the table or partition")}


def is_row_keyed(shape: TargetSchema) -> bool:
    """Returns True if the table's rows are identified by TiDB's row keys."""
    return any(column.hidden for column in shape.columns)


def row_keyed(shape: TargetSchema) -> TargetSchema:
    """Adds the columns of TiDB's row key to the schema of a table without a key, as its key.

    Raises:
        SchemaRefusedError: The source table has a column with the name of a row key column.
    """
    taken = [name for name in (ROW_ID, TABLE_ID) if name in shape.by_name]
    if taken:
        raise SchemaRefusedError(
            f"The source has a column {taken[0]}, a name that the row key needs. Rename the column at "
            "the source, or list columns that identify the rows under tables: keys.",
            table=str(shape.table),
        )
    return replace(shape, columns=(*ROW_KEY_COLUMNS, *shape.columns), keys=(ROW_ID, TABLE_ID))


def shown_columns(shape: TargetSchema) -> TargetSchema:
    """Returns the schema without the columns of TiDB's row key, which the source table does not have.

    A schema with such columns then has no key; any other schema is returned unchanged.
    """
    if not is_row_keyed(shape):
        return shape
    return replace(shape, columns=tuple(c for c in shape.columns if not c.hidden), keys=())
