"""``tidesink dev demo`` and ``tidesink dev jars``: the main job from nothing, and what it downloads."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tidesink.cli import exits
from tidesink.cli.dev import Directory, Protocol
from tidesink.cli.known_tables import named_table
from tidesink.cli.log_lines import LogFormat, log_to_stderr
from tidesink.cli.output import Output, OutputFormat, note, show_table, write_json
from tidesink.dev.stack import DIRECTORY
from tidesink.sinks.class_archive import make_class_archive
from tidesink.sinks.ivy import all_connector_jars, jar_directory

if TYPE_CHECKING:
    from tidesink.dev.demo import DemoResult
    from tidesink.dev.lake_check import TableCheck
    from tidesink.sinks.report import TableReport


def demo(
    events: Annotated[int, typer.Option(min=1, help="Row events to write, about.")] = 20_000,
    protocol: Annotated[Protocol, typer.Option(help="The codec to show.")] = Protocol.FLAT_AVRO,
    seed: Annotated[int, typer.Option(help="The same seed gives the same changes.")] = 1,
    batch_records: Annotated[int, typer.Option(min=1, help="The most records of one batch.")] = 4_000,
    directory: Directory = DIRECTORY,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Kafka to Delta on this machine, from nothing, and the proof that every value is right.

    Starts a broker and a registry, writes a workload, runs the worker until the topics are drained, and
    checks every column of every row. Exit code 1 where a value is wrong. Nothing is left running.
    """
    from tidesink.cli.demo_steps import DemoSteps
    from tidesink.dev.demo import DemoOptions, run_demo

    log_to_stderr(LogFormat.TEXT)
    # A terminal that is closed ends the demo as Ctrl-C does: it must not leave a broker behind.
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    options = DemoOptions(
        directory, protocol=protocol.value, events=events, seed=seed, batch_records=batch_records
    )
    steps = DemoSteps(Console(stderr=True, highlight=False))
    with steps.shown():
        result = run_demo(options, steps.say, listener=steps, on_workload=steps.written)
    if output is OutputFormat.JSON:
        write_json(demo_json(result))
    else:
        _show(result)
    if not result.right:
        raise typer.Exit(exits.FAILED)


def jars(output: Output = OutputFormat.TEXT) -> None:
    """Fetch the connector jars of Spark and of every target, so that a worker starts without a network.

    Keeps Spark's classes there too, in a form the JVM starts from in two thirds of the time.
    """
    found = all_connector_jars(progress=note)
    kept = make_class_archive(note)
    if output is OutputFormat.JSON:
        names = [jar.name for jar in found]
        write_json({"directory": str(jar_directory()), "jars": names, "classes": kept})
    else:
        typer.echo(f"{len(found)} jars in {jar_directory()}")


def demo_json(result: DemoResult) -> dict[str, Any]:
    """What the demo found, as JSON."""
    return {
        "right": result.right,
        "workload": {**dataclasses.asdict(result.workload), "expected": str(result.workload.expected)},
        "tables": [_table_json(check, report) for check, report in _pairs(result)],
        "error": result.run.error,
        "seconds": result.seconds,
        "config": str(result.config),
        "lake": str(result.lake),
    }


def _table_json(check: TableCheck, report: TableReport | None) -> dict[str, Any]:
    run = {} if report is None else dataclasses.asdict(report)
    table = named_table(check.table, () if report is None else (report.table,))
    return {**run, **dataclasses.asdict(check), "table": table._asdict(), "right": check.right}


def _pairs(result: DemoResult) -> Iterator[tuple[TableCheck, TableReport | None]]:
    """Each table's check with what the worker says of it; None where the worker never saw it."""
    reports = {str(report.table): report for report in result.run.tables}
    for check in result.checks:
        yield check, reports.get(check.table)


def _show(result: DemoResult) -> None:
    pairs = list(_pairs(result))
    show_table("\nThe tables in the lake", _TABLE_COLUMNS, [_table_row(*pair) for pair in pairs])
    title = "\nRow events: read = applied + superseded + filtered + dead letters"
    show_table(title, _ACCOUNT_COLUMNS, [_account_row(*pair) for pair in pairs])
    for line in (line for pair in pairs for line in _remarks(*pair)):
        typer.echo(line)
    typer.echo(_verdict(result))
    typer.echo(f"The lake stays in {_from_here(result.lake)}. How its tables stand:")
    typer.echo(f"  {shlex.join([own_command(), 'status', str(_from_here(result.config))])}")


# Narrow enough for 80 characters.
_TABLE_COLUMNS = ("table", "rows", "columns", "last commit_ts", "lag", "batches", "every value")
_ACCOUNT_COLUMNS = (
    "table",
    "read",
    "applied",
    "superseded",
    "filtered",
    "dead\nletters",
    "holds",
    "dates\nto NULL",
)


def _table_row(check: TableCheck, report: TableReport | None) -> tuple[Any, ...]:
    said = "right" if check.right else f"WRONG: {len(check.differences)} differences below"
    if report is None:
        return check.table, check.rows, check.columns, None, None, 0, said
    return (
        check.table,
        check.rows,
        check.columns,
        report.commit_ts,
        report.lag,
        report.batches,
        said,
    )


def _account_row(check: TableCheck, report: TableReport | None) -> tuple[Any, ...]:
    counters = {} if report is None else report.counters
    read, *parts = (counters.get(name, 0) for name in _COUNTERS)
    nulled = 0 if report is None else sum(report.zero_dates.values())
    return check.table, read, *parts, "yes" if read == sum(parts) else "NO", nulled


_COUNTERS = ("read", "applied", "superseded", "filtered", "dead_lettered")


def _remarks(check: TableCheck, report: TableReport | None) -> list[str]:
    remarks = [f"{check.table}: {difference}" for difference in check.differences]
    if report is not None and report.error:
        remarks.append(f"{check.table} is {report.state}: {report.error}")
    return remarks


def _verdict(result: DemoResult) -> str:
    values = sum(check.rows * check.columns for check in result.checks)
    rows = sum(check.rows for check in result.checks)
    took = ", ".join(f"{name} {count:.1f} s" for name, count in result.seconds.items())
    if not result.right:
        return f"\nNOT right: see above. ({took})"
    return (
        f"\nRight: {values:,} values in {rows:,} rows of {len(result.checks)} tables are what the source "
        f"holds after {result.workload.events:,} row events.\n({took})"
    )


def own_command() -> str:
    """``tidesink`` as whoever reads this can call it from here: its path where it is not on PATH."""
    called = Path(sys.argv[0])
    own = called if called.name == "tidesink" else Path(sys.executable).with_name("tidesink")
    found = shutil.which("tidesink")
    if not own.is_file() or (found is not None and Path(found).samefile(own)):
        return "tidesink"
    return str(_from_here(own.absolute()))


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
