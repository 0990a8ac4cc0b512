"""``tidesink ddl``: changes of tables that wait for a decision, past decisions, and DDL events."""

from __future__ import annotations

import re
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
    from tidesink.sinks.state.progress import TableStatus
    from tidesink.sinks.worker.control import TableControl

app = typer.Typer(
    help="Changes of tables that wait for a decision, and DDL events.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AnyTables = Annotated[
    list[str] | None, typer.Argument(metavar="[TABLE]...", help="schema.table; the default is all.")
]
Limit = Annotated[int, typer.Option("--max", min=1, help="Show at most this many DDL events.")]
Named = Annotated[str, typer.Argument(metavar="DIGEST|TABLE", help="A change's digest, or schema.table.")]
Chosen = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE|DIGEST]...",
        help="A change's digest, or schema.table for all changes that the table's status shows.",
    ),
]
AllOf = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="All waiting changes of this kind, such as add, in all tables."),
]
# Shorter starts of a digest are refused as mistakes.
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{4,16}")
_STATES: Final[Mapping[str | None, str]] = {None: "waits", "apply": "approved", "ignore": "rejected"}
_CHOICES: Final[Mapping[str | None, str]] = {"apply": "applied by policy", "ignore": "ignored by policy"}
# A decided change offers no further choices.
_WAITS_NOT: Final = {"accepts": [], "reason": ""}


@dataclass(frozen=True)
class TableChange:
    """A change that a table's status shows, or that was decided.

    change: The change, as the status has it.
    policy: The decision, or None.
    decided: Time of the decision, in seconds since 1970.
    waits: True if the status shows it as pending; a decided change is pending until a worker has read the
        decision.
    by_policy: True if the config decided it, and not a person.
    """

    table: TableId
    change: Mapping[str, Any] = field(hash=False)
    policy: ChangePolicy | None
    decided: float | None
    waits: bool
    by_policy: bool = False

    @property
    def digest(self) -> str:
        """Identifies the change."""
        return str(self.change["digest"])

    @property
    def state(self) -> str:
        """The decision and who made it, or that the change waits for a person."""
        return (_CHOICES if self.by_policy else _STATES)[self.policy]

    def as_json(self) -> dict[str, Any]:
        """Return the change as JSON."""
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
    """List changes and DDL events.

    Waiting changes come first, then decided ones, then the DDL events that workers read. Each change has a
    digest, by which it is approved or rejected, and the possible decisions. Decisions by people come before
    those by the config's policies. DDL events are for information; the oldest of each table come first.
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
                "changes": [one.as_json() for one in changes],
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
        typer.echo(f"no changes and no DDL events of {whose} in {without_secrets(settings.state)}")


def _show_changes(changes: Iterable[TableChange]) -> None:
    rows = [
        (
            str(one.table),
            one.state,
            one.change["kind"],
            one.change.get("time", ""),
            "" if one.decided is None else shown_moment(_moment(one.decided)),
            one.digest[: _shown_digest()],
            ", ".join(_ways(one)) if one.waits else "",
            _what(one.change),
        )
        for one in changes
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
    from tidesink.sinks.batch.schema_changes import SHORT_DIGEST

    return SHORT_DIGEST


def _what(change: Mapping[str, Any]) -> str:
    """Return the change's statement, or its column with the former and new definition."""
    if "statement" in change:
        return str(change["statement"])
    turned = " -> ".join(filter(None, (change["from"], change["to"])))
    return f"{change['column']}: {turned}" if change["column"] and turned else change["column"] or turned


def _ways(one: TableChange) -> list[str]:
    return [DDL_COMMANDS[policy] for policy in one.change["accepts"]]


@app.command()
@guarded
def show(named: Named, config: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Show one change in full, or all changes of a table. The exit code is 1 if no change is found."""
    settings = chosen_config(None, config)
    statuses = {entry.table: entry for entry in read_statuses(settings)}
    found = _of_name(named, settings, statuses, _changes(settings, statuses, ()))
    if not found:
        raise NotKeptError(
            f"No change of {named} waits, and no decided one is stored. `tidesink ddl list` lists all "
            "changes."
        )
    if output is OutputFormat.JSON:
        write_json({"pipeline": settings.pipeline, "changes": [one.as_json() for one in found]})
        return
    for one in found:
        for line in _lines(one):
            echo(line)


def _lines(one: TableChange) -> Iterator[str]:
    """Yield a change as text, with the commands that decide it."""
    change = one.change
    decided = "" if one.decided is None else shown_moment(_moment(one.decided))
    yield f"{one.table}: {change['kind']}, {one.state}{f' at {decided} UTC' if decided else ''}"
    for label, text in (
        ("column", change["column"]),
        ("from", change["from"]),
        ("to", change["to"]),
        ("committed", change.get("time")),
        ("statement", change.get("statement")),
        ("reason", change["reason"]),
        ("digest", one.digest),
    ):
        if text:
            yield f"  {label}: {text}"
    for way in _ways(one) if one.waits else ():
        yield f"  tidesink ddl {way} {one.digest[: _shown_digest()]}"


@app.command()
@guarded
def approve(
    named: Chosen = None,
    config: ConfigOption = None,
    *,
    all_of: AllOf = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Apply changes that wait.

    They are named by table, by digest, or with --all-of by kind. The decision is only for what the status
    shows. A table with other waiting changes still waits.
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
    """Let tables continue without changes that wait.

    They are named by table, by digest, or with --all-of by kind. The decision is only for what the status
    shows. A table with other waiting changes still waits.
    """
    _decide(config, named, all_of, "ignore", output)


def _decide(
    option: Any, named: Collection[str] | None, kind: str | None, policy: ChangePolicy, output: OutputFormat
) -> None:
    if bool(named) == (kind is not None):
        raise ConfigError("Give either tables (schema.table) and digests, or --all-of KIND.")
    settings = chosen_config(None, option)
    statuses = {entry.table: entry for entry in read_statuses(settings)}
    waiting = [one for one in _changes(settings, statuses, ()) if one.waits]
    chosen = _of_kind(kind, waiting) if kind is not None else []
    for name in named or ():
        found = _of_name(name, settings, statuses, waiting)
        if not found:
            raise ConfigError(f"No change of {name} waits. `tidesink ddl list` shows the waiting changes.")
        if len({one.table for one in found}) > 1:
            tables = ", ".join(str(one.table) for one in found)
            raise ConfigError(f"The change {name} waits in several tables ({tables}). Name the tables.")
        chosen += found
    _ask(settings, chosen, policy, output)


def _of_kind(kind: str, waiting: Iterable[TableChange]) -> list[TableChange]:
    """Return the waiting changes of a kind.

    Raises:
        ConfigError: the kind does not exist, or no change of it waits.
    """
    kinds = [word for part in get_args(ChangeKind) for word in get_args(part) or (part,)]
    if kind not in kinds:
        raise ConfigError(
            f"--all-of {kind}: there is no such kind{nearest(kind, kinds)}: {', '.join(kinds)}."
        )
    found = [one for one in waiting if one.change["kind"] == kind]
    if not found:
        raise ConfigError(f"No change of kind {kind} waits. `tidesink ddl list` shows the waiting changes.")
    return found


def _of_name(
    name: str, config: Config, statuses: Collection[TableId], changes: Sequence[TableChange]
) -> list[TableChange]:
    """Return those of the changes that belong to a table or have a digest; possibly none.

    Raises:
        ConfigError: the name is neither a table's nor the start of a digest, or several digests begin with
            it.
    """
    known = (*(entry.table for entry in config.tables if entry.table is not None), *statuses)
    if fold_name(name) not in {fold_name(str(table)) for table in known} and _DIGEST.fullmatch(name):
        return _of_digest(name.lower(), changes)
    table = known_table(name, config, statuses)
    return [one for one in changes if one.table == table]


def _of_digest(start: str, changes: Iterable[TableChange]) -> list[TableChange]:
    """Return the change with a digest, or several if tables have the same change."""
    found = [one for one in changes if one.digest.startswith(start)]
    if len({one.digest for one in found}) > 1:
        shown = ", ".join(f"{one.digest} ({one.table})" for one in found)
        raise ConfigError(
            f"Several changes have a digest that begins with {start}: {shown}. Give more of it."
        )
    return found


def _ask(config: Config, chosen: Iterable[TableChange], policy: ChangePolicy, output: OutputFormat) -> None:
    """Decide changes, and show the requests. If one change does not allow the decision, nothing is decided.

    Raises:
        ConfigError: a change does not allow the decision.
        StateStoreError: the store does not answer.
    """
    now, digests = time.time(), dict[TableId, dict[str, ChangePolicy]]()
    decided = [replace(one, policy=policy, decided=now) for one in dict.fromkeys(chosen)]
    for one in decided:
        _check(one, policy)
        digests.setdefault(one.table, {})[one.digest] = policy
    _store(config, decided, policy, now)

    def asked(table: TableId, _status: TableStatus | None) -> Callable[[TableControl], TableControl]:
        return lambda control: control.decide(digests[table])

    rests = [
        table for table, _status, control in ask_tables(config, map(str, digests), asked) if control.rests
    ]
    alive = worker_is_alive(config)
    if output is OutputFormat.JSON:
        shown = [one.as_json() for one in decided]
        write_json({"pipeline": config.pipeline, "worker_alive": alive, "changes": shown})
        return
    for one in decided:
        typer.echo(f"{one.table}: {change_words(one.change)}: {one.state}")
    for table in rests:
        echo(f"{table}: paused by request. Run `tidesink resume {table}` to continue")
    typer.echo(WHERE_IT_ENDS[alive])


def _store(config: Config, decided: Iterable[TableChange], policy: ChangePolicy, now: float) -> None:
    from tidesink.sinks.worker.control import Decision, store_decisions

    with worked_with(config) as store:
        decisions = [Decision(one.table, policy, now, one.change) for one in decided]
        store_decisions(store, config.pipeline, decisions)


_NO_WAY: Final = (
    "Follow the message; no decision helps. The table continues by itself once a worker starts with "
    "the changed config, or after `tidesink resume {}` if the source was changed back."
)


def _check(one: TableChange, policy: ChangePolicy) -> None:
    accepts = one.change["accepts"]
    if policy not in accepts:
        ways = " or ".join(f"tidesink ddl {way} {one.digest[: _shown_digest()]}" for way in _ways(one))
        reason = one.change["reason"] or f"only {ways} is possible here"
        error = ConfigError(
            f"{change_words(one.change)}: cannot be {_STATES[policy]}: {reason}", table=str(one.table)
        )
        error.next_step = ways if accepts else _NO_WAY.format(one.table)
        raise error


def _changes(
    config: Config, statuses: Mapping[TableId, TableStatus], asked: Collection[TableId]
) -> list[TableChange]:
    """Return the pending and the decided changes of tables, or of all tables if none is named.

    Decisions by people come before those by policies.
    """
    from tidesink.sinks.batch.schema_changes import read_choices
    from tidesink.sinks.worker.control import NOTHING_ASKED, read_controls, read_decisions

    if not statuses:
        return []
    with worked_with(config) as store:
        controls = read_controls(store, config.pipeline)
        decisions = {(one.table, one.change["digest"]): one for one in read_decisions(store, config.pipeline)}
        choices = [
            TableChange(table, {**one.change, **_WAITS_NOT}, one.policy, one.at, waits=False, by_policy=True)
            for table in statuses
            if not asked or table in asked
            for one in read_choices(store, config.pipeline, table)
        ]
    found = []
    for table, status in statuses.items():
        accepted = controls.get(table, NOTHING_ASKED).accepted
        for change in pending_changes(status):
            decision = decisions.pop((table, change["digest"]), None)
            policy = accepted.get(change["digest"])
            at = None if decision is None else decision.at
            found.append(TableChange(table, change, policy, at, waits=True))
    found += (
        TableChange(one.table, one.change, one.policy, one.at, waits=False) for one in decisions.values()
    )
    return [*(one for one in found if not asked or one.table in asked), *choices]


def _events(config: Config, tables: Sequence[TableId]) -> list[dict[str, Any]]:
    """Return the DDL events of tables."""
    from tidesink.sinks.kafka.dead_letters import moment
    from tidesink.sinks.state.progress import load_ddl

    if not tables:
        return []
    with worked_with(config) as store:
        found = load_ddl(store, config.pipeline, tables)
    return [{**event._asdict(), "pipeline": config.pipeline, "time": moment(event.time)} for event in found]
