"""The documents of the state store, byte by byte: a worker reads what another worker has written.

Each kind of document is written by the functions that a worker or a command calls.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.properties.test_schema_use import Feed, Worker
from tests.unit.sinks.batch.test_range_tasks import NEW, OLD
from tests.unit.sinks.cuts.test_publishing import SECOND, _Run
from tests.unit.sinks.kafka.test_first_records import _Brokers
from tests.unit.sinks.schema_changes.test_known_columns import ALL, BEFORE, STATUS, decoding, shape, take_note
from tests.unit.sinks.schema_changes.test_policy_choices import ADDED, DROPPED, _keep
from tests.unit.sinks.worker.test_source_ddl import _Topic
from tests.unit.sinks.worker.test_starts import _found, _start
from tidesink.cli.open_letters import note_open
from tidesink.ddl.topic_statements import DdlStatement
from tidesink.errors import SourceError, StaleProgressError, UnusableStateStoreError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.database_types import DatabaseColumns, DatabaseTypes
from tidesink.sinks.decode.topic_ddl import TopicDdl, TopicTables
from tidesink.sinks.kafka.offsets import NO_ID, KafkaOffsets, PartitionOffsets, TopicGrowth, TopicOffsets
from tidesink.sinks.letters.topic import RecordGroup
from tidesink.sinks.runtime.control import (
    PLACE,
    Decision,
    RewindControl,
    SnapshotControl,
    TableControl,
    accept_restored,
    change_control,
    check_not_restored,
    store_decisions,
)
from tidesink.sinks.runtime.observers import Heartbeat
from tidesink.sinks.schema_changes.decisions import KnownColumns, PolicyChoices
from tidesink.sinks.snapshots.asked_keys import AskedKeys, store_keys
from tidesink.sinks.state.failures import Failures
from tidesink.sinks.state.progress import (
    DdlProgress,
    LastRecord,
    PartitionProgress,
    Progress,
    SnapshotProgress,
    StoredDdl,
    Sweep,
    TableStatus,
    TopicProgress,
    store_ddl,
)
from tidesink.sinks.state.source_reads import SourceRead, Span
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.targets.stream.table import StoreLedger, sent_result
from tidesink.sinks.worker.continuity import FirstRecords

TABLE: Final = TableId("sh.op", "ördérs")
PRICE: Final = Column("Price", ColumnType("decimal", precision=None, sql="decimal"))
PROGRESS: Final = Progress(
    TABLE,
    "p",
    3,
    7,
    {
        "t": TopicProgress("t", "x", {0: PartitionProgress(70, 60, 407, 408)}),
        "a": TopicProgress(
            "a",
            "y",
            {
                10: PartitionProgress(9, 9, None, 5, last=LastRecord(8, 2)),
                2: PartitionProgress(4, 3, again_to=8),
            },
        ),
    },
    407,
    "source",
    SnapshotProgress(
        ("id", "n"),
        ("4", "é"),
        9,
        done=True,
        number=5,
        sweep=Sweep(4, 1, 2),
        keys="k",
        where=(("id", "<", "9"),),
    ),
    emptied=5,
    decided=6,
    rewound=2,
    bound=8,
    ddl=DdlProgress("d", 12, 3),
    source_reads=(
        SourceRead(5, {"t": {1: Span(4, 4), 0: Span(2, 4)}}, settles=True),
        SourceRead(0, {}, keys="k", where=(("id", ">=", "1"),)),
    ),
)


def _control(store: SqlStateStore, _folder: Path) -> None:
    change_control(store, "p", TABLE, TableControl.pause)
    rewind = RewindControl(3, "t", "x", ((2, 5), (10, 4)))
    snapshot = SnapshotControl(8, 2, deletes=True, where=(("id", "<", "9"),))
    change_control(
        store,
        "p",
        TableId("a", "b"),
        lambda control: replace(control.resume({"d": "ignore"}).rewound(rewind), snapshot=snapshot),
    )


def _decisions(store: SqlStateStore, _folder: Path) -> None:
    store_decisions(store, "p", [Decision(TABLE, "apply", 1.5, {"kind": "add", "digest": "d"})])
    store_decisions(store, "p", [Decision(TABLE, "ignore", 2, {"digest": "é"})])


def _restored(store: SqlStateStore, _folder: Path) -> None:
    status = TableStatus("shop", TABLE, "IDLE", epoch=1, batch=4, details={PLACE: "here"})
    store.save_status(status)
    with pytest.raises(StaleProgressError):
        check_not_restored(store, Progress(TABLE, "shop", 3, 3), "here")
    accept_restored(store, "shop", TABLE)


def _cuts(store: SqlStateStore, _folder: Path) -> None:
    run = _Run(store)
    run.first.read(10 * SECOND, watermark=10 * SECOND)
    run.second.lag = 3
    run.second.read(10 * SECOND, watermark=None)
    run.turn()


def _heartbeat(store: SqlStateStore, _folder: Path) -> None:
    failures = Failures(lambda: 900.0)
    failures.note(None, SourceError("no broker"), 5.5)
    Heartbeat(store, "p", lambda: 1000.25, failures).beat()
    Heartbeat(store, "q", lambda: 1000.25).end()


def _starts(store: SqlStateStore, _folder: Path) -> None:
    _start(store, "latest").begin(_found(9, 7))


def _asked_keys(store: SqlStateStore, _folder: Path) -> None:
    store_keys(store, "p", TABLE, AskedKeys(("id", "n"), (("1", "é"), ("2", "b"))))


def _choices(store: SqlStateStore, _folder: Path) -> None:
    _keep(PolicyChoices(store), 7, (DROPPED, "ignore"), (ADDED, "apply"), table=TABLE)


def _ddl_events(store: SqlStateStore, _folder: Path) -> None:
    event = StoredDdl("t", "x", 0, 9, 407, "QUERY", "ALTER é", 12, table="gone")
    store_ddl(
        store, Progress(TABLE, "p", 1, 7), [event, event._replace(offset=12, commit_ts=None, time=None)]
    )


def _topic_ddl(store: SqlStateStore, _folder: Path) -> None:
    ddl = TopicDdl("cdc", pipeline="p", store=store)
    offsets = TopicOffsets("cdc", "x", {0: PartitionOffsets(0, 0)})
    ddl.define(
        offsets, DdlStatement("s", "CREATE TABLE t (id int primary key, a enum('é','b'))", 10, table="t")
    )
    ddl.define(offsets, DdlStatement("s", "ALTER TABLE t RENAME COLUMN a TO c", 20, table="t", offset=4))
    ddl.define(offsets, DdlStatement("s", "TRUNCATE TABLE t", 30, table="t", offset=5))
    ddl.define(offsets, DdlStatement("s", "ALTER TABLE u ADD c int", 40, table="u", offset=6))


def _topic_tables(store: SqlStateStore, _folder: Path) -> None:
    tables = TopicTables("cdc", pipeline="p", store=store)
    tables.add([TABLE, TableId("a", "b")])


def _schema_changes(_store: SqlStateStore, folder: Path) -> None:
    topic = _Topic(folder)
    topic.records = topic.records[:14]
    topic.look(topic.reader())


def _partitions(store: SqlStateStore, _folder: Path) -> None:
    growth = TopicGrowth("t", pipeline="p", store=store)
    for count in (2, 11):
        growth.see(TopicOffsets("t", "x", {n: PartitionOffsets(0, 50 + n) for n in range(count)}))


def _first_records(store: SqlStateStore, _folder: Path) -> None:
    first = FirstRecords(TABLE, "t", pipeline="p", store=store)
    offsets = TopicOffsets("t", NO_ID, {n: PartitionOffsets(0, 9) for n in (0, 10)})
    first.check(None, offsets, lambda: cast("KafkaOffsets", _Brokers(p10=(5, 6), p2=(0, -1))))


def _types(store: SqlStateStore, _folder: Path) -> None:
    known = {"price": ColumnType("decimal", precision=9, scale=2, sql="decimal(9,2)")}
    types = DatabaseTypes("p", TABLE, store, lambda _table: known)
    types.decide([PRICE, replace(PRICE, name="é")])


def _columns(store: SqlStateStore, _folder: Path) -> None:
    schema = TableSchema(TABLE, (Column("id", ColumnType("int"), primary_key=True), PRICE))
    DatabaseColumns("p", TABLE, store, lambda _table: schema).decide(["id", "é"])


def _schema_use(_store: SqlStateStore, folder: Path) -> None:
    feed = Feed()
    for schema in (OLD, NEW):
        feed.write(schema, 0)
    worker = Worker(feed, str(folder))
    for partition in (0, 1):
        feed.write(OLD, partition)
    worker.read({0: (0, 3), 1: (0, 1)})


def _ledger(store: SqlStateStore, _folder: Path) -> None:
    keys, times = ("id", "é"), iter((1000, 2000))
    ledger = StoreLedger(store, ("kafka", "t"), TABLE, pipeline="p", keys=keys, clock=lambda: next(times))
    ledger.claim()
    ledger.write_columns({"id": "bigint", "é": "string"})
    ledger.write(replace(PROGRESS, epoch=1), sent_result(3, 1, "1000/7"))
    StoreLedger(store, ("http", "u" * 201), TABLE, pipeline="p", keys=keys, clock=lambda: 5).claim()


def _letters(store: SqlStateStore, _folder: Path) -> None:
    store.save_status(TableStatus("p", TABLE, "IDLE", counters={"dead_lettered": 3}))
    note_open(
        store, "p", None, lambda: [RecordGroup(str(TABLE), "t", 0, "FramingError", 2, 5, 9, None, None)]
    )


def _known_columns(store: SqlStateStore, _folder: Path) -> None:
    take_note(KnownColumns(store, BEFORE, ALL), decoding(shape(ALL, STATUS)))


def _progress(store: SqlStateStore, _folder: Path) -> None:
    store.record_progress(PROGRESS)
    store.record_progress(Progress(TableId("s", "t"), "p", 1, 1, snapshot=SnapshotProgress(())))
    topics = {"t": TopicProgress("t", "", {})}
    store.record_progress(Progress(TableId("s", "t"), "p", 1, 2, topics, decided=0))


def _status(store: SqlStateStore, _folder: Path) -> None:
    store.save_status(TableStatus("p", TABLE, "RUNNING"))
    zero_dates, warnings = {"é": 2}, ("a", "b")
    details = {"lag": 3, "place": Path("/lake"), "watermark": None}
    store.save_status(
        TableStatus(
            "q",
            TABLE,
            "FAILING",
            "SourceError: é",
            {"read": 3},
            zero_dates,
            {"b": 1},
            warnings,
            7,
            407,
            details,
            life=1,
            epoch=2,
        )
    )


WRITERS: Final[dict[str, Callable[[SqlStateStore, Path], None]]] = {
    "table-control": _control,
    "decided-changes": _decisions,
    "restore": _restored,
    "cuts": _cuts,
    "heartbeat": _heartbeat,
    "start-offsets": _starts,
    "asked-keys": _asked_keys,
    "known-columns": _known_columns,
    "policy-choices": _choices,
    "ddl_events": _ddl_events,
    "topic-ddl": _topic_ddl,
    "topic-tables": _topic_tables,
    "schema-changes": _schema_changes,
    "topic-partitions": _partitions,
    "first-records": _first_records,
    "looked-up-types": _types,
    "looked-up-columns": _columns,
    "schema-use": _schema_use,
    "target-ledger": _ledger,
    "open-letters": _letters,
    "progress": _progress,
    "status": _status,
}
# Table, kind, name and text of each document. A decision has the time at which it was stored.
GOLDEN: Final = Path(__file__).parents[3] / "golden" / "stored_documents"
QUERIES: Final = (
    "SELECT kind || ' ' || name, document FROM documents",
    "SELECT table_name || ' ' || txn_version, progress FROM progress_history",
    "SELECT pipeline || ' ' || table_name, status FROM table_status WHERE pipeline <> 'shop'",
)


def _stored(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        rows = sorted(row for query in QUERIES for row in connection.execute(query))
    finally:
        connection.close()
    text = "".join(f"{name}\n    {document}\n" for name, document in rows)
    return re.sub(r"\b1[0-9]{9}\.[0-9]+", "<time>", text)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_document_has_these_bytes(tmp_path: Path, kind: str) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    WRITERS[kind](store, tmp_path)
    store.close()
    assert _stored(tmp_path / "state.db") == (GOLDEN / f"{kind}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        ({"topic_id": "x", "partitions": [0]}, "missing required field `grown`"),
        ({"topic_id": "x", "partitions": [0], "grown": [[[0, "1"]]]}, "`int`, got `str`"),
        ([1], "Expected `object`, got `array`"),
    ],
)
def test_a_damaged_document_is_named(tmp_path: Path, damaged: Any, reason: str) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    store.save_document("topic-partitions", "p/t", damaged)
    with pytest.raises(UnusableStateStoreError, match=reason) as raised:
        TopicGrowth("t", pipeline="p", store=store).see(TopicOffsets("t", "x", {}))
    store.close()
    text = str(raised.value)
    assert "The document 'topic-partitions' with the key 'p/t' in the state store is damaged" in text
    assert "restore the state store from a backup" in text
