"""A TiCDC changefeed: its sink URI and TOML, its rules, and the config that reads what it writes."""

from tidesink.config.changefeed.options import Refusal, read_toml, read_toml_file
from tidesink.config.changefeed.resolve import Changefeed, ChangefeedRefusedError, read_changefeed

__all__ = [
    "Changefeed",
    "ChangefeedRefusedError",
    "Refusal",
    "read_changefeed",
    "read_toml",
    "read_toml_file",
]
