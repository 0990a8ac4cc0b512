"""``tidesink dev``: runs a broker and a registry on this machine, writes a workload, and runs the demo.

``dev demo`` copies a workload from Kafka to Delta on a new broker, and prints a line per step. ``dev jars``
downloads Spark's jars.
"""

from __future__ import annotations

import dataclasses
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
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
from tidesink.codecs.open import CODECS
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
    from tidesink.sinks.runtime.observers import TableReport


app = typer.Typer(
    help="A local broker, registry, workload and demo.",
    no_args_is_help=True,
)

Directory = Annotated[Path, typer.Option("--dir", help="Folder for data, logs and pid files.")]
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
    """Start the broker and the registry, and wait until they answer."""
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
    """Stop the broker and the registry. Their data are kept."""
    stopped = DevStack(directory).down()
    if output is OutputFormat.JSON:
        write_json({"stopped": stopped})
    else:
        typer.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


class Protocol(str, Enum):
    """Protocols of the workload."""

    FLAT_AVRO = "flat-avro"
    CANAL_JSON = "canal-json"


@app.command(cls=CodecCommand)
@guarded
@with_codec_options
def workload(
    *,
    given: Given,
    protocol: Annotated[Protocol, typer.Option(help="The codec to write with.")] = Protocol.FLAT_AVRO,
    events: Annotated[int, typer.Option(min=1, help="Approximate number of row events.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed writes the same changes.")] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Records per second; the default is as fast as possible.")
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of new topics.")] = 4,
    topics: Annotated[str, typer.Option(help="Rule for the topics' names.")] = "{schema}_{table}",
    brokers: Annotated[
        str | None, typer.Option(help="Kafka bootstrap servers; the default is the local stack.")
    ] = None,
    schema_registry: Annotated[
        str | None, typer.Option(help="The registry's URL, for flat-avro; the default is the local stack.")
    ] = None,
    expected: Annotated[
        Path | None,
        typer.Option(help="File for the expected final state; the default is expected.json in --dir."),
    ] = None,
    directory: Directory = DIRECTORY,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Write the changes of a sample shop database to Kafka topics.

    The changes are generated from --seed and written by tidesink's own encoders. The expected final state of
    the tables is written to a file.
    """
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
        codec=codec_options(CODECS[protocol.value].options, given),
        events=events,
        partitions=partitions,
        seed=seed,
        rate=rate,
    )
    if options.expected.exists():
        note(f"workload: replacing {options.expected} of an earlier workload. Keep it by giving --expected")
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
    *,
    events: Annotated[int, typer.Option(min=1, help="Approximate number of row events.")] = 20_000,
    protocol: Annotated[Protocol, typer.Option(help="The codec.")] = Protocol.FLAT_AVRO,
    seed: Annotated[int, typer.Option(help="The same seed makes the same changes.")] = 1,
    batch_records: Annotated[int, typer.Option(min=1, help="Most records of a batch.")] = 4_000,
    directory: Directory = DIRECTORY,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Copy from Kafka to Delta on this machine, and check every value.

    The demo starts a broker and a registry, writes a workload, runs the worker until the topics are drained,
    and checks every column of every row. The exit code is 1 if a value is wrong. The servers are stopped at
    the end.
    """
    from tidesink.dev.demo import DemoOptions, run_demo

    # Closing the terminal ends the demo like Ctrl-C: no broker may be left running.
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    started = time.monotonic()

    def say(text: str) -> None:
        note(f"{time.monotonic() - started:6.1f} s  {text}")

    options = DemoOptions(directory, protocol.value, events, seed, batch_records)
    listener = ProgressLines(lambda text: say(f"worker: {text}"), brokers="here")
    result = run_demo(options, say, listener=listener)
    if output is OutputFormat.JSON:
        write_json(demo_json(result))
    else:
        _show(result)
    if not result.right:
        raise typer.Exit(terminal.FAILED)


@app.command()
@guarded
def jars(output: Output = OutputFormat.TEXT) -> None:
    """Download the jars of Spark and of every target.

    A worker then starts without network access. The command also stores an archive of Spark's classes, which
    shortens the start of the JVM by a third.
    """
    files = all_connector_jars(progress=note)
    archive = make_class_archive(note)
    if output is OutputFormat.JSON:
        names = [jar.name for jar in files]
        write_json({"directory": str(jar_directory()), "jars": names, "classes": archive})
    else:
        typer.echo(f"{len(files)} jars in {jar_directory()}")


def _took(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:.1f} s" for name, count in seconds.items())


def demo_json(result: DemoResult) -> dict[str, Any]:
    """Return the result of the demo as JSON."""
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
    """Yield each table's check with the worker's report on the table, or None if there is no report."""
    reports = {str(report.table): report for report in result.run.tables}
    for check in result.checks:
        yield check, reports.get(check.table)


# Narrow enough for 80 characters.
_COLUMNS: Final = ("table", "rows", "columns", "last commit_ts", "lag", "batches", "every value")


def _show(result: DemoResult) -> None:
    show_table("\nThe tables in the lake", _COLUMNS, [_row(*pair) for pair in _pairs(result)])
    title = "\nRow events: read = applied + superseded + without row + dead letters"
    show_table(title, COUNTS, [counts_row(report.table, report.counters) for report in result.run.tables])
    for check in result.checks:
        for difference in check.differences:
            typer.echo(f"{check.table}: {difference}")
    for report in result.run.tables:
        if report.error:
            typer.echo(f"{report.table} is {report.state}: {report.error}")
    nulled = sum(sum(report.zero_dates.values()) for report in result.run.tables)
    if nulled:
        typer.echo(f"{nulled} invalid dates became NULL (zero-date: null)")
    typer.echo(_verdict(result))
    typer.echo(f"The lake stays in {_from_here(result.lake)}. To show the state of its tables:")
    typer.echo(f"  {shlex.join(['tidesink', 'status', str(_from_here(result.config))])}")


def _row(check: TableCheck, report: TableReport | None) -> tuple[Any, ...]:
    verdict = "right" if check.right else f"WRONG: {len(check.differences)} differences below"
    run = (None, None, 0) if report is None else (report.commit_ts, report.lag, report.batches)
    return check.table, check.rows, check.columns, *run, verdict


def _verdict(result: DemoResult) -> str:
    took = _took(result.seconds)
    if not result.right:
        return f"\nNOT right: see above. ({took})"
    values = sum(check.rows * check.columns for check in result.checks)
    rows = sum(check.rows for check in result.checks)
    return (
        f"\nRight: {values:,} values in {rows:,} rows of {len(result.checks)} tables are equal to the source "
        f"after {result.workload.events:,} row events.\n({took})"
    )


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
