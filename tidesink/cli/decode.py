"""``tidesink decode``: the events in Kafka records, for people or as JSON Lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import orjson
import typer
from rich.markup import render

import tidesink.codecs
from tidesink.cli import exits, sources
from tidesink.cli.codec_options import Given, with_codec_options
from tidesink.cli.event_json import error_json, event_json
from tidesink.cli.human import human_lines
from tidesink.cli.observed import Observed
from tidesink.cli.output import Output, OutputFormat, console, warn
from tidesink.codecs.base import Codec
from tidesink.codecs.canal_json.codec import CanalJsonSchema
from tidesink.codecs.compression import compression_of
from tidesink.errors import ConfigError, DecodeError, SchemaNotFoundError
from tidesink.events import Message


@with_codec_options
def decode(
    *,
    given: Given,
    file: sources.Input = None,
    topic: Annotated[str | None, typer.Option(help="A topic to read, in place of --input.")] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="earliest (the default), latest, an offset, or @ms since 1970; with --topic."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--max", help="Stop after this many records.")] = None,
    brokers: Annotated[str | None, typer.Option(help="Kafka bootstrap servers, for --topic.")] = None,
    protocol: sources.ProtocolName = None,
    schemas: sources.Schemas = None,
    schema_registry: sources.RegistryUrl = None,
    registry_file: sources.RegistryFile = None,
    glue_region: sources.GlueRegion = None,
    table_definition: sources.Definitions = None,
    config: sources.ConfigFile = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Check each canal-json message against the published JSON Schema too."),
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the events in Kafka records, from a topic, a capture file or stdin.

    Exit code 1 where some record cannot be decoded: its line has the reason and the bytes.
    """
    found = sources.setting(
        protocol=protocol,
        given=given,
        schemas=schemas,
        schema_registry=schema_registry,
        registry_file=registry_file,
        definitions=table_definition,
        config=config,
        glue_region=glue_region,
    )
    codec = found.open_codec()
    checked = _strict(found) if strict else None
    messages = sources.records(file=file, topic=topic, start=start, limit=limit, brokers=brokers, found=found)
    logging.getLogger(tidesink.codecs.__name__).addHandler(_TOLD)
    failed = 0
    write = _writer(output, at_once=start == "latest" or sys.stdout.isatty())
    observed = Observed(found)
    for message in messages:
        for line in decoded_lines(codec, message, observed, checked=checked):
            failed += line["type"] == "error"
            write(line)
    sys.stdout.flush()
    for text in observed.warnings():
        warn(text)
    if failed:
        raise typer.Exit(exits.FAILED)


def _strict(found: sources.Setting) -> CanalJsonSchema:
    if found.protocol != "canal-json":
        raise ConfigError(
            f"--strict has no effect with {found.protocol}: its records are always read by their own schema; "
            "remove it"
        )
    return CanalJsonSchema(found.options)


class _Told(logging.Handler):
    """What a codec warns of while it decodes, such as a wrong checksum, on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Tell one warning."""
        warn(record.getMessage())


_TOLD = _Told()


def decoded_lines(
    codec: Codec, message: Message, observed: Observed, *, checked: CanalJsonSchema | None = None
) -> Iterator[dict[str, Any]]:
    """The lines of one record: its events, or why it has none; ``checked`` is asked first.

    Raises:
        RegistryError: the registry does not answer, or refuses us, so that no record can be judged.
    """
    try:
        if checked is not None:
            checked.check(message)
        events = codec.decode(message)
        lines = [event_json(event) for event in events]
    except (DecodeError, SchemaNotFoundError) as error:
        yield error_json(error, message)
        return
    for event in events:
        observed.see(event)
    yield from _with_compression(lines, message.value) if codec.name == "canal-json" else lines


def _with_compression(lines: list[dict[str, Any]], value: bytes | None) -> list[dict[str, Any]]:
    """Lines that say how their record was compressed, so that ``encode`` writes it so again."""
    kind = compression_of(value or b"")
    if kind != "none":
        for line in lines:
            line["extension"] = {**line.get("extension", {}), "compression": kind}
    return lines


def _writer(output: OutputFormat, *, at_once: bool) -> Callable[[dict[str, Any]], None]:
    """What writes a line; ``at_once``: someone waits for each."""
    if output is OutputFormat.TEXT:
        return _text_writer()
    stream = sys.stdout.buffer

    def write(line: dict[str, Any]) -> None:
        stream.write(orjson.dumps(line) + b"\n")
        if at_once:
            stream.flush()

    return write


def _text_writer() -> Callable[[dict[str, Any]], None]:
    screen = console()

    def show(line: dict[str, Any]) -> None:
        for text in human_lines(line):
            screen.print(text)

    def write(line: dict[str, Any]) -> None:
        for text in human_lines(line):
            sys.stdout.write(render(text).plain + "\n")

    return show if screen.is_terminal else write
