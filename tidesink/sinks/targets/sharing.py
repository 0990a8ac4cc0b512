"""Whose a table of a target is, several source tables in one, and quoted names.

A table has the rows of one source table, of one pipeline, under one key (``Owner``), or of several, each a
shard. Each source table is a shard: its rows have its name in a column of the key, and its own ledger has its
epoch, its progress and the columns that its rows have. A shard's ledger is found by the name in that
column, so that no two source tables, of whatever pipelines, can have the same.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal
from weakref import WeakValueDictionary

from tidesink.errors import SchemaRefusedError, StaleProgressError
from tidesink.events import TableId, fold_name
from tidesink.sinks.targets.column_changes import plan_evolution
from tidesink.typemap.target_schema import ShapeColumn, Shard, TableShape, key_change

_SHOWN: Final = 5


class _Turn:
    """The turn at one table; shards of a worker take it one after the other."""

    def __init__(self) -> None:
        self.lock = threading.RLock()


_turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
_giving = threading.Lock()


class Turns:
    """The turns of one table of this process: a commit of one shard must not undo another's work.

    Other processes are kept apart by the target itself, at the price of work done twice.
    """

    def __init__(self, location: str, shard: Shard | None) -> None:
        self._turn: _Turn | None = None
        if shard is not None:
            with _giving:
                self._turn = _turns.setdefault(location, _Turn())

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Nobody else of this process works at the table meanwhile; a table that is not shared needs none."""
        if self._turn is None:
            yield
            return
        with self._turn.lock:
            yield


def tag(shard: Shard) -> str:
    """A short name of a shard in which only digits and letters a to f stand."""
    return sha256(shard.value.encode()).hexdigest()[:16]


def names_of(shape: TableShape) -> tuple[str, ...]:
    """The columns a shard's rows have, as its ledger keeps them."""
    return tuple(sorted(shape.by_name))


def new_columns(shape: TableShape, known: Collection[str] | None) -> tuple[ShapeColumn, ...]:
    """The columns that a shard's rows from before have no value for; ``known`` None: it has no rows yet."""
    if known is None:
        return ()
    return tuple(column for column in shape.columns if shape.fold(column.name) not in known)


def known_after(known: Collection[str] | None, shape: TableShape) -> tuple[str, ...] | None:
    """The columns that a shard's rows have once a shape is theirs; None where it has no rows."""
    return None if known is None else tuple(sorted({*known, *names_of(shape)}))


def holds(present: Mapping[str, str], shape: TableShape) -> bool:
    """Whether columns, as they were at some look, take a shape.

    If so they take it now: others of a shared table only add columns and widen them.
    """
    try:
        return not plan_evolution(present, shape).needed
    except SchemaRefusedError:
        return False


def not_shared(place: str, shard: Shard, *, table: TableId) -> StaleProgressError:
    """The error of a shard whose table was loaded without shards."""
    return StaleProgressError(
        f"{place} holds the rows of one source table, without the shard column {shard.column}: give the "
        "route another table (to), or remove the table and let the worker load it again",
        table=str(table),
    )


def is_shared(place: str, shards: Iterable[str], *, table: TableId) -> StaleProgressError:
    """The error of a table that has no shard of its own where others have."""
    return StaleProgressError(
        f"several source tables share {place} ({shown(shards)}), each under its name in a column of the key, "
        "and this one has no route that gives it one: give it a route with the same shard-column, or another "
        "table",
        table=str(table),
    )


def others_columns(place: str, shard: Shard, *, table: TableId) -> SchemaRefusedError:
    """The error of a shard that drops or renames a column, in which other shards have values."""
    return SchemaRefusedError(
        f"several source tables share {place}, each under its name in {shard.column}: a column of it is not "
        "dropped or renamed for one of them, since the others have values there. Set drop and rename under "
        "schema-changes to ignore for this table; and once no source table has the column, drop it by hand",
        table=str(table),
    )


@dataclass(frozen=True)
class Owner:
    """Who may write to a place: what is written in its ledger must be the same.

    ``table`` is the source table. ``place`` says where the rows are, ``apart`` what gives a table a place of
    its own, both for people.
    """

    pipeline: str
    table: TableId
    keys: tuple[str, ...]
    place: str
    apart: str
    shard: Shard | None = None

    def check_writer(self, pipeline: str, source: TableId | None) -> None:
        """Refuse the ledger of others. ``source``: whose rows are there, None where none are.

        Raises:
            StaleProgressError: the place, or the shard, belongs to another pipeline or source table.
        """
        if self.shard is not None:
            if (pipeline, source) != (self.pipeline, self.table):
                raise taken(self.place, self.shard, pipeline=pipeline, source=str(source), table=self.table)
        elif pipeline != self.pipeline:
            raise StaleProgressError(
                f"{self.place} belongs to pipeline {pipeline!r}, and this is {self.pipeline!r}: {self.apart}"
                ", or use the first name again",
                table=str(self.table),
            )
        elif source not in (None, self.table):
            raise self.another(source)

    def another(self, source: TableId | None) -> StaleProgressError:
        """The error of a place where the rows of another source table are."""
        return StaleProgressError(
            f"{self.place} holds the rows of {source}, and this is {self.table}: {self.apart}",
            table=str(self.table),
        )

    def check_keys(self, written: Iterable[str]) -> None:
        """Refuse another key than the rows have: those rows would not be found, and stand there twice.

        Raises:
            SchemaRefusedError: ``written``, under which rows are there, is not ``keys``.
        """
        written = tuple(written)
        if {fold_name(key) for key in written} != {fold_name(key) for key in self.keys}:
            raise SchemaRefusedError(
                f"the rows of {self.place} were written under the key ({', '.join(written)}), and the key is "
                f"now ({', '.join(self.keys)}): set keys in the config to the old key again, or {self.apart} "
                "and load the table again",
                table=str(self.table),
                **key_change(written, self.keys),
            )


def taken(place: str, shard: Shard, *, pipeline: str, source: str, table: TableId) -> StaleProgressError:
    """The error of a shard whose name another source table, or another pipeline, has."""
    return StaleProgressError(
        f"the shard {shard.value!r} of {place} belongs to {source} of pipeline {pipeline!r}: "
        "give the route a shard that no other source table has",
        table=str(table),
    )


def also_of(error: SchemaRefusedError, place: str, shards: Iterable[str]) -> SchemaRefusedError:
    """The error of a shard whose types the table cannot take, with the others that share it."""
    return SchemaRefusedError(
        f"{error.message}. Others share {place}: {shown(shards)}; all of a column's types must be one, so "
        "route this source table to a table of its own",
        **error.context,
    )


def shown(names: Iterable[str]) -> str:
    """A few names of shards for people."""
    found = sorted(names)
    return ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")


# Kept as they are in a path: letters and digits of any script, and what every file system takes.
_PLAIN: Final = re.compile(r"[\w.-]", re.UNICODE)


def quote_identifier(name: str) -> str:
    """A name as one Spark SQL identifier: backquoted, backquotes doubled.

    Raises ValueError for an empty name, which no SQL has.
    """
    if not name:
        raise ValueError("an identifier is empty")
    return "`" + name.replace("`", "``") + "`"


def quote_path(*names: str) -> str:
    """A dotted path of identifiers, such as alias, struct and field."""
    return ".".join(map(quote_identifier, names))


def quote_text(text: str) -> str:
    """A text as a Spark SQL string literal.

    Every character but letters, digits and space is written as its code, so that neither
    ``escapedStringLiterals`` nor a comment sign inside can change what is read.
    """
    return "'" + "".join(map(_escaped, text)) + "'"


def path_segment(name: str) -> str:
    """A name as one path segment; different names give different segments.

    ``~`` and two hex digits stand for each byte of a character that is not plain, and for a leading dot
    or underscore, since Spark takes such folders for hidden ones.
    """
    return "".join(
        character
        if _PLAIN.match(character) and not (index == 0 and character in "._")
        else _encoded(character)
        for index, character in enumerate(name)
    )


def _encoded(character: str) -> str:
    return "".join(f"~{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


def _escaped(character: str) -> str:
    if character == " " or (character.isascii() and character.isalnum()):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# Postgres cuts a longer name off without a word (NAMEDATALEN 64), MySQL and MariaDB refuse it.
POSTGRES_BYTES: Final = 63
MYSQL_CHARACTERS: Final = 64


def quote_postgres(name: str) -> str:
    """A name as one Postgres identifier.

    Raises:
        SchemaRefusedError: Postgres has no such name; says why.
    """
    size = len(name.encode("utf-8", "surrogatepass"))
    _check_name(name, "Postgres", too_long=size > POSTGRES_BYTES and f"{size} bytes, and {POSTGRES_BYTES}")
    return '"' + name.replace('"', '""') + '"'


def quote_mysql(name: str) -> str:
    """A name as one identifier of MySQL or MariaDB.

    Raises:
        SchemaRefusedError: MySQL has no such name; says why.
    """
    size = len(name)
    long = size > MYSQL_CHARACTERS and f"{size} characters, and {MYSQL_CHARACTERS}"
    _check_name(name, "MySQL", too_long=long)
    if name.endswith(" ") or any(ord(character) > 0xFFFF for character in name):
        raise SchemaRefusedError(
            f"MySQL takes no name that ends in a space or has characters above U+FFFF, as {name!r}: give "
            "the column another under rename in the config, or the table under routes or in target.table"
        )
    return "`" + name.replace("`", "``") + "`"


def _check_name(name: str, database: str, *, too_long: str | Literal[False]) -> None:
    if not name or "\0" in name:
        raise SchemaRefusedError(f"{name!r} is no name in {database}: rename it at the source")
    if too_long:
        raise SchemaRefusedError(
            f"the name {name!r} has {too_long} are the most that {database} takes: give the column another "
            "under rename in the config, or the table under routes or by a shorter template in target.table"
        )


def text_postgres(text: str) -> str:
    """A text as a Postgres string literal (``standard_conforming_strings`` is on in our sessions)."""
    return "'" + text.replace("'", "''").replace("\0", "") + "'"


def text_mysql(text: str) -> str:
    """A text as a string literal of MySQL (without ``NO_BACKSLASH_ESCAPES``, as our sessions are)."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"
