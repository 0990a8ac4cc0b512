"""The keys of a requested resync, as texts from a report of ``tidesink diff`` or from the command line.

On the command line, a user names the key's columns as the source does.

The keys are too many for a document that a worker reads all the time, and for the target's progress. So they
are a document of their own in the state store. Its name is a digest of the keys, which the request and the
progress contain. The document is stored before the request, and stays until another request replaces it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidesink.errors import ConfigError
from tidesink.events import TableId, folding
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
_KIND: Final = "asked-keys"


class AskedKeys(NamedTuple):
    """Sorted keys of a table at the target: texts of ``columns``, in the form of ``spark.digests``."""

    columns: tuple[str, ...]
    keys: tuple[KeyTexts, ...]

    def behind(self, after: KeyTexts | None) -> tuple[KeyTexts, ...]:
        """Return the keys after one of them, or all keys for None."""
        return self.keys if after is None else tuple(key for key in self.keys if key > after)

    def in_order_of(self, names: Iterable[str]) -> Iterator[KeyTexts]:
        """Yield the keys with their columns in the order of ``names``, which has all of them."""
        places = [self.columns.index(name) for name in names]
        return (tuple(key[at] for at in places) for key in self.keys)


def store_keys(store: StateStore, pipeline: str, table: TableId, asked: AskedKeys) -> str:
    """Store keys of a pipeline's table; return the document's name, which no other pipeline uses.

    Raises:
        StateStoreError: the store does not answer.
    """
    document = {"columns": [*asked.columns], "keys": [[*key] for key in asked.keys]}
    text = json.dumps([pipeline, *table, document], sort_keys=True)
    name = sha256(text.encode()).hexdigest()[:32]
    store.save_document(_KIND, name, document)
    return name


def load_keys(store: StateStore, name: str) -> AskedKeys | None:
    """Return the keys stored under a name, or None if they are lost.

    Raises:
        StateStoreError: the store does not answer.
    """
    found = store.load_document(_KIND, name)
    return None if found is None else AskedKeys(tuple(found["columns"]), tuple(map(tuple, found["keys"])))


def forget_keys(store: StateStore, name: str) -> None:
    """Remove the keys of a request that was replaced.

    Raises:
        StateStoreError: the store does not answer.
    """
    store.save_document(_KIND, name, None)


class ReportedKeys(NamedTuple):
    """The keys that a report has of a table. ``nulls``: number of keys with a NULL, which are left out."""

    asked: AskedKeys
    nulls: int


def read_report(path: Path, tables: Iterable[TableId]) -> dict[TableId, ReportedKeys]:
    """Return the keys that a report of ``tidesink diff`` has of tables; tables without keys are left out.

    Raises:
        ConfigError: the file cannot be read, is not such a report, or has too many keys of a table.
    """
    found = {table: _Keys(table) for table in tables}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                table, key = _named(path, number, line)
                if table in found:
                    found[table].add(path, number, key)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", key=OPTION) from error
    return {table: keys.reported for table, keys in found.items() if keys.columns}


def _named(path: Path, number: int, line: bytes) -> tuple[TableId, Mapping[str, Any]]:
    """Return the table and the key of a line."""
    try:
        found = json.loads(line)
        table, key = TableId(**found["table"]), found["key"]
        if key and all(text is None or isinstance(text, str) for text in key.values()):
            return table, key
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ConfigError(
        f"Line {number} of {path} is not a line of a report by `tidesink diff --report`.", key=OPTION
    )


class _Keys:
    """The keys of one table while the report is read."""

    def __init__(self, table: TableId) -> None:
        self._table = table
        self._keys = set[KeyTexts]()
        self._nulls = self._characters = 0
        self.columns: tuple[str, ...] = ()

    def add(self, path: Path, number: int, key: Mapping[str, str | None]) -> None:
        """Add one key."""
        self.columns = self.columns or tuple(key)
        if {*key} != {*self.columns}:
            raise ConfigError(
                f"Line {number} of {path} has other key columns of {self._table} than earlier lines. Write "
                "the report again.",
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
                f"{path} has more than {MOST_KEYS:,} keys of {self._table}, or very long ones. Repair the "
                f"whole table: `tidesink resync {self._table}`.",
                key=OPTION,
            )

    @property
    def reported(self) -> ReportedKeys:
        """The keys added so far."""
        return ReportedKeys(AskedKeys(self.columns, tuple(sorted(self._keys))), self._nulls)


def given_keys(config: Config, table: TableId, stored: StoredTable, texts: Sequence[str]) -> AskedKeys:
    """Return the keys that a user gives, each like ``region=a,id=17``, as keys of the table at the target.

    Raises:
        ConfigError: a text does not have each key column once, or has no integer for an integer column.
    """
    settings, shard = config.table_config(table), config.destination(table).shard
    names = tuple(settings.keys or stored.key)
    fold = folding((*stored.types, *names))
    renamed = {fold(old): new for old, new in (settings.rename or {}).items()}
    # A value that is the same in all rows is not asked of the user.
    fixed = {shard.column: shard.value} if shard is not None else {}
    if not stored.row_key.keys().isdisjoint(names):
        fixed = {**stored.constants, **fixed}
    columns = tuple(renamed.get(fold(name), name) for name in names)
    more = {name: text for name, text in fixed.items() if name not in columns}
    keys = {(*_given(text, table, names, stored), *more.values()) for text in texts}
    return AskedKeys((*columns, *more), tuple(sorted(keys)))


def _given(text: str, table: TableId, names: Sequence[str], stored: StoredTable) -> Iterator[str]:
    """Yield one key's values in the order of its columns; a comma separates values if a name follows it."""
    fold = folding(names)
    known = {fold(name): name for name in names}
    named = "|".join(map(re.escape, names))
    values = dict[str, str]()
    for part in re.split(rf",\s*(?=(?:{named})\s*=)", text, flags=re.IGNORECASE):
        name, equals, value = part.partition("=")
        own = known.get(fold(name.strip()))
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
