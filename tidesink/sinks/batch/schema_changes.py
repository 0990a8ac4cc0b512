"""Decisions on changes of the source's columns: policies, renames, and columns that are already known."""

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
# A person's decisions on changes, by the digest of the change.
Accepted = Mapping[str, ChangePolicy]
# Decisions of policies on changes, by the digest of the change.
Chosen = Mapping[str, "tuple[SchemaChange, ChangePolicy]"]


class SchemaChange(NamedTuple):
    """A change of a column, or DDL that changes rows.

    Attributes:
        kind: The kind of the change.
        column: The column, or empty.
        before: The old type or key columns. For DDL that changes rows, its commit time.
        after: The new type or key columns. For DDL that changes rows, the statement.
        at: The moment of the DDL that reported a drop or a rename. If a dropped column is added and dropped
            again, the second drop is another change with its own decision.
    """

    kind: ChangeKind
    column: str
    before: str = ""
    after: str = ""
    at: str = ""

    @property
    def digest(self) -> str:
        """A digest that identifies this change among all changes of the table."""
        reported = list(self) if self.at else list(self)[:4]
        if self.kind == "add" and self.before:
            # A person decides once which excluded column it may be. Its type is not part of the digest,
            # because it may become wider. Names keep their case: names that differ in case are two columns.
            reported = [self.kind, self.column, self.before]
        if self.at and self.kind == "drop":
            # The moment identifies the column; its type is no longer known once it was added again.
            reported = [self.kind, fold_name(self.column), self.after, self.at]
        return hashlib.sha256(json.dumps(reported, ensure_ascii=True).encode()).hexdigest()[:16]

    @property
    def short_digest(self) -> str:
        """The start of the digest, which identifies the change in commands."""
        return self.digest[:SHORT_DIGEST]

    @property
    def changes_rows(self) -> bool:
        """True for DDL that changes rows, False for changes of columns.

        Also True for a rename in a connector's DDL, because it does not name a column of the target.
        """
        return self.kind in get_args(RowChangeKind) or (self.kind == "rename" and not self.column)

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON for the status and for stored decisions."""
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
        """Returns the change as text."""
        if self.changes_rows:
            return f"{self.kind}{f' of {self.before}' if self.before else ''} ({self.after})"
        column = f" column {self.column}" if self.column else ""
        return f"{self.kind}{column} ({' -> '.join(part for part in (self.before, self.after) if part)})"


class Pending(NamedTuple):
    """A change that waits for a person.

    ``accepts``: the decisions that ``tidesink ddl`` allows. If it is empty, ``reason`` explains why.
    """

    change: SchemaChange
    accepts: tuple[ChangePolicy, ...] = ()
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON for the status."""
        waits = {"policy": "pause", "accepts": list(self.accepts), "reason": self.reason}
        return {**self.change.as_json(), **waits}


def _time_of(at: str) -> str:
    """Returns the time at which a column was dropped or renamed; empty if its DDL has no time."""
    return shown_time(physical_ms(int(at))) if at.isdigit() else ""


@dataclass(frozen=True)
class Policies:
    """The basis of decisions on changes.

    Attributes:
        said: The policies in the config.
        accepted: Decisions of people.
        capabilities: The capabilities of the target.
        logs: True if the table is a log of changes (``mode: append``).
        layout: The table's projection. Adding a column that it asks for is not a change at the source.
        added: Columns of the target that the table's mode adds.
        chosen: By digest, the decisions made so far without a person. They apply if no change waits.
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
        """Returns the policies of a table's settings."""
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
        """Columns of the target, in lower case, that are not from the source even if it uses the names."""
        return frozenset(map(fold_name, (*OWN_COLUMNS, *self.layout.metadata.values(), *self.added)))

    @property
    def follows(self) -> bool:
        """True if existing columns can change. Rows that were sent or logged do not change."""
        return "rows" in self.capabilities.features and not self.logs

    def decide(self, change: SchemaChange) -> ChangePolicy:
        """Decides on a change. Changes that the target cannot apply were refused earlier."""
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
        """Returns a person's decision on a change, or None."""
        found = self.accepted.get(change.digest)
        if found is None and self.accepted.get(change._replace(at="").digest) == "ignore":
            # Decided before changes had a moment. Ignoring it again loses nothing, but applying it might.
            return "ignore"
        return found

    def pending(self, change: SchemaChange, *, reason: str = "") -> Pending:
        """Returns a waiting change with the possible decisions."""
        ways = [policy for policy in allowed_policies(change.kind) if policy != "pause"]
        if reason or change.kind in ALL_FEATURES - self.capabilities.features:
            ways = [policy for policy in ways if policy != "apply"]
        return Pending(change, tuple(ways), reason)


class DecidedChange(NamedTuple):
    """A change and its policy. ``reason``: why it cannot be carried out. ``doubt``: why it waits."""

    change: SchemaChange
    policy: ChangePolicy
    reason: str = ""
    doubt: str = ""


@dataclass(frozen=True)
class SchemaDecision:
    """The decision on the columns of a batch.

    Attributes:
        given: The shape of the target, unless a change waits.
        omitted: Columns of the rows that the target does not get.
        pending: Changes that wait for a person.
        drops: Columns to drop first.
        warnings: Warnings for the user.
    """

    given: TableShape
    omitted: tuple[str, ...] = ()
    pending: tuple[Pending, ...] = ()
    drops: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def decide_changes(
    gap: SchemaGap, shape: TableShape, policies: Policies, reported: SourceColumns | None
) -> SchemaDecision:
    """Decides on the changes between a target's columns, a shape, and the columns that DDL reports."""
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
    """Decides on a new or a wider column.

    A new column that may be an excluded column under a new name waits, unless new columns are ignored. If the
    target already has the column, it waits under every policy.
    """
    policy = policies.decide(change)
    if change.kind != "add" or not change.before or policies.accepted_as(change):
        return DecidedChange(change, policy)
    column = shape.by_name[shape.fold(change.column)]
    waits = policy == "apply" or change.column not in gap.added
    return DecidedChange(change, "pause" if waits else policy, doubt=doubt_of(column, policies.layout))


def doubt_of(column: ShapeColumn, layout: Layout) -> str:
    """Returns why a column waits that may be an excluded column (``Layout.doubts``)."""
    return _DOUBTED.format(", ".join(layout.doubted(column.instead_of)))


def _grown(gap: SchemaGap, shape: TableShape, layout: Layout) -> Iterator[SchemaChange]:
    for name in gap.added:
        column = shape.find(name)
        if column is not None:  # columns of the mode need no decision
            yield _added(column, layout)
    fold = folding(gap.columns, (column.name for column in shape.columns))
    there = {fold(name) for name in gap.columns}
    for column in shape.columns:
        if fold(column.name) in there and layout.doubts(column):
            yield _added(column, layout)
    for name, types in gap.widened.items():
        yield SchemaChange("widen", name, *types)


def _added(column: ShapeColumn, layout: Layout) -> SchemaChange:
    """Returns the change of a new column. ``before``: the excluded columns that it may be."""
    before = layout.doubted(column.instead_of) if layout.doubts(column) else ()
    return SchemaChange("add", column.name, ", ".join(before), column.comment)


def _dropped(
    gap: SchemaGap, shape: TableShape, policies: Policies, reported: SourceColumns
) -> Iterator[DecidedChange]:
    """Yields decisions on columns that the source dropped and the target, or an older row, still has."""
    there = {fold_name(name) for name in gap.columns} - policies.own
    for column in reported.former:
        if fold_name(column.name) in there | (shape.by_name.keys() - policies.own):
            change = SchemaChange("drop", column.name, before=column.type.sql or column.type.name)
            change = change._replace(at=reported.partings.get(fold_name(column.name), ""))
            policy = policies.decide(change)
            at_target = fold_name(column.name) in there
            # If only older rows have the column, no person needs to decide.
            yield DecidedChange(change, "ignore" if policy == "pause" and not at_target else policy)
    for name in sorted(reported.readded & there):
        at = reported.partings.get(fold_name(name), "")
        change = SchemaChange("drop", name, before="dropped", after="added again", at=at)
        # If a person had the old column dropped, its values in older rows are not wanted either.
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
    """Returns the change that a target or a shape refused, or None if the error is about something else.

    ``layout``: the table's projection. It may exclude a column that its filter reads.
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
    """Changes of the columns wait for a person. The batch is not applied."""

    def __init__(self, pending: tuple[Pending, ...]) -> None:
        super().__init__("changes of the columns wait")
        self.pending = pending


def source_columns_of(decoding: Decoding, policies: Policies) -> SourceColumns | None:
    """Returns the columns that DDL reports, or None if the target has no rows that can follow DDL."""
    return decoding.reported() if policies.follows else None


def settle_names(table: TargetTable, decoding: Decoding, policies: Policies) -> bool:
    """Rename columns of the target, and have rows read under the column names that the target has.

    Returns:
        True if a column was renamed.

    Raises:
        ChangesWaitError: A rename waits for a person.
        TidesinkError: ``gap``, ``rename_column`` or ``read_as`` failed.
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
    """Returns a waiting rename if the target has the column, and it is a key under its old or new name."""
    was, name = new.was or old, new.target or new.name
    if fold_name(was) not in present or keys.isdisjoint((fold_name(was), fold_name(name))):
        return None
    return Pending(SchemaChange("key", was, was, name, new.at), reason=_KEY)


def _distinct_renames(reported: SourceColumns, present: Mapping[str, str]) -> Iterator[tuple[str, Renamed]]:
    """Yields the renames to decide, newest first.

    If a column had the new name earlier, a target with both names does not show that the rename was
    ignored (``returned``, like ``reused``). If a column had several names, the newest name in the target is
    the column. An older name there was ignored.
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
    """Decides on a rename: ``apply`` it, ``read`` the old name as the new one, ``ignore`` it, or wait."""
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
    """The source's columns as of a table's last batch. Empty if the state store was lost."""

    def __init__(self, store: StateStore, progress: Progress, layout: Layout) -> None:
        self._store = store
        self._name = _name(progress.pipeline, progress.table)
        # The source's names, by the target's exact names and by their folded names.
        self._rename = {new: old for old, new in layout.rename.items()}
        self._folded = {fold_name(new): old for old, new in layout.rename.items()}
        self._kept = store.load_document(_KIND, self._name)
        self._known = _columns_of(self._kept, progress)
        self._unkept: Mapping[str, Any] | None = None

    def schema_decision(
        self, decision: SchemaDecision, added: Collection[str], fold: NameFold = fold_name
    ) -> SchemaDecision:
        """Returns the decision without defaults of columns that are not new at the source.

        ``added``: the columns that the target gets. ``fold``: compares the source's names.
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
        """Note the columns of an applied batch; ``keep`` stores them."""
        plan, reported = decoding.columns(), decoding.reported()
        shape, fold = plan.shape, plan.rows.shape.fold
        # A dropped column is new when it is added again.
        dropped = {self._source(column.name, fold) for column in reported.former} if reported else set()
        there = {self._source(column.name, fold) for column in shape.columns}
        now = frozenset({*there, *shape.omitted} - dropped)
        if now != self._known:
            self._unkept = {"batch": progress.batch, "columns": sorted(now)}
            self._known = now

    def keep(self) -> None:
        """Store the columns. If this fails, they are stored the next time.

        A document that another worker wrote in the meantime is kept, because that worker holds the table.
        """
        if self._unkept is not None:
            self._store.swap_document(_KIND, self._name, old=self._kept, new=self._unkept)
            self._kept, self._unkept = self._unkept, None

    def _source(self, name: str, fold: NameFold) -> str:
        """Returns the folded source name of a column of the target."""
        if name in self._rename:
            return fold(self._rename[name])
        return fold(self._folded.get(fold_name(name), name) if fold is fold_name else name)


def _columns_of(kept: Mapping[str, Any] | None, progress: Progress) -> frozenset[str]:
    """Returns the stored columns, unless they belong to other rows: a reloaded table or an old backup."""
    if kept is None or kept["batch"] > progress.batch:
        return frozenset()
    return frozenset(kept["columns"])


# Per table.
MOST_CHOICES: Final = 50
_CHOICES_KIND: Final = "policy-choices"
_MOST_SQL: Final = 1_000


class Choice(NamedTuple):
    """A policy's decision on a change. ``at``: when a worker followed it, in seconds since 1970."""

    policy: ChangePolicy
    at: float
    batch: int
    change: Mapping[str, Any]


class PolicyChoices:
    """Stored decisions that the policies of a pipeline's tables made without a person.

    Decisions are stored before the batch that follows them is committed, with that batch's number. So none
    is missing after a kill, and a batch that is tried again stores them once. The newest decisions of each
    table are kept. Only one thread at a time stores decisions of a table.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        # Each batch finds ignored changes again, but the store is read only once.
        self._known: set[tuple[TableId, str]] = set()

    def keep(self, chosen: Chosen, progress: Progress) -> None:
        """Store the decisions of policies for a batch, each one once.

        Raises:
            StateStoreError: The state store does not answer.
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
    """Returns the decisions of a table's policies, oldest first.

    Raises:
        StateStoreError: The state store does not answer.
    """
    found = store.load_document(_CHOICES_KIND, _name(pipeline, table)) or ()
    return tuple(Choice(*one) for one in found)


def _recurs(change: SchemaChange, policy: ChangePolicy) -> bool:
    """Returns True if the same change may come again: a column that was dropped and is added again."""
    return (change.kind, policy) == ("add", "apply")


def _shown(change: SchemaChange) -> dict[str, Any]:
    shown = change.as_json()
    return {**shown, "statement": shown["statement"][:_MOST_SQL]} if "statement" in shown else shown


def _name(pipeline: str, table: TableId) -> str:
    return json.dumps([pipeline, *table], ensure_ascii=False)
