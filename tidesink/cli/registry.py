"""``tidesink registry``: the commands put together."""

from __future__ import annotations

import typer

from tidesink.cli import registry_check, registry_copy, registry_read, registry_register
from tidesink.cli.codec_options import CodecCommand
from tidesink.cli.failures import guarded

app = typer.Typer(
    help="The schema registry: look, compare, check before a DDL runs, register, copy.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_COMMANDS = (
    ("list", registry_read.list_subjects),
    ("show", registry_read.show),
    ("level", registry_read.level),
    ("export", registry_copy.export),
    ("import", registry_copy.import_file),
)
_CODEC_COMMANDS = (
    ("diff", registry_register.diff),
    ("check", registry_check.check),
    ("register", registry_register.register),
)
for _name, _command in _COMMANDS:
    app.command(_name)(guarded(_command))
for _name, _codec_command in _CODEC_COMMANDS:
    app.command(_name, cls=CodecCommand)(guarded(_codec_command))
