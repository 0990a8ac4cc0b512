"""A TiCDC changefeed: its sink URI and TOML, its rules, and the config that reads what it writes."""

from tidesink.config.changefeed.changefeed import Changefeed, ChangefeedRefusedError, read_changefeed
from tidesink.config.changefeed.given import read_toml, read_toml_file
from tidesink.config.changefeed.options import Refusal

__all__ = [
    "Changefeed",
    "ChangefeedRefusedError",
    "Refusal",
    "read_changefeed",
    "read_toml",
    "read_toml_file",
]
