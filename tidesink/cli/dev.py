"""``tidesink dev``: a broker and a registry on this machine, and something to write to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tidesink.cli import exits
from tidesink.cli.codec_options import CodecCommand, Given, codec_options, with_codec_options
from tidesink.cli.failures import guarded
from tidesink.cli.local_stack import running_stack
from tidesink.cli.output import Output, OutputFormat, note, show_table, write_json
from tidesink.dev.stack import CONTROLLER_PORT, DIRECTORY, KAFKA_PORT, REGISTRY_PORT, DevStack

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
    """Start what does not run yet, and wait until all of it answers."""
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
    """Stop what runs; the data stay."""
    stopped = DevStack(directory).down()
    if output is OutputFormat.JSON:
        write_json({"stopped": stopped})
    else:
        typer.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


@app.command()
@guarded
def status(
    directory: Directory = DIRECTORY,
    kafka_port: KafkaPort = KAFKA_PORT,
    controller_port: ControllerPort = CONTROLLER_PORT,
    registry_port: RegistryPort = REGISTRY_PORT,
    output: Output = OutputFormat.TEXT,
) -> None:
    """What runs. Exit code 3 where something does not."""
    stack = DevStack(
        directory, kafka_port=kafka_port, controller_port=controller_port, registry_port=registry_port
    )
    found = stack.status()
    if output is OutputFormat.JSON:
        write_json({"services": [service._asdict() for service in found]})
    else:
        rows = [(entry.name, entry.state, entry.pid, entry.port, entry.detail) for entry in found]
        show_table(None, ("service", "state", "pid", "port", "detail"), rows, folded=("detail",))
    if any(service.state != "running" for service in found):
        raise typer.Exit(exits.UNWELL)


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
    events: Annotated[int, typer.Option(min=1, help="Row events to write, about.")] = 20_000,
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
    """Write a seeded shop workload through tidesink's own encoders, and the state it must end in."""
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
    try:
        report = write_workload(options, _counting(events))
    finally:
        if registry is not None:
            registry.close()
    if output is OutputFormat.JSON:
        write_json({**dataclasses.asdict(report), "expected": str(report.expected)})
        return
    rows = sorted(report.by_topic.items())
    show_table(None, ("topic", "records"), rows)
    typer.echo(
        f"{report.events} row events, {report.ddl} schema changes, {report.resent} records sent again; "
        f"expected final state: {report.expected}"
    )


def _counting(events: int) -> Callable[[int], None]:
    """Progress on stderr, at most one line for each tenth of the work."""
    told = 0

    def tell(sent: int) -> None:
        nonlocal told
        if sent * 10 // events > told:
            told = sent * 10 // events
            note(f"{sent} of about {events} row events sent")

    return tell
