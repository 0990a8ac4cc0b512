"""Row shapes: the column types, readers and key that rows of one form share.

A shape is the column names of a row with their ``mysqlType`` names. Short names (TiCDC's default) do not
contain precision, length or members. So each column's type is looked up, in this order, in the table
definitions (from the configuration, or from the topic's own DDL as of the row's commit), a full ``mysqlType``
(content-compatible), the short name, and otherwise it is text. A definition that contradicts the message's
own type name is older or newer than the row and is ignored for that column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from tidesink.codecs.base import BinaryText
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import NEVER, row_moment, table_key
from tidesink.errors import ConfigError, SchemaMismatchError, UnnamedRowError, ValueOutOfRangeError
from tidesink.events import Column, ColumnType, EarlierType, TableId, TableSchema, Value, fold_name
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.table import row_of
from tidesink.typemap.values import TextReader, integer_bounds, keeps_text, text_reader

RawRow = dict[str, object]
Keys = Mapping[TableId, Sequence[str]]
# Name, minimum, maximum, and the reader of texts that are not plain digits.
IntegerColumn = tuple[str, int, int, TextReader]

# Shapes cached per table: a producer writes one at a time, plus that of handle-key-only deletes.
_KEPT_SHAPES = 8


@dataclass(frozen=True)
class RowShape:
    """One shape of rows of a table.

    ``wire_types`` is the message's ``mysqlType`` if the table definition does not have every column; an
    encoder then needs it. ``key`` has the columns that identify the row, from the configuration or from
    ``pkNames``. The shape applies to rows committed from ``since`` to before ``until`` (TiDB TSOs), between
    two changes of a column's definition.
    """

    table: TableId
    names: list[str]
    mysql_type: Mapping[str, str]
    pk_names: list[str]
    schema: TableSchema
    integers: tuple[IntegerColumn, ...]
    others: tuple[tuple[str, TextReader], ...]
    texts: tuple[str, ...]
    key: tuple[str, ...]
    wire_types: Mapping[str, str] | None = None
    since: int = 0
    until: int = NEVER + 1
    binary_text: BinaryText = "iso-8859-1"

    def read(self, row: RawRow) -> dict[str, Value]:
        """The row's values, in its own order; the row is modified in place.

        Raises:
            ValueOutOfRangeError: a text is not a value of its column's type.
            SchemaMismatchError: a value is neither text nor null.
        """
        return read_row(row, self if len(row) == len(self.names) else self._part(row))

    def _part(self, row: RawRow) -> RowShape:
        return replace(
            self,
            integers=tuple(column for column in self.integers if column[0] in row),
            others=tuple(column for column in self.others if column[0] in row),
            texts=tuple(name for name in self.texts if name in row),
        )

    @cached_property
    def only_key(self) -> str | None:
        """The key's name if it is a single column, as most keys are; its value can be looked up directly."""
        return self.key[0] if len(self.key) == 1 else None

    def key_of(self, row: Mapping[str, Value]) -> dict[str, Value] | None:
        """The key's values, or None if the table has no key.

        Raises:
            UnnamedRowError: a key column is NULL, or not in the row.
        """
        key = {name: row.get(name) for name in self.key}
        if None in key.values():
            nulls = ", ".join(name for name, value in key.items() if value is None)
            raise UnnamedRowError(
                f"Key column {nulls} is NULL or missing in the row, so the change does not identify a row. "
                "Set keys to columns that every row has.",
                table=str(self.table),
            )
        return key or None


def read_row(row: RawRow, columns: RowShape) -> dict[str, Value]:
    """The values of a row with exactly the columns of its shape; see ``RowShape.read``."""
    name = ""
    text: Any
    try:
        for name in columns.texts:
            text = row[name]
            if text.__class__ is not str and text is not None:
                raise _not_text(name, text)
        for name, low, high, read in columns.integers:
            text = row[name]
            if text is None:
                continue
            # Most integers are converted here, without a call. The reader decides about all other texts.
            if text.isdigit() and text.isascii() and len(text) < 20 and low <= (value := int(text)) <= high:
                row[name] = value
            else:
                row[name] = read(text)
        for name, read in columns.others:
            text = row[name]
            if text is not None:
                row[name] = read(text)
    except ValueOutOfRangeError as error:
        error.with_context(column=name)
        raise
    except (AttributeError, TypeError):  # a number, a list, ... has no text methods
        raise _not_text(name, row[name]) from None
    return row  # type: ignore[return-value]  # every value is converted now


# The character that Go and Java write for bytes that are not UTF-8.
REPLACEMENT: Final = "\ufffd"
_NOT_LATIN1: Final = (
    "The text of this binary column contains characters that do not represent a byte. TiCDC writes each "
    "byte as one ISO-8859-1 character, but TiCDC 5.3 and 7.5.4 reportedly write the bytes as UTF-8. If "
    "this topic is one of these, set binary-text: utf-8 under source and load the table again, because "
    "bytes from 80 (hexadecimal) on in earlier rows were read as ISO-8859-1. Otherwise use a producer that "
    "writes ISO-8859-1."
)
_LOST_BYTES: Final = (
    "The text of this binary column contains U+FFFD, which the producer writes instead of bytes that are "
    "not UTF-8. These bytes are lost. Use a version of TiCDC that writes ISO-8859-1, as its documentation "
    "specifies, or another protocol. Then run a resync, which reads the values from the database."
)


def _read_latin1(text: str) -> bytes:
    """Reads canal-json's text of a binary column: each byte as U+0000 to U+00FF (tiflow c7b2588)."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ValueOutOfRangeError(_NOT_LATIN1) from error


def _read_utf8(text: str) -> bytes:
    """Reads the text of a binary column whose bytes the producer decoded as UTF-8 (tiflow #7058, #11771)."""
    if REPLACEMENT in text:
        raise ValueOutOfRangeError(_LOST_BYTES)
    return text.encode()


def _not_text(name: str, value: object) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"canal-json values must be text or null, but this value is {type(value).__name__}. TiCDC and "
        "Alibaba's Canal write every value as text, so another program wrote or changed the message. Have "
        "the pipeline read the topic that TiCDC or Canal writes.",
        column=name,
    )


class _Words(NamedTuple):
    """A row's own metadata: its column names in order, their type names, and the key's names."""

    names: list[str]
    types: Mapping[str, str]
    keys: list[str]


class RowShapes:
    """A cache of the shapes met so far."""

    def __init__(
        self, definitions: TableDefinitions, keys: Keys | None, binary_text: BinaryText = "iso-8859-1"
    ) -> None:
        self._definitions, self._binary_text = definitions, binary_text
        self._keys = {table_key(table): tuple(names) for table, names in (keys or {}).items()}
        self._shapes: dict[tuple[str, str], list[RowShape]] = {}
        self._recent: RowShape | None = None
        self._version = definitions.version

    def wanted_key(self, database: object, name: object) -> tuple[str, ...]:
        """The key columns of a table in the configuration, or an empty tuple."""
        if type(database) is not str or type(name) is not str:
            return ()
        return self._keys.get(table_key(TableId(database, name)), ())

    def moment(self, es: object) -> int:
        """The commit time of a row without a commit ts, for ``find``; NEVER if no definition needs it."""
        return row_moment(None, es) if self._definitions.timed else NEVER

    def find(
        self,
        database: object,
        name: object,
        row: RawRow,
        *,
        mysql_type: object,
        pk_names: object,
        commit_ts: int = NEVER,
    ) -> RowShape:
        """The shape of a row; ``commit_ts`` (a TiDB TSO) selects the definitions.

        Raises:
            SchemaMismatchError: a member of the message is not valid.
        """
        recent, names = self._recent, [*row]
        # Nearly always the previous row has the same shape. The order inside mysqlType is random at the
        # producer, but comparing dicts ignores it.
        if (
            recent is not None
            and self._version == self._definitions.version
            and recent.mysql_type == mysql_type
            and recent.names == names
            and recent.pk_names == pk_names
            and recent.table == (database, name)
            and recent.since <= commit_ts < recent.until
        ):
            return recent
        if self._version != self._definitions.version:
            self._shapes.clear()
            self._version = self._definitions.version
        self._recent = found = self._other((database, name), (names, mysql_type, pk_names), commit_ts)
        return found

    def _other(
        self, table: tuple[object, object], words: tuple[list[str], object, object], commit_ts: int
    ) -> RowShape:
        """The shape of a row that does not match the most recent shape."""
        try:
            known = self._shapes[table]  # type: ignore[index]  # an invalid key is not in the dict
        except (KeyError, TypeError):  # an unknown table, or a JSON list or object instead of a name
            known = []
        for shape in known:
            said = (shape.names, shape.mysql_type, shape.pk_names)
            if said == words and shape.since <= commit_ts < shape.until:
                return shape
        named, (names, types, keys) = _table(*table), words
        shape = self._build(named, _Words(names, _types(types), _names(keys)), commit_ts)
        self._shapes[named] = [shape, *known][:_KEPT_SHAPES]
        return shape

    def _build(self, table: TableId, words: _Words, commit_ts: int) -> RowShape:
        """A new shape, with each column's type looked up in the order of the module docstring."""
        known = self._defined(table)
        complete = all(fold_name(name) in known for name in words.names)
        # Also columns that were dropped later, or whose table was.
        known = {fold_name(c.name): c for c in self._definitions.former(table)} | known
        columns = tuple(self._columns(words, known, commit_ts))
        changes = sorted({was.until for c in known.values() for was in c.earlier})
        bounds = [(c, integer_bounds(c.type)) for c in columns if not keeps_text(c.type)]
        return RowShape(
            table=table,
            names=words.names,
            mysql_type=words.types,
            pk_names=words.keys,
            schema=TableSchema(table, columns),
            integers=tuple((c.name, *both, text_reader(c.type)) for c, both in bounds if both is not None),
            others=tuple((c.name, self._reader(c.type)) for c, both in bounds if both is None),
            texts=tuple(c.name for c in columns if keeps_text(c.type)),
            key=self._key(table, words),
            wire_types=None if complete else words.types,
            since=max((at for at in changes if at <= commit_ts), default=0),
            until=min((at for at in changes if at > commit_ts), default=NEVER + 1),
            binary_text=self._binary_text,
        )

    def _reader(self, column_type: ColumnType) -> TextReader:
        if row_of(column_type).reader != "binary":
            return text_reader(column_type)
        return _read_utf8 if self._binary_text == "utf-8" else _read_latin1

    def _defined(self, table: TableId) -> dict[str, Column]:
        """The table's defined columns, by folded name."""
        definition = self._definitions.get(table)
        return {fold_name(c.name): c for c in definition.columns} if definition else {}

    def _columns(self, words: _Words, known: Mapping[str, Column], commit_ts: int) -> Iterator[Column]:
        """The columns of a row; ``known`` has the defined columns by folded name."""
        for name in words.names:
            word, defined = words.types.get(name), known.get(fold_name(name))
            yield _column(name, word, defined, primary=name in words.keys, commit_ts=commit_ts)

    def _key(self, table: TableId, words: _Words) -> tuple[str, ...]:
        wanted = self._keys.get(table_key(table))
        if wanted is None:
            return tuple(words.keys)
        spelt = {fold_name(name): name for name in words.names}
        return tuple(spelt.get(fold_name(name), name) for name in wanted)


class DefinedShapes(RowShapes):
    """The shapes of rows whose types come only from the definitions, whatever the rows' own type names are.

    A row that contradicts its definition is refused, because its text would be misread. So is a row with
    another key, if ``own_keys`` states that ``keys`` are the source's keys. A row with an undefined column is
    read as text, without a key, and waits for a definition. ``unread`` columns, whose values are not needed,
    are read as text too, whatever their type names are.
    """

    def __init__(
        self,
        definitions: TableDefinitions,
        keys: Keys,
        *,
        own_keys: bool,
        binary_text: BinaryText = "iso-8859-1",
        unread: Collection[str] = (),
    ) -> None:
        super().__init__(definitions, keys, binary_text)
        self._own_keys = own_keys
        self._unread = frozenset(map(fold_name, unread))

    def _columns(self, words: _Words, known: Mapping[str, Column], commit_ts: int) -> Iterator[Column]:
        names, types, keys = words
        if (twice := _twice(names)) is not None:
            raise SchemaMismatchError("The row contains the column twice.", column=twice)
        if not known.keys() >= {fold_name(name) for name in names}:
            yield from (Column(name, ColumnType("text", sql=types.get(name))) for name in names)
            return
        for name in names:
            word, defined = types.get(name) or "", known[fold_name(name)]
            if fold_name(name) in self._unread:
                yield replace(defined, name=name, type=ColumnType("text"), earlier=())
                continue
            column_type = _in_force(defined, word, commit_ts)
            if _contradicts(word, column_type):
                raise SchemaMismatchError(_OTHER_TYPE, column=name)
            primary = name in keys
            yield replace(defined, name=name, type=column_type, primary_key=primary, earlier=())

    def _key(self, table: TableId, words: _Words) -> tuple[str, ...]:
        if not self._defined(table).keys() >= {fold_name(name) for name in words.names}:
            return ()
        key = super()._key(table, words)
        named = {fold_name(name) for name in words.keys}
        if self._own_keys and named and named != {fold_name(name) for name in key}:
            raise SchemaMismatchError(
                f"The row's pkNames are not the table's key ({', '.join(key)}), so the source's key was "
                "changed. Set the key to use under tables: keys."
            )
        return key


_OTHER_TYPE: Final = (
    "The row's mysqlType contradicts the table's definition, so the meaning of its text is not certain. "
    "Set the definition that was valid when the rows were written."
)


def _in_force(column: Column, word: str, commit_ts: int) -> ColumnType:
    """The type for reading a row's text: a type name with members overrides the row's commit time."""
    return next((was.type for was in column.earlier if _is_before(was, word, commit_ts)), column.type)


def _is_before(was: EarlierType, word: str, commit_ts: int) -> bool:
    if was.type.members is not None and word.endswith(")"):
        return _lists(word, was.type)
    return commit_ts < was.until


def _lists(word: str, column_type: ColumnType) -> bool:
    """Return True if a type name lists exactly the members of a type."""
    wire = _wire_type(word)
    return wire is not None and (wire.name, wire.members) == (column_type.name, column_type.members)


def _contradicts(word: str, column_type: ColumnType) -> bool:
    """Return True if a text means something else under the row's type name than under ``column_type``.

    An enum's text is a member's number, a set's text is a sum of them, and bytes are written as Latin-1. All
    other texts have the same meaning under every type.
    """
    coded: dict[str, bool] = {
        "enum": word.startswith("enum"),
        "set": word.startswith("set"),
        "binary": "binary" in word or "blob" in word,
    }
    reader = row_of(column_type).reader
    if not word:
        return False
    if reader in coded:
        lists = column_type.members is not None and word.endswith(")")
        return not coded[reader] or (lists and not _lists(word, column_type))
    return coded["enum"] or coded["set"] or (reader == "text" and coded["binary"])


def _table(database: object, name: object) -> TableId:
    if not (isinstance(database, str) and isinstance(name, str) and database and name):
        raise SchemaMismatchError("The message names no table. 'database' and 'table' must be text.")
    return TableId(database, name)


def _types(mysql_type: object) -> Mapping[str, str]:
    if mysql_type is None:
        return {}
    if not isinstance(mysql_type, Mapping) or not all(isinstance(word, str) for word in mysql_type.values()):
        raise SchemaMismatchError("'mysqlType' must be an object of type names.")
    return mysql_type


def _names(pk_names: object) -> list[str]:
    if pk_names is None:
        return []
    if not isinstance(pk_names, list) or not all(isinstance(name, str) for name in pk_names):
        raise SchemaMismatchError("'pkNames' must be a list of column names.")
    if (twice := _twice(pk_names)) is not None:
        raise SchemaMismatchError("'pkNames' contains the column twice.", column=twice)
    return pk_names


def _twice(names: Sequence[str]) -> str | None:
    """The first name that occurs a second time, ignoring case."""
    folded = [fold_name(name) for name in names]
    return next((name for at, name in enumerate(names) if fold_name(name) in folded[:at]), None)


def _column(
    name: str,
    word: str | None,
    defined: Column | None,
    *,
    primary: bool,
    commit_ts: int,
) -> Column:
    wire = _wire_type(word)
    if defined is None:
        column_type = wire or ColumnType("text", sql=word)
        return Column(name, column_type, nullable=not primary, handle=primary, primary_key=primary)
    reported = defined.type_at(commit_ts)
    return replace(
        defined,
        name=name,
        type=reported if wire is None or agrees(reported, wire) else wire,
        nullable=defined.nullable and not primary,
        handle=defined.handle or primary,
        primary_key=primary,
        earlier=(),
    )


def _wire_type(word: str | None) -> ColumnType | None:
    if not word:
        return None
    try:
        return parse_sql_type(word)
    except ConfigError:
        return None  # A type this version does not know is kept as text.


_ARGUMENTS = ("precision", "scale", "fsp", "members")


def agrees(defined: ColumnType, wire: ColumnType) -> bool:
    """Return True if the definition's type matches the wire's type name and its arguments."""
    if defined.name != wire.name:
        return False
    return all(
        getattr(wire, name) is None or getattr(wire, name) == getattr(defined, name) for name in _ARGUMENTS
    )
