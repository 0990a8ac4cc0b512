"""How a command ends badly: one clear block on stderr, the right exit code, a traceback only on request."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec, TypeVar

import typer

from tidesink.cli import exits
from tidesink.errors import ConfigError, TidesinkError

P = ParamSpec("P")
R = TypeVar("R")

_NEXT = {
    "fix": "correct this and run it again",
    "retry": "it may pass: run it again a little later",
    "reject": "this record only: the others are not touched by it",
    "stop": "this table stops here until a person has looked",
    "re-read progress": "run it again: progress is asked of the target first",
}

_debug = threading.local()


def set_debug(on: bool) -> None:
    """Show tracebacks from now on, in this thread."""
    _debug.on = on


def debug() -> bool:
    """Whether --debug was given, in this thread."""
    return bool(getattr(_debug, "on", False))


def error_block(error: TidesinkError) -> str:
    """An error as people read it: what, where, and what to do next."""
    lines = [f"{type(error).__name__}: {error.message}"]
    where = error.where()
    if where:
        lines.append(f"  where: {where}")
    lines.append(f"  next:  {_NEXT[error.remedy]}")
    return "\n".join(lines) + "\n"


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """A command whose errors become exit codes: 2 for usage and config, 1 for what fails at run time."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except TidesinkError as error:
            _show(error)
            raise typer.Exit(exits.USAGE if isinstance(error, ConfigError) else exits.FAILED) from None
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            raise typer.Exit(exits.INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read our output has had enough: what is left must not fail on exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(exits.DONE) from None

    return run


def _show(error: TidesinkError) -> None:
    if debug():
        sys.stderr.write(traceback.format_exc())
    sys.stderr.write(error_block(error))


def interrupt_on_sigterm() -> None:
    """Take SIGTERM as Ctrl-C, so that containers stop a command the same way as a person does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
