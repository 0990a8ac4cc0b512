"""Columns that say where a stored row's last change came from: their kinds, names and types."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from tidesink.events import ColumnType
from tidesink.typemap.render import spark_type
from tidesink.typemap.shape import ShapeColumn

MetadataKind = Literal[
    "op", "commit_ts", "position", "database", "table", "topic", "partition", "offset", "batch"
]

_TYPES: Final[Mapping[MetadataKind, ColumnType]] = MappingProxyType(
    {
        "op": ColumnType("varchar", length=16, sql="varchar(16)"),
        "commit_ts": ColumnType("bigint", sql="bigint"),
        "position": ColumnType("varchar", length=255, sql="varchar(255)"),
        "database": ColumnType("varchar", length=255, sql="varchar(255)"),
        "table": ColumnType("varchar", length=255, sql="varchar(255)"),
        "topic": ColumnType("varchar", length=255, sql="varchar(255)"),
        "partition": ColumnType("int", sql="int"),
        "offset": ColumnType("bigint", sql="bigint"),
        "batch": ColumnType("bigint", sql="bigint"),
    }
)


# What each row of a change log says of itself, in columns called by ``default_name``.
_IN_LOGS: Final = frozenset({"op", "commit_ts", "partition", "offset"})


def default_name(kind: str) -> str:
    """The name of a metadata column that the config does not name."""
    return f"_tidesink_{kind}"


def beside_log(names: Mapping[MetadataKind, str]) -> dict[MetadataKind, str]:
    """Those of the columns asked for that a change log does not have by itself."""
    return {
        kind: name
        for kind, name in names.items()
        if kind not in _IN_LOGS or name.lower() != default_name(kind)
    }


def metadata_columns(names: Mapping[MetadataKind, str]) -> tuple[ShapeColumn, ...]:
    """The columns of a table that asks for them, in the order it does."""
    return tuple(
        ShapeColumn(name, _TYPES[kind], spark_type(_TYPES[kind]).ddl) for kind, name in names.items()
    )
