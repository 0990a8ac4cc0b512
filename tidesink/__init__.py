"""tidesink: loads TiCDC and Debezium change topics into tables. Its codecs need neither Spark nor Java."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidesink.codecs import open_codec
    from tidesink.codecs.base import CodecOptions
    from tidesink.config import load_config
    from tidesink.consumer import consume
    from tidesink.ddl.catalog import TableDefinitions
    from tidesink.errors import TidesinkError
    from tidesink.events import ChangeEvent, DdlEvent, Message, MessageEvent, Op, Position, TableId
    from tidesink.events import TableSchema as TableSchema
    from tidesink.events import WatermarkEvent as WatermarkEvent
    from tidesink.schema_registry import open_registry

__version__ = "0.1.0"  # pyproject.toml reads it here

__all__ = [
    "ChangeEvent",
    "CodecOptions",
    "DdlEvent",
    "Message",
    "MessageEvent",
    "Op",
    "Position",
    "TableDefinitions",
    "TableId",
    "TableSchema",
    "TidesinkError",
    "WatermarkEvent",
    "__version__",
    "consume",
    "load_config",
    "open_codec",
    "open_registry",
]

_HOMES = {  # loaded on first use, so that ``import tidesink`` is fast
    "CodecOptions": "tidesink.codecs.base",
    "TableDefinitions": "tidesink.ddl.catalog",
    "TidesinkError": "tidesink.errors",
    "consume": "tidesink.consumer",
    "load_config": "tidesink.config",
    "open_codec": "tidesink.codecs",
    "open_registry": "tidesink.schema_registry",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tidesink' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "tidesink.events")), name)


def __dir__() -> list[str]:
    return __all__
