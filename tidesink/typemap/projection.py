"""What a table's target holds of its source: which columns, under which names, of which rows.

A layout is the config's word about one table; laid over the source's shape it gives the target's. Names
are identified without regard to case, as in shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.typemap.row_filter import RowFilter, check_types
from tidesink.typemap.target_schema import MetadataKind, ShapeColumn, TableShape, metadata_columns


@dataclass(frozen=True)
class Layout:
    """``columns``: these alone; ``except_columns``: all but these; ``rename``: the target's name by the
    source's; ``row_filter``: the rows, by the source's columns; ``metadata``: names of columns that say where
    a row's last change came from, by their kind; ``ignore_nulls``: a null leaves the stored value."""

    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    row_filter: RowFilter | None = None
    metadata: Mapping[MetadataKind, str] = field(default_factory=dict)
    ignore_nulls: bool = False

    def chooses(self, name: str) -> bool:
        """Whether the target holds a column of the source's."""
        name = name.lower()
        if name in {omitted.lower() for omitted in self.except_columns}:
            return False
        return self.columns is None or name in {wanted.lower() for wanted in self.columns}

    def target_name(self, name: str) -> str:
        """The target's name of a column of the source's."""
        names = {old.lower(): new for old, new in self.rename.items()}
        return names.get(name.lower(), name)

    @property
    def asked(self) -> frozenset[str]:
        """Names, in lower case, of the target's columns that the config itself asks for."""
        listed = (self.target_name(name) for name in self.columns or ())
        names = (*listed, *self.rename.values(), *self.metadata.values())
        return frozenset(name.lower() for name in names)

    def doubts(self, column: ShapeColumn) -> bool:
        """Whether a column of the target's may be one that is left out, under an unknown new name."""
        return bool(self.doubted(column.instead_of | column.had)) and column.name.lower() not in self.asked

    def doubts_kept(self, column: ShapeColumn) -> bool:
        """Whether it may be one of them though the target has a column of its name."""
        may_be = not column.key and self.doubted(column.instead_of)
        return bool(may_be) and column.name.lower() not in self.asked

    def doubted(self, names: frozenset[str]) -> tuple[str, ...]:
        """Which of some names, in lower case, are of columns that are left out; as the config has them."""
        excluded = {name.lower(): name for name in self.except_columns}
        return tuple(excluded[name] for name in sorted(names & excluded.keys()))

    @property
    def plain(self) -> bool:
        """True where the target holds what the source does."""
        return self == _PLAIN


_PLAIN = Layout()


class LaidOut(NamedTuple):
    """The target's shape, and by the names of those of its columns that are the source's the names there."""

    shape: TableShape
    sources: Mapping[str, str]


def laid_out(
    layout: Layout,
    source: TableShape,
    *,
    own: Iterable[str],
    gone: Iterable[str] = (),
    past: Iterable[str] = (),
) -> LaidOut:
    """A source's shape as its target has it.

    ``own``: names of tidesink's own columns at the target. ``gone``: lower-case names of columns of the
    shape that the source does not have any more; ``past`` of those it had, in the shape or not.

    Raises:
        ConfigError: the layout names a column there is not, leaves a key out, or gives two columns one name,
            or its filter is a value and no condition.
        SchemaRefusedError: the layout names a column that is gone: rows from now on have no value for it.
    """
    _check_named(layout, source, frozenset(gone), frozenset(past))
    if layout.row_filter is not None:
        check_types(layout.row_filter, source)
    chosen = tuple(_chosen(layout, source))
    _check_keys(chosen, source)
    names = {old.lower(): new for old, new in layout.rename.items()}
    named = tuple(replace(column, name=names.get(column.name.lower(), column.name)) for column in chosen)
    columns = (*named, *metadata_columns(layout.metadata))
    _check_apart(columns, source, own)
    omitted = source.by_name.keys() - {column.name.lower() for column in chosen}
    keys = tuple(column.name for column in columns if column.key)
    shape = replace(source, columns=columns, keys=keys, omitted=frozenset(omitted))
    return LaidOut(shape, {new.name: old.name for new, old in zip(named, chosen, strict=True)})


def named_columns(layout: Layout) -> Iterator[tuple[str, str]]:
    """Each column of the source that a layout names, after the setting that names it."""
    yield from (("columns", name) for name in layout.columns or ())
    yield from (("except_column_list", name) for name in layout.except_columns)
    yield from (("rename", name) for name in layout.rename)
    yield from (("filter", name) for name in (layout.row_filter.columns if layout.row_filter else ()))


def _chosen(layout: Layout, source: TableShape) -> Iterator[ShapeColumn]:
    """The source's order: columns that are added later come last, wherever the config names them."""
    return (column for column in source.columns if column.hidden or layout.chooses(column.name))


def _check_named(
    layout: Layout, source: TableShape, gone: frozenset[str], past: frozenset[str] = frozenset()
) -> None:
    for setting, name in named_columns(layout):
        if name.lower() not in source.by_name:
            if setting == "except_column_list" and name.lower() in past:
                continue  # it is left out should a row from before bring it
            known = ", ".join(column.name for column in source.columns)
            raise ConfigError(
                f"{setting}: {source.table} has no column {name}; its columns are {known}",
                table=str(source.table),
                column=name,
            )
        if source.by_name[name.lower()].hidden and setting != "filter":
            raise ConfigError(
                f"{setting}: {name} is no column of {source.table}'s but the row key by which its rows are "
                "identified, always there under this name: take it out, or name columns that tell the rows "
                "apart under keys",
                table=str(source.table),
                column=name,
            )
        if name.lower() in gone and setting != "except_column_list":
            raise SchemaRefusedError(
                f"{setting} names {name}, a column that the source has dropped or renamed: rows from then on "
                f"have no value for it. Take it out of {setting}, or name the column that took its place, "
                "and load the table again where the rows already there are not what you want",
                table=str(source.table),
                column=name,
            )


def _check_keys(chosen: Iterable[ShapeColumn], source: TableShape) -> None:
    there = {column.name for column in chosen}
    missing = [column.name for column in source.key_columns if column.name not in there]
    if missing:
        raise ConfigError(
            f"the key of {source.table} is ({', '.join(source.keys)}), and {', '.join(missing)} is left out: "
            "rows could not be identified. Add it to columns, or take it out of except_column_list",
            table=str(source.table),
        )


def _check_apart(columns: Iterable[ShapeColumn], source: TableShape, own: Iterable[str]) -> None:
    names = Counter(column.name.lower() for column in columns)
    twice = [name for name, times in names.items() if times > 1]
    if twice:
        raise ConfigError(
            f"rename, metadata: two columns of {source.table} would be called {', '.join(twice)}: give one "
            "another name",
            table=str(source.table),
        )
    taken = sorted(names.keys() & {name.lower() for name in own})
    if taken:
        raise ConfigError(
            f"a column of {source.table} would be called {', '.join(taken)}, which is a column of tidesink's "
            "own: rename it to something else",
            table=str(source.table),
        )
