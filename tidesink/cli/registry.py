"""``tidesink registry``: list, show, level, diff, register, export, import."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import orjson
import typer

from tidesink.cli import registry_check, sources, terminal
from tidesink.cli.codec_options import CodecCommand, Given, with_codec_options
from tidesink.cli.registry_check import (
    Candidate,
    Candidates,
    Database,
    Definition,
    Request,
    Rule,
    candidates,
    compatibility_of,
    report_json,
    show_changes,
    show_omitted,
    show_verdicts,
)
from tidesink.cli.terminal import Output, OutputFormat, guarded, note, show_table, warn, write_json
from tidesink.config.fields import read_text
from tidesink.errors import ConfigError, RegistryError, SchemaNotFoundError
from tidesink.schema_registry import SchemaRegistry
from tidesink.schema_registry.base import CompatibilityLevel, RegisteredSchema, require_level
from tidesink.schema_registry.compatibility import (
    Verdict,
    compared,
    incompatibilities,
    parse_avro,
    schema_fields,
)
from tidesink.schema_registry.copy import (
    CUT_LIST,
    Step,
    SubjectEntry,
    chosen_subjects,
    export_lines,
    import_steps,
    read_catalog,
    run_import,
)

_ID = "id:"


@sources.with_registry
def list_subjects(
    *,
    place: sources.Place,
    subjects: sources.Patterns = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the subjects with their versions, ids and level."""
    with sources.opened(place) as found:
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


@sources.with_registry
def show(
    *,
    place: sources.Place,
    subject: Annotated[str, typer.Argument(help="A subject; or id:N for the schema of an id.")],
    version: Annotated[str, typer.Argument(help="A version's number, or latest.")] = "latest",
    raw: Annotated[bool, typer.Option("--raw", help="Print the schema's text as registered, alone.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show a schema field by field: of a subject's version, or of an id."""
    with sources.opened(place) as found:
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


@sources.with_server
def level(
    *,
    place: sources.Place,
    subject: Annotated[
        str | None, typer.Argument(help="A subject; the registry's own level without it.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--set", help="NONE, BACKWARD, FORWARD, FULL, or one with _TRANSITIVE.")
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show or set the compatibility level of a subject, or the registry's own."""
    wanted = None if to is None else require_level(to.upper())
    with sources.opened(place) as found:
        before = found.registry.compatibility_level(subject)
        if wanted is not None and wanted != before:
            found.registry.set_compatibility_level(wanted, subject=subject)
        now = found.registry.compatibility_level(subject)
    if output is OutputFormat.JSON:
        write_json({"subject": subject, "level": now, "before": before})
        return
    name = subject or "the registry"
    typer.echo(f"{name}: {now}" if wanted is None else f"{name}: {now} (was {before})")


_LINES = "schemas.jsonl"


@sources.with_server
def export(
    *,
    place: sources.Place,
    file: Annotated[
        str, typer.Argument(help="A file of JSON Lines, a folder (ends in /), or - for stdout.")
    ] = "-",
    subjects: Annotated[
        list[str] | None, typer.Option("--subject", help="A subject or a pattern; again for more.")
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Write subjects with their versions, ids and levels to a file: the same bytes each time.

    `tidesink decode --schemas` reads such a file. A folder also gets a file per version.
    """
    with sources.opened(place) as found:
        names, cut = chosen_subjects(found.registry, subjects or ())
        if cut:
            raise RegistryError(f"the export would be incomplete: {CUT_LIST}")
        entries = list(read_catalog(found.registry, names))
    for entry in entries:
        if entry.problem:
            warn(f"{entry.subject} is left out: {entry.problem}")
    count = _write(file, entries)
    if output is OutputFormat.JSON and file != "-":
        write_json({"file": file, "subjects": len(entries), "schemas": count})
    else:
        note(f"{len(entries)} subjects, {count} versions" + ("" if file == "-" else f" to {file}"))
    if any(entry.problem for entry in entries):
        raise typer.Exit(terminal.FAILED)


def _write(file: str, entries: Sequence[SubjectEntry]) -> int:
    lines = list(export_lines(entries))
    text = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    if file == "-":
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return len(lines)
    path = Path(file)
    try:
        if file.endswith("/") or path.is_dir():
            _write_folder(path, lines)
            path = path / _LINES
        _replace(path, text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    return len(lines)


def _write_folder(folder: Path, lines: Iterable[dict[str, Any]]) -> None:
    for line in lines:
        # A subject's name may hold what no file's may.
        place = folder / quote(str(line["subject"]), safe="").replace(".", "%2E")
        place.mkdir(parents=True, exist_ok=True)
        shown = json.dumps(json.loads(line["schema"]), indent=2, ensure_ascii=False)
        _replace(place / f"{line['version']:04d}.avsc", f"{shown}\n".encode())


def _replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)  # noqa: PTH105  (what is replaced on every system)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


@sources.with_server
def import_file(
    *,
    place: sources.Place,
    file: Annotated[Path, typer.Argument(help="A file that `tidesink registry export` wrote.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    new_ids: Annotated[bool, typer.Option("--new-ids", help="Do not ask for the ids of the file.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Copy the subjects of a file into a registry: versions in order, with the same ids if the registry can.

    Versions that are there already stay, so that a second run does nothing. Levels are set last.
    """
    entries = sources.read_export(file)
    with sources.opened(place) as found:
        steps: Sequence[Step] = import_steps(found.registry, entries)
        if not dry_run:
            steps = list(run_import(found.registry, entries, steps, new_ids=new_ids))
    if output is OutputFormat.JSON:
        write_json(_import_json(steps, dry_run))
    else:
        _show_import(steps, dry_run)
    differing = [step for step in steps if step.id_differs]
    if differing:
        warn(
            f"{len(differing)} schemas have other ids than in {file.name}: records written under the old ids "
            "cannot be read with this registry; keep the file for them (tidesink decode --schemas)"
        )


def _import_json(steps: Sequence[Step], dry_run: bool) -> dict[str, Any]:
    counts = {what: sum(step.what == what for step in steps) for what in ("register", "kept", "set level")}
    return {
        "dry_run": dry_run,
        "registered": counts["register"],
        "kept": counts["kept"],
        "levels_set": counts["set level"],
        "ids_differ": sum(step.id_differs for step in steps),
        "steps": [{**step._asdict(), "id_differs": step.id_differs} for step in steps],
    }


def _show_import(steps: Sequence[Step], dry_run: bool) -> None:
    todo = [step for step in steps if step.what != "kept" or step.id_differs]
    rows = [(step.subject, step.version, step.what, step.level or step.wanted_id, step.id) for step in todo]
    if rows:
        show_table(None, ("subject", "version", "step", "wanted", "id"), rows)
    kept = sum(step.what == "kept" for step in steps)
    verb = "would be done" if dry_run else "done"
    typer.echo(
        f"{sum(step.what != 'kept' for step in steps)} steps {verb}, {kept} versions were there already"
    )


_PAIRWISE: tuple[CompatibilityLevel, ...] = ("BACKWARD", "FORWARD", "FULL")


@with_codec_options
@sources.with_registry
def diff(
    *,
    place: sources.Place,
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
    output: Output = OutputFormat.TEXT,
) -> None:
    """Compare two versions of a subject, or one with a table definition's schema, field by field."""
    with sources.opened(place) as found:
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
            raise SchemaNotFoundError("there is one version: nothing to compare it with", subject=subject)
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
    typer.echo(f"{_schema_name(before)} -> {_schema_name(after)}" + (": the same fields" if equal else ""))
    show_changes(fields, last="of note")
    words = ", ".join(f"{level} {'yes' if takes[level] else 'no'}" for level in _PAIRWISE)
    typer.echo(f"the new schema may follow the old one: {words}")


def _side(item: RegisteredSchema) -> dict[str, Any]:
    return {"subject": item.subject, "version": item.version, "id": item.id or None}


def _schema_name(item: RegisteredSchema) -> str:
    if item.version is not None:
        return f"{item.subject} version {item.version} (id {item.id})"
    return f"id {item.id}" if item.id else "the definition"


@with_codec_options
@sources.with_server
def register(
    *,
    place: sources.Place,
    given: Given,
    subject: Annotated[str | None, typer.Argument(help="The subject, with --schema.")] = None,
    schema: Annotated[Path | None, typer.Option("--schema", help="A file of one Avro schema.")] = None,
    table_definition: Definition = None,
    database: Database = None,
    topic_rule: Rule = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Register a schema file, or what TiCDC would register for the tables of a definition.

    The verdict is shown first. If one schema would be refused, nothing is registered and the exit code is 1.
    """
    if output is OutputFormat.JSON and not yes:
        raise ConfigError("-o json cannot ask: give --yes, or run tidesink registry check first")
    request = Request(given, table_definition, database, topic_rule)
    with sources.opened(place) as found:
        made = _files(request, schema, subject, found)
        verdicts = compatibility_of(found.registry, made, level=None, live=found.live)
        refused = bool(made.failed) or not verdicts or not all(item.taken for item in verdicts)
        if output is OutputFormat.TEXT:
            show_verdicts(verdicts, live=found.live)
            show_omitted(made)
        if not refused:
            _confirm(verdicts, yes)
        done = [] if refused else [_registered(found.registry, item) for item in verdicts]
    _show_registered(done, report_json(verdicts, made), output)
    if refused:
        raise typer.Exit(terminal.FAILED)


def _files(request: Request, schema: Path | None, subject: str | None, found: sources.Opened) -> Candidates:
    if schema is None:
        return candidates(request, found)
    if request.definition is not None:
        raise ConfigError("--schema and --table-definition exclude each other: keep one")
    if subject is None:
        raise ConfigError("under which subject? tidesink registry register SUBJECT --schema FILE")
    text = read_text(schema, f"--schema {schema}").strip()
    parse_avro(text)
    return Candidates([Candidate(subject, text, None)])


def _confirm(verdicts: list[Verdict], yes: bool) -> None:
    new = sum(item.held is None for item in verdicts)
    if yes or new == 0:
        return
    if not typer.confirm(f"register {new} schema{'' if new == 1 else 's'}?", err=True):
        typer.echo("nothing was registered", err=True)
        raise typer.Exit(terminal.FAILED)


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


app = typer.Typer(
    help="The schema registry: list, compare, check before a DDL runs, register, copy.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_COMMANDS = (
    ("list", list_subjects),
    ("show", show),
    ("level", level),
    ("export", export),
    ("import", import_file),
)
_CODEC_COMMANDS = (("diff", diff), ("check", registry_check.check), ("register", register))
for _name, _command in _COMMANDS:
    app.command(_name)(guarded(_command))
for _name, _codec_command in _CODEC_COMMANDS:
    app.command(_name, cls=CodecCommand)(guarded(_codec_command))
