"""A canal-json table at a target in memory, under DDL that is told statement by statement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.memory_target import CAPABILITIES, MemoryTarget
from tidesink.codecs.canal_json.scan import RowWords
from tidesink.config.fields import ChangePolicy, SchemaChanges
from tidesink.config.models import Destination
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import Column, TableId, TableSchema
from tidesink.sinks.decode.canal_json_types import CanalJsonDecoding
from tidesink.sinks.decode.schema_source import Missed, ProjectedDecoding
from tidesink.sinks.decode.topic_ddl import TopicTable, reported_by
from tidesink.sinks.kafka.offsets import OffsetRange
from tidesink.sinks.laws.counts import BatchSummary, EventCounts
from tidesink.sinks.schema_changes.decisions import (
    Pending,
    Policies,
    decide_changes,
    settle_names,
    source_columns_of,
)
from tidesink.typemap.projection import Projection
from tidesink.typemap.table import ZeroDate

T = TableId("s", "t")


class ToldDdl:
    """The topic's DDL, without a topic. ``later``: what another task reads after each answer."""

    def __init__(self) -> None:
        self.definitions = TableDefinitions()
        self.since = 10
        self.later: list[str] = []

    def alter(self, statement: str) -> None:
        """The next DDL, ten TSOs later."""
        self.definitions.apply(statement, "s", since=self.since)
        self.since += 10

    def _answered(self, found: Any) -> Any:
        if self.later:
            self.alter(self.later.pop(0))
        return found

    def reported(self, table: TableId) -> TopicTable | None:
        found: TopicTable | None = self._answered(reported_by(self.definitions, table))
        return found

    def get(self, table: TableId) -> TableSchema | None:
        found: TableSchema | None = self._answered(self.definitions.get(table))
        return found

    def dropped_columns(self, table: TableId) -> tuple[Column, ...]:
        found: tuple[Column, ...] = self._answered(self.definitions.dropped_columns(table))
        return found

    def warnings(self, _table: TableId, **_said: object) -> tuple[str, ...]:
        return ()

    def recall(self, _found: object) -> None:
        pass

    def scan(self, _session: object, _found: object) -> bool:
        return False


class Bed:
    """One table, from ``CREATE TABLE t (...)``, and what becomes of each DDL at its target."""

    zero_date: ZeroDate = "null"

    def __init__(self, columns: str, projection: Projection | None = None, **policies: ChangePolicy) -> None:
        self.policies = SchemaChanges.model_validate(policies)
        self.accepted: dict[str, ChangePolicy] = {}
        self.added: tuple[str, ...] = ()
        self.ddl = ToldDdl()
        # The forms of rows that the records of the topic have.
        self.rows: list[RowWords] = []
        self.ddl.alter(f"CREATE TABLE t ({columns})")
        self.projection = projection
        self.start()
        self.table = MemoryTarget().open_table(self.decoding.columns().shape, pipeline="p")
        self.table.claim()

    def start(self) -> None:
        """A new worker."""
        settings = SimpleNamespace(
            definition=None,
            keys=None,
            zero_date=self.zero_date,
            ambiguous_time="first",
            time_zone="UTC",
            mode="upsert",
            projection=self.projection or Projection(),
        )
        source = SimpleNamespace(options_of=lambda options: options(), opens_up_to=None, database=None)
        around = SimpleNamespace(
            config=SimpleNamespace(pipeline="p", table_config=lambda _table: settings, source=source),
            store=None,
            reader=SimpleNamespace(ask=lambda *_question: [self.rows]),
            topics=SimpleNamespace(
                ddl=lambda _topic: self.ddl,
                ends_now=lambda found: found,
                tables=lambda _topic: SimpleNamespace(known=lambda: (T,), absent=False),
            ),
        )
        self.inner = CanalJsonDecoding(cast("Any", around), "cdc", T)
        self.inner.prepare(cast("Any", None))
        self.decoding: Any = self.inner
        if self.projection is not None:
            self.decoding = ProjectedDecoding(self.inner, self.projection, Destination(T), cast("Any", None))

    def read(self, *rows: RowWords) -> None:
        """A batch with rows of these forms, whose columns the plan lacks."""
        self.rows = [*rows]
        met = BatchSummary(EventCounts(unplanned=1))
        self.inner.learn(Missed(met, (OffsetRange("cdc", 0, 0, 1),), cast("Any", None)))

    def alter(self, *statements: str) -> tuple[Pending, ...]:
        """Statements of one scan, and the batch after them: what waits then."""
        for statement in statements:
            self.ddl.alter(f"ALTER TABLE t {statement}")
        return self.batch()

    def batch(self) -> tuple[Pending, ...]:
        """A batch's changes of the target's columns; what waits."""
        self.inner._newer_ddl(cast("Any", None))
        policies = self.validation
        names = settle_names(self.table, self.decoding, policies)
        if names.pending:
            return names.pending
        shape = self.decoding.columns().shape
        schema_decision = decide_changes(
            self.table.gap(shape), shape, policies, source_columns_of(self.decoding, policies)
        )
        if not schema_decision.pending:
            self.table.drop_columns(schema_decision.drops)
            self.table.evolve(schema_decision.given)
        return schema_decision.pending

    def accept(self, pending: tuple[Pending, ...], policy: ChangePolicy) -> tuple[Pending, ...]:
        """Accept what waits; what waits then."""
        self.accepted |= {one.change.digest: policy for one in pending}
        return self.batch()

    @property
    def validation(self) -> Policies:
        """The config's policies, and what was accepted."""
        projection = self.projection or Projection()
        return Policies(self.policies, self.accepted, CAPABILITIES, projection=projection, added=self.added)

    def columns(self) -> tuple[str, ...]:
        """The target's columns."""
        found: tuple[str, ...] = self.table.gap(self.decoding.columns().shape).columns
        return found


def said(pending: tuple[Pending, ...]) -> list[tuple[str, str, tuple[ChangePolicy, ...]]]:
    """What waits: its kind, what it is about, and what it may be accepted as."""
    return [(p.change.kind, f"{p.change.before} {p.change.after}".strip(), p.accepts) for p in pending]
