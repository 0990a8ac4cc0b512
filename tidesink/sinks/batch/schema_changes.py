"""What a change of the source's columns means for a table: the policy, renames, and columns seen before."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from tidesink.config.fields import ChangeKind, ChangePolicy, SchemaChanges, allowed_policies
from tidesink.config.targets import ALL_FEATURES
from tidesink.ddl.row_changes import RowChangeKind, shown_time
from tidesink.errors import LOAD_AGAIN, SchemaRefusedError, StateStoreError
from tidesink.events import NameFold, TableId, fold_name, folding, physical_ms
from tidesink.sinks.batch.schema_source import Decoding, Renamed, SourceColumns
from tidesink.sinks.state.progress import Progress, StateStore, change_document
from tidesink.sinks.targets.base import OWN_COLUMNS, Capabilities, SchemaGap
from tidesink.sinks.targets.modes import names_of
from tidesink.typemap.projection import Layout
from tidesink.typemap.table import spark_type
from tidesink.typemap.target_schema import ShapeColumn, TableShape, wider_ddl, without

if TYPE_CHECKING:
    from tidesink.config import TableConfig
    from tidesink.sinks.targets.base import TargetTable


SHORT_DIGEST: Final = 8
# What a person may make of a change that waits, by the digest of the change.
Accepted = Mapping[str, ChangePolicy]
# What policies made of changes, by their digests.
Chosen = Mapping[str, "tuple[SchemaChange, ChangePolicy]"]


class SchemaChange(NamedTuple):
    """One change: of which column, from what to what (types, or key columns); empty where there is none.

    Of DDL that changes rows ``before`` is the time at which it was committed, and ``after`` the statement.

    ``at``: the moment of the DDL that reported a drop or a rename. The next drop of a column that came
    back is
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
        reported = list(self) if self.at else list(self)[:4]
        if self.kind == "add" and self.before:
            # Whose values it may have is what somebody decides, once: not its type, which may get wider.
            # Names as they are spelled: a column that differs only in case is another one.
            reported = [self.kind, self.column, self.before]
        if self.at and self.kind == "drop":
            # The moment says which column it was; its type is not known any more once it was added again.
            reported = [self.kind, fold_name(self.column), self.after, self.at]
        return hashlib.sha256(json.dumps(reported, ensure_ascii=True).encode()).hexdigest()[:16]

    @property
    def short_digest(self) -> str:
        """The start of the digest, by which a person names the change."""
        return self.digest[:SHORT_DIGEST]

    @property
    def changes_rows(self) -> bool:
        """Whether it is DDL that changes rows, and no change of columns.

        A connector's rename of a column is, too: it names no column of the target.
        """
        return self.kind in get_args(RowChangeKind) or (self.kind == "rename" and not self.column)

    def as_json(self) -> dict[str, Any]:
        """For a status, and for what is kept of decisions."""
        rows = self.changes_rows
        return {
            "kind": self.kind,
            "column": self.column,
            "from": "" if rows else self.before,
            "to": "" if rows else self.after,
            "time": self.before if rows else _time_of(self.at),
            **({"statement": self.after} if rows else {}),
            "digest": self.digest,
        }

    def __str__(self) -> str:
        """The change in words."""
        if self.changes_rows:
            return f"{self.kind}{f' of {self.before}' if self.before else ''} ({self.after})"
        column = f" column {self.column}" if self.column else ""
        return f"{self.kind}{column} ({' -> '.join(part for part in (self.before, self.after) if part)})"


class Pending(NamedTuple):
    """A change that waits. ``accepts``: what ``tidesink ddl`` may make of it; nothing: see ``reason``."""

    change: SchemaChange
    accepts: tuple[ChangePolicy, ...] = ()
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """As the status shows it."""
        waits = {"policy": "pause", "accepts": list(self.accepts), "reason": self.reason}
        return {**self.change.as_json(), **waits}


def _time_of(at: str) -> str:
    """When a column was dropped or renamed; empty where its DDL does not say it."""
    return shown_time(physical_ms(int(at))) if at.isdigit() else ""


@dataclass(frozen=True)
class Policies:
    """By what changes are decided: the config's policies, what people accepted, what the target can do.

    ``logs``: the table is a log of changes (``mode: append``). ``layout``: to add a column that it asks for
    is no change at the source. ``added``: the target's columns that the table's mode adds to the source's.
    ``chosen``: by digest what was decided so far without a person, which holds if nothing waits.
    """

    said: SchemaChanges
    accepted: Accepted
    capabilities: Capabilities
    logs: bool = False
    layout: Layout = Layout()  # noqa: RUF009 - it is frozen
    added: tuple[str, ...] = ()
    chosen: dict[str, tuple[SchemaChange, ChangePolicy]] = field(default_factory=dict, compare=False)

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
        return frozenset(map(fold_name, (*OWN_COLUMNS, *self.layout.metadata.values(), *self.added)))

    @property
    def follows(self) -> bool:
        """Whether columns already there can change: what was sent, or logged, stays as it was."""
        return "rows" in self.capabilities.features and not self.logs

    def decide(self, change: SchemaChange) -> ChangePolicy:
        """What becomes of a change; what the target cannot do was refused before."""
        if change.kind == "add" and fold_name(change.column) in self.layout.asked:
            return "apply"
        accepted = self.accepted_as(change)
        if accepted is not None:
            return accepted
        policy = self.said.policy(change.kind)
        if policy != "pause":
            self.chosen[change.digest] = change, policy
        return policy

    def accepted_as(self, change: SchemaChange) -> ChangePolicy | None:
        """What a person made of a change; None where nobody did."""
        found = self.accepted.get(change.digest)
        if found is None and self.accepted.get(change._replace(at="").digest) == "ignore":
            # Accepted before changes had their moment. To ignore it again loses nothing; to apply it would.
            return "ignore"
        return found

    def pending(self, change: SchemaChange, *, reason: str = "") -> Pending:
        """A change that waits, with what may be made of it."""
        ways = [policy for policy in allowed_policies(change.kind) if policy != "pause"]
        if reason or change.kind in ALL_FEATURES - self.capabilities.features:
            ways = [policy for policy in ways if policy != "apply"]
        return Pending(change, tuple(ways), reason)


class DecidedChange(NamedTuple):
    """A change and what becomes of it; ``reason`` is why it cannot be carried out, ``doubt`` why it waits."""

    change: SchemaChange
    policy: ChangePolicy
    reason: str = ""
    doubt: str = ""


@dataclass(frozen=True)
class SchemaDecision:
    """What is done with a batch: ``given`` is the shape the target gets, unless some change waits.

    ``omitted``: columns of the rows that the target does not get. ``drops``: columns to drop first.
    """

    given: TableShape
    omitted: tuple[str, ...] = ()
    pending: tuple[Pending, ...] = ()
    drops: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def decide_changes(
    gap: SchemaGap, shape: TableShape, policies: Policies, reported: SourceColumns | None
) -> SchemaDecision:
    """What becomes of the changes between a target's columns, a shape, and what DDL says of the table."""
    dropped = list(_dropped(gap, shape, policies, reported)) if reported else []
    fold = folding(gap.columns, (column.name for column in shape.columns))
    gone = {
        fold(schema_decision.change.column)
        for schema_decision in dropped
        if schema_decision.policy == "apply"
    }
    grown = [
        _decided_growth(change, gap, shape, policies)
        for change in _grown(gap, shape, policies.layout)
        if not (change.kind == "add" and fold(change.column) in gone)
    ]
    narrowed = (
        [DecidedChange(change, policies.decide(change)) for change in _narrowed(gap, shape, reported)]
        if reported
        else []
    )
    ignored = tuple(one.change.column for one in grown if (one.change.kind, one.policy) == ("add", "ignore"))
    omitted = (*ignored, *(c.name for c in shape.columns if fold(c.name) in gone))
    return SchemaDecision(
        without(shape, omitted),
        omitted,
        tuple(_waiting(one, policies) for one in (*dropped, *grown, *narrowed) if one.policy == "pause"),
        tuple(name for name in gap.columns if fold(name) in gone),
        tuple(_OMITTED.format(name) for name in ignored),
    )


_OMITTED = (
    "Column {} is new at the source and is not added to the target (schema-changes: add: ignore). Its values "
    "are lost."
)
_DOUBTED = (
    "it appeared when {} disappeared, which except_column_list names: if it is that column under a new name, "
    "add it to except_column_list"
)
_READDED = (
    "the column was dropped and added again, and rows written before the drop cannot be distinguished from "
    "rows written later: reject it to keep the column as it is in the target, or load the table again"
)


def _waiting(schema_decision: DecidedChange, policies: Policies) -> Pending:
    found = policies.pending(schema_decision.change, reason=schema_decision.reason)
    return found._replace(reason=schema_decision.doubt) if schema_decision.doubt else found


def _decided_growth(
    change: SchemaChange, gap: SchemaGap, shape: TableShape, policies: Policies
) -> DecidedChange:
    """What becomes of a new column or a wider one.

    One that may be a column left out under a new name waits, unless it is left out anyway. What the target
    has of it is not, whatever becomes of new columns.
    """
    policy = policies.decide(change)
    if change.kind != "add" or not change.before or policies.accepted_as(change):
        return DecidedChange(change, policy)
    column = shape.by_name[shape.fold(change.column)]
    waits = policy == "apply" or change.column not in gap.added
    return DecidedChange(change, "pause" if waits else policy, doubt=doubt_of(column, policies.layout))


def doubt_of(column: ShapeColumn, layout: Layout) -> str:
    """Why a column waits that a layout ``doubts``."""
    return _DOUBTED.format(", ".join(layout.doubted(column.instead_of)))


def _grown(gap: SchemaGap, shape: TableShape, layout: Layout) -> Iterator[SchemaChange]:
    for name in gap.added:
        column = shape.find(name)
        if column is not None:  # a mode's own columns are nobody's choice
            yield _added(column, layout)
    fold = folding(gap.columns, (column.name for column in shape.columns))
    there = {fold(name) for name in gap.columns}
    for column in shape.columns:
        if fold(column.name) in there and layout.doubts(column):
            yield _added(column, layout)
    for name, types in gap.widened.items():
        yield SchemaChange("widen", name, *types)


def _added(column: ShapeColumn, layout: Layout) -> SchemaChange:
    """A column that comes; from those that are left out of which it may be one."""
    before = layout.doubted(column.instead_of) if layout.doubts(column) else ()
    return SchemaChange("add", column.name, ", ".join(before), column.comment)


def _dropped(
    gap: SchemaGap, shape: TableShape, policies: Policies, reported: SourceColumns
) -> Iterator[DecidedChange]:
    """Columns that the source has no more, at the target or in rows from before."""
    there = {fold_name(name) for name in gap.columns} - policies.own
    for column in reported.former:
        if fold_name(column.name) in there | (shape.by_name.keys() - policies.own):
            change = SchemaChange("drop", column.name, before=column.type.sql or column.type.name)
            change = change._replace(at=reported.partings.get(fold_name(column.name), ""))
            policy = policies.decide(change)
            at_target = fold_name(column.name) in there
            # A column that only rows from before have is no change that anybody waits for.
            yield DecidedChange(change, "ignore" if policy == "pause" and not at_target else policy)
    for name in sorted(reported.readded & there):
        at = reported.partings.get(fold_name(name), "")
        change = SchemaChange("drop", name, before="dropped", after="added again", at=at)
        # Where a person had the old column dropped, what rows of before it bring is as unwanted.
        drops = "apply" in (policies.said.drop, policies.accepted_as(SchemaChange("drop", name, at=at)))
        if drops and policies.accepted_as(change) is None:
            yield DecidedChange(change, "pause", _READDED)


def _narrowed(gap: SchemaGap, shape: TableShape, reported: SourceColumns) -> Iterator[SchemaChange]:
    present = {fold_name(name): found for name, found in gap.held.items()}
    for column in reported.current.columns:
        held = present.get(fold_name(column.name))
        now = spark_type(column.type, zero_date=shape.zero_date).ddl
        if held is not None and held != now and wider_ddl(held, now) == held:
            yield SchemaChange("narrow", column.name, held, now)


_READ_BY_FILTER: Final = (
    "{} (the table's filter reads the column, so its type matters although the target does not store it: "
    "remove the column from filter)"
)


def pending_of(error: SchemaRefusedError, layout: Layout | None = None) -> Pending | None:
    """The change that a target or a shape refused; None where it refused something else.

    ``layout``: the table's, which may leave out a column that its filter reads.
    """
    kind = error.context.get("change")
    if kind not in get_args(ChangeKind):
        return None
    said = (str(error.context.get(name, "")) for name in ("column", "before", "after"))
    reason, column = error.message, str(error.context.get("column", ""))
    if kind == "type" and layout is not None and layout.row_filter and not layout.chooses(column):
        reason = _READ_BY_FILTER.format(reason)
    return Pending(SchemaChange(kind, *said), reason=reason)  # type: ignore[arg-type]


_UNREADABLE: Final = (
    "rows written before the rename cannot be read as the column is now: reject it to continue with both "
    "columns, or load the table again"
)
_KEY: Final = (
    "a key column was renamed at the source, and existing rows would not be found under the new name: rename "
    f"it back, or {LOAD_AGAIN}, with a start: after the change"
)


class ChangesWaitError(Exception):
    """Changes of the columns wait for a person: nothing of the batch is applied."""

    def __init__(self, pending: tuple[Pending, ...]) -> None:
        super().__init__("changes of the columns wait")
        self.pending = pending


def source_columns_of(decoding: Decoding, policies: Policies) -> SourceColumns | None:
    """What DDL says of a table's columns, where the target keeps rows to follow it."""
    return decoding.reported() if policies.follows else None


def settle_names(table: TargetTable, decoding: Decoding, policies: Policies) -> bool:
    """Rename at the target what is to be renamed, and have rows read by the columns that the target has.

    Whether anything was renamed.

    Raises:
        ChangesWaitError: a rename waits for a person.
        TidesinkError: as ``gap``, ``rename_column`` and ``read_as``.
    """
    reported = source_columns_of(decoding, policies)
    if reported is None:
        return False
    if not reported.renamed and not reported.former:
        decoding.read_as({}, {})
        return False
    shape = decoding.columns().shape
    gap = table.gap(shape)
    present = {fold_name(name): name for name in gap.columns if fold_name(name) not in policies.own}
    keys = frozenset(fold_name(name) for name in shape.keys)
    decided = {
        old: _key_waits(old, new, present, keys) or _decided(old, new, present, policies)
        for old, new in _distinct_renames(reported, present)
    }
    waiting = tuple(found for found in decided.values() if isinstance(found, Pending))
    if waiting:
        raise ChangesWaitError(waiting)
    for old, found in decided.items():
        if found == "apply":
            new = reported.renamed[old]
            table.rename_column(present[fold_name(new.was or old)], new.target or new.name)
    read = {old: reported.renamed[old].name for old, found in decided.items() if found in ("apply", "read")}
    held = {fold_name(name): found for name, found in gap.held.items() if fold_name(name) in present}
    decoding.read_as(read, held)
    return "apply" in decided.values()


def _key_waits(old: str, new: Renamed, present: Mapping[str, str], keys: frozenset[str]) -> Pending | None:
    """A rename of a key column that the target has, by the plan's keys of before it or after it."""
    was, name = new.was or old, new.target or new.name
    if fold_name(was) not in present or keys.isdisjoint((fold_name(was), fold_name(name))):
        return None
    return Pending(SchemaChange("key", was, was, name, new.at), reason=_KEY)


def _distinct_renames(reported: SourceColumns, present: Mapping[str, str]) -> Iterator[tuple[str, Renamed]]:
    """Renames that are to be decided, newest first.

    One to a name that some column had left before says as little as one to a reused name. Of several names
    that one column had, the newest that the target has is the column: an older one there was ignored.
    """
    goals = set()
    for old, new in reported.renamed.items():
        destination = fold_name(new.target or new.name)
        if fold_name(new.was or old) in present:
            if destination in goals and not new.reused:
                continue
            goals.add(destination)
        yield old, new._replace(returned=destination in reported.partings)


def _decided(old: str, new: Renamed, present: Mapping[str, str], policies: Policies) -> Pending | str:
    """What becomes of one rename: ``apply`` it, ``read`` the old name as the new one, or ``ignore`` it."""
    was, name = new.was or old, new.target or new.name
    there = (fold_name(was) in present, fold_name(name) in present)
    if there == (False, True) or (there == (False, False) and not new.reused):
        return "read" if new.readable else "ignore"
    if there == (True, True) and not (new.reused or new.returned):
        return "ignore"
    follows = there == (True, False) and new.readable
    change = SchemaChange("rename", was, was, name, new.at)
    policy = policies.decide(change)
    if policy == "pause" or (policy == "apply" and not follows):
        return policies.pending(change, reason="" if follows else _UNREADABLE)
    return policy


_KIND: Final = "known-columns"
_NOT_NEW: Final = (
    "Column {} is not new at the source, but is added to the target only now. It is NULL in existing rows "
    "until they change. Load the table again if that matters."
)


class KnownColumns:
    """The source's columns as of a table's last batch; a state store that was lost knows none."""

    def __init__(self, store: StateStore, progress: Progress, layout: Layout) -> None:
        self._store = store
        self._name = _name(progress.pipeline, progress.table)
        # The source's names by the target's, as these are spelled and folded.
        self._rename = {new: old for old, new in layout.rename.items()}
        self._folded = {fold_name(new): old for old, new in layout.rename.items()}
        self._kept = store.load_document(_KIND, self._name)
        self._known = _columns_of(self._kept, progress)
        self._unkept: Mapping[str, Any] | None = None

    def schema_decision(
        self, decision: SchemaDecision, added: Collection[str], fold: NameFold = fold_name
    ) -> SchemaDecision:
        """The decision, by which columns that are not new bring no default.

        ``added``: the columns that come. ``fold``: how the source's names are compared.
        """
        given = decision.given
        known = {
            c.name
            for c in given.columns
            if c.default is not None and self._source(c.name, fold) in self._known
        }
        columns = tuple(replace(c, default=None) if c.name in known else c for c in given.columns)
        warnings = tuple(_NOT_NEW.format(name) for name in added if name in known)
        return replace(
            decision,
            given=replace(given, columns=columns) if known else given,
            warnings=(*decision.warnings, *warnings),
        )

    def applied(self, decoding: Decoding, progress: Progress) -> None:
        """Take note of a batch's columns, once it is applied; ``keep`` writes them down."""
        plan, reported = decoding.columns(), decoding.reported()
        shape, fold = plan.shape, plan.rows.shape.fold
        # One that was dropped is new when it is added again.
        dropped = {self._source(column.name, fold) for column in reported.former} if reported else set()
        there = {self._source(column.name, fold) for column in shape.columns}
        now = frozenset({*there, *shape.omitted} - dropped)
        if now != self._known:
            self._unkept = {"batch": progress.batch, "columns": sorted(now)}
            self._known = now

    def keep(self) -> None:
        """Have the state store know; what it did not take is written the next time.

        What another worker wrote meanwhile stays: it holds the table.
        """
        if self._unkept is not None:
            self._store.swap_document(_KIND, self._name, old=self._kept, new=self._unkept)
            self._kept, self._unkept = self._unkept, None

    def _source(self, name: str, fold: NameFold) -> str:
        """The source's name, folded, of a column of the target."""
        if name in self._rename:
            return fold(self._rename[name])
        return fold(self._folded.get(fold_name(name), name) if fold is fold_name else name)


def _columns_of(kept: Mapping[str, Any] | None, progress: Progress) -> frozenset[str]:
    """What is kept, unless it is of other rows: the table was loaded again, or is from an old backup."""
    if kept is None or kept["batch"] > progress.batch:
        return frozenset()
    return frozenset(kept["columns"])


# Of one table.
MOST_CHOICES: Final = 50
_CHOICES_KIND: Final = "policy-choices"
_MOST_SQL: Final = 1_000


class Choice(NamedTuple):
    """What a policy made of a change; ``at``, in seconds since 1970, is when a worker heeded it."""

    policy: ChangePolicy
    at: float
    batch: int
    change: Mapping[str, Any]


class PolicyChoices:
    """What the policies of a pipeline's tables made of changes by themselves, for people who ask.

    It is kept before the batch that heeds it is committed, with that batch's number: none is missing after a
    kill, and a batch that is tried again has its choices once. Of each table the newest stay. Of one table
    one thread keeps them at a time.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        # What is ignored is found again by each batch: the store is asked once.
        self._known: set[tuple[TableId, str]] = set()

    def keep(self, chosen: Chosen, progress: Progress) -> None:
        """Keep what a batch does by policies, once.

        Raises:
            StateStoreError: the store does not answer.
        """
        table = progress.table
        new = {digest: one for digest, one in chosen.items() if (table, digest) not in self._known}
        if not new:
            return

        def more(old: Any | None) -> list[Any]:
            kept = list(old or ())
            for digest, (change, policy) in new.items():
                known = [one for one in kept if one[3]["digest"] == digest]
                if not known or (_recurs(change, policy) and known[-1][2] != progress.batch):
                    kept.append([policy, time.time(), progress.batch, _shown(change)])
            return kept[-MOST_CHOICES:]

        busy = StateStoreError(
            "The policy choices of the table could not be stored, because others keep changing them.",
            table=str(table),
        )
        change_document(self._store, _CHOICES_KIND, _name(progress.pipeline, table), more, busy)
        self._known.update((table, digest) for digest, one in new.items() if not _recurs(*one))


def read_choices(store: StateStore, pipeline: str, table: TableId) -> tuple[Choice, ...]:
    """What a table's policies made of changes, the oldest first.

    Raises:
        StateStoreError: the store does not answer.
    """
    found = store.load_document(_CHOICES_KIND, _name(pipeline, table)) or ()
    return tuple(Choice(*one) for one in found)


def _recurs(change: SchemaChange, policy: ChangePolicy) -> bool:
    """Whether the very same change may come again: a column that was dropped meanwhile and is added again."""
    return (change.kind, policy) == ("add", "apply")


def _shown(change: SchemaChange) -> dict[str, Any]:
    shown = change.as_json()
    return {**shown, "statement": shown["statement"][:_MOST_SQL]} if "statement" in shown else shown


def _name(pipeline: str, table: TableId) -> str:
    return json.dumps([pipeline, *table], ensure_ascii=False)
