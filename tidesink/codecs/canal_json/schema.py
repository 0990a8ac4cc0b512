"""Determines the column types and the key of canal-json rows, and reads the rows' values.

Rows with the same table, column names, type names (``mysqlType``) and key names share a ``RowShape``. TiCDC
writes short type names by default, without precision, length or members. So each column's type comes from the
first of these that is known:

1. the table definition: from the configuration, or from the topic's DDL as of the row's commit time
2. a full type in ``mysqlType`` (``content-compatible``)
3. the short type name in ``mysqlType``
4. otherwise, the column is read as text

A table definition that contradicts a column's type name in the message was made before or after the row, so
it is not used for that column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from tidesink.codecs.base import Keys
from tidesink.codecs.options import BinaryText
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import NEVER, row_moment, table_key
from tidesink.errors import ConfigError, SchemaMismatchError, UnnamedRowError, ValueOutOfRangeError
from tidesink.events import Column, ColumnType, EarlierType, TableId, TableSchema, Value, fold_name
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.table import row_of
from tidesink.typemap.values import TextReader, integer_bounds, keeps_text, text_reader

RawRow = dict[str, object]
# An integer column: its name, minimum and maximum, and the reader of texts that are not plain digits.
IntegerColumn = tuple[str, int, int, TextReader]

# Number of shapes cached per table. A producer writes rows of one shape at a time, and deletes with only the
# handle key.
_KEPT_SHAPES = 8


@dataclass(frozen=True)
class RowShape:
    """The column types and the key of a table's rows that have the same column, type and key names.

    ``names``, ``mysql_type`` and ``pk_names``: names of the columns, of their types and of the key columns in
    the messages. ``integers`` and ``others``: columns whose texts are converted, with the functions that
    convert them. ``texts``: columns whose texts are used unchanged. ``key``: columns that identify the row,
    from the configuration or from ``pkNames``. ``wire_types``: the message's ``mysqlType``, which encoding
    needs if the table definition lacks a column of the row; otherwise None. ``since`` and ``until``: the
    shape is valid for rows committed from ``since`` up to, but not including, ``until`` (TiDB TSOs), because
    DDL may change a column's type.
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
        """Converts the texts in a row to values of the columns' types, and returns the row.

        ``row``: texts by column name; it is modified in place, and may lack columns of the shape.

        Raises:
            ValueOutOfRangeError: A text is not a value of its column's type.
            SchemaMismatchError: A value is neither text nor null.
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
        """The name of the key column if the key has only one column, else None."""
        return self.key[0] if len(self.key) == 1 else None

    def key_of(self, row: Mapping[str, Value]) -> dict[str, Value] | None:
        """Returns the values of a row's key columns by column name, or None if the shape has no key.

        Raises:
            UnnamedRowError: A key column is NULL or missing in the row.
        """
        key = {name: row.get(name) for name in self.key}
        if None in key.values():
            nulls = ", ".join(name for name, value in key.items() if value is None)
            raise UnnamedRowError(
                f"Key column {nulls} is NULL or missing in the row, so the change does not identify a row. "
                "Set the table's keys to columns that are never NULL.",
                table=str(self.table),
            )
        return key or None


def read_row(row: RawRow, columns: RowShape) -> dict[str, Value]:
    """Converts the texts in a row to values of the columns' types, and returns the row.

    ``row``: texts by column name, for exactly the columns of the shape ``columns``; it is modified in place.

    Raises:
        ValueOutOfRangeError: A text is not a value of its column's type.
        SchemaMismatchError: A value is neither text nor null.
    """
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
            # Most integers are converted here, because a function call is slow. Other texts go to the reader.
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


# The replacement character that Go and Java write for bytes that are not UTF-8.
REPLACEMENT: Final = "\ufffd"
_NOT_LATIN1: Final = (
    "The text of this binary column contains characters that do not represent a byte. TiCDC writes each "
    "byte as one ISO-8859-1 character, but TiCDC 5.3 and 7.5.4 reportedly write the bytes as UTF-8. If one "
    "of these versions writes this topic, set binary-text: utf-8 under source and load the table again, "
    "because earlier rows were read as ISO-8859-1, and their bytes above 7F (hexadecimal) are wrong. "
    "Otherwise use a producer that writes ISO-8859-1."
)
_LOST_BYTES: Final = (
    "The text of this binary column contains U+FFFD, which the producer writes instead of bytes that are "
    "not UTF-8. These bytes are lost. Use a version of TiCDC that writes ISO-8859-1, as its documentation "
    "specifies, or another protocol. Then run a resync, which reads the values from the database."
)


def _read_latin1(text: str) -> bytes:
    """Returns the bytes of a binary column's text, in which each byte is one character (tiflow c7b2588).

    Raises:
        ValueOutOfRangeError: The text has a character above U+00FF, which does not represent a byte.
    """
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ValueOutOfRangeError(_NOT_LATIN1) from error


def _read_utf8(text: str) -> bytes:
    """Returns the bytes of a binary column's text that the producer wrote as UTF-8 (tiflow #7058, #11771).

    Raises:
        ValueOutOfRangeError: The text has a replacement character, so the producer lost bytes.
    """
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
    """The names in a message that determine the ``RowShape`` of its row.

    ``names``: column names in the row's order. ``types``: type names by column (``mysqlType``). ``keys``:
    names of the key columns (``pkNames``).
    """

    names: list[str]
    types: Mapping[str, str]
    keys: list[str]


class RowShapes:
    """Finds the ``RowShape`` (column types and key) of each row, and caches the shapes for later rows.

    ``definitions``: table definitions; if they change, later calls use the changed ones. ``keys``: key
    columns by table; the key of any other table is ``pkNames`` of each message. ``binary_text``: encoding of
    binary columns.
    """

    def __init__(
        self, definitions: TableDefinitions, keys: Keys | None, binary_text: BinaryText = "iso-8859-1"
    ) -> None:
        self._definitions, self._binary_text = definitions, binary_text
        self._keys = {table_key(table): tuple(names) for table, names in (keys or {}).items()}
        self._shapes: dict[tuple[str, str], list[RowShape]] = {}
        self._recent: RowShape | None = None
        self._version = definitions.version

    def wanted_key(self, database: object, name: object) -> tuple[str, ...]:
        """Returns the key columns that the configuration sets for a table, or an empty tuple."""
        if type(database) is not str or type(name) is not str:
            return ()
        return self._keys.get(table_key(TableId(database, name)), ())

    def moment(self, es: object) -> int:
        """Returns the argument ``commit_ts`` of ``find`` for a row whose message has no ``_tidb.commitTs``.

        ``es``: commit time in the message, in ms since 1970. The result is a TSO, or NEVER if DDL has changed
        no column's type, because the commit time is then not needed.
        """
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
        """Returns the ``RowShape`` (column types and key) of a message's row.

        ``row``: the row's columns; only their names are used. ``commit_ts``: commit time of the row as a TiDB
        TSO; the table definition that was valid at that time is used. The other arguments are the members of
        the message, unchecked.

        Raises:
            SchemaMismatchError: A member of the message is not valid.
        """
        recent, names = self._recent, [*row]
        # Nearly always the row has the same shape as the previous row. TiCDC writes mysqlType in random
        # order, but comparing dicts ignores the order.
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
        self._recent = shape = self._other((database, name), (names, mysql_type, pk_names), commit_ts)
        return shape

    def _other(
        self, table: tuple[object, object], words: tuple[list[str], object, object], commit_ts: int
    ) -> RowShape:
        """Returns the shape of a row that differs from the most recent shape, from the cache if possible."""
        try:
            cached = self._shapes[table]  # type: ignore[index]  # an invalid key is not in the dict
        except (KeyError, TypeError):  # an unknown table, or a JSON list or object instead of a name
            cached = []
        for shape in cached:
            shape_words = (shape.names, shape.mysql_type, shape.pk_names)
            if shape_words == words and shape.since <= commit_ts < shape.until:
                return shape
        named, (names, types, keys) = _table(*table), words
        shape = self._build(named, _Words(names, _types(types), _names(keys)), commit_ts)
        self._shapes[named] = [shape, *cached][:_KEPT_SHAPES]
        return shape

    def _build(self, table: TableId, words: _Words, commit_ts: int) -> RowShape:
        """Creates the shape for the names in a row's message, with the column types at ``commit_ts``."""
        defined = self._defined(table)
        complete = all(fold_name(name) in defined for name in words.names)
        # The row may be older than a DDL that dropped the column or the table.
        defined = {fold_name(c.name): c for c in self._definitions.dropped_columns(table)} | defined
        columns = tuple(self._columns(words, defined, commit_ts))
        changes = sorted({was.until for c in defined.values() for was in c.earlier})
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
            since=max((change for change in changes if change <= commit_ts), default=0),
            until=min((change for change in changes if change > commit_ts), default=NEVER + 1),
            binary_text=self._binary_text,
        )

    def _reader(self, column_type: ColumnType) -> TextReader:
        if row_of(column_type).reader != "binary":
            return text_reader(column_type)
        return _read_utf8 if self._binary_text == "utf-8" else _read_latin1

    def _defined(self, table: TableId) -> dict[str, Column]:
        """Returns the columns of the table's definition by folded name; empty if it has no definition."""
        definition = self._definitions.get(table)
        return {fold_name(c.name): c for c in definition.columns} if definition else {}

    def _columns(self, words: _Words, definitions: Mapping[str, Column], commit_ts: int) -> Iterator[Column]:
        """Yields the columns of a row with their types, in the row's order.

        ``words``: names in the row's message. ``definitions``: defined columns by folded name.
        """
        for name in words.names:
            word, defined = words.types.get(name), definitions.get(fold_name(name))
            yield _column(name, word, defined, primary=name in words.keys, commit_ts=commit_ts)

    def _key(self, table: TableId, words: _Words) -> tuple[str, ...]:
        wanted = self._keys.get(table_key(table))
        if wanted is None:
            return tuple(words.keys)
        spelt = {fold_name(name): name for name in words.names}
        return tuple(spelt.get(fold_name(name), name) for name in wanted)


class DefinedShapes(RowShapes):
    """Finds the shape of each row with the column types of the table definitions, not of the messages.

    ``own_keys``: True if ``keys`` are the tables' keys in the source database. Then ``pkNames`` in each
    message must be this key. ``unread``: columns whose values are not needed; they are read as text.

    If a row has a column that the table's definition does not have, all its columns are read as text and the
    row gets no key, so that the table waits for a definition.

    ``find`` raises SchemaMismatchError if a type name or the key in a message contradicts the table
    definition, because the row's text could be misread.
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

    def _columns(self, words: _Words, definitions: Mapping[str, Column], commit_ts: int) -> Iterator[Column]:
        names, types, keys = words
        if (twice := _twice(names)) is not None:
            raise SchemaMismatchError(
                "The row contains the column twice, in upper and lower case. Check what wrote the row.",
                column=twice,
            )
        if not definitions.keys() >= {fold_name(name) for name in names}:
            yield from (Column(name, ColumnType("text", sql=types.get(name))) for name in names)
            return
        for name in names:
            word, defined = types.get(name) or "", definitions[fold_name(name)]
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
                f"The row's pkNames are not the table's key ({', '.join(key)}), so the key was changed in "
                "the source database. Set the key columns to use under tables: keys."
            )
        return key


_OTHER_TYPE: Final = (
    "The column's type in the row (mysqlType) contradicts the table's definition, so its value could be read "
    "incorrectly. Under tables, set the table's definition to the CREATE TABLE statement that was valid when "
    "the row was written."
)


def _in_force(column: Column, word: str, commit_ts: int) -> ColumnType:
    """Returns the type that a column had when a row was written. The row's text is read with it.

    It is the column's current type or one of its earlier types. If the type name ``word`` in the message
    lists members, as in ``enum('a','b')``, it is the type with these members. Otherwise it is the type at the
    row's commit time.
    """
    return next((was.type for was in column.earlier if _is_before(was, word, commit_ts)), column.type)


def _is_before(was: EarlierType, word: str, commit_ts: int) -> bool:
    if was.type.members is not None and word.endswith(")"):
        return _lists(word, was.type)
    return commit_ts < was.until


def _lists(word: str, column_type: ColumnType) -> bool:
    """Returns True if a full type name, such as ``enum('a','b')``, has the name and members of a type."""
    wire = _wire_type(word)
    return wire is not None and (wire.name, wire.members) == (column_type.name, column_type.members)


def _contradicts(word: str, column_type: ColumnType) -> bool:
    """Returns True if a value's text has another meaning in type ``word`` than in type ``column_type``.

    ``word``: type name in the message. ``column_type``: type in the table's definition.

    The text of an enum is a member's number, the text of a set is the sum of its members' bits, and the text
    of a binary column is Latin-1. All other texts have the same meaning for every type.
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
        raise SchemaMismatchError(
            "The message names no table. Its 'database' and 'table' must be non-empty texts."
        )
    return TableId(database, name)


def _types(mysql_type: object) -> Mapping[str, str]:
    if mysql_type is None:
        return {}
    if not isinstance(mysql_type, Mapping) or not all(isinstance(word, str) for word in mysql_type.values()):
        raise SchemaMismatchError(
            "The message's 'mysqlType' must be a JSON object with the columns' types as texts."
        )
    return mysql_type


def _names(pk_names: object) -> list[str]:
    if pk_names is None:
        return []
    if not isinstance(pk_names, list) or not all(isinstance(name, str) for name in pk_names):
        raise SchemaMismatchError("The message's 'pkNames' must be a list of column names.")
    if (twice := _twice(pk_names)) is not None:
        raise SchemaMismatchError("The message's 'pkNames' contains the same column twice.", column=twice)
    return pk_names


def _twice(names: Sequence[str]) -> str | None:
    """Returns the first name that occurs twice, ignoring case; None if no name does."""
    folded = [fold_name(name) for name in names]
    return next((name for index, name in enumerate(names) if fold_name(name) in folded[:index]), None)


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
        return None  # Values of a type that tidesink does not support are read as text.


_ARGUMENTS = ("precision", "scale", "fsp", "members")


def agrees(defined: ColumnType, wire: ColumnType) -> bool:
    """Returns True if a column's defined type matches the type in a message.

    Arguments (precision, members and so on) that the message does not contain are not compared.
    """
    if defined.name != wire.name:
        return False
    return all(
        getattr(wire, name) is None or getattr(wire, name) == getattr(defined, name) for name in _ARGUMENTS
    )
