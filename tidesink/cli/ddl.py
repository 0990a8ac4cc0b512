"""``tidesink ddl``: changes of tables that wait for a person, what was decided of them, and the DDL read."""

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
    help="Changes of tables: those that wait, and the DDL read.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AnyTables = Annotated[
    list[str] | None, typer.Argument(metavar="[TABLE]...", help="schema.table; all if none is given.")
]
Limit = Annotated[int, typer.Option("--max", min=1, help="Show at most this many DDL events.")]
Named = Annotated[str, typer.Argument(metavar="DIGEST|TABLE", help="A change's digest, or schema.table.")]
Chosen = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE|DIGEST]...",
        help="A change, by its digest, or all that a table's status shows, by schema.table.",
    ),
]
AllOf = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="The waiting changes of this kind, such as add, of all tables."),
]
# A start of a digest that is shorter is taken for a mistake.
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{4,16}")
_STATES: Final[Mapping[str | None, str]] = {None: "waits", "apply": "approved", "ignore": "rejected"}
_CHOICES: Final[Mapping[str | None, str]] = {"apply": "applied by policy", "ignore": "ignored by policy"}
# Of what was decided nothing more is possible.
_WAITS_NOT: Final = {"accepts": [], "reason": ""}


@dataclass(frozen=True)
class TableChange:
    """A change that a table's status shows, or that was decided; ``change`` is as the status has it.

    ``policy``: what was made of it. ``decided`` is when, in seconds since 1970. ``waits``: the status shows
    it as pending; a change that is decided still does until a worker heeds that. ``by_policy``: the config
    decided it, and no person.
    """

    table: TableId
    change: Mapping[str, Any] = field(hash=False)
    policy: ChangePolicy | None
    decided: float | None
    waits: bool
    by_policy: bool = False

    @property
    def digest(self) -> str:
        """Tells it from any other change."""
        return str(self.change["digest"])

    @property
    def state(self) -> str:
        """Whether it waits for a person, or what was made of it, and by whom."""
        return (_CHOICES if self.by_policy else _STATES)[self.policy]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
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

    The changes that wait are first, then what was decided of others, then the DDL events that workers read.
    A change is shown with its digest, by which it is approved or rejected, and with what is possible. What
    people decided comes before what the policies of the config did by themselves. Of DDL events, which are
    for information, the oldest of each table are first.
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
    """The statement, or the column with what it was and is."""
    if "statement" in change:
        return str(change["statement"])
    turned = " -> ".join(filter(None, (change["from"], change["to"])))
    return f"{change['column']}: {turned}" if change["column"] and turned else change["column"] or turned


def _ways(one: TableChange) -> list[str]:
    return [DDL_COMMANDS[policy] for policy in one.change["accepts"]]


@app.command()
@guarded
def show(named: Named, config: ConfigOption = None, output: Output = OutputFormat.TEXT) -> None:
    """Show a change whole, or all changes of a table. The exit code is 1 if there is none."""
    settings = chosen_config(None, config)
    statuses = {entry.table: entry for entry in read_statuses(settings)}
    found = _of_name(named, settings, statuses, _changes(settings, statuses, ()))
    if not found:
        raise NotKeptError(
            f"no change of {named} waits, and none is stored that was decided: tidesink ddl list lists those "
            "there are"
        )
    if output is OutputFormat.JSON:
        write_json({"pipeline": settings.pipeline, "changes": [one.as_json() for one in found]})
        return
    for one in found:
        for line in _lines(one):
            echo(line)


def _lines(one: TableChange) -> Iterator[str]:
    """A change in words, with the commands that decide it."""
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

    They are named by table, by digest, or with --all-of by kind. It holds for exactly what the status
    shows. A table with other changes that wait goes on waiting.
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
    """Go on without changes that wait.

    They are named by table, by digest, or with --all-of by kind. It holds for exactly what the status
    shows. A table with other changes that wait goes on waiting.
    """
    _decide(config, named, all_of, "ignore", output)


def _decide(
    option: Any, named: Collection[str] | None, kind: str | None, policy: ChangePolicy, output: OutputFormat
) -> None:
    if bool(named) == (kind is not None):
        raise ConfigError("give either tables (schema.table) and digests, or --all-of KIND")
    settings = chosen_config(None, option)
    statuses = {entry.table: entry for entry in read_statuses(settings)}
    waiting = [one for one in _changes(settings, statuses, ()) if one.waits]
    chosen = _of_kind(kind, waiting) if kind is not None else []
    for name in named or ():
        found = _of_name(name, settings, statuses, waiting)
        if not found:
            raise ConfigError(f"no change of {name} waits: tidesink ddl list shows those that do")
        if len({one.table for one in found}) > 1:
            tables = ", ".join(str(one.table) for one in found)
            raise ConfigError(f"the change {name} waits in several tables ({tables}): name the tables")
        chosen += found
    _ask(settings, chosen, policy, output)


def _of_kind(kind: str, waiting: Iterable[TableChange]) -> list[TableChange]:
    """The waiting changes of a kind.

    Raises:
        ConfigError: there is no such kind, or none waits.
    """
    kinds = [word for part in get_args(ChangeKind) for word in get_args(part) or (part,)]
    if kind not in kinds:
        raise ConfigError(f"--all-of {kind}: there is no such kind{nearest(kind, kinds)}: {', '.join(kinds)}")
    found = [one for one in waiting if one.change["kind"] == kind]
    if not found:
        raise ConfigError(f"no change of kind {kind} waits: tidesink ddl list shows those that do")
    return found


def _of_name(
    name: str, config: Config, statuses: Collection[TableId], changes: Sequence[TableChange]
) -> list[TableChange]:
    """The changes of a table, or those of a digest, among some; there may be none.

    Raises:
        ConfigError: the name is neither a table's nor the start of a digest, or several digests begin so.
    """
    known = (*(entry.table for entry in config.tables if entry.table is not None), *statuses)
    if fold_name(name) not in {fold_name(str(table)) for table in known} and _DIGEST.fullmatch(name):
        return _of_digest(name.lower(), changes)
    table = known_table(name, config, statuses)
    return [one for one in changes if one.table == table]


def _of_digest(start: str, changes: Iterable[TableChange]) -> list[TableChange]:
    """The change of a digest; several where tables have the very same one."""
    found = [one for one in changes if one.digest.startswith(start)]
    if len({one.digest for one in found}) > 1:
        shown = ", ".join(f"{one.digest} ({one.table})" for one in found)
        raise ConfigError(f"several changes have a digest that begins with {start}: {shown}: give more of it")
    return found


def _ask(config: Config, chosen: Iterable[TableChange], policy: ChangePolicy, output: OutputFormat) -> None:
    """Decide changes, and show what was asked; nothing is where one of them cannot be decided so.

    Raises:
        ConfigError: one cannot.
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
        echo(f"{table}: rests as it was asked to: tidesink resume {table} goes on")
    typer.echo(WHERE_IT_ENDS[alive])


def _store(config: Config, decided: Iterable[TableChange], policy: ChangePolicy, now: float) -> None:
    from tidesink.sinks.worker.control import Decision, store_decisions

    with worked_with(config) as store:
        decisions = [Decision(one.table, policy, now, one.change) for one in decided]
        store_decisions(store, config.pipeline, decisions)


_NO_WAY: Final = (
    "do what the message says; no decision helps. The table goes on by itself once a worker starts with the "
    "changed config, or on tidesink resume {} where the source was changed back"
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
    """The changes of tables (of all if none is asked for): those that are pending, and those decided.

    What people decided is before what policies did.
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
    """The DDL events of tables."""
    from tidesink.sinks.kafka.dead_letters import moment
    from tidesink.sinks.state.progress import load_ddl

    if not tables:
        return []
    with worked_with(config) as store:
        found = load_ddl(store, config.pipeline, tables)
    return [{**event._asdict(), "pipeline": config.pipeline, "time": moment(event.time)} for event in found]
