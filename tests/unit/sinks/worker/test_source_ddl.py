"""What a Debezium connector's topic of DDL says of rows, by records that a live connector wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.golden.debezium_captures import Capture
from tests.memory_target import CAPABILITIES
from tests.unit.config.samples import CANAL_JSON, changed, right, wrong
from tidesink.codecs import open_codec
from tidesink.config.fields import SchemaChanges
from tidesink.config.table_checks import shown_policies
from tidesink.errors import SourceError
from tidesink.events import Message, TableId
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.leader_epochs import MOST_DROPS, LeaderEpochs
from tidesink.sinks.kafka.offsets import Look, PartitionOffsets, TopicOffsets
from tidesink.sinks.schema_changes.connector_topic import SchemaChangeTopic, SourceStatement, statements
from tidesink.sinks.schema_changes.decisions import Accepted, Pending, Policies, SchemaChange
from tidesink.sinks.schema_changes.row_ddl import change_of, decided_statements, shown_together
from tidesink.sinks.state.progress import LastRecord
from tidesink.sinks.state.sql_store import open_state_store
from tidesink.sinks.worker.source_ddl import waiting

DATA: Final = Path(__file__).parents[3] / "golden" / "data"
TOPIC: Final = "shop"
CODEC: Final = open_codec("debezium-json")
A: Final = TableId("live", "a")


def _recorded() -> list[Message]:
    lines = (DATA / "debezium-ddl" / "mariadb.jsonl").read_text(encoding="utf-8").splitlines()
    parts = [json.loads(line) for line in lines]
    return [
        Message(TOPIC, 0, number, one["key"].encode(), one["value"].encode(), 1_795_738_000_000 + number)
        for number, one in enumerate(parts)
    ]


def _read(messages: Sequence[Message]) -> list[SourceStatement]:
    return [one for message in messages for one in statements(message, CODEC.decode)]


def _pending(found: Sequence[SourceStatement], policies: Policies, refusal: str = "") -> tuple[Pending, ...]:
    decisions = decided_statements((statement.ddl for statement in found), policies)
    return shown_together(waiting(decisions, refusal))


def test_recorded_statements_that_change_rows() -> None:
    """A snapshot's DROP TABLE is none; TRUNCATE was run, and the connector wrote nothing of it."""
    found = [(str(one.ddl.table), one.ddl.kind, one.ddl.statement) for one in _read(_recorded())]
    assert found == [
        ("live.parts", "partition", "ALTER TABLE live.parts DROP PARTITION p0"),
        ("live.parts", "partition", "ALTER TABLE live.parts TRUNCATE PARTITION p1"),
        ("live.a", "rename-table", "RENAME TABLE live.a TO live.x"),
        ("live.x", "rename-table", "RENAME TABLE live.a TO live.x"),
        ("live.b", "rename-table", "RENAME TABLE live.b TO live.a"),
        ("live.a", "rename-table", "RENAME TABLE live.b TO live.a"),
        ("live.x", "rename-table", "RENAME TABLE live.x TO live.b"),
        ("live.b", "rename-table", "RENAME TABLE live.x TO live.b"),
        ("live.c", "rename-table", "ALTER TABLE live.c RENAME TO live.d"),
        ("live.d", "rename-table", "ALTER TABLE live.c RENAME TO live.d"),
        ("live.a", "rename", "ALTER TABLE live.a RENAME COLUMN v TO w"),
        ("live.a", "drop-table", "DROP TABLE `live`.`a`"),
        ("live.b", "drop-table", "DROP TABLE `live`.`b`"),
        ("live.d", "drop-table", "DROP TABLE IF EXISTS `live`.`d`"),
        ("live.", "drop-table", "DROP DATABASE live"),
    ]


def test_recorded_statements_in_avro() -> None:
    capture = Capture(DATA / "debezium" / "mdb_avro.jsonl")
    decode = capture.codec().decode
    records = [message for message in capture.messages if message.topic == capture.name and message.value]
    found = [(one.ddl.table.name, one.ddl.kind) for each in records for one in statements(each, decode)]
    tables = [("late_t", "rename-table"), ("late_t2", "rename-table"), ("t_gen", "drop-table")]
    assert [one for one in found if one[1] != "values"] == [("orders", "rename"), *tables]
    # A column that is defined anew may be narrower, which no record says.
    assert found[0] == ("orders", "values")
    assert len(found) == 1 + len(tables) + 1


def test_a_statement_is_known_by_its_place_in_the_log() -> None:
    """Sent again it is the same for who decided it; the next of the same text is another."""
    (first, *_), (again, *_) = (_read([replace(_recorded()[21], offset=n)]) for n in (21, 40))
    assert first.ddl.offset != again.ddl.offset
    assert change_of(first.ddl).digest == change_of(again.ddl).digest
    assert first.ddl.time.startswith("2026-")
    assert _recorded()[21].value is not None
    other = replace(_recorded()[21], value=(_recorded()[21].value or b"").replace(b"0-1-30", b"0-1-99"))
    assert change_of(_read([other])[0].ddl).digest != change_of(first.ddl).digest


class _Topic:
    """The topic's records, and who reads them."""

    def __init__(self, folder: Path) -> None:
        self.records = _recorded()
        self.topic_id = "first"
        self._store = folder / "state.db"
        self.reads = self.earliest = 0
        # The leader's epoch, which the records have that are read under it.
        self.epoch = 1

    def fetch(self, part: FetchRange) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        records = as_records(self.records[part.start : part.end])
        yield records.append_column("leader_epoch", pa.array([self.epoch] * records.num_rows, pa.int32()))

    def reader(self, log: LeaderEpochs | None = None) -> SchemaChangeTopic:
        store = open_state_store(self._store)
        return SchemaChangeTopic(TOPIC, pipeline="shop", source=KafkaSource(self.fetch), store=store, log=log)

    def look(self, reader: SchemaChangeTopic) -> Look:
        ends, epochs = {0: PartitionOffsets(self.earliest, len(self.records))}, {0: self.epoch}
        found = {
            TOPIC: TopicOffsets(TOPIC, self.topic_id, ends, leader_epochs=epochs),
            "rows": TopicOffsets("rows", "id", {}),
        }
        return reader.take(Look(found, {}), CODEC.decode)


def test_what_was_read_is_remembered_and_read_again_where_it_was_lost(tmp_path: Path) -> None:
    topic = _Topic(tmp_path)
    reader = topic.reader()
    assert [*topic.look(reader).found] == ["rows"]
    found = reader.of(A)
    kinds = ["rename-table", "rename-table", "rename", "drop-table", "drop-table"]
    assert [one.ddl.kind for one in found] == kinds
    assert topic.reads == 1
    topic.look(again := topic.reader())
    assert (again.of(A), topic.reads) == (found, 1)
    (tmp_path / "state.db").unlink()
    topic.look(again := topic.reader())
    assert (again.of(A), topic.reads) == (found, 2)


def test_a_statement_that_is_sent_again_stands_where_it_was_sent_last(tmp_path: Path) -> None:
    topic = _Topic(tmp_path)
    topic.look(reader := topic.reader())
    before = {one.ddl.at: one.ddl.offset for one in reader.of(A)}
    topic.records.append(replace(topic.records[21], offset=len(topic.records)))
    topic.look(reader)
    after = {one.ddl.at: one.ddl.offset for one in reader.of(A)}
    assert after.keys() == before.keys()
    assert [offset for at, offset in after.items() if before[at] != offset] == [27]


def test_a_topic_that_was_made_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    topic = _Topic(tmp_path)
    topic.look(reader := topic.reader())
    topic.topic_id, topic.records = "second", topic.records[:22]
    topic.look(reader)
    assert reader.topic_id == "second"
    kinds = ["rename-table", "rename-table", "rename", "drop-table"]
    assert [one.ddl.kind for one in reader.of(A)] == kinds


def test_records_that_expired_unread_are_told_until_the_topic_is_made_again(tmp_path: Path) -> None:
    topic = _Topic(tmp_path)
    records = topic.records
    topic.records = records[:3]
    topic.look(reader := topic.reader())
    topic.records, topic.earliest = records, 9
    for again in (reader, topic.reader()):  # a worker that is started again, too
        topic.look(again)
        assert "deleted by retention before they were read" in again.problem
    topic.topic_id = "second"
    topic.look(reader)
    assert reader.problem == ""


class _Cut(LeaderEpochs):
    """A log that was cut at an offset; ``known``: the records that were looked up."""

    def __init__(self, offset: int) -> None:
        self.offset, self.known = offset, list[LastRecord]()

    def cuts(self, found: TopicOffsets, known: Mapping[int, LastRecord]) -> dict[int, int]:  # noqa: ARG002
        self.known += known.values()
        return {n: self.offset for n, record in known.items() if record.offset >= self.offset}


def test_a_topic_that_was_cut_and_has_grown_again_is_read_from_the_cut(tmp_path: Path) -> None:
    """It is looked up once it has a new leader, also by a worker that is started again."""
    topic, log = _Topic(tmp_path), _Cut(20)
    records = topic.records
    topic.records = records[:22]
    topic.look(topic.reader(log))
    topic.records = records[:24]
    topic.look(reader := topic.reader(log))
    assert (reader.problem, log.known) == ("", [])
    topic.epoch, topic.records = 2, records
    topic.look(reader := topic.reader(log))
    assert "unclean leader election" in reader.problem
    assert log.known == [LastRecord(23, 1)]
    assert [one.ddl.kind for one in reader.of(A)][-1] == "drop-table"
    topic.records = [*records, replace(records[21], offset=len(records))]
    topic.look(reader)
    assert log.known == [LastRecord(23, 1)]


def test_a_topic_that_was_cut_and_is_shorter_is_read_again_at_the_second_look(tmp_path: Path) -> None:
    """A broker can answer from before; and it may not outgrow its old end for months."""
    topic = _Topic(tmp_path)
    records = topic.records
    topic.records = records[:20]
    topic.look(reader := topic.reader())
    known = reader.of(A)
    # One answer from before changes nothing.
    topic.records = records[:10]
    topic.look(reader)
    topic.records = records[:20]
    topic.look(reader)
    assert (reader.problem, topic.reads) == ("", 1)
    # It was cut at 10, and has had another statement since.
    topic.epoch, topic.records = 2, [*records[:10], replace(records[21], offset=10)]
    for _ in range(2):
        assert (reader.problem, reader.of(A)) == ("", known)
        topic.look(reader)
    assert "unclean leader election" in reader.problem
    assert [one.ddl.offset for one in reader.of(A) if one not in known] == [10]
    again = topic.reader()
    topic.look(again)
    assert (again.of(A), again.problem) == (reader.of(A), reader.problem)


def test_records_that_never_follow_those_before_are_told_and_read_on(tmp_path: Path) -> None:
    """The cluster's metadata is of an older state."""
    topic, log = _Topic(tmp_path), _Cut(99)
    records = topic.records
    topic.records, topic.epoch = records[:20], 7
    topic.look(reader := topic.reader(log))
    topic.records, topic.epoch = records, 2
    for _ in range(MOST_DROPS - 1):
        topic.look(reader)
        assert reader.problem == ""
    topic.look(reader)
    assert "were dropped each time" in reader.problem
    known = reader.of(A)
    topic.look(reader)
    assert "unclean leader election" in reader.problem
    assert len(reader.of(A)) > len(known)


def test_a_record_that_nobody_foresaw_stops_no_table(tmp_path: Path) -> None:
    reader = _Topic(tmp_path).reader()

    def decode(_message: Message) -> tuple[()]:
        raise LookupError("odd")

    found = {TOPIC: TopicOffsets(TOPIC, "first", {0: PartitionOffsets(0, 2)})}
    assert reader.take(Look(found, {}), decode) == Look({}, {})
    assert "LookupError" in reader.problem


def test_a_topic_that_is_not_there_or_not_readable_is_told(tmp_path: Path) -> None:
    reader = _Topic(tmp_path).reader()
    reader.take(Look({}, {}), CODEC.decode)
    assert "no topic shop" in reader.problem
    reader.take(Look({}, {TOPIC: SourceError("no rights")}), CODEC.decode)
    assert "no rights" in reader.problem
    _Topic(tmp_path).look(reader)
    assert reader.problem == ""


def test_a_rename_of_a_column_is_shown_as_a_statement() -> None:
    """The target may have neither name, or both."""
    (found,) = (one for one in _read(_recorded()) if one.ddl.kind == "rename")
    ((change, ways, reason),) = _pending([found], Policies(SchemaChanges(), {}, CAPABILITIES))
    shown = Pending(change, ways, reason).as_json()
    assert (shown["kind"], shown["statement"]) == ("rename", "ALTER TABLE live.a RENAME COLUMN v TO w")
    assert (shown["column"], shown["from"], shown["accepts"]) == ("", "", ["apply", "ignore"])
    assert "NULL under the new one (v to w)" in reason
    assert change.changes_rows
    assert not SchemaChange("rename", "v", "v", "w", "7").changes_rows


@pytest.mark.parametrize("refusal", ["", "no database"])
def test_who_decides(refusal: str) -> None:
    """Any statement can be approved, unless nothing can follow it; what is ignored waits for nobody."""
    found = [one for one in _read(_recorded()) if one.ddl.kind == "partition"]
    ways = ("ignore",) if refusal else ("apply", "ignore")

    def waiting(accepted: Accepted, **changes: Any) -> list[tuple[str, ...]]:
        policies = Policies(SchemaChanges(**changes), accepted, CAPABILITIES)
        return [one.accepts for one in _pending(found, policies, refusal)]

    assert waiting({}) == [ways, ways]
    assert waiting({}, partition="ignore") == []
    assert waiting({change_of(found[0].ddl).digest: "ignore"}) == [ways]
    assert waiting({change_of(one.ddl).digest: "apply" for one in found}) == ([ways, ways] if refusal else [])


CONFIG: Final = changed(
    CANAL_JSON,
    source__protocol="debezium-json",
    source__topics=["app.{schema}.{table}"],
    source__debezium={"schema-change-topic": "app.of.ddl"},
)


def test_the_topic_is_none_of_those_with_rows() -> None:
    config = right(CONFIG)
    assert config.topics_among(["app.of.ddl", "app.shop.orders"]) == ("app.shop.orders",)
    found = wrong(changed(CONFIG, source__topics=["app.of.ddl", "app.shop.orders"]))
    assert "source.debezium.schema-change-topic" in found


def test_policies_of_what_the_topic_tells() -> None:
    told = changed(CONFIG, defaults__schema_changes={"partition": "ignore"})
    assert "partition ignore" in shown_policies(right(told).defaults.schema_changes, right(told))
    assert "rename pause" in shown_policies(right(told).defaults.schema_changes, right(told))
    (silent,) = wrong(changed(told, source__debezium={})).values()
    assert "schema-change-topic" in silent.remedy
    (silent,) = wrong(
        changed(CONFIG, source__debezium={}, defaults__schema_changes={"rename": "ignore"})
    ).values()
    assert "schema-change-topic" in silent.remedy
    drop = changed(CONFIG, defaults__schema_changes={"drop": "apply"})
    assert "defaults.schema-changes.drop" in wrong(drop)
    apply = changed(CONFIG, defaults__schema_changes={"drop-table": "apply"})
    (refused,) = wrong(apply).values()
    assert "source.database" in refused.reason
    right(changed(apply, source__database="mysql+pymysql://reader@db/shop"))


def _created(statement: str, *changes: dict[str, Any]) -> Message:
    """A record of the connector's for a statement, of the form of a recorded CREATE TABLE."""
    recorded = _recorded()[24]
    value = json.loads(recorded.value or b"")
    value |= {"ddl": statement, "tableChanges": [*changes]}
    value["source"]["table"] = "a" if changes else None
    return replace(recorded, value=json.dumps(value).encode())


@pytest.mark.parametrize(
    ("statement", "kinds"),
    [
        ("CREATE OR REPLACE TABLE live.a (id int PRIMARY KEY, b int, a int)", ["drop-table", "unknown"]),
        ("CREATE OR REPLACE TABLE a (id int PRIMARY KEY, b int, a int)", ["drop-table", "unknown"]),
        # Behind CREATE OR REPLACE DATABASE: the connector has the tables that were in it.
        ("CREATE TABLE live.a (id int PRIMARY KEY, b int, a int)", ["unknown"]),
        ("CREATE TABLE IF NOT EXISTS live.a (id int PRIMARY KEY)", []),
        ("CREATE OR REPLACE TEMPORARY TABLE live.a (id int)", []),
        ("CREATE OR REPLACE VIEW live.a AS SELECT 1", []),
    ],
)
def test_a_table_whose_new_columns_the_connector_did_not_read_waits(statement: str, kinds: list[str]) -> None:
    """Rows that follow have values under the old names (seen with a live connector): approving says so."""
    found = _read([_created(statement)])
    assert [(one.ddl.kind, one.ddl.table) for one in found] == [(kind, A) for kind in kinds]
    policies = Policies(SchemaChanges.model_validate({"drop-table": "apply"}), {}, CAPABILITIES)
    waiting = _pending(found, policies) if kinds else ()
    assert [one.change.kind for one in waiting] == kinds[-1:]
    assert all("values under wrong names" in one.reason for one in waiting)
    # A connector that knew no table of the name has read them.
    read = _read([_created(statement, {"type": "CREATE", "id": '"live"."a"', "table": {}})])
    assert [one.ddl.kind for one in read] == [kind for kind in kinds if kind != "unknown"]
