"""Decisions on schema changes of the source: a table's policies, its renames, and its known columns."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from tidesink.config.fields import ChangeKind, ChangePolicy, SchemaChanges, allowed_policies
from tidesink.config.targets import ALL_FEATURES
from tidesink.ddl.row_changes import RowChangeKind, shown_time
from tidesink.errors import LOAD_AGAIN, SchemaRefusedError, StateStoreError
from tidesink.events import NameFold, TableId, fold_name, folding, physical_ms
from tidesink.sinks.decode.schema_source import Decoding, Renamed, SourceColumns
from tidesink.sinks.laws.modes import names_of
from tidesink.sinks.state.documents import DocumentKind, list_key
from tidesink.sinks.state.progress import Progress, StateStore
from tidesink.sinks.targets.base import OWN_COLUMNS, Capabilities, SchemaGap
from tidesink.typemap.projection import Projection
from tidesink.typemap.table import spark_type
from tidesink.typemap.target_schema import TargetColumn, TargetSchema, wider_ddl, without

if TYPE_CHECKING:
    from tidesink.config import TableConfig
    from tidesink.sinks.targets.base import TargetTable


SHORT_DIGEST: Final = 8
# Decisions of people on schema changes, by the digest of the change.
Accepted = Mapping[str, ChangePolicy]
# Schema changes that policies decided without a person, with the decision, by the digest of the change.
Chosen = Mapping[str, "tuple[SchemaChange, ChangePolicy]"]


class SchemaChange(NamedTuple):
    """A schema change: of a column, of the key, or DDL that changes existing rows.

    Attributes:
        kind: The kind of the change, for example ``add``, ``drop`` or ``widen``.
        column: The name of the column, or empty.
        before: The old type or the old key columns. For DDL that changes rows, its commit time.
        after: The new type or the new key columns. For DDL that changes rows, the statement.
        at: Identifies the DDL of a drop or a rename, as in ``Renamed.at``. If a dropped column is added and
            dropped again, the second drop is another change, and is decided separately.
    """

    kind: ChangeKind
    column: str
    before: str = ""
    after: str = ""
    at: str = ""

    @property
    def digest(self) -> str:
        """A hash of the change, which differs from the hashes of all other changes of the table."""
        reported = list(self) if self.at else list(self)[:4]
        if self.kind == "add" and self.before:
            # ``before`` has the excluded columns that the new column may be. A person decides on this once,
            # so the type, which may change later, is not part of the digest. Names keep their case, because
            # names that differ only in case may be two columns.
            reported = [self.kind, self.column, self.before]
        if self.at and self.kind == "drop":
            # ``at`` identifies the drop. The type is left out, because it is no longer known after the column
            # was added again.
            reported = [self.kind, fold_name(self.column), self.after, self.at]
        return hashlib.sha256(json.dumps(reported, ensure_ascii=True).encode()).hexdigest()[:16]

    @property
    def short_digest(self) -> str:
        """The first 8 characters of the digest. People use them in commands to name the change."""
        return self.digest[:SHORT_DIGEST]

    @property
    def changes_rows(self) -> bool:
        """True for DDL that changes existing rows, and False for a change of columns or of the key.

        A rename in the DDL of a Debezium connector also counts as DDL of rows, because it does not name a
        column of the target.
        """
        return self.kind in get_args(RowChangeKind) or (self.kind == "rename" and not self.column)

    def as_json(self) -> dict[str, Any]:
        """Returns the change as JSON for ``tidesink status`` and for the state store."""
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
        """Returns the change as text for people."""
        if self.changes_rows:
            return f"{self.kind}{f' of {self.before}' if self.before else ''} ({self.after})"
        column = f" column {self.column}" if self.column else ""
        return f"{self.kind}{column} ({' -> '.join(part for part in (self.before, self.after) if part)})"


class Pending(NamedTuple):
    """A schema change that waits for the decision of a person.

    ``accepts``: the decisions that ``tidesink ddl`` allows. ``reason``: why the change waits or why some
    decisions are not allowed.
    """

    change: SchemaChange
    accepts: tuple[ChangePolicy, ...] = ()
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the waiting change as JSON for ``tidesink status``."""
        waits = {"policy": "pause", "accepts": list(self.accepts), "reason": self.reason}
        return {**self.change.as_json(), **waits}


def _time_of(ddl_identity: str) -> str:
    """Returns the commit time of a drop or a rename as text; empty if its DDL has no time."""
    return shown_time(physical_ms(int(ddl_identity))) if ddl_identity.isdigit() else ""


@dataclass(frozen=True)
class Policies:
    """The settings and decisions by which a table's schema changes are decided.

    Attributes:
        said: The policies in the config (``schema-changes``).
        accepted: The decisions of people.
        capabilities: Features of the target, such as dropping a column.
        logs: True for a change log (``mode: append``).
        projection: The columns that the config chooses, excludes or renames. If it names a column, adding
            this column to the target needs no decision.
        added: The columns that the table's mode adds to the target.
    """

    said: SchemaChanges
    accepted: Accepted
    capabilities: Capabilities
    logs: bool = False
    projection: Projection = Projection()  # noqa: RUF009 - it is frozen
    added: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: TableConfig, accepted: Accepted, capabilities: Capabilities) -> Policies:
        """Creates the policies of a table from its settings and from people's decisions (``accepted``)."""
        names = names_of(settings)
        return cls(
            settings.schema_changes,
            accepted,
            capabilities,
            logs=settings.mode == "append",
            projection=settings.projection,
            added=names.own if names else (),
        )

    @property
    def own(self) -> frozenset[str]:
        """Target columns, in lower case, that tidesink fills itself even if the source has such columns."""
        return frozenset(map(fold_name, (*OWN_COLUMNS, *self.projection.metadata.values(), *self.added)))

    @property
    def follows(self) -> bool:
        """True if DDL can be applied to existing rows of the target.

        False for a target that gets messages, such as a Kafka topic, and for a change log.
        """
        return "rows" in self.capabilities.features and not self.logs

    def decide(self, change: SchemaChange) -> DecidedChange:
        """Returns the decision on a change: a person's decision, or else the policy in the config.

        Changes that the target cannot apply must be rejected by the caller first.
        """
        if change.kind == "add" and fold_name(change.column) in self.projection.asked:
            return DecidedChange(change, "apply")
        accepted = self.accepted_as(change)
        if accepted is not None:
            return DecidedChange(change, accepted)
        policy = self.said.policy(change.kind)
        return DecidedChange(change, policy, by_config=policy != "pause")

    def accepted_as(self, change: SchemaChange) -> ChangePolicy | None:
        """Returns a person's decision on a schema change, or None if no person has decided."""
        return self.accepted.get(change.digest)

    def pending(self, change: SchemaChange, *, reason: str = "") -> Pending:
        """Returns the change as one that waits for a person, with the decisions that the person can choose.

        ``reason``: why the change cannot be applied. Then ``apply`` is not among the decisions.
        """
        ways = [policy for policy in allowed_policies(change.kind) if policy != "pause"]
        if reason or change.kind in ALL_FEATURES - self.capabilities.features:
            ways = [policy for policy in ways if policy != "apply"]
        return Pending(change, tuple(ways), reason)


class DecidedChange(NamedTuple):
    """A schema change and the decision on it.

    Attributes:
        change: The change.
        policy: The decision.
        by_config: True if a policy in the config made the decision. False if a person made it, if the config
            names the column, or if the change waits for a person.
        reason: Why the change cannot be applied, or empty.
        possible_rename: Why the change waits although its policy is not ``pause``, or empty.
    """

    change: SchemaChange
    policy: ChangePolicy
    by_config: bool = False
    reason: str = ""
    possible_rename: str = ""


def chosen_of(decided: Iterable[DecidedChange]) -> Chosen:
    """Returns the decisions that policies in the config made, by the digest of the change."""
    return {
        decided_change.change.digest: (decided_change.change, decided_change.policy)
        for decided_change in decided
        if decided_change.by_config
    }


@dataclass(frozen=True)
class SchemaDecision:
    """The decision on the columns that the target will have after a batch.

    Attributes:
        given: The columns that the target will have, if no change waits.
        omitted: Columns of the rows that are not written to the target.
        pending: Changes that wait for a person. If there are any, the batch is not applied.
        drops: Columns of the target that are dropped before the batch.
        warnings: Warnings for the user.
        chosen: The decisions among them that policies in the config made.
    """

    given: TargetSchema
    omitted: tuple[str, ...] = ()
    pending: tuple[Pending, ...] = ()
    drops: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    chosen: Chosen = field(default_factory=dict)


def decide_changes(
    gap: SchemaGap, shape: TargetSchema, policies: Policies, reported: SourceColumns | None
) -> SchemaDecision:
    """Decides on the differences between the columns of the target and of the source.

    Args:
        gap: The differences between the target's columns and ``shape``.
        shape: The columns of the batch's rows.
        policies: The table's policies.
        reported: The columns as reported by DDL, or None if the protocol has no DDL.
    """
    dropped = list(_dropped(gap, shape, policies, reported)) if reported else []
    fold = folding(gap.columns, (column.name for column in shape.columns))
    dropped_columns = {
        fold(schema_decision.change.column)
        for schema_decision in dropped
        if schema_decision.policy == "apply"
    }
    grown = [
        _decided_growth(change, gap, shape, policies)
        for change in _grown(gap, shape, policies.projection)
        if not (change.kind == "add" and fold(change.column) in dropped_columns)
    ]
    narrowed = [policies.decide(change) for change in _narrowed(gap, shape, reported)] if reported else []
    decided = (*dropped, *grown, *narrowed)
    ignored = tuple(
        decided_change.change.column
        for decided_change in grown
        if (decided_change.change.kind, decided_change.policy) == ("add", "ignore")
    )
    omitted = (*ignored, *(c.name for c in shape.columns if fold(c.name) in dropped_columns))
    return SchemaDecision(
        without(shape, omitted),
        omitted,
        tuple(
            _waiting(decided_change, policies)
            for decided_change in decided
            if decided_change.policy == "pause"
        ),
        tuple(name for name in gap.columns if fold(name) in dropped_columns),
        tuple(_OMITTED.format(name) for name in ignored),
        chosen_of(decided),
    )


_OMITTED = (
    "Column {} is new at the source. It is not added to the target (schema-changes: add: ignore), so its "
    "values are not stored."
)
_POSSIBLE_RENAME = (
    "it may be an excluded column under a new name, because {} disappeared at the same time: if it is that "
    "column, add the new name to except_column_list"
)
_READDED = (
    "the column was dropped and added again, and rows written before the drop cannot be distinguished from "
    "rows written later: reject the change to keep the column and its old values in the target, or load the "
    "table again"
)


def _waiting(schema_decision: DecidedChange, policies: Policies) -> Pending:
    pending = policies.pending(schema_decision.change, reason=schema_decision.reason)
    return (
        pending._replace(reason=schema_decision.possible_rename)
        if schema_decision.possible_rename
        else pending
    )


def _decided_growth(
    change: SchemaChange, gap: SchemaGap, shape: TargetSchema, policies: Policies
) -> DecidedChange:
    """Decides on a column that is new or has a wider type.

    A new column may be an excluded column under a new name. Such a column waits, unless the policy is
    ``ignore``. If the target already has the column, it waits under every policy.
    """
    decided = policies.decide(change)
    if change.kind != "add" or not change.before or policies.accepted_as(change):
        return decided
    column = shape.by_name[shape.fold(change.column)]
    waits = decided.policy == "apply" or change.column not in gap.added
    return decided._replace(
        policy="pause" if waits else decided.policy,
        by_config=decided.by_config and not waits,
        possible_rename=possible_rename_of(column, policies.projection),
    )


def possible_rename_of(column: TargetColumn, projection: Projection) -> str:
    """Returns the reason why a new column waits for a person: it may be an excluded column under a
    new name.
    """
    return _POSSIBLE_RENAME.format(", ".join(projection.excluded_among(column.instead_of)))


def _grown(gap: SchemaGap, shape: TargetSchema, projection: Projection) -> Iterator[SchemaChange]:
    for name in gap.added:
        column = shape.find(name)
        if column is not None:  # columns of the mode need no decision
            yield _added(column, projection)
    fold = folding(gap.columns, (column.name for column in shape.columns))
    there = {fold(name) for name in gap.columns}
    for column in shape.columns:
        if fold(column.name) in there and projection.may_be_excluded(column):
            yield _added(column, projection)
    for name, types in gap.widened.items():
        yield SchemaChange("widen", name, *types)


def _added(column: TargetColumn, projection: Projection) -> SchemaChange:
    """Returns the schema change for a column that is new at the source.

    ``before`` lists the excluded columns that the new column may be.
    """
    before = projection.excluded_among(column.instead_of) if projection.may_be_excluded(column) else ()
    return SchemaChange("add", column.name, ", ".join(before), column.comment)


def _dropped(
    gap: SchemaGap, shape: TargetSchema, policies: Policies, reported: SourceColumns
) -> Iterator[DecidedChange]:
    """Yields decisions on columns that the source dropped, if the target or an older row still has them."""
    there = {fold_name(name) for name in gap.columns} - policies.own
    for column in reported.dropped_columns:
        if fold_name(column.name) in there | (shape.by_name.keys() - policies.own):
            change = SchemaChange("drop", column.name, before=column.type.sql or column.type.name)
            change = change._replace(at=reported.removals.get(fold_name(column.name), ""))
            decided = policies.decide(change)
            at_target = fold_name(column.name) in there
            # If the column is only in older rows and not in the target, no person needs to decide.
            if decided.policy == "pause" and not at_target:
                decided = decided._replace(policy="ignore")
            yield decided
    for name in sorted(reported.readded & there):
        parting = reported.removals.get(fold_name(name), "")
        change = SchemaChange("drop", name, before="dropped", after="added again", at=parting)
        # If the policy or a person dropped the old column, its values in older rows are not wanted either.
        drops = "apply" in (policies.said.drop, policies.accepted_as(SchemaChange("drop", name, at=parting)))
        if drops and policies.accepted_as(change) is None:
            yield DecidedChange(change, "pause", reason=_READDED)


def _narrowed(gap: SchemaGap, shape: TargetSchema, reported: SourceColumns) -> Iterator[SchemaChange]:
    present = {fold_name(name): held_type for name, held_type in gap.held.items()}
    for column in reported.current.columns:
        held = present.get(fold_name(column.name))
        now = spark_type(column.type, zero_date=shape.zero_date).ddl
        if held is not None and held != now and wider_ddl(held, now) == held:
            yield SchemaChange("narrow", column.name, held, now)


_READ_BY_FILTER: Final = (
    "{} (the target does not store this column, but the table's filter uses it, so its type still matters: "
    "remove the column from filter)"
)


def pending_of(error: SchemaRefusedError, projection: Projection | None = None) -> Pending | None:
    """Returns the schema change for which ``error`` was raised, or None if the error is about something else.

    ``projection``: the table's projection, or None. It may exclude a column that the table's filter uses.
    """
    kind = error.context.get("change")
    if kind not in get_args(ChangeKind):
        return None
    texts = (str(error.context.get(name, "")) for name in ("column", "before", "after"))
    reason, column = error.message, str(error.context.get("column", ""))
    if kind == "type" and projection is not None and projection.row_filter and not projection.chooses(column):
        reason = _READ_BY_FILTER.format(reason)
    return Pending(SchemaChange(kind, *texts), reason=reason)  # type: ignore[arg-type]


_UNREADABLE: Final = (
    "values in rows written before the rename do not fit the renamed column: reject the change to continue "
    "with both columns in the target, or load the table again"
)
_KEY: Final = (
    "a key column was renamed at the source, and existing rows would not be found under the new name: rename "
    f"the column back, or {LOAD_AGAIN} and set its start to a time after the change"
)


def source_columns_of(decoding: Decoding, policies: Policies) -> SourceColumns | None:
    """Returns the source's columns as reported by DDL; None if the protocol has no DDL, or if DDL cannot be
    applied to the target's existing rows.
    """
    return decoding.reported() if policies.follows else None


@dataclass(frozen=True)
class SettledNames:
    """The result of ``settle_names``.

    Attributes:
        renamed: True if a column of the target was renamed.
        chosen: The decisions on renames that policies in the config made.
        pending: Renames that wait for a person. If there are any, nothing was renamed.
    """

    renamed: bool = False
    chosen: Chosen = field(default_factory=dict)
    pending: tuple[Pending, ...] = ()


def settle_names(table: TargetTable, decoding: Decoding, policies: Policies) -> SettledNames:
    """Renames columns of the target, and sets under which names the batch's rows are read.

    If a rename waits for a person, nothing is changed.

    Raises:
        TidesinkError: ``gap`` or ``rename_column`` of the target, or ``read_as`` of the decoding failed.
    """
    reported = source_columns_of(decoding, policies)
    if reported is None:
        return SettledNames()
    if not reported.renamed and not reported.dropped_columns:
        decoding.read_as({}, {})
        return SettledNames()
    shape = decoding.columns().shape
    gap = table.gap(shape)
    present = {fold_name(name): name for name in gap.columns if fold_name(name) not in policies.own}
    keys = frozenset(fold_name(name) for name in shape.keys)
    waiting, decided = list[Pending](), dict[str, _DecidedRename]()
    for old, new in _distinct_renames(reported, present):
        decision = _key_waits(old, new, present, keys) or _decided(old, new, present, policies)
        if isinstance(decision, Pending):
            waiting.append(decision)
        else:
            decided[old] = decision
    if waiting:
        return SettledNames(pending=tuple(waiting))
    for old, rename in decided.items():
        if rename.way == "apply":
            new = reported.renamed[old]
            table.rename_column(present[fold_name(new.was or old)], new.target or new.name)
    read = {old: reported.renamed[old].name for old, rename in decided.items() if rename.way != "ignore"}
    held = {fold_name(name): held_type for name, held_type in gap.held.items() if fold_name(name) in present}
    decoding.read_as(read, held)
    return SettledNames(
        any(rename.way == "apply" for rename in decided.values()),
        chosen_of(rename.decision for rename in decided.values() if rename.decision is not None),
    )


def _key_waits(old: str, new: Renamed, present: Mapping[str, str], keys: frozenset[str]) -> Pending | None:
    """Returns the rename of a key column as a change that waits for a person, or None.

    The rename waits if the target still has the column under its old name.

    A column counts as a key column if its old or its new name is in ``keys``.
    """
    was, name = new.was or old, new.target or new.name
    if fold_name(was) not in present or keys.isdisjoint((fold_name(was), fold_name(name))):
        return None
    return Pending(SchemaChange("key", was, was, name, new.at), reason=_KEY)


def _distinct_renames(reported: SourceColumns, present: Mapping[str, str]) -> Iterator[tuple[str, Renamed]]:
    """Yields the renames to decide, newest first.

    A column with several old names is decided once, for the newest old name that the target has. If the
    target has an older one as well, that rename was ignored. ``returned`` is set if another column had the
    new name in the past. Then a target with columns of both names does not prove that the rename was ignored.
    """
    goals = set()
    for old, new in reported.renamed.items():
        destination = fold_name(new.target or new.name)
        if fold_name(new.was or old) in present:
            if destination in goals and not new.reused:
                continue
            goals.add(destination)
        yield old, new._replace(returned=destination in reported.removals)


class _DecidedRename(NamedTuple):
    """How a renamed column is handled in the target.

    Attributes:
        way: ``apply``: rename the target's column. ``read``: read values under the old name as values of the
            new column. ``ignore``: keep both columns.
        decision: The decision on the rename; None if the target's columns leave no choice.
    """

    way: Literal["apply", "read", "ignore"]
    decision: DecidedChange | None = None


def _decided(
    old: str, new: Renamed, present: Mapping[str, str], policies: Policies
) -> Pending | _DecidedRename:
    """Decides how a renamed column is handled in the target, or returns the rename as one that waits for a
    person.
    """
    was, name = new.was or old, new.target or new.name
    there = (fold_name(was) in present, fold_name(name) in present)
    if there == (False, True) or (there == (False, False) and not new.reused):
        return _DecidedRename("read" if new.readable else "ignore")
    if there == (True, True) and not (new.reused or new.returned):
        return _DecidedRename("ignore")
    follows = there == (True, False) and new.readable
    decision = policies.decide(SchemaChange("rename", was, was, name, new.at))
    if decision.policy == "pause" or (decision.policy == "apply" and not follows):
        return policies.pending(decision.change, reason="" if follows else _UNREADABLE)
    return _DecidedRename(decision.policy, decision)


_NOT_NEW: Final = (
    "Column {} is not new at the source, but is added to the target only now. It is NULL in the target's "
    "existing rows until they change at the source. If you need the values of these rows, load the table "
    "again."
)


@dataclass(frozen=True)
class _StoredColumns:
    """The source's columns as of an applied batch, sorted by name. ``batch``: the number of the batch."""

    batch: int
    columns: tuple[str, ...]


_COLUMNS: Final = DocumentKind("known-columns", _StoredColumns, list_key)


class KnownColumns:
    """The source's columns as of the table's last batch.

    They show which columns that are added to the target are not new at the source. The state store has them.
    If it was lost, no columns are known.
    """

    def __init__(self, store: StateStore, progress: Progress, projection: Projection) -> None:
        self._document = _COLUMNS.of(store, progress.pipeline, *progress.table)
        # The source's names, by the target's exact names and by their folded names.
        self._rename = {new: old for old, new in projection.rename.items()}
        self._folded = {fold_name(new): old for old, new in projection.rename.items()}
        self._kept = self._document.load()
        self._known = _columns_of(self._kept, progress)
        self._unkept: _StoredColumns | None = None

    def schema_decision(
        self, decision: SchemaDecision, added: Collection[str], fold: NameFold = fold_name
    ) -> SchemaDecision:
        """Returns the decision after removing the defaults of added columns that are not new at the source.

        At the source, existing rows have values in such a column, not its default. So the column is added
        with NULL in the target's existing rows, and with a warning.

        Args:
            decision: The decision.
            added: The columns that are added to the target.
            fold: Folds the source's names, so that they can be compared.
        """
        given = decision.given
        existing = {
            c.name
            for c in given.columns
            if c.default is not None and self._source(c.name, fold) in self._known
        }
        columns = tuple(replace(c, default=None) if c.name in existing else c for c in given.columns)
        warnings = tuple(_NOT_NEW.format(name) for name in added if name in existing)
        return replace(
            decision,
            given=replace(given, columns=columns) if existing else given,
            warnings=(*decision.warnings, *warnings),
        )

    def applied(self, decoding: Decoding, progress: Progress) -> None:
        """Remember the source's columns as of an applied batch, only in memory. ``keep`` stores them."""
        plan, reported = decoding.columns(), decoding.reported()
        shape, fold = plan.shape, plan.rows.shape.fold
        # If a dropped column is added again, it is a new column.
        dropped = (
            {self._source(column.name, fold) for column in reported.dropped_columns} if reported else set()
        )
        there = {self._source(column.name, fold) for column in shape.columns}
        now = frozenset({*there, *shape.omitted} - dropped)
        if now != self._known:
            self._unkept = _StoredColumns(progress.batch, tuple(sorted(now)))
            self._known = now

    @property
    def is_kept(self) -> bool:
        """True if the state store has the columns (``keep``)."""
        return self._unkept is None

    def keep(self) -> None:
        """Store the columns. If the state store does not answer, the next call stores them.

        If another worker has stored columns in the meantime, its document is kept, because that worker owns
        the table.
        """
        if self._unkept is not None:
            self._document.swap(self._kept, self._unkept)
            self._kept, self._unkept = self._unkept, None

    def _source(self, name: str, fold: NameFold) -> str:
        """Returns the source's name of a target column, case-folded."""
        if name in self._rename:
            return fold(self._rename[name])
        return fold(self._folded.get(fold_name(name), name) if fold is fold_name else name)


def _columns_of(stored: _StoredColumns | None, progress: Progress) -> frozenset[str]:
    """Returns the stored source columns; empty if their batch number is higher than that of the target's
    progress.

    With a higher number, the stored columns belong to other rows: the table was loaded again, or the target
    is an old backup.
    """
    if stored is None or stored.batch > progress.batch:
        return frozenset()
    return frozenset(stored.columns)


# The maximum number of stored decisions per table.
MOST_CHOICES: Final = 50
_MOST_SQL: Final = 1_000


class Choice(NamedTuple):
    """A stored decision on a schema change that a policy in the config made.

    ``at``: when a worker applied the decision, in seconds since 1970. ``batch``: the number of the batch.
    ``change``: the change as JSON.
    """

    policy: ChangePolicy
    at: float
    batch: int
    change: Mapping[str, Any]


_CHOICES: Final = DocumentKind("policy-choices", tuple[Choice, ...], list_key)


class PolicyChoices:
    """The decisions on schema changes that the policies in the config made, in the state store.

    A decision is stored before its batch is committed, with the number of the batch. So no decision is lost
    when the worker is killed, and a batch that is tried again stores it once. Only the newest decisions of
    each table are kept. At most one thread at a time may store decisions of a table.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        # Every batch makes the same decision on an ignored change again. It is stored only the first time.
        self._known: set[tuple[TableId, str]] = set()

    def keep(self, chosen: Chosen, progress: Progress) -> None:
        """Store the decisions that the policies made for a batch, if they are not stored yet.

        Raises:
            StateStoreError: The state store does not answer.
        """
        table = progress.table
        new = {digest: choice for digest, choice in chosen.items() if (table, digest) not in self._known}
        if not new:
            return

        def more(old: tuple[Choice, ...] | None) -> tuple[Choice, ...]:
            choices = list(old or ())
            for digest, (change, policy) in new.items():
                previous = [choice for choice in choices if choice.change["digest"] == digest]
                if not previous or (_recurs(change, policy) and previous[-1].batch != progress.batch):
                    choices.append(Choice(policy, time.time(), progress.batch, _shown(change)))
            return tuple(choices[-MOST_CHOICES:])

        busy = StateStoreError(
            "The decisions of the table's policies could not be stored, because other processes keep "
            "changing the stored decisions. Check that only one worker runs the pipeline.",
            table=str(table),
        )
        _CHOICES.of(self._store, progress.pipeline, *table).change(more, busy)
        self._known.update((table, digest) for digest, choice in new.items() if not _recurs(*choice))


def read_choices(store: StateStore, pipeline: str, table: TableId) -> tuple[Choice, ...]:
    """Returns the stored decisions that a table's policies in the config made, oldest first.

    Raises:
        StateStoreError: The state store does not answer.
    """
    return _CHOICES.of(store, pipeline, *table).load() or ()


def _recurs(change: SchemaChange, policy: ChangePolicy) -> bool:
    """Returns True if the same change may happen again: an added column may be dropped and added again."""
    return (change.kind, policy) == ("add", "apply")


def _shown(change: SchemaChange) -> dict[str, Any]:
    shown = change.as_json()
    return {**shown, "statement": shown["statement"][:_MOST_SQL]} if "statement" in shown else shown
