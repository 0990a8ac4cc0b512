"""The worker's log on stderr: readable lines for people, JSON for programs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import structlog

from tidesink.cli.failures import debug


class LogFormat(str, Enum):
    """How the run's steps are told on stderr."""

    TEXT = "text"
    JSON = "json"


def log_to_stderr(form: LogFormat) -> None:
    """Send the log to stderr: it must not mix with results, which programs read from stdout.

    As text it tells of warnings and worse, and of all with --debug: steps are told by other lines. As JSON
    it tells everything.
    """
    least = logging.WARNING if form is LogFormat.TEXT and not debug() else logging.DEBUG
    structlog.configure(
        processors=[structlog.processors.add_log_level, *_RENDERERS[form]],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def _line(_logger: Any, _method: str, event: Mapping[str, Any]) -> str:
    """``level: what (name: value, ...)``; a trace stands on lines of its own."""
    rest = {name: value for name, value in event.items() if value is not None}
    level, text, trace = rest.pop("level"), rest.pop("event"), rest.pop("trace", None)
    told = ", ".join(f"{name}: {_said(value)}" for name, value in rest.items())
    line = f"{level}: {text} ({told})" if told else f"{level}: {text}"
    return line if trace is None else f"{line}\n{str(trace).rstrip()}"


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


_RENDERERS: Mapping[LogFormat, tuple[Callable[..., Any], ...]] = {
    LogFormat.TEXT: (_line,),
    LogFormat.JSON: (structlog.processors.TimeStamper(fmt="iso"), structlog.processors.JSONRenderer()),
}
