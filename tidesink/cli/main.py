"""``tidesink``: the commands put together."""

from __future__ import annotations

from typing import Annotated

import typer

from tidesink.cli import (
    accept_restored,
    ddl,
    decode,
    demo,
    dev,
    dlq,
    encode,
    failures,
    init,
    pausing,
    plan,
    registry,
    run_worker,
    status,
    topics,
    validate,
)
from tidesink.cli.codec_options import CodecCommand
from tidesink.version import __version__

app = typer.Typer(
    name="tidesink",
    help="TiCDC change topics to correct tables: decode, check, plan, run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_COMMANDS = (
    ("init", init.init),
    ("validate", validate.validate),
    ("plan", plan.plan),
    ("run", run_worker.run_worker),
    ("status", status.status),
    ("pause", pausing.pause),
    ("resume", pausing.resume),
    ("topics", topics.topics),
    ("accept-restored", accept_restored.accept_restored),
)
_CODEC_COMMANDS = (("decode", decode.decode), ("encode", encode.encode))
for _name, _command in _COMMANDS:
    app.command(_name)(failures.guarded(_command))
for _name, _codec_command in _CODEC_COMMANDS:
    app.command(_name, cls=CodecCommand)(failures.guarded(_codec_command))
dev.app.command("demo")(failures.guarded(demo.demo))
dev.app.command("jars")(failures.guarded(demo.jars))
app.add_typer(dlq.app, name="dlq")
app.add_typer(ddl.app, name="ddl")
app.add_typer(registry.app, name="registry")
app.add_typer(dev.app, name="dev")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidesink {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """TiCDC change topics to correct tables."""
    failures.set_debug(debug)


def run() -> None:
    """The entry point of the ``tidesink`` script."""
    failures.interrupt_on_sigterm()
    app()
