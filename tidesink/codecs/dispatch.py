"""Routes row changes to topics and partitions as TiCDC does, and parses TiCDC's table filters.

A changefeed's config lists dispatchers (``[sink] dispatchers``). The first dispatcher whose matcher fits a
table determines the table's topic and the rule by which rows are assigned to partitions. A table without a
matching dispatcher goes to the sink URI's topic with the partition rule ``table``. Classic TiCDC (tiflow
c7b2588) and the new architecture (b813e76) differ in one point: classic TiCDC hashes a NULL as the text
``null``, and the new architecture omits it.

A table filter is a list of patterns (TiDB, pkg/util/table-filter). A pattern is ``schema.table``. Each of the
two parts is a name with the wildcards ``*``, ``?`` and ``[a-z]`` (``[!a-z]`` for all other characters), a
name in backquotes or double quotes, or a ``/regular expression/``. A pattern that begins with ``!`` excludes
tables, and ``#`` begins a comment. If several patterns match a table, the last of them counts.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from tidesink.codecs.options import Producer
from tidesink.errors import ConfigError, EncodeError
from tidesink.events import ChangeEvent, Column, Row, TableId, TableSchema, Value, fold_name
from tidesink.schema_registry.naming import TopicRule
from tidesink.typemap.values import text_writer

_QUOTED: Final = {
    "/": re.compile(r"/((?:\\.|[^/])+)/"),
    '"': re.compile(r'"((?:""|[^"])+)"'),
    "`": re.compile(r"`((?:``|[^`])+)`"),
}
_PIECE: Final = re.compile(
    r"(?P<plain>[0-9A-Za-z_$]|[^\x00-\x7f])|\\(?P<escaped>[^0-9A-Za-z])|[*?]"
    r"|\[(?P<other>!?)(?P<inside>(?:\\[^0-9a-zA-Z]|[^\\\]])+)\]"
)
_WILD: Final = {"*": ".*", "?": "."}
_ALL: Final = "*"
_WRONG_PIECES: Final = {
    "[": "a character class has no closing ]",
    "\\": "a backslash must be followed by a character that is neither a letter nor a digit",
}


class _Name(NamedTuple):
    """One part of a filter's pattern: the schema or the table.

    ``pattern``: regular expression that the name must match. ``literal``: the name, if the part matches only
    one name; else None. ``everything``: True if the part is ``*``. ``folds``: True if the filter ignores
    case, so that names are folded before they are matched.
    """

    pattern: re.Pattern[str]
    literal: str | None
    everything: bool
    folds: bool

    def fits(self, name: str) -> bool:
        return self.everything or self.pattern.search(fold_name(name) if self.folds else name) is not None

    def covers(self, other: _Name) -> bool:
        """Returns True if this part certainly matches every name that the part ``other`` matches."""
        if other.literal is not None:
            return self.fits(other.literal)
        return self.everything or self.pattern == other.pattern


class _Rule(NamedTuple):
    schema: _Name
    table: _Name
    positive: bool


@dataclass(frozen=True)
class TableFilter:
    """A table filter of TiCDC. ``patterns``: its patterns as text. ``rules``: the parsed patterns."""

    patterns: tuple[str, ...]
    rules: tuple[_Rule, ...]

    @classmethod
    def parse(cls, patterns: Sequence[str], *, case_sensitive: bool = False) -> TableFilter:
        """Parses the patterns of a table filter, for example of a dispatcher's matcher.

        Raises:
            ConfigError: TiCDC does not accept a pattern, or a pattern imports a file (``@file``), which is on
                TiCDC's host.
        """
        flags = re.RegexFlag(0) if case_sensitive else re.IGNORECASE
        stripped = [pattern.strip(" \t") for pattern in patterns]
        rules = [_rule(text, flags) for text in stripped if text and not text.startswith("#")]
        return cls(tuple(patterns), tuple(rules))

    def matches(self, table: TableId) -> bool:
        """Returns True if the filter includes this table."""
        for rule in reversed(self.rules):
            if rule.schema.fits(table.schema) and rule.table.fits(table.name):
                return rule.positive
        return False

    @property
    def everything(self) -> bool:
        """True if the filter's last pattern is ``*.*``, so that it certainly includes all tables."""
        if not self.rules:
            return False
        last = self.rules[-1]
        return last.positive and last.schema.everything and last.table.everything

    @property
    def only_table(self) -> TableId | None:
        """The table that the filter includes, if it is a single pattern with one table's name; else None."""
        if len(self.rules) != 1 or not self.rules[0].positive:
            return None
        schema, table, _ = self.rules[0]
        if schema.literal is None or table.literal is None:
            return None
        return TableId(schema.literal, table.literal)

    def rest(self, others: Sequence[TableFilter]) -> tuple[TableId, ...] | None:
        """Returns the tables that this filter includes and none of ``others`` includes.

        Returns None if these tables cannot be listed, because a pattern that may include more tables than
        ``others`` has a wildcard.
        """
        left = [rule for rule in self.rules if rule.positive and not any(o._covers(rule) for o in others)]
        tables: dict[tuple[str, str], TableId] = {}
        for schema, table, _ in left:
            if schema.literal is None or table.literal is None:
                return None
            named = TableId(schema.literal, table.literal)
            if self.matches(named) and not any(other.matches(named) for other in others):
                tables.setdefault((fold_name(named.schema), fold_name(named.name)), named)
        return tuple(tables.values())

    def _covers(self, other: _Rule) -> bool:
        """Returns True if this filter certainly includes every table that the pattern ``other`` matches."""
        for rule in reversed(self.rules):
            if not rule.positive:
                return False  # the rule may exclude some of the tables
            if rule.schema.covers(other.schema) and rule.table.covers(other.table):
                return True
        return False

    def __str__(self) -> str:
        return ", ".join(self.patterns)


def _rule(text: str, flags: re.RegexFlag) -> _Rule:
    if text.startswith("@"):
        raise ConfigError(
            f"Matcher {text!r} names a file on TiCDC's host, which cannot be read from here. Write the "
            "file's patterns instead"
        )
    positive = not text.startswith("!")
    schema, rest = _half(text if positive else text[1:], text, flags)
    if not rest.startswith("."):
        raise _wrong(text, "there is no '.' between schema and table")
    table, rest = _half(rest[1:], text, flags)
    if rest:
        raise _wrong(text, f"there is the text {rest!r} after the table's pattern")
    return _Rule(schema, table, positive)


def _wrong(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"Matcher {text!r} is not valid: {reason}. Write schema.table, for example shop.* or *.*",
        key="matcher",
    )


def _half(rest: str, text: str, flags: re.RegexFlag) -> tuple[_Name, str]:
    """Parses the part of a pattern at the start of ``rest``; returns the part and the remaining text.

    ``text``: the whole pattern, for errors.
    """
    quote = _QUOTED.get(rest[:1])
    if quote is None:
        return _wildcards(rest, text, flags)
    match = quote.match(rest)
    if match is None:
        raise _wrong(text, f"the closing {rest[0]} is missing")
    if rest[0] == "/":
        compiled = _compiled(match[1], text, flags)
        return _Name(compiled, None, everything=False, folds=bool(flags)), rest[match.end() :]
    name = match[1].replace(rest[0] * 2, rest[0])
    return _literal(name, flags), rest[match.end() :]


def _literal(name: str, flags: re.RegexFlag) -> _Name:
    # ``IGNORECASE`` is not used, because it treats names as equal that TiDB distinguishes (ασ and ας).
    spelt = fold_name(name) if flags else name
    return _Name(re.compile(rf"\A{re.escape(spelt)}\Z"), name, everything=False, folds=bool(flags))


def _compiled(pattern: str, text: str, flags: re.RegexFlag) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise _wrong(text, f"the regular expression is not valid ({error})") from error


def _wildcards(rest: str, text: str, flags: re.RegexFlag) -> tuple[_Name, str]:
    pattern, name, literal, position = "", "", True, 0
    while position < len(rest) and rest[position] != ".":
        match = _PIECE.match(rest, position)
        if match is None:
            nothing = f"{rest[position]!r} is not allowed without quotes, so put the name into backquotes"
            raise _wrong(text, _WRONG_PIECES.get(rest[position], nothing))
        plain, inside = match["plain"] or match["escaped"], match["inside"]
        literal = literal and plain is not None
        name += plain or ""
        if inside is not None:
            inside = "\\" + inside if inside.startswith("^") else inside
            pattern += f"[^{inside}]" if match["other"] else f"[{inside}]"
        else:
            pattern += _WILD.get(match[0]) or re.escape(plain)
        position = match.end()
    if not position:
        raise _wrong(text, "the schema or the table is empty")
    if literal:
        return _literal(name, flags), rest[position:]
    compiled = _compiled(rf"(?s)\A{pattern}\Z", text, flags)
    return _Name(compiled, None, everything=rest[:position] == _ALL, folds=bool(flags)), rest[position:]


PartitionRule = Literal["table", "index-value", "columns", "ts"]

# Partition rules by TiCDC's names, whose case is ignored. TiCDC accepts rowid for index-value and default for
# table.
PARTITION_RULES: Final[dict[str, PartitionRule]] = {
    "default": "table",
    "table": "table",
    "rowid": "index-value",
    "index-value": "index-value",
    "columns": "columns",
    "ts": "ts",
}


class Route(NamedTuple):
    """The destination of a row change.

    ``topic``: Kafka topic. ``hash``: number that, modulo the number of partitions, is the partition. ``key``:
    TiCDC's partition key as text: the table's name for the partition rule ``table``, else ``hash``.
    """

    topic: str
    hash: int
    key: str

    def partition(self, partitions: int) -> int:
        """Returns the partition number of the row in a topic with ``partitions`` partitions."""
        return self.hash % partitions


@dataclass(frozen=True)
class Dispatcher:
    """A dispatcher of a changefeed: the topic and the partition rule of the tables that ``matcher`` includes.

    ``topic``: rule for the topic's name; None means the sink URI's topic. ``partition``: partition rule.
    ``index``: for the rule ``index-value``, the name of the index whose columns are hashed; empty means the
    handle key. ``columns``: for the rule ``columns``, the columns that are hashed.
    """

    matcher: TableFilter
    topic: TopicRule | None = None
    partition: PartitionRule = "table"
    index: str = ""
    columns: tuple[str, ...] = ()

    def scatters(self, key: Collection[str] | None = None) -> str | None:
        """Returns the reason, as text for users, if changes of one row may go to several partitions.

        Kafka does not order such changes. Returns None if all changes of a row go to the same partition.
        ``key``: columns of the table's handle key, if known.
        """
        if self.partition == "ts":
            return "partition 'ts' spreads the changes of one row over partitions by their commit ts"
        named = set(self.columns) if self.partition == "columns" else {self.index} - {""}
        if not named:
            return None
        if self.partition == "columns" and key and {fold_name(n) for n in named} <= _folded(key):
            return None
        if self.partition == "columns":
            what = f"partition 'columns' hashes {', '.join(self.columns)}"
        else:
            what = f"partition 'index-value' hashes the index {self.index}"
        return f"{what}, so changes of a row go to another partition after one of these values was changed"

    def __str__(self) -> str:
        if self.partition == "columns":
            return f"columns ({', '.join(self.columns)})"
        return f"index-value (index {self.index})" if self.index else self.partition


def _folded(names: Collection[str]) -> set[str]:
    return {fold_name(name) for name in names}


@dataclass(frozen=True)
class Router:
    """Determines the topic and the partition of row changes, as a changefeed's dispatchers do.

    ``default_topic``: topic in the sink URI, for tables without a dispatcher that sets a topic.
    ``dispatchers``: dispatchers in the order of the changefeed's config.
    """

    default_topic: str
    dispatchers: tuple[Dispatcher, ...] = ()
    producer: Producer = "classic"

    def dispatcher_of(self, table: TableId) -> Dispatcher:
        """Returns the first dispatcher that matches a table, or else a dispatcher with the default rules."""
        matching = (dispatcher for dispatcher in self.dispatchers if dispatcher.matcher.matches(table))
        return next(matching, _OTHERWISE)

    def topic_of(self, table: TableId) -> str:
        """Returns the topic to which a table's rows go."""
        rule = self.dispatcher_of(table).topic
        return self.default_topic if rule is None else rule.topic_for(table)

    def route(self, event: ChangeEvent, *, index: Sequence[str] = ()) -> Route:
        """Returns the topic of a row change, and the hash that determines its partition.

        ``index``: columns of the index that the table's dispatcher names; empty if it names no index or the
        table does not have it.

        Raises:
            ConfigError: The dispatcher names columns or an index that the table does not have.
            EncodeError: The event has no schema or no commit_ts, or a value does not fit its column's type.
        """
        dispatcher = self.dispatcher_of(event.table)
        topic = self.topic_of(event.table)
        if dispatcher.partition == "ts":
            if event.commit_ts is None:
                raise EncodeError(
                    "The event has no commit_ts, which the partition rule 'ts' needs. Use another rule.",
                    table=str(event.table),
                )
            return Route(topic, event.commit_ts, str(event.commit_ts))
        total = _crc(event.table.schema.encode(), event.table.name.encode())
        if dispatcher.partition == "table":
            return Route(topic, total, str(event.table))
        schema = _schema(event)
        row = event.after if event.after is not None else event.before or event.key or {}
        for column in _hashed(dispatcher, schema, index):
            for part in self._parts(column, row):
                total ^= part
        return Route(topic, total, str(total))

    def _parts(self, column: Column, row: Row) -> Iterator[int]:
        if column.name not in row:
            raise EncodeError(f"The event has no column {column.name}, on which its partition depends.")
        value = row[column.name]
        if value is not None:
            yield _crc(column.name.encode(), _hashed_text(column, value))
        elif self.producer == "classic":
            yield _crc(column.name.encode(), b"null")


_OTHERWISE: Final = Dispatcher(TableFilter.parse(["*.*"]))


def _crc(first: bytes, second: bytes) -> int:
    return zlib.crc32(second, zlib.crc32(first))


def _hashed_text(column: Column, value: Value) -> bytes:
    return value if isinstance(value, bytes) else text_writer(column.type)(value).encode("utf-8")


def _schema(event: ChangeEvent) -> TableSchema:
    if event.schema is None:
        raise EncodeError(
            "The event has no schema, but its partition depends on the columns' types. Set the schema."
        )
    return event.schema


def _hashed(dispatcher: Dispatcher, schema: TableSchema, index: Sequence[str]) -> Sequence[Column]:
    if dispatcher.partition == "columns":
        return _named(schema, dispatcher.columns, "partition 'columns'")
    if not dispatcher.index:
        return schema.handle_columns
    if not index:
        raise ConfigError(
            f"The dispatcher names the index {dispatcher.index}, which the table does not have. Correct the "
            "dispatcher.",
            table=str(schema.table),
        )
    return _named(schema, index, f"index {dispatcher.index}")


def _named(schema: TableSchema, names: Sequence[str], what: str) -> list[Column]:
    columns = {fold_name(column.name): column for column in schema.columns}
    missing = [name for name in names if fold_name(name) not in columns]
    if missing:
        raise ConfigError(
            f"The dispatcher's {what} names {', '.join(missing)}, which the table does not have. Correct "
            "the dispatcher.",
            table=str(schema.table),
        )
    return [columns[fold_name(name)] for name in names]
