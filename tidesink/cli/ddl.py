"""``tidesink ddl``: lists schema changes and DDL events, and approves or rejects changes that wait."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from tidesink.cli.dead_letters import place_of, record_json
from tidesink.cli.status import (
    WHERE_IT_ENDS,
    ask_tables,
    change_words,
    commit_time,
    known_table,
    pending_changes,
    read_statuses,
    shown_moment,
    worked_with,
    worker_is_alive,
)
from tidesink.cli.terminal import (
    ConfigOption,
    Output,
    OutputFormat,
    chosen_config,
    echo,
    guarded,
    show_table,
    write_json,
)
from tidesink.config import Config
from tidesink.config.fields import DDL_COMMANDS, ChangeKind, ChangePolicy, without_secrets
from tidesink.errors import ConfigError, NotKeptError, nearest
from tidesink.events import TableId, fold_name

if TYPE_CHECKING:
    from tidesink.sinks.runtime.control import TableControl
    from tidesink.sinks.state.progress import TableStatus

app = typer.Typer(
    help="Schema changes that wait for a decision, and DDL events.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AnyTables = Annotated[
    list[str] | None, typer.Argument(metavar="[TABLE]...", help="Tables (schema.table); the default is all.")
]
Limit = Annotated[int, typer.Option("--max", min=1, help="Show at most this many DDL events.")]
Named = Annotated[str, typer.Argument(metavar="DIGEST|TABLE", help="Digest of a change, or schema.table.")]
Chosen = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE|DIGEST]...",
        help="Digest of a change, or schema.table for all waiting changes of a table.",
    ),
]
AllOf = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="All waiting changes of this kind, such as add, in all tables."),
]
# At least four characters: a shorter text is not accepted as the start of a digest.
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{4,16}")
_STATES: Final[Mapping[str | None, str]] = {None: "waits", "apply": "approved", "ignore": "rejected"}
_CHOICES: Final[Mapping[str | None, str]] = {"apply": "applied by policy", "ignore": "ignored by policy"}
# A decided change accepts no further decision.
_WAITS_NOT: Final = {"accepts": [], "reason": ""}


@dataclass(frozen=True)
class TableChange:
    """A schema change of a table: one that waits for a decision, or one that was decided.

    change: The change as a JSON object, as stored in the table's status.
    policy: The decision (apply or ignore), or None if there is none yet.
    decided: Time of the decision, in seconds since 1970.
    waits: True if the table's status shows the change as pending. A decided change stays pending until a
        worker has read the decision.
    by_policy: True if a policy of the config made the decision, False if a person did.
    """

    table: TableId
    change: Mapping[str, Any] = field(hash=False)
    policy: ChangePolicy | None
    decided: float | None
    waits: bool
    by_policy: bool = False

    @property
    def digest(self) -> str:
        """Hex digits that identify the change."""
        return str(self.change["digest"])

    @property
    def state(self) -> str:
        """State for the user: waits, approved, rejected, applied by policy, or ignored by policy."""
        return (_CHOICES if self.by_policy else _STATES)[self.policy]

    def as_json(self) -> dict[str, Any]:
        """Return the change, its table, state and time of decision as a JSON object."""
        moment = None if self.decided is None else _moment(self.decided)
        return {
            "table": self.table._asdict(),
            "state": self.state,
            "waits": self.waits,
            "decided": moment and moment.isoformat(),
            **self.change,
        }


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


@app.command("list")
@guarded
def list_changes(
    tables: AnyTables = None,
    config: ConfigOption = None,
    most: Limit = 1000,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List schema changes and DDL events.

    The list shows the waiting changes, then the decided changes (by people, then by the config's policies),
    then the DDL events that workers read. Name a change by its digest to approve or reject it. DDL events are
    for information only; each table's oldest event comes first.
    """
    settings = chosen_config(None, config)
    statuses = {entry.table: entry for entry in read_statuses(settings)}
    asked = {known_table(name, settings, statuses) for name in tables or ()}
    changes = _changes(settings, statuses, asked)
    events = _events(settings, [table for table in statuses if not asked or table in asked])[:most]
    if output is OutputFormat.JSON:
        write_json(
            {
                "pipeline": settings.pipeline,
                "place": without_secrets(settings.state),
                "changes": [change.as_json() for change in changes],
                "ddl": [record_json(row, statuses) for row in events],
            }
        )
        return
    if changes:
        _show_changes(changes)
    if changes and events:
        typer.echo("")
    if events:
        _show_events(events)
    if not changes and not events:
        whose = ", ".join(tables or [settings.pipeline])
        typer.echo(f"no schema changes and no DDL events of {whose} in {without_secrets(settings.state)}")


def _show_changes(changes: Iterable[TableChange]) -> None:
    rows = [
        (
            str(entry.table),
            entry.state,
            entry.change["kind"],
            entry.change.get("time", ""),
            "" if entry.decided is None else shown_moment(_moment(entry.decided)),
            entry.digest[: _shown_digest()],
            ", ".join(_ways(entry)) if entry.waits else "",
            _what(entry.change),
        )
        for entry in changes
    ]
    columns = ("table", "state", "kind", "time", "decided", "digest", "possible", "change")
    show_table(None, columns, rows, folded=("change",))


def _show_events(events: Iterable[Mapping[str, Any]]) -> None:
    rows = [
        (row["table"], commit_time(row["commit_ts"]), row["kind"], place_of(row), row["query"])
        for row in events
    ]
    show_table(None, ("table", "committed", "kind", "where", "statement"), rows, folded=("statement",))


def _shown_digest() -> int:
    from tidesink.sinks.schema_changes.decisions import SHORT_DIGEST

    return SHORT_DIGEST


def _what(change: Mapping[str, Any]) -> str:
    """Return a change's DDL statement, or the changed column with its old and new definition."""
    if "statement" in change:
        return str(change["statement"])
    turned = " -> ".join(filter(None, (change["from"], change["to"])))
    return f"{change['column']}: {turned}" if change["column"] and turned else change["column"] or turned


def _ways(entry: TableChange) -> list[str]:
    return [DDL_COMMANDS[policy] for policy in entry.change["accepts"]]


@app.command()
@guarded
def show(named: Named, config: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Show a schema change, or all schema changes of a table, in full.

    The exit code is 1 if no change is found.
    """
    settings = chosen_config(None, config)
    statuses = {entry.table: entry for entry in read_statuses(settings)}
    changes = _of_name(named, settings, statuses, _changes(settings, statuses, ()))
    if not changes:
        raise NotKeptError(
            f"There is no waiting and no decided schema change of {named}. `tidesink ddl list` lists all "
            "changes."
        )
    if output is OutputFormat.JSON:
        write_json({"pipeline": settings.pipeline, "changes": [change.as_json() for change in changes]})
        return
    for change in changes:
        for line in _lines(change):
            echo(line, change.table)


def _lines(entry: TableChange) -> Iterator[str]:
    """Yield the text lines that show a change, followed by the commands that approve or reject it."""
    change = entry.change
    decided = "" if entry.decided is None else shown_moment(_moment(entry.decided))
    yield f"{entry.table}: {change['kind']}, {entry.state}{f' at {decided} UTC' if decided else ''}"
    for label, text in (
        ("column", change["column"]),
        ("from", change["from"]),
        ("to", change["to"]),
        ("committed", change.get("time")),
        ("statement", change.get("statement")),
        ("reason", change["reason"]),
        ("digest", entry.digest),
    ):
        if text:
            yield f"  {label}: {text}"
    for way in _ways(entry) if entry.waits else ():
        yield f"  tidesink ddl {way} {entry.digest[: _shown_digest()]}"


@app.command()
@guarded
def approve(
    named: Chosen = None,
    config: ConfigOption = None,
    *,
    all_of: AllOf = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Approve waiting schema changes, so that they are applied.

    Name the changes by table or digest, or choose a kind with --all-of. Changes that the worker reports later
    need their own decision. A table with further waiting changes keeps waiting.
    """
    _decide(config, named, all_of, "apply", output)


@app.command()
@guarded
def reject(
    named: Chosen = None,
    config: ConfigOption = None,
    *,
    all_of: AllOf = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Reject waiting schema changes.

    The tables continue without these changes. Name the changes by table or digest, or choose a kind with
    --all-of. Changes that the worker reports later need their own decision. A table with further waiting
    changes keeps waiting.
    """
    _decide(config, named, all_of, "ignore", output)


def _decide(
    option: Any, named: Collection[str] | None, kind: str | None, policy: ChangePolicy, output: OutputFormat
) -> None:
    if bool(named) == (kind is not None):
        raise ConfigError("Give either tables (schema.table) and digests, or --all-of KIND.")
    settings = chosen_config(None, option)
    statuses = {entry.table: entry for entry in read_statuses(settings)}
    waiting = [change for change in _changes(settings, statuses, ()) if change.waits]
    chosen = _of_kind(kind, waiting) if kind is not None else []
    for name in named or ():
        changes = _of_name(name, settings, statuses, waiting)
        if not changes:
            raise ConfigError(
                f"No schema change of {name} waits for a decision. `tidesink ddl list` shows the waiting "
                "changes."
            )
        if len({change.table for change in changes}) > 1:
            tables = ", ".join(str(change.table) for change in changes)
            raise ConfigError(
                f"The change {name} waits in several tables ({tables}). Give the tables' names instead."
            )
        chosen += changes
    _ask(settings, chosen, policy, output)


def _of_kind(kind: str, waiting: Iterable[TableChange]) -> list[TableChange]:
    """Return the waiting schema changes of a kind, such as ``add``.

    Raises:
        ConfigError: the kind does not exist, or no change of this kind waits.
    """
    kinds = [word for part in get_args(ChangeKind) for word in get_args(part) or (part,)]
    if kind not in kinds:
        raise ConfigError(
            f"--all-of {kind}: there is no such kind{nearest(kind, kinds)}. The kinds are {', '.join(kinds)}."
        )
    changes = [entry for entry in waiting if entry.change["kind"] == kind]
    if not changes:
        raise ConfigError(
            f"No schema change of kind {kind} waits for a decision. `tidesink ddl list` shows the waiting "
            "changes."
        )
    return changes


def _of_name(
    name: str, config: Config, statuses: Collection[TableId], changes: Sequence[TableChange]
) -> list[TableChange]:
    """Return those of ``changes`` that belong to the table ``name``, or whose digest begins with ``name``.

    Raises:
        ConfigError: ``name`` is neither a table of the pipeline nor the start of a digest, or several digests
            begin with it.
    """
    tables = (*(entry.table for entry in config.tables if entry.table is not None), *statuses)
    if fold_name(name) not in {fold_name(str(table)) for table in tables} and _DIGEST.fullmatch(name):
        return _of_digest(name.lower(), changes)
    table = known_table(name, config, statuses)
    return [change for change in changes if change.table == table]


def _of_digest(start: str, changes: Iterable[TableChange]) -> list[TableChange]:
    """Return the changes whose digest begins with ``start``.

    Returns several changes if several tables have the same change, because its digest is then the same too.

    Raises:
        ConfigError: different digests begin with ``start``.
    """
    matching = [change for change in changes if change.digest.startswith(start)]
    if len({change.digest for change in matching}) > 1:
        shown = ", ".join(f"{change.digest} ({change.table})" for change in matching)
        raise ConfigError(
            f"Several changes have a digest that begins with {start}: {shown}. Give more of its digits."
        )
    return matching


def _ask(config: Config, chosen: Iterable[TableChange], policy: ChangePolicy, output: OutputFormat) -> None:
    """Store the decision ``policy`` for the chosen schema changes, and print the changes.

    If one of the changes does not allow this decision, nothing is stored.

    Raises:
        ConfigError: a change does not allow the decision.
        StateStoreError: the state store does not answer.
    """
    now, digests = time.time(), dict[TableId, dict[str, ChangePolicy]]()
    decided = [replace(change, policy=policy, decided=now) for change in dict.fromkeys(chosen)]
    for entry in decided:
        _check(entry, policy)
        digests.setdefault(entry.table, {})[entry.digest] = policy
    _store(config, decided, policy, now)

    def asked(table: TableId, _status: TableStatus | None) -> Callable[[TableControl], TableControl]:
        return lambda control: control.decide(digests[table])

    rests = [
        table for table, _status, control in ask_tables(config, map(str, digests), asked) if control.rests
    ]
    alive = worker_is_alive(config)
    if output is OutputFormat.JSON:
        shown = [change.as_json() for change in decided]
        write_json({"pipeline": config.pipeline, "worker_alive": alive, "changes": shown})
        return
    for entry in decided:
        typer.echo(f"{entry.table}: {change_words(entry.change)}: {entry.state}")
    for table in rests:
        echo(f"{table}: paused by request. Run `tidesink resume {shlex.quote(str(table))}` to continue")
    typer.echo(WHERE_IT_ENDS[alive])


def _store(config: Config, decided: Iterable[TableChange], policy: ChangePolicy, now: float) -> None:
    from tidesink.sinks.runtime.control import Decision, store_decisions

    with worked_with(config) as store:
        decisions = [Decision(entry.table, policy, now, entry.change) for entry in decided]
        store_decisions(store, config.pipeline, decisions)


_NO_WAY: Final = (
    "This change can be neither approved nor rejected. Do what the reason above says. If you changed the "
    "config, restart the worker. If you undid the change at the source, run `tidesink resume TABLE`. The "
    "table then continues."
)


def _check(entry: TableChange, policy: ChangePolicy) -> None:
    accepts = entry.change["accepts"]
    if policy not in accepts:
        ways = " or ".join(f"tidesink ddl {way} {entry.digest[: _shown_digest()]}" for way in _ways(entry))
        reason = entry.change["reason"] or f"only {ways} is possible here"
        error = ConfigError(
            f"{change_words(entry.change)}: cannot be {_STATES[policy]}: {reason}", table=str(entry.table)
        )
        error.next_step = ways if accepts else _NO_WAY
        raise error


def _changes(
    config: Config, statuses: Mapping[TableId, TableStatus], asked: Collection[TableId]
) -> list[TableChange]:
    """Return the schema changes of the tables in ``asked``, or of all tables if ``asked`` is empty.

    Changes that wait come first, then changes that people decided, then those that the config's policies
    decided.
    """
    from tidesink.sinks.runtime.control import NOTHING_ASKED, read_controls, read_decisions
    from tidesink.sinks.schema_changes.decisions import read_choices

    if not statuses:
        return []
    with worked_with(config) as store:
        controls = read_controls(store, config.pipeline)
        decisions = {
            (stored.table, stored.change["digest"]): stored
            for stored in read_decisions(store, config.pipeline)
        }
        choices = [
            TableChange(
                table, {**choice.change, **_WAITS_NOT}, choice.policy, choice.at, waits=False, by_policy=True
            )
            for table in statuses
            if not asked or table in asked
            for choice in read_choices(store, config.pipeline, table)
        ]
    entries = []
    for table, status in statuses.items():
        accepted = controls.get(table, NOTHING_ASKED).accepted
        for change in pending_changes(status):
            decision = decisions.pop((table, change["digest"]), None)
            policy = accepted.get(change["digest"])
            decided = None if decision is None else decision.at
            entries.append(TableChange(table, change, policy, decided, waits=True))
    entries += (
        TableChange(other.table, other.change, other.policy, other.at, waits=False)
        for other in decisions.values()
    )
    return [*(entry for entry in entries if not asked or entry.table in asked), *choices]


def _events(config: Config, tables: Sequence[TableId]) -> list[dict[str, Any]]:
    """Return the stored DDL events of tables, as rows."""
    from tidesink.sinks.letters.topic import moment
    from tidesink.sinks.state.progress import load_ddl

    if not tables:
        return []
    with worked_with(config) as store:
        events = load_ddl(store, config.pipeline, tables)
    return [{**event._asdict(), "pipeline": config.pipeline, "time": moment(event.time)} for event in events]
