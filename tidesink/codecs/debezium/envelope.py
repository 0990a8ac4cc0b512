"""Decodes Debezium's envelope: its source block and its row images, to one change event.

The type of a row's column comes from the first of these that has one: a table definition in the config, the
record's own schema, DDL that was decoded earlier (only if the record has no schema), and the form of the JSON
value (``readers``). DDL is sent in a topic of its own, so it may be older or newer than a row. It therefore
never overrides a row's schema, and it is ignored for a value that does not fit it.

Sources of the ``source`` block: Debezium 3.5.0.Final for MariaDB and Postgres (captured events); Debezium's
documentation and source for MySQL, Oracle, SQL Server, Db2, Informix, MongoDB, Vitess, Spanner and Cassandra,
without captures; TiCDC new architecture (b813e76) for its own ``debezium`` protocols.

The position of a change is a tuple of numbers. Positions are compared number by number, and only within the
order that the source database guarantees:

- MySQL and MariaDB: ``(binlog file number, pos, row)``. The binlog is in commit order. A snapshot's row has
  the position at which the snapshot was taken, so it sorts before all changes that follow the snapshot.
- SQL Server and Db2: ``(commit_lsn, change_lsn, event_serial_no)``, in commit order too.
- Postgres: ``(lsn,)`` of the event; Oracle: ``(scn, commit_scn)``. Row locks keep the changes of one row in
  this order. But a transaction that was open when a snapshot began has changes with a lower number than the
  snapshot's, and these changes are sent after the snapshot. So a snapshot's rows have no position and are
  ordered by Kafka's offsets.
- MongoDB: ``(seconds, ord)`` of the operation's timestamp.
- TiCDC: ``(commit_ts,)``.

A GTID set is only partly ordered: it is stored, but never compared. Changes of all other sources have no
position.
"""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from tidesink.codecs.base import UNAVAILABLE_PLACEHOLDER, ByIdentity, Unavailable, kept
from tidesink.codecs.debezium.commit_positions import commit_position
from tidesink.codecs.debezium.connect_schema import ConnectField, ConnectSchema
from tidesink.codecs.debezium.formats import Parsed
from tidesink.codecs.debezium.readers import (
    ValueReader,
    definition_reader,
    infer_column,
    inferred_value,
    reader_of,
)
from tidesink.codecs.debezium.structured import name_of
from tidesink.codecs.debezium.values import CELLS, check_cell, column_of, is_cell
from tidesink.codecs.options import DebeziumModes
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import DecodeError, SchemaMismatchError, shown
from tidesink.events import (
    UNAVAILABLE,
    UNAVAILABLE_BEFORE,
    ChangeEvent,
    Column,
    ColumnType,
    Message,
    Op,
    Position,
    SchemaIds,
    TableId,
    TableSchema,
    Value,
    fold_name,
)

Source = Mapping[str, Any]
Numbers = tuple[int, ...]

TICDC: Final = "TiCDC"
POSTGRES: Final = "postgresql"
MONGODB: Final = "mongodb"
_UINT64: Final = 2**64 - 1

_FILE_NUMBER: Final = re.compile(r"\.([0-9]{1,18})\Z", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]{1,38}", re.ASCII)
_MOST: Final = 10**38 - 1
_HEX_LSN: Final = re.compile(r"[0-9a-fA-F]{1,32}(?::[0-9a-fA-F]{1,16}){0,2}", re.ASCII)
STREAMED: Final = ("false", "", None, False)


def is_snapshot(source: Source) -> bool:
    """Returns True if a snapshot read the row, False if the row comes from the database's log."""
    return source.get("snapshot") not in STREAMED


def _whole(value: object) -> int | None:
    """Returns a number from the source block as an int; None if it is neither an int nor a text of digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= _MOST else None
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else None


def _together(*numbers: int | None) -> Numbers | None:
    present = tuple(number for number in numbers if number is not None)
    return present if len(present) == len(numbers) else None


def binlog_file_number(file: object) -> int | None:
    """Returns the number at the end of a binlog file's name; None if the name does not end with a number."""
    number = _FILE_NUMBER.search(file) if isinstance(file, str) else None
    return None if number is None else int(number[1])


def _binlog(source: Source) -> Numbers | None:
    number = binlog_file_number(source.get("file"))
    if number is None:
        return None
    return _together(number, _whole(source.get("pos")), _whole(source.get("row")) or 0)


def _event_lsn(source: Source) -> Numbers | None:
    return None if is_snapshot(source) else _together(_whole(source.get("lsn")))


def _scn(source: Source) -> Numbers | None:
    if is_snapshot(source):
        return None
    return _together(_whole(source.get("scn")), _whole(source.get("commit_scn")) or 0)


def lsn_number(value: object) -> int | None:
    """Converts a hexadecimal LSN such as ``00000027:00000758:0003`` to one number; None for other values.

    The parts of an LSN have a fixed width, so the numbers sort like the LSNs.
    """
    if not isinstance(value, str) or not _HEX_LSN.fullmatch(value):
        return None
    return int(value.replace(":", ""), 16)


def _commit_lsn(source: Source) -> Numbers | None:
    # A snapshot's row has the commit LSN at which it was read, and no change LSN of its own.
    return _together(
        lsn_number(source.get("commit_lsn")),
        lsn_number(source.get("change_lsn")) or 0,
        _whole(source.get("event_serial_no")) or 0,
    )


def _operation_time(source: Source) -> Numbers | None:
    milliseconds = _whole(source.get("ts_ms"))
    return None if milliseconds is None else _together(milliseconds // 1000, _whole(source.get("ord")))


def _unsigned(value: object) -> int | None:
    """Returns a TiDB timestamp as an unsigned number; None if the value is not an integer.

    ``debezium-avro`` stores the timestamp in a signed long, in which the largest timestamps are negative.
    """
    return value & _UINT64 if isinstance(value, int) and not isinstance(value, bool) else None


def _commit_ts(source: Source) -> Numbers | None:
    return _together(_unsigned(source.get("commit_ts")))


def _nowhere(_source: Source) -> Numbers | None:
    return None


class _Connector(NamedTuple):
    schema: str
    name: str
    position: Callable[[Source], Numbers | None]
    # The members that ``position`` and ``commit_positions`` read.
    members: tuple[str, ...] = ()


_UNKNOWN: Final = _Connector("db", "table", _nowhere)
_BINLOG_MEMBERS: Final = ("file", "pos", "row", "snapshot")
_LSN_MEMBERS: Final = ("commit_lsn", "change_lsn", "event_serial_no")
# By ``source.connector``: the members that name the table, and the position function.
_CONNECTORS: Final[Mapping[str, _Connector]] = {
    "mysql": _Connector("db", "table", _binlog, _BINLOG_MEMBERS),
    "mariadb": _Connector("db", "table", _binlog, _BINLOG_MEMBERS),
    POSTGRES: _Connector("schema", "table", _event_lsn, ("snapshot", "lsn", "sequence")),
    "yugabytedb": _Connector("schema", "table", _nowhere),
    "oracle": _Connector("schema", "table", _scn, ("snapshot", "scn", "commit_scn")),
    "sqlserver": _Connector("schema", "table", _commit_lsn, _LSN_MEMBERS),
    "db2": _Connector("schema", "table", _commit_lsn, _LSN_MEMBERS),
    "informix": _Connector("schema", "table", _nowhere),
    MONGODB: _Connector("db", "collection", _operation_time, ("ts_ms", "ord")),
    "vitess": _Connector("keyspace", "table", _nowhere),
    "cassandra": _Connector("keyspace", "table", _nowhere),
    "spanner": _Connector("database_id", "table", _nowhere),
    TICDC: _Connector("db", "table", _commit_ts, ("commit_ts",)),
}


def table_members(connector: str) -> tuple[str, ...]:
    """Returns the names of the members of a connector's source block that name the table."""
    members = _CONNECTORS.get(connector)
    return ("db", "schema", "table", "collection") if members is None else (members.schema, members.name)


def position_members(connector: str) -> tuple[str, ...]:
    """Returns the names of the members of a connector's source block from which positions are computed.

    They include the members for the position of the transaction (``commit_positions``).
    """
    return _CONNECTORS.get(connector, _UNKNOWN).members


def connector_of(source: Source) -> str:
    """Returns the connector's name from ``source.connector``; an empty text if the member is missing."""
    name = source.get("connector")
    return name if isinstance(name, str) else ""


# Connectors of Postgres and its derivatives, where a second column whose name differs only in case may appear
# at any time.
_EXACT_NAMES: Final = frozenset({POSTGRES, "yugabytedb"})


def has_exact_names(connector: str) -> bool:
    """Returns True if column names of this connector's database are always compared with regard to case.

    This is the case for Postgres and YugabyteDB. Other databases compare names without regard to case (MySQL,
    MariaDB, TiDB, and SQL Server by default), or fold unquoted names to one case (Oracle, Db2, Informix).
    Their names, and those of an unknown connector (empty text), are compared with regard to case only after a
    row had two columns whose names differ only in case.
    """
    return connector in _EXACT_NAMES


def table_of_source(source: Source) -> TableId:
    """Returns the schema and the table that a source block names; missing parts are empty texts."""
    connector = _CONNECTORS.get(connector_of(source), _UNKNOWN)
    schema, name = _text(source, connector.schema), _text(source, connector.name)
    if connector is _UNKNOWN:
        schema, name = schema or _text(source, "schema"), name or _text(source, "collection")
    return TableId(schema, name)


def _text(source: Source, member: str) -> str:
    value = source.get(member)
    return value if isinstance(value, str) else ""


def position_of_source(source: Source) -> Numbers | None:
    """Returns a change's position in the source database, as numbers to compare; None if it is not known."""
    return _CONNECTORS.get(connector_of(source), _UNKNOWN).position(source)


def commit_ts_of_source(source: Source) -> int | None:
    """Returns TiDB's commit timestamp from a source block of TiCDC; None for all other connectors."""
    return _unsigned(source.get("commit_ts")) if connector_of(source) == TICDC else None


_UNTYPED_TIME: Final = (
    "Column {!r} has the members of io.debezium.time.{}, but the record has no schema that "
    "confirms this type. Define the table under tables, or set schemas.enable: true at the "
    "connector's converter, or use another time.precision.mode than structured."
)
_MOST_SHAPES: Final = 4096
_Typed = tuple[Column, "Value | Unavailable"]


class RowRead(NamedTuple):
    """A row as read from a record: its values by column name, and its columns.

    ``unavailable`` holds the names of columns whose value the source did not send. They are in ``columns``,
    but not in ``values``; the target keeps its stored values of these columns.
    """

    values: dict[str, Value]
    columns: tuple[Column, ...]
    unavailable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shape:
    """The columns of a table as the Connect schema of its rows describes them.

    ``fields`` holds, per column, the field's name in the record, the column's own name, and the function that
    reads its values.
    """

    schema: ConnectSchema
    fields: tuple[tuple[str, str, ValueReader], ...]
    columns: tuple[Column, ...]


def _no_column(_name: str) -> bool:
    return False


def _marked(columns: Iterable[Column], table: TableId, keys: Collection[str]) -> TableSchema:
    """Returns the columns as a table schema in which the columns in ``keys`` are marked as the key."""
    marked = (
        replace(column, handle=column.name in keys, primary_key=column.name in keys) for column in columns
    )
    return TableSchema(table, tuple(marked))


@dataclass(frozen=True)
class Rows:
    """Reads rows of many tables, and caches the columns and readers of each schema.

    ``definitions`` holds the tables that the config defines, ``learned`` the tables from decoded DDL.
    ``untyped_is_text``: if True, a column without a known type is read as text; otherwise its type is
    inferred from its value.
    """

    modes: DebeziumModes
    definitions: TableDefinitions
    learned: TableDefinitions = field(default_factory=TableDefinitions)
    untyped_is_text: bool = False
    _inferred: dict[tuple[str, str], Column] = field(default_factory=dict)
    _tuples: dict[tuple[int, ...], tuple[Column, ...]] = field(default_factory=dict)

    def read(
        self,
        raw: object,
        schema: ConnectSchema | None,
        table: TableId,
        *,
        skipped: Callable[[str], bool] = _no_column,
    ) -> RowRead:
        """Reads one row: a Kafka key, or the old or new row of a change.

        ``skipped`` returns True for the names of fields that are not columns.

        Raises:
            SchemaMismatchError: the value is not a row, or a column's value does not have its schema's type.
            ValueOutOfRangeError: a value does not fit its column; context has the column.
        """
        if not isinstance(raw, Mapping):
            raise SchemaMismatchError(f"{shown(raw)} is not a row of a table. A JSON object was expected.")
        if schema is None or schema.type != "struct":
            return self._without_schema(raw, table)
        return _with_schema(raw, self.shape(schema, table, skipped))

    @cached_property
    def _shapes(self) -> ByIdentity[Shape]:
        return ByIdentity(self._new_shape, _MOST_SHAPES)

    @cached_property
    def _schemas(self) -> ByIdentity[TableSchema]:
        return ByIdentity(_marked, _MOST_SHAPES)

    @cached_property
    def _readers(self) -> ByIdentity[ValueReader]:
        return ByIdentity(partial(definition_reader, modes=self.modes), _MOST_SHAPES)

    def table_schema(self, table: TableId, columns: tuple[Column, ...], keys: tuple[str, ...]) -> TableSchema:
        """Returns the columns as a table schema, in which the columns in ``keys`` are marked as the key."""
        return self._schemas.get(columns, table, keys)

    def shape(
        self, schema: ConnectSchema, table: TableId, skipped: Callable[[str], bool] = _no_column
    ) -> Shape:
        """Returns the columns of a table whose rows have this Connect schema, with their value readers.

        ``skipped`` returns True for the names of fields that are not columns.
        """
        return self._shapes.get(schema, table, skipped)

    def _new_shape(self, schema: ConnectSchema, table: TableId, skipped: Callable[[str], bool]) -> Shape:
        definition = self.definitions.get(table)
        # TiCDC (b813e76) lists a virtual column twice; a payload has each name once.
        named = {field.name: field for field in schema.fields if not skipped(field.wire)}
        for named_field in named.values():
            check_cell(named_field)
        columns = {
            name: (definition and definition.by_name.get(name))
            or column_of(field, zero_defaults=schema.zero_defaults)
            for name, field in named.items()
        }
        fields = tuple(
            (field.wire, name, self._reader(field, columns[name])) for name, field in named.items()
        )
        return Shape(schema, fields, tuple(columns.values()))

    def _reader(self, field: ConnectField, column: Column) -> ValueReader:
        return reader_of(field.schema, column=column, modes=self.modes)

    def _without_schema(self, raw: Mapping[str, Any], table: TableId) -> RowRead:
        values: dict[str, Value] = {}
        unavailable: list[str] = []
        columns: list[Column] = []
        declared, learned = self.definitions.get(table), self.learned.get(table)
        for name, raw_value in raw.items():
            if is_cell(raw_value):
                raise SchemaMismatchError(CELLS.format(name)).with_context(column=name)
            defined = declared.by_name.get(name) if declared else None
            guess = learned.by_name.get(name) if learned else None
            column, value = (
                self._declared(defined, raw_value) if defined else self._guessed(name, raw_value, guess)
            )
            columns.append(column)
            if value is UNAVAILABLE_PLACEHOLDER:
                unavailable.append(name)
            else:
                values[name] = value
        return RowRead(values, self.same(columns), tuple(unavailable))

    def same(self, columns: list[Column]) -> tuple[Column, ...]:
        """Converts a list of columns to a tuple; returns the same tuple object for the same column objects.

        Table schemas are cached by the identity of this tuple, so each is created only once.
        """
        key = tuple(map(id, columns))
        cached = self._tuples.get(key)
        if cached is None:
            if len(self._tuples) >= _MOST_SHAPES:
                self._tuples.clear()
            cached = self._tuples[key] = tuple(columns)
        return cached

    def _declared(self, column: Column, raw: object) -> _Typed:
        return column, self._readers.get(column)(raw)

    @cached_property
    def _encoded_placeholders(self) -> frozenset[str]:
        """Texts that JSON has for the unavailable-value placeholder in a bytes column: base64 and hex.

        A text value of a column of unknown type is compared with them.
        """
        if self.modes.placeholder is None:
            return frozenset()
        data = self.modes.placeholder.encode()
        return frozenset((b64encode(data).decode(), urlsafe_b64encode(data).decode(), data.hex()))

    def _guessed(self, name: str, raw: object, learned: Column | None) -> _Typed:
        if isinstance(raw, str) and raw in self._encoded_placeholders:
            return learned or self._looking_like(name, raw), UNAVAILABLE_PLACEHOLDER
        if learned is not None:
            try:
                return self._declared(learned, raw)
            except DecodeError:
                pass  # the column has, or will have, another type
        if (kind := name_of(raw)) is not None:
            raise SchemaMismatchError(_UNTYPED_TIME.format(name, kind)).with_context(column=name)
        value = self._plain(name, raw)
        if self.untyped_is_text and isinstance(value, int | Decimal):
            value = _as_text(value)
        return self._looking_like(name, raw), value

    def _looking_like(self, name: str, raw: object) -> Column:
        column = infer_column(name, "" if self.untyped_is_text else raw)
        if len(self._inferred) >= _MOST_SHAPES:
            self._inferred.clear()
        return self._inferred.setdefault((name, column.type.name), column)

    def _plain(self, name: str, raw: object) -> Value | Unavailable:
        if raw is None or isinstance(raw, Decimal) or (isinstance(raw, int) and raw.bit_length() < 64):
            return raw
        if isinstance(raw, str):
            return UNAVAILABLE_PLACEHOLDER if raw == self.modes.placeholder else raw
        try:
            return inferred_value(raw, modes=self.modes)
        except DecodeError as error:
            raise error.with_context(column=name) from error


def _as_text(value: int | Decimal) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _with_schema(raw: Mapping[str, Any], shape: Shape) -> RowRead:
    values: dict[str, Value] = {}
    unavailable: list[str] = []
    for wire, name, read in shape.fields:
        if wire not in raw:
            continue  # a column that the producer omits: TiCDC's virtual columns
        value = read(raw[wire])
        if value is UNAVAILABLE_PLACEHOLDER:
            unavailable.append(name)
        else:
            values[name] = value
    return RowRead(values, shape.columns, tuple(unavailable))


# A snapshot may read a row that already exists (incremental, or repeated), so its read is an upsert.
OPS: Final[Mapping[object, Op]] = {
    "c": Op.INSERT,
    "r": Op.UPSERT,
    "u": Op.UPDATE,
    "d": Op.DELETE,
    "t": Op.TRUNCATE,
}
DOCUMENT: Final = "document"
# The member of an event's extension with the columns of a delete's key that may not have been sent.
DOUBTED_KEY: Final = "doubted_key"
# The member of an event's extension with the columns that only its key contains.
KEY_ONLY: Final = "key_only"
_DOCUMENT_COLUMN: Final = Column(DOCUMENT, ColumnType("json"))
# Debezium's header of the insert that follows the delete of the old key.
OLD_KEY: Final = "__debezium.oldkey"
_CHANGED_KEYS: Final = {"__debezium.newkey": "newkey", OLD_KEY: "oldkey"}
_EMPTY: Final = RowRead({}, ())


class Keyed(NamedTuple):
    """The key of a Kafka record, decoded as a row.

    ``row`` maps the key's column names to values, and is None if the record has no key. ``wires`` holds the
    names that the key's columns have in the record.
    """

    row: dict[str, Any] | None
    read: RowRead
    wires: frozenset[str] = frozenset()
    schema_id: int | None = None


class Change(NamedTuple):
    """The decoded parts of a row change: operation, table, key, source block, and old and new row.

    ``raw_before`` is the old row as the record contains it, not yet decoded; ``row_schema`` is its schema.
    """

    op: Op
    table: TableId
    keyed: Keyed
    source: Source
    before: RowRead | None
    after: RowRead | None
    extension: dict[str, object]
    raw_before: Mapping[str, Any] | None = None
    row_schema: ConnectSchema | None = None
    schema_id: int | None = None


def is_envelope(payload: Mapping[str, Any]) -> bool:
    """Returns True if a payload has the members of every envelope: an ``op`` and a ``source`` block."""
    return isinstance(payload.get("op"), str) and isinstance(payload.get("source"), Mapping)


def with_old_columns(value: Parsed, names: Collection[str]) -> Parsed:
    """Returns an envelope whose old row has only the columns in ``names`` (lower-case names).

    The envelope of a delete is returned unchanged.
    """
    before = value.payload.get("before")
    if value.payload["op"] == "d" or not isinstance(before, Mapping):
        return value
    schema = None if value.schema is None else value.schema.field("before")
    named: dict[str, str] = {field.wire: field.name for field in schema.fields} if schema is not None else {}
    row = {wire: old for wire, old in before.items() if fold_name(named.get(str(wire), str(wire))) in names}
    return value._replace(payload={**value.payload, "before": row})


def read_key(key: Parsed | None, table: TableId, rows: Rows) -> Keyed:
    """Decodes the Kafka key of a record. The columns of the Kafka key are the table's key columns.

    Raises:
        DecodeError: the Kafka key is not a row, or one of its values cannot be decoded.
    """
    if key is None or key.payload is None:
        return Keyed(None, _EMPTY)
    read = rows.read(key.payload, key.schema, table)
    return Keyed(read.values or None, read, frozenset(key.payload), key.schema_id)


def envelope_event(message: Message, value: Parsed, key: Parsed | None, rows: Rows) -> ChangeEvent:
    """Returns the row change in an envelope.

    Raises:
        SchemaMismatchError: the envelope is not valid, or lacks the row that its ``op`` requires.
        ValueOutOfRangeError: a value does not fit its column.
    """
    payload: Mapping[str, Any] = value.payload
    source: Source = payload["source"]
    op = OPS.get(payload["op"])
    if op is None:
        raise SchemaMismatchError(
            f"The member op is {shown(payload['op'], 40)}, but one of {', '.join(map(str, OPS))}, m "
            "was expected in an envelope."
        )
    table = table_of_source(source)
    if not table.name:
        raise SchemaMismatchError(
            "The envelope's source block names no table, so the record is not a row change of a "
            "Debezium connector."
        )
    keyed = read_key(key, table, rows)
    before, after = (_image(value, part, keyed, table, rows) for part in ("before", "after"))
    if op not in (Op.TRUNCATE, Op.DELETE) and after is None:
        raise SchemaMismatchError(
            f"An event with op {payload['op']} must have a new row (member after), but this event has none."
        )
    if connector_of(source) == POSTGRES and (op is Op.UPDATE or (op is Op.INSERT and moves_row(message))):
        row_schema = _image_schema(value.schema, "after")
        check_shapes(payload["after"], payload.get("before"), row_schema, rows.definitions.get(table))
    change = Change(
        op=op,
        table=table,
        keyed=keyed,
        source=source,
        before=before,
        after=after,
        extension=_extension(message, payload),
        raw_before=payload.get("before") if before else None,
        row_schema=_image_schema(value.schema, "before"),
        schema_id=value.schema_id,
    )
    return change_event(message, change, rows)


# The value that Debezium's Postgres connector writes into a NOT NULL column of PostGIS for an unchanged value
# that is stored out of line: GEOMETRYCOLLECTION EMPTY, little-endian, without an SRID (3.5 and its main
# branch, ``PostgisGeometry.createEmpty``).
EMPTY_SHAPE: Final = bytes.fromhex("010700000000000000")
_UNSENT_SHAPE: Final = (
    "The update has an empty geometry without SRID in column {!r}. The connector writes this "
    "value for an unchanged geometry if it is stored out of line (TOAST) and the column is "
    "NOT NULL, so the real value is not known. Set REPLICA IDENTITY FULL on the table, "
    "unless it is set already, and load the row again by a snapshot."
)


_UNSENT_WKB: Final = (EMPTY_SHAPE, b64encode(EMPTY_SHAPE).decode("ascii"))
_POSTGIS: Final = ("io.debezium.data.geometry.Geometry", "io.debezium.data.geometry.Geography")


def required_shapes(row: ConnectSchema) -> tuple[str, ...]:
    """Returns the names, as in the record, of a row's PostGIS columns that are NOT NULL."""
    return tuple(
        field.wire for field in row.fields if field.schema.name in _POSTGIS and not field.schema.optional
    )


def is_unsent_shape(raw: object) -> bool:
    """Returns True if a value is the connector's placeholder for an unchanged PostGIS geometry.

    The placeholder is an empty geometry without an SRID. The connector writes it if the geometry is stored
    out of line (TOAST) and its column is NOT NULL.
    """
    return isinstance(raw, Mapping) and raw.get("srid") is None and raw.get("wkb") in _UNSENT_WKB


def moves_row(message: Message) -> bool:
    """Returns True if a record is the insert that Debezium writes for an update that changed the key.

    Debezium splits such an update into a delete and an insert, and puts the old key into a header of the
    insert.
    """
    return any(name == OLD_KEY for name, _ in message.headers)


def check_shapes(
    row: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    schema: ConnectSchema | None,
    definition: TableSchema | None,
) -> None:
    """Raises if the new row of an update may lack a PostGIS geometry that the connector did not send.

    In place of such a geometry the connector writes an empty geometry. A new row's empty geometry is accepted
    as real in two cases: the old row ``before`` contains another geometry in this column, or the old row was
    sent whole.

    Raises:
        SchemaMismatchError: a geometry may not have been sent; context has the column.
    """
    if schema is not None:
        names: Iterable[str] = required_shapes(schema)
    else:
        columns = definition.by_name if definition is not None else {}
        names = (name for name in row if name not in columns or not columns[name].nullable)
    for name in names:
        if not is_unsent_shape(row.get(name)):
            continue
        if before is None or (
            is_unsent_shape(before.get(name)) and not _is_whole(before, schema, definition)
        ):
            raise SchemaMismatchError(_UNSENT_SHAPE.format(name)).with_context(column=name)


def _is_whole(
    before: Mapping[str, Any], schema: ConnectSchema | None, definition: TableSchema | None
) -> bool:
    """Returns True if the old row was certainly sent whole, because a nullable column has a value.

    If Postgres sends only the replica identity, the old row contains only NOT NULL columns.
    """
    _, optional, blank = _old_columns(before, schema, definition)
    return bool((before.keys() - blank) & optional)


def _with_key_columns(change: Change, rows: Rows) -> Change:
    """Adds the columns that only the Kafka key contains to the old and the new row of a change.

    ``ByLogicalTableRouter`` writes rows of several tables into one topic and adds a field to their keys
    (``key.field.name``) that distinguishes the rows of different tables.
    """
    row, images = change.keyed.row, (change.before, change.after)
    shown = change.after or change.before
    if not row or shown is None or row.keys() <= {column.name for column in shown.columns}:
        return change
    there = {column.name for column in shown.columns}
    more = {column.name: column for column in change.keyed.read.columns if column.name not in there}
    values = {name: row[name] for name in more if name in row}
    before, after = (
        image
        and RowRead(
            {**image.values, **values}, rows.same([*image.columns, *more.values()]), image.unavailable
        )
        for image in images
    )
    return change._replace(before=before, after=after, extension={**change.extension, KEY_ONLY: tuple(more)})


def change_event(message: Message, change: Change, rows: Rows) -> ChangeEvent:
    """Builds the event of a row change from the decoded parts of its record.

    The names of columns whose values were not sent are written into the event's extension.
    """
    change = _with_key_columns(change, rows)
    keyed, after = change.keyed, change.after
    columns = (after or change.before or keyed.read).columns
    old = _old_row(change, rows.definitions.get(change.table))
    if after is not None and after.unavailable:
        change.extension[UNAVAILABLE] = after.unavailable
    if unsent := _unsent_before(change, old):
        change.extension[UNAVAILABLE_BEFORE] = unsent
    ids = SchemaIds(keyed.schema_id, change.schema_id)
    source = position_of_source(change.source)
    return ChangeEvent(
        op=change.op,
        table=change.table,
        key=keyed.row,
        before=old,
        after=None if after is None or change.op is Op.DELETE else after.values,
        commit_ts=_commit_ts_of(change.source, rows.modes),
        position=Position(message.topic, message.partition, message.offset, 0, source),
        schema=rows.table_schema(change.table, columns, tuple(keyed.row or ())) if columns else None,
        schema_id=None if ids == (None, None) else ids,
        extension=change.extension or None,
    )


def _commit_ts_of(source: Source, modes: DebeziumModes) -> int | None:
    return commit_position(source) if modes.commit_positions else commit_ts_of_source(source)


def _image(value: Parsed, part: str, keyed: Keyed, table: TableId, rows: Rows) -> RowRead | None:
    raw = value.payload.get(part)
    if connector_of(value.payload["source"]) == MONGODB:
        return _document(raw, part, value.payload, keyed)
    return None if raw is None else rows.read(raw, _image_schema(value.schema, part), table)


def _document(raw: object, part: str, payload: Mapping[str, Any], keyed: Keyed) -> RowRead | None:
    """Returns the row of a MongoDB event: the key's columns, and one column with the document as JSON text.

    If an update does not contain the document, because the connector did not look it up, the document column
    is marked as unavailable. The target then keeps its stored document.
    """
    columns = (*keyed.read.columns, _DOCUMENT_COLUMN)
    if isinstance(raw, str):
        return RowRead({**keyed.read.values, DOCUMENT: raw}, columns)
    if raw is not None:
        raise SchemaMismatchError(
            f"The {part} of a MongoDB event is {shown(raw)}, but JSON text was expected."
        )
    if part == "after" and payload["op"] == "u":
        return RowRead(dict(keyed.read.values), columns, (DOCUMENT,))
    return None


def _image_schema(schema: ConnectSchema | None, part: str) -> ConnectSchema | None:
    if schema is None:
        return None
    image = schema.field(part)
    if image is None or image.type != "struct":
        raise SchemaMismatchError(f"The envelope's schema has no struct field {part!r}.")
    return image


def _extension(message: Message, payload: Mapping[str, Any]) -> dict[str, object]:
    extension: dict[str, object] = {"op": payload["op"], "source": kept(dict(payload["source"]), "source")}
    for name in ("ts_ms", "transaction", "updateDescription"):
        if payload.get(name) is not None:
            extension[name] = kept(payload[name], name)
    for name, value in message.headers:
        if name in _CHANGED_KEYS and value is not None:
            extension[_CHANGED_KEYS[name]] = value.decode("utf-8", "replace")
    return extension


def _old_row(change: Change, definition: TableSchema | None) -> dict[str, Any] | None:
    """Returns the columns of the old row that the source sent; the key if a delete has no old row."""
    keyed, before = change.keyed, change.before
    if before is None or keyed.row is None:
        return keyed.row if change.op is Op.DELETE and before is None else before and before.values
    if connector_of(change.source) != POSTGRES:
        return before.values
    unsent, uncertain = _stand_ins(change, definition)
    if uncertain:
        change.extension[DOUBTED_KEY] = uncertain
    if unsent:
        return {name: value for name, value in before.values.items() if name not in unsent}
    if _is_key_alone(change):
        return {name: before.values[name] for name in keyed.row if name in before.values}
    return before.values


def _unsent_before(change: Change, old: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the names of the columns that the source did not send in the old row, in column order."""
    before = change.before
    if before is None or old is None or (not before.unavailable and old is before.values):
        return ()
    unsent = {*before.unavailable, *(name for name in before.values if name not in old)}
    return tuple(column.name for column in before.columns if column.name in unsent)


class _StandIns(NamedTuple):
    """Columns of a Postgres delete whose values the connector filled in, or may have filled in.

    ``unsent``: all columns that were not sent, if a key column is one of them; otherwise empty.
    ``uncertain``: key columns that may not have been sent; the delete is applied nevertheless.
    """

    unsent: frozenset[str] = frozenset()
    uncertain: tuple[str, ...] = ()


def _stand_ins(change: Change, definition: TableSchema | None) -> _StandIns:
    """Determines from the old row of a Postgres delete whether a key column was not sent.

    Postgres sends a whole old row, or only the columns of the replica identity, which are NOT NULL. The
    connector fills in the other columns with null, the type's zero or the default. Such a value is called
    blank here. A blank key column (``message.key.columns``) may contain the row's own value or a filled-in
    value. The first of these rules that applies decides:

    - A nullable column has a value: the old row is whole, and the key is the row's own.
    - A blank key column is nullable: no replica identity contains it, so it was not sent.
    - No column outside of the key has a value: the key is assumed to be the replica identity, since a primary
      key that contains a zero is far more frequent than the alternatives.
    - All key columns are blank: the value of another column was sent, and the key was not. If such a key were
      the row's own, only one row of the table could have it, and at most one delete would be refused without
      need. If the key was filled in, every delete has this key, and no row would ever be deleted.
    - Some key columns are blank, such as (7, 0). Under ``REPLICA IDENTITY FULL`` that is an ordinary row:
      line numbers begin with 0, and a table has many. Under another identity it requires
      ``message.key.columns`` with a part of the identity and a column outside of it, which is rare. The
      record does not distinguish the two cases. So the key is assumed to be the row's own, and its blank
      columns are returned as ``uncertain``: the delete is applied, logged as a warning, and counted.

    The row's schema or the table's ``definition`` shows which columns are nullable. Without them no column is
    known to be nullable or NOT NULL.
    """
    raw = change.raw_before
    if change.op is not Op.DELETE or raw is None:
        return _StandIns()
    own, optional, blank = _old_columns(raw, change.row_schema, definition)
    names = frozenset(raw)
    key = change.keyed.wires & names
    if not key & blank or (names - blank) & optional:
        return _StandIns()
    is_other_sent = not names - key <= blank
    if key & blank & optional or (is_other_sent and key <= blank):
        return _StandIns(frozenset(own.get(name, name) for name in blank))
    blank_keys = (own.get(name, name) for name in raw if name in key & blank)
    return _StandIns(uncertain=tuple(blank_keys) if is_other_sent else ())


def _old_columns(
    raw: Mapping[str, Any], schema: ConnectSchema | None, definition: TableSchema | None
) -> tuple[dict[str, str], frozenset[str], frozenset[str]]:
    """Returns three facts about an old row: the names of its columns, its nullable and its blank columns.

    The first is a mapping from each name in the record to the column's own name; it is empty if neither a
    schema nor a definition describes the columns. The other two are sets of names in the record. A column is
    blank if its value is null, the type's zero, or the default.
    """
    if schema is not None:
        own = {field.wire: field.name for field in schema.fields}
        optional = frozenset(field.wire for field in schema.fields if field.schema.optional)
        defaults = {field.wire: field.schema.default for field in schema.fields}
        blank = frozenset(
            name for name, value in raw.items() if is_blank(value) or value == defaults.get(name)
        )
        return own, optional, blank
    columns = definition.columns if definition is not None else ()
    # A converter may write the default instead of NULL, so such a value may not have been sent.
    optional = frozenset(column.name for column in columns if column.nullable and column.default is None)
    texts = {column.name: column.default for column in columns}
    blank = frozenset(name for name, value in raw.items() if is_blank(value) or str(value) == texts.get(name))
    required = {column.name for column in columns if not column.nullable}
    return {name: name for name in required | optional}, optional, blank


def _is_key_alone(change: Change) -> bool:
    """Returns True if the old row from a Postgres table contains only its key.

    Postgres sends such old rows under REPLICA IDENTITY DEFAULT or USING INDEX. The other columns are then
    null, or, if they are NOT NULL, their default or their type's zero. A schema contains the defaults, so
    with a schema all other columns must have such values. Without a schema a default cannot be distinguished
    from the row's value. Then a delete with any null or zero column counts as reduced to its key. An update,
    whose old row is usually whole, counts as reduced only if all other columns are null or zero.
    """
    schema, raw = change.row_schema, change.raw_before or {}
    others = [name for name in raw if name not in change.keyed.wires]
    if schema is None:
        blank = [is_blank(raw[name]) for name in others]
        return any(blank) if change.op is Op.DELETE else all(blank)
    defaults = {field.wire: field.schema.default for field in schema.fields}
    return all(is_blank(raw[name]) or raw[name] == defaults.get(name) for name in others)


# The zeros of the types on the wire: Debezium's fallback for a NOT NULL column that it did not receive.
ZEROS: Final = (
    *("", b"", b"\0", "AA==", "0", "{}"),
    *("1970-01-01T00:00:00Z", "1970-01-01Z", "00:00:00Z"),
)
# The parts of a structured date's zero; the parts of a time are 0.
_EPOCH: Final = {"year": 1970, "month": 1, "day": 1}


def is_blank(raw: object) -> bool:
    """Returns True if a value in a record, before it is decoded, is null or its type's zero."""
    if isinstance(raw, Mapping):
        parts = (is_blank(value) or value == _EPOCH.get(name) for name, value in raw.items())
        return is_unsent_shape(raw) or all(parts)
    if isinstance(raw, str | bytes):
        return raw in ZEROS
    return not raw
