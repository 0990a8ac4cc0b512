"""``tidesink decode``: the events in Kafka records, for people or as JSON Lines.

For people an event is one head line, then a line per column, with changes marked. What the bytes say about
the producer's options is compared with what was declared: the bytes win.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import orjson
import typer
from rich.markup import escape, render

import tidesink.codecs
from tidesink.cli import sources, terminal
from tidesink.cli.codec_options import Given, with_codec_options
from tidesink.cli.json_lines import error_json, event_json
from tidesink.cli.sources import Setting
from tidesink.cli.status import commit_time
from tidesink.cli.terminal import Output, OutputFormat, console, warn
from tidesink.codecs.base import Codec
from tidesink.codecs.canal_json.envelope import CanalJsonSchema
from tidesink.codecs.compression import compression_of
from tidesink.errors import ConfigError, DecodeError, RegistryError, SchemaNotFoundError
from tidesink.events import ChangeEvent, Event, Message


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

    The exit code is 1 if a record cannot be decoded. Its line has the reason and the bytes.
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
    logging.getLogger(tidesink.codecs.__name__).addHandler(_REPORTED)
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
        raise typer.Exit(terminal.FAILED)


def _strict(found: sources.Setting) -> CanalJsonSchema:
    if found.protocol != "canal-json":
        raise ConfigError(
            f"--strict has no effect with {found.protocol}: its records are always read by their own schema; "
            "remove it"
        )
    return CanalJsonSchema(found.options)


class _Reported(logging.Handler):
    """What a codec warns of while it decodes, such as a wrong checksum, on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one warning."""
        warn(record.getMessage())


_REPORTED = _Reported()


def decoded_lines(
    codec: Codec, message: Message, observed: Observed, *, checked: CanalJsonSchema | None = None
) -> Iterator[dict[str, Any]]:
    """The lines of one record: its events, or why it has none; ``checked`` checks it first.

    Raises:
        RegistryError: the registry does not answer, or refuses access, so that no record can be checked.
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
    """What writes a line; ``at_once``: each is flushed, since someone waits for it."""
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


_COLOURS = {
    "insert": "green",
    "upsert": "green",
    "update": "yellow",
    "delete": "red",
    "truncate": "red",
    "error": "bold red",
    "ddl": "cyan",
    "watermark": "dim",
    "message": "dim",
}
_LONGEST = 200


def human_lines(line: dict[str, Any]) -> Iterator[str]:
    """One decoded line, in rich's markup."""
    yield _head(line)
    if line["type"] == "error":
        yield f"  {escape(line['error'])}: {escape(line['reason'])}"
        yield f"  key {_size(line['key_b64'])}, value {_size(line['value_b64'])} (bytes: -o json)"
    elif line["type"] == "ddl":
        yield f"  {escape(line['query'])}"
    elif line["type"] == "message":
        yield f"  {escape(line['kind'])}" + (f" {_shown(line['prefix'])}" if line.get("prefix") else "")
        if line.get("content") is not None:
            yield f"  {_shown(line['content'])}"
    else:
        yield from _columns(line)
    for name, value in (line.get("extension") or {}).items():
        yield f"  [dim]{escape(name)} = {_shown(value)}[/dim]"


def _head(line: dict[str, Any]) -> str:
    kind, position = line["type"], line["position"]
    table = line.get("table")
    name = " " + ".".join(part for part in table.values() if part) if table else ""
    place = f"{position['topic']}[{position['partition']}]@{position['offset']}"
    moment = commit_time(line.get("commit_ts"))
    when = f"  {moment} UTC (commit_ts {line['commit_ts']})" if moment else ""
    colour = _COLOURS.get(kind, "default")
    return f"[{colour}]{kind}[/{colour}]{escape(name)}  [dim]{escape(place)}{when}[/dim]"


def _columns(line: dict[str, Any]) -> Iterator[str]:
    before, after, key = (line.get(part) or {} for part in ("before", "after", "key"))
    names = [*after, *(name for name in before if name not in after)]
    width = max((len(name) for name in names), default=0)
    for name in names:
        label = escape(name.ljust(width))
        label = f"[bold]{label}[/bold]" if name in key else label
        yield f"  {label}  {_change(name, before, after)}"


def _change(name: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    if name not in after:
        return _shown(before[name])
    if name in before and before[name] != after[name]:
        return f"{_shown(before[name])} -> {_shown(after[name])}"
    return _shown(after[name])


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"base64 {value['base64']}" if isinstance(value, dict) and "base64" in value else str(value)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
    return escape("".join(char if char.isprintable() else repr(char)[1:-1] for char in text))


def _size(text: str | None) -> str:
    return "null" if text is None else f"{len(text) * 3 // 4 - text[-2:].count('=')} bytes"


def record_line(message: Message) -> str:
    """A record in one plain line: where it goes, and its bytes in hex."""
    parts = [f"{message.topic}[{message.partition}]@{message.offset}"]
    for name, data in (("key", message.key), ("value", message.value)):
        parts.append(f"{name} {'null' if data is None else data.hex()}")
    return "  ".join(parts)


# How TiCDC writes a type in an Avro field, and the option that says so (tiflow c7b2588).
_MODES = {
    ("DECIMAL", "bytes"): ("avro_decimal_handling_mode", "precise"),
    ("DECIMAL", "string"): ("avro_decimal_handling_mode", "string"),
    ("BIGINT UNSIGNED", "long"): ("avro_bigint_unsigned_handling_mode", "long"),
    ("BIGINT UNSIGNED", "string"): ("avro_bigint_unsigned_handling_mode", "string"),
}
_MARKS = {"enable_tidb_extension": "_tidb_commit_ts", "avro_include_before_value": "_ticdc_before"}


class Observed:
    """Collects what was seen of each declared option; a difference is shown once."""

    def __init__(self, setting: Setting) -> None:
        self._declared = setting.declared
        self._is_debezium = setting.protocol.startswith("debezium")
        self._registry = setting.registry
        self._schemas: set[int] = set()
        self._seen: dict[str, set[Any]] = {}

    def see(self, event: Event) -> None:
        """Take note of one event."""
        if not self._declared or not isinstance(event, ChangeEvent) or self._is_debezium:
            return
        if event.schema_id is None:
            self._note("enable_tidb_extension", event.commit_ts is not None)
        elif event.schema_id.value is not None and event.schema_id.value not in self._schemas:
            self._schemas.add(event.schema_id.value)
            self._see_schema(event.schema_id.value)

    def _see_schema(self, schema_id: int) -> None:
        if self._registry is None:
            return
        try:
            record = json.loads(self._registry.schema_by_id(schema_id))
        except (RegistryError, ValueError):
            return  # decoding has shown it already
        fields = {field["name"]: field for field in record.get("fields", ())}
        for option, mark in _MARKS.items():
            self._note(option, mark in fields)
        for field in fields.values():
            mode = _MODES.get(_spelling(field))
            if mode is not None:
                self._note(*mode)

    def _note(self, option: str, value: Any) -> None:
        self._seen.setdefault(option, set()).add(value)

    def warnings(self) -> Iterator[str]:
        """One text for each declared option that the bytes contradict."""
        for option, declared in self._declared.items():
            others = self._seen.get(option, set()) - {declared}
            if others:
                name = option.replace("_", "-")
                found = _word(others.pop())
                yield f"{name} is declared as {_word(declared)}, the bytes say {found}: the bytes win"


def _spelling(field: dict[str, Any]) -> tuple[str, str]:
    """``tidb_type`` and Avro type of a field, out of its union where it has one."""
    branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
    for branch in branches:
        if isinstance(branch, dict) and "connect.parameters" in branch:
            return str(branch["connect.parameters"].get("tidb_type")), str(branch.get("type"))
    return "", ""


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
