"""A table at its source, and what a changefeed of one codec sends of it: real bytes, and no broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, TypeVar

from tidesink.codecs import CODECS, open_codec
from tidesink.codecs.base import Codec, CodecOptions, EncodedRecord
from tidesink.codecs.options import PLACEHOLDER, DebeziumOptions, FlatAvroOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, DdlEvent, Message, Op, Position, Row, TableId, TableSchema, Value
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.schema_registry.naming import sanitize_name

# Every codec.
PROTOCOLS: Final = tuple(CODECS)
TOPIC: Final = "shop_orders"
TABLE: Final = TableId("sh`op", 'or\'ders "select" 数')
NAME: Final = '`sh``op`.`or\'ders "select" 数`'
# Names that are reserved words, that need quotes, and that are no ASCII.
CREATE: Final = f"""CREATE TABLE {NAME} (`id` BIGINT, `key` INT, `select` VARCHAR(40),
  `quo'te"s ``n` INT NOT NULL, `größe 数` VARCHAR(20) CHARACTER SET utf8mb4, PRIMARY KEY (`id`, `key`))"""
# Columns come, and a number gets wider and may be NULL from now on.
ALTER: Final = (
    f"ALTER TABLE {NAME} ADD COLUMN `order` VARCHAR(9) NOT NULL DEFAULT 'it''s' AFTER `select`, "
    "ADD COLUMN `late` INT, MODIFY COLUMN `quo'te\"s ``n` BIGINT"
)
DEFAULTS: Final[Row] = {"order": "it's", "late": None}

_PLAIN: Final = CodecOptions()


@dataclass(frozen=True)
class Carries:
    """What a protocol's messages carry. A codec needs an entry in ``CARRIES`` for what is other than here.

    ``old_keys``: an update's old key; else a changed key is sent as a delete and an insert of one commit.
    ``defaults``: those of columns that are added, which rows from before have. ``types``: the type of every
    column; else a person declares the table. ``decimals``: exact ones, and no doubles. ``years_from``: the
    least year of a date. ``placed``: the options with which each message has its position at the source;
    None: none ever has. ``every_type``: those with which every value can be sent.
    """

    old_keys: bool = True
    defaults: bool = True
    types: bool = True
    decimals: bool = True
    years_from: int = 1
    placed: CodecOptions | None = _PLAIN
    every_type: CodecOptions = _PLAIN


CARRIES: Final[Mapping[str, Carries]] = {
    # A delete has a position where it also has the old row.
    "flat-avro": Carries(
        old_keys=False,
        placed=FlatAvroOptions(enable_tidb_extension=True, avro_include_before_value=True, producer="new"),
    ),
    "canal-json": Carries(placed=CodecOptions(enable_tidb_extension=True)),
    # TiCDC takes years below 100 for short ones: year 1 goes out as 2001. It writes DECIMAL as a JSON number,
    # by way of a double.
    "debezium-json": Carries(types=False, decimals=False, years_from=1000),
    # TiCDC writes no default into the schema. An Avro long holds no 2^64-1: TiCDC refuses to write it under
    # its default.
    "debezium-avro": Carries(
        defaults=False,
        types=False,
        years_from=1000,
        every_type=DebeziumOptions(avro_bigint_unsigned_handling_mode="string"),
    ),
}


def carries(protocol: str) -> Carries:
    """What a protocol's messages carry."""
    return CARRIES.get(protocol, Carries())


Key = tuple[Value, ...]
_Sent = TypeVar("_Sent")


def name_in(protocol: str, name: str) -> str:
    """A column's name as it arrives: flat-avro has Avro's letters alone, the others tell the column's own."""
    return sanitize_name(name) if protocol == "flat-avro" else name


def arriving(schema: TableSchema, protocol: str) -> TableSchema:
    """A table's columns under the names that arrive."""
    return replace(schema, columns=tuple(replace(c, name=name_in(protocol, c.name)) for c in schema.columns))


@dataclass
class Changefeed:
    """The rows of a table, and the records of all that happened to them.

    ``old_keys``: whether updates that change a key are sent as such, where the codec can. ``filled``: keys of
    rows that were not written since a column was added, which gave them its default. ``events``: what each
    of the records says. ``unchanged``: how many of them come before columns are added.
    """

    protocol: str
    schema: TableSchema
    options: CodecOptions = field(default_factory=CodecOptions)
    old_keys: bool = True
    registry: MemorySchemaRegistry = field(default_factory=MemorySchemaRegistry)
    rows: dict[Key, Row] = field(default_factory=dict)
    filled: set[Key] = field(default_factory=set)
    records: list[EncodedRecord] = field(default_factory=list)
    events: list[ChangeEvent | DdlEvent] = field(default_factory=list)
    unchanged: int = 0
    _codec: Codec = field(init=False)
    _commits: int = 0

    def __post_init__(self) -> None:
        self._codec = open_codec(self.protocol, options=self.options, registry=self.registry)

    def put(self, *row: Value) -> None:
        """Insert a row, or update the one of its key."""
        new = self._named(row)
        before = self.rows.get(self._key(new))
        self._write(new)
        self._send(Op.INSERT if before is None else Op.UPDATE, before, new)

    def delete(self, *key: Value) -> None:
        """Delete the row of a key."""
        self._send(Op.DELETE, self.rows.pop(key), None)

    def rekey(self, key: Key, *row: Value, split: bool = False) -> None:
        """Update a row's key; ``split``: sent as a delete and an insert of one commit, as TiCDC may."""
        before, new = self.rows.pop(key), self._named(row)
        assert self._key(new) not in self.rows
        self._write(new)
        if self.old_keys and not split:
            self._send(Op.UPDATE, before, new)
            return
        self._send(Op.DELETE, before, None)
        self._send(Op.INSERT, None, new, commits=0)

    def define(self, sql: str) -> None:
        """A DDL of the table."""
        definitions = TableDefinitions([self.schema] if self.schema.columns else [])
        definitions.apply(sql, self.schema.table.schema)
        found = definitions.get(self.schema.table)
        assert found is not None
        self.schema = found
        if CODECS[self.protocol].tells_ddl:
            self.tell(sql)

    def tell(self, sql: str, *, of: TableId | None = None, at: int | None = None) -> None:
        """A DDL that changes no column.

        ``of``: the event names this table, which may be another. ``at``: its time, if it is to be odd.
        """
        table, at = of or self.schema.table, at or self._next_commit()
        self._keep(DdlEvent(table, sql, sql.split(maxsplit=1)[0], at, Position(TOPIC, 0, 0)))

    def truncate(self) -> None:
        """A TRUNCATE of the table."""
        schema, name = (part.replace("`", "``") for part in self.schema.table)
        self.tell(f"TRUNCATE TABLE `{schema}`.`{name}`")
        self.rows.clear()

    def add_columns(self, sql: str, defaults: Row) -> None:
        """A DDL that adds columns, with what the rows that are there have in them."""
        self.unchanged = len(self.records)
        self.define(sql)
        self.rows = {key: {**row, **defaults} for key, row in self.rows.items()}
        self.filled = set(self.rows)

    def _write(self, row: Row) -> None:
        self.rows[self._key(row)] = row
        self.filled.discard(self._key(row))

    def _named(self, row: Sequence[Value]) -> Row:
        return dict(zip((column.name for column in self.schema.columns), row, strict=True))

    def _key(self, row: Row) -> Key:
        return tuple(row[column.name] for column in self.schema.handle_columns)

    def _next_commit(self, commits: int = 1) -> int:
        self._commits += commits
        return self._commits * 1000 << 18

    def _send(self, op: Op, before: Row | None, after: Row | None, *, commits: int = 1) -> None:
        at, image = self._next_commit(commits), after if after is not None else before or {}
        key = {column.name: image[column.name] for column in self.schema.handle_columns}
        position = Position(TOPIC, 0, 0, 0, (at,))
        self._keep(ChangeEvent(op, self.schema.table, key, before, after, at, position, self.schema))

    def _keep(self, event: ChangeEvent | DdlEvent) -> None:
        record = self._codec.encode(event, topic=TOPIC)
        assert record is not None
        self.records.append(record)
        self.events.append(event)


def placed(records: Iterable[EncodedRecord], random: Random | None = None) -> list[Message]:
    """Records as a broker would number them: in one partition, or in two at random."""
    ends, found = [0, 0], []
    for record in records:
        partition = random.randrange(2) if random else 0
        found.append(Message(TOPIC, partition, ends[partition], record.key, record.value))
        ends[partition] += 1
    return found


def first_changes(feed: Changefeed) -> None:
    """Inserts, updates and deletes; keys that come again, and keys that change."""
    for number in (1, 2, 3):
        feed.put(number, 0, "first", number, "größe")
    feed.put(2, 0, None, 20, "'\"\\`")
    feed.delete(3, 0)
    feed.put(3, 0, "risen", 30, None)
    feed.rekey((1, 0), 1, 7, "moved", 1, "größe")
    # TiCDC sends every value: what Debezium's connectors write for one that is left out is a text like any.
    feed.put(1, 0, PLACEHOLDER, 2, "")
    feed.rekey((2, 0), 8, 0, "split", 20, None, split=True)
    feed.delete(8, 0)
    feed.put(4, 0, "first", 4, "数")


def wider_changes(feed: Changefeed) -> None:
    """The same once more, after columns were added, with numbers that only the wider type holds, and none."""
    feed.add_columns(ALTER, DEFAULTS)
    feed.put(5, 0, "wide", "paid", 2**40, "", 50)
    feed.put(3, 0, "wider", "new", 3, "größe", None)
    feed.delete(4, 0)
    feed.put(4, 0, "risen", "it's", None, "数", 40)
    feed.rekey((5, 0), 2, 0, "again", "sent", -(2**63), "", 51)
    feed.rekey((3, 0), 3, 1, "split", "sent", None, None, 31, split=True)
    feed.delete(4, 0)
    feed.put(4, 0, "again", "paid", 2**63 - 1, "数", None)


def sent_again(records: Sequence[_Sent], *starts: int) -> list[_Sent]:
    """A stream that goes back to each start, one after the other, and sends all from there once more."""
    return [*records, *(record for start in starts for record in records[start:])]
