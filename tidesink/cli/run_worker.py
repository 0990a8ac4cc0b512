"""``tidesink run``: the worker, until it is stopped, or until there is nothing left to do."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidesink.cli import exits
from tidesink.cli.log_lines import LogFormat, log_to_stderr
from tidesink.cli.options import ConfigArgument, ConfigOption, chosen_config
from tidesink.cli.output import Output, OutputFormat, note, show_table, write_json
from tidesink.cli.status import COUNTS, commit_time, counts_row, unmatched_lines
from tidesink.config import Config
from tidesink.errors import ConfigError, SourceUnavailableError

if TYPE_CHECKING:
    from tidesink.sinks.listener import Listener
    from tidesink.sinks.report import RunReport, TableReport


class Until(str, Enum):
    """When a run ends by itself."""

    DRAINED = "drained"


def run_worker(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    *,
    until: Annotated[
        Until | None, typer.Option(help="End when all that was in the topics is applied.")
    ] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="End after N batches of each table.")] = None,
    log: Annotated[LogFormat, typer.Option(help="How steps are told on stderr.")] = LogFormat.TEXT,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve Prometheus metrics on this port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="The address to serve metrics on.")] = "127.0.0.1",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Run the worker. Exit code 3 where some table is paused or failing at the end."""
    settings = chosen_config(config, config_option)
    if until is not None and batches is not None:
        raise ConfigError("--until and --batches exclude each other: keep one")
    log_to_stderr(log)
    listeners = [_listener(log, settings), *_metrics(metrics_host, metrics_port)]
    from tidesink.sinks.worker import run

    note(f"{settings.pipeline}: starting Spark")
    try:
        report = run(settings, until=until.value if until else None, batches=batches, listeners=listeners)
    except SourceUnavailableError as error:
        raise error.with_context(brokers=settings.source.bootstrap_servers) from None
    if output is OutputFormat.JSON:
        write_json(report_json(report))
    else:
        show_report(report)
    if report.exit_code != exits.DONE:
        raise typer.Exit(report.exit_code)


def _listener(log: LogFormat, config: Config) -> Listener:
    from tidesink.cli.progress_lines import ProgressLines
    from tidesink.sinks.observers import LogListener

    if log is LogFormat.JSON:
        return LogListener()
    return ProgressLines(note, brokers=config.source.bootstrap_servers)


def _metrics(host: str, port: int | None) -> list[Listener]:
    if port is None:
        return []
    from prometheus_client import start_http_server

    from tidesink.sinks.observers import MetricsListener

    metrics = MetricsListener()
    try:
        start_http_server(port, addr=host, registry=metrics.registry)
    except OSError as error:
        raise ConfigError(f"metrics cannot be served on {host}:{port}: {error.strerror}") from error
    return [metrics]


def report_json(report: RunReport) -> dict[str, Any]:
    """A run's report as JSON."""
    shown = dataclasses.asdict(report)
    shown["exit_code"] = report.exit_code
    for entry, found in zip(shown["tables"], report.tables, strict=True):
        entry["table"] = {"schema": found.table.schema, "name": found.table.name}
    return shown


def show_report(report: RunReport) -> None:
    """A run's report for people."""
    show_table(None, ("table", "state", "batches", "lag", "last commit"), map(_row, report.tables))
    typer.echo("")
    show_table(None, COUNTS, [counts_row(entry.table, entry.counters) for entry in report.tables])
    for entry in report.tables:
        for line in _remarks(entry):
            typer.echo(f"{entry.table}: {line}", err=True)
    if report.error:
        typer.echo(f"error: {report.error}", err=True)
    ending = "interrupted" if report.interrupted else "done"
    typer.echo(f"{report.pipeline}: {ending} after {report.seconds:.1f} s")


def _row(entry: TableReport) -> tuple[Any, ...]:
    return str(entry.table), entry.state, entry.batches, entry.lag, commit_time(entry.commit_ts)


def _remarks(entry: TableReport) -> list[str]:
    remarks = [f"error: {entry.error}"] if entry.error else []
    remarks += [f"warning: {warning}" for warning in entry.warnings]
    remarks += unmatched_lines(entry.counters)
    return remarks + [
        f"{count} dates of column {column} that no calendar has became NULL (zero-date: null)"
        for column, count in entry.zero_dates.items()
        if count
    ]
