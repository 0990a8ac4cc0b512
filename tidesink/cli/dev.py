"""``tidesink dev``: a broker and a registry on this machine, something to write to them, and the demo.

``dev demo`` runs the main job from nothing, with a line per step; ``dev jars`` downloads what it needs.
"""

from __future__ import annotations

import dataclasses
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidesink.cli import terminal
from tidesink.cli.sources import CodecCommand, Given, codec_options, with_codec_options
from tidesink.cli.status import COUNTS, counts_row, named_table
from tidesink.cli.terminal import (
    Output,
    OutputFormat,
    ProgressLines,
    guarded,
    note,
    show_table,
    write_json,
)
from tidesink.dev.stack import (
    CONTROLLER_PORT,
    DIRECTORY,
    KAFKA_PORT,
    REGISTRY_PORT,
    DevStack,
    running_stack,
)
from tidesink.sinks.spark.jvm import all_connector_jars, jar_directory
from tidesink.sinks.spark.session import make_class_archive

if TYPE_CHECKING:
    from tidesink.dev.demo import DemoResult
    from tidesink.dev.lake_check import TableCheck
    from tidesink.sinks.batch.observers import TableReport


app = typer.Typer(
    help="A real broker and registry on this machine, without Docker, and a workload for them.",
    no_args_is_help=True,
)

Directory = Annotated[Path, typer.Option("--dir", help="Where data, logs and pid files are kept.")]
KafkaPort = Annotated[int, typer.Option(min=1, max=65535, help="The broker's port on 127.0.0.1.")]
ControllerPort = Annotated[int, typer.Option(min=1, max=65535, help="The broker's controller port.")]
RegistryPort = Annotated[int, typer.Option(min=1, max=65535, help="The registry's port on 127.0.0.1.")]


@app.command()
@guarded
def up(
    directory: Directory = DIRECTORY,
    kafka_port: KafkaPort = KAFKA_PORT,
    controller_port: ControllerPort = CONTROLLER_PORT,
    registry_port: RegistryPort = REGISTRY_PORT,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Start the servers that do not run yet, and wait until all of them answer."""
    addresses = DevStack(
        directory, kafka_port=kafka_port, controller_port=controller_port, registry_port=registry_port
    ).up(note)
    if output is OutputFormat.JSON:
        write_json({"brokers": addresses.brokers, "schema_registry": addresses.registry_url})
    else:
        typer.echo(f"brokers: {addresses.brokers}\nschema-registry: {addresses.registry_url}")


@app.command()
@guarded
def down(directory: Directory = DIRECTORY, output: Output = OutputFormat.TEXT) -> None:
    """Stop the servers that run; the data stay."""
    stopped = DevStack(directory).down()
    if output is OutputFormat.JSON:
        write_json({"stopped": stopped})
    else:
        typer.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


class Protocol(str, Enum):
    """The protocols the workload can be written in."""

    FLAT_AVRO = "flat-avro"
    CANAL_JSON = "canal-json"


@app.command(cls=CodecCommand)
@guarded
@with_codec_options
def workload(
    *,
    given: Given,
    protocol: Annotated[Protocol, typer.Option(help="The codec to write with.")] = Protocol.FLAT_AVRO,
    events: Annotated[int, typer.Option(min=1, help="About how many row events to write.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed writes the same changes.")] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Records a second; as fast as possible if not given.")
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of new topics.")] = 4,
    topics: Annotated[str, typer.Option(help="The topic rule.")] = "{schema}_{table}",
    brokers: Annotated[str | None, typer.Option(help="Kafka bootstrap servers; the local stack's.")] = None,
    schema_registry: Annotated[
        str | None, typer.Option(help="The registry's URL, for flat-avro; the local stack's.")
    ] = None,
    expected: Annotated[
        Path | None, typer.Option(help="Where the expected final state goes; expected.json in --dir.")
    ] = None,
    directory: Directory = DIRECTORY,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Write a seeded shop workload through tidesink's own encoders, and the expected final state."""
    from tidesink.dev.workload import WorkloadOptions, write_workload
    from tidesink.schema_registry import open_registry

    local = running_stack(directory) or DevStack(directory).addresses
    registry = (
        open_registry(schema_registry or local.registry_url) if protocol is Protocol.FLAT_AVRO else None
    )
    options = WorkloadOptions(
        brokers=brokers or local.brokers,
        expected=expected or directory / "expected.json",
        protocol=protocol.value,
        topic_rule=topics,
        registry=registry,
        codec=codec_options(given),
        events=events,
        partitions=partitions,
        seed=seed,
        rate=rate,
    )
    with closing(registry) if registry is not None else nullcontext():
        report = write_workload(options, note)
    if output is OutputFormat.JSON:
        write_json({**dataclasses.asdict(report), "expected": str(report.expected)})
        return
    rows = sorted(report.by_topic.items())
    show_table(None, ("topic", "records"), rows)
    typer.echo(
        f"{report.events} row events, {report.ddl} schema changes, {report.resent} records sent again; "
        f"expected final state: {report.expected}"
    )


@app.command()
@guarded
def demo(
    events: Annotated[int, typer.Option(min=1, help="About how many row events to write.")] = 20_000,
    protocol: Annotated[Protocol, typer.Option(help="The codec to show.")] = Protocol.FLAT_AVRO,
    seed: Annotated[int, typer.Option(help="The same seed gives the same changes.")] = 1,
    batch_records: Annotated[int, typer.Option(min=1, help="The most records of one batch.")] = 4_000,
    directory: Directory = DIRECTORY,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Copy from Kafka to Delta on this machine, from nothing, and check that every value is right.

    It starts a broker and a registry, writes a workload, runs the worker until the topics are drained, and
    checks every column of every row. The exit code is 1 if a value is wrong. It leaves nothing running.
    """
    from tidesink.dev.demo import DemoOptions, run_demo

    # A terminal that is closed ends the demo as Ctrl-C does: it must not leave a broker behind.
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    options = DemoOptions(
        directory, protocol=protocol.value, events=events, seed=seed, batch_records=batch_records
    )
    started = time.monotonic()

    def say(text: str) -> None:
        note(f"{time.monotonic() - started:6.1f} s  {text}")

    result = run_demo(
        options, say, listener=ProgressLines(lambda text: say(f"worker: {text}"), brokers="here")
    )
    if output is OutputFormat.JSON:
        write_json(demo_json(result))
    else:
        _show(result)
    if not result.right:
        raise typer.Exit(terminal.FAILED)


@app.command()
@guarded
def jars(output: Output = OutputFormat.TEXT) -> None:
    """Fetch the connector jars of Spark and of every target, so that a worker starts without a network.

    It also stores an archive of Spark's classes, with which the JVM starts in two thirds of the time.
    """
    found = all_connector_jars(progress=note)
    archive = make_class_archive(note)
    if output is OutputFormat.JSON:
        names = [jar.name for jar in found]
        write_json({"directory": str(jar_directory()), "jars": names, "classes": archive})
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


# Narrow enough for 80 characters.
_COLUMNS: Final = ("table", "rows", "columns", "last commit_ts", "lag", "batches", "every value")


def _show(result: DemoResult) -> None:
    show_table("\nThe tables in the lake", _COLUMNS, [_row(*pair) for pair in _pairs(result)])
    title = "\nRow events: read = applied + superseded + filtered + dead letters"
    show_table(title, COUNTS, [counts_row(report.table, report.counters) for report in result.run.tables])
    for check in result.checks:
        for difference in check.differences:
            typer.echo(f"{check.table}: {difference}")
    for report in result.run.tables:
        if report.error:
            typer.echo(f"{report.table} is {report.state}: {report.error}")
    nulled = sum(sum(report.zero_dates.values()) for report in result.run.tables)
    if nulled:
        typer.echo(f"{nulled} dates that no calendar has became NULL (zero-date: null)")
    typer.echo(_verdict(result))
    typer.echo(f"The lake stays in {_from_here(result.lake)}. How its tables stand:")
    typer.echo(f"  {shlex.join(['tidesink', 'status', str(_from_here(result.config))])}")


def _row(check: TableCheck, report: TableReport | None) -> tuple[Any, ...]:
    verdict = "right" if check.right else f"WRONG: {len(check.differences)} differences below"
    run = (None, None, 0) if report is None else (report.commit_ts, report.lag, report.batches)
    return check.table, check.rows, check.columns, *run, verdict


def _verdict(result: DemoResult) -> str:
    took = ", ".join(f"{name} {count:.1f} s" for name, count in result.seconds.items())
    if not result.right:
        return f"\nNOT right: see above. ({took})"
    values = sum(check.rows * check.columns for check in result.checks)
    rows = sum(check.rows for check in result.checks)
    return (
        f"\nRight: {values:,} values in {rows:,} rows of {len(result.checks)} tables are what the source "
        f"holds after {result.workload.events:,} row events.\n({took})"
    )


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
