"""Which changes of a table's columns are carried out, left undone, or wait for a person; pure.

What a person accepted is kept by the digest of exactly the change that was shown: another change of the
same column is another digest, and waits again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from tidesink.config.table_options import CHANGE_RULES, ChangeKind, ChangePolicy, SchemaChanges
from tidesink.errors import SchemaRefusedError
from tidesink.sinks.decoding import ToldColumns
from tidesink.sinks.modes import names_of
from tidesink.sinks.shape import ShapeColumn, TableShape, wider_ddl, without
from tidesink.sinks.targets.base import OWN_COLUMNS, Capabilities, SchemaGap
from tidesink.typemap.projection import Layout
from tidesink.typemap.render import spark_type

if TYPE_CHECKING:
    from tidesink.config import TableConfig

# What a person may make of a change that waits, by the digest of the change.
Accepted = Mapping[str, ChangePolicy]


class SchemaChange(NamedTuple):
    """One change: of which column, from what to what (types, or key columns); empty where there is none.

    ``at``: the moment of the DDL that told of a drop or a rename. The next drop of a column that came back is
    another change, whatever was made of this one.
    """

    kind: ChangeKind
    column: str
    before: str = ""
    after: str = ""
    at: str = ""

    @property
    def digest(self) -> str:
        """Tells this very change from any other of the table."""
        told = list(self) if self.at else list(self)[:4]
        if self.kind == "add" and self.before:
            # Whose values it may have is what somebody decides, once: not its type, which may get wider.
            told = [self.kind, self.column.casefold(), self.before.casefold()]
        if self.at and self.kind == "drop":
            # The moment says which column it was; its type is not known any more once it was added again.
            told = [self.kind, self.column.casefold(), self.after, self.at]
        return hashlib.sha256(json.dumps(told, ensure_ascii=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """The change in words."""
        column = f" column {self.column}" if self.column else ""
        return f"{self.kind}{column} ({' -> '.join(part for part in (self.before, self.after) if part)})"


class Pending(NamedTuple):
    """A change that waits. ``accepts``: what ``tidesink resume`` may make of it; nothing: see ``reason``."""

    change: SchemaChange
    accepts: tuple[ChangePolicy, ...] = ()
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """As the status shows it."""
        change = self.change
        return {
            "kind": change.kind,
            "column": change.column,
            "from": change.before,
            "to": change.after,
            "policy": "pause",
            "accepts": list(self.accepts),
            "reason": self.reason,
            "digest": change.digest,
        }


@dataclass(frozen=True)
class Policies:
    """By what changes are judged: the config's policies, what people accepted, what the target can do.

    ``logs``: the table is a log of changes (``mode: append``). ``layout``: to add a column that it asks for
    is no change at the source. ``added``: the target's columns that the table's mode adds to the source's.
    """

    said: SchemaChanges
    accepted: Accepted
    capabilities: Capabilities
    logs: bool = False
    layout: Layout = Layout()  # noqa: RUF009 - it is frozen
    added: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: TableConfig, accepted: Accepted, capabilities: Capabilities) -> Policies:
        """What a table's settings say of it."""
        names = names_of(settings)
        return cls(
            settings.schema_changes,
            accepted,
            capabilities,
            logs=settings.mode == "append",
            layout=settings.layout,
            added=names.own if names else (),
        )

    @property
    def own(self) -> frozenset[str]:
        """The target's columns that are none of the source's, whose names it may have had; in lower case."""
        return frozenset(map(str.lower, (*OWN_COLUMNS, *self.layout.metadata.values(), *self.added)))

    @property
    def follows(self) -> bool:
        """Whether columns already there can change: what was sent, or logged, stays as it was."""
        return self.capabilities.keeps_rows and not self.logs

    def decide(self, change: SchemaChange) -> ChangePolicy:
        """What becomes of a change; what the target cannot do was refused before."""
        if change.kind == "add" and change.column.lower() in self.layout.asked:
            return "apply"
        return self.accepted_as(change) or self.said.policy(change.kind)

    def accepted_as(self, change: SchemaChange) -> ChangePolicy | None:
        """What a person made of a change; None where nobody did."""
        found = self.accepted.get(change.digest)
        if found is None and self.accepted.get(change._replace(at="").digest) == "ignore":
            # Accepted before changes had their moment. To ignore it again loses nothing; to apply it would.
            return "ignore"
        return found

    def pending(self, change: SchemaChange, *, reason: str = "") -> Pending:
        """A change that waits, with what it may be accepted as."""
        can = {"drop": self.capabilities.drops, "rename": self.capabilities.renames}
        ways = [policy for policy in CHANGE_RULES[change.kind].allowed if policy != "pause"]
        if reason or not can.get(change.kind, True):
            ways = [policy for policy in ways if policy != "apply"]
        return Pending(change, tuple(ways), reason)


class Judged(NamedTuple):
    """A change and what becomes of it; ``reason`` is why it cannot be carried out, ``doubt`` why it waits."""

    change: SchemaChange
    policy: ChangePolicy
    reason: str = ""
    doubt: str = ""


@dataclass(frozen=True)
class Judgement:
    """What is done with a batch: ``given`` is the shape the target gets, unless some change waits.

    ``left_out``: columns of the rows that the target does not get. ``drops``: columns to drop first.
    """

    given: TableShape
    left_out: tuple[str, ...] = ()
    pending: tuple[Pending, ...] = ()
    drops: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def judge(gap: SchemaGap, shape: TableShape, policies: Policies, told: ToldColumns | None) -> Judgement:
    """What becomes of the changes between a target's columns, a shape, and what DDL told of the table."""
    dropped = list(_dropped(gap, shape, policies, told)) if told else []
    gone = {judged.change.column.lower() for judged in dropped if judged.policy == "apply"}
    grown = [
        _judged_growth(change, gap, shape, policies)
        for change in _grown(gap, shape, policies.layout)
        if not (change.kind == "add" and change.column.lower() in gone)
    ]
    narrowed = (
        [Judged(change, policies.decide(change)) for change in _narrowed(gap, shape, told)] if told else []
    )
    ignored = tuple(one.change.column for one in grown if (one.change.kind, one.policy) == ("add", "ignore"))
    left_out = (*ignored, *(c.name for c in shape.columns if c.name.lower() in gone))
    return Judgement(
        without(shape, left_out),
        left_out,
        tuple(_waiting(one, policies) for one in (*dropped, *grown, *narrowed) if one.policy == "pause"),
        tuple(name for name in gap.columns if name.lower() in gone),
        tuple(_LEFT_OUT.format(name) for name in ignored),
    )


_LEFT_OUT = "column {} is new at the source and not taken (schema-changes: add: ignore): its values are lost"
_DOUBTED = (
    "it came when {} went, which except_column_list names: if it is that column under a new name, add it to "
    "except_column_list"
)
_HAD = (
    "it had the name {}, which except_column_list names and which was another column's too: if it is the one "
    "to be left out, add it to except_column_list"
)
_READDED = (
    "the column was dropped and added again, and rows from before the two cannot be told apart from rows "
    "after them: accept it as ignore to go on with the column as it is at the target, or load the table again"
)


def _waiting(judged: Judged, policies: Policies) -> Pending:
    found = policies.pending(judged.change, reason=judged.reason)
    return found._replace(reason=judged.doubt) if judged.doubt else found


def _judged_growth(change: SchemaChange, gap: SchemaGap, shape: TableShape, policies: Policies) -> Judged:
    """What becomes of a new column or a wider one.

    One that may be a column left out under a new name waits, unless it is left out anyway. What the target
    has of it is not, whatever becomes of new columns.
    """
    policy = policies.decide(change)
    if change.kind != "add" or not change.before or policies.accepted_as(change):
        return Judged(change, policy)
    column = shape.by_name[change.column.lower()]
    waits = policy == "apply" or change.column not in gap.added
    return Judged(change, "pause" if waits else policy, doubt=doubt_of(column, policies.layout))


def doubt_of(column: ShapeColumn, layout: Layout) -> str:
    """Why a column waits that a layout ``doubts``."""
    went = layout.doubted(column.instead_of)
    told = _DOUBTED if went else _HAD
    return told.format(", ".join(went or layout.doubted(column.had)))


def _grown(gap: SchemaGap, shape: TableShape, layout: Layout) -> Iterator[SchemaChange]:
    for name in gap.added:
        if name.lower() in shape.by_name:  # a mode's own columns are nobody's choice
            yield _added(shape.by_name[name.lower()], layout)
    there = {name.lower() for name in gap.columns}
    for column in shape.columns:
        if column.name.lower() in there and layout.doubts_kept(column):
            yield _added(column, layout)
    for name, types in gap.widened.items():
        yield SchemaChange("widen", name, *types)


def _added(column: ShapeColumn, layout: Layout) -> SchemaChange:
    """A column that comes; from those that are left out of which it may be one."""
    before = layout.doubted(column.instead_of | column.had) if layout.doubts(column) else ()
    return SchemaChange("add", column.name, ", ".join(before), column.comment)


def _dropped(gap: SchemaGap, shape: TableShape, policies: Policies, told: ToldColumns) -> Iterator[Judged]:
    """Columns that the source has no more, at the target or in rows from before."""
    there = {name.lower() for name in gap.columns} - policies.own
    for column in told.former:
        if column.name.lower() in there | (shape.by_name.keys() - policies.own):
            change = SchemaChange("drop", column.name, before=column.type.sql or column.type.name)
            change = change._replace(at=told.partings.get(column.name.casefold(), ""))
            policy = policies.decide(change)
            at_target = column.name.lower() in there
            # A column that only rows from before have is no change that anybody waits for.
            yield Judged(change, "ignore" if policy == "pause" and not at_target else policy)
    for name in sorted(told.readded & there):
        at = told.partings.get(name.casefold(), "")
        change = SchemaChange("drop", name, before="dropped", after="added again", at=at)
        # Where a person had the old column dropped, what rows of before it bring is as unwanted.
        drops = "apply" in (policies.said.drop, policies.accepted_as(SchemaChange("drop", name, at=at)))
        if drops and policies.accepted_as(change) is None:
            yield Judged(change, "pause", _READDED)


def _narrowed(gap: SchemaGap, shape: TableShape, told: ToldColumns) -> Iterator[SchemaChange]:
    present = {name.lower(): found for name, found in gap.held.items()}
    for column in told.current.columns:
        held = present.get(column.name.lower())
        now = spark_type(column.type, zero_date=shape.zero_date).ddl
        if held is not None and held != now and wider_ddl(held, now) == held:
            yield SchemaChange("narrow", column.name, held, now)


def pending_of(error: SchemaRefusedError) -> Pending | None:
    """The change that a target or a shape refused; None where it refused something else."""
    kind = error.context.get("change")
    if kind not in get_args(ChangeKind):
        return None
    said = (str(error.context.get(name, "")) for name in ("column", "before", "after"))
    return Pending(SchemaChange(kind, *said), reason=error.message)  # type: ignore[arg-type]
