"""The ``tidesink`` command line, and ``tidesink run``, which runs the worker.

The worker runs until it is stopped, or until the condition of ``--until`` or ``--batches`` is met.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer
from pydantic import SecretStr
from rich.console import Console

from tidesink import __version__
from tidesink.cli import (
    codec,
    cuts,
    ddl,
    dead_letters,
    dev,
    diff,
    offsets,
    plan,
    registry,
    snapshot,
    status,
    terminal,
)
from tidesink.cli.sources import CodecCommand
from tidesink.cli.status import COUNTS, count_remarks, counts_row, source_time
from tidesink.cli.terminal import (
    ConfigArgument,
    ConfigOption,
    LogFormat,
    LogLevel,
    Output,
    OutputFormat,
    ProgressBars,
    ProgressLines,
    chosen_config,
    log_to_stderr,
    note,
    show_table,
    stops_cleanly,
    write_json,
)
from tidesink.config import Config
from tidesink.errors import BrokerUnavailableError, ConfigError
from tidesink.sinks.runtime.observers import LogListener

if TYPE_CHECKING:
    from tidesink.config.source import SourceSettings
    from tidesink.sinks.runtime.observers import Listener, RunReport, TableReport


class Until(str, Enum):
    """Condition under which ``tidesink run`` ends by itself."""

    DRAINED = "drained"


def run_worker(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    *,
    until: Annotated[
        Until | None, typer.Option(help="End once all records in the topics are applied.")
    ] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="End after N batches of each table.")] = None,
    log: Annotated[
        LogFormat, typer.Option(envvar="TIDESINK_LOG", help="Format of the log on stderr.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            envvar="TIDESINK_LOG_LEVEL",
            help="Lowest level to show; the default is warning for text and debug for JSON.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            envvar="TIDESINK_METRICS_PORT",
            help="Serve /metrics (Prometheus), /healthz and /readyz on this port.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(envvar="TIDESINK_METRICS_HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show Spark's warnings too.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Run the worker. The exit code is 3 if a table is paused or failing at the end."""
    settings = chosen_config(config, config_option)
    if until is not None and batches is not None:
        raise ConfigError("--until and --batches exclude each other. Remove one of them.")
    if verbose:
        settings = _with_spark_conf(settings, {"spark.log.level": "WARN"})
    if log is LogFormat.JSON:
        from tidesink.sinks.spark.session import LOG_FORM

        settings = _with_spark_conf(settings, {LOG_FORM: "json"})
    with ExitStack() as closing:
        listener = closing.enter_context(_listening(log, until, settings))
        log_to_stderr(log, log_level)
        listeners = [listener]
        if metrics_port is not None:
            listeners += closing.enter_context(_endpoints(metrics_host, metrics_port))
        from tidesink.sinks.worker.run import run

        try:
            with stops_cleanly():
                report = run(
                    settings, until=until.value if until else None, batches=batches, listeners=listeners
                )
        except BrokerUnavailableError as error:
            raise error.with_context(brokers=settings.source.bootstrap_servers) from None
    if output is OutputFormat.JSON:
        write_json(report_json(report))
    elif log is LogFormat.JSON:
        log_report(report)
    else:
        show_report(report, settings.source)
    if report.exit_code != terminal.DONE:
        raise typer.Exit(report.exit_code)


def _with_spark_conf(config: Config, more: Mapping[str, str]) -> Config:
    """Return the config with additional Spark settings; they do not override the config's own settings."""
    conf = {**{name: SecretStr(value) for name, value in more.items()}, **config.spark.conf}
    return config.model_copy(update={"spark": config.spark.model_copy(update={"conf": conf})})


def _listening(log: LogFormat, until: Until | None, config: Config) -> AbstractContextManager[Listener]:
    """Return the listener that shows a run's progress on stderr.

    With ``--log json`` the listener logs events. On a terminal, a run with ``--until`` has progress bars. All
    other runs print a line per step.
    """
    brokers = config.source.bootstrap_servers
    if log is LogFormat.JSON:
        return nullcontext(LogListener())
    screen = Console(stderr=True)
    if until is not None and sys.stderr.isatty() and not screen.is_dumb_terminal:
        return ProgressBars(screen, brokers=brokers)
    return nullcontext(ProgressLines(note, brokers=brokers))


@contextmanager
def _endpoints(host: str, port: int) -> Iterator[list[Listener]]:
    from tidesink.sinks.runtime.observers import MetricsListener
    from tidesink.sinks.worker.endpoints import Health, served

    health, metrics = Health(), MetricsListener()
    with served(host, port, health, metrics.registry):
        yield [health, metrics]


def report_json(report: RunReport) -> dict[str, Any]:
    """Return a run's report as JSON."""
    shown = dataclasses.asdict(report)
    shown["exit_code"] = report.exit_code
    for entry, table_report in zip(shown["tables"], report.tables, strict=True):
        entry["table"] = {"schema": table_report.table.schema, "name": table_report.table.name}
    return shown


def log_report(report: RunReport) -> None:
    """Log a run's report: one line per table, then one for the run."""
    log = structlog.get_logger("tidesink.worker")
    for entry in report.tables:
        write = log.warning if entry.error or entry.warnings else log.info
        write(
            "table at the end",
            table=str(entry.table),
            state=entry.state,
            batches=entry.batches,
            lag=entry.lag,
            commit_ts=entry.commit_ts,
            error=entry.error,
            warnings=entry.warnings,
            **entry.counters,
        )
    log.info(
        "run ended",
        pipeline=report.pipeline,
        ending=_ending(report),
        seconds=round(report.seconds, 1),
        exit_code=report.exit_code,
        error=report.error,
    )


def _ending(report: RunReport) -> str:
    return "stopped" if report.terminated else "interrupted" if report.interrupted else "done"


def show_report(report: RunReport, source: SourceSettings) -> None:
    """Print the report of a run: a row per table, then errors and totals."""
    show_table(None, ("table", "state", "batches", "lag", "source time"), map(_row, report.tables))
    typer.echo("")
    show_table(None, COUNTS, [counts_row(entry.table, entry.counters) for entry in report.tables])
    for entry in report.tables:
        remarks = [f"error: {entry.error}"] if entry.error else []
        remarks += [f"warning: {warning}" for warning in entry.warnings]
        for line in [*remarks, *count_remarks(entry, source)]:
            typer.echo(terminal.complete(f"{entry.table}: {line}"), err=True)
    if report.error:
        typer.echo(f"error: {report.error}", err=True)
    typer.echo(f"{report.pipeline}: {_ending(report)} after {report.seconds:.1f} s")


def _row(entry: TableReport) -> tuple[Any, ...]:
    return str(entry.table), entry.state, entry.batches, entry.lag, source_time(entry.commit_ts)


app = typer.Typer(
    name="tidesink",
    help="TiCDC change topics to correct tables: decode, check, plan, run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_COMMANDS = (
    ("init", plan.init),
    ("validate", plan.validate),
    ("plan", plan.plan),
    ("run", run_worker),
    ("status", status.status),
    ("pause", status.pause),
    ("resume", status.resume),
    ("accept-restored", status.accept_restored),
    ("diff", diff.diff),
    ("resync", snapshot.resync),
)
for _name, _command in _COMMANDS:
    app.command(_name)(terminal.guarded(_command))
app.command("decode", cls=CodecCommand)(terminal.guarded(codec.decode))
app.command("encode", cls=CodecCommand)(terminal.guarded(codec.encode))
app.add_typer(dead_letters.app, name="dlq")
app.add_typer(ddl.app, name="ddl")
app.add_typer(snapshot.app, name="snapshot")
app.add_typer(offsets.app, name="offsets")
app.add_typer(cuts.app, name="cut")
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
    """Options that apply to every command of ``tidesink``."""
    terminal.set_debug(debug)


def run() -> None:
    """The entry point of the ``tidesink`` script."""
    terminal.interrupt_on_sigterm()
    try:
        app()
    except Exception as error:  # noqa: BLE001  (Python's own traceback would show its text)
        terminal.show_fault(error)
        sys.exit(terminal.FAILED)
