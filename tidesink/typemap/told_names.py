"""A list of columns to leave out, held for the names that DDL gave them; pure.

What such a column holds may be personal, and rows of any time may come: so every name counts that it had
or has. A name that several columns had in turn does not say which of them is meant: what came of it is
then left to a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidesink.typemap.layout import Layout
from tidesink.typemap.shape import TableShape

_LEFT_OUT_TOO: Final = (
    "column {name} is left out too: DDL says that it is, or was, one that except_column_list names, under "
    "another name. Add {name} to except_column_list, or name in columns instead what the target is to hold"
)


@dataclass(frozen=True)
class ToldNames:
    """What DDL told of the names of a table's columns, also of a table of this name before it.

    ``now``: its columns' names, and ``reused`` those that several columns had in turn, both folded.
    ``pairs``: names that columns had, each with one they had later; of columns that are gone, too. ``ever``:
    every name that was told of.
    """

    now: frozenset[str] = frozenset()
    pairs: tuple[tuple[str, str], ...] = ()
    reused: frozenset[str] = frozenset()
    ever: tuple[str, ...] = ()


@dataclass(frozen=True)
class Followed:
    """A layout that goes along with DDL. ``names``: columns left out beside those it lists.

    ``doubted``: names, folded, of columns that had a listed name which was another column's as well, by the
    listed ones, in lower case; those of them in ``reused`` were several columns' themselves.
    """

    layout: Layout
    names: tuple[str, ...] = ()
    doubted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    reused: frozenset[str] = frozenset()

    def marked(self, shape: TableShape) -> TableShape:
        """The shape, whose columns say of which others nobody knows whether they are these."""
        if not self.doubted:
            return shape
        columns = []
        for column in shape.columns:
            name = column.name.casefold()
            found = self.doubted.get(name, frozenset[str]())
            # A target that has a column of a name which was one column's alone has that very column.
            kind = "instead_of" if name in self.reused else "had"
            columns.append(replace(column, **{kind: getattr(column, kind) | found}) if found else column)
        return replace(shape, columns=tuple(columns))


def followed(layout: Layout, told: ToldNames, keys: Iterable[str]) -> Followed:
    """The layout without its columns to leave out under the names they have now, or had.

    ``keys``: names of the table's key columns, which cannot be left out.
    """
    listed = {name.casefold(): name.lower() for name in layout.except_columns}
    kept = {key.casefold() for key in keys}
    pairs = [(old.casefold(), new.casefold()) for old, new in told.pairs if new.casefold() not in kept]
    later = [(old, new) for old, new in pairs if old in listed and new not in listed]
    unsure = told.now | told.reused
    found = {new for old, new in later if old not in unsure}
    # Rows from before bring it under the old name, unless what had that name since is another column.
    wanted = listed.keys() | found
    found |= {old for old, new in pairs if new in wanted - told.reused and old not in wanted | kept}
    doubted: dict[str, frozenset[str]] = {}
    for old, new in later:
        if new not in found:
            doubted[new] = doubted.get(new, frozenset()) | {listed[old]}
    spelt = {name.casefold(): name for pair in told.pairs for name in pair}
    names = tuple(spelt[name] for name in sorted(found))
    without = replace(layout, except_columns=(*layout.except_columns, *names)) if names else layout
    return Followed(without, names, doubted, told.reused)


def left_out_too(found: Followed, told: ToldNames) -> Iterator[str]:
    """A warning of each column that the table has and that is left out though it is not listed."""
    return (_LEFT_OUT_TOO.format(name=name) for name in found.names if name.casefold() in told.now)
