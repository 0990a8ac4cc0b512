"""Which table of the target a source table goes to: the pipeline's ``routes``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, Field

from tidesink.config.fields import Model
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.typemap.target_schema import Shard

# A shard's name must fit into a key: this many characters of four bytes are a third of MySQL's longest.
LONGEST_SHARD: Final = 255
_REFERENCE: Final = re.compile(r"\$([1-9$])")
_GROUP: Final = re.compile(r"(?<!\\)\((?:\?P<\w+>|(?!\?))(?:[^()\\]|\\.)*\)")
# What fits more than one text: words for classes of characters, and everything but plain characters.
_VARIABLE: Final = re.compile(r"\\[A-Za-z0-9]|(?<!\\)[.^$*+?{}\[\]|()]")


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"correct the regular expression: {error}") from error
    return text


def _table_text(text: str) -> str:
    schema, dot, name = text.partition(".")
    if not (schema and dot and name) or "." in name:
        raise ValueError("give the table as schema.table, as in sales.orders or $1.orders")
    return _vetted(text)


def _vetted(text: str) -> str:
    if "$" in _REFERENCE.sub("", text):
        raise ValueError("$ stands before the number of a group ($1 to $9); a $ itself is $$")
    return text


class Route(Model):
    """Where the source tables go whose whole name, `schema.table`, a regular expression matches."""

    match: Annotated[str, Field(min_length=1), AfterValidator(_regex)]
    """A regular expression (Python's) for the whole of `schema.table`, in any case; the first route that
    matches counts. A table that none matches keeps its name."""
    to: Annotated[str, AfterValidator(_table_text)]
    """The table at the target, `schema.table`; `$1` to `$9` stand for what the groups matched."""
    shard_column: Annotated[str, Field(min_length=1)] | None = None
    """A column, added to the target's key, which says the source table of each row. Needed where several
    source tables may go to one table."""
    shard: Annotated[str, Field(min_length=1), AfterValidator(_vetted)] | None = None
    """What stands in the shard column: text with `$1` to `$9`; `schema.table` of the source if not given.
    Two source tables of one target table must not have the same."""

    @property
    def groups(self) -> int:
        """How many groups the expression has."""
        return re.compile(self.match).groups

    @property
    def merges(self) -> bool:
        """Whether several source tables may go to one table, as far as the texts tell."""
        if _VARIABLE.search(_GROUP.sub("", self.match)):
            return True
        return not references(self.to) >= set(range(1, self.groups + 1))

    def fits(self, table: TableId) -> re.Match[str] | None:
        """What the expression matched of a table's name."""
        return re.compile(self.match, re.IGNORECASE).fullmatch(str(table))


class Destination(NamedTuple):
    """The target's table, and what tells the source table's rows from those of others there."""

    table: TableId
    shard: Shard | None = None


def references(text: str) -> set[int]:
    """The numbers of the groups a text names."""
    return {int(found) for found in _REFERENCE.findall(text) if found != "$"}


def destination(routes: Sequence[Route], table: TableId) -> Destination:
    """Where a source table goes.

    Raises:
        ConfigError: what the groups matched makes no name of a table, or a shard's name that is too long.
    """
    for route in routes:
        found = route.fits(table)
        if found is not None:
            return _destination(route, found, table)
    return Destination(table)


def _destination(route: Route, found: re.Match[str], table: TableId) -> Destination:
    schema, name = (_expanded(part, found) for part in route.to.split("."))
    if not (schema and name):
        raise ConfigError(
            f"the route {route.match!r} makes no name of {table}: {route.to} becomes {schema}.{name}",
            table=str(table),
        )
    goal = TableId(schema, name)
    if route.shard_column is None:
        return Destination(goal)
    value = str(table) if route.shard is None else _expanded(route.shard, found)
    if not 0 < len(value) <= LONGEST_SHARD:
        raise ConfigError(
            f"the shard of {table} has {len(value)} characters, and 1 to {LONGEST_SHARD} can stand in a key: "
            f"give the route {route.match!r} a shard, such as $1",
            table=str(table),
        )
    return Destination(goal, Shard(route.shard_column, value))


def _expanded(text: str, found: re.Match[str]) -> str:
    """A text with what the groups matched; a group that took no part is empty."""

    def value(reference: re.Match[str]) -> str:
        name = reference[1]
        return "$" if name == "$" else found[int(name)] or ""

    return _REFERENCE.sub(value, text)
