"""The sample shop of the workload: its tables, a seeded stream of changes, and the expected final state.

The stream has the changes of a real changefeed: inserts, updates, deletes, updates of a key (split into
delete and insert with the same commit_ts, as in TiCDC's default), and new columns. The same seed and number
of events produce the same events, including their commit_ts.

The expected state is a JSON file for the check: ``{"tables": {"shop.orders": {"columns": {name: type text},
"key": [names], "rows": [[value text or null, ...]]}}}``. Values are text: binary as hex, decimals padded to
their scale, floats as Python's repr, dates and times as MySQL's text (TIMESTAMP in UTC).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import NamedTuple

from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import (
    ChangeEvent,
    Column,
    ColumnType,
    DdlEvent,
    Op,
    Position,
    Row,
    TableId,
    TableSchema,
    Value,
)
from tidesink.typemap.table import Reader, TypeRow, row_of

SCHEMA = "shop"

CREATE: dict[TableId, str] = {
    TableId(SCHEMA, "customers"): """
        CREATE TABLE `shop`.`customers` (
          `id` BIGINT UNSIGNED PRIMARY KEY,
          `email` VARCHAR(120) NOT NULL,
          `name` VARCHAR(80),
          `country` CHAR(2) DEFAULT 'DE',
          `tier` ENUM('basic','silver','gold, platinum') NOT NULL DEFAULT 'basic',
          `tags` SET('vip','gift','late') DEFAULT NULL,
          `balance` DECIMAL(20,4) NOT NULL,
          `profile` JSON,
          `created_at` TIMESTAMP(3) NULL
        )""",
    TableId(SCHEMA, "products"): """
        CREATE TABLE `shop`.`products` (
          `sku` VARCHAR(24) NOT NULL,
          `title` VARCHAR(120) NOT NULL,
          `price` DECIMAL(12,2) NOT NULL,
          `stock` INT UNSIGNED NOT NULL DEFAULT 0,
          `weight` FLOAT,
          `added` DATE,
          `photo` VARBINARY(64),
          PRIMARY KEY (`sku`)
        )""",
    TableId(SCHEMA, "orders"): """
        CREATE TABLE `shop`.`orders` (
          `id` BIGINT PRIMARY KEY,
          `customer_id` BIGINT UNSIGNED NOT NULL,
          `placed_at` DATETIME(6) NOT NULL,
          `status` ENUM('new','paid','shipped','returned') NOT NULL,
          `total` DECIMAL(38,10),
          `note` TEXT
        )""",
    TableId(SCHEMA, "order_items"): """
        CREATE TABLE `shop`.`order_items` (
          `order_id` BIGINT NOT NULL,
          `line` SMALLINT UNSIGNED NOT NULL,
          `sku` VARCHAR(24),
          `quantity` INT,
          `price` DECIMAL(12,2),
          PRIMARY KEY (`order_id`, `line`)
        )""",
    TableId(SCHEMA, "every_type"): """
        CREATE TABLE `shop`.`every_type` (
          `id` BIGINT UNSIGNED PRIMARY KEY,
          `a_tinyint` TINYINT, `a_tinyint_unsigned` TINYINT UNSIGNED, `a_bool` BOOL,
          `a_smallint` SMALLINT, `a_smallint_unsigned` SMALLINT UNSIGNED,
          `a_mediumint` MEDIUMINT, `a_mediumint_unsigned` MEDIUMINT UNSIGNED,
          `an_int` INT, `an_int_unsigned` INT UNSIGNED,
          `a_bigint` BIGINT, `a_bigint_unsigned` BIGINT UNSIGNED,
          `a_float` FLOAT, `a_double` DOUBLE,
          `a_decimal` DECIMAL(10,2), `a_decimal_38` DECIMAL(38,10), `a_decimal_65` DECIMAL(65,30),
          `a_char` CHAR(10), `a_varchar` VARCHAR(60),
          `a_tinytext` TINYTEXT, `a_text` TEXT, `a_mediumtext` MEDIUMTEXT, `a_longtext` LONGTEXT,
          `a_binary` BINARY(6), `a_varbinary` VARBINARY(40),
          `a_tinyblob` TINYBLOB, `a_blob` BLOB, `a_mediumblob` MEDIUMBLOB, `a_longblob` LONGBLOB,
          `a_bit` BIT(1), `a_bit_12` BIT(12), `a_bit_64` BIT(64),
          `an_enum` ENUM('red','green','b,lue'), `a_set` SET('x','y','z'),
          `a_json` JSON,
          `a_date` DATE, `a_time` TIME(4), `a_datetime` DATETIME(6), `a_timestamp` TIMESTAMP(2) NULL,
          `a_year` YEAR, `a_vector` VECTOR(3),
          `a_default` INT DEFAULT 7
        )""",
}


class AddedColumn(NamedTuple):
    """A column that ALTER TABLE adds in the middle of the workload, and its value in existing rows."""

    name: str
    in_old_rows: Value
    sql: str


# The added columns: two with a default for existing rows, and one without.
ALTER: dict[TableId, AddedColumn] = {
    TableId(SCHEMA, "customers"): AddedColumn(
        "nickname", None, "ALTER TABLE `shop`.`customers` ADD COLUMN `nickname` VARCHAR(40)"
    ),
    TableId(SCHEMA, "products"): AddedColumn(
        "stock_least",
        3,
        "ALTER TABLE `shop`.`products` ADD COLUMN `stock_least` INT UNSIGNED NOT NULL DEFAULT 3",
    ),
    TableId(SCHEMA, "orders"): AddedColumn(
        "channel",
        "web",
        "ALTER TABLE `shop`.`orders` ADD COLUMN `channel` VARCHAR(20) NOT NULL DEFAULT 'web'",
    ),
}


Change = ChangeEvent | DdlEvent
Key = tuple[Value, ...]

_START_MS = 1_767_225_600_000  # 2026-01-01 00:00:00 UTC: the same seed always produces the same bytes
_NOWHERE = Position(topic="", partition=0, offset=0)


@dataclass
class ShopTables:
    """The rows of the shop's tables by key, and the tables' definitions, as a source database has them."""

    definitions: TableDefinitions
    rows: dict[TableId, dict[Key, dict[str, Value]]] = field(default_factory=dict)

    def schema(self, table: TableId) -> TableSchema:
        """Returns the current definition of a table."""
        schema = self.definitions.get(table)
        assert schema is not None, f"{table} was never created"  # noqa: S101
        return schema


class ShopChanges:
    """Generates the shop's transactions. ``transactions`` may only be called once."""

    def __init__(self, seed: int, events: int) -> None:
        self.random = Random(seed)  # noqa: S311 - repeatable on purpose
        self._events = events
        self._written = 0
        self._clock_ms = _START_MS
        self._next_id = 1
        self.tables = ShopTables(TableDefinitions())

    def transactions(self) -> Iterator[list[Change]]:
        """Yields transactions until the requested number of row events is reached."""
        yield [self._create(table, sql) for table, sql in CREATE.items()]
        altered = False
        while self._written < self._events:
            if not altered and self._written >= self._events // 2:
                altered = True
                yield [self._alter(table, added) for table, added in ALTER.items()]
            changes = self._transaction()
            self._written += len(changes)
            yield changes

    def _commit_ts(self) -> int:
        self._clock_ms += self.random.randint(1, 400)
        return self._clock_ms << 18 | self.random.randrange(16)

    def _create(self, table: TableId, sql: str) -> Change:
        self.tables.rows[table] = {}
        return self._ddl(table, sql, "CREATE")

    def _alter(self, table: TableId, added: AddedColumn) -> Change:
        for row in self.tables.rows[table].values():
            row[added.name] = added.in_old_rows
        return self._ddl(table, added.sql, "ALTER")

    def _ddl(self, table: TableId, sql: str, kind: str) -> Change:
        query = " ".join(sql.split())
        self.tables.definitions.apply(query, table.schema)
        return DdlEvent(table, query, kind, self._commit_ts(), _NOWHERE)

    def _transaction(self) -> list[Change]:
        (step,) = self.random.choices([step for step, _ in _STEPS], [weight for _, weight in _STEPS])
        commit_ts = self._commit_ts()
        return [event for event in step(self, commit_ts) if event is not None]

    def new_id(self) -> int:
        """Returns a new id, greater than all earlier ones. Some numbers are skipped."""
        self._next_id += self.random.randint(1, 3)
        return self._next_id

    def insert(self, table: str, values: dict[str, Value], commit_ts: int) -> ChangeEvent:
        """Inserts a row with ``values``, and random values in its other columns. Returns the event."""
        schema = self.tables.schema(TableId(SCHEMA, table))
        row = {
            c.name: values[c.name] if c.name in values else random_value(self.random, c)
            for c in schema.columns
        }
        return self.event(Op.INSERT, schema, None, row, commit_ts)

    def event(
        self, op: Op, schema: TableSchema, before: Row | None, after: dict[str, Value] | None, commit_ts: int
    ) -> ChangeEvent:
        """Creates a row event, and applies it to the shop's tables. Returns the event."""
        image = after if after is not None else before or {}
        key = {column.name: image[column.name] for column in schema.handle_columns}
        rows = self.tables.rows[schema.table]
        if after is None:
            rows.pop(tuple(key.values()), None)
        else:
            rows[tuple(key.values())] = dict(after)
        return ChangeEvent(op, schema.table, key, before, after, commit_ts, _NOWHERE, schema)

    def any_row(self, table: str) -> dict[str, Value] | None:
        """Returns a random row of a table, more often a newer one; None if the table is empty."""
        rows = self.tables.rows[TableId(SCHEMA, table)]
        if not rows:
            return None
        # The newest rows change most, as in a real shop. A list of all keys would take too long to make.
        skip = min(int(self.random.expovariate(1 / 200)), len(rows) - 1)
        for number, key in enumerate(reversed(rows)):
            if number == skip:
                return rows[key]
        return None

    def update(self, table: str, commit_ts: int) -> ChangeEvent | None:
        """Updates one to three columns of a random row. Returns the event, or None for an empty table."""
        before = self.any_row(table)
        if before is None:
            return None
        schema = self.tables.schema(TableId(SCHEMA, table))
        after = dict(before)
        free = [column for column in schema.columns if not column.handle]
        for column in self.random.sample(free, min(len(free), self.random.randint(1, 3))):
            after[column.name] = random_value(self.random, column)
        return self.event(Op.UPDATE, schema, dict(before), after, commit_ts)

    def delete(self, table: str, commit_ts: int) -> ChangeEvent | None:
        """Deletes a random row. Returns the event, or None for an empty table."""
        before = self.any_row(table)
        schema = self.tables.schema(TableId(SCHEMA, table))
        return None if before is None else self.event(Op.DELETE, schema, dict(before), None, commit_ts)


Step = Callable[[ShopChanges, int], list["ChangeEvent | None"]]


def _new_customer(source: ShopChanges, ts: int) -> list[ChangeEvent | None]:
    # Some ids are near 2^64, to test that an unsigned key does not turn negative.
    number = source.new_id()
    identity = 2**64 - number if number % 5 == 0 else number
    return [source.insert("customers", {"id": identity, "email": f"c{number}@example.com"}, ts)]


def _new_product(source: ShopChanges, ts: int) -> list[ChangeEvent | None]:
    return [source.insert("products", {"sku": f"sku-{source.new_id()}"}, ts)]


def _place_order(source: ShopChanges, ts: int) -> list[ChangeEvent | None]:
    order = source.new_id()
    customer = source.any_row("customers")
    identity = customer["id"] if customer else 1
    lines = range(1, source.random.randint(1, 4) + 1)
    items: list[ChangeEvent | None] = [
        source.insert("order_items", {"order_id": order, "line": line, "price": Decimal("9.90")}, ts)
        for line in lines
    ]
    return [source.insert("orders", {"id": order, "customer_id": identity}, ts), *items]


def _every_type(source: ShopChanges, ts: int) -> list[ChangeEvent | None]:
    return [source.insert("every_type", {"id": source.new_id()}, ts)]


def _update_something(source: ShopChanges, ts: int) -> list[ChangeEvent | None]:
    names = ("customers", "customers", "orders", "orders", "products", "order_items", "every_type")
    return [source.update(source.random.choice(names), ts)]


def _delete_something(source: ShopChanges, ts: int) -> list[ChangeEvent | None]:
    names = ("orders", "order_items", "order_items", "products", "customers", "every_type")
    return [source.delete(source.random.choice(names), ts)]


def _rename_product(source: ShopChanges, ts: int) -> list[ChangeEvent | None]:
    """Updates a product's key. Returns a delete and an insert with the same commit_ts, as TiCDC sends it."""
    before = source.any_row("products")
    if before is None:
        return []
    renamed = {**before, "sku": f"sku-{source.new_id()}-b"}
    schema = source.tables.schema(TableId(SCHEMA, "products"))
    return [
        source.event(Op.DELETE, schema, dict(before), None, ts),
        source.event(Op.INSERT, schema, None, renamed, ts),
    ]


_STEPS: tuple[tuple[Step, int], ...] = (
    (_new_customer, 12),
    (_new_product, 6),
    (_place_order, 14),
    (_every_type, 8),
    (_update_something, 40),
    (_delete_something, 14),
    (_rename_product, 4),
)


@dataclass(frozen=True)
class ExpectedTable:
    """Expected final state of one table. ``rows``: values as text, in the order of the columns."""

    table: TableId
    columns: dict[str, str]
    key: tuple[str, ...]
    rows: list[list[str | None]]


def value_text(value: Value) -> str | None:
    """Returns a value as text, in the form of the file with the expected state; None for NULL."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    return repr(value) if isinstance(value, float) else str(value)


def save_expected(path: Path, tables: ShopTables) -> None:
    """Writes the final state of all tables to a JSON file."""
    document = {str(table): _table(tables, table) for table in tables.rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"tables": document}, ensure_ascii=False), encoding="utf-8")


def _table(tables: ShopTables, table: TableId) -> dict[str, object]:
    schema = tables.schema(table)
    names = [column.name for column in schema.columns]
    return {
        "columns": {column.name: _type_text(column.type) for column in schema.columns},
        "key": [column.name for column in schema.handle_columns],
        "rows": [[value_text(row[name]) for name in names] for row in tables.rows[table].values()],
    }


def _type_text(column_type: ColumnType) -> str:
    return column_type.sql or column_type.name


def load_expected(path: Path) -> list[ExpectedTable]:
    """Loads the expected final state of all tables from a file of ``save_expected``."""
    document = json.loads(path.read_text(encoding="utf-8"))["tables"]
    return [
        ExpectedTable(TableId(*name.split(".", 1)), table["columns"], tuple(table["key"]), table["rows"])
        for name, table in document.items()
    ]


_WORDS = (
    "plain",
    "中文 😀",
    "O'Neill",
    'quote"d',
    "back\\slash",
    "null",
    "",
    " lead",
    "tab\tnew\nline",
    "<&>",
)
_ZERO_DATES = ("0000-00-00", "2020-00-00", "2020-02-30")


_EXTREMES = {
    "date": ("1000-01-01", "9999-12-31"),
    "datetime": ("1000-01-01 00:00:00", "9999-12-31 23:59:59"),
    "timestamp": ("1970-01-01 00:00:01", "2038-01-19 03:14:07"),
    "time": ("-838:59:59", "838:59:59", "00:00:00"),
}
_EXTREME_SHARE = 0.05
_FLOAT32_MAX = 3.4028234663852886e38
_FLOAT64_MAX = 1.7976931348623157e308


def random_value(random: Random, column: Column) -> Value:
    """Returns a random value for a column; sometimes NULL if the column is nullable."""
    if column.nullable and random.random() < 0.1:
        return None
    row = row_of(column.type)
    return _MAKERS[row.reader](random, column, row)


def _integer(random: Random, column: Column, row: TypeRow) -> Value:
    if row.name == "year":
        return random.choice((0, 1901, 2155, random.randint(1950, 2050)))
    low, high = row.bounds or (0, 0)
    if column.type.length == 1 and row.name == "tinyint":
        return random.randint(0, 1)
    return random.choice((low, high, 0, random.randint(low, high), random.randint(0, 100)))


def _float32(random: Random, _column: Column, _row: TypeRow) -> Value:
    value = random.choice((0.0, 1.5, random.uniform(-1e6, 1e6), _FLOAT32_MAX, -_FLOAT32_MAX))
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _float64(random: Random, _column: Column, _row: TypeRow) -> Value:
    return random.choice((0.0, -2.5e-3, random.uniform(-1e12, 1e12), _FLOAT64_MAX, -_FLOAT64_MAX))


def _decimal(random: Random, column: Column, _row: TypeRow) -> Value:
    precision, scale = column.type.precision or 10, column.type.scale or 0
    digits = random.choice((1, precision // 2 or 1, precision))
    unscaled = random.choice((0, 10**digits - 1, random.randrange(10**digits)))
    return Decimal((random.randint(0, 1) if unscaled else 0, _digits(unscaled), -scale))


def _digits(value: int) -> tuple[int, ...]:
    return tuple(int(digit) for digit in str(value))


def _text(random: Random, column: Column, row: TypeRow) -> Value:
    if row.name == "json":
        return random.choice(
            ("{}", "[1, 2.5, null]", json.dumps({"k": random.randint(0, 99), "v": "中"}, ensure_ascii=False))
        )
    if row.name == "vector":
        return "[" + ",".join(str(random.randint(-9, 9)) for _ in range(column.type.length or 3)) + "]"
    text = random.choice(_WORDS) + random.choice(("", str(random.randint(0, 999))))
    # TiDB strips the trailing spaces of CHAR.
    return text.rstrip(" ") if row.name == "char" else text


def _binary(random: Random, column: Column, row: TypeRow) -> Value:
    length = column.type.length or 24
    value = random.randbytes(random.randint(0, min(length, 24)))
    return value.ljust(length, b"\0") if row.name == "binary" else value


def _bit(random: Random, column: Column, _row: TypeRow) -> Value:
    bits = column.type.length or 1
    return random.choice((0, 2**bits - 1, random.getrandbits(bits)))


def _enum(random: Random, column: Column, _row: TypeRow) -> Value:
    return random.choice(column.type.members or ("",))


def _set(random: Random, column: Column, _row: TypeRow) -> Value:
    return ",".join(member for member in column.type.members or () if random.random() < 0.5)


def _fraction(random: Random, column: Column) -> str:
    digits = column.type.fsp or 0
    return f".{random.randrange(10**digits):0{digits}d}" if digits else ""


def _day(random: Random, first_year: int, last_year: int) -> str:
    return (
        f"{random.randint(first_year, last_year):04d}-{random.randint(1, 12):02d}-{random.randint(1, 28):02d}"
    )


def _clock(random: Random) -> str:
    return f"{random.randint(0, 23):02d}:{random.randint(0, 59):02d}:{random.randint(0, 59):02d}"


def _extreme(random: Random, row: TypeRow) -> str | None:
    return random.choice(_EXTREMES[row.name]) if random.random() < _EXTREME_SHARE else None


def _zero_date(random: Random) -> str | None:
    return random.choice(_ZERO_DATES) if random.random() < 0.03 else None


def _date(random: Random, _column: Column, row: TypeRow) -> Value:
    return _zero_date(random) or _extreme(random, row) or _day(random, 1900, 2100)


def _datetime(random: Random, column: Column, row: TypeRow) -> Value:
    zero = _zero_date(random)
    whole = (
        f"{zero} 00:00:00"
        if zero
        else _extreme(random, row) or f"{_day(random, 1900, 2100)} {_clock(random)}"
    )
    return whole + _fraction(random, column)


def _timestamp(random: Random, column: Column, row: TypeRow) -> Value:
    whole = _extreme(random, row) or f"{_day(random, 1971, 2037)} {_clock(random)}"
    return whole + _fraction(random, column)


def _time(random: Random, column: Column, row: TypeRow) -> Value:
    extreme = _extreme(random, row)
    if extreme:  # the extreme second plus a fraction would be outside MySQL's range
        return extreme + ("." + "0" * column.type.fsp if column.type.fsp else "")
    sign = random.choice(("", "-"))
    hours, minutes = random.randint(0, 837), random.randint(0, 59)
    return f"{sign}{hours:02d}:{minutes:02d}:{random.randint(0, 59):02d}{_fraction(random, column)}"


_MAKERS: dict[Reader, Callable[[Random, Column, TypeRow], Value]] = {
    "integer": _integer,
    "unsigned64": _integer,
    "float32": _float32,
    "float64": _float64,
    "decimal": _decimal,
    "text": _text,
    "binary": _binary,
    "bit": _bit,
    "enum": _enum,
    "set": _set,
    "date": _date,
    "datetime": _datetime,
    "timestamp": _timestamp,
    "time": _time,
}
