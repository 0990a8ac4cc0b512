"""A table's schema at a target: its columns, their Spark types, its keys, and its metadata columns.

A schema grows only in ways that lose nothing: columns are added, integers and decimals become wider. Any
other difference between two writers of one table is a conflict, refused by name. Column names are compared
as MySQL compares them, without regard to case, unless a table has two names that differ only in case (see
``events.folding``). Names in the config must be spelled as the source does if it is Postgres
(``TableShape.exact_names``): the second column may come later, and a setting must not change its meaning
then.

TiDB's row key can be the key of a table that has none. TiDB stores a table without a primary key, or a
unique key of NOT NULL columns, under a number of its own, ``_tidb_rowid``. New TiCDC (ticdc b813e76) writes
it in canal-json with ``output-row-key`` and the TiDB extension: ``_tidb.rowkey`` is, in base64, the row's
key in TiKV without the prefix of a keyspace: ``t``, the table's id, ``_r``, the row's id. Both ids have 8
bytes, big-endian, with the sign bit flipped, so that bytes compare as the numbers do. The table's id is the
partition's in a partitioned table, and changes with TRUNCATE: the same row id under another table id is
another row.
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
    ConfigError,
    SchemaMismatchError,
    SchemaRefusedError,
    ValueOutOfRangeError,
)
from tidesink.events import (
    UNTOLD_DEFAULT,
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
# Digits before and after the point that hold every value of an integer type.
_WHOLE_DIGITS = {"int": 10, "bigint": 20}
_DECIMAL_DDL = "decimal({},{})"


@dataclass(frozen=True)
class ShapeColumn:
    """One column at the target.

    ``spark`` is the Spark and Delta type as DDL text and ``reason`` why it is not the nearest one.
    ``default`` is the text of the default with which the column was added, as TiDB holds it: rows
    written before have this value, also where the default was changed later. A key column is never null.
    ``earlier`` are the types that rows from before were written with. ``hidden``: no column of the source's
    own, but a part of the row key that names its rows (``typemap.row_key``). ``instead_of``: names, in lower
    case, of columns that went when it came, and nothing says whether it is one of them under a new name.
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
        """What the column is at the source, for the target's catalog."""
        source = self.type.sql or self.type.name
        return f"{source}; {self.reason}" if self.reason else source


class Shard(NamedTuple):
    """What tells the rows of one source table from those of others in one table of the target.

    ``column`` belongs to the target's key and holds ``value`` in each row of this source table.
    """

    column: str
    value: str


@dataclass(frozen=True)
class TableShape:
    """The columns of one table at the target, in order, and its keys in column order.

    ``time_zone`` is the zone in which TIMESTAMP texts of this table are read, ``ambiguous_time`` the policy
    for those that come twice there. ``origin`` is the source table where the target's has another name,
    ``shard`` is given where several source tables share it. ``omitted`` are the source's columns that the
    config leaves out, in lower case. ``exact_names``: the source is Postgres, which keeps names
    apart that differ only in case, so that the config must spell them as the source does.
    """

    table: TableId
    columns: tuple[ShapeColumn, ...]
    keys: tuple[str, ...]
    zero_date: ZeroDate = "null"
    time_zone: str = "UTC"
    origin: TableId | None = None
    shard: Shard | None = None
    omitted: frozenset[str] = field(default=frozenset(), compare=False)
    ambiguous_time: AmbiguousTime = "first"
    exact_names: bool = field(default=False, compare=False)

    def policies_of(self, column: ShapeColumn) -> TimePolicies:
        """What is done about a column's times."""
        if column.key:
            return KEY_POLICIES
        return TimePolicies(zero_date=self.zero_date, ambiguous_time=self.ambiguous_time)

    @property
    def source(self) -> TableId:
        """The table at the source."""
        return self.origin or self.table

    @cached_property
    def fold(self) -> NameFold:
        """Folds a column's name for a comparison with the names of this shape."""
        return folding(column.name for column in self.columns)

    @cached_property
    def by_name(self) -> Mapping[str, ShapeColumn]:
        """Columns by folded name (see ``fold``)."""
        return {self.fold(column.name): column for column in self.columns}

    def find(self, name: str) -> ShapeColumn | None:
        """The column of a name; None if there is none."""
        return self.by_name.get(self.fold(name))

    @cached_property
    def key_columns(self) -> tuple[ShapeColumn, ...]:
        """The key's columns, in column order; empty for a table without a key."""
        return tuple(column for column in self.columns if column.key)

    @property
    def ddl(self) -> str:
        """All columns as Spark DDL text: ```id` bigint, `name` string``."""
        return columns_ddl(self.columns)

    @property
    def key_ddl(self) -> str:
        """The key's columns as Spark DDL text."""
        return columns_ddl(self.key_columns)


def columns_ddl(columns: tuple[ShapeColumn, ...]) -> str:
    """Columns as Spark DDL text, names quoted."""
    return ", ".join(f"{quoted(column.name)} {column.spark}" for column in columns)


def quoted(name: str) -> str:
    """A column name as Spark SQL quotes it."""
    return "`" + name.replace("`", "``") + "`"


def shape_of(
    schema: TableSchema,
    *,
    keys: tuple[str, ...] | None = None,
    zero_date: ZeroDate = "null",
    time_zone: str = "UTC",
    ambiguous_time: AmbiguousTime = "first",
) -> TableShape:
    """The shape of a source table. Virtual columns, which no codec gives a value, are left out.

    ``keys`` overrides the key of the source. In a key column a date no calendar has is always an
    error, since a null key would name no row.

    Raises:
        ConfigError: ``keys`` names a column the table does not have.
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
    return TableShape(
        schema.table,
        columns,
        tuple(c.name for c in columns if c.key),
        zero_date=zero_date,
        time_zone=time_zone,
        ambiguous_time=ambiguous_time,
    )


def check_spelling(setting: str, name: str, shape: TableShape) -> None:
    """Refuse a name in the config that is a column's in another case, where the source keeps the two apart.

    Raises:
        ConfigError: the message has both names.
    """
    column = shape.find(name)
    if shape.exact_names and column is not None and column.name != name:
        raise ConfigError(
            f"{setting}: {shape.source} has no column {name}, but a column {column.name}. In PostgreSQL and "
            "YugabyteDB names that differ only in case are names of different columns. If you mean "
            f"{column.name}, spell it so; if you mean {name}, set it once the table has such a column",
            table=str(shape.source),
            column=name,
        )


def _shape_column(column: Column, *, key: bool, zero_date: ZeroDate) -> ShapeColumn:
    # A key is never kept as text for its zero dates' sake: there such a date is an error.
    spark: SparkType = spark_type(column.type, zero_date=KEY_POLICIES["zero_date"] if key else zero_date)
    shaped = ShapeColumn(
        column.name, column.type, spark.ddl, spark.reason, column.backfill, key, column.earlier
    )
    for was in column.earlier:
        shaped = _holding(shaped, spark_type(was.type).ddl)
    return shaped


def _holding(column: ShapeColumn, was: str) -> ShapeColumn:
    """The column wide enough for its rows from before, as it is where it was made at that time."""
    ddl = wider_ddl(was, column.spark)
    if ddl is None or ddl == column.spark:
        return column
    return replace(column, type=_wider_type(column.type, ddl, column.type.members), spark=ddl)


# Returns True for a column that the target does not hold and no filter reads; it is named under a NameFold.
LeftOut = Callable[[str, NameFold], bool]


def needs_all(_name: str, _fold: NameFold) -> bool:
    """The ``LeftOut`` of a table whose target holds all columns."""
    return False


def unread_columns(shape: TableShape, left_out: LeftOut) -> frozenset[str]:
    """Names of the shape's columns whose values nobody needs: left out, and not of the key."""
    return frozenset(c.name for c in shape.columns if not c.key and left_out(c.name, shape.fold))


def needed_definition(definition: TableSchema | None, left_out: LeftOut) -> TableSchema | None:
    """A table definition without the columns that are left out: their values are read by no type of it."""
    if definition is None:
        return None
    fold = folding(column.name for column in definition.columns)
    needed = (column for column in definition.columns if column.handle or not left_out(column.name, fold))
    return replace(definition, columns=tuple(needed))


def merged_in_order(
    shapes: Sequence[TableShape], base: TableShape | None = None, *, left_out: LeftOut = needs_all
) -> TableShape:
    """The shapes of one table's schemas, oldest first, as one; it says what came instead of what.

    ``base``: the table as it was before all of them, with the defaults that they tell. ``left_out``: as for
    ``merge_shape``.

    Raises: as ``merge_shape``.
    """
    whole = shapes[0]
    for before, after in pairwise(shapes):
        whole = merge_shape(whole, _coming_instead(after, before, whole), left_out=left_out)
    return whole if base is None else merge_shape(with_defaults(base, whole), whole, left_out=left_out)


def _coming_instead(after: TableShape, before: TableShape, whole: TableShape) -> TableShape:
    """``after``, whose new columns know which of ``before`` went, and what those had come instead of."""
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


def merge_shape(old: TableShape, new: TableShape, *, left_out: LeftOut = needs_all) -> TableShape:
    """``old`` with what ``new`` adds: columns at the end, wider types; nothing is ever taken away.

    Where both have a column, ``old`` says its name and default, ``new`` its members. A column that the target
    does not hold (``left_out``) has the newest type where no type holds both: nobody reads its values.

    Raises:
        SchemaRefusedError: a column's types cannot be one, or the keys differ; the message says which.
    """
    fold = _fold_of(old, new)
    _check_keys(old, new, fold)
    newer = {fold(column.name): column for column in new.columns}
    kept = []
    for column in old.columns:
        unread = not column.key and left_out(column.name, fold)
        kept.append(_joined(old, column, newer.pop(fold(column.name), None), unread=unread))
    return replace(old, columns=(*kept, *newer.values()))


def _fold_of(*shapes: TableShape) -> NameFold:
    """Folds the column names of one table's shapes.

    If its source keeps names apart by case, two spellings are two columns, even if no shape has both.
    """
    lists = [[column.name for column in shape.columns] for shape in shapes]
    if all(shape.exact_names for shape in shapes):
        lists = [[name for names in lists for name in names]]
    return folding(*lists)


def _check_keys(old: TableShape, new: TableShape, fold: NameFold) -> None:
    if {fold(key) for key in old.keys} != {fold(key) for key in new.keys}:
        raise SchemaRefusedError(
            f"the key changed from ({', '.join(old.keys)}) to ({', '.join(new.keys)}): rows already "
            "written cannot be found under the new key. Set keys to columns that both have, or "
            f"{LOAD_AGAIN}, with a start: behind the change",
            table=str(old.table),
            **key_change(old.keys, new.keys),
        )


def key_change(before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """What an error says of a change of the key (see ``TidesinkError.context``)."""
    return {"change": "key", "before": ", ".join(before), "after": ", ".join(after)}


def without(shape: TableShape, names: Iterable[str]) -> TableShape:
    """A shape that lacks some columns."""
    gone = {shape.fold(name) for name in names}
    if not gone:
        return shape
    return replace(shape, columns=tuple(c for c in shape.columns if shape.fold(c.name) not in gone))


def with_gone(shape: TableShape, columns: Iterable[Column]) -> TableShape:
    """The shape with columns that the table had, none of them of its key."""
    added = (_shape_column(column, key=False, zero_date=shape.zero_date) for column in columns)
    return replace(shape, columns=(*shape.columns, *added))


def with_defaults(shape: TableShape, reported: TableShape) -> TableShape:
    """The shape with the defaults that ``reported`` has for its columns, which knows more of their past."""
    fold = _fold_of(shape, reported)
    by_name = {fold(column.name): column for column in reported.columns}
    columns = []
    for column in shape.columns:
        found = by_name.get(fold(column.name))
        if found is not None:
            column = replace(column, default=default_as(found.default, found.type, column.type))  # noqa: PLW2901
        columns.append(column)
    return replace(shape, columns=tuple(columns))


def with_former(shape: TableShape, former: Iterable[Column]) -> TableShape:
    """The shape, whose columns that were dropped are read by every type they had until then.

    One that came to have a type beside the target's stays as it is: its rows are refused by name.
    """
    types = {shape.fold(column.name): column for column in former}
    return replace(
        shape, columns=tuple(_as_it_was(shape, c, types.get(shape.fold(c.name))) for c in shape.columns)
    )


def default_value(column: ShapeColumn, shape: TableShape) -> TargetValue:
    """What rows from before the column have in it, as the target stores it; None for NULL.

    Raises:
        ValueOutOfRangeError: the default's text is no value of the type, or says the current time, or that
            nothing tells it.
    """
    text, reader = column.default, row_of(column.type).reader
    if text is None:
        return None
    if text == UNTOLD_DEFAULT:
        raise ValueOutOfRangeError(
            "no event tells the values that the database wrote into them. They are NULL until a resync "
            "brings them (tidesink resync)"
        )
    if text.upper().startswith(CURRENT_TIME):
        raise ValueOutOfRangeError(
            "rows already there got the time of the DDL, which the topic does not carry. They are NULL until "
            "a resync brings it (tidesink resync)"
        )
    if reader == "bit":
        # TiDB holds the default of a BIT column as its bytes (one character each).
        try:
            at_source: Value = int.from_bytes(text.encode("latin-1"), "big")
        except UnicodeEncodeError as error:
            raise ValueOutOfRangeError("the default of a BIT column is not bytes") from error
    elif reader in ("enum", "set"):
        at_source = text  # by label, where rows in canal-json carry the number
    else:
        at_source = text_reader(column.type)(text)
    zone = timezone.utc if shape.time_zone == "UTC" else ZoneInfo(shape.time_zone)
    return target_reader(column.type, time_zone=zone, **shape.policies_of(column))(at_source)


def ways_out(name: str, *, key: bool = False) -> str:
    """What to do about a column whose types at the source no type of the target holds."""
    again = f"{LOAD_AGAIN}, with a start: behind the change"
    if key:
        return f"The column belongs to the key and cannot be left out: {again}"
    return f"To go on without it, add {name} to except_column_list. To take the new type, {again}"


def _as_it_was(shape: TableShape, column: ShapeColumn, former: Column | None) -> ShapeColumn:
    if former is None:
        return column
    new = _shape_column(former, key=column.key, zero_date=shape.zero_date)
    if wider_ddl(column.spark, new.spark, text_holds=row_of(new.type).reader == "decimal") is None:
        return column
    return _joined(shape, column, new)


def _joined(
    shape: TableShape, old: ShapeColumn, new: ShapeColumn | None, *, unread: bool = False
) -> ShapeColumn:
    if new is None:
        return old
    ddl = wider_ddl(old.spark, new.spark, text_holds=row_of(new.type).reader == "decimal")
    if ddl is None and unread and not new.key:
        return replace(new, name=old.name, default=None, instead_of=old.instead_of | new.instead_of)
    if ddl is None:
        raise SchemaRefusedError(
            f"column {old.name!r} is {old.spark} ({old.type.sql or old.type.name}) and a newer schema says "
            f"{new.spark} ({new.type.sql or new.type.name}): no type holds both. "
            f"{ways_out(old.name, key=old.key)}",
            table=str(shape.table),
            column=old.name,
            change="type",
            before=old.spark,
            after=new.spark,
        )
    kept = new if ddl == new.spark else old
    members = new.type.members if new.type.members is not None else old.type.members
    if row_of(kept.type).parameter != "allowed":
        members = None
    # Rows without the column were there when it was added: a default it was given later is not theirs.
    return replace(
        kept,
        name=old.name,
        type=_wider_type(kept.type, ddl, members),
        spark=ddl,
        default=default_as(old.default, old.type, kept.type),
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
    """The Spark type that holds the values of both, or None. ``old`` is what a target has already.

    ``text_holds``: values of ``new`` may be kept as text in a string column, and decimals whose
    precision the wire does not say may be read into a decimal column.
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
    found = _DECIMAL.fullmatch(ddl)
    if found:
        return int(found.group(1)) - int(found.group(2)), int(found.group(2))
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


# What each row of a change log says of itself, in columns called by ``default_name``.
_IN_LOGS: Final = frozenset({"op", "commit_ts", "partition", "offset"})


def default_name(kind: str) -> str:
    """The name of a metadata column that the config does not name."""
    return f"_tidesink_{kind}"


def beside_log(names: Mapping[MetadataKind, str]) -> dict[MetadataKind, str]:
    """Those of the columns asked for that a change log does not have by itself."""
    return {
        kind: name
        for kind, name in names.items()
        if kind not in _IN_LOGS or fold_name(name) != default_name(kind)
    }


def metadata_columns(names: Mapping[MetadataKind, str]) -> tuple[ShapeColumn, ...]:
    """The columns of a table that asks for them, in the order it does."""
    return tuple(
        ShapeColumn(name, _TYPES[kind], spark_type(_TYPES[kind]).ddl) for kind, name in names.items()
    )


# TiDB lets no column have the first name. It comes first: its range says which files and pages a batch
# concerns, where the table's id is the same in all rows.
ROW_ID: Final = "_tidb_rowid"
TABLE_ID: Final = "_tidb_table_id"
_DEBEZIUM: Final = "Debezium's records have no other: a source position names an event, and no row"
# What a protocol has, beside a key, that tells rows apart: what to say of a table without a key.
IDENTITIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "canal-json": "new TiCDC sends TiDB's row keys, which tell rows apart (output-row-key=true and "
        "enable-tidb-extension=true, in the changefeed and under source)",
        "flat-avro": "flat-avro has nothing else that names a row; new TiCDC's canal-json has, with "
        "output-row-key=true",
        "debezium-avro": _DEBEZIUM,
        "debezium-json": _DEBEZIUM,
    }
)
_FORM: Final = "'t', 8 bytes of the table's id, '_r', 8 bytes of the row's id, in base64"
# 19 bytes: 18 in groups of three, the last one as two characters, the second with four bits.
BASE64_FORM: Final = "^[A-Za-z0-9+/]{25}[AQgw]==$"
_KEY: Final = struct.Struct(">cQ2sQ")
_SIGN: Final = 1 << 63


class RowKey(NamedTuple):
    """Which row of which table, or partition of one."""

    row_id: int
    table_id: int


def parse_row_key(text: object) -> RowKey:
    """What ``_tidb.rowkey`` says.

    Raises:
        SchemaMismatchError: it is not there, or is the key of a row that has no ``_tidb_rowid``.
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
    """The text of ``_tidb.rowkey``."""
    packed = _KEY.pack(b"t", key.table_id + _SIGN, b"_r", key.row_id + _SIGN)
    return base64.b64encode(packed).decode()


NO_ROW_KEY: Final = (
    "the row has no _tidb.rowkey, and nothing else names a row of a table without a key: set "
    "output-row-key=true and enable-tidb-extension=true in the changefeed, or name columns that tell the "
    "rows apart under tables: keys"
)
OTHER_ROW_KEY: Final = (
    f"_tidb.rowkey is not that of a row with a _tidb_rowid ({_FORM}), as rows of a table without a key have: "
    "where the table has a key, name its columns under tables: keys, or give its definition"
)
# Of a target that writes flat-avro.
NO_FLAT_AVRO: Final = (
    "the table has no key, its rows are identified by TiDB's row keys, and flat-avro has no place for them: "
    "readers take a field whose name begins with _tidb_ for one of TiCDC's own and no column. Write "
    "canal-json, debezium-json or debezium-avro, or name columns that tell the rows apart under keys"
)
# Of a table that nothing but its rows tells of.
UNREPORTED_KEY: Final = (
    "rows are identified by TiDB's row keys, since no pkNames and no DDL in the topic name a key: if the "
    "table has a unique key of columns that are not null, name it under tables: keys, because the changefeed "
    "may send a row whose key changes to another partition"
)
_WHY: Final = "the table has no key: TiDB's own number of {}, from _tidb.rowkey (output-row-key)"

_BIGINT: Final = ColumnType("bigint", sql="bigint")
ROW_KEY_COLUMNS: Final = tuple(
    ShapeColumn(name, _BIGINT, "bigint", key=True, hidden=True) for name in (ROW_ID, TABLE_ID)
)
WHY_OF: Final = {ROW_ID: _WHY.format("the row"), TABLE_ID: _WHY.format("the table or partition")}


def is_row_keyed(shape: TableShape) -> bool:
    """Whether a shape's rows are identified by their row keys."""
    return any(column.hidden for column in shape.columns)


def row_keyed(shape: TableShape) -> TableShape:
    """A shape without a key, under the row key.

    Raises:
        SchemaRefusedError: the source has a column of one of the two names.
    """
    taken = [name for name in (ROW_ID, TABLE_ID) if name in shape.by_name]
    if taken:
        raise SchemaRefusedError(
            f"the source has a column {taken[0]}, a name that the row key needs: rename it, or name columns "
            "that tell the rows apart under tables: keys",
            table=str(shape.table),
        )
    return replace(shape, columns=(*ROW_KEY_COLUMNS, *shape.columns), keys=(ROW_ID, TABLE_ID))


def shown_columns(shape: TableShape) -> TableShape:
    """A shape as the source shows it: without its row key, and then without a key."""
    if not is_row_keyed(shape):
        return shape
    return replace(shape, columns=tuple(c for c in shape.columns if not c.hidden), keys=())
