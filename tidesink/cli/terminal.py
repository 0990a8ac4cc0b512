"""Shared parts of all commands: options, output, error messages, exit codes, logs and progress lines.

Commands print tables for people and JSON for programs. A command that fails prints one block on stderr and
exits with the code of its error; it prints a traceback only with ``--debug``. The worker logs to stderr, as
text or as JSON lines. A run prints a line per batch, and a line when a table's state changes.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from enum import Enum
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, NoReturn, ParamSpec, TypeVar

import orjson
import structlog
import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from tidesink.config import Config, load_config
from tidesink.config.fields import without_secrets
from tidesink.errors import BrokerUnavailableError, ConfigError, TidesinkError, with_table
from tidesink.events import TableId
from tidesink.sinks.runtime import observers
from tidesink.sinks.runtime.observers import (
    BatchApplied,
    BatchStarted,
    StepRetried,
    TableChanged,
    Waiting,
    WorkerEvent,
)


class OutputFormat(str, Enum):
    """Format of a command's result."""

    TEXT = "text"
    JSON = "json"


_FILE_WIDTH = 200
_FOLDED_WIDTH = 16
_GAP = 2  # rich pads each side of a cell by one
_PADDING = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)
_WATCH_SECONDS: Final = 2.0
# A batch may take minutes, so the rate is measured over this time.
_RATE_SECONDS: Final = 600.0
# Width of a progress bar's columns without the table's name, enough for tens of millions of records.
_BESIDE_NAMES: Final = 52

Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="text for people, json for programs.")]


class _Screen(Console):
    """rich's console, which raises BrokenPipeError if the reader of stdout closes the pipe."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which ``guarded`` handles; rich itself would exit with 1."""
        raise BrokenPipeError


def console() -> Console:
    """Return a rich console for stdout.

    If stdout is not a terminal, the console prints no colours and does not wrap tables.
    """
    terminal = sys.stdout.isatty()
    return _Screen(highlight=False, soft_wrap=not terminal, width=None if terminal else _FILE_WIDTH)


def write_json(value: Any) -> None:
    """Write a value to stdout as one line of JSON."""
    sys.stdout.write(orjson.dumps(value, default=str).decode("utf-8") + "\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    """Write a warning to stderr, so that it does not mix with output that programs read."""
    sys.stderr.write(f"warning: {complete(text)}\n")


def note(text: str) -> None:
    """Write a line of progress to stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def show_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, folded: Sequence[str] = ()
) -> None:
    """Print a plain table on stdout. Numbers are right-aligned.

    Cells are not wrapped, so that names and numbers can be copied from a narrow terminal too. Only the cells
    of ``folded`` columns, which contain sentences, are wrapped. A newline in a column's name starts a new
    line in the heading.
    """
    listed = [["" if cell is None else cell for cell in row] for row in rows]
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    widths = []
    for index, name in enumerate(columns):
        cells = [row[index] for row in listed]
        whole = name not in folded
        widths.append(_width([name, *cells]) if whole else max(_width([name]), _FOLDED_WIDTH))
        made.add_column(
            name,
            justify="right" if cells and all(isinstance(cell, int | float) for cell in cells) else "left",
            vertical="bottom",
            overflow="fold",
            no_wrap=whole,
            min_width=widths[-1],
        )
    for row in listed:
        made.add_row(*(Text(str(cell)) for cell in row))
    screen = console()
    # A wide console, so that rich does not wrap cells on a narrow terminal. The height is set too, because
    # without a terminal rich ignores a width that is given without a height.
    wide = max(screen.width, sum(widths) + _GAP * (len(widths) - 1))
    screen.size = ConsoleDimensions(wide, screen.height)
    with screen.capture() as shown:
        screen.print(made)
    # Blanks that pad the last cell are removed, because a narrow terminal would wrap the line for them.
    screen.file.write(_PADDING.sub(lambda padding: padding.group().replace(" ", ""), shown.get()))


def _width(cells: Iterable[Any]) -> int:
    return max(cell_len(line) for cell in cells for line in str(cell).split("\n"))


_log = structlog.get_logger("tidesink")
_UNFORESEEN: Final = "Report this with the version of tidesink."

P = ParamSpec("P")
R = TypeVar("R")

_NEXT = {
    "fix": "Correct this and run the command again.",
    "retry": "This may be temporary. Run the command again later.",
    "reject": "Only this record is affected.",
    "stop": "This table stops here until you have fixed the cause.",
    "re-read progress": "Run the command again. It first reads the progress from the target.",
}

_debug = threading.local()


def set_debug(on: bool) -> None:
    """Turn tracebacks on or off for the commands of this thread."""
    _debug.on = on


def debug() -> bool:
    """Returns True if --debug was given in this thread."""
    return bool(getattr(_debug, "on", False))


def next_step(error: TidesinkError) -> str:
    """Return a sentence that tells the user what to do about an error."""
    stops_nothing = error.remedy == "stop" and "table" not in error.context
    return _NEXT["fix" if stops_nothing else error.remedy]


def error_block(error: TidesinkError) -> str:
    """Format an error for people: what happened, where, and what to do next."""
    table = error.context.get("table")
    lines = [f"{type(error).__name__}: {complete(error.message, table=table)}"]
    where = error.where()
    if where:
        lines.append(f"  where: {where}")
    lines.append(f"  next:  {complete(error.next_step, table=table) or next_step(error)}")
    return "\n".join(lines) + "\n"


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that its errors become exit codes: 2 for usage and config, 1 for all others.

    While the command runs, the log is written to stderr.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        before, form = structlog.get_config(), kwargs.get("log")
        log_to_stderr(form if isinstance(form, LogFormat) else LogFormat.TEXT)
        _chosen.names = tuple(_names_in(kwargs.values()))
        try:
            return command(*args, **kwargs)
        except typer.Exit:
            raise
        except TidesinkError as error:
            _show(error)
            raise typer.Exit(USAGE if isinstance(error, ConfigError) else FAILED) from None
        except BrokenPipeError:
            # The reader has closed stdout, so Python must not fail when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(DONE) from None
        except (Exception, KeyboardInterrupt) as error:
            interrupt = _interrupt_behind(error)
            if interrupt is not None:
                say("interrupted")
                raise typer.Exit(TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED) from None
            if not logs_json():
                raise
            _log.error(_UNFORESEEN, trace=trace_of(error))
            raise typer.Exit(FAILED) from None
        finally:  # a program that calls the command as a function has its own log
            structlog.configure(**before)
            _chosen.form, _chosen.config, _chosen.names = LogFormat.TEXT, DEFAULT_CONFIG, ()

    return run


def _names_in(values: Iterable[Any]) -> Iterator[str]:
    """Yield the strings among the values of a command's parameters, including those in lists."""
    for value in values:
        listed = value if isinstance(value, list | tuple) else [value]
        yield from (item for item in listed if isinstance(item, str) and not isinstance(item, Enum))


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@contextmanager
def stops_cleanly() -> Iterator[None]:
    """End the command successfully if SIGTERM arrives in this context, before it has begun its work.

    Raises:
        Exit: SIGTERM has arrived; the exit code is 0.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if not isinstance(_interrupt_behind(error), Terminated):
            raise
        say("stopped before the first batch")
        raise typer.Exit(DONE) from None


def _interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the Ctrl-C or SIGTERM that caused an error, such as an aborted call to the JVM, or None."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__context__
    return cause


def say(text: str) -> None:
    """Write a line to stderr, in the format of the log."""
    if logs_json():
        _log.info(text)
    else:
        note(text)


def _show(error: TidesinkError) -> None:
    if logs_json():
        trace = {"trace": trace_of(error)} if debug() else {}
        table = error.context.get("table")
        _log.error(
            complete(error.message, table=table),
            error=type(error).__name__,
            where=error.where(),
            next=complete(error.next_step, table=table) or next_step(error),
            **trace,
        )
        return
    if debug():
        sys.stderr.write(trace_of(error))
    sys.stderr.write(error_block(error))


def trace_of(error: BaseException) -> str:
    """Return the tracebacks of an error and its causes, the first cause first.

    Each has the error's class and the lines of code that led to it. The message is only included for
    tidesink's own errors: messages of other errors (from a driver, Spark or pydantic) may contain a secret or
    a value of a row.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n".join(_traced(exception) for exception in reversed(chain))


def _traced(error: BaseException) -> str:
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    message = str(error) if isinstance(error, TidesinkError) else "(text left out)"
    lines = traceback.format_tb(error.__traceback__)
    return "".join(("Traceback (most recent call last):\n", *lines, f"{kind}: {message}\n"))


def show_fault(error: Exception) -> None:
    """Print an unexpected error with its traceback on stderr, even without ``--debug``."""
    sys.stderr.write(f"{trace_of(error)}{_UNFORESEEN}\n")


def interrupt_on_sigterm() -> None:
    """Make SIGTERM end a command like Ctrl-C, with its own exit code."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, interrupt)


# Exit codes, in addition to those of a run.
FAILED: Final = 1
USAGE: Final = 2
DONE, UNWELL = observers.DONE, observers.UNWELL
INTERRUPTED, TERMINATED = observers.INTERRUPTED, observers.TERMINATED


DEFAULT_CONFIG = Path("tidesink.yaml")

ConfigArgument = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="The config file; the default is tidesink.yaml.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="TIDESINK_CONFIG", help="The config file (same as the argument)."),
]


def config_path(argument: Path | None, option: Path | None) -> Path:
    """Return the config file that the user chose, and remember it for the commands that messages suggest."""
    _chosen.config = argument or option or DEFAULT_CONFIG
    return argument or option or DEFAULT_CONFIG


# The commands that read a config and that messages suggest, to which ``complete`` adds ``--config``.
_SUGGESTED: Final = re.compile(
    r"\btidesink (accept-restored|cut (?:list|show)|ddl (?:list|show|approve|reject)|diff|"
    r"dlq (?:list|show|replay|drop)|offsets (?:show|rewind)|pause|plan|resume|resync|run|"
    r"snapshot (?:start|pause|resume|cancel|status)|status|validate)\b(?! --config)"
)


def complete(text: str, config: Path | None = None, *, table: object = None) -> str:
    """Add the table and ``--config FILE`` to the commands in a message, so that they can be pasted.

    ``config``: the config file; None for the file chosen in this thread. Nothing is added for the default
    file. ``table``: the table that the message is about, which replaces the word TABLE; None if unknown.
    """
    if table is not None:
        text = with_table(text, table)
    path = config or getattr(_chosen, "config", DEFAULT_CONFIG)
    if path == DEFAULT_CONFIG:
        return text
    option = shlex.quote(str(path))
    return _SUGGESTED.sub(lambda match: f"{match[0]} --config {option}", text)


def echo(text: str, table: object = None) -> None:
    """Print a line, and add the table and ``--config FILE`` to the commands that it suggests."""
    typer.echo(complete(text, table=table))


_NO_CONFIG: Final = "No config was given, and this folder has no tidesink.yaml. Give one with --config FILE."


def _refuse_config_among_names() -> None:
    """Check that the user gave no config file in place of names, such as table names.

    Raises:
        ConfigError: a name is a config file. The error's next step is the command with ``--config``.
    """
    for name in getattr(_chosen, "names", ()):
        if name.endswith((".yaml", ".yml")) and Path(name).is_file():
            error = ConfigError(f"{name} is a config file, but the command expects names. Use --config")
            words = [part for word in sys.argv[1:] for part in (("-c", word) if word == name else (word,))]
            error.next_step = shlex.join(["tidesink", *map(without_secrets, words)])
            raise error


def chosen_config(argument: Path | None, option: Path | None) -> Config:
    """Load the config that a command was given.

    Raises:
        ConfigError: the config cannot be read, was given in place of a name, or has wrong settings. The
            message lists all wrong settings.
    """
    if argument is None and option is None:
        _refuse_config_among_names()
    path = config_path(argument, option)
    if path == DEFAULT_CONFIG and not path.exists():
        raise ConfigError(_NO_CONFIG, file=str(path))
    return load_config(path)


class LogFormat(str, Enum):
    """Format of the log on stderr."""

    TEXT = "text"
    JSON = "json"


class LogLevel(str, Enum):
    """The lowest level of log entries to show."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_chosen = threading.local()


def logs_json() -> bool:
    """Returns True if this thread's command writes JSON lines to stderr."""
    return getattr(_chosen, "form", LogFormat.TEXT) is LogFormat.JSON


def log_to_stderr(form: LogFormat, level: LogLevel | None = None) -> None:
    """Configure the log to be written to stderr, since programs read results from stdout.

    ``level``: lowest level to show. The default shows all entries in JSON and with --debug, and otherwise
    only warnings and errors, because progress lines already show the steps.
    """
    usual = LogLevel.WARNING if form is LogFormat.TEXT and not debug() else LogLevel.DEBUG
    least = int(getattr(logging, (level or usual).name))
    _chosen.form = form
    structlog.configure(
        processors=[structlog.processors.add_log_level, *_RENDERERS[form]],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def _line(_logger: Any, _method: str, event: Mapping[str, Any]) -> str:
    """Format a log event as ``level: text (name: value, ...)``, followed by its traceback if it has one."""
    rest = {name: value for name, value in event.items() if value is not None}
    level, text, trace = rest.pop("level"), rest.pop("event"), rest.pop("trace", None)
    reported = ", ".join(f"{name}: {_listed(value)}" for name, value in rest.items())
    line = f"{level}: {text} ({reported})" if reported else f"{level}: {text}"
    return line if trace is None else f"{line}\n{str(trace).rstrip()}"


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


_RENDERERS: Mapping[LogFormat, tuple[Callable[..., Any], ...]] = {
    LogFormat.TEXT: (_line,),
    LogFormat.JSON: (structlog.processors.TimeStamper(fmt="iso"), structlog.processors.JSONRenderer()),
}


class ProgressLines:
    """A listener that writes a line for each event of the worker. All threads of the worker may use it.

    brokers: Kafka's addresses, which are printed if Kafka does not answer.
    """

    def __init__(self, write: Callable[[str], None], *, brokers: str) -> None:
        self._write = write
        self._brokers = brokers
        self._lock = threading.Lock()
        self._states: dict[TableId, tuple[str, str | None]] = {}
        # The worker's threads do not have this thread's config.
        self._config: Path = getattr(_chosen, "config", DEFAULT_CONFIG)

    def hear(self, event: WorkerEvent) -> None:
        """Write one event of the worker as a line."""
        line = self._line(event)
        if line is not None:
            with self._lock:
                self._write(complete(line, self._config))

    def _line(self, event: WorkerEvent) -> str | None:
        if isinstance(event, Waiting):
            return event.what
        if isinstance(event, BatchStarted):
            return f"{event.table}  batch {event.batch}: {event.records} records"
        if isinstance(event, BatchApplied):
            counters = event.account.as_counters().items()
            counts = ", ".join(f"{name} {count}" for name, count in counters if count)
            seconds = sum(event.seconds.values())
            return f"{event.table}  batch {event.batch}: {counts or 'nothing to do'} in {seconds:.1f} s"
        if isinstance(event, StepRetried):
            brokers = f" (brokers {self._brokers})" if isinstance(event.error, BrokerUnavailableError) else ""
            reason = f"{type(event.error).__name__}: {event.error}{brokers}"
            if event.table is not None:
                reason = with_table(reason, event.table)
            return f"{event.table or 'all tables'}  {reason}; again in {event.pause:.1f} s"
        return self._new_state(event) if isinstance(event, TableChanged) else None

    def _new_state(self, event: TableChanged) -> str | None:
        status = event.status
        before = self._states.get(status.table)
        self._states[status.table] = (status.state, status.error)
        if before == (status.state, status.error) or status.state in ("RUNNING", "IDLE"):
            return None
        return f"{status.table}  {status.state}: {status.error}"


class _Rate(ProgressColumn):
    """A column of the progress bars that shows the rate in records per second."""

    def render(self, task: Task) -> Text:
        """Return the rate as text; empty before the first batch is applied."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", justify="right")


class ProgressBars:
    """A listener that shows a bar per table on a terminal, while it is open as a context.

    A bar shows how many of the found records (offsets of the topic) this run has applied, the rate and the
    time left. All other lines that are written to stderr appear above the bars.
    """

    def __init__(self, screen: Console, *, brokers: str) -> None:
        self._bars = Progress(
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, max_width=max(16, screen.width - _BESIDE_NAMES)),
            ),
            BarColumn(bar_width=10),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}", justify="right"),
            _Rate(),
            TimeRemainingColumn(),
            console=screen,
            refresh_per_second=4,
            speed_estimate_period=_RATE_SECONDS,
        )
        self._lines = ProgressLines(
            lambda line: screen.print(line, markup=False, highlight=False, soft_wrap=True), brokers=brokers
        )
        self._bar_of: dict[TableId, TaskID] = {}
        self._under_way: dict[TableId, int] = {}

    def __enter__(self) -> ProgressBars:
        self._bars.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bars.stop()

    def hear(self, event: WorkerEvent) -> None:
        """Show one event of the worker: move the bar of its table, or write a line above the bars."""
        if isinstance(event, BatchStarted):
            self._begin(event)
        elif isinstance(event, BatchApplied):
            self._bars.advance(self._bar_of[event.table], self._under_way[event.table])
        else:
            self._lines.hear(event)

    def _begin(self, event: BatchStarted) -> None:
        self._under_way[event.table] = event.records
        bar = self._bar_of.get(event.table)
        total = event.records + event.left
        if bar is None:
            bar = self._bar_of[event.table] = self._bars.add_task(str(event.table), total=total)
        else:
            self._bars.update(bar, total=self._bars.tasks[bar].completed + total)
        # A rate counts from here on: rich only records the times of steps.
        self._bars.advance(bar, 0)


def show_again(show: Callable[[], object], *, in_place: bool) -> NoReturn:
    """Print a status every two seconds until Ctrl-C; on a terminal it replaces the last one."""
    with Live(console=console(), auto_refresh=False) if in_place else nullcontext() as screen:
        while True:
            if screen is None:
                show()
            else:
                with redirect_stdout(StringIO()) as shown:
                    show()
                screen.update(Text(shown.getvalue().rstrip("\n")), refresh=True)
            time.sleep(_WATCH_SECONDS)
