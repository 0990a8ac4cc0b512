"""The DDL log of a topic: read once for all tables, and still known after a restart."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.watched_lock import WatchedLock
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.topic_statements import DdlStatement, learn, with_rows
from tidesink.errors import SourceError, SourceUnavailableError
from tidesink.events import Message, TableId
from tidesink.sinks.decode.topic_ddl import DdlPages, TopicDdl, _Page, ddl_statement
from tidesink.sinks.kafka.leader_epochs import MOST_DROPS, LeaderEpochs
from tidesink.sinks.kafka.offsets import NO_ID, OffsetRange, PartitionOffsets, TopicOffsets
from tidesink.sinks.state.progress import LastRecord
from tidesink.sinks.state.sql_store import SqlStateStore

if TYPE_CHECKING:
    from tidesink.sinks.kafka.topic_reader import TopicReader

CREATE = "create table t (id int primary key, a int, b varchar(5))"
NO_READER = cast("TopicReader", None)
T = TableId("s", "t")


class _ScriptedDdl(TopicDdl):
    """Its partition 0 is a list of statements, one an offset."""

    topic: tuple[str, ...] = ()

    def _read(self, _reader: Any, part: OffsetRange) -> _Page:
        statements = [DdlStatement("s", sql, at) for at, sql in enumerate(self.topic)]
        return _Page(statements[part.start : part.end], part.end)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStateStore]:
    opened = SqlStateStore(str(tmp_path / "state.db"))
    yield opened
    opened.close()


def _ends(latest: int, topic_id: str = "one") -> TopicOffsets:
    return TopicOffsets("cdc", topic_id, {0: PartitionOffsets(0, latest)})


def _ddl(store: SqlStateStore, *topic: str) -> _ScriptedDdl:
    ddl = _ScriptedDdl("cdc", pipeline="p", store=store)
    ddl.topic = topic
    return ddl


def test_warnings_outlive_a_restart_and_are_said_at_their_table(store: SqlStateStore) -> None:
    renames = "ALTER TABLE t RENAME COLUMN a TO y"
    topic = (CREATE, renames, "ALTER TABLE u ADD COLUMN c INT", renames)
    first = _ddl(store, *topic)
    assert first.scan(NO_READER, _ends(4))
    (said,) = first.warnings(TableId("S", "T"))
    assert "column a was renamed to y" in said
    (unreported,) = first.warnings(TableId("s", "u"))
    again = _ddl(store, *topic)
    again.recall(_ends(4))
    assert again.warnings(T) == (said,)
    assert again.warnings(TableId("s", "u")) == (unreported,)
    assert again.warnings(TableId("s", "u"), defined=True) == ()
    assert again.warnings(TableId("s", "other")) == ()
    again.recall(_ends(4, "made again"))
    assert again.warnings(T) == ()


def test_a_broker_that_gives_no_ids_for_a_time_has_the_same_topic(store: SqlStateStore) -> None:
    """As in a rolling upgrade: nothing is read again."""
    first = _ddl(store, CREATE, "TRUNCATE TABLE t")
    first.scan(NO_READER, _ends(2))
    again = _ddl(store)
    for ddl in (first, again):
        for topic_id in (NO_ID, "one", NO_ID, "one"):
            ddl.recall(_ends(2, topic_id))
            assert (ddl.tables(), len(ddl.row_ddl(T))) == ((T,), 1)
        ddl.recall(_ends(2, "made again"))
        assert (ddl.tables(), ddl.row_ddl(T)) == ((), ())


def test_ddl_that_changes_rows_outlives_a_restart_and_is_known_once(store: SqlStateStore) -> None:
    """A changefeed that is restarted sends it again."""
    topic = (CREATE, "TRUNCATE TABLE t", "DROP DATABASE s", "TRUNCATE TABLE o.t")
    first = _ddl(store, *topic)
    first.scan(NO_READER, _ends(4))
    known = first.row_ddl(TableId("S", "T"))
    assert [(one.kind, one.moment, one.statement) for one in known] == [
        ("truncate", 1, "TRUNCATE TABLE t"),
        ("drop-table", 2, "DROP DATABASE s"),
    ]
    assert [one.kind for one in first.row_ddl(TableId("s", "u"))] == ["drop-table"]
    resent = [DdlStatement("s", sql, at, offset=90 + at) for at, sql in enumerate(topic)]
    sent_again = learn(TableDefinitions(), resent, "cdc").rows
    assert with_rows(first._known.rows, sent_again) == first._known.rows
    again = _ddl(store, *topic)
    again.recall(_ends(4))
    assert again.row_ddl(T) == known


MEMBERS = (
    "create table t (id int primary key, e enum('a','b'), d int)",
    "alter table t modify e enum('b','a')",
    "alter table t drop column d",
)


def _labels(ddl: TopicDdl) -> list[tuple[str, ...] | None]:
    found = ddl.get(T)
    assert found is not None
    return [found.by_name["e"].type_at(at).members for at in (0, 1)]


def test_what_columns_were_before_outlives_a_restart_and_warns_of_nothing(store: SqlStateStore) -> None:
    first, again = _ddl(store, *MEMBERS), _ddl(store, *MEMBERS)
    first.scan(NO_READER, _ends(3))
    again.recall(_ends(3))
    for ddl in (first, again):
        assert _labels(ddl) == [("a", "b"), ("b", "a")]
        assert [column.name for column in ddl.dropped_columns(T)] == ["d"]
        assert ddl.warnings(T) == ()


class _SlowDdl(_ScriptedDdl):
    """Its reads wait until they are let go on, and fail where they are to."""

    fails: Exception | None = None
    fails_once: Exception | None = None

    def __init__(self, store: SqlStateStore, *topic: str) -> None:
        super().__init__("cdc", pipeline="p", store=store)
        self.topic, self.reads = topic, 0
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def _read(self, reader: Any, part: OffsetRange) -> _Page:
        self.reads += 1
        self.begun.set()
        assert self.goes_on.wait(240)
        failure, self.fails_once = self.fails_once or self.fails, None
        if failure is not None:
            raise failure
        return super()._read(reader, part)


class _Scanning(threading.Thread):
    """A table that has the DDL read."""

    def __init__(self, ddl: TopicDdl, found: TopicOffsets) -> None:
        super().__init__(daemon=True)
        self._ddl, self._found = ddl, found
        self.heard: object = None
        self.start()

    def run(self) -> None:
        try:
            self.heard = self._ddl.scan(NO_READER, self._found)
        except (SourceUnavailableError, OSError) as exc:
            self.heard = exc


def test_a_table_that_knows_enough_does_not_wait_for_anothers_read(store: SqlStateStore) -> None:
    ddl = _SlowDdl(store, CREATE, "alter table t add c int")
    ddl.goes_on.set()
    ddl.scan(NO_READER, _ends(1))
    ddl.goes_on.clear()
    ddl.begun.clear()
    slow = _Scanning(ddl, _ends(2))
    assert ddl.begun.wait(240)
    known: list[object] = []
    other = threading.Thread(target=lambda: known.append(_all_it_knows(ddl)), daemon=True)
    other.start()
    other.join(240)
    assert known == [(T, (), (T,), False)]
    ddl.goes_on.set()
    slow.join(240)
    assert slow.heard is True
    assert "c" in getattr(ddl.get(T), "by_name", {})


def _all_it_knows(ddl: TopicDdl) -> object:
    ddl.recall(_ends(1))
    schema = ddl.get(T)
    assert schema is not None
    return schema.table, ddl.dropped_columns(T), ddl.tables(), ddl.scan(NO_READER, _ends(1))


def _waiting(ddl: _SlowDdl) -> list[_Scanning]:
    """One table that reads, and three that wait for it."""
    ddl._reading = lock = cast("Any", WatchedLock())
    first = _Scanning(ddl, _ends(1))
    assert ddl.begun.wait(240)
    others = [_Scanning(ddl, _ends(1)) for _ in range(3)]
    lock.wait_for(1 + len(others))
    assert all(other.is_alive() for other in others)
    return [first, *others]


def test_kafkas_failure_is_heard_by_all_who_waited_and_then_it_is_read_again(store: SqlStateStore) -> None:
    """Each would wait as long as the first did, one after the other."""
    ddl = _SlowDdl(store, CREATE)
    ddl.fails = SourceUnavailableError("silence")
    tables = _waiting(ddl)
    ddl.goes_on.set()
    for table in tables:
        table.join(240)
    assert ([table.heard for table in tables], ddl.reads) == ([ddl.fails] * 4, 1)
    ddl.fails = None
    assert ddl.scan(NO_READER, _ends(1))
    assert ddl.reads == 2


def test_a_tables_own_failure_is_no_other_tables(store: SqlStateStore) -> None:
    ddl = _SlowDdl(store, CREATE)
    ddl.fails_once = OSError("the first table's session is gone")
    first, *others = _waiting(ddl)
    ddl.goes_on.set()
    for table in (first, *others):
        table.join(240)
    assert isinstance(first.heard, OSError)
    assert sorted(str(table.heard) for table in others) == ["False", "False", "True"]
    assert ddl.reads == 2


class _MadeAgain(_SlowDdl):
    """Its topic has other statements once it was made again."""

    def _read(self, reader: Any, part: OffsetRange) -> _Page:
        slow = not self.goes_on.is_set()
        found = super()._read(reader, part)
        again = DdlStatement("s", "create table t (id int primary key, n int)", 1)
        return found if slow else _Page([again], part.end)


@pytest.mark.parametrize("by", ["scan", "recall"])
def test_what_was_read_of_a_topic_is_not_used_when_it_was_made_again_meanwhile(
    store: SqlStateStore, by: str
) -> None:
    ddl = _MadeAgain(store, CREATE, "truncate table t")
    old = _Scanning(ddl, _ends(2))
    assert ddl.begun.wait(240)
    new = _Scanning(ddl, _ends(1, "made again")) if by == "scan" else None
    if new is None:
        ddl.recall(_ends(1, "made again"))
    else:
        while ddl._topic_id != "made again":
            new.join(0.01)
    ddl.goes_on.set()
    old.join(240)
    assert isinstance(old.heard, SourceUnavailableError)
    if new is None:
        assert (ddl.get(T), ddl.warnings(T)) == (None, ())
        assert ddl.scan(NO_READER, _ends(1, "made again"))
    else:
        new.join(240)
        assert new.heard is True
    again = _ddl(store)
    again.recall(_ends(1, "made again"))
    for known in (ddl, again):
        assert list(getattr(known.get(T), "by_name", {})) == ["id", "n"]
        assert known.warnings(T) == ()


@pytest.mark.parametrize("time", [{}, {"es": 0}, {"es": None}, {"es": 5}])
def test_no_time_is_none_that_cannot_be(time: dict[str, Any]) -> None:
    message = {"isDdl": True, "database": "s", "sql": "alter table t add c int", "type": "ALTER", **time}
    found = ddl_statement(json.dumps(message).encode())
    assert found is not None
    assert found.odd_time == ""


@pytest.mark.parametrize(
    "said", [{"es": 1 << 45}, {"es": -1}, {"_tidb": {"commitTs": 1 << 63}, "es": 1 << 60}]
)
def test_a_time_that_cannot_be_is_said_and_orders_nothing(said: dict[str, Any]) -> None:
    def event(sql: str, **time: Any) -> DdlStatement:
        message = {"isDdl": True, "database": "s", "sql": sql, "type": "ALTER", **time}
        found = ddl_statement(json.dumps(message).encode())
        assert found is not None
        return found

    definitions = TableDefinitions()
    statements = [
        event(CREATE, es=1_000),
        event("alter table t modify a bigint", **said),
        event("alter table t add c int", es=2_000),
    ]
    (warning,) = learn(definitions, statements, "cdc").warnings
    assert warning.table == T
    assert "has an impossible time (" in warning.text
    assert str(next(reversed(said.values()))) in warning.text
    found = definitions.get(T)
    assert found is not None
    assert found.by_name["a"].type.name == "bigint"
    assert "c" in found.by_name, "what comes later is not taken for a statement sent again"


_SENT = 1_764_158_400_000
_DAY = 86_400_000


@pytest.mark.parametrize(
    ("at", "sent", "odd"),
    [
        (_SENT + _DAY, _SENT, False),  # clocks differ
        (_SENT + _DAY + 1, _SENT, True),
        (_SENT + _DAY + 1, None, False),  # nothing says when the record was sent
        (1000, _SENT, False),  # an old topic that is sent once more
    ],
)
@pytest.mark.parametrize("extended", [True, False])
def test_a_time_a_day_after_the_record_cannot_be(
    at: int, sent: int | None, odd: bool, extended: bool
) -> None:
    time = {"_tidb": {"commitTs": at << 18}, "es": 5} if extended else {"es": at}
    message = {"isDdl": True, "database": "s", "sql": "truncate t", "type": "TRUNCATE", **time}
    found = ddl_statement(json.dumps(message).encode(), 7, sent)
    assert found is not None
    assert (found.since, bool(found.odd_time)) == (None if odd else at << 18, odd)
    (one,) = learn(TableDefinitions(), [found], "cdc").rows
    assert (one.moment, one.odd_time) == (found.since, found.odd_time)
    if odd:
        said = f"commitTs {at << 18}" if extended else f"es {at}"
        assert found.odd_time.startswith(said)
        assert found.odd_time.endswith("of a record that was sent at 2025-11-26 12:00:00.000 UTC")


class _Topic:
    """A reader whose partition 0 has a statement an offset; tasks read halves, in batches of two records."""

    def __init__(self, *topic: str) -> None:
        values = [json.dumps({"isDdl": True, "database": "s", "sql": sql}).encode() for sql in topic]
        spelt = [value.replace(b'"isDdl": true', b'"isDdl":true') for value in values]
        self.records = as_records(Message("cdc", 0, at, None, value) for at, value in enumerate(spelt))
        self.answers: list[int] = []
        self.fails_at: int | None = None
        self.tasks = 2

    @property
    def reader(self) -> TopicReader:
        return cast("TopicReader", self)

    def ask(self, ranges: list[OffsetRange], question: Any) -> list[Any]:
        if len(self.answers) // 2 == self.fails_at:
            raise SourceUnavailableError("silence")
        (part,) = ranges
        middle = part.start + part.records // 2
        found = [question(self._batches(*ends)) for ends in ((part.start, middle), (middle, part.end))]
        self.answers += [sum(map(len, one.values)) for one, _ in found]
        return found

    def _batches(self, start: int, end: int) -> Iterator[Any]:
        return (self.records.slice(at, min(2, end - at)) for at in range(start, end, 2))


class _Log:
    """Partition 0 of a topic: statements and rows, each with the epoch of the leader that wrote it."""

    def __init__(self) -> None:
        self.records: list[tuple[str | None, int]] = []
        self.earliest, self.looked_up, self.again = 0, list[LastRecord](), list[int]()
        # Whether somebody wrote since the look.
        self.elected: list[tuple[str | None, int]] = []

    def read_here(self, ranges: Sequence[OffsetRange]) -> Iterator[Any]:
        (part,) = ranges
        self.again.append(part.start)
        if self.elected:
            self.records, self.elected = self.elected, []
        numbers = range(part.start, min(part.end, len(self.records)))
        found = as_records(Message("cdc", 0, n, None, _event(n, self.records[n][0])) for n in numbers)
        epochs = pa.array([self.records[number][1] for number in numbers], pa.int32())
        yield found.append_column("leader_epoch", epochs)

    def cuts(self, _found: TopicOffsets, known: Mapping[int, LastRecord]) -> dict[int, int]:
        """As of ``LeaderEpochs``: of a record that is there at its offset the epoch tells."""
        (record,) = known.values()
        self.looked_up.append(record)
        if record.offset >= len(self.records) or self.records[record.offset][1] == record.epoch:
            return {}
        return {0: next(at for at, (_, epoch) in enumerate(self.records) if epoch > record.epoch)}

    def look(self, epoch: int | None = None) -> TopicOffsets:
        epoch = self.records[-1][1] if epoch is None else epoch
        ends = {0: PartitionOffsets(self.earliest, len(self.records))}
        return TopicOffsets("cdc", "one", ends, leader_epochs={0: epoch})

    @property
    def reader(self) -> TopicReader:
        return cast("TopicReader", self)

    def ddl(self, store: SqlStateStore, **more: Any) -> TopicDdl:
        return TopicDdl("cdc", pipeline="p", store=store, log=cast("LeaderEpochs", self), **more)


def _event(number: int, sql: str | None) -> bytes:
    """Of a row: nothing that is DDL."""
    event = {"isDdl": sql is not None, "database": "s", "sql": sql, "_tidb": {"commitTs": number + 1}}
    return json.dumps(event).replace('"isDdl": true', '"isDdl":true').encode()


def _kinds(ddl: TopicDdl) -> list[Any]:
    table = ddl.get(T)
    return [table and [*table.by_name], [one.kind for one in ddl.row_ddl(T)]]


ROW: Final = (None, 3)
ADD_X: Final = "ALTER TABLE t ADD COLUMN x INT"
ADD_C: Final = "ALTER TABLE t ADD COLUMN c INT DEFAULT 5"
CREATED: Final = (CREATE, 3)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_ddl_is_read_again_from_where_the_log_was_cut(
    store: SqlStateStore, rows: int, *, restarted: bool
) -> None:
    """The table has applied less, so that nothing of it was cut: the log may be shorter now, or longer."""
    log = _Log()
    log.records = [CREATED, ROW, ROW, ROW, ROW]
    ddl = log.ddl(store)
    ddl.scan(log.reader, log.look())
    assert not ddl.scan(log.reader, log.look())
    assert log.looked_up == []
    log.records = [CREATED, ROW, (ADD_C, 4), ("TRUNCATE TABLE t", 4), *[(None, 4)] * rows]
    log.again.clear()
    if restarted:
        ddl = log.ddl(store)
    assert ddl.scan(log.reader, log.look())
    assert log.again == [2 if rows else 0]  # nobody knows where a log was cut that is shorter
    assert _kinds(ddl) == [["id", "a", "b", "c"], ["truncate"]]
    assert not [one for one in ddl.warnings(T) if "lost records of the topic" in one]
    assert not ddl.scan(log.reader, log.look())
    assert _kinds(log.ddl(store)) == [None, []]
    (again := log.ddl(store)).recall(log.look())
    assert _kinds(again) == _kinds(ddl)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_learned_from_behind_a_cut_is_dropped(store: SqlStateStore, *, restarted: bool) -> None:
    log = _Log()
    log.records = [CREATED, ROW, (ADD_X, 3), ("TRUNCATE TABLE t", 3), ROW]
    ddl = log.ddl(store)
    ddl.scan(log.reader, log.look())
    assert _kinds(ddl) == [["id", "a", "b", "x"], ["truncate"]]
    log.records = [CREATED, ROW, (ADD_C, 4)]
    if restarted:
        ddl = log.ddl(store)
    assert ddl.scan(log.reader, log.look())
    assert log.again[-1] == 0
    assert _kinds(ddl) == [["id", "a", "b", "c"], []]
    general, truncate = [one for one in ddl.warnings(T) if "at the latest from offset 3 on" in one]
    assert "resync" in general
    assert truncate.endswith("TRUNCATE TABLE t")
    (again := log.ddl(store)).recall(log.look())
    assert (_kinds(again), again.warnings(T)) == (_kinds(ddl), ddl.warnings(T))


def test_a_cut_log_whose_beginning_expired_keeps_what_nobody_can_read_again(store: SqlStateStore) -> None:
    log = _Log()
    log.records = [CREATED, ROW, ("TRUNCATE TABLE t", 3), ROW]
    ddl = log.ddl(store)
    ddl.scan(log.reader, log.look())
    log.earliest, log.records = 1, [CREATED, ROW, (ADD_C, 4), (None, 4), (None, 4)]
    ddl.scan(log.reader, log.look())
    assert log.again[-1] == 2
    assert _kinds(ddl) == [["id", "a", "b", "c"], []]


def test_ddl_of_a_leader_that_was_elected_after_the_look_is_read_by_another_look(
    store: SqlStateStore,
) -> None:
    """The log was cut between the look and the read: the next look finds that."""
    log = _Log()
    log.records = [CREATED, ROW]
    ddl = log.ddl(store, ends_now=lambda _found: log.look())
    ddl.scan(log.reader, log.look())
    log.records.append((ADD_X, 3))
    seen = log.look()
    log.elected = [CREATED, ("TRUNCATE TABLE t", 4), (ADD_C, 4)]
    with pytest.raises(SourceUnavailableError, match="elected while the topic's DDL was read"):
        ddl.scan(log.reader, seen)
    assert _kinds(ddl) == [["id", "a", "b"], []]
    assert ddl.scan(log.reader, seen)
    assert _kinds(ddl) == [["id", "a", "b", "c"], ["truncate"]]


def test_ddl_that_never_follows_is_an_error_and_read_again_for_who_goes_on(store: SqlStateStore) -> None:
    """The cluster's metadata is of an older state."""
    log = _Log()
    log.records = [(CREATE, 7), (None, 7)]
    ddl = log.ddl(store)
    ddl.scan(log.reader, log.look())
    log.records.append((ADD_C, 2))
    for _ in range(MOST_DROPS - 1):
        with pytest.raises(SourceUnavailableError, match="was elected"):
            ddl.scan(log.reader, log.look())
    with pytest.raises(SourceError, match="were dropped each time"):
        ddl.scan(log.reader, log.look())
    ddl.scan(log.reader, log.look())
    assert _kinds(ddl) == [["id", "a", "b", "c"], []]


def test_ddl_that_is_read_again_after_a_rewind_is_known_once(store: SqlStateStore) -> None:
    log = _Log()
    swap = "ALTER TABLE t RENAME COLUMN a TO y"
    statements = (CREATE, ADD_X, "TRUNCATE TABLE t", swap, "ALTER TABLE t DROP COLUMN b", ADD_C)
    log.records = [(one, 3) for one in statements]
    ddl = log.ddl(store)
    ddl.scan(log.reader, log.look())
    known = _kinds(ddl), ddl.warnings(T), ddl.row_ddl(T)
    for offset in (*range(6), 9):
        ddl.rewind(log.look(), offset)
        assert (_kinds(ddl), ddl.warnings(T), ddl.row_ddl(T)) == known
        ddl.scan(log.reader, log.look())
        assert (_kinds(ddl), ddl.warnings(T), ddl.row_ddl(T)) == known
    assert log.again == [0, 0, 1, 2, 3, 4, 5]


_COLUMNS = [f"c{at}" for at in range(23)]


def _paged(store: SqlStateStore, fails_at: int | None = None) -> tuple[TopicDdl, _Topic]:
    """A small topic that is read in many pages, each by tasks."""
    topic = _Topic(CREATE, *(f"ALTER TABLE t ADD COLUMN {name} INT" for name in _COLUMNS))
    topic.fails_at = fails_at
    pages = DdlPages(most_bytes=800, few_records=0)
    return TopicDdl("cdc", pipeline="p", store=store, pages=pages), topic


def test_ddl_is_read_in_pages(store: SqlStateStore) -> None:
    ddl, topic = _paged(store)
    assert ddl.scan(topic.reader, _ends(24))
    found = ddl.get(T)
    assert found is not None
    assert [column.name for column in found.columns] == ["id", "a", "b", *_COLUMNS]
    assert len(topic.answers) > 2
    # No task gives more than its share and the batch that goes beyond it.
    assert max(topic.answers) <= 400 + 2 * 100
    assert not ddl.scan(topic.reader, _ends(24))


def test_a_read_that_fails_goes_on_after_the_last_page(store: SqlStateStore) -> None:
    ddl, topic = _paged(store, fails_at=2)
    with pytest.raises(SourceUnavailableError):
        ddl.scan(topic.reader, _ends(24))
    again, topic = _paged(store)
    again.recall(_ends(24))
    known = again.get(T)
    assert known is not None
    assert 3 < len(known.columns) < 26
    assert again.scan(topic.reader, _ends(24))
    found = again.get(T)
    assert found is not None
    assert [column.name for column in found.columns] == ["id", "a", "b", *_COLUMNS]
    assert again.warnings(T) == ()
