"""canal-json rows from before a column was renamed, read as if they had its new name.

A row has a column under one of its names: the newest it has is the one that counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.typemap.target_schema import TableShape


def under_new_names(parsed: Column, shape: TableShape, renamed: Mapping[str, str]) -> Column:
    """A parsed message whose rows and type words have old names replaced; ``renamed`` newest first."""
    words = parsed.getField("mysqlType")
    types = F.struct(*(_word(words, column.name, renamed).alias(column.name) for column in shape.columns))
    rows = {name: _rows(parsed.getField(name), renamed) for name in ("data", "old")}
    for name, column in {"mysqlType": types, **rows}.items():
        parsed = parsed.withField(name, column)
    return parsed


def _word(words: Column, name: str, renamed: Mapping[str, str]) -> Column:
    names = [name, *(old for old, new in renamed.items() if new == name)]
    return F.coalesce(*(words.getField(one) for one in names))


def _rows(rows: Column, renamed: Mapping[str, str]) -> Column:
    return F.transform(rows, lambda row: _row(row, renamed))


def _row(row: Column, renamed: Mapping[str, str]) -> Column:
    names = F.map_keys(row)
    # Two names that are one would fail the whole query; such a row is told apart later, as it is.
    once = F.size(F.array_distinct(names)) == F.size(names)
    has_old = F.arrays_overlap(names, F.array(*(F.lit(old) for old in renamed)))
    return F.when(once & has_old, F.transform_keys(row, lambda key, _: _key(key, row, renamed))).otherwise(
        row
    )


def _key(key: Column, row: Column, renamed: Mapping[str, str]) -> Column:
    found = key
    newer: dict[str, list[str]] = {}
    for old, new in renamed.items():
        before = newer.setdefault(new, [new])
        free = F.lit(True)
        for name in before:
            free = free & ~F.map_contains_key(row, F.lit(name))
        found = F.when((key == old) & free, F.lit(new)).otherwise(found)
        before.append(old)
    return found
