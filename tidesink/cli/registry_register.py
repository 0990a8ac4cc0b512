"""``tidesink registry diff | register``: what changes between two schemas, and putting a schema there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidesink.cli import exits
from tidesink.cli import registry_options as options
from tidesink.cli.codec_options import Given, with_codec_options
from tidesink.cli.output import Output, OutputFormat, write_json
from tidesink.cli.registry_check import (
    Database,
    Definition,
    Request,
    Rule,
    candidates,
    judged,
    report_json,
    show_left_out,
)
from tidesink.cli.registry_read import schema_at
from tidesink.cli.registry_tables import Candidate, Candidates
from tidesink.cli.registry_verdicts import show_changes, show_verdicts
from tidesink.errors import ConfigError, SchemaNotFoundError
from tidesink.schema_registry import SchemaRegistry
from tidesink.schema_registry.base import CompatibilityLevel, RegisteredSchema
from tidesink.schema_registry.compatibility import Verdict, compared, incompatibilities, parse_avro

_PAIRWISE: tuple[CompatibilityLevel, ...] = ("BACKWARD", "FORWARD", "FULL")


@with_codec_options
def diff(
    *,
    given: Given,
    subject: Annotated[str, typer.Argument(help="A subject.")],
    old: Annotated[
        str | None, typer.Argument(help="A version, latest, or id:N; the one before the newest without it.")
    ] = None,
    new: Annotated[str | None, typer.Argument(help="The same; the newest without it.")] = None,
    table_definition: Definition = None,
    schema: Annotated[
        Path | None, typer.Option("--schema", help="An Avro schema file, in place of a new version.")
    ] = None,
    database: Database = None,
    topic_rule: Rule = None,
    schema_registry: options.Url = None,
    registry_file: options.SettingsFile = None,
    config: options.ConfigFile = None,
    schemas: options.Export = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Compare two versions of a subject, or one with what a table definition makes, field by field."""
    with options.opened(options.Place(schema_registry, registry_file, config, schemas)) as found:
        if table_definition is None and schema is None:
            before, after = _two_versions(found.registry, subject, old, new)
        else:
            if new is not None:
                raise ConfigError("a new version and a definition are given: keep one")
            before = schema_at(found.registry, subject, old or "latest")
            request = Request(given, table_definition, database, topic_rule)
            after = _made(_files(request, schema, subject, found), subject)
    _show_diff(before, after, output)


def _two_versions(
    registry: SchemaRegistry, subject: str, old: str | None, new: str | None
) -> tuple[RegisteredSchema, RegisteredSchema]:
    if old is None:
        versions = registry.versions(subject)
        if len(versions) < 2:
            raise SchemaNotFoundError("there is one version, and nothing to compare it with", subject=subject)
        old = str(versions[-2])
    return schema_at(registry, subject, old), schema_at(registry, subject, new or "latest")


def _made(made: Candidates, subject: str) -> RegisteredSchema:
    for item in made.found:
        if item.subject == subject:
            return RegisteredSchema(0, item.schema_text, subject)
    names = ", ".join(item.subject for item in made.found)
    raise ConfigError(f"the definition makes no schema for {subject}: it makes those of {names or 'nothing'}")


def _show_diff(before: RegisteredSchema, after: RegisteredSchema, output: OutputFormat) -> None:
    found = incompatibilities("FULL", after.schema_text, [before.schema_text])
    fields = compared(before.schema_text, after.schema_text, found)
    takes = {
        level: not incompatibilities(level, after.schema_text, [before.schema_text]) for level in _PAIRWISE
    }
    equal = all(change.change == "same" for change in fields)
    if output is OutputFormat.JSON:
        sides = {"old": _side(before), "new": _side(after)}
        shown = [change.as_json() for change in fields]
        write_json({**sides, "equal": equal, "compatible": takes, "fields": shown})
        return
    typer.echo(f"{_name(before)} -> {_name(after)}" + (": the same fields" if equal else ""))
    show_changes(fields, last="of note")
    words = ", ".join(f"{level} {'yes' if takes[level] else 'no'}" for level in _PAIRWISE)
    typer.echo(f"the new schema may follow the old one: {words}")


def _side(item: RegisteredSchema) -> dict[str, Any]:
    return {"subject": item.subject, "version": item.version, "id": item.id or None}


def _name(item: RegisteredSchema) -> str:
    if item.version is not None:
        return f"{item.subject} version {item.version} (id {item.id})"
    return f"id {item.id}" if item.id else "the definition"


@with_codec_options
def register(
    *,
    given: Given,
    subject: Annotated[str | None, typer.Argument(help="The subject, with --schema.")] = None,
    schema: Annotated[Path | None, typer.Option("--schema", help="A file of one Avro schema.")] = None,
    table_definition: Definition = None,
    database: Database = None,
    topic_rule: Rule = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    schema_registry: options.Url = None,
    registry_file: options.SettingsFile = None,
    config: options.ConfigFile = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Register a schema file, or what TiCDC would register for the tables of a definition.

    The verdict is shown first. Nothing is registered where one schema would be refused: exit code 1.
    """
    if output is OutputFormat.JSON and not yes:
        raise ConfigError("-o json cannot ask: give --yes, or look with tidesink registry check first")
    request = Request(given, table_definition, database, topic_rule)
    with options.opened(options.Place(schema_registry, registry_file, config)) as found:
        made = _files(request, schema, subject, found)
        verdicts = judged(found.registry, made, level=None, live=found.live)
        refused = bool(made.failed) or not verdicts or not all(item.taken for item in verdicts)
        if output is OutputFormat.TEXT:
            show_verdicts(verdicts, live=found.live)
            show_left_out(made)
        if not refused:
            _confirm(verdicts, yes)
        done = [] if refused else [_registered(found.registry, item) for item in verdicts]
    _show_registered(done, report_json(verdicts, made), output)
    if refused:
        raise typer.Exit(exits.FAILED)


def _files(request: Request, schema: Path | None, subject: str | None, found: options.Opened) -> Candidates:
    if schema is None:
        return candidates(request, found)
    if request.definition is not None:
        raise ConfigError("--schema and --table-definition exclude each other: keep one")
    if subject is None:
        raise ConfigError("under which subject? tidesink registry register SUBJECT --schema FILE")
    try:
        text = schema.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--schema {schema} cannot be read: {reason}") from error
    parse_avro(text)
    return Candidates([Candidate(subject, text, None)])


def _confirm(verdicts: list[Verdict], yes: bool) -> None:
    new = sum(item.held is None for item in verdicts)
    if yes or new == 0:
        return
    if not typer.confirm(f"register {new} schema{'' if new == 1 else 's'}?", err=True):
        typer.echo("nothing was registered", err=True)
        raise typer.Exit(exits.FAILED)


def _registered(registry: SchemaRegistry, item: Verdict) -> dict[str, Any]:
    schema_id = registry.register(item.subject, item.schema_text)
    held = registry.lookup(item.subject, item.schema_text)
    version = held.version if held else None
    return {"subject": item.subject, "id": schema_id, "version": version, "new": item.held is None}


def _show_registered(done: list[dict[str, Any]], report: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        write_json({"registered": done, "check": report})
        return
    for item in done:
        what = "registered" if item["new"] else "was there"
        typer.echo(f"{item['subject']}: {what} as version {item['version']}, id {item['id']}")
    if not done:
        typer.echo("nothing was registered")
