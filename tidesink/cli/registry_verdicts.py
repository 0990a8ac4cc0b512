"""Verdicts as people read them: what a subject says to a schema, field by field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import typer

from tidesink.cli.output import show_table, warn
from tidesink.schema_registry.compatibility import FieldChange, Verdict

_HEADS = {
    "new subject": "new subject, takes any schema",
    "registered": "registered already",
    "compatible": "ok",
    "incompatible": "REFUSED",
}


def show_verdicts(verdicts: Iterable[Verdict], *, live: bool) -> None:
    """Each verdict with the fields that differ, or stand in the way."""
    for item in verdicts:
        typer.echo(f"{item.subject}: {_HEADS[item.status]}{_against(item)}")
        if item.status == "incompatible" or item.disagree:
            typer.echo(f"  {_who(item, live=live)}; levels that take it: {', '.join(item.levels) or 'none'}")
        show_changes(item.fields)
        for message in item.messages:
            typer.echo(f"  the registry says: {message}")
        if item.disagree:
            warn(f"{item.subject}: the registry judges otherwise than Avro's rules, and its word counts")


def _against(item: Verdict) -> str:
    if item.held is not None:
        return f" as version {item.held.version}, id {item.held.id}"
    if item.latest is None:
        return ""
    versions = "every version" if item.level.endswith("_TRANSITIVE") else f"version {item.latest.version}"
    return f" under {item.level}, against {versions}"


def _who(item: Verdict, *, live: bool) -> str:
    words = {True: "takes it", False: "refuses it"}
    own = f"offline rules: {words[item.own].replace('it', '').strip()}"
    return f"{own}, registry: {words[bool(item.live)].replace('it', '').strip()}" if live else own


def show_changes(changes: Sequence[FieldChange], *, last: str = "verdict") -> None:
    """The fields that differ or stand in the way, and how many do not; ``last``: the last column's name."""
    remark = _verdict if last == "verdict" else _of_note
    listed = [change for change in changes if change.change != "same" or change.problem]
    if listed:
        rows = [(change.path, _words(change), remark(change)) for change in listed]
        show_table(None, ("field", "change", last), rows, folded=("change", last))
    same = len(changes) - len(listed)
    if same and listed:
        typer.echo(f"  {same} other {'field stays' if same == 1 else 'fields stay'} the same")


def _words(change: FieldChange) -> str:
    if change.old is None or change.new is None:
        side = change.old or change.new
        return f"{change.change}: {side.words}" if side else ""
    return change.old.words if change.old == change.new else f"{change.old.words} -> {change.new.words}"


def _of_note(change: FieldChange) -> str:
    return "; ".join(filter(None, (change.problem, change.note)))


def _verdict(change: FieldChange) -> str:
    if change.problem:
        return f"REFUSED: {change.problem}"
    return f"ok; {change.note}" if change.note else "ok"
