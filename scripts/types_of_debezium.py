"""The sections of docs/types.md about Debezium: other databases' types and semantic types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidesink.typemap.table import OTHER_TYPES, PLAIN_TYPES, SEMANTIC_TYPES

Table = Callable[[str, Iterable[Sequence[object]]], str]

OTHER = """
## Types of other databases

Columns of other databases, as Debezium describes them, have these types in addition to those above. Text of
dates and times has no zeros at the end of a fraction. An instant has its offset
(`2024-02-29 10:34:56.5+00:00`).
"""
SEMANTIC = """
## Debezium's semantic types

The type of a field by its Connect schema's name, in Avro and in JSON with schemas. `captured` was seen in
events of real connectors, `documented` is from Debezium's documentation and source. A schema without a
name is read only by its Connect type. `debezium-values.md` has the rules for other names.
"""


def section(table: Table) -> str:
    """Returns the sections; ``table`` renders their tables."""
    other = [(r.name, ", ".join(r.spellings), r.python, r.spark, r.lost) for r in OTHER_TYPES]
    named = [
        (f"`{s.name}`", ", ".join(s.wire), s.type, s.seen, s.note)
        for s in sorted(SEMANTIC_TYPES, key=lambda one: one.name)
    ]
    plain = [(f"none: {wire}", wire, kind, "captured", "") for wire, kind in PLAIN_TYPES.items()]
    return (
        OTHER
        + table("type|also spelt|Python|Delta, Iceberg|what is lost or changed", other)
        + SEMANTIC
        + table("name|Connect type|type|seen|note", [*named, *plain])
    )
