"""``tidesink registry list | show | level``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tidesink.cli import registry_options as options
from tidesink.cli.output import Output, OutputFormat, show_table, warn, write_json
from tidesink.errors import ConfigError
from tidesink.schema_registry import SchemaRegistry
from tidesink.schema_registry.base import RegisteredSchema, require_level
from tidesink.schema_registry.compatibility import schema_fields
from tidesink.schema_registry.copy import CUT_LIST, SubjectEntry, chosen_subjects, read_catalog

_ID = "id:"


def list_subjects(
    *,
    subjects: options.Patterns = None,
    schema_registry: options.Url = None,
    registry_file: options.SettingsFile = None,
    config: options.ConfigFile = None,
    schemas: options.Export = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the subjects with their versions, ids and level."""
    with options.opened(options.Place(schema_registry, registry_file, config, schemas)) as found:
        names, cut = chosen_subjects(found.registry, subjects or ())
        level = found.registry.compatibility_level()
        entries = list(read_catalog(found.registry, names))
    if output is OutputFormat.JSON:
        listed = [_entry_json(entry) for entry in entries]
        write_json({"registry": found.name, "level": level, "subjects": listed, "cut": cut})
    elif entries:
        columns = ("subject", "versions", "ids", "level")
        show_table(None, columns, map(_entry_row, entries), folded=("ids",))
        typer.echo(f"{len(entries)} subjects; the registry's own level is {level}")
    else:
        typer.echo(f"the registry holds no subjects; its level is {level}")
    for entry in entries:
        if entry.problem:
            warn(f"{entry.subject}: {entry.problem}")
    if cut:
        warn(CUT_LIST)


def _entry_json(entry: SubjectEntry) -> dict[str, Any]:
    return {
        "subject": entry.subject,
        "level": entry.level,
        "versions": [{"version": item.version, "id": item.id} for item in entry.versions],
        "problem": entry.problem or None,
    }


def _entry_row(entry: SubjectEntry) -> tuple[str, str, str, str]:
    versions = [item.version or 0 for item in entry.versions]
    ids = ", ".join(str(item.id) for item in entry.versions)
    return entry.subject, _ranges(versions), ids, entry.level


def _ranges(numbers: list[int]) -> str:
    """``1-3, 5`` for 1, 2, 3 and 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def show(
    *,
    subject: Annotated[str, typer.Argument(help="A subject; or id:N for the schema of an id.")],
    version: Annotated[str, typer.Argument(help="A version's number, or latest.")] = "latest",
    raw: Annotated[bool, typer.Option("--raw", help="Print the schema's text as registered, alone.")] = False,
    schema_registry: options.Url = None,
    registry_file: options.SettingsFile = None,
    config: options.ConfigFile = None,
    schemas: options.Export = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show a schema field by field: of a subject's version, or of an id."""
    with options.opened(options.Place(schema_registry, registry_file, config, schemas)) as found:
        item = schema_at(found.registry, subject, version)
        level = found.registry.compatibility_level(item.subject) if item.subject else None
        places = found.registry.places(item.id)
    if raw:
        typer.echo(item.schema_text)
    elif output is OutputFormat.JSON:
        write_json(_shown_json(item, level, places))
    else:
        _show(item, level, places)


def schema_at(registry: SchemaRegistry, subject: str, version: str) -> RegisteredSchema:
    """The schema that ``SUBJECT VERSION`` or ``id:N`` names.

    Raises:
        ConfigError: the version is no number and not latest.
        SchemaNotFoundError: there is none.
    """
    if subject.startswith(_ID):
        schema_id = _number(subject[len(_ID) :], "an id is a number: id:17")
        return RegisteredSchema(schema_id, registry.schema_by_id(schema_id))
    if version.startswith(_ID):
        return schema_at(registry, version, "latest")
    if version == "latest":
        return registry.latest(subject)
    return registry.schema_by_version(
        subject, _number(version, f"version {version!r}: give a number, or latest")
    )


def _number(text: str, problem: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(problem)
    return int(text)


def _shown_json(item: RegisteredSchema, level: str | None, places: list[tuple[str, int]]) -> dict[str, Any]:
    fields = [
        {"field": f.path, "type": f.type, "sql": f.source_type or None, "default": _parsed(f.default)}
        for f in schema_fields(item.schema_text)
    ]
    return {
        "subject": item.subject,
        "version": item.version,
        "id": item.id,
        "level": level,
        "places": [{"subject": subject, "version": version} for subject, version in places],
        "schema": json.loads(item.schema_text),
        "schema_text": item.schema_text,
        "fields": fields,
    }


def _parsed(default: str | None) -> dict[str, Any] | None:
    """A default as an object, or None: a default of null is not the same as none."""
    return None if default is None else {"value": json.loads(default)}


def _show(item: RegisteredSchema, level: str | None, places: list[tuple[str, int]]) -> None:
    head = f"{item.subject} version {item.version}, id {item.id}" if item.subject else f"id {item.id}"
    typer.echo(head + (f", level {level}" if level else ""))
    others = [f"{s} version {v}" for s, v in places if (s, v) != (item.subject, item.version)]
    if others:
        typer.echo(f"  {'also' if item.subject else 'held'} by {', '.join(others)}")
    node = json.loads(item.schema_text)
    if isinstance(node, dict) and "name" in node:
        typer.echo(f"  {node['type']} {'.'.join(filter(None, (node.get('namespace'), node['name'])))}")
    fields = schema_fields(item.schema_text)
    if not fields:
        typer.echo(f"  {item.schema_text}")
        return
    rows = [(f.path, f.typed, "" if f.default is None else f.default) for f in fields]
    show_table(None, ("field", "type", "default"), rows, folded=("type", "default"))


def level(
    *,
    subject: Annotated[
        str | None, typer.Argument(help="A subject; the registry's own level without it.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--set", help="NONE, BACKWARD, FORWARD, FULL, or one with _TRANSITIVE.")
    ] = None,
    schema_registry: options.Url = None,
    registry_file: options.SettingsFile = None,
    config: options.ConfigFile = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show or set the compatibility level of a subject, or the registry's own."""
    wanted = None if to is None else require_level(to.upper())
    with options.opened(options.Place(schema_registry, registry_file, config)) as found:
        before = found.registry.compatibility_level(subject)
        if wanted is not None and wanted != before:
            found.registry.set_compatibility_level(wanted, subject=subject)
        now = found.registry.compatibility_level(subject)
    if output is OutputFormat.JSON:
        write_json({"subject": subject, "level": now, "before": before})
        return
    name = subject or "the registry"
    typer.echo(f"{name}: {now}" if wanted is None else f"{name}: {now} (was {before})")
