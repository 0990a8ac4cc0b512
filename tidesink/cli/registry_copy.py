"""``tidesink registry export | import``: subjects to a file, and from a file into a registry."""

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

from tidesink.cli import exits
from tidesink.cli import registry_options as options
from tidesink.cli.output import Output, OutputFormat, note, show_table, warn, write_json
from tidesink.errors import ConfigError, RegistryError
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

_LINES = "schemas.jsonl"


def export(
    *,
    file: Annotated[
        str, typer.Argument(help="A file of JSON Lines, a folder (ends in /), or - for stdout.")
    ] = "-",
    subjects: Annotated[
        list[str] | None, typer.Option("--subject", help="A subject or a pattern; again for more.")
    ] = None,
    schema_registry: options.Url = None,
    registry_file: options.SettingsFile = None,
    config: options.ConfigFile = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Write subjects with their versions, ids and levels to a file: the same bytes each time.

    The file is one that `tidesink decode --schemas` takes. A folder gets a file per version as well.
    """
    with options.opened(options.Place(schema_registry, registry_file, config)) as found:
        names, cut = chosen_subjects(found.registry, subjects or ())
        if cut:
            raise RegistryError(f"the export would not be whole: {CUT_LIST}")
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
        raise typer.Exit(exits.FAILED)


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


def import_file(
    *,
    file: Annotated[Path, typer.Argument(help="A file that `tidesink registry export` wrote.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    new_ids: Annotated[bool, typer.Option("--new-ids", help="Do not ask for the ids of the file.")] = False,
    schema_registry: options.Url = None,
    registry_file: options.SettingsFile = None,
    config: options.ConfigFile = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Copy the subjects of a file into a registry: versions in order, ids kept where it can keep them.

    What is there already stays, so that a second run does nothing. Levels are set last.
    """
    entries = options.read_export(file)
    with options.opened(options.Place(schema_registry, registry_file, config)) as found:
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
