"""Table ownership, shared tables (shards), and identifier quoting.

A target table usually has the rows of one source table, from one pipeline, under one key (``Owner``). It can
also be shared by several source tables. Each of them is then a shard, and the shard's name is stored in a
column of the key of all its rows. Each shard has its own ledger, which records its epoch, its progress and
the columns of its rows. The ledger is found by the shard's name, so every source table needs its own name,
even across pipelines.
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
from tidesink.typemap.target_schema import Shard, TargetColumn, TargetSchema, key_change

_SHOWN: Final = 5


class _Turn:
    """The lock of one shared table, with which the shards in this process commit one after the other."""

    def __init__(self) -> None:
        self.lock = threading.RLock()


_turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
_giving = threading.Lock()


class Turns:
    """A lock on a shared table within this process, so that its shards do not commit at the same time.

    The target detects concurrent commits of several processes. One of the processes then repeats its commit.
    """

    def __init__(self, location: str, shard: Shard | None) -> None:
        self._turn: _Turn | None = None
        if shard is not None:
            with _giving:
                self._turn = _turns.setdefault(location, _Turn())

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Context manager: hold the shared table's lock in this thread. Does nothing for a table that is not
        shared.
        """
        if self._turn is None:
            yield
            return
        with self._turn.lock:
            yield


def tag(shard: Shard) -> str:
    """Return a hash of a shard's name as 16 hex digits, for names that do not allow every character."""
    return sha256(shard.value.encode()).hexdigest()[:16]


def names_of(shape: TargetSchema) -> tuple[str, ...]:
    """Return the names of the columns of ``shape``, in the form in which a shard's ledger stores them."""
    return tuple(sorted(shape.by_name))


def new_columns(shape: TargetSchema, known: Collection[str] | None) -> tuple[TargetColumn, ...]:
    """Return the columns of ``shape`` that a shard's existing rows do not have.

    ``known``: columns of the shard's existing rows, from its ledger; None if the shard has no rows.
    """
    if known is None:
        return ()
    return tuple(column for column in shape.columns if shape.fold(column.name) not in known)


def known_after(columns: Collection[str] | None, shape: TargetSchema) -> tuple[str, ...] | None:
    """Return a shard's columns after the columns of ``shape`` were added; None if the shard has no rows."""
    return None if columns is None else tuple(sorted({*columns, *names_of(shape)}))


def holds(present: Mapping[str, str], shape: TargetSchema) -> bool:
    """Return True if a shared table with the columns ``present`` can store the columns of ``shape``.

    ``present`` may be outdated. If the answer is True, it stays right, because other shards only add and
    widen columns.
    """
    try:
        return not plan_evolution(present, shape).needed
    except SchemaRefusedError:
        return False


def not_shared(target: str, shard: Shard, *, table: TableId) -> StaleProgressError:
    """Return the error to raise for a shard if its target table was loaded without a shard column."""
    return StaleProgressError(
        f"{target} holds the rows of one source table and has no shard column {shard.column}. Set "
        "the route's `to` to another table, or remove the table and let the worker load it again.",
        table=str(table),
    )


def is_shared(target: str, shards: Iterable[str], *, table: TableId) -> StaleProgressError:
    """Return the error to raise if shards share the target table of a source table that is not a shard."""
    return StaleProgressError(
        f"Several source tables share {target} ({shown(shards)}). A key column names the source table of "
        "each row, but this table has no route with a `shard-column`. Add such a route for it, or set "
        "another target table.",
        table=str(table),
    )


def others_columns(target: str, shard: Shard, *, table: TableId) -> SchemaRefusedError:
    """Return the error to raise if a shard drops or renames a column of its shared table."""
    return SchemaRefusedError(
        f"Several source tables share {target}, each under its name in {shard.column}. A column cannot be "
        "dropped or renamed for one of them, because the others have values in it. Set `drop` and `rename` "
        "under `schema-changes` to `ignore` for this table. Drop the column by hand once no source table "
        "has it.",
        table=str(table),
    )


@dataclass(frozen=True)
class Owner:
    """The pipeline, source table and key that may write to a location. The location's ledger must match them.

    ``table``: the source table.
    ``place``: the location of the rows, for messages.
    ``apart``: for messages, the instruction that gives a table its own location.
    """

    pipeline: str
    table: TableId
    keys: tuple[str, ...]
    place: str
    apart: str
    shard: Shard | None = None

    def check_writer(self, pipeline: str, source: TableId | None) -> None:
        """Check the pipeline and source table that a location's ledger names.

        ``source``: the source table whose rows are there; None if the location has no rows.

        Raises:
            StaleProgressError: the location, or the shard, belongs to another pipeline or source table.
        """
        if self.shard is not None:
            if (pipeline, source) != (self.pipeline, self.table):
                raise taken(self.place, self.shard, pipeline=pipeline, source=str(source), table=self.table)
        elif pipeline != self.pipeline:
            raise StaleProgressError(
                f"{self.place} belongs to pipeline {pipeline!r}, and this is pipeline {self.pipeline!r}: "
                f"{self.apart}, or set `pipeline` in the config to the first name again.",
                table=str(self.table),
            )
        elif source not in (None, self.table):
            raise self.another(source)

    def another(self, source: TableId | None) -> StaleProgressError:
        """Return the error to raise if the location holds the rows of another source table (``source``)."""
        return StaleProgressError(
            f"{self.place} holds the rows of {source}, and this table is {self.table}: {self.apart}.",
            table=str(self.table),
        )

    def check_keys(self, written: Iterable[str]) -> None:
        """Check that the stored rows have the configured key. Under another key, updates would add
        duplicates.

        ``written``: the key columns that the ledger names.

        Raises:
            SchemaRefusedError: ``written`` differs from ``keys``.
        """
        written = tuple(written)
        if {fold_name(key) for key in written} != {fold_name(key) for key in self.keys}:
            raise SchemaRefusedError(
                f"The rows of {self.place} were written under the key ({', '.join(written)}), but the key is "
                f"now ({', '.join(self.keys)}). Set `keys` in the config to the old key again, or "
                f"{self.apart} and load the table again.",
                table=str(self.table),
                **key_change(written, self.keys),
            )


def taken(target: str, shard: Shard, *, pipeline: str, source: str, table: TableId) -> StaleProgressError:
    """Return the error to raise if another source table or another pipeline already uses a shard name."""
    return StaleProgressError(
        f"The shard {shard.value!r} of {target} belongs to {source} of pipeline {pipeline!r}. "
        "Set the route's `shard` to a name that no other source table has.",
        table=str(table),
    )


def also_of(error: SchemaRefusedError, where: str, shards: Iterable[str]) -> SchemaRefusedError:
    """Return an error like ``error`` whose message also names the shards that share the table.

    ``error``: reports a column type that the table cannot store.
    """
    return SchemaRefusedError(
        f"{error.message} Other shards share {where}: {shown(shards)}. A column has one type for all shards, "
        "so add a route that writes this source table to its own table.",
        **error.context,
    )


def shown(names: Iterable[str]) -> str:
    """Return a text for a message: the first shard names, and the number of the other names."""
    sorted_names = sorted(names)
    return ", ".join(sorted_names[:_SHOWN]) + (
        f" and {len(sorted_names) - _SHOWN} more" if len(sorted_names) > _SHOWN else ""
    )


# Characters that stay unchanged in a path: letters and digits of any script, and others that every file
# system allows.
_PLAIN: Final = re.compile(r"[\w.-]", re.UNICODE)


def quote_identifier(name: str) -> str:
    """Return a name as a quoted Spark SQL identifier.

    Raises:
        ValueError: the name is empty, which SQL does not allow.
    """
    if not name:
        raise ValueError("An identifier is empty.")
    return "`" + name.replace("`", "``") + "`"


def quote_path(*names: str) -> str:
    """Return names as quoted Spark SQL identifiers joined by dots, such as alias, struct and field."""
    return ".".join(map(quote_identifier, names))


def quote_text(text: str) -> str:
    """Return a text as a Spark SQL string literal.

    Every character except ASCII letters, digits and spaces is written as its Unicode escape. The literal is
    then read the same under any setting of ``escapedStringLiterals``, and whatever comment signs the text
    contains.
    """
    return "'" + "".join(map(_escaped, text)) + "'"


def path_segment(name: str) -> str:
    """Return a name as one path segment. Different names have different segments.

    Letters, digits, dots, hyphens and underscores stay unchanged. Each byte of any other character becomes
    ``~`` and two hex digits. So does a leading dot or underscore, because Spark treats such folders as
    hidden.
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


# Longest names. Postgres silently cuts off a longer name (NAMEDATALEN 64). MySQL and MariaDB raise an error.
POSTGRES_BYTES: Final = 63
MYSQL_CHARACTERS: Final = 64


def quote_postgres(name: str) -> str:
    """Return a name as a quoted Postgres identifier.

    Raises:
        SchemaRefusedError: Postgres does not allow the name. The message names the reason.
    """
    size = len(name.encode("utf-8", "surrogatepass"))
    _check_name(
        name, "Postgres", too_long=size > POSTGRES_BYTES and f"{size} bytes, but at most {POSTGRES_BYTES}"
    )
    return '"' + name.replace('"', '""') + '"'


def quote_mysql(name: str) -> str:
    """Return a name as a quoted identifier of MySQL and MariaDB.

    Raises:
        SchemaRefusedError: MySQL does not allow the name. The message names the reason.
    """
    size = len(name)
    long = size > MYSQL_CHARACTERS and f"{size} characters, but at most {MYSQL_CHARACTERS}"
    _check_name(name, "MySQL", too_long=long)
    if name.endswith(" ") or any(ord(character) > 0xFFFF for character in name):
        raise SchemaRefusedError(
            f"MySQL does not allow the name {name!r}: it ends in a space or has characters above U+FFFF. "
            "Give the column another name under `rename` in the config, or the table under `routes` or in "
            "`target.table`."
        )
    return "`" + name.replace("`", "``") + "`"


def _check_name(name: str, database: str, *, too_long: str | Literal[False]) -> None:
    if not name or "\0" in name:
        raise SchemaRefusedError(f"{database} does not allow the name {name!r}. Rename it at the source.")
    if too_long:
        raise SchemaRefusedError(
            f"The name {name!r} is too long: it has {too_long} in {database}. Give the column another name "
            "under `rename` in the config, or the table under `routes` or by a shorter template in "
            "`target.table`."
        )


def text_postgres(text: str) -> str:
    """Return a text as a Postgres string literal (``standard_conforming_strings`` is on in our sessions)."""
    return "'" + text.replace("'", "''").replace("\0", "") + "'"


def text_mysql(text: str) -> str:
    """Return a text as a MySQL string literal (our sessions do not set ``NO_BACKSLASH_ESCAPES``)."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"
