"""Where a table without progress begins to read its topic, and what it learns of earlier records: nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.decoded_batches import as_records
from tests.memory_target import MemoryTarget
from tests.unit.codecs.debezium.test_json_plans import _typed
from tests.unit.config.samples import FLAT_AVRO, changed, right, wrong
from tests.unit.sinks.batch.test_range_tasks import ID, NAME, TABLE, Topic
from tests.unit.sinks.worker.bed import worker_context
from tests.worker_contexts import worker_context as with_store
from tidesink.cli.plan import with_standing
from tidesink.cli.table_plans import TablePlan
from tidesink.config import Config
from tidesink.errors import ConfigError, SchemaRefusedError, StateStoreError
from tidesink.events import Column, ColumnType, Message, TableId, TableSchema, Value
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.decode.open import open_decoding
from tidesink.sinks.kafka.offsets import Choose, KafkaOffsets, Look, PartitionOffsets, TopicOffsets
from tidesink.sinks.runtime.context import WorkerContext
from tidesink.sinks.runtime.control import PLACE
from tidesink.sinks.state.progress import TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.open_table import decoding_parts
from tidesink.sinks.worker.run import Worker
from tidesink.sinks.worker.starts import Start, known_start, resolved
from tidesink.sinks.worker.table_task import TableTask

T: Final = TableId("shop", "t")
TOPIC: Final = "app.shop.t"
_DATE: Final = {"type": "int32", "name": "io.debezium.time.Date"}
# A date column became boolean: dates, then booleans.
DATES: Final = tuple(_typed({"id": at, "n": 20000 + at}, n=_DATE) for at in range(2))
FLAGS: Final = tuple(_typed({"id": at, "n": True}, n={"type": "boolean"}) for at in range(3))


def _found(*ends: int, topic_id: str = "an id", earliest: int = 0) -> TopicOffsets:
    return TopicOffsets(TOPIC, topic_id, {n: PartitionOffsets(earliest, end) for n, end in enumerate(ends)})


class _Brokers:
    """By time in seconds, the first offset of each partition from then on."""

    def __init__(self, since: Mapping[float, dict[int, int]] | None = None) -> None:
        self._since = since or {}

    def first_since(self, _topic: str, partitions: list[int], seconds: float) -> dict[int, int]:
        return {n: at for n, at in self._since[seconds].items() if n in partitions}


def _json_config(start: Any, **more: Any) -> Config:
    config = right(changed(FLAT_AVRO, tables=[{"name": "shop.t", "topic": TOPIC, "start": start, **more}]))
    return config.model_copy(
        update={"source": config.source.model_copy(update={"protocol": "debezium-json"})}
    )


def test_words_times_and_offsets_become_offsets() -> None:
    brokers = cast("Any", lambda: _Brokers({1000.0: {0: 5}}))
    found = _found(9, 7, earliest=2)
    assert resolved("earliest", found, brokers) == {}
    assert resolved("latest", found, brokers) == {0: 9, 1: 7}
    # Of a partition without a record since then, its end.
    assert resolved("1970-01-01T00:16:40+00:00", found, brokers) == {0: 5, 1: 7}
    assert resolved({0: 2, 1: 7}, found, brokers) == {0: 2, 1: 7}


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ({0: 3}, "no offset for partition 1. Give an offset for each of the topic's partitions: 0, 1"),
        ({0: 3, 1: 3, 2: 3}, "the topic has no partition 2. Its partitions are: 0, 1"),
        ({0: 1, 1: 3}, "no longer has offset 1 of partition 0, whose first offset is 2"),
        ({0: 3, 1: 8}, "offset 8 of partition 1 is beyond its end"),
        ("1970-01-01T00:16:41+00:00", "is in the future"),
    ],
)
def test_a_start_that_would_lose_records_to_come_is_refused(start: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolved(start, _found(9, 7, earliest=2), cast("Any", _Brokers), now=lambda: 1000.0)


@pytest.mark.parametrize("start", ["now", "2026-11-28", "2026-11-28T10:00:00", {0: 5}, {"0": 4}, 7, True])
def test_what_is_no_start_is_refused_under_defaults(start: Any) -> None:
    found = wrong(changed(FLAT_AVRO, defaults={"start": start}))
    assert "defaults.start" in found
    assert right(changed(FLAT_AVRO, defaults={"start": "2026-11-28T10:00:00Z"})).defaults.start


def test_offsets_are_of_one_table() -> None:
    found = wrong(changed(FLAT_AVRO, tables=[{"match": "shop.*", "start": {0: 5}}]))
    assert found["tables[0].start"].remedy == "use name instead of match, or give a time as the start"


def _start(store: SqlStateStore, start: Any, place: str = "here") -> Start:
    settings = _json_config(start).table_config(T)
    return Start(
        settings, TOPIC, pipeline="p", store=store, brokers=cast("Any", _Brokers), place=lambda: place
    )


def _applied(store: SqlStateStore, *, epoch: int, place: str = "here") -> None:
    status = TableStatus("p", T, "IDLE", batch=1, epoch=epoch, details={PLACE: place})
    assert store.save_status(status)


def test_a_start_is_resolved_once(tmp_path: Path) -> None:
    """A worker that ends before its first batch must not pass over what came meanwhile."""
    store = SqlStateStore(str(tmp_path / "state.db"))
    for end in (3, 9):
        one = _start(store, "latest")
        one.settle(_found(end))
        assert one.offsets == {0: 3}
    # Another topic of that name, and another setting, before anything is applied.
    again = _start(store, "latest")
    again.settle(_found(2, topic_id="another"))
    assert again.offsets == {0: 2}
    other = _start(store, {0: 1})
    other.settle(_found(9, topic_id="another"))
    assert other.offsets == {0: 1}
    (warning,) = other.warnings()
    assert 'offset 1 of partition 0 of topic app.shop.t (start: {"0": 1})' in warning


class _SilentStore(SqlStateStore):
    """Does not answer the first call of one method."""

    silent: str | None = None

    def _answer(self, name: str) -> None:
        if self.silent == name:
            self.silent = None
            raise StateStoreError("no answer")

    def load_document(self, *parts: Any) -> Any:
        self._answer("load_document")
        return super().load_document(*parts)

    def status_of(self, *parts: Any) -> Any:
        self._answer("status_of")
        return super().status_of(*parts)

    def save_document(self, *parts: Any) -> None:
        self._answer("save_document")
        super().save_document(*parts)


@pytest.mark.parametrize("silent", ["load_document", "status_of", "save_document"])
def test_a_store_that_does_not_answer_moves_no_start(tmp_path: Path, silent: str) -> None:
    """Records that came since the worker first saw the topic are read, also after a restart."""
    store = _SilentStore(str(tmp_path / "state.db"))
    store.silent = silent
    one = _start(store, "latest")
    with pytest.raises(StateStoreError):
        one.settle(_found(3))
    one.settle(_found(9, 4))
    assert one.offsets == {0: 3}
    # A partition that was added since is read from its beginning.
    assert one.has_records(_found(3, 1))
    later = _start(store, "latest")
    later.settle(_found(12, 4))
    assert later.offsets == {0: 3}


def test_a_time_is_resolved_once(tmp_path: Path) -> None:
    """Also if no record of a partition is that new yet: its end is fixed then."""
    store = SqlStateStore(str(tmp_path / "state.db"))
    said, answers = "1970-01-01T00:16:40+00:00", ({0: 5}, {0: 5, 1: 8})
    for ends, since in zip(((9, 7), (9, 12)), answers, strict=True):
        one = _start(store, said)
        one._brokers = cast("Any", lambda since=since: _Brokers({1000.0: since}))
        one.settle(_found(*ends))
        assert one.offsets == {0: 5, 1: 7}


def test_a_table_that_has_begun_keeps_its_start_whatever_the_config_says(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    _start(store, "latest").settle(_found(3))
    _applied(store, epoch=1)
    for said in ("earliest", {0: 5}, "latest"):
        one = _start(store, said)
        one.settle(_found(9))
        assert one.offsets == {0: 3}
    # In another target nothing is applied yet.
    elsewhere = _start(store, {0: 5}, place="elsewhere")
    elsewhere.settle(_found(9))
    assert elsewhere.offsets == {0: 5}


def test_a_setting_that_comes_later_changes_nothing(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    _applied(store, epoch=1)
    one = _start(store, "latest")
    one.settle(_found(9))
    assert (one.offsets, one.warnings()) == ({}, ())
    # Unless the table turns out to be empty: it was removed, and is loaded again from the start.
    assert one.is_stale()
    one.begin(_found(9))
    assert not one.is_stale()
    again = _start(store, "latest")
    again.settle(_found(12))
    assert again.offsets == {0: 9}


def test_a_lost_state_store_hides_nothing_that_is_not_applied(tmp_path: Path) -> None:
    """Progress is there, and the start is resolved anew: DDL before it may still be to be followed."""
    store = SqlStateStore(str(tmp_path / "state.db"))
    one = _start(store, "latest")
    one.settle(_found(9, 7))
    assert one.lower({0: 4, 1: 7})
    assert one.offsets == {0: 4, 1: 7}
    assert not one.lower({0: 4, 1: 7})
    again = _start(store, "latest")
    again.settle(_found(12, 12))
    # As the state store knows it by now: what is applied goes on.
    assert not again.lower({0: 12, 1: 12})
    assert again.offsets == {0: 4, 1: 7}


# What decodings learn


def _around(config: Config, folder: Path, messages: tuple[Message, ...], **more: Any) -> WorkerContext:
    source = KafkaSource(lambda wanted: iter([as_records(messages[wanted.start : wanted.end])]))
    return replace(with_store(config, cast("Any", None), folder, **more), source=source)


def test_debezium_json_is_planned_by_the_records_from_the_start_on(tmp_path: Path) -> None:
    """The way out of a type change: dates are in the topic still, and the table is of booleans."""
    messages = (*DATES, *FLAGS)
    around = _around(_json_config("latest"), tmp_path, messages)
    found = _found(len(messages))
    decoding = open_decoding(decoding_parts(around), TOPIC, T)
    decoding.prepare(found, {0: len(DATES)})
    # Also for the rows of a snapshot, which are behind the last ones.
    decoding.catch_up(None, found)
    assert decoding.columns().shape.by_name["n"].spark == "boolean"
    mixed = open_decoding(decoding_parts(around), TOPIC, T)
    mixed.prepare(found)
    with pytest.raises(SchemaRefusedError):
        mixed.catch_up(None, found)


@pytest.mark.parametrize("behind", [0, 1])
def test_flat_avro_is_planned_by_the_schemas_of_records_from_the_start_on(
    tmp_path: Path, behind: int
) -> None:
    """Before there are any, by the newest."""
    topic = Topic()
    rows: tuple[tuple[str, Value], ...] = (("date", "2020-01-01"), ("bigint", 5))
    for at, (kind, value) in enumerate(rows):
        topic.write(
            TableSchema(TABLE, (ID, NAME, Column("n", ColumnType(kind)))), {"id": at, "name": "a", "n": value}
        )
    around = _around(right(FLAT_AVRO), tmp_path, tuple(topic.messages), registry=topic.registry)
    found = TopicOffsets("t", "an id", {0: PartitionOffsets(0, 2)})
    whole = open_decoding(decoding_parts(around), "t", TABLE)
    with pytest.raises(SchemaRefusedError):
        whole.prepare(found)
    decoding = open_decoding(decoding_parts(around), "t", TABLE)
    decoding.prepare(found, {0: 2 - behind})
    assert decoding.columns().shape.by_name["n"].spark == "bigint"


# What a task does


@pytest.fixture
def task_of(tmp_path: Path) -> Callable[..., TableTask]:
    def made(start: Any, messages: tuple[Message, ...], **more: Any) -> TableTask:
        store = SqlStateStore(str(tmp_path / "state.db"))
        around = worker_context(_json_config(start, **more), store=store)
        source = KafkaSource(lambda wanted: iter([as_records(messages[wanted.start : wanted.end])]))
        return TableTask(replace(around, source=source, target=MemoryTarget()), TOPIC, T)

    return made


def test_a_table_waits_for_a_record_behind_its_start(task_of: Callable[..., TableTask]) -> None:
    """Nothing else tells its columns, and it fails for that no more than a topic without a record."""
    task = task_of("latest", (*DATES, *FLAGS))
    task.look(_found(2))
    assert (task.opened.start.offsets, task.reading.lag, task.has_work(_found(2))) == ({0: 2}, 0, True)
    task.work(_found(2))
    assert (task.state, task.has_work(_found(2))) == ("IDLE", False)
    (warning,) = task.report().warnings
    assert "offset 2 of partition 0 of topic app.shop.t (start: latest). Earlier records" in warning
    assert "Rows that have not changed since then are missing." in warning
    assert warning.endswith("run `tidesink snapshot start shop.t`.")
    # A restart does not move it.
    later = task_of("latest", (*DATES, *FLAGS))
    later.look(_found(3))
    assert (later.opened.start.offsets, later.reading.lag, later.has_work(_found(3))) == ({0: 2}, 1, True)


@pytest.mark.parametrize("silent", ["load_document", "status_of", "save_document"])
def test_a_start_that_was_not_stored_is_stored_at_the_next_look(tmp_path: Path, silent: str) -> None:
    """An empty topic gives the table no work, so that nothing else would store it."""
    store = _SilentStore(str(tmp_path / "state.db"))
    around = replace(worker_context(_json_config("latest"), store=store), target=MemoryTarget())
    task, later = (TableTask(around, TOPIC, T) for _ in range(2))
    store.silent = silent
    task.look(_found(0))
    assert known_start(store, "shop", T, TOPIC) is None
    task.look(_found(5))
    assert task.opened.start.offsets == {0: 0}
    later.look(_found(7))
    assert later.opened.start.offsets == {0: 0}


class _Look(KafkaOffsets):
    """Answers each look with one state of the topic."""

    def __init__(self, found: TopicOffsets) -> None:
        self._one = found

    def look(self, choose: Choose, *_unread: Any) -> Look:
        return Look(dict.fromkeys(choose([TOPIC]), self._one), {})


def test_a_run_ends_where_nothing_is_behind_the_start(tmp_path: Path) -> None:
    store = SqlStateStore(str(tmp_path / "state.db"))
    around = replace(worker_context(_json_config("latest"), store=store), target=MemoryTarget())
    report = Worker(around, until="drained", offsets=_Look(_found(2))).run()
    assert [(one.state, one.lag, one.error) for one in report.tables] == [("IDLE", 0, None)]
    (status,) = store.statuses("shop")
    assert (status.state, len(status.warnings)) == ("IDLE", 1)


def test_a_defined_table_opens_at_its_start_and_has_no_lag_before_it(
    task_of: Callable[..., TableTask],
) -> None:
    sql = "create table t (id bigint primary key, n boolean)"
    task = task_of("latest", (*DATES, *FLAGS), definition=sql)
    task.look(_found(2))
    task.work(_found(2))
    assert task.opened.hold is not None
    assert (
        task.state,
        task.reading.stalled,
        task.reading.unread(_found(2)),
        task.reading.unread(_found(5)),
    ) == ("IDLE", True, 0, 3)
    assert not task.has_work(_found(2))


def test_a_topic_made_again_has_a_start_of_its_own(task_of: Callable[..., TableTask]) -> None:
    sql = "create table t (id bigint primary key, n boolean)"
    task = task_of("latest", (*DATES, *FLAGS), definition=sql)
    task.work(_found(4))
    assert task.opened.start.offsets == {0: 4}
    task.look(_found(1, topic_id="another"))
    task.work(_found(1, topic_id="another"))
    assert (task.state, task.opened.start.offsets) == ("IDLE", {0: 1})


def test_an_impossible_start_is_said_and_applies_nothing(task_of: Callable[..., TableTask]) -> None:
    task = task_of({0: 9}, FLAGS)
    task.look(_found(3))
    task.work(_found(3))
    assert task.state == "FAILING"
    assert "offset 9 of partition 0 is beyond its end (3)" in (task.report().error or "")
    assert known_start(cast("Any", task)._context.store, "shop", T, TOPIC) is None


# What plan says


def test_plan_says_where_a_table_begins_and_why_it_rests() -> None:
    entry = TablePlan(T, TOPIC)

    def warnings(start: Any, status: TableStatus | None = None, **more: Any) -> tuple[str, ...]:
        return with_standing(_json_config(start, **more), entry, status).warnings

    assert warnings("earliest") == ()
    assert warnings("latest") == (
        "start: latest: the table begins with the records from then on. Earlier records are not applied",
    )
    begun = TableStatus("shop", T, "PAUSED", batch=3, error="A schema change waits")
    assert warnings("latest", begun) == (
        "start: latest has no effect, because records of the table are already applied. To read its topic "
        "again, use `tidesink offsets rewind shop.t --to-beginning`",
        "The worker last reported that the table is PAUSED: A schema change waits",
    )
