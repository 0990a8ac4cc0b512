"""Keys of a resync that is limited to some rows: read from a report or the command line, and stored.

A user names the keys with ``tidesink resync``: either the keys in a report of ``tidesink diff``, or single
keys as ``region=a,id=17`` with the source's column names.

A resync can have thousands of keys. That is too many for two places: the state store's document with all
requests, which a worker reads every few seconds, and the table's progress, which is committed to the target.
So the keys are stored in the state store in a document of their own. Its name is a digest of the keys. The
request and the progress contain only this name. The keys are stored before the request, and are removed once
neither the request nor a replay of dead letters needs them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.errors import ConfigError
from tidesink.events import TableId, folding
from tidesink.sinks.state.documents import DocumentKind
from tidesink.source_database.base import KeyTexts, StoredTable
from tidesink.typemap.table import row_of

if TYPE_CHECKING:
    from tidesink.config import Config
    from tidesink.sinks.state.progress import StateStore

# Maximum number of keys of one table: for more, a resync of the whole table is about as fast.
MOST_KEYS: Final = 5_000
# Maximum number of characters in the keys' texts.
MOST_CHARACTERS: Final = 2_000_000
OPTION: Final = "--differing"
BY_HAND: Final = "--key"
_INTEGERS: Final = ("integer", "unsigned64")


@dataclass(frozen=True)
class AskedKeys:
    """The primary keys of the rows that a resync is limited to, sorted.

    ``columns``: names of the key columns in the target table. ``keys``: for each row the values of these
    columns, converted to text by ``spark.digests``.
    """

    columns: tuple[str, ...]
    keys: tuple[KeyTexts, ...]

    def behind(self, after: KeyTexts | None) -> tuple[KeyTexts, ...]:
        """Return the keys that sort after the key ``after``, or all keys if ``after`` is None."""
        return self.keys if after is None else tuple(key for key in self.keys if key > after)

    def in_order_of(self, names: Iterable[str]) -> Iterator[KeyTexts]:
        """Yield each key with its values in the order of ``names``, which must contain every key column."""
        places = [self.columns.index(name) for name in names]
        return (tuple(key[index] for index in places) for key in self.keys)


_KEYS: Final = DocumentKind("asked-keys", AskedKeys)


def store_keys(store: StateStore, pipeline: str, table: TableId, asked: AskedKeys) -> str:
    """Store the keys in the state store, and return the name under which ``load_keys`` finds them.

    The name is a digest of pipeline, table and keys, so that no other pipeline uses it.

    Raises:
        StateStoreError: the store does not answer.
    """
    text = json.dumps([pipeline, *table, asdict(asked)], sort_keys=True)
    name = sha256(text.encode()).hexdigest()[:32]
    _KEYS.of(store, name).save(asked)
    return name


def load_keys(store: StateStore, name: str) -> AskedKeys | None:
    """Return the keys stored under a name, or None if the state store does not have them.

    Raises:
        StateStoreError: the store does not answer.
    """
    return _KEYS.of(store, name).load()


def forget_keys(store: StateStore, name: str) -> None:
    """Remove the keys stored under a name from the state store.

    Raises:
        StateStoreError: the store does not answer.
    """
    _KEYS.of(store, name).remove()


class ReportedKeys(NamedTuple):
    """The differing keys of one table in a report of ``tidesink diff``.

    ``nulls``: number of keys that were skipped because they contain NULL.
    """

    asked: AskedKeys
    nulls: int


def read_report(path: Path, tables: Iterable[TableId]) -> dict[TableId, ReportedKeys]:
    """Return the differing keys of ``tables`` from a report of ``tidesink diff --report``, by table.

    The result has no entry for a table without keys in the report.

    Raises:
        ConfigError: the file cannot be read, is not such a report, or has more than ``MOST_KEYS`` keys of a
            table.
    """
    table_keys = {table: _Keys(table) for table in tables}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                table, key = _named(path, number, line)
                if table in table_keys:
                    table_keys[table].add(path, number, key)
    except OSError as error:
        raise ConfigError(f"The report {path} cannot be read: {error.strerror}.", key=OPTION) from error
    return {table: keys.reported for table, keys in table_keys.items() if keys.columns}


def _named(path: Path, number: int, line: bytes) -> tuple[TableId, Mapping[str, Any]]:
    """Return the table and the row's key that a line of a report names.

    Raises:
        ConfigError: the line is not a line of a report of ``tidesink diff``.
    """
    try:
        record = json.loads(line)
        table, key = TableId(**record["table"]), record["key"]
        if key and all(text is None or isinstance(text, str) for text in key.values()):
            return table, key
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ConfigError(
        f"Line {number} of {path} is not a line of a report. Give a file that `tidesink diff --report` "
        "has written.",
        key=OPTION,
    )


class _Keys:
    """Collects the differing keys of one table while a report of ``tidesink diff`` is read."""

    def __init__(self, table: TableId) -> None:
        self._table = table
        self._keys = set[KeyTexts]()
        self._nulls = self._characters = 0
        self.columns: tuple[str, ...] = ()

    def add(self, path: Path, number: int, key: Mapping[str, str | None]) -> None:
        """Add the key of one line, unless it has a NULL or was added before.

        Raises:
            ConfigError: the key has other columns than the keys in earlier lines, or the table has more than
                ``MOST_KEYS`` keys or ``MOST_CHARACTERS`` characters in its keys.
        """
        self.columns = self.columns or tuple(key)
        if {*key} != {*self.columns}:
            raise ConfigError(
                f"Line {number} of {path} has other key columns of {self._table} than the lines above it. "
                "Write the report again with `tidesink diff --report`.",
                key=OPTION,
            )
        texts = tuple(text for name in self.columns if (text := key[name]) is not None)
        if len(texts) < len(self.columns):
            self._nulls += 1
            return
        if texts not in self._keys:
            self._keys.add(texts)
            self._characters += sum(map(len, texts))
        if len(self._keys) > MOST_KEYS or self._characters > MOST_CHARACTERS:
            raise ConfigError(
                f"{path} has more than {MOST_KEYS:,} keys of {self._table}, or very long keys. Repair the "
                f"whole table instead: `tidesink resync {shlex.quote(str(self._table))}`.",
                key=OPTION,
            )

    @property
    def reported(self) -> ReportedKeys:
        """The keys that were added so far, sorted, and the number of keys that were skipped because they
        contain NULL.
        """
        return ReportedKeys(AskedKeys(self.columns, tuple(sorted(self._keys))), self._nulls)


def given_keys(config: Config, table: TableId, stored: StoredTable, texts: Sequence[str]) -> AskedKeys:
    """Convert keys from the command line, such as ``region=a,id=17``, into keys of the target table.

    A user writes the source's column names and leaves out columns with the same value in all rows, such as
    the shard column. The result has the target's column names and all key columns.

    Raises:
        ConfigError: a key column is missing, unknown or given twice, or the value of an integer column is
            not an integer.
    """
    settings, shard = config.table_config(table), config.destination(table).shard
    names = tuple(settings.keys or stored.key)
    fold = folding((*stored.types, *names))
    renamed = {fold(old): new for old, new in (settings.rename or {}).items()}
    # Users leave out values that are the same in all rows.
    fixed = {shard.column: shard.value} if shard is not None else {}
    if not stored.row_key.keys().isdisjoint(names):
        fixed = {**stored.constants, **fixed}
    columns = tuple(renamed.get(fold(name), name) for name in names)
    more = {name: text for name, text in fixed.items() if name not in columns}
    keys = {(*_given(text, table, names, stored), *more.values()) for text in texts}
    return AskedKeys((*columns, *more), tuple(sorted(keys)))


def _given(text: str, table: TableId, names: Sequence[str], stored: StoredTable) -> Iterator[str]:
    """Yield the values in a text like ``region=a,id=17``, in the order of the key columns ``names``.

    A comma separates two values only if the name of a key column and ``=`` follow it. So values may contain
    commas.

    Raises:
        ConfigError: a key column is missing, unknown or given twice, or the value of an integer column is
            not an integer.
    """
    fold = folding(names)
    columns = {fold(name): name for name in names}
    named = "|".join(map(re.escape, names))
    values = dict[str, str]()
    for part in re.split(rf",\s*(?=(?:{named})\s*=)", text, flags=re.IGNORECASE):
        name, equals, value = part.partition("=")
        own = columns.get(fold(name.strip()))
        if own is None or not equals or own in values:
            raise _no_key(table, names, f"{part!r} is not a key column with a value")
        values[own] = value
    if missing := [name for name in names if name not in values]:
        raise _no_key(table, names, f"{text!r} has no value for {', '.join(missing)}")
    types = {**stored.types, **stored.row_key}
    for name in names:
        reader = row_of(types[name]).reader if name in types else ""
        if reader in _INTEGERS and re.fullmatch(r"-?\d+", values[name]) is None:
            raise _no_key(
                table, names, f"{name} is an integer column, but {values[name]!r} is not an integer"
            )
        yield values[name]


def _no_key(table: TableId, names: Sequence[str], reason: str) -> ConfigError:
    form = ",".join(f"{name}=…" for name in names)
    return ConfigError(f"{reason}. Give a key of {table} as {BY_HAND} {form!r}.", key=BY_HAND)
